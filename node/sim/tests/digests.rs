//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 22] = [
    "0e8075df8f6449a4f5c05a119e1c096d",
    "77109d50b36d51de358203114d220781",
    "4fc372cca525bef2dd7e0327e772f8cc",
    "5ebcff0a98288366e604444a6248e927",
    "00fe5b7149930927f8dedd2d60b03e58",
    "efd6de053fb89441422346475a7fc30b",
    "bda14de94fb21f1df34478cbfed1a382",
    "6d996959a76c48b9c47d9397bbb06f56",
    "f1951f446429a836d5428f6ff937ddc1",
    "14084762f79c088dbbb5c37dad43a75d",
    "e4cb7b1acbc1e325ad4c0c80ed156b69",
    "a6d4af6cf6b7e1eb1cdc65157442d583",
    "a8fed9b9805115d185773d98380d75dc",
    "4b9d1646ca91b36512edf266873c7aa1",
    "90c82d547c041d1716d5bd283f2a6890",
    "2621c271c6ffe3ea469ac32348e3f0d6",
    "11df8a1a0a381189ab7d30fec9a54ee7",
    "6567509d66fe3546a9dbb27066c42af1",
    "6501c0dee606e967d637ea20928b8d5f",
    "f5a4b90d4f1fd02b4722c7460f8664dc",
    "d05d0108db5cc4027dd4906dbae49eed",
    "dce99ac0f3ce97718fdcee200605c130",
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
