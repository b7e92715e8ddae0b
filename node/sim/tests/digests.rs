//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "56a58b1730fc471b262f043d515d8d0e",
    "fc1b3b6613f0ca52bf3daa75348f2e8a",
    "cb764ec49677652f6142b6882bfa9b07",
    "8038063c418e5bc14023ed92b280a7b0",
    "930cfdd5861b4d3e28766f84363fdb5b",
    "75b793be07f5c7b776a7ccf9c1fc3ee3",
    "340259e025b3b88d1a6c2624e10ae9ed",
    "bffba006eba9e357c5e0842fed4700f9",
    "f484d84e3b2f30d293602fb7f3b1a7b7",
    "79502eaa6a77e616e0f0efb3c3bcccf5",
    "41ffa6bebcf2ad0479b0325e4eeab9de",
    "e9df5e2d50d357b1d1d4bfa9e432b9fe",
    "baab8b10670e320f60f53153c50ee72a",
    "c112348c06ccacbacf80d4bc2a9590b9",
    "f33656214c7b425a3daa8df61b574a6d",
    "c91648b07c408329af3957157d49ab80",
    "30b088efb59543dfb06066aec3f386de",
    "ae43e746b13fd96582f8d892f658fb64",
    "ced483d8ae3a0812d46f0cc311cc96ab",
    "9c3168aafa979eb0409f4644f097f72e",
    "5ea0439193d5d2880c13dc43dccdea67",
    "1ad8e892d35a1671bed7233919bd7003",
    "01a5ccade9b557085738514be798fc85",
    "17d023f82ea6687f7fa15e00f241a0a1",
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
