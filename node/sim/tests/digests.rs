//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;
use holdfast_sim::use_direct_path;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change
/// of the engine's behaviour changes them: then copy the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "f014c741f58bee7168940d60a414feaa",
    "4be7223cfd3fc12e40a0506d8a2eed93",
    "7f80547e4dddc018e7ea4b511e5b8f00",
    "e18fd3d6b31bd71b2b0955ce669510b4",
    "be959ec33fc90fbc75ed4a0fb6cbe631",
    "1e36a1c8508f134f2095638e22a9a9c7",
    "01e166d0825b6dd024f3221a3db20e98",
    "1e536018917be0d2fd13f50926f77c10",
    "c10cb40247858847c64f47dbd4dbafc9",
    "0257368e42d281913972fed435b9ccc9",
    "53a903c7e19a3cf2d3a46bcc858c6014",
    "7976c52ae0bfca8c5b237b481e00c480",
    "79dbef4717341b59d4bd78dfcfcfb64c",
    "952ee2facdefc4014f3d03c0abd63314",
    "01043b9bd503a75e9c62533b4d7495b0",
    "22323b0c3e1e03ca784d3a2937039d57",
    "77f326147d8f5b58243327ea4169c29c",
    "351ec4d63ba44bc8baca36e73127ca84",
    "de64c9f62b8bea8d90c0233aee1f57c4",
    "a2ad65d4b79ce1606f920a9fbfd942fb",
    "c5d2e8d1b8265574d5c4f3b1bb08fc2d",
    "f64ffaef5cd4af8f8931ee011ce203f9",
    "b56465b4dc8bfe7d1880a6d57d5ebc01",
    "f592cead267e955a7dcfa6bb04c66f28",
    "4f35a045860af9f25244e9b1bff51fe1",
    "80bed7fc26ccf042a35fd10d7973a691",
];

#[test]
fn a_fleet_run_is_deterministic() {
    for seed in 0..8 {
        let case = FleetCase { seed, volumes: 4, operations: 6000, bug: None };
        assert_eq!(case.run(0).digest, case.run(0).digest, "seed {seed}");
    }
}

#[test]
fn digests_are_the_same_on_every_machine() {
    let digests: Vec<String> = (0..26)
        .map(|seed| Case { seed, operations: 3000, bug: None }.run(0).digest[..32].to_owned())
        .collect();
    assert!(digests == DIGESTS, "the digests are now:\n{digests:#?}");
}

#[test]
fn telling_the_story_changes_nothing() {
    let case = Case { seed: 7, operations: 1500, bug: None };
    let outcome = case.run(50);
    assert_eq!(outcome.story.len(), 50);
    assert_eq!(outcome.digest, case.run(0).digest);
}

/// The planner's direct path requests the same operations in the same order as events.
#[test]
fn the_direct_path_changes_nothing() {
    for seed in 0..52 {
        let case = Case { seed, operations: 2000, bug: None };
        let direct = case.run(0).digest;
        use_direct_path(false);
        let by_events = case.run(0).digest;
        use_direct_path(true);
        assert_eq!(direct, by_events, "seed {seed}");
    }
}
