//! Files of the node: direct I/O, allocated space.

use std::fs::{self, File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::Path;

use crate::node::error::{LocalDamage, NodeError, file};

/// Unit of `st_blocks`. Source: stat(3type).
const STAT_BLOCK_BYTES: u64 = 512;

/// Opens a file for direct I/O if the filesystem supports it, otherwise buffered; grows it to `length`.
pub(crate) fn open_direct(path: &Path, length: u64) -> Result<File, NodeError> {
    let mut options = OpenOptions::new();
    options.read(true).write(true).create(true).truncate(false).mode(0o600);
    let handle = open_mode(path, &mut options).map_err(file(path, "opened"))?;
    if handle.metadata().map_err(file(path, "read"))?.len() < length {
        handle.set_len(length).map_err(file(path, "resized"))?;
        handle.sync_all().map_err(file(path, "synced"))?;
    }
    Ok(handle)
}

/// Opens a file in the same mode for all its users: direct I/O if the filesystem supports it, otherwise
/// buffered.
pub(crate) fn open_mode(path: &Path, options: &mut OpenOptions) -> io::Result<File> {
    match options.custom_flags(libc::O_DIRECT).open(path) {
        Err(error) if error.raw_os_error() == Some(libc::EINVAL) => {
            tracing::warn!(
                path = %path.display(),
                "the filesystem has no direct I/O: after a failed write of this file, reads may return older data"
            );
            options.custom_flags(0).open(path)
        }
        other => other,
    }
}

pub(crate) fn sync_dir(dir: &Path) -> Result<(), NodeError> {
    File::open(dir).and_then(|handle| handle.sync_all()).map_err(file(dir, "synced"))
}

/// Returns random bytes from the kernel.
pub(crate) fn random<const N: usize>() -> [u8; N] {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).expect("every Linux has getrandom(2)");
    bytes
}

/// Truncates a file to a length.
///
/// # Errors
/// [`NodeError::Damaged`] if it is shorter; the kernel's error.
pub(in crate::node) fn truncate(handle: &File, path: &Path, length: u64) -> Result<(), NodeError> {
    let found = handle.metadata().map_err(file(path, "read"))?.len();
    if found < length {
        let [found, expected] = [found, length].map(|bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let source = LocalDamage::Length { found, expected };
        return Err(NodeError::Damaged { path: path.to_owned(), source });
    }
    if found > length {
        handle.set_len(length).map_err(file(path, "resized"))?;
    }
    Ok(())
}

/// Returns the bytes that a file occupies in its filesystem; 0 if it does not exist.
pub(in crate::node) fn allocated_bytes(path: &Path) -> Result<u64, NodeError> {
    match fs::metadata(path) {
        Ok(metadata) => Ok(metadata.blocks() * STAT_BLOCK_BYTES),
        // The volume was just released.
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(0),
        Err(error) => Err(file(path, "measured")(error)),
    }
}
