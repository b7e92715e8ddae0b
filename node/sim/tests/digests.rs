//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;
use holdfast_sim::use_direct_path;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change
/// of the engine's behaviour changes them: then copy the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "40910a92d59d0d91b2b90f80590b4db6",
    "aa74ab471bae03b0124d60d081cebfb1",
    "47377d9c045bf61f52ec1d3b5feee31d",
    "82d8edc78e87fa0d1adfdacb798124e8",
    "24176f73f27eaac7b66788275d3058ed",
    "0b42454736ab39a08eed3b4c73faf5d5",
    "530896093d195fb0b1a1dbb958a818e2",
    "0d9d5c6791baeab7d069256f80f433b5",
    "ca436c55358b8002caf1ba4dcb06fdc0",
    "b86559686b45de03dd36f1503254596a",
    "082c73d0e4dcd2ed14e570b8afda5d39",
    "b82abb3f230d2b6869723c96bdf31965",
    "01dbb8528072f53a4d5417a07e3fb1ed",
    "952ee2facdefc4014f3d03c0abd63314",
    "5eb9015d50d1eadc17d5324e89e4dd37",
    "22323b0c3e1e03ca784d3a2937039d57",
    "77f326147d8f5b58243327ea4169c29c",
    "351ec4d63ba44bc8baca36e73127ca84",
    "6d42238b6be847e6edc83e32636f400c",
    "a2ad65d4b79ce1606f920a9fbfd942fb",
    "cd29aacd79891c94f6d42e2aae2b7acf",
    "f64ffaef5cd4af8f8931ee011ce203f9",
    "38cb70e75c9fb47b7b4469a9570b898e",
    "6ab3b75291b79a7e2481cb15e60f8e9a",
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
