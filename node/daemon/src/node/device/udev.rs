//! Rules that keep the host's udev from probing our devices (`docs/adr/0017-udev.md`).
//!
//! ```text
//! /run/udev/rules.d/59-holdfast.rules    the rules, the same for every installation of the host (tmpfs)
//! /run/udev/holdfast/ublkbN, loopN       mark of a device: its tag in hexadecimal digits
//! ```
//! Owns: these files.
//! Does not own: udev, or the host's programs that scan devices by themselves.
//! Runs on: threads that may block.
//! Invariants: a ublk device has its mark from before its start until after its stop. A loop device gets it
//! once it is bound: for that device itself the rules need no mark, only for a loop device on it. No device
//! is started or bound before udev has read the rules.
//! On failure: a device is not started without its mark. On a host without `/run/udev` nothing is written.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, SystemTime};

use holdfast_ublk::{ControlError, LOOP_IDS};

/// Directory of the host's udev.
pub(in crate::node) const UDEV: &str = "/run/udev";
const RULES: &str = include_str!("../../../udev/59-holdfast.rules");
/// Sorts before `60-block.rules` and `60-persistent-storage.rules`, whose effect it changes.
const RULES_FILE: &str = "59-holdfast.rules";
/// systemd-udevd checks for changed rules before an event, at most every three seconds. Source: its
/// `manager_reload`.
const READ_WITHIN: Duration = Duration::from_secs(4);

/// The rules and the marks.
#[derive(Debug)]
pub(in crate::node) struct Udev {
    dir: PathBuf,
}

impl Udev {
    /// Uses udev's directory, which may be missing.
    pub(in crate::node) fn new(dir: &Path) -> Self {
        Self { dir: dir.to_owned() }
    }

    /// Writes the rules if they are missing or differ.
    ///
    /// # Errors
    /// [`ControlError::File`].
    pub(in crate::node) fn install(&self) -> Result<(), ControlError> {
        let path = self.rules();
        if !self.is_there() || fs::read(&path).is_ok_and(|found| found == RULES.as_bytes()) {
            return Ok(());
        }
        let new = path.with_extension("new");
        let written = fs::create_dir_all(self.dir.join("rules.d"))
            .and_then(|()| fs::write(&new, RULES))
            .and_then(|()| fs::rename(&new, &path));
        written.map_err(not_written(path))
    }

    /// Marks a device that was not started yet.
    ///
    /// # Errors
    /// [`ControlError::File`].
    pub(in crate::node) fn mark(&self, id: u32, tag: u64) -> Result<(), ControlError> {
        let path = self.mark_of(id);
        if fs::read_to_string(&path).is_ok_and(|found| found == mark(tag)) {
            // A recovery: in a full file system, a write could only empty it.
            return Ok(());
        }
        self.install()?;
        if !self.is_there() {
            return Ok(());
        }
        let written = fs::create_dir_all(self.marks()).and_then(|()| fs::write(&path, mark(tag)));
        written.map_err(not_written(path))
    }

    /// Waits, for at most a few seconds, until udev has read the rules.
    pub(in crate::node) fn await_rules(&self) {
        let written = fs::metadata(self.rules()).and_then(|found| found.modified());
        let Ok(written) = written else { return };
        // If the clock was set back since, the age is zero.
        let age = SystemTime::now().duration_since(written).unwrap_or_default();
        sleep(READ_WITHIN.saturating_sub(age));
    }

    /// Removes the mark of a stopped device, unless its number belongs to another device by now.
    pub(in crate::node) fn unmark(&self, id: u32, tag: u64) {
        if fs::read_to_string(self.mark_of(id)).is_ok_and(|found| found == mark(tag)) {
            self.remove(id);
        }
    }

    fn remove(&self, id: u32) {
        let path = self.mark_of(id);
        if let Err(error) = fs::remove_file(&path)
            && error.kind() != io::ErrorKind::NotFound
        {
            tracing::warn!(path = %path.display(), %error, "the mark of a device for udev was not removed");
        }
    }

    /// Removes marks left by killed daemons, of devices that are gone or belong to another program. `tag_of`
    /// asks the kernel for the tag of a device; if it fails, the mark stays.
    pub(in crate::node) fn sweep(&self, tag_of: impl Fn(u32) -> Result<u64, ControlError>) {
        for entry in fs::read_dir(self.marks()).into_iter().flatten().flatten() {
            let name = entry.file_name();
            let Some(id) = name.to_str().and_then(id_of) else { continue };
            let marked = fs::read_to_string(entry.path()).unwrap_or_default();
            let is_stale = match tag_of(id) {
                Ok(tag) => mark(tag) != marked,
                Err(error) => matches!(error, ControlError::NotFound { .. }),
            };
            if is_stale {
                self.remove(id);
            }
        }
    }

    fn is_there(&self) -> bool {
        self.dir.is_dir()
    }

    fn rules(&self) -> PathBuf {
        self.dir.join("rules.d").join(RULES_FILE)
    }

    fn marks(&self) -> PathBuf {
        self.dir.join("holdfast")
    }

    fn mark_of(&self, id: u32) -> PathBuf {
        self.marks().join(name_of(id))
    }
}

/// Returns the kernel's name of a device.
fn name_of(id: u32) -> String {
    id.checked_sub(LOOP_IDS).map_or_else(|| format!("ublkb{id}"), |number| format!("loop{number}"))
}

/// Returns the device of this name.
fn id_of(name: &str) -> Option<u32> {
    match name.strip_prefix("loop") {
        Some(number) => LOOP_IDS.checked_add(number.parse().ok()?),
        None => name.strip_prefix("ublkb")?.parse().ok(),
    }
}

/// Returns the content of the mark of a device with this tag.
fn mark(tag: u64) -> String {
    format!("{tag:016x}\n")
}

fn not_written(path: PathBuf) -> impl FnOnce(io::Error) -> ControlError {
    move |source| ControlError::File { path, action: "written", source }
}

#[cfg(test)]
mod tests {
    use std::fs::File;
    use std::time::Instant;

    use super::*;

    #[test]
    fn a_host_without_udev_gets_no_file() {
        let root = tempfile::tempdir().unwrap();
        let udev = Udev::new(&root.path().join("udev"));
        udev.mark(3, 1).unwrap();
        udev.await_rules();
        udev.unmark(3, 1);
        assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
    }

    #[test]
    fn rules_are_replaced_when_they_differ_and_only_then() {
        let dir = tempfile::tempdir().unwrap();
        let udev = Udev::new(dir.path());
        udev.install().unwrap();
        let written = || fs::metadata(udev.rules()).unwrap().modified().unwrap();
        let first = written();
        udev.install().unwrap();
        assert_eq!(written(), first);
        fs::write(udev.rules(), "older").unwrap();
        udev.mark(3, 1).unwrap();
        assert_eq!(fs::read_to_string(udev.rules()).unwrap(), RULES);
        let left = fs::read_dir(dir.path().join("rules.d")).unwrap().count();
        assert_eq!(left, 1, "udev reads whole files only");
    }

    #[test]
    fn no_device_starts_before_udev_has_read_the_rules() {
        let dir = tempfile::tempdir().unwrap();
        let udev = Udev::new(dir.path());
        udev.install().unwrap();
        let written = |before: Duration| {
            let rules = File::options().write(true).open(udev.rules()).unwrap();
            rules.set_modified(SystemTime::now() - before).unwrap();
            let begin = Instant::now();
            udev.await_rules();
            begin.elapsed()
        };
        let almost = READ_WITHIN - Duration::from_millis(200);
        assert!(written(almost) >= Duration::from_millis(100));
        assert!(written(2 * READ_WITHIN) < Duration::from_millis(100));
    }

    /// Regression: each recovery emptied the mark and rewrote it: in a full `/run` it stayed empty, and the
    /// host probed the volume.
    #[test]
    fn a_recovery_leaves_the_mark_that_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let udev = Udev::new(dir.path());
        udev.mark(3, 7).unwrap();
        let old = SystemTime::now() - Duration::from_secs(60);
        fs::File::open(udev.mark_of(3)).unwrap().set_modified(old).unwrap();
        udev.mark(3, 7).unwrap();
        assert_eq!(fs::metadata(udev.mark_of(3)).unwrap().modified().unwrap(), old, "it was not written");
        udev.mark(3, 8).unwrap();
        assert_eq!(fs::read_to_string(udev.mark_of(3)).unwrap(), mark(8), "another device's");
    }

    #[test]
    fn marks_of_devices_that_are_gone_or_foreign_are_removed() {
        let dir = tempfile::tempdir().unwrap();
        let udev = Udev::new(dir.path());
        for id in 1..=4 {
            udev.mark(id, 10 + u64::from(id)).unwrap();
        }
        udev.sweep(|id| match id {
            1 => Ok(11),
            2 => Ok(99),
            3 => Err(ControlError::NotFound { id }),
            _ => Err(ControlError::TimedOut { id, command: "GET_DEV_INFO", waited_ms: 1 }),
        });
        assert_eq!([1, 2, 3, 4].map(|id| udev.mark_of(id).exists()), [true, false, false, true]);
        udev.unmark(1, 12);
        assert!(udev.mark_of(1).exists(), "another device has the number");
        udev.unmark(1, 11);
        assert!(!udev.mark_of(1).exists());
    }

    /// Regression: a loop device has no mark: udev and the programs behind it probed volumes without ublk.
    #[test]
    fn the_rules_know_the_file_of_a_loop_device() {
        let name = holdfast_fuse::file_name(0xb1_00_00_00_00_00_00_07);
        let pattern = format!("/holdfast-{}", "?".repeat(16));
        assert!(RULES.contains(&format!("ATTR{{loop/backing_file}}==\"{pattern}\"")));
        assert_eq!((name.len() + 1, &name[..9]), (pattern.len(), "holdfast-"));
    }

    /// Regression, found in review: volumes without ublk had no mark, so that the host probed the loop device
    /// by which the kubelet holds one.
    #[test]
    fn a_loop_device_has_its_mark_under_its_name() {
        let dir = tempfile::tempdir().unwrap();
        let udev = Udev::new(dir.path());
        for number in [5, 6] {
            udev.mark(LOOP_IDS + number, 7).unwrap();
        }
        assert_eq!(fs::read_to_string(udev.marks().join("loop5")).unwrap(), mark(7));
        udev.sweep(|id| if id == LOOP_IDS + 5 { Ok(7) } else { Err(ControlError::NotFound { id }) });
        assert!(udev.marks().join("loop5").exists() && !udev.marks().join("loop6").exists());
        udev.unmark(LOOP_IDS + 5, 7);
        assert!(!udev.marks().join("loop5").exists());
        assert!(RULES.contains("\"/dev/ublkb*|/dev/loop*|*/volumeDevices/*\""));
    }

    #[test]
    fn the_rules_look_where_the_marks_are() {
        let at = Udev::new(Path::new(UDEV)).marks();
        for device in ["$kernel", "$parent", "$result"] {
            assert!(RULES.contains(&format!("TEST==\"{}/{device}\"", at.display())), "{device}");
        }
    }
}
