//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 22] = [
    "af9ec0415be7b2ff1355cbd18bfc5aa9",
    "1b906ff2ee744447bfcd732cd1b47e3e",
    "c14e9630ee06f38212bbd801ca699808",
    "7b7e06145328d81a9ef224e588db57a9",
    "de0281f022c9f4583dcc432dea7ed02c",
    "af9ec0415be7b2ff1355cbd18bfc5aa9",
    "1b906ff2ee744447bfcd732cd1b47e3e",
    "c14e9630ee06f38212bbd801ca699808",
    "7b7e06145328d81a9ef224e588db57a9",
    "de0281f022c9f4583dcc432dea7ed02c",
    "af9ec0415be7b2ff1355cbd18bfc5aa9",
    "1b906ff2ee744447bfcd732cd1b47e3e",
    "c14e9630ee06f38212bbd801ca699808",
    "7b7e06145328d81a9ef224e588db57a9",
    "de0281f022c9f4583dcc432dea7ed02c",
    "af9ec0415be7b2ff1355cbd18bfc5aa9",
    "1b906ff2ee744447bfcd732cd1b47e3e",
    "c14e9630ee06f38212bbd801ca699808",
    "7b7e06145328d81a9ef224e588db57a9",
    "de0281f022c9f4583dcc432dea7ed02c",
    "7b7e06145328d81a9ef224e588db57a9",
    "de0281f022c9f4583dcc432dea7ed02c",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..22)
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
