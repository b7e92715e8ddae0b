//! The ring threads, and the room on them.

pub(in crate::node) mod handle;
pub(in crate::node) mod lock;
pub(in crate::node) mod placement;
pub(in crate::node) mod room;
pub(in crate::node) mod shape;
pub(in crate::node) mod thread;
