//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "131ff573069e8ed3af1bf9d8ef9ae3b8",
    "f6576eada9773cdbd7333a3e6d4f153e",
    "5537d84c1a2a0707fb725e1212d4aeb2",
    "c70537f45cb7eb8c9e5e458a6a57f532",
    "ca393cfae6cdf3a68fbd4142d2304281",
    "804b0b89af4735f37583bdfe33291d24",
    "03b3004b2ce11783f1e50edfd67ac3ba",
    "8eb49bb9cf9c351c2ff750576ba19c83",
    "2a42383a18cbf95c7fe475e18e240f74",
    "f9a388103100cc2367917ac22db1e0c0",
    "d3b4f77bf069654b275868c732783e3e",
    "93a5b304446e1b7705ee2a78ca4013e1",
    "20843c4447ff4c75c8ff14565c689e47",
    "cd2351f3f8f9f012670056b62e63d672",
    "a7e06ee888cc00ad3bf7e9ffa9fc8706",
    "eaa03df4c3f8c576ef2fd7a5ba9ad9ce",
    "0d85eaf74703d22fcf55802fe3017889",
    "859bfaa1746a504bd6b64e6ef2e75c45",
    "c4f097532d80bf0a96c42ab025a0ad2c",
    "198f8c47b2a90d7be3d33a4fc8003bd3",
    "9b6e3827c579bd4c240f12c87509dbbb",
    "4feacfad05b056414d572775b3f5bbb2",
    "621ad351e984ca3b350456a72b85c6c6",
    "d216124af19e73ab15368ee6d38ff0f0",
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
