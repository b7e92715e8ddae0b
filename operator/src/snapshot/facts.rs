//! Facts that one plan for a snapshot is made from.

use holdfast_crds::{
    ConditionBuilder, GroupProgress, GroupStep, PROVISIONED, SNAPSHOT_FINALIZER, Time, Volume,
    VolumeSnapshot, VolumeSnapshotSpec, VolumeSnapshotStatus, is_true,
};

use kube::ResourceExt;

use crate::group::member::is_member;
use crate::volume::facts::ClusterFacts;

/// Annotation of a VolumeSnapshot: identity of the volume that it is to be of. A Volume of that name that has
/// another one is not the source.
pub(crate) const OF_VOLUME_ID: &str = "holdfast.dev/of-volume-id";

/// One snapshot and its volume, as seen at one moment.
#[derive(Clone, Debug)]
pub(crate) struct SnapshotFacts {
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `spec`.
    pub(crate) spec: VolumeSnapshotSpec,
    /// `status`, as all writers reported it so far.
    pub(crate) status: VolumeSnapshotStatus,
    /// True if our finalizer is on the object.
    pub(crate) finalizer: bool,
    /// True if deletion was requested.
    pub(crate) deleting: bool,
    /// The Volume that the spec names.
    pub(crate) volume: Option<SourceVolume>,
    /// The identity that it must have: of a snapshot that the operator made for a clone.
    pub(crate) of_volume_id: Option<String>,
    /// True if the VolumeGroupSnapshot that the spec names created it.
    pub(crate) is_of_group: bool,
    /// Name of the VolumeSnapshot that stands for the snapshot that this one is to adopt.
    pub(crate) rival: Option<String>,
}

/// The Volume of a snapshot.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct SourceVolume {
    /// Its identity, once it exists in its object store.
    pub(crate) id: Option<String>,
    /// Name of its ObjectStore.
    pub(crate) object_store: String,
    /// The node that serves it.
    pub(crate) node: Option<String>,
    /// True if its deletion was requested.
    pub(crate) deleting: bool,
    /// True for a memory volume.
    pub(crate) is_memory: bool,
}

impl SourceVolume {
    /// Reads it off the object.
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

/// Name of the first other VolumeSnapshot among `all` that stands for the snapshot which `snapshot` is to
/// adopt: each could delete it under the other. One that took or adopted it comes first, then the one that
/// was created first.
pub(crate) fn rival_of<'a>(
    snapshot: &VolumeSnapshot,
    all: impl IntoIterator<Item = &'a VolumeSnapshot>,
) -> Option<String> {
    let wanted = snapshot.spec.snapshot_id.as_ref()?;
    let recorded = |one: &VolumeSnapshot| one.status.as_ref().and_then(|status| status.snapshot_id.clone());
    let place = |one: &VolumeSnapshot| {
        (recorded(one).is_none(), one.metadata.creation_timestamp.clone(), one.name_any())
    };
    let is_of_it = |one: &VolumeSnapshot| {
        let recorded = recorded(one);
        let means = recorded.as_ref().or(one.spec.snapshot_id.as_ref());
        means == Some(wanted) && one.spec.volume == snapshot.spec.volume
    };
    let own = place(snapshot);
    all.into_iter()
        .filter(|other| other.metadata.uid != snapshot.metadata.uid && is_of_it(other))
        .map(place)
        .filter(|other| *other < own)
        .min()
        .map(|(_, _, name)| name)
}

impl SnapshotFacts {
    /// The facts of a snapshot and of its Volume.
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
        }
    }

    /// True if the recorded snapshot is the one that the spec names.
    pub(crate) fn is_of_spec(&self) -> bool {
        self.spec.snapshot_id.is_some() && self.spec.snapshot_id == self.status.snapshot_id
    }

    /// The node that was asked for the snapshot, has not taken it, and still serves its volume. One that only
    /// prepares itself was not asked yet.
    pub(crate) fn taking(&self) -> Option<&str> {
        self.asked().filter(|_| self.status.group_step != Some(GroupStep::Prepare))
    }

    /// True if a node was asked to prepare itself, and said that it does: it knows groups, and has begun
    /// nothing.
    pub(crate) fn is_only_prepared(&self) -> bool {
        let Self { status, .. } = self;
        let prepares = [GroupProgress::Preparing, GroupProgress::Prepared].map(Some);
        status.group_step == Some(GroupStep::Prepare)
            && prepares.contains(&status.group_progress)
            && status.snapshot_id.is_none()
    }

    /// The node that was asked for the snapshot or to prepare itself for it, has not taken it, and still
    /// serves its volume.
    pub(crate) fn asked(&self) -> Option<&str> {
        let asked = self.status.node.as_deref().filter(|_| self.status.snapshot_id.is_none())?;
        let volume = self.volume.as_ref().filter(|volume| self.is_of(volume))?;
        (volume.node.as_deref() == Some(asked)).then_some(asked)
    }

    /// True if the snapshot is recorded to be of this volume: the same identity in the same ObjectStore.
    pub(crate) fn is_of(&self, volume: &SourceVolume) -> bool {
        let store = self.status.object_store.as_deref();
        volume.id == self.status.volume_id && store == Some(volume.object_store.as_str())
    }

    /// For the conditions of a report at this time.
    pub(crate) fn conditions<'a>(&'a self, now: &'a Time) -> ConditionBuilder<'a> {
        ConditionBuilder {
            previous: &self.status.conditions,
            observed_generation: Some(self.generation),
            now,
        }
    }
}
