//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "ad1476c72d3e780104f68c2134b4ffd2",
    "1d9ca7594af691e29de7b76a2fd9a7e2",
    "f77b724bc84e61cc624a521f96d7f96b",
    "c54ad808bca2dc35d214c471ae26dbf8",
    "d367a80cfe4c5976deb64be496dff1cb",
    "2405d4be8216265a50785acc6311018e",
    "69a525d87b5001c33c7f7979c71a4af5",
    "8bdbbaafcda180830a4c1703fba959ce",
    "a86f09b63578d9fc8949f80f56142e6f",
    "0e8ffbd30ed3028c60876ab455f56f75",
    "ec10f2f4a2bf5f4e53c1c3016f9fcce4",
    "09cc5fef7d5abb6c7a9197b889d1c0c5",
    "756e645df1477ec4610e4e2d4967aa4d",
    "bf927da50d78cd5259422ec05d8dfde4",
    "ff9fd0edc26b5d105fac7b098f786d63",
    "15525b2e466557c9fd797040b3e856f3",
    "608950cafde894054db39c23bdfc6ba5",
    "11abf1ad1f3e43fef4fe988ecda8b266",
    "1faab8a95c4bf75fd1afae76ffb1c6bf",
    "3cdedcc93f35db58145408b035117e31",
    "51bd4e8f9254ba5f3b68e47cfa82b167",
    "b3adce9bcbc8ac8031bc9ca4bc6281a1",
    "f21b503e66d64bd6adf5827c8fe7564c",
    "0013ab812426245390f08974e9af6208",
    "41352cfcd23c225fda3dc1cffb8221ed",
    "727ba7eba4fc3992d0088942da3b6e00",
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
