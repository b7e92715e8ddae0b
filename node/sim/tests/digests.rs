//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "2fdc1c3a6f4b74d43fb2f6c0e880c2b6",
    "25b6970d6ab8ecea79a0b688d8c850fd",
    "c9c93d9c5571e57dc0dc6b4d926cb239",
    "28ed964142a787aaed71b7dd6c0724d2",
    "9f3a1195ef3afdd73115f9e166c3aa40",
    "4e2da0352e96330781bb4c0a51bf65d4",
    "600abafd7d8d93f88742ff9198644966",
    "d3655358202a3155bc532d9602ee3f64",
    "5c367a90d5433b5b91f8c82a4cdede58",
    "b875e3eb4568cd1a20410d9351b63aa0",
    "6fd828ed62213873ff6b0eb76a396f5b",
    "1c200c92623a82e85a1d41bd581f8411",
    "e0ed36d94af109bfaba1b0b381556ce6",
    "023f2078a8fc9824a979df3b58241ed6",
    "e07cc3838e9ed08d55138a19a2d5fd6c",
    "ac59229e9f9b0837ba3be8a9cb54062f",
    "6e9e5bc9d5e14b4a52ea0ddc8d7aa9ab",
    "9a2c24fec3ae897ff7cb4aed1f76bbc1",
    "27c5b779223750e1c5f3eda6fb44f170",
    "5c883d08ab975f6dec9d0e9954c0746f",
    "31b61c05c866701cefaa11b8aa0f152d",
    "7642a135d55d0aac34fbd12e7bc53410",
    "f70b51acc01b12756909dd5354ad2b38",
    "14e219503a718df9a9626e9f8666a782",
    "cee3367b50a8e8ef4010965cad3bfdb5",
    "cd62f7e255e32a243700bcf07029be3d",
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
