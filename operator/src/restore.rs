//! `holdfast-operator restore`: the objects that bring the volumes of a bucket into this cluster, as YAML.
//!
//! Owns: finding the volumes of a bucket, and the documents for those that the cluster does not have.
//! Does not own: the adoption, which the operator does when the documents are applied.
//! Costs: for each volume a LIST, a GET of its first record, and the reading of its log. Nothing is written.
//! On failure: a volume that cannot be read is named in a comment; the others are printed.

use std::collections::BTreeSet;
use std::io::Write;

use anyhow::Context;
use holdfast_crds::Volume;
use holdfast_engine::record::Labels;
use holdfast_objects::ObjectStore;
use holdfast_service::chain;
use holdfast_types::VolumeId;
use kube::api::ListParams;
use kube::{Api, Client, ResourceExt};

use crate::object_store::connect::Connections;
use crate::volume::adoption::{Found, LastWriter};
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

/// Prints the documents for the volumes of the ObjectStore called `name`.
///
/// # Errors
/// The cluster, the ObjectStore or the bucket cannot be read.
pub(crate) async fn run(name: &str) -> anyhow::Result<()> {
    let client = Client::try_default().await.context("no cluster: run in a pod, or set KUBECONFIG")?;
    let volumes: Api<Volume> = Api::all(client.clone());
    let known = volumes.list(&ListParams::default()).await.context("the Volumes cannot be listed")?.items;
    let store = Connections::default().open(client, name).await?;
    let ids = holdfast_log::list_volumes(store.as_ref()).await.context("the bucket cannot be listed")?;
    let here: BTreeSet<String> = known.iter().map(id_of).collect();
    let mut survivors = Vec::new();
    let mut out = String::new();
    for id in ids.into_iter().filter(|id| !here.contains(id.as_str())) {
        match survivor(store.as_ref(), &id).await {
            Ok(survivor) => survivors.extend(survivor),
            Err(failure) => out.push_str(&documents::comment(&format!("volume {id}: {}", chain(&failure)))),
        }
    }
    let names = known.iter().map(ResourceExt::name_any).collect();
    out.push_str(&documents::of(name, &survivors, &names)?);
    std::io::stdout().lock().write_all(out.as_bytes()).context("the documents cannot be printed")
}

/// Reads a volume; nothing if it was deleted.
async fn survivor(
    store: &dyn ObjectStore,
    id: &VolumeId,
) -> Result<Option<Survivor>, holdfast_log::LogFailure> {
    let Found::Volume { size_bytes, last } = Found::read(store, id).await? else { return Ok(None) };
    let labels = holdfast_log::read_creation(store, id).await?.labels;
    Ok(Some(Survivor { id: id.clone(), labels, size_bytes, last }))
}
