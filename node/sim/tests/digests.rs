//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "961eaa6f804985774759160a12e5024f",
    "5ed8421a9adde94f265569f189be0bd9",
    "1410ff970b0d278eae9d0fd7f43d0beb",
    "b681f0d5693261c6de8f7f2c05427b6a",
    "529ff098853275d4072632fa23e99eca",
    "eb0160fba85dc2d1cc906097a2b6a384",
    "0cbbddd02fb0f0ddb53fed2f5618b69c",
    "5ecfa119fd96e5d1437261c92cf48f38",
    "ba495a60761d33c175db989fa48702cb",
    "d56c8a07a67a9145ee9b0b333edae7b1",
    "f527793f1bcc95107b06c4b86f4f4907",
    "2d0b03649566567eca985f3be6987857",
    "c45e9d269e584401ce15b81ba6af8eb3",
    "a4d63759dc539c674531a32f9f531b38",
    "9bfd2ce6c414e2004e4d79650d5ab80f",
    "3ca1be0b9271b014b28d6bcc04c1bfe8",
    "8533a9af0f1f52dd021cc71e94c03419",
    "c0c2331b13478bbce964e6bfa0b62856",
    "c124e2bdeb66c87b0b3a5649f494087f",
    "31d7dc5e4540be5f3e743aa4169aa979",
    "5ea0439193d5d2880c13dc43dccdea67",
    "db6e591ff583cf93fdcfad93da03956b",
    "e764acba2e67bbb2887eb84a198c8402",
    "b787742c87bb42e4eddb8b57bfbe0592",
    "7b513637477d6eaee5e4f1fe086acdfd",
    "78de02efb3bc9783996ad171d0a34e6e",
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
