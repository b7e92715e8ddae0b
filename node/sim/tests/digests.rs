//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 22] = [
    "ddc9342088571613c5f05daf60d06b82",
    "20eb885d288e7b73188d28680ec3317b",
    "be67b0483c33b0621524937aee184adf",
    "bbe31f302cd877219834be889668281c",
    "ecf16caa39807c101c87d468039d5fe8",
    "4da78c227686b7cd58d3a51b9028c346",
    "e8cce5aae934ea274f6d0c56591aca64",
    "3b2f08fc438f205f3d9e095f7bc6db85",
    "5a5e6044afd0892f2e78608a3b507223",
    "6430d6e2ab00553b026e56bfb1e5aca2",
    "3ece7823fdae64124a0fe20d3882a4c4",
    "b35885db7fde6fc6182602cd08128878",
    "f6aa146f854c34a8d1772b6a494a0dfa",
    "747b7de15879b0f8113e0f61738cbe7c",
    "975def9ee2750f9881d70b7e7904332e",
    "0dcdba0783e4966c80ff8349742b6129",
    "c9625948dde8cf8147a2f76c94d161e6",
    "46ece6a20456728cecf018cfa67f7b1c",
    "0dfe28f816f9a4dbc44f9cf55e9ca8bd",
    "0bd028d6d4cb3094d46ec3d874cc7af6",
    "a6c01a792b7e250c0af3323301bdcd64",
    "b9b1c2e6e47a61f86ec4ee88fb8689fa",
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
