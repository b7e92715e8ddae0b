//! The memory volumes of this node, by name.

use std::collections::BTreeMap;
use std::sync::Arc;

use holdfast_types::{SECTOR_BYTES, VolumeId};
use holdfast_ublk::Device;
use parking_lot::Mutex;

use super::local::MaxBytes;
use super::present::PresentMemory;
use super::shape::{BUFFER_BYTES, MemoryShape};
use crate::node::volume::status::{NodeVolumeStatus, VolumeState};
use crate::node::{Attached, NodeError};

/// State of a memory volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum MemoryState {
    /// Its files and its device are being created.
    Attaching,
    /// The previous process's volume is being recovered: requests to its device wait.
    Recovering {
        /// Reason why the last attempt failed.
        error: Option<String>,
    },
    /// Its device serves requests.
    Serving(Device),
    /// Another program stopped or removed its device: a detach drops its content.
    Unserved(Device),
    /// Its device is being removed, or its files after that.
    Detaching,
    /// A stop of its device failed, and may still take effect, or one of a failed attach, or the close of its
    /// queues: the next detach repeats both.
    Stopping(Device),
    /// Its device is stopped, but its detach failed later: the next detach resumes it.
    Stopped(Device),
    /// Its attach failed, and so did the removal of its remains: the next detach repeats that. Until then the
    /// remains count.
    Abandoned,
}

struct TableEntry {
    state: MemoryState,
    /// Present once it is on a ring thread.
    present: Option<Arc<PresentMemory>>,
    /// Maximum use of its files, in memory and on the disk; during a growth, the new maximum.
    most: MaxBytes,
    is_growing: bool,
}

/// A growth in progress.
pub(super) struct BegunGrowth {
    pub(super) present: Arc<PresentMemory>,
    pub(super) device: Device,
    /// The recorded shape.
    pub(super) from: MemoryShape,
    pub(super) to: MemoryShape,
    /// Unused bytes of all volumes' limits before the growth.
    pub(super) promised_bytes: u64,
    /// The same for the spill files on the state disk.
    pub(super) spill: SpillBytes,
}

/// Maximum use of the other volumes.
#[derive(Debug, Clone, Copy)]
pub(super) struct OthersMost {
    /// Bytes of memory.
    pub(super) memory_bytes: u64,
    /// Bytes of the state disk.
    pub(super) spill_bytes: u64,
}

impl From<&MemoryShape> for MaxBytes {
    fn from(shape: &MemoryShape) -> Self {
        Self { memory: shape.file_bytes(), spill: shape.spill_bytes() }
    }
}

impl TableEntry {
    fn new(state: MemoryState, most: MaxBytes) -> Self {
        Self { state, present: None, most, is_growing: false }
    }

    /// Marks it as not served if another program stopped the device that serves it.
    fn note_stopped_device(&mut self, volume: &VolumeId) {
        if let MemoryState::Serving(device) = self.state
            && self.present.as_ref().is_some_and(|present| present.published.has_device_ended())
        {
            self.lose_device(volume, device);
        }
    }

    fn lose_device(&mut self, volume: &VolumeId, lost: Device) {
        self.state = MemoryState::Unserved(lost);
        tracing::error!(
            %volume,
            "another program stopped or removed the device of a memory volume; detach it, which discards its content, and \
             attach it (with Kubernetes the node does both)"
        );
    }

    /// Returns its maximum memory, in bytes.
    fn max_bytes(&self) -> u64 {
        self.most.memory + BUFFER_BYTES
    }

    /// Returns the bytes by which its files may still grow.
    fn unused_bytes(&self) -> u64 {
        let taken_bytes = self
            .present
            .as_ref()
            .map_or(0, |present| present.shape().table_bytes() + present.published.figures().slab_bytes);
        self.most.memory.saturating_sub(taken_bytes)
    }

    /// Returns its memory use in bytes, including its table and its device's buffers.
    fn used_bytes(&self) -> u64 {
        self.present.as_ref().map_or(0, |present| {
            present.shape().table_bytes() + present.published.figures().slab_bytes + BUFFER_BYTES
        })
    }

    /// Returns the disk space used by its pages, in bytes.
    fn spilled_bytes(&self) -> u64 {
        self.present.as_ref().map_or(0, |present| present.published.figures().spilled_pages * SECTOR_BYTES)
    }
}

/// Maximum and current use of the state disk by spill files, in bytes. A volume in recovery counts as using
/// none until it is on a ring thread: until then, too little free space is reported, but never too much.
#[derive(Debug, Clone, Copy, Default)]
pub(super) struct SpillBytes {
    pub(super) promised_bytes: u64,
    pub(super) used_bytes: u64,
}

impl SpillBytes {
    fn of<'a>(entries: impl Iterator<Item = &'a TableEntry>) -> Self {
        entries.fold(Self::default(), |bytes, entry| Self {
            promised_bytes: bytes.promised_bytes.saturating_add(entry.most.spill),
            used_bytes: bytes.used_bytes.saturating_add(entry.spilled_bytes()),
        })
    }
}

/// The memory volumes of this node, by id.
#[derive(Default)]
pub(in crate::node) struct MemoryTable(Mutex<BTreeMap<VolumeId, TableEntry>>);

impl MemoryTable {
    /// Returns true if the volume exists, in any state.
    pub(in crate::node) fn contains(&self, volume: &VolumeId) -> bool {
        self.0.lock().contains_key(volume)
    }

    /// Returns the ids of all volumes, in any state.
    pub(in crate::node) fn volumes(&self) -> Vec<VolumeId> {
        self.0.lock().keys().cloned().collect()
    }

    /// Reserves a volume for an attach, or returns how it is attached if it is, with the same shape.
    ///
    /// # Errors
    /// [`NodeError::MemoryDiffers`]; a conflict with its state.
    pub(super) fn reserve(
        &self,
        volume: &VolumeId,
        shape: &MemoryShape,
    ) -> Result<Option<(Attached, Device)>, NodeError> {
        let mut entries = self.0.lock();
        let Some(entry) = entries.get(volume) else {
            entries.insert(volume.clone(), TableEntry::new(MemoryState::Attaching, shape.into()));
            return Ok(None);
        };
        match (&entry.state, &entry.present) {
            (MemoryState::Serving(device), Some(present)) if !entry.is_growing => {
                present.shape().check_same(volume, shape)?;
                Ok(Some((present.attached_by(*device), *device)))
            }
            _ => Err(refusal(volume, entry)),
        }
    }

    /// Reserves a volume for its recovery, with this maximum use of its files.
    pub(super) fn recover(&self, volume: VolumeId, most: MaxBytes) {
        let state = MemoryState::Recovering { error: None };
        self.0.lock().insert(volume, TableEntry::new(state, most));
    }

    /// Returns the maximum use of all volumes except this one.
    pub(super) fn others_most(&self, apart: &VolumeId) -> OthersMost {
        others_most(&self.0.lock(), apart)
    }

    /// Returns maximum and current use of the state disk by spill files: of all volumes, or of all but one.
    pub(super) fn spill_bytes(&self, apart: Option<&VolumeId>) -> SpillBytes {
        let entries = self.0.lock();
        let counted = entries.iter().filter(|(volume, _)| Some(*volume) != apart);
        SpillBytes::of(counted.map(|(_, entry)| entry))
    }

    /// Returns the maximum and the current memory use of all volumes, in bytes.
    pub(super) fn bytes(&self) -> (u64, u64) {
        let entries = self.0.lock();
        entries.values().fold((0, 0), |(most, used): (u64, u64), entry| {
            (most.saturating_add(entry.max_bytes()), used.saturating_add(entry.used_bytes()))
        })
    }

    /// Returns the bytes by which the files of all volumes except this one may still grow.
    pub(super) fn promised_bytes(&self, apart: &VolumeId) -> u64 {
        let entries = self.0.lock();
        let others = entries.iter().filter(|(volume, _)| *volume != apart);
        unused_bytes(others.map(|(_, entry)| entry))
    }

    /// Returns the bytes by which the files of all volumes may still grow.
    pub(super) fn unused_bytes(&self) -> u64 {
        unused_bytes(self.0.lock().values())
    }

    /// Publishes that a volume was added to its ring threads.
    pub(super) fn add_present(&self, volume: &VolumeId, present: Arc<PresentMemory>) {
        if let Some(entry) = self.0.lock().get_mut(volume) {
            entry.most = MaxBytes::from(&present.shape());
            entry.present = Some(present);
        }
    }

    /// Returns the device of a served volume.
    pub(in crate::node) fn serving_device(&self, volume: &VolumeId) -> Option<Device> {
        match self.0.lock().get(volume)?.state {
            MemoryState::Serving(device) => Some(device),
            MemoryState::Attaching
            | MemoryState::Recovering { .. }
            | MemoryState::Unserved(_)
            | MemoryState::Detaching
            | MemoryState::Stopping(_)
            | MemoryState::Stopped(_)
            | MemoryState::Abandoned => None,
        }
    }

    /// Marks a volume as not served if it was served by this device. Returns true if it was.
    pub(in crate::node) fn lose_device(&self, volume: &VolumeId, lost: Device) -> bool {
        let mut entries = self.0.lock();
        let serving = entries.get_mut(volume).filter(|entry| entry.state == MemoryState::Serving(lost));
        serving.map(|entry| entry.lose_device(volume, lost)).is_some()
    }

    /// Returns the device of a served volume that may grow.
    ///
    /// # Errors
    /// A conflict with its state.
    pub(super) fn growing_device(&self, volume: &VolumeId) -> Result<Device, NodeError> {
        let entries = self.0.lock();
        let entry = entries.get(volume).ok_or_else(|| NodeError::NotAttached(volume.clone()))?;
        match (&entry.state, entry.is_growing) {
            (MemoryState::Serving(device), false) => Ok(*device),
            _ => Err(refusal(volume, entry)),
        }
    }

    /// Starts a growth to the shape that `grown` derives from the volume's and permits, and counts the volume
    /// with the new shape from now on.
    ///
    /// # Errors
    /// A conflict with its state; the error of `grown`.
    pub(super) fn begin_growth(
        &self,
        volume: &VolumeId,
        grown: impl FnOnce(&MemoryShape, OthersMost) -> Result<MemoryShape, NodeError>,
    ) -> Result<BegunGrowth, NodeError> {
        let mut entries = self.0.lock();
        let (promised_bytes, spill) = (unused_bytes(entries.values()), SpillBytes::of(entries.values()));
        let others = others_most(&entries, volume);
        let entry = entries.get_mut(volume).ok_or_else(|| NodeError::NotAttached(volume.clone()))?;
        let (MemoryState::Serving(device), Some(present), false) =
            (&entry.state, &entry.present, entry.is_growing)
        else {
            return Err(refusal(volume, entry));
        };
        let from = *present.recorded.lock();
        let to = grown(&from, others)?;
        let begun =
            BegunGrowth { present: Arc::clone(present), device: *device, from, to, promised_bytes, spill };
        entry.most = MaxBytes::from(&to);
        entry.is_growing = true;
        Ok(begun)
    }

    /// Ends a growth: the volume counts with its recorded shape.
    pub(super) fn end_growth(&self, volume: &VolumeId) {
        if let Some(entry) = self.0.lock().get_mut(volume) {
            entry.is_growing = false;
            if let Some(present) = &entry.present {
                entry.most = MaxBytes::from(&*present.recorded.lock());
            }
        }
    }

    /// Changes the state of a volume. Returns the previous one.
    pub(super) fn set(&self, volume: &VolumeId, state: MemoryState) -> Option<MemoryState> {
        let mut entries = self.0.lock();
        Some(std::mem::replace(&mut entries.get_mut(volume)?.state, state))
    }

    /// Starts a detach, or resumes a failed one. Returns the volume, its device, and true if that is stopped.
    ///
    /// # Errors
    /// A conflict with its state.
    pub(super) fn begin_detach(
        &self,
        volume: &VolumeId,
    ) -> Result<(Arc<PresentMemory>, Device, bool), NodeError> {
        let mut entries = self.0.lock();
        let entry = entries.get_mut(volume).ok_or_else(|| NodeError::NotAttached(volume.clone()))?;
        let found = match (&entry.state, &entry.present) {
            (MemoryState::Serving(device), Some(present)) if !entry.is_growing => {
                (Arc::clone(present), *device, false)
            }
            (MemoryState::Stopping(device), Some(present)) => (Arc::clone(present), *device, false),
            (MemoryState::Stopped(device) | MemoryState::Unserved(device), Some(present))
                if !entry.is_growing =>
            {
                (Arc::clone(present), *device, true)
            }
            _ => return Err(refusal(volume, entry)),
        };
        entry.state = MemoryState::Detaching;
        Ok(found)
    }

    /// Returns true if the stop of its device failed.
    pub(super) fn is_stopping(&self, volume: &VolumeId) -> bool {
        self.0.lock().get(volume).is_some_and(|entry| matches!(entry.state, MemoryState::Stopping(_)))
    }

    /// Starts to remove the remains of a failed attach. Returns false if there are none.
    pub(super) fn begin_removal(&self, volume: &VolumeId) -> bool {
        let mut entries = self.0.lock();
        let abandoned = entries.get_mut(volume).filter(|entry| entry.state == MemoryState::Abandoned);
        abandoned.map(|entry| entry.state = MemoryState::Detaching).is_some()
    }

    /// Returns the volume, if it is on a ring thread.
    pub(super) fn present(&self, volume: &VolumeId) -> Option<Arc<PresentMemory>> {
        self.0.lock().get(volume)?.present.clone()
    }

    /// Returns the published status of a volume on a ring thread.
    #[cfg(test)]
    pub(in crate::node) fn published(
        &self,
        volume: &VolumeId,
    ) -> Option<Arc<holdfast_serve::PublishedMemory>> {
        self.present(volume).map(|present| Arc::clone(&present.published))
    }

    /// Removes a volume that is no longer on this node.
    pub(super) fn forget(&self, volume: &VolumeId) {
        self.0.lock().remove(volume);
    }

    /// Returns the status of all volumes. A volume whose device was stopped counts as not served from now on.
    pub(super) fn list(&self) -> Vec<NodeVolumeStatus> {
        let mut entries = self.0.lock();
        for (volume, entry) in entries.iter_mut() {
            entry.note_stopped_device(volume);
        }
        let all = entries.iter().map(|(volume, TableEntry { state, present, .. })| {
            let (shown, device, message) = match state {
                MemoryState::Attaching => (VolumeState::Attaching, None, None),
                MemoryState::Recovering { error: None } => (VolumeState::Recovering, None, None),
                MemoryState::Recovering { error: Some(why) } => {
                    let error = NodeError::RecoveryFailed { volume: volume.clone(), why: why.clone() };
                    (VolumeState::Quiesced, None, Some(error.to_string()))
                }
                MemoryState::Serving(device) => (VolumeState::Attached, Some(*device), None),
                MemoryState::Unserved(_) => {
                    let said = "another program stopped or removed its device; detach it, which discards its content, then attach it again";
                    (VolumeState::Unserved, None, Some(said.to_owned()))
                }
                MemoryState::Detaching
                | MemoryState::Stopping(_)
                | MemoryState::Stopped(_)
                | MemoryState::Abandoned => (VolumeState::Detaching, None, None),
            };
            let figures = present.as_ref().map(|present| present.published.figures());
            let served = present.as_ref().map(|present| present.published.served());
            NodeVolumeStatus {
                message,
                attached: present.as_ref().zip(device).map(|(present, device)| present.attached_by(device)),
                served: served.unwrap_or_default(),
                // Before the first tick of its ring thread its content is unknown.
                holds_data: figures
                    .filter(|figures| figures.limit_bytes > 0)
                    .map(|figures| figures.content_pages() > 0),
                memory: figures,
                memory_identity: present.as_ref().map(|present| present.identity.lock().clone()),
                ..NodeVolumeStatus::unknown(volume.clone(), shown, String::new(), None)
            }
        });
        all.collect()
    }
}

fn others_most(entries: &BTreeMap<VolumeId, TableEntry>, apart: &VolumeId) -> OthersMost {
    let others = entries.iter().filter(|(volume, _)| *volume != apart).map(|(_, entry)| entry);
    OthersMost {
        memory_bytes: others.clone().map(TableEntry::max_bytes).fold(0, u64::saturating_add),
        spill_bytes: others.map(|entry| entry.most.spill).fold(0, u64::saturating_add),
    }
}

fn unused_bytes<'a>(entries: impl Iterator<Item = &'a TableEntry>) -> u64 {
    entries.map(TableEntry::unused_bytes).fold(0, u64::saturating_add)
}

fn refusal(volume: &VolumeId, entry: &TableEntry) -> NodeError {
    let volume = volume.clone();
    match &entry.state {
        MemoryState::Serving(_) | MemoryState::Unserved(_) if entry.is_growing => {
            NodeError::Busy { volume, doing: "being grown" }
        }
        MemoryState::Attaching | MemoryState::Serving(_) => {
            NodeError::Busy { volume, doing: "being attached" }
        }
        MemoryState::Recovering { error: None } => NodeError::Recovering(volume),
        MemoryState::Recovering { error: Some(why) } => {
            NodeError::RecoveryFailed { volume, why: why.clone() }
        }
        MemoryState::Unserved(_) => NodeError::Busy {
            volume,
            doing: "without its device, which another program stopped or removed: detach it",
        },
        MemoryState::Detaching => NodeError::Busy { volume, doing: "being detached" },
        MemoryState::Stopping(_) | MemoryState::Stopped(_) | MemoryState::Abandoned => {
            NodeError::Busy { volume, doing: "not completely detached (a detach failed: detach it again)" }
        }
    }
}
