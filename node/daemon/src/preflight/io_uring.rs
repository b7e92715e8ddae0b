//! io_uring: creates a ring like the daemon's ring threads.

use std::fs;
use std::io;
use std::time::Duration;

use holdfast_ring::{Ring, RingError, RingOptions, raise_open_file_limit};
use holdfast_service::chain;

use super::Check;

const NAME: &str = "io_uring";
/// 0: permitted; 1: requires CAP_SYS_ADMIN or a group; 2: disabled. Source: Documentation/admin-guide/sysctl.
const DISABLED: &str = "/proc/sys/kernel/io_uring_disabled";

/// A ring, and the settings that may prevent it.
#[derive(Debug)]
pub(super) struct RingFacts {
    pub(super) made: Result<(), RingError>,
    /// `kernel.io_uring_disabled`; missing in kernels before 6.6.
    pub(super) disabled: Option<u32>,
    /// A seccomp filter is in effect.
    pub(super) is_filtered: bool,
    /// The limit of open files.
    pub(super) open_files: io::Result<u64>,
}

impl RingFacts {
    pub(super) fn observe() -> Self {
        // The tables of a ring count towards the limit.
        let open_files = raise_open_file_limit();
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mode = status.lines().find_map(|line| line.strip_prefix("Seccomp:"));
        let disabled = fs::read_to_string(DISABLED).ok();
        Self {
            made: make(),
            disabled: disabled.and_then(|value| value.trim().parse().ok()),
            is_filtered: mode.is_some_and(|mode| mode.trim() == "2"),
            open_files,
        }
    }
}

fn make() -> Result<(), RingError> {
    let mut ring = Ring::<()>::new(&RingOptions::default())?;
    // A filter may reject only this call.
    ring.submit_and_wait(Some(Duration::ZERO), &mut Vec::new()).map(drop)
}

pub(super) fn check(facts: &RingFacts) -> Check {
    let error = match &facts.made {
        Ok(()) => {
            let files = facts.open_files.as_ref().map_or_else(ToString::to_string, ToString::to_string);
            return Check::pass(NAME, format!("a ring was created. The limit of open files is {files}"));
        }
        Err(error) => error,
    };
    Check::fail(NAME, chain(error), fix(error, facts))
}

fn fix(error: &RingError, facts: &RingFacts) -> String {
    let code = match error {
        RingError::Setup(source)
        | RingError::Enter(source)
        | RingError::Eventfd(source)
        | RingError::ProvideBuffer(source)
        | RingError::RegisterTable { source, .. }
        | RingError::UpdateFile { source, .. } => source.raw_os_error(),
        RingError::FilesExhausted { .. } | RingError::BuffersExhausted { .. } | RingError::Share(_) => None,
    };
    let is_refused = matches!(code, Some(libc::EPERM | libc::EACCES));
    let files = RingOptions::default().files;
    let fix = match (code, facts.disabled) {
        (_, Some(2)) if is_refused => {
            "permit it: `sysctl kernel.io_uring_disabled=0`, and the same line in /etc/sysctl.d for the next start"
        }
        (_, Some(1)) if is_refused => {
            "run as root with CAP_SYS_ADMIN (in a pod: privileged), or permit it to all: `sysctl kernel.io_uring_disabled=0`"
        }
        (Some(libc::EPERM | libc::EACCES | libc::ENOSYS), _) if facts.is_filtered => {
            "run without the seccomp filter that refuses io_uring (in a pod: privileged, or seccompProfile Unconfined)"
        }
        _ if is_refused => "permit io_uring to this process: a security module of the host refuses it",
        (Some(libc::ENOSYS), _) => "boot a kernel with CONFIG_IO_URING",
        (Some(libc::EMFILE | libc::ENFILE), _) => {
            return format!(
                "raise the limit of open files to {files} at least (LimitNOFILE= of a unit, `ulimit -n`)"
            );
        }
        (Some(libc::ENOMEM), _) => {
            "free memory, or raise the limit of locked memory (LimitMEMLOCK=infinity of a unit, `ulimit -l unlimited`)"
        }
        _ => "boot Linux 6.12 or newer",
    };
    fix.to_owned()
}
