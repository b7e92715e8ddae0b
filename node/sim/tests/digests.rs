//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 22] = [
    "4eb1707425a904e8eb9d171561b8d8e1",
    "c6fa115f0ce31d6d367e8dce1f1e2322",
    "a303d91042f2f0ece97e684e83e0d3c7",
    "5e2b36dcf2bc58c682c4c6b2c7563550",
    "6d614a653af0079e1c054cdf8a353d11",
    "473297b099b22ae5ca5eada09b8766cf",
    "527b4f8815b17f7ae5c26f1ccd069b3e",
    "8be16429d76a6a36afc31c0a43036679",
    "98133ab016eecf8803565b97c3cb16b6",
    "455702d0bca4aa7f4b7a7262d900756f",
    "ff46ec6bcd97cd8e23e647a26a8826fb",
    "0b07b7e0fad40cb2137e240d13892fbd",
    "96873499b145f7d87ffb090ede92ef49",
    "85241e06b27c794258ede0d56fe68188",
    "e1607354d20b2bebc6ecead16e234d42",
    "8bf9221154a07868621f660b3de8673b",
    "1dc44744bf8b29dc56562237d0cef34c",
    "652233b50d426070d3e640e4ef8ea16a",
    "fa9ef80cd9c064d59ad95ccdc559f0af",
    "391207146aab73243da2909cc8f5d3fd",
    "09a558325e5f4a94abb14a1c3e738957",
    "fe1294fa77522e478386de7e1deb26a2",
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
