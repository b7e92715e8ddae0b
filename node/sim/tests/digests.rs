//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "f090002379c127a27edcd3912b178721",
    "d1663f4ee935a7c9af983589d07f14b9",
    "19e7238f10907080f59d96471d791ebc",
    "18ee0af4f45348d890fc890945215ca4",
    "5d6609fe529e20f0fa6d12f7802fe58e",
    "8663d218798103c06ab277561203e84a",
    "b52d6dac73fce8823fc19d06d4f6b205",
    "8051fc680bbfc39e7eb2f0aa72e2e965",
    "64c34412a8ca18277e885969d946f52e",
    "b27ad4b3b765b0c78321db737223094e",
    "3bbf251f83ca42e821e6f2dbb7c7855d",
    "a480674616fbc89ddb0f6987f4cead00",
    "cc3220dacd7a9274e5943827aff08911",
    "e84200bc07759e6d4ea0a0e683cc4522",
    "cca6352a60a32e2d68293661c855da8e",
    "a76526d2091cd0cb46f9433fc2454b99",
    "1f73cc825129d3d3a35f44e3ff9d3629",
    "9c36e64dc612c974dd11ed74182ec6ee",
    "b0d0472bf7477ad317e8af3180eefa69",
    "f7dab42fca9df11bddffd9d1a0304dcd",
    "36c2234b2c8a15bf84751d12576de992",
    "2999cad0e8791e4fb660106b0a0b4ce9",
    "cde298c436c505bf66835db3534a6f70",
    "2bcc755bb2cecc47806041751881ad58",
    "d84bbcf7d069c42637894404cddfb580",
    "98725710e762ce09dd67c87c02a162ad",
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
