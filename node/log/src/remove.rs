//! Removing a volume: the tombstone first, then everything else.
//!
//! A volume with snapshots that were not forgotten is not removed, nor one whose objects forks read. Marks of
//! forgotten snapshots stay, so that a fork which came too late can see them. What bars the places of the log
//! stays too, so that the id is never used again:
//! - the tombstone, at the end of the log;
//! - the record at the first place, so that a create of the volume loses ([`crate::provision`]);
//! - the truncation markers of all places between them. Records are deleted here too: a reader whose LIST
//!   shows only the first record must not take that for the log of a new volume, and an attach that read the
//!   log long ago must not win a place that this has emptied ([`crate::was_truncated_after`]).

use futures::future::try_join_all;
use holdfast_engine::record::{Body, Record};
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore};
use holdfast_types::key::{ObjectKey, snapshot_prefix, volume_prefix};
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::create::{CreateOutcome, create_record};
use crate::fork::refuse_with_forks;
use crate::limit::{PARALLEL_DELETES, TRIES};
use crate::read::{read_manifest_to_end, read_record, records_after, seqs_under};
use crate::snapshot::{forgotten_from, live};
use crate::truncate::{store_markers_beyond, was_truncated_after};
use crate::{LogFailure, store};

/// Ends the volume's log with its tombstone (which fences any writer), then deletes all objects but those
/// that bar its places and the marks of forgotten snapshots. May be called again after it failed half-way.
/// Without a log there is nothing to remove.
///
/// # Errors
/// [`LogFailure::HasSnapshots`] or [`LogFailure::HasForks`]: no object was deleted. Another [`LogFailure`]:
/// what is left is removed by the next call.
pub async fn remove(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
) -> Result<(), LogFailure> {
    let Some(Buried { tombstone, may_have_forks }) = bury(objects, volume, nonce, unix_ms).await? else {
        return Ok(());
    };
    // Behind the tombstone, and all snapshots are forgotten: a fork that comes now ends itself.
    if may_have_forks && !forgotten_from(objects, volume, Seq::FIRST).await?.is_empty() {
        refuse_with_forks(objects, volume).await?;
    }
    store_markers_beyond(objects, volume, tombstone).await?;
    let prefix = volume_prefix(volume);
    let mut start_after: Option<String> = None;
    // A writer that had not noticed its end may have stored one more segment meanwhile: look until nothing is
    // found.
    let mut found_any = false;
    loop {
        let page = objects
            .list(&prefix, start_after.as_deref(), MAX_PAGE_ENTRIES)
            .await
            .map_err(store("list the objects", volume))?;
        let unneeded: Vec<&str> = page
            .entries
            .iter()
            .map(|entry| entry.key.as_str())
            .filter(|key| !stays(key, tombstone))
            .collect();
        for batch in unneeded.chunks(PARALLEL_DELETES) {
            try_join_all(batch.iter().map(|key| objects.delete(key)))
                .await
                .map_err(store("delete an object", volume))?;
        }
        found_any |= !unneeded.is_empty();
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None if std::mem::take(&mut found_any) => start_after = None,
            Some(_) | None => return Ok(()),
        }
    }
}

/// Returns true if an object stays for good.
fn stays(key: &str, tombstone: Seq) -> bool {
    match ObjectKey::parse(key) {
        Some(ObjectKey::Log(_, seq)) => seq == Seq::FIRST || seq == tombstone,
        Some(ObjectKey::TruncationMarker(..) | ObjectKey::Forgotten(..)) => true,
        Some(
            ObjectKey::Checkpoint(..) | ObjectKey::Segment(..) | ObjectKey::Run(..) | ObjectKey::Snapshot(..),
        )
        | None => false,
    }
}

/// The end of a volume's log.
struct Buried {
    tombstone: Seq,
    /// It had snapshots, as far as is known.
    may_have_forks: bool,
}

/// The tombstone, made now if need be.
async fn bury(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
) -> Result<Option<Buried>, LogFailure> {
    for _ in 0..TRIES {
        let Some(last) = records_after(objects, volume, Seq(0)).await?.last().copied() else {
            return Ok(None);
        };
        let may_have_forks = refuse_with_snapshots(objects, volume, last).await?;
        match read_record(objects, volume, last).await {
            Ok(Record { body: Body::Delete, .. }) => {
                return Ok(Some(Buried { tombstone: last, may_have_forks: true }));
            }
            // A damaged record is not a tombstone, and is about to be deleted.
            Ok(_) | Err(LogFailure::Damaged { .. }) => {}
            Err(error) => return Err(error),
        }
        if may_have_forks {
            refuse_with_forks(objects, volume).await?;
        }
        let record = Record {
            volume: volume.clone(),
            seq: last.next(),
            epoch: Epoch(0),
            nonce,
            unix_ms,
            body: Body::Delete,
        };
        // Where an older LIST ended, records may have been truncated: then this is not the log's end.
        if create_record(objects, &record).await? == CreateOutcome::Created
            && !was_truncated_after(objects, volume, last).await?
        {
            return Ok(Some(Buried { tombstone: record.seq, may_have_forks }));
        }
    }
    Err(LogFailure::Contended(volume.clone()))
}

/// A record at `last` or before it may have registered snapshots; one that comes behind it makes the create
/// of the tombstone lose. Returns true if it may have had some.
///
/// # Errors
/// [`LogFailure::HasSnapshots`]; of a log that cannot be read, its damage, where there may be snapshots.
async fn refuse_with_snapshots(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    last: Seq,
) -> Result<bool, LogFailure> {
    let (had_snapshots, seqs) = match read_manifest_to_end(objects, volume).await {
        Ok(manifest) => {
            let seqs = live(objects, &manifest).await?.iter().map(|known| known.seq).collect::<Vec<_>>();
            (manifest.had_snapshots(), seqs)
        }
        Err(damage @ (LogFailure::Damaged { .. } | LogFailure::Broken { .. } | LogFailure::Contended(_))) => {
            let mut roots = seqs_under(objects, volume, &snapshot_prefix(volume), None).await?;
            let forgotten = forgotten_from(objects, volume, Seq::FIRST).await?;
            roots.retain(|seq| *seq <= last && !forgotten.contains(seq));
            return if roots.is_empty() { Ok(!forgotten.is_empty()) } else { Err(damage) };
        }
        Err(error) => return Err(error),
    };
    if seqs.is_empty() {
        Ok(had_snapshots)
    } else {
        Err(LogFailure::HasSnapshots { volume: volume.clone(), seqs })
    }
}
