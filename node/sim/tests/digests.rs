//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "362907ae7facf3f23b4223cd5981688f",
    "debdf5c44934b536b1d32ebc63581074",
    "44e035239b4456dbf52d1afc6c6caaaf",
    "ec86b389ce879218e47ac64107a91ef3",
    "a95b1665342cc17f815b8aaf113499b1",
    "43e1f5e124427819819dac508b55bf39",
    "7768f8a238e57525a4dabe3a83f6e429",
    "0ecfb26e153a2b8079eb164daf194a95",
    "b6c5cb36ca3ccaad00359230b0a8cf4a",
    "cd40cf266f8d4d14ad60c1ee6f0d4cf8",
    "24eca31d57b11a36b297cd7f1ff4bcf8",
    "e9df5e2d50d357b1d1d4bfa9e432b9fe",
    "cc7f0cfbb8e0b8144e8c37dfb21a7ca2",
    "1a5b75a98b6d4d4a2ca031afe52142f6",
    "b227c1fa599877e146b8793e43353a8d",
    "c91648b07c408329af3957157d49ab80",
    "8533a9af0f1f52dd021cc71e94c03419",
    "91a920b8d35341c50685162cf5bf6e77",
    "ced483d8ae3a0812d46f0cc311cc96ab",
    "94936bc1772bccab1fa5448879cc4ada",
    "5ea0439193d5d2880c13dc43dccdea67",
    "f91bf0e426dd603f3217b0fdcfab9f64",
    "01a5ccade9b557085738514be798fc85",
    "cb297cde59a56a6060ff5bd4d8974f4e",
    "5f98a64a1f88b31038dfab4a0d6e33d6",
    "ceaf8754bc989fc628ce43111de7fae5",
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
