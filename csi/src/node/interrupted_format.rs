//! Formats that were begun and perhaps not finished.
//!
//! A half-made file system looks like data of a user. So before a format a file says which attach of which
//! volume is being formatted, and it is removed after that. The next request of the same attach formats
//! again. Another epoch means that another writer may have come between: then the file says nothing.
//!
//! A user's permission to format unknown content is for one format: after it the file says that it was used.

use std::fs::{self, File};
use std::io::{ErrorKind, Write};
use std::path::PathBuf;

use tonic::Status;

use super::tool::file_name;

/// The formats in progress, in files of a directory. Clones are the same.
#[derive(Clone, Debug)]
pub(super) struct InterruptedFormats(PathBuf);

impl InterruptedFormats {
    /// Those whose files are in that directory.
    pub(super) fn new(directory: PathBuf) -> Self {
        Self(directory)
    }

    /// Returns true if a format of this attach of the volume was begun and not finished.
    pub(super) fn contains(&self, volume_id: &str, epoch: u64) -> bool {
        self.says(volume_id, &epoch.to_string())
    }

    /// Notes durably that a format begins.
    ///
    /// # Errors
    /// `INTERNAL`: it cannot be noted; nothing may be formatted.
    pub(super) fn begin(&self, volume_id: &str, epoch: u64) -> Result<(), Status> {
        self.write(volume_id, &epoch.to_string())
    }

    /// Notes that no format is in progress.
    ///
    /// # Errors
    /// `INTERNAL`: it cannot be noted; the file system must not be used.
    pub(super) fn end(&self, volume_id: &str) -> Result<(), Status> {
        let file = self.file(volume_id);
        match fs::remove_file(&file) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(Status::internal(format!("{} cannot be removed: {error}", file.display())))
            }
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Notes that no format is in progress, and that the permission of this attach is used.
    ///
    /// # Errors
    /// `INTERNAL`: it cannot be noted; the file system must not be used.
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
        // A full disk must not empty what was noted: a half-made file system would look like a user's.
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
    fn only_the_same_attach_may_be_formatted_again() {
        let directory = tempfile::tempdir().expect("a directory");
        let formats = InterruptedFormats::new(directory.path().join("formats"));
        assert!(!formats.contains("v", 3));
        formats.end("v").expect("nothing to remove");
        formats.begin("v", 3).expect("noted");
        assert!(formats.contains("v", 3) && !formats.contains("v", 4) && !formats.contains("w", 3));
        formats.end("v").expect("removed");
        assert!(!formats.contains("v", 3));
    }

    #[test]
    fn a_permission_is_used_once() {
        let directory = tempfile::tempdir().expect("a directory");
        let formats = InterruptedFormats::new(directory.path().join("formats"));
        formats.begin("v", 3).expect("noted");
        assert!(!formats.is_used_up("v", 3), "it was interrupted");
        formats.use_up("v", 3).expect("noted");
        assert!(formats.is_used_up("v", 3) && !formats.contains("v", 3));
        assert!(!formats.is_used_up("v", 4) && !formats.is_used_up("w", 3));
    }

    /// The note was emptied before it was written again: the next request found no note of a format that had
    /// been interrupted.
    #[test]
    fn a_full_disk_leaves_the_note_that_was_there() {
        let directory = tempfile::tempdir().expect("a directory");
        let formats = InterruptedFormats::new(directory.path().join("formats"));
        formats.begin("v", 3).expect("noted");
        // Writes to it end with ENOSPC.
        let fill = |file: &Path| {
            drop(fs::remove_file(file));
            std::os::unix::fs::symlink("/dev/full", file).expect("linked");
        };
        fill(&formats.file("v"));
        formats.begin("v", 4).expect("the old note is not written over");
        fill(&formats.file("v").with_extension("new"));
        let refused = formats.begin("v", 5).expect_err("no room");
        assert!(
            refused.message().contains("No space left") && formats.contains("v", 4),
            "the old note stays"
        );
    }
}
