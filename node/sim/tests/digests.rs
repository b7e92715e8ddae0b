//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 16] = [
    "83977f095381047475b8016d6a1cd0fa",
    "2e4e1274053b89b60a7b9c9b3d78c21c",
    "a2b0f4dbb405300318c6487183d29c3c",
    "6051cb356a93c17835374d700611bd68",
    "a5b653eca92b5cc0d634496f2bca26ca",
    "8c335899f99fcc9f6a32732298854a8b",
    "779e2be0417987dc2280b71ba36437eb",
    "6c36a5244f963dd550ccc77e469ffaee",
    "22ce89fb209bfe0233a56c100699d89d",
    "0d439aba1b1c1e933a821e91d872345d",
    "0e187555ff67a7ffbf82dbaf226e9187",
    "e3a1529ed6ebe6e29516e4accd165daf",
    "c4b1814016c1bbab044944766014e80e",
    "3e21dd48f3e0cef990baf0c52590f6bf",
    "d2ac177dd886fe524c6aff6cf8fec0b6",
    "18cfde38aaf8f4de632ab570630324ba",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..16)
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
