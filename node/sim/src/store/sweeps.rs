//! Deletions in the store: needed objects are kept, and sweeps delete all others.

use holdfast_background::ColdError;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_log::ObjectError;
use holdfast_objects::StoreError;
use holdfast_types::key::ObjectKey;
use holdfast_types::{Place, PlacedId, Seq, VolumeId};

use super::Store;
use super::bucket::Bucket;
use super::ledger::VolumeLedger;
use crate::invariant::Invariant;

impl Bucket {
    /// Checks the deletion of `key`: nothing needs it, now or later.
    pub(super) fn check_delete(&self, key: &str) {
        if let Some(reader) = self.volume_needing(key) {
            let is_own = ObjectKey::parse(key).is_some_and(|key| key.volume() == reader);
            let broken =
                if is_own { Invariant::NothingNeededIsDeleted } else { Invariant::ForkIsItsSnapshot };
            broken.broken(&format!("{key} is deleted, and {reader} needs it"));
        }
    }

    /// Returns the keys of all garbage.
    fn garbage(&self) -> Vec<&str> {
        let all = self.stored.objects.under("").map(|(key, _)| key);
        all.filter(|key| self.volume_needing(key).is_none()).collect()
    }

    /// Returns a volume that needs the object: itself, one of its snapshots that count, or a later record
    /// may name it.
    fn volume_needing(&self, key: &str) -> Option<&VolumeId> {
        let key = ObjectKey::parse(key).expect("nothing else is stored");
        let owner = self.ledgers.get(key.volume())?;
        let truth = &owner.truth;
        let is_needed = match key {
            ObjectKey::Segment(_, id) => return self.volume_needing_data(owner, id.0, false),
            ObjectKey::Run(_, id) => return self.volume_needing_data(owner, id.0, true),
            ObjectKey::Snapshot(_, seq) | ObjectKey::PrefetchList(_, seq) => {
                !truth.is_passed(Place::until(seq))
                    || owner.live_snapshots(&self.stored.objects).contains(&seq)
            }
            ObjectKey::Checkpoint(..) => !truth.is_deleted(),
            // Truncation has separate rules.
            ObjectKey::Log(_, seq) => !truth.is_deleted() || seq == Seq::FIRST || seq == truth.seq(),
            ObjectKey::Origin(_, uid) => {
                let live = owner.live_snapshots(&self.stored.objects);
                let registered = truth.snapshots().iter();
                !truth.is_deleted() && registered.filter(|it| live.contains(&it.seq)).any(|it| it.uid == uid)
            }
            ObjectKey::TruncationMarker(..) | ObjectKey::Forgotten(..) => true,
        };
        is_needed.then(|| truth.volume())
    }

    /// Checks the owner first.
    fn volume_needing_data(&self, owner: &VolumeLedger, id: PlacedId, is_run: bool) -> Option<&VolumeId> {
        let owner = owner.truth.volume();
        let others = self.ledgers.iter().filter(|(volume, _)| *volume != owner);
        let needs = |volume: &VolumeId, ledger: &VolumeLedger| {
            (volume == owner && !ledger.truth.is_passed(id.place))
                || self.names_object(ledger, owner, id, is_run)
        };
        let (own, ledger) = self.ledgers.get_key_value(owner)?;
        if needs(own, ledger) {
            return Some(own);
        }
        others.filter(|(volume, ledger)| needs(volume, ledger)).map(|(volume, _)| volume).next()
    }

    /// Returns true if the volume of `ledger`, or one of its snapshots that count, names the object.
    fn names_object(&self, ledger: &VolumeLedger, owner: &VolumeId, id: PlacedId, is_run: bool) -> bool {
        let objects = &self.stored.objects;
        let lineage = ledger.truth.lineage();
        if lineage.volume() != owner && !lineage.ancestors().contains(owner) {
            return false;
        }
        let names = |state: &Manifest| self.stored.indexes.names_object(state.runs(), owner, id, is_run);
        let of_snapshots =
            || ledger.live_snapshots(objects).into_iter().filter_map(|seq| ledger.root(seq, objects));
        (ledger.truth.exists() && !self.is_late_fork(ledger) && names(&ledger.truth))
            || of_snapshots().any(|root| names(&root))
    }

    /// Returns true for a fork whose record arrived after the mark of its snapshot. Its end is not in the
    /// log yet, but nothing else can follow.
    fn is_late_fork(&self, ledger: &VolumeLedger) -> bool {
        let first = ledger.history.get(&Seq::FIRST).filter(|_| ledger.truth.is_unconfirmed());
        let Some(Body::Create { source: Some(fork), .. }) =
            first.and_then(|body| Record::decode(body).ok()).map(|record| record.body)
        else {
            return false;
        };
        let born = |key: ObjectKey| self.stored.objects.created_at(&key.to_string());
        let mark = born(ObjectKey::Forgotten(fork.snapshot.volume.clone(), fork.snapshot.seq));
        mark.is_some_and(|mark| {
            born(ObjectKey::Log(ledger.truth.volume().clone(), Seq::FIRST)).is_some_and(|born| mark < born)
        })
    }
}

impl Store {
    /// Returns true if a cold read failed because an object that nothing needs any more does not exist.
    pub(crate) fn is_swept(&self, failure: &ColdError) -> bool {
        matches!(failure, ColdError::Object(ObjectError::Store { key, source: StoreError::NotFound { .. } }) if !self.is_needed(key))
    }

    /// Checks, at rest after a sweep, that everything in the bucket is needed.
    pub(crate) fn check_swept(&self) {
        let garbage = self.bucket.garbage();
        Invariant::GarbageGoes.check(garbage.is_empty(), || format!("a sweep leaves {garbage:?}"));
    }

    /// Checks that the removed volumes left only the objects that reserve their ids: the first record and the
    /// tombstone of each, the truncation markers between them, and the marks of snapshots.
    pub(crate) fn check_all_removed(&self) {
        let left = self.keys();
        let is_data = |key: &&str| {
            matches!(
                ObjectKey::parse(key),
                None | Some(
                    ObjectKey::Segment(..)
                        | ObjectKey::Run(..)
                        | ObjectKey::Snapshot(..)
                        | ObjectKey::Checkpoint(..)
                        | ObjectKey::Origin(..)
                        | ObjectKey::PrefetchList(..)
                )
            )
        };
        let data: Vec<&str> = left.into_iter().filter(is_data).collect();
        let living = self.bucket.ledgers.values().find(|ledger| !ledger.truth.is_deleted());
        Invariant::GarbageGoes.check(data.is_empty() && living.is_none(), || {
            format!("of removed volumes are left {data:?}, and {:?}", living.map(|ledger| &ledger.truth))
        });
        self.check_swept();
    }

    /// Returns true if a volume, one of its snapshots that count, or a later record may name the object.
    pub(crate) fn is_needed(&self, key: &str) -> bool {
        self.bucket.volume_needing(key).is_some()
    }
}
