//! A pipe that replaces a driver which hands over tags in batches.

use std::fs::File;
use std::io::{self, Write, pipe};
use std::os::fd::{AsRawFd, OwnedFd};
use std::sync::Arc;

use io_uring::squeue::Entry;
use io_uring::{opcode, types};

/// The read end.
#[derive(Clone, Debug)]
pub(crate) struct FakeTags(Arc<OwnedFd>);

/// The write end.
#[derive(Debug)]
pub(crate) struct FakeTagsIn(File);

impl FakeTags {
    /// Creates the pipe.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn new() -> io::Result<(Self, FakeTagsIn)> {
        let (read, write) = pipe()?;
        Ok((Self(Arc::new(read.into())), FakeTagsIn(File::from(OwnedFd::from(write)))))
    }

    /// Returns a multishot read into the buffer of a group.
    pub(crate) fn read_of(&self, group: u16) -> Entry {
        opcode::ReadMulti::new(types::Fd(self.0.as_raw_fd()), 0, group).build()
    }
}

impl FakeTagsIn {
    /// Hands tags over.
    ///
    /// # Errors
    /// The kernel's.
    pub(crate) fn write(&mut self, tags: &[u16]) -> io::Result<()> {
        let bytes: Vec<u8> = tags.iter().flat_map(|tag| tag.to_ne_bytes()).collect();
        self.0.write_all(&bytes)
    }
}
