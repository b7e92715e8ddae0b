//! Block devices on nodes whose kernel has no ublk: a FUSE file below a loop device.
//!
//! *Owns*: the protocol ([`protocol`]), a volume's connection ([`FuseConnection`]) and its requests on a ring
//! ([`FuseQueue`]), the loop device on its file ([`LoopDevice`]), and the process that holds connections
//! while no daemon runs ([`keeper`]).
//! *Does not own*: the meaning of a request for a volume, the ring and its thread.
//! *Runs on*: control calls block: call them on a control thread, never on a ring thread. A [`FuseQueue`]
//! belongs to its ring's thread.
//! *Invariants*: a connection lasts until daemon and keeper have closed it; a request is answered once.
//! *On failure*: errors name the file and the call.

mod connection;
pub mod keeper;
mod limit;
mod loop_device;
pub mod protocol;
mod queue;

pub use connection::{FUSE_PATH, FuseConnection};
pub use keeper::{Keeper, KeeperEvent, KeeperWatch, is_absent};
pub use limit::DEPTH;
pub use loop_device::{LOOP_CONTROL_PATH, LoopCommand, LoopDevice, file_name};
pub use queue::{FuseCommand, FuseFault, FuseQueue};
