//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "7b8b7cd5fad864f763e9f4e98894f94a",
    "2c6d8c0996fec89fdc3d669c56af2e03",
    "0d389e0c52b9ec50b13794fb062ae4c8",
    "04aee5afdd44a121828783ddf2e8bcd4",
    "4d7405d810794512b1c1f36bfc63d24e",
    "06f5a45b50333b06f022d2d7d1dc1a73",
    "d986930b9567da4f4def7f790ae66077",
    "f871eda73e95a5cb053ae8982bd9fbef",
    "8036b9e148afad82729d10f3e6fbbffd",
    "f5990d5d27f38186425dbc24ab021a7f",
    "a5b5089fe7521fc6c6b71001e757789e",
    "6279baf471a9ffea43703dae681a3a18",
    "8bf3d23744ffe074249b437dd7eb0ca6",
    "c3f9232f46b4bfe41e3d3985a8e3b294",
    "8e41580b27775a42848df4cb6f73155f",
    "a21e3ec70c2c4254afb996048db72e8f",
    "9293d1fb8dc10c32f458941f155be99c",
    "464c18ad12944541aa8534a73e8335a0",
    "61e48d62d8a957256eb4667a966bb3ce",
    "3bb054da889c3395058fc126351acda8",
    "94dcdb7b96b14343d449b30f6d1b802a",
    "9a2a5df4b6db425da66bf49f47e8c769",
    "73a6167f4c0048c235712a9fbe15f42c",
    "1de678ca2539ae9eb64c4e5f22cfa75f",
    "3624f1922d914c86ddedbf114be9afef",
    "7b676323ae8f1b701bf2fbf0976aa02b",
];

#[test]
fn a_fleet_is_the_same_each_time() {
    for seed in 0..8 {
        let case = FleetCase { seed, volumes: 4, operations: 6000, bug: None };
        assert_eq!(case.run(0).digest, case.run(0).digest, "seed {seed}");
    }
}

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..26)
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
