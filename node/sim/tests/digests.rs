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
    "261d7499526019ffc8cd09c2ba0db544",
    "c548fe1ce6d158495ef55a20a20cf650",
    "20fcf44d7d0564f2dfc9cd11191f4f60",
    "2fe9ffb615a0e5021af8c77d6f3a713b",
    "62b4571dd571b7f277bb932dc234f405",
    "cc0876857285d089016b781a752dc89a",
    "5cef1f3625a9de8df4d07640242d62be",
    "74748f9af30ecf976b07ef27db97986e",
    "083de4aa0f11fcb58e4855f281fc0838",
    "9249f020f7691d1410b243a758f3fb20",
    "7e5b78644e5b15fac8f2648c412cc294",
    "34cfb7e0d6ad673bccda5a7048119cc8",
    "ab787a92640089b3463b61e62b449216",
    "ff9bc625e98422bdf361d26a0f2e47b2",
    "c317bb9e3a0ded40170e8aca55302565",
    "67cc8ed2c5ca7a151b9643b211a9da0b",
    "a93e1518a74fb4b54c8617afe0bf9ead",
    "9022c1c0e2c64e9119e4e47d6c45d9e8",
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
