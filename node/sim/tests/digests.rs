//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "83977f095381047475b8016d6a1cd0fa",
    "2e4e1274053b89b60a7b9c9b3d78c21c",
    "a2b0f4dbb405300318c6487183d29c3c",
    "b8c409fbe613b2ef35f4e8fd7901bc98",
    "a5b653eca92b5cc0d634496f2bca26ca",
    "8c335899f99fcc9f6a32732298854a8b",
    "b5c7c89ffab48670827862ed2ffa8898",
    "df657efd58b49d31f3aaf0a60b54705f",
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
