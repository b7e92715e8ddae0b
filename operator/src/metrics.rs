//! The operator's metrics: one table, served as Prometheus text.

use std::sync::OnceLock;
use std::time::Instant;

use holdfast_crds::{
    DATA_LOST, ObjectStore, READY, StorageNode, Volume, VolumePhase, find_condition, is_true,
};
use holdfast_log::sweep::SweepReport;
use holdfast_service::logs::DroppedLines;
use k8s_openapi::jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::Store;
use parking_lot::Mutex;
use prometheus_client::encoding::text::encode;
use prometheus_client::encoding::{EncodeLabelSet, EncodeLabelValue};
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::{Histogram, exponential_buckets};
use prometheus_client::registry::{Registry, Unit};

use crate::requeue::Requeue;
use crate::volume::identity::id_of;

/// Reason of [`READY`]: the deletion waits for snapshots of the volume.
const HAS_SNAPSHOTS: &str = "HasSnapshots";

/// Kind of the reconciled object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
pub(crate) enum ObjectKind {
    Volume,
    ObjectStore,
    VolumeSnapshot,
    VolumeGroupSnapshot,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum ReconcileOutcome {
    Done,
    RetrySoon,
    RetryLater,
    RetryRarely,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReconcileLabels {
    kind: ObjectKind,
    outcome: ReconcileOutcome,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct KindLabels {
    kind: ObjectKind,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum Phase {
    Unknown,
    Pending,
    Ready,
    Attaching,
    Attached,
    Detaching,
    Deleting,
    Failed,
}

const PHASES: [Phase; 8] = [
    Phase::Unknown,
    Phase::Pending,
    Phase::Ready,
    Phase::Attaching,
    Phase::Attached,
    Phase::Detaching,
    Phase::Deleting,
    Phase::Failed,
];

impl Phase {
    fn of(volume: &Volume) -> Self {
        match volume.status.as_ref().and_then(|status| status.phase) {
            None => Self::Unknown,
            Some(VolumePhase::Pending) => Self::Pending,
            Some(VolumePhase::Ready) => Self::Ready,
            Some(VolumePhase::Attaching) => Self::Attaching,
            Some(VolumePhase::Attached) => Self::Attached,
            Some(VolumePhase::Detaching) => Self::Detaching,
            Some(VolumePhase::Deleting) => Self::Deleting,
            Some(VolumePhase::Failed) => Self::Failed,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct PhaseLabels {
    phase: Phase,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelValue)]
enum CountedReadiness {
    Ready,
    NotReady,
    /// A StorageNode whose daemon renews no Lease.
    Silent,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ReadinessLabels {
    readiness: CountedReadiness,
}

/// Labels that name a Volume, like those of the daemon's `holdfast_volume_info`.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct NameLabels {
    volume: String,
    name: String,
    namespace: String,
    persistentvolumeclaim: String,
}

impl NameLabels {
    fn of(volume: &Volume) -> Self {
        let (namespace, claim) = volume.claim().unwrap_or_default();
        Self {
            volume: id_of(volume),
            name: volume.name_any(),
            namespace: namespace.to_owned(),
            persistentvolumeclaim: claim.to_owned(),
        }
    }
}

/// Labels of a volume whose data is or may be missing.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LossLabels {
    #[prometheus(flatten)]
    names: NameLabels,
    status: String,
}

impl LossLabels {
    fn of(volume: &Volume) -> Option<Self> {
        let lost = find_condition(&volume.status.as_ref()?.conditions, DATA_LOST)?;
        Some(Self { names: NameLabels::of(volume), status: lost.status.clone() })
    }
}

/// Labels of a volume whose state does not match its spec.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct WaitingLabels {
    #[prometheus(flatten)]
    names: NameLabels,
    phase: Phase,
    reason: String,
}

impl WaitingLabels {
    /// Returns `None` for a Volume that is Ready, and for one whose deletion waits for its snapshots, which
    /// may be intended.
    fn of(volume: &Volume) -> Option<Self> {
        let conditions = volume.status.as_ref().map(|status| &*status.conditions).unwrap_or_default();
        let ready = find_condition(conditions, READY);
        let reason = ready.map_or("NotReported", |ready| &*ready.reason);
        let is_ready = ready.is_some_and(|ready| ready.status == "True");
        (!is_ready && reason != HAS_SNAPSHOTS).then(|| Self {
            names: NameLabels::of(volume),
            phase: Phase::of(volume),
            reason: reason.to_owned(),
        })
    }
}

/// The ObjectStore that a sweep figure refers to.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StoreLabels {
    object_store: String,
}

impl StoreLabels {
    fn of(name: &str) -> Self {
        Self { object_store: name.to_owned() }
    }
}

/// Sweep figures of each ObjectStore.
#[derive(Default)]
struct SweepMetrics {
    deleted_objects: Family<StoreLabels, Counter>,
    deleted_bytes: Family<StoreLabels, Counter>,
    failures: Family<StoreLabels, Counter>,
    garbage_bytes: Family<StoreLabels, Gauge>,
    oldest_seconds: Family<StoreLabels, Gauge>,
    last_success: Family<StoreLabels, Gauge>,
    trashed_volumes: Family<StoreLabels, Gauge>,
}

impl SweepMetrics {
    fn register(&self, registry: &mut Registry) {
        let Self {
            deleted_objects,
            deleted_bytes,
            failures,
            garbage_bytes,
            oldest_seconds,
            last_success,
            trashed_volumes,
        } = self;
        registry.register(
            "trashed_volumes",
            "Deleted volumes in the trash, whose objects are retained, from status.sweep",
            trashed_volumes.clone(),
        );
        registry.register(
            "deleted_objects",
            "Garbage objects deleted by completed sweeps",
            deleted_objects.clone(),
        );
        registry.register_with_unit(
            "deleted",
            "Bytes of the garbage objects deleted by completed sweeps",
            Unit::Bytes,
            deleted_bytes.clone(),
        );
        registry.register("failures", "Sweeps that failed", failures.clone());
        registry.register_with_unit(
            "garbage",
            "Bytes of garbage in the bucket after the last successful sweep, from status.sweep",
            Unit::Bytes,
            garbage_bytes.clone(),
        );
        registry.register_with_unit(
            "oldest_garbage_age",
            "Age of the oldest garbage object that the last successful sweep left, 0 if none remained",
            Unit::Seconds,
            oldest_seconds.clone(),
        );
        registry.register_with_unit(
            "last_success_timestamp",
            "Unix time at which the last successful sweep ended, from status.sweep",
            Unit::Seconds,
            last_success.clone(),
        );
    }
}

/// The operator's metrics.
pub(crate) struct Metrics {
    registry: Registry,
    leader: Gauge,
    reconciles: Family<ReconcileLabels, Counter>,
    seconds: Family<KindLabels, Histogram>,
    volumes: Family<PhaseLabels, Gauge>,
    object_stores: Family<ReadinessLabels, Gauge>,
    storage_nodes: Family<ReadinessLabels, Gauge>,
    data_lost: Family<LossLabels, Gauge>,
    waiting: Family<WaitingLabels, Gauge>,
    sweeps: SweepMetrics,
    seen_volumes: OnceLock<Store<Volume>>,
    seen_object_stores: OnceLock<Store<ObjectStore>>,
    /// Held while families are refilled: a scrape shows either all new lines of a family or all old ones.
    filling: Mutex<()>,
}

impl Metrics {
    /// Creates all metrics with value zero.
    pub(crate) fn new() -> Self {
        let mut all = Registry::default();
        all.register_collector(Box::new(DroppedLines));
        let registry = all.sub_registry_with_prefix("holdfast_operator");
        let leader = Gauge::default();
        let reconciles = Family::<ReconcileLabels, Counter>::default();
        let seconds = Family::<KindLabels, Histogram>::new_with_constructor(|| {
            Histogram::new(exponential_buckets(0.005, 2.0, 12))
        });
        let volumes = Family::<PhaseLabels, Gauge>::default();
        let object_stores = Family::<ReadinessLabels, Gauge>::default();
        let storage_nodes = Family::<ReadinessLabels, Gauge>::default();
        let data_lost = Family::<LossLabels, Gauge>::default();
        let waiting = Family::<WaitingLabels, Gauge>::default();
        registry.register("leader", "1 while this instance is the leader, else 0", leader.clone());
        registry.register(
            "reconciles",
            "Completed reconciliations by object kind and outcome",
            reconciles.clone(),
        );
        registry.register_with_unit(
            "reconcile_duration",
            "Duration of a reconciliation by object kind",
            Unit::Seconds,
            seconds.clone(),
        );
        registry.register("volumes", "Volume objects by phase, as seen by the leader", volumes.clone());
        registry.register(
            "object_stores",
            "ObjectStore objects by readiness, as seen by the leader",
            object_stores.clone(),
        );
        registry.register(
            "storage_nodes",
            "StorageNode objects by readiness, as seen by the leader",
            storage_nodes.clone(),
        );
        registry.register(
            "data_lost",
            "1 for each Volume with the condition UnuploadedDataLost: data is missing or may be missing",
            data_lost.clone(),
        );
        registry.register(
            "volume_waiting",
            "1 for each Volume that is not Ready, except while its deletion waits for its snapshots",
            waiting.clone(),
        );
        let sweeps = SweepMetrics::default();
        sweeps.register(all.sub_registry_with_prefix("holdfast_sweep"));
        Self {
            registry: all,
            leader,
            reconciles,
            seconds,
            volumes,
            object_stores,
            storage_nodes,
            data_lost,
            waiting,
            sweeps,
            seen_volumes: OnceLock::new(),
            seen_object_stores: OnceLock::new(),
            filling: Mutex::default(),
        }
    }

    /// Records whether this instance leads.
    pub(crate) fn set_leader(&self, leads: bool) {
        self.leader.set(i64::from(leads));
    }

    /// Counts Volumes from this watch cache from now on.
    pub(crate) fn watch_volumes(&self, volumes: Store<Volume>) {
        let _first = self.seen_volumes.set(volumes);
    }

    /// Counts ObjectStores from this watch cache from now on.
    pub(crate) fn watch_object_stores(&self, object_stores: Store<ObjectStore>) {
        let _first = self.seen_object_stores.set(object_stores);
    }

    /// Replaces the counts with those of `nodes`, the complete list of StorageNodes.
    pub(crate) fn show_storage_nodes(&self, nodes: &[StorageNode]) {
        let readiness = |node: &StorageNode| {
            let ready = node.status.as_ref().and_then(|status| find_condition(&status.conditions, READY));
            match ready.map(|ready| ready.status.as_str()) {
                Some("True") => CountedReadiness::Ready,
                Some("Unknown") => CountedReadiness::Silent,
                Some(_) | None => CountedReadiness::NotReady,
            }
        };
        for counted in [CountedReadiness::Ready, CountedReadiness::NotReady, CountedReadiness::Silent] {
            let count = nodes.iter().filter(|node| readiness(node) == counted).count();
            self.storage_nodes.get_or_create(&ReadinessLabels { readiness: counted }).set(count as i64);
        }
    }

    /// Counts a completed sweep.
    pub(crate) fn count_sweep(&self, object_store: &str, swept: &SweepReport) {
        let labels = StoreLabels::of(object_store);
        self.sweeps.deleted_objects.get_or_create(&labels).inc_by(swept.deleted.objects);
        self.sweeps.deleted_bytes.get_or_create(&labels).inc_by(swept.deleted.bytes);
        // The alert needs an initial zero.
        self.sweeps.failures.get_or_create(&labels).inc_by(0);
    }

    /// Counts a failed sweep.
    pub(crate) fn count_failed_sweep(&self, object_store: &str) {
        self.sweeps.failures.get_or_create(&StoreLabels::of(object_store)).inc();
    }

    /// Shows the last sweeps that the ObjectStores report, and removes the figures of other stores.
    pub(crate) fn show_sweeps(&self, object_stores: &[ObjectStore], now: Timestamp) {
        let SweepMetrics { garbage_bytes, oldest_seconds, last_success, trashed_volumes, .. } = &self.sweeps;
        let families = [garbage_bytes, oldest_seconds, last_success, trashed_volumes];
        let _filling = self.filling.lock();
        families.iter().for_each(|family| family.clear());
        for store in object_stores {
            let Some(sweep) = store.status.as_ref().and_then(|status| status.sweep.as_ref()) else {
                continue;
            };
            let left = sweep.garbage_bytes.saturating_sub(sweep.deleted_bytes);
            let age =
                sweep.oldest_garbage.as_ref().map(|oldest| now.duration_since(oldest.0).as_secs().max(0));
            let trashed = sweep.trashed_volumes as i64;
            let values = [left as i64, age.unwrap_or_default(), sweep.time.0.as_second(), trashed];
            for (family, value) in families.into_iter().zip(values) {
                family.get_or_create(&StoreLabels::of(&store.name_any())).set(value);
            }
        }
    }

    /// Starts to measure a reconciliation.
    pub(crate) fn start(&self, kind: ObjectKind) -> Timer<'_> {
        Timer { metrics: self, kind, started: Instant::now() }
    }

    /// Renders the metrics as Prometheus text.
    pub(crate) fn render(&self) -> Result<String, std::fmt::Error> {
        let _filling = self.filling.lock();
        if let Some(volumes) = self.seen_volumes.get() {
            let state = volumes.state();
            for phase in PHASES {
                let count = state.iter().filter(|volume| Phase::of(volume) == phase).count();
                self.volumes.get_or_create(&PhaseLabels { phase }).set(count as i64);
            }
            self.data_lost.clear();
            for labels in state.iter().filter_map(|volume| LossLabels::of(volume)) {
                self.data_lost.get_or_create(&labels).set(1);
            }
            self.waiting.clear();
            for labels in state.iter().filter_map(|volume| WaitingLabels::of(volume)) {
                self.waiting.get_or_create(&labels).set(1);
            }
        }
        if let Some(object_stores) = self.seen_object_stores.get() {
            let state = object_stores.state();
            let ready = state
                .iter()
                .filter(|store| {
                    store.status.as_ref().is_some_and(|status| is_true(&status.conditions, READY))
                })
                .count();
            for (readiness, count) in
                [(CountedReadiness::Ready, ready), (CountedReadiness::NotReady, state.len() - ready)]
            {
                self.object_stores.get_or_create(&ReadinessLabels { readiness }).set(count as i64);
            }
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

/// A reconciliation being measured.
#[must_use]
pub(crate) struct Timer<'a> {
    metrics: &'a Metrics,
    kind: ObjectKind,
    started: Instant,
}

impl Timer<'_> {
    /// Counts the reconciliation; `retry` is `None` if it succeeded.
    pub(crate) fn finish(self, retry: Option<Requeue>) {
        let outcome = match retry {
            None => ReconcileOutcome::Done,
            Some(Requeue::Soon) => ReconcileOutcome::RetrySoon,
            Some(Requeue::Later) => ReconcileOutcome::RetryLater,
            Some(Requeue::Rarely | Requeue::OnChange) => ReconcileOutcome::RetryRarely,
        };
        self.metrics.reconciles.get_or_create(&ReconcileLabels { kind: self.kind, outcome }).inc();
        let elapsed = self.started.elapsed().as_secs_f64();
        self.metrics.seconds.get_or_create(&KindLabels { kind: self.kind }).observe(elapsed);
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{CLAIM, StorageNodeSpec};
    use holdfast_log::LogFailure;
    use kube::runtime::{reflector, watcher};
    use serde_json::json;

    use super::*;
    use crate::volume::failure::log_reason;

    /// An ObjectStore whose last sweep left 30 bytes; the oldest were stored at second 5000.
    fn swept_store() -> ObjectStore {
        let store = serde_json::json!({
            "apiVersion": "storage.holdfast.dev/v1alpha1",
            "kind": "ObjectStore",
            "metadata": { "name": "store" },
            "spec": { "bucket": "bucket", "credentials": { "environment": {} } },
            "status": { "sweep": {
                "time": "1970-01-02T00:00:00Z", "volumes": 1, "keptBytes": 7, "garbageBytes": 50,
                "deletedObjects": 2, "deletedBytes": 20, "oldestGarbage": "1970-01-01T01:23:20Z",
                "trashedVolumes": 3,
            } },
        });
        serde_json::from_value(store).expect("an ObjectStore")
    }

    /// A Volume of a claim that lost data, and one that did not.
    fn volumes_with_a_loss() -> Store<Volume> {
        let (known, mut writer) = reflector::store();
        for (name, conditions) in [("pvc-1", vec![DATA_LOST]), ("pvc-2", vec![])] {
            let conditions = conditions.iter().map(|type_| {
                json!({
                    "type": type_, "status": "Unknown", "reason": "NotReported", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            });
            let volume = json!({
                "apiVersion": "storage.holdfast.dev/v1alpha1",
                "kind": "Volume",
                "metadata": { "name": name, "annotations": { CLAIM: "shop/data" } },
                "spec": { "size": "1Gi", "objectStore": "main" },
                "status": { "volumeId": "id", "conditions": conditions.collect::<Vec<_>>() },
            });
            let volume = serde_json::from_value(volume).expect("a Volume");
            writer.apply_watcher_event(&watcher::Event::Apply(volume));
        }
        known
    }

    /// Regression: the loss of data was visible only in the Volume and its events.
    #[test]
    fn a_volume_that_lost_data_is_named_with_its_claim() {
        let metrics = Metrics::new();
        metrics.watch_volumes(volumes_with_a_loss());
        let text = metrics.render().expect("renders");
        let lines: Vec<&str> =
            text.lines().filter(|line| line.starts_with("holdfast_operator_data_lost{")).collect();
        let labels =
            r#"volume="id",name="pvc-1",namespace="shop",persistentvolumeclaim="data",status="Unknown""#;
        assert_eq!(lines, [format!("holdfast_operator_data_lost{{{labels}}} 1")], "{text}");
    }

    /// Regression, found in review: no alert fired for an attach that failed and was retried. Its metric of
    /// the daemon exists only during each attempt.
    #[test]
    fn each_volume_that_waits_is_named_with_its_phase() {
        let (known, mut writer) = reflector::store::<Volume>();
        let mut add = |name: &str, claim: Option<&str>, phase: &str, ready: Option<(&str, &str)>| {
            let conditions = ready.iter().map(|(status, reason)| {
                json!({
                    "type": READY, "status": status, "reason": reason, "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            });
            let volume = json!({
                "apiVersion": "storage.holdfast.dev/v1alpha1",
                "kind": "Volume",
                "metadata": { "name": name, "annotations": claim.map(|claim| json!({ CLAIM: claim })) },
                "spec": { "size": "1Gi", "objectStore": "main" },
                "status": { "volumeId": name, "phase": phase, "conditions": conditions.collect::<Vec<_>>() },
            });
            let volume = serde_json::from_value(volume).expect("a Volume");
            writer.apply_watcher_event(&watcher::Event::Apply(volume));
        };
        let failure = LogFailure::HasSnapshots { volume: "v".parse().expect("an id"), seqs: Vec::new() };
        assert_eq!(log_reason(&failure), HAS_SNAPSHOTS);
        add("served", None, "Attached", Some(("True", "Attached")));
        add("idle", None, "Ready", Some(("True", "Detached")));
        add("kept", None, "Deleting", Some(("False", HAS_SNAPSHOTS)));
        add("pvc-1", Some("shop/data"), "Attaching", Some(("False", "Attaching")));
        add("gone", None, "Deleting", Some(("False", "WaitingForDetach")));
        add("old", None, "Pending", None);
        let metrics = Metrics::new();
        metrics.watch_volumes(known.clone());
        let waiting = || {
            let text = metrics.render().expect("renders");
            let lines =
                text.lines().filter_map(|line| line.strip_prefix("holdfast_operator_volume_waiting{"));
            let mut lines: Vec<String> = lines.map(str::to_owned).collect();
            lines.sort_unstable();
            lines
        };
        assert_eq!(
            waiting(),
            [
                r#"volume="gone",name="gone",namespace="",persistentvolumeclaim="",phase="Deleting",reason="WaitingForDetach"} 1"#,
                r#"volume="old",name="old",namespace="",persistentvolumeclaim="",phase="Pending",reason="NotReported"} 1"#,
                r#"volume="pvc-1",name="pvc-1",namespace="shop",persistentvolumeclaim="data",phase="Attaching",reason="Attaching"} 1"#,
            ]
        );
        add("pvc-1", Some("shop/data"), "Attached", Some(("True", "Attached")));
        add("old", None, "Ready", Some(("True", "Detached")));
        let gone = known.state().into_iter().find(|volume| volume.name_any() == "gone").expect("it is there");
        writer.apply_watcher_event(&watcher::Event::Delete((*gone).clone()));
        assert_eq!(waiting(), Vec::<String>::new());
    }

    #[test]
    fn a_storage_node_that_does_not_say_that_it_is_ready_is_not() {
        let node = |ready: Option<&str>| {
            let condition = |status| {
                json!({
                    "type": READY, "status": status, "reason": "Test", "message": "",
                    "lastTransitionTime": "2026-01-01T00:00:00Z",
                })
            };
            let conditions: Vec<_> = ready.map(condition).into_iter().collect();
            let mut node = StorageNode::new("a", StorageNodeSpec::default());
            node.status =
                Some(serde_json::from_value(json!({ "conditions": conditions })).expect("a status"));
            node
        };
        let metrics = Metrics::new();
        metrics.show_storage_nodes(&[Some("True"), Some("False"), None, Some("Unknown")].map(node));
        let text = metrics.render().expect("renders");
        for (readiness, count) in [("Ready", 1), ("NotReady", 2), ("Silent", 1)] {
            let line = format!("holdfast_operator_storage_nodes{{readiness=\"{readiness}\"}} {count}");
            assert!(text.contains(&line), "{line} is not in {text}");
        }
    }

    #[test]
    fn sweeps_are_shown_as_the_object_stores_say() {
        let metrics = Metrics::new();
        let later = Timestamp::from_second(90_000).expect("a time");
        metrics.show_sweeps(&[swept_store()], later);
        let text = metrics.render().expect("renders");
        for line in [
            r#"holdfast_sweep_garbage_bytes{object_store="store"} 30"#,
            r#"holdfast_sweep_oldest_garbage_age_seconds{object_store="store"} 85000"#,
            r#"holdfast_sweep_trashed_volumes{object_store="store"} 3"#,
            r#"holdfast_sweep_last_success_timestamp_seconds{object_store="store"} 86400"#,
        ] {
            assert!(text.contains(line), "{text}");
        }
        metrics.show_sweeps(&[], later);
        assert!(!metrics.render().expect("renders").contains(r#"object_store="store""#));
    }

    /// Regression: a scrape cleared the lines that another scrape had just filled.
    #[test]
    fn scrapes_at_one_moment_show_all_lines() {
        let metrics = Metrics::new();
        metrics.watch_volumes(volumes_with_a_loss());
        std::thread::scope(|scope| {
            for _scraper in 0..4 {
                scope.spawn(|| {
                    for _time in 0..2000 {
                        let text = metrics.render().expect("renders");
                        assert!(text.contains("holdfast_operator_data_lost{"), "{text}");
                    }
                });
            }
        });
    }

    /// Checks that every metric is listed with its kind, unit and meaning.
    #[test]
    fn the_list_of_metrics_is_complete() {
        let metrics = Metrics::new();
        metrics.start(ObjectKind::Volume).finish(None);
        metrics.volumes.get_or_create(&PhaseLabels { phase: Phase::Ready }).set(1);
        metrics.object_stores.get_or_create(&ReadinessLabels { readiness: CountedReadiness::Ready }).set(1);
        metrics.show_storage_nodes(&[]);
        metrics.watch_volumes(volumes_with_a_loss());
        metrics.count_sweep("store", &SweepReport::default());
        metrics.show_sweeps(&[swept_store()], Timestamp::UNIX_EPOCH);
        let text = metrics.render().expect("renders");
        let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../docs/metrics.md");
        let page = std::fs::read_to_string(page).expect("the page is there");
        let line = |what, name: &str| {
            let line = text.lines().find_map(|line| line.strip_prefix(&format!("# {what} {name} ")));
            line.map(|line| line.trim_end_matches('.').to_owned())
        };
        let names: Vec<&str> =
            text.lines().filter_map(|line| line.strip_prefix("# TYPE ")?.split(' ').next()).collect();
        assert_eq!(names.len(), 16, "{text}");
        let rows = names.iter().map(|name| {
            let [kind, unit, help] = ["TYPE", "UNIT", "HELP"].map(|what| line(what, name));
            let [kind, help] = [kind, help].map(|line| line.expect("each has both"));
            format!("| `{name}` | {kind} | {} | {help} |", unit.unwrap_or_else(|| "-".to_owned()))
        });
        let missing: Vec<String> = rows.filter(|row| !page.lines().any(|line| line == row)).collect();
        assert!(missing.is_empty(), "docs/metrics.md lacks\n{}", missing.join("\n"));
        let words = page.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_'));
        let is_ours =
            |word: &&str| ["holdfast_operator_", "holdfast_sweep_"].iter().any(|it| word.starts_with(it));
        for word in words.filter(is_ours) {
            assert!(names.contains(&word), "docs/metrics.md names {word}, which is no metric");
        }
    }

    #[test]
    fn a_reconciliation_is_counted_and_timed() {
        let metrics = Metrics::new();
        metrics.set_leader(true);
        metrics.start(ObjectKind::Volume).finish(None);
        metrics.start(ObjectKind::ObjectStore).finish(Some(Requeue::Rarely));
        let text = metrics.render().expect("renders");
        assert!(text.contains("holdfast_operator_leader 1"), "{text}");
        assert!(
            text.contains(r#"holdfast_operator_reconciles_total{kind="Volume",outcome="Done"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"holdfast_operator_reconcile_duration_seconds_count{kind="ObjectStore"} 1"#),
            "{text}"
        );
    }
}
