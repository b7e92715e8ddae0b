//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "43ae7dab41101b0ddb1510159eae4ae8",
    "1b919946abe4925701aaaa63e3a2ca70",
    "5b9f3f43df2f43d1c1a11a4ed366056d",
    "c583bc7579e5f9d4fe3dc437dba81778",
    "2198233e26cfbb35423d8908494c575a",
    "6ae68eb4b7ea4915c96c9a7246b40f52",
    "22cb6b2a15e60c28f76665e8f0162d79",
    "55559658d97a5b5134486088de9ee51b",
    "154eccec37f13bf15521678e360de220",
    "2fe9ffb615a0e5021af8c77d6f3a713b",
    "62b4571dd571b7f277bb932dc234f405",
    "d1c297266a0fa7b9b5b52f3875ade862",
    "5cef1f3625a9de8df4d07640242d62be",
    "74748f9af30ecf976b07ef27db97986e",
    "083de4aa0f11fcb58e4855f281fc0838",
    "9249f020f7691d1410b243a758f3fb20",
    "7e5b78644e5b15fac8f2648c412cc294",
    "34cfb7e0d6ad673bccda5a7048119cc8",
    "5f6a5e13700d39940f4244543abf9b69",
    "13ff388ec31848cabe7991a47f1bc3de",
    "88b31c5b36305c4a74fcba4c027a0ef2",
    "67cc8ed2c5ca7a151b9643b211a9da0b",
    "a93e1518a74fb4b54c8617afe0bf9ead",
    "3cb87371d76a8fda70a46a9de0d62016",
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
