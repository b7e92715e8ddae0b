//! Taking up what a predecessor left: before anybody else is spoken to, the API server and the object store included.

use std::io;
use std::sync::Arc;
use std::time::Duration;

use futures::future::join_all;
use holdfast_background::load_manifest;
use holdfast_engine::durable_map::Header;
use holdfast_engine::event::Event;
use holdfast_engine::sector_map::LiveMapError;
use holdfast_engine::volume::{Pending, Setup};
use holdfast_types::VolumeId;
use holdfast_ublk::{ControlError, Device, DeviceState};

use super::attach::Parts;
use super::background::NodeTime;
use super::board::Phase;
use super::ends_process::EndsProcess;
use super::error::{Damage, NodeError, file};
use super::live_map::LiveMap;
use super::local::{AttachedRecord, Local, VolumeFiles, volumes_under};
use super::off_runtime::blocking;
use super::ring_thread::{Message, Start};
use super::{Entry, Node, Present, QUEUE_DEPTH, QUEUES, Serving};
use crate::failure::chain;

/// How long a device may take to become quiesced after its last server died, before the daemon goes on without it.
const QUIESCE_WITHIN: Duration = Duration::from_secs(10);
/// The same once that has failed.
const QUIESCE_AGAIN_WITHIN: Duration = Duration::from_secs(1);
/// Time between two tries to take a volume up, at first and at most.
const AGAIN_AFTER: [Duration; 2] = [Duration::from_secs(1), Duration::from_secs(5)];

/// What a predecessor left of one volume.
struct Left {
    record: AttachedRecord,
    header_generation: u64,
    header: Header,
    pending: Option<Pending>,
    live_map: LiveMap,
    files: VolumeFiles,
}

impl Left {
    /// Nothing if the attach never got as far as a device.
    fn find(local: &Local) -> Result<Option<Self>, NodeError> {
        let Some(record) = local.read_record()? else {
            local.forget_attached()?;
            return Ok(None);
        };
        let Some((header_generation, header)) = local.read_header()? else {
            if record.device_id.is_some() {
                // Nobody can tell what the device's sides hold.
                return Err(file(&local.map_path(), "read")(io::ErrorKind::NotFound.into()));
            }
            // The detach came as far as putting the files away.
            local.forget_attached()?;
            return Ok(None);
        };
        let pending = local.read_pending()?;
        let live_map = LiveMap::open(&local.live_map_path())?;
        let files = local.open_files(record.sectors)?;
        Ok(Some(Self { record, header_generation, header, pending, live_map, files }))
    }
}

/// A volume of the last run on its way to be served again.
struct TakingUp {
    volume: VolumeId,
    /// Once it is on a ring thread.
    present: Option<Arc<Present>>,
    device_id: Option<u32>,
    /// Whether the device's queues wait for requests: then only the end of the recovery is missing.
    is_armed: bool,
    quiesce_within: Duration,
}

impl Node {
    /// Takes up every volume of the run directory, all at once. One that cannot be taken up is shown so and tried again.
    pub(super) async fn recover_all(&self) -> Result<(), NodeError> {
        let volumes = volumes_under(&self.0.config.run_dir)?;
        join_all(volumes.into_iter().map(|volume| self.recover(volume))).await;
        Ok(())
    }

    async fn recover(&self, volume: VolumeId) {
        let quiesce_within = QUIESCE_WITHIN;
        let mut one = TakingUp { volume, present: None, device_id: None, is_armed: false, quiesce_within };
        let Err(error) = self.take_up(&mut one).await else { return };
        self.strand(&one.volume, one.present.as_ref(), &error);
        one.quiesce_within = QUIESCE_AGAIN_WITHIN;
        let node = self.clone();
        tokio::spawn(async move {
            let _alone = EndsProcess("the taking up of a volume");
            let [mut pause, longest] = AGAIN_AFTER;
            loop {
                tokio::time::sleep(pause).await;
                match node.take_up(&mut one).await {
                    Ok(()) => {
                        return tracing::warn!(volume = %one.volume, "the volume was taken up after all");
                    }
                    Err(error) => node.strand(&one.volume, one.present.as_ref(), &error),
                }
                pause = (pause * 2).min(longest);
            }
        });
    }

    /// Shows that nobody serves a volume, and why.
    pub(super) fn strand(&self, volume: &VolumeId, present: Option<&Arc<Present>>, error: &NodeError) {
        let why = chain(error);
        let is_known = match present {
            Some(present) => {
                present.set_serving(Serving::Stranded(why.clone())) == Serving::Stranded(why.clone())
            }
            None => {
                let before = self.volumes().insert(volume.clone(), Entry::Stranded(why.clone()));
                matches!(before, Some(Entry::Stranded(known)) if known == why)
            }
        };
        if !is_known {
            tracing::error!(%volume, why, "the volume could not be taken up: its device waits, and it is tried again");
        }
    }

    /// Goes on from where the last try ended.
    async fn take_up(&self, one: &mut TakingUp) -> Result<(), NodeError> {
        let is_new = one.present.is_none();
        let present = match &one.present {
            Some(present) => Arc::clone(present),
            None => {
                let Some((present, device_id)) = self.resume(&one.volume).await? else {
                    // Nothing was served from it.
                    self.volumes().remove(&one.volume);
                    return Ok(());
                };
                one.device_id = device_id;
                Arc::clone(one.present.insert(present))
            }
        };
        let taken_up = self.take_up_device(&present, one).await;
        if is_new {
            self.load_manifest(one.volume.clone(), Arc::clone(&present));
        }
        taken_up?;
        let has_device = present.device().is_some();
        present.set_serving(if has_device { Serving::Yes } else { Serving::NotYet });
        // Without a device nobody writes: the last daemon died while it attached. Whoever wants the volume attaches anew.
        if present.is_detaching() || !has_device {
            self.let_go_in_background(one.volume.clone());
        }
        Ok(())
    }

    /// Puts what was left of a volume on a ring thread; nothing if it never served. Also tells which device it had.
    pub(super) async fn resume(
        &self,
        volume: &VolumeId,
    ) -> Result<Option<(Arc<Present>, Option<u32>)>, NodeError> {
        let local = self.local(volume);
        let found = blocking({
            let local = local.clone();
            move || Left::find(&local)
        });
        let Some(left) = found.await? else { return Ok(None) };
        let Left { record, header_generation, header, pending, live_map, files } = left;
        let AttachedRecord {
            version: _,
            device_id,
            sectors,
            epoch,
            max_age_ms,
            durability,
            detaching,
            store_name,
            store,
        } = record;
        let objects = self.0.stores.connect(&store_name, &store).await?;
        let setup = Setup {
            requests: u32::from(QUEUES) * u32::from(QUEUE_DEPTH),
            limits: self.limits(max_age_ms),
            durability,
            header,
            header_generation,
            unix_ms_at_zero: self.unix_ms_at_zero(),
        };
        let ring = self.ring();
        let parts = Parts { local: local.clone(), objects: Arc::clone(&objects), files };
        let added = self.add_to_ring(&ring, volume, parts, Start::Resume { pending }, setup, live_map).await;
        let (key, board) = match added {
            // The attach died while it made the live map: nothing was served from it.
            Err(NodeError::Damaged { source: Damage::LiveMap(LiveMapError::Head), .. })
                if device_id.is_none() =>
            {
                local.forget_attached()?;
                return Ok(None);
            }
            added => added?,
        };
        let present = Arc::new(Present {
            local,
            store_name,
            store_record: store,
            objects,
            ring,
            key,
            board,
            device: None.into(),
            serving: Serving::NotYet.into(),
            sectors,
            epoch,
            max_age_ms,
            durability,
            detaching: detaching.into(),
            letting_go: false.into(),
        });
        self.volumes().insert(volume.clone(), Entry::Present(Arc::clone(&present)));
        Ok(Some((present, device_id)))
    }

    /// Serves the device again, if there is one.
    async fn take_up_device(&self, present: &Arc<Present>, one: &mut TakingUp) -> Result<(), NodeError> {
        let Some(id) = one.device_id else { return Ok(()) };
        if let (true, Some(device)) = (one.is_armed, present.device()) {
            return blocking(move || match device.info()?.state {
                DeviceState::Live => Ok(()),
                DeviceState::Dead | DeviceState::Quiesced | DeviceState::FailIo => Ok(device.end_recovery()?),
            })
            .await;
        }
        let found = blocking(move || {
            let device = match Device::find(id) {
                Ok(device) => device,
                Err(ControlError::NotFound { .. }) => return Ok(None),
                Err(error) => return Err(error.into()),
            };
            if device.info()?.state == DeviceState::Dead {
                // It was added and never started.
                device.delete()?;
                return Ok(None);
            }
            Ok(Some(device))
        });
        let found = found.await?;
        present.set_device(found);
        let Some(device) = found else { return Ok(()) };
        let within = one.quiesce_within;
        let char_device = blocking(move || {
            device.start_recovery(within)?;
            Ok(device.open_char()?)
        })
        .await?;
        let open = |done| Message::Open { key: present.key, device, char_device, done };
        present.ring.call(open).await??;
        one.is_armed = true;
        blocking(move || Ok(device.end_recovery()?)).await
    }

    /// Reads the log once the store answers; reads of remote blocks wait until then.
    pub(super) fn load_manifest(&self, volume: VolumeId, present: Arc<Present>) {
        tokio::spawn(async move {
            let _alone = EndsProcess("the reading of a volume's log");
            tokio::select! {
                manifest = load_manifest(&*present.objects, &volume, &NodeTime) => {
                    let event = Event::ManifestLoaded(Box::new(manifest));
                    present.ring.send(Message::Event { key: present.key, event });
                }
                _ = present.board.reach(|phase| phase == Phase::Detached) => {}
            }
        });
    }

    fn let_go_in_background(&self, volume: VolumeId) {
        let node = self.clone();
        tokio::spawn(async move {
            if let Err(error) = node.detach(&volume).await {
                tracing::error!(%volume, error = &error as &dyn std::error::Error, "the detach of the last run did not end");
            }
        });
    }
}
