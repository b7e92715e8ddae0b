//! A node that is being drained.

use super::*;

const AGE_MS: u64 = 1 << 40;

/// Leaves a volume with dirty data that is not due for a commit for decades.
async fn leave_patient(dirs: &Dirs, bucket: &Bucket, volume: &VolumeId) {
    leave_volume_dirty(dirs, ("main", bucket), volume, SectorRange::new(2, 3)).await;
    let local = dirs.local_of(volume);
    let record = local.read_record().unwrap().unwrap();
    local.write_record(&AttachedRecord { max_age_ms: AGE_MS, detaching: false, ..record }).unwrap();
}

async fn serve(node: &Node, volume: &VolumeId) {
    let present = node.resumed(volume).await;
    node.load_manifest(volume.clone(), present);
}

fn status(node: &Node, volume: &VolumeId) -> NodeVolumeStatus {
    node.list().into_iter().find(|shown| shown.volume == *volume).unwrap()
}

async fn committed(node: &Node, volume: &VolumeId) {
    let clean = async {
        while status(node, volume).commit.dirty_bytes != Some(0) {
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    tokio::time::timeout(LIMIT, clean).await.unwrap_or_else(|_elapsed| panic!("{:?}", node.list()));
}

/// Regression: a drained node's final commit had all data of `maxDirtyAge`, up to a seal's size.
#[test]
fn a_drained_node_commits_soon_also_after_a_restart() {
    run_node_test(async {
        let (dirs, bucket) = (Dirs::new(), Bucket::start().await);
        let ids = ["one", "two", "later", "next", "usual"].map(|name| name.parse::<VolumeId>().unwrap());
        let [one, two, later, next, usual] = &ids;
        let node = Node::start(dirs.config()).await.unwrap();
        for volume in &ids {
            node.create(volume, (SECTORS * SECTOR_BYTES).into(), "main", &bucket.config).await.unwrap();
        }
        for volume in [one, two] {
            leave_patient(&dirs, &bucket, volume).await;
            serve(&node, volume).await;
        }
        // One that commits without a drain.
        leave_volume_dirty(&dirs, ("main", &bucket), usual, SectorRange::new(2, 3)).await;
        serve(&node, usual).await;
        committed(&node, usual).await;
        let puts = |volume| status(&node, volume).store.of_volume.requests.put;
        assert_eq!(puts(usual), 2, "its own segment and record");
        for volume in [one, two] {
            assert_eq!(status(&node, volume).commit.dirty_bytes, Some(3 * SECTOR_BYTES));
            assert_eq!(puts(volume), 0);
        }

        node.set_draining(true).await;
        for volume in [one, two] {
            committed(&node, volume).await;
            let age = status(&node, volume).max_dirty_age;
            assert_eq!(age, Some(Duration::from_millis(AGE_MS)), "it is the volume's own");
        }
        leave_patient(&dirs, &bucket, later).await;
        serve(&node, later).await;
        committed(&node, later).await;
        node.shutdown().await;

        let node = Node::start(dirs.config()).await.unwrap();
        leave_patient(&dirs, &bucket, next).await;
        serve(&node, next).await;
        committed(&node, next).await;
        assert_eq!(dirs.local_of(next).read_record().unwrap().unwrap().max_age_ms, AGE_MS);
        for _ in 0..2 {
            node.set_draining(false).await;
            assert!(!dirs.run.path().join("draining").exists());
        }
        node.shutdown().await;
    });
}
