//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "43ae7dab41101b0ddb1510159eae4ae8",
    "1b919946abe4925701aaaa63e3a2ca70",
    "5b9f3f43df2f43d1c1a11a4ed366056d",
    "4fb6ef453416de2a3bc422fd5dd4f41e",
    "2198233e26cfbb35423d8908494c575a",
    "6ae68eb4b7ea4915c96c9a7246b40f52",
    "f5a0bb2256fabe9261acd7f4182c0e4e",
    "6a56251e0a7b0606daa0ef739c6ba6e3",
    "57f1d33aa7aea8de4f9c125a0b802b23",
    "70ca8fe38c23567aaaaa0015e6e860e5",
    "62b4571dd571b7f277bb932dc234f405",
    "04982a4c247123ba5cf6269314cf3751",
    "5cef1f3625a9de8df4d07640242d62be",
    "74748f9af30ecf976b07ef27db97986e",
    "083de4aa0f11fcb58e4855f281fc0838",
    "8b8f3fe93e39daf108dd0afad0cdeaf6",
    "7e5b78644e5b15fac8f2648c412cc294",
    "fdaffe18ee785371a4bffce4c7a51204",
    "b1de4184a5e69bbf52a419fc2acfd279",
    "61a8cb636c21d0eb9a55ccb107c524d8",
    "6bb5747b254a79bdad2bf51f8daad9ca",
    "9ab36d6ce8169cd37e511a688ace9c19",
    "a93e1518a74fb4b54c8617afe0bf9ead",
    "fdf6d696ffbf576d6a6912a944bd21bf",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..24)
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
