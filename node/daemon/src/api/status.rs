//! The table from kinds of errors to gRPC statuses.

use tonic::{Code, Status};

use crate::failure::Failure;
use crate::node::ErrorKind;

/// The status that tells of a failure.
pub(crate) fn of(failure: &Failure) -> Status {
    Status::new(code(failure.kind), &failure.message)
}

/// Kinds with different exit codes have different codes, so that the CLI can tell them apart again.
pub(crate) fn code(kind: ErrorKind) -> Code {
    match kind {
        ErrorKind::Invalid => Code::InvalidArgument,
        ErrorKind::NotFound => Code::NotFound,
        ErrorKind::Busy => Code::FailedPrecondition,
        ErrorKind::Full => Code::ResourceExhausted,
        ErrorKind::Fenced | ErrorKind::HeldElsewhere | ErrorKind::LocalStateMissing => Code::Aborted,
        ErrorKind::Corrupt => Code::DataLoss,
        ErrorKind::Unavailable => Code::Unavailable,
        ErrorKind::Local => Code::Internal,
    }
}
