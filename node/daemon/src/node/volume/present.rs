//! A volume on a ring thread, as seen by every task of the node.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use holdfast_engine::settings::RuntimeSettings;
use holdfast_format::displaced::Displaced;
use holdfast_objects::RequestMeter;
use holdfast_s3::S3Config;
use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_ublk::Device;
use parking_lot::Mutex;

use crate::node::device::tag::DeviceTag;
use crate::node::error::NodeError;
use crate::node::local::attached_record::{ATTACHED_VERSION, AttachedRecord};
use crate::node::local::volume_files::Local;
use crate::node::ring::handle::RingHandle;
use crate::node::store::record::StoreRecord;
use crate::node::store::watched::WatchedStore;
use crate::node::volume::own_log::OwnLog;
use crate::node::volume::state::{State, StateCell, StateEvent};
use crate::node::{Attached, VolumeSettings};
use holdfast_serve::IoLimits;
use holdfast_serve::PublishedStatus;
use holdfast_serve::VolumeKey;
use holdfast_serve::{Message, RingRefusal};

/// Maximum wait of a detach for the deletion of its stopped device.
const DELETED_WITHIN: Duration = Duration::from_secs(5);

/// A volume on a ring thread.
pub(in crate::node) struct Present {
    pub(in crate::node) local: Local,
    pub(in crate::node) store_name: String,
    pub(in crate::node) objects: Arc<WatchedStore>,
    /// Requests of its background work to the store.
    pub(in crate::node) requests: Arc<RequestMeter>,
    /// State when the volume was added to its ring.
    pub(in crate::node) log: OwnLog,
    pub(in crate::node) ring: RingHandle,
    pub(in crate::node) key: VolumeKey,
    pub(in crate::node) published: Arc<PublishedStatus>,
    pub(in crate::node) state: Arc<StateCell>,
    pub(in crate::node) terms: WriterTerms,
    sectors: SectorCounts,
    /// The recorded settings, which a restarted daemon uses.
    settings: Mutex<VolumeSettings>,
    /// Held while its settings are changed.
    pub(in crate::node) configuring: tokio::sync::Mutex<()>,
    /// Held while the volume grows.
    pub(in crate::node) growing: Arc<tokio::sync::Mutex<()>>,
    /// Held while the record in the tmpfs directory is written.
    remembering: Mutex<()>,
}

/// Sizes of a volume, in sectors.
struct SectorCounts {
    /// The maximum for its device. Its record has the same number.
    of_volume: AtomicU64,
    of_device: AtomicU64,
}

/// Terms of a writer from its attach to its detach, across restarts of the daemon.
#[derive(Debug, Clone)]
pub(in crate::node) struct WriterTerms {
    /// The tag of its device.
    pub(in crate::node) tag: DeviceTag,
    /// Sectors when it was added to its ring.
    pub(in crate::node) sectors: u64,
    pub(in crate::node) epoch: u64,
    /// Settings when it was added to its ring.
    pub(in crate::node) settings: VolumeSettings,
    /// The writer that this node replaced at its attach.
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
    pub(in crate::node) requests: Arc<RequestMeter>,
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
        let VolumeStore { name: store_name, objects, requests, log } = store;
        let RingPlace { ring, key, published } = place;
        let [of_volume, of_device] = [(); 2].map(|()| AtomicU64::new(terms.sectors));
        let sectors = SectorCounts { of_volume, of_device };
        let settings = Mutex::new(terms.settings);
        let (configuring, growing, remembering) = Default::default();
        Self {
            local,
            store_name,
            objects,
            requests,
            log,
            ring,
            key,
            published,
            state,
            terms,
            sectors,
            settings,
            configuring,
            growing,
            remembering,
        }
    }

    /// Checks that a request names the store of this volume.
    ///
    /// # Errors
    /// [`NodeError::OtherStore`].
    pub(in crate::node) fn check_store(&self, name: &str, config: &S3Config) -> Result<(), NodeError> {
        let (used, asked) = (self.objects.current(), StoreRecord::from(config));
        let is_same = if self.store_name == name {
            used.record().place() == asked.place()
        } else {
            used.record().is_same_place(&asked)
        };
        if is_same {
            return Ok(());
        }
        Err(NodeError::OtherStore {
            volume: self.volume().clone(),
            attached: self.store_name.clone(),
            asked: name.to_owned(),
        })
    }

    /// Returns the sectors of the volume.
    pub(in crate::node) fn sectors(&self) -> u64 {
        self.sectors.of_volume.load(Ordering::Relaxed)
    }

    /// Returns the sectors of its device.
    pub(in crate::node) fn device_sectors(&self) -> u64 {
        self.sectors.of_device.load(Ordering::Relaxed)
    }

    /// Records the device's size in sectors.
    pub(in crate::node) fn set_device_sectors(&self, sectors: u64) {
        self.sectors.of_device.store(sectors, Ordering::Relaxed);
    }

    /// Records the volume's new size: a restarted daemon may find a device of this size, or grows it to it.
    pub(in crate::node) fn remember_sectors(&self, sectors: u64) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        self.write_record(&self.state.get(), sectors, self.settings())?;
        self.sectors.of_volume.store(sectors, Ordering::Relaxed);
        Ok(())
    }

    /// Returns the settings that a restarted daemon would use.
    pub(in crate::node) fn settings(&self) -> VolumeSettings {
        *self.settings.lock()
    }

    /// Records these settings for a restarted daemon.
    pub(in crate::node) fn remember_settings(&self, settings: VolumeSettings) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        self.write_record(&self.state.get(), self.sectors(), settings)?;
        *self.settings.lock() = settings;
        Ok(())
    }

    /// Removes the volume from its ring. Repeating it is a no-op.
    pub(in crate::node) async fn leave_ring(&self) -> Result<(), NodeError> {
        let removed = self.ring.call(|done| Message::Remove { key: self.key, done }).await?;
        match removed {
            Ok(()) | Err(RingRefusal::Gone) => Ok(()),
            Err(why @ (RingRefusal::Removing | RingRefusal::Armed | RingRefusal::Queue(_))) => {
                Err(self.refused()(why))
            }
        }
    }

    /// Converts a ring thread's rejection to an error of the volume, for `map_err`.
    pub(in crate::node) fn refused(&self) -> impl FnOnce(RingRefusal) -> NodeError + use<> {
        let volume = self.local.volume().clone();
        move |why| match why {
            RingRefusal::Gone | RingRefusal::Removing => NodeError::NotOnRing(volume),
            RingRefusal::Armed => NodeError::StillArmed(volume),
            RingRefusal::Queue(error) => NodeError::Queue(error),
        }
    }

    /// Returns the volume's id.
    pub(in crate::node) fn volume(&self) -> &VolumeId {
        self.local.volume()
    }

    pub(in crate::node) fn device(&self) -> Option<Device> {
        self.state.with(State::device)
    }

    pub(in crate::node) fn is_detaching(&self) -> bool {
        self.state.with(State::is_detaching)
    }

    /// Returns the volume as attached through this device.
    pub(in crate::node) fn attached_by(&self, device: Device) -> Attached {
        Attached {
            device_path: device.block_path(),
            transport: device.transport(),
            epoch: self.terms.epoch,
            bytes: self.device_sectors() * SECTOR_BYTES,
            displaced: self.terms.displaced.clone(),
        }
    }

    /// Returns the result of a command that depends on the device's queues, or their rejection by the kernel.
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

    /// Writes the record for a restarted daemon to the tmpfs directory.
    pub(in crate::node) fn remember(&self) -> Result<(), NodeError> {
        let _one_at_a_time = self.remembering.lock();
        self.write_record(&self.state.get(), self.sectors(), self.settings())
    }

    /// Starts the deletion of the stopped device. The number is removed from the record before the kernel may
    /// reuse it.
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
        let RuntimeSettings { max_age_ms, durability } = planner;
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

    /// Waits for the deletion of the stopped device, but only briefly for programs that have it open.
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
