//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "43ae7dab41101b0ddb1510159eae4ae8",
    "1b919946abe4925701aaaa63e3a2ca70",
    "ada297653217ae2c6b976fd33f484f55",
    "c583bc7579e5f9d4fe3dc437dba81778",
    "bde7884a559ba9162433beae2825978f",
    "c9e05df638926da786dce419c0e289f9",
    "47cbf58f07884de5d3c59249bc596fab",
    "55559658d97a5b5134486088de9ee51b",
    "6ad7b172b90f836e9c051e9e2c80da4f",
    "cbdd5c7b40b8ec1767ca918a0a723f57",
    "97799a94b08419764e284db6095f09b2",
    "15ef88e258ac373cf3d43565e3bb8188",
    "5cef1f3625a9de8df4d07640242d62be",
    "74748f9af30ecf976b07ef27db97986e",
    "3d65e42f9dc637b1fa8dddf3ccc11b6c",
    "9249f020f7691d1410b243a758f3fb20",
    "7e5b78644e5b15fac8f2648c412cc294",
    "a2c83abd534435e4c3053d266b012fb0",
    "ddca11b4f37c118b0f60cee396785ab7",
    "89e63d0814bd55ca30678fa8a31d9a0e",
    "765fb7035810840196b2a22596d21f76",
    "67cc8ed2c5ca7a151b9643b211a9da0b",
    "01903daa56a037ce4c2c3a4b2f8179e1",
    "2b837a6d06620dc51c05e9b14cfc1d8f",
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
