//! Taking up what a predecessor left: before anybody else is spoken to, the API server and the object store included.

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
use super::error::{Damage, NodeError};
use super::live_map::LiveMap;
use super::local::{AttachedRecord, Local, VolumeFiles, volumes_under};
use super::off_runtime::blocking;
use super::ring_thread::{Message, Start};
use super::{Entry, Node, Present, QUEUE_DEPTH, QUEUES};

/// How long a device may take to become quiesced after its last server died.
const QUIESCE_WITHIN: Duration = Duration::from_secs(60);

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
        let (Some(record), Some((header_generation, header))) = (local.read_record()?, local.read_header()?)
        else {
            local.forget_attached()?;
            return Ok(None);
        };
        let pending = local.read_pending()?;
        let live_map = LiveMap::open(&local.live_map_path())?;
        let files = local.open_files(record.sectors)?;
        Ok(Some(Self { record, header_generation, header, pending, live_map, files }))
    }
}

impl Node {
    /// Takes up every volume of the run directory, all at once. One that cannot be taken up is logged and left alone.
    pub(super) async fn recover_all(&self) -> Result<(), NodeError> {
        let volumes = volumes_under(&self.0.config.run_dir)?;
        let recovered = join_all(volumes.iter().map(|volume| self.recover(volume))).await;
        for (volume, result) in volumes.iter().zip(recovered) {
            if let Err(error) = result {
                tracing::error!(%volume, error = &error as &dyn std::error::Error, "the volume could not be taken up");
            }
        }
        Ok(())
    }

    async fn recover(&self, volume: &VolumeId) -> Result<(), NodeError> {
        let local = self.local(volume);
        let found = blocking({
            let local = local.clone();
            move || Left::find(&local)
        });
        let Some(left) = found.await? else { return Ok(()) };
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
            Err(NodeError::Damaged { source: Damage::LiveMap(LiveMapError::Head), .. }) => {
                return local.forget_attached();
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
            sectors,
            epoch,
            max_age_ms,
            durability,
            detaching: detaching.into(),
            letting_go: false.into(),
        });
        self.volumes().insert(volume.clone(), Entry::Present(Arc::clone(&present)));
        let taken_up = match device_id {
            Some(id) => self.take_up_device(&present, id).await,
            None => Ok(()),
        };
        self.load_manifest(volume.clone(), Arc::clone(&present));
        // Without a device nobody writes: the last daemon died while it attached. Whoever wants the volume attaches anew.
        if taken_up.is_ok() && (detaching || present.device().is_none()) {
            self.let_go_in_background(volume.clone());
        }
        taken_up
    }

    async fn take_up_device(&self, present: &Arc<Present>, id: u32) -> Result<(), NodeError> {
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
        let Some(device) = found.await? else { return Ok(()) };
        present.set_device(Some(device));
        let char_device = blocking(move || {
            device.start_recovery(QUIESCE_WITHIN)?;
            Ok(device.open_char()?)
        })
        .await?;
        let open = |done| Message::Open { key: present.key, device, char_device, done };
        present.ring.call(open).await??;
        blocking(move || Ok(device.end_recovery()?)).await
    }

    /// Reads the log once the store answers; reads of remote blocks wait until then.
    fn load_manifest(&self, volume: VolumeId, present: Arc<Present>) {
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
