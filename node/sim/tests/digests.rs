//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 24] = [
    "b29d0ba05a4f8e6355651a988c98a18c",
    "f4a928d140c4f28268d5b0d43414b8bd",
    "37a9286ca70778478202d0dde7deb5bd",
    "f7de1a861e1139907399fd8890314064",
    "0a563479b23f11ab7e1823dbad458dd2",
    "154f6c649b326347d546477779422576",
    "3b2fa62ba934f06fa92519c5a2ee1e77",
    "5f8fc61f2adc0fb2982fc61662ebfdb2",
    "92cf90fc6757935875b71c86c592aa4f",
    "a66672f2908aa4a70f1e27a53cca7dc1",
    "0a06abeff6f8438aef3445e3a8261eb0",
    "94c0b5f98ad72f56e78dcfbdd1864044",
    "a9d27398e2ef887167cdd6643921bfe4",
    "d6c94a94b6792e57752e4a0f4d567095",
    "2ec4ae2bd677239a62bf8446990156d1",
    "2a956df3f2efb8fa59e45f5a4419b503",
    "dfb15f2e694c9cc24e27542bbb64666d",
    "bbef57136f3b36148727294564ac25cc",
    "d40c05ed29227d47a39346d66ec59e8d",
    "9eeadd5248741b8d044770570d9ae5bc",
    "2f78d579cb192228b9b66bea6e1b88f9",
    "227a228dc4dcf2cc13911ba9842817f2",
    "c23851d3b0ca06e584dfe03b2956dd36",
    "ab32919b5fc40035f729f0e2cc9bf72f",
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
