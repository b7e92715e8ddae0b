//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "f2261bbe88e48a5d6e3ac1d0e9f13318",
    "f5a8240028ee2065749ace39ebc597d4",
    "a5522a46cfa0d9820ad985172dc0fc11",
    "ad4762052eb4566a0aba2c46d03a8c1b",
    "3ec6c8b6bafb04cdd3710597575457cf",
    "183ce64822c34cc9473f5caf4b6c3006",
    "9e5f9d43221276003bf43c4d9fdd4769",
    "5694cbf4069b8af5194e66378edce813",
    "35794a8be02bfebf5d22b7ba225b39d5",
    "8bb448db6c25ba5c0b19c6114ffadc1f",
    "6ad3646a33d695de9f62df73af036f19",
    "35fe5b20022bc301bfe55f8a7cbd75a9",
    "537469758ef4165a42828b567a2d9223",
    "fe37cf46236e69710a92d5b63ef626ea",
    "d4148617dc700f670807b268568c9227",
    "fc9afcc6661adaa4ecc97721faf40198",
    "698b8e030d019bb0d498cf7b2c01cf53",
    "db1ddf7b915d72f7496a21faf8e24b46",
    "8d2bb21d5decc903fa6d0b5111827027",
    "e365c542fadf400de1dcf0c8dd40db74",
    "8f0a2b3d5a1d6689c5afd40d13f0e537",
    "1bd68e06e4df02683cef0494583a7f29",
    "0d539faf8e081f4707154e5222464be3",
    "1d036a801e12f055d86ccc577a61c248",
    "674789c6efbbff09a0f7bcff030aa1b7",
    "8070e01f955ef983107922b8cbe9692d",
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
