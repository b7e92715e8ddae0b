//! The bucket: the stored objects, and the actual logs of all its volumes. Each request is checked against
//! the log of the volume that owns the object.

use std::collections::BTreeMap;
use std::rc::Rc;

use bytes::Bytes;
use holdfast_format::fork::Fork;
use holdfast_format::record::{Body, Record};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Seq, VolumeId};

use super::ledger::VolumeLedger;
use super::stored::Stored;
use crate::expect::CapturedContent;
use crate::invariant::Invariant;

/// All contents of the bucket, for any number of volumes.
#[derive(Clone, Default)]
pub(crate) struct Bucket {
    pub(super) stored: Stored,
    pub(super) ledgers: BTreeMap<VolumeId, VolumeLedger>,
}

/// Result of a create.
pub(super) struct CreatedObject {
    /// True if this PUT created the object.
    pub(super) is_new: bool,
    /// True for a record at the position of a truncated one.
    pub(super) is_stray: bool,
}

impl Bucket {
    /// Creates an object unless it exists.
    pub(super) fn create(&mut self, key: &str, body: Bytes) -> CreatedObject {
        let exists = self.stored.objects.get(key).is_ok();
        let is_stray = self.check_create(key, &body, exists);
        if !exists {
            self.stored.objects.insert(key, body);
        }
        CreatedObject { is_new: !exists, is_stray }
    }

    /// Returns true for a record that is not part of its log.
    fn check_create(&mut self, key: &str, body: &Bytes, exists: bool) -> bool {
        match ObjectKey::parse(key) {
            Some(ObjectKey::Log(..)) if exists => {}
            Some(ObjectKey::Log(volume, seq)) => return self.add_record(&volume, seq, body),
            Some(ObjectKey::Checkpoint(volume, seq)) => {
                self.ledgers[&volume].check_checkpoint(seq, body);
            }
            Some(ObjectKey::Snapshot(_, seq)) => self.stored.check_root(seq, key, body),
            Some(ObjectKey::Forgotten(volume, seq)) => self.ledgers[&volume].check_mark(seq),
            Some(ObjectKey::TruncationMarker(..)) => {}
            Some(ObjectKey::PrefetchList(volume, seq)) => {
                self.ledgers[&volume].check_prefetch_list(seq, body)
            }
            Some(ObjectKey::Origin(volume, uid)) => self.ledgers[&volume].check_origin(uid),
            Some(ObjectKey::Segment(..) | ObjectKey::Run(..)) | None => {
                panic!("{key} is created")
            }
        }
        false
    }

    fn add_record(&mut self, volume: &VolumeId, seq: Seq, body: &Bytes) -> bool {
        if !self.ledgers.contains_key(volume) {
            let ledger = VolumeLedger::new(volume.clone(), self.initial_content(body));
            self.ledgers.insert(volume.clone(), ledger);
        }
        let ledger = self.ledgers.get_mut(volume).expect("it is there now");
        ledger.append(seq, body, &mut self.stored)
    }

    /// Returns the initial content of a volume whose first record is `body`.
    fn initial_content(&self, body: &Bytes) -> Rc<CapturedContent> {
        let created = Record::decode(body).expect("writers send whole records").body;
        let Body::Create { source: Some(fork), .. } = created else { return Rc::default() };
        let Fork { snapshot, .. } = &*fork;
        let source = self.ledgers.get(&snapshot.volume);
        let cut = source.and_then(|ledger| ledger.snapshots.get(&snapshot.seq));
        cut.map_or_else(
            || Invariant::ForkIsItsSnapshot.broken(&format!("a fork of {snapshot}, which was no snapshot")),
            Rc::clone,
        )
    }
}
