//! The same seed gives the same run on every machine.

use holdfast_sim::Profile;
use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 11] = [
    "0ee76073e18cffa1a5792ac572984eca",
    "412ea2c9c1ad96b5eb44bd4cd258c60c",
    "fcb5837a52ccd990feb7e0c67a83852c",
    "82316b533297269c3910fed84350d65e",
    "ca1919e3513c5b434b5a175f02bdda8f",
    "5c8815aa17b13a415bf452de1f4c83e7",
    "08f0e9c9228564305a302de9c2ffe395",
    "d486927a377bac982b0ade2da624c256",
    "d74fb2ba1d38bce42261c12d723f138f",
    "5a4b7105d5c736bdd3d882cdb80be180",
    "5655908fcb8b445038f17866bb5a40a1",
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
