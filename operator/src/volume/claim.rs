//! The PersistentVolumeClaim that a Volume was created for: its events inform the owner about the data.
//!
//! Owns: the operator's events about claims.
//! On failure: the failure is logged, and the work on the Volume continues. If the claim was deleted or its
//! name was reused, no event is written.

use holdfast_cluster::api::{ApiError, call};
use holdfast_cluster::event::Recorder;
use holdfast_crds::Volume;
use holdfast_service::chain;
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim};
use kube::runtime::events::Event;
use kube::{Api, Client, Resource, ResourceExt};

use super::owner::volume_of;

/// Publishes these events of `volume` on its claim, if it has one. Reads the claim for its uid, without which
/// `kubectl describe` shows no event.
pub(super) async fn publish(events: Vec<Event>, volume: &Volume, client: &Client, recorder: &Recorder) {
    if events.is_empty() {
        return;
    }
    // Users may write the annotation.
    let Some((namespace, name)) =
        volume.claim().filter(|(namespace, name)| is_name(namespace) && is_name(name))
    else {
        return;
    };
    let claims: Api<PersistentVolumeClaim> = Api::namespaced(client.clone(), namespace);
    let found = match call(claims.get_opt(name)).await {
        Ok(Some(claim)) => is_of(&claim, volume, client).await.map(|is_of| is_of.then_some(claim)),
        Ok(None) => return,
        Err(error) => Err(error),
    };
    let claim = match found {
        Ok(Some(claim)) => claim,
        Ok(None) => return,
        Err(error) => {
            let volume = volume.name_any();
            tracing::warn!(volume, namespace, claim = name, error = chain(&error), "claim not read");
            return;
        }
    };
    let related = volume.object_ref(&());
    let events = events.into_iter().map(|event| Event { secondary: Some(related.clone()), ..event });
    recorder.publish(events, &claim.object_ref(&())).await;
}

/// Returns true if `text` is valid in the path of a request.
fn is_name(text: &str) -> bool {
    text.starts_with(|first: char| first.is_ascii_alphanumeric())
        && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"-.".contains(&byte))
}

/// Returns true if the claim is bound to the volume. A recreated claim is bound to another one, while this
/// Volume may be retained. Reads the PersistentVolume if its name differs from the Volume's.
async fn is_of(claim: &PersistentVolumeClaim, volume: &Volume, client: &Client) -> Result<bool, ApiError> {
    let (bound, name) = (claim.spec.as_ref().and_then(|spec| spec.volume_name.as_deref()), volume.name_any());
    let Some(bound) = bound.filter(|bound| is_name(bound)) else { return Ok(false) };
    if bound == name {
        return Ok(true);
    }
    let bound = call(Api::<PersistentVolume>::all(client.clone()).get_opt(bound)).await?;
    Ok(bound.is_some_and(|bound| volume_of(&bound) == Some(&name)))
}

#[cfg(test)]
mod tests {
    use holdfast_crds::CLAIM;
    use hyper::{Method, Request, Response};
    use k8s_openapi::api::events::v1::Event as Written;
    use kube::client::Body;
    use kube::runtime::events::EventType;
    use serde_json::{Value, json};
    use tokio::sync::mpsc;

    use super::*;

    fn volume(claim: Option<&str>) -> Volume {
        let spec = json!({ "size": "1Gi", "objectStore": "main" });
        let mut volume = Volume::new("pvc-1", serde_json::from_value(spec).expect("a spec"));
        volume.annotations_mut().extend(claim.map(|claim| (CLAIM.to_owned(), claim.to_owned())));
        volume
    }

    fn lost() -> Vec<Event> {
        vec![Event {
            type_: EventType::Warning,
            reason: "ForceDetached".to_owned(),
            note: Some("node a was cut off".to_owned()),
            action: "UnuploadedDataLost".to_owned(),
            secondary: None,
        }]
    }

    /// Returns the requests that publish `events`, as path and body. The API server answers requests for the
    /// claim, and rejects events if `refuses`.
    async fn requests(
        events: Vec<Event>,
        volume: &Volume,
        claim: Option<Value>,
        refuses: bool,
    ) -> Vec<(String, Option<Written>)> {
        let (requests, mut received) = mpsc::unbounded_channel();
        let service = tower::service_fn(move |request: Request<Body>| {
            let (requests, claim) = (requests.clone(), claim.clone());
            async move {
                let (method, path) = (request.method().clone(), request.uri().path().to_owned());
                let body = request.into_body().collect_bytes().await.expect("a body");
                let refused = |code: u16| {
                    (code, json!({ "status": "Failure", "reason": "", "message": "", "code": code }))
                };
                let handle = path.strip_prefix("/api/v1/persistentvolumes/");
                let (code, answer) = if let Some(handle) = handle {
                    let csi = json!({ "driver": "csi.holdfast.dev", "volumeHandle": handle.strip_prefix("of-a-backup-") });
                    requests.send((path.clone(), None)).expect("it is received");
                    (200, json!({ "metadata": { "name": handle }, "spec": { "csi": csi } }))
                } else if method == Method::GET {
                    requests.send((path, None)).expect("it is received");
                    claim.map_or_else(|| refused(404), |claim| (200, claim))
                } else {
                    let event: Written = serde_json::from_slice(&body).expect("an Event");
                    requests.send((path, Some(event.clone()))).expect("it is received");
                    if refuses { refused(403) } else { (201, json!(event)) }
                };
                let answer =
                    Response::builder().status(code).body(Body::from(answer.to_string().into_bytes()));
                Ok::<_, std::convert::Infallible>(answer.expect("an answer"))
            }
        });
        let client = Client::new(service, "default");
        let recorder = Recorder::new(client.clone(), "test", "a");
        publish(events, volume, &client, &recorder).await;
        drop((client, recorder));
        let mut all = Vec::new();
        while let Some(request) = received.recv().await {
            all.push(request);
        }
        all
    }

    fn bound_to(volume: &str) -> Option<Value> {
        Some(json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim",
            "metadata": { "namespace": "shop", "name": "data", "uid": "of-the-claim" },
            "spec": { "volumeName": volume },
        }))
    }

    const CLAIM_PATH: &str = "/api/v1/namespaces/shop/persistentvolumeclaims/data";

    /// Regression: the events were in the namespace `default`, which a claim's user may not read.
    #[tokio::test]
    async fn an_event_is_about_the_claim_with_its_uid() {
        let volume = volume(Some("shop/data"));
        for refuses in [false, true] {
            let written = requests(lost(), &volume, bound_to("pvc-1"), refuses).await;
            let [(read, None), (path, Some(event))] = &written[..] else { panic!("{written:?}") };
            assert_eq!(read, CLAIM_PATH);
            assert_eq!(path, "/apis/events.k8s.io/v1/namespaces/shop/events");
            let regarding = event.regarding.clone().expect("it is about an object");
            assert_eq!(regarding.kind.as_deref(), Some("PersistentVolumeClaim"));
            assert_eq!(
                (regarding.namespace.as_deref(), regarding.name.as_deref()),
                (Some("shop"), Some("data"))
            );
            assert_eq!(regarding.uid.as_deref(), Some("of-the-claim"));
            let related = event.related.clone().expect("it names the Volume");
            assert_eq!((related.kind.as_deref(), related.name.as_deref()), (Some("Volume"), Some("pvc-1")));
            assert_eq!(event.note.as_deref(), Some("node a was cut off"));
        }
    }

    #[tokio::test]
    async fn a_claim_that_is_gone_or_has_another_volume_gets_no_event() {
        let volume = volume(Some("shop/data"));
        for (claim, count) in [(None, 1), (bound_to("of-a-backup-pvc-2"), 2), (bound_to(""), 1)] {
            let asked = requests(lost(), &volume, claim, false).await;
            assert_eq!(asked.len(), count, "{asked:?}");
            assert_eq!(asked[0].0, CLAIM_PATH);
        }
    }

    /// Regression: a backup program chooses the PersistentVolume's name, and its claim got no events.
    #[tokio::test]
    async fn an_event_comes_to_the_claim_of_a_persistent_volume_of_another_name() {
        let asked = requests(lost(), &volume(Some("shop/data")), bound_to("of-a-backup-pvc-1"), false).await;
        assert_eq!(asked.len(), 3, "{asked:?}");
        assert!(asked[2].1.is_some(), "{asked:?}");
    }

    #[tokio::test]
    async fn without_a_claim_or_events_nothing_is_asked() {
        let claim = bound_to("pvc-1");
        assert!(requests(Vec::new(), &volume(Some("shop/data")), claim.clone(), false).await.is_empty());
        for written in [
            None,
            Some("data"),
            Some("shop/"),
            Some("shop/../../secrets/s3"),
            Some("shop/a?b"),
            Some("../data"),
        ] {
            let asked = requests(lost(), &volume(written), claim.clone(), false).await;
            assert!(asked.is_empty(), "{written:?}: {asked:?}");
        }
    }
}
