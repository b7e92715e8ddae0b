//! Attaches a volume: place on a ring thread, local files, log, device, in this order.

use std::fs::File;
use std::path::PathBuf;
use std::sync::Arc;

use holdfast_background::{Acquired, Background, Preserved, StoreKey, acquire};
use holdfast_engine::attach::{Claim, ForeignReason};
use holdfast_engine::settings::{AttachState, RuntimeSettings, Setup};
use holdfast_format::displaced::Displaced;
use holdfast_service::{chain, trace};
use holdfast_types::{Epoch, Nonce, VolumeId};
use holdfast_ublk::Transport;
use tokio::sync::mpsc;

use crate::node::clock::{NodeTime, unix_ms_at_zero};
use crate::node::error::{LocalDamage, NodeError, file};
use crate::node::exit_on_panic::ExitOnPanic;
use crate::node::local::file::random;
use crate::node::local::live_map;
use crate::node::local::volume_files::{AttachFiles, Local, VolumeFiles};
use crate::node::ring::handle::RingHandle;
use crate::node::ring::room::ReservedPlace;
use crate::node::ring::shape::DeviceShape;
use crate::node::run_blocking::blocking;
use crate::node::store::watched::WatchedStore;
use crate::node::volume::attach_steps::TimedStep;
use crate::node::volume::background::{LocalSides, VolumeWork, WorkLines};
use crate::node::volume::device::{lose_device, new_device, serve};
use crate::node::volume::fork_start::ForkStart;
use crate::node::volume::own_log::OwnLog;
use crate::node::volume::present::{Present, RingPlace, VolumeStore, WriterTerms};
use crate::node::volume::state::{StateCell, StateEvent, WriterState};
use crate::node::volume::table::Reserved;
use crate::node::{AttachRequest, Attached, Node, VolumeSettings, millis, sectors_of, unix_ms};
use holdfast_serve::Label;
use holdfast_serve::LiveMap;
use holdfast_serve::Planned;
use holdfast_serve::Start;
use holdfast_serve::{Message, NewVolume};
use holdfast_serve::{PublishedStatus, RingReport};

/// Epoch of the first attach of a volume.
const FIRST_EPOCH: Epoch = Epoch(1);

impl Node {
    /// Attaches a volume and returns its device, ready for use. For an attached one, returns the existing
    /// device.
    ///
    /// # Errors
    /// [`NodeError`]; no data is lost, and the same request may be retried. For the name of a memory volume
    /// [`NodeError::MemoryVolume`].
    #[tracing::instrument(name = "attach", skip_all, fields(volume = %request.volume, epoch, device))]
    pub(crate) async fn attach(&self, request: AttachRequest) -> Result<Attached, NodeError> {
        let _alone = ExitOnPanic("an attach");
        let volume = request.volume.clone();
        let state = match self.0.volumes.reserve(&request)? {
            Reserved::Attached { attached, device } => {
                self.check_device(&volume, device).await?;
                return Ok(attached);
            }
            Reserved::Now(state) => state,
        };
        // After the name was reserved: of two concurrent attaches, at least one sees the other.
        let fix = "Attach the other volume under another name, or detach this one";
        if let Err(error) = self.refuse_memory(&volume, "store", fix) {
            self.0.volumes.forget(&volume, &state);
            return Err(error);
        }
        match self.try_attach(request, &state).await {
            Ok(attached) => Ok(attached),
            Err(error) => {
                self.abandon(&volume, &state).await;
                Err(error)
            }
        }
    }

    /// Removes a half-attached volume from its ring. Its epoch is in the log and its local state stays: the
    /// next attach resumes from there. If the device cannot be removed, the volume and its record stay for a
    /// detach or a restart.
    async fn abandon(&self, volume: &VolumeId, state: &StateCell) {
        let present = self.0.volumes.on_ring(volume);
        if let Some(present) = present
            && let Err(error) = self.withdraw(&present).await
        {
            tracing::error!(
                %volume, error = chain(&error),
                "the attach failed, and so did the removal of its device; it serves no requests; detach the volume"
            );
            state.apply(&StateEvent::AttachFailed);
            return;
        }
        // Removed before the table entry: an attach that finds no entry creates these files.
        if let Err(error) = self.0.dirs.of(volume).forget_attached() {
            tracing::warn!(%volume, error = &error as &dyn std::error::Error, "the files of a failed attach were not removed");
        }
        self.0.volumes.forget(volume, state);
    }

    async fn withdraw(&self, present: &Arc<Present>) -> Result<(), NodeError> {
        if let Some(device) = present.device() {
            self.0.devices.stop(device).await?;
            self.0.devices.remove(present, device).await?;
            present.await_deletion().await;
        }
        present.leave_ring().await
    }

    async fn try_attach(
        &self,
        request: AttachRequest,
        state: &Arc<StateCell>,
    ) -> Result<Attached, NodeError> {
        let mut timer = self.0.attach_times.begin();
        let transport = self.0.devices.transport().await?;
        if request.ublk_only && transport == Transport::Fuse {
            return Err(NodeError::UblkNeeded(request.volume));
        }
        let objects = if request.probe {
            self.0.stores.probed(&request.store_name, &request.store).await?
        } else {
            self.0.stores.connected(&request.store_name, &request.store).await?
        };
        let store_time = objects.current().time();
        timer.end(TimedStep::Store);
        let joining = self.acquire(request, objects, transport, state).await?;
        timer.end(TimedStep::Acquire);
        let present = self.add_to_ring(joining).await?;
        present.remember()?;
        timer.end(TimedStep::Ring);
        let started = present.state.reach(|state| state.writer() != Some(WriterState::Starting)).await;
        if started.is_fenced() {
            return Err(NodeError::Fenced(present.volume().clone()));
        }
        timer.end(TimedStep::Start);
        let device = self.0.devices.add(&present, transport).await?;
        timer.end(TimedStep::Device);
        let attached = present.attached_by(device);
        serve(&present, &StateEvent::Attached);
        // This includes requests of other volumes to the same store.
        let store_time = present.objects.current().time().saturating_sub(store_time);
        tracing::info!(
            volume = %present.volume(),
            device = %attached.device_path.display(),
            epoch = attached.epoch,
            took_us = timer.elapsed().as_micros(),
            store_us = store_time.as_micros(),
            steps = %timer,
            slowest = timer.slowest().map(tracing::field::display),
            "the device serves"
        );
        Ok(attached)
    }

    /// Acquires the volume in its log, with a place on a ring thread for it.
    async fn acquire(
        &self,
        request: AttachRequest,
        objects: Arc<WatchedStore>,
        transport: Transport,
        state: &Arc<StateCell>,
    ) -> Result<Joining, NodeError> {
        let AttachRequest { volume, store_name, bytes, replaces, max_dirty_age, durability, limits, .. } =
            request;
        let local = self.0.dirs.of(&volume);
        let claim = Claim {
            node: self.0.config.node_name.clone(),
            nonce: Nonce(random()),
            unix_ms: unix_ms(),
            grow_to: bytes.map(sectors_of).transpose()?,
            replaces: replaces.map(Epoch),
        };
        let shape = new_device(transport);
        // The node's shortages are detected before a writer is fenced.
        let (ring, place) = self.0.rings.reserve(shape.need())?;
        // On the heap: it is the largest part of an attach, which would otherwise exceed a thread's stack.
        let acquired = Box::pin(acquire(&*objects, &volume, &local, &claim, &NodeTime)).await?;
        log_acquired(&volume, &acquired);
        let epoch = acquired.header.epoch.0;
        tracing::Span::current().record("epoch", epoch);
        let max_age = max_dirty_age.unwrap_or(self.0.config.max_dirty_age);
        let max_age_ms = millis(max_age);
        let log = OwnLog::of(&acquired.header, epoch, None).up_to(Some(acquired.manifest.seq()));
        let terms = WriterTerms {
            tag: self.0.installation.tag(&volume, epoch),
            sectors: acquired.header.sectors,
            epoch,
            settings: VolumeSettings { planner: RuntimeSettings { max_age_ms, durability }, limits },
            displaced: acquired.displaced,
        };
        let setup = Setup {
            requests: shape.requests(),
            limits: self.limits(max_age_ms),
            durability,
            header: acquired.header,
            header_generation: acquired.header_generation,
            unix_ms_at_zero: unix_ms_at_zero(),
        };
        // An older fork replays a journal, and reads blocks of its own.
        let is_new_fork =
            acquired.manifest.epoch() == FIRST_EPOCH && !acquired.manifest.lineage().ancestors().is_empty();
        let fork_start = is_new_fork.then(ForkStart::default);
        let start = Start::Attach(Box::new(AttachState {
            manifest: acquired.manifest,
            generation: acquired.found.generation(),
        }));
        let AttachFiles { files, live_map } = acquired.files;
        let (state, store) =
            (Arc::clone(state), VolumeStore { name: store_name, objects, requests: Arc::default(), log });
        Ok(Joining {
            state,
            local,
            store,
            terms,
            files,
            live_map,
            ring,
            place,
            shape,
            start,
            setup,
            fork_start,
        })
    }

    /// Adds a volume to a ring thread and starts its background work.
    pub(in crate::node) async fn add_to_ring(&self, joining: Joining) -> Result<Arc<Present>, NodeError> {
        let Joining {
            state,
            local,
            store,
            terms,
            files,
            live_map,
            ring,
            place,
            shape,
            start,
            setup,
            fork_start,
        } = joining;
        let volume = local.volume().clone();
        let VolumeFiles { sides: [a, b], map } = files;
        let map_path = local.live_map_path();
        let share = |handle: &File| handle.try_clone().map_err(file(&local.map_path(), "shared"));
        let sides = [share(&a)?, share(&b)?].map(Arc::new);
        let published = Arc::new(reported_to(volume.clone(), Arc::clone(&state)));
        let (work, receiver) = mpsc::channel(shape.waiting_work());
        let planned = blocking(move || make_planner(map_path, start, setup, live_map));
        let (planned, live) = planned.await?;
        let published_here = Arc::clone(&published);
        let label = Arc::new(Label::new(volume.clone(), Epoch(terms.epoch)));
        let new = NewVolume {
            planned,
            limits: terms.settings.limits,
            label: Arc::clone(&label),
            live,
            sides: [a, b],
            map,
            work,
            published: published_here,
            place: Box::new(place),
        };
        let added = ring.call(|done| Message::Add { volume: Box::new(new), done }).await?;
        let key = added.map_err(|error| NodeError::Queue(error.into()))?;
        let sides = LocalSides { local: local.clone(), sides };
        // Volumes of one store share the connection.
        let objects = Arc::clone(&store.objects);
        let store_key = StoreKey(Arc::as_ptr(&objects).addr());
        let pools = self.0.pools.clone();
        let work = VolumeWork {
            background: Background::new(volume.clone(), (store_key, objects), sides, NodeTime, pools),
            requests: Arc::clone(&store.requests),
            ahead: self.0.cold.volume(store_key),
            fork_start,
            cold: Arc::clone(&self.0.cold),
            label,
            lines: WorkLines::default(),
            ring: ring.clone(),
            key,
            trace: trace::current(),
        };
        self.0.tasks.spawn(Arc::new(work).run(receiver));
        let place = RingPlace { ring, key, published };
        let present = Arc::new(Present::new(state, local, store, place, terms));
        self.0.volumes.add_present(Arc::clone(&present));
        Ok(present)
    }
}

/// Returns the status of a volume, which applies the ring thread's reports to this state.
fn reported_to(volume: VolumeId, state: Arc<StateCell>) -> PublishedStatus {
    PublishedStatus::new(move |report| match report {
        RingReport::Writer(writer) => state.apply(&StateEvent::Writer(writer)),
        RingReport::DeviceEnded => lose_device(&volume, &state),
    })
}

/// Returns the planner of a volume, and the file of its live map.
fn make_planner(
    path: PathBuf,
    start: Start,
    setup: Setup,
    live_map: LiveMap,
) -> Result<(Planned, File), NodeError> {
    let live = live_map::open_file(&path)?;
    let planned = start.make(setup, live_map).map_err(|error| {
        let source = LocalDamage::LiveMap(error);
        NodeError::Damaged { path, source }
    })?;
    Ok((planned, live))
}

/// Logs the data lost or preserved by an attach.
fn log_acquired(volume: &VolumeId, acquired: &Acquired<AttachFiles>) {
    if let Some(Displaced { epoch, node, since_unix_ms }) = &acquired.displaced {
        tracing::warn!(
            %volume,
            replaced_epoch = epoch.0,
            replaced_node = node,
            attached_since_unix_ms = since_unix_ms,
            "replaced a writer that was attached: data that it had not uploaded is not in the volume"
        );
    }
    if let Some(Preserved { epoch, why }) = acquired.preserved {
        match why {
            ForeignReason::LogRolledBack => tracing::error!(
                %volume, %epoch,
                "the log was rolled back to an earlier state; preserved local data, clean or dirty, that is newer than the log"
            ),
            ForeignReason::OtherVolume | ForeignReason::Superseded | ForeignReason::Older => tracing::warn!(
                %volume, %epoch, ?why,
                "preserved local data that is not the volume's newest"
            ),
        }
    }
}

/// A volume to be added to a ring thread.
pub(in crate::node) struct Joining {
    pub(in crate::node) state: Arc<StateCell>,
    pub(in crate::node) local: Local,
    pub(in crate::node) store: VolumeStore,
    pub(in crate::node) terms: WriterTerms,
    pub(in crate::node) files: VolumeFiles,
    pub(in crate::node) live_map: LiveMap,
    pub(in crate::node) ring: RingHandle,
    /// Its place on the ring.
    pub(in crate::node) place: ReservedPlace,
    pub(in crate::node) shape: DeviceShape,
    pub(in crate::node) start: Start,
    pub(in crate::node) setup: Setup,
    /// Set for the first attach of a fork.
    pub(in crate::node) fork_start: Option<ForkStart>,
}
