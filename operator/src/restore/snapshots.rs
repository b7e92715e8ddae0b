//! The documents of snapshots: an adopting VolumeSnapshot and, for a user's, its VolumeSnapshotContent and
//! VolumeSnapshot of `snapshot.storage.k8s.io`, bound to each other. All use the retain policy.
//!
//! Invariants: the CSI handle of a snapshot is the name of its VolumeSnapshot of `storage.holdfast.dev`. A
//! snapshot therefore gets its old name, which keeps handles valid, unless an object here has that name. A
//! name that several snapshots of the bucket had is ambiguous: none of them gets it.

use std::collections::{BTreeMap, BTreeSet};

use holdfast_crds::{ByteSize, EXCLUDED_FROM_BACKUP, Time, USER_SNAPSHOT, VolumeSnapshot};
use holdfast_format::record::Labels;
use holdfast_types::{SnapshotName, SnapshotUid};
use kube::ResourceExt;
use serde_json::{Value, json};

use super::documents::{DRIVER, append, comment};

/// Maximum length of a VolumeSnapshot's name, in bytes.
const MAX_NAME_BYTES: usize = 63;

/// A snapshot in the bucket that was not forgotten.
#[derive(Debug, Clone)]
pub(super) struct FoundSnapshot {
    /// Its name: volume and sequence number.
    pub(super) name: SnapshotName,
    /// The uid that it is registered under.
    pub(super) uid: SnapshotUid,
    /// The objects that it was taken for, if known.
    pub(super) origin: Labels,
    /// Logical size of the volume at the snapshot.
    pub(super) size_bytes: u64,
    /// Time of its log record.
    pub(super) taken: Option<Time>,
}

/// A snapshot, and its volume in this cluster.
#[derive(Debug, Clone, Copy)]
pub(super) struct OfVolume<'a> {
    /// Name of the Volume.
    pub(super) object: &'a str,
    /// The objects that the volume was created for.
    pub(super) labels: &'a Labels,
    /// The snapshot.
    pub(super) found: &'a FoundSnapshot,
}

/// The VolumeSnapshots in the cluster.
#[derive(Debug)]
pub(super) struct Here<'a> {
    /// All of them.
    pub(super) snapshots: &'a [VolumeSnapshot],
    /// True if the cluster has the kinds of `snapshot.storage.k8s.io`.
    pub(super) has_user_kinds: bool,
}

impl Here<'_> {
    /// Returns true if an object of the cluster represents or will adopt the snapshot.
    fn has(&self, found: &FoundSnapshot) -> bool {
        let (name, uid) = (found.name.to_string(), found.uid.to_string());
        self.snapshots.iter().any(|it| {
            let taken = it.status.as_ref().and_then(|status| status.snapshot_id.as_ref());
            taken.or(it.spec.snapshot_id.as_ref()) == Some(&name) || it.uid_in_store() == Some(uid.as_str())
        })
    }
}

/// Returns the documents for the snapshots in `all` that the cluster does not have; without `with_claims` no
/// VolumeSnapshot of users is printed.
///
/// # Errors
/// A document cannot be serialized as YAML.
pub(super) fn of(
    all: &[OfVolume<'_>],
    here: &Here<'_>,
    with_claims: bool,
) -> Result<String, serde_saphyr::SerializeError> {
    let wanted: Vec<&OfVolume<'_>> = all.iter().filter(|it| !here.has(it.found)).collect();
    let users = users(&wanted, here);
    let mut taken: BTreeSet<String> = here.snapshots.iter().map(ResourceExt::name_any).collect();
    let mut names: BTreeMap<&str, usize> = BTreeMap::new();
    for name in all.iter().filter_map(|it| it.found.origin.get(Labels::SNAPSHOT)) {
        *names.entry(name).or_default() += 1;
    }
    let (mut out, mut not_printed) = (String::new(), 0);
    for snapshot in wanted {
        let OfVolume { object, labels: _, found } = snapshot;
        let name = free_name(snapshot, &names, &taken);
        taken.insert(name.clone());
        let at = found.taken.as_ref().map_or_else(String::new, |at| format!(", taken at {}", at.0));
        let said = format!("VolumeSnapshot {name} of Volume {object}, {}{at}", ByteSize(found.size_bytes));
        out.push_str(&comment(&said));
        if let Some(had) = found.origin.get(Labels::SNAPSHOT).filter(|had| *had != name) {
            let why = if taken.contains(had) { "is taken here" } else { "was that of several snapshots" };
            out.push_str(&comment(&format!(
                "Its name {had} {why}: a CSI handle with that name does not mean this snapshot"
            )));
        }
        match found.origin.get(Labels::MADE_FOR) {
            Some(Labels::FOR_CLONE) => out.push_str(&comment(
                "It was made for a clone of the volume, not by a user: leave it out, or delete it with deletionPolicy Delete",
            )),
            Some(Labels::FOR_READERS) => out.push_str(&comment(
                "It was made for the nodes that read the volume, not by a user: leave it out, or delete it with deletionPolicy Delete",
            )),
            Some(_) | None => {}
        }
        append(&mut out, &adopting(&name, snapshot))?;
        let Some(user) = user_of(found).filter(|_| with_claims) else { continue };
        if users.get(&user) != Some(&1) {
            out.push_str(&comment(&format!(
                "Several snapshots were taken for VolumeSnapshot {}/{}: bind one of them",
                user.0, user.1
            )));
        } else if here.has_user_kinds {
            append(&mut out, &content(&name, user, snapshot))?;
            append(&mut out, &users_snapshot(&name, user))?;
        } else {
            not_printed += 1;
        }
    }
    if not_printed > 0 {
        out.push_str(&comment(&format!(
            "This cluster has no kinds of snapshot.storage.k8s.io, so {not_printed} VolumeSnapshots of users are not here: install the snapshot controller, and run restore again before you apply this"
        )));
    }
    Ok(out)
}

/// Counts the snapshots of each user VolumeSnapshot.
fn users<'a>(wanted: &[&OfVolume<'a>], here: &Here<'a>) -> BTreeMap<(&'a str, &'a str), usize> {
    let mut users = BTreeMap::new();
    let known = here.snapshots.iter().filter_map(VolumeSnapshot::user_snapshot);
    for user in wanted.iter().filter_map(|it| user_of(it.found)).chain(known) {
        *users.entry(user).or_default() += 1;
    }
    users
}

/// Returns the namespace and name of the user's VolumeSnapshot.
fn user_of(found: &FoundSnapshot) -> Option<(&str, &str)> {
    found.origin.get(Labels::USER_SNAPSHOT_NAMESPACE).zip(found.origin.get(Labels::USER_SNAPSHOT_NAME))
}

/// Returns the snapshot's old name if it is free and unique in `names`; otherwise a name derived from its
/// volume that no snapshot had; otherwise its uid.
fn free_name(snapshot: &OfVolume<'_>, names: &BTreeMap<&str, usize>, taken: &BTreeSet<String>) -> String {
    let OfVolume { object, labels: _, found } = snapshot;
    let had = found.origin.get(Labels::SNAPSHOT).filter(|had| names.get(had) == Some(&1)).map(str::to_owned);
    let place = format!("{object}-at-{}", found.name.seq);
    let is_free = |name: &String| name.len() <= MAX_NAME_BYTES && !names.contains_key(name.as_str());
    let candidates = [had, Some(place).filter(is_free)];
    let free = candidates.into_iter().flatten().find(|name| !taken.contains(name));
    free.unwrap_or_else(|| format!("snapshot-{}", found.uid))
}

fn adopting(name: &str, snapshot: &OfVolume<'_>) -> Value {
    let OfVolume { object, labels: _, found } = snapshot;
    let user = user_of(found).map(|(namespace, name)| format!("{namespace}/{name}"));
    let annotations: BTreeMap<&str, String> = user.map(|user| (USER_SNAPSHOT, user)).into_iter().collect();
    json!({
        "apiVersion": "storage.holdfast.dev/v1alpha1",
        "kind": "VolumeSnapshot",
        "metadata": { "name": name, "annotations": annotations, "labels": { EXCLUDED_FROM_BACKUP: "true" } },
        "spec": { "volume": object, "snapshotID": found.name.to_string(), "deletionPolicy": "Retain" },
    })
}

fn content(name: &str, (namespace, user): (&str, &str), snapshot: &OfVolume<'_>) -> Value {
    let mut spec = json!({
        "deletionPolicy": "Retain",
        "driver": DRIVER,
        "source": { "snapshotHandle": name },
        "volumeSnapshotRef": {
            "apiVersion": "snapshot.storage.k8s.io/v1", "kind": "VolumeSnapshot",
            "namespace": namespace, "name": user,
        },
    });
    let labels = snapshot.labels;
    if labels.get(Labels::CLAIM_NAME).is_some() {
        let is_mounted = labels.get(Labels::FS_TYPE).is_some();
        spec["sourceVolumeMode"] = json!(if is_mounted { "Filesystem" } else { "Block" });
    }
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshotContent",
        "metadata": { "name": name },
        "spec": spec,
    })
}

fn users_snapshot(content: &str, (namespace, name): (&str, &str)) -> Value {
    json!({
        "apiVersion": "snapshot.storage.k8s.io/v1",
        "kind": "VolumeSnapshot",
        "metadata": { "namespace": namespace, "name": name },
        "spec": { "source": { "volumeSnapshotContentName": content } },
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn found(seq: u64, origin: &[(&str, &str)]) -> FoundSnapshot {
        let mut labels = Labels::default();
        for (name, value) in origin {
            assert!(labels.insert(name, value));
        }
        FoundSnapshot {
            name: format!("a-1@{seq}").parse().expect("a name"),
            uid: SnapshotUid([seq as u8; 16]),
            origin: labels,
            size_bytes: 1 << 30,
            taken: None,
        }
    }

    fn users_own(seq: u64, name: &str, user: &str) -> FoundSnapshot {
        let user = [(Labels::USER_SNAPSHOT_NAMESPACE, "shop"), (Labels::USER_SNAPSHOT_NAME, user)];
        found(seq, &[(Labels::SNAPSHOT, name), user[0], user[1]])
    }

    /// Returns the printed text, and its documents as the API server reads them.
    fn read(found: &[FoundSnapshot], snapshots: &[VolumeSnapshot], kinds: bool) -> (String, Vec<Value>) {
        let mut labels = Labels::default();
        assert!(labels.insert(Labels::CLAIM_NAME, "data") && labels.insert(Labels::FS_TYPE, "xfs"));
        let all: Vec<_> =
            found.iter().map(|found| OfVolume { object: "pvc-1", labels: &labels, found }).collect();
        let text = of(&all, &Here { snapshots, has_user_kinds: kinds }, true).expect("YAML");
        let documents = text.split("---\n").skip(1);
        let read = documents.map(|one| serde_saphyr::from_str(one).expect("YAML")).collect();
        (text, read)
    }

    fn snapshot(name: &str, spec: &Value) -> VolumeSnapshot {
        VolumeSnapshot::new(name, serde_json::from_value(spec.clone()).expect("a spec"))
    }

    /// The handle that a backup tool recorded is valid in the new cluster.
    #[test]
    fn a_snapshot_of_a_user_gets_three_objects_and_its_handle() {
        let (_, documents) = read(&[users_own(7, "snapshot-1", "nightly")], &[], true);
        let [own, content, user] = &documents[..] else { panic!("three: {documents:?}") };
        assert_eq!(
            (&own["metadata"]["name"], &own["spec"]["snapshotID"]),
            (&json!("snapshot-1"), &json!("a-1@7"))
        );
        assert_eq!(own["metadata"]["labels"][EXCLUDED_FROM_BACKUP], "true");
        assert_eq!(
            (&own["spec"]["volume"], &own["spec"]["deletionPolicy"]),
            (&json!("pvc-1"), &json!("Retain"))
        );
        let spec: holdfast_crds::VolumeSnapshotSpec =
            serde_json::from_value(own["spec"].clone()).expect("a VolumeSnapshot's spec");
        assert_eq!(spec.snapshot_id.as_deref(), Some("a-1@7"));
        assert_eq!(content["spec"]["source"]["snapshotHandle"], own["metadata"]["name"]);
        assert_eq!(
            (&content["spec"]["deletionPolicy"], &content["spec"]["sourceVolumeMode"]),
            (&json!("Retain"), &json!("Filesystem"))
        );
        assert_eq!(content["spec"]["volumeSnapshotRef"]["name"], user["metadata"]["name"]);
        assert_eq!(user["metadata"], json!({ "namespace": "shop", "name": "nightly" }));
        assert_eq!(user["spec"]["source"]["volumeSnapshotContentName"], content["metadata"]["name"]);
    }

    #[test]
    fn a_snapshot_without_an_origin_is_named_by_its_place() {
        let taken = snapshot("pvc-1-at-7", &json!({ "volume": "other" }));
        let (_, documents) = read(&[found(7, &[]), found(9, &[])], &[taken], true);
        let names: Vec<&Value> = documents.iter().map(|one| &one["metadata"]["name"]).collect();
        assert_eq!(names, ["snapshot-07070707-0707-0707-0707-070707070707", "pvc-1-at-9"]);
    }

    #[test]
    fn what_the_cluster_has_is_not_printed_again() {
        let adopts = snapshot("other", &json!({ "volume": "pvc-1", "snapshotID": "a-1@7" }));
        let mut takes = snapshot("own", &json!({ "volume": "pvc-1" }));
        takes.metadata.uid = Some(SnapshotUid([9; 16]).to_string());
        let (text, _) = read(&[found(7, &[]), found(9, &[])], &[adopts, takes], true);
        assert_eq!(text, "");
    }

    /// A VolumeSnapshot was deleted and taken again, while the first snapshot was retained.
    #[test]
    fn two_snapshots_of_one_user_get_no_content() {
        let two = [users_own(7, "snapshot-1", "nightly"), users_own(9, "snapshot-2", "nightly")];
        let (text, documents) = read(&two, &[], true);
        assert_eq!(documents.len(), 2, "{text}");
        assert!(text.contains("# Several snapshots were taken for VolumeSnapshot shop/nightly"), "{text}");
    }

    /// Regression: the oldest snapshot got the name, so a retained content referred to its data.
    #[test]
    fn a_name_that_two_snapshots_had_is_given_to_neither() {
        let of_name = |seq, name| found(seq, &[(Labels::SNAPSHOT, name)]);
        let found = [of_name(7, "nightly"), of_name(9, "nightly"), of_name(11, "pvc-1-at-7")];
        let (text, documents) = read(&found, &[], true);
        let names: Vec<&Value> = documents.iter().map(|one| &one["metadata"]["name"]).collect();
        let of_7 = "snapshot-07070707-0707-0707-0707-070707070707";
        assert_eq!(names, [of_7, "pvc-1-at-9", "pvc-1-at-7"], "a later one has the name of the place");
        assert_eq!(text.matches("# Its name nightly was that of several snapshots").count(), 2, "{text}");
        let adopted = snapshot(of_7, &json!({ "volume": "pvc-1", "snapshotID": "a-1@7" }));
        let (_, documents) = read(&found[..2], &[adopted], true);
        assert_eq!(documents[0]["metadata"]["name"], "pvc-1-at-9", "nor once the other is here");
    }

    #[test]
    fn a_snapshot_that_no_user_asked_for_says_so() {
        for (purpose, said) in [(Labels::FOR_CLONE, "for a clone"), (Labels::FOR_READERS, "for the nodes")] {
            let (text, documents) = read(&[found(7, &[(Labels::MADE_FOR, purpose)])], &[], true);
            assert!(documents.len() == 1 && text.contains(&format!("# It was made {said}")), "{text}");
        }
    }

    #[test]
    fn a_cluster_without_the_kinds_gets_ours_alone() {
        let (text, documents) = read(&[users_own(7, "snapshot-1", "nightly")], &[], false);
        assert_eq!(documents.len(), 1);
        assert!(text.contains("# This cluster has no kinds of snapshot.storage.k8s.io, so 1 "), "{text}");
    }
}
