//! Stores whose credentials, endpoint or certificates change under their volumes.

use tokio::runtime::Runtime;

use super::*;

/// A node that serves a volume with three dirty sectors, and whose bucket accepts another key from now on.
async fn rotated(dirs: &Dirs, bucket: &Bucket) -> (Node, S3Config) {
    let node = Node::start(dirs.config()).await.unwrap();
    node.create(&volume(), SECTORS * SECTOR_BYTES, "main", &bucket.config).await.unwrap();
    leave_dirty(dirs, bucket, SectorRange::new(2, 3)).await;
    let new = bucket.accept("new");
    let present = node.resume(&volume(), LIMIT).await.unwrap().unwrap();
    node.load_manifest(volume(), present);
    let denied = wait(&node, |status| status.store.away().is_some()).await;
    assert!(denied.store.away().unwrap().is_denied, "{denied:?}");
    assert_eq!(denied.dirty_bytes, Some(3 * SECTOR_BYTES));
    (node, new)
}

/// Found by reading: the client of a volume was made at its attach and stayed. Once its key was revoked nothing was committed
/// any more, and the detach that could have read the new key needed the old one.
#[test]
fn a_rotated_key_reaches_a_served_volume_without_a_restart() {
    let (dirs, beside) = (Dirs::new(), Runtime::new().unwrap());
    let bucket = beside.block_on(Bucket::start());
    alone(async {
        let (node, new) = rotated(&dirs, &bucket).await;
        node.renew_store("main", &new).await.unwrap();
        let committed = wait(&node, |status| status.dirty_bytes == Some(0)).await;
        assert_eq!(committed.store, StoreHealth::Answers);
        assert_eq!(dirs.local().read_record().unwrap().unwrap().store, (&new).into());
        let mode = fs::metadata(dirs.record()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600, "it holds the key");
        node.shutdown().await;
    });
    // The last run was told to detach the volume: that needs the log.
    alone(async {
        let node = Node::start(dirs.config()).await.unwrap();
        let gone = async {
            while !node.list().is_empty() {
                tokio::time::sleep(Duration::from_millis(20)).await;
            }
        };
        tokio::time::timeout(LIMIT, gone).await.expect("the restarted daemon has the old key");
        node.shutdown().await;
    });
}

/// An attach reads the configuration too: the volumes that are there get it with it.
#[test]
fn an_attach_with_new_credentials_renews_the_store_of_others() {
    let (dirs, beside) = (Dirs::new(), Runtime::new().unwrap());
    let bucket = beside.block_on(Bucket::start());
    alone(async {
        let (node, new) = rotated(&dirs, &bucket).await;
        node.create(&"other".parse().unwrap(), SECTOR_BYTES, "main", &new).await.unwrap();
        wait(&node, |status| status.dirty_bytes == Some(0)).await;
        node.shutdown().await;
    });
}

/// A volume that is recovered late, with what the last daemon knew, finds what was read since.
#[test]
fn a_late_recovery_uses_the_newest_key() {
    let (dirs, beside) = (Dirs::new(), Runtime::new().unwrap());
    let bucket = beside.block_on(Bucket::start());
    alone(async {
        let node = Node::start(dirs.config()).await.unwrap();
        holdfast_log::provision(&*bucket.objects, &volume(), SECTORS, Nonce([9; 16]), 0).await.unwrap();
        leave_dirty(&dirs, &bucket, SectorRange::new(2, 3)).await;
        node.renew_store("main", &bucket.accept("new")).await.unwrap();
        let present = node.resume(&volume(), LIMIT).await.unwrap().unwrap();
        node.load_manifest(volume(), present);
        wait(&node, |status| status.dirty_bytes == Some(0)).await;
        node.shutdown().await;
    });
}

/// An attach that had read the log of one server could have created its record on another.
#[test]
fn an_endpoint_does_not_change_under_an_attach() {
    alone(async {
        let (dirs, bucket, other) = (Dirs::new(), Bucket::start().await, Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        let in_use = node.store("main", &bucket.config).await.unwrap();
        let busy = node.renew_store("main", &other.config).await.unwrap_err();
        assert_eq!(busy.kind(), ErrorKind::Unavailable, "it is tried again: {busy}");
        drop(in_use);
        node.renew_store("main", &other.config).await.unwrap();
        node.shutdown().await;
    });
}

/// A volume stays where its log is: another bucket, or another server that has a bucket of that name, would split it.
#[test]
fn a_store_that_moves_elsewhere_is_refused_and_named() {
    let (dirs, beside) = (Dirs::new(), Runtime::new().unwrap());
    let (bucket, other) = beside.block_on(async { (Bucket::start().await, Bucket::start().await) });
    alone(async {
        let (node, new) = rotated(&dirs, &bucket).await;
        let moved = S3Config { bucket: "elsewhere".to_owned(), ..new.clone() };
        let prefixed = S3Config { prefix: "p".to_owned(), ..new.clone() };
        for refused in [&moved, &prefixed, &other.config] {
            let error = node.renew_store("main", refused).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Invalid, "{error}");
            let told = only(&node).store_change_refused.unwrap();
            assert!(told == error.to_string() && told.contains("volume disk"), "{told}");
        }
        assert!(other.objects.keys().is_empty(), "nothing was written there");
        let silent = S3Config { endpoint: nowhere().endpoint, ..new.clone() };
        let error = node.renew_store("main", &silent).await.unwrap_err();
        assert_eq!(error.kind(), ErrorKind::Unavailable, "it is tried again: {error}");
        // The same bucket behind another address.
        let behind = beside.spawn(Bucket::over(Arc::clone(&bucket.objects))).await.unwrap();
        node.renew_store("main", &S3Config { endpoint: behind.config.endpoint.clone(), ..new })
            .await
            .unwrap();
        wait(&node, |status| status.dirty_bytes == Some(0) && status.store_change_refused.is_none()).await;
        node.shutdown().await;
    });
}

/// Found by reading: an image without authorities, or a bad bundle, kept the device of a volume from being recovered, though
/// all its data was on the node.
#[test]
fn a_volume_is_recovered_whatever_its_store_lacks() {
    alone(async {
        let dirs = Dirs::new();
        dirs.leave().await;
        let record = dirs.local().read_record().unwrap().unwrap();
        let unusable = S3Config {
            endpoint: Some("https://127.0.0.1:1".to_owned()),
            ca_pem: Some("no certificate".to_owned()),
            ..nowhere()
        };
        dirs.local().write_record(&AttachedRecord { store: (&unusable).into(), ..record }).unwrap();
        let node = Node::start(dirs.config()).await.unwrap();
        // It is on its ring.
        wait(&node, |status| status.state == VolumeState::Detaching).await;
        let waits = wait(&node, |status| status.store.away().is_some()).await;
        let error = &waits.store.away().unwrap().error;
        assert!(error.contains("caBundle"), "{error}");
        // Corrected, it is asked.
        node.renew_store("main", &S3Config { ca_pem: None, endpoint: nowhere().endpoint, ..unusable })
            .await
            .unwrap_err();
        node.shutdown().await;
    });
}

/// Found by reading: on a server that ignores the condition two nodes both create the same record, and nothing is fenced.
#[test]
fn a_bucket_without_create_once_is_refused_before_use() {
    alone(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        bucket.ignore_conditions();
        let node = Node::start(dirs.config()).await.unwrap();
        let create = node.create(&volume(), SECTOR_BYTES, "main", &bucket.config).await.unwrap_err();
        // What an attach asks for where there is ublk.
        let attach = node.probed_store("main", &bucket.config).await.unwrap_err();
        for refused in [create, attach] {
            assert_eq!(refused.kind(), ErrorKind::Invalid, "{refused:?}");
            let message = holdfast_service::chain(&refused);
            assert!(message.contains("main") && message.contains("If-None-Match"), "{message}");
        }
        assert!(bucket.objects.keys().is_empty());
        node.shutdown().await;
    });
}

#[test]
fn a_bucket_is_probed_once_by_a_process() {
    alone(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let node = Node::start(dirs.config()).await.unwrap();
        for (name, requests) in [("a", 6), ("b", 1), ("c", 1)] {
            let before = bucket.objects.counts().total();
            node.create(&name.parse().unwrap(), SECTOR_BYTES, "main", &bucket.config).await.unwrap();
            assert_eq!(bucket.objects.counts().total() - before, requests, "{name}");
        }
        node.shutdown().await;
    });
}
