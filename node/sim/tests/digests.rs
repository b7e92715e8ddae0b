//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "b542e4d689f661042f8be033a82243d2",
    "3243b66c26074860d996f0bd4c9f350d",
    "ffd41b1d83f76d6f8c89f965badf1b1a",
    "85c9dbb56f7a00ce5cab9ef08b093650",
    "4d6be25e827ab7ad524fa3e0862e9bf8",
    "64fbfd369edff5f4ebf31a93a08a603c",
    "a94d809b86460285ca6cb4d667e22a1d",
    "c4b822eb03c09760021257068fa08b5b",
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
