//! The plan for a group, in a model of its objects, the nodes' daemons and the snapshot controller.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use holdfast_crds::{
    Condition, GROUP_SNAPSHOT_FINALIZER, Volume, VolumeGroupSnapshot, VolumeSnapshot, is_true,
};
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use serde_json::json;

use super::super::facts::GroupCluster;
use super::super::member::member;
use super::*;
use crate::snapshot;

fn now() -> Time {
    Time(Timestamp::UNIX_EPOCH)
}

/// A group, its dependencies, and the parts of the system that change it.
#[derive(Clone)]
struct World {
    /// `None` once the API server has deleted it.
    group: Option<VolumeGroupSnapshot>,
    snapshots: BTreeMap<String, VolumeSnapshot>,
    volumes: BTreeMap<String, Volume>,
    /// The snapshots for which a daemon blocks writes.
    held: BTreeSet<String>,
    /// The attempts in which all nodes blocked writes at one moment.
    points: BTreeSet<i64>,
    /// Volumes that changed after their snapshots were taken.
    touched: Vec<String>,
    /// VolumeSnapshots whose snapshots were forgotten in their logs.
    forgotten: BTreeSet<String>,
    is_paused: bool,
    /// Number of writes before the operator dies.
    writes_left: usize,
    next_uid: u32,
}

impl GroupCluster for World {
    fn snapshot(&self, name: &str) -> Option<Arc<VolumeSnapshot>> {
        self.snapshots.get(name).cloned().map(Arc::new)
    }

    fn snapshots_of(&self, group: &str) -> Vec<Arc<VolumeSnapshot>> {
        let all = self.snapshots.values().cloned();
        all.filter(|snapshot| snapshot.spec.group.as_deref() == Some(group)).map(Arc::new).collect()
    }

    fn volume(&self, name: &str) -> Option<Arc<Volume>> {
        self.volumes.get(name).cloned().map(Arc::new)
    }
}

/// The operator died, or a volume has changed.
enum Stopped {
    Died,
    Touched,
}

impl World {
    /// Creates volumes `data` on node a, `wal` on node b, and `attic` on none.
    fn new() -> Self {
        let spec = json!({ "volumes": ["data", "wal", "attic"] });
        let mut group = VolumeGroupSnapshot::new("g", serde_json::from_value(spec).expect("a spec"));
        group.metadata.uid = Some("group".to_owned());
        group.metadata.generation = Some(1);
        let mut world = Self {
            group: Some(group),
            snapshots: BTreeMap::new(),
            volumes: BTreeMap::new(),
            held: BTreeSet::new(),
            points: BTreeSet::new(),
            touched: Vec::new(),
            forgotten: BTreeSet::new(),
            is_paused: false,
            writes_left: usize::MAX,
            next_uid: 0,
        };
        for (name, node) in [("data", Some("a")), ("wal", Some("b")), ("attic", None)] {
            world.serve(name, node);
        }
        world
    }

    /// Assigns the volume to this node.
    fn serve(&mut self, name: &str, node: Option<&str>) {
        let volume = json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1",
            "kind": "Volume",
            "metadata": { "name": name, "uid": name, "generation": 1 },
            "spec": { "size": "1Gi", "objectStore": "main" },
            "status": {
                "volumeId": format!("id-of-{name}"),
                "node": node,
                "conditions": [{
                    "type": "Provisioned", "status": "True", "reason": "Created", "message": "",
                    "lastTransitionTime": "1970-01-01T00:00:00Z",
                }],
            },
        });
        self.volumes.insert(name.to_owned(), serde_json::from_value(volume).expect("a Volume"));
    }

    fn group(&self) -> &VolumeGroupSnapshot {
        self.group.as_ref().expect("it is not deleted")
    }

    fn status(&self) -> VolumeGroupSnapshotStatus {
        self.group().status.clone().unwrap_or_default()
    }

    fn ready(&self) -> Condition {
        let status = self.status();
        find_condition(&status.conditions, READY).cloned().expect("it reports")
    }

    fn member(&mut self, name: &str) -> &mut VolumeSnapshotStatus {
        self.snapshots.get_mut(name).expect("it is there").status.get_or_insert_default()
    }

    fn facts(&self) -> GroupFacts {
        let facts = GroupFacts::new(self.group(), self);
        GroupFacts { is_paused: self.is_paused, ..facts }
    }

    fn plan(&self) -> Vec<GroupPlanStep> {
        plan(&self.facts(), &now())
    }

    /// Counts one write of the operator, which may die before it.
    fn write(&mut self) -> Result<(), Stopped> {
        self.writes_left = self.writes_left.checked_sub(1).ok_or(Stopped::Died)?;
        Ok(())
    }

    fn apply(&mut self, step: &GroupPlanStep) -> Result<(), Stopped> {
        match step {
            GroupPlanStep::AddFinalizer => {
                self.write()?;
                let group = self.group.as_mut().expect("it is not deleted");
                group.finalizers_mut().push(GROUP_SNAPSHOT_FINALIZER.to_owned());
            }
            GroupPlanStep::RemoveFinalizer => {
                self.write()?;
                self.group = None;
            }
            GroupPlanStep::Report(status) => {
                self.write()?;
                self.group.as_mut().expect("it is not deleted").status = Some(status.as_ref().clone());
            }
            GroupPlanStep::Create(places) => {
                let attempt = self.status().attempt.expect("an attempt is recorded first");
                for place in places {
                    self.write()?;
                    let mut snapshot = member(self.group(), attempt, *place).expect("a volume");
                    self.next_uid += 1;
                    snapshot.metadata.uid = Some(format!("snapshot-{}", self.next_uid));
                    snapshot.metadata.generation = Some(1);
                    let previous = self.snapshots.insert(snapshot.name_any(), snapshot);
                    assert_eq!(previous, None, "nothing is overwritten");
                }
            }
            GroupPlanStep::Change(changes) => {
                for change in changes {
                    self.write()?;
                    self.change(&change.name, &change.step);
                }
            }
            GroupPlanStep::Confirm(unserved) => {
                if unserved.iter().any(|unserved| self.touched.contains(&unserved.volume)) {
                    return Err(Stopped::Touched);
                }
            }
            GroupPlanStep::Pause(_) => self.is_paused = true,
            GroupPlanStep::Delete(names) => {
                for name in names {
                    self.write()?;
                    self.delete(name);
                }
            }
        }
        Ok(())
    }

    fn delete(&mut self, name: &str) {
        let snapshot = self.snapshots.get_mut(name).expect("it is there");
        snapshot.metadata.deletion_timestamp = Some(now());
    }

    fn change(&mut self, name: &str, step: &SnapshotStep) {
        match step {
            SnapshotStep::AddFinalizer | SnapshotStep::Adopt(_) | SnapshotStep::StoreOrigin => {}
            SnapshotStep::Forget => {
                self.forgotten.insert(name.to_owned());
            }
            SnapshotStep::SetDeletionPolicy(policy) => {
                let snapshot = self.snapshots.get_mut(name).expect("it is there");
                snapshot.spec.deletion_policy = *policy;
            }
            SnapshotStep::RemoveFinalizer => {
                self.snapshots.remove(name);
            }
            SnapshotStep::Report(status) => *self.member(name) = status.as_ref().clone(),
            SnapshotStep::Take => {
                let volume = self.snapshots[name].spec.volume.clone();
                let serving = self.volumes[&volume].status.as_ref().and_then(|status| status.node.clone());
                assert_eq!(serving, None, "the operator takes it of a volume that no node serves");
                self.member(name).snapshot_id = Some(format!("id-of-{volume}@7"));
            }
        }
    }

    /// Reconciles the group once.
    fn reconcile(&mut self) -> Result<(), Stopped> {
        let facts = self.facts();
        let apply =
            |world: &mut Self, facts| plan(facts, &now()).iter().try_for_each(|step| world.apply(step));
        match apply(self, &facts) {
            Err(Stopped::Touched) => {
                let facts = GroupFacts { touched: self.touched.clone(), ..self.facts() };
                apply(self, &facts)
            }
            other => other,
        }
    }

    /// Reconciles the VolumeSnapshots like the snapshot controller.
    fn reconcile_snapshots(&mut self) {
        for (name, snapshot) in self.snapshots.clone() {
            let volume = self.volume(&snapshot.spec.volume);
            let facts = SnapshotFacts::new(&snapshot, volume.as_deref());
            for step in snapshot::plan::plan(&facts, &now()) {
                self.change(&name, &step);
            }
        }
    }

    /// Runs one step of the daemon responsible for this snapshot.
    fn daemon(&mut self, name: &str) {
        let Some(snapshot) = self.snapshots.get(name) else { return };
        let (volume, status) = (snapshot.spec.volume.clone(), snapshot.status.clone().unwrap_or_default());
        let (Some(step), Some(_asked)) = (status.group_step, status.node.as_ref()) else { return };
        // The daemon has already taken the snapshot.
        if status.snapshot_id.is_some() {
            return;
        }
        let progress = match (step, status.group_progress) {
            (GroupStep::Prepare, _) => GroupProgress::Prepared,
            (GroupStep::Hold, Some(GroupProgress::Held)) => return,
            (GroupStep::Hold, _) => {
                self.held.insert(name.to_owned());
                GroupProgress::Held
            }
            (GroupStep::Release, Some(GroupProgress::Released | GroupProgress::Lapsed)) => {
                self.member(name).snapshot_id = Some(format!("id-of-{volume}@9"));
                return;
            }
            (GroupStep::Release, _) if self.held.remove(name) => GroupProgress::Released,
            (GroupStep::Release, _) => GroupProgress::Lapsed,
            (GroupStep::Unknown, _) => unreachable!("this release has no other step"),
        };
        self.member(name).group_progress = Some(progress);
        let attempt = self.group.as_ref().and_then(|group| group.status.as_ref()?.attempt);
        let all_wait = ["data", "wal"].iter().enumerate();
        if let Some(attempt) = attempt
            && all_wait.clone().all(|(place, _)| self.held.contains(&format!("g-{attempt}-{place}")))
        {
            self.points.insert(attempt);
        }
    }

    /// Runs one step of each daemon.
    fn daemons(&mut self) {
        for name in self.snapshots.clone().into_keys() {
            self.daemon(&name);
        }
    }

    /// Runs everything until nothing changes. The operator may die in between.
    fn run(&mut self) -> Result<(), Stopped> {
        for _ in 0..100 {
            let before = (self.group.clone(), self.snapshots.clone());
            if self.group.is_some() {
                self.reconcile()?;
            }
            self.reconcile_snapshots();
            self.daemons();
            if before == (self.group.clone(), self.snapshots.clone()) {
                return Ok(());
            }
        }
        panic!("it does not come to rest: {:?}", self.group);
    }

    /// Runs until the nodes are at this step in the current attempt.
    fn run_to(&mut self, step: GroupStep) {
        for _ in 0..100 {
            if self.steps().iter().any(|(_, at)| *at == Some(step)) {
                return;
            }
            assert!(self.reconcile().is_ok(), "it lives");
            if self.steps().iter().all(|(_, at)| *at != Some(step)) {
                self.daemons();
            }
        }
        panic!("it does not come to {step:?}: {:?}", self.snapshots);
    }

    /// Returns the name and step of each VolumeSnapshot.
    fn steps(&self) -> Vec<(String, Option<GroupStep>)> {
        let step = |snapshot: &VolumeSnapshot| snapshot.status.as_ref().and_then(|status| status.group_step);
        self.snapshots.iter().map(|(name, snapshot)| (name.clone(), step(snapshot))).collect()
    }

    /// Asserts that the group is complete and matches its status.
    fn assert_complete(&self) {
        let status = self.status();
        assert!(is_true(&status.conditions, READY), "{status:?}");
        let attempt = status.attempt.expect("it is recorded");
        assert!(self.points.contains(&attempt), "all waited at one moment: {:?}", self.points);
        let names: Vec<_> = status.snapshots.iter().map(|member| member.snapshot.clone()).collect();
        assert_eq!(names, (0..3).map(|place| format!("g-{attempt}-{place}")).collect::<Vec<_>>());
        assert_eq!(self.snapshots.keys().cloned().collect::<Vec<_>>(), names, "nothing else is left");
        assert!(self.held.is_empty() && status.taken_time.is_some());
        assert_eq!(self.plan(), []);
    }

    /// Asserts that the first attempt fails with this reason, writes are unblocked, and the next completes.
    fn assert_fails_and_begins_again(mut self, why: &str) {
        assert!(self.run().is_ok());
        let (status, ready) = (self.status(), self.ready());
        assert_eq!((status.attempt, ready.reason.as_str()), (Some(2), ATTEMPT_FAILED), "{ready:?}");
        assert!(ready.message.contains(why), "{ready:?}");
        assert_eq!((status.taken_time, self.is_paused), (None, true));
        assert!(self.held.is_empty() && self.snapshots.is_empty(), "{:?}", self.snapshots);
        assert_eq!(self.plan(), [], "it waits for its time");
        (self.is_paused, self.touched) = (false, Vec::new());
        assert!(self.run().is_ok());
        assert!(is_true(&self.status().conditions, READY), "{:?}", self.status());
    }
}

fn changes(steps: &[GroupPlanStep]) -> Vec<(&str, Option<GroupStep>)> {
    let step = |change: &SnapshotStep| match change {
        SnapshotStep::Report(status) => status.group_step,
        SnapshotStep::AddFinalizer
        | SnapshotStep::RemoveFinalizer
        | SnapshotStep::Take
        | SnapshotStep::Adopt(_)
        | SnapshotStep::StoreOrigin
        | SnapshotStep::SetDeletionPolicy(_)
        | SnapshotStep::Forget => None,
    };
    match steps {
        [GroupPlanStep::Change(changes)] => {
            changes.iter().map(|change| (change.name.as_str(), step(&change.step))).collect()
        }
        other => panic!("changes and nothing else: {other:?}"),
    }
}

#[test]
fn a_group_is_taken_at_one_point() {
    let mut world = World::new();
    assert!(world.run().is_ok());
    world.assert_complete();
    let message = world.ready().message;
    assert!(message.contains("as after a power cut of all of them at once"), "{message}");
    let nodes = world.snapshots.values().filter_map(|snapshot| snapshot.status.as_ref()?.node.as_ref());
    assert_eq!(nodes.count(), 0, "no node has to do with it any more");
}

#[test]
fn an_attempt_is_recorded_before_its_snapshots_are_created() {
    let mut world = World::new();
    assert_eq!(world.plan(), [GroupPlanStep::AddFinalizer]);
    assert!(world.reconcile().is_ok());
    assert!(matches!(world.plan().as_slice(), [GroupPlanStep::Report(status)] if status.attempt == Some(1)));
    assert!(world.reconcile().is_ok());
    assert_eq!(world.plan(), [GroupPlanStep::Create(vec![0, 1, 2])]);
}

/// Stops after each single write, as after losing the lease.
#[test]
fn a_restarted_operator_continues() {
    for writes in 0.. {
        let mut world = World { writes_left: writes, ..World::new() };
        let has_died = matches!(world.run(), Err(Stopped::Died));
        world.writes_left = usize::MAX;
        assert!(world.run().is_ok());
        world.assert_complete();
        if !has_died {
            assert!(writes > 12, "it was taken with {writes} writes");
            return;
        }
    }
}

/// A failed attempt must not look as if its nodes had been released at a point: the volume that moved may be
/// back when the next process looks.
#[test]
fn an_operator_killed_in_a_failed_attempt_discards_it() {
    for writes in 0.. {
        let mut world = World::new();
        world.run_to(GroupStep::Hold);
        world.daemon("g-1-0");
        world.serve("wal", Some("c"));
        world.writes_left = writes;
        let has_died = matches!(world.reconcile(), Err(Stopped::Died));
        world.writes_left = usize::MAX;
        world.serve("wal", Some("b"));
        world.is_paused = false;
        assert!(world.run().is_ok());
        world.assert_complete();
        if !has_died {
            assert!(writes > 3, "it failed with {writes} writes");
            return;
        }
    }
}

#[test]
fn no_write_waits_before_all_nodes_are_prepared() {
    let mut world = World::new();
    world.run_to(GroupStep::Prepare);
    assert!(world.snapshots["g-1-2"].status.as_ref().is_some_and(|status| status.snapshot_id.is_some()));
    world.daemon("g-1-0");
    assert_eq!(world.plan(), [], "node b is not prepared");
    world.daemon("g-1-1");
    let hold = Some(GroupStep::Hold);
    assert_eq!(changes(&world.plan()), [("g-1-0", hold), ("g-1-1", hold)]);
}

/// Writes are blocked here, so each request adds to their latency.
#[test]
fn no_write_continues_before_all_wait() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    assert_eq!(world.plan(), []);
    world.daemon("g-1-1");
    assert_eq!(world.plan(), [], "node a does not hold its volume");
    world.daemon("g-1-0");
    let steps = world.plan();
    let release = Some(GroupStep::Release);
    assert_eq!(changes(&steps[..1]), [("g-1-0", release), ("g-1-1", release)], "nothing comes before that");
    assert!(matches!(&steps[1], GroupPlanStep::Confirm(unserved) if unserved[0].volume == "attic"));
    assert!(matches!(&steps[2], GroupPlanStep::Report(status) if status.taken_time == Some(now())));
}

/// A write that did not reach one of the nodes is retried for that node.
#[test]
fn a_step_that_reached_some_nodes_reaches_the_others() {
    let mut world = World::new();
    world.run_to(GroupStep::Prepare);
    world.daemons();
    world.writes_left = 1;
    assert!(matches!(world.reconcile(), Err(Stopped::Died)));
    world.writes_left = usize::MAX;
    assert_eq!(changes(&world.plan()), [("g-1-1", Some(GroupStep::Hold))]);
    assert!(world.reconcile().is_ok());
    world.daemons();
    world.writes_left = 1;
    assert!(matches!(world.reconcile(), Err(Stopped::Died)));
    assert_eq!(changes(&world.plan()[..1]), [("g-1-1", Some(GroupStep::Release))]);
}

/// The daemon's report is in the version that the write names, and is preserved.
#[test]
fn a_step_keeps_what_the_daemon_reported() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.daemons();
    let steps = world.plan();
    let GroupPlanStep::Change(changes) = &steps[0] else { panic!("a release: {steps:?}") };
    for change in changes {
        let before = world.snapshots[&change.name].status.clone().expect("it was asked");
        let SnapshotStep::Report(after) = &change.step else { panic!("a report: {change:?}") };
        let expected = VolumeSnapshotStatus { group_step: Some(GroupStep::Release), ..before };
        assert_eq!(after.group_progress, Some(GroupProgress::Held));
        assert_eq!(**after, expected);
    }
}

#[test]
fn a_lapsed_hold_fails_the_attempt_and_releases_the_others() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.daemon("g-1-0");
    world.member("g-1-1").group_progress = Some(GroupProgress::Lapsed);
    let steps = world.plan();
    assert_eq!(steps[0], GroupPlanStep::Pause(2));
    assert!(matches!(&steps[1], GroupPlanStep::Report(status) if status.attempt == Some(2)));
    assert!(changes(&steps[2..3]).contains(&("g-1-0", Some(GroupStep::Release))));
    assert!(matches!(&steps[3], GroupPlanStep::Delete(names) if names.len() == 3));
    world.assert_fails_and_begins_again("Volume `wal`: node b let writes continue");
}

/// A hold that ended between Held and the release.
#[test]
fn a_hold_that_lapsed_after_the_release_fails_the_attempt() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.daemons();
    world.held.remove("g-1-0");
    world.assert_fails_and_begins_again("Volume `data`: node a let writes continue");
}

#[test]
fn a_volume_that_moves_fails_the_attempt() {
    for step in [GroupStep::Prepare, GroupStep::Hold, GroupStep::Release] {
        for (node, why) in [
            (Some("c"), "Volume `wal`: it moved from node b to node c"),
            (None, "Volume `wal`: node b released it"),
        ] {
            let mut world = World::new();
            world.run_to(step);
            world.serve("wal", node);
            world.held.remove("g-1-1");
            world.assert_fails_and_begins_again(why);
        }
    }
}

#[test]
fn a_volume_that_is_attached_meanwhile_fails_the_attempt() {
    for step in [GroupStep::Prepare, GroupStep::Hold] {
        let mut world = World::new();
        world.run_to(step);
        world.serve("attic", Some("c"));
        world.assert_fails_and_begins_again("Volume `attic`: node c attached it");
    }
}

/// The volume was attached and released again, and its Volume looks as before.
#[test]
fn a_volume_that_changed_in_its_log_fails_the_attempt() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.touched = vec!["attic".to_owned()];
    world.assert_fails_and_begins_again("Volume `attic`: it was attached and changed");
}

/// The old daemon does not know groups, and takes a snapshot as soon as it is asked to prepare. No later
/// event changes its report.
#[test]
fn a_daemon_of_the_previous_release_fails_the_attempt() {
    for step in [GroupStep::Prepare, GroupStep::Hold] {
        let mut world = World::new();
        world.run_to(step);
        let facts = world.facts();
        let taken = facts.conditions(&now()).build(READY, ConditionStatus::True, "Taken", "");
        let member = world.member("g-1-0");
        // The daemon removes the fields that it does not write.
        (member.snapshot_id, member.group_progress) = (Some("id-of-data@5".to_owned()), None);
        member.conditions = vec![taken];
        world.assert_fails_and_begins_again("Volume `data`: node a took its snapshot on its own");
    }
}

/// The watch of groups lags behind that of snapshots, and a previous leader did not stop: members of a group
/// that is complete by now must not be deleted.
#[test]
fn a_snapshot_of_a_later_attempt_is_no_leftover() {
    let mut world = World::new();
    let before = world.group.clone();
    world.run_to(GroupStep::Prepare);
    let first = world.group.clone();
    let mut status = world.status();
    (status.attempt, world.snapshots) = (Some(2), BTreeMap::new());
    world.group.as_mut().expect("it is there").status = Some(status);
    assert!(world.run().is_ok());
    world.assert_complete();
    for old in [first, before] {
        world.group = old;
        let steps = world.plan();
        assert!(!steps.iter().any(|step| matches!(step, GroupPlanStep::Delete(_))), "{steps:?}");
    }
}

#[test]
fn a_snapshot_that_is_deleted_early_fails_the_attempt() {
    for step in [GroupStep::Prepare, GroupStep::Hold, GroupStep::Release] {
        let mut world = World::new();
        world.run_to(step);
        world.delete("g-1-0");
        world.assert_fails_and_begins_again("Volume `data`: its VolumeSnapshot `g-1-0` was deleted");
    }
}

#[test]
fn a_group_is_deleted_in_every_phase() {
    for writes in 0..30 {
        let mut world = World { writes_left: writes, ..World::new() };
        let _died = world.run();
        world.writes_left = usize::MAX;
        world.group.as_mut().expect("it is there").metadata.deletion_timestamp = Some(now());
        // Without our finalizer the API server deletes it at once.
        if world.group().finalizers().is_empty() {
            assert_eq!(world.plan(), []);
            continue;
        }
        assert!(world.run().is_ok());
        assert_eq!((&world.group, world.snapshots.len()), (&None, 0), "after {writes} writes");
        assert!(world.held.is_empty(), "after {writes} writes");
    }
}

/// Its VolumeSnapshots would have another policy, and their deletion would delete what it may keep.
#[test]
fn a_group_with_a_policy_of_a_later_release_is_untouched() {
    let mut world = World::new();
    world.group.as_mut().expect("it is there").spec.deletion_policy = DeletionPolicy::Unknown;
    assert!(world.run().is_ok());
    assert_eq!(world.ready().reason, UNKNOWN_VALUE);
    assert!(world.snapshots.is_empty(), "{:?}", world.snapshots);
    world.group.as_mut().expect("it is there").spec.deletion_policy = DeletionPolicy::Retain;
    assert!(world.run().is_ok());
    world.assert_complete();
}

/// Regression, found in review: with `Retain`, each failed attempt left registered snapshots that no object
/// named, and the Volumes could not be deleted.
#[test]
fn snapshots_of_an_incomplete_group_are_not_retained() {
    let members: BTreeSet<String> = (0..3).map(|place| format!("g-1-{place}")).collect();
    let retaining = |is_held: bool| {
        let mut world = World::new();
        world.group.as_mut().expect("it is there").spec.deletion_policy = DeletionPolicy::Retain;
        world.run_to(if is_held { GroupStep::Hold } else { GroupStep::Release });
        world
    };
    for writes in 0..12 {
        let mut failed = retaining(true);
        failed.daemon("g-1-0");
        failed.member("g-1-1").group_progress = Some(GroupProgress::Lapsed);
        failed.writes_left = writes;
        let _died = failed.reconcile();
        failed.writes_left = usize::MAX;
        assert!(failed.run().is_ok());
        assert_eq!(failed.forgotten, members, "of a failed attempt, after {writes} writes");
        failed.is_paused = false;
        assert!(failed.run().is_ok());
        failed.assert_complete();
    }

    let mut deleted = retaining(false);
    deleted.group.as_mut().expect("it is there").metadata.deletion_timestamp = Some(now());
    assert!(deleted.run().is_ok());
    assert_eq!((&deleted.group, deleted.forgotten), (&None, members), "of an interrupted attempt");

    let mut complete = retaining(false);
    assert!(complete.run().is_ok());
    complete.assert_complete();
    complete.group.as_mut().expect("it is there").metadata.deletion_timestamp = Some(now());
    assert!(complete.run().is_ok());
    assert_eq!((&complete.group, complete.snapshots.len()), (&None, 0));
    assert_eq!(complete.forgotten, BTreeSet::new(), "of a complete group");
}

/// Regression, found in review: the VolumeSnapshots of an incomplete group had its policy. If they were
/// deleted first, as with `--cascade=foreground`, their snapshots stayed, and no object named them.
#[test]
fn an_incomplete_group_whose_members_are_deleted_first_retains_none() {
    let members: BTreeSet<String> = (0..3).map(|place| format!("g-1-{place}")).collect();
    for step in [GroupStep::Hold, GroupStep::Release] {
        let mut world = World::new();
        world.group.as_mut().expect("it is there").spec.deletion_policy = DeletionPolicy::Retain;
        world.run_to(step);
        members.iter().for_each(|name| world.delete(name));
        world.group.as_mut().expect("it is there").metadata.deletion_timestamp = Some(now());
        assert!(world.run().is_ok());
        assert_eq!((&world.group, world.snapshots.len()), (&None, 0), "{step:?}");
        assert_eq!(world.forgotten, members, "{step:?}");
    }
}

/// The operator may die between any two writes.
#[test]
fn the_snapshots_of_a_complete_group_have_its_policy() {
    for writes in 0.. {
        let mut world = World { writes_left: writes, ..World::new() };
        world.group.as_mut().expect("it is there").spec.deletion_policy = DeletionPolicy::Retain;
        let has_died = matches!(world.run(), Err(Stopped::Died));
        let is_retained = |snapshot: &VolumeSnapshot| snapshot.spec.deletion_policy == DeletionPolicy::Retain;
        let is_complete = !world.status().snapshots.is_empty();
        assert!(!is_complete || world.snapshots.values().all(is_retained), "after {writes} writes");
        world.writes_left = usize::MAX;
        assert!(world.run().is_ok());
        world.assert_complete();
        assert!(world.snapshots.values().all(is_retained));
        if !has_died {
            return;
        }
    }
}

/// A store that is gone for good must not block the deletion.
#[test]
fn a_user_may_retain_a_snapshot_whose_deletion_has_begun() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.group.as_mut().expect("it is there").metadata.deletion_timestamp = Some(now());
    assert!(world.reconcile().is_ok());
    for snapshot in world.snapshots.values_mut() {
        snapshot.spec.deletion_policy = DeletionPolicy::Retain;
    }
    assert!(world.run().is_ok());
    assert_eq!((&world.group, world.snapshots.len()), (&None, 0));
    assert_eq!(world.forgotten, BTreeSet::new());
}

#[test]
fn a_deletion_waits_for_the_snapshots() {
    let mut world = World::new();
    assert!(world.run().is_ok());
    world.group.as_mut().expect("it is there").metadata.deletion_timestamp = Some(now());
    assert!(world.reconcile().is_ok());
    assert_eq!(world.ready().reason, "Deleting");
    assert_eq!(world.plan(), [], "they are not gone");
    world.reconcile_snapshots();
    assert_eq!(world.plan(), [GroupPlanStep::RemoveFinalizer]);
}

/// The API accepts it, and the operator never takes it.
#[test]
fn a_foreign_snapshot_is_never_taken_for_a_group() {
    let mut world = World::new();
    let spec = serde_json::from_value(json!({ "volume": "data", "group": "g" })).expect("a spec");
    world.snapshots.insert("mine".to_owned(), VolumeSnapshot::new("mine", spec));
    assert!(world.run().is_ok());
    let status = world.member("mine").clone();
    assert_eq!((status.conditions[0].reason.as_str(), status.node), ("NotInGroup", None));
    assert!(status.conditions[0].message.contains("VolumeGroupSnapshot `g` did not create"));
    world.snapshots.remove("mine");
    world.assert_complete();
}

#[test]
fn a_taken_name_is_an_obstacle_and_is_not_overwritten() {
    let mut world = World::new();
    let spec = serde_json::from_value(json!({ "volume": "other" })).expect("a spec");
    let mut foreign = VolumeSnapshot::new("g-1-1", spec);
    foreign.metadata.finalizers = Some(vec!["another".to_owned()]);
    world.snapshots.insert("g-1-1".to_owned(), foreign.clone());
    for _ in 0..5 {
        assert!(world.reconcile().is_ok());
    }
    assert_eq!((world.ready().reason.as_str(), &world.snapshots["g-1-1"]), (NAME_TAKEN, &foreign));
    assert!(world.ready().message.contains("VolumeSnapshot `g-1-1` has the name that Volume `wal` needs"));
    world.snapshots.remove("g-1-1");
    assert!(world.run().is_ok());
    world.assert_complete();
}

#[test]
fn an_obstacle_of_a_volume_is_reported_without_any_node() {
    let missing: fn(&mut World) = |world| drop(world.volumes.remove("wal"));
    let unprovisioned: fn(&mut World) = |world| {
        let volume = world.volumes.get_mut("wal").expect("it is there");
        volume.status.as_mut().expect("a status").conditions.clear();
    };
    let deleted: fn(&mut World) = |world| {
        world.volumes.get_mut("wal").expect("it is there").metadata.deletion_timestamp = Some(now());
    };
    for (change, reason) in
        [(missing, "VolumeNotFound"), (unprovisioned, "VolumeNotReady"), (deleted, "VolumeDeleted")]
    {
        let mut world = World::new();
        change(&mut world);
        assert!(world.run().is_ok());
        let ready = world.ready();
        assert_eq!(ready.reason, reason);
        assert!(ready.message.starts_with("spec.volumes: ") && ready.message.contains("`wal`"), "{ready:?}");
        assert_eq!(world.member("g-1-1").conditions[0].reason, reason);
        assert!(
            world.member("g-1-1").conditions[0].message.ends_with("VolumeGroupSnapshot `g` waits for it")
        );
        assert!(world.steps().iter().all(|(_, step)| step.is_none()), "no node is asked");
        world.serve("wal", Some("b"));
        assert!(world.run().is_ok());
        world.assert_complete();
    }
}

#[test]
fn a_node_that_cannot_prepare_is_reported_with_its_volume() {
    let mut world = World::new();
    world.run_to(GroupStep::Prepare);
    let conditions = ConditionStatus::False;
    let facts = world.facts();
    world.member("g-1-1").conditions =
        vec![facts.conditions(&now()).build(READY, conditions, "TooManySnapshots", "delete some")];
    assert!(world.reconcile().is_ok());
    assert_eq!(world.ready().reason, "TooManySnapshots");
    assert_eq!(world.ready().message, "Volume `wal`: VolumeSnapshot `g-1-1`: delete some");
    assert_eq!(world.plan(), [], "said already");
    assert!(world.run().is_ok());
    world.assert_complete();
}

#[test]
fn snapshots_of_old_attempts_are_deleted() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.daemons();
    let mut status = world.status();
    status.attempt = Some(2);
    world.group.as_mut().expect("it is there").status = Some(status);
    let steps = world.plan();
    assert_eq!(changes(&steps[..1]).len(), 2, "their writes do not wait any more");
    assert!(matches!(&steps[1..], [GroupPlanStep::Delete(names)] if names.len() == 3));
    assert!(world.run().is_ok());
    world.assert_complete();
}

/// A node is unreachable, or a log accepts no more snapshots: the leftovers of such an attempt cannot be
/// deleted. Without the wait, each further attempt would add more leftovers.
#[test]
fn an_attempt_waits_for_leftovers_of_the_last_one() {
    let mut world = World::new();
    world.run_to(GroupStep::Hold);
    world.daemons();
    world.member("g-1-0").group_progress = Some(GroupProgress::Lapsed);
    world.held.remove("g-1-0");
    for _ in 0..5 {
        assert!(world.reconcile().is_ok());
        world.is_paused = false;
        assert_eq!(world.snapshots.len(), 3, "{:?}", world.snapshots.keys());
    }
    assert_eq!(world.status().attempt, Some(2));
    assert!(world.run().is_ok());
    world.assert_complete();
}

#[test]
fn a_complete_group_ignores_its_volumes() {
    let mut world = World::new();
    assert!(world.run().is_ok());
    let before = world.group.clone();
    world.volumes.remove("data");
    world.serve("wal", Some("c"));
    world.serve("attic", Some("c"));
    assert!(world.run().is_ok());
    assert_eq!(world.group, before);
    world.assert_complete();
}

#[test]
fn a_complete_group_reports_its_deleted_snapshots() {
    let mut world = World::new();
    assert!(world.run().is_ok());
    world.delete("g-1-1");
    assert!(world.run().is_ok());
    let ready = world.ready();
    assert_eq!((ready.reason.as_str(), world.status().attempt), (SNAPSHOT_DELETED, Some(1)));
    assert!(ready.message.contains("VolumeSnapshot `g-1-1` of Volume `wal`"), "{ready:?}");
    assert_eq!((world.plan(), world.snapshots.len()), (Vec::new(), 2), "it is not taken again");
    world.delete("g-1-0");
    assert!(world.run().is_ok());
    assert!(world.ready().message.contains("`g-1-0`") && world.ready().message.contains("`g-1-1`"));
}

/// Without a node, no writes need to be blocked.
#[test]
fn volumes_that_no_node_serves_are_taken_by_the_operator() {
    let mut world = World::new();
    world.serve("data", None);
    world.serve("wal", None);
    world.touched = vec!["wal".to_owned()];
    assert!(world.run().is_ok());
    assert_eq!(world.ready().reason, ATTEMPT_FAILED);
    (world.touched, world.is_paused) = (Vec::new(), false);
    assert!(world.run().is_ok());
    assert!(is_true(&world.status().conditions, READY));
    assert!(world.steps().iter().all(|(_, step)| step.is_none()));
}
