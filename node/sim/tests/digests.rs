//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "de804355c1ee6980195519eff3c41bf4",
    "c916168920575639a334545c22f3cb58",
    "47a7e67ca396aa317b43e8f5f40b6a98",
    "e758873a5e12cb8d2bc486fc76a85e53",
    "b6486cf0ca86092fd4e69eac1d7ea61c",
    "3fbe8cd12e98770dbdbe47d58b8a58f4",
    "e60ae0a7ce2348be6ac17a3fafd8d1af",
    "32670c198a12a2df1d9dc490edbba7ae",
    "d7fce09ba0bc7433ebab6cd783e6f710",
    "6955a32dc2841adbb31e855a8fcc1da5",
    "819fd7e54906571fb083451e608ebab0",
    "38cbe411ba201e46d6fe73b8ce5f4069",
    "787db70a8cefd5aae48adbb587678221",
    "0606511b68a062525e991deb6867dd06",
    "92716231c43b9b2579ba5188a2666a3e",
    "e873e3ee1575181565065a8d8f035fe6",
    "a9a7f407de18dea8b1594df9ae36d5db",
    "f030f4aa09f3f9c7465a7271ab318e06",
    "fa34997c01c4bd9cfe4d4688bcc9c371",
    "ec75993006d093578c2cde04b567c2da",
    "40d18c546b9aeaad0a00376de32b51d2",
    "253143492eda8a31d734d0017fe783ea",
    "74b1d20710ba7f1cd90864303dfb261e",
    "adff803ff6c855f885c71b39dd77e558",
    "cee3367b50a8e8ef4010965cad3bfdb5",
    "f8b613997ea687d7865b9a0f7af4a2e2",
];

#[test]
fn a_fleet_is_the_same_each_time() {
    for seed in 0..8 {
        let case = FleetCase { seed, volumes: 4, operations: 6000, bug: None };
        assert_eq!(case.run(0).digest, case.run(0).digest, "seed {seed}");
    }
}

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..26)
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
