//! Files of a volume and of its ring.

use std::fs::{File, OpenOptions};

use rustix::fs::{MemfdFlags, OFlags, fcntl_getfl, fcntl_setfl, memfd_create};

/// Makes a file in memory.
pub(crate) fn in_memory(bytes: u64) -> File {
    let file = File::from(memfd_create("fake", MemfdFlags::CLOEXEC).expect("memory for a file"));
    file.set_len(bytes).expect("memory has no limit of a file's length");
    file
}

/// Makes the ring read a file without a worker thread (`io_file_get_flags` in `io_uring/rsrc.c`).
pub(crate) fn read_at_once(file: File) -> File {
    let flags = fcntl_getfl(&file).expect("each file has flags");
    fcntl_setfl(&file, flags | OFlags::NONBLOCK).expect("each file takes the flag");
    file
}

/// Opens a file that accepts writes at once. A long read of it may end early.
pub(crate) fn zeros() -> File {
    OpenOptions::new().read(true).write(true).open("/dev/zero").expect("each host has it")
}
