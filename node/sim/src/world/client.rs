//! The clients of a volume: their requests, and the stamps of their writes.

use holdfast_engine::event::{Event, Op, RequestId};
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::RuntimeSettings;
use holdfast_types::SectorRange;

use super::World;
use crate::disk::Stamp;

/// Stamps of the requests, each used once.
#[derive(Default)]
pub(crate) struct Stamps {
    /// The last stamp that another volume may have.
    before: Stamp,
    requests: u64,
}

impl Stamps {
    /// Returns the stamps of the volume with this number among several.
    pub(crate) fn of_volume(number: u64) -> Self {
        Self { before: number << 48, requests: 0 }
    }

    fn next(&mut self) -> Stamp {
        self.requests += 1;
        self.before + self.requests
    }
}

impl World {
    /// Sends a client request; `None` if the device is full.
    pub fn request(&mut self, host: usize, op: Op, range: SectorRange) -> Option<RequestId> {
        let here = &mut self.hosts[host];
        let device = here.device.as_mut().expect("a client has a device");
        let id = device.free_slot()?;
        device.issue(id, op, range, self.stamps.next(), &mut here.content.model);
        self.send_event(host, Event::Request { id, op, range });
        Some(id)
    }

    /// Grows the volume that `host` serves to `sectors`.
    pub(crate) fn grow(&mut self, host: usize, sectors: u64) {
        let process = self.hosts[host].process.as_mut();
        let Some(volume) = process.and_then(|process| process.volume.as_mut()) else { return };
        volume.memory_mut().extend_to(map_bytes(sectors));
        self.send_event(host, Event::Grow { sectors });
    }

    /// Gives these settings to the volume that `host` serves, and to a process that takes over.
    pub fn configure(&mut self, host: usize, settings: RuntimeSettings) {
        let here = &mut self.hosts[host];
        here.settings = settings;
        if let Some(device) = &mut here.device {
            device.note_durability_change();
        }
        here.lag.note_age_limit(self.clock.now());
        self.send_event(host, Event::Configure(settings));
    }

    /// Makes the volume that `host` serves commit soon, or no longer.
    pub fn commit_soon(&mut self, host: usize, soon: bool) {
        self.send_event(host, Event::CommitSoon(soon));
    }

    /// Returns the size of the device of `host`, in sectors.
    pub(crate) fn device_sectors(&self, host: usize) -> Option<u64> {
        self.hosts[host].device.as_ref().map(|device| device.sectors)
    }

    /// Requests the repair of these sectors, whose stored data a reader found damaged.
    pub(crate) fn repair(&mut self, host: usize, ranges: Vec<SectorRange>, checkpoint: bool) {
        self.dirty_check.note_repair();
        self.send_event(host, Event::Repair { ranges, checkpoint });
    }

    /// Returns the number of client requests.
    pub(crate) fn requests(&self) -> u64 {
        self.stamps.requests
    }
}
