//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "20f9c19886b7ae5b4164ddd5b5c54737",
    "9fa3dc25d3fe6a0e9cfe35d320d2d2b7",
    "f77b724bc84e61cc624a521f96d7f96b",
    "c54ad808bca2dc35d214c471ae26dbf8",
    "cb16d1a7b5545392fc2da31d08cdbefd",
    "ea0de62bbd0188ff4a1a0055dbbbc1de",
    "504a89140fe329a0f978f355b6e17f44",
    "7871008eb668bca5991f5f7ae1a8aa2b",
    "c96c343919b020db4cc0f930ae8c5824",
    "99d119a27a33b5318f4e5318e270b1c4",
    "ec10f2f4a2bf5f4e53c1c3016f9fcce4",
    "af6522584795ccfbe071367e8ff42d95",
    "c2ef4f2e0217ca7ffbf715d0314ac1b3",
    "bf927da50d78cd5259422ec05d8dfde4",
    "ff9fd0edc26b5d105fac7b098f786d63",
    "15525b2e466557c9fd797040b3e856f3",
    "608950cafde894054db39c23bdfc6ba5",
    "f1e7963b667616a02e4964fa9bdefdb2",
    "0936edde406aa14d7c18d7d1dadff32d",
    "267e93fc0ff0378a51e75428eae6502d",
    "92981ddce3802b4c878ec306a24f2bab",
    "658b9e7393eb1fb8f529d638dd70ef21",
    "07627992d95baa5ffe0d7beda6efbc77",
    "0013ab812426245390f08974e9af6208",
    "6635e58ef26ae76edfd68e8a7d81b6c7",
    "4ef7343d71a5f457781732723717ade6",
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
