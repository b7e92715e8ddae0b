//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "2c8e3dbddb9c0df6e72709543f454570",
    "c30bf3b7847d8fef803adad4e1dd47c7",
    "59fadd1b14d9d888bb77827a735d86a2",
    "0d9d4a93d3f572b8d60b1848c2b6310e",
    "0eba26d095e270148aaf8d4ed4de317e",
    "64da76c1a63e06d478f524fa38dac1c6",
    "a6c9c81209a18258b0cc57d8b05ccf2d",
    "dfad5032080e24444a91c4460bfd1295",
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
