//! Reading a log into a manifest.

use futures::future::try_join_all;
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::{Body, Record};
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore, StoreError};
use holdfast_types::key::{ObjectKey, checkpoint_prefix, log_prefix};
use holdfast_types::{Seq, VolumeId};

use crate::{LogFailure, MAX_METADATA_BYTES, store};

/// The volume's state at the end of its log; a manifest that does not exist when there is no log.
///
/// # Errors
/// [`LogFailure`]: a damaged or missing object is named, never skipped.
pub async fn read_manifest(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Manifest, LogFailure> {
    loop {
        let mut manifest = Manifest::empty(volume.clone());
        if let Some(seq) = newest_checkpoint(objects, volume).await? {
            let key = ObjectKey::Checkpoint(volume.clone(), seq).to_string();
            match objects.get(&key, MAX_METADATA_BYTES).await {
                Ok(bytes) => {
                    manifest = Manifest::decode_checkpoint(&bytes)
                        .map_err(|source| LogFailure::Damaged { key, source })?;
                }
                // The writer made a newer one and dropped this one in between.
                Err(StoreError::NotFound { .. }) => continue,
                Err(error) => return Err(store("read the checkpoint", volume)(error)),
            }
        }
        let seqs = records_after(objects, volume, manifest.seq()).await?;
        let records = try_join_all(seqs.iter().map(|seq| read_record(objects, volume, *seq))).await?;
        if let Some(Record { body: Body::Delete, seq, .. }) = records.last() {
            return Ok(Manifest::tombstone(volume.clone(), *seq));
        }
        for record in &records {
            manifest.apply(record).map_err(|source| LogFailure::Broken { volume: volume.clone(), source })?;
        }
        return Ok(manifest);
    }
}

async fn newest_checkpoint(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Option<Seq>, LogFailure> {
    let seqs = seqs_under(objects, volume, &checkpoint_prefix(volume), None).await?;
    Ok(seqs.last().copied())
}

/// The seqs of the records after `after`, ascending.
pub(crate) async fn records_after(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    after: Seq,
) -> Result<Vec<Seq>, LogFailure> {
    let start = (after > Seq(0)).then(|| ObjectKey::Log(volume.clone(), after).to_string());
    seqs_under(objects, volume, &log_prefix(volume), start).await
}

pub(crate) async fn seqs_under(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    prefix: &str,
    mut start_after: Option<String>,
) -> Result<Vec<Seq>, LogFailure> {
    let mut seqs = Vec::new();
    loop {
        let page = objects
            .list(prefix, start_after.as_deref(), MAX_PAGE_ENTRIES)
            .await
            .map_err(store("list the log", volume))?;
        for entry in &page.entries {
            match ObjectKey::parse(&entry.key) {
                Some(ObjectKey::Log(_, seq) | ObjectKey::Checkpoint(_, seq)) => seqs.push(seq),
                // Not ours: somebody's own object under our prefix says nothing about the volume.
                Some(ObjectKey::Segment(..)) | None => {}
            }
        }
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None => return Ok(seqs),
        }
    }
}

pub(crate) async fn read_record(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    seq: Seq,
) -> Result<Record, LogFailure> {
    let key = ObjectKey::Log(volume.clone(), seq).to_string();
    let bytes = objects.get(&key, MAX_METADATA_BYTES).await.map_err(store("read a log record", volume))?;
    Record::decode(&bytes).map_err(|source| LogFailure::Damaged { key, source })
}
