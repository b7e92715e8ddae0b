//! Objects of one kind in the API server.
//!
//! Owns: the requests, each with a limit on its time; the wait for an object to become as it should.
//! Invariants: a change of an object carries the version that it was planned from, so that it never
//! overwrites another change. A field that the API server does not know is an error: it would drop the field,
//! and another volume than the wanted one would come of it. A wait is one watch of one object from a version
//! that was seen: no list, no polling.
//! On failure: an [`ApiFailure`]. A wait outlives failed requests, until its deadline.

use std::collections::BTreeMap;
use std::ops::ControlFlow;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use holdfast_crds::TRACEPARENT;
use holdfast_service::{chain, trace};
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use kube::api::{
    Api, DeleteParams, ListParams, ObjectList, Patch, PatchParams, PostParams, Preconditions, Request,
    WatchEvent, WatchParams,
};
use kube::{Client, Resource, ResourceExt};
use serde_json::{Value, json};
use tokio::time::{Instant, sleep, timeout, timeout_at};
use tonic::codegen::http::uri::InvalidUri;
use tonic::{Code, Status};

/// Longest time for one request; a watch is no such request.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time of one watch, in seconds: then the object is read again. It bounds what a connection that
/// died without a word costs.
const WATCH_SECONDS: u32 = 30;
/// Time that a watch may be silent beyond that.
const WATCH_GRACE: Duration = Duration::from_secs(5);
/// Pause before a failed request of a wait is tried again.
const RETRY: Duration = Duration::from_millis(500);
/// Begin of what the API server says of a field that it does not know.
const STRICT: &str = "strict decoding error";
/// Name by which the API server notes who wrote a field.
const FIELD_MANAGER: &str = "holdfast-csi";

/// Failure of one request to the API server.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ApiFailure {
    /// The object changed or is gone since it was read.
    #[error("the object changed meanwhile")]
    Stale,
    /// The API server refused a value.
    #[error("{0}")]
    Invalid(String),
    /// The API server does not know a field.
    #[error(
        "the custom resource definitions of the cluster are older than this driver. Apply those of its release \
         (helm show crds CHART | kubectl apply --server-side --force-conflicts --filename -): {0}"
    )]
    UnknownField(String),
    /// The driver lacks a permission.
    #[error("the driver may not do this; install the roles of the chart: {0}")]
    Forbidden(String),
    /// The API server refused otherwise, or could not be reached.
    #[error("the API server did not take a request")]
    Refused(#[source] Box<kube::Error>),
    /// The API server did not answer.
    #[error("the API server did not answer within {REQUEST_TIMEOUT:?}")]
    TimedOut,
}

impl ApiFailure {
    fn of(error: kube::Error) -> Self {
        if let kube::Error::Api(status) = &error {
            match status.code {
                // A create, and a patch, whose message has the whole object first.
                400 | 422 if let Some(at) = status.message.find(STRICT) => {
                    return Self::UnknownField(status.message[at..].to_owned());
                }
                404 | 409 | 410 => return Self::Stale,
                400 | 422 => return Self::Invalid(status.message.clone()),
                403 => return Self::Forbidden(status.message.clone()),
                _ => {}
            }
        }
        Self::Refused(Box::new(error))
    }
}

impl From<ApiFailure> for Status {
    fn from(failure: ApiFailure) -> Self {
        let code = match &failure {
            ApiFailure::Stale => Code::Aborted,
            ApiFailure::Invalid(_) => Code::InvalidArgument,
            ApiFailure::UnknownField(_) => Code::FailedPrecondition,
            ApiFailure::Forbidden(_) => Code::PermissionDenied,
            ApiFailure::Refused(_) | ApiFailure::TimedOut => Code::Unavailable,
        };
        Self::new(code, chain(&failure))
    }
}

/// Waits for the answer to one request.
pub(super) async fn call<T>(request: impl Future<Output = Result<T, kube::Error>>) -> Result<T, ApiFailure> {
    match timeout(REQUEST_TIMEOUT, request).await {
        Ok(answer) => answer.map_err(ApiFailure::of),
        Err(_elapsed) => Err(ApiFailure::TimedOut),
    }
}

/// The deadline of a wait passed.
#[derive(Debug)]
pub(crate) struct TimedOut<K> {
    /// The object as it was seen last; none if there was none.
    pub(crate) last: Option<K>,
}

/// The objects of a kind.
#[derive(Clone)]
pub(crate) struct Objects<K>(Api<K>);

impl<K> Objects<K>
where
    K: Resource<DynamicType = ()> + Clone + std::fmt::Debug + DeserializeOwned + Serialize,
{
    pub(crate) fn new(client: Client) -> Self {
        Self(Api::all(client))
    }

    /// The object of that name, if there is one.
    pub(crate) async fn get(&self, name: &str) -> Result<Option<K>, ApiFailure> {
        call(self.0.get_opt(name)).await
    }

    /// Creates an object, or returns the one that has its name already.
    pub(crate) async fn create(&self, object: &K) -> Result<K, ApiFailure> {
        match call(self.create_strictly(object)).await {
            Err(ApiFailure::Stale) => self.get(&object.name_any()).await?.ok_or(ApiFailure::Stale),
            created => created,
        }
    }

    /// Creates an object. [`PostParams`] has no place for the check of fields.
    async fn create_strictly(&self, object: &K) -> Result<K, kube::Error> {
        let params = PostParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PostParams::default() };
        let body = serde_json::to_vec(object).map_err(kube::Error::SerdeError)?;
        let request = Request::new(self.0.resource_url()).create(&params, body);
        let mut request = request.map_err(kube::Error::BuildRequest)?;
        let uri = format!("{}&fieldValidation=Strict", request.uri());
        *request.uri_mut() = uri.parse().map_err(|error: InvalidUri| kube::Error::HttpError(error.into()))?;
        self.0.clone().into_client().request(request).await
    }

    /// Deletes an object as it was read.
    pub(crate) async fn delete(&self, object: &K) -> Result<(), ApiFailure> {
        let preconditions = Preconditions { resource_version: object.resource_version(), uid: object.uid() };
        let params = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
        call(self.0.delete(&object.name_any(), &params)).await.map(drop)
    }

    /// Deletes an object, and waits until it is gone. `condition` says what it waits for.
    ///
    /// # Errors
    /// `ABORTED`: it is not gone yet, or changed meanwhile.
    pub(crate) async fn remove(
        &self,
        object: K,
        until: Instant,
        condition: impl Fn(&K) -> String,
    ) -> Result<(), Status> {
        let kind = K::kind(&());
        if object.meta().deletion_timestamp.is_none() {
            match self.delete(&object).await {
                Ok(()) => {}
                Err(ApiFailure::Stale) => {
                    return Err(Status::aborted(format!("the {kind} changed meanwhile; it is tried again")));
                }
                Err(failure) => return Err(failure.into()),
            }
        }
        let (name, uid) = (object.name_any(), object.uid());
        let is_gone = |now: Option<&K>| now.is_none_or(|now| now.meta().uid != uid).then_some(());
        let gone = self.wait(&name, Some(object), until, is_gone).await;
        gone.map_err(|TimedOut { last }| {
            let why = last.as_ref().map(condition).unwrap_or_default();
            Status::aborted(format!("{kind} {name} is still being deleted: {why}"))
        })
    }

    /// Changes fields of the spec of an object as it was read, and returns it as it is then.
    pub(super) async fn change(&self, object: &K, spec: Value) -> Result<K, ApiFailure> {
        self.change_with(object, spec, []).await
    }

    /// The same, and writes annotations.
    pub(super) async fn change_with(
        &self,
        object: &K,
        spec: Value,
        annotations: impl IntoIterator<Item = (&'static str, String)>,
    ) -> Result<K, ApiFailure> {
        let mut annotations: BTreeMap<&str, Option<String>> =
            annotations.into_iter().map(|(key, value)| (key, Some(value))).collect();
        // Absent where no traces are exported: what follows is no part of an older trace.
        annotations.insert(TRACEPARENT, trace::current());
        let metadata = json!({ "resourceVersion": object.resource_version(), "annotations": annotations });
        let patch = json!({ "metadata": metadata, "spec": spec });
        let params = PatchParams { field_manager: Some(FIELD_MANAGER.to_owned()), ..PatchParams::default() };
        let params = params.validation_strict();
        call(self.0.patch(&object.name_any(), &params, &Patch::Merge(patch))).await
    }

    /// The objects with these labels.
    pub(crate) async fn list(&self, labels: &str) -> Result<Vec<K>, ApiFailure> {
        Ok(call(self.0.list(&ListParams::default().labels(labels))).await?.items)
    }

    /// One page of the objects with these labels.
    pub(super) async fn page(
        &self,
        labels: &str,
        limit: u32,
        token: &str,
    ) -> Result<ObjectList<K>, ApiFailure> {
        let mut params = ListParams::default().labels(labels);
        if limit > 0 {
            params = params.limit(limit);
        }
        if !token.is_empty() {
            params = params.continue_token(token);
        }
        call(self.0.list(&params)).await
    }

    /// Watches one object, from the version `seen`, until `verdict` says something of it (of `None` once it
    /// is gone).
    ///
    /// # Errors
    /// The deadline passed.
    pub(crate) async fn wait<T>(
        &self,
        name: &str,
        seen: Option<K>,
        deadline: Instant,
        verdict: impl Fn(Option<&K>) -> Option<T>,
    ) -> Result<T, TimedOut<K>> {
        let mut last = seen;
        match timeout_at(deadline, self.follow(name, &mut last, verdict)).await {
            Ok(found) => Ok(found),
            Err(_elapsed) => Err(TimedOut { last }),
        }
    }

    async fn follow<T>(
        &self,
        name: &str,
        last: &mut Option<K>,
        verdict: impl Fn(Option<&K>) -> Option<T>,
    ) -> T {
        loop {
            if let Some(found) = verdict(last.as_ref()) {
                return found;
            }
            let version = last.as_ref().and_then(ResourceExt::resource_version);
            if let Some(version) = version
                && let ControlFlow::Break(found) = self.watch(name, &version, last, &verdict).await
            {
                return found;
            }
            match self.get(name).await {
                Ok(found) => *last = found,
                Err(failure) => {
                    let kind = K::kind(&());
                    tracing::warn!(%kind, name, error = chain(&failure), "object not read");
                }
            }
            if let Some(found) = verdict(last.as_ref()) {
                return found;
            }
            sleep(RETRY).await;
        }
    }

    /// Follows one watch to its end.
    async fn watch<T>(
        &self,
        name: &str,
        version: &str,
        last: &mut Option<K>,
        verdict: &impl Fn(Option<&K>) -> Option<T>,
    ) -> ControlFlow<T> {
        let params = WatchParams::default().fields(&format!("metadata.name={name}")).timeout(WATCH_SECONDS);
        let Ok(events) = call(self.0.watch(&params, version)).await else {
            return ControlFlow::Continue(());
        };
        let mut events = pin!(events);
        let silent = Duration::from_secs(WATCH_SECONDS.into()) + WATCH_GRACE;
        while let Ok(Some(Ok(event))) = timeout(silent, events.next()).await {
            match event {
                WatchEvent::Added(object) | WatchEvent::Modified(object) => *last = Some(object),
                WatchEvent::Deleted(_) => *last = None,
                WatchEvent::Bookmark(_) => continue,
                WatchEvent::Error(_) => break,
            }
            if let Some(found) = verdict(last.as_ref()) {
                return ControlFlow::Break(found);
            }
        }
        ControlFlow::Continue(())
    }
}
