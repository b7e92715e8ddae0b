//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "edababa7d7833de990bf0e69c52c188b",
    "f9f75acdba6c0ac9f22988dee64bc071",
    "be78dc84855aa3f09b24e3170a93b3e8",
    "9c51a5be46d074e3f5e90cc1b4b3d57b",
    "501e2c14a705033397bde63b02055264",
    "2d687f49428c26c09bae0c6c760571a4",
    "32a7b48f3b92550e593368a84529a32f",
    "69af33cfce43c78cb2c05e83b79ae197",
    "1bae69fd1c0da03e41cfc980036e338d",
    "cf4c4539b40b69e99215daf7f537f2fe",
    "c1e200ee33c672fee06c5f8a864e0a5b",
    "baf3e0b3d16d2fed88170cf7edb50502",
    "333d7164c8d4b2f202dfd7846a49bd8d",
    "55a7bc7113a1560dae5fea1b38a1ba22",
    "32d8c7a4c22d5b7ccd1b787ded2fcc3d",
    "b50a26c3e23514581f5501fccbcb7c6e",
    "44a9208f1a404d46f3ed304bf8eaed3e",
    "3e87875a5dae8707bf472756fa24d9f6",
    "5aa462dd1a12cc0841574eca6b7a9695",
    "d7d91da63732bbd4fe51956a97c535ee",
    "24148361057c0133bfc24d2206fe12f5",
    "4c1bd2b69f4e3c1cdeee568976fba1b7",
    "43925291a503a645eccfd5197444461b",
    "bab8a1bcf1c2b09f2b21adeba71c6104",
    "6b7e2c173fccd015c80669e6b2c43c01",
    "0db1d99017183ccd8d287d512b358d9b",
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
