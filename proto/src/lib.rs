//! gRPC interfaces: of the node daemon, of CSI, which the kubelet and the CSI sidecars speak, and of the
//! registration of plugins with the kubelet.
//!
//! Owns: the `.proto` files and the Rust generated from them (`src/gen`), which is checked in so that a build
//! needs no protobuf compiler.
//! Invariants: `src/gen` is what the `.proto` files generate. A test compares them;
//! `HOLDFAST_GENERATE=1 cargo test -p holdfast-proto --test up_to_date` writes them again.

/// The Container Storage Interface.
pub mod csi {
    /// Version 1 of the Container Storage Interface.
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    #[allow(rustdoc::all, clippy::wildcard_enum_match_arm, clippy::missing_errors_doc, reason = "generated")]
    pub mod v1 {
        include!("gen/csi.v1.rs");
    }
}

/// The node daemon's local interface.
pub mod node {
    /// Version 1: package `holdfast.node.v1`.
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    #[allow(rustdoc::all, clippy::wildcard_enum_match_arm, clippy::missing_errors_doc, reason = "generated")]
    pub mod v1 {
        include!("gen/holdfast.node.v1.rs");
    }
}

/// Registration of plugins with the kubelet.
pub mod pluginregistration {
    /// Version 1: package `pluginregistration`.
    #[allow(missing_docs, unreachable_pub, clippy::all, reason = "generated")]
    #[allow(rustdoc::all, clippy::wildcard_enum_match_arm, clippy::missing_errors_doc, reason = "generated")]
    pub mod v1 {
        include!("gen/pluginregistration.rs");
    }
}
