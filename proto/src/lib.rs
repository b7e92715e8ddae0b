//! gRPC interfaces: the node daemon's, CSI (used by the kubelet and the CSI sidecars), and the kubelet's
//! plugin registration.
//!
//! Owns: the `.proto` files, and the generation of Rust from them (`build.rs`, which needs no protobuf
//! compiler). The generated files are in cargo's target directory, and in the documentation of this crate.

/// The Container Storage Interface.
pub mod csi {
    /// Version 1 of the Container Storage Interface.
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    #[allow(rustdoc::all, clippy::wildcard_enum_match_arm, clippy::missing_errors_doc, reason = "generated")]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/csi.v1.rs"));
    }
}

/// The node daemon's local interface.
pub mod node {
    /// Version 1: package `holdfast.node.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    #[allow(rustdoc::all, clippy::wildcard_enum_match_arm, clippy::missing_errors_doc, reason = "generated")]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/holdfast.node.v1.rs"));
    }
}

/// Registration of plugins with the kubelet.
pub mod pluginregistration {
    /// Version 1: package `pluginregistration`.
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    #[allow(rustdoc::all, clippy::wildcard_enum_match_arm, clippy::missing_errors_doc, reason = "generated")]
    pub mod v1 {
        include!(concat!(env!("OUT_DIR"), "/pluginregistration.rs"));
    }
}
