//! Limit of open files of the process.
#![allow(unsafe_code)] // getrlimit(2) and setrlimit(2)

use std::io;

/// Raises the process's soft limit of open files to its hard limit, and returns it. A table of fixed files
/// cannot be larger than the limit, and the usual 1024 is too small for a node's devices. Call this once,
/// before creating the first [`Ring`](crate::Ring).
///
/// # Errors
/// Error of the kernel; not expected.
pub fn raise_open_file_limit() -> io::Result<u64> {
    let mut limit = libc::rlimit { rlim_cur: 0, rlim_max: 0 };
    // SAFETY: `limit` is valid for writing.
    if unsafe { libc::getrlimit(libc::RLIMIT_NOFILE, &raw mut limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    limit.rlim_cur = limit.rlim_max;
    // SAFETY: `limit` is valid for reading.
    if unsafe { libc::setrlimit(libc::RLIMIT_NOFILE, &raw const limit) } != 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(limit.rlim_cur)
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_soft_limit_becomes_the_hard_one() {
        let raised = super::raise_open_file_limit().unwrap();
        let limits = std::fs::read_to_string("/proc/self/limits").unwrap();
        let line = limits.lines().find(|line| line.starts_with("Max open files")).unwrap();
        let numbers: Vec<&str> = line.split_whitespace().skip(3).take(2).collect();
        assert_eq!(numbers, [raised.to_string(), raised.to_string()]);
    }
}
