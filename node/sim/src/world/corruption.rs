//! Corruption in the store, at the end of a run: checks that a scrub names it and reports the affected
//! volumes correctly.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use bytes::Bytes;
use holdfast_format::manifest::Manifest;
use holdfast_log::Indexes;
use holdfast_log::scrub::{Effect, ScrubReport, repair_checkpoints, scrub};
use holdfast_log::{LogFailure, read_manifest};
use holdfast_types::key::ObjectKey;
use holdfast_types::{BLOCK_SECTORS, Block, Sector, SectorRange};
use parking_lot::Mutex;

use super::World;
use crate::disk::Stamp;
use crate::invariant::Invariant;
use crate::process::read_block;
use crate::rng::Rng;
use crate::shared::fetches;
use crate::shared::{INDEX_BYTES, INDEXES};
use crate::store::stamps;
use crate::surroundings::SimTime;

impl World {
    /// Changes a byte of one object, truncates it, or loses it. Afterwards the store is as before.
    pub(crate) fn check_decay(&mut self, mut rng: Rng) {
        let key = rng.pick(&self.corruptible_keys()).clone();
        let truth = self.store.manifest();
        let written = self.written_blocks(&truth);
        let whole = self.store.replace(&key, None).expect("it is one of the keys there");
        self.store.replace(&key, corrupted_copy(&mut rng, &key, &whole));

        let report = self.scrub();
        let names_it = report.findings.iter().all(|finding| finding.key == key);
        Invariant::CorruptionIsNamed
            .check(names_it, || format!("{key} corrupted, a scrub finds {:?}", report.findings));
        self.check_effect(&key, &report, &truth, &written);
        let volume = self.store.volume().clone();
        let removed = self.run_reliably(|objects| async move {
            repair_checkpoints(&objects, &volume, &report).await.expect("this store answers")
        });
        if removed.is_empty() {
            self.store.replace(&key, Some(whole));
        } else {
            self.check_whole();
        }
    }

    /// Returns the keys whose loss is detectable: a log without its last record is a shorter log, and only
    /// the existence of a mark matters.
    fn corruptible_keys(&self) -> Vec<String> {
        let last = ObjectKey::Log(self.store.volume().clone(), self.store.manifest().seq()).to_string();
        let keys = self.store.keys().into_iter();
        keys.filter(|key| {
            let name = ObjectKey::parse(key);
            let is_behind = name.as_ref().is_some_and(|name| name.volume() != self.store.volume())
                && !matches!(name, Some(ObjectKey::Segment(..) | ObjectKey::Run(..)));
            **key != last
                && !is_behind
                && !matches!(
                    ObjectKey::parse(key),
                    Some(
                        ObjectKey::TruncationMarker(..) | ObjectKey::Snapshot(..) | ObjectKey::Forgotten(..)
                    )
                )
        })
        .map(str::to_owned)
        .collect()
    }

    /// Returns the stamps of every sector of each block that was ever written.
    fn written_blocks(&self, truth: &Manifest) -> BTreeMap<u64, Vec<Stamp>> {
        let cut = self.store.last_cut();
        let blocks: BTreeSet<u64> = cut.touched().map(|sector| Sector(sector).block().0).collect();
        blocks.into_iter().map(|block| (block, self.store.read_remote(truth, Block(block)))).collect()
    }

    fn scrub(&mut self) -> ScrubReport {
        let volume = self.store.volume().clone();
        let report = self.run_reliably(|objects| async move { scrub(&objects, &volume, &|_| {}).await });
        report.expect("this store answers")
    }

    /// Checks that an attach is rejected, or that reads return the written data, except those of the
    /// sectors in the report, which fail.
    fn check_effect(
        &mut self,
        key: &str,
        report: &ScrubReport,
        truth: &Manifest,
        written: &BTreeMap<u64, Vec<Stamp>>,
    ) {
        let volume = self.store.volume().clone();
        let read = self.run_reliably(|objects| async move { read_manifest(&objects, &volume).await });
        let attaches = report.findings.iter().all(|finding| finding.effect != Effect::NoAttach);
        let as_it_was = match &read {
            Ok(manifest) => attaches && manifest.encode_checkpoint() == truth.encode_checkpoint(),
            Err(LogFailure::Damaged { .. } | LogFailure::Broken { .. } | LogFailure::Store { .. }) => {
                !attaches
            }
            Err(_) => false,
        };
        Invariant::CorruptionIsNamed.check(as_it_was, || {
            format!("{key} corrupted: a scrub finds {:?}, an attach {:?}", report.findings, read.err())
        });
        if !attaches {
            return;
        }
        let unreadable = report.unreadable();
        let named =
            |sector: u64| unreadable.iter().any(|range| (range.start.0..range.end()).contains(&sector));
        let indexes = Arc::new(Indexes::new(INDEXES, INDEX_BYTES));
        for (block, stamps) in written {
            let first = Block(*block).first_sector().0;
            let found = self.read_sound(truth, &indexes, SectorRange::new(first, BLOCK_SECTORS));
            if found.as_ref() == Some(stamps) && !(first..first + BLOCK_SECTORS).any(named) {
                continue;
            }
            for (sector, stamp) in (first..truth.sectors()).zip(stamps) {
                let found = self.read_sound(truth, &indexes, SectorRange::new(sector, 1));
                let found = found.map(|block| block[(sector - first) as usize]);
                let due = (!named(sector)).then_some(*stamp);
                Invariant::CorruptionIsNamed.check(found == due, || {
                    format!("{key} corrupted: sector {sector} reads as {found:?} and not as {due:?}; a scrub finds {:?}", report.findings)
                });
            }
        }
    }

    /// Returns the stamps of `range`'s block, of which those of `range` are read; `None` if the read fails.
    fn read_sound(
        &mut self,
        truth: &Manifest,
        indexes: &Arc<Indexes>,
        range: SectorRange,
    ) -> Option<Vec<Stamp>> {
        let indexes = Arc::clone(indexes);
        let block = range.start.block();
        if !truth.may_hold(block.chunk()) {
            return Some(vec![0; BLOCK_SECTORS as usize]);
        }
        let runs = truth.runs().clone();
        let read = self.run_reliably(|objects| async move {
            let time = SimTime {
                calls: objects.0.clone(),
                now: Arc::default(),
                rng: Arc::new(Mutex::new(Rng::new(0))),
            };
            read_block(&objects, &time, &indexes, &fetches().reader(), range, &runs).await
        });
        read.ok().map(|bytes| stamps(block, &bytes).collect())
    }
}

/// Returns a corrupted object; `None` if it is lost.
fn corrupted_copy(rng: &mut Rng, key: &str, whole: &Bytes) -> Option<Bytes> {
    let is_segment = matches!(ObjectKey::parse(key), Some(ObjectKey::Segment(..)));
    match rng.below(4) {
        0 if is_segment => None,
        1 => Some(whole.slice(..rng.below(whole.len()))),
        _ => {
            let mut bytes = whole.to_vec();
            bytes[rng.below(whole.len())] ^= 1 << rng.below(8);
            Some(bytes.into())
        }
    }
}
