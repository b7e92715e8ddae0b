//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "961eaa6f804985774759160a12e5024f",
    "31e42b35cceefdb9a62baff1ef5697d5",
    "1410ff970b0d278eae9d0fd7f43d0beb",
    "b94132edc9d3a8b8f5edc98228c94e2e",
    "529ff098853275d4072632fa23e99eca",
    "eb0160fba85dc2d1cc906097a2b6a384",
    "bb7a8438b25f57e63f41e40b9c3f338e",
    "5ecfa119fd96e5d1437261c92cf48f38",
    "ba495a60761d33c175db989fa48702cb",
    "230e08a41739b622930a6d726191ba00",
    "52b8ac7a59bd4d7b0defe379512e3039",
    "2d0b03649566567eca985f3be6987857",
    "c45e9d269e584401ce15b81ba6af8eb3",
    "a4d63759dc539c674531a32f9f531b38",
    "04d1755f5b4befc9560dae95061eb769",
    "3ca1be0b9271b014b28d6bcc04c1bfe8",
    "8533a9af0f1f52dd021cc71e94c03419",
    "c0c2331b13478bbce964e6bfa0b62856",
    "16ac2f9dbbc340f1dc9a75e4662e1172",
    "75b62b88f78982eeda6c02ffa31b2bad",
    "5ea0439193d5d2880c13dc43dccdea67",
    "db6e591ff583cf93fdcfad93da03956b",
    "3a8c706287578a3f0cf3a41edb4dbf96",
    "b787742c87bb42e4eddb8b57bfbe0592",
    "7b513637477d6eaee5e4f1fe086acdfd",
    "423b68a2f52e142f897341a8c244fd92",
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
