//! Formats an error with its causes.

use std::error::Error;

/// Formats an error and its sources in one line, skipping a source that would repeat the line's end.
pub fn chain(error: &dyn Error) -> String {
    let mut message = error.to_string();
    let mut source = error.source();
    while let Some(cause) = source {
        let cause_message = cause.to_string();
        if !message.ends_with(&cause_message) {
            message.push_str(": ");
            message.push_str(&cause_message);
        }
        source = cause.source();
    }
    message
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;

    #[derive(Debug, thiserror::Error)]
    #[error("the file was not read")]
    struct Outer(#[source] io::Error);

    #[derive(Debug, thiserror::Error)]
    #[error("the file was not read: {0}")]
    struct Unread(#[source] io::Error);

    #[test]
    fn each_source_appears_once() {
        let cause = || io::Error::other("disk on fire");
        assert_eq!(chain(&Outer(cause())), "the file was not read: disk on fire");
        assert_eq!(chain(&Unread(cause())), "the file was not read: disk on fire");
    }
}
