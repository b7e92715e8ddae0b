//! Deliberate failures of local writes: their position, error and duration.
//!
//! Owns: the count of each kind of write in a world, and the one that fails. Does not own: random faults
//! (`failures.rs`), the randomly full disk (`HostFault`).
//!
//! A lasting [`Condition`] ends with `World::end_strike`. Until then a full disk fails the operations that
//! need space, and the run directory fails its own. Other conditions fail every write to the disk.

use std::collections::BTreeMap;

use holdfast_engine::action::Action;
use holdfast_engine::event::Errno;

use crate::calls::LocalCall;

/// A kind of write to the state file system, or to the run directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum WriteStep {
    /// The data of a client's write to a side.
    WriteSide,
    /// A hole in a side, for a client's discard or zeroes.
    PunchSide,
    /// A hole in a side, in place of clean data.
    EvictSide,
    /// Sync a side.
    SyncSide,
    /// The disk space of a chunk in the durable map.
    PlaceInMap,
    /// Pages, or a record of the journal, in the durable map.
    WriteMap,
    /// Sync the durable map.
    SyncMap,
    /// The log record that is about to be created.
    StorePending,
    /// The files of an attached volume, their space, and a header.
    WriteHeader,
    /// Sync that header.
    SyncHeader,
    /// Move the files of a fenced writer to their preserved place.
    Preserve,
    /// Remove files.
    Discard,
    /// A slot of the slab.
    WriteSlot,
    /// Memory of the live map for a chunk, in the run directory.
    GrowLiveMap,
}

impl WriteStep {
    /// All of them.
    pub const ALL: [Self; 14] = [
        Self::WriteSide,
        Self::PunchSide,
        Self::EvictSide,
        Self::SyncSide,
        Self::PlaceInMap,
        Self::WriteMap,
        Self::SyncMap,
        Self::StorePending,
        Self::WriteHeader,
        Self::SyncHeader,
        Self::Preserve,
        Self::Discard,
        Self::WriteSlot,
        Self::GrowLiveMap,
    ];

    /// Returns the writes of the action, in their order.
    pub(crate) fn of_action(action: &Action) -> &'static [Self] {
        match action {
            Action::Write { .. } => &[Self::WriteSide],
            Action::Punch { .. } => &[Self::PunchSide],
            Action::Evict { .. } => &[Self::EvictSide],
            Action::PrepareMap { .. } => &[Self::PlaceInMap, Self::GrowLiveMap],
            Action::SyncSide { .. } => &[Self::SyncSide],
            Action::WriteMap(_) => &[Self::WriteMap],
            Action::SyncMap => &[Self::SyncMap],
            // Releases memory; a failure has no answer.
            Action::ReleaseMap { .. }
            | Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Complete { .. }
            | Action::NextTurn
            | Action::Pause
            | Action::Report(_)
            | Action::Upload { .. }
            | Action::Merge(_)
            | Action::StorePending { .. }
            | Action::StoreRoot { .. }
            | Action::CreateRecord { .. }
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. } => &[],
        }
    }

    /// Returns the write of a pipeline request, if it is one.
    pub(crate) fn of_call(call: &LocalCall) -> Option<Self> {
        match call {
            LocalCall::StorePending(_) => Some(Self::StorePending),
            LocalCall::Preserve => Some(Self::Preserve),
            LocalCall::Discard => Some(Self::Discard),
            LocalCall::WriteHeader(_) => Some(Self::WriteHeader),
            LocalCall::SyncHeader => Some(Self::SyncHeader),
            LocalCall::WriteSlot { .. } => Some(Self::WriteSlot),
            LocalCall::ReadSides | LocalCall::ReadMap | LocalCall::NameSlot | LocalCall::ReadSlot => None,
        }
    }

    fn is_sync(self) -> bool {
        matches!(self, Self::SyncSide | Self::SyncMap | Self::SyncHeader)
    }
}

/// State of a file system that fails a write.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Condition {
    /// The file system has 0 bytes free: ENOSPC.
    Full,
    /// The device of the file system fails: EIO.
    Broken,
    /// The kernel made it read-only: EROFS.
    ReadOnly,
}

impl Condition {
    /// All of them.
    pub const ALL: [Self; 3] = [Self::Full, Self::Broken, Self::ReadOnly];

    pub(crate) const fn errno(self) -> Errno {
        match self {
            Self::Full => Errno::ENOSPC,
            Self::Broken => Errno::EIO,
            Self::ReadOnly => Errno::EROFS,
        }
    }
}

/// The first write that fails, and the later ones.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Strike {
    /// Its kind.
    pub step: WriteStep,
    /// Number of writes of that kind that succeed before it.
    pub visit: u64,
    /// Cause of the failure.
    pub condition: Condition,
    /// True if the condition lasts; otherwise the next write succeeds.
    pub is_lasting: bool,
}

impl Strike {
    /// Returns true if this also fails `step`. `HostFault` decides the other failures of a full disk.
    fn covers(self, step: WriteStep) -> bool {
        let run_dir = WriteStep::GrowLiveMap;
        match (self.step == run_dir, self.condition) {
            (true, _) => step == run_dir,
            (false, Condition::Full) => false,
            (false, Condition::Broken | Condition::ReadOnly) => step != run_dir,
        }
    }

    /// Returns true if a request may fail because of it; otherwise writes wait for space. A round has
    /// reserved space: if the file system needs more nevertheless, like a copy-on-write one, a flush fails.
    pub(crate) fn may_fail_requests(self) -> bool {
        let fails_flush = self.step.is_sync() || self.step == WriteStep::WriteMap;
        self.step != WriteStep::GrowLiveMap && (self.condition != Condition::Full || fails_flush)
    }

    /// Returns true if the state file system is full while this lasts.
    pub(crate) fn fills_disk(self) -> bool {
        self.is_lasting && self.condition == Condition::Full && self.step != WriteStep::GrowLiveMap
    }
}

/// The writes of a world.
#[derive(Debug, Default)]
pub(crate) struct Strikes {
    visits: BTreeMap<WriteStep, u64>,
    armed: Option<Strike>,
    failed_host: Option<usize>,
    lasting: Option<(usize, Strike)>,
}

impl Strikes {
    /// Arms this failure.
    pub(crate) fn arm(&mut self, strike: Strike) {
        self.armed = Some(strike);
    }

    /// Returns the number of writes of each kind so far.
    pub(crate) fn visits(&self) -> &BTreeMap<WriteStep, u64> {
        &self.visits
    }

    /// Returns the host whose write failed.
    pub(crate) fn failed_host(&self) -> Option<usize> {
        self.failed_host
    }

    /// Counts a write on `host`, and returns its failure, if any, with true for the first one.
    pub(crate) fn count_write(&mut self, host: usize, step: WriteStep) -> Option<(Strike, bool)> {
        let visits = self.visits.entry(step).or_default();
        let visit = std::mem::replace(visits, *visits + 1);
        if let Some((on, strike)) = self.lasting
            && on == host
            && strike.covers(step)
        {
            return Some((strike, false));
        }
        let strike = self.armed.take_if(|strike| strike.step == step && strike.visit == visit)?;
        self.failed_host = Some(host);
        self.lasting = strike.is_lasting.then_some((host, strike));
        Some((strike, true))
    }

    /// Ends a lasting condition. Returns the host.
    pub(crate) fn end(&mut self) -> Option<usize> {
        self.lasting.take().map(|(host, _)| host)
    }
}
