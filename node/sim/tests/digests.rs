//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "c4bc9d5b9458cf7482974360ab7343ed",
    "fc1b3b6613f0ca52bf3daa75348f2e8a",
    "cb764ec49677652f6142b6882bfa9b07",
    "3cc88fd68c018a6ec22692dd0705d777",
    "2b5f83dc91cd902afdf508143844f26c",
    "af17c25d065395636a4f4abaa79e11df",
    "340259e025b3b88d1a6c2624e10ae9ed",
    "11f38ca8efc22a3209a0fcb045efcf0f",
    "c30a9264dcd93d5c5600d598063d34ed",
    "79502eaa6a77e616e0f0efb3c3bcccf5",
    "187cbaa54dfd5c1210a8f2078e77f28a",
    "e9df5e2d50d357b1d1d4bfa9e432b9fe",
    "baab8b10670e320f60f53153c50ee72a",
    "f0ff07dc8cb27f296cd535549b85074d",
    "86fcbe370160d92dd4ae11a9e7f7853a",
    "c91648b07c408329af3957157d49ab80",
    "30b088efb59543dfb06066aec3f386de",
    "ae43e746b13fd96582f8d892f658fb64",
    "ced483d8ae3a0812d46f0cc311cc96ab",
    "9c3168aafa979eb0409f4644f097f72e",
    "5ea0439193d5d2880c13dc43dccdea67",
    "1ad8e892d35a1671bed7233919bd7003",
    "01a5ccade9b557085738514be798fc85",
    "ad68f0f0b6f046b58053650a471aa078",
    "5f98a64a1f88b31038dfab4a0d6e33d6",
    "5edf89c2d73ce7e0f30704ef30292f76",
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
