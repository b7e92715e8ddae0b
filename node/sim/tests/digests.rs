//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "af9ec0415be7b2ff1355cbd18bfc5aa9",
    "8e0dbff5b385c1d28df0fe1806ce082d",
    "1deca2c7a6554d056b29e005eb725238",
    "a1b63e90b8bc25ef79de95f3ad908acd",
    "76bd5d4c1f58f39ea199dc4708ca0538",
    "ae82c108d1b94b3207970bbdd294b49b",
    "73ae749c3880e7537a04de882159c153",
    "51c1921dbe3392659b5dfff147191f94",
    "52854f7fa619a39cb47476e10bfba56f",
    "dfc7d5a02a9bea65d60e7cb87ad96ca1",
    "7860e0235cae14f99cc4044f495973be",
    "3d41ec0f454db4058164e893e4181e55",
    "793d8ea877d1eb6a8baee439bac9532f",
    "6dcf041367e75012e0bd258f6241b1d1",
    "134f2ab131898c2b9d52179268c252ee",
    "cfcfff6ba2b89ca4b7dddb3a042f8c7d",
    "b492420e5bba585de2c720535ab0f9db",
    "4b894bfdf9d6077ef2d4deca2e5c3f0d",
    "6df692c10cd0edc96c5f3ad22c9cbf95",
    "8d3223813197a0c00e1d564135524c87",
    "7b7e06145328d81a9ef224e588db57a9",
    "de0281f022c9f4583dcc432dea7ed02c",
    "",
    "",
];

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
