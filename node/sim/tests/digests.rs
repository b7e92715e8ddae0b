//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 16] = [
    "9f0a1da25e3775c5950d131db052f392",
    "c93c47c1228f012966df8e024e3661f3",
    "c08009ce1ff11aae09c0dc0e0b5feeea",
    "67a8bd7af514af6ae82cc19de4e98428",
    "c44edb9dce6445c33f9d51b98c377e0a",
    "5271b10eb74563e93fda205cfc6f1808",
    "a79a2a07e6aebe250a9fd5b1308da6c4",
    "1a2a7cc123aa845f1088be7ac31bf530",
    "95e7c5bab7d1611e450f766b9e673459",
    "11fd70e8503774d426039908950a55a8",
    "b993949ec31bec8327d94d0cbd3b6468",
    "5df1c3eaa1e6684066bf94827027d904",
    "02868184a9b7481c673671c370d9b3f6",
    "dcab8bcea78e2935e78e207e5885eca7",
    "1f8f9710bdd3fb3b69e06c36ac60ac13",
    "ac1a1f411c7c289d0595203ceb4ee3a6",
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
