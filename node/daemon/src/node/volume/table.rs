//! The volumes on this node, and those of them that are on a ring thread.
//!
//! Owns: the table and its lock; the right to start an operation on a volume. An attach, a recovery or a
//! clearing of local files first enters the table, and a volume is in it once.
//! Does not own: the state of a volume (`state.rs`), or the operations on it.
//! Invariants: no volume is added to a ring thread or leaves it while the lock is held; no task waits while
//! it holds the lock.

use std::collections::{BTreeMap, btree_map};
use std::sync::Arc;

use holdfast_types::VolumeId;
use holdfast_ublk::Device;
use parking_lot::{Mutex, MutexGuard};

use crate::node::error::NodeError;
use crate::node::volume::present::Present;
use crate::node::volume::state::{State, StateCell, StateEvent, WriterState};
use crate::node::{AttachRequest, Attached};

/// The table; clones share it.
#[derive(Clone, Default)]
pub(in crate::node) struct NodeVolumes(Arc<Mutex<BTreeMap<VolumeId, VolumeEntry>>>);

struct VolumeEntry {
    state: Arc<StateCell>,
    /// Present once it is on a ring thread.
    present: Option<Arc<Present>>,
}

/// A volume at one moment.
pub(in crate::node) struct SeenVolume {
    pub(in crate::node) volume: VolumeId,
    pub(in crate::node) state: State,
    /// Present once it is on a ring thread.
    pub(in crate::node) present: Option<Arc<Present>>,
}

/// Result of the reservation for an attach.
pub(in crate::node) enum Reserved {
    /// The volume is attached already.
    Attached {
        /// Result of the attach, if the device still exists.
        attached: Attached,
        device: Device,
    },
    /// The attach may start.
    Now(Arc<StateCell>),
}

/// Blocks attaches from the local files of a volume, until it is dropped.
pub(in crate::node) struct NoAttach {
    volumes: NodeVolumes,
    volume: VolumeId,
}

impl Drop for NoAttach {
    fn drop(&mut self) {
        self.volumes.entries().remove(&self.volume);
    }
}

impl NodeVolumes {
    /// Returns all volumes.
    pub(in crate::node) fn all(&self) -> Vec<SeenVolume> {
        let entries = self.entries();
        let seen = entries.iter().map(|(volume, entry)| SeenVolume {
            volume: volume.clone(),
            state: entry.state.get(),
            present: entry.present.clone(),
        });
        seen.collect()
    }

    /// Returns the volumes on a ring thread.
    pub(in crate::node) fn presents(&self) -> Vec<(VolumeId, Arc<Present>)> {
        let entries = self.entries();
        let presents =
            entries.iter().filter_map(|(volume, entry)| Some((volume.clone(), entry.present.clone()?)));
        presents.collect()
    }

    /// Runs `act` for each volume on a ring thread. None is removed in the meantime.
    pub(in crate::node) fn for_each_present(&self, mut act: impl FnMut(&VolumeId, &Arc<Present>)) {
        for (volume, entry) in &*self.entries() {
            if let Some(present) = &entry.present {
                act(volume, present);
            }
        }
    }

    /// Returns true if the volume exists, in any state.
    pub(in crate::node) fn contains(&self, volume: &VolumeId) -> bool {
        self.entries().contains_key(volume)
    }

    /// Returns the volume, if it is on a ring thread.
    pub(in crate::node) fn on_ring(&self, volume: &VolumeId) -> Option<Arc<Present>> {
        self.entries().get(volume)?.present.clone()
    }

    /// Returns the volume, which must be on a ring thread.
    ///
    /// # Errors
    /// [`NodeError::NotAttached`], or a conflict with its state.
    pub(in crate::node) fn present(&self, volume: &VolumeId) -> Result<Arc<Present>, NodeError> {
        let entries = self.entries();
        let Some(VolumeEntry { state, present }) = entries.get(volume) else {
            return Err(NodeError::NotAttached(volume.clone()));
        };
        present.clone().ok_or_else(|| match state.get() {
            State::Evicting => NodeError::NotAttached(volume.clone()),
            other @ (State::Attaching { .. }
            | State::Recovering { .. }
            | State::Serving { .. }
            | State::Unserved { .. }
            | State::Detaching { .. }
            | State::Detached) => refusal(volume, &other),
        })
    }

    /// Returns true if this is still the volume of its name.
    pub(in crate::node) fn has(&self, present: &Arc<Present>) -> bool {
        self.on_ring(present.volume()).is_some_and(|known| Arc::ptr_eq(&known, present))
    }

    /// Returns a volume that is being attached from the store called `name`.
    pub(in crate::node) fn attaching_from(&self, name: &str) -> Option<VolumeId> {
        let entries = self.entries();
        let mut attaching = entries.iter().filter(|(_, entry)| {
            let is_of =
                |state: &State| matches!(state, State::Attaching { store_name, .. } if store_name == name);
            entry.present.is_none() && entry.state.with(is_of)
        });
        attaching.next().map(|(volume, _)| volume.clone())
    }

    /// Reserves a volume for an attach.
    ///
    /// # Errors
    /// [`NodeError::OtherStore`], or a conflict with its state.
    pub(in crate::node) fn reserve(&self, request: &AttachRequest) -> Result<Reserved, NodeError> {
        let AttachRequest { volume, store_name, store, durability, .. } = request;
        let mut entries = self.entries();
        let Some(VolumeEntry { state, present }) = entries.get(volume) else {
            let entry = VolumeEntry::new(State::attaching(store_name.clone(), *durability));
            let state = Arc::clone(&entry.state);
            entries.insert(volume.clone(), entry);
            return Ok(Reserved::Now(state));
        };
        let state = state.get();
        if let Some(present) = present
            && !matches!(state, State::Recovering { .. })
        {
            // The directory of its local files is named after the volume only.
            present.check_store(store_name, store)?;
        }
        match (&state, present) {
            (State::Serving { device, writer: WriterState::Ready }, Some(present)) => {
                Ok(Reserved::Attached { attached: present.attached_by(*device), device: *device })
            }
            (state, _) => Err(refusal(volume, state)),
        }
    }

    /// Reserves a volume for its recovery, and blocks attaches of it.
    pub(in crate::node) fn recover(&self, volume: VolumeId) -> Arc<StateCell> {
        let entry = VolumeEntry::new(State::recovering());
        let state = Arc::clone(&entry.state);
        self.entries().insert(volume, entry);
        state
    }

    /// Reserves the local files of a volume that is not on this node; `None` if it is.
    pub(in crate::node) fn keep_from_attaches(&self, volume: &VolumeId) -> Option<NoAttach> {
        match self.entries().entry(volume.clone()) {
            btree_map::Entry::Occupied(_) => return None,
            btree_map::Entry::Vacant(place) => place.insert(VolumeEntry::new(State::Evicting)),
        };
        Some(NoAttach { volumes: self.clone(), volume: volume.clone() })
    }

    /// Publishes that a volume was added to a ring thread.
    pub(in crate::node) fn add_present(&self, present: Arc<Present>) {
        let (volume, state) = (present.volume().clone(), Arc::clone(&present.state));
        self.entries().insert(volume, VolumeEntry { state, present: Some(present) });
    }

    /// Publishes that a volume is no longer on this node.
    pub(in crate::node) fn forget(&self, volume: &VolumeId, state: &StateCell) {
        let mut entries = self.entries();
        state.apply(&StateEvent::Released);
        entries.remove(volume);
    }

    fn entries(&self) -> MutexGuard<'_, BTreeMap<VolumeId, VolumeEntry>> {
        self.0.lock()
    }
}

impl VolumeEntry {
    /// Creates the entry of a volume that is not on a ring thread.
    fn new(state: State) -> Self {
        Self { state: StateCell::new(state), present: None }
    }
}

/// Returns the reason why a volume cannot be attached or used now.
pub(in crate::node) fn refusal(volume: &VolumeId, state: &State) -> NodeError {
    let volume = volume.clone();
    match state {
        State::Recovering { error, .. } => match error {
            None => NodeError::Recovering(volume),
            Some(why) => NodeError::RecoveryFailed { volume, why: why.clone() },
        },
        State::Detaching { .. } => NodeError::Busy { volume, doing: "being detached" },
        State::Attaching { .. } | State::Serving { .. } | State::Unserved { .. } if state.is_fenced() => {
            NodeError::Fenced(volume)
        }
        State::Unserved { .. } => {
            NodeError::Busy { volume, doing: "without a device that serves it (detach it first)" }
        }
        State::Attaching { .. } | State::Serving { .. } => {
            NodeError::Busy { volume, doing: "being attached" }
        }
        State::Evicting => NodeError::Busy { volume, doing: "having its local files cleared" },
        State::Detached => NodeError::NotAttached(volume),
    }
}

#[cfg(test)]
mod tests {
    use holdfast_engine::settings::Durability;
    use holdfast_s3::{S3Config, S3Credentials};
    use holdfast_serve::IoLimits;

    use super::*;

    fn request(volume: &VolumeId) -> AttachRequest {
        AttachRequest {
            volume: volume.clone(),
            store_name: "main".to_owned(),
            store: S3Config::new("bucket", "us-east-1", S3Credentials::Environment),
            bytes: None,
            replaces: None,
            max_dirty_age: None,
            durability: Durability::Local,
            limits: IoLimits::NONE,
            probe: false,
            ublk_only: false,
        }
    }

    #[test]
    fn a_volume_enters_once() {
        let (volumes, volume) = (NodeVolumes::default(), "v".parse().unwrap());
        let Ok(Reserved::Now(state)) = volumes.reserve(&request(&volume)) else { panic!("it is new") };
        assert!(matches!(volumes.reserve(&request(&volume)), Err(NodeError::Busy { .. })));
        assert!(matches!(volumes.present(&volume), Err(NodeError::Busy { .. })));
        assert!(volumes.keep_from_attaches(&volume).is_none());
        assert_eq!(volumes.attaching_from("main"), Some(volume.clone()));
        assert_eq!(volumes.attaching_from("other"), None);
        assert_eq!((volumes.all().len(), volumes.presents().len()), (1, 0));

        volumes.forget(&volume, &state);
        assert_eq!(state.get(), State::Detached);
        assert!(!volumes.contains(&volume));
        assert!(matches!(volumes.present(&volume), Err(NodeError::NotAttached(_))));
        drop(volumes.recover(volume.clone()));
        assert!(matches!(volumes.reserve(&request(&volume)), Err(NodeError::Recovering(_))));
        assert_eq!(volumes.attaching_from("main"), None);
    }

    /// Regression: all volumes of the node waited while a slow disk moved the files of one.
    #[test]
    fn no_volume_waits_while_local_files_are_cleared() {
        let (volumes, volume) = (NodeVolumes::default(), "v".parse().unwrap());
        let clearing = volumes.keep_from_attaches(&volume).expect("it is not on the node");
        assert!(volumes.0.try_lock().is_some(), "no other volume waits");
        assert!(matches!(volumes.reserve(&request(&volume)), Err(NodeError::Busy { .. })));
        assert!(matches!(volumes.present(&volume), Err(NodeError::NotAttached(_))), "it is not shown");
        drop(clearing);
        assert!(
            matches!(volumes.reserve(&request(&volume)), Ok(Reserved::Now(_))),
            "it may be attached again"
        );
    }
}
