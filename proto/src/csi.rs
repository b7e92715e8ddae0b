//! The Container Storage Interface.

/// Version 1: package `csi.v1`, unchanged from <https://github.com/container-storage-interface/spec>.
#[allow(missing_docs, clippy::all, clippy::missing_errors_doc, clippy::wildcard_enum_match_arm, reason = "generated")]
#[allow(rustdoc::all, reason = "generated")]
#[rustfmt::skip]
#[path = "gen/csi.v1.rs"]
pub mod v1;
