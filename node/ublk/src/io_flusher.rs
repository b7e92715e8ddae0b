//! Memory allocation by threads that serve block I/O.
#![allow(unsafe_code)] // prctl(2)

use std::io;

/// `PR_SET_IO_FLUSHER` of `linux/prctl.h`, since Linux 5.6.
const SET_IO_FLUSHER: libc::c_int = 57;
const YES: libc::c_ulong = 1;
const NO: libc::c_ulong = 0;

/// Marks the calling thread as one that the kernel's memory reclaim may depend on, so that its own
/// allocations never wait for I/O to a device that it serves (`PR_SET_IO_FLUSHER`). Call it first on each
/// thread that owns a ring with queues; threads that it starts inherit the mark.
///
/// # Errors
/// `EPERM` without `CAP_SYS_RESOURCE`.
pub fn become_io_flusher() -> io::Result<()> {
    // SAFETY: this prctl takes plain integers and changes only the calling thread.
    match unsafe { libc::prctl(SET_IO_FLUSHER, YES, NO, NO, NO) } {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::{NO, become_io_flusher};

    #[test]
    fn the_kernel_knows_the_thread_afterwards() {
        std::thread::spawn(|| {
            const GET_IO_FLUSHER: libc::c_int = 58;
            // SAFETY: this prctl takes plain integers and changes nothing.
            let flag = || unsafe { libc::prctl(GET_IO_FLUSHER, NO, NO, NO, NO) };
            match become_io_flusher() {
                Ok(()) => assert_eq!(flag(), 1),
                Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EPERM)),
            }
        })
        .join()
        .unwrap();
    }
}
