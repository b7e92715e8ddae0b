//! The ublk driver of one host: devices with small numbers, each with a tag chosen by its server.
//!
//! Owns: the true owner of each device, which programs cannot query. Each command is checked against it
//! (invariant 26).

use std::collections::BTreeMap;

use crate::invariant::Invariant;

/// The true owner of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum DeviceOwner {
    /// The volume with this number in the fleet.
    Volume(usize),
    /// Another program.
    Foreign,
}

/// State of a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum UblkDeviceState {
    /// Added but not started, or stopped.
    Dead,
    /// Served.
    Live,
    /// Its server has exited.
    Quiesced,
}

/// The kernel's description of a device.
#[derive(Debug, Clone, Copy)]
pub(super) struct UblkDevice {
    pub(super) id: u32,
    pub(super) tag: u64,
    pub(super) state: UblkDeviceState,
    owner: DeviceOwner,
}

/// The devices of one host.
#[derive(Default)]
pub(super) struct UblkDriver {
    devices: BTreeMap<u32, UblkDevice>,
}

impl UblkDriver {
    /// Adds a device with the lowest free number, like `idr_alloc`.
    pub(super) fn add(&mut self, tag: u64, owner: DeviceOwner) -> u32 {
        let id = (0..).find(|id| !self.devices.contains_key(id)).expect("there are few devices");
        self.devices.insert(id, UblkDevice { id, tag, state: UblkDeviceState::Dead, owner });
        id
    }

    /// Describes the device with this number.
    pub(super) fn describe(&self, id: u32) -> Option<UblkDevice> {
        self.devices.get(&id).copied()
    }

    /// Returns true if the kernel has a device of this owner.
    pub(super) fn has_device_of(&self, owner: DeviceOwner) -> bool {
        self.devices.values().any(|device| device.owner == owner)
    }

    /// Returns all devices, by number.
    pub(super) fn list(&self) -> impl Iterator<Item = UblkDevice> {
        self.devices.values().copied()
    }

    /// Starts a new device, or ends the recovery of one whose server has exited.
    pub(super) fn serve(&mut self, id: u32, by: DeviceOwner) {
        self.change(id, by, "served", UblkDeviceState::Live);
    }

    /// Removes the block device.
    pub(super) fn stop(&mut self, id: u32, by: DeviceOwner) {
        self.change(id, by, "stopped", UblkDeviceState::Dead);
    }

    /// Removes the device.
    pub(super) fn delete(&mut self, id: u32, by: DeviceOwner) {
        self.check(id, by, "deleted");
        self.devices.remove(&id);
    }

    /// Removes a device that no volume has, or that its owner lost.
    pub(super) fn discard(&mut self, id: u32) {
        self.devices.remove(&id);
    }

    /// Quiesces the devices of a daemon whose process has ended, for its successor.
    pub(super) fn daemon_died(&mut self) {
        for device in self.devices.values_mut() {
            if device.owner != DeviceOwner::Foreign && device.state == UblkDeviceState::Live {
                device.state = UblkDeviceState::Quiesced;
            }
        }
    }

    /// Removes all devices after a power loss of the host.
    pub(super) fn lose_power(&mut self) {
        self.devices.clear();
    }

    fn change(&mut self, id: u32, by: DeviceOwner, what: &str, state: UblkDeviceState) {
        self.check(id, by, what);
        if let Some(device) = self.devices.get_mut(&id) {
            device.state = state;
        }
    }

    fn check(&self, id: u32, by: DeviceOwner, what: &str) {
        let Some(device) = self.devices.get(&id) else { return };
        Invariant::DevicesAreOwn
            .check(device.owner == by, || format!("device {id} of {:?} is {what} by {by:?}", device.owner));
    }
}

impl UblkDevice {
    pub(super) fn is_foreign(&self) -> bool {
        self.owner == DeviceOwner::Foreign
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_lowest_free_number_is_handed_out() {
        let mut kernel = UblkDriver::default();
        let ids = [(); 3].map(|()| kernel.add(1, DeviceOwner::Volume(0)));
        assert_eq!(ids, [0, 1, 2]);
        kernel.delete(1, DeviceOwner::Volume(0));
        assert_eq!(kernel.add(1, DeviceOwner::Volume(0)), 1);
    }

    #[test]
    fn only_what_the_daemon_served_waits_for_its_successor() {
        let mut kernel = UblkDriver::default();
        for (id, owner) in
            [DeviceOwner::Volume(0), DeviceOwner::Foreign, DeviceOwner::Volume(1)].into_iter().enumerate()
        {
            kernel.add(1, owner);
            if id < 2 {
                kernel.serve(id as u32, owner);
            }
        }
        kernel.daemon_died();
        let states: Vec<UblkDeviceState> = kernel.list().map(|device| device.state).collect();
        assert_eq!(states, [UblkDeviceState::Quiesced, UblkDeviceState::Live, UblkDeviceState::Dead]);
    }
}
