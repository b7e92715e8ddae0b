//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "1fc0f238c04b8d58c7be2eacc51e8c25",
    "cc14838e76568b4c391a2fbd22c03093",
    "e852fe8efbe46955be1f5baa10dc16c3",
    "59d108138793b81d6e15d6d6f40b0683",
    "3df58ef2bd27315ab70f889912d9a2bc",
    "4dead34eda3576bca28437bd0e82fca6",
    "b6c6b53dea8bcf0205cc3eeff7673385",
    "fc9fca10f0037caaf88c48e3716f94cc",
    "f2bed2877b9eec12f779106480af48d9",
    "7a3b95fe97e5db53cd4afdfe65f2316f",
    "3789d72da0e35522878525460fe09011",
    "2fd91bba5d1284d631a9a0a96f99274d",
    "b0455ec636dd45822dfe8157cc51e2a0",
    "a8b3faa2a63248f5bd9ff647c875873e",
    "c412eb2b33a52ba64fe92646bf06da4f",
    "e9e8939d3a33e02d1edc66e5b3217aba",
    "c36ed18aefdfc2baf9fbf731594312ab",
    "840abee751100f34c78639daaf62fdcb",
    "8e937ac3c582d607584421f4997a3c0c",
    "59523f0ea22c99c8742795e72a9fdc85",
    "c4473f931eb61b439e6e7018154adf81",
    "9c875c0a5922cdb871b6d4dae84caed2",
    "c5820b9de19017d6e9cf6a9ab1de9230",
    "85d3d49ab906ede908773d517842a1ca",
    "e91f07a18c4fee5f11c4f7c91951c648",
    "ef84dad12591512d5730407ac4f431ab",
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
