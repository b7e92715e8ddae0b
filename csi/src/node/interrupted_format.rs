//! Formats that were started and may not have completed.
//!
//! A half-made file system looks like user data. So before a format, a file records the attach and volume
//! being formatted; it is removed afterwards. The next request of the same attach formats again. So does the
//! next attach, as after a power loss, unless it finds a complete file system: the record may come from an
//! older state of the host's disk. With a later epoch, another writer may have come in between, and the file
//! is ignored.
//!
//! A user's permission to format unknown content covers one format: the file then records its use.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use tonic::Status;

use super::tool::file_name;

/// The attach in which a format was started and not completed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InterruptedIn {
    /// The current one.
    ThisAttach,
    /// The one directly before it: no other writer came in between.
    PreviousAttach,
}

/// The formats in progress, in files of a directory. Clones share the directory.
#[derive(Clone, Debug)]
pub(super) struct InterruptedFormats(PathBuf);

impl InterruptedFormats {
    /// Opens the records in that directory.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Returns the attach in which a format of the volume was interrupted, if it is that of this epoch or the
    /// one before it.
    pub(super) fn find(&self, volume_id: &str, epoch: u64) -> Option<InterruptedIn> {
        let is_of = |epoch: u64| self.says(volume_id, &epoch.to_string());
        if is_of(epoch) {
            return Some(InterruptedIn::ThisAttach);
        }
        epoch.checked_sub(1).filter(|before| is_of(*before)).map(|_| InterruptedIn::PreviousAttach)
    }

    /// Records durably that a format starts.
    ///
    /// # Errors
    /// `INTERNAL`: the record cannot be written; nothing may be formatted.
    pub(super) fn begin(&self, volume_id: &str, epoch: u64) -> Result<(), Status> {
        self.write(volume_id, &epoch.to_string())
    }

    /// Records that no format is in progress.
    ///
    /// # Errors
    /// `INTERNAL`: the record cannot be written; the file system must not be used.
    pub(super) fn end(&self, volume_id: &str) -> Result<(), Status> {
        let file = self.file(volume_id);
        // Durably: after a power loss, the record would make the next attach format again.
        match fs::remove_file(&file).and_then(|()| File::open(&self.0)?.sync_all()) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Status::internal(format!("{} cannot be removed: {error}", file.display())))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Records that no format is in progress, and that the permission of this attach was used.
    ///
    /// # Errors
    /// `INTERNAL`: the record cannot be written; the file system must not be used.
    pub(super) fn use_up(&self, volume_id: &str, epoch: u64) -> Result<(), Status> {
        self.write(volume_id, &used(epoch))
    }

    /// Returns true if the permission of this attach was used.
    pub(super) fn is_used_up(&self, volume_id: &str, epoch: u64) -> bool {
        self.says(volume_id, &used(epoch))
    }

    fn says(&self, volume_id: &str, words: &str) -> bool {
        fs::read_to_string(self.file(volume_id)).is_ok_and(|text| text.trim() == words)
    }

    fn write(&self, volume_id: &str, words: &str) -> Result<(), Status> {
        let file = self.file(volume_id);
        // A full disk must not truncate the record: a half-made file system would look like user data.
        let new = file.with_extension("new");
        let written = fs::create_dir_all(&self.0).and_then(|()| {
            let mut writer = File::create(&new)?;
            writer.write_all(words.as_bytes())?;
            writer.sync_all()?;
            fs::rename(&new, &file)?;
            File::open(&self.0)?.sync_all()
        });
        let written = written.inspect_err(|_error| drop(fs::remove_file(&new)));
        written.map_err(|error| Status::internal(format!("{} cannot be written: {error}", file.display())))
    }

    fn file(&self, volume_id: &str) -> PathBuf {
        self.0.join(file_name(volume_id))
    }
}

fn used(epoch: u64) -> String {
    format!("{epoch} used")
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use super::*;

    #[test]
    fn a_format_is_known_to_the_same_and_the_next_attach_only() {
        let directory = tempfile::tempdir().expect("a directory");
        let formats = InterruptedFormats::new(directory.path().join("formats"));
        assert!(formats.find("v", 3).is_none());
        formats.end("v").expect("nothing to remove");
        formats.begin("v", 3).expect("noted");
        assert_eq!(formats.find("v", 3), Some(InterruptedIn::ThisAttach));
        assert_eq!(formats.find("v", 4), Some(InterruptedIn::PreviousAttach));
        assert_eq!(formats.find("w", 3), None);
        assert_eq!([2, 5].map(|epoch| formats.find("v", epoch)), [None; 2], "another writer came in between");
        formats.end("v").expect("removed");
        assert!(formats.find("v", 3).is_none());
    }

    #[test]
    fn a_permission_is_used_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let formats = InterruptedFormats::new(directory.path().join("formats"));
        formats.begin("v", 3).expect("noted");
        assert!(!formats.is_used_up("v", 3), "it was interrupted");
        formats.use_up("v", 3).expect("noted");
        assert!(formats.is_used_up("v", 3) && formats.find("v", 3).is_none());
        assert!(!formats.is_used_up("v", 4) && !formats.is_used_up("w", 3));
    }

    /// Regression: the record was truncated before it was rewritten, so that the next request missed an
    /// interrupted format.
    #[test]
    fn a_full_disk_leaves_the_note_that_was_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let formats = InterruptedFormats::new(directory.path().join("formats"));
        formats.begin("v", 3).expect("noted");
        // Writes to it fail with ENOSPC.
        let fill = |file: &Path| {
            drop(fs::remove_file(file));
            std::os::unix::fs::symlink("/dev/full", file).expect("linked");
        };
        fill(&formats.file("v"));
        formats.begin("v", 5).expect("the old note is not written over");
        fill(&formats.file("v").with_extension("new"));
        let refused = formats.begin("v", 7).expect_err("no room");
        assert!(
            refused.message().contains("No space left") && formats.find("v", 5).is_some(),
            "the old note stays"
        );
    }
}
