//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "ad9c5c85128ad8d4c4a4f73fff2d8803",
    "be4451beb09e158fb59ba64b78c70ec0",
    "da2a4394ec29f3577cd1bb538eae8dd5",
    "089e28fda94395928aa6fdb47803256c",
    "7cc26310c596dcd994bb9846fc9b06ff",
    "bb4fe3f17e42bd602b653b2d9ad3c0aa",
    "09ef13a6d6d2f9c46d3ad52df73f9d0d",
    "7871008eb668bca5991f5f7ae1a8aa2b",
    "af66cfd20b5698074c94065ebb4f2bf8",
    "56ecd2e8ef4643c4b98147c02a4769d7",
    "db3373186433c1686e520ecf83697335",
    "a9daf9f2769ecfbb0b746700349d9a8c",
    "8eac2d6a05c61e8f84ba0e1809bd0fda",
    "835cebe2b868debc8953251ecb150475",
    "e77e9473123a5eabdc45154dab9694ac",
    "975597ca3bd5f66cbddb4f0597c27a1d",
    "9c2c8780c6cd954fbbcd85789df16009",
    "863c7c70ea8adb4d250d30bc70e8b364",
    "ae035a325c18d34d2065266222276341",
    "6546e846a7df3729ab64cb1a95a50ae6",
    "324277cf924f8263e51deed4f7136055",
    "3033f5ebd8f65d5d46e4220cda27dbae",
    "6f778cfda2d12c12dc178361ec1394b7",
    "273671be595ff7bf717912225c2ad79b",
    "f900388b38138a73c69cfa5b54e3ea51",
    "d3330dbd83970c6db412f92a31c304d0",
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
