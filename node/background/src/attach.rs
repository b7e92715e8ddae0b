//! Attaches a volume: log, local files, attach record, in this order.
//!
//! 1. the log is read, and the local map; if the map is ahead of LIST, the log is read to its end. An
//!    unconfirmed fork is confirmed first, or removed;
//! 2. local data that is not the volume's newest is preserved if any of it is dirty (invariant 6) or the log
//!    was reset by a restore of the bucket, otherwise discarded (`SupersededPreserved`);
//! 3. the local files are opened with all the space that serving needs. The header with this attach's nonce
//!    is written and synced, so that data written under it is recognized as this writer's (`IntentStored`);
//! 4. the attach record is created once. If another writer was faster, everything restarts (`AttachLost`):
//!    the new state of the log decides whether that writer may be replaced;
//! 5. the log that was read must not have been truncated in the meantime: the record's position must be new.
//!    Otherwise everything restarts (`AttachSuperseded`), and the record stays where no reader looks;
//! 6. the record is read back (`AttachWon`), after a delay equal to the duration of its create. A store whose
//!    creates are not atomic may confirm the creates of two writers. The other create can only have found the
//!    key free before this record was stored. Unless it takes longer than this create took in total, it has
//!    ended before the read. The writer whose record is missing restarts (`AttachLost`).
//!
//! A reason to preserve local data, or to reject the attach, is first confirmed in the same way.
//!
//! The names are crash points.

use std::error::Error;
use std::time::Duration;

use futures::future::join;
use holdfast_engine::attach::{
    AttachPlan, AttachRefused, Claim, ForeignReason, LocalData, assess_local, plan_attach,
};
use holdfast_engine::durable_map::{FoundMap, Header, PageSummary};
use holdfast_engine::sector_map::Restore;
use holdfast_format::crash_point::{CrashPoint, reach};
use holdfast_format::displaced::Displaced;
use holdfast_format::manifest::Manifest;
use holdfast_format::safeguard::{
    Safeguard::{CheckTruncation, PreserveFenced},
    safeguard,
};
use holdfast_log::{
    CreateOutcome, LogFailure, confirm_fork, create_record, is_in_place, read_manifest, read_manifest_to_end,
    was_truncated_after,
};
use holdfast_objects::ObjectStore;
use holdfast_types::{Epoch, VolumeId};

use crate::{Environment, LocalState};

/// Maximum reads of a log that other writers extend.
const TRIES: usize = 5;
/// Maximum delay before the record is read back: no create takes longer, including all its retries.
const MAX_SETTLING: Duration = Duration::from_secs(60);

/// The volume's state after its attach record was created.
pub struct Acquired<F> {
    /// The manifest as of the attach record.
    pub manifest: Manifest,
    /// The durable header, with the acquired epoch.
    pub header: Header,
    /// The generation of that header.
    pub header_generation: u64,
    /// Pages of the durable map with this writer's data, with which the files were opened.
    pub found: PageSummary,
    /// The writer that was replaced, possibly by the attach that this one continues: its unuploaded data is
    /// not in the volume.
    pub displaced: Option<Displaced>,
    /// Local data that was preserved, and the reason.
    pub preserved: Option<Preserved>,
    /// The open files.
    pub files: F,
}

/// Local data that was preserved and is never uploaded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Preserved {
    /// Epoch of its writer.
    pub epoch: Epoch,
    /// Reason why it is not the volume's newest data.
    pub why: ForeignReason,
}

/// Reason why an attach failed. It lost no data, and may be retried.
#[derive(Debug, thiserror::Error)]
pub enum AttachError<L: Error + 'static> {
    /// The volume's state forbids it.
    #[error(transparent)]
    Refused(#[from] AttachRefused),
    /// The log could not be read or extended.
    #[error(transparent)]
    Log(#[from] LogFailure),
    /// Other writers created the next record at every attempt.
    #[error("other writers extend the log of volume {0} at the same time")]
    Contended(VolumeId),
    /// The local files failed.
    #[error(transparent)]
    Local(L),
}

/// Returns true if local data that is not the volume's newest must be preserved. A log reset by a restore of
/// the bucket lacks clean data, too.
pub fn is_kept(map: &FoundMap, why: ForeignReason) -> bool {
    map.pages.holds_dirty() || (why == ForeignReason::LogRolledBack && !map.pages.is_empty())
}

/// Reads the log and the local map (step 1).
async fn read_state<L: LocalState>(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    local: &L,
) -> Result<(Manifest, Option<FoundMap>), AttachError<L::Error>> {
    let mut manifest = read_manifest(objects, volume).await?;
    if manifest.is_unconfirmed() {
        confirm_fork(objects, volume).await?;
        manifest = read_manifest_to_end(objects, volume).await?;
    }
    let on_disk = local.read_map().await.map_err(AttachError::Local)?;
    if assess_local(&manifest, on_disk.as_ref()) == LocalData::Foreign(ForeignReason::LogRolledBack) {
        manifest = read_manifest_to_end(objects, volume).await?;
    }
    Ok((manifest, on_disk))
}

/// Reads the log and the local files, decides, and creates the attach record; restarts if another writer was
/// faster.
///
/// # Errors
/// [`AttachError`].
pub async fn acquire<L: LocalState>(
    objects: &dyn ObjectStore,
    volume: &VolumeId,
    local: &L,
    claim: &Claim,
    time: &impl Environment,
) -> Result<Acquired<L::Files>, AttachError<L::Error>> {
    let mut preserved = None;
    for _ in 0..TRIES {
        let (mut manifest, on_disk) = read_state(objects, volume, local).await?;
        let plan = plan_attach(&manifest, on_disk.as_ref(), claim);
        let proceeds = plan.as_ref().is_ok_and(|plan| !matches!(plan.local, LocalData::Foreign(_)));
        let begun_at = manifest.checkpointed();
        if !proceeds && manifest.exists() && was_truncated_after(objects, volume, begun_at).await? {
            continue;
        }
        let AttachPlan { local: data, displaced, mut header, record } = plan?;
        let (mut generation, mut found, mut restore) = (0, PageSummary::default(), None);
        match (data, on_disk) {
            (LocalData::Ours { trust_clean }, Some(map)) => {
                let invalidated = header.invalidated;
                restore = Some(Restore { found: map.header, invalidated, trust_clean });
                (generation, found) = (map.generation, map.pages);
            }
            (LocalData::Foreign(why), Some(map)) if is_kept(&map, why) && safeguard(PreserveFenced) => {
                let epoch = map.header.epoch;
                local.preserve(epoch).await.map_err(AttachError::Local)?;
                preserved = Some(Preserved { epoch, why });
            }
            (LocalData::Foreign(_), _) => local.discard().await.map_err(AttachError::Local)?,
            (LocalData::Absent | LocalData::Ours { .. }, _) => {}
        }
        if matches!(data, LocalData::Foreign(_)) {
            reach(CrashPoint::SupersededPreserved);
        }
        let files = local.open(header.sectors, restore).await.map_err(AttachError::Local)?;
        generation += 1;
        local.write_header(&files, &header, generation).await.map_err(AttachError::Local)?;
        reach(CrashPoint::IntentStored);
        let sent_ms = time.now_ms();
        if create_record(objects, &record).await? == CreateOutcome::Lost {
            reach(CrashPoint::AttachLost);
            continue;
        }
        let took = Duration::from_millis(time.now_ms().saturating_sub(sent_ms) + 1);
        let settles = time.sleep(took.min(MAX_SETTLING));
        let (is_truncated, ()) = join(was_truncated_after(objects, volume, begun_at), settles).await;
        if is_truncated? && safeguard(CheckTruncation) {
            reach(CrashPoint::AttachSuperseded);
            continue;
        }
        if !is_in_place(objects, &record).await? {
            reach(CrashPoint::AttachLost);
            continue;
        }
        reach(CrashPoint::AttachWon);
        manifest.apply(&record).map_err(|source| LogFailure::Broken { volume: volume.clone(), source })?;
        header.claim_as_of(record.epoch, Some(record.nonce));
        let header_generation = generation;
        return Ok(Acquired { manifest, header, header_generation, found, displaced, preserved, files });
    }
    Err(AttachError::Contended(volume.clone()))
}
