//! Deletions in the store: nothing that is needed goes, and sweeps let all else go.

use holdfast_background::ColdError;
use holdfast_engine::manifest::Manifest;
use holdfast_objects::StoreError;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Place, PlacedId, Seq, VolumeId};

use super::Store;
use crate::invariant::Invariant;

impl Store {
    /// `key` is deleted: nothing needs it, or can come to need it.
    pub(super) fn check_delete(&self, key: &str) {
        Invariant::NothingNeededIsDeleted.check(!self.is_needed(key), || format!("{key} is deleted"));
    }

    /// Returns true if a cold read failed because an object is not there that nothing needs any more.
    pub(crate) fn is_swept(&self, failure: &ColdError) -> bool {
        matches!(failure, ColdError::Store { key, source: StoreError::NotFound { .. } } if !self.is_needed(key))
    }

    /// At rest, after a sweep: everything of the volume is needed.
    pub(crate) fn check_swept(&self) {
        let all = self.objects_of(&self.volume);
        let garbage: Vec<&str> =
            all.iter().map(|(key, _)| key.as_str()).filter(|key| !self.is_needed(key)).collect();
        Invariant::GarbageGoes.check(garbage.is_empty(), || format!("a sweep leaves {garbage:?}"));
    }

    /// Returns true if the volume, one of its snapshots that count, or a record to come may name the object.
    /// Of the objects of another volume, those that this one reads are needed.
    pub(crate) fn is_needed(&self, key: &str) -> bool {
        match ObjectKey::parse(key) {
            Some(ObjectKey::Segment(owner, id)) => self.is_data_needed(&owner, id.0, false),
            Some(ObjectKey::Run(owner, id)) => self.is_data_needed(&owner, id.0, true),
            Some(ObjectKey::Snapshot(owner, seq)) => {
                owner == self.volume
                    && (!self.truth.is_passed(Place::until(seq)) || self.live().contains(&seq))
            }
            Some(ObjectKey::Checkpoint(..)) => !self.truth.is_deleted(),
            // Truncation has its own rules, and so has the end of a log.
            Some(ObjectKey::Log(..) | ObjectKey::TruncationMarker(..) | ObjectKey::Forgotten(..)) | None => {
                true
            }
        }
    }

    fn is_data_needed(&self, owner: &VolumeId, id: PlacedId, is_run: bool) -> bool {
        if *owner == self.volume && !self.truth.is_passed(id.place) {
            return true;
        }
        let names = |state: &Manifest| self.indexes.names(state.runs(), owner, id, is_run);
        let live = self.live();
        let of_snapshots = live.into_iter().filter_map(|seq| self.root(seq));
        (self.truth.exists() && names(&self.truth)) || of_snapshots.into_iter().any(|root| names(&root))
    }

    /// The snapshots that count.
    pub(crate) fn live(&self) -> Vec<Seq> {
        let forgotten = self.forgotten();
        let registered = self.registered().iter().map(|known| known.seq);
        registered.filter(|seq| !forgotten.contains(seq)).collect()
    }

    fn root(&self, seq: Seq) -> Option<Manifest> {
        let key = ObjectKey::Snapshot(self.volume.clone(), seq).to_string();
        Manifest::decode_checkpoint(self.get(&key).ok()?).ok()
    }
}
