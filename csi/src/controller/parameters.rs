//! Parameters of a StorageClass and of a VolumeAttributesClass.

use std::collections::HashMap;

use holdfast_crds::{
    Backend, DurabilityMode, FailoverPolicy, FieldError, MemoryCompression, RequiredTransport, VolumeLimits,
    VolumeSpec,
};
use k8s_openapi::serde::Serialize;
use k8s_openapi::serde::de::DeserializeOwned;
use serde_json::{Map, Value};
use tonic::Status;

use super::capacity::quantity;
use super::limit_parameters::{Limit, MAX_IOPS, MAX_THROUGHPUT};
use super::memory::{MemoryParameters, PERCENT};

/// Key that only a StorageClass may have: required for an object store, rejected for memory.
const OBJECT_STORE: &str = "objectStore";
/// Key that only a StorageClass may have; rejected for memory.
const NODES: &str = "nodes";
/// Key that only a StorageClass may have; rejected for memory.
pub(super) const TRANSPORT: &str = "transport";
/// Value of [`NODES`] for volumes without a node affinity.
pub(super) const ANY_NODE: &str = "any";
/// Key of the data's location. A StorageClass without it uses an object store.
pub(super) const BACKEND: &str = "backend";
/// Keys of a StorageClass of memory volumes.
const COMPRESSION: &str = "compression";
const MAX_MEMORY_PERCENT: &str = "maxMemoryPercent";
const SPILL_PERCENT: &str = "spillPercent";
/// Keys valid in both classes; rejected for memory.
const KEYS: [&str; 5] = ["durability", "maxDirtyAge", "failoverPolicy", MAX_IOPS, MAX_THROUGHPUT];
/// Keys added by the provisioner (`--extra-create-metadata`).
const CLAIM_NAME: &str = "csi.storage.k8s.io/pvc/name";
const CLAIM_NAMESPACE: &str = "csi.storage.k8s.io/pvc/namespace";
const VOLUME_NAME: &str = "csi.storage.k8s.io/pv/name";
/// Key for the file system, which the provisioner reads and removes; it also reads a key without the prefix.
const FS_TYPE_KEY: &str = "csi.storage.k8s.io/fstype";

/// Parameters of one volume.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Parameters {
    /// Location of the data.
    pub(super) home: DataHome,
    /// Parameters that may change later.
    settings: MutableSettings,
    /// Nodes on which pods may use the PersistentVolume.
    pub(super) nodes: Nodes,
    /// Transport that the volume requires of its node.
    transport: Option<RequiredTransport>,
    /// Namespace and name of the PersistentVolumeClaim.
    pub(super) claim: Option<String>,
}

/// Location of a volume's data.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum DataHome {
    /// The ObjectStore of this name.
    ObjectStore(String),
    /// The memory of a node.
    Memory(MemoryParameters),
}

/// Nodes on which pods may use a PersistentVolume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) enum Nodes {
    /// Nodes that have served volumes: the PersistentVolume has a node affinity.
    #[default]
    Served,
    /// All nodes, even those that an autoscaler has yet to create and whose labels are unknown.
    Any,
}

/// Parameters that may change during a volume's life; an absent one is not requested.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct MutableSettings {
    /// Point at which a FLUSH completes.
    pub(super) durability: Option<DurabilityMode>,
    /// Maximum age of data that is not uploaded yet.
    pub(super) max_dirty_age: Option<String>,
    /// Treatment of a lost node.
    pub(super) failover_policy: Option<FailoverPolicy>,
    /// Maximum requests per second.
    pub(super) max_iops: Option<Limit<i64>>,
    /// Maximum bytes per second.
    pub(super) max_throughput: Option<Limit<String>>,
}

impl MutableSettings {
    /// Reads the parameters of a VolumeAttributesClass.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the key and the valid keys or values.
    pub(super) fn read(given: HashMap<String, String>) -> Result<Self, Status> {
        const FIELD: &str = "mutable_parameters";
        for (key, why) in [
            (OBJECT_STORE, "is immutable; leave it out, or create another volume in the other ObjectStore"),
            (NODES, "is immutable; leave it out, and write it into a StorageClass"),
            (TRANSPORT, "is immutable; leave it out, and write it into a StorageClass"),
        ] {
            if given.contains_key(key) {
                return Err(invalid(FIELD, key, why));
            }
        }
        Self::take(FIELD, &KEYS, given)
    }

    /// Takes all of the `given` parameters; `known` are the valid keys.
    fn take(field: &'static str, known: &[&str], mut given: HashMap<String, String>) -> Result<Self, Status> {
        let durability = parse_enum(field, "durability", "`local` or `object`", &mut given)?;
        let failover_policy = parse_enum(field, "failoverPolicy", "`Automatic` or `Manual`", &mut given)?;
        let max_dirty_age = given.remove("maxDirtyAge");
        let limit = |key, error: FieldError| {
            invalid(field, key, &format!("{}; {}, or `none`", error.problem, error.fix))
        };
        let max_iops = given.remove(MAX_IOPS).map(|text| Limit::iops(&text)).transpose();
        let max_iops = max_iops.map_err(|error| limit(MAX_IOPS, error))?;
        let max_throughput = given.remove(MAX_THROUGHPUT).map(Limit::throughput).transpose();
        let max_throughput = max_throughput.map_err(|error| limit(MAX_THROUGHPUT, error))?;
        if let Some(key) = given.keys().min() {
            return Err(invalid(
                field,
                key,
                &format!("is not known; the parameters are {}", known.join(", ")),
            ));
        }
        let settings = Self { durability, max_dirty_age, failover_policy, max_iops, max_throughput };
        let mut fields = settings.fields();
        fields.insert("size".to_owned(), "4Ki".into());
        match spec(fields)?.max_dirty_age() {
            Ok(_age) => Ok(settings),
            Err(error) => Err(invalid(field, "maxDirtyAge", &format!("{}; {}", error.problem, error.fix))),
        }
    }

    /// Merges the settings; those of `other` take precedence.
    fn overridden_by(self, other: Self) -> Self {
        Self {
            durability: other.durability.or(self.durability),
            max_dirty_age: other.max_dirty_age.or(self.max_dirty_age),
            failover_policy: other.failover_policy.or(self.failover_policy),
            max_iops: other.max_iops.or(self.max_iops),
            max_throughput: other.max_throughput.or(self.max_throughput),
        }
    }

    /// Returns the settings as spec fields.
    fn fields(&self) -> Map<String, Value> {
        let Self { durability, max_dirty_age, failover_policy, max_iops, max_throughput } = self;
        let limits = [
            ("iops", max_iops.as_ref().map(Limit::field)),
            ("throughput", max_throughput.as_ref().map(Limit::field)),
        ];
        let limits: Map<String, Value> =
            limits.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect();
        let fields = [
            ("durability", durability.map(|word| serde_json::json!(word))),
            ("maxDirtyAge", max_dirty_age.clone().map(Value::String)),
            ("failoverPolicy", failover_policy.map(|word| serde_json::json!(word))),
            ("limits", (!limits.is_empty()).then_some(Value::Object(limits))),
        ];
        fields.into_iter().filter_map(|(name, value)| Some((name.to_owned(), value?))).collect()
    }

    /// Returns the fields to write if the spec differs; `None` if it does not.
    pub(super) fn change_of(&self, found: &VolumeSpec) -> Option<Value> {
        let differs = self.durability.is_some_and(|wanted| wanted != found.durability)
            || self.max_dirty_age.as_ref().is_some_and(|wanted| *wanted != found.max_dirty_age)
            || self.failover_policy.is_some_and(|wanted| wanted != found.failover_policy)
            || self.differs_in_limits(found.limits.as_ref());
        differs.then(|| Value::Object(self.fields()))
    }

    /// Returns true if any limit is given.
    pub(super) fn has_limits(&self) -> bool {
        self.max_iops.is_some() || self.max_throughput.is_some()
    }

    /// Returns true if the spec's limits differ from the given ones.
    fn differs_in_limits(&self, found: Option<&VolumeLimits>) -> bool {
        let iops = found.and_then(|limits| limits.iops);
        let throughput = found.and_then(|limits| limits.throughput.clone());
        self.max_iops.as_ref().is_some_and(|wanted| !wanted.is(iops.as_ref()))
            || self.max_throughput.as_ref().is_some_and(|wanted| !wanted.is(throughput.as_ref()))
    }
}

/// Parses a value of an enumeration; `None` without the key.
fn parse_enum<T: DeserializeOwned + Serialize>(
    field: &str,
    key: &str,
    words: &str,
    given: &mut HashMap<String, String>,
) -> Result<Option<T>, Status> {
    let Some(text) = given.remove(key) else { return Ok(None) };
    let word = Value::String(text);
    // A value of a later release can be read, but not written.
    let parsed = serde_json::from_value::<T>(word.clone()).ok();
    let known = parsed.filter(|parsed| serde_json::to_value(parsed).is_ok_and(|written| written == word));
    known.map(Some).ok_or_else(|| {
        let text = word.as_str().unwrap_or_default();
        invalid(field, key, &format!("`{text}` is not known; write {words}"))
    })
}

/// # Errors
/// `INTERNAL`: the kind does not match this function.
fn spec(fields: Map<String, Value>) -> Result<VolumeSpec, Status> {
    serde_json::from_value(Value::Object(fields))
        .map_err(|error| Status::internal(format!("a Volume's spec: {error}")))
}

impl Parameters {
    /// Reads the parameters of a StorageClass; those of a VolumeAttributesClass override them.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`, naming the key and the valid keys or values.
    pub(super) fn read(mut given: HashMap<String, String>, mutable: MutableSettings) -> Result<Self, Status> {
        const FIELD: &str = "parameters";
        let claim = given.remove(CLAIM_NAMESPACE).zip(given.remove(CLAIM_NAME));
        let claim = claim.map(|(namespace, name)| format!("{namespace}/{name}"));
        given.remove(VOLUME_NAME);
        if let Some(key) = given.keys().filter(|key| key.eq_ignore_ascii_case("fstype")).min() {
            return Err(invalid(FIELD, key, &format!("is not known; write it as {FS_TYPE_KEY}")));
        }
        if parse_enum(FIELD, BACKEND, "`object` or `memory`", &mut given)? == Some(Backend::Memory) {
            let home = DataHome::Memory(memory(FIELD, given, &mutable)?);
            let (settings, nodes, transport) = (MutableSettings::default(), Nodes::Served, None);
            return Ok(Self { home, settings, nodes, transport, claim });
        }
        let object_store = given.remove(OBJECT_STORE).filter(|name| !name.is_empty());
        let nodes = match given.remove(NODES).as_deref() {
            None => Nodes::default(),
            Some("served") => Nodes::Served,
            Some(ANY_NODE) => Nodes::Any,
            Some(other) => {
                let why = format!("`{other}` is not known; write `served` or `any`");
                return Err(invalid(FIELD, NODES, &why));
            }
        };
        let transport =
            parse_enum(FIELD, TRANSPORT, "`ublk`, or leave it out for any transport", &mut given)?;
        let known: Vec<&str> =
            [OBJECT_STORE, NODES, TRANSPORT].into_iter().chain(KEYS).chain([BACKEND]).collect();
        let settings = MutableSettings::take(FIELD, &known, given)?.overridden_by(mutable);
        let object_store = object_store
            .ok_or_else(|| invalid(FIELD, OBJECT_STORE, "is missing; write the name of an ObjectStore"))?;
        Ok(Self { home: DataHome::ObjectStore(object_store), settings, nodes, transport, claim })
    }

    /// Returns true if the volume needs a node with ublk.
    pub(super) fn needs_ublk(&self) -> bool {
        self.transport == Some(RequiredTransport::Ublk)
    }

    /// Returns the spec of a volume of this size with these parameters; other fields have the kind's
    /// defaults.
    ///
    /// # Errors
    /// `INTERNAL`: the kind does not match this function.
    pub(super) fn spec(&self, size_bytes: u64) -> Result<VolumeSpec, Status> {
        let mut fields = self.settings.fields();
        fields.insert("size".to_owned(), Value::String(quantity(size_bytes)));
        if let Some(transport) = self.transport {
            fields.insert(TRANSPORT.to_owned(), serde_json::json!(transport));
        }
        match &self.home {
            DataHome::ObjectStore(name) => {
                fields.insert(OBJECT_STORE.to_owned(), Value::String(name.clone()));
            }
            DataHome::Memory(memory) => {
                fields.insert(BACKEND.to_owned(), serde_json::json!(Backend::Memory));
                fields.insert("memory".to_owned(), serde_json::json!(memory.spec(size_bytes)));
            }
        }
        spec(fields)
    }

    /// Describes the first difference between a volume and these parameters that a change of its settings
    /// cannot explain; `None` without one.
    pub(super) fn difference(&self, spec: &VolumeSpec) -> Option<String> {
        let found = spec.object_store.as_deref().unwrap_or_default();
        match &self.home {
            DataHome::ObjectStore(_) if spec.is_memory() => Some("backend `memory`, not `object`".to_owned()),
            DataHome::ObjectStore(wanted) if found != wanted => {
                Some(format!("objectStore `{found}`, not `{wanted}`"))
            }
            DataHome::Memory(_) if !spec.is_memory() => Some("backend `object`, not `memory`".to_owned()),
            DataHome::Memory(wanted) => {
                let bytes = spec.size_bytes().unwrap_or_default();
                let found = spec.memory.clone().unwrap_or_default();
                (found != wanted.spec(bytes)).then(|| "another memory limit, spill or compression".to_owned())
            }
            DataHome::ObjectStore(_) => None,
        }
    }

    /// Describes the first difference of a volume whose spec was never changed.
    pub(super) fn difference_of_new(&self, spec: &VolumeSpec) -> Option<String> {
        if let Some(difference) = self.difference(spec) {
            return Some(difference);
        }
        if spec.durability != self.settings.durability.unwrap_or_default() {
            return Some("another durability".to_owned());
        }
        if spec.failover_policy != self.settings.failover_policy.unwrap_or_default() {
            return Some("another failoverPolicy".to_owned());
        }
        if spec.transport != self.transport {
            return Some("another transport".to_owned());
        }
        let limits = MutableSettings {
            max_iops: Some(self.settings.max_iops.clone().unwrap_or(Limit::None)),
            max_throughput: Some(self.settings.max_throughput.clone().unwrap_or(Limit::None)),
            ..MutableSettings::default()
        };
        if limits.differs_in_limits(spec.limits.as_ref()) {
            return Some("another maxIops or maxThroughput".to_owned());
        }
        let wanted = self.settings.max_dirty_age.as_ref().filter(|age| **age != spec.max_dirty_age);
        wanted.map(|age| format!("maxDirtyAge `{}`, not `{age}`", spec.max_dirty_age))
    }
}

/// Parses the parameters of memory volumes.
fn memory(
    field: &str,
    mut given: HashMap<String, String>,
    mutable: &MutableSettings,
) -> Result<MemoryParameters, Status> {
    let compression: Option<MemoryCompression> =
        parse_enum(field, COMPRESSION, "`lz4` or `zstd`", &mut given)?;
    let max_percent = percent(field, MAX_MEMORY_PERCENT, &mut given)?;
    let spill_percent = percent(field, SPILL_PERCENT, &mut given)?;
    if let Some(key) = given.keys().min() {
        let known = [BACKEND, COMPRESSION, MAX_MEMORY_PERCENT, SPILL_PERCENT].join(", ");
        let why = format!("is not known with backend `memory`; the parameters are {known}");
        return Err(invalid(field, key, &why));
    }
    if let Some(key) = mutable.fields().keys().min() {
        let why = "a memory volume has none; leave out the VolumeAttributesClass of the claim";
        return Err(invalid("mutable_parameters", key, why));
    }
    Ok(MemoryParameters { max_percent, spill_percent, compression: compression.unwrap_or_default() })
}

/// Parses a percentage of the size; `None` without the key.
fn percent(field: &str, key: &str, given: &mut HashMap<String, String>) -> Result<Option<u8>, Status> {
    let Some(text) = given.remove(key) else { return Ok(None) };
    let percent = text.parse().ok().filter(|percent| PERCENT.contains(percent));
    let why = || format!("`{text}` is not a share; write a whole number from 1 to 100, or leave it out");
    percent.map(Some).ok_or_else(|| invalid(field, key, &why()))
}

fn invalid(field: &str, key: &str, why: &str) -> Status {
    Status::invalid_argument(format!("{field}.{key}: {why}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(given: &[(&str, &str)]) -> HashMap<String, String> {
        given.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
    }

    fn read(given: &[(&str, &str)]) -> Result<Parameters, String> {
        read_with(given, &[])
    }

    fn read_with(given: &[(&str, &str)], mutable: &[(&str, &str)]) -> Result<Parameters, String> {
        let read =
            MutableSettings::read(map(mutable)).and_then(|mutable| Parameters::read(map(given), mutable));
        read.map_err(|status| status.message().to_owned())
    }

    #[test]
    fn all_parameters_reach_the_spec() {
        let given = [
            ("objectStore", "main"),
            ("durability", "object"),
            ("maxDirtyAge", "5s"),
            ("failoverPolicy", "Manual"),
            ("transport", "ublk"),
            ("maxIops", "3000"),
            ("maxThroughput", "125Mi"),
            (CLAIM_NAME, "data"),
            (CLAIM_NAMESPACE, "shop"),
            (VOLUME_NAME, "pvc-1"),
        ];
        let parameters = read(&given).expect("parameters");
        assert_eq!((parameters.claim.as_deref(), parameters.nodes), (Some("shop/data"), Nodes::Served));
        let spec = parameters.spec(1 << 30).expect("a spec");
        assert_eq!((spec.object_store.as_deref(), spec.durability), (Some("main"), DurabilityMode::Object));
        assert_eq!(spec.failover_policy, FailoverPolicy::Manual);
        assert!(parameters.needs_ublk() && spec.needs_ublk());
        assert_eq!((spec.max_dirty_age.as_str(), spec.size.as_deref()), ("5s", Some("1Gi")));
        let limits = spec.limits.clone().expect("limits");
        assert_eq!((limits.iops, limits.throughput.as_deref()), (Some(3000), Some("125Mi")));
        assert_eq!(parameters.difference_of_new(&spec), None);
        let least = read(&[("objectStore", "main")]).expect("parameters").spec(1 << 30);
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
                "parameters.replicas: is not known; the parameters are objectStore, nodes, transport, durability",
            ),
            (vec![store, ("durability", "none")], "`none` is not known; write `local` or `object`"),
            (vec![store, ("durability", "unknown")], "`unknown` is not known; write `local` or `object`"),
            (vec![store, ("failoverPolicy", "Never")], "`Never` is not known; write `Automatic` or `Manual`"),
            (vec![store, ("nodes", "all")], "parameters.nodes: `all` is not known; write `served` or `any`"),
            (
                vec![store, ("transport", "fuse")],
                "parameters.transport: `fuse` is not known; write `ublk`, or leave it out for any transport",
            ),
            (
                vec![("backend", "memory"), ("transport", "ublk")],
                "parameters.transport: is not known with backend `memory`",
            ),
            (vec![store, ("maxDirtyAge", "2h")], "parameters.maxDirtyAge: "),
            (vec![store, ("maxDirtyAge", "soon")], "parameters.maxDirtyAge: "),
            (vec![store, ("maxIops", "0")], "parameters.maxIops: `0` is out of range; write a whole number"),
            (vec![store, ("maxIops", "many")], "such as 3000, or `none`"),
            (vec![store, ("maxThroughput", "512Ki")], "parameters.maxThroughput: `512Ki` is out of range"),
            (vec![store, ("maxThroughput", "125")], "such as 125Mi, or `none`"),
            (
                vec![("backend", "memory"), ("maxIops", "3000")],
                "parameters.maxIops: is not known with backend",
            ),
        ] {
            let refused = read(&given).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
    }

    /// Regression, found in review: the message listed parameters without the one for the file system.
    #[test]
    fn a_file_system_without_the_prefix_is_refused_with_it() {
        for (home, key) in [
            (("objectStore", "main"), "fsType"),
            (("objectStore", "main"), "fstype"),
            ((BACKEND, "memory"), "fsType"),
        ] {
            let refused = read(&[home, (key, "xfs")]).expect_err(key);
            let words = format!("parameters.{key}: is not known; write it as csi.storage.k8s.io/fstype");
            assert_eq!(refused, words);
        }
    }

    /// Regression: `backend: memory` was rejected as an unknown parameter.
    #[test]
    fn a_class_of_memory_volumes_has_its_own_parameters() {
        let backend = ("backend", "memory");
        let given = [backend, ("compression", "zstd"), ("maxMemoryPercent", "50"), (CLAIM_NAME, "data")];
        let parameters = read(&given).expect("parameters");
        let spec = parameters.spec(1 << 30).expect("a spec");
        assert!(spec.is_memory() && spec.object_store.is_none());
        let memory = spec.memory.clone().expect("its limit");
        assert_eq!(
            (memory.limit.as_deref(), memory.compression),
            (Some("524352Ki"), MemoryCompression::Zstd)
        );
        assert_eq!(parameters.difference_of_new(&spec), None);
        let plain = read(&[backend]).expect("parameters");
        assert_eq!(plain.spec(1 << 30).expect("a spec").memory_limit_bytes(), Ok(None));
        assert!(plain.difference(&spec).is_some_and(|words| words.contains("memory limit")));
        let spilling = read(&[backend, ("spillPercent", "100")]).expect("parameters");
        let spilled = spilling.spec(1 << 30).expect("a spec");
        assert_eq!(spilled.memory_spill_bytes(), Ok(Some(1 << 30)));
        assert_eq!(spilling.difference_of_new(&spilled), None);
        assert!(plain.difference(&spilled).is_some_and(|words| words.contains("spill")));
        let object = read(&[("objectStore", "main"), ("backend", "object")]).expect("parameters");
        assert_eq!(object.difference(&spec).as_deref(), Some("backend `memory`, not `object`"));
        let kept = object.spec(1 << 30).expect("a spec");
        assert_eq!(plain.difference(&kept).as_deref(), Some("backend `object`, not `memory`"));
        for (given, words) in [
            (
                vec![("backend", "disk")],
                "parameters.backend: `disk` is not known; write `object` or `memory`",
            ),
            (
                vec![backend, ("objectStore", "main")],
                "parameters.objectStore: is not known with backend `memory`",
            ),
            (
                vec![("objectStore", "main"), ("spillPercent", "50")],
                "parameters.spillPercent: is not known; the parameters are objectStore,",
            ),
            (vec![backend, ("spillPercent", "0")], "parameters.spillPercent: `0` is not a share; write"),
            (vec![backend, ("spillPercent", "101")], "parameters.spillPercent: `101` is not a share; write"),
            (
                vec![backend, ("durability", "object")],
                "parameters.durability: is not known with backend `memory`",
            ),
            (vec![backend, ("compression", "gzip")], "`gzip` is not known; write `lz4` or `zstd`"),
            (vec![backend, ("maxMemoryPercent", "0")], "write a whole number from 1 to 100"),
            (vec![backend, ("maxMemoryPercent", "half")], "write a whole number from 1 to 100"),
        ] {
            let refused = read(&given).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
        let refused = read_with(&[backend], &[("durability", "object")]).expect_err("it has none");
        assert!(refused.starts_with("mutable_parameters.durability: "), "{refused}");
    }

    #[test]
    fn an_attributes_class_overrides_the_storage_class() {
        let class = [("objectStore", "main"), ("durability", "local"), ("maxDirtyAge", "5s")];
        let mutable = [("durability", "object"), ("failoverPolicy", "Manual")];
        let parameters = read_with(&class, &mutable).expect("parameters");
        let spec = parameters.spec(1 << 30).expect("a spec");
        assert_eq!((spec.durability, spec.failover_policy), (DurabilityMode::Object, FailoverPolicy::Manual));
        assert_eq!(spec.max_dirty_age, "5s", "it says nothing of that");
        assert_eq!(parameters.difference(&spec), None);
        for (mutable, words) in [
            (("objectStore", "cold"), "mutable_parameters.objectStore: is immutable"),
            (("transport", "ublk"), "mutable_parameters.transport: is immutable"),
            (("replicas", "3"), "mutable_parameters.replicas: is not known; the parameters are durability,"),
            (("durability", "none"), "mutable_parameters.durability: `none` is not known"),
            (("maxDirtyAge", "2h"), "mutable_parameters.maxDirtyAge: "),
        ] {
            let refused = read_with(&class, &[mutable]).expect_err(words);
            assert!(refused.contains(words), "{refused}");
        }
    }

    #[test]
    fn a_change_writes_the_fields_that_are_given() {
        let found = read(&[("objectStore", "main")]).expect("parameters").spec(1 << 30);
        let found = found.expect("a spec");
        let change =
            |given: &[(&str, &str)]| MutableSettings::read(map(given)).expect("settings").change_of(&found);
        assert_eq!(change(&[]), None);
        assert_eq!(change(&[("durability", "local"), ("maxDirtyAge", "30s")]), None, "it has these");
        let given = [("maxIops", "3000"), ("maxThroughput", "none")];
        let fields = serde_json::json!({ "limits": { "iops": 3000, "throughput": null } });
        assert_eq!(change(&given), Some(fields), "a merge removes what is null");
        assert_eq!(change(&[("maxIops", "none")]), None, "it has no limit");
        let given = [("durability", "object"), ("maxDirtyAge", "30s")];
        let fields = serde_json::json!({ "durability": "object", "maxDirtyAge": "30s" });
        assert_eq!(change(&given), Some(fields));
    }

    #[test]
    fn a_volume_of_other_parameters_is_distinguished() {
        let parameters = read(&[("objectStore", "main")]).expect("parameters");
        for (other, words) in [
            ([("objectStore", "cold"), ("durability", "local")], "objectStore `cold`, not `main`"),
            ([("objectStore", "main"), ("durability", "object")], "another durability"),
            ([("objectStore", "main"), ("maxIops", "3000")], "another maxIops or maxThroughput"),
        ] {
            let spec = read(&other).expect("parameters").spec(1 << 30).expect("a spec");
            assert_eq!(parameters.difference_of_new(&spec).as_deref(), Some(words));
        }
    }
}
