//! gRPC interfaces of the node daemon and of CSI.
//!
//! Owns: the published interfaces (`proto/**/*.proto`) and the Rust code generated from them, checked in under
//! `src/gen` so that a build needs no protocol compiler.
//! Does not own: the conversion of messages into typed values; each server does that at its edge.
//! Invariants: `src/gen` is what `cargo run -p holdfast-proto --example generate-proto` writes; a test compares it.

pub mod csi;
pub mod node;
