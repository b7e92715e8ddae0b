//! One volume on this node: attach, recovery, service, detach.

pub(in crate::node) mod attach;
pub(in crate::node) mod attach_steps;
pub(in crate::node) mod background;
pub(in crate::node) mod configure;
pub(in crate::node) mod cut;
pub(in crate::node) mod detach;
pub(in crate::node) mod device;
pub(in crate::node) mod fork_start;
pub(in crate::node) mod grow;
pub(in crate::node) mod own_log;
pub(in crate::node) mod present;
pub(in crate::node) mod recover;
pub(in crate::node) mod release_all;
pub(in crate::node) mod scrub;
pub(in crate::node) mod snapshot;
pub(in crate::node) mod state;
pub(in crate::node) mod status;
pub(in crate::node) mod table;
