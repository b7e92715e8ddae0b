//! Forks in the store: the bucket's volume becomes one of them.

use std::rc::Rc;

use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::Record;
use holdfast_types::key::{ObjectKey, volume_prefix};
use holdfast_types::{Seq, VolumeId};

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
        let first = ObjectKey::Log(fork.clone(), Seq::FIRST).to_string();
        let body = self.get(&first).expect("it was created").clone();
        self.truth.apply(&Record::decode(&body).expect("it is whole")).expect("a log begins with it");
        self.history.insert(Seq::FIRST, body);
    }

    /// The objects of a volume, each with its bytes.
    pub(crate) fn objects_of(&self, volume: &VolumeId) -> Vec<(String, Vec<u8>)> {
        let prefix = volume_prefix(volume);
        let there = self.keys().into_iter().filter(|key| key.starts_with(&prefix));
        there.map(|key| (key.to_owned(), self.get(key).expect("it is there").to_vec())).collect()
    }
}
