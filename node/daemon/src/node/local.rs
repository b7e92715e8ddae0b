//! The node's local disk and its tmpfs directory.

pub(in crate::node) mod attached_record;
pub(in crate::node) mod detached_cache;
pub(in crate::node) mod file;
pub(in crate::node) mod instances;
pub(in crate::node) mod live_map;
pub(in crate::node) mod outdated;
pub(in crate::node) mod owner;
pub(in crate::node) mod pending;
pub(in crate::node) mod quota;
pub(in crate::node) mod record_file;
pub(in crate::node) mod record_json;
pub(in crate::node) mod state_disk;
pub(in crate::node) mod volume_files;
