//! Progress of this process towards serving the node.

use std::sync::Arc;

use holdfast_background::OldCounts;
use parking_lot::Mutex;

use crate::kubernetes::names::VolumeNames;
use crate::node::{AttachTimes, NodeVolumeStatus, ReadAheadFigures, RingStatus, VolumeState};
use crate::volumes::Volumes;

/// Stage of the process.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum ProcessStage<V> {
    WaitsForLock,
    Recovers,
    Serves(V),
    /// It ends.
    Leaves,
    /// A younger instance serves; this one serves again if that one ends.
    StandsBy,
}

/// Shared between the daemon and the listener that reports it.
#[derive(Debug)]
pub(crate) struct Readiness<V> {
    stage: Arc<Mutex<ProcessStage<V>>>,
    names: VolumeNames,
}

impl<V> Clone for Readiness<V> {
    fn clone(&self) -> Self {
        Self { stage: Arc::clone(&self.stage), names: self.names.clone() }
    }
}

impl<V: Volumes> Readiness<V> {
    /// Creates the state of a process that waits for its directories.
    pub(crate) fn new() -> Self {
        Self { stage: Arc::new(Mutex::new(ProcessStage::WaitsForLock)), names: VolumeNames::default() }
    }

    /// Records that it has the directories, and recovers its predecessor's devices.
    pub(crate) fn recovers(&self) {
        self.set(ProcessStage::Recovers);
    }

    /// Records that it serves these volumes.
    pub(crate) fn serves(&self, volumes: V) {
        self.set(ProcessStage::Serves(volumes));
    }

    /// Records that it leaves the volumes to the next process, and if it stands by from then on.
    pub(crate) fn leaves(&self, stands_by: bool) {
        self.set(if stands_by { ProcessStage::StandsBy } else { ProcessStage::Leaves });
    }

    /// Returns true if it stands by.
    pub(crate) fn is_standby(&self) -> bool {
        matches!(*self.stage.lock(), ProcessStage::StandsBy)
    }

    fn set(&self, stage: ProcessStage<V>) {
        *self.stage.lock() = stage;
    }

    /// Returns the volumes of the node; none before they are recovered.
    pub(crate) fn volumes(&self) -> Vec<NodeVolumeStatus> {
        self.served().map_or_else(Vec::new, |volumes| volumes.list())
    }

    /// Returns the figures of each ring thread; none before the volumes are recovered.
    pub(crate) fn rings(&self) -> Vec<RingStatus> {
        self.served().map_or_else(Vec::new, |volumes| volumes.rings())
    }

    /// Returns the times of the steps of attaches; none before the volumes are recovered.
    pub(crate) fn attach_times(&self) -> AttachTimes {
        self.served().map_or_else(AttachTimes::default, |volumes| volumes.attach_times())
    }

    /// Returns the number of devices without ublk whose connection no keeper has.
    pub(crate) fn unkept_devices(&self) -> usize {
        self.served().map_or(0, |volumes| volumes.unkept_devices())
    }

    /// Returns the memory that uploads hold, in bytes.
    pub(crate) fn upload_memory_bytes(&self) -> u64 {
        self.served().map_or(0, |volumes| volumes.upload_memory_bytes())
    }

    /// Returns the memory of cached index parts, in bytes.
    pub(crate) fn index_cache_bytes(&self) -> u64 {
        self.served().map_or(0, |volumes| volumes.index_cache_bytes())
    }

    /// Returns the number of fetched blocks that the local disk failed to store or read.
    pub(crate) fn unkept_blocks(&self) -> u64 {
        self.served().map_or(0, |volumes| volumes.unkept_blocks())
    }

    /// Returns the counts of fetched blocks left in the slab by earlier processes.
    pub(crate) fn old_blocks(&self) -> OldCounts {
        self.served().map(|volumes| volumes.old_blocks()).unwrap_or_default()
    }

    /// Returns the figures of read-ahead.
    pub(crate) fn read_ahead(&self) -> ReadAheadFigures {
        self.served().map(|volumes| volumes.read_ahead()).unwrap_or_default()
    }

    /// Returns the names of the volumes in the cluster.
    pub(crate) fn names(&self) -> VolumeNames {
        self.names.clone()
    }

    /// Returns the reasons why this process does not serve the node yet, one per line. There are none while
    /// it stands by: its pod must stay until the younger instance has proved itself.
    pub(crate) fn not_ready(&self) -> Vec<String> {
        let own = match &*self.stage.lock() {
            ProcessStage::WaitsForLock => vec![
                "another holdfast-node holds the lock of node.state_dir or node.run_dir; this one waits until that one ends"
                    .to_owned(),
            ],
            ProcessStage::Recovers => vec!["the devices of the previous process are being recovered".to_owned()],
            ProcessStage::Leaves => vec!["this daemon ends".to_owned()],
            ProcessStage::Serves(_) | ProcessStage::StandsBy => Vec::new(),
        };
        own.into_iter().chain(self.volumes().into_iter().filter_map(not_served)).collect()
    }

    fn served(&self) -> Option<V> {
        match &*self.stage.lock() {
            ProcessStage::WaitsForLock
            | ProcessStage::Recovers
            | ProcessStage::Leaves
            | ProcessStage::StandsBy => None,
            ProcessStage::Serves(volumes) => Some(volumes.clone()),
        }
    }
}

fn not_served(volume: NodeVolumeStatus) -> Option<String> {
    match volume.state {
        VolumeState::Recovering | VolumeState::Quiesced => {
            Some(volume.message.unwrap_or_else(|| format!("volume {} was not recovered", volume.volume)))
        }
        VolumeState::Attaching
        | VolumeState::Attached
        | VolumeState::Detaching
        | VolumeState::Fenced
        | VolumeState::Unserved => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::volumes::tests::{Fake, attached};

    /// Regression: a daemon that failed to recover a device counted as ready, so a rollout continued.
    #[test]
    fn a_node_is_ready_when_it_serves_every_volume() {
        let (readiness, fake) = (Readiness::new(), Fake::default());
        let reason = readiness.not_ready().join("\n");
        assert!(reason.contains("another holdfast-node holds the lock"), "{reason}");
        readiness.recovers();
        assert!(readiness.not_ready()[0].contains("being recovered"));
        fake.put(attached("one"));
        readiness.serves(fake.clone());
        assert!(readiness.not_ready().is_empty());
        let message = Some("volume two is not served: its disk is gone".to_owned());
        fake.put(NodeVolumeStatus { state: VolumeState::Quiesced, message, ..attached("two") });
        assert_eq!(readiness.not_ready(), ["volume two is not served: its disk is gone"]);
    }
}
