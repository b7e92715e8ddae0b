//! A small file that can be replaced even if its file system is full.
//!
//! ```text
//! <name>      the file
//! <name>.new  as many pages, reserved for the next version
//! ```
//! The next version is written over the pages of `<name>.new`, then both files are exchanged atomically.
//! Bytes after a version's end are remains of an older one: the content encodes its length. On ext4, XFS and
//! tmpfs this allocates nothing; Btrfs copies overwritten data.
//! A version that ends at the end of its file ([`replace_exact`]) keeps one page allocated.
//! Invariants: a crash leaves the old or the new version; after the first write or reservation, a version
//! that needs no more pages allocates nothing.

use std::fs::{self, OpenOptions};
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use rustix::fs::{CWD, FallocateFlags, RenameFlags, fallocate, renameat_with};

use crate::node::error::{NodeError, file};
use crate::node::local::file::sync_dir;

const PAGE_BYTES: u64 = 4096;
/// Bytes by which a version may grow without another page.
const SPARE_BYTES: u64 = 256;

/// Returns the path of the next version of the file.
pub(in crate::node) fn spare(path: &Path) -> PathBuf {
    path.with_extension("new")
}

/// Replaces the file; the first call also allocates the space for all later ones.
///
/// # Errors
/// No space; the old version stays.
pub(in crate::node) fn replace_reserved(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    let spare = spare(path);
    let handle = reserve(&spare, bytes.len() as u64)?;
    handle.write_all_at(bytes, 0).map_err(file(&spare, "written"))?;
    exchange(path, &spare, bytes.len() as u64)
}

/// Like [`replace_reserved`], for a file on a disk: a power failure also leaves the old or the new version.
///
/// # Errors
/// An error of the disk; the old version stays.
pub(in crate::node) fn replace_synced(path: &Path, bytes: &[u8]) -> Result<(), NodeError> {
    let spare = spare(path);
    let handle = reserve(&spare, bytes.len() as u64)?;
    if let Err(error) = handle.write_all_at(bytes, 0).and_then(|()| handle.sync_all()) {
        if ![io::ErrorKind::StorageFull, io::ErrorKind::QuotaExceeded].contains(&error.kind()) {
            // A retry may get pages that the disk can write.
            drop(fs::remove_file(&spare));
        }
        return Err(file(&spare, "written")(error));
    }
    exchange(path, &spare, bytes.len() as u64)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Like [`replace_synced`], for a version of less than a page that ends at the end of its file. The file
/// keeps its page, so that later versions allocate nothing, either.
///
/// # Errors
/// An error of the disk; the old version stays.
pub(in crate::node) fn replace_exact(path: &Path, bytes: &[u8], mode: u32) -> Result<(), NodeError> {
    let spare = spare(path);
    let mut options = OpenOptions::new();
    let handle = options.write(true).create(true).truncate(false).mode(mode).open(&spare);
    let handle = handle.map_err(file(&spare, "created"))?;
    let written = handle.write_all_at(bytes, 0).and_then(|()| handle.set_len(bytes.len() as u64));
    written.and_then(|()| handle.sync_all()).map_err(file(&spare, "written"))?;
    exchange(path, &spare, 1)?;
    path.parent().map_or(Ok(()), sync_dir)
}

/// Allocates space for versions of up to that many bytes. The current version stays.
///
/// # Errors
/// No space.
pub(in crate::node) fn reserve_both(path: &Path, bytes: u64) -> Result<(), NodeError> {
    for file in [path, &spare(path)] {
        reserve(file, bytes)?;
    }
    path.parent().map_or(Ok(()), sync_dir)
}

/// Replaces the version at `path` by the one written to `spare`.
fn exchange(path: &Path, spare: &Path, bytes: u64) -> Result<(), NodeError> {
    match renameat_with(CWD, spare, CWD, path, RenameFlags::EXCHANGE) {
        Ok(()) => Ok(()),
        // The first version, or a file system without exchange.
        Err(rustix::io::Errno::NOENT | rustix::io::Errno::INVAL) => {
            fs::rename(spare, path).map_err(file(path, "replaced"))?;
            reserve(spare, bytes).map(drop)
        }
        Err(errno) => Err(file(path, "replaced")(errno.into())),
    }
}

/// Opens the file with pages for that many bytes and a reserve. Allocated space is not requested again: a
/// full XFS rejects even that.
fn reserve(path: &Path, bytes: u64) -> Result<fs::File, NodeError> {
    let mut options = OpenOptions::new();
    options.write(true).create(true).truncate(false).mode(0o600);
    let handle = options.open(path).map_err(file(path, "created"))?;
    let needed = (bytes + SPARE_BYTES).next_multiple_of(PAGE_BYTES);
    if handle.metadata().map_err(file(path, "read"))?.len() < needed {
        fallocate(&handle, FallocateFlags::empty(), 0, needed)
            .map_err(|errno| file(path, "allocated")(io::Error::from(errno)))?;
    }
    Ok(handle)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::node::tests::host::SmallTmpfs;

    /// Regression: a detach failed to write its record to a full tmpfs, so no volume could free space.
    #[test]
    fn a_full_tmpfs_takes_the_next_form() {
        let Some(tmpfs) = SmallTmpfs::mount(64 << 10) else { return };
        let path = tmpfs.path().join("attached");
        let form = |fill: u8| [&[fill; 1000][..], b"end"].concat();
        replace_reserved(&path, &form(0)).unwrap();
        tmpfs.fill();
        let refused = fs::write(tmpfs.path().join("more"), [1; 5000]).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::StorageFull);
        for fill in 1..20 {
            replace_reserved(&path, &form(fill)).unwrap();
            assert!(fs::read(&path).unwrap().starts_with(&form(fill)));
        }
        let error = replace_reserved(&path, &[9; 9000]).unwrap_err();
        assert!(error.to_string().contains("attached.new"), "{error}");
        assert!(fs::read(&path).unwrap().starts_with(&form(19)), "the old form stays");
    }

    /// Regression: with a full disk, the daemon failed after a reboot, because it could not record the boot.
    #[test]
    fn a_full_disk_takes_the_next_exact_form() {
        let Some(tmpfs) = SmallTmpfs::mount(64 << 10) else { return };
        let path = tmpfs.path().join("run");
        // As written by an earlier version.
        fs::write(&path, "{}").unwrap();
        replace_exact(&path, &[b'a'; 300], 0o600).unwrap();
        tmpfs.fill();
        for length in [300, 20, 700, 4096, 1] {
            let form = vec![u8::try_from(length % 251).unwrap(); length];
            replace_exact(&path, &form, 0o600).unwrap();
            assert_eq!(fs::read(&path).unwrap(), form);
        }
    }

    #[test]
    fn what_a_crash_left_half_written_is_no_form() {
        let dir = tempfile::tempdir_in("/dev/shm").unwrap();
        let path = dir.path().join("attached");
        replace_reserved(&path, b"one").unwrap();
        fs::write(spare(&path), "half").unwrap();
        assert!(fs::read(&path).unwrap().starts_with(b"one"));
        replace_reserved(&path, b"two").unwrap();
        assert!(fs::read(&path).unwrap().starts_with(b"two"));
    }
}
