//! Plans the steps of an attach; the caller executes them.
//!
//! The caller reads the log, calls [`plan_attach`], writes the plan's header (synced), and creates the
//! plan's record once. If another record already exists at that position, it starts over.
//!
//! Local data is *ours* if it belongs to this very volume (identified by its create record), no other writer
//! has attached since, and it has everything that its writer committed. If the log says that a volume is
//! attached, only the node in the attach record, with that writer's data, may attach it again without
//! permission. Any other attach needs permission to replace the writer of one epoch, and is reported
//! ([`Displaced`]), because data that the replaced writer had not uploaded may be missing. The attach record
//! names the replaced writer too, and an attach that continues this one repeats the name, so that a crash of
//! the process does not hide the loss.
//!
//! Local data with records that the log lacks belongs to another history: the bucket was restored to an
//! earlier state. It is preserved, clean or dirty, because it is the only copy of the data that the log lost.
//!
//! Upholds invariants 6: the owner of dirty data is known; 4: clean data counts only if it matches the log's
//! end; 18: older data is never uploaded, and nothing is uploaded to a log that was rolled back; 19: every
//! replaced writer is named and reported (`docs/invariants.md`, ADR 8).

use std::fmt;

use holdfast_format::displaced::Displaced;
use holdfast_format::limit::MAX_SECTORS;
use holdfast_format::manifest::{Manifest, Writer};
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::{
    Safeguard::{
        CheckExpectedEpoch, CleanOnlyIfClosed, RefuseAbsentState, RejectLostRecords, RejectOlderState,
        RejectOtherStore,
    },
    safeguard,
};
use holdfast_format::side::{Side, SideSet};
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::durable_map::{FoundMap, Header};

/// A node's request to attach the volume, and the changes that it permits.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The node's name.
    pub node: String,
    /// Fresh random bits.
    pub nonce: Nonce,
    /// Current time, milliseconds since 1970.
    pub unix_ms: u64,
    /// Grow the volume to this many sectors.
    pub grow_to: Option<u64>,
    /// Permits replacing the writer of this epoch, and losing its unuploaded data.
    pub replaces: Option<Epoch>,
}

/// The result of comparing the volume's local files with its log.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalData {
    /// No local files exist.
    Absent,
    /// Ours: dirty data is the volume's newest data.
    Ours {
        /// True if clean data also matches the log's end.
        trust_clean: bool,
    },
    /// Not the volume's newest data: dirty data must be preserved and never uploaded.
    Foreign(ForeignReason),
}

/// Reason why local data is not the volume's newest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ForeignReason {
    /// It belongs to another volume of the same name, in another store or created later.
    OtherVolume,
    /// Another writer has attached the volume since.
    Superseded,
    /// Its own writer committed data that it lacks: the disk was rolled back or copied, or lost synced
    /// writes.
    Older,
    /// It has records that the log lacks: the bucket was restored to an earlier state, or lost objects.
    LogRolledBack,
}

/// Reason why the node that holds the volume according to the log lacks that writer's data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Missing {
    /// No local files exist.
    Absent,
    /// They are not that writer's data.
    Differs(ForeignReason),
}

impl Missing {
    /// Returns the instructions for getting that writer's data.
    fn remedy(self) -> &'static str {
        match self {
            Self::Differs(ForeignReason::LogRolledBack) => "Restore the bucket's newest state",
            Self::Absent
            | Self::Differs(ForeignReason::OtherVolume | ForeignReason::Superseded | ForeignReason::Older) => {
                "Mount or restore the state directory"
            }
        }
    }
}

impl fmt::Display for Missing {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.write_str(match self {
            Self::Absent => "is missing",
            Self::Differs(ForeignReason::OtherVolume) => "belongs to another volume of this name",
            Self::Differs(ForeignReason::Superseded) => "was written before that attach",
            Self::Differs(ForeignReason::Older) => "is older than the last commit",
            Self::Differs(ForeignReason::LogRolledBack) => {
                "is newer than the log, which was rolled back to an earlier state or lost records"
            }
        })
    }
}

/// The plan of an attach, for the caller to carry out.
#[derive(Debug, Clone)]
pub struct AttachPlan {
    /// The result of comparing the local files with the log.
    pub local: LocalData,
    /// The writer replaced with permission, possibly by the attach of this node that this one continues.
    pub displaced: Option<Displaced>,
    /// The header to write before the record is created.
    pub header: Header,
    /// The record to create once.
    pub record: Record,
}

/// Reason why a volume cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachRefused {
    /// The volume does not exist.
    #[error(
        "volume {0} does not exist in this object store: create it first, or check the store's bucket and prefix"
    )]
    NotFound(VolumeId),
    /// It was deleted, and ids are never reused.
    #[error("volume {0} was deleted: create a volume with another id")]
    Deleted(VolumeId),
    /// A writer of another node holds it.
    #[error(
        "volume {volume} is attached elsewhere (epoch {epoch}, node {node}): detach it there. If that node is lost, replace it with \
         `attach --take-over {epoch}`, or in Kubernetes with the annotation holdfast.dev/force-detach={node}"
    )]
    AttachedElsewhere {
        /// The volume.
        volume: VolumeId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The writer's node.
        node: String,
    },
    /// This node holds it, but its writer's local data is missing.
    #[error(
        "volume {volume} is attached by this node (epoch {epoch}), but its local state {missing}. An attach would lose the \
         data that was not uploaded. {}; if it is lost, accept the loss with `attach --take-over {epoch}`, or in Kubernetes with the \
         annotation holdfast.dev/force-detach={node}",
        .missing.remedy()
    )]
    LocalStateMissing {
        /// The volume.
        volume: VolumeId,
        /// The writer's epoch.
        epoch: Epoch,
        /// The node: this one.
        node: String,
        /// Reason why that writer's data is missing.
        missing: Missing,
    },
    /// The writer that may be replaced is not the one that holds the volume.
    #[error(
        "volume {volume} is attached by node {node} (epoch {epoch}), but the request replaces epoch {named}. Nothing was changed. \
         Decide again whether to take the volume from that node"
    )]
    ReplacedSince {
        /// The volume.
        volume: VolumeId,
        /// The epoch that may be replaced.
        named: Epoch,
        /// The epoch that holds the volume.
        epoch: Epoch,
        /// Its node.
        node: String,
    },
    /// Volumes can only grow.
    #[error("size: volume {volume} has {from} sectors and cannot shrink to {to}")]
    Shrinks {
        /// The volume.
        volume: VolumeId,
        /// Current sectors.
        from: u64,
        /// Requested sectors.
        to: u64,
    },
    /// The formats limit volumes to fewer sectors.
    #[error("size: {0} sectors are more than the {MAX_SECTORS} a volume can have")]
    TooLarge(u64),
}

/// Compares the local files with the volume's log as of `manifest`. [`ForeignReason::LogRolledBack`] may also
/// mean that `manifest` is not the log's end.
pub fn assess_local(manifest: &Manifest, found: Option<&FoundMap>) -> LocalData {
    let Some(map) = found else { return LocalData::Absent };
    let header = &map.header;
    let is_other = header.volume != *manifest.volume()
        || (safeguard(RejectOtherStore) && header.identity != manifest.identity());
    let is_lost = !manifest.has_attach(header.epoch, header.writer) || map.known_seq() > manifest.seq();
    if is_other {
        LocalData::Foreign(ForeignReason::OtherVolume)
    } else if is_lost && safeguard(RejectLostRecords) {
        LocalData::Foreign(ForeignReason::LogRolledBack)
    } else if !manifest.is_ours_since(header.epoch, &header.nonces) {
        LocalData::Foreign(ForeignReason::Superseded)
    } else if manifest.is_beyond(&header.nonces, header.synced_generation) && safeguard(RejectOlderState) {
        LocalData::Foreign(ForeignReason::Older)
    } else {
        // A control record may follow the detach; local clean data still matches the store then.
        let was_closed = header.closed_clean && header.seq >= manifest.data_seq();
        let is_stale = safeguard(CleanOnlyIfClosed) && !was_closed;
        LocalData::Ours { trust_clean: !is_stale }
    }
}

/// Returns the writer that the attach replaces with permission, or else the one replaced by the attach
/// that this one continues.
fn displace(
    manifest: &Manifest,
    found: Option<&Header>,
    local: LocalData,
    claim: &Claim,
) -> Result<Option<Displaced>, AttachRefused> {
    let Some(Writer { epoch, nonce, node, since_unix_ms }) = manifest.attached() else { return Ok(None) };
    let is_of_this_node = node == claim.node;
    let is_of_writer = found.is_some_and(|header| header.nonces.contains(&nonce));
    let missing = match local {
        LocalData::Ours { .. } if is_of_writer && is_of_this_node => {
            return Ok(manifest.displaced().cloned());
        }
        LocalData::Ours { .. } | LocalData::Absent if is_of_this_node && !safeguard(RefuseAbsentState) => {
            return Ok(None);
        }
        LocalData::Absent => Missing::Absent,
        LocalData::Ours { .. } => Missing::Differs(ForeignReason::Superseded),
        LocalData::Foreign(why) => Missing::Differs(why),
    };
    let is_named = match claim.replaces {
        Some(named) => !(safeguard(CheckExpectedEpoch) && named != epoch),
        None => false,
    };
    let volume = manifest.volume().clone();
    if is_named {
        return Ok(Some(Displaced { epoch, node, since_unix_ms }));
    }
    Err(match claim.replaces {
        _ if is_of_this_node => AttachRefused::LocalStateMissing { volume, epoch, node, missing },
        Some(named) => AttachRefused::ReplacedSince { volume, named, epoch, node },
        None => AttachRefused::AttachedElsewhere { volume, epoch, node },
    })
}

/// Plans the attach of the volume with the log `manifest` on a node with the local files `found`.
///
/// # Errors
/// [`AttachRefused`]: the caller must not change anything.
pub fn plan_attach(
    manifest: &Manifest,
    found: Option<&FoundMap>,
    claim: &Claim,
) -> Result<AttachPlan, AttachRefused> {
    let volume = manifest.volume();
    if manifest.is_deleted() {
        return Err(AttachRefused::Deleted(volume.clone()));
    }
    if !manifest.exists() {
        return Err(AttachRefused::NotFound(volume.clone()));
    }
    let local = assess_local(manifest, found);
    let found = found.map(|map| &map.header);
    let displaced = displace(manifest, found, local, claim)?;
    let from = manifest.sectors();
    let sectors = claim.grow_to.unwrap_or(from);
    if sectors < from {
        return Err(AttachRefused::Shrinks { volume: volume.clone(), from, to: sectors });
    }
    if sectors > MAX_SECTORS {
        return Err(AttachRefused::TooLarge(sectors));
    }
    let mut header = match (local, found) {
        (LocalData::Ours { .. }, Some(header)) => {
            let mut header = Header { sectors, ..header.clone() };
            // A log that the header covers invalidates nothing new. The new record clears the invalidated
            // sides of the manifest.
            if manifest.seq() > header.seq {
                header.invalidated = header.invalidated.or(manifest.invalidated());
            }
            header.claim_as_of(manifest.epoch(), manifest.writer());
            header
        }
        (LocalData::Ours { .. } | LocalData::Absent | LocalData::Foreign(_), _) => Header {
            volume: volume.clone(),
            identity: manifest.identity(),
            sectors,
            epoch: manifest.epoch(),
            writer: manifest.writer().unwrap_or_default(),
            nonces: Vec::new(),
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        },
    };
    let nonce = header.intend(claim.nonce);
    // A log that was rolled back must not reissue an epoch of this node.
    let known = found.filter(|found| found.identity == manifest.identity()).map(|found| found.epoch);
    let record = Record {
        volume: volume.clone(),
        seq: manifest.seq().next(),
        epoch: manifest.epoch().max(known.unwrap_or_default()).next(),
        nonce,
        unix_ms: claim.unix_ms,
        body: Body::Attach { sectors, node: claim.node.clone(), displaced: displaced.clone() },
    };
    Ok(AttachPlan { local, displaced, header, record })
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Place, SnapshotUid};

    use super::*;
    use crate::durable_map::{FoundPage, FoundPart, PageSummary};
    use holdfast_format::chunk_ranges::ChunkRanges;
    use holdfast_format::chunk_set::ChunkSet;
    use holdfast_format::snapshot::SnapshotChange;

    const MINE: Nonce = Nonce([1; 16]);
    const THEIRS: Nonce = Nonce([2; 16]);

    /// The files of a volume without any written page.
    fn on_disk(header: &Header) -> FoundMap {
        FoundMap { generation: 1, header: header.clone(), pages: PageSummary::default() }
    }

    fn claim(nonce: Nonce) -> Claim {
        Claim { node: "n".into(), nonce, unix_ms: 0, grow_to: None, replaces: None }
    }

    fn log(bodies: &[(u64, Nonce, Body)]) -> Manifest {
        let volume: VolumeId = "v".parse().unwrap();
        let mut manifest = Manifest::empty(volume.clone());
        for (epoch, nonce, body) in bodies {
            let record = Record {
                volume: volume.clone(),
                seq: manifest.seq().next(),
                epoch: Epoch(*epoch),
                nonce: *nonce,
                unix_ms: 0,
                body: body.clone(),
            };
            manifest.apply(&record).unwrap();
        }
        manifest
    }

    fn create() -> (u64, Nonce, Body) {
        (0, Nonce::default(), Body::create(100))
    }

    fn attach(epoch: u64, nonce: Nonce) -> (u64, Nonce, Body) {
        attach_of("n", epoch, nonce)
    }

    fn acquired(manifest: &Manifest, found: Option<&FoundMap>, nonce: Nonce) -> (LocalData, Header) {
        let plan = plan_attach(manifest, found, &Claim { replaces: Some(manifest.epoch()), ..claim(nonce) })
            .unwrap();
        let mut header = plan.header;
        header.claim_as_of(plan.record.epoch, Some(plan.record.nonce));
        (plan.local, header)
    }

    fn attach_of(node: &str, epoch: u64, nonce: Nonce) -> (u64, Nonce, Body) {
        (epoch, nonce, Body::Attach { sectors: 100, node: node.into(), displaced: None })
    }

    fn commit(epoch: u64, nonce: Nonce, generation: u64) -> (u64, Nonce, Body) {
        let id = holdfast_types::SegmentId::new(Place::until(Seq(100)), 1, [2; 10]);
        let segment = holdfast_format::segment::SegmentRef {
            id,
            bytes: 1,
            index_offset: 0,
            index_bytes: 1,
            sectors: 5,
            chunks: ChunkRanges::default(),
        };
        (
            epoch,
            nonce,
            Body::Change {
                segments: vec![segment],
                chunks: ChunkSet::default(),
                invalidated: SideSet::NONE,
                generation,
                merges: vec![],
                closed: Place::default(),
                snapshots: SnapshotChange::default(),
                sectors: None,
            },
        )
    }

    fn refused(
        manifest: &Manifest,
        found: Option<&FoundMap>,
        replaces: Option<u64>,
    ) -> Option<AttachRefused> {
        let claim = Claim { replaces: replaces.map(Epoch), ..claim(Nonce([7; 16])) };
        plan_attach(manifest, found, &claim).err()
    }

    /// Regression: permission to take over was a bool, so that a stalled attach fenced the writer that had
    /// replaced it.
    #[test]
    fn only_the_writer_of_the_named_epoch_is_replaced() {
        let held = log(&[create(), attach_of("other", 1, THEIRS)]);
        let (volume, epoch, node) = (held.volume().clone(), Epoch(1), "other".to_owned());
        let elsewhere =
            AttachRefused::AttachedElsewhere { volume: volume.clone(), epoch, node: node.clone() };
        assert_eq!(refused(&held, None, None), Some(elsewhere));
        for named in [0, 2] {
            let (volume, node) = (volume.clone(), node.clone());
            let since = AttachRefused::ReplacedSince { volume, named: Epoch(named), epoch, node };
            assert_eq!(refused(&held, None, Some(named)), Some(since));
        }
        let plan = plan_attach(&held, None, &Claim { replaces: Some(Epoch(1)), ..claim(MINE) }).unwrap();
        assert_eq!(plan.displaced, Some(Displaced { epoch: Epoch(1), node, since_unix_ms: 0 }));
        assert_eq!(plan.record.epoch, Epoch(2));
        let free = log(&[create(), attach_of("other", 1, THEIRS), (1, THEIRS, Body::Detach { root: None })]);
        assert_eq!(plan_attach(&free, None, &claim(MINE)).unwrap().displaced, None);
    }

    /// Regression: a node that returned under its name without its disk attached as if no data was missing.
    #[test]
    fn a_node_without_its_state_is_refused_until_the_loss_is_accepted() {
        let held = log(&[create(), attach(1, MINE)]);
        let lost = |found: Option<&FoundMap>| match refused(&held, found, None) {
            Some(AttachRefused::LocalStateMissing { epoch: Epoch(1), missing, .. }) => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!(lost(None), Missing::Absent);
        // The intent of an attach that never reached the log is not that writer's data.
        let intent = plan_attach(&log(&[create()]), None, &claim(Nonce([9; 16]))).unwrap().header;
        assert_eq!(lost(Some(&on_disk(&intent))), Missing::Differs(ForeignReason::Superseded));
        assert_eq!(acquired(&held, None, MINE).0, LocalData::Absent);
        // A stale epoch in the grant does not change the error.
        assert!(matches!(refused(&held, None, Some(7)), Some(AttachRefused::LocalStateMissing { .. })));
    }

    /// A copy of a node's disk has its nonces, but the log names the node that attached.
    #[test]
    fn a_copied_disk_takes_no_volume_from_its_original() {
        let (_, header) = acquired(&log(&[create()]), None, MINE);
        let held = log(&[create(), attach_of("original", 1, MINE)]);
        assert!(matches!(
            refused(&held, Some(&on_disk(&header)), None),
            Some(AttachRefused::AttachedElsewhere { .. })
        ));
        let moved =
            plan_attach(&held, Some(&on_disk(&header)), &Claim { replaces: Some(Epoch(1)), ..claim(THEIRS) })
                .unwrap();
        assert_eq!(moved.local, LocalData::Ours { trust_clean: false });
        assert!(moved.displaced.is_some());
    }

    /// Regression: after the bucket was rolled back, the record carried an epoch below that of the header,
    /// and the writer's first commit broke the log. Newer local data was mixed with the older data of the
    /// log.
    #[test]
    fn a_log_rolled_back_is_reported_and_breaks_no_log() {
        let released = [create(), attach_of("other", 1, THEIRS), (1, THEIRS, Body::Detach { root: None })];
        let (_, header) = acquired(&log(&released), None, MINE);
        let served = [&released[..], &[attach(2, MINE), commit(2, MINE, 0), commit(2, MINE, 0)]].concat();
        let header = Header { seq: Seq(6), ..header };
        assert!(matches!(assess_local(&log(&served), Some(&on_disk(&header))), LocalData::Ours { .. }));
        let longer = |records: &[(u64, Nonce, Body)]| log(&[&released[..], records].concat());
        let commits = vec![commit(2, THEIRS, 0); 5];
        for rolled_back in [
            // Before its attach, and before its last commit.
            log(&released),
            log(&served[..5]),
            // Its epoch was reissued, and the log is longer than before.
            longer(
                &[
                    &[attach_of("other", 2, THEIRS)],
                    &commits[..],
                    &[(2, THEIRS, Body::Detach { root: None })],
                ]
                .concat(),
            ),
        ] {
            let went_back = LocalData::Foreign(ForeignReason::LogRolledBack);
            assert_eq!(assess_local(&rolled_back, Some(&on_disk(&header))), went_back);
            let named = rolled_back.attached().map(|writer| writer.epoch);
            let plan = plan_attach(
                &rolled_back,
                Some(&on_disk(&header)),
                &Claim { replaces: named, ..claim(Nonce([7; 16])) },
            );
            let AttachPlan { local, displaced, header: mut after, record } = plan.unwrap();
            assert_eq!(local, went_back);
            assert_eq!(displaced.map(|writer| writer.epoch), named);
            assert_eq!(record.epoch, Epoch(3), "no epoch of this node comes twice");
            after.claim_as_of(record.epoch, Some(record.nonce));
            assert_eq!((after.epoch, after.writer), (record.epoch, record.nonce));
            let mut log = rolled_back.clone();
            log.apply(&record).unwrap();
            let (epoch, nonce, body) = commit(after.epoch.0, record.nonce, 0);
            let seq = log.seq().next();
            log.apply(&Record { seq, epoch: Epoch(epoch), nonce, body, ..record }).unwrap();
            assert!(matches!(assess_local(&log, Some(&on_disk(&after))), LocalData::Ours { .. }));
        }
        let refused = refused(&log(&served[..5]), Some(&on_disk(&header)), None).unwrap();
        let message = refused.to_string();
        assert!(
            message.contains("is newer than the log") && message.contains("Restore the bucket"),
            "{message}"
        );
    }

    /// Regression: an attach whose create had an ambiguous result, or whose process crashed, replaced its
    /// writer without a report, because the next one continued it.
    #[test]
    fn a_replaced_writer_is_named_until_the_detach() {
        let held = log(&[create(), attach_of("other", 1, THEIRS)]);
        let taken = plan_attach(&held, None, &Claim { replaces: Some(Epoch(1)), ..claim(MINE) }).unwrap();
        let displaced = Some(Displaced { epoch: Epoch(1), node: "other".into(), since_unix_ms: 0 });
        assert_eq!(taken.displaced, displaced);
        let mut log = held;
        log.apply(&taken.record).unwrap();
        log = Manifest::decode_checkpoint(&log.encode_checkpoint()).unwrap();
        let mut header = taken.header;
        for turn in 8..11 {
            let again = plan_attach(&log, Some(&on_disk(&header)), &claim(Nonce([turn; 16]))).unwrap();
            assert_eq!(again.displaced, displaced);
            log.apply(&again.record).unwrap();
            header = again.header;
        }
        let (nonce, seq) = (log.writer().unwrap(), log.seq().next());
        log.apply(&Record {
            seq,
            epoch: log.epoch(),
            nonce,
            body: Body::Detach { root: None },
            ..taken.record
        })
        .unwrap();
        assert_eq!(plan_attach(&log, Some(&on_disk(&header)), &claim(MINE)).unwrap().displaced, None);
    }

    /// Regression: later commits of the same writer were not considered: a disk that was rolled back
    /// overwrote them with older bytes.
    #[test]
    fn a_map_that_lacks_what_its_writer_committed_is_foreign() {
        let (_, header) = acquired(&log(&[create()]), None, MINE);
        let header = Header { synced_generation: 5, ..header };
        let at = |generation| log(&[create(), attach(1, MINE), commit(1, MINE, generation)]);
        assert_eq!(assess_local(&at(5), Some(&on_disk(&header))), LocalData::Ours { trust_clean: false });
        assert_eq!(assess_local(&at(6), Some(&on_disk(&header))), LocalData::Foreign(ForeignReason::Older));
        // A commit without a generation, from a disk whose sync failed, hides none before it.
        let then = log(&[create(), attach(1, MINE), commit(1, MINE, 6), commit(1, MINE, 0)]);
        assert_eq!(assess_local(&then, Some(&on_disk(&header))), LocalData::Foreign(ForeignReason::Older));
        let read = Manifest::decode_checkpoint(&then.encode_checkpoint()).unwrap();
        assert_eq!(assess_local(&read, Some(&on_disk(&header))), LocalData::Foreign(ForeignReason::Older));
        // Earlier commits of other writers have other generations.
        let before = log(&[create(), attach(1, THEIRS), commit(1, THEIRS, 90), attach(2, MINE)]);
        let fresh = Header { epoch: Epoch(2), synced_generation: 0, ..header.clone() };
        assert_eq!(assess_local(&before, Some(&on_disk(&fresh))), LocalData::Ours { trust_clean: false });
        assert!(matches!(
            refused(&at(6), Some(&on_disk(&header)), None),
            Some(AttachRefused::LocalStateMissing { missing: Missing::Differs(ForeignReason::Older), .. })
        ));
    }

    /// Regression: local files were identified only by the volume's name, so that one store's data was
    /// served as another's.
    #[test]
    fn data_of_another_volume_of_the_same_name_is_foreign() {
        let detached = [create(), attach(1, MINE), (1, MINE, Body::Detach { root: None })];
        let (_, mut header) = acquired(&log(&[create()]), None, MINE);
        (header.closed_clean, header.seq) = (true, Seq(3));
        assert_eq!(
            assess_local(&log(&detached), Some(&on_disk(&header))),
            LocalData::Ours { trust_clean: true }
        );
        let mut other = detached.clone();
        other[0].1 = Nonce([8; 16]);
        assert_eq!(
            assess_local(&log(&other), Some(&on_disk(&header))),
            LocalData::Foreign(ForeignReason::OtherVolume)
        );
    }

    #[test]
    fn own_dirty_data_survives_own_attaches_and_an_intent_that_never_won() {
        let (_, header) = acquired(&log(&[create()]), None, MINE);
        let after = log(&[create(), attach(1, MINE)]);
        assert_eq!(
            acquired(&after, Some(&on_disk(&header)), THEIRS).0,
            LocalData::Ours { trust_clean: false }
        );
        // The intent to attach as epoch 2 was stored, but another writer became epoch 2.
        let intent = plan_attach(&after, Some(&on_disk(&header)), &claim(Nonce([9; 16]))).unwrap().header;
        let lost = log(&[create(), attach(1, MINE), attach(2, THEIRS)]);
        assert_eq!(
            acquired(&lost, Some(&on_disk(&intent)), MINE).0,
            LocalData::Foreign(ForeignReason::Superseded)
        );
    }

    /// Regression: the header dropped the nonce of the one successful attach at the 64th failed one.
    #[test]
    fn own_dirty_data_survives_any_number_of_attaches_that_end_before_their_first_round() {
        let (_, mut header) = acquired(&log(&[create()]), None, MINE);
        let mut bodies = vec![create(), attach(1, MINE)];
        let fresh = |turn: u64| Nonce((u128::from(turn) + 1000).to_le_bytes());
        for turn in 0..200 {
            let plan = plan_attach(&log(&bodies), Some(&on_disk(&header)), &claim(fresh(turn))).unwrap();
            assert_eq!(plan.local, LocalData::Ours { trust_clean: false }, "turn {turn}");
            header = plan.header;
            // One succeeds now and then, none gets as far as writing its own header.
            if turn % 70 == 0 {
                bodies.push(attach(plan.record.epoch.0, plan.record.nonce));
            }
        }
        // Any of the unsuccessful records may still reach the log.
        for nonce in header.nonces.clone() {
            let late = [&bodies[..], &[attach(5, nonce)]].concat();
            let plan = plan_attach(&log(&late), Some(&on_disk(&header)), &claim(MINE)).unwrap();
            assert_eq!(plan.local, LocalData::Ours { trust_clean: false });
        }
    }

    #[test]
    fn clean_data_counts_only_until_another_writer_attaches() {
        let (_, mut header) = acquired(&log(&[create()]), None, MINE);
        header.closed_clean = true;
        header.seq = Seq(3);
        let detached = [create(), attach(1, MINE), (1, MINE, Body::Detach { root: None })];
        assert_eq!(
            acquired(&log(&detached), Some(&on_disk(&header)), MINE).0,
            LocalData::Ours { trust_clean: true }
        );
        let elsewhere =
            [&detached[..], &[attach(2, THEIRS), (2, THEIRS, Body::Detach { root: None })]].concat();
        assert_eq!(
            acquired(&log(&elsewhere), Some(&on_disk(&header)), MINE).0,
            LocalData::Foreign(ForeignReason::Superseded)
        );
    }

    /// A round writes its pages before its header.
    #[test]
    fn pages_that_know_more_than_the_log_count_as_the_header_does() {
        let (_, header) = acquired(&log(&[create()]), None, MINE);
        let committed = [create(), attach(1, MINE), commit(1, MINE, 0)];
        let nibbles = vec![0; crate::sector_map::PAGE_BYTES];
        let page = FoundPage { page: 0, slot: Some(0), generation: 2, seq: Seq(3), nibbles };
        let mut map = on_disk(&header);
        map.pages.add(&FoundPart::Page(page));
        assert_eq!(assess_local(&log(&committed), Some(&map)), LocalData::Ours { trust_clean: false });
        let rolled_back = log(&committed[..2]);
        assert_eq!(assess_local(&rolled_back, Some(&map)), LocalData::Foreign(ForeignReason::LogRolledBack));
        assert_eq!(
            assess_local(&rolled_back, Some(&on_disk(&header))),
            LocalData::Ours { trust_clean: false }
        );
    }

    /// Regression: a control-plane record in a detached log invalidated all clean data of the node,
    /// because the log no longer ended at the record that closed it.
    #[test]
    fn clean_data_counts_until_a_record_changes_data() {
        let (_, mut header) = acquired(&log(&[create()]), None, MINE);
        (header.closed_clean, header.seq) = (true, Seq(4));
        let used = [create(), attach(1, MINE), commit(1, MINE, 0), (1, MINE, Body::Detach { root: None })];
        let again = [&used[..], &[attach(2, MINE), (2, MINE, Body::Detach { root: None })]].concat();
        assert_eq!(
            assess_local(&log(&again), Some(&on_disk(&header))),
            LocalData::Ours { trust_clean: true }
        );
        let taken = SnapshotChange { taken: Some(SnapshotUid([1; 16])), dropped: vec![] };
        let snapshot = [&used[..], &[(0, THEIRS, Body::of_snapshots(taken))]].concat();
        assert_eq!(
            assess_local(&log(&snapshot), Some(&on_disk(&header))),
            LocalData::Ours { trust_clean: true }
        );
        let changed =
            [&used[..], &[attach(2, MINE), commit(2, MINE, 0), (2, MINE, Body::Detach { root: None })]]
                .concat();
        assert_eq!(
            assess_local(&log(&changed), Some(&on_disk(&header))),
            LocalData::Ours { trust_clean: false }
        );
    }

    #[test]
    fn missing_deleted_shrinking_and_too_large_volumes_are_refused() {
        let plan = |manifest: &Manifest, grow_to| {
            plan_attach(manifest, None, &Claim { grow_to, ..claim(MINE) }).map(|plan| plan.header.sectors)
        };
        assert!(matches!(plan(&log(&[]), None), Err(AttachRefused::NotFound(_))));
        let deleted = log(&[create(), (0, MINE, Body::Delete)]);
        assert!(matches!(plan(&deleted, None), Err(AttachRefused::Deleted(_))));
        assert!(matches!(plan(&log(&[create()]), Some(99)), Err(AttachRefused::Shrinks { .. })));
        assert!(matches!(plan(&log(&[create()]), Some(u64::MAX)), Err(AttachRefused::TooLarge(_))));
        assert_eq!(plan(&log(&[create()]), Some(200)), Ok(200));
    }
}
