//! Reconciles one Volume: observe, plan, apply.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::Recorder;
use holdfast_crds::{
    Credentials, FORMAT_UNKNOWN_CONTENT, FieldError, GROWTH_WAITS, NODE_FIELD_MANAGER, ObjectStore,
    SecretRef, TRACEPARENT, Time, Volume, VolumeStatus,
};
use holdfast_service::tasks::Tasks;
use holdfast_service::trace;
use holdfast_types::{Backoff, VolumeId};
use k8s_openapi::jiff::Timestamp;
use kube::api::{Patch, PatchParams};
use kube::runtime::controller::{Action, Controller};
use kube::runtime::reflector::{self, ObjectRef, Store};
use kube::{Api, Client, Resource, ResourceExt};
use serde_json::json;
use tokio::sync::mpsc;
use tokio_stream::wrappers::ReceiverStream;
use tracing::Instrument;

use super::event::changes;
use super::facts::NodeFacts;
use super::identity::identity;
use super::limits;
use super::misfit::memory_attach;
use super::names::VolumeNames;
use super::object_store::{self, ObjectStoreError};
use super::operations::{Doing, OperationOutcome, Operations, WantedSettings};
use super::orphan;
use super::own_volumes;
use super::plan::{NodeStep, daemons_part, flush_class, plan};
use super::retry::{OperationFailure, Retry};
use crate::failure::Failure;
use crate::format_permissions::FormatPermissions;
use crate::node::{AttachRequest, FailureKind, GrowTo, LimitChange, MemoryAttach, SettingsChange};
use crate::volumes::Volumes;

/// Time until a volume is examined again after the API server failed.
const API_RETRY: Backoff = Backoff::steady(Duration::from_secs(5));
/// Maximum time that a growth blocks other operations on its volume.
const GROW_WITHIN: Duration = Duration::from_secs(30);

/// Queue length of volumes to reconcile; the watch waits while it is full.
const SEEN: usize = 64;

/// Context of every reconciliation.
struct VolumeContext<V> {
    client: Client,
    me: String,
    volumes: V,
    operations: Operations,
    recorder: Recorder,
    object_stores: Store<ObjectStore>,
    permissions: FormatPermissions,
}

/// Runs until it is dropped. Operations run as tasks of `tasks`, and end with those.
pub(crate) async fn run<V: Volumes>(
    client: Client,
    me: String,
    volumes: V,
    object_stores: Store<ObjectStore>,
    permissions: FormatPermissions,
    names: VolumeNames,
    tasks: Tasks,
) {
    let (operations, ends) = Operations::new(tasks.clone());
    let recorder = Recorder::new(client.clone(), "holdfast-node", &me);
    let context = VolumeContext {
        client: client.clone(),
        me,
        volumes,
        operations,
        recorder,
        object_stores,
        permissions,
    };
    let (known, writer) = reflector::store();
    names.read_from(writer.as_reader());
    let (sender, seen) = mpsc::channel(SEEN);
    let controller = Controller::for_stream(ReceiverStream::new(seen).map(Ok), known);
    let VolumeContext { client, me, volumes, recorder, .. } = &context;
    let watch = own_volumes::run(client.clone(), me.clone(), volumes.clone(), writer, sender);
    let detaches = orphan::Detaches::new(tasks);
    let orphans = orphan::run(
        client.clone(),
        me.clone(),
        volumes.clone(),
        controller.store(),
        recorder.clone(),
        detaches,
    );
    let served = controller
        .reconcile_on(ReceiverStream::new(ends))
        .run(reconcile, retry, Arc::new(context))
        .for_each(|outcome| async move {
            if let Err(error) = outcome {
                tracing::debug!(%error, "volume controller");
            }
        });
    tokio::join!(watch, served, orphans);
}

#[tracing::instrument(name = "reconcile_volume", skip_all, fields(volume = %volume.name_any()))]
async fn reconcile<V: Volumes>(
    volume: Arc<Volume>,
    context: Arc<VolumeContext<V>>,
) -> Result<Action, ApiError> {
    // Until the operator assigned the volume's identity, there is nothing to serve.
    let Some(id) = identity(&volume) else { return Ok(Action::await_change()) };
    context.permissions.set(&id, format_permission(&volume));
    let now = Time(Timestamp::now());
    let plan = plan(&observe(&volume, &id, &context), &now);
    let mut work = Reconciliation { context: &context, volume: volume.as_ref().clone(), id };
    for step in plan.steps {
        work.apply(step).await?;
    }
    Ok(plan.again.map_or_else(Action::await_change, Action::requeue))
}

fn retry<V>(volume: Arc<Volume>, error: &ApiError, _context: Arc<VolumeContext<V>>) -> Action {
    if error.is_stale() {
        // The watch delivers the change.
        return Action::requeue(Duration::from_secs(1));
    }
    tracing::warn!(
        volume = volume.name_any(),
        error = holdfast_service::chain(error),
        "reconcile failed; served volumes are not affected"
    );
    Action::requeue(API_RETRY.delay(1, fastrand::f64()))
}

/// Returns the epoch for which the user permits formatting the volume.
fn format_permission(volume: &Volume) -> Option<u64> {
    volume.annotations().get(FORMAT_UNKNOWN_CONTENT)?.parse().ok()
}

fn observe<V: Volumes>(volume: &Volume, id: &VolumeId, context: &VolumeContext<V>) -> NodeFacts {
    let now = Instant::now();
    let entry = context.operations.of(id);
    let wait = entry.wait(now);
    let here = context.volumes.list().into_iter().find(|here| here.volume == *id);
    let observed = volume.status.as_ref().and_then(|status| status.observed_generation);
    let is_newest = here.is_none() || observed >= volume.metadata.generation;
    NodeFacts {
        me: context.me.clone(),
        uid: volume.uid(),
        generation: volume.metadata.generation,
        spec: volume.spec.clone(),
        deleting: volume.metadata.deletion_timestamp.is_some(),
        status: volume.status.clone().unwrap_or_default(),
        here,
        kept: context.volumes.has_unserved_files(id),
        doing: entry.doing,
        last: entry.last,
        unconfigured: entry.unconfigured,
        wait,
        secret: volume.spec.object_store.as_deref().and_then(|name| secret(name, context)),
        since_report: entry.reported.map(|at| now.saturating_duration_since(at)),
        unanswered: context.operations.observed(id, is_newest, now),
    }
}

/// Returns the Secret with the credentials of the ObjectStore called `name`.
fn secret<V>(name: &str, context: &VolumeContext<V>) -> Option<String> {
    match &context.object_stores.get(&ObjectRef::new(name))?.spec.credentials {
        Credentials::SecretRef(SecretRef { name, namespace }) => Some(format!("{namespace}/{name}")),
        Credentials::Environment(_) | Credentials::WebIdentity(_) | Credentials::Unknown(_) => None,
    }
}

/// Attaches a memory volume.
async fn attach_memory<V: Volumes>(
    volumes: &V,
    request: Result<MemoryAttach, FieldError>,
) -> Result<OperationOutcome, OperationFailure> {
    let request = request.map_err(|error| OperationFailure {
        reason: "InvalidSpec",
        message: error.to_string(),
        retry: Retry::Rarely,
    })?;
    let volume = request.volume.clone();
    let attached = volumes.attach_memory(request).await?;
    let device = attached.device_path.display();
    tracing::info!(%volume, %device, epoch = attached.epoch, "attached");
    Ok(OperationOutcome::Attached)
}

/// Reconciliation of one volume, with the object as last returned by the API server.
struct Reconciliation<'a, V> {
    context: &'a VolumeContext<V>,
    volume: Volume,
    id: VolumeId,
}

impl<V: Volumes> Reconciliation<'_, V> {
    async fn apply(&mut self, step: NodeStep) -> Result<(), ApiError> {
        match step {
            NodeStep::Claim(status) => self.write(&status).await,
            NodeStep::Report(status) => {
                let present = self.volume.status.as_ref().map(daemons_part).unwrap_or_default();
                if present == *status { Ok(()) } else { self.write(&status).await }
            }
            NodeStep::Attach { grow, replaces, ublk_only } => {
                self.attach(grow, replaces, ublk_only);
                Ok(())
            }
            NodeStep::AttachMemory { epoch } => {
                self.attach_memory(epoch);
                Ok(())
            }
            NodeStep::Configure(wanted) => {
                let WantedSettings { durability, max_dirty_age, limits } = wanted;
                let change = SettingsChange {
                    durability: Some(durability),
                    max_dirty_age: Some(max_dirty_age),
                    iops: LimitChange::to(limits.iops),
                    bytes_per_second: LimitChange::to(limits.bytes_per_second),
                };
                // This does not wait for a store.
                let configured = self.context.volumes.configure(&self.id, change).await;
                self.context.operations.configured(&self.id, wanted, configured.map(drop));
                Ok(())
            }
            NodeStep::Grow(to) => {
                self.grow(to);
                Ok(())
            }
            NodeStep::Detach => {
                self.detach();
                Ok(())
            }
            NodeStep::Clear => {
                self.clear();
                Ok(())
            }
        }
    }

    /// Writes the status. The resource version makes the write fail if the object was changed since it was
    /// read: a claim never overwrites a grant that has moved.
    async fn write(&mut self, status: &VolumeStatus) -> Result<(), ApiError> {
        let name = self.volume.name_any();
        let patch = json!({
            "apiVersion": Volume::api_version(&()),
            "kind": Volume::kind(&()),
            "metadata": { "name": name, "resourceVersion": self.volume.resource_version() },
            "status": status,
        });
        let api: Api<Volume> = Api::all(self.context.client.clone());
        let params = PatchParams::apply(NODE_FIELD_MANAGER).force();
        let written = call(api.patch_status(&name, &params, &Patch::Apply(patch))).await?;
        let before = std::mem::replace(&mut self.volume, written).status.unwrap_or_default();
        self.context.operations.reported(&self.id);
        if status.node.is_none() {
            self.context.operations.forget(&self.id);
        }
        let after = self.volume.status.as_ref().map_or(&[][..], |status| &status.conditions);
        let events = changes(&before.conditions, after);
        self.context.recorder.publish(events, &self.volume.object_ref(&())).await;
        Ok(())
    }

    fn attach(&self, grow: bool, replaces: Option<u64>, ublk_only: bool) {
        let (client, volumes) = (self.context.client.clone(), self.context.volumes.clone());
        let (id, spec) = (self.id.clone(), self.volume.spec.clone());
        let attach = async move {
            let invalid = |error: &dyn std::error::Error| OperationFailure {
                reason: "InvalidSpec",
                message: error.to_string(),
                retry: Retry::Rarely,
            };
            let store_name = spec
                .object_store
                .clone()
                .filter(|name| !name.is_empty())
                .ok_or(ObjectStoreError::NotNamed)?;
            let durability = flush_class(&spec).map_err(|error| invalid(&error))?;
            let max_dirty_age = spec.max_dirty_age().map_err(|error| invalid(&error))?;
            let limits = limits::wanted(&spec).map_err(|error| invalid(&error))?;
            let bytes = spec.size_bytes().map_err(|error| invalid(&error))?;
            let store = object_store::read_fenced(&client, &store_name).await?;
            let attached = volumes
                .attach(AttachRequest {
                    volume: id.clone(),
                    store_name,
                    store,
                    bytes: grow.then_some(bytes),
                    replaces,
                    max_dirty_age: Some(max_dirty_age),
                    durability,
                    limits,
                    // The operator probes every ObjectStore, and its status was read.
                    probe: false,
                    ublk_only,
                })
                .await?;
            let device = attached.device_path.display();
            tracing::info!(volume = %id, %device, epoch = attached.epoch, "attached");
            Ok(OperationOutcome::Attached)
        };
        self.begin(Doing::Attaching, attach.instrument(self.attach_span()));
    }

    fn attach_memory(&self, epoch: u64) {
        let volumes = self.context.volumes.clone();
        let request = memory_attach(self.id.clone(), &self.volume.spec, self.volume.uid(), epoch);
        let attach = async move { attach_memory(&volumes, request).await };
        self.begin(Doing::Attaching, attach.instrument(self.attach_span()));
    }

    /// Returns the span of an attach, in the trace of the change that requested it.
    fn attach_span(&self) -> tracing::Span {
        let span = tracing::info_span!("attach_volume", volume = self.volume.name_any());
        if let Some(request) = self.volume.annotations().get(TRACEPARENT) {
            trace::continue_in(&span, request);
        }
        span
    }

    fn grow(&self, to: GrowTo) {
        let (id, volumes) = (self.id.clone(), self.context.volumes.clone());
        self.begin(Doing::Growing(to), async move {
            match tokio::time::timeout(GROW_WITHIN, volumes.grow(&id, to)).await {
                Ok(grown) => {
                    grown?;
                    Ok(OperationOutcome::Attached)
                }
                Err(_elapsed) => Err(OperationFailure {
                    reason: GROWTH_WAITS,
                    message: format!(
                        "the volume does not have {} bytes after {} s: the log must record the new size first, \
                         which waits for the upload in progress or for the object store; the node retries the \
                         growth",
                        to.bytes,
                        GROW_WITHIN.as_secs()
                    ),
                    retry: Retry::Later,
                }),
            }
        });
    }

    fn detach(&self) {
        let (id, volumes) = (self.id.clone(), self.context.volumes.clone());
        self.begin(Doing::Detaching, async move {
            match volumes.detach(&id).await {
                Ok(()) => Ok(OperationOutcome::Detached),
                Err(Failure { kind: FailureKind::Fenced, message }) => {
                    tracing::warn!(volume = %id, "{message}");
                    Ok(OperationOutcome::Preserve)
                }
                Err(failure) => Err(failure.into()),
            }
        });
    }

    fn clear(&self) {
        let (client, volumes) = (self.context.client.clone(), self.context.volumes.clone());
        let (id, store_name) = (self.id.clone(), self.volume.spec.object_store.clone());
        self.begin(Doing::Clearing, async move {
            let store_name = store_name.filter(|name| !name.is_empty()).ok_or(ObjectStoreError::NotNamed)?;
            let store = object_store::read(&client, &store_name).await?;
            volumes.clear_outdated(&id, &store_name, &store).await?;
            Ok(OperationOutcome::Cleared)
        });
    }

    fn begin(
        &self,
        doing: Doing,
        operation: impl Future<Output = Result<OperationOutcome, OperationFailure>> + Send + 'static,
    ) {
        let object = ObjectRef::from_obj(&self.volume);
        self.context.operations.begin(self.id.clone(), object, doing, operation);
    }
}
