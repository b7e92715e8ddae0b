//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "90d5b5d1e454150995edf7682393b9bc",
    "ad86eaa64f71a1e3f21e4d866b085683",
    "80355f05807aac8d4356e19891060806",
    "b74af65e317d177b366461c94f27e6cb",
    "0b84ea340acaf2c47a310b8e8bffb0ca",
    "6df8762b474e6ecdf9fe8882483ec960",
    "a8642b405dfd2a8c9392f6fe78ad97eb",
    "e21c37215027f1aab1d63eb40e9a56be",
    "672511a6eff659ff67fcc3d76a7e1a2c",
    "d12b0acec6c7e9075030d5c456f5e26c",
    "78927de005234d631174b45f57b89ea8",
    "7bd1431adda0f527253fb2ffd15e5f19",
    "2e6d079df97d8a1bde3d597269a104f0",
    "bdad41c5bcbfb57cbf170134702269f5",
    "978dccca4bb564a4000c2c2fcb2e760f",
    "a0bc2e42475ebbb4424bb7de096d1806",
    "e4da2bf937235e9737c3818f7b78a26c",
    "698445d5b38bc9e72f6e7106c1f98611",
    "5bb1448cd383f5574deb7463105ae068",
    "54bdb994d6d0f976fab4d590aebc51ba",
    "d84b66f25451a7639567383c28312a2c",
    "13483477dd372bd1c86dde846d752180",
    "f5cc83830d4e604ea59ece348c3d4f54",
    "9f22b4e6b469f660287efc902f08f003",
    "4f35a045860af9f25244e9b1bff51fe1",
    "433542eafccb19966f78c5acd6932743",
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
