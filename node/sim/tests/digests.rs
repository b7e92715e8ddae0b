//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "1b9ae1f7b2bcaaf5ad3dd0f0b60daf8d",
    "b456732e9a83eb03b4d634ee50c14f13",
    "c68747b929c5cacc2799451f3b29690e",
    "133d192a0182a91df172f566a12ca7f9",
    "086ccd107385e883f1fc76596f91a885",
    "de425c0c9716aede8f8d9c99b27552d1",
    "fdf5e85831ac7deca383fcffe6ef03af",
    "d2939d92696ad0d5013c68dd6cc69052",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..8)
        .map(|seed| Case { seed, operations: 3000, bug: None }.run(0).digest[..32].to_owned())
        .collect();
    assert!(digests == DIGESTS, "the digests are now:\n{digests:#?}");
}

#[test]
fn telling_the_story_changes_nothing() {
    let case = Case { seed: 7, operations: 1500, bug: None };
    let told = case.run(50);
    assert_eq!(told.story.len(), 50);
    assert_eq!(told.digest, case.run(0).digest);
}
