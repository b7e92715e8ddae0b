//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "f493b10498155b08c9ea801386aeed02",
    "f3650cfeee41324f0074c775b434b374",
    "6ec3ba8732ca80058c2224931097baac",
    "9e0218bd4e01e2a80d78cf1b8e5b06b9",
    "e3642663f39fe80aba7fd8edf5b754e8",
    "b751f74a0f80e17a65a955354e6e2a99",
    "27b4cc3bde55a05b7cd6db553a30d5d2",
    "d91d1d02e0d18854bdbdad32c548efcc",
    "7b1f7e6cf4f4e7476afa6e621a258aac",
    "d12f4b401ffd899f170fbf4641fec25a",
    "22ea4a46e855dbd4b6ba23e25d494876",
    "3abc4cfc54c217dca7cd184f1dd57805",
    "a593232e5d2a83df0b379df9d3e963d0",
    "7039f2bd9be67c5cf97cdb5dd895a510",
    "d569fff5039cb3fcce98adf5c9335402",
    "d42a44db6032c2ffba524d51a186cee4",
    "627859ccd1447c362f12fbc8861db354",
    "4a2659e2fe430e5f3236ff90b258a8f6",
    "55918c51def7f9e8897581839821e510",
    "d44d789f733f262af8d05d24929b5ff8",
    "6e3ec725e18629330b30c07a8a59de85",
    "d3d9b7b124f16c2bc5b3df5ac6b00c89",
    "d3d10b3297a59b159952386cfdf0a332",
    "953ab432a148a9f87ad3ae462b7d250c",
    "fccf0b6124a2411930b68bf58fa1d851",
    "7e1e10ee09fe70226949c87e73a3d68c",
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
