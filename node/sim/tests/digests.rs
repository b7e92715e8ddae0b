//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "0e7b57f2210dd77b4df55186601c83ed",
    "47a334a29371e7cd2be32e82d289ac5c",
    "270b4f2a18d0a880e472fac798574977",
    "d2acd3d1feeff5677615ef6fe02bf3a8",
    "fa625088ec698da2c7620adce704ddfc",
    "fc803e9e36288a1f1a9f3b719c4252e9",
    "71fafb919d83af46b1461f63170ac35a",
    "7871008eb668bca5991f5f7ae1a8aa2b",
    "6af9c4b73ae45bf8ec01e9cc42342451",
    "b1e9dcc45d005722a5b56c117333a98d",
    "cfe163f5311ebace75ee5d39d8ceeacb",
    "ff299e08d1ea5f311013902df5d12ed9",
    "db84c5a05de4744dd576409f0c3b9cdd",
    "1cdb7ea2c92ad7daf7203b650f7efd57",
    "d104ceba1de797963fba24f31962e224",
    "7ca26f3c5445717df2aaa867a4af2d90",
    "c604511024d91224a800dca69093b35c",
    "6a69183f394e3626f5d159e23a1aba0f",
    "ed289051bba56e959c5830dd0a6cd7af",
    "be3f1f1594222c39dec35c9a02d2baa3",
    "851828deefb82eb1f3f9348b19e0d51b",
    "b604b2f7a6b06dd89d33acf533735e25",
    "ae988f324b1d7c9ee8ddcb0e9cf820d0",
    "32a67e1192240577f0cacbd9ceb4175d",
    "247573267334355445d288c2536dd0e8",
    "0a11801a9910dd2d84a861f1cf1c0382",
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
