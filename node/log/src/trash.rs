//! Trash: deleted volumes whose objects are kept for some time.
//!
//! A volume enters the trash with an *entry*, an object with the retention time; its log does not change. Its
//! *stay* ends in one of two ways, recorded in the create-once object `end`:
//! - the volume is taken back, unchanged;
//! - the volume is removed ([`crate::remove()`]).
//!
//! Then the entry is deleted, and after it `end`. A caller that has created `end` and still finds the entry
//! thus knows that the stay had not ended before; a caller that does not find the entry came too late. Each
//! deletion of a Volume creates a stay with its own name, the same one in all of its attempts: a late request
//! ends no other stay. Of several stays, the last one counts.
//!
//! Users that do not know about the trash, such as another cluster with a Volume of the same id, do not
//! create `end`. So a volume is not trashed while a writer that was not force-detached has it attached, and
//! the tombstone is only appended to the log of that time: another epoch means that a node has attached it
//! since, and a later commit means that a writer declared lost still uses the volume. An entry of an older
//! version lacks the last commit: once no writer is attached, a new stay starts whose entry has it.
//!
//! The age of a stay is the difference of two times in one LIST response. Both come from the store, so this
//! host's clock does not matter.
//!
//! Owns: the objects under `trash/`. Costs: an entry is one PUT and one read of the log to its end; taking
//! back is one LIST and, if the volume is in the trash, a PUT, a GET and two DELETEs. On failure: each
//! function may be repeated, and resumes after the last completed step.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use bytes::Bytes;
use holdfast_format::manifest::Manifest;
use holdfast_objects::{MAX_PAGE_ENTRIES, ObjectStore, StoreError};
use holdfast_types::key::{TRASH_PREFIX, TrashKey, TrashStay, trash_prefix};
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::append::{CreatedOnce, create_once};
use crate::error::{LogFailure, store, store_write};
use crate::fork::confirm_fork;
use crate::objects::records_after;
use crate::pass_end::pass_end;
use crate::read::read_manifest_to_end;
use crate::remove::{RemovalVerdict, refuse_attached, refuse_with_snapshots, remove_if, without_snapshots};

/// Maximum object size with some margin; a proxy's page is longer.
const MAX_BYTES: u64 = 256;

/// Retention time of a volume in the trash, and its owner.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TrashTerms {
    /// Retention time.
    pub keep: Duration,
    /// Name of the owner, without spaces. Other users of the bucket keep the volume at least as long.
    pub owner: String,
}

/// Content of a stay's entry.
struct TrashEntry {
    terms: TrashTerms,
    /// The last record that changed the volume's content when it was trashed; for an unreadable log, its last
    /// record. Unknown in entries of older versions.
    end: Option<Seq>,
}

impl TrashEntry {
    fn text(&self) -> String {
        let Self { terms: TrashTerms { keep, owner }, end } = self;
        let end = end.map(|end| format!(" {}", end.0)).unwrap_or_default();
        format!("{} {owner}{end}", keep.as_secs())
    }

    fn parse(text: &[u8]) -> Option<Self> {
        let mut words = std::str::from_utf8(text).ok()?.split(' ');
        let keep = Duration::from_secs(words.next()?.parse().ok()?);
        let owner = words.next()?.to_owned();
        let end = words.next().map(|end| end.parse().map(Seq)).transpose().ok()?;
        words.next().is_none().then_some(Self { terms: TrashTerms { keep, owner }, end })
    }
}

/// Objects of the trash.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Trash {
    /// The stays of volumes, ordered by id.
    pub stays: Vec<Trashed>,
    /// True if the store did not return the time: no stay ends.
    pub is_undated: bool,
    /// Ended stays with a remaining object, and its age.
    ended: Vec<(TrashStay, Duration)>,
}

/// A volume in the trash.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Trashed {
    /// Its stay.
    pub stay: TrashStay,
    /// Time at which it was trashed, by the store's clock.
    pub since: SystemTime,
    /// Time since then, by the same clock.
    pub age: Duration,
    /// True if the end of the stay is decided, but possibly not completed.
    pub is_ending: bool,
}

/// Operation, for errors.
const WHAT_END: &str = "end the stay in the trash of the objects";

/// The end of a stay in the trash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum End {
    TakenBack,
    Removed,
}

impl End {
    fn text(self) -> &'static str {
        match self {
            Self::TakenBack => "taken back",
            Self::Removed => "removed",
        }
    }
}

/// Outcome of [`empty`].
#[derive(Debug, PartialEq, Eq)]
pub enum Emptied {
    /// The retention time has not ended.
    NotDue,
    /// The volume was removed. If it had snapshots, the next sweep deletes its objects.
    Removed,
    /// The volume had been taken back.
    TakenBack,
    /// A node has attached the volume since: it left the trash, and none of its objects were removed.
    Used,
}

/// Trashes a volume, even one with a damaged log. Returns false, without changes, for a volume without data:
/// it was never created, or was removed. `nonce` is the same in all attempts of a deletion, and in no other
/// deletion. `cut_off` is the epoch of the last writer that was declared lost and need not detach first;
/// `None` requires every writer to detach.
///
/// # Errors
/// [`LogFailure::HasSnapshots`], [`LogFailure::StillAttached`]: nothing was changed. Another [`LogFailure`]:
/// the log cannot be read, or the store did not answer.
pub async fn discard(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    terms: &TrashTerms,
    cut_off: Option<Epoch>,
) -> Result<bool, LogFailure> {
    let read = match read_manifest_to_end(objects, volume).await {
        Ok(manifest) if manifest.is_unconfirmed() => {
            confirm_fork(objects, volume).await?;
            read_manifest_to_end(objects, volume).await
        }
        read => read,
    };
    let read = match read {
        Ok(manifest) if !manifest.exists() || manifest.is_deleted() => return Ok(false),
        Ok(manifest) => {
            let last = manifest.seq();
            without_snapshots(objects, volume, last, Ok(manifest)).await?.map_err(|_damage| last)
        }
        Err(failure) if failure.is_damage() => {
            let Some(last) = records_after(objects, volume, Seq(0)).await?.last().copied() else {
                return Ok(false);
            };
            // A log that one reader found damaged may be intact.
            refuse_with_snapshots(objects, volume, last).await?.map_err(|_damage| last)
        }
        Err(failure) => return Err(failure),
    };
    let (epoch, end) = match read {
        Ok(manifest) => {
            refuse_attached(&manifest, cut_off)?;
            (manifest.epoch(), manifest.data_seq())
        }
        Err(last) => (TrashStay::UNREADABLE, last),
    };
    let stay = TrashStay { volume: volume.clone(), epoch, nonce };
    let entry = TrashEntry { terms: terms.clone(), end: Some(end) };
    begin(objects, &stay, &entry).await.map(|_begun| true)
}

/// Starts a stay. Returns false, without changes, if it already exists.
async fn begin(objects: &dyn ObjectStore, stay: &TrashStay, entry: &TrashEntry) -> Result<bool, LogFailure> {
    let key = TrashKey::Entry(stay.clone()).to_string();
    const WHAT: &str = "move to the trash the objects";
    // An existing entry means that a response was lost, or that another caller has started the stay.
    let created = create_once(objects, WHAT, &stay.volume, &key, entry.text().into()).await?;
    Ok(created == CreatedOnce::Now)
}

/// Reads the trash of a store.
///
/// # Errors
/// The store did not answer.
pub async fn read_trash(objects: &dyn ObjectStore) -> Result<Trash, StoreError> {
    under(objects, TRASH_PREFIX).await
}

/// Takes a volume out of the trash. Returns false if it was not there; the log of such a volume may be
/// damaged, or the store may refuse to send it.
///
/// # Errors
/// [`LogFailure::WasDeleted`]: the volume was or is being removed. [`LogFailure::Store`]: call again.
pub async fn take_back(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<bool, LogFailure> {
    let prefix = trash_prefix(volume);
    let trash = under(objects, &prefix).await.map_err(store("read the trash for the objects", volume))?;
    for Trashed { stay, .. } in &trash.stays {
        let decided = decide(objects, stay, End::TakenBack).await?;
        // Without the entry, another caller has ended the stay before; the log shows how.
        let is_removed = match read_entry(objects, stay).await? {
            Some(_) => decided == End::Removed,
            None => read_manifest_to_end(objects, volume).await?.is_deleted(),
        };
        if decided == End::TakenBack {
            clear(objects, stay).await?;
        }
        if is_removed {
            return Err(LogFailure::WasDeleted(volume.clone()));
        }
    }
    if !trash.stays.is_empty() {
        return Ok(true);
    }
    // Its stay may have ended since the caller read the log.
    match read_manifest_to_end(objects, volume).await {
        Ok(manifest) if manifest.is_deleted() => Err(LogFailure::WasDeleted(volume.clone())),
        Err(failure) if failure.is_of_store() => Err(failure),
        Ok(_) | Err(_) => Ok(false),
    }
}

/// Invalidates the requests that an interrupted deletion may have in flight: a stay with this nonce, or a
/// tombstone ([`crate::remove()`]), whose position an empty record takes. The volume is not in the trash
/// ([`take_back`]). A sweep deletes the invalidation of the stay after a day. The requests for a log that
/// cannot be read, and a tombstone that fences a writer declared lost, can still take effect.
///
/// # Errors
/// [`LogFailure::WasDeleted`]: the volume is being removed. [`LogFailure::Store`]: call again.
pub async fn bar(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    nonce: Nonce,
    unix_ms: u64,
) -> Result<(), LogFailure> {
    // A stay of an earlier epoch is void anyway, and one that could not read the log is replaced by one of
    // this epoch.
    let epoch = match read_manifest_to_end(objects, volume).await {
        Ok(manifest) => manifest.epoch(),
        Err(failure) if failure.is_of_store() => return Err(failure),
        Err(_) => TrashStay::UNREADABLE,
    };
    let stay = TrashStay { volume: volume.clone(), epoch, nonce };
    if decide(objects, &stay, End::TakenBack).await? == End::Removed {
        return Err(LogFailure::WasDeleted(volume.clone()));
    }
    let entry = TrashKey::Entry(stay).to_string();
    objects.delete(&[&entry]).await.map_err(store_write("remove from the trash the objects", volume))?;
    match pass_end(objects, volume, nonce, unix_ms).await {
        Err(failure @ LogFailure::WasDeleted(_)) => Err(failure),
        Err(failure) if failure.is_of_store() => Err(failure),
        Ok(()) | Err(_) => Ok(()),
    }
}

/// Ends an expired or decided stay: removes the volume, unless it was taken back or used since. `terms` are
/// those of the caller and apply to its own stays; for other stays, the longer time applies.
///
/// # Errors
/// [`LogFailure::HasSnapshots`], [`LogFailure::WrittenSince`], [`LogFailure::StillAttached`], and the damage
/// of a log that was readable before: the volume stays in the trash. Another [`LogFailure`]: the next call
/// does the rest.
pub async fn empty(
    objects: &dyn ObjectStore,
    trashed: &Trashed,
    terms: &TrashTerms,
) -> Result<Emptied, LogFailure> {
    let Trashed { stay, since, age, is_ending } = trashed;
    let decided = if *is_ending {
        let Some(decided) = read_end(objects, stay).await? else { return Ok(Emptied::TakenBack) };
        decided
    } else {
        if *age < terms.keep {
            return Ok(Emptied::NotDue);
        }
        let Some(entry) = read_entry(objects, stay).await? else { return Ok(Emptied::TakenBack) };
        if entry.terms.owner != terms.owner && *age < entry.terms.keep {
            return Ok(Emptied::NotDue);
        }
        // Checked before the decision, because the volume may still be taken back.
        if let Some(kept) = keep(objects, stay, entry).await? {
            return Ok(kept);
        }
        decide(objects, stay, End::Removed).await?
    };
    // Without the entry, another caller has ended the stay and deleted both objects before this one created
    // `end`.
    let entry = match decided {
        End::TakenBack => None,
        End::Removed => read_entry(objects, stay).await?,
    };
    let Some(entry) = entry else {
        clear(objects, stay).await?;
        return Ok(Emptied::TakenBack);
    };
    // The time is reproducible, so that a retry recognizes its tombstone.
    let unix_ms = since.duration_since(UNIX_EPOCH).map_or(0, |since| since.as_millis() as u64);
    let verdict = |last, manifest: Option<&Manifest>| match use_since(stay, &entry, last, manifest) {
        UseSince::Nothing => RemovalVerdict::RemoveUnused,
        UseSince::Attached | UseSince::Written | UseSince::NotKnown => {
            RemovalVerdict::Refuse(LogFailure::UsedSince(stay.volume.clone()))
        }
        UseSince::Unreadable => RemovalVerdict::Defer,
    };
    let emptied = match remove_if(objects, &stay.volume, stay.nonce, unix_ms, verdict).await {
        Ok(()) => Emptied::Removed,
        Err(LogFailure::UsedSince(_)) => Emptied::Used,
        Err(failure) => return Err(failure),
    };
    clear(objects, stay).await?;
    Ok(emptied)
}

/// Returns the reason to keep an expired volume: its use since then, or a snapshot. Returns `None` if it must
/// be removed.
///
/// # Errors
/// Reason why the volume must stay for now, or why the answer is unknown.
async fn keep(
    objects: &dyn ObjectStore,
    stay: &TrashStay,
    entry: TrashEntry,
) -> Result<Option<Emptied>, LogFailure> {
    let read = read_manifest_to_end(objects, &stay.volume).await;
    if let Err(failure) = read.as_ref()
        && !failure.is_damage()
    {
        return read.map(|_| None);
    }
    let last = match &read {
        Ok(manifest) => manifest.seq(),
        Err(_) => records_after(objects, &stay.volume, Seq(0)).await?.last().copied().unwrap_or(Seq(0)),
    };
    match (use_since(stay, &entry, last, read.as_ref().ok()), read) {
        (UseSince::Nothing, read) => {
            let (Ok(_) | Err(_)) = without_snapshots(objects, &stay.volume, last, read).await?;
            Ok(None)
        }
        (UseSince::Attached, _) => {
            decide(objects, stay, End::TakenBack).await?;
            clear(objects, stay).await?;
            Ok(Some(Emptied::Used))
        }
        (UseSince::Written, read) => {
            let node = read.ok().and_then(|manifest| manifest.newest_writer()).map(|writer| writer.node);
            Err(LogFailure::WrittenSince { volume: stay.volume.clone(), node })
        }
        (UseSince::NotKnown, Ok(manifest)) => {
            refuse_attached(&manifest, None)?;
            renew(objects, stay, entry.terms, manifest.epoch(), manifest.data_seq()).await.map(Some)
        }
        (UseSince::NotKnown, Err(_)) => {
            renew(objects, stay, entry.terms, TrashStay::UNREADABLE, last).await.map(Some)
        }
        (UseSince::Unreadable, read) => read.map(|_| None),
    }
}

/// Use of a volume since it was trashed, according to its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum UseSince {
    /// None.
    Nothing,
    /// A node has attached it.
    Attached,
    /// The writer of that time has committed, although it was declared lost.
    Written,
    /// The entry lacks the necessary state of the log.
    NotKnown,
    /// The log was readable at that time, but is not any more.
    Unreadable,
}

/// Compares the log with the entry. An unreadable log has no `manifest`, and `last` is its last record.
fn use_since(stay: &TrashStay, entry: &TrashEntry, last: Seq, manifest: Option<&Manifest>) -> UseSince {
    let is_unknown = stay.epoch == TrashStay::UNREADABLE;
    let end = match manifest {
        Some(manifest) if !manifest.exists() || manifest.is_deleted() => return UseSince::Nothing,
        Some(_) if is_unknown => return UseSince::NotKnown,
        Some(manifest) if manifest.epoch() != stay.epoch => return UseSince::Attached,
        Some(manifest) => manifest.data_seq(),
        None if is_unknown => last,
        None => return UseSince::Unreadable,
    };
    match entry.end {
        None => UseSince::NotKnown,
        Some(known) if end > known => UseSince::Written,
        Some(_) => UseSince::Nothing,
    }
}

/// Ends a stay that lacks the necessary state of the log, and starts one with the log's current state.
async fn renew(
    objects: &dyn ObjectStore,
    stay: &TrashStay,
    terms: TrashTerms,
    epoch: Epoch,
    end: Seq,
) -> Result<Emptied, LogFailure> {
    let nonce = if epoch == stay.epoch { renewed(stay.nonce) } else { stay.nonce };
    let known = TrashStay { volume: stay.volume.clone(), epoch, nonce };
    let is_begun = begin(objects, &known, &TrashEntry { terms, end: Some(end) }).await?;
    if decide(objects, stay, End::TakenBack).await? == End::Removed {
        // Another sweep made the decision, and completes it.
        return Ok(Emptied::NotDue);
    }
    // The stay had ended before: the new one is void, unless another sweep has started it.
    let is_over = read_entry(objects, stay).await?.is_none() && is_begun;
    if is_over {
        clear(objects, &known).await?;
    }
    clear(objects, stay).await?;
    Ok(if is_over { Emptied::TakenBack } else { Emptied::NotDue })
}

/// Returns the nonce of the stay that follows one with this nonce and the same epoch.
fn renewed(nonce: Nonce) -> Nonce {
    Nonce((u128::from_be_bytes(nonce.0) ^ (1 << 127)).to_be_bytes())
}

/// Ends a stay that a later one supersedes. Returns false if the removal of the volume was decided and must
/// be completed ([`empty`]).
///
/// # Errors
/// [`LogFailure::Store`]: call again.
pub async fn replaced(objects: &dyn ObjectStore, stay: &TrashStay) -> Result<bool, LogFailure> {
    if decide(objects, stay, End::TakenBack).await? == End::Removed {
        return Ok(false);
    }
    clear(objects, stay).await.map(|()| true)
}

impl Trash {
    /// Deletes the remains of stays that ended at least this long ago, by the store's clock.
    ///
    /// # Errors
    /// [`LogFailure::Store`]: call again.
    pub async fn clear_ended(&self, objects: &dyn ObjectStore, ago: Duration) -> Result<(), LogFailure> {
        for (stay, _) in self.ended.iter().filter(|(_, age)| *age >= ago) {
            clear(objects, stay).await?;
        }
        Ok(())
    }
}

/// Decides how a stay ends, or reads the earlier decision.
async fn decide(objects: &dyn ObjectStore, stay: &TrashStay, wanted: End) -> Result<End, LogFailure> {
    let key = TrashKey::End(stay.clone()).to_string();
    let text = Bytes::from_static(wanted.text().as_bytes());
    // The decision is always read back, because a store whose creates are not atomic may have confirmed two
    // of them.
    let (CreatedOnce::Now | CreatedOnce::Before) =
        create_once(objects, WHAT_END, &stay.volume, &key, text).await?;
    let gone = || store(WHAT_END, &stay.volume)(StoreError::NotFound { key: key.clone() });
    read_end(objects, stay).await?.ok_or_else(gone)
}

async fn read_end(objects: &dyn ObjectStore, stay: &TrashStay) -> Result<Option<End>, LogFailure> {
    let key = TrashKey::End(stay.clone()).to_string();
    let Some(text) = read(objects, &key, stay).await? else { return Ok(None) };
    let decided = [End::TakenBack, End::Removed].into_iter().find(|end| end.text().as_bytes() == &*text);
    decided.map(Some).ok_or(LogFailure::NotOfTrash { key })
}

async fn read_entry(objects: &dyn ObjectStore, stay: &TrashStay) -> Result<Option<TrashEntry>, LogFailure> {
    let key = TrashKey::Entry(stay.clone()).to_string();
    let Some(text) = read(objects, &key, stay).await? else { return Ok(None) };
    TrashEntry::parse(&text).map(Some).ok_or(LogFailure::NotOfTrash { key })
}

async fn read(objects: &dyn ObjectStore, key: &str, stay: &TrashStay) -> Result<Option<Bytes>, LogFailure> {
    match objects.get(key, MAX_BYTES).await {
        Ok(bytes) => Ok(Some(bytes)),
        Err(StoreError::NotFound { .. }) => Ok(None),
        Err(StoreError::TooLarge { .. }) => Err(LogFailure::NotOfTrash { key: key.to_owned() }),
        Err(source) => Err(store("read the trash for the objects", &stay.volume)(source)),
    }
}

/// Deletes the entry first; the module comment explains the order.
async fn clear(objects: &dyn ObjectStore, stay: &TrashStay) -> Result<(), LogFailure> {
    for key in [TrashKey::Entry(stay.clone()), TrashKey::End(stay.clone())] {
        let deleted = objects.delete(&[&key.to_string()]).await;
        deleted.map_err(store_write("remove from the trash the objects", &stay.volume))?;
    }
    Ok(())
}

async fn under(objects: &dyn ObjectStore, prefix: &str) -> Result<Trash, StoreError> {
    let (mut trash, mut start_after) = (Trash::default(), None::<String>);
    loop {
        let page = objects.list(prefix, start_after.as_deref(), MAX_PAGE_ENTRIES).await?;
        trash.is_undated |= page.now.is_none();
        for object in &page.entries {
            let (since, age) = (object.last_modified, page.age(object));
            match TrashKey::parse(&object.key) {
                // The end sorts before the entry of its stay.
                Some(TrashKey::End(stay)) => trash.ended.push((stay, age)),
                Some(TrashKey::Entry(stay)) => {
                    let is_ending = trash.ended.pop_if(|(last, _)| *last == stay).is_some();
                    trash.stays.push(Trashed { stay, since, age, is_ending });
                }
                None => {}
            }
        }
        match page.entries.last() {
            Some(last) if page.more => start_after = Some(last.key.clone()),
            Some(_) | None => return Ok(trash),
        }
    }
}
