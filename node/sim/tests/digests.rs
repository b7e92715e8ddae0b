//! The same seed gives the same run on every machine.

use holdfast_sim::case::Case;
use holdfast_sim::fleet::FleetCase;

/// Digests of the seeds from 0: each profile with `durability: local`, then each with `object`. A change of
/// what the engine does changes them: then take the new ones from the message of the failure.
const DIGESTS: [&str; 26] = [
    "2eca2d01f60f0a366404c7e220a935a1",
    "1ee6b30e5276ecd8d30c3d5337178b71",
    "bcbcb4d95ce7dcc1cc0490372f7b4d84",
    "3aab9c4f34f607a05fc01d654aef9b5f",
    "5c464e820f83b6f37973d3af4139a7ba",
    "b4d269a2b63df32c51ea63cba5f0c5fe",
    "64e20931ecadf4ec101098d38f252202",
    "234b46566d0125ee157be210034e96ee",
    "2926ff5c2436079e0e21f08aa2ea4aad",
    "8ec5df563612a10ce6417e9576f67446",
    "ef53c8ad189e4f948b4c50d0cb248c03",
    "8ebbecce542fd1042d2cb0b3123f6479",
    "5b4148712d0b438222f1e96914d6adb1",
    "8a1c5ac81e0d55a22907381476993ce6",
    "2492ad867b2564e01e2535ff1c091396",
    "12dcef87e81af345d5ded205af84c93b",
    "bb532c83bf0af96388fb105b3916a74a",
    "b1f89b173c5610207cb4cb32d601f752",
    "df70041a3c2e8c61d4969d01293c7a84",
    "7c16514141839bd23594b0091885b6a9",
    "a2c48b8864c0db97ea2938da612d4723",
    "6df9fe9d4888dcd974cce46fa3adae74",
    "e09a848bf7f21682bb196e7e481be22f",
    "b603d773eaf4217314d7314214d9f16f",
    "0c8294380c0c8d8afbe1aedab0aaa471",
    "5766c5c73f316ccef4c49cdbf4d474aa",
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
