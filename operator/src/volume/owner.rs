//! The claim that currently owns a Volume's data: that of its PersistentVolume.
//!
//! A PersistentVolume may be bound to another claim later: it was retained, restored by a backup program, or
//! filled by a populator. The Volume's annotation is updated, so that loss events, alerts and the deletion
//! guard name the claim that has the data, even before its first attach.
//!
//! Owns: the annotation [`CLAIM`] of Volumes that were created for a claim and whose PersistentVolume is
//! bound. While it is unbound, the last claim stays. A Volume without the annotation is never changed: a user
//! created it, or removed the annotation to delete it.
//! On failure: the failure is logged; the CSI driver also writes the claim of an attached Volume.

use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{CLAIM, OPERATOR_FIELD_MANAGER, Volume, bound_claim};
use holdfast_service::chain;
use k8s_openapi::api::core::v1::PersistentVolume;
use kube::api::{Patch, PatchParams};
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use serde_json::json;

/// Name of the CSI driver.
const DRIVER: &str = "csi.holdfast.dev";
/// Number of attempts to write a claim, and the time between two.
const ATTEMPTS: u32 = 5;
const PAUSE: Duration = Duration::from_secs(2);

/// Follows the cluster's PersistentVolumes; never returns.
pub(super) async fn run(client: Client, volumes: Store<Volume>) {
    let bound = watcher(Api::<PersistentVolume>::all(client.clone()), watcher::Config::default());
    let mut bound = pin!(bound.default_backoff().applied_objects());
    // An error means that the controller has ended.
    if volumes.wait_until_ready().await.is_err() {
        return;
    }
    loop {
        match bound.next().await {
            Some(Ok(bound)) => follow(&bound, &client, |name| volumes.get(&ObjectRef::new(name))).await,
            Some(Err(error)) => tracing::warn!(%error, "PersistentVolumes not watched"),
            None => return std::future::pending().await,
        }
    }
}

/// Writes the claim of a PersistentVolume to its Volume, unless it is already there.
async fn follow<V: AsRef<Volume>>(
    bound: &PersistentVolume,
    client: &Client,
    volume: impl Fn(&str) -> Option<V>,
) {
    let Some((name, claim)) = claim_of(bound) else { return };
    let Some(volume) = volume(name) else { return };
    if volume.as_ref().annotations().get(CLAIM).is_none_or(|there| *there == claim) {
        return;
    }
    let volumes: Api<Volume> = Api::all(client.clone());
    for attempt in 1..=ATTEMPTS {
        match write(&volumes, name, &claim).await {
            Ok(()) => return tracing::info!(volume = name, claim, "Volume is of another claim"),
            Err(error) if error.is_stale() => return,
            Err(error) => {
                tracing::warn!(volume = name, claim, attempt, error = chain(&error), "claim not written");
            }
        }
        tokio::time::sleep(PAUSE).await;
    }
}

async fn write(volumes: &Api<Volume>, name: &str, claim: &str) -> Result<(), ApiError> {
    let params =
        PatchParams { field_manager: Some(OPERATOR_FIELD_MANAGER.to_owned()), ..PatchParams::default() };
    let patch = json!({ "metadata": { "annotations": { CLAIM: claim } } });
    call(volumes.patch(name, &params, &Patch::Merge(patch))).await.map(drop)
}

/// Returns the Volume of a bound PersistentVolume of this driver, and its claim in the annotation's format.
fn claim_of(bound: &PersistentVolume) -> Option<(&str, String)> {
    Some((volume_of(bound)?, bound_claim(bound)?))
}

/// Returns the name of a PersistentVolume's Volume, if it belongs to this driver.
pub(super) fn volume_of(bound: &PersistentVolume) -> Option<&str> {
    let csi = bound.spec.as_ref()?.csi.as_ref().filter(|csi| csi.driver == DRIVER)?;
    Some(&csi.volume_handle)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use hyper::{Method, Request, Response};
    use kube::client::Body;
    use serde_json::Value;
    use tokio::sync::mpsc;

    use super::*;

    fn bound(driver: &str, claim: &Value) -> PersistentVolume {
        let csi = json!({ "driver": driver, "volumeHandle": "pvc-1" });
        let spec = json!({ "csi": csi, "claimRef": claim });
        let metadata = json!({ "name": "of-a-backup" });
        serde_json::from_value(json!({ "metadata": metadata, "spec": spec, "status": { "phase": "Bound" } }))
            .expect("an object")
    }

    /// Returns the annotation that the Volume gets after it had the claim `default/first`.
    async fn written(bound: &PersistentVolume) -> Option<Value> {
        written_over(bound, Some("default/first")).await
    }

    /// Returns the annotation that the Volume gets after it had this one.
    async fn written_over(bound: &PersistentVolume, had: Option<&str>) -> Option<Value> {
        let (requests, mut received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let requests = requests.clone();
            async move {
                assert_eq!(request.method(), Method::PATCH);
                assert!(request.uri().path().ends_with("/volumes/pvc-1"), "{}", request.uri());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let patch: Value = serde_json::from_slice(&body).expect("JSON");
                requests.send(patch["metadata"]["annotations"][CLAIM].clone()).expect("it is received");
                let volume = json!({
                    "metadata": { "name": "pvc-1" }, "spec": { "size": "1Gi", "objectStore": "main" }
                });
                let answer = Response::new(Body::from(volume.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(answer)
            }
        });
        let client = Client::new(service, "default");
        let spec = json!({ "size": "1Gi", "objectStore": "main" });
        let mut volume = Volume::new("pvc-1", serde_json::from_value(spec).expect("a spec"));
        volume.annotations_mut().extend(had.map(|had| (CLAIM.to_owned(), had.to_owned())));
        let volume = Arc::new(volume);
        follow(bound, &client, |name| (name == "pvc-1").then(|| volume.clone())).await;
        drop(client);
        received.recv().await
    }

    /// Regression: between binding and first attach, a loss was reported to a deleted claim.
    #[tokio::test]
    async fn a_volume_follows_its_persistent_volume_to_another_claim() {
        let claim = |namespace: &str, name: &str| json!({ "namespace": namespace, "name": name, "uid": "u" });
        let other = bound(DRIVER, &claim("shop2", "second"));
        assert_eq!(written(&other).await, Some(json!("shop2/second")));
        for stays in [
            bound(DRIVER, &claim("default", "first")),
            bound(DRIVER, &json!({ "namespace": "shop2", "name": "second" })),
            bound(DRIVER, &json!(null)),
            bound("other.example.com", &claim("shop2", "second")),
        ] {
            assert_eq!(written(&stays).await, None, "{stays:?}");
        }
    }

    /// Regression: a released PersistentVolume keeps its claim. With two PersistentVolumes of one Volume,
    /// each list and each change of the released one wrote the deleted claim.
    #[tokio::test]
    async fn a_persistent_volume_that_is_released_or_deleted_names_no_claim() {
        let first = json!({ "namespace": "shop", "name": "first", "uid": "u" });
        let mut released = bound(DRIVER, &first);
        assert_eq!(written_over(&released, Some("shop2/second")).await, Some(json!("shop/first")));
        released.status.as_mut().expect("a status").phase = Some("Released".to_owned());
        assert_eq!(written_over(&released, Some("shop2/second")).await, None);
        let mut deleted = bound(DRIVER, &first);
        let now = k8s_openapi::jiff::Timestamp::UNIX_EPOCH;
        deleted.metadata.deletion_timestamp = Some(holdfast_crds::Time(now));
        assert_eq!(written_over(&deleted, Some("shop2/second")).await, None);
    }

    /// Regression: from the first binding on, a user could not delete a Volume created manually, or one whose
    /// annotation was removed as the rejection message asks for.
    #[tokio::test]
    async fn a_volume_that_names_no_claim_is_left_alone() {
        let claim = json!({ "namespace": "shop", "name": "data", "uid": "u" });
        assert_eq!(written_over(&bound(DRIVER, &claim), None).await, None);
    }
}
