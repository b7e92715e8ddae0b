//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 22] = [
    "93a85a3852267cd1742f86a814bd2b88",
    "c6fa115f0ce31d6d367e8dce1f1e2322",
    "20757c35fb76e0ebc1b1876b3cc54cd0",
    "5e2b36dcf2bc58c682c4c6b2c7563550",
    "6d614a653af0079e1c054cdf8a353d11",
    "bcd0aba38693d11501b0881786310bbb",
    "527b4f8815b17f7ae5c26f1ccd069b3e",
    "8be16429d76a6a36afc31c0a43036679",
    "98133ab016eecf8803565b97c3cb16b6",
    "f1ccbf7b191a4accad99332479efb6d2",
    "d605ae1cfdb38b40c0f375fba2fae589",
    "0b07b7e0fad40cb2137e240d13892fbd",
    "96873499b145f7d87ffb090ede92ef49",
    "20594a2e5b1fb243c2c6105aa64b7288",
    "e1607354d20b2bebc6ecead16e234d42",
    "8bf9221154a07868621f660b3de8673b",
    "1dc44744bf8b29dc56562237d0cef34c",
    "652233b50d426070d3e640e4ef8ea16a",
    "eda59692365ae58b089887314c82fed1",
    "391207146aab73243da2909cc8f5d3fd",
    "3cb69194c006c221bb4bd77e083bffea",
    "90f019348205b5ed1acdccd36212579e",
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
