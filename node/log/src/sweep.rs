//! Sweep: deletes the objects of a store that no volume or snapshot needs any more.
//!
//! 1. list the volumes, and read each log to its end. Unconfirmed forks are confirmed or removed first;
//! 2. then list the marks of the volumes' forgotten snapshots. A mark younger than `grace` does not count;
//! 3. list the volumes again, and read new ones in the same way, until no volume is new;
//! 4. everything named by a volume or a counting snapshot is *needed*: runs, and the segments that their
//!    heads name;
//! 5. list the objects of each volume. Delete the unneeded ones whose position its log has passed;
//! 6. list the unfinished multipart uploads of the store, and abort those whose position their log has passed
//!    (`sweep/unfinished.rs`).
//!
//! Needed objects are never deleted, regardless of concurrent work, including other sweeps:
//! - an object whose position the log had passed without naming it is never named later
//!   ([`holdfast_types::PlacedId`]), not even by a later snapshot;
//! - a fork of a forgotten snapshot existed before the mark, otherwise the fork is void
//!   ([`crate::provision`]). It is therefore in the list of step 3. Later states of a fork name no foreign
//!   objects beyond those of its earlier states;
//! - no record follows a tombstone;
//! - an origin is stored after its snapshot was registered; a log read after the LIST that showed the origin
//!   does not contain the snapshot, or its mark is old.
//!
//! Thus a log may be read early and a mark late; the reverse would be unsafe. This relies on LIST to show all
//! objects stored before the request, as in S3. `grace` is a second safeguard. An age is the difference of
//! two times in one LIST response: both come from the store, so this host's clock does not matter.
//!
//! Owns: the set of needed objects, and the memory that a sweep leaves for the next one. Costs: two LISTs per
//! 1,000 volumes; for each volume the LISTs of its objects and snapshots, and the requests that read its log;
//! once, a GET for each merged run and each snapshot. A log is read again if an origin belongs to none of its
//! snapshots. A removed volume, reduced to the objects that bar its id, costs one GET of its tombstone. On
//! failure: the objects of an unreadable volume, and of every volume that it may read, are kept; the report
//! names the volume. If the store does not answer, or refuses to list, create or delete, the sweep ends.

mod needed;
mod unfinished;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, SystemTime};

use futures::future::try_join_all;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::Body;
use holdfast_format::safeguard::{
    Safeguard::{SweepListsAgain, SweepPassedPlaces},
    safeguard,
};
use holdfast_format::snapshot::Snapshot;
use holdfast_objects::{ListedObject, MAX_PAGE_ENTRIES, ObjectStore};
use holdfast_types::key::{ObjectKey, snapshot_prefix, volume_prefix};
use holdfast_types::{Place, Seq, SnapshotName, SnapshotUid, VolumeId};

use crate::error::{LogFailure, or_damage, store, store_write};
use crate::fork::confirm_fork;
use crate::limit::PARALLEL_READS;
use crate::objects::{list_volumes, seqs_under};
use crate::read::{read_manifest_to_end, read_record};
use crate::remove::stays_of_removed;
use crate::snapshot::marks_of;
use crate::truncate::store_markers;

use needed::Heads;
pub(crate) use needed::Needed;
pub use unfinished::{ABORT_RIGHTS, UnfinishedUploads};

/// Options of a sweep.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SweepOptions {
    /// Minimum age of deleted objects, by the store's clock, and of the mark of a snapshot whose objects are
    /// deleted.
    pub grace: Duration,
    /// True to count garbage without deleting it.
    pub dry_run: bool,
    /// Maximum number of deleted objects. After a sweep that reached it, the next one with the same memory
    /// begins with the next volume.
    pub most: u64,
}

/// A number of objects and their size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Amount {
    /// Objects.
    pub objects: u64,
    /// Bytes.
    pub bytes: u64,
}

impl Amount {
    fn add(&mut self, entry: &ListedObject) {
        self.objects += 1;
        self.bytes += entry.size_bytes;
    }
}

/// Results of earlier sweeps of a store that save requests in later ones.
#[derive(Debug, Default)]
pub struct SweepMemory {
    heads: Heads,
    removed: BTreeMap<VolumeId, Removed>,
    /// The volume at which the last sweep reached its maximum of deletions.
    limited_at: Option<VolumeId>,
}

/// A removed volume whose remaining objects are permanent, for longer than the grace. While a sweep remembers
/// the volume, it does not delete an object that a long-suspended writer stores there.
#[derive(Debug, Clone, Copy)]
struct Removed {
    tombstone: Seq,
    left: Amount,
}

/// A volume that a sweep could not read, and whose objects it did not touch.
#[derive(Debug)]
pub struct Skipped {
    /// The volume that could not be read.
    pub volume: VolumeId,
    /// The reason.
    pub error: LogFailure,
}

/// Result of a sweep.
#[derive(Debug, Default)]
pub struct SweepReport {
    /// Number of volumes found, including removed ones.
    pub volumes: u64,
    /// Retained objects: needed ones, those of logs, and those whose position the log has not passed.
    pub kept: Amount,
    /// Unneeded objects, including deleted ones.
    pub garbage: Amount,
    /// Unneeded objects that were deleted.
    pub deleted: Amount,
    /// Time at which the oldest remaining garbage was stored.
    pub oldest: Option<SystemTime>,
    /// Bytes that only one snapshot needs, per snapshot: deleting it frees them. Empty if a volume could not
    /// be read, because it may need them, too.
    pub snapshots: Vec<(SnapshotName, u64)>,
    /// Volumes that could not be read. Their objects, and those of their ancestors, were not touched.
    pub skipped: Vec<Skipped>,
    /// Uploads left behind by killed daemons.
    pub uploads: UnfinishedUploads,
}

/// State of a volume in a sweep.
pub(crate) struct SweptVolume {
    pub(crate) manifest: Manifest,
    /// Registered snapshots that do not count, because their marks are old enough.
    pub(crate) forgotten: BTreeSet<Seq>,
    /// Seqs of snapshots that are no longer registered, but still count because their marks are too young.
    pub(crate) held: Vec<Seq>,
}

impl SweepOptions {
    fn is_old(&self, age: Duration) -> bool {
        age >= self.grace
    }
}

/// Deletes objects that no volume of the store needs. `memory` holds the results of earlier sweeps of this
/// store. Concurrent sweeps are safe.
///
/// # Errors
/// [`LogFailure::Store`]: the store did not answer, or denied the reads of all volumes; the next sweep does
/// the rest.
pub async fn sweep(
    objects: &dyn ObjectStore,
    memory: &mut SweepMemory,
    options: SweepOptions,
) -> Result<SweepReport, LogFailure> {
    let SweepMemory { heads, removed, limited_at } = memory;
    let (known, mut skipped) = read_volumes(objects, options, removed).await?;
    let volumes = (known.len() + skipped.len() + removed.len()) as u64;
    if known.is_empty()
        && let Some(denied) = skipped.iter().position(|skipped| skipped.error.is_denied())
    {
        return Err(skipped.swap_remove(denied).error);
    }
    let mut report = SweepReport { volumes, ..SweepReport::default() };
    for Removed { left, .. } in removed.values() {
        report.kept.objects += left.objects;
        report.kept.bytes += left.bytes;
    }
    let needed = Needed::of(objects, heads, &known, &mut skipped).await?;
    report.snapshots = needed.snapshots.iter().map(|name| (name.clone(), 0)).collect();
    let mut reached_at = None;
    for (volume, known) in rotated(&known, limited_at.as_ref()) {
        if needed.is_kept_whole(volume, known) {
            continue;
        }
        match sweep_volume(objects, &needed, volume, known, options, &mut report).await? {
            Ok(left) => {
                let remains = left.map(|left| Removed { tombstone: known.manifest.seq(), left });
                removed.extend(remains.map(|remains| (volume.clone(), remains)));
            }
            Err(error) => skipped.push(Skipped { volume: volume.clone(), error }),
        }
        if reached_at.is_none() && report.deleted.objects >= options.most {
            reached_at = Some(volume.clone());
        }
    }
    *limited_at = reached_at;
    if !skipped.is_empty() {
        report.snapshots.clear();
    }
    report.uploads = unfinished::abort_abandoned(objects, &known, removed, options).await;
    report.skipped = skipped;
    Ok(report)
}

/// Returns all volumes by id, beginning after `last`: every volume gets its turn, even if those before it
/// always have garbage.
fn rotated<'a>(
    known: &'a BTreeMap<VolumeId, SweptVolume>,
    last: Option<&'a VolumeId>,
) -> impl Iterator<Item = (&'a VolumeId, &'a SweptVolume)> {
    let had_turn = move |volume: &VolumeId| last.is_some_and(|last| volume <= last);
    let first = known.iter().filter(move |(volume, _)| !had_turn(volume));
    first.chain(known.iter().filter(move |(volume, _)| had_turn(volume)))
}

/// Reads all volumes, and the marks of their snapshots after their logs. Returns unreadable ones separately.
async fn read_volumes(
    objects: &dyn ObjectStore,
    options: SweepOptions,
    removed: &mut BTreeMap<VolumeId, Removed>,
) -> Result<(BTreeMap<VolumeId, SweptVolume>, Vec<Skipped>), LogFailure> {
    let (mut known, mut skipped) = (BTreeMap::new(), Vec::new());
    let mut seen = BTreeSet::new();
    loop {
        let mut new = list_volumes(objects).await.map_err(|source| LogFailure::Volumes { source })?;
        new.retain(|volume| seen.insert(volume.clone()));
        if new.is_empty() || (!known.is_empty() && !safeguard(SweepListsAgain)) {
            removed.retain(|volume, _| seen.contains(volume));
            return Ok((known, skipped));
        }
        forget_revived(objects, removed, &new).await?;
        new.retain(|volume| !removed.contains_key(volume));
        let mut read = Vec::new();
        for batch in new.chunks(PARALLEL_READS) {
            let manifests = batch.iter().map(|volume| or_damage(read_volume(objects, volume, options)));
            read.extend(batch.iter().cloned().zip(try_join_all(manifests).await?));
        }
        for (volume, manifest) in read {
            match manifest {
                Ok(manifest) if manifest.exists() || manifest.is_deleted() => {
                    let (forgotten, held) = read_marks(objects, &manifest, options).await?;
                    known.insert(volume, SweptVolume { manifest, forgotten, held });
                }
                Ok(_) => skipped.push(Skipped { error: LogFailure::NoLog(volume.clone()), volume }),
                Err(error) => skipped.push(Skipped { volume, error }),
            }
        }
    }
}

/// Removes from the memory those of `volumes` whose tombstone does not exist: in a restored bucket, a removed
/// volume may exist again, and read other volumes' objects.
async fn forget_revived(
    objects: &dyn ObjectStore,
    removed: &mut BTreeMap<VolumeId, Removed>,
    volumes: &[VolumeId],
) -> Result<(), LogFailure> {
    let remembered: Vec<(VolumeId, Seq)> =
        volumes.iter().filter_map(|volume| Some((volume.clone(), removed.get(volume)?.tombstone))).collect();
    for batch in remembered.chunks(PARALLEL_READS) {
        let read = batch.iter().map(|(volume, seq)| or_damage(read_record(objects, volume, *seq)));
        for ((volume, _), read) in batch.iter().zip(try_join_all(read).await?) {
            if !read.is_ok_and(|record| record.volume == *volume && record.body == Body::Delete) {
                removed.remove(volume);
            }
        }
    }
    Ok(())
}

/// Reads a volume's log to its end. An unconfirmed fork is confirmed or removed first: if it came after the
/// end of its snapshot, it reads nothing.
async fn read_volume(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    options: SweepOptions,
) -> Result<Manifest, LogFailure> {
    let manifest = read_manifest_to_end(objects, volume).await?;
    if !manifest.is_unconfirmed() || options.dry_run {
        return Ok(manifest);
    }
    match confirm_fork(objects, volume).await {
        Ok(()) | Err(LogFailure::NoSuchSource { .. }) => read_manifest_to_end(objects, volume).await,
        Err(error) => Err(error),
    }
}

/// Returns a volume's registered snapshots that do not count, and the unregistered ones that still do: a
/// snapshot's objects are as old as the volume's data, so their grace starts at the mark.
async fn read_marks(
    objects: &dyn ObjectStore,
    manifest: &Manifest,
    options: SweepOptions,
) -> Result<(BTreeSet<Seq>, Vec<Seq>), LogFailure> {
    let (mut forgotten, mut held) = (BTreeSet::new(), Vec::new());
    if !manifest.had_snapshots() {
        return Ok((forgotten, held));
    }
    let volume = manifest.volume();
    let registered: BTreeSet<Seq> = manifest.snapshots().iter().map(|known| known.seq).collect();
    let roots = seqs_under(objects, volume, &snapshot_prefix(volume), None).await?;
    let places: Vec<Seq> =
        registered.iter().chain(&roots).copied().collect::<BTreeSet<_>>().into_iter().collect();
    for (seq, age) in marks_of(objects, volume, &places).await? {
        match (registered.contains(&seq), options.is_old(age)) {
            (true, true) => drop(forgotten.insert(seq)),
            (false, false) if roots.contains(&seq) => held.push(seq),
            (true | false, false) | (false, true) => {}
        }
    }
    Ok((forgotten, held))
}

/// Deletes the unneeded objects of one volume. Returns the remains of a removed volume, if all of them are
/// permanent and old, or the reason why the volume cannot be read.
async fn sweep_volume(
    objects: &dyn ObjectStore,
    needed: &Needed,
    volume: &VolumeId,
    known: &SweptVolume,
    options: SweepOptions,
    report: &mut SweepReport,
) -> Result<Result<Option<Amount>, LogFailure>, LogFailure> {
    let prefix = volume_prefix(volume);
    let mut start_after: Option<String> = None;
    let mut is_barred = !known.manifest.is_deleted();
    let mut remains = known.manifest.is_deleted().then(Amount::default);
    loop {
        let page = objects
            .list(&prefix, start_after.as_deref(), MAX_PAGE_ENTRIES)
            .await
            .map_err(store("list the objects", volume))?;
        let uids = origins_of(&page.entries);
        let origins = match or_damage(needed_origins(objects, known, uids)).await? {
            Ok(origins) => origins,
            Err(damage) => return Ok(Err(damage)),
        };
        let mut unneeded = Vec::new();
        for entry in &page.entries {
            let key = ObjectKey::parse(&entry.key);
            let stays = key.as_ref().is_some_and(|key| stays_of_removed(key, known.manifest.seq()));
            remains = remains.filter(|_| stays && options.is_old(page.age(entry)));
            if let Some(remains) = &mut remains {
                remains.add(entry);
            }
            if key.as_ref().is_none_or(|key| !is_garbage(key, needed, known, &origins)) {
                report.kept.add(entry);
                if let Some(number) = key.and_then(|key| needed.only_snapshot(&key)) {
                    report.snapshots[number].1 += entry.size_bytes;
                }
                continue;
            }
            report.garbage.add(entry);
            let more = options.most.saturating_sub(report.deleted.objects + unneeded.len() as u64);
            if options.is_old(page.age(entry)) && more > 0 && !options.dry_run {
                unneeded.push(entry);
            } else {
                let oldest = report.oldest.get_or_insert(entry.last_modified);
                *oldest = entry.last_modified.min(*oldest);
            }
        }
        if !unneeded.is_empty() && !is_barred {
            // The sweep deletes records, too, whose positions must stay barred.
            let end = known.manifest.seq();
            match or_damage(store_markers(objects, volume, end, end)).await? {
                Ok(true | false) => is_barred = true,
                Err(damage) => return Ok(Err(damage)),
            }
        }
        let keys: Vec<&str> = unneeded.iter().map(|entry| entry.key.as_str()).collect();
        objects.delete(&keys).await.map_err(store_write("delete the objects", volume))?;
        unneeded.iter().for_each(|entry| report.deleted.add(entry));
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None => return Ok(Ok(remains)),
        }
    }
}

/// Returns the snapshots whose origins are among these objects.
fn origins_of(entries: &[ListedObject]) -> BTreeSet<SnapshotUid> {
    let uid = |entry: &ListedObject| match ObjectKey::parse(&entry.key) {
        Some(ObjectKey::Origin(_, uid)) => Some(uid),
        Some(
            ObjectKey::Log(..)
            | ObjectKey::Checkpoint(..)
            | ObjectKey::Segment(..)
            | ObjectKey::Run(..)
            | ObjectKey::TruncationMarker(..)
            | ObjectKey::Snapshot(..)
            | ObjectKey::Forgotten(..)
            | ObjectKey::PrefetchList(..),
        )
        | None => None,
    };
    entries.iter().filter_map(uid).collect()
}

/// Returns those of `uids`, whose origins a LIST showed, that belong to counting snapshots. A uid has no log
/// position, and an origin is stored after the registration. The log is therefore read again, after the LIST,
/// before a uid counts as unregistered: it may have been registered since, possibly again after its snapshot
/// was forgotten.
async fn needed_origins(
    objects: &dyn ObjectStore,
    known: &SweptVolume,
    mut uids: BTreeSet<SnapshotUid>,
) -> Result<BTreeSet<SnapshotUid>, LogFailure> {
    let SweptVolume { manifest, forgotten, .. } = known;
    if manifest.is_deleted() {
        return Ok(BTreeSet::new());
    }
    let counts = |it: &Snapshot| !forgotten.contains(&it.seq);
    let is_known = |uid: &SnapshotUid| manifest.snapshots().iter().any(|it| it.uid == *uid && counts(it));
    let later = if uids.iter().all(is_known) {
        None
    } else {
        Some(read_manifest_to_end(objects, manifest.volume()).await?)
    };
    let registered = later.as_ref().map_or(manifest, |later| later).snapshots();
    uids.retain(|uid| registered.iter().any(|it| it.uid == *uid && counts(it)));
    Ok(uids)
}

/// Returns true if the object is not needed, and can never be needed. `origins` are the snapshots whose
/// origins are kept.
fn is_garbage(
    key: &ObjectKey,
    needed: &Needed,
    known: &SweptVolume,
    origins: &BTreeSet<SnapshotUid>,
) -> bool {
    let SweptVolume { manifest, forgotten, held } = known;
    let is_passed = |place| manifest.is_passed(place) || !safeguard(SweepPassedPlaces);
    let counts = |seq: Seq| {
        let is_registered = manifest.snapshots().iter().any(|it| it.seq == seq);
        (is_registered && !forgotten.contains(&seq)) || held.contains(&seq)
    };
    match key {
        ObjectKey::Segment(volume, id) => is_passed(id.place()) && !needed.has_segment(volume, *id),
        ObjectKey::Run(volume, id) => is_passed(id.place()) && !needed.has_run(volume, *id),
        ObjectKey::Snapshot(_, seq) | ObjectKey::PrefetchList(_, seq) => {
            is_passed(Place::until(*seq)) && !counts(*seq)
        }
        ObjectKey::Log(..) | ObjectKey::Checkpoint(..) => {
            manifest.is_deleted() && !stays_of_removed(key, manifest.seq())
        }
        ObjectKey::Origin(_, uid) => !origins.contains(uid),
        ObjectKey::TruncationMarker(..) | ObjectKey::Forgotten(..) => false,
    }
}
