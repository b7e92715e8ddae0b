//! The character device of a ublk device, through which the server serves it.
#![allow(unsafe_code)] // mmap of the request descriptors

use std::fs::{File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::path::PathBuf;
use std::ptr::NonNull;
use std::thread::sleep;
use std::time::{Duration, Instant};

use libublk::sys;

use crate::ControlError;
#[cfg(feature = "fake")]
use crate::fake_tags::FakeTags;

/// Maximum wait for a new device's node to appear.
const NODE_TIMEOUT: Duration = Duration::from_secs(10);
const POLL: Duration = Duration::from_millis(1);

/// Files that replace parts of the character device.
#[cfg(feature = "fake")]
#[derive(Debug)]
pub(crate) struct FakeFiles {
    pub(crate) commands: File,
    pub(crate) descriptors: File,
    pub(crate) buffers_at: u32,
    pub(crate) tags: Option<FakeTags>,
}

/// An open `/dev/ublkcN`. The kernel lets one process at a time open it.
///
/// Each [`Queue`](crate::Queue) keeps its own reference, so this value can be dropped once all queues are
/// open. The kernel quiesces the device after the last user is dropped: this value, each queue, and each ring
/// that had a queue of the device.
#[derive(Debug)]
pub struct CharDevice {
    file: File,
    /// Files that replace parts of the character device.
    #[cfg(feature = "fake")]
    fake: Option<FakeFiles>,
}

impl CharDevice {
    /// Opens the character device, waiting for its node to appear.
    pub(crate) fn open(id: u32) -> Result<Self, ControlError> {
        let path = PathBuf::from(format!("/dev/ublkc{id}"));
        let deadline = Instant::now() + NODE_TIMEOUT;
        loop {
            match OpenOptions::new().read(true).write(true).open(&path) {
                Ok(file) => return Ok(Self::of(file)),
                Err(error) if error.kind() == ErrorKind::NotFound && Instant::now() < deadline => sleep(POLL),
                Err(source) => return Err(ControlError::File { path, action: "opened", source }),
            }
        }
    }

    /// Creates a device without the driver: copies go to `file`, everything else to the files of `fake`.
    #[cfg(feature = "fake")]
    pub(crate) fn fake(file: File, fake: FakeFiles) -> Self {
        Self { file, fake: Some(fake) }
    }

    /// Returns the file that takes commands.
    pub(crate) fn file(&self) -> BorrowedFd<'_> {
        #[cfg(feature = "fake")]
        if let Some(fake) = &self.fake {
            return fake.commands.as_fd();
        }
        self.file.as_fd()
    }

    /// Returns the address of the first byte of each registered buffer: 0 with the driver.
    pub(crate) fn buffers_at(&self) -> u32 {
        #[cfg(feature = "fake")]
        if let Some(fake) = &self.fake {
            return fake.buffers_at;
        }
        0
    }

    /// Returns the source of tags fetched in batches; `None` with a driver.
    #[cfg(feature = "fake")]
    pub(crate) fn fake_tags(&self) -> Option<FakeTags> {
        self.fake.as_ref()?.tags.clone()
    }

    /// Returns true without a driver.
    pub(crate) fn is_fake(&self) -> bool {
        #[cfg(feature = "fake")]
        return self.fake.is_some();
        #[cfg(not(feature = "fake"))]
        false
    }

    /// Returns another reference to the open file.
    pub(crate) fn share(&self) -> io::Result<File> {
        self.file.try_clone()
    }

    pub(crate) fn map_descriptors(&self, queue_id: u16, depth: u16) -> io::Result<Descriptors> {
        #[cfg(feature = "fake")]
        if let Some(fake) = &self.fake {
            return Descriptors::map(&fake.descriptors, queue_id, depth);
        }
        Descriptors::map(&self.file, queue_id, depth)
    }
}

impl CharDevice {
    /// Wraps an open character device.
    pub(crate) fn of(file: File) -> Self {
        Self {
            file,
            #[cfg(feature = "fake")]
            fake: None,
        }
    }
}

/// The shared memory in which the kernel describes the requests of one queue, one entry per tag.
#[derive(Debug)]
pub(crate) struct Descriptors {
    first: NonNull<sys::ublksrv_io_desc>,
    depth: u16,
    mapped_bytes: usize,
}

impl Descriptors {
    /// Distance between the descriptors of two queues: the size for a queue of maximum depth
    /// (`ublk_max_cmd_buf_size` in `drivers/block/ublk_drv.c`).
    const STRIDE: usize = mapped_size(sys::UBLK_MAX_QUEUE_DEPTH as u16);

    fn map(file: &File, queue_id: u16, depth: u16) -> io::Result<Self> {
        let mapped_bytes = mapped_size(depth);
        let offset = Self::STRIDE * usize::from(queue_id) + sys::UBLKSRV_CMD_BUF_OFFSET as usize;
        // SAFETY: a new mapping at an address of the kernel's choice; the file descriptor is open.
        let address = unsafe {
            libc::mmap(
                std::ptr::null_mut(),
                mapped_bytes,
                libc::PROT_READ,
                libc::MAP_SHARED | libc::MAP_POPULATE,
                file.as_raw_fd(),
                offset as libc::off_t,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let first = NonNull::new(address.cast()).expect("mmap does not return null");
        Ok(Self { first, depth, mapped_bytes })
    }

    /// Reads the descriptor that the kernel wrote for a tag whose fetch has completed.
    #[inline]
    pub(crate) fn read(&self, tag: u16) -> sys::ublksrv_io_desc {
        assert!(tag < self.depth, "tag {tag} is below the queue's depth");
        // SAFETY: `first` points at `depth` descriptors and `tag` is below `depth`.
        let descriptor = unsafe { self.first.add(usize::from(tag)) };
        // SAFETY: the descriptor is in the mapping and every bit pattern is a valid value. The kernel wrote
        // it before it posted the completion that led here, and not again until the tag is committed.
        unsafe { descriptor.read_volatile() }
    }
}

impl Drop for Descriptors {
    fn drop(&mut self) {
        // SAFETY: exactly the mapping made in `map`; no reference into it is handed out.
        unsafe { libc::munmap(self.first.as_ptr().cast(), self.mapped_bytes) };
    }
}

const fn mapped_size(depth: u16) -> usize {
    (depth as usize * size_of::<sys::ublksrv_io_desc>()).next_multiple_of(4096)
}
