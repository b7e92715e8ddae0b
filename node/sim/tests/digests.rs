//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "7236453f60614a4fb04ab6ed762b54ed",
    "26310e1530eeffcfa812f1e7e132125e",
    "0e91b215bb3c7d32f6ed38cbb6954378",
    "436c5c8b60833646af5e2909b5fda2e6",
    "2e06f6b044386eaff48601a087b08394",
    "b0b6f007050bd8dff4e0229679ee3817",
    "743828e4467e035b8ff41a69595b326e",
    "560cc94cd12c24bcb253577465ddb6c8",
    "0a19380b39f2368940e605f69dc66d32",
    "199b4e931e826969ea7b633d653530cf",
    "1976af96108878c7ffc7d1c57e97e32c",
    "a7be13600cb4881b17d5eb57f66eedd2",
    "04f2b3efc1c78ae1ed558b3796740525",
    "1edb3c58c653a02c6661140a7aedd84b",
    "bac4ed8ced0b551c42d009d474b08acf",
    "77f3c766cb1a51e5817497b0359a12ee",
    "0be9abd9c84b27bc0ddfcb3408ce7297",
    "771307603d244c7a6a4f4cd1b136f9c8",
    "dc8966097bb41bbf718964cef47e7609",
    "99048a3f8390eb12553b762e62155db1",
    "ea42b8527de92bd6008c887b20ba38f7",
    "79f1e725b4361234bd6a372b1d949499",
    "cbc22b03898f1e01a65c85db27f7945d",
    "a2a490c49b8b72bc9a16e1459d0bec94",
    "376a568a16eeaa26c8a18ee548844042",
    "191f137a87df135fe2a57729b6127a18",
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
