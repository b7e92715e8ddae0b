//! `holdfast-operator restore`: the objects that bring the volumes of a bucket into this cluster, as YAML.
//!
//! Owns: finding the volumes of a bucket, and the documents for those that the cluster does not have.
//! Does not own: the adoption, which the operator does when the documents are applied.
//! Costs: for each volume a LIST, a GET of its first record, and the reading of its log. Nothing is written.
//! On failure: a volume that cannot be read is named in a comment and in the error; the others are printed.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Context;
use holdfast_crds::Volume;
use holdfast_engine::record::Labels;
use holdfast_log::trash::read_trash;
use holdfast_objects::ObjectStore;
use holdfast_service::chain;
use holdfast_types::VolumeId;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::object_store::connect::Connections;
use crate::volume::adoption::{FoundInStore, LastWriter};
use crate::volume::identity::id_of;

mod documents;

/// A volume of the bucket that was not deleted.
#[derive(Debug, Clone)]
pub(crate) struct Survivor {
    /// Its identity.
    id: VolumeId,
    /// The object and claim that it was made for.
    labels: Labels,
    /// Logical size.
    size_bytes: u64,
    /// The writer that attached it last.
    last: Option<LastWriter>,
}

/// Volumes of the bucket whose log cannot be read.
#[derive(Debug, thiserror::Error)]
#[error(
    "{} of the bucket cannot be read: {}. They have no documents; those of all others were printed. \
     Correct what the comment of each says, then run restore again",
    if ids.len() == 1 { "1 volume".to_owned() } else { format!("{} volumes", ids.len()) },
    ids.join(", ")
)]
struct UnreadableVolumes {
    /// Their identities.
    ids: Vec<String>,
}

/// Prints the documents for the volumes of the ObjectStore called `name`, or for those in its trash.
///
/// # Errors
/// The cluster, the ObjectStore or the bucket cannot be read; nothing is printed. Or volumes cannot be read:
/// the documents of all others are printed.
pub(crate) async fn run(name: &str, deleted: bool) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no cluster: run in a pod, or set KUBECONFIG")?;
    let volumes: Api<Volume> = Api::all(client.clone());
    let known = volumes.list(&ListParams::default()).await.context("the Volumes cannot be listed")?.items;
    let store = Connections::default().open(client, name).await?;
    print(name, store.as_ref(), &known, deleted, &mut std::io::stdout().lock()).await
}

/// Writes the documents for the volumes of `store`, called `name`, but those that the cluster has: those in
/// the trash, or all others.
async fn print(
    name: &str,
    store: &dyn ObjectStore,
    known: &[Volume],
    deleted: bool,
    out: &mut impl Write,
) -> anyhow::Result<()> {
    let ids = holdfast_log::list_volumes(store).await.context("the bucket cannot be listed")?;
    let trash = read_trash(store).await.context("the trash of the bucket cannot be listed")?;
    let in_trash: BTreeSet<VolumeId> = trash.stays.into_iter().map(|there| there.stay.volume).collect();
    let here: BTreeSet<String> = known.iter().map(id_of).collect();
    let (mut survivors, mut unreadable, mut text) = (Vec::new(), Vec::new(), String::new());
    for id in ids.into_iter().filter(|id| !here.contains(id.as_str())) {
        if in_trash.contains(&id) != deleted {
            continue;
        }
        match survivor(store, &id).await {
            Ok(survivor) => survivors.extend(survivor),
            Err(failure) => {
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
    let names = known.iter().map(ResourceExt::name_any).collect();
    text.push_str(&documents::of(name, &survivors, &names)?);
    out.write_all(text.as_bytes()).context("the documents cannot be printed")?;
    if unreadable.is_empty() { Ok(()) } else { Err(UnreadableVolumes { ids: unreadable }.into()) }
}

/// Reads a volume; nothing if it was deleted.
async fn survivor(
    store: &dyn ObjectStore,
    id: &VolumeId,
) -> Result<Option<Survivor>, holdfast_log::LogFailure> {
    let FoundInStore::Volume { size_bytes, last } = FoundInStore::read(store, id).await? else {
        return Ok(None);
    };
    let labels = holdfast_log::read_creation(store, id).await?.labels;
    Ok(Some(Survivor { id: id.clone(), labels, size_bytes, last }))
}

#[cfg(test)]
mod tests {
    use holdfast_log::Creation;
    use holdfast_objects::MemoryStore;
    use holdfast_types::Nonce;

    use std::time::Duration;

    use holdfast_log::trash::{Terms, discard};

    use super::*;

    /// A store with these volumes.
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
        printed_of(store, false).await
    }

    async fn printed_of(store: &MemoryStore, deleted: bool) -> (anyhow::Result<()>, String) {
        let mut out = Vec::new();
        let outcome = print("main", store, &[], deleted, &mut out).await;
        (outcome, String::from_utf8(out).expect("text"))
    }

    #[tokio::test]
    async fn volumes_in_the_trash_are_printed_when_asked_for() {
        let store = bucket(&["deleted", "there"]).await;
        let id = "deleted".parse().expect("an id");
        let terms = Terms { keep: Duration::from_hours(24), owner: "a-uid".to_owned() };
        assert!(discard(&store, &id, Nonce([1; 16]), &terms, None).await.expect("deleted"));
        let (_, all) = printed(&store).await;
        assert!(all.starts_with("# 1 in the trash has no documents here: "), "{all}");
        assert!(all.contains("volumeID: there") && !all.contains("volumeID: deleted"), "{all}");
        let (outcome, trash) = printed_of(&store, true).await;
        assert!(outcome.is_ok() && trash.contains("volumeID: deleted") && trash.contains("existing: {}"));
        assert!(!trash.contains("volumeID: there"), "{trash}");
    }

    /// A script applied what was printed and took the volumes for all that there were.
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
