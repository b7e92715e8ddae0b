//! The actual log of one volume, with the model's knowledge of it.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use holdfast_format::compose::Composition;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_types::{Epoch, Place, Seq, VolumeId};

use super::Landed;
use super::indexes::{MergesDue, merges_of, segments_of};
use super::stored::Stored;
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

/// A volume of the bucket.
#[derive(Clone)]
pub(super) struct VolumeLedger {
    /// The actual state of the log.
    pub(super) truth: Manifest,
    /// Its records, including truncated ones.
    pub(super) history: BTreeMap<Seq, Bytes>,
    merges: MergesDue,
    /// The content captured by its last commit, or by the snapshot from which it was forked.
    pub(super) last_cut: Rc<CapturedContent>,
    /// Contents of the registered snapshots, including dropped ones.
    pub(super) snapshots: BTreeMap<Seq, Rc<CapturedContent>>,
    /// Records that the model has not seen yet.
    pub(super) landed: Vec<Landed>,
}

impl VolumeLedger {
    /// Creates a volume without records, with this initial content.
    pub(super) fn new(volume: VolumeId, initial_content: Rc<CapturedContent>) -> Self {
        Self {
            truth: Manifest::empty(volume),
            history: BTreeMap::new(),
            merges: MergesDue::default(),
            last_cut: initial_content,
            snapshots: BTreeMap::new(),
            landed: Vec::new(),
        }
    }

    /// Appends a record at `seq`. It must follow from those before it, unlike a fenced writer's. Returns
    /// true if it arrived at the position of a truncated one: then it is not in the log.
    pub(super) fn append(&mut self, seq: Seq, body: &Bytes, stored: &mut Stored) -> bool {
        if let Some(first) = self.history.get(&seq) {
            // All records of a removed volume may be deleted, and later ones are not part of its log.
            if !self.truth.is_deleted() {
                check_stray(seq, first, body);
            }
            return true;
        }
        let record = Record::decode(body).expect("writers send whole records");
        Invariant::LogIsAChain
            .check(record.seq == seq, || format!("record {} is to stand at {}", record.seq.0, seq.0));
        self.check_objects(&record, stored);
        if let Body::Detach { root: Some(root) } = &record.body {
            let same = root.encode_checkpoint() == self.truth.encode_checkpoint();
            Invariant::LogIsAChain.check(same, || {
                format!("the root in log/{} says something else than the log before it", seq.0)
            });
        }
        let replaced = self.truth.attached();
        let before = self.truth.runs().clone();
        if let Err(error) = self.truth.apply(&record) {
            Invariant::LogIsAChain.broken(&format!("log/{} cannot stand where it does: {error}", seq.0));
        }
        // A fork begins with runs that no merge created.
        if seq > Seq::FIRST {
            let lineage = self.truth.lineage();
            let stamps = |block, plan: &Composition| stored.stamps(lineage, block, plan);
            stored.indexes.check_merges(&before, self.truth.runs(), &record.body, stamps);
        }
        self.merges.note_record(&before, &record.body);
        self.note_snapshot(&record, stored);
        self.history.insert(seq, body.clone());
        match record.body {
            Body::Change { segments, .. } if !segments.is_empty() => {
                self.landed.push(Landed::Commit(record.nonce, Rc::clone(&self.last_cut)));
            }
            Body::Attach { node, .. } => self.landed.push(Landed::Attach(record.nonce, node, replaced)),
            Body::Create { .. } | Body::Change { .. } | Body::Detach { .. } | Body::Delete => {}
        }
        false
    }

    /// Checks that the objects added by a record are stored, and that their places allow it.
    fn check_objects(&mut self, record: &Record, stored: &Stored) {
        let seq = record.seq;
        let runs = merges_of(&record.body).iter().map(|merge| merge.output.id.0);
        let segments = segments_of(&record.body).iter().map(|segment| segment.id.0);
        for object in segments.chain(runs) {
            Invariant::ForkIsItsSnapshot.check(object.owner == 0, || {
                format!("log/{} of {} adds {object}, which is another volume's", seq.0, record.volume)
            });
        }
        for segment in segments_of(&record.body) {
            let Some(cut) = stored.indexes.cut_of(segment.id) else {
                Invariant::NothingReferencedIsMissing.broken("a commit names a segment that was never stored")
            };
            self.last_cut = Rc::clone(cut);
            // A later place would keep it in the bucket longer than needed.
            Invariant::PlaceIsKept.check(segment.id.place() == Place::until(seq), || {
                format!("log/{} adds {}, which has another place", seq.0, segment.id)
            });
        }
        for merge in merges_of(&record.body) {
            let run = merge.output.id;
            Invariant::NothingReferencedIsMissing.check(stored.indexes.holds_run(run), || {
                format!("a commit carries {run}, which was never stored")
            });
            Invariant::PlaceIsKept
                .check(!self.truth.is_passed(run.place()), || format!("log/{} adds {run}", seq.0));
        }
    }

    /// Checks that a checkpoint and the records after it give the state of the log.
    pub(super) fn check_checkpoint(&self, seq: Seq, body: &[u8]) {
        let mut manifest = Manifest::decode_checkpoint(body).expect("writers send whole checkpoints");
        Invariant::LogIsAChain
            .check(manifest.seq() == seq, || format!("checkpoint {} is of another seq", seq.0));
        self.apply_to(&mut manifest);
        let same = manifest.encode_checkpoint() == self.truth.encode_checkpoint();
        Invariant::LogIsAChain
            .check(same, || format!("checkpoint {} says something else than the log", seq.0));
    }

    /// Applies the records after `manifest` to it.
    pub(super) fn apply_to(&self, manifest: &mut Manifest) {
        for (seq, body) in self.history.range(manifest.seq().next()..) {
            let record = Record::decode(body).expect("records are not damaged");
            if let Err(error) = manifest.apply(&record) {
                Invariant::LogIsAChain.broken(&format!("log/{} cannot stand where it does: {error}", seq.0));
            }
        }
    }

    /// Handles a crash of the writer's process, which loses its merge in progress.
    pub(super) fn writer_died(&mut self) {
        self.merges = MergesDue::default();
    }
}

/// Checks a record that arrived at the position of a truncated one, and is not in the log. It must be an
/// attach or a record of the control plane, whose creator must detect this. Or the same writer repeated the
/// original.
fn check_stray(seq: Seq, first: &Bytes, body: &Bytes) {
    let [first, stray] = [first, body].map(|body| Record::decode(body).expect("writers send whole records"));
    let says_the_same = first.nonce == stray.nonce && first.body == stray.body;
    let is_control = stray.epoch == Epoch(0) && matches!(stray.body, Body::Change { .. } | Body::Delete);
    let is_detected = is_control || matches!(stray.body, Body::Attach { .. });
    Invariant::LogIsAChain.check(says_the_same || is_detected, || {
        format!("log/{} was truncated and is created again as another record", seq.0)
    });
}
