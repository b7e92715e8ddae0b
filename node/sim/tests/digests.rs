//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "c3973df2f642826b8819e23aa0297796",
    "1c12ab50a8657c1f51975b39c0a247bb",
    "1c6b4e35ef16249f6aa9458d04d87c93",
    "e2a14b8716167e01bf1c4c5518e546c3",
    "cb2c9696346c3edb4a0f87ddce798955",
    "a9a833da36cf3b5127270e743f64a550",
    "39dd22c8d7dd1959a697c1b0d1c0bcfe",
    "d0c49fe5ecd7b585c0a17a3d8b7c2104",
    "93141e7574e8f99c170ea5c6b3e07a7b",
    "f63ca50a64b2ff08871fd71a4eb376a7",
    "023d09a71eb6cec31302a9b7dcdec6ec",
    "56bccfcc096dc5695b08f2dad86b93ab",
    "e2fbdb2f1b7a48d973a9ec04e14d893a",
    "56ae267caf40ea0ebdfba1a8662e4986",
    "2709f65fb39bd0f1c259a8a34ea4b9d2",
    "a0bc2e42475ebbb4424bb7de096d1806",
    "e4da2bf937235e9737c3818f7b78a26c",
    "a81c0239e83ac18b054ebb66fdf89a8b",
    "f2231fe09f9390091530004c348716ac",
    "b9a81b3cfdc227778826dadaa5b20d42",
    "d84b66f25451a7639567383c28312a2c",
    "1b92ea33262cb2ecbccc0d1f31a007fa",
    "79dc700c3ef93ccd3fc9ab84b2665a0c",
    "c4ca40da0ed174bb7327143b3f0ee025",
    "2dca84954be9fad08b9e9a78bae34965",
    "156445539eb57258f7efa4009b3e8e5d",
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
