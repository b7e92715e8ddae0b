//! The table from errors to exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the local disk, the kernel or the daemon failed |
//! | 2 | the command line or a value is wrong |
//! | 3 | the named object does not exist |
//! | 4 | another operation or use must end first |
//! | 5 | another writer owns the volume, or a writer of this node whose local state is missing |
//! | 6 | stored data is damaged |
//! | 7 | an external service is unreachable: the daemon, the store, the kernel's driver |

use tonic::Code;

use crate::node::FailureKind;

/// Returns the exit code for an error kind.
pub(crate) fn code(kind: FailureKind) -> u8 {
    match kind {
        FailureKind::Local => 1,
        FailureKind::Invalid | FailureKind::OtherTransport => 2,
        FailureKind::NotFound => 3,
        FailureKind::Busy | FailureKind::Full => 4,
        FailureKind::Fenced | FailureKind::HeldElsewhere | FailureKind::LocalStateMissing => 5,
        FailureKind::Corrupt => 6,
        FailureKind::Unavailable => 7,
    }
}

/// Returns the error kind of a status; the inverse of `api::status::code`.
pub(crate) fn kind(code: Code) -> FailureKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => FailureKind::Invalid,
        Code::NotFound => FailureKind::NotFound,
        Code::FailedPrecondition => FailureKind::Busy,
        Code::ResourceExhausted => FailureKind::Full,
        Code::Aborted => FailureKind::Fenced,
        Code::DataLoss => FailureKind::Corrupt,
        // All codes but the first mean a broken connection.
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::PermissionDenied
        | Code::Unauthenticated => FailureKind::Unavailable,
        Code::Ok | Code::Internal | Code::Unimplemented => FailureKind::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status_code;

    #[test]
    fn a_kind_survives_the_socket_with_its_own_code() {
        let kinds = [
            FailureKind::Local,
            FailureKind::Invalid,
            FailureKind::NotFound,
            FailureKind::Busy,
            FailureKind::Fenced,
            FailureKind::Corrupt,
            FailureKind::Unavailable,
        ];
        for (expected, kind_) in (1..).zip(kinds) {
            assert_eq!(kind(status_code(kind_)), kind_);
            assert_eq!(code(kind_), expected);
        }
    }
}
