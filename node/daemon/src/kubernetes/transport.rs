//! Names of transports in the Kubernetes API.

use holdfast_crds::TransportName;
use holdfast_ublk::Transport;

/// Returns the name of a transport in the Kubernetes API.
pub(super) fn transport_name(transport: Transport) -> TransportName {
    match transport {
        Transport::ZeroCopy => TransportName::UblkZeroCopy,
        Transport::UserCopy => TransportName::UblkUserCopy,
        Transport::KernelCopy => TransportName::UblkKernelCopy,
        Transport::Fuse => TransportName::FuseLoop,
    }
}
