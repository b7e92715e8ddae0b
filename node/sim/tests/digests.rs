//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "9bdf03e5cd2df5181fc214d0e2b4d37a",
    "d0e75b3d96cc0362ff1a0b9ebf6bff8b",
    "3971983856a9c4159f0b8a22b3d29343",
    "3f9bd94f308f27055cee560a2c3b8e1b",
    "98fd42de64a8ae0fd70cf780277b6ead",
    "6f7ea0590e0b35cc43940178de213e53",
    "34b73c3e7939eeb350e11c7874027367",
    "e7a5a7413b102d582a5577b59d6175a4",
    "f893107a8fdef90e900dc943c821a217",
    "7a906fcce35e2a576668c4744896849c",
    "7980d7e13703732d33518c47114aea14",
    "3436f2ae6e43d9e1571c5c868e03263c",
    "f2cec6a58faa0a9cc7a3fd5a54070f3b",
    "9a545ad9c33d2aecea0cf0c0d277e85d",
    "a17fb9bc63f8695a3a66608b0e09f90c",
    "495f293d6d49c40c9153ef7f2912cc65",
    "43b4d59ac0c09f651f3ecabcacbcb041",
    "d141857f173a70878aa78f20f22cc24d",
    "1aa06b9e8e8903557c2f1fcc416931b3",
    "0cfc63172310ae5f176de9cc5c7a0d2f",
    "a59eeff1e73309fae6eba2ed9d6b4aca",
    "81fc83b4789132cd4f2ce116e3a0b31e",
    "9651da3444f527080dd1e128491db2ca",
    "900d49e73b3d032957260fd98b322c54",
    "7561e4e06f73c470349b6484df85dc0e",
    "369e884405594f5971a7b5e74701cc32",
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
