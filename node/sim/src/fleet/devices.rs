//! The daemon's handling of the kernel's devices on one host, by records in its run directory.
//!
//! ```text
//!   Unknown --write the record--> Begun --add--> Added --note the number--> Noted --start--> Serving
//!   Serving --stop--> Stopped --clear the number--> Cleared --delete--> Gone
//!   Begun --the client stopped--> Gone
//!
//!   Unknown, with the record of an earlier process, by the state of the device with the record's tag:
//!     not dead ---------------------> Found --recover--> Serving
//!     dead -----clear the number----> Cleared
//!     no device --clear the number--> Gone
//! ```
//!
//! Owns: the records, and a process's knowledge of each volume's device. The process may die between any
//! two steps.
//! Invariant: the record receives the number after the device is added, and loses it before the device is
//! deleted.

use holdfast_format::safeguard::{
    Safeguard::{CheckDeviceTag, ClearRecordFirst, SweepOnlyOwn},
    safeguard,
};

use super::kernel::{DeviceOwner, UblkDeviceState, UblkDriver};
use crate::host::Access;
use crate::invariant::Invariant;

/// Record of an attached volume in the run directory.
#[derive(Debug, Clone, Copy)]
struct DeviceRecord {
    /// The tag of its device, known before the device exists.
    tag: u64,
    device: Option<u32>,
}

/// Progress of a process with the device of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum DeviceStage {
    /// The process has not checked the device.
    Unknown,
    /// An attach has not added the device yet.
    Begun,
    Added(u32),
    Noted(u32),
    Found(u32),
    Serving(u32),
    Stopped(u32),
    Cleared(u32),
    /// The volume's device is removed.
    Gone,
}

/// A completed step: a number for it, and its description.
pub(super) type TraceEntry = (u8, &'static str);

/// Facts about a served volume that a step needs.
#[derive(Debug, Clone, Copy)]
pub(super) struct VolumeFacts {
    /// True if the engine allows a device.
    pub(super) is_ready: bool,
    /// True if the client has stopped for a detach.
    pub(super) is_closed: bool,
    /// Identifies the attach.
    pub(super) attach: u32,
}

/// The devices of the volumes of one host, as known to the daemon.
pub(super) struct HostDevices {
    /// The identity of the state directory.
    installation: u32,
    records: Vec<Option<DeviceRecord>>,
    stages: Vec<DeviceStage>,
    /// True if this process has searched for devices without a record.
    has_swept: bool,
}

impl HostDevices {
    pub(super) fn new(installation: u32, volumes: usize) -> Self {
        Self {
            installation,
            records: vec![None; volumes],
            stages: vec![DeviceStage::Unknown; volumes],
            has_swept: false,
        }
    }

    fn tag(&self, attach: u32) -> u64 {
        u64::from(self.installation) << 32 | u64::from(attach)
    }

    /// Drops the memory of a process that has ended.
    pub(super) fn daemon_died(&mut self) {
        self.stages.fill(DeviceStage::Unknown);
        self.has_swept = false;
    }

    /// Drops the run directory, too, which is in memory.
    pub(super) fn lose_power(&mut self) {
        self.daemon_died();
        self.records.fill(None);
    }

    /// Returns true if a clean-up program may consider this device unused: its server has exited.
    pub(super) fn is_unserved(&self, id: u32) -> bool {
        !self.stages.iter().any(|stage| stage.device() == Some(id))
    }

    /// Takes the next step for a volume whose engine runs here. Returns the step, if any.
    pub(super) fn step(
        &mut self,
        kernel: &mut UblkDriver,
        volume: usize,
        now: VolumeFacts,
    ) -> Option<TraceEntry> {
        if !std::mem::replace(&mut self.has_swept, true) {
            self.delete_unnoted_devices(kernel);
        }
        let before = self.stages[volume];
        let after = self.next_stage(kernel, volume, now);
        self.stages[volume] = after;
        (before != after).then(|| after.trace_entry())
    }

    /// Handles a volume that is neither served here nor to be recovered.
    pub(super) fn forget_volume(&mut self, kernel: &mut UblkDriver, volume: usize) {
        let mut stage = std::mem::replace(&mut self.stages[volume], DeviceStage::Unknown);
        if stage == DeviceStage::Unknown && self.records[volume].is_some() {
            // A process searches for the device of a record before the volume's files.
            stage = self.find_device(kernel, volume);
            if let DeviceStage::Cleared(id) = stage {
                self.delete(kernel, volume, id);
                stage = DeviceStage::Gone;
            }
        }
        Invariant::DevicesAreOwn.check(stage.device().is_none(), || {
            format!("the volume left its ring, and its device is {stage:?}")
        });
        Invariant::DevicesAreOwn.check(!kernel.has_device_of(DeviceOwner::Volume(volume)), || {
            format!("volume {volume} left the host, and the kernel still has a device of it")
        });
        self.records[volume] = None;
    }

    /// Returns the permissions of the volume.
    pub(super) fn access(&self, volume: usize) -> Access {
        match self.stages[volume] {
            DeviceStage::Serving(_) => Access::Open,
            DeviceStage::Gone => Access::Gone,
            DeviceStage::Unknown
            | DeviceStage::Begun
            | DeviceStage::Added(_)
            | DeviceStage::Noted(_)
            | DeviceStage::Found(_)
            | DeviceStage::Stopped(_)
            | DeviceStage::Cleared(_) => Access::Shut,
        }
    }

    fn next_stage(&mut self, kernel: &mut UblkDriver, volume: usize, now: VolumeFacts) -> DeviceStage {
        let owner = DeviceOwner::Volume(volume);
        match self.stages[volume] {
            DeviceStage::Unknown if self.records[volume].is_some() => self.find_device(kernel, volume),
            DeviceStage::Unknown => {
                self.records[volume] = Some(DeviceRecord { tag: self.tag(now.attach), device: None });
                DeviceStage::Begun
            }
            DeviceStage::Begun if now.is_closed => DeviceStage::Gone,
            DeviceStage::Begun if now.is_ready => DeviceStage::Added(kernel.add(self.tag(now.attach), owner)),
            DeviceStage::Added(id) => {
                self.record_number(volume, Some(id));
                DeviceStage::Noted(id)
            }
            DeviceStage::Noted(id) | DeviceStage::Found(id) => {
                kernel.serve(id, owner);
                DeviceStage::Serving(id)
            }
            DeviceStage::Serving(id) if now.is_closed => {
                kernel.stop(id, owner);
                DeviceStage::Stopped(id)
            }
            DeviceStage::Stopped(id) if !safeguard(ClearRecordFirst) => {
                self.delete(kernel, volume, id);
                DeviceStage::Cleared(id)
            }
            DeviceStage::Stopped(id) => {
                self.record_number(volume, None);
                DeviceStage::Cleared(id)
            }
            DeviceStage::Cleared(_) if !safeguard(ClearRecordFirst) => {
                self.record_number(volume, None);
                DeviceStage::Gone
            }
            DeviceStage::Cleared(id) => {
                self.delete(kernel, volume, id);
                DeviceStage::Gone
            }
            stage @ (DeviceStage::Begun | DeviceStage::Serving(_) | DeviceStage::Gone) => stage,
        }
    }

    /// Searches for the device with the tag of an earlier process's record: under the number in the
    /// record, then under every other. That process may have died before it noted the number, or between
    /// clearing it and deleting the device.
    fn find_device(&mut self, kernel: &UblkDriver, volume: usize) -> DeviceStage {
        let DeviceRecord { tag, device } = self.records[volume].expect("an earlier process wrote it");
        let numbered = device.and_then(|id| kernel.describe(id));
        let own = numbered.filter(|device| device.tag == tag || !safeguard(CheckDeviceTag));
        match own.or_else(|| kernel.list().find(|device| device.tag == tag)) {
            Some(device) if device.state != UblkDeviceState::Dead => DeviceStage::Found(device.id),
            // It was added and never started, or it was stopped.
            Some(device) => {
                self.record_number(volume, None);
                DeviceStage::Cleared(device.id)
            }
            None => {
                self.record_number(volume, None);
                DeviceStage::Gone
            }
        }
    }

    fn record_number(&mut self, volume: usize, device: Option<u32>) {
        let record = self.records[volume].as_mut().expect("it is written before the device is added");
        record.device = device;
    }

    fn delete(&self, kernel: &mut UblkDriver, volume: usize, id: u32) {
        let named = self.records[volume].is_some_and(|record| record.device == Some(id));
        Invariant::DevicesAreOwn
            .check(!named, || format!("device {id} is deleted, and its record still names it"));
        kernel.delete(id, DeviceOwner::Volume(volume));
    }

    /// Deletes devices that an earlier process added and did not note, except those that served.
    fn delete_unnoted_devices(&self, kernel: &mut UblkDriver) {
        let known = |tag| self.records.iter().flatten().any(|record| record.tag == tag);
        let is_ours = |tag: u64| tag >> 32 == u64::from(self.installation) || !safeguard(SweepOnlyOwn);
        let orphans: Vec<_> = kernel
            .list()
            .filter(|device| {
                is_ours(device.tag) && !known(device.tag) && device.state == UblkDeviceState::Dead
            })
            .collect();
        for orphan in orphans {
            Invariant::DevicesAreOwn.check(!orphan.is_foreign(), || {
                format!("device {} of another program is deleted as a leftover", orphan.id)
            });
            kernel.discard(orphan.id);
        }
    }
}

impl HostDevices {
    /// Checks, at the end of a run without volumes, that the next process deletes all of its own devices.
    pub(super) fn check_end(&mut self, kernel: &mut UblkDriver) {
        self.daemon_died();
        self.delete_unnoted_devices(kernel);
        let left: Vec<_> = kernel.list().filter(|device| !device.is_foreign()).collect();
        Invariant::DevicesAreOwn
            .check(left.is_empty(), || format!("devices of no volume are left: {left:?}"));
    }
}

impl DeviceStage {
    const fn trace_entry(self) -> TraceEntry {
        match self {
            Self::Unknown => (96, "the device is forgotten"),
            Self::Begun => (97, "the volume's record is written"),
            Self::Added(_) => (98, "the device is added"),
            Self::Noted(_) => (99, "the device's number is written"),
            Self::Found(_) => (100, "the device is found again"),
            Self::Serving(_) => (101, "the device is served"),
            Self::Stopped(_) => (102, "the device is stopped"),
            Self::Cleared(_) => (103, "the device's number is cleared"),
            Self::Gone => (104, "the volume has no device"),
        }
    }

    fn device(self) -> Option<u32> {
        match self {
            Self::Unknown | Self::Begun | Self::Gone => None,
            Self::Added(id)
            | Self::Noted(id)
            | Self::Found(id)
            | Self::Serving(id)
            | Self::Stopped(id)
            | Self::Cleared(id) => Some(id),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SERVED: VolumeFacts = VolumeFacts { is_ready: true, is_closed: false, attach: 7 };

    /// Returns the state after a process died between adding a device and noting its number.
    fn with_unnoted_device() -> (UblkDriver, HostDevices) {
        let (mut kernel, mut devices) = (UblkDriver::default(), HostDevices::new(0xb100_0000, 1));
        for _ in 0..2 {
            devices.step(&mut kernel, 0, SERVED);
        }
        assert_eq!(devices.stages[0], DeviceStage::Added(0));
        assert_eq!(devices.records[0].and_then(|record| record.device), None);
        kernel.daemon_died();
        devices.daemon_died();
        (kernel, devices)
    }

    /// Regression, found by seed 76: a record without a number left a dead device permanently.
    #[test]
    fn an_unnoted_device_is_found_by_its_tag() {
        let (mut kernel, mut devices) = with_unnoted_device();
        for _ in 0..2 {
            devices.step(&mut kernel, 0, SERVED);
        }
        assert_eq!(kernel.list().count(), 0);
    }

    #[test]
    fn an_unnoted_device_goes_with_its_volume() {
        let (mut kernel, mut devices) = with_unnoted_device();
        devices.forget_volume(&mut kernel, 0);
        assert_eq!(kernel.list().count(), 0);
    }
}
