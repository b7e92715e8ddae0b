//! The table from errors to exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the local disk, the kernel or the daemon failed |
//! | 2 | the command line or a value is wrong |
//! | 3 | what was named does not exist |
//! | 4 | something else must end first |
//! | 5 | another writer owns the volume, or one of this node whose local state is not here |
//! | 6 | stored data is damaged |
//! | 7 | something outside is unreachable: the daemon, the store, the kernel's driver |

use tonic::Code;

use crate::node::ErrorKind;

/// The exit code for a kind of error.
pub(crate) fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Local => 1,
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Busy | ErrorKind::Full => 4,
        ErrorKind::Fenced | ErrorKind::HeldElsewhere | ErrorKind::LocalStateMissing => 5,
        ErrorKind::Corrupt => 6,
        ErrorKind::Unavailable => 7,
    }
}

/// The kind of error a status tells of; the inverse of `api::status::code`.
pub(crate) fn kind(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange | Code::AlreadyExists => ErrorKind::Invalid,
        Code::NotFound => ErrorKind::NotFound,
        Code::FailedPrecondition => ErrorKind::Busy,
        Code::ResourceExhausted => ErrorKind::Full,
        Code::Aborted => ErrorKind::Fenced,
        Code::DataLoss => ErrorKind::Corrupt,
        // All but the first: the connection broke.
        Code::Unavailable
        | Code::Unknown
        | Code::Cancelled
        | Code::DeadlineExceeded
        | Code::PermissionDenied
        | Code::Unauthenticated => ErrorKind::Unavailable,
        Code::Ok | Code::Internal | Code::Unimplemented => ErrorKind::Local,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status_code;

    #[test]
    fn a_kind_survives_the_socket_with_its_own_code() {
        let kinds = [
            ErrorKind::Local,
            ErrorKind::Invalid,
            ErrorKind::NotFound,
            ErrorKind::Busy,
            ErrorKind::Fenced,
            ErrorKind::Corrupt,
            ErrorKind::Unavailable,
        ];
        for (expected, kind_) in (1..).zip(kinds) {
            assert_eq!(kind(status_code(kind_)), kind_);
            assert_eq!(code(kind_), expected);
        }
    }
}
