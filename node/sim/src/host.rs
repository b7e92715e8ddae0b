//! One simulated host: its disk, its tmpfs, the daemon's process with what it was asked to do, the device.

use std::cell::RefCell;
use std::rc::Rc;

use holdfast_engine::action::{Action, DirtyBlock, Report};
use holdfast_engine::event::{Event, Millis, Op, RequestId};
use holdfast_engine::sector_map::Side;
use holdfast_engine::volume::{Pending, Volume};
use holdfast_types::{Nonce, SectorRange};

use crate::device::Device;
use crate::disk::{Fate, MapFile, SideFile, SyncMark};
use crate::expect::{Cut, Expect};
use crate::invariant::Invariant;
use crate::memory::{Killed, LiveMemory, Tmpfs};
use crate::rng::Rng;
use crate::trace::Trace;

/// What survives the loss of the host, as far as it was synced.
#[derive(Default)]
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

    /// How many states a power cut can leave; at most `u64::MAX`.
    pub(crate) fn outcomes(&self) -> u64 {
        let sides = self.sides.iter().map(SideFile::outcomes);
        sides.chain([self.map.outcomes()]).fold(1, u64::saturating_mul)
    }
}

/// Something the process was asked to do.
pub(crate) struct Job {
    pub(crate) action: Action,
    /// Of a sync: what it covers.
    pub(crate) mark: Option<SyncMark>,
    /// What to answer, once it was done.
    pub(crate) answer: Option<Event>,
    /// One in four takes much longer than the others.
    pub(crate) slow: bool,
}

/// The daemon.
pub(crate) struct Process {
    pub(crate) volume: Volume<LiveMemory>,
    pub(crate) jobs: Vec<Job>,
    /// It took over running state and has not read the log yet.
    pub(crate) awaits_manifest: bool,
    /// It was told to let go; once is enough.
    pub(crate) detaching: bool,
    sealing: bool,
    fenced: bool,
}

/// A host.
pub(crate) struct Host {
    name: usize,
    pub(crate) disk: Disk,
    pub(crate) tmpfs: Tmpfs,
    pub(crate) process: Option<Process>,
    pub(crate) device: Option<Device>,
    /// The writer this host is, or was.
    pub(crate) nonce: Option<Nonce>,
    /// What the volume may read as here.
    pub(crate) expect: Expect,
    /// What the side now sealed may read as.
    pub(crate) sealed: Option<Rc<Cut>>,
    pub(crate) killed_after: Rc<RefCell<Option<u32>>>,
    pub(crate) killed_inside: bool,
    jobs_made: u64,
}

impl Host {
    pub(crate) fn new(name: usize) -> Self {
        Self {
            name,
            disk: Disk::default(),
            tmpfs: Tmpfs::default(),
            process: None,
            device: None,
            nonce: None,
            expect: Expect::default(),
            sealed: None,
            killed_after: Rc::default(),
            killed_inside: false,
            jobs_made: 0,
        }
    }

    /// Runs `step` of the engine; `None` when the process was killed inside it.
    pub(crate) fn run<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let ended = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(self)));
        *self.killed_after.borrow_mut() = None;
        match ended {
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
            process.volume.handle(now, event, &mut out);
        });
        if told.is_some() {
            self.take(out, trace);
        }
        told.is_some()
    }

    /// A process over `volume` begins with `out` to do.
    pub(crate) fn begin(
        &mut self,
        volume: Volume<LiveMemory>,
        out: Vec<Action>,
        awaits_manifest: bool,
        trace: &mut Trace,
    ) {
        let sealing = volume.status().sealing;
        self.sealed = match self.sealed.take() {
            Some(cut) if sealing && self.killed_inside => Some(Rc::new(cut.or(&self.expect.cut()))),
            Some(cut) if sealing => Some(cut),
            None if sealing => Some(self.expect.cut()),
            Some(_) | None => None,
        };
        self.killed_inside = false;
        self.process = Some(Process {
            volume,
            jobs: Vec::new(),
            awaits_manifest,
            detaching: false,
            sealing,
            fenced: false,
        });
        self.take(out, trace);
    }

    fn take(&mut self, out: Vec<Action>, trace: &mut Trace) {
        let process = self.process.as_mut().expect("a process has things to do");
        let sealing = process.volume.status().sealing;
        let committed = out.iter().any(|action| matches!(action, Action::Report(Report::Committed(_))));
        if sealing && (committed || !process.sealing) {
            self.sealed = Some(self.expect.cut());
        }
        process.sealing = sealing;
        for action in out {
            trace.action(self.name, &action);
            self.add_job(action);
        }
    }

    fn add_job(&mut self, action: Action) {
        let process = self.process.as_mut().expect("a process has things to do");
        let mut mark = None;
        match &action {
            Action::Write { id, range, side } | Action::Punch { id, range, side } => {
                let device = self.device.as_mut().expect("requests come from a device");
                check_store(device, *id, *range, matches!(action, Action::Write { .. }));
                Invariant::FencedChangesNothing
                    .check(!process.fenced, || format!("{action:?} after its fencing"));
                let uploading = process.jobs.iter().any(|job| uploads(&job.action, *side));
                Invariant::StoresItsOwnRange
                    .check(!uploading, || format!("{side:?} changes while it is uploaded"));
            }
            Action::Evict { range, side } => {
                Invariant::FencedChangesNothing
                    .check(!process.fenced, || "an eviction after its fencing".into());
                for job in &process.jobs {
                    let touched = match &job.action {
                        Action::Write { side: other, .. } | Action::Punch { side: other, .. } => {
                            other == side && job.answer.is_none()
                        }
                        Action::Upload(dirty) => dirty.iter().any(|block| overlaps(block, *range, *side)),
                        Action::Read { .. }
                        | Action::ReadCold { .. }
                        | Action::Evict { .. }
                        | Action::Complete { .. }
                        | Action::PrepareMap { .. }
                        | Action::SyncSide { .. }
                        | Action::WriteMap(_)
                        | Action::SyncMap
                        | Action::StorePending { .. }
                        | Action::CreateRecord { .. }
                        | Action::ReadRecord { .. }
                        | Action::WriteCheckpoint { .. }
                        | Action::Report(_) => false,
                    };
                    Invariant::StoresItsOwnRange.check(!touched, || {
                        format!("{range:?} of {side:?} is given up under {:?}", job.action)
                    });
                }
            }
            Action::Upload(dirty) => {
                Invariant::FencedChangesNothing
                    .check(!process.fenced, || "an upload after its fencing".into());
                for job in &process.jobs {
                    if let (Action::Write { side, .. } | Action::Punch { side, .. }, None) =
                        (&job.action, &job.answer)
                    {
                        let still = dirty.iter().all(|block| match side {
                            Side::A => block.a.is_empty(),
                            Side::B => block.b.is_empty(),
                        });
                        Invariant::StoresItsOwnRange
                            .check(still, || format!("{side:?} is uploaded with a write in flight on it"));
                    }
                }
            }
            Action::CreateRecord { .. } | Action::StorePending { .. } => {
                Invariant::FencedChangesNothing
                    .check(!process.fenced, || "a commit after its fencing".into());
            }
            Action::SyncSide { side } => mark = Some(self.disk.sides[*side as usize].mark()),
            Action::SyncMap => mark = Some(self.disk.map.mark()),
            Action::Report(Report::Fenced) => process.fenced = true,
            Action::Read { .. }
            | Action::ReadCold { .. }
            | Action::Complete { .. }
            | Action::PrepareMap { .. }
            | Action::WriteMap(_)
            | Action::ReadRecord { .. }
            | Action::WriteCheckpoint { .. }
            | Action::Report(_) => {}
        }
        self.jobs_made += 1;
        let slow = Rng::new(self.jobs_made).once_in(4);
        process.jobs.push(Job { action, mark, answer: None, slow });
    }
}

fn uploads(action: &Action, side: Side) -> bool {
    let Action::Upload(dirty) = action else { return false };
    dirty.iter().any(|block| match side {
        Side::A => !block.a.is_empty(),
        Side::B => !block.b.is_empty(),
    })
}

/// Whether sectors of `range` are uploaded from `side`.
fn overlaps(dirty: &DirtyBlock, range: SectorRange, side: Side) -> bool {
    let mask = match side {
        Side::A => dirty.a,
        Side::B => dirty.b,
    };
    let first = dirty.block.first_sector().0;
    (0..32).any(|bit| mask.contains(bit) && (range.start.0..range.end()).contains(&(first + u64::from(bit))))
}

fn check_store(device: &mut Device, id: RequestId, range: SectorRange, is_write: bool) {
    let request = device.request(id);
    let holds = match request.op {
        Op::Write => is_write && request.range == range,
        Op::Discard | Op::WriteZeroes => !is_write && request.range.intersect(range) == Some(range),
        Op::Read | Op::Flush => false,
    };
    Invariant::StoresItsOwnRange
        .check(holds, || format!("{range:?} is stored for {:?} of {:?}", request.op, request.range));
}
