//! The host's devices served by daemons, and the identification of our own.

pub(in crate::node) mod fuse;
pub(in crate::node) mod kept_connections;
pub(in crate::node) mod kernel;
pub(in crate::node) mod orphans;
pub(in crate::node) mod tag;
pub(in crate::node) mod udev;
