//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 8] = [
    "ed320a70766ad5f313886eddbf3423cd",
    "648a69ef02fcde10e1fd84fde34bcddf",
    "1f59f84b2a601c0a8f3f75639363d8ab",
    "b2c292f483055bd5c37697ecb4de08bc",
    "aae241322e152f898a15fcf0e63c3c1d",
    "60783a2d940580ea76754c32f041f059",
    "9075df6aafa15476207ac1514ccb0f41",
    "49e28f4967e6f9740389ecd93dfa7569",
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
