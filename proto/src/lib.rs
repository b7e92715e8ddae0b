//! gRPC interfaces of the node daemon and of CSI.
