//! Facts that a plan for a volume is based on.

use holdfast_crds::{
    ACKNOWLEDGE_LOSS, ConditionBuilder, DeletionPolicy, DetachCause, FORCE_DETACH,
    ObjectStore as ObjectStoreResource, ObjectStoreStatus, PROVISIONED, READY, Time, VOLUME_FINALIZER,
    Volume, VolumeSource, VolumeSpec, VolumeStatus, find_condition, is_true,
};
use holdfast_format::manifest::Manifest;
use holdfast_log::LogFailure;
use holdfast_log::trash::TrashTerms;
use holdfast_objects::ObjectStore;
use holdfast_types::VolumeId;
use kube::ResourceExt;

use super::found_in_store::FoundInStore;
use super::identity::id_of;
use super::snapshot_fact::SnapshotFact;
use super::source_fact::SourceFact;

/// One volume and its dependencies, observed at one moment.
#[derive(Clone, Debug)]
pub(crate) struct ClusterFacts {
    /// Its names in the cluster and in the object store.
    pub(crate) identity: VolumeIdentity,
    /// The content that it starts with.
    pub(crate) content: ContentFacts,
    /// `metadata.generation`.
    pub(crate) generation: i64,
    /// `spec`.
    pub(crate) spec: VolumeSpec,
    /// `status`, as reported by all writers so far.
    pub(crate) status: VolumeStatus,
    /// True if our finalizer is on the object.
    pub(crate) finalizer: bool,
    /// True if deletion was requested.
    pub(crate) deleting: bool,
    /// The node that the user force-detached by annotation.
    pub(crate) force_detach: Option<String>,
    /// The writer attached according to the log, if the plan depends on it.
    pub(crate) log_writer: Option<AttachedWriter>,
    /// The epoch of the last writer to release the volume, if the log was read and shows no attached writer.
    pub(crate) released_epoch: Option<u64>,
    /// The sign that the node in doubt is lost.
    pub(crate) lost: Option<DetachCause>,
    /// The epoch whose loss a user acknowledged by annotation.
    pub(crate) acknowledged: Option<u64>,
    /// The object store that the volume names.
    pub(crate) store: StoreFact,
    /// The store's retention terms for deleted volumes; `None` if it keeps none.
    pub(crate) trash: Option<TrashTerms>,
    /// True if a StorageNode describes the node that should serve the volume, or that node already serves it.
    pub(crate) node_known: bool,
}

/// Names of a volume.
#[derive(Clone, Debug)]
pub(crate) struct VolumeIdentity {
    /// `metadata.name`.
    pub(crate) name: String,
    /// `metadata.uid`.
    pub(crate) uid: String,
    /// The volume's identity in the object store.
    pub(crate) id: String,
    /// Another Volume that has this identity, and may be its owner.
    pub(crate) rival: Option<String>,
}

/// Facts of the content that a volume starts with.
#[derive(Clone, Debug)]
pub(crate) struct ContentFacts {
    /// Content of the object store under the volume's identity, if the volume is to be adopted.
    pub(crate) found: Option<FoundInStore>,
    /// The VolumeSnapshot that the volume starts from.
    pub(crate) snapshot: SnapshotFact,
    /// True if another object has the name of the VolumeSnapshot for this clone.
    pub(crate) is_clone_name_taken: bool,
    /// The Volume that this one starts from.
    pub(crate) source: SourceFact,
}

impl ContentFacts {
    /// The facts while the plan does not depend on them.
    pub(crate) const NOT_READ: Self = Self {
        found: None,
        snapshot: SnapshotFact::NotRead,
        is_clone_name_taken: false,
        source: SourceFact::NotRead,
    };
}

/// The state of a volume's writers, according to its log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum WriterInLog {
    /// This one is attached.
    Attached(AttachedWriter),
    /// None is attached; the last one had this epoch, or 0 without any.
    Released(u64),
}

/// The writer that is attached according to a volume's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct AttachedWriter {
    /// Its node.
    pub(crate) node: String,
    /// Its epoch.
    pub(crate) epoch: u64,
    /// The last record of the log that changed the volume's content.
    pub(crate) data_seq: u64,
}

impl WriterInLog {
    /// Reads it from the log.
    ///
    /// # Errors
    /// The part of the log that cannot be read.
    pub(crate) async fn read(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Self, LogFailure> {
        // A commit that LIST does not show yet would be reported missing.
        Ok(Self::of(&holdfast_log::read_manifest_to_end(objects, volume).await?))
    }

    /// Reads it from the log as far as LIST shows it: a LIST, and a GET of the last record if the volume was
    /// detached with its root. For callers that check again: a removal reads the log to its end.
    ///
    /// # Errors
    /// The part of the log that cannot be read.
    pub(crate) async fn glance(objects: &dyn ObjectStore, volume: &VolumeId) -> Result<Self, LogFailure> {
        Ok(Self::of(&holdfast_log::read_manifest(objects, volume).await?))
    }

    fn of(manifest: &Manifest) -> Self {
        let data_seq = manifest.data_seq().0;
        match manifest.attached() {
            Some(writer) => {
                Self::Attached(AttachedWriter { node: writer.node, epoch: writer.epoch.0, data_seq })
            }
            None => Self::Released(manifest.epoch().0),
        }
    }
}

/// Observed state of the object store that a volume names.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreFact {
    /// Not read, because the plan does not depend on it.
    NotRead,
    /// The volume names no object store.
    None,
    /// No ObjectStore has that name.
    Missing,
    /// It has not been probed since its spec changed.
    Unprobed,
    /// It is not fit for volumes.
    NotReady {
        /// Reason of its condition.
        reason: String,
        /// Message of its condition.
        message: String,
    },
    /// It is fit for volumes.
    Ready,
}

impl StoreFact {
    /// Reads the fact from an ObjectStore.
    pub(crate) fn of(store: Option<&ObjectStoreResource>) -> Self {
        let Some(store) = store else { return Self::Missing };
        let unprobed = ObjectStoreStatus::default();
        let status = store.status.as_ref().unwrap_or(&unprobed);
        match find_condition(&status.conditions, READY) {
            Some(ready) if ready.observed_generation == store.metadata.generation => {
                if ready.status == "True" {
                    Self::Ready
                } else {
                    Self::NotReady { reason: ready.reason.clone(), message: ready.message.clone() }
                }
            }
            Some(_) | None => Self::Unprobed,
        }
    }
}

impl ClusterFacts {
    /// Returns a builder for the conditions of a report at this time.
    pub(crate) fn conditions<'a>(&'a self, now: &'a Time) -> ConditionBuilder<'a> {
        ConditionBuilder {
            previous: &self.status.conditions,
            observed_generation: Some(self.generation),
            now,
        }
    }

    /// Collects the facts that `volume` itself contains.
    pub(crate) fn new(volume: &Volume) -> Self {
        Self {
            identity: VolumeIdentity {
                name: volume.name_any(),
                uid: volume.uid().unwrap_or_default(),
                id: id_of(volume),
                rival: None,
            },
            content: ContentFacts::NOT_READ,
            generation: volume.metadata.generation.unwrap_or_default(),
            spec: volume.spec.clone(),
            status: volume.status.clone().unwrap_or_default(),
            finalizer: volume.metadata.finalizers.iter().flatten().any(|name| name == VOLUME_FINALIZER),
            deleting: volume.metadata.deletion_timestamp.is_some(),
            force_detach: volume.annotations().get(FORCE_DETACH).cloned(),
            log_writer: None,
            released_epoch: None,
            lost: None,
            acknowledged: volume.annotations().get(ACKNOWLEDGE_LOSS).and_then(|epoch| epoch.parse().ok()),
            store: StoreFact::NotRead,
            trash: None,
            node_known: true,
        }
    }

    /// Returns true if the plan depends on the log's writer: a node was force-detached, and either the
    /// replaceable epoch is unknown or the node may have released the volume since. While a device is
    /// reported, no node waits for that permission.
    pub(crate) fn needs_log_writer(&self) -> bool {
        // A memory volume has no log.
        if self.needs_store() || self.spec.is_memory() {
            return false;
        }
        if self.lost.is_some() || self.may_be_back() {
            return true;
        }
        let Some(named) = self.force_detach.as_deref() else { return false };
        let is_idle = self.status.device_path.is_none();
        match self.status.forced_detach.as_ref().filter(|forced_detach| forced_detach.node == named) {
            Some(remembered) => remembered.epoch.is_none() && is_idle,
            None => is_idle || self.status.node.as_deref() == Some(named),
        }
    }

    /// Returns true if the plan depends on the object store: until the volume exists there, and during its
    /// removal.
    pub(crate) fn needs_store(&self) -> bool {
        self.deleting || !is_true(&self.status.conditions, PROVISIONED)
    }

    /// Returns true if the plan depends on the object store's content under the volume's identity.
    pub(crate) fn needs_found(&self) -> bool {
        self.is_adopted() && !self.deleting && self.needs_store() && self.store == StoreFact::Ready
    }

    /// Returns true if the plan would remove the volume and thus depends on the log's writer
    /// ([`WriterInLog::glance`]). That holds for an adopted volume, whose writer may have been force-detached
    /// here, and after a rejected removal. Any other volume must have no attached writer in any cluster,
    /// which the removal itself checks.
    pub(crate) fn needs_last_writer(&self) -> bool {
        let is_removed = self.deleting && self.spec.deletion_policy == DeletionPolicy::Delete;
        let exists = is_true(&self.status.conditions, PROVISIONED);
        is_removed
            && exists
            && self.serving().is_none()
            && self.store == StoreFact::Ready
            && (self.is_adopted() || self.may_be_cut_off() || self.is_deletion_blocked())
    }

    /// Returns true if the volume is removed even with a damaged log, whose writer is unknown. An adopted
    /// volume, which usually has another cluster's data, waits.
    pub(crate) fn is_removed_damaged(&self) -> bool {
        self.needs_last_writer() && !self.is_adopted()
    }

    fn is_adopted(&self) -> bool {
        matches!(self.spec.source, VolumeSource::Existing(_))
    }

    /// Returns true if [`Self::is_cut_off`] may hold for a writer.
    fn may_be_cut_off(&self) -> bool {
        let status = &self.status;
        self.counted_record().is_some()
            || status.node.is_some()
            || status.epoch.is_some()
            || self.force_detach.is_some()
    }

    fn is_deletion_blocked(&self) -> bool {
        let said = find_condition(&self.status.conditions, PROVISIONED);
        said.is_some_and(|said| said.reason == "DeletionBlocked")
    }

    /// Returns the desired node if it does not serve yet: the plan depends on its existence.
    pub(crate) fn node_in_question(&self) -> Option<&str> {
        self.desired().filter(|desired| self.serving() != Some(*desired))
    }

    /// Returns the node that should serve the volume.
    pub(crate) fn desired(&self) -> Option<&str> {
        if self.deleting { None } else { self.spec.desired_node() }
    }

    /// Returns the node that has the grant.
    pub(crate) fn assigned(&self) -> Option<&str> {
        self.status.assigned_node.as_deref().filter(|name| !name.is_empty())
    }

    /// Returns the node that serves the volume now, unless it was force-detached.
    pub(crate) fn serving(&self) -> Option<&str> {
        self.status.node.as_deref().filter(|name| !name.is_empty() && !self.is_force_detached(name))
    }

    /// Returns the name of the object store, as written by the user.
    pub(crate) fn store_name(&self) -> &str {
        self.spec.object_store.as_deref().unwrap_or_default()
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::ConditionStatus;

    use super::*;

    fn store(generation: i64, probed: Option<(i64, ConditionStatus)>) -> ObjectStoreResource {
        let spec = serde_json::json!({ "bucket": "bucket", "credentials": { "environment": {} } });
        let mut store = ObjectStoreResource::new("store", serde_json::from_value(spec).expect("a spec"));
        store.metadata.generation = Some(generation);
        store.status = probed.map(|(generation, status)| {
            let now = Time("2026-01-01T00:00:00Z".parse().expect("a timestamp"));
            let ready = ConditionBuilder { previous: &[], observed_generation: Some(generation), now: &now }
                .build(READY, status, "Reason", "message");
            ObjectStoreStatus { conditions: vec![ready], ..ObjectStoreStatus::default() }
        });
        store
    }

    #[test]
    fn only_a_probe_of_the_present_spec_counts() {
        let not_ready = StoreFact::NotReady { reason: "Reason".to_owned(), message: "message".to_owned() };
        for (store, fact) in [
            (None, StoreFact::Missing),
            (Some(store(1, None)), StoreFact::Unprobed),
            (Some(store(2, Some((1, ConditionStatus::True)))), StoreFact::Unprobed),
            (Some(store(2, Some((2, ConditionStatus::True)))), StoreFact::Ready),
            (Some(store(2, Some((2, ConditionStatus::False)))), not_ready),
        ] {
            assert_eq!(StoreFact::of(store.as_ref()), fact);
        }
    }
}
