//! Compares the log with its checkpoints while replaying it.
//!
//! After a damaged record, the replay continues from the next checkpoint: readers start at the newest one and
//! need only the records after it. It also continues from a detach record with the root: readers need nothing
//! else if that is the end of the log, and start there if anything before it is damaged.

use std::collections::BTreeMap;

use futures::{StreamExt, TryStreamExt, stream};
use holdfast_format::manifest::Manifest;
use holdfast_format::manifest::apply::LogError;
use holdfast_format::record::{Body, Record};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::key::{ObjectKey, checkpoint_prefix};
use holdfast_types::{Seq, VolumeId};

use super::{Damage, Effect, Finding};
use crate::error::{LogFailure, store};
use crate::limit::MAX_METADATA_BYTES;
use crate::objects::{records_after, seqs_under};
use crate::read::read_record;
use crate::truncate::{newest_marker, was_truncated_after};

/// Number of records read in parallel.
const PARALLEL_RECORDS: usize = 16;

/// The manifest replayed from the log, and the findings.
pub(super) struct LogState {
    pub(super) manifest: Manifest,
    pub(super) records: u64,
    pub(super) checkpoints: u64,
    pub(super) findings: Vec<Finding>,
    pub(super) replaceable: Vec<Seq>,
    /// True if no checkpoint to start from exists, and one can be created.
    pub(super) lacks_checkpoint: bool,
}

impl LogState {
    fn without_data(manifest: Manifest) -> Self {
        let (findings, replaceable) = (Vec::new(), Vec::new());
        Self { manifest, records: 0, checkpoints: 0, findings, replaceable, lacks_checkpoint: false }
    }
}

pub(super) async fn read(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<LogState, LogFailure> {
    // Checkpoints first: the record of each is then in the following list.
    let mut checkpoints = BTreeMap::new();
    for seq in seqs_under(objects, volume, &checkpoint_prefix(volume), None).await? {
        let key = ObjectKey::Checkpoint(volume.clone(), seq).to_string();
        match objects.get(&key, MAX_METADATA_BYTES).await {
            Ok(bytes) => drop(checkpoints.insert(seq, bytes)),
            // The writer created a newer checkpoint in the meantime and deleted this one.
            Err(StoreError::NotFound { .. }) => {}
            Err(error) => return Err(store("read a checkpoint", volume)(error)),
        }
    }
    let seqs = records_after(objects, volume, Seq(0)).await?;
    let Some(end) = seqs.last().copied() else {
        return Ok(LogState::without_data(Manifest::empty(volume.clone())));
    };
    let mut records: BTreeMap<Seq, Result<Record, Damage>> = stream::iter(seqs)
        .map(|seq| async move { Ok((seq, readable(read_record(objects, volume, seq).await)?)) })
        .buffered(PARALLEL_RECORDS)
        .try_collect()
        .await?;
    if let Some(Ok(Record { body: Body::Delete, .. })) = records.get(&end) {
        return Ok(LogState::without_data(Manifest::tombstone(volume.clone(), end)));
    }

    let (records_read, checkpoints_read) = (records.len() as u64, checkpoints.len() as u64);
    // Without a checkpoint, readers cannot detect a truncation.
    let lacks_checkpoint = checkpoints.is_empty() && was_truncated_after(objects, volume, Seq(0)).await?;
    // Records before the oldest checkpoint may have been truncated.
    let oldest = if lacks_checkpoint { Some(end) } else { checkpoints.keys().next().copied() };
    let truncated_before = oldest.unwrap_or(Seq::FIRST);
    // The records up to the newest marker are not consecutive, and some of them may be late.
    let truncated_upto = newest_marker(objects, volume, truncated_before).await?.unwrap_or(Seq(0));
    // A record that was listed, but truncated before it was read, is treated as not listed.
    records.retain(|_, record| !matches!(record, Err(Damage::Missing)));
    let first = records.keys().next().copied().unwrap_or(Seq::FIRST).min(truncated_before);
    let last = checkpoints.keys().next_back().copied().unwrap_or(end).max(end);
    let mut replay = ManifestReplay::new(volume, first == Seq::FIRST, lacks_checkpoint);
    let mut seq = first;
    while seq <= last {
        let may_be_truncated = seq < truncated_before;
        let record = match records.remove(&seq) {
            // LIST may return an outdated state.
            None if !may_be_truncated => match readable(read_record(objects, volume, seq).await)? {
                Err(Damage::Missing) if was_truncated_after(objects, volume, Seq(seq.0 - 1)).await? => None,
                read => Some(read),
            },
            listed => listed,
        };
        if seq <= truncated_upto {
            replay.current = false;
        }
        // Readers start at a checkpoint of the same seq.
        let is_last = seq == last && !checkpoints.contains_key(&seq);
        replay.record(seq, record, is_last || seq > truncated_upto);
        if let Some(bytes) = checkpoints.get(&seq) {
            replay.checkpoint(seq, bytes, checkpoints.range(seq.next()..).next().is_some());
        }
        seq = seq.next();
    }
    Ok(replay.end(records_read, checkpoints_read, truncated_upto))
}

fn readable(read: Result<Record, LogFailure>) -> Result<Result<Record, Damage>, LogFailure> {
    match read {
        Ok(record) => Ok(Ok(record)),
        Err(LogFailure::Damaged { source, .. }) => Ok(Err(Damage::Bytes(source))),
        Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => Ok(Err(Damage::Missing)),
        Err(other) => Err(other),
    }
}

/// The manifest, replayed seq by seq.
struct ManifestReplay {
    volume: VolumeId,
    /// The last known manifest.
    known: Manifest,
    /// True if `known` is the manifest as of the last seen seq.
    current: bool,
    /// The newest intact checkpoint, or detach record with the root.
    newest_whole: Option<Seq>,
    damaged_records: Vec<(Seq, Damage)>,
    /// Detach records whose root differs from the log.
    differing_roots: Vec<Seq>,
    damaged_checkpoints: Vec<(Seq, Damage, bool)>,
    /// Damaged checkpoints that can be replaced with `known`.
    replaceable: Vec<Seq>,
    /// True if the log was truncated and has no checkpoint.
    lacks_checkpoint: bool,
}

impl ManifestReplay {
    fn new(volume: &VolumeId, current: bool, lacks_checkpoint: bool) -> Self {
        Self {
            volume: volume.clone(),
            known: Manifest::empty(volume.clone()),
            current,
            newest_whole: None,
            damaged_records: Vec::new(),
            differing_roots: Vec::new(),
            damaged_checkpoints: Vec::new(),
            replaceable: Vec::new(),
            lacks_checkpoint,
        }
    }

    /// Replays a record; `None` means that it may have been truncated. Readers may start at the root of a
    /// record that `counts`, which is the last one or certainly part of the log.
    fn record(&mut self, seq: Seq, record: Option<Result<Record, Damage>>, counts: bool) {
        let fault = match record {
            None => {
                self.current = false;
                return;
            }
            Some(Err(fault)) => fault,
            Some(Ok(record)) => match self.follow(seq, &record, counts) {
                Ok(()) => return,
                Err(error) => Damage::Order(error),
            },
        };
        self.current = false;
        self.damaged_records.push((seq, fault));
    }

    fn follow(&mut self, seq: Seq, record: &Record, counts: bool) -> Result<(), LogError> {
        let is_in_place = record.seq == seq && record.volume == self.volume;
        let root = match &record.body {
            Body::Detach { root: Some(root) } if is_in_place => Some(root),
            Body::Detach { .. }
            | Body::Create { .. }
            | Body::Attach { .. }
            | Body::Change { .. }
            | Body::Delete => None,
        };
        match root {
            Some(root) if self.current && root.encode_checkpoint() != self.known.encode_checkpoint() => {
                self.differing_roots.push(seq);
            }
            Some(root) if counts => {
                self.known = Manifest::clone(root).detached_by(record, self.known.checkpointed())?;
                self.current = true;
                self.newest_whole = Some(seq);
                self.replaceable = self.damaged_checkpoints.iter().map(|(seq, ..)| *seq).collect();
                return Ok(());
            }
            Some(_) | None => {}
        }
        if self.current {
            return self.known.apply(record);
        }
        // After a gap, the next checkpoint or root restores the log's state.
        if is_in_place { Ok(()) } else { Err(LogError::Gap { expected: seq, found: record.seq }) }
    }

    fn checkpoint(&mut self, seq: Seq, bytes: &[u8], has_newer: bool) {
        let said = Manifest::decode_checkpoint(bytes);
        let fault = match said {
            Err(error) => Damage::Bytes(error),
            Ok(said) if said.seq() != seq || *said.volume() != self.volume => Damage::Differs,
            Ok(_) if self.current && self.known.encode_checkpoint() != bytes => Damage::Differs,
            Ok(said) => {
                self.known = said;
                self.current = true;
                self.newest_whole = Some(seq);
                return;
            }
        };
        if self.current {
            self.replaceable.push(seq);
        }
        self.damaged_checkpoints.push((seq, fault, has_newer));
    }

    fn end(mut self, records: u64, checkpoints: u64, truncated_upto: Seq) -> LogState {
        self.keep_one(checkpoints, truncated_upto);
        let falls_back = self.readers_fall_back();
        let Self { volume, known, newest_whole, damaged_records, damaged_checkpoints, .. } = self;
        let covered = |seq: Seq| newest_whole.is_some_and(|newest| seq <= newest);
        let of_record = |(seq, fault)| Finding {
            key: ObjectKey::Log(volume.clone(), seq).to_string(),
            fault,
            effect: if covered(seq) { Effect::Harmless } else { Effect::NoAttach },
        };
        let end = known.seq();
        let of_checkpoint = |(seq, fault, has_newer)| Finding {
            key: ObjectKey::Checkpoint(volume.clone(), seq).to_string(),
            // Readers use the newest checkpoint, and read no root before it. An intact checkpoint that
            // differs from the log is only superseded by a root at the log's end, because readers cannot
            // detect the difference.
            effect: if has_newer
                || newest_whole.is_some_and(|newest| {
                    seq < newest && (newest == end || !matches!(fault, Damage::Differs))
                }) {
                Effect::Harmless
            } else {
                Effect::NoAttach
            },
            fault,
        };
        let of_root = |seq| Finding {
            key: ObjectKey::Log(volume.clone(), seq).to_string(),
            fault: Damage::Differs,
            effect: if !covered(seq) && (seq == end || falls_back) {
                Effect::NoAttach
            } else {
                Effect::Harmless
            },
        };
        let of_none = self.lacks_checkpoint.then(|| Finding {
            key: checkpoint_prefix(&volume),
            fault: Damage::Missing,
            effect: Effect::NoAttach,
        });
        let findings = damaged_records
            .into_iter()
            .map(of_record)
            .chain(self.differing_roots.into_iter().map(of_root))
            .chain(damaged_checkpoints.into_iter().map(of_checkpoint))
            .chain(of_none)
            .collect();
        let lacks_checkpoint = self.lacks_checkpoint && self.current;
        let replaceable = self.replaceable;
        LogState { manifest: known, records, checkpoints, findings, replaceable, lacks_checkpoint }
    }

    /// Keeps one checkpoint of a truncated log, even a damaged one, if no replacement can be stored: it marks
    /// the position from which the newest root and the records after it may be trusted.
    fn keep_one(&mut self, checkpoints: u64, truncated_upto: Seq) {
        let all = self.replaceable.len() as u64 == checkpoints;
        if all && truncated_upto > Seq(0) && self.replaceable.contains(&self.known.seq()) {
            self.replaceable.remove(0);
        }
    }

    /// Returns true if readers start at the newest root, because the newest checkpoint or a record after it
    /// is damaged.
    fn readers_fall_back(&self) -> bool {
        let newest = |(_, _, has_newer): &&(Seq, Damage, bool)| !has_newer;
        let of_newest = self.damaged_checkpoints.iter().find(newest);
        let is_damaged = of_newest.is_some_and(|(_, fault, _)| !matches!(fault, Damage::Differs));
        is_damaged || !self.damaged_records.is_empty()
    }
}
