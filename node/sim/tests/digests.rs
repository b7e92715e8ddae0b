//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "5064f1d9937a5e913bb6ed67dceadabb",
    "1a8a6774d3b6194c63ac9cde51385590",
    "153240bb6967a9c458a441e6ba2897f5",
    "5c9c0da43f7eae0303614960d6a4d2be",
    "304b048b3a0eec74833a1afacb7839bd",
    "0b4d897b8f9c83511b58c5b0a45868bd",
    "b30f75bcd83f259d5a617ed3d049a8fd",
    "4ab4ad86cd028a81ab50f3940953bb3c",
    "4ac7c6d4f1389bf1da01cdec88d3f8de",
    "0e7737f0cedfc67614a67a3b80d667a1",
    "24c0a5e2c396a9244c14a5dcd02191df",
    "0128d35bcde73a03afb3245b4138b3a5",
    "b4981a1012044acdc7cc3810a8551617",
    "fa91b58b42a0b80a1b8d6d8a89097c6d",
    "433d324557422bd6c828455c4b93f9d4",
    "b6145fb3366ffd0cd6cda6ec61f36f8c",
    "899b421c8d1251e71a1d9b29929ab9a5",
    "40bf388332d34104eb3f3985ebdb2bf3",
    "713338e4b2cd884d80fb73ae1123f7e6",
    "35c4313a6ac6ec1306800c45cab02e2a",
    "30e2116e91d4af016a26ed0672805068",
    "f7e2562d391f3b971512393229237d6e",
    "390398f84d0d1a5cb9849b5a274f3e86",
    "b787742c87bb42e4eddb8b57bfbe0592",
    "3e2d42a8d0c86751ff97b04a7c5bbcc6",
    "0fcf506a44f4fa6f701559ef4cdd66e9",
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
