//! Names of this node's volumes in the cluster, for the metrics.
//!
//! Owns: nothing; each scrape reads the Volumes shown by `own_volumes`.
//! On failure: if the API server has not responded since the start, there are no names.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};

use holdfast_crds::Volume;
use holdfast_types::VolumeId;
use kube::ResourceExt;
use kube::runtime::reflector::Store;

use super::identity::identity;

/// The names. Clones share them; a daemon without Kubernetes has none.
#[derive(Clone, Debug, Default)]
pub(crate) struct VolumeNames(Arc<OnceLock<Store<Volume>>>);

/// The names of one volume.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct VolumeName {
    /// Name of its Volume.
    pub(crate) volume: String,
    /// Namespace of the PersistentVolumeClaim that it was created for, or empty.
    pub(crate) claim_namespace: String,
    /// Name of that claim, or empty.
    pub(crate) claim: String,
}

impl VolumeNames {
    /// Uses the names of these Volumes from now on. Only the first call has an effect.
    pub(crate) fn read_from(&self, volumes: Store<Volume>) {
        let _first = self.0.set(volumes);
    }

    /// Returns all names, by identity in the object store.
    pub(crate) fn all(&self) -> BTreeMap<VolumeId, VolumeName> {
        let known = self.0.get().map_or_else(Vec::new, Store::state);
        known.iter().filter_map(|volume| Some((identity(volume)?, name(volume)))).collect()
    }
}

fn name(volume: &Volume) -> VolumeName {
    let (claim_namespace, claim) = volume.claim().unwrap_or_default();
    VolumeName {
        volume: volume.name_any(),
        claim_namespace: claim_namespace.to_owned(),
        claim: claim.to_owned(),
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use holdfast_crds::CLAIM;
    use kube::runtime::reflector;
    use kube::runtime::watcher::Event;
    use serde_json::json;

    use super::*;

    /// Shows Volumes, each given as name, identity and claim.
    pub(crate) fn show(names: &VolumeNames, volumes: &[(&str, Option<&str>, Option<&str>)]) {
        let (known, mut writer) = reflector::store();
        for (name, id, claim) in volumes {
            let spec = json!({ "size": "1Gi", "objectStore": "main" });
            let mut volume = Volume::new(name, serde_json::from_value(spec).unwrap());
            volume.annotations_mut().extend(claim.map(|claim| (CLAIM.to_owned(), claim.to_owned())));
            volume.status = Some(serde_json::from_value(json!({ "volumeId": id })).unwrap());
            writer.apply_watcher_event(&Event::Apply(volume));
        }
        names.read_from(known);
    }

    #[test]
    fn a_volume_is_named_with_its_claim_where_it_has_one() {
        let names = VolumeNames::default();
        let volumes = [
            ("pvc-1", Some("id-1"), Some("shop/data")),
            ("disk", Some("id-2"), None),
            ("odd", Some("id-3"), Some("data")),
            ("new", None, None),
        ];
        show(&names, &volumes);
        let all = names.all();
        let found = ["id-1", "id-2", "id-3"].map(|id| {
            let VolumeName { volume, claim_namespace, claim } = &all[&id.parse().unwrap()];
            [volume.as_str(), claim_namespace, claim]
        });
        assert_eq!(found, [["pvc-1", "shop", "data"], ["disk", "", ""], ["odd", "", ""]]);
        assert_eq!(all.len(), 3, "one has no identity yet");
        assert!(VolumeNames::default().all().is_empty());
    }
}
