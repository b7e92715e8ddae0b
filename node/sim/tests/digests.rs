//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "2e54ac2ef48b5aa538486293da69ae25",
    "4eb89c743c6eae2666de1f167ddb0c1d",
    "10a876c70b830a28e80c49807e779ec9",
    "eb6a939ebb1d814d815c009ddb990f30",
    "21766032d53d9fb6986a6bd1b29d007c",
    "c8b6c7037f9cf32cbad4fed3bca00f17",
    "39dd22c8d7dd1959a697c1b0d1c0bcfe",
    "70ca5c75a6952ed3592065512fadeb18",
    "7134415f5d38ecec4021748f827c320a",
    "3f330774d5f299a78dae837aa45c5cd0",
    "a9e081af1f0f9bb6372a7f1ebb168af4",
    "56bccfcc096dc5695b08f2dad86b93ab",
    "4baf105651682684dce0fa40af2a65d9",
    "3bc7780bdcf492a62db59ee1bbaa141b",
    "da81fb91e37cf51046da4677f757475a",
    "22323b0c3e1e03ca784d3a2937039d57",
    "0fbd8867ae5d934d91742dbd629d6ba6",
    "a81c0239e83ac18b054ebb66fdf89a8b",
    "11b8d512d20ae1b6cdf6e1800d6f26b5",
    "92683717eb0a92577a5a4fc39ca76ec8",
    "d84b66f25451a7639567383c28312a2c",
    "1b92ea33262cb2ecbccc0d1f31a007fa",
    "d5320c84b5a5b59dc9760b998ae7b350",
    "99802edca3feb9f02b16abd4ba860778",
    "2dca84954be9fad08b9e9a78bae34965",
    "5f09bb0ee89c20d097a190306d5659d4",
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
