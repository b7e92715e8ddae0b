//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "50f358bc2f33b7d1029a7d23e228daf6",
    "734db50851f861df91aa766d95afe611",
    "be75ed34cebd83e1d04f76f89f0571c1",
    "f42ec5abe229857d9857e53c6b4fe1e9",
    "74f259b0b1691e18ad520082c592b7f6",
    "c9e05df638926da786dce419c0e289f9",
    "7acf1daf28b7226490c931d8cc466c37",
    "83cf2ea986d4ea747277e3642bbc315d",
    "6ad7b172b90f836e9c051e9e2c80da4f",
    "281dcc46d8dbaa4bebc39edcc4aa2d5a",
    "94c4ea0e34846538672ee4de06bb9234",
    "4c5aeab7915af38f17a5723181dcea3e",
    "c4a35669e795eccbf35d492e9ef97deb",
    "841f2d5e75f600a9d2f52603995fb883",
    "9ad046edf6cd9d4f2e677e2fbb00b9a5",
    "9b0c9327b0987073c0ff929b9377387c",
    "98aa6e2f480f0fb90d40b299b8946f19",
    "e8e88b6fdd3b2ff46fbe3b5a99485f3a",
    "895eb4d431297a7b1775b06693c97fb5",
    "89e63d0814bd55ca30678fa8a31d9a0e",
    "a167f6f75120e6edfd477f998db6e14a",
    "556253aaadf79a6ad3c57bbbf2558947",
    "cb0bef34b79b0ed9f8ed751f8407a563",
    "682fe9268d84fbeb1b27a20b763d18f9",
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
    let digests: Vec<String> = (0..24)
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
