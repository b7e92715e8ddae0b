//! One simulated host: its disk, its tmpfs, the daemon's process, the device.

use std::cell::RefCell;
use std::collections::VecDeque;
use std::rc::Rc;
use std::sync::Arc;

use holdfast_engine::action::{Action, Report};
use holdfast_engine::event::Event;
use holdfast_engine::sector_map::Side;
use holdfast_engine::volume::{Pending, SealStatus, Volume};
use holdfast_types::{Millis, Nonce};
use parking_lot::Mutex;

use crate::device::Device;
use crate::disk::{Fate, MapFile, SideFile};
use crate::expect::{Cut, Expect};
use crate::memory::{Killed, LiveMemory, Tmpfs};
use crate::process::{Ended, Process};
use crate::trace::Trace;
use crate::world::{Attach, Displaces, OtherDisk, Snapshot};

/// State that survives the loss of the host, as far as it was synced.
#[derive(Clone, Default)]
pub(crate) struct Disk {
    pub(crate) sides: [SideFile; 2],
    pub(crate) map: MapFile,
    pub(crate) pending: Option<Pending>,
}

impl Disk {
    pub(crate) fn side(&mut self, side: Side) -> &mut SideFile {
        &mut self.sides[side as usize]
    }

    pub(crate) fn lose_power(&mut self, fate: &mut Fate<'_>) {
        for side in &mut self.sides {
            side.lose_power(fate);
        }
        // Each file takes its part of a number of states: the first one the lowest digits.
        self.map.lose_power(fate);
    }

    /// Number of states that a power cut can leave; at most `u64::MAX`.
    pub(crate) fn outcomes(&self) -> u64 {
        let sides = self.sides.iter().map(SideFile::outcomes);
        sides.chain([self.map.outcomes()]).fold(1, u64::saturating_mul)
    }
}

/// A disk that the futures of a process reach too.
pub(crate) type SharedDisk = Arc<Mutex<Disk>>;

/// Faults of a host that last for a while.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostFault {
    /// Its requests do not reach the store.
    pub(crate) cut_off: bool,
    /// Its process does not run; what it had sent proceeds.
    pub(crate) paused: bool,
    /// Its disk takes no more data.
    pub(crate) full: bool,
    /// Its disk takes long.
    pub(crate) slow: bool,
}

/// A host.
pub(crate) struct Host {
    name: usize,
    pub(crate) disk: SharedDisk,
    pub(crate) tmpfs: Tmpfs,
    pub(crate) process: Option<Process>,
    pub(crate) device: Option<Device>,
    /// The writer this host is, or was.
    pub(crate) nonce: Option<Nonce>,
    /// Allowed content of the volume here.
    pub(crate) expect: Expect,
    /// Allowed content of the side now sealed.
    pub(crate) sealed: Option<Rc<Cut>>,
    /// Content that the last commit captured.
    pub(crate) committed: Rc<Cut>,
    /// Content that the last commit before its own writes, or of its own, captured.
    pub(crate) base: Rc<Cut>,
    pub(crate) killed_after: Rc<RefCell<Option<u32>>>,
    pub(crate) killed_inside: bool,
    /// Its current faults.
    pub(crate) fault: HostFault,
    /// A fenced writer released its files here, and its durable map names data that is in no commit, until
    /// that is preserved.
    pub(crate) keeps: bool,
    /// Time that its engine last got.
    pub(crate) ticked: Millis,
    /// Its disk was full at some time.
    pub(crate) was_full: bool,
    /// End times of the writes that no commit captured yet, oldest first: by the model's clock, and by the
    /// virtual one.
    pub(crate) uncommitted: VecDeque<(u64, Millis)>,
    /// Time until which its process did not run, or had not reached the log.
    pub(crate) away_until: Millis,
    /// Result of the last attach, until it is asked for.
    pub(crate) came_of: Option<Attach>,
    /// Writers that there had been when its process began to attach.
    pub(crate) writers_before: usize,
    /// The kernel has no device of the volume that is served: the client cannot ask.
    pub(crate) is_shut: bool,
    /// The kernel has a device of the volume: its engine must not detach yet.
    pub(crate) is_held: bool,
    /// The last snapshot of its disk.
    pub(crate) snapshot: Option<Snapshot>,
    /// Its disk is not the one that its last attach left, until it attaches.
    pub(crate) other_disk: Option<OtherDisk>,
    /// Number of disks that it had.
    pub(crate) disks: u64,
    /// The writer that its last attach replaced, as the model knows it.
    pub(crate) displaces: Displaces,
}

impl Host {
    pub(crate) fn new(name: usize) -> Self {
        Self {
            name,
            disk: SharedDisk::default(),
            tmpfs: Tmpfs::default(),
            process: None,
            device: None,
            nonce: None,
            expect: Expect::default(),
            sealed: None,
            committed: Rc::default(),
            base: Rc::default(),
            killed_after: Rc::default(),
            killed_inside: false,
            fault: HostFault::default(),
            keeps: false,
            ticked: 0,
            was_full: false,
            uncommitted: VecDeque::new(),
            away_until: 0,
            came_of: None,
            writers_before: 0,
            is_shut: false,
            is_held: false,
            snapshot: None,
            other_disk: None,
            disks: 0,
            displaces: Displaces::None,
        }
    }

    /// Runs `step` of the engine; `None` when the process was killed inside it.
    pub(crate) fn run<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let ended = self.survive(step);
        *self.killed_after.borrow_mut() = None;
        ended
    }

    fn survive<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(self))) {
            Ok(value) => Some(value),
            Err(payload) if payload.is::<Killed>() => {
                self.killed_inside = true;
                None
            }
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    /// Tells the engine. Says whether the process lived through it.
    pub(crate) fn tell(&mut self, now: Millis, event: Event, trace: &mut Trace) -> bool {
        trace.event(self.name, &event);
        let mut out = Vec::new();
        let told = self.run(|host| {
            let process = host.process.as_mut().expect("a process takes events");
            process.volume.as_mut().expect("an attached one").handle(now, event, &mut out);
        });
        if told.is_some() {
            self.take(now, out, trace);
        }
        told.is_some()
    }

    /// Polls the pipeline's futures until one ends, or none can proceed; `None` when the process was killed
    /// in one.
    pub(crate) fn run_pipeline(&mut self) -> Option<Option<Ended>> {
        self.survive(|host| host.process.as_mut().expect("a process has a pipeline").tasks.next_ended())
    }

    /// The process here begins to serve `volume`, with `out` to do.
    pub(crate) fn begin(
        &mut self,
        now: Millis,
        volume: Volume<LiveMemory>,
        out: Vec<Action>,
        trace: &mut Trace,
    ) {
        let SealStatus { in_progress, covers_both, begun } = volume.status().seal;
        self.sealed = match self.sealed.take() {
            // Both sides are sealed again.
            Some(_) if covers_both => Some(self.expect.cut()),
            Some(cut) if in_progress && self.killed_inside => Some(Rc::new(cut.or(&self.expect.cut()))),
            Some(cut) if in_progress => Some(cut),
            None if in_progress && self.killed_inside => Some(self.committed_or_now()),
            None if in_progress => Some(self.expect.cut()),
            Some(_) | None => None,
        };
        self.killed_inside = false;
        let process = self.process.as_mut().expect("a process serves");
        process.sealing = in_progress;
        process.seals = begun;
        process.volume = Some(volume);
        self.take(now, out, trace);
    }

    /// A repair may seal the side that was sealed before: what it captures is what the last commit did. It
    /// covers nothing that was not committed.
    fn committed_or_now(&mut self) -> Rc<Cut> {
        let mut cut = self.committed.or(&self.expect.cut());
        cut.at = 0;
        Rc::new(cut)
    }

    fn take(&mut self, now: Millis, out: Vec<Action>, trace: &mut Trace) {
        let process = self.process.as_mut().expect("a process has things to do");
        let status = process.volume.as_ref().map(Volume::status).unwrap_or_default();
        let sealing = status.seal.in_progress;
        let committed = out.iter().any(|action| matches!(action, Action::Report(Report::Committed(_))));
        let both = status.seal.covers_both && status.seal.begun != process.seals;
        if sealing && (committed || !process.sealing || both) {
            let repairing = status.repairing && !both;
            self.sealed = Some(if repairing { self.committed_or_now() } else { self.expect.cut() });
        }
        let process = self.process.as_mut().expect("it is still there");
        process.sealing = sealing;
        process.seals = status.seal.begun;
        for action in out {
            trace.action(self.name, &action);
            process.begin(action, now, &mut self.device, &self.disk, self.sealed.as_ref());
        }
    }
}
