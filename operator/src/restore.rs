//! `holdfast-operator restore`: prints the objects that bring a bucket's volumes into this cluster, as YAML.
//!
//! Owns: finding the volumes and snapshots of a bucket, and the documents for those that the cluster does not
//! have.
//! Does not own: the adoption, which the operator performs when the documents are applied.
//! Costs: for each volume a LIST, a GET of its first record, and reading its log; for each snapshot a GET,
//! plus one LIST per volume. Writes nothing.
//! On failure: a volume that cannot be read is named in a comment and, unless the cluster has it, in the
//! error; the others are printed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;

use anyhow::Context;
use futures::{StreamExt, stream};
use holdfast_crds::{Time, Volume, VolumeSnapshot};
use holdfast_format::record::Labels;
use holdfast_format::snapshot::Snapshot;
use holdfast_log::LogFailure;
use holdfast_log::trash::read_trash;
use holdfast_objects::ObjectStore;
use holdfast_service::chain;
use holdfast_types::{SECTOR_BYTES, SnapshotName, VolumeId};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::object_store::connect::Connections;
use crate::volume::found_in_store::{FoundInStore, LastWriter};
use crate::volume::identity::id_of;
use snapshots::{FoundSnapshot, Here, OfVolume};

mod documents;
mod snapshots;

/// API group of the users' snapshots.
const USER_KINDS: &str = "snapshot.storage.k8s.io";
/// Number of volumes read in parallel, and of snapshot origins per volume.
const VOLUMES_AT_A_TIME: usize = 16;
const ORIGINS_AT_A_TIME: usize = 8;

/// A volume in the bucket that was not deleted; with `--deleted`, one in the trash.
#[derive(Debug, Clone)]
pub(crate) struct Survivor {
    /// Its identity.
    id: VolumeId,
    /// The object and claim that the volume was created for.
    labels: Labels,
    /// Logical size.
    size_bytes: u64,
    /// The writer of the last attach.
    last: Option<LastWriter>,
    /// Its snapshots, oldest first.
    snapshots: Vec<FoundSnapshot>,
}

/// Selection of the documents to print.
#[derive(Debug, Clone, Copy)]
pub(crate) struct WantedDocuments {
    /// Only volumes in the trash.
    pub(crate) deleted: bool,
    /// Also PersistentVolumes, claims, and users' VolumeSnapshots. A backup program that restores claims
    /// itself would find them bound to other content.
    pub(crate) with_claims: bool,
}

/// The objects that exist in the cluster.
struct KnownObjects<'a> {
    volumes: &'a [Volume],
    snapshots: Here<'a>,
}

/// Volumes in the bucket whose log cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} of the bucket cannot be read: {}. They have no documents; those of all others were printed. \
     Fix the cause given in each volume's comment, then run restore again",
    if ids.len() == 1 { "1 volume".to_owned() } else { format!("{} volumes", ids.len()) },
    ids.join(", ")
)]
struct UnreadableVolumes {
    /// Their identities.
    ids: Vec<String>,
}

/// Prints the documents for the volumes of the ObjectStore called `name`.
///
/// # Errors
/// The cluster, the ObjectStore or the bucket cannot be read, and nothing is printed. Or some volumes cannot
/// be read, and the documents of all others are printed.
pub(crate) async fn run(name: &str, asked: WantedDocuments) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no cluster: run in a pod, or set KUBECONFIG")?;
    let volumes: Api<Volume> = Api::all(client.clone());
    let volumes = volumes.list(&ListParams::default()).await.context("the Volumes cannot be listed")?.items;
    let snapshots: Api<VolumeSnapshot> = Api::all(client.clone());
    let snapshots = snapshots.list(&ListParams::default()).await;
    let snapshots = snapshots.context("the VolumeSnapshots cannot be listed")?.items;
    let groups = client.list_api_groups().await.context("the kinds of the cluster cannot be listed")?.groups;
    let has_user_kinds = groups.iter().any(|group| group.name == USER_KINDS);
    let store = Connections::default().open(client, name).await?;
    let known = KnownObjects { volumes: &volumes, snapshots: Here { snapshots: &snapshots, has_user_kinds } };
    print(name, store.as_ref(), &known, asked, &mut std::io::stdout().lock()).await
}

/// Writes the documents for the volumes of `store`, called `name`, that the cluster does not have: either
/// those in the trash, or all others.
async fn print(
    name: &str,
    store: &dyn ObjectStore,
    known: &KnownObjects<'_>,
    WantedDocuments { deleted, with_claims }: WantedDocuments,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ids = holdfast_log::list_volumes(store).await.context("the bucket cannot be listed")?;
    let trash = read_trash(store).await.context("the trash of the bucket cannot be listed")?;
    let in_trash: BTreeSet<VolumeId> = trash.stays.into_iter().map(|there| there.stay.volume).collect();
    let KnownObjects { volumes, snapshots } = known;
    let existing: BTreeMap<String, &Volume> = volumes.iter().map(|one| (id_of(one), one)).collect();
    // A Volume with the id in another ObjectStore is another copy: its snapshots are not in this bucket.
    let is_elsewhere = |id: &VolumeId| {
        let store = existing.get(id.as_str()).and_then(|volume| volume.spec.object_store.as_deref());
        store.is_some_and(|store| store != name)
    };
    let wanted = ids.into_iter().filter(|id| in_trash.contains(id) == deleted && !is_elsewhere(id));
    let mut read = stream::iter(wanted)
        .map(|id| async move { (survivor(store, &id).await, id) })
        .buffered(VOLUMES_AT_A_TIME);
    let (mut survivors, mut present, mut unreadable) = (Vec::new(), Vec::new(), Vec::new());
    let mut text = String::new();
    while let Some((found, id)) = read.next().await {
        match (found, existing.get(id.as_str())) {
            (Ok(Some(survivor)), Some(volume)) => present.push((volume.name_any(), survivor)),
            (Ok(Some(survivor)), None) => survivors.push(survivor),
            (Ok(None), _) => {}
            (Err(failure), Some(volume)) => text.push_str(&documents::comment(&format!(
                "volume {id}, which is Volume {} here: its snapshots have no documents: {}",
                volume.name_any(),
                chain(&failure)
            ))),
            (Err(failure), None) => {
                text.push_str(&documents::comment(&format!("volume {id}: {}", chain(&failure))));
                unreadable.push(id.to_string());
            }
        }
    }
    if !deleted && !in_trash.is_empty() {
        let (count, has) = (in_trash.len(), if in_trash.len() == 1 { "has" } else { "have" });
        let what =
            format!("{count} in the trash {has} no documents here: `restore {name} --deleted` prints them");
        text.push_str(&documents::comment(&what));
    }
    let names = volumes.iter().map(ResourceExt::name_any).collect();
    let (of_volumes, objects) = documents::of(name, &survivors, &names, with_claims)?;
    text.push_str(&of_volumes);
    let present = present.iter().map(|(object, survivor)| (object.as_str(), survivor));
    let of_snapshots: Vec<OfVolume<'_>> = present
        .chain(objects.into_iter().zip(&survivors))
        .flat_map(|(object, Survivor { labels, snapshots, .. })| {
            snapshots.iter().map(move |found| OfVolume { object, labels, found })
        })
        .collect();
    text.push_str(&snapshots::of(&of_snapshots, snapshots, with_claims)?);
    out.write_all(text.as_bytes()).context("the documents cannot be printed")?;
    if unreadable.is_empty() { Ok(()) } else { Err(UnreadableVolumes { ids: unreadable }.into()) }
}

/// Reads a volume; returns `None` if it was deleted.
async fn survivor(store: &dyn ObjectStore, id: &VolumeId) -> Result<Option<Survivor>, LogFailure> {
    let manifest = holdfast_log::read_manifest_to_end(store, id).await?;
    let FoundInStore::Volume { size_bytes, last } = FoundInStore::of(&manifest) else {
        return Ok(None);
    };
    let labels = holdfast_log::read_creation(store, id).await?.labels;
    let taken = holdfast_log::snapshots_of(store, &manifest).await?;
    let origin =
        |taken: Snapshot| async move { (holdfast_log::read_origin(store, id, taken.uid).await, taken) };
    let mut origins = stream::iter(taken).map(origin).buffered(ORIGINS_AT_A_TIME);
    let mut snapshots = Vec::new();
    while let Some((origin, taken)) = origins.next().await {
        let origin = match origin {
            Ok(origin) => origin.unwrap_or_default(),
            // The snapshot is intact; only its names are lost.
            Err(LogFailure::Damaged { .. }) => Labels::default(),
            Err(failure) => return Err(failure),
        };
        let at = i64::try_from(taken.unix_ms).ok().and_then(|ms| Timestamp::from_millisecond(ms).ok());
        snapshots.push(FoundSnapshot {
            name: SnapshotName { volume: id.clone(), seq: taken.seq },
            uid: taken.uid,
            origin,
            size_bytes: taken.sectors * SECTOR_BYTES,
            taken: at.map(Time),
        });
    }
    Ok(Some(Survivor { id: id.clone(), labels, size_bytes, last, snapshots }))
}

#[cfg(test)]
mod tests {
    use holdfast_log::{Creation, OriginPlace};
    use holdfast_objects::{Fault, MemoryStore, Verb};
    use holdfast_types::{Nonce, SnapshotUid};

    use std::time::Duration;

    use holdfast_log::trash::{TrashTerms, discard};

    use super::*;

    const ALL: WantedDocuments = WantedDocuments { deleted: false, with_claims: true };

    /// Creates a store with these volumes.
    async fn bucket(ids: &[&str]) -> MemoryStore {
        let store = MemoryStore::new();
        for id in ids {
            let id: VolumeId = id.parse().expect("an id");
            holdfast_log::provision(&store, &id, Creation::plain(100, Nonce([9; 16]), 0))
                .await
                .expect("created");
        }
        store
    }

    async fn printed(store: &MemoryStore) -> (anyhow::Result<()>, String) {
        printed_of(store, ALL).await
    }

    async fn printed_of(store: &MemoryStore, asked: WantedDocuments) -> (anyhow::Result<()>, String) {
        let known = KnownObjects { volumes: &[], snapshots: Here { snapshots: &[], has_user_kinds: true } };
        let mut out = Vec::new();
        let outcome = print("main", store, &known, asked, &mut out).await;
        (outcome, String::from_utf8(out).expect("text"))
    }

    #[tokio::test]
    async fn volumes_in_the_trash_are_printed_when_asked_for() {
        let store = bucket(&["deleted", "there"]).await;
        let id = "deleted".parse().expect("an id");
        let terms = TrashTerms { keep: Duration::from_hours(24), owner: "a-uid".to_owned() };
        assert!(discard(&store, &id, Nonce([1; 16]), &terms, None).await.expect("deleted"));
        let (_, all) = printed(&store).await;
        assert!(all.starts_with("# 1 in the trash has no documents here: "), "{all}");
        assert!(all.contains("volumeID: there") && !all.contains("volumeID: deleted"), "{all}");
        let (outcome, trash) = printed_of(&store, WantedDocuments { deleted: true, ..ALL }).await;
        assert!(outcome.is_ok() && trash.contains("volumeID: deleted") && trash.contains("existing: {}"));
        assert!(!trash.contains("volumeID: there"), "{trash}");
    }

    /// Regression: only Volumes and claims were restored; a claim from a snapshot could not be recreated.
    #[tokio::test]
    async fn snapshots_come_back_with_their_names() {
        let store = bucket(&["there"]).await;
        let id = "there".parse().expect("an id");
        let mut origin = Labels::default();
        assert!(origin.insert(Labels::SNAPSHOT, "snapshot-1"));
        for (uid, has_origin) in [([1; 16], true), ([2; 16], false), ([3; 16], true)] {
            let uid = SnapshotUid(uid);
            let taken = holdfast_log::snapshot_detached(&store, &id, uid, Nonce(uid.0), 0).await;
            let taken = taken.expect("taken");
            if has_origin {
                let name = SnapshotName { volume: id.clone(), seq: taken.seq };
                let stored = holdfast_log::store_origin(&store, &name, uid, &origin).await;
                assert_eq!(stored.expect("it answers"), OriginPlace::Stored);
            }
        }
        let taken = holdfast_log::snapshots(&store, &id).await.expect("a log");
        holdfast_log::forget(&store, &id, taken[2].seq).await.expect("forgotten");
        let gone = holdfast_log::read_origin(&store, &id, taken[2].uid).await.expect("it answers");
        assert_eq!(gone, None, "names go with their snapshot");
        let (outcome, all) = printed(&store).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        for (name, seq) in [("snapshot-1", taken[0].seq), ("there-at-3", taken[1].seq)] {
            let expected = format!("name: {name}\n");
            assert!(all.contains(&expected) && all.contains(&format!("snapshotID: there@{seq}\n")), "{all}");
        }
        assert_eq!(all.matches("snapshotID: ").count(), 2, "{all}");
        // A Volume in the cluster gets documents for its missing snapshots.
        let spec = serde_json::json!({ "size": "1Gi", "objectStore": "main", "volumeID": "there" });
        let here = [Volume::new("data", serde_json::from_value(spec).expect("a spec"))];
        let known = KnownObjects { volumes: &here, snapshots: Here { snapshots: &[], has_user_kinds: true } };
        let mut out = Vec::new();
        print("main", &store, &known, ALL, &mut out).await.expect("printed");
        let text = String::from_utf8(out).expect("text");
        assert!(!text.contains("kind: Volume\n") && text.contains("volume: data\n"), "{text}");
    }

    async fn printed_beside(store: &MemoryStore, object_store: &str) -> (anyhow::Result<()>, String) {
        let spec = serde_json::json!({ "size": "1Gi", "objectStore": object_store, "volumeID": "there" });
        let here = [Volume::new("data", serde_json::from_value(spec).expect("a spec"))];
        let known = KnownObjects { volumes: &here, snapshots: Here { snapshots: &[], has_user_kinds: true } };
        let mut out = Vec::new();
        let outcome = print("main", store, &known, ALL, &mut out).await;
        (outcome, String::from_utf8(out).expect("text"))
    }

    /// Regression: one damaged volume of a cluster made every `restore` exit with code 1.
    #[tokio::test]
    async fn a_volume_that_is_here_and_cannot_be_read_fails_nothing() {
        let store = bucket(&["other", "there"]).await;
        let key = store.keys().into_iter().find(|key| key.starts_with("volumes/there/log/")).expect("a log");
        store.corrupt(&key, |bytes| bytes.iter_mut().for_each(|byte| *byte = !*byte));
        let (outcome, text) = printed_beside(&store, "main").await;
        assert!(outcome.is_ok(), "{outcome:?}");
        assert!(
            text.starts_with("# volume there, which is Volume data here: ") && text.contains(&key),
            "{text}"
        );
        assert!(text.contains("volumeID: other"), "{text}");
    }

    /// Regression: a copied bucket's snapshots were printed as those of the Volume in the original bucket.
    #[tokio::test]
    async fn a_volume_in_another_object_store_gets_no_snapshots_of_this_one() {
        let store = bucket(&["there"]).await;
        let id = "there".parse().expect("an id");
        let taken =
            holdfast_log::snapshot_detached(&store, &id, SnapshotUid([1; 16]), Nonce([1; 16]), 0).await;
        taken.expect("taken");
        let (_, text) = printed_beside(&store, "main").await;
        assert!(text.contains("snapshotID: there@"), "{text}");
        let (outcome, text) = printed_beside(&store, "first").await;
        assert!(outcome.is_ok() && text.is_empty(), "{text}");
    }

    /// A PersistentVolume that names a claim binds to any claim of that name, regardless of the content it
    /// asks for: a backup program's claim would get the latest content instead of the backup's.
    #[tokio::test]
    async fn without_claims_only_our_own_objects_are_printed() {
        let store = MemoryStore::new();
        let id: VolumeId = "there".parse().expect("an id");
        let (mut labels, mut origin) = (Labels::default(), Labels::default());
        for (name, value) in
            [(Labels::VOLUME, "pvc-1"), (Labels::CLAIM_NAMESPACE, "shop"), (Labels::CLAIM_NAME, "data")]
        {
            assert!(labels.insert(name, value));
        }
        for (name, value) in [
            (Labels::SNAPSHOT, "snapshot-1"),
            (Labels::USER_SNAPSHOT_NAMESPACE, "shop"),
            (Labels::USER_SNAPSHOT_NAME, "velero-data-x"),
        ] {
            assert!(origin.insert(name, value));
        }
        let creation = Creation { labels, ..Creation::plain(100, Nonce([9; 16]), 0) };
        holdfast_log::provision(&store, &id, creation).await.expect("created");
        let uid = SnapshotUid([1; 16]);
        let taken =
            holdfast_log::snapshot_detached(&store, &id, uid, Nonce([1; 16]), 0).await.expect("taken");
        let name = SnapshotName { volume: id, seq: taken.seq };
        let stored = holdfast_log::store_origin(&store, &name, uid, &origin).await;
        assert_eq!(stored.expect("it answers"), OriginPlace::Stored);
        let kinds = |text: &str| -> Vec<String> {
            let lines =
                text.lines().filter(|line| line.starts_with("apiVersion") || line.starts_with("kind"));
            lines.map(str::to_owned).collect()
        };
        let (_, all) = printed(&store).await;
        assert_eq!(kinds(&all).len(), 12, "{all}");
        let (outcome, ours) = printed_of(&store, WantedDocuments { with_claims: false, ..ALL }).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        let version = "apiVersion: storage.holdfast.dev/v1alpha1";
        assert_eq!(kinds(&ours), [version, "kind: Volume", version, "kind: VolumeSnapshot"], "{ours}");
        assert!(ours.contains("name: snapshot-1\n"), "the handle has another name: {ours}");
    }

    /// Regression: the volumes were read sequentially.
    #[tokio::test(start_paused = true)]
    async fn volumes_are_read_several_at_a_time() {
        let names: Vec<String> = (0..32).map(|number| format!("v-{number}")).collect();
        let store = bucket(&names.iter().map(String::as_str).collect::<Vec<_>>()).await;
        store.fail_always(Verb::Get, Fault::Delay(Duration::from_secs(1)));
        let began = tokio::time::Instant::now();
        let (outcome, all) = printed(&store).await;
        assert!(outcome.is_ok() && all.matches("volumeID: ").count() == 32, "{all}");
        assert!(began.elapsed() < Duration::from_secs(16), "{:?}", began.elapsed());
    }

    /// Regression: a script applied the output, and treated the printed volumes as the complete list.
    #[tokio::test]
    async fn restore_fails_when_a_volume_cannot_be_read() {
        let store = bucket(&["good", "rotten"]).await;
        let (outcome, all) = printed(&store).await;
        assert!(outcome.is_ok(), "{outcome:?}");
        assert!(all.contains("volumeID: good") && all.contains("volumeID: rotten"), "{all}");

        let key = store.keys().into_iter().find(|key| key.starts_with("volumes/rotten/log/")).expect("a log");
        store.corrupt(&key, |bytes| bytes.iter_mut().for_each(|byte| *byte = !*byte));
        let (outcome, rest) = printed(&store).await;
        let failure = outcome.expect_err("a volume is missing").to_string();
        assert!(failure.starts_with("1 volume of the bucket cannot be read: rotten. "), "{failure}");
        assert!(rest.contains("volumeID: good") && !rest.contains("volumeID: rotten"), "{rest}");
        assert!(rest.starts_with("# volume rotten: ") && rest.contains(&key), "{rest}");
    }
}
