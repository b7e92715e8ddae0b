//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "d0c40ba16bf36e2768449e2ce513c46e",
    "484ebe4aa4f4b83641588305755cd80d",
    "8b2f93048fa4eb3d152464b1e92bad51",
    "9d6586443d1127dff41535895a6d6ae5",
    "736341afaa4b419c059bc64cd87f65c9",
    "27374f1cb31d1b92bcd02a54d63c0f90",
    "c5d65a8b97566e8a02dfcd245598ec3e",
    "d9aa6d26ffe1597837a8222bface829d",
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
