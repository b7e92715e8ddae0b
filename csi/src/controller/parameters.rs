//! Parameters of a StorageClass.

use std::collections::HashMap;

use holdfast_crds::{Durability, FailoverPolicy, VolumeSpec};
use serde_json::Value;
use tonic::Status;

/// Keys that a StorageClass may have. The first is required.
const KEYS: [&str; 4] = ["objectStore", "durability", "maxDirtyAge", "failoverPolicy"];
/// Keys that the provisioner adds (`--extra-create-metadata`).
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const VOLUME_NAME: &str = "csi.storage.k8s.io/pv/name";

/// Parameters of one volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameters {
    /// Name of the ObjectStore.
    pub(super) object_store: String,
    /// Point at which a FLUSH is complete.
    pub(super) durability: Durability,
    /// Treatment of a lost node.
    pub(super) failover_policy: FailoverPolicy,
    /// Largest age of data that is not uploaded yet; absent: the default of the kind.
    pub(super) max_dirty_age: Option<String>,
    /// Namespace and name of the PersistentVolumeClaim.
    pub(super) claim: Option<String>,
}

impl Parameters {
    /// Reads parameters.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the key and the valid keys or values.
    pub(super) fn read(mut given: HashMap<String, String>) -> Result<Self, Status> {
        let claim = given.remove(CLAIM_NAMESPACE).zip(given.remove(CLAIM_NAME));
        let claim = claim.map(|(namespace, name)| format!("{namespace}/{name}"));
        given.remove(VOLUME_NAME);
        let mut unknown: Vec<&str> =
            given.keys().map(String::as_str).filter(|key| !KEYS.contains(key)).collect();
        unknown.sort_unstable();
        if let Some(key) = unknown.first() {
            return Err(invalid(key, &format!("is not known; the parameters are {}", KEYS.join(", "))));
        }
        let object_store = given
            .remove("objectStore")
            .filter(|name| !name.is_empty())
            .ok_or_else(|| invalid("objectStore", "is missing; write the name of an ObjectStore"))?;
        let durability = match given.remove("durability") {
            None => Durability::default(),
            Some(text) => serde_json::from_value(Value::String(text.clone())).map_err(|_unknown| {
                invalid("durability", &format!("`{text}` is not known; write `local` or `object`"))
            })?,
        };
        let failover_policy = match given.remove("failoverPolicy") {
            None => FailoverPolicy::default(),
            Some(text) => serde_json::from_value(Value::String(text.clone())).map_err(|_unknown| {
                invalid("failoverPolicy", &format!("`{text}` is not known; write `Automatic` or `Manual`"))
            })?,
        };
        let read = Self {
            object_store,
            durability,
            failover_policy,
            max_dirty_age: given.remove("maxDirtyAge"),
            claim,
        };
        match read.spec("4Ki".to_owned())?.max_dirty_age() {
            Ok(_age) => Ok(read),
            Err(error) => Err(invalid("maxDirtyAge", &format!("{}; {}", error.problem, error.fix))),
        }
    }

    /// The spec of a volume of this size with these parameters; fields without one have the kind's defaults.
    ///
    /// # Errors
    /// `INTERNAL`: the kind has changed under this function.
    pub(super) fn spec(&self, size: String) -> Result<VolumeSpec, Status> {
        let mut fields = serde_json::json!({
            "size": size,
            "objectStore": self.object_store,
            "durability": self.durability,
            "failoverPolicy": self.failover_policy,
        });
        if let Some(age) = &self.max_dirty_age {
            fields["maxDirtyAge"] = Value::String(age.clone());
        }
        serde_json::from_value(fields).map_err(|error| Status::internal(format!("a Volume's spec: {error}")))
    }

    /// The first way in which a volume differs from these parameters; none if it is as they say.
    pub(super) fn difference(&self, spec: &VolumeSpec) -> Option<String> {
        if spec.object_store.as_deref() != Some(self.object_store.as_str()) {
            let found = spec.object_store.as_deref().unwrap_or_default();
            return Some(format!("objectStore `{found}`, not `{}`", self.object_store));
        }
        if spec.durability != self.durability {
            return Some("another durability".to_owned());
        }
        if spec.failover_policy != self.failover_policy {
            return Some("another failoverPolicy".to_owned());
        }
        let wanted = self.max_dirty_age.as_ref().filter(|age| **age != spec.max_dirty_age);
        wanted.map(|age| format!("maxDirtyAge `{}`, not `{age}`", spec.max_dirty_age))
    }
}

fn invalid(key: &str, why: &str) -> Status {
    Status::invalid_argument(format!("parameters.{key}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(given: &[(&str, &str)]) -> Result<Parameters, String> {
        let given = given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned()));
        Parameters::read(given.collect()).map_err(|status| status.message().to_owned())
    }

    #[test]
    fn all_parameters_reach_the_spec() {
        let given = [
            ("objectStore", "main"),
            ("durability", "object"),
            ("maxDirtyAge", "5s"),
            ("failoverPolicy", "Manual"),
            (CLAIM_NAME, "data"),
            (CLAIM_NAMESPACE, "shop"),
            (VOLUME_NAME, "pvc-1"),
        ];
        let parameters = read(&given).expect("parameters");
        assert_eq!(parameters.claim.as_deref(), Some("shop/data"));
        let spec = parameters.spec("1Gi".to_owned()).expect("a spec");
        assert_eq!((spec.object_store.as_deref(), spec.durability), (Some("main"), Durability::Object));
        assert_eq!(spec.failover_policy, FailoverPolicy::Manual);
        assert_eq!((spec.max_dirty_age.as_str(), spec.size.as_deref()), ("5s", Some("1Gi")));
        assert_eq!(parameters.difference(&spec), None);
        let least = read(&[("objectStore", "main")]).expect("parameters").spec("1Gi".to_owned());
        assert_eq!(least.expect("a spec").max_dirty_age, "30s");
    }

    #[test]
    fn a_bad_parameter_is_named_with_the_fix() {
        let store = ("objectStore", "main");
        for (given, words) in [
            (vec![], "parameters.objectStore: is missing"),
            (vec![("objectStore", "")], "parameters.objectStore: is missing"),
            (
                vec![store, ("replicas", "3")],
                "parameters.replicas: is not known; the parameters are objectStore, durability, maxDirtyAge",
            ),
            (vec![store, ("durability", "none")], "`none` is not known; write `local` or `object`"),
            (vec![store, ("failoverPolicy", "Never")], "`Never` is not known; write `Automatic` or `Manual`"),
            (vec![store, ("maxDirtyAge", "2h")], "parameters.maxDirtyAge: "),
            (vec![store, ("maxDirtyAge", "soon")], "parameters.maxDirtyAge: "),
        ] {
            let refused = read(&given).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_volume_of_other_parameters_is_distinguished() {
        let parameters = read(&[("objectStore", "main")]).expect("parameters");
        for (other, words) in [
            ([("objectStore", "cold"), ("durability", "local")], "objectStore `cold`, not `main`"),
            ([("objectStore", "main"), ("durability", "object")], "another durability"),
        ] {
            let spec = read(&other).expect("parameters").spec("1Gi".to_owned()).expect("a spec");
            assert_eq!(parameters.difference(&spec).as_deref(), Some(words));
        }
    }
}
