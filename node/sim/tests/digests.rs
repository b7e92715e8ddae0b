//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "97a048f07ea3fd27c5b3e5ae59926781",
    "69d5d496692e5c9ed563d99535c82db7",
    "caa63c4714c29c90f7affeff09e97afb",
    "541d52d6b460fe954cbbc8388645d813",
    "84c4e15b55efead62b78a0044007fc7e",
    "616ce593bd0bfa0d05173d80b0b916f2",
    "3c4d2b825b26914e8c44f35e43edbd23",
    "e88a57efa4838804570bf56ce23e72f3",
    "ecff334cd96640cdc5d610f5fea67ba9",
    "b6a0e9a305c4c5e9f6b56b06268ab12a",
    "6b2e5740b7a3d20b2add8d718db69241",
    "8625fd554e13920c17e7baf1f44f0f48",
    "ec8748fc45f001c8b129632e17945622",
    "28f7fa34b7a55276bd834607ea13ff3a",
    "8ee435cf688508fd5d5d552da50a76b8",
    "439b822a64c1e1da393914bdc02000ee",
    "524bd8541fe8c7a147666a49e495d168",
    "fca18221a9d83699ed1488e9188c0c20",
    "b88b75079750644fe00a64c92d370db0",
    "ef0378f43a80808ca16dbdece3620c72",
    "67bb8a881fba9b27fc997e17374e6c2a",
    "29030006514eb3c5bab49b70621ec026",
    "392fdd3714a69db81de5fc6ced864bec",
    "67864e2e649ddc999e259e6120378665",
    "e0b900d408e32c647422a2f70ac5c953",
    "3407d60b669db2ee180f8194e22f3ffa",
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
