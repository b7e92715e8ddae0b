//! Recovery of the previous process's volumes, before any request to the API server or the object store.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_background::load_manifest;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::Event;
use holdfast_engine::sector_map::LiveMapError;
use holdfast_engine::settings::{Pending, RuntimeSettings, Setup};
use holdfast_service::chain;
use holdfast_types::{Backoff, Jitter, VolumeId};
use holdfast_ublk::{ControlError, Device, DeviceState, Expected};
use tokio::sync::oneshot;
use tracing::Instrument;

use crate::node::clock::NodeTime;
use crate::node::clock::unix_ms_at_zero;
use crate::node::device::kernel::Devices;
use crate::node::device::orphans::DeviceSweep;
use crate::node::device::tag::{DeviceTag, Installation};
use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::attached_record::AttachedRecord;
use crate::node::local::live_map;
use crate::node::local::volume_files::{Local, VolumeFiles, attached_volumes};
use crate::node::ring::shape::DeviceShape;
use crate::node::run_blocking::{blocking, run_blocking};
use crate::node::volume::attach::Joining;
use crate::node::volume::device::{delete_stopped, serve};
use crate::node::volume::own_log::OwnLog;
use crate::node::volume::present::{Present, VolumeStore, WriterTerms};
use crate::node::volume::state::{State, StateCell, StateEvent, WriterState};
use crate::node::{DataPlane, Node, VolumeSettings};
use holdfast_serve::LiveMap;
use holdfast_serve::Message;
use holdfast_serve::Start;

/// Maximum time from the death of a device's last server until it is quiesced, before the daemon continues
/// without it.
const QUIESCE_WITHIN: Duration = Duration::from_secs(10);
/// The same after the first failure.
const QUIESCE_AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// Interval between attempts to recover or release a volume.
const AGAIN_AFTER: Backoff =
    Backoff { first: Duration::from_secs(1), last: Duration::from_secs(5), jitter: Jitter::Half };
/// Interval between attempts to recover a device lost by the kernel: only a restart of the host is known to
/// help.
const LOST_AGAIN_AFTER: Duration = Duration::from_secs(60);

/// Record and device of a volume left by a predecessor.
struct FoundDevice {
    record: AttachedRecord,
    device: Option<Device>,
}

impl FoundDevice {
    /// Returns `None` if the attach did not get as far as a device.
    fn find(
        local: &Local,
        devices: &Arc<dyn Devices>,
        installation: Installation,
    ) -> Result<Option<Self>, NodeError> {
        local.check_layout()?;
        let Some(mut record) = local.read_record()? else {
            local.forget_attached()?;
            return Ok(None);
        };
        if record.tag != installation.tag(local.volume(), record.epoch).0 {
            return Err(NodeError::OtherInstallation(local.volume().clone()));
        }
        let device = device_of(devices, local, &mut record)?;
        Ok(Some(Self { record, device }))
    }
}

/// State of a volume left by a predecessor.
struct LeftVolume {
    record: AttachedRecord,
    /// The device, whose last server has exited.
    device: Option<Device>,
    device_sectors: u64,
    header_generation: u64,
    header: Header,
    pending: Option<Pending>,
    live_map: LiveMap,
    files: VolumeFiles,
}

impl LeftVolume {
    /// Reads the files of a volume, which no earlier process writes any more. `None` if the detach had
    /// started to clear the files.
    fn read(local: &Local, devices: &dyn Devices, found: FoundDevice) -> Result<Option<Self>, NodeError> {
        let FoundDevice { record, device } = found;
        let device_sectors = match device {
            Some(device) => devices.sectors(device)?,
            None => record.sectors,
        };
        let Some((header_generation, header)) = local.read_header()? else {
            if device.is_some() {
                // The contents of the device's sides are unknown.
                return Err(file(&local.map_path(), "read")(io::ErrorKind::NotFound.into()));
            }
            local.forget_attached()?;
            return Ok(None);
        };
        local.check_sides(header.sectors)?;
        let pending = local.read_pending()?;
        let live_map = live_map::open(&local.live_map_path(), header.sectors)?;
        let files = local.open_files(record.sectors)?;
        Ok(Some(Self { record, device, device_sectors, header_generation, header, pending, live_map, files }))
    }
}

/// A volume of the previous process during its recovery.
pub(in crate::node) struct Recovery {
    volume: VolumeId,
    state: Arc<StateCell>,
    /// Its device, once the kernel has started the recovery. This is done once, even if a later step fails:
    /// kernels before 6.15 reject a second start, or crash ([`Device::start_recovery`]).
    begun: Option<Device>,
    /// Present once it is on a ring thread.
    present: Option<Arc<Present>>,
    /// True if the device's queues are armed: only the end of the recovery is missing.
    is_armed: bool,
    quiesce_within: Duration,
}

impl Recovery {
    /// Publishes the reason of a failed attempt.
    pub(in crate::node) fn failed(&self, error: &NodeError) {
        let why = chain(error);
        let is_known = self
            .state
            .with(|state| matches!(state, State::Recovering { error: Some(known), .. } if *known == why));
        if !is_known {
            tracing::error!(
                volume = %self.volume,
                why,
                "recovery of the volume failed; its device is paused and the recovery is retried"
            );
        }
        self.state.apply(&StateEvent::RecoveryFailed(why));
    }
}

impl Node {
    /// Recovers every volume of the run directory, including memory volumes, concurrently. A failed recovery
    /// is reported and retried; one that takes longer than `within` continues in the background.
    pub(in crate::node) async fn recover_all(&self, within: Duration) -> Result<(), NodeError> {
        let volumes = attached_volumes(&self.0.dirs)?;
        let mut tries: Vec<_> = volumes
            .iter()
            .map(|volume| {
                let (ends, ended) = oneshot::channel::<()>();
                let recovery = self.clone().recover(self.recovery(volume.clone()));
                self.0.tasks.spawn(async move {
                    let _at_the_end = ends;
                    recovery.await;
                });
                ended
            })
            .collect();
        let (memory_tags, memory_tries) = self.recover_memory()?;
        tries.extend(memory_tries);
        let first = async {
            // No attach adds a device yet.
            let DataPlane { devices, installation, tasks, dirs, .. } = &*self.0;
            let sweep = DeviceSweep { devices: devices.kernel(), installation: *installation, tasks };
            sweep.run(volumes.iter().map(|volume| dirs.of(volume)).collect(), memory_tags).await;
            join_all(tries).await
        };
        if tokio::time::timeout(within, first).await.is_err() {
            tracing::error!("some devices are not recovered yet; the others are already served");
        }
        Ok(())
    }

    /// Reserves a volume for its recovery, and blocks attaches of it.
    pub(in crate::node) fn recovery(&self, volume: VolumeId) -> Recovery {
        let state = self.0.volumes.recover(volume.clone());
        Recovery {
            volume,
            state,
            begun: None,
            present: None,
            is_armed: false,
            quiesce_within: QUIESCE_WITHIN,
        }
    }

    #[tracing::instrument(skip_all, fields(volume = %recovery.volume, epoch, device))]
    async fn recover(self, mut recovery: Recovery) {
        let _alone = ExitOnPanic("the recovery of a volume");
        let Err(error) = self.try_recover(&mut recovery).await else { return };
        recovery.failed(&error);
        recovery.quiesce_within = QUIESCE_AGAIN_WITHIN;
        let node = self.clone();
        self.0.tasks.spawn(node.recover_again(recovery).in_current_span());
    }

    async fn recover_again(self, mut recovery: Recovery) {
        let _alone = ExitOnPanic("the recovery of a volume");
        let mut was_flushed = false;
        let mut attempt = 1;
        let mut pause = AGAIN_AFTER.delay(attempt, fastrand::f64());
        loop {
            tokio::time::sleep(pause).await;
            match self.try_recover(&mut recovery).await {
                Ok(()) => {
                    return tracing::warn!(volume = %recovery.volume, "volume recovered after a retry");
                }
                Err(error) => {
                    recovery.failed(&error);
                    if let NodeError::Device(ControlError::KernelLostDevice { id }) = error {
                        if was_flushed {
                            pause = LOST_AGAIN_AFTER;
                        } else {
                            self.0.devices.flush_lost(id).await;
                            was_flushed = true;
                        }
                        continue;
                    }
                }
            }
            attempt += 1;
            pause = AGAIN_AFTER.delay(attempt, fastrand::f64());
        }
    }

    /// Resumes where the last attempt ended.
    async fn try_recover(&self, recovery: &mut Recovery) -> Result<(), NodeError> {
        let (present, is_new) = match &recovery.present {
            Some(present) => (Arc::clone(present), false),
            None => {
                let Some(present) = self.resume(recovery).await? else {
                    // The volume never served.
                    self.0.volumes.forget(&recovery.volume, &recovery.state);
                    return Ok(());
                };
                (Arc::clone(recovery.present.insert(present)), true)
            }
        };
        let device = present.device();
        let served = match device {
            Some(device) => self.serve_again(&present, device, recovery).await,
            None => Ok(()),
        };
        if is_new {
            self.load_manifest(recovery.volume.clone(), Arc::clone(&present));
        }
        served?;
        serve(&present, &StateEvent::Recovered);
        if let Some(device) = device {
            let one_at_a_time = Arc::clone(&present.growing).lock_owned().await;
            if let Err(error) = self.0.devices.grow(&present, device, one_at_a_time).await {
                // The device serves with its current size; the next request for the growth resumes the
                // growth.
                tracing::warn!(volume = %recovery.volume, error = chain(&error), "the device of a volume did not grow; its recorded growth is incomplete");
            }
        }
        // Without a device nothing writes: the previous process died during an attach. The next attach starts
        // from the beginning.
        if present.is_detaching() || device.is_none() {
            self.detach_in_background(present);
        }
        Ok(())
    }

    /// Adds a left volume to a ring thread, with its device if it has one; `None` if it never served.
    /// Background work from here on (flush rounds, uploads) cannot collide with writes of the last server.
    pub(in crate::node) async fn resume(
        &self,
        recovery: &mut Recovery,
    ) -> Result<Option<Arc<Present>>, NodeError> {
        let local = self.0.dirs.of(&recovery.volume);
        let Some(left) = self.left(recovery, &local).await? else {
            recovery.state.apply(&StateEvent::Found { device: None, is_detaching: false });
            return Ok(None);
        };
        let (device, is_detaching) = (left.device, left.record.detaching);
        let device_sectors = left.device_sectors;
        let span = tracing::Span::current();
        span.record("epoch", left.record.epoch).record("device", device.map(|device| device.id()));
        let joining = self.joining(recovery, local.clone(), left)?;
        // Applied before the volume is published: its record is written from this state.
        recovery.state.apply(&StateEvent::Found { device, is_detaching });
        let present = match self.add_to_ring(joining).await {
            // The attach died while it created the live map: the volume never served.
            Err(NodeError::Damaged { source: LocalDamage::LiveMap(LiveMapError::Head), .. })
                if device.is_none() =>
            {
                local.forget_attached()?;
                return Ok(None);
            }
            added => added?,
        };
        present.set_device_sectors(device_sectors);
        Ok(Some(present))
    }

    /// Reads the state of a volume left by the previous process, after that process's last write has ended
    /// and the kernel has started the recovery of the device.
    async fn left(&self, recovery: &mut Recovery, local: &Local) -> Result<Option<LeftVolume>, NodeError> {
        self.0.rings.earlier().are_gone(recovery.quiesce_within).await?;
        let (kernel, installation) = (self.0.devices.kernel(), self.0.installation);
        let found = blocking({
            let (local, kernel) = (local.clone(), Arc::clone(kernel));
            move || FoundDevice::find(&local, &kernel, installation)
        });
        let Some(found) = found.await? else { return Ok(None) };
        if let Some(device) = found.device.filter(|device| recovery.begun != Some(*device)) {
            self.0.devices.begin_recovery(device, recovery.quiesce_within).await?;
            recovery.begun = Some(device);
        }
        let (local, kernel) = (local.clone(), Arc::clone(kernel));
        blocking(move || LeftVolume::read(&local, &*kernel, found)).await
    }

    /// Reserves a place on a ring thread for a volume, and combines it with the left state.
    fn joining(&self, recovery: &Recovery, local: Local, left: LeftVolume) -> Result<Joining, NodeError> {
        let LeftVolume {
            record,
            device,
            device_sectors: _,
            header_generation,
            header,
            pending,
            live_map,
            files,
        } = left;
        let AttachedRecord {
            version: _,
            tag,
            device_id: _,
            sectors,
            epoch,
            max_age_ms,
            durability,
            limits: io_limits,
            displaced,
            detaching: _,
            store_name,
            store,
        } = record;
        // Sends nothing: the device is served even if the store cannot be connected.
        let objects = self.0.stores.open(&store_name, &store);
        let log = OwnLog::of(&header, epoch, pending.as_ref());
        // As its device was added, perhaps by another version.
        let shape = device.map_or(DeviceShape::NONE, DeviceShape::from);
        let requests = shape.requests();
        let limits = self.limits(max_age_ms);
        let unix_ms_at_zero = unix_ms_at_zero();
        let setup = Setup { requests, limits, durability, header, header_generation, unix_ms_at_zero };
        let (ring, place) = self.0.rings.reserve(shape.need())?;
        let displaced = displaced.map(Into::into);
        Ok(Joining {
            state: Arc::clone(&recovery.state),
            local,
            store: VolumeStore { name: store_name, objects, requests: Arc::default(), log },
            terms: WriterTerms {
                tag: DeviceTag(tag),
                sectors,
                epoch,
                settings: VolumeSettings {
                    planner: RuntimeSettings { max_age_ms, durability },
                    limits: io_limits.map(Into::into).unwrap_or_default(),
                },
                displaced,
            },
            files,
            live_map,
            ring,
            place,
            shape,
            start: Start::Resume { pending },
            setup,
            fork_start: None,
        })
    }

    /// Resumes service of a device whose last server has exited.
    async fn serve_again(
        &self,
        present: &Present,
        device: Device,
        recovery: &mut Recovery,
    ) -> Result<(), NodeError> {
        if !recovery.is_armed {
            self.0.devices.arm(present, device).await?;
            recovery.is_armed = true;
        }
        self.0.devices.serve_again(present, device).await
    }

    /// Reads the log once the store responds; reads of remote blocks wait until then.
    pub(in crate::node) fn load_manifest(&self, volume: VolumeId, present: Arc<Present>) {
        self.0.tasks.spawn(async move {
            let _alone = ExitOnPanic("the reading of a volume's log");
            tokio::select! {
                manifest = load_manifest(&*present.objects, &volume, &NodeTime) => {
                    let event = Event::ManifestLoaded(Box::new(manifest));
                    present.ring.send(Message::Event { key: present.key, event }).await;
                }
                _ = present.state.reach(|state| matches!(state.writer(), None | Some(WriterState::Detached))) => {}
            }
        });
    }

    /// Completes the detach of the previous process, or releases a volume left by an attach without a device.
    /// Retries until the volume is off this node. A device in use stays served, as after any detach: the
    /// detach is then cancelled.
    pub(in crate::node) fn detach_in_background(&self, present: Arc<Present>) {
        let node = self.clone();
        self.0.tasks.spawn(async move {
            let volume = present.local.volume();
            let mut attempt = 0;
            let mut known = String::new();
            loop {
                let error = match node.release(&present).await {
                    Ok(()) => return,
                    Err(error) => error,
                };
                let why = chain(&error);
                if !node.0.volumes.has(&present) {
                    return tracing::warn!(%volume, why, "the volume left the node while its detach failed");
                }
                if !present.is_detaching() {
                    return tracing::warn!(%volume, why, "the detach of the previous process was cancelled");
                }
                if known != why {
                    tracing::error!(%volume, why, "the detach of the previous process failed; it is retried");
                    known = why;
                }
                attempt += 1;
                tokio::time::sleep(AGAIN_AFTER.delay(attempt, fastrand::f64())).await;
                // A concurrent detach by a user may have cancelled it.
                if !present.is_detaching() || !node.0.volumes.has(&present) {
                    return;
                }
            }
        });
    }
}

/// Returns the device that served the volume, if it still exists; otherwise clears the record's number.
///
/// The tag decides, not the number: another device may have the number by now, and the last daemon may have
/// died before it recorded the number.
fn device_of(
    devices: &Arc<dyn Devices>,
    local: &Local,
    record: &mut AttachedRecord,
) -> Result<Option<Device>, NodeError> {
    let expected = Expected { tag: record.tag, sectors: record.sectors };
    let numbered = match record.device_id {
        Some(id) => found(devices.find(id, &expected))?,
        None => None,
    };
    let found = match numbered {
        Some(device) => Some(device),
        None => tagged(&**devices, &expected)?,
    };
    let served = match found {
        Some(device) if devices.look(device.id())?.state == DeviceState::Dead => None,
        found => found,
    };
    let device_id = served.map(|device| device.id());
    if record.device_id != device_id {
        record.device_id = device_id;
        local.write_record(record)?;
    }
    match (served, found) {
        (Some(device), _) => Ok(Some(device)),
        (None, Some(unused)) => {
            // The device was added but not started, or is stopped. The volume does not wait for programs that
            // have it open.
            let devices = Arc::clone(devices);
            tokio::spawn(run_blocking(move || delete_stopped(&*devices, unused)));
            Ok(None)
        }
        (None, None) => Ok(None),
    }
}

/// Returns the device with this tag.
pub(in crate::node) fn tagged(
    devices: &dyn Devices,
    expected: &Expected,
) -> Result<Option<Device>, NodeError> {
    for id in devices.list()? {
        match devices.look(id) {
            Ok(info) if info.tag == expected.tag => return found(devices.find(id, expected)),
            Ok(_) | Err(ControlError::NotFound { .. } | ControlError::NotOurs { .. }) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Ok(None)
}

fn found(device: Result<Device, ControlError>) -> Result<Option<Device>, NodeError> {
    match device {
        Ok(device) => Ok(Some(device)),
        Err(ControlError::NotFound { .. } | ControlError::NotOurs { .. }) => Ok(None),
        Err(error) => Err(error.into()),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_ublk::{DeviceInfo, ForeignFeatures, Transport};

    use super::*;
    use crate::node::ring::room::{RingNeed, VOLUME_FILES};

    /// Regression, found in review: a recovered device had space for as many requests as this version's
    /// devices, regardless of its own depth; a greater tag ended the process.
    #[test]
    fn a_recovered_device_has_room_for_all_its_tags() {
        let info = DeviceInfo {
            id: 1,
            state: DeviceState::Quiesced,
            queues: 2,
            depth: 256,
            max_io_bytes: 1 << 20,
            transport: Some(Transport::ZeroCopy),
            server_pid: -1,
            tag: 5,
            has_batches: false,
            foreign: ForeignFeatures::among(0),
        };
        let device = Device::of(&info, 64, &Expected { tag: 5, sectors: 64 }).unwrap();
        let shape = DeviceShape::from(device);
        assert_eq!((shape.requests(), shape.need()), (512, RingNeed(VOLUME_FILES + 2)));
        assert_eq!(shape.max_io_bytes, 1 << 20);
    }
}
