//! The table from error kinds to gRPC statuses.

use holdfast_service::tasks::Unfinished;
use tonic::{Code, Status};

use crate::failure::Failure;
use crate::node::FailureKind;

/// Returns the status for a failure.
pub(crate) fn of(failure: &Failure) -> Status {
    Status::new(code(failure.kind), &failure.message)
}

/// Returns the status for an operation that ended without a result.
pub(super) fn unfinished(why: Unfinished) -> Status {
    match why {
        Unfinished::Panicked => Status::internal("the daemon panicked during the operation; see its log"),
        Unfinished::Stopped => Status::unavailable(
            "the daemon is shutting down, and the operation did not complete; repeat it with the next daemon of this node",
        ),
    }
}

/// Kinds with different exit codes map to different codes, so that the CLI can distinguish them.
pub(crate) fn code(kind: FailureKind) -> Code {
    match kind {
        FailureKind::Invalid | FailureKind::OtherTransport => Code::InvalidArgument,
        FailureKind::NotFound => Code::NotFound,
        FailureKind::Busy => Code::FailedPrecondition,
        FailureKind::Full => Code::ResourceExhausted,
        FailureKind::Fenced | FailureKind::HeldElsewhere | FailureKind::LocalStateMissing => Code::Aborted,
        FailureKind::Corrupt => Code::DataLoss,
        FailureKind::Unavailable => Code::Unavailable,
        FailureKind::Local => Code::Internal,
    }
}
