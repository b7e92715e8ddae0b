//! A volume on a ring thread, as every task of the node sees it.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_engine::settings::Settings;
use holdfast_format::displaced::Displaced;
use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_ublk::Device;
use parking_lot::Mutex;

use crate::node::device::tag::DeviceTag;
use crate::node::error::NodeError;
use crate::node::local::attached_record::{ATTACHED_VERSION, AttachedRecord};
use crate::node::local::volume_files::Local;
use crate::node::ring::handle::RingHandle;
use crate::node::store::watched::WatchedStore;
use crate::node::volume::own_log::OwnLog;
use crate::node::volume::state::{State, StateCell, StateEvent};
use crate::node::{Attached, VolumeSettings};
use holdfast_serve::IoLimits;
use holdfast_serve::PublishedStatus;
use holdfast_serve::VolumeKey;
use holdfast_serve::{Message, RingRefusal};

/// The longest wait of a detach for the deletion of its stopped device.
const DELETED_WITHIN: Duration = Duration::from_secs(5);

/// A volume on a ring thread.
pub(in crate::node) struct Present {
    pub(in crate::node) local: Local,
    pub(in crate::node) store_name: String,
    pub(in crate::node) objects: Arc<WatchedStore>,
    /// As it was when the volume came onto its ring.
    pub(in crate::node) log: OwnLog,
    pub(in crate::node) ring: RingHandle,
    pub(in crate::node) key: VolumeKey,
    pub(in crate::node) published: Arc<PublishedStatus>,
    pub(in crate::node) state: Arc<StateCell>,
    pub(in crate::node) terms: WriterTerms,
    /// The most sectors that its device may have: so many the volume has. Its record says them.
    sectors: AtomicU64,
    /// Those that the device has.
    device_sectors: AtomicU64,
    /// The settings in its record: those of a restarted daemon.
    settings: Mutex<VolumeSettings>,
    /// Held while its settings are changed.
    pub(in crate::node) configuring: tokio::sync::Mutex<()>,
    /// Held while the volume is made to grow.
    pub(in crate::node) growing: Arc<tokio::sync::Mutex<()>>,
    /// Held while the record in the tmpfs directory is written.
    remembering: Mutex<()>,
}

/// Terms that hold for a writer from its attach to its detach, over restarts of the daemon.
#[derive(Debug, Clone)]
pub(in crate::node) struct WriterTerms {
    /// The tag of its device.
    pub(in crate::node) tag: DeviceTag,
    /// Sectors when it came onto its ring.
    pub(in crate::node) sectors: u64,
    pub(in crate::node) epoch: u64,
    /// Settings when it came onto its ring.
    pub(in crate::node) settings: VolumeSettings,
    /// The writer that was replaced when this node took the volume.
    pub(in crate::node) displaced: Option<Displaced>,
}

/// Place of a volume on a ring thread.
pub(in crate::node) struct RingPlace {
    pub(in crate::node) ring: RingHandle,
    pub(in crate::node) key: VolumeKey,
    pub(in crate::node) published: Arc<PublishedStatus>,
}

/// The store of a volume, and its log there.
pub(in crate::node) struct VolumeStore {
    pub(in crate::node) name: String,
    pub(in crate::node) objects: Arc<WatchedStore>,
    pub(in crate::node) log: OwnLog,
}

impl Present {
    pub(in crate::node) fn new(
        state: Arc<StateCell>,
        local: Local,
        store: VolumeStore,
        place: RingPlace,
        terms: WriterTerms,
    ) -> Self {
        let VolumeStore { name: store_name, objects, log } = store;
        let RingPlace { ring, key, published } = place;
        let [sectors, device_sectors] = [(); 2].map(|()| AtomicU64::new(terms.sectors));
        let settings = Mutex::new(terms.settings);
        let (configuring, growing, remembering) = Default::default();
        Self {
            local,
            store_name,
            objects,
            log,
            ring,
            key,
            published,
            state,
            terms,
            sectors,
            device_sectors,
            settings,
            configuring,
            growing,
            remembering,
        }
    }

    /// Sectors of the volume.
    pub(in crate::node) fn sectors(&self) -> u64 {
        self.sectors.load(Ordering::Relaxed)
    }

    /// Sectors of its device.
    pub(in crate::node) fn device_sectors(&self) -> u64 {
        self.device_sectors.load(Ordering::Relaxed)
    }

    /// The device has so many sectors.
    pub(in crate::node) fn set_device_sectors(&self, sectors: u64) {
        self.device_sectors.store(sectors, Ordering::Relaxed);
    }

    /// The volume has grown: a restarted daemon may find a device of this size, or grows it to it.
    pub(in crate::node) fn remember_sectors(&self, sectors: u64) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        self.write_record(&self.state.get(), sectors, self.settings())?;
        self.sectors.store(sectors, Ordering::Relaxed);
        Ok(())
    }

    /// The settings of a restarted daemon.
    pub(in crate::node) fn settings(&self) -> VolumeSettings {
        *self.settings.lock()
    }

    /// A restarted daemon serves the volume with these settings.
    pub(in crate::node) fn remember_settings(&self, settings: VolumeSettings) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        self.write_record(&self.state.get(), self.sectors(), settings)?;
        *self.settings.lock() = settings;
        Ok(())
    }

    /// Takes the volume off its ring. Again it changes nothing.
    pub(in crate::node) async fn leave_ring(&self) -> Result<(), NodeError> {
        let removed = self.ring.call(|done| Message::Remove { key: self.key, done }).await?;
        match removed {
            Ok(()) | Err(RingRefusal::Gone) => Ok(()),
            Err(why @ (RingRefusal::Removing | RingRefusal::Armed | RingRefusal::Queue(_))) => {
                Err(self.refused()(why))
            }
        }
    }

    /// Converts a ring thread's refusal to an error of the volume, ready for `map_err`.
    pub(in crate::node) fn refused(&self) -> impl FnOnce(RingRefusal) -> NodeError + use<> {
        let volume = self.local.volume().clone();
        move |why| match why {
            RingRefusal::Gone | RingRefusal::Removing => NodeError::NotOnRing(volume),
            RingRefusal::Armed => NodeError::StillArmed(volume),
            RingRefusal::Queue(error) => NodeError::Queue(error),
        }
    }

    /// The volume's id.
    pub(in crate::node) fn volume(&self) -> &VolumeId {
        self.local.volume()
    }

    pub(in crate::node) fn device(&self) -> Option<Device> {
        self.state.with(State::device)
    }

    pub(in crate::node) fn is_detaching(&self) -> bool {
        self.state.with(State::is_detaching)
    }

    /// The volume with a device that serves its requests.
    pub(in crate::node) fn attached_by(&self, device: Device) -> Attached {
        Attached {
            device_path: device.block_path(),
            transport: device.transport(),
            epoch: self.terms.epoch,
            bytes: self.device_sectors() * SECTOR_BYTES,
            displaced: self.terms.displaced.clone(),
        }
    }

    /// The outcome of a command that waits for the device's queues, or the refusal of those by the kernel.
    pub(in crate::node) async fn unless_refused(
        &self,
        device: Device,
        command: impl Future<Output = Result<(), NodeError>>,
    ) -> Result<(), NodeError> {
        tokio::select! {
            ended = command => ended,
            source = self.published.refused() => Err(NodeError::QueueRefused { id: device.id(), source }),
        }
    }

    /// Keeps in the tmpfs directory what a restarted daemon needs.
    pub(in crate::node) fn remember(&self) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        self.write_record(&self.state.get(), self.sectors(), self.settings())
    }

    /// Begins the deletion of the stopped device. The record loses its number before the kernel may give it
    /// to another.
    pub(in crate::node) fn release_device(&self) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        let event = StateEvent::DeviceReleased(Instant::now());
        let released =
            self.state.get().next(&event).expect("only its attach or its detach releases a device");
        self.write_record(&released, self.sectors(), self.settings())?;
        self.state.apply(&event);
        Ok(())
    }

    fn write_record(&self, state: &State, sectors: u64, settings: VolumeSettings) -> Result<(), NodeError> {
        let WriterTerms { tag, sectors: _, epoch, settings: _, displaced } = self.terms.clone();
        let VolumeSettings { planner, limits } = settings;
        let Settings { max_age_ms, durability } = planner;
        self.local.write_record(&AttachedRecord {
            version: ATTACHED_VERSION,
            tag: tag.0,
            device_id: state.device().map(|device| device.id()),
            sectors,
            epoch,
            max_age_ms,
            durability,
            limits: (limits != IoLimits::NONE).then(|| limits.into()),
            displaced: displaced.map(Into::into),
            detaching: state.is_detaching(),
            store_name: self.store_name.clone(),
            store: self.objects.current().record().clone(),
        })
    }

    /// Waits for the deletion of the stopped device, but not for long on a program that has it open.
    pub(in crate::node) async fn await_deletion(&self) {
        let deleted = self.state.reach(|state| state.deletion().is_none());
        if tokio::time::timeout(DELETED_WITHIN, deleted).await.is_err() {
            tracing::warn!(
                volume = %self.volume(),
                device = self.state.with(State::deletion).map(|(device, _)| device.id()),
                "a program still has the device open, which is stopped; the kernel deletes it once that has closed it"
            );
        }
    }
}
