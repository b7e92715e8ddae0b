//! What an attach does: decided here, done by the caller.
//!
//! The caller reads the log, asks [`plan_attach`], writes the plan's header (synced), creates the plan's record once. If
//! another record was created in its place, it begins again.
//!
//! Upholds invariant 6: whose dirty data it is; and 4: clean data counts only where it is what the log's end says
//! (`docs/invariants.md`).

use holdfast_types::{Epoch, Nonce, Seq, VolumeId};

use crate::durable_map::Header;
use crate::limit::MAX_SECTORS;
use crate::manifest::Manifest;
use crate::planted::{Bug, is_planted};
use crate::record::{Body, Record};
use crate::sector_map::{Side, SideSet};

/// Who wants the volume, and how.
#[derive(Debug, Clone)]
pub struct Claim {
    /// The node's name, for people.
    pub node: String,
    /// Fresh random bits.
    pub nonce: Nonce,
    /// Now, milliseconds since 1970.
    pub unix_ms: u64,
    /// Grow the volume to this many sectors.
    pub grow_to: Option<u64>,
    /// Fence a writer on another node.
    pub take_over: bool,
}

/// What the local files of the volume are worth.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LocalData {
    /// There are none.
    Absent,
    /// Ours: what is dirty is the volume's newest data.
    Ours {
        /// Clean data is what the log's end says, too.
        trust_clean: bool,
    },
    /// Another writer held the volume since: what is dirty must be kept aside and never uploaded.
    Foreign,
}

/// What to do.
#[derive(Debug, Clone)]
pub struct AttachPlan {
    /// What the local files are worth.
    pub local: LocalData,
    /// The header to write before the record is created.
    pub header: Header,
    /// The record to create once.
    pub record: Record,
}

/// Why a volume cannot be attached.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AttachRefused {
    /// No such volume.
    #[error(
        "volume {0} does not exist in this object store: create it first, or check the store's bucket and prefix"
    )]
    NotFound(VolumeId),
    /// It was deleted, and ids are not used again.
    #[error("volume {0} was deleted: create a volume with another id")]
    Deleted(VolumeId),
    /// A writer of another node holds it.
    #[error(
        "volume {volume} is attached elsewhere (epoch {epoch}): detach it there, or take it over and fence that writer"
    )]
    AttachedElsewhere {
        /// Which.
        volume: VolumeId,
        /// The writer's epoch.
        epoch: Epoch,
    },
    /// Sizes only grow.
    #[error("size: volume {volume} has {from} sectors and cannot shrink to {to}")]
    Shrinks {
        /// Which.
        volume: VolumeId,
        /// Sectors now.
        from: u64,
        /// Sectors asked for.
        to: u64,
    },
    /// Larger than the formats can hold.
    #[error("size: {0} sectors are more than the {MAX_SECTORS} a volume can have")]
    TooLarge(u64),
}

/// Plans the attach of the volume whose log reads `manifest` on a node whose local files have the header `found`.
///
/// # Errors
/// [`AttachRefused`]: nothing may be changed.
pub fn plan_attach(
    manifest: &Manifest,
    found: Option<&Header>,
    claim: &Claim,
) -> Result<AttachPlan, AttachRefused> {
    let volume = manifest.volume();
    if manifest.is_deleted() {
        return Err(AttachRefused::Deleted(volume.clone()));
    }
    if !manifest.exists() {
        return Err(AttachRefused::NotFound(volume.clone()));
    }
    let found = found.filter(|header| header.volume == *volume);
    let writer_is_ours =
        manifest.writer().is_some_and(|nonce| found.is_some_and(|header| header.nonces.contains(&nonce)));
    if manifest.is_attached() && !writer_is_ours && !claim.take_over {
        return Err(AttachRefused::AttachedElsewhere { volume: volume.clone(), epoch: manifest.epoch() });
    }
    let from = manifest.sectors();
    let sectors = claim.grow_to.unwrap_or(from);
    if sectors < from {
        return Err(AttachRefused::Shrinks { volume: volume.clone(), from, to: sectors });
    }
    if sectors > MAX_SECTORS {
        return Err(AttachRefused::TooLarge(sectors));
    }
    let local = match found {
        None => LocalData::Absent,
        Some(header) if !manifest.is_ours_since(header.epoch, &header.nonces) => LocalData::Foreign,
        Some(header) => LocalData::Ours {
            trust_clean: (header.closed_clean && header.seq == manifest.seq()) || is_planted(Bug::StaleClean),
        },
    };
    let mut header = match (local, found) {
        (LocalData::Ours { .. }, Some(header)) => {
            let mut header = Header { sectors, ..header.clone() };
            // A log that ends before the epoch of the local data is an older state of it, and so is one that ends where its
            // writer let go. The record to come takes what is void out of the manifest.
            if manifest.epoch() >= header.epoch && manifest.seq() > header.seq {
                header.void = header.void.or(manifest.void());
            }
            header.is_ours_as_of(manifest.epoch(), manifest.writer());
            header
        }
        (LocalData::Ours { .. } | LocalData::Absent | LocalData::Foreign, _) => Header {
            volume: volume.clone(),
            sectors,
            epoch: manifest.epoch(),
            nonces: Vec::new(),
            active: Side::A,
            closed_clean: false,
            void: SideSet::NONE,
            seq: Seq(0),
            synced_generation: 0,
        },
    };
    let nonce = header.intend(claim.nonce);
    let record = Record {
        volume: volume.clone(),
        seq: manifest.seq().next(),
        epoch: manifest.epoch().next(),
        nonce,
        unix_ms: claim.unix_ms,
        body: Body::Attach { sectors, node: claim.node.clone() },
    };
    Ok(AttachPlan { local, header, record })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MINE: Nonce = Nonce([1; 16]);
    const THEIRS: Nonce = Nonce([2; 16]);

    fn claim(nonce: Nonce) -> Claim {
        Claim { node: "n".into(), nonce, unix_ms: 0, grow_to: None, take_over: false }
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
        (0, Nonce::default(), Body::Create { sectors: 100 })
    }

    fn attach(epoch: u64, nonce: Nonce) -> (u64, Nonce, Body) {
        (epoch, nonce, Body::Attach { sectors: 100, node: String::new() })
    }

    fn won(manifest: &Manifest, found: Option<&Header>, nonce: Nonce) -> (LocalData, Header) {
        let plan = plan_attach(manifest, found, &Claim { take_over: true, ..claim(nonce) }).unwrap();
        (plan.local, Header { epoch: plan.record.epoch, ..plan.header })
    }

    #[test]
    fn a_volume_held_elsewhere_is_refused_unless_taken_over() {
        let held = log(&[create(), attach(1, THEIRS)]);
        let refused = plan_attach(&held, None, &claim(MINE)).unwrap_err();
        assert!(refused.to_string().contains("attached elsewhere (epoch 1)"));
        assert_eq!(won(&held, None, MINE).1.epoch, Epoch(2));
    }

    #[test]
    fn own_dirty_data_survives_own_attaches_and_an_intent_that_never_won() {
        let (_, header) = won(&log(&[create()]), None, MINE);
        let after = log(&[create(), attach(1, MINE)]);
        assert_eq!(won(&after, Some(&header), THEIRS).0, LocalData::Ours { trust_clean: false });
        // The intent to attach as epoch 2 was recorded, but somebody else became epoch 2.
        let intent = plan_attach(&after, Some(&header), &claim(Nonce([9; 16]))).unwrap().header;
        let lost = log(&[create(), attach(1, MINE), attach(2, THEIRS)]);
        assert_eq!(won(&lost, Some(&intent), MINE).0, LocalData::Foreign);
    }

    /// Found by reading: the nonce of the one attach that had won left the header with the 64th that had not.
    #[test]
    fn own_dirty_data_survives_any_number_of_attaches_that_end_before_their_first_round() {
        let (_, mut header) = won(&log(&[create()]), None, MINE);
        let mut bodies = vec![create(), attach(1, MINE)];
        let fresh = |turn: u64| Nonce((u128::from(turn) + 1000).to_le_bytes());
        for turn in 0..200 {
            let plan = plan_attach(&log(&bodies), Some(&header), &claim(fresh(turn))).unwrap();
            assert_eq!(plan.local, LocalData::Ours { trust_clean: false }, "turn {turn}");
            header = plan.header;
            // One wins now and then, none gets as far as writing a header of its own.
            if turn % 70 == 0 {
                bodies.push(attach(plan.record.epoch.0, plan.record.nonce));
            }
        }
        // Any of those that did not win may still come into the log.
        for nonce in header.nonces.clone() {
            let late = [&bodies[..], &[attach(5, nonce)]].concat();
            let plan = plan_attach(&log(&late), Some(&header), &claim(MINE)).unwrap();
            assert_eq!(plan.local, LocalData::Ours { trust_clean: false });
        }
    }

    #[test]
    fn clean_data_counts_only_while_the_log_ends_where_it_was_closed() {
        let (_, mut header) = won(&log(&[create()]), None, MINE);
        header.closed_clean = true;
        header.seq = Seq(3);
        let detached = [create(), attach(1, MINE), (1, MINE, Body::Detach)];
        assert_eq!(won(&log(&detached), Some(&header), MINE).0, LocalData::Ours { trust_clean: true });
        let elsewhere = [&detached[..], &[attach(2, THEIRS), (2, THEIRS, Body::Detach)]].concat();
        assert_eq!(won(&log(&elsewhere), Some(&header), MINE).0, LocalData::Foreign);
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
