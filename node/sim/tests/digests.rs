//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "ad32f594ca28a93c1f8baf5d7b911c04",
    "2e4e1274053b89b60a7b9c9b3d78c21c",
    "eebe974934a2a178d7679966fd537478",
    "b8c409fbe613b2ef35f4e8fd7901bc98",
    "14de13604b19b21315dc9ce16bddfac9",
    "8cc3cb7947fd1fd7e0570f76492f8a85",
    "1605ba7f341e011cf6be91f8e0fae041",
    "bd3ef2b03c317bf94e3d2ec84c05b019",
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
