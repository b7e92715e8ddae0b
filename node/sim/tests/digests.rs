//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of what the
/// engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 22] = [
    "492071377df131b80e9502edcdf64f41",
    "849334d76162ee21bee8100322288857",
    "fdc44ae9ad4a1a74696386774fa19de9",
    "d3de457269fd997b19abcc685fac1609",
    "61839ed8df1cc4ccb5304222275d4eb2",
    "114458b67884c7d2d5159cdd3077057f",
    "3bb031055160e167067fd9c33539e5cb",
    "7a3206afb57e28c06a33d4d29a007f84",
    "4274979c8015b0b8f2e9cc0b4c489212",
    "2970cab10edb7ae2100a874d86c3df9d",
    "ba421a16aad5949240a5aec1ff415974",
    "1b54a3ec770a4d49761c9e700b23a41e",
    "d0cfc2fa840d4b5f6b52bc4b4cb417d8",
    "d68987e19a165e6c435f1a84d3e736a1",
    "25383e2322548035beb342faa02f1a12",
    "35eeaeecbfc02414f91645ad6cf18aed",
    "90001e0a9d17d6096af068181d97fa57",
    "d5919b1b27ea02f9b0ef195c3bdef263",
    "31eb5697b6ed3dec8661f4d37eae60fd",
    "60a0477ac58cf17ba8e58bbb0926427d",
    "214080f84008e23d53a211981550ddc5",
    "7b7b8f95ee22a91408c2d9e5f22dcbe9",
];

#[test]
fn the_same_on_every_machine() {
    let digests: Vec<String> = (0..22)
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
