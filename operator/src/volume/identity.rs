//! Identity of a volume in its object store, and the object that owns it.
//!
//! Invariants: one identity belongs to one Volume object of the cluster at a time. A volume in the store
//! belongs to a Volume if its create record names this object of this cluster.

use holdfast_cluster::api::{ApiError, call};
use holdfast_crds::{FS_TYPE, STORAGE_CLASS, Volume};
use holdfast_format::record::Labels;
use k8s_openapi::api::core::v1::Namespace;
use kube::{Api, Client, ResourceExt};
use tokio::sync::OnceCell;

/// The namespace that exists in every cluster, and whose uid identifies it.
const CLUSTER_NAMESPACE: &str = "kube-system";

/// Returns the volume's identity: recorded, otherwise in the spec, otherwise the object's uid.
pub(crate) fn id_of(volume: &Volume) -> String {
    let recorded = volume.status.as_ref().and_then(|status| status.volume_id.clone());
    let written = || volume.spec.volume_id.clone();
    recorded.or_else(written).or_else(|| volume.metadata.uid.clone()).unwrap_or_default()
}

/// Returns the name of the Volume that owns the identity of `volume`, unless `volume` certainly came first.
///
/// The ObjectStores that they name do not matter: two may describe one bucket, and a node knows a volume only
/// by its identity.
///
/// The Volume that recorded the identity comes first, then the oldest. Two created in the same second wait
/// for each other: a controller that acts on the first may not have seen the second yet.
pub(crate) fn rival_of<'a>(volume: &Volume, all: impl IntoIterator<Item = &'a Volume>) -> Option<String> {
    let id = id_of(volume);
    let place = |one: &Volume| {
        let recorded = one.status.as_ref().is_some_and(|status| status.volume_id.is_some());
        (!recorded, one.metadata.creation_timestamp.clone())
    };
    let own = place(volume);
    all.into_iter()
        .filter(|other| other.metadata.uid != volume.metadata.uid && id_of(other) == id)
        .map(|other| (place(other), other.name_any()))
        .filter(|(other, _name)| *other <= own)
        .min()
        .map(|(_place, name)| name)
}

/// Returns the labels of the volume's create record, without those that do not fit.
pub(crate) fn labels(volume: &Volume, cluster: &str) -> Labels {
    let annotation = |name: &str| volume.annotations().get(name).map(String::as_str);
    let claim = volume.claim();
    let name = volume.name_any();
    let mut labels = Labels::default();
    for (label, value) in [
        (Labels::CLUSTER, Some(cluster)),
        (Labels::VOLUME, Some(name.as_str())),
        (Labels::CLAIM_NAMESPACE, claim.map(|(namespace, _name)| namespace)),
        (Labels::CLAIM_NAME, claim.map(|(_namespace, name)| name)),
        (Labels::STORAGE_CLASS, annotation(STORAGE_CLASS)),
        (Labels::FS_TYPE, annotation(FS_TYPE)),
    ] {
        if let Some(value) = value {
            labels.insert(label, value);
        }
    }
    labels
}

/// The operator's cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterIdentity {
    uid: OnceCell<String>,
}

impl ClusterIdentity {
    /// Returns its uid, requested once and cached.
    ///
    /// # Errors
    /// The API server did not return it.
    pub(crate) async fn uid(&self, client: &Client) -> Result<&str, ApiError> {
        let asked = self.uid.get_or_try_init(|| async {
            let namespaces: Api<Namespace> = Api::all(client.clone());
            Ok(call(namespaces.get(CLUSTER_NAMESPACE)).await?.metadata.uid.unwrap_or_default())
        });
        asked.await.map(String::as_str)
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{CLAIM, Time, VolumeStatus};

    use super::*;

    /// Builds a Volume with this id, created at that second; `recorded` puts the id into its status, too.
    fn volume(name: &str, id: &str, second: u32, recorded: bool) -> Volume {
        let spec = serde_json::json!({ "size": "1Gi", "objectStore": "main", "volumeID": id });
        let mut volume = Volume::new(name, serde_json::from_value(spec).expect("a spec"));
        volume.metadata.uid = Some(format!("uid of {name}"));
        let created = format!("2026-01-01T00:00:{second:02}Z");
        volume.metadata.creation_timestamp = Some(Time(created.parse().expect("a time")));
        volume.status =
            recorded.then(|| VolumeStatus { volume_id: Some(id.to_owned()), ..VolumeStatus::default() });
        volume
    }

    #[test]
    fn the_recorded_identity_counts_then_the_spec_then_the_uid() {
        let mut one = volume("data", "mine", 1, true);
        one.spec.volume_id = Some("other".to_owned());
        assert_eq!(id_of(&one), "mine");
        one.status = None;
        assert_eq!(id_of(&one), "other");
        one.spec.volume_id = None;
        assert_eq!(id_of(&one), "uid of data");
    }

    #[test]
    fn one_identity_belongs_to_one_object_at_a_time() {
        let rival = |one: &Volume, other: &Volume| rival_of(one, [one, other]);
        let (first, second) = (volume("b", "x", 1, false), volume("a", "x", 2, false));
        assert_eq!((rival(&first, &second), rival(&second, &first)), (None, Some("b".to_owned())));
        let recorded = volume("a", "x", 2, true);
        assert_eq!((rival(&first, &recorded), rival(&recorded, &first)), (Some("a".to_owned()), None));
        let same_second = volume("a", "x", 1, false);
        assert_eq!(rival(&first, &same_second).as_deref(), Some("a"));
        assert_eq!(rival(&same_second, &first).as_deref(), Some("b"), "neither is certain");
        assert_eq!(rival(&first, &volume("a", "y", 1, true)), None);
    }

    /// Regression: depending on the order of a hash map, a rejected Volume was named instead of the owner.
    #[test]
    fn of_several_the_first_is_named() {
        let (holder, refused) = (volume("holder", "x", 3, true), volume("refused", "x", 1, false));
        let last = volume("last", "x", 2, false);
        for all in [[&holder, &refused, &last], [&last, &refused, &holder]] {
            assert_eq!(rival_of(&last, all).as_deref(), Some("holder"));
            assert_eq!(rival_of(&refused, all).as_deref(), Some("holder"));
            assert_eq!(rival_of(&holder, all), None);
        }
    }

    /// Regression: two ObjectStores of one bucket gave one volume to two objects; in two buckets, a node that
    /// served one volume mistook it for the other.
    #[test]
    fn one_identity_in_two_object_stores_is_taken() {
        let first = volume("a", "x", 1, true);
        let mut elsewhere = volume("b", "x", 2, false);
        elsewhere.spec.object_store = Some("other".to_owned());
        assert_eq!(rival_of(&elsewhere, [&first, &elsewhere]).as_deref(), Some("a"));
        assert_eq!(rival_of(&first, [&first, &elsewhere]), None);
    }

    #[test]
    fn labels_say_what_a_volume_was_made_for() {
        let mut made = volume("pvc-1", "x", 1, false);
        let annotations = [(CLAIM, "shop/data"), (STORAGE_CLASS, "fast"), (FS_TYPE, "xfs")];
        made.metadata.annotations =
            Some(annotations.map(|(name, value)| (name.to_owned(), value.to_owned())).into());
        let labels = labels(&made, "cluster-1");
        for (name, value) in [
            (Labels::CLUSTER, "cluster-1"),
            (Labels::VOLUME, "pvc-1"),
            (Labels::CLAIM_NAMESPACE, "shop"),
            (Labels::CLAIM_NAME, "data"),
            (Labels::STORAGE_CLASS, "fast"),
            (Labels::FS_TYPE, "xfs"),
        ] {
            assert_eq!(labels.get(name), Some(value));
        }
        let plain = super::labels(&volume("data", "x", 1, false), "cluster-1");
        assert_eq!((plain.get(Labels::VOLUME), plain.get(Labels::CLAIM_NAME)), (Some("data"), None));
    }
}
