//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "7236453f60614a4fb04ab6ed762b54ed",
    "26310e1530eeffcfa812f1e7e132125e",
    "0e91b215bb3c7d32f6ed38cbb6954378",
    "6fd5833a8a4404cdf1353a9ff8469101",
    "980cd4129b1306466f6a3fc31e2e1ff7",
    "446cc40cf3fdde9d09f2f17cd9111896",
    "cf439c1b4f0b196bee725f340dcc1c1a",
    "9eee6bb61429b45053c91b80c5885d52",
    "5f818ab1ce3757ec2193b72a2738d205",
    "5a7a63f8746214a67b1aa248ee2c1e0d",
    "bd0acb276e6ea6d08de132f9c665a8a1",
    "185482b04be96782deed35c26be1ebc3",
    "0a7fa0d5bc043090939f41ba04b51552",
    "1edb3c58c653a02c6661140a7aedd84b",
    "bac4ed8ced0b551c42d009d474b08acf",
    "77f3c766cb1a51e5817497b0359a12ee",
    "a7902214cd41599db7fa1c3afbad17dc",
    "146ecb580f39ba41b25112be2bda1a9a",
    "b32e5afd1dc7e5c6021a64efbb60223a",
    "b8ad84a6659b947c1edc1666a5ab93d6",
    "4279a3b6479983f278f9371dcd81c9ce",
    "fa97cb2c1eff3ff26a6b08a8723b267b",
    "ec4970f06551da45981a93dbc804f953",
    "2a55ed9247a97dbfdb2d46966d836522",
    "bd3041dfcec61af77fbb9f3a133de411",
    "f1aa0ba4116df42511ee34bc00c8ebad",
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
