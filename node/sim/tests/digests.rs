//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "ba2c9dc503cc34f529503ab6341d6560",
    "34a2d62d78444693be506d4f5b954635",
    "5fcb6764c48fccfb9843b7349654094a",
    "365697ac37165a64acefcb85f0623789",
    "2e9d5a59f9337824516448a07f8a8dba",
    "44845b91261c52b5162683e53b344790",
    "da9b0dd7c092760a5dd9f62899488f79",
    "89bdfd0392e7e0b7689d6888ce13217e",
    "4925714667c005bc93dacb58cf3f7002",
    "3750fe22ebf5c388337ce4a59ae5bf3f",
    "0e4b5c9db510ce0e63a63475e70bf795",
    "2fdc05d529e45829d6f608bf1f58bbc5",
    "d14107ea9c80237ec03aa17e6415afa2",
    "49819904f5c78e51acbdf2e95cddd72c",
    "85c9629a6fcdf20ce5bfde82cf874c3a",
    "b16b8f0f68a04cd2c4aede55f8d21e0c",
    "f77c2ecaa5df4ab43956a78950462cdf",
    "a78dd00d65b91c4c50c470579b1e469f",
    "cb38ec710d1699b610eee3802c5ea87e",
    "84a69467e4d97c72a63bab132e9ebc46",
    "3eeb3b11f4fad2b842eb8c79fee60e81",
    "7bd4d7f61457942402dd85d8fd6c5d72",
    "f6c733fa2192cfc472232efdda3d3101",
    "ef7a6d7c599127f3dd0a25acee602d72",
    "0c8294380c0c8d8afbe1aedab0aaa471",
    "880629a23e738d3372ca7148fc088c83",
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
