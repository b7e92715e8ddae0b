//! The table from errors to exit codes.
//!
//! | code | meaning |
//! |---|---|
//! | 0 | done |
//! | 1 | the daemon or the CLI is wrong |
//! | 2 | the command line or a value is wrong |
//! | 3 | what was named does not exist |
//! | 4 | it exists already |
//! | 5 | something else must end first |
//! | 6 | another writer owns the volume |
//! | 7 | stored data is damaged |
//! | 8 | no space on the local disk |
//! | 9 | something outside is away: the daemon, the store |
//! | 10 | whether it took effect is unknown: look before asking again |

use tonic::Code;

use crate::error_kind::ErrorKind;

/// The exit code for a kind of error.
pub(crate) fn code(kind: ErrorKind) -> u8 {
    match kind {
        ErrorKind::Bug => 1,
        ErrorKind::Invalid => 2,
        ErrorKind::NotFound => 3,
        ErrorKind::Exists => 4,
        ErrorKind::Busy => 5,
        ErrorKind::Fenced => 6,
        ErrorKind::Corrupt => 7,
        ErrorKind::NoSpace => 8,
        ErrorKind::Unavailable => 9,
        ErrorKind::Ambiguous => 10,
    }
}

/// The kind of error a status tells of; the inverse of `api::status::code`.
pub(crate) fn kind(code: Code) -> ErrorKind {
    match code {
        Code::InvalidArgument | Code::OutOfRange => ErrorKind::Invalid,
        Code::NotFound => ErrorKind::NotFound,
        Code::AlreadyExists => ErrorKind::Exists,
        Code::FailedPrecondition => ErrorKind::Busy,
        Code::Aborted => ErrorKind::Fenced,
        Code::DataLoss => ErrorKind::Corrupt,
        Code::ResourceExhausted => ErrorKind::NoSpace,
        Code::Unavailable | Code::PermissionDenied | Code::Unauthenticated => ErrorKind::Unavailable,
        // A connection that broke: the daemon may go on with what was asked.
        Code::Unknown | Code::Cancelled | Code::DeadlineExceeded => ErrorKind::Ambiguous,
        Code::Ok | Code::Internal | Code::Unimplemented => ErrorKind::Bug,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::api::status_code;

    #[test]
    fn a_kind_survives_the_socket_and_has_a_code_of_its_own() {
        let kinds = [
            ErrorKind::Bug,
            ErrorKind::Invalid,
            ErrorKind::NotFound,
            ErrorKind::Exists,
            ErrorKind::Busy,
            ErrorKind::Fenced,
            ErrorKind::Corrupt,
            ErrorKind::NoSpace,
            ErrorKind::Unavailable,
            ErrorKind::Ambiguous,
        ];
        for (expected, kind_) in (1..).zip(kinds) {
            assert_eq!(kind(status_code(kind_)), kind_);
            assert_eq!(code(kind_), expected);
        }
    }
}
