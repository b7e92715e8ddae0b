//! What a node remembers of its volumes.

use holdfast_s3::{Credentials, S3Config};

use super::*;

#[test]
fn no_changed_byte_of_what_is_remembered_of_an_attached_volume_is_believed() {
    let dir = tempfile::tempdir().unwrap();
    let local = Local::new(dir.path(), dir.path(), &"disk".parse().unwrap());
    fs::create_dir_all(local.run()).unwrap();
    let record = AttachedRecord {
        version: ATTACHED_VERSION,
        device_id: Some(3),
        sectors: 1024,
        epoch: 7,
        max_age_ms: 30_000,
        durability: Durability::Object,
        detaching: false,
        store_name: "store".into(),
        store: (&S3Config::new("bucket", "us-east-1", Credentials::Environment)).into(),
    };
    local.write_record(&record).unwrap();
    let read = local.read_record().unwrap().unwrap();
    assert_eq!((read.epoch, read.durability, read.sectors), (7, Durability::Object, 1024));
    let whole = fs::read(local.record_path()).unwrap();
    for at in 0..whole.len() {
        for change in [1, 0x10, 0x80] {
            let mut bytes = whole.clone();
            bytes[at] ^= change;
            assert!(attached_record(&bytes).is_err(), "byte {at} was {}", whole[at]);
        }
        assert!(attached_record(&whole[..at]).is_err(), "{at} bytes");
    }
}
