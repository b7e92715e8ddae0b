//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "a766638c4f7f39b2e85be5f907402bd0",
    "b8a527bc0244f8a14fcbed91ed92cd9f",
    "880d2fb1cb1fd23fcedefba8073b48d9",
    "2c491361aec4f3601ec46f3a78abcc94",
    "084042b68ce8bcd7be748a444bcf6ad8",
    "80a3b7549adfa8ff6cbbc7fa6f47889d",
    "3ed6bbc2beef41f96a015948520284f2",
    "c49ac6a6df686e9cb6680f1d21889073",
    "f1cc4f0b7c19d0271148870fc05e3a20",
    "cbb7e6e2db2046d56b32b3ce7fefe9be",
    "855dd97befe8de6ab7250b02d6aa768b",
    "bfe6cd52a0f9d4a768bca3797f287263",
    "1aa3b4bc7efecb8c288b050637c46afa",
    "5f2cd0b5f6b2e78dcfe888a22b11c670",
    "ed7116a530991a3888a7681a71614a2d",
    "af240c0874df1aea8192bafd084e23af",
    "5ac605298d8af8c0c783060f8498fa21",
    "d75d634d7a4df34c83f445a864b3a3af",
    "491b926e6b12309b5cac30214ba7bcb0",
    "5b3d936a2760e8ed71aa41a5b1e9d001",
    "023681d3644c81e0b4ac7946f2e25599",
    "f6ea78178070aceaba57308eb6139a18",
    "afdd12121493c65a705c83e9e9129996",
    "91084cd749c825b6bbda6e56e1295c7a",
    "70d4becca4757a26b84ea54b6fb51862",
    "2f02cf09811fca3ffd49bb53de688672",
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
