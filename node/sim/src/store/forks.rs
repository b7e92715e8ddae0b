//! Forks in the store: the bucket's volume becomes one of them.

use std::rc::Rc;

use bytes::Bytes;
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::Record;
use holdfast_types::VolumeId;
use holdfast_types::key::volume_prefix;

use super::Store;
use super::indexes::MergesDue;
use crate::expect::Cut;

impl Store {
    /// The volume is `fork` from here on, of the snapshot that captured `cut`.
    pub(crate) fn continue_as(&mut self, fork: &VolumeId, cut: &Rc<Cut>) {
        self.volume = fork.clone();
        self.truth = Manifest::empty(fork.clone());
        self.history.clear();
        self.snapshots.clear();
        self.merges = MergesDue::default();
        self.last_cut = Rc::clone(cut);
        self.late.clear();
        let records: Vec<Bytes> = self.log().map(Bytes::copy_from_slice).collect();
        for body in records {
            let record = Record::decode(&body).expect("it is whole");
            self.truth.apply(&record).expect("a fork begins with its creation, and that it stands");
            self.history.insert(record.seq, body);
        }
    }

    /// The objects of a volume, each with its bytes.
    pub(crate) fn objects_of(&self, volume: &VolumeId) -> Vec<(String, Vec<u8>)> {
        let prefix = volume_prefix(volume);
        let there = self.keys().into_iter().filter(|key| key.starts_with(&prefix));
        there.map(|key| (key.to_owned(), self.get(key).expect("it is there").to_vec())).collect()
    }
}
