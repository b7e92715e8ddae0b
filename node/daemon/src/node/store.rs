//! The object stores of this node's volumes, and its cache of their blocks.

pub(in crate::node) mod block_cache;
pub(in crate::node) mod change;
pub(in crate::node) mod client;
pub(in crate::node) mod clients;
pub(in crate::node) mod cold_reads;
pub(in crate::node) mod kept_indexes;
pub(in crate::node) mod kept_table;
pub(in crate::node) mod record;
pub(in crate::node) mod sweep;
pub(in crate::node) mod watched;
