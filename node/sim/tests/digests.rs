//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "b542e4d689f661042f8be033a82243d2",
    "ae0b97f49959e73da97d31dbd350c1dc",
    "ffd41b1d83f76d6f8c89f965badf1b1a",
    "4b1114895058e5d32ca94d7d95228f98",
    "7445efd18d7dbf958f6513d549d72fb9",
    "4429165625edf62b5b1f4caf47fb073d",
    "d6cde3ee3e44bf3d6708be9fbd266735",
    "ebec919c703726350a3390f68441145d",
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
