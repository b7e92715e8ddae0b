//! The node daemon's interface.

/// Version 1: package `holdfast.node.v1`.
#[allow(missing_docs, clippy::missing_errors_doc, clippy::wildcard_enum_match_arm, reason = "generated")]
#[rustfmt::skip]
#[path = "gen/holdfast.node.v1.rs"]
pub mod v1;
