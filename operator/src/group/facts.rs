//! Facts that a plan for a group of snapshots is based on.

use std::sync::Arc;

use holdfast_crds::{
    ConditionBuilder, DeletionPolicy, GROUP_SNAPSHOT_FINALIZER, GroupProgress, GroupStep, Time, Volume,
    VolumeGroupSnapshot, VolumeGroupSnapshotStatus, VolumeSnapshot,
};
use kube::ResourceExt;

use super::member::{attempt_of, is_member_of, member_name};
use crate::snapshot::facts::SnapshotFacts;

/// One group, its VolumeSnapshots and their Volumes, observed at one moment.
#[derive(Clone, Debug)]
pub(crate) struct GroupFacts {
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `spec.deletionPolicy`.
    pub(crate) deletion_policy: DeletionPolicy,
    /// `status`.
    pub(crate) status: VolumeGroupSnapshotStatus,
    /// True if our finalizer is on the object.
    pub(crate) finalizer: bool,
    /// True if deletion was requested.
    pub(crate) deleting: bool,
    /// The VolumeSnapshots of the current attempt, in the order of `spec.volumes`; empty before the first.
    pub(crate) members: Vec<MemberFacts>,
    /// The VolumeSnapshots of the group's other attempts.
    pub(crate) leftovers: Vec<OwnSnapshot>,
    /// True if VolumeSnapshots of a later attempt than the recorded one exist: the group's state is stale.
    pub(crate) is_old: bool,
    /// True if the current attempt is delayed.
    pub(crate) is_paused: bool,
    /// Volumes of the attempt that were unserved when their snapshots were taken and that have changed since,
    /// according to their logs.
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
    /// No VolumeSnapshot has its name.
    Missing,
    /// A VolumeSnapshot that the group did not create has its name.
    Foreign,
    /// The group's own VolumeSnapshot exists.
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

/// The VolumeSnapshots and Volumes in the cluster, from the watch caches.
pub(crate) trait GroupCluster {
    /// Returns the VolumeSnapshot of this name.
    fn snapshot(&self, name: &str) -> Option<Arc<VolumeSnapshot>>;
    /// Returns all VolumeSnapshots that name this group.
    fn snapshots_of(&self, group: &str) -> Vec<Arc<VolumeSnapshot>>;
    /// Returns the Volume of this name.
    fn volume(&self, name: &str) -> Option<Arc<Volume>>;
}

impl GroupFacts {
    /// Collects the facts of a group.
    pub(crate) fn new(group: &VolumeGroupSnapshot, cluster: &impl GroupCluster) -> Self {
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
            deletion_policy: group.spec.deletion_policy,
            status,
            finalizer: group.finalizers().iter().any(|name| name == GROUP_SNAPSHOT_FINALIZER),
            deleting: group.metadata.deletion_timestamp.is_some(),
            members,
            leftovers,
            is_paused: false,
            touched: Vec::new(),
        }
    }

    /// Returns true once all snapshots are taken: the state of the volumes no longer matters.
    pub(crate) fn is_finished(&self) -> bool {
        is_finished(&self.status)
    }

    /// Returns a builder for the conditions of a report at this time.
    pub(crate) fn conditions<'a>(&'a self, now: &'a Time) -> ConditionBuilder<'a> {
        ConditionBuilder {
            previous: &self.status.conditions,
            observed_generation: Some(self.generation),
            now,
        }
    }

    /// Returns the members whose VolumeSnapshots exist.
    pub(crate) fn own(&self) -> impl Iterator<Item = (&MemberFacts, &SnapshotFacts)> {
        self.members.iter().filter_map(|member| Some((member, member.own()?)))
    }
}

impl MemberFacts {
    /// Returns the facts of the VolumeSnapshot, if it exists.
    pub(crate) fn own(&self) -> Option<&SnapshotFacts> {
        match &self.snapshot {
            MemberSnapshot::Own(facts) => Some(facts),
            MemberSnapshot::Missing | MemberSnapshot::Foreign => None,
        }
    }
}

/// Returns true once all snapshots of a group are taken.
pub(crate) fn is_finished(status: &VolumeGroupSnapshotStatus) -> bool {
    !status.snapshots.is_empty()
}

impl SnapshotFacts {
    /// Returns true once the status records the volume and the taker of the snapshot.
    pub(super) fn is_recorded(&self) -> bool {
        self.status.volume_id.is_some()
    }

    /// Returns true once it is taken and, if by a node, writes were blocked until the release.
    pub(super) fn is_done(&self) -> bool {
        let is_released = self.status.group_progress == Some(GroupProgress::Released);
        self.status.snapshot_id.is_some() && (self.status.group_step.is_none() || is_released)
    }

    /// Returns true if a node was asked to block writes.
    pub(super) fn was_held(&self) -> bool {
        match self.status.group_step {
            Some(GroupStep::Hold | GroupStep::Release | GroupStep::Unknown) => true,
            Some(GroupStep::Prepare) | None => false,
        }
    }
}
