//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "45910d63cce797ae6264ab25ecd79365",
    "5c5abe776208388922b7cfb2c7ccbb34",
    "22a08b1faa3546e91d39181f5ef863f3",
    "1a26a80f253f81acf85e51e78a0c3672",
    "efda6f1d963f8970c5c328334b5a8941",
    "82ce192166fa21e05a3bf6e628996253",
    "b2e87a6d772deca6d821cc682c83608f",
    "159686a5402c095986c006489e5f8e99",
    "c2404a955794ca19ec28c0d3b67c410a",
    "d6fc13c0250ee5925c539b0f443e18fa",
    "9d7e501a0b07b0f274ad43ea14de5b03",
    "88e80eb858ed434fd2c9b8ada963486a",
    "25c83903548f82d71514b54da4988151",
    "7605c363c62b43570ee3d29c8ed4901e",
    "1cfcbcfd076156a4d7d053a382d23022",
    "021ef8eed94513a46a018a62b92d1615",
    "c624648c194694ffa364cfe98c6ba3e0",
    "3f47f08945b9077d20d804ed93f57e7d",
    "0137626eb3a744ad043330dc41b933b4",
    "a823db13eaa156166cd99a16ff81fa25",
    "82134d6343eb1f8a6479d8911d68cfd9",
    "177138393ad948158e9ddb9d46fa2b2d",
    "1c18fd5a622d9833570f617ce7b13b46",
    "09e02b5ecd4ec55e9d7ed1b77137455d",
    "d747004c5dd88d0bfc4ca612a1fa1616",
    "0edf5ed3313d56884ec1b66c522b1b96",
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
