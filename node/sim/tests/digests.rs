//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "9ba628f60d74d604de6ac1391b171b21",
    "a3c6df16b37c1b6f3eecb62f0bbad8fb",
    "f3a542569c32838b44a5fcc2298fca3c",
    "71c06f1cdf116c30e1489420faf088ad",
    "c5aa1c7f9029688a9dacad1cc06debc8",
    "2397eb57fc8a41a42165abb544ef8bd7",
    "e67741781de0c0c7b8a96c746f5e984d",
    "5c4024829c9e1513a00e2b16af041d38",
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
