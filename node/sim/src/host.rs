//! One simulated host: its disk, its tmpfs, the daemon's process, the device.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_engine::action::{Action, Report, Source};
use holdfast_engine::event::{Event, Op};
use holdfast_engine::settings::RuntimeSettings;
use holdfast_engine::snapshot::CutAnswer;
use holdfast_engine::volume::Volume;
use holdfast_types::{Millis, Nonce, SnapshotUid};

use crate::attempt::Attempt;
use crate::content::AllowedContent;
use crate::device::SimulatedDevice;
use crate::disk::SharedDisk;
use crate::disk_past::DiskPast;
use crate::expect::CapturedContent;
use crate::lag::Lag;
use crate::memory::{DeathCounter, Killed, LiveMemory, Tmpfs};
use crate::process::{DaemonProcess, TaskResult};
use crate::trace::Trace;

/// Faults of a host that last for a while.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct HostFault {
    /// Requests of the host do not reach the store.
    pub(crate) cut_off: bool,
    /// The process does not run; its submitted requests proceed.
    pub(crate) paused: bool,
    /// The disk accepts no more data.
    pub(crate) full: bool,
    /// The disk is slow.
    pub(crate) slow: bool,
}

/// The access to the kernel's device of a volume on one host, if several volumes share the hosts.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Access {
    /// The client may use the device.
    Open,
    /// The client waits, and the engine must not detach.
    Shut,
    /// The device does not exist: the engine is to detach.
    Gone,
}

/// The snapshots and cuts of the volume that were requested on a host.
#[derive(Default)]
pub(crate) struct HostSnapshots {
    /// Snapshots that its client requested since the attach, and the volume's content at the first request.
    pub(crate) requested: BTreeMap<SnapshotUid, Rc<CapturedContent>>,
    /// The cut of its volume in progress, and the last answer to it.
    pub(crate) cut: Option<(SnapshotUid, Option<CutAnswer>)>,
    /// Content of the volume at the release of each cut since the attach.
    pub(crate) released_cuts: BTreeMap<SnapshotUid, Rc<CapturedContent>>,
}

/// A host.
pub(crate) struct Host {
    name: usize,
    pub(crate) disk: SharedDisk,
    pub(crate) disk_past: DiskPast,
    pub(crate) tmpfs: Tmpfs,
    pub(crate) process: Option<DaemonProcess>,
    pub(crate) device: Option<SimulatedDevice>,
    /// Settings with which a process continues after a takeover.
    pub(crate) settings: RuntimeSettings,
    /// The current or former writer on this host.
    pub(crate) nonce: Option<Nonce>,
    /// Allowed content of the volume here.
    pub(crate) content: AllowedContent,
    /// Point at which the process dies inside the engine.
    pub(crate) death_counter: DeathCounter,
    /// Its current faults.
    pub(crate) fault: HostFault,
    pub(crate) lag: Lag,
    pub(crate) attempt: Attempt,
    pub(crate) snapshots: HostSnapshots,
    /// `None` if the volume is alone: then its client and its engine need no permission.
    pub(crate) access: Option<Access>,
}

impl Host {
    pub(crate) fn new(name: usize) -> Self {
        Self {
            name,
            disk: SharedDisk::default(),
            disk_past: DiskPast::default(),
            tmpfs: Tmpfs::default(),
            process: None,
            device: None,
            settings: RuntimeSettings::default(),
            nonce: None,
            content: AllowedContent::default(),
            death_counter: DeathCounter::default(),
            fault: HostFault::default(),
            lag: Lag::default(),
            attempt: Attempt::none(),
            snapshots: HostSnapshots::default(),
            access: None,
        }
    }

    /// Returns true if the client must not send requests.
    pub(crate) fn is_shut(&self) -> bool {
        self.access.is_some_and(|access| access != Access::Open)
    }

    /// Returns true if the engine must not detach yet.
    pub(crate) fn must_not_detach(&self) -> bool {
        self.access.is_some_and(|access| access != Access::Gone)
    }

    /// Runs `step` of the engine; `None` if the process was killed inside it.
    pub(crate) fn run<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        let ended = self.run_unless_killed(step);
        self.death_counter.set(None);
        ended
    }

    fn run_unless_killed<T>(&mut self, step: impl FnOnce(&mut Self) -> T) -> Option<T> {
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| step(self))) {
            Ok(value) => Some(value),
            Err(payload) if payload.is::<Killed>() => {
                self.content.note_killed_inside();
                None
            }
            Err(payload) => std::panic::resume_unwind(payload),
        }
    }

    /// Sends the engine an event. Returns true if the process survived it.
    pub(crate) fn send_event(&mut self, now: Millis, event: Event, trace: &mut Trace) -> bool {
        trace.event(self.name, &event);
        let mut out = Vec::new();
        let survived = self.run(|host| {
            let process = host.process.as_mut().expect("a process takes events");
            let volume = process.volume.as_mut().expect("an attached one");
            if !(DIRECT.get() && handle_directly(volume, now, &event, &mut out)) {
                volume.handle(now, event, &mut out);
            }
        });
        if survived.is_some() {
            self.start_actions(now, out, trace);
        }
        survived.is_some()
    }

    /// Polls the pipeline's futures until one ends, or none can proceed; `None` if the process was killed
    /// in one.
    pub(crate) fn run_pipeline(&mut self) -> Option<Option<TaskResult>> {
        self.run_unless_killed(|host| {
            host.process.as_mut().expect("a process has a pipeline").tasks.next_ended()
        })
    }

    /// Begins to serve `volume` in the process here, with `out` to execute.
    pub(crate) fn begin(
        &mut self,
        now: Millis,
        volume: Volume<LiveMemory>,
        out: Vec<Action>,
        trace: &mut Trace,
    ) {
        let seal = volume.status().seal;
        self.content.resume_seal(seal);
        let process = self.process.as_mut().expect("a process serves");
        process.sealing = seal.in_progress;
        process.seals = seal.begun;
        process.volume = Some(volume);
        self.start_actions(now, out, trace);
    }

    fn start_actions(&mut self, now: Millis, out: Vec<Action>, trace: &mut Trace) {
        let process = self.process.as_mut().expect("a process has things to do");
        let status = process.volume.as_ref().map(Volume::status).unwrap_or_default();
        let sealing = status.seal.in_progress;
        let committed = out.iter().any(|action| matches!(action, Action::Report(Report::Committed(_))));
        let both = status.seal.covers_both && status.seal.begun != process.seals;
        if sealing && (committed || !process.sealing || both) {
            self.content.seal(&status, both);
        }
        let process = self.process.as_mut().expect("it is still there");
        process.sealing = sealing;
        process.seals = status.seal.begun;
        let durability = self.settings.durability;
        for action in out {
            if let (Action::Complete { id, .. }, Some(device)) = (&action, &mut self.device) {
                device.note_answer(*id, durability);
            }
            if let Action::Report(Report::Cut { uid, answer: CutAnswer::Released }) = action {
                self.snapshots.released_cuts.insert(uid, self.content.model.cut());
            }
            trace.action(self.name, &action);
            process.begin(action, now, &mut self.device, &self.disk, self.content.sealed());
        }
    }
}

thread_local! {
    static DIRECT: std::cell::Cell<bool> = const { std::cell::Cell::new(true) };
}

/// Selects if the volumes of this thread use the planner's direct path, like the daemon, or only events.
pub fn use_direct_path(is_used: bool) {
    DIRECT.set(is_used);
}

/// Handles an event like the daemon: first by the planner's direct path ([`Volume::begin`],
/// [`Volume::begin_known`], [`Volume::end`]), if that accepts it. The actions are those with which it
/// would have answered the event.
fn handle_directly<M: AsRef<[u8]> + AsMut<[u8]>>(
    volume: &mut Volume<M>,
    now: Millis,
    event: &Event,
    out: &mut Vec<Action>,
) -> bool {
    if let Event::Request { id, op, range } = *event
        && let Some(side) = volume.begin(now, id, op, range)
    {
        out.push(match op {
            Op::Read => Action::Read { id, range, at: 0, from: Source::Side(side) },
            Op::Write | Op::WriteFua | Op::Discard | Op::WriteZeroes | Op::Flush => {
                Action::Write { id, range, side }
            }
        });
        return true;
    }
    if let Event::Request { id, op: Op::Read, range } = *event
        && let Some(runs) = volume.begin_known(now, id, range, |runs| Some(runs.clone()))
    {
        out.push(Action::ReadCold { id, range, at: 0, runs });
        return true;
    }
    if let Event::IoCompleted { id, result: Ok(()) } | Event::ColdReadCompleted { id, result: Ok(()) } =
        *event
        && volume.end(now, id)
    {
        out.push(Action::Complete { id, result: Ok(()) });
        return true;
    }
    false
}
