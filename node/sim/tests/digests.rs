//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "5f78709ff55eec271bfc9b7e2b28587f",
    "bb03b078c02c25a7be511cccc2834530",
    "f08b29987c4498848a0f68d406d09b07",
    "a939c72cb3d3d308bf8a9648dff6c6ad",
    "b0ac713c0e49bf18fdfc844079b87860",
    "4d7f9fb7f336d071d57a76a4561ec029",
    "decfdecf016fbb94d944f184e5f2f82a",
    "7e6dd0164c16574fda42ad13a50ce5fb",
    "d17eabae1ce873db8ff5a5ca86a15e75",
    "9305d7139598a116cf2906faf19ee56e",
    "b96dd77bc4c177b5d75b5026e515071f",
    "9bd3e715e149e6f4d753f4096f7b8759",
    "b5dd8f225071288874294724b80aaf8d",
    "5f17252fd84146f960c6057e3d8cc428",
    "6494ba6016fca7444d01bf28a359a526",
    "37d71b8012f2fdc1eac525703e24db8e",
    "d8a9e7c5e521da06efe47aed1e279dad",
    "00b2bcc6700d88f77f7a805e077c5e33",
    "5912faf5b915f960470b48d64689e851",
    "9e8ec9d4806010233ae651fb37528ea1",
    "2c587a75865d64ed16637ad88b4f5f41",
    "47a11bf360867266c48bb634539922ba",
    "27df8cb3c71cbb259cd84241d6aff19f",
    "9f2d9770abf8baf312005caee05d2f15",
    "eaef4b81a4cf41c8b3e0b26e636c4431",
    "2d252ee54e3c12916a71a4851e2a6e65",
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
