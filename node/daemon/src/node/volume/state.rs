//! The state of a volume on this node: one state machine, published in one cell.
//!
//! ```text
//!   an attach                     the start of the daemon
//!       |                                 |
//!       v                                 v
//!   Attaching ---> Serving <--------- Recovering     a failed attempt stays there
//!     |     \      |     ^            /   |   \
//!     |      v     |     |           /    |    \
//!     |   Unserved <-----|----------'     |     |    without a device
//!     |      |   ^ |     | called off     |     |
//!     |      v   | v     |                |     |
//!     |    Detaching ----'  <-------------'     |    the previous process was detaching it
//!     v      v                                  |
//!     Detached <--------------------------------'    it never served
//!
//!   Serving ---> Unserved: the kernel removed the device, outside a detach
//!
//!   Evicting: local files of a volume that is not attached are cleared
//! ```
//! The variants are this process's operations on the volume. Those with a ring thread have two parts that
//! change independently: the [`WriterState`], reported by the ring thread, and the [`BlockDevice`].
//!
//! Owns: the legal transitions.
//! Does not own: the actions (`attach.rs`, `recover.rs`, `detach.rs`).
//! Runs on: any thread; the cell is locked while a state is copied.
//! Invariants: the cell is the only source of a volume's state: command line, gRPC, conditions and metrics
//! derive from it.
//! On failure: an illegal event changes nothing. A detach of a busy volume is rejected, and a device that is
//! lost in another state than `Serving` changes nothing; any other illegal event is a bug.

use std::sync::Arc;
use std::time::Instant;

use holdfast_engine::settings::Durability;
pub(crate) use holdfast_serve::WriterState;
use holdfast_ublk::Device;
use tokio::sync::watch;

/// State of a volume on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum State {
    /// An attach acquires the volume, adds it to a ring thread and adds its device.
    Attaching {
        /// Name of its store.
        store_name: String,
        /// Point at which a FLUSH is complete.
        durability: Durability,
        device: BlockDevice,
        writer: WriterState,
    },
    /// The previous process's volume is being recovered: requests to its device wait.
    Recovering {
        device: BlockDevice,
        writer: WriterState,
        /// The previous process was detaching it.
        is_detaching: bool,
        /// Reason why the last attempt failed.
        error: Option<String>,
    },
    /// Its device serves requests.
    Serving { device: Device, writer: WriterState },
    /// No device serves requests, and only a detach is possible: its attach failed and could not be undone,
    /// the previous process died during an attach, or another program removed its device.
    Unserved { device: BlockDevice, writer: WriterState },
    /// A detach was requested; a restarted daemon resumes it.
    Detaching {
        device: BlockDevice,
        writer: WriterState,
        /// A task of this process is working on it; otherwise its last attempt failed.
        is_running: bool,
        /// Reason why a fenced writer's un-uploaded data could not be preserved.
        preserve_error: Option<String>,
    },
    /// It is not attached, and its local files are being cleared: attaches must not touch them.
    Evicting,
    /// It is no longer on this node.
    Detached,
}

/// The block device of a volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum BlockDevice {
    None,
    /// It serves no requests: it is not started yet, or stopped.
    Idle(Device),
    Serving(Device),
    /// The kernel deletes it once the last program has closed it.
    Deleting {
        device: Device,
        since: Instant,
    },
}

/// Event that changes the state of a volume on this node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum StateEvent {
    /// The ring thread reported its writer's state.
    Writer(WriterState),
    /// The attach added a device.
    DeviceAdded(Device),
    /// The device of the attach was started.
    Attached,
    /// The attach failed, and its results could not be removed.
    AttachFailed,
    /// The state left by the previous process was found; after a failed attempt it may be found again.
    Found { device: Option<Device>, is_detaching: bool },
    /// An attempt to recover it failed.
    RecoveryFailed(String),
    /// All of its existing parts were recovered.
    Recovered,
    /// Another program removed the device, or aborted its connection.
    DeviceLost,
    /// A detach starts.
    DetachBegan,
    /// The detach must not stop the device and is cancelled.
    DetachRefused,
    /// The detach failed and can be retried.
    DetachFailed,
    /// The detach of a fenced writer failed to preserve its data, and can be retried.
    PreserveFailed(String),
    /// The device was stopped.
    DeviceStopped,
    /// The stopped device was removed from the ring and the record; its deletion starts.
    DeviceReleased(Instant),
    /// The kernel has deleted the device.
    DeviceDeleted,
    /// It was removed from its ring thread, and its records are deleted.
    Released,
}

/// An event that is illegal in a state.
#[derive(Debug, thiserror::Error)]
#[error("{event:?} may not follow state {state:?} of a volume")]
pub(crate) struct IllegalTransition {
    state: State,
    event: StateEvent,
}

impl IllegalTransition {
    /// Returns the state in which the event occurred.
    pub(crate) fn state(&self) -> &State {
        &self.state
    }
}

impl State {
    /// Returns the state of a volume reserved by an attach.
    pub(crate) fn attaching(store_name: String, durability: Durability) -> Self {
        Self::Attaching { store_name, durability, device: BlockDevice::None, writer: WriterState::Starting }
    }

    /// Returns the state of a volume left by the previous process.
    pub(crate) fn recovering() -> Self {
        let (device, writer) = (BlockDevice::None, WriterState::Starting);
        Self::Recovering { device, writer, is_detaching: false, error: None }
    }

    /// Returns the state after an event.
    ///
    /// # Errors
    /// [`IllegalTransition`] if the event is illegal in this state.
    pub(crate) fn next(&self, event: &StateEvent) -> Result<Self, IllegalTransition> {
        let next = match self {
            Self::Attaching { store_name, durability, device, writer } => {
                let stays = |device, writer| {
                    let (store_name, durability) = (store_name.clone(), *durability);
                    Self::Attaching { store_name, durability, device, writer }
                };
                next_of_attaching(*device, *writer, stays, event)
            }
            Self::Recovering { .. } => self.next_of_recovering(event),
            Self::Serving { device, writer } => next_of_serving(*device, *writer, event),
            Self::Unserved { device, writer } => next_of_unserved(*device, *writer, event),
            Self::Detaching { .. } => self.next_of_detaching(event),
            Self::Evicting => None,
            // A program may keep its device open longer than a detach waits.
            Self::Detached => (*event == StateEvent::DeviceDeleted).then_some(Self::Detached),
        };
        next.ok_or_else(|| IllegalTransition { state: self.clone(), event: event.clone() })
    }

    fn next_of_recovering(&self, event: &StateEvent) -> Option<Self> {
        let Self::Recovering { device, writer, is_detaching, error } = self.clone() else { return None };
        Some(match event {
            StateEvent::Writer(reported) => {
                Self::Recovering { device, writer: writer.next(*reported)?, is_detaching, error }
            }
            StateEvent::Found { device: found, is_detaching } => {
                // A failed attempt found one before.
                let device = match device {
                    BlockDevice::None | BlockDevice::Idle(_) => {
                        found.map_or(BlockDevice::None, BlockDevice::Idle)
                    }
                    BlockDevice::Serving(_) | BlockDevice::Deleting { .. } => return None,
                };
                Self::Recovering { device, writer, is_detaching: *is_detaching, error }
            }
            StateEvent::RecoveryFailed(why) => {
                Self::Recovering { device, writer, is_detaching, error: Some(why.clone()) }
            }
            StateEvent::Recovered => match (is_detaching, device) {
                (false, BlockDevice::None) => Self::Unserved { device, writer },
                (false, device) => Self::Serving { device: device.started()?, writer },
                (true, BlockDevice::None) => Self::detaching(BlockDevice::None, writer, false),
                (true, device) => Self::detaching(BlockDevice::Serving(device.started()?), writer, false),
            },
            StateEvent::Released => device.is_gone().then_some(Self::Detached)?,
            StateEvent::DeviceAdded(_)
            | StateEvent::Attached
            | StateEvent::AttachFailed
            | StateEvent::DeviceLost
            | StateEvent::DetachBegan
            | StateEvent::DetachRefused
            | StateEvent::DetachFailed
            | StateEvent::PreserveFailed(_)
            | StateEvent::DeviceStopped
            | StateEvent::DeviceReleased(_)
            | StateEvent::DeviceDeleted => return None,
        })
    }

    fn next_of_detaching(&self, event: &StateEvent) -> Option<Self> {
        let Self::Detaching { device, writer, is_running, preserve_error } = self.clone() else {
            return None;
        };
        let with =
            |device| Self::Detaching { device, writer, is_running, preserve_error: preserve_error.clone() };
        let ended = |preserve_error| Self::Detaching { device, writer, is_running: false, preserve_error };
        let running = is_running.then_some(());
        Some(match event {
            StateEvent::Writer(reported) => {
                Self::Detaching { device, writer: writer.next(*reported)?, is_running, preserve_error }
            }
            StateEvent::DetachBegan if is_running => return None,
            StateEvent::DetachBegan => Self::Detaching { device, writer, is_running: true, preserve_error },
            StateEvent::DetachRefused => {
                running?;
                match device {
                    BlockDevice::Serving(device) => Self::Serving { device, writer },
                    BlockDevice::None | BlockDevice::Idle(_) | BlockDevice::Deleting { .. } => {
                        Self::Unserved { device, writer }
                    }
                }
            }
            StateEvent::DetachFailed => running.map(|()| ended(preserve_error.clone()))?,
            StateEvent::PreserveFailed(why) => running.map(|()| ended(Some(why.clone())))?,
            StateEvent::DeviceStopped => with(running.and_then(|()| device.stopped())?),
            StateEvent::DeviceReleased(at) => with(running.and_then(|()| device.released(*at))?),
            StateEvent::DeviceDeleted => with(device.deleted()?),
            StateEvent::Released => (is_running && device.is_gone()).then_some(Self::Detached)?,
            StateEvent::DeviceAdded(_)
            | StateEvent::Attached
            | StateEvent::AttachFailed
            | StateEvent::DeviceLost
            | StateEvent::Found { .. }
            | StateEvent::RecoveryFailed(_)
            | StateEvent::Recovered => return None,
        })
    }

    fn detaching(device: BlockDevice, writer: WriterState, is_running: bool) -> Self {
        Self::Detaching { device, writer, is_running, preserve_error: None }
    }

    /// Returns the writer of a volume that is on a ring thread or being added to one.
    pub(crate) fn writer(&self) -> Option<WriterState> {
        match self {
            Self::Attaching { writer, .. }
            | Self::Recovering { writer, .. }
            | Self::Serving { writer, .. }
            | Self::Unserved { writer, .. }
            | Self::Detaching { writer, .. } => Some(*writer),
            Self::Evicting | Self::Detached => None,
        }
    }

    /// Returns true if another writer owns the volume.
    pub(crate) fn is_fenced(&self) -> bool {
        self.writer().is_some_and(WriterState::is_fenced)
    }

    /// Returns true if nothing more is committed for it here.
    pub(crate) fn has_ended(&self) -> bool {
        self.writer().is_none_or(|writer| writer.is_fenced() || writer == WriterState::Detached)
    }

    /// Returns true if a restarted daemon must detach it.
    pub(crate) fn is_detaching(&self) -> bool {
        match self {
            Self::Detaching { .. } => true,
            Self::Recovering { is_detaching, .. } => *is_detaching,
            Self::Attaching { .. }
            | Self::Serving { .. }
            | Self::Unserved { .. }
            | Self::Evicting
            | Self::Detached => false,
        }
    }

    fn block_device(&self) -> BlockDevice {
        match self {
            Self::Attaching { device, .. }
            | Self::Recovering { device, .. }
            | Self::Unserved { device, .. }
            | Self::Detaching { device, .. } => *device,
            Self::Serving { device, .. } => BlockDevice::Serving(*device),
            Self::Evicting | Self::Detached => BlockDevice::None,
        }
    }

    /// Returns its device, until that is deleted.
    pub(crate) fn device(&self) -> Option<Device> {
        match self.block_device() {
            BlockDevice::Idle(device) | BlockDevice::Serving(device) => Some(device),
            BlockDevice::None | BlockDevice::Deleting { .. } => None,
        }
    }

    /// Returns its device, while it serves requests.
    pub(crate) fn serving_device(&self) -> Option<Device> {
        match self.block_device() {
            BlockDevice::Serving(device) => Some(device),
            BlockDevice::None | BlockDevice::Idle(_) | BlockDevice::Deleting { .. } => None,
        }
    }

    /// Returns its stopped device until the kernel has deleted it, and the start of that wait.
    pub(crate) fn deletion(&self) -> Option<(Device, Instant)> {
        match self.block_device() {
            BlockDevice::Deleting { device, since } => Some((device, since)),
            BlockDevice::None | BlockDevice::Idle(_) | BlockDevice::Serving(_) => None,
        }
    }
}

fn next_of_attaching(
    device: BlockDevice,
    writer: WriterState,
    stays: impl Fn(BlockDevice, WriterState) -> State,
    event: &StateEvent,
) -> Option<State> {
    Some(match event {
        StateEvent::Writer(reported) => stays(device, writer.next(*reported)?),
        StateEvent::DeviceAdded(added) => stays(device.added(*added)?, writer),
        StateEvent::Attached => State::Serving { device: device.started()?, writer },
        StateEvent::AttachFailed => State::Unserved { device, writer },
        StateEvent::DeviceReleased(at) => stays(device.released(*at)?, writer),
        StateEvent::DeviceDeleted => stays(device.deleted()?, writer),
        StateEvent::Released => device.is_gone().then_some(State::Detached)?,
        StateEvent::Found { .. }
        | StateEvent::RecoveryFailed(_)
        | StateEvent::Recovered
        | StateEvent::DeviceLost
        | StateEvent::DetachBegan
        | StateEvent::DetachRefused
        | StateEvent::DetachFailed
        | StateEvent::PreserveFailed(_)
        | StateEvent::DeviceStopped => return None,
    })
}

fn next_of_serving(device: Device, writer: WriterState, event: &StateEvent) -> Option<State> {
    Some(match event {
        StateEvent::Writer(reported) => State::Serving { device, writer: writer.next(*reported)? },
        StateEvent::DetachBegan => State::detaching(BlockDevice::Serving(device), writer, true),
        // Its detach ends its connection, and finds that the device is gone.
        StateEvent::DeviceLost => State::Unserved { device: BlockDevice::Idle(device), writer },
        StateEvent::DeviceAdded(_)
        | StateEvent::Attached
        | StateEvent::AttachFailed
        | StateEvent::Found { .. }
        | StateEvent::RecoveryFailed(_)
        | StateEvent::Recovered
        | StateEvent::DetachRefused
        | StateEvent::DetachFailed
        | StateEvent::PreserveFailed(_)
        | StateEvent::DeviceStopped
        | StateEvent::DeviceReleased(_)
        | StateEvent::DeviceDeleted
        | StateEvent::Released => return None,
    })
}

fn next_of_unserved(device: BlockDevice, writer: WriterState, event: &StateEvent) -> Option<State> {
    Some(match event {
        StateEvent::Writer(reported) => State::Unserved { device, writer: writer.next(*reported)? },
        StateEvent::DetachBegan => State::detaching(device, writer, true),
        StateEvent::DeviceDeleted => State::Unserved { device: device.deleted()?, writer },
        StateEvent::DeviceAdded(_)
        | StateEvent::Attached
        | StateEvent::AttachFailed
        | StateEvent::DeviceLost
        | StateEvent::Found { .. }
        | StateEvent::RecoveryFailed(_)
        | StateEvent::Recovered
        | StateEvent::DetachRefused
        | StateEvent::DetachFailed
        | StateEvent::PreserveFailed(_)
        | StateEvent::DeviceStopped
        | StateEvent::DeviceReleased(_)
        | StateEvent::Released => return None,
    })
}

impl BlockDevice {
    /// Returns true if the volume may leave its ring thread.
    fn is_gone(self) -> bool {
        match self {
            Self::None | Self::Deleting { .. } => true,
            Self::Idle(_) | Self::Serving(_) => false,
        }
    }

    fn added(self, device: Device) -> Option<Self> {
        (self == Self::None).then_some(Self::Idle(device))
    }

    fn started(self) -> Option<Device> {
        match self {
            Self::Idle(device) => Some(device),
            Self::None | Self::Serving(_) | Self::Deleting { .. } => None,
        }
    }

    fn stopped(self) -> Option<Self> {
        match self {
            Self::Idle(device) | Self::Serving(device) => Some(Self::Idle(device)),
            Self::None | Self::Deleting { .. } => None,
        }
    }

    fn released(self, since: Instant) -> Option<Self> {
        match self {
            Self::Idle(device) => Some(Self::Deleting { device, since }),
            Self::None | Self::Serving(_) | Self::Deleting { .. } => None,
        }
    }

    fn deleted(self) -> Option<Self> {
        match self {
            Self::Deleting { .. } => Some(Self::None),
            Self::None | Self::Idle(_) | Self::Serving(_) => None,
        }
    }
}

/// The published state of one volume.
#[derive(Debug)]
pub(crate) struct StateCell(watch::Sender<State>);

impl StateCell {
    pub(crate) fn new(state: State) -> Arc<Self> {
        Arc::new(Self(watch::Sender::new(state)))
    }

    /// Returns the current state.
    pub(crate) fn get(&self) -> State {
        self.0.borrow().clone()
    }

    /// Runs `read` on the state and returns its result.
    pub(crate) fn with<T>(&self, read: impl FnOnce(&State) -> T) -> T {
        read(&self.0.borrow())
    }

    /// Publishes the state after an event.
    ///
    /// # Errors
    /// [`IllegalTransition`]; the state stays.
    pub(crate) fn try_apply(&self, event: &StateEvent) -> Result<(), IllegalTransition> {
        let mut outcome = Ok(());
        self.0.send_if_modified(|state| match state.next(event) {
            Ok(next) => {
                let is_other = next != *state;
                *state = next;
                is_other
            }
            Err(illegal) => {
                outcome = Err(illegal);
                false
            }
        });
        outcome
    }

    /// Like [`Self::try_apply`], for an event that must be legal.
    ///
    /// # Panics
    /// If the event is illegal: a bug.
    pub(crate) fn apply(&self, event: &StateEvent) {
        if let Err(illegal) = self.try_apply(event) {
            panic!("a bug: {illegal}");
        }
    }

    /// Waits for a `wanted` state.
    pub(crate) async fn reach(&self, wanted: impl Fn(&State) -> bool) -> State {
        let mut states = self.0.subscribe();
        states.wait_for(|state| wanted(state)).await.expect("the cell itself holds the sender").clone()
    }
}

#[cfg(test)]
pub(in crate::node) mod tests;
