//! The same seed gives the same run on every machine.

use holdfast_sim::Profile;
use holdfast_sim::case::Case;

/// Digests of the seeds from 0, one of each profile. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 11] = [
    "0e8075df8f6449a4f5c05a119e1c096d",
    "77109d50b36d51de358203114d220781",
    "4fc372cca525bef2dd7e0327e772f8cc",
    "5ebcff0a98288366e604444a6248e927",
    "00fe5b7149930927f8dedd2d60b03e58",
    "efd6de053fb89441422346475a7fc30b",
    "5eec09677f74d91517a45bcc02b6a67c",
    "6d996959a76c48b9c47d9397bbb06f56",
    "865da4a207ab66287b69112c33851eae",
    "14084762f79c088dbbb5c37dad43a75d",
    "e4cb7b1acbc1e325ad4c0c80ed156b69",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..Profile::ALL.len() as u64)
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
