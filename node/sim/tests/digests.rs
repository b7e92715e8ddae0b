//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "e4245f0fcccd8b9f6aa7f0a51aa7559a",
    "663b5371936d68b504ff0121474e060a",
    "164bdc6952afb5be4ae8739d6a86d64e",
    "3b0ca3626937a530ed1045dae0830b3a",
    "d855062e5cf1a6125b04793c5e4a00e5",
    "afff0bb9cebe0b2e2d91404ddc6b7a63",
    "862abc84e2fbe62d491bdc03f53837e8",
    "02e1346f76176d0b4488c6adcc2916c3",
    "9c29b59267122728f6a258c7d6a6f4ae",
    "014a8eeee8618feb9d20c7d79378f09f",
    "061a0698df4f0b601a22b97ac4ffde33",
    "59af497f198729db2612dab2acd4d987",
    "9bdaf16c346d0fa8b00b1ef5584cbe61",
    "3c3a5abede92bc9e990c44a9a6b0a830",
    "a7261064474dbcfdfa84fe1a4a740664",
    "a9a9a0af933c709e2852af6b060b8cfa",
    "b2e6cebc70d018aefa260cfe724c546d",
    "165d9af289cbe12a895333bb6ffa19ba",
    "2beaa31b3cd2e742517f52d85ff1855e",
    "1429c1b55db7e001b48ddb172b03f684",
    "dd61c5facc1adbb2780655356cd744e9",
    "da69e7abcb46730c0c09cee9576916b0",
    "f7aef2e46b87b03fcad7268f4431537f",
    "42bbbe7c6d44bbf11ff1661c9b556241",
    "0c8294380c0c8d8afbe1aedab0aaa471",
    "18935d391c3db45d0bfb4b0d6e74474e",
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
