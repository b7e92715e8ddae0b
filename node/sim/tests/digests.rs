//! The same seed gives the same run on every machine.

use holdfast_sim::Profile;
use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 11] = [
    "1a02a73c49c25a3818ebb87e9dbb4c6e",
    "dd1c7b646186297afe3d32c5cd2ba5a2",
    "829792f1cfbcc444fa255b6832a688ec",
    "89d4aafa738dfe00066103245356b252",
    "31fb33ad3e03982ff0e6c8d986cc0c66",
    "7d7641a6562c4e65a80bff6f2f634440",
    "3f4f0a8f6d72fc3461c3c40f7fd85786",
    "d486927a377bac982b0ade2da624c256",
    "fdc6aeaad817b1378eaf64b57234de9a",
    "7be7e1ede795bdfdb242b0676d86d8bb",
    "63cfe18e8f54ff16b1a14c77655e2b23",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..Profile::ALL.len() as u64)
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
