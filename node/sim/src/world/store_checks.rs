//! The whole volume in the store, at the end of a run: the findings of a scrub, and the remains of a removal.

use holdfast_format::log_length::mark_after;
use holdfast_log::{LogFailure, remove, scrub};
use holdfast_types::key::ObjectKey;
use holdfast_types::{Nonce, Seq};

use super::World;
use super::snapshots::CUT_OFF;
use crate::calls::{Call, CallKind, CallResult, Calls};
use crate::invariant::Invariant;
use crate::surroundings::SimObjects;
use crate::tasks::PolledTasks;

impl World {
    /// Checks that a scrub reads everything that the log refers to and finds no damage.
    pub(crate) fn check_whole(&mut self) {
        self.check_whole_as(Invariant::NothingReferencedIsMissing);
    }

    pub(super) fn check_whole_as(&mut self, invariant: Invariant) {
        let volume = self.store.volume().clone();
        let report =
            self.run_reliably(|objects| async move { scrub::scrub(&objects, &volume, &|_| {}).await });
        let findings = report.expect("this store answers").findings;
        invariant.check(findings.is_empty(), || format!("a scrub finds {findings:?}"));
    }

    /// Checks that a removed volume leaves only the objects that reserve its id: the first record, the
    /// tombstone, and the truncation markers that explain missing records between them; and the marks of its
    /// snapshots, without which it is not removed. If it had snapshots, that takes a sweep.
    pub(crate) fn check_removal(&mut self) {
        self.check_ancestors_stay();
        let volume = self.store.volume().clone();
        let snapshots = self.store.registered().len() - self.store.forgotten_snapshots().len();
        if snapshots > 0 {
            let named = volume.clone();
            let refused = self.run_reliably(|objects| async move {
                remove(&objects, &named, Nonce::default(), 0, CUT_OFF).await
            });
            Invariant::SnapshotIsItsCut
                .check(matches!(refused, Err(LogFailure::HasSnapshots { .. })), || {
                    format!("a volume with {snapshots} snapshots is removed: {refused:?}")
                });
            self.check_snapshots();
            self.forget_all();
        }
        let named = volume.clone();
        let removed = self.run_reliably(|objects| async move {
            remove(&objects, &named, Nonce::default(), 0, CUT_OFF).await
        });
        removed.expect("this store answers");
        if !self.store.forgotten_snapshots().is_empty() {
            self.check_sweep();
        }
        let manifest = self.store.manifest();
        let mut expected =
            [Seq::FIRST, manifest.seq()].map(|seq| ObjectKey::Log(volume.clone(), seq)).to_vec();
        let mut marker = Seq(0);
        while marker <= manifest.seq() {
            marker = mark_after(marker);
            expected.push(ObjectKey::TruncationMarker(volume.clone(), marker));
        }
        let expected: Vec<String> = expected.iter().map(ObjectKey::to_string).collect();
        let left: Vec<String> = self.store.objects_of(&volume).into_iter().map(|(key, _)| key).collect();
        let is_mark = |key: &str| matches!(ObjectKey::parse(key), Some(ObjectKey::Forgotten(..)));
        let others: Vec<&str> = left.iter().map(String::as_str).filter(|key| !is_mark(key)).collect();
        Invariant::LogIsAChain.check(others == expected && manifest.is_deleted(), || {
            format!("of a removed volume are left {left:?}")
        });
        self.check_ancestors_removal();
    }

    /// Runs reliable requests, all answered at once; time passes as needed.
    pub(super) fn run_reliably<F: Future + 'static>(
        &mut self,
        begin: impl FnOnce(SimObjects) -> F,
    ) -> F::Output {
        let calls = Calls::default();
        let mut tasks = PolledTasks::default();
        tasks.start(begin(SimObjects(calls.clone())));
        loop {
            if let Some(ended) = tasks.next_ended() {
                return ended;
            }
            self.answer_reliably(calls.pop().expect("it waits for the store or for time"));
        }
    }

    /// Answers a request of no host reliably.
    pub(super) fn answer_reliably(&mut self, call: Call) {
        let answer = match &call.kind {
            CallKind::Store(call) => self.store.apply(call, None, 0),
            CallKind::Sleep(_) => CallResult::Slept,
            CallKind::Local(_) => unreachable!("it has no disk"),
        };
        call.answer(answer);
    }
}
