//! Facts that one plan for a group of snapshots is made from.

use std::sync::Arc;

use holdfast_crds::{
    ConditionBuilder, GROUP_SNAPSHOT_FINALIZER, GroupProgress, GroupStep, Time, Volume, VolumeGroupSnapshot,
    VolumeGroupSnapshotStatus, VolumeSnapshot,
};
use kube::ResourceExt;

use super::member::{attempt_of, is_member_of, member_name};
use crate::snapshot::facts::SnapshotFacts;

/// One group, its VolumeSnapshots and their Volumes, as seen at one moment.
#[derive(Clone, Debug)]
pub(crate) struct GroupFacts {
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `status`.
    pub(crate) status: VolumeGroupSnapshotStatus,
    /// True if our finalizer is on the object.
    pub(crate) finalizer: bool,
    /// True if deletion was requested.
    pub(crate) deleting: bool,
    /// The VolumeSnapshots of the present attempt, in the order of `spec.volumes`; none before the first.
    pub(crate) members: Vec<MemberFacts>,
    /// The VolumeSnapshots of the group that are not of the present attempt.
    pub(crate) leftovers: Vec<OwnSnapshot>,
    /// True if there are VolumeSnapshots of a later attempt than the one that is known to be recorded.
    pub(crate) is_old: bool,
    /// True if the present attempt is to begin later.
    pub(crate) is_paused: bool,
    /// Volumes of the attempt that no node served when their snapshots were taken, and that changed after
    /// that, by their logs.
    pub(crate) touched: Vec<String>,
}

/// One volume of a group.
#[derive(Clone, Debug)]
pub(crate) struct MemberFacts {
    /// Name of the Volume.
    pub(crate) volume: String,
    /// Name of the VolumeSnapshot.
    pub(crate) name: String,
    /// Observed state of the VolumeSnapshot.
    pub(crate) snapshot: MemberSnapshot,
}

/// Observed state of the VolumeSnapshot of one volume of a group.
#[derive(Clone, Debug)]
pub(crate) enum MemberSnapshot {
    /// None has its name.
    Missing,
    /// One that the group did not create has its name.
    Foreign,
    /// It is there.
    Own(Box<SnapshotFacts>),
}

/// A VolumeSnapshot that the group created.
#[derive(Clone, Debug)]
pub(crate) struct OwnSnapshot {
    /// Its name.
    pub(crate) name: String,
    /// Its content.
    pub(crate) facts: SnapshotFacts,
}

/// The VolumeSnapshots and Volumes in the cluster, as the watches show them.
pub(crate) trait Cluster {
    /// The VolumeSnapshot of this name.
    fn snapshot(&self, name: &str) -> Option<Arc<VolumeSnapshot>>;
    /// All VolumeSnapshots that name this group.
    fn snapshots_of(&self, group: &str) -> Vec<Arc<VolumeSnapshot>>;
    /// The Volume of this name.
    fn volume(&self, name: &str) -> Option<Arc<Volume>>;
}

impl GroupFacts {
    /// The facts of a group.
    pub(crate) fn new(group: &VolumeGroupSnapshot, cluster: &impl Cluster) -> Self {
        let (name, uid) = (group.name_any(), group.uid().unwrap_or_default());
        let status = group.status.clone().unwrap_or_default();
        let facts = |snapshot: &VolumeSnapshot| {
            SnapshotFacts::new(snapshot, cluster.volume(&snapshot.spec.volume).as_deref())
        };
        let observe = |volume: &String, name: &str| match cluster.snapshot(name) {
            None => MemberSnapshot::Missing,
            Some(found) if is_member_of(&found, &uid) && found.spec.volume == *volume => {
                MemberSnapshot::Own(Box::new(facts(&found)))
            }
            Some(_) => MemberSnapshot::Foreign,
        };
        let member = |attempt: i64, (place, volume): (usize, &String)| {
            let name = member_name(&name, attempt, place);
            MemberFacts { volume: volume.clone(), snapshot: observe(volume, &name), name }
        };
        let volumes = || group.spec.volumes.iter().enumerate();
        let members: Vec<MemberFacts> = status
            .attempt
            .map(|attempt| volumes().map(|volume| member(attempt, volume)).collect())
            .unwrap_or_default();
        let leftovers: Vec<OwnSnapshot> = cluster
            .snapshots_of(&name)
            .iter()
            .filter(|found| is_member_of(found, &uid))
            .filter(|found| !members.iter().any(|member| member.name == found.name_any()))
            .map(|found| OwnSnapshot { name: found.name_any(), facts: facts(found) })
            .collect();
        let is_later = |left: &OwnSnapshot| attempt_of(&name, &left.name) > status.attempt;
        Self {
            is_old: leftovers.iter().any(is_later),
            generation: group.metadata.generation.unwrap_or_default(),
            status,
            finalizer: group.finalizers().iter().any(|name| name == GROUP_SNAPSHOT_FINALIZER),
            deleting: group.metadata.deletion_timestamp.is_some(),
            members,
            leftovers,
            is_paused: false,
            touched: Vec::new(),
        }
    }

    /// True once all snapshots were taken: nothing about the volumes matters any more.
    pub(crate) fn is_finished(&self) -> bool {
        is_finished(&self.status)
    }

    /// For the conditions of a report at this time.
    pub(crate) fn conditions<'a>(&'a self, now: &'a Time) -> ConditionBuilder<'a> {
        ConditionBuilder {
            previous: &self.status.conditions,
            observed_generation: Some(self.generation),
            now,
        }
    }

    /// The members whose VolumeSnapshots are there.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&MemberFacts, &SnapshotFacts)> {
        self.members.iter().filter_map(|member| Some((member, member.own()?)))
    }
}

impl MemberFacts {
    /// The facts of the VolumeSnapshot, if it is there.
    pub(crate) fn own(&self) -> Option<&SnapshotFacts> {
        match &self.snapshot {
            MemberSnapshot::Own(facts) => Some(facts),
            MemberSnapshot::Missing | MemberSnapshot::Foreign => None,
        }
    }
}

/// True once all snapshots of a group were taken.
pub(crate) fn is_finished(status: &VolumeGroupSnapshotStatus) -> bool {
    !status.snapshots.is_empty()
}

impl SnapshotFacts {
    /// True if it is recorded of what the snapshot is to be taken, and by whom.
    pub(super) fn is_recorded(&self) -> bool {
        self.status.volume_id.is_some()
    }

    /// True if the snapshot is taken; and if a node was asked, that one let writes wait until the release.
    pub(super) fn is_done(&self) -> bool {
        let is_released = self.status.group_progress == Some(GroupProgress::Released);
        self.status.snapshot_id.is_some() && (self.status.group_step.is_none() || is_released)
    }

    /// True if a node was asked to let writes wait.
    pub(super) fn was_held(&self) -> bool {
        match self.status.group_step {
            Some(GroupStep::Hold | GroupStep::Release) => true,
            Some(GroupStep::Prepare) | None => false,
        }
    }
}
