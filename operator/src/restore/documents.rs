//! The documents: a Volume that adopts and, for a claim, its PersistentVolume and PersistentVolumeClaim,
//! bound to each other. All use the retain policy, so that deleting an accidental restore does no harm.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::{ByteSize, CLAIM, EXCLUDED_FROM_BACKUP, FS_TYPE, STORAGE_CLASS};
use holdfast_format::record::Labels;
use serde_json::{Value, json};

use super::Survivor;
use crate::volume::adoption::history;

/// Name of the CSI driver.
pub(super) const DRIVER: &str = "csi.holdfast.dev";
/// Label of the nodes whose daemon serves volumes, and its value (`csi/src/topology.rs`).
const SERVED: (&str, &str) = ("topology.holdfast.dev/served", "true");

/// Returns the documents for all `survivors`, and the names of the Volumes, in the same order. `names` are
/// those of the Volumes in the cluster; without `with_claims` no claim is printed.
///
/// # Errors
/// A document cannot be serialized as YAML.
pub(super) fn of<'a>(
    store: &str,
    survivors: &'a [Survivor],
    names: &BTreeSet<String>,
    with_claims: bool,
) -> Result<(String, Vec<&'a str>), serde_saphyr::SerializeError> {
    let wanted = NamesAndClaims::new(survivors, names);
    let (mut out, mut objects) = (String::new(), Vec::new());
    for survivor in survivors {
        let Survivor { id, labels, size_bytes, last, snapshots: _ } = survivor;
        let name = labels.get(Labels::VOLUME);
        let unique = name.filter(|_| !wanted.by_id.contains(id.as_str()));
        let object = unique.unwrap_or(id.as_str());
        objects.push(object);
        let said = format!("Volume {object}, {}: {}", ByteSize(*size_bytes), history(last.as_ref()));
        out.push_str(&comment(&said));
        let mut documents = vec![volume(object, store, survivor)];
        if let (Some(name), None) = (name, unique) {
            out.push_str(&comment(&format!(
                "Volume {name} is another one: this one has its id for a name, and no claim"
            )));
        } else if let Some((namespace, name)) = claim_of(survivor).filter(|_| with_claims) {
            if wanted.claims.get(&(namespace, name)) == Some(&1) {
                out.push_str(&comment(&format!(
                    "PersistentVolumeClaim {namespace}/{name} is the one that the volume was created for. The bucket does not \
                     record a later claim of its PersistentVolume: in that case, correct the names"
                )));
                let claim = SavedClaim { object, store, namespace, name, survivor };
                documents.extend([claim.persistent_volume(), claim.persistent_volume_claim()]);
            } else {
                out.push_str(&comment(&format!(
                    "Several volumes were made for PersistentVolumeClaim {namespace}/{name}: bind one of them"
                )));
            }
        }
        for document in documents {
            append(&mut out, &document)?;
        }
    }
    Ok((out, objects))
}

/// Appends a document.
///
/// # Errors
/// It cannot be serialized as YAML.
pub(super) fn append(out: &mut String, document: &Value) -> Result<(), serde_saphyr::SerializeError> {
    out.push_str("---\n");
    out.push_str(serde_saphyr::to_string(document)?.trim_end());
    out.push('\n');
    Ok(())
}

/// Formats a one-line YAML comment: removes characters that YAML treats as line breaks.
pub(super) fn comment(text: &str) -> String {
    let ends_line = |char: char| char.is_control() || matches!(char, '\u{2028}' | '\u{2029}');
    format!("# {}\n", text.replace(ends_line, " "))
}

/// Names and claims that the volumes were created for.
struct NamesAndClaims<'a> {
    /// Number of volumes for each claim.
    claims: BTreeMap<(&'a str, &'a str), usize>,
    /// Ids of the volumes that are named by their id.
    by_id: BTreeSet<&'a str>,
}

impl<'a> NamesAndClaims<'a> {
    fn new(survivors: &'a [Survivor], names: &'a BTreeSet<String>) -> Self {
        let mut volumes: BTreeMap<&str, usize> = names.iter().map(|name| (name.as_str(), 1)).collect();
        let mut claims = BTreeMap::new();
        for survivor in survivors {
            if let Some(name) = survivor.labels.get(Labels::VOLUME) {
                *volumes.entry(name).or_default() += 1;
            }
            if let Some(claim) = claim_of(survivor) {
                *claims.entry(claim).or_default() += 1;
            }
        }
        let mut by_id = BTreeSet::new();
        loop {
            // The id of a volume that is named by its id is taken, too.
            let taken = |survivor: &&Survivor| {
                let (id, name) = (survivor.id.as_str(), survivor.labels.get(Labels::VOLUME));
                let is_free = |name| volumes.get(name) == Some(&1) && (name == id || !by_id.contains(name));
                !by_id.contains(id) && !name.is_some_and(is_free)
            };
            let more: Vec<&str> = survivors.iter().filter(taken).map(|one| one.id.as_str()).collect();
            if more.is_empty() {
                return Self { claims, by_id };
            }
            by_id.extend(more);
        }
    }
}

/// Returns the namespace and name of the claim that a volume was created for.
fn claim_of(survivor: &Survivor) -> Option<(&str, &str)> {
    survivor.labels.get(Labels::CLAIM_NAMESPACE).zip(survivor.labels.get(Labels::CLAIM_NAME))
}

fn volume(object: &str, store: &str, survivor: &Survivor) -> Value {
    let Survivor { id, labels, size_bytes, last: _, snapshots: _ } = survivor;
    let claim = claim_of(survivor).map(|(namespace, name)| format!("{namespace}/{name}"));
    let annotations: BTreeMap<&str, &str> = [
        (CLAIM, claim.as_deref()),
        (STORAGE_CLASS, labels.get(Labels::STORAGE_CLASS)),
        (FS_TYPE, labels.get(Labels::FS_TYPE)),
    ]
    .into_iter()
    .filter_map(|(name, value)| Some((name, value?)))
    .collect();
    json!({
        "apiVersion": "storage.holdfast.dev/v1alpha1",
        "kind": "Volume",
        "metadata": { "name": object, "annotations": annotations, "labels": { EXCLUDED_FROM_BACKUP: "true" } },
        "spec": {
            "objectStore": store,
            "volumeID": id.as_str(),
            "size": ByteSize(*size_bytes).to_string(),
            "source": { "existing": {} },
            "deletionPolicy": "Retain",
        },
    })
}

/// A claim that a volume was created for.
struct SavedClaim<'a> {
    object: &'a str,
    store: &'a str,
    namespace: &'a str,
    name: &'a str,
    survivor: &'a Survivor,
}

impl SavedClaim<'_> {
    /// Builds the PersistentVolume, with the node affinity that the driver gives to a new one: otherwise pods
    /// are scheduled to nodes without the driver.
    fn persistent_volume(&self) -> Value {
        let Self { object, store, namespace, name, survivor } = self;
        let mut csi = json!({
            "driver": DRIVER,
            "volumeHandle": object,
            "volumeAttributes": { "volumeID": survivor.id.as_str(), "objectStore": store },
        });
        if let Some(fs_type) = survivor.labels.get(Labels::FS_TYPE) {
            csi["fsType"] = json!(fs_type);
        }
        let claim = json!({
            "apiVersion": "v1", "kind": "PersistentVolumeClaim", "namespace": namespace, "name": name,
        });
        let (key, value) = SERVED;
        let serves = json!({ "key": key, "operator": "In", "values": [value] });
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolume",
            "metadata": { "name": object, "annotations": { "pv.kubernetes.io/provisioned-by": DRIVER } },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "capacity": { "storage": self.size() },
                "claimRef": claim,
                "csi": csi,
                "nodeAffinity": { "required": { "nodeSelectorTerms": [{ "matchExpressions": [serves] }] } },
                "persistentVolumeReclaimPolicy": "Retain",
                "storageClassName": self.storage_class(),
                "volumeMode": self.volume_mode(),
            },
        })
    }

    fn persistent_volume_claim(&self) -> Value {
        json!({
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": { "namespace": self.namespace, "name": self.name },
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "resources": { "requests": { "storage": self.size() } },
                "storageClassName": self.storage_class(),
                "volumeMode": self.volume_mode(),
                "volumeName": self.object,
            },
        })
    }

    fn size(&self) -> String {
        ByteSize(self.survivor.size_bytes).to_string()
    }

    /// An empty name overrides the cluster's default class.
    fn storage_class(&self) -> &str {
        self.survivor.labels.get(Labels::STORAGE_CLASS).unwrap_or_default()
    }

    fn volume_mode(&self) -> &'static str {
        if self.survivor.labels.get(Labels::FS_TYPE).is_some() { "Filesystem" } else { "Block" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn survivor(id: &str, labels: &[(&str, &str)]) -> Survivor {
        let mut named = Labels::default();
        for (name, value) in labels {
            assert!(named.insert(name, value));
        }
        Survivor {
            id: id.parse().expect("an id"),
            labels: named,
            size_bytes: 1 << 30,
            last: None,
            snapshots: Vec::new(),
        }
    }

    fn claimed(id: &str) -> Survivor {
        survivor(
            id,
            &[
                (Labels::VOLUME, "pvc-1"),
                (Labels::CLAIM_NAMESPACE, "shop"),
                (Labels::CLAIM_NAME, "data"),
                (Labels::STORAGE_CLASS, "fast"),
                (Labels::FS_TYPE, "xfs"),
            ],
        )
    }

    /// Returns the documents as the API server reads them.
    fn read(survivors: &[Survivor], names: &[&str]) -> Vec<Value> {
        let names = names.iter().map(|&name| name.to_owned()).collect();
        let (text, _) = of("main", survivors, &names, true).expect("YAML");
        let documents = text.split("---\n").skip(1);
        documents.map(|one| serde_saphyr::from_str(one).expect("YAML")).collect()
    }

    #[test]
    fn a_claim_gets_three_objects_that_name_each_other() {
        let [volume, persistent, claim] = &read(&[claimed("a-1")], &[])[..] else { panic!("three") };
        assert_eq!(volume["spec"]["volumeID"], "a-1");
        assert_eq!(volume["spec"]["source"], json!({ "existing": {} }));
        assert_eq!(
            (&volume["spec"]["size"], &volume["spec"]["deletionPolicy"]),
            (&json!("1Gi"), &json!("Retain"))
        );
        assert_eq!(volume["metadata"]["annotations"][CLAIM], "shop/data");
        assert_eq!(volume["metadata"]["labels"][EXCLUDED_FROM_BACKUP], "true");
        let spec: holdfast_crds::VolumeSpec =
            serde_json::from_value(volume["spec"].clone()).expect("a Volume's spec");
        assert_eq!(spec.volume_id.as_deref(), Some("a-1"));
        assert_eq!(persistent["spec"]["csi"]["volumeHandle"], volume["metadata"]["name"]);
        assert_eq!(persistent["spec"]["csi"]["fsType"], "xfs");
        assert_eq!(persistent["spec"]["claimRef"]["name"], claim["metadata"]["name"]);
        assert_eq!(persistent["spec"]["persistentVolumeReclaimPolicy"], "Retain");
        assert_eq!(claim["spec"]["volumeName"], persistent["metadata"]["name"]);
        assert_eq!(
            (&claim["spec"]["storageClassName"], &claim["spec"]["volumeMode"]),
            (&json!("fast"), &json!("Filesystem"))
        );
    }

    /// Regression, found in review: pods with a restored claim were scheduled to nodes without the driver,
    /// and waited there.
    #[test]
    fn a_restored_claim_is_only_for_nodes_that_serve_volumes() {
        let [_, persistent, _] = &read(&[claimed("a-1")], &[])[..] else { panic!("three") };
        let expected = json!({ "key": "topology.holdfast.dev/served", "operator": "In", "values": ["true"] });
        let required = &persistent["spec"]["nodeAffinity"]["required"];
        assert_eq!(required["nodeSelectorTerms"], json!([{ "matchExpressions": [expected] }]));
        let driver = include_str!("../../../csi/src/topology.rs");
        for (name, value) in [("KEY", SERVED.0), ("VALUE", SERVED.1)] {
            assert!(driver.contains(&format!("const {name}: &str = \"{value}\";")), "{name} of the driver");
        }
    }

    /// Regression, found in review: after a retained PersistentVolume was bound to another claim, the first
    /// one was printed without a warning.
    #[test]
    fn a_claim_is_said_to_be_the_first_one() {
        let text =
            |with_claims, survivor| of("main", &[survivor], &BTreeSet::new(), with_claims).expect("YAML").0;
        let words = "# PersistentVolumeClaim shop/data is the one that the volume was created for. ";
        assert!(text(true, claimed("a-1")).contains(words));
        assert!(!text(false, claimed("a-1")).contains(words));
        assert!(!text(true, survivor("b-1", &[])).contains("PersistentVolumeClaim"));
    }

    #[test]
    fn a_volume_without_a_claim_is_a_volume_alone() {
        let documents = read(&[survivor("b-1", &[(Labels::VOLUME, "disk")]), survivor("c-1", &[])], &[]);
        let names: Vec<&Value> = documents.iter().map(|one| &one["metadata"]["name"]).collect();
        assert_eq!(names, ["disk", "c-1"], "one of the command line has its id for a name");
    }

    /// The volume that the claim used is unknown: a guess could give a pod another pod's data.
    #[test]
    fn two_volumes_of_one_name_get_no_claim() {
        for (survivors, names, expected) in [
            (vec![claimed("a-1"), claimed("a-2")], vec![], vec!["a-1", "a-2"]),
            (vec![claimed("a-1")], vec!["pvc-1"], vec!["a-1"]),
        ] {
            let documents = read(&survivors, &names);
            let found: Vec<&Value> = documents.iter().map(|one| &one["metadata"]["name"]).collect();
            assert_eq!(found, expected);
        }
    }
    /// Covers a StatefulSet's claim that was created again while the first volume was retained.
    #[test]
    fn two_volumes_of_one_claim_get_no_claim() {
        let claimed_as = |id, volume| {
            let claim = [(Labels::CLAIM_NAMESPACE, "shop"), (Labels::CLAIM_NAME, "data")];
            survivor(id, &[(Labels::VOLUME, volume), claim[0], claim[1]])
        };
        let documents = read(&[claimed_as("a-1", "pvc-1"), claimed_as("a-2", "pvc-2")], &[]);
        let kinds: Vec<&Value> = documents.iter().map(|one| &one["kind"]).collect();
        assert_eq!(kinds, ["Volume", "Volume"]);
    }

    #[test]
    fn an_id_equal_to_another_volumes_name_stays() {
        let other = survivor("a-1", &[(Labels::VOLUME, "x")]);
        for (first, expected) in [
            (survivor("x", &[]), ["x", "a-1"]),
            (survivor("x", &[(Labels::VOLUME, "plain")]), ["plain", "x"]),
        ] {
            let documents = read(&[first, other.clone()], &[]);
            let names: Vec<&Value> = documents.iter().map(|one| &one["metadata"]["name"]).collect();
            assert_eq!(names, expected);
        }
    }

    #[test]
    fn a_comment_is_one_line() {
        for end in ["\n", "\r", "\u{85}", "\u{2028}", "\u{2029}"] {
            assert_eq!(comment(&format!("a{end}b: c")), "# a b: c\n");
        }
    }
}
