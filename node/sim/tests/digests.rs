//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;
use holdfast_sim::use_direct_path;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change
/// of the engine's behaviour changes them: then copy the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "80bd2a010a0abe35a790e573fdd468a0",
    "b8d2e7c995a380948463f9bb9c7de744",
    "7f80547e4dddc018e7ea4b511e5b8f00",
    "e18fd3d6b31bd71b2b0955ce669510b4",
    "d32949e65f46483bb26bc7d9827d449d",
    "8ba6184886f181be6fd03299a2a1410d",
    "1876c4a92cd967086c1c79b7c9d9eddb",
    "9257cec382c6089c580a817efe449644",
    "c10cb40247858847c64f47dbd4dbafc9",
    "f290c6063460d36513e405c08d31a081",
    "d8a5eedcda788b039c54503e2ab16b44",
    "7976c52ae0bfca8c5b237b481e00c480",
    "8c22f6a876ba4ca14e11bfc58bd94c52",
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
