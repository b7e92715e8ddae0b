//! A fake ublk driver as used by attach, detach and recovery: like the real one, it assigns the lowest free
//! number. A process can die at any command, before or after its effect.

use std::collections::BTreeMap;
use std::io;
use std::time::Duration;

use holdfast_ring::KernelErrno;
use holdfast_ublk::{
    ControlError, Device, DeviceInfo, DeviceSpec, DeviceState, Expected, ForeignFeatures, Holders,
    QueueError, Transport, Unsupported,
};
use parking_lot::{Condvar, Mutex, MutexGuard};
use tokio::sync::watch;

use crate::node::TransportChoice;
use crate::node::device::kernel::Devices;
use holdfast_serve::OpenQueues;

/// Moment of the process's death: before or after the effect of the command with this number.
#[derive(Debug, Clone, Copy)]
pub(super) enum Death {
    Before(usize),
    After(usize),
}

#[derive(Debug, Clone)]
pub(super) struct FakeDevice {
    pub(super) info: DeviceInfo,
    pub(super) sectors: u64,
    /// A server has its character device open.
    is_open: bool,
    /// This process has started its recovery.
    is_begun: bool,
    /// Belongs to another program: must not be touched.
    is_foreign: bool,
    /// A program has the block device open.
    pub(super) is_used: bool,
    /// A program keeps it open after its stop: the kernel deletes it when that closes it.
    pub(super) outlives_stop: bool,
    is_deleting: bool,
    /// Set if the kernel loses it when its server exits.
    pub(super) loss: Option<Loss>,
    /// The kernel hides it.
    pub(super) is_hidden: bool,
}

/// A device that stays LIVE after its server's exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Loss {
    /// Until it is flushed.
    UntilFlushed,
    /// Until the host restarts.
    ForGood,
}

#[derive(Default)]
struct State {
    devices: BTreeMap<u32, FakeDevice>,
    commands: usize,
    death: Option<Death>,
    is_dead: bool,
    /// A command that does not end while it is held, for one device or all.
    held: Option<(&'static str, Option<u32>)>,
    /// Commands that the kernel rejects.
    refused: Vec<&'static str>,
    violations: Vec<String>,
    flushes: usize,
}

pub(in crate::node) struct FakeKernel {
    state: Mutex<State>,
    changed: Condvar,
    died: watch::Sender<bool>,
}

impl FakeKernel {
    pub(in crate::node) fn new() -> Self {
        Self { state: Mutex::default(), changed: Condvar::new(), died: watch::Sender::new(false) }
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock()
    }

    /// Adds a device of another program.
    pub(super) fn add_foreign(&self, id: u32, state: DeviceState, tag: u64) {
        self.put(id, state, tag, true);
    }

    /// Adds an unprivileged device of another program, which the kernel hides.
    pub(super) fn add_unprivileged(&self, id: u32) {
        self.put(id, DeviceState::Live, 0, true);
        self.change(id, |known| known.is_hidden = true);
    }

    /// Adds a device as left by a daemon of an installation.
    pub(in crate::node) fn add_left(&self, id: u32, state: DeviceState, tag: u64) {
        self.put(id, state, tag, false);
    }

    fn put(&self, id: u32, state: DeviceState, tag: u64, is_foreign: bool) {
        let info = DeviceInfo {
            id,
            state,
            queues: 1,
            depth: 128,
            max_io_bytes: 1 << 20,
            transport: Some(Transport::UserCopy),
            server_pid: -1,
            tag,
            has_batches: false,
            foreign: ForeignFeatures::among(0),
        };
        let known = FakeDevice {
            info,
            sectors: super::SECTORS,
            is_open: false,
            is_begun: false,
            is_foreign,
            is_used: false,
            outlives_stop: false,
            is_deleting: false,
            loss: None,
            is_hidden: false,
        };
        assert!(self.lock().devices.insert(id, known).is_none(), "the number is taken");
    }

    /// Removes a device, like an administrator.
    pub(super) fn remove_device(&self, id: u32) -> FakeDevice {
        self.lock().devices.remove(&id).unwrap()
    }

    pub(super) fn change(&self, id: u32, change: impl FnOnce(&mut FakeDevice)) {
        change(self.lock().devices.get_mut(&id).unwrap());
    }

    pub(super) fn devices(&self) -> BTreeMap<u32, DeviceInfo> {
        self.lock().devices.iter().map(|(id, known)| (*id, known.info)).collect()
    }

    /// Returns the forbidden operations that were executed.
    pub(super) fn violations(&self) -> Vec<String> {
        self.lock().violations.clone()
    }

    /// Returns the number of flushes by separate processes.
    pub(super) fn flushes(&self) -> usize {
        self.lock().flushes
    }

    pub(super) fn die(&self, death: Option<Death>) {
        let mut state = self.lock();
        (state.commands, state.death) = (0, death);
    }

    /// Blocks commands of this name, for one device or all.
    pub(super) fn hold(&self, command: &'static str, device: Option<u32>) {
        self.lock().held = Some((command, device));
    }

    /// Rejects commands of these names. With `ublk`, the kernel has no driver.
    pub(super) fn refuse(&self, commands: &[&'static str]) {
        self.lock().refused = commands.to_vec();
    }

    pub(super) fn release(&self) {
        self.lock().held = None;
        self.changed.notify_all();
    }

    /// Completes once the process has died.
    pub(super) async fn death(&self) {
        self.died.subscribe().wait_for(|died| *died).await.unwrap();
    }

    /// Ends the process unless it is dead: its devices are quiesced, its threads gone.
    pub(super) fn end_process(&self) {
        let mut state = self.lock();
        state.end();
        (state.is_dead, state.death, state.held) = (false, None, None);
        drop(state);
        self.died.send_replace(false);
        self.changed.notify_all();
    }

    fn command<T>(
        &self,
        name: &'static str,
        device: Option<Device>,
        run: impl FnOnce(&mut State) -> Result<T, ControlError>,
    ) -> Result<T, ControlError> {
        let mut state = self.lock();
        let device = device.map(|device| device.id());
        while state.held.is_some_and(|(held, of)| held == name && (of.is_none() || of == device)) {
            self.changed.wait(&mut state);
        }
        let number = state.commands;
        state.commands += 1;
        if state.is_dead || matches!(state.death, Some(Death::Before(at)) if at == number) {
            return self.answer_if_alive(state);
        }
        let done = if state.refused.contains(&name) {
            let id = device.unwrap_or(u32::MAX);
            Err(ControlError::Command { id, command: name, source: KernelErrno::EIO })
        } else {
            run(&mut state)
        };
        if matches!(state.death, Some(Death::After(at)) if at == number) {
            return self.answer_if_alive(state);
        }
        done
    }

    /// A dead process gets no response.
    fn answer_if_alive<T>(&self, mut state: MutexGuard<'_, State>) -> Result<T, ControlError> {
        state.is_dead = true;
        state.end();
        self.died.send_replace(true);
        while state.is_dead {
            self.changed.wait(&mut state);
        }
        Err(ControlError::Channel(io::Error::other("the process has died")))
    }
}

impl State {
    fn end(&mut self) {
        for known in self.devices.values_mut().filter(|known| !known.is_foreign) {
            (known.is_open, known.is_begun) = (false, false);
            if known.info.state == DeviceState::Live && known.loss.is_none() {
                known.info.state = DeviceState::Quiesced;
            }
        }
    }

    /// Returns the device that a command refers to, but no other with its number.
    fn of(&mut self, device: Device, doing: &str) -> Result<&mut FakeDevice, ControlError> {
        let id = device.id();
        let known = self.devices.get_mut(&id).ok_or(ControlError::NotFound { id })?;
        let expected = Expected { tag: known.info.tag, sectors: known.sectors };
        if Device::of(&known.info, known.sectors, &expected).ok() != Some(device) {
            return Err(ControlError::NotFound { id });
        }
        if known.is_foreign {
            self.violations.push(format!("{doing} of device {id}, which is another program's"));
        }
        Ok(known)
    }
}

impl Devices for FakeKernel {
    fn transport(&self, choice: TransportChoice) -> Result<Transport, Unsupported> {
        if self.lock().refused.contains(&"ublk") {
            return Err(Unsupported::NoDriver);
        }
        Ok(if let TransportChoice::Only(transport) = choice { transport } else { Transport::UserCopy })
    }

    fn list(&self) -> Result<Vec<u32>, ControlError> {
        Ok(self.lock().devices.keys().copied().collect())
    }

    fn look(&self, id: u32) -> Result<DeviceInfo, ControlError> {
        match self.lock().devices.get(&id) {
            Some(known) if known.is_hidden => Err(ControlError::NotOurs { id, found: 0 }),
            Some(known) => Ok(known.info),
            None => Err(ControlError::NotFound { id }),
        }
    }

    fn find(&self, id: u32, expected: &Expected) -> Result<Device, ControlError> {
        let info = self.look(id)?;
        let sectors = match info.state {
            DeviceState::Dead => expected.sectors,
            DeviceState::Live | DeviceState::Quiesced | DeviceState::FailIo => {
                self.lock().devices[&id].sectors
            }
        };
        Device::of(&info, sectors, expected)
    }

    fn add(&self, spec: &DeviceSpec) -> Result<Device, ControlError> {
        self.command("add", None, |state| {
            let id = (0..).find(|id| !state.devices.contains_key(id)).unwrap();
            let info = DeviceInfo {
                id,
                state: DeviceState::Dead,
                queues: spec.queues,
                depth: spec.depth,
                max_io_bytes: spec.max_io_bytes,
                transport: Some(spec.transport),
                server_pid: -1,
                tag: spec.tag,
                has_batches: false,
                foreign: ForeignFeatures::among(0),
            };
            let sectors = spec.sectors;
            let known = FakeDevice {
                info,
                sectors,
                is_open: false,
                is_begun: false,
                is_foreign: false,
                is_used: false,
                outlives_stop: false,
                is_deleting: false,
                loss: None,
                is_hidden: false,
            };
            state.devices.insert(id, known);
            Device::of(&info, sectors, &Expected { tag: spec.tag, sectors })
        })
    }

    fn open(&self, device: Device, threads: u16) -> Result<Vec<OpenQueues>, ControlError> {
        // The last thread has no memory, and all close their queues.
        let refuses = self.lock().refused.contains(&"queues");
        self.command("open", Some(device), |state| {
            let known = state.of(device, "open")?;
            assert!(!known.is_open, "a device is opened once");
            known.is_open = !refuses;
            let open = |queue_id| -> OpenQueues {
                let source = || io::Error::from(io::ErrorKind::OutOfMemory);
                let refused =
                    move || QueueError::Map { what: "the copy buffers", queue_id, source: source() };
                let fails = refuses && queue_id + 1 == threads;
                Box::new(move |_ring, _key| if fails { Err(refused()) } else { Ok(Vec::new()) })
            };
            Ok((0..threads).map(open).collect())
        })
    }

    fn max_queues(&self) -> u16 {
        3
    }

    fn start(&self, device: Device) -> Result<(), ControlError> {
        self.command("start", Some(device), |state| {
            let known = state.of(device, "start")?;
            assert!(known.is_open && known.info.state == DeviceState::Dead);
            known.info.state = DeviceState::Live;
            Ok(())
        })
    }

    fn can_resize(&self, _transport: Transport) -> Result<bool, Unsupported> {
        Ok(!self.lock().refused.contains(&"features"))
    }

    fn sectors(&self, device: Device) -> Result<u64, ControlError> {
        Ok(self.lock().of(device, "look")?.sectors)
    }

    fn resize(&self, device: Device, sectors: u64) -> Result<(), ControlError> {
        self.command("resize", Some(device), |state| {
            let known = state.of(device, "resize")?;
            assert!(known.info.state == DeviceState::Live && sectors > known.sectors);
            known.sectors = sectors;
            Ok(())
        })
    }

    fn start_recovery(&self, device: Device, within: Duration) -> Result<(), ControlError> {
        self.command("start_recovery", Some(device), |state| {
            let known = state.of(device, "recovery")?;
            if known.info.state == DeviceState::Quiesced && !known.is_open {
                // Linux before 6.15 responds EINVAL to the second one, or crashes (CVE-2024-46735).
                if !std::mem::replace(&mut known.is_begun, true) {
                    return Ok(());
                }
                state.violations.push(format!("second begin of the recovery of device {}", device.id()));
                let (id, command) = (device.id(), "START_USER_RECOVERY");
                return Err(ControlError::Command { id, command, source: KernelErrno::EINVAL });
            }
            if known.loss.is_some() && !known.is_open {
                return Err(ControlError::KernelLostDevice { id: device.id() });
            }
            let waited_ms = u64::try_from(within.as_millis()).unwrap();
            Err(ControlError::StillHeld { id: device.id(), state: known.info.state, waited_ms })
        })
    }

    fn flush_from_outside(&self, id: u32) -> io::Result<()> {
        let mut state = self.lock();
        state.flushes += 1;
        let known = state.devices.get_mut(&id).unwrap();
        if known.loss != Some(Loss::UntilFlushed) {
            return Err(io::ErrorKind::TimedOut.into());
        }
        (known.loss, known.info.state) = (None, DeviceState::Quiesced);
        Ok(())
    }

    fn end_recovery(&self, device: Device) -> Result<(), ControlError> {
        self.command("end_recovery", Some(device), |state| {
            let known = state.of(device, "recovery")?;
            assert!(known.is_open && known.info.state == DeviceState::Quiesced);
            known.info.state = DeviceState::Live;
            Ok(())
        })
    }

    fn keep(&self, device: Device) -> Result<(), ControlError> {
        self.lock().of(device, "look").map(drop)
    }

    fn stop(&self, device: Device) -> Result<(), ControlError> {
        self.command("stop", Some(device), |state| {
            state.of(device, "stop")?.info.state = DeviceState::Dead;
            Ok(())
        })
    }

    fn stop_unused(&self, device: Device) -> Result<(), ControlError> {
        self.command("stop_unused", Some(device), |state| {
            let known = state.of(device, "stop")?;
            if known.is_used {
                return Err(ControlError::InUse { id: device.id(), holders: Holders::default() });
            }
            known.info.state = DeviceState::Dead;
            Ok(())
        })
    }

    fn delete(&self, device: Device) -> Result<(), ControlError> {
        self.command("delete", Some(device), |state| match state.of(device, "deletion") {
            Ok(known) => {
                let (id, serves) = (known.info.id, known.info.state != DeviceState::Dead);
                let was_deleting = std::mem::replace(&mut known.is_deleting, true);
                let waits = known.outlives_stop;
                if serves {
                    state.violations.push(format!("deletion of device {id}, which was not stopped"));
                }
                if was_deleting {
                    // By then the kernel may have given the number to another device.
                    state.violations.push(format!("second deletion of device {id}"));
                }
                if waits {
                    return Err(ControlError::TimedOut { id, command: "DEL_DEV", waited_ms: 1000 });
                }
                state.devices.remove(&id);
                Ok(())
            }
            Err(ControlError::NotFound { .. }) => Ok(()),
            Err(error) => Err(error),
        })
    }

    fn restore_number(&self, _device: Device) {}

    fn check_fuse(&self) -> Result<(), Unsupported> {
        Err(Unsupported::NoDriver)
    }

    fn unkept_devices(&self) -> usize {
        0
    }
}
