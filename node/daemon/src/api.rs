//! The gRPC interface on the local socket (`proto/node/v1/node.proto`).
//!
//! Owns: the socket, the conversion of messages into typed values and back.
//! Does not own: the operations themselves.
//! Runs on: the daemon's tokio runtime.
//! Invariants: an operation that was started runs to completion, even if its caller disconnects (except
//! scrubs and sweeps), or until the daemon stops; only root may connect.
//! On failure: a status whose message names the field and the fix.

mod await_served;
mod convert;
mod in_effect;
mod scrub;
mod snapshot;
mod socket;
mod status;
mod sweep;

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_proto::node::v1::{
    AttachRequest, AttachResponse, AwaitServedRequest, AwaitServedResponse, CapabilitiesRequest,
    CapabilitiesResponse, ConfigureRequest, ConfigureResponse, CreateRequest, CreateResponse,
    CreateSnapshotRequest, CreateSnapshotResponse, DeleteSnapshotRequest, DeleteSnapshotResponse,
    DetachRequest, DetachResponse, GrowRequest, GrowResponse, HandOverRequest, HandOverResponse, ListRequest,
    ListResponse, ListSnapshotsRequest, ListSnapshotsResponse, ScrubRequest, StatsRequest, StatsResponse,
    SweepRequest, SweepResponse, node_server,
};
use holdfast_s3::S3Config;
use holdfast_service::tasks::Tasks;
use holdfast_types::{Seq, VolumeId};
use parking_lot::RwLock;
use tonic::{Request, Response, Status};

use self::in_effect::AskedSettings;
pub(crate) use self::socket::{bind, serve};
#[cfg(test)]
pub(crate) use self::status::code as status_code;
use crate::config::Control;
use crate::failure::Failure;
use crate::format_permissions::FormatPermissions;
use crate::handoff::HandoffOwner;
use crate::node::{Attached, InstanceError, InstanceName, VolumeInStore, run_blocking};
use crate::volumes::Volumes;

/// The stores a request may name, from the current configuration file; none when Kubernetes assigns the
/// volumes. Clones share them.
#[derive(Clone, Debug)]
pub(crate) struct KnownStores(Arc<RwLock<Option<BTreeMap<String, S3Config>>>>);

impl KnownStores {
    /// Starts with the stores of a configuration.
    pub(crate) fn new(control: &Control) -> Self {
        Self(Arc::new(RwLock::new(match control {
            Control::Kubernetes => None,
            Control::Standalone(stores) => Some(stores.clone()),
        })))
    }

    /// Returns the stores; `None` under Kubernetes.
    pub(crate) fn all(&self) -> Option<BTreeMap<String, S3Config>> {
        self.0.read().clone()
    }

    /// Replaces the stores that requests may name.
    pub(crate) fn replace(&self, stores: BTreeMap<String, S3Config>) {
        *self.0.write() = Some(stores);
    }
}

/// The gRPC service.
#[derive(Clone, Debug)]
pub(crate) struct Api<V> {
    volumes: V,
    stores: KnownStores,
    permissions: FormatPermissions,
    handoff: HandoffOwner,
    /// Operations in progress.
    tasks: Tasks,
}

impl<V: Volumes> Api<V> {
    /// Creates the service over `volumes`.
    pub(crate) fn new(
        volumes: V,
        stores: KnownStores,
        permissions: FormatPermissions,
        handoff: HandoffOwner,
    ) -> Self {
        Self { volumes, stores, permissions, handoff, tasks: Tasks::new() }
    }

    fn stores(&self) -> Result<BTreeMap<String, S3Config>, Status> {
        self.stores_or("create, change or delete a Volume object instead")
    }

    /// Returns the configured stores; under Kubernetes an error that names the alternative.
    fn stores_or(&self, instead: &str) -> Result<BTreeMap<String, S3Config>, Status> {
        self.stores.all().ok_or_else(|| {
            let text = format!("Kubernetes assigns the volumes of this daemon; {instead}");
            Status::failed_precondition(text)
        })
    }

    /// Returns true for a memory volume that a user attached: it has no Volume object to change instead.
    fn is_attached_by_user(&self, volume: &VolumeId) -> bool {
        self.volumes.list().iter().any(|one| one.volume == *volume && one.is_attached_by_user())
    }

    fn store(&self, name: &str) -> Result<S3Config, Status> {
        find(self.stores()?, name)
    }
}

/// Returns the store of this name.
fn find(mut stores: BTreeMap<String, S3Config>, name: &str) -> Result<S3Config, Status> {
    stores.remove(name).ok_or_else(|| {
        no_store(&stores, |known| format!("store: `{name}` is not one of the configured stores; use {known}"))
    })
}

/// Builds the error for a request that names no configured store.
fn no_store(stores: &BTreeMap<String, S3Config>, text: impl FnOnce(String) -> String) -> Status {
    let known: Vec<&str> = stores.keys().map(String::as_str).collect();
    Status::invalid_argument(match known.as_slice() {
        [] => "store: the daemon's configuration has no stores; add a section [stores.<name>]".to_owned(),
        known => text(known.join(" or ")),
    })
}

impl<V: Volumes> Api<V> {
    fn volume_in_store(&self, volume_id: String, store: Option<String>) -> Result<VolumeInStore, Status> {
        let volume = convert::volume_id(volume_id)?;
        let store = store.map(|name| Ok::<_, Status>((name.clone(), self.store(&name)?))).transpose()?;
        Ok(VolumeInStore { volume, store })
    }

    /// Runs an operation to completion, even if its caller disconnects.
    async fn to_the_end<T: Send + 'static>(
        &self,
        operation: impl Future<Output = Result<T, Failure>> + Send + 'static,
    ) -> Result<T, Status> {
        let outcome = self.tasks.run(operation).await.map_err(status::unfinished)?;
        outcome.map_err(|failure| status::of(&failure))
    }
}

/// Rejects a planned exit of the daemon while it is the only process that holds its devices' connections.
fn check_kept(unkept_devices: usize) -> Result<(), Status> {
    if unkept_devices == 0 {
        return Ok(());
    }
    Err(Status::failed_precondition(format!(
        "{unkept_devices} devices without ublk have no keeper now, and requests to them would fail; start the keeper, or wait \
         for its successor"
    )))
}

#[tonic::async_trait]
impl<V: Volumes> node_server::Node for Api<V> {
    async fn create(&self, request: Request<CreateRequest>) -> Result<Response<CreateResponse>, Status> {
        let create = convert::VolumeToCreate::try_from(request.into_inner())?;
        let store = self.store(&create.store)?;
        let volumes = self.volumes.clone();
        let size_bytes = self
            .to_the_end(
                async move { volumes.create(&create.volume, create.content, &create.store, &store).await },
            )
            .await?;
        Ok(Response::new(CreateResponse { size_bytes }))
    }

    async fn attach(&self, request: Request<AttachRequest>) -> Result<Response<AttachResponse>, Status> {
        let request = request.into_inner();
        if let Some(memory) = request.memory {
            let attach = convert::memory_attach(request, &memory)?;
            self.stores()?;
            let volumes = self.volumes.clone();
            let attached = self.to_the_end(async move { volumes.attach_memory(attach).await }).await?;
            return Ok(Response::new(attached.into()));
        }
        let attach = convert::CheckedAttach::try_from(request)?;
        let store = self.store(&attach.store)?;
        let asked = AskedSettings::of(&attach);
        let before = self.volumes.list().into_iter().find(|one| one.volume == attach.volume);
        let volumes = self.volumes.clone();
        let attached = self.to_the_end(async move { volumes.attach(attach.with_store(store)).await }).await?;
        // With another epoch, this request has attached it, with these settings.
        let is_same = |device: &Attached| device.epoch == attached.epoch;
        if let Some(before) = before.filter(|before| before.attached.as_ref().is_some_and(is_same)) {
            asked.check(&before)?;
        }
        Ok(Response::new(attached.into()))
    }

    async fn configure(
        &self,
        request: Request<ConfigureRequest>,
    ) -> Result<Response<ConfigureResponse>, Status> {
        let (volume, change) = convert::configure(request.into_inner())?;
        self.stores_or(
            "change spec.durability, spec.maxDirtyAge and spec.limits of the Volume object instead",
        )?;
        let volumes = self.volumes.clone();
        let settings = self.to_the_end(async move { volumes.configure(&volume, change).await }).await?;
        Ok(Response::new(convert::settings(settings)))
    }

    async fn grow(&self, request: Request<GrowRequest>) -> Result<Response<GrowResponse>, Status> {
        let (volume, to) = convert::grow(request.into_inner())?;
        if !self.is_attached_by_user(&volume) {
            self.stores_or("change spec.size and spec.memory of the Volume object instead")?;
        }
        let volumes = self.volumes.clone();
        let attached = self.to_the_end(async move { volumes.grow(&volume, to).await }).await?;
        Ok(Response::new(GrowResponse { device: Some(attached.into()) }))
    }

    async fn detach(&self, request: Request<DetachRequest>) -> Result<Response<DetachResponse>, Status> {
        let DetachRequest { volume_id } = request.into_inner();
        let volume = convert::volume_id(volume_id)?;
        if !self.is_attached_by_user(&volume) {
            self.stores()?;
        }
        let volumes = self.volumes.clone();
        self.to_the_end(async move { volumes.detach(&volume).await }).await?;
        Ok(Response::new(DetachResponse {}))
    }

    async fn await_served(
        &self,
        request: Request<AwaitServedRequest>,
    ) -> Result<Response<AwaitServedResponse>, Status> {
        let AwaitServedRequest { volume_id, min_epoch } = request.into_inner();
        let volume = convert::volume_id(volume_id)?;
        let served = await_served::wait(&self.volumes, &volume, min_epoch).await;
        let served = served.map_err(|failure| status::of(&failure))?;
        let epoch = served.attached.as_ref().map(|device| device.epoch);
        let may_format = epoch.is_some_and(|epoch| self.permissions.allow(&volume, epoch));
        Ok(Response::new(AwaitServedResponse { volume: Some(served.into()), may_format }))
    }

    async fn hand_over(
        &self,
        request: Request<HandOverRequest>,
    ) -> Result<Response<HandOverResponse>, Status> {
        let refused = |error: InstanceError| Status::invalid_argument(format!("instance: {error}"));
        let instance = InstanceName::try_from(request.into_inner().instance).map_err(refused)?;
        check_kept(self.volumes.unkept_devices())?;
        self.handoff.agree(instance)?;
        Ok(Response::new(HandOverResponse {}))
    }

    async fn create_snapshot(
        &self,
        request: Request<CreateSnapshotRequest>,
    ) -> Result<Response<CreateSnapshotResponse>, Status> {
        let CreateSnapshotRequest { volume_id, store, uid } = request.into_inner();
        let (at, uid) = (self.volume_in_store(volume_id, store)?, snapshot::uid(&uid)?);
        let (volumes, volume) = (self.volumes.clone(), at.volume.clone());
        let taken = self.to_the_end(async move { volumes.create_snapshot(at, uid).await }).await?;
        Ok(Response::new(CreateSnapshotResponse { snapshot: Some(snapshot::wire(&volume, &taken)) }))
    }

    async fn list_snapshots(
        &self,
        request: Request<ListSnapshotsRequest>,
    ) -> Result<Response<ListSnapshotsResponse>, Status> {
        let ListSnapshotsRequest { volume_id, store } = request.into_inner();
        let at = self.volume_in_store(volume_id, store)?;
        let (volumes, volume) = (self.volumes.clone(), at.volume.clone());
        let listed = self.to_the_end(async move { volumes.list_snapshots(at).await }).await?;
        let snapshots = listed.iter().map(|one| snapshot::wire(&volume, one)).collect();
        Ok(Response::new(ListSnapshotsResponse { snapshots }))
    }

    async fn delete_snapshot(
        &self,
        request: Request<DeleteSnapshotRequest>,
    ) -> Result<Response<DeleteSnapshotResponse>, Status> {
        let DeleteSnapshotRequest { volume_id, store, seq } = request.into_inner();
        let at = self.volume_in_store(volume_id, store)?;
        let volumes = self.volumes.clone();
        self.to_the_end(async move { volumes.delete_snapshot(at, Seq(seq)).await }).await?;
        Ok(Response::new(DeleteSnapshotResponse {}))
    }

    async fn list(&self, _: Request<ListRequest>) -> Result<Response<ListResponse>, Status> {
        let mut volumes = self.volumes.list();
        volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(Response::new(ListResponse { volumes: volumes.into_iter().map(Into::into).collect() }))
    }

    async fn stats(&self, request: Request<StatsRequest>) -> Result<Response<StatsResponse>, Status> {
        let StatsRequest { volume_id } = request.into_inner();
        let wanted = volume_id.map(convert::volume_id).transpose()?;
        let mut volumes = self.volumes.list();
        if let Some(wanted) = wanted {
            volumes.retain(|status| status.volume == wanted);
            if volumes.is_empty() {
                return Err(Status::not_found(format!(
                    "volume_id: this node does not serve {wanted}; `list` shows its volumes"
                )));
            }
        }
        volumes.sort_by(|a, b| a.volume.cmp(&b.volume));
        Ok(Response::new(StatsResponse { volumes: volumes.iter().map(convert::stats).collect() }))
    }

    type ScrubStream = scrub::Answers;

    async fn scrub(&self, request: Request<ScrubRequest>) -> Result<Response<scrub::Answers>, Status> {
        let ScrubRequest { volume_id, store, repair } = request.into_inner();
        let volume = convert::volume_id(volume_id)?;
        let store = store.map(|name| Ok::<_, Status>((name.clone(), self.store(&name)?))).transpose()?;
        let request = crate::node::ScrubRequest { volume, store, repair };
        Ok(Response::new(scrub::start(&self.tasks, self.volumes.clone(), request)))
    }

    async fn sweep(&self, request: Request<SweepRequest>) -> Result<Response<SweepResponse>, Status> {
        let stores = self.stores_or(sweep::INSTEAD)?;
        let request = sweep::request(request.into_inner(), stores)?;
        Ok(Response::new(sweep::run(&self.tasks, self.volumes.clone(), request).await?))
    }

    async fn capabilities(
        &self,
        _: Request<CapabilitiesRequest>,
    ) -> Result<Response<CapabilitiesResponse>, Status> {
        let volumes = self.volumes.clone();
        // A keeper may respond late.
        Ok(Response::new(run_blocking(move || volumes.capabilities()).await.into()))
    }
}

#[cfg(test)]
mod tests;
