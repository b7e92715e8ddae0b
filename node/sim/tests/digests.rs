//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "949e37c07b045a36b910f15893f7ffa5",
    "a495c75e6d505bd6e9de3de9db273c8d",
    "bf99afece07cd2efd42f9052c3471e89",
    "d3d974273379d89c439fd939717da556",
    "e44bbcaaeed13f4b832a87d108808ebe",
    "b3956802d3c958f9c610f890c71b3e9a",
    "695e56942c52580128cf88eb412b6fba",
    "45a93de0b98295585b692b7508284d04",
    "064304dfcd8080213f7c76cdebea8ea2",
    "68281da5d4139877d2c051b35f022de4",
    "f9d7dd75f599a656224d89d723b45672",
    "c11a834ddd72952c8eb99c086186ed2b",
    "28ea23cea296f79046d9e67043da9c99",
    "efa25a0cd2825db5fd2de8a476787474",
    "22108cff699a7e4510a748896b3a3bd1",
    "77f3c766cb1a51e5817497b0359a12ee",
    "0be9abd9c84b27bc0ddfcb3408ce7297",
    "771307603d244c7a6a4f4cd1b136f9c8",
    "dc8966097bb41bbf718964cef47e7609",
    "99048a3f8390eb12553b762e62155db1",
    "ea42b8527de92bd6008c887b20ba38f7",
    "79f1e725b4361234bd6a372b1d949499",
    "260e602a373f8bc1775b2267f1aeddce",
    "a2a490c49b8b72bc9a16e1459d0bec94",
    "376a568a16eeaa26c8a18ee548844042",
    "9b06796b32653daf4e2ae0938d442aaf",
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
