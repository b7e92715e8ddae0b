//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "9f0a1da25e3775c5950d131db052f392",
    "c93c47c1228f012966df8e024e3661f3",
    "c08009ce1ff11aae09c0dc0e0b5feeea",
    "67a8bd7af514af6ae82cc19de4e98428",
    "c44edb9dce6445c33f9d51b98c377e0a",
    "888930571740e765c17b83599c897f55",
    "09a8b9cf441104e62c8d3267655dc822",
    "1a2a7cc123aa845f1088be7ac31bf530",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..8)
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
