//! Facts that a plan for a snapshot is based on.

use holdfast_crds::{
    ConditionBuilder, GroupProgress, GroupStep, PROVISIONED, SNAPSHOT_FINALIZER, Time, Volume,
    VolumeSnapshot, VolumeSnapshotSpec, VolumeSnapshotStatus, is_true,
};

use kube::ResourceExt;

use crate::group::member::is_member;
use crate::volume::facts::ClusterFacts;

/// Annotation of a VolumeSnapshot: required identity of its volume. A Volume of the right name with another
/// identity is not the source.
pub(crate) const OF_VOLUME_ID: &str = "holdfast.dev/of-volume-id";

/// One snapshot and its volume, observed at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFacts {
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `spec`.
    pub(crate) spec: VolumeSnapshotSpec,
    /// `status`, as reported by all writers so far.
    pub(crate) status: VolumeSnapshotStatus,
    /// True if our finalizer is on the object.
    pub(crate) finalizer: bool,
    /// True if deletion was requested.
    pub(crate) deleting: bool,
    /// The Volume named in the spec.
    pub(crate) volume: Option<SourceVolume>,
    /// The identity that the Volume must have; set on snapshots that the operator created for a clone.
    pub(crate) of_volume_id: Option<String>,
    /// True if the VolumeGroupSnapshot named in the spec created it.
    pub(crate) is_of_group: bool,
    /// Name of another VolumeSnapshot that represents the snapshot this one must adopt.
    pub(crate) rival: Option<String>,
    /// Name of another VolumeSnapshot that needs the snapshot when this one is deleted.
    pub(crate) also_of: Option<String>,
}

/// The Volume of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceVolume {
    /// Its identity, once it exists in its object store.
    pub(crate) id: Option<String>,
    /// Name of its ObjectStore.
    pub(crate) object_store: String,
    /// The node that serves the volume.
    pub(crate) node: Option<String>,
    /// True if the volume's deletion was requested.
    pub(crate) deleting: bool,
    /// True for a memory volume.
    pub(crate) is_memory: bool,
}

impl SourceVolume {
    /// Reads the facts from the object.
    pub(crate) fn of(volume: &Volume) -> Self {
        let facts = ClusterFacts::new(volume);
        let exists = is_true(&facts.status.conditions, PROVISIONED);
        Self {
            id: facts.status.volume_id.clone().filter(|_| exists),
            object_store: facts.store_name().to_owned(),
            node: facts.serving().map(str::to_owned),
            deleting: facts.deleting,
            is_memory: facts.spec.is_memory(),
        }
    }
}

/// Returns the snapshot that an object represents, or is to adopt.
fn represented(snapshot: &VolumeSnapshot) -> Option<&String> {
    recorded(snapshot).or(snapshot.spec.snapshot_id.as_ref())
}

fn recorded(snapshot: &VolumeSnapshot) -> Option<&String> {
    snapshot.status.as_ref()?.snapshot_id.as_ref()
}

/// Returns the name of another VolumeSnapshot among `all` that represents the snapshot `snapshot` must adopt,
/// unless `snapshot` certainly came first: either one could delete it while the other still uses it.
///
/// The Volumes and ObjectStores that they name do not matter: a volume may be adopted under another name, and
/// two ObjectStores may describe one bucket.
///
/// One that took or adopted the snapshot comes first, then the oldest. Two created in the same second wait
/// for each other: a controller that acts on the first may not have seen the second yet.
pub(crate) fn rival_of<'a>(
    snapshot: &VolumeSnapshot,
    all: impl IntoIterator<Item = &'a VolumeSnapshot>,
) -> Option<String> {
    let wanted = snapshot.spec.snapshot_id.as_ref()?;
    let place = |one: &VolumeSnapshot| (recorded(one).is_none(), one.metadata.creation_timestamp.clone());
    let own = place(snapshot);
    all.into_iter()
        .filter(|other| other.metadata.uid != snapshot.metadata.uid && represented(other) == Some(wanted))
        .map(|other| (place(other), other.name_any()))
        .filter(|(other, _name)| *other <= own)
        .min()
        .map(|(_place, name)| name)
}

/// Returns the name of another VolumeSnapshot among `all` that represents the snapshot of `snapshot`, or is
/// to adopt it, and is not being deleted.
pub(crate) fn also_of<'a>(
    snapshot: &VolumeSnapshot,
    all: impl IntoIterator<Item = &'a VolumeSnapshot>,
) -> Option<String> {
    let uid_of = |one: &VolumeSnapshot| one.status.as_ref()?.snapshot_uid.clone();
    let uid = snapshot.uid_in_store();
    let has_it = |other: &VolumeSnapshot| {
        let by_name = recorded(snapshot).is_some_and(|id| represented(other) == Some(id));
        // The name of a snapshot in progress is not recorded yet.
        by_name || (uid.is_some() && uid_of(other).as_deref() == uid)
    };
    all.into_iter()
        .filter(|other| other.metadata.uid != snapshot.metadata.uid)
        .filter(|other| other.metadata.deletion_timestamp.is_none() && has_it(other))
        .map(ResourceExt::name_any)
        .min()
}

impl SnapshotFacts {
    /// Collects the facts of a snapshot and its Volume.
    pub(crate) fn new(snapshot: &VolumeSnapshot, volume: Option<&Volume>) -> Self {
        Self {
            generation: snapshot.metadata.generation.unwrap_or_default(),
            spec: snapshot.spec.clone(),
            status: snapshot.status.clone().unwrap_or_default(),
            finalizer: snapshot.metadata.finalizers.iter().flatten().any(|name| name == SNAPSHOT_FINALIZER),
            deleting: snapshot.metadata.deletion_timestamp.is_some(),
            volume: volume.map(SourceVolume::of),
            of_volume_id: snapshot.annotations().get(OF_VOLUME_ID).cloned(),
            is_of_group: is_member(snapshot),
            rival: None,
            also_of: None,
        }
    }

    /// Returns true if the recorded snapshot is the one named in the spec.
    pub(crate) fn is_of_spec(&self) -> bool {
        self.spec.snapshot_id.is_some() && self.spec.snapshot_id == self.status.snapshot_id
    }

    /// Returns the node that was asked to take the snapshot, has not taken it, and still serves the volume. A
    /// node that only prepares was not asked yet.
    pub(crate) fn taking(&self) -> Option<&str> {
        self.asked().filter(|_| self.status.group_step != Some(GroupStep::Prepare))
    }

    /// Returns true if a node was asked to prepare and reports preparing: it knows groups, and has started no
    /// snapshot.
    pub(crate) fn is_only_prepared(&self) -> bool {
        let Self { status, .. } = self;
        let prepares = [GroupProgress::Preparing, GroupProgress::Prepared].map(Some);
        status.group_step == Some(GroupStep::Prepare)
            && prepares.contains(&status.group_progress)
            && status.snapshot_id.is_none()
    }

    /// Returns the node that was asked to take or prepare the snapshot, has not taken it, and still serves
    /// the volume.
    pub(crate) fn asked(&self) -> Option<&str> {
        let asked = self.status.node.as_deref().filter(|_| self.status.snapshot_id.is_none())?;
        let volume = self.volume.as_ref().filter(|volume| self.is_of(volume))?;
        (volume.node.as_deref() == Some(asked)).then_some(asked)
    }

    /// Returns true if the snapshot is recorded for this volume: the same identity in the same ObjectStore.
    pub(crate) fn is_of(&self, volume: &SourceVolume) -> bool {
        let store = self.status.object_store.as_deref();
        volume.id == self.status.volume_id && store == Some(volume.object_store.as_str())
    }

    /// Returns a builder for the conditions of a report at this time.
    pub(crate) fn conditions<'a>(&'a self, now: &'a Time) -> ConditionBuilder<'a> {
        ConditionBuilder {
            previous: &self.status.conditions,
            observed_generation: Some(self.generation),
            now,
        }
    }
}
