//! The host's devices that daemons serve, and which of them are ours.

pub(in crate::node) mod fuse;
pub(in crate::node) mod kept_connections;
pub(in crate::node) mod kernel;
pub(in crate::node) mod orphans;
pub(in crate::node) mod tag;
pub(in crate::node) mod udev;
