//! ublk devices: control plane and queue protocol.
