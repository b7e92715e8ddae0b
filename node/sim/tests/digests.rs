//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "b542e4d689f661042f8be033a82243d2",
    "93f4e74a1621a931fb4d709225752dc4",
    "ffd41b1d83f76d6f8c89f965badf1b1a",
    "db31c83812a372c7134eddc99dafdc14",
    "b3efdfcb569c92522db288c6ea70865b",
    "74d7dcb08390524a2269b88960f8d637",
    "303ed73af8f08979d4cea35a9de71aac",
    "811f1558c0382784350ec8b4e4f47fd0",
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
