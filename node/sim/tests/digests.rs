//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "dd70382aae69c6b48bb429e7d42a0399",
    "c73021bee814ecd3f43f0d0e894a5872",
    "0d389e0c52b9ec50b13794fb062ae4c8",
    "04aee5afdd44a121828783ddf2e8bcd4",
    "4b297a3ec53c06d35e05e9420d1bf984",
    "6fda2fd9dfc716c8323358ab409aa643",
    "e6cbc60fc4d96811ef58cc8a301d1260",
    "1e2d885bf6da24e5700439255107b2df",
    "c4ce814ae137328ece39b32549c28273",
    "19bb76726d971924796071668dd3ef4f",
    "d69181d51f0054a8961b709838474b41",
    "4968322af42a0dd769f1a68ee07f6d2b",
    "3da99e6e246ea7aa7616ee464971f16a",
    "c6a452a49a2f618bc286edb764e1d73c",
    "b24fa86443b83c4d1a716c368d0296b3",
    "258c9c19c28e4a0fa77efa7362192ac1",
    "9c274e95f3519d4a39e6a66fd9b84e06",
    "ad049cd86962e3771446d86659956301",
    "1c98234056feedfe7c778ae8bb7ea65e",
    "ebd4c0c7ae6645b8660a75b560403773",
    "fa2001219f4728e7c54c8d8a93b319e8",
    "21660377b4a320ae10843dbaadaee2c4",
    "d1c1a6bfc22d56ebc22ec5ba0de1877d",
    "60a0bfe28bf4836c86fb4cb503d519f4",
    "829ccaa656ebd3659616f822fc303e5b",
    "2a3cb7144b2482bc8d5aead845b3dc64",
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
