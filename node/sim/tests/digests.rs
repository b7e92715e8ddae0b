//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 16] = [
    "b542e4d689f661042f8be033a82243d2",
    "3243b66c26074860d996f0bd4c9f350d",
    "ffd41b1d83f76d6f8c89f965badf1b1a",
    "a05f1e4b182202962c2c915847c66f0c",
    "4d6be25e827ab7ad524fa3e0862e9bf8",
    "07719f769698713cb5a221e6a26a5379",
    "cd3110cafb65a4a88b830bc417eff94c",
    "90be087b349e081784478742bc2f3dbc",
    "01ac24f65e7509756c3a149004b2fc10",
    "9d48b00057791c706c3e68bfbe96976a",
    "9f111c885442c501f2703f44aca51156",
    "04a08f6cf037549261571ac645879266",
    "fff89883c4af947cfa378c3435d740e2",
    "29c515fe406370c0637d23b1a8210463",
    "3544a9c9003af7d6ede5c565f927dfd9",
    "996a9d559d9c191b1e7abfba0423a911",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..16)
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
