//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;
use holdfast_sim::use_direct_path;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "4c946bfaf16a5f732b59cc7bac88ddd2",
    "aa74ab471bae03b0124d60d081cebfb1",
    "ff6908e7eecd70c2e2358ec67f952b11",
    "82d8edc78e87fa0d1adfdacb798124e8",
    "0be4371fb0c268ec57a40bebfcfb0161",
    "ac62d5c3218b38d24ed6a686d0c095e0",
    "a8642b405dfd2a8c9392f6fe78ad97eb",
    "acc90c8febeb10f1994be83fef72d050",
    "2216f4a506a136b8ba90de43e9abf2b0",
    "f19300949e68bbb4c9a1f5cc8dd77668",
    "77e0e4d03edcaf751f12e87bbd8ee417",
    "7bd1431adda0f527253fb2ffd15e5f19",
    "01dbb8528072f53a4d5417a07e3fb1ed",
    "952ee2facdefc4014f3d03c0abd63314",
    "5eb9015d50d1eadc17d5324e89e4dd37",
    "22323b0c3e1e03ca784d3a2937039d57",
    "0fbd8867ae5d934d91742dbd629d6ba6",
    "698445d5b38bc9e72f6e7106c1f98611",
    "f0fa5d28128229e0153f472ef16387c0",
    "2016c2b79cf3a23e6232e99f64c0dc6a",
    "d84b66f25451a7639567383c28312a2c",
    "13483477dd372bd1c86dde846d752180",
    "5ac65a46957c1d99cb0f7a89918ea128",
    "99802edca3feb9f02b16abd4ba860778",
    "4f35a045860af9f25244e9b1bff51fe1",
    "9d8e15274d5f3e10c2ebd19ccbcf4912",
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

/// The planner's direct path asks for the same operations in the same order as events do.
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
