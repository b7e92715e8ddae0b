//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "dd70382aae69c6b48bb429e7d42a0399",
    "72bff6f856bc64c9c0b67ba682b663ab",
    "0d389e0c52b9ec50b13794fb062ae4c8",
    "04aee5afdd44a121828783ddf2e8bcd4",
    "4b297a3ec53c06d35e05e9420d1bf984",
    "06f5a45b50333b06f022d2d7d1dc1a73",
    "deb8d9272ef42cb635dd66fe66a3e7c2",
    "f871eda73e95a5cb053ae8982bd9fbef",
    "c4ce814ae137328ece39b32549c28273",
    "6e4572a0a4ae4d33afe862dda1c72776",
    "d69181d51f0054a8961b709838474b41",
    "6279baf471a9ffea43703dae681a3a18",
    "59571c246612f73a30ec9c4efd14b952",
    "9c6b2e304ce12412df9c6dfa95a22371",
    "b24fa86443b83c4d1a716c368d0296b3",
    "a21e3ec70c2c4254afb996048db72e8f",
    "41f6aa49e775fc5021fdf2d10de0f029",
    "ad049cd86962e3771446d86659956301",
    "1c98234056feedfe7c778ae8bb7ea65e",
    "ebd4c0c7ae6645b8660a75b560403773",
    "fa2001219f4728e7c54c8d8a93b319e8",
    "21660377b4a320ae10843dbaadaee2c4",
    "d1c1a6bfc22d56ebc22ec5ba0de1877d",
    "60a0bfe28bf4836c86fb4cb503d519f4",
    "b59537b2bfdfbcb39b8fa1201d559dc7",
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
