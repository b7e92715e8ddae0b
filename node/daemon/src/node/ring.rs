//! The ring threads and the volumes they serve.

pub(in crate::node) mod handle;
pub(in crate::node) mod label;
pub(in crate::node) mod message;
pub(in crate::node) mod operation;
pub(in crate::node) mod placement;
pub(in crate::node) mod planned;
pub(in crate::node) mod published_status;
pub(in crate::node) mod room;
pub(in crate::node) mod served;
pub(in crate::node) mod shape;
pub(in crate::node) mod thread;
mod volume_table;
pub(in crate::node) mod work;
