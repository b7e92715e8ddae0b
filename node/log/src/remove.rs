//! Removes a volume: the tombstone first, then everything else.
//!
//! A volume with snapshots that were not forgotten is not removed. Forks of the forgotten ones may still read
//! its objects, and only the logs of all volumes would show them: a [`crate::sweep`], which reads these
//! anyway, deletes the objects of a volume that had snapshots. Marks of forgotten snapshots stay, so that a
//! late fork can see them. All objects that bar positions of the log stay, too, so that the id is never used
//! again:
//! - the tombstone, at the end of the log;
//! - the record at the first position, so that creating the volume fails ([`crate::provision`]);
//! - the truncation markers of all positions in between. The removal deletes records, too: a reader whose
//!   LIST shows only the first record must not mistake it for the log of a new volume, and an attach that
//!   read the log long ago must not win an emptied position ([`crate::was_truncated_after`]).
//!
//! Costs, for a detached volume that never had snapshots: a LIST and a GET of its last record, two PUTs, and
//! a LIST and a DELETE per 1,000 objects; from the trash, also a GET of the tombstone.

use holdfast_format::manifest::{Manifest, Writer};
use holdfast_format::record::{Body, Record};
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore};
use holdfast_types::key::{ObjectKey, snapshot_prefix, volume_prefix};
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::append::{CreateOutcome, create_record, is_in_place};
use crate::error::{LogFailure, store, store_write};
use crate::limit::TRIES;
use crate::objects::{records_after, seqs_under};
use crate::read::{read_manifest, read_manifest_to_end, read_record};
use crate::snapshot::{forgotten_of, has_marks, live};
use crate::truncate::store_markers;

/// Ends the volume's log with its tombstone, which fences any writer. Then deletes all objects except those
/// that bar its positions, unless it had snapshots: the next [`crate::sweep`] deletes what no fork of them
/// reads. May be repeated after a partial failure. Without a log, there is nothing to remove. `cut_off` is
/// the epoch of the last writer that was declared lost and need not detach first; `None` requires every
/// writer to detach.
///
/// # Errors
/// [`LogFailure::HasSnapshots`], [`LogFailure::StillAttached`]: nothing was changed. Another [`LogFailure`]:
/// the next call removes the rest.
pub async fn remove(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
    cut_off: Option<Epoch>,
) -> Result<(), LogFailure> {
    let decide =
        |_last, manifest: Option<&Manifest>| match manifest.map(|read| refuse_attached(read, cut_off)) {
            Some(Err(refused)) => RemovalVerdict::Refuse(refused),
            // An unreadable log hides its writer, but no node can attach its volume.
            Some(Ok(())) | None => RemovalVerdict::Remove,
        };
    remove_if(objects, volume, nonce, unix_ms, decide).await
}

/// Rejects a volume with an attached writer that was not force-detached: the writer may be in another
/// cluster.
pub(crate) fn refuse_attached(manifest: &Manifest, cut_off: Option<Epoch>) -> Result<(), LogFailure> {
    match manifest.attached().filter(|writer| cut_off.is_none_or(|cut_off| writer.epoch > cut_off)) {
        Some(Writer { node, epoch, .. }) => {
            Err(LogFailure::StillAttached { volume: manifest.volume().clone(), node, epoch })
        }
        None => Ok(()),
    }
}

/// Decision on the removal of a volume whose log was read.
#[derive(Debug)]
pub(crate) enum RemovalVerdict {
    /// Remove the volume, and fence its writer.
    Remove,
    /// Remove the volume, whose log shows no use.
    RemoveUnused,
    /// Keep the volume, for this reason.
    Refuse(LogFailure),
    /// Keep the volume until its log can be read, because only the log can decide.
    Defer,
}

/// Removes the volume if `decide` agrees, given the last record of the log before the tombstone and its
/// manifest, which is `None` for a damaged log.
///
/// # Errors
/// The reason for the rejection, or the damage of a log that must decide: nothing was changed. Otherwise the
/// errors of [`remove`].
pub(crate) async fn remove_if(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
    decide: impl Fn(Seq, Option<&Manifest>) -> RemovalVerdict,
) -> Result<(), LogFailure> {
    let Some(Buried { tombstone, may_have_snapshots, may_have_writer }) =
        bury(objects, volume, nonce, unix_ms, decide).await?
    else {
        return Ok(());
    };
    if may_have_snapshots && has_marks(objects, volume).await? {
        return Ok(());
    }
    let prefix = volume_prefix(volume);
    let mut start_after: Option<String> = None;
    // A writer that had not noticed the removal may have stored one more segment in the meantime, so the loop
    // repeats until nothing is found.
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
            .filter(|key| ObjectKey::parse(key).is_some_and(|key| !stays_of_removed(&key, tombstone)))
            .collect();
        objects.delete(&unneeded).await.map_err(store_write("delete the objects", volume))?;
        found_any |= !unneeded.is_empty();
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None if std::mem::take(&mut found_any) && may_have_writer => start_after = None,
            Some(_) | None => return Ok(()),
        }
    }
}

/// Returns true if an object of a removed volume is kept permanently.
pub(crate) fn stays_of_removed(key: &ObjectKey, tombstone: Seq) -> bool {
    match key {
        ObjectKey::Log(_, seq) => *seq == Seq::FIRST || *seq == tombstone,
        ObjectKey::TruncationMarker(..) | ObjectKey::Forgotten(..) => true,
        ObjectKey::Checkpoint(..)
        | ObjectKey::Segment(..)
        | ObjectKey::Run(..)
        | ObjectKey::Snapshot(..)
        | ObjectKey::Origin(..)
        | ObjectKey::PrefetchList(..) => false,
    }
}

/// The end of a removed volume's log.
struct Buried {
    tombstone: Seq,
    /// False if no snapshot was ever registered.
    may_have_snapshots: bool,
    /// False if the volume was detached.
    may_have_writer: bool,
}

impl Buried {
    /// Creates the end of a volume whose earlier state is unknown.
    fn at(tombstone: Seq) -> Self {
        Self { tombstone, may_have_snapshots: true, may_have_writer: true }
    }
}

/// Creates the tombstone, if missing, and the markers of all positions up to it. The state that was read may
/// be outdated: a later record makes the create of the tombstone fail, or was truncated.
async fn bury(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
    decide: impl Fn(Seq, Option<&Manifest>) -> RemovalVerdict,
) -> Result<Option<Buried>, LogFailure> {
    for _ in 0..TRIES {
        let read = read_manifest(objects, volume).await;
        let last = match &read {
            Ok(manifest) if manifest.exists() || manifest.is_deleted() => manifest.seq(),
            Ok(_) => return Ok(None),
            Err(error) if is_unreadable(error) => {
                match records_after(objects, volume, Seq(0)).await?.last() {
                    Some(last) => *last,
                    None => return Ok(None),
                }
            }
            Err(_) => return read.map(|_| None),
        };
        let is_buried = match &read {
            Ok(manifest) => manifest.is_deleted(),
            Err(_) => is_tombstone(objects, volume, last).await?,
        };
        if is_buried {
            let (true | false) = store_markers(objects, volume, last, last).await?;
            return Ok(Some(Buried::at(last)));
        }
        let read = without_snapshots(objects, volume, last, read).await?;
        let is_fenced = match decide(last, read.as_ref().ok()) {
            RemovalVerdict::Remove => true,
            RemovalVerdict::RemoveUnused => false,
            RemovalVerdict::Refuse(refused) => return Err(refused),
            RemovalVerdict::Defer => return read.map(|_| None),
        };
        let record = Record {
            volume: volume.clone(),
            seq: last.next(),
            epoch: Epoch(0),
            nonce,
            unix_ms,
            body: Body::Delete,
        };
        // If LIST was outdated, records may have been truncated: then this is not the log's end.
        if create_record(objects, &record).await? == CreateOutcome::Created
            && (is_fenced || is_in_place(objects, &record).await?)
            && store_markers(objects, volume, last, record.seq).await?
        {
            return Ok(Some(match read {
                Ok(manifest) => Buried {
                    tombstone: record.seq,
                    may_have_snapshots: manifest.had_snapshots(),
                    may_have_writer: manifest.is_attached(),
                },
                Err(_) => Buried::at(record.seq),
            }));
        }
    }
    Err(LogFailure::Contended(volume.clone()))
}

/// Returns true for a log that is damaged, or changes faster than it can be read; false if a newer version
/// wrote it: that version may be attached.
fn is_unreadable(failure: &LogFailure) -> bool {
    failure.is_damage() || matches!(failure, LogFailure::Contended(_))
}

/// Returns true if the record is the tombstone. Returns false for a damaged record, which is about to be
/// deleted.
async fn is_tombstone(objects: &dyn ObjectStore, volume: &VolumeId, seq: Seq) -> Result<bool, LogFailure> {
    match read_record(objects, volume, seq).await {
        Ok(record) => Ok(record.body == Body::Delete),
        Err(LogFailure::Damaged { .. }) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Reads the log to its end, or finds its damage, and continues as [`without_snapshots`].
///
/// # Errors
/// As [`without_snapshots`].
pub(crate) async fn refuse_with_snapshots(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    last: Seq,
) -> Result<Result<Manifest, LogFailure>, LogFailure> {
    without_snapshots(objects, volume, last, read_manifest_to_end(objects, volume).await).await
}

/// Returns the `read` state or damage of a volume without snapshots. Only a record up to `last` can have
/// registered a snapshot, because a later record makes the create of the tombstone fail.
///
/// # Errors
/// [`LogFailure::HasSnapshots`]; for an unreadable log that may have snapshots, its damage.
pub(crate) async fn without_snapshots(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    last: Seq,
    read: Result<Manifest, LogFailure>,
) -> Result<Result<Manifest, LogFailure>, LogFailure> {
    match read {
        Ok(manifest) => {
            let seqs: Vec<Seq> = live(objects, &manifest).await?.iter().map(|known| known.seq).collect();
            if seqs.is_empty() {
                Ok(Ok(manifest))
            } else {
                Err(LogFailure::HasSnapshots { volume: volume.clone(), seqs })
            }
        }
        Err(damage) if is_unreadable(&damage) => {
            let mut roots = seqs_under(objects, volume, &snapshot_prefix(volume), None).await?;
            roots.retain(|seq| *seq <= last);
            let forgotten = forgotten_of(objects, volume, &roots).await?;
            roots.retain(|seq| !forgotten.contains(seq));
            if roots.is_empty() { Ok(Err(damage)) } else { Err(damage) }
        }
        Err(error) => Err(error),
    }
}
