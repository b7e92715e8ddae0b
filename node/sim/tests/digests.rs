//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "61fccf41cb038dc66fc2ac269f731ecd",
    "a495c75e6d505bd6e9de3de9db273c8d",
    "bf99afece07cd2efd42f9052c3471e89",
    "57c818597597278b140c6133a3a71daf",
    "a07911c763662a1ac646b29fe9736611",
    "6b186ff5ebe6719fd7c12bdaaeb9b93a",
    "dff8d1208a7ba84b8b1fbe3dee9a5d36",
    "ae1d165267c86b56a8930a4494736b46",
    "83ac124c546a91fc4333e2d986064ab0",
    "3c60d6bbd0ee6b882e2936a02cc633d8",
    "6c7ba951f1cf8c5f8b55f00f870b9a76",
    "9ee4d2e83c4b7ae11bafad88da883215",
    "3679c99e2abfb42905b032343826fc67",
    "efa25a0cd2825db5fd2de8a476787474",
    "f765e14fb5c21a8e0ff15979429a8237",
    "77f3c766cb1a51e5817497b0359a12ee",
    "a7902214cd41599db7fa1c3afbad17dc",
    "146ecb580f39ba41b25112be2bda1a9a",
    "b32e5afd1dc7e5c6021a64efbb60223a",
    "b8ad84a6659b947c1edc1666a5ab93d6",
    "4279a3b6479983f278f9371dcd81c9ce",
    "fa97cb2c1eff3ff26a6b08a8723b267b",
    "10e1f81dff38c73d6608cd02ba9d3834",
    "f319960ed385e2d01b53c1aabb4e12d1",
    "bd3041dfcec61af77fbb9f3a133de411",
    "d2bd3f4d320cde4687a3e3b8cf5a73c5",
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
