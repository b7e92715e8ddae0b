//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the engine does changes them: then take the new ones
/// from the message of the failure.
const DIGESTS: [&str; 16] = [
    "ad32f594ca28a93c1f8baf5d7b911c04",
    "2e4e1274053b89b60a7b9c9b3d78c21c",
    "eebe974934a2a178d7679966fd537478",
    "6051cb356a93c17835374d700611bd68",
    "14de13604b19b21315dc9ce16bddfac9",
    "8cc3cb7947fd1fd7e0570f76492f8a85",
    "42f9782612e80d7cab4dabcfc401c856",
    "83737212aaefaa620c0e425f8075f497",
    "0ba1899f29acd5f371842c02544d7df8",
    "4b7b9a39a2009327b67b3ecac0f4f206",
    "8da1c6b0202927f6d73b280a26d7ee73",
    "e3a1529ed6ebe6e29516e4accd165daf",
    "c4b1814016c1bbab044944766014e80e",
    "a24d8b0abb25941c4ec8a2988a1ae2c0",
    "448ba2ebcb779e70943612923d2d19d4",
    "a10dadf245e0fb840612c6d3148b6507",
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
