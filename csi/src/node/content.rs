//! Content of a device, and its preparation before the mount.

use std::fs::File;
use std::io::{self, Seek, SeekFrom};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::Path;

use holdfast_crds::FORMAT_UNKNOWN_CONTENT;
use tonic::Status;

use super::interrupted_format::InterruptedIn;
use super::tool::{CommandLine, EndedProgram, Tools};
use crate::capability::FileSystem;

/// Exit codes of `blkid --probe`. Source: `man blkid`.
const FOUND: i32 = 0;
const NOTHING: i32 = 2;
const AMBIGUOUS: i32 = 8;
/// Regions in which blkid looks for signatures: the start of a device (VMFS and the second headers of LUKS
/// are furthest from it), the mirror of the btrfs superblock, and the end (RAID, ZFS, GPT). Source:
/// `libblkid/src/superblocks` of util-linux.
const START_BYTES: u64 = 8 << 20;
const MIRROR_START: u64 = 64 << 20;
const MIRROR_BYTES: u64 = 64 << 10;
const END_BYTES: u64 = 2 << 20;
/// Bytes per read.
const READ_BYTES: usize = 1 << 20;
/// Features of a new xfs: those that the oldest kernel can mount on which volumes are served. By default,
/// mkfs.xfs chooses those of its own release, and a volume may move to a node with an older kernel.
const XFS_FEATURES: &str = "options=/usr/share/xfsprogs/mkfs/lts_6.6.conf";
/// Byte of the primary superblock of xfs that is not zero until mkfs.xfs completes; the kernel does not mount
/// such a file system. Source: `sb_inprogress` in `xfs_format.h` of Linux.
const XFS_IN_PROGRESS: u64 = 126;
/// Bit in the exit code of e2fsck for uncorrected errors; each lower bit is a success. Source: `man e2fsck`.
const ERRORS_LEFT: i32 = 4;
/// Lowest exit code of e2fsck, or of flock(1), for another failure. Source: their manuals.
const NOT_CHECKED: i32 = 8;

/// Signature found on a device.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum DeviceContent {
    /// No known signature.
    Nothing,
    /// A file system that the driver supports.
    FileSystem(FileSystem),
    /// A file system that its mkfs did not complete; it never held files.
    Unfinished(FileSystem),
    /// Another signature, by its name.
    Other(String),
    /// Several signatures.
    Several,
}

/// Facts that determine the preparation of a device.
#[derive(Clone, Debug)]
pub(super) struct DeviceFacts {
    /// The requested file system.
    pub(super) wanted: FileSystem,
    /// Signature on the device.
    pub(super) content: DeviceContent,
    /// False if the node daemon reports that every byte is zero and no writer was ever replaced; `None` while
    /// it does not know.
    pub(super) holds_data: Option<bool>,
    /// The attach in which a format was started and not completed.
    pub(super) interrupted: Option<InterruptedIn>,
    /// The fencing number of this attach.
    pub(super) epoch: u64,
    /// True while the user's permission to format unknown content in this attach is unused.
    pub(super) may_format: bool,
    /// True if the file system is only read.
    pub(super) is_read_only: bool,
}

/// The preparation of a device before it is mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Preparation {
    /// Creates the file system.
    Format {
        /// True if every byte is zero.
        is_zero: bool,
    },
    /// Checks the existing file system.
    Check,
}

/// Decides how to prepare a device. Never formats on a guess: a missing signature alone does not prove that a
/// device is empty.
///
/// # Errors
/// `FAILED_PRECONDITION`: it has other or unknown content. `UNAVAILABLE`: it is not known yet whether it has
/// content.
pub(super) fn plan(facts: &DeviceFacts) -> Result<Preparation, Status> {
    let DeviceFacts { wanted, content, holds_data, interrupted, epoch, may_format, is_read_only } = facts;
    let name = wanted.name();
    let is_incomplete = matches!(content, DeviceContent::Nothing | DeviceContent::Unfinished(_));
    if *is_read_only && is_incomplete {
        return Err(refused(&format!(
            "the volume has no known file system, but {name} was requested. It is read-only (ReadOnlyMany), and \
             was not formatted. Correct the dataSource of the claim, or use a raw block volume"
        )));
    }
    let is_half_formatted = match interrupted {
        Some(InterruptedIn::ThisAttach) => true,
        Some(InterruptedIn::PreviousAttach) => is_incomplete,
        None => false,
    };
    if is_half_formatted && !is_read_only {
        return Ok(Preparation::Format { is_zero: false });
    }
    match (content, holds_data) {
        (DeviceContent::FileSystem(found), _) if found == wanted => Ok(Preparation::Check),
        (DeviceContent::FileSystem(found), _) => Err(refused(&format!(
            "the volume has {found}, but {name} was requested. It was not formatted. Restore or clone into a \
             StorageClass whose csi.storage.k8s.io/fstype is {found}, or correct fsType of a static \
             PersistentVolume",
            found = found.name()
        ))),
        (DeviceContent::Unfinished(_), _) if *may_format => Ok(Preparation::Format { is_zero: false }),
        (DeviceContent::Unfinished(found), _) => Err(refused(&format!(
            "the volume has {found} that mkfs did not complete, which holds no files. It was not formatted. To \
             format it, annotate the Volume with {FORMAT_UNKNOWN_CONTENT}={epoch}",
            found = found.name()
        ))),
        (DeviceContent::Other(found), _) => Err(refused(&format!(
            "the volume has {found}, but {name} was requested. It was not formatted. Use it as a raw block volume"
        ))),
        (DeviceContent::Several, _) => {
            Err(refused("the volume has several signatures. It was not formatted; see `wipefs`"))
        }
        (DeviceContent::Nothing, Some(false)) => Ok(Preparation::Format { is_zero: true }),
        (DeviceContent::Nothing, Some(true)) if *may_format => Ok(Preparation::Format { is_zero: false }),
        (DeviceContent::Nothing, Some(true)) => Err(refused(&format!(
            "the volume has data without a known signature, or lost its data with a replaced writer \
             (UnuploadedDataLost). It was not formatted. If the data may be lost, annotate the Volume with \
             {FORMAT_UNKNOWN_CONTENT}={epoch}"
        ))),
        (DeviceContent::Nothing, None) => Err(Status::unavailable(
            "it is not known yet whether the volume holds data. It was not formatted; the caller retries",
        )),
    }
}

fn refused(message: &str) -> Status {
    Status::failed_precondition(message)
}

/// Looks for signatures on a device. An empty result is accepted only for a readable device: blkid reports
/// the same for one that it cannot read.
///
/// # Errors
/// `UNAVAILABLE`: it cannot be read. `INTERNAL`: blkid failed. Those of [`Tools::run`].
pub(super) async fn look(tools: &Tools, volume: &str, device: &Path) -> Result<DeviceContent, Status> {
    let content = probed(&tools.run(volume, probe(device)).await?)?;
    if content == DeviceContent::FileSystem(FileSystem::Xfs) && read(device, is_unfinished_xfs).await? {
        return Ok(DeviceContent::Unfinished(FileSystem::Xfs));
    }
    if content != DeviceContent::Nothing {
        return Ok(content);
    }
    // While the device is open, the kernel caches the data: blkid reads the same bytes.
    let open = read(device, read_regions).await?;
    let content = probed(&tools.run(volume, probe(device)).await?);
    drop(open);
    content
}

/// Calls `reading` with the open device, on a thread that may block.
async fn read<T: Send + 'static>(
    device: &Path,
    reading: impl FnOnce(File) -> io::Result<T> + Send + 'static,
) -> Result<T, Status> {
    let path = device.to_owned();
    let reading = tokio::task::spawn_blocking(move || File::open(path).and_then(reading));
    let unread = |why: String| {
        let device = device.display();
        Status::unavailable(format!("{device} could not be read: {why}; nothing was formatted"))
    };
    reading.await.map_err(|error| unread(error.to_string()))?.map_err(|error| unread(error.to_string()))
}

/// Returns true if mkfs.xfs did not complete the file system of the device.
fn is_unfinished_xfs(device: File) -> io::Result<bool> {
    let mut flag = [0];
    device.read_exact_at(&mut flag, XFS_IN_PROGRESS)?;
    Ok(flag != [0])
}

/// Reads the regions in which blkid looks, and returns the device.
fn read_regions(mut device: File) -> io::Result<File> {
    let bytes = device.seek(SeekFrom::End(0))?;
    read_places(&device, bytes)?;
    Ok(device)
}

fn read_places(device: &File, bytes: u64) -> io::Result<()> {
    if bytes == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has no size"));
    }
    let mut buffer = vec![0; READ_BYTES];
    for place in places(bytes) {
        for offset in place.clone().step_by(READ_BYTES) {
            let length = usize::try_from(place.end - offset).map_or(READ_BYTES, |left| left.min(READ_BYTES));
            device.read_exact_at(&mut buffer[..length], offset)?;
        }
    }
    Ok(())
}

/// Returns the regions of a device of that many bytes.
fn places(bytes: u64) -> [Range<u64>; 3] {
    [
        0..START_BYTES.min(bytes),
        MIRROR_START.min(bytes)..(MIRROR_START + MIRROR_BYTES).min(bytes),
        bytes.saturating_sub(END_BYTES)..bytes,
    ]
}

/// Returns the command that looks for signatures.
fn probe(device: &Path) -> CommandLine {
    CommandLine::new(["blkid", "--probe", "--output", "export"]).and(device)
}

/// Parses the output of [`probe`].
///
/// # Errors
/// `UNAVAILABLE`: it reported an error without a result. `INTERNAL`: it failed otherwise.
fn probed(ended: &EndedProgram) -> Result<DeviceContent, Status> {
    match ended.code {
        Some(FOUND) => {
            let value = |key: &str| {
                ended
                    .stdout
                    .lines()
                    .find_map(|line| line.strip_prefix(key)?.strip_prefix('='))
                    .map(str::to_owned)
            };
            let found = value("TYPE").or_else(|| Some(format!("a partition table ({})", value("PTTYPE")?)));
            Ok(match found {
                None => DeviceContent::Other("an unknown signature".to_owned()),
                Some(name) => {
                    FileSystem::named(&name).map_or(DeviceContent::Other(name), DeviceContent::FileSystem)
                }
            })
        }
        Some(NOTHING) if !ended.output().is_empty() => Err(Status::unavailable(format!(
            "the device could not be read: {}; nothing was formatted",
            ended.output()
        ))),
        Some(NOTHING) => Ok(DeviceContent::Nothing),
        Some(AMBIGUOUS) => Ok(DeviceContent::Several),
        code => Err(Status::internal(format!("blkid failed ({code:?}): {}", ended.output()))),
    }
}

/// Returns the command that creates a file system, without a discard, which would change nothing.
pub(super) fn format(file_system: FileSystem, device: &Path, is_zero: bool) -> CommandLine {
    match file_system {
        FileSystem::Ext4 => {
            let zero = if is_zero { "nodiscard,assume_storage_prezeroed=1" } else { "nodiscard" };
            CommandLine::new(["mkfs.ext4", "-q", "-F", "-m", "0", "-E", zero]).and(device)
        }
        FileSystem::Xfs => CommandLine::new(["mkfs.xfs", "-q", "-f", "-K", "-c", XFS_FEATURES]).and(device),
        FileSystem::Btrfs => CommandLine::new(["mkfs.btrfs", "-q", "-f", "-K"]).and(device),
    }
}

/// Returns the command that checks a file system before the mount; `None` if the mount itself replays the
/// journal after a crash.
pub(super) fn check(file_system: FileSystem, device: &Path) -> Option<CommandLine> {
    match file_system {
        FileSystem::Ext4 => Some(CommandLine::new(["e2fsck", "-p"]).and(device)),
        FileSystem::Xfs | FileSystem::Btrfs => None,
    }
}

/// Evaluates the result of [`check`].
///
/// # Errors
/// `INTERNAL` with its output: uncorrected errors remain, which need manual repair; or it did not complete.
pub(super) fn checked(ended: &EndedProgram, device: &Path) -> Result<(), Status> {
    let (device, output) = (device.display(), ended.output());
    let why = match ended.code {
        Some(code) if code < ERRORS_LEFT => return Ok(()),
        Some(code) if code < NOT_CHECKED => format!(
            "e2fsck found errors that it does not repair automatically ({code}). The volume was not mounted. \
             Repair it with `e2fsck {device}`: {output}"
        ),
        Some(code) => format!(
            "e2fsck could not check {device} ({code}). The volume was not mounted; the caller retries: \
             {output}"
        ),
        None => format!(
            "a signal ended e2fsck on {device}. The volume was not mounted; the caller retries. If the kernel \
             was out of memory, raise the limit in csi.node.resources: {output}"
        ),
    };
    Err(Status::internal(why))
}

/// Returns the command that grows a file system to the size of its device.
pub(super) fn grow(file_system: FileSystem, device: &Path, mounted: &Path) -> CommandLine {
    match file_system {
        FileSystem::Ext4 => CommandLine::new(["resize2fs"]).and(device),
        FileSystem::Xfs => CommandLine::new(["xfs_growfs"]).and(mounted),
        FileSystem::Btrfs => CommandLine::new(["btrfs", "filesystem", "resize", "max"]).and(mounted),
    }
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn facts(content: DeviceContent, holds_data: Option<bool>) -> DeviceFacts {
        DeviceFacts {
            wanted: FileSystem::Ext4,
            content,
            holds_data,
            interrupted: None,
            epoch: 7,
            may_format: false,
            is_read_only: false,
        }
    }

    #[test]
    fn only_a_volume_without_data_is_formatted() {
        let ext4 = DeviceContent::FileSystem(FileSystem::Ext4);
        let xfs = DeviceContent::FileSystem(FileSystem::Xfs);
        let other = DeviceContent::Other("LVM2_member".to_owned());
        for (content, holds_data, expected) in [
            (DeviceContent::Nothing, Some(false), Ok(Preparation::Format { is_zero: true })),
            (DeviceContent::Nothing, Some(true), Err(Code::FailedPrecondition)),
            (DeviceContent::Nothing, None, Err(Code::Unavailable)),
            (ext4.clone(), Some(true), Ok(Preparation::Check)),
            (ext4.clone(), None, Ok(Preparation::Check)),
            (xfs.clone(), Some(true), Err(Code::FailedPrecondition)),
            (xfs, Some(false), Err(Code::FailedPrecondition)),
            (other, Some(true), Err(Code::FailedPrecondition)),
            (DeviceContent::Several, Some(true), Err(Code::FailedPrecondition)),
        ] {
            let found = plan(&facts(content.clone(), holds_data)).map_err(|status| status.code());
            assert_eq!(found, expected, "{content:?}, {holds_data:?}");
        }
    }

    #[test]
    fn what_is_only_read_is_never_formatted() {
        for holds_data in [Some(false), Some(true), None] {
            let empty = DeviceFacts {
                is_read_only: true,
                may_format: true,
                interrupted: Some(InterruptedIn::ThisAttach),
                ..facts(DeviceContent::Nothing, holds_data)
            };
            let refused = plan(&empty).expect_err("nothing to read");
            assert_eq!(refused.code(), Code::FailedPrecondition);
            assert!(refused.message().contains("has no known file system"), "{}", refused.message());
            let content = DeviceContent::FileSystem(FileSystem::Ext4);
            assert_eq!(plan(&DeviceFacts { content, ..empty }).ok(), Some(Preparation::Check));
        }
    }

    /// Read errors do not mean an empty device: blkid exits with the same code, and without output.
    #[tokio::test]
    async fn a_device_that_cannot_be_read_is_not_empty() {
        let directory = tempfile::tempdir().expect("a directory");
        let tools = Tools::new(directory.path().join("locks"));
        let empty = directory.path().join("empty");
        let zero = directory.path().join("zero");
        File::create(&empty).expect("a file");
        File::create(&zero).expect("a file").set_len(65 << 20).expect("longer");
        assert_eq!(look(&tools, "v", &zero).await.expect("readable"), DeviceContent::Nothing);
        for unreadable in [directory.path().join("none"), directory.path().to_owned(), empty] {
            let status = look(&tools, "v", &unreadable).await.expect_err("no data");
            assert_eq!(status.code(), Code::Unavailable, "{unreadable:?}");
            assert!(status.message().ends_with("nothing was formatted"), "{}", status.message());
        }
        // No page is mapped at address zero: EIO.
        let memory = File::open("/proc/self/mem").expect("opens");
        read_places(&memory, 4096).expect_err("an error of the device");
        read_places(&File::open(&zero).expect("opens"), 66 << 20).expect_err("its end is missing");
    }

    #[test]
    fn everything_that_blkid_looks_at_is_read() {
        assert_eq!(places(4096), [0..4096, 4096..4096, 0..4096]);
        let mirror = 64 << 20..(64 << 20) + (64 << 10);
        assert_eq!(places(1 << 30), [0..8 << 20, mirror, (1 << 30) - (2 << 20)..1 << 30]);
    }

    #[test]
    fn nothing_is_not_believed_of_a_probe_that_complains() {
        let ended = |stderr: &str| EndedProgram::for_tests(NOTHING, stderr);
        assert_eq!(probed(&ended("")).expect("silent"), DeviceContent::Nothing);
        let status = probed(&ended("blkid: error: /dev/x: Input/output error")).expect_err("it complains");
        assert_eq!(status.code(), Code::Unavailable);
    }

    /// Found by review: a signature without a type counted as none.
    #[test]
    fn what_has_a_signature_is_not_empty() {
        let found = probed(&EndedProgram::for_tests(FOUND, "")).expect("a signature");
        assert_eq!(found, DeviceContent::Other("an unknown signature".to_owned()));
    }

    #[test]
    fn unknown_data_is_formatted_only_when_the_user_says_so() {
        let mut unknown = facts(DeviceContent::Nothing, Some(true));
        let refused = plan(&unknown).expect_err("data");
        assert!(refused.message().contains("holdfast.dev/format-unknown-content=7"));
        unknown.may_format = true;
        assert_eq!(plan(&unknown).ok(), Some(Preparation::Format { is_zero: false }));
        let known = DeviceFacts { content: DeviceContent::FileSystem(FileSystem::Xfs), ..unknown };
        assert!(plan(&known).is_err(), "a known file system is never replaced");
    }

    /// Found by review: after a power loss during the first mkfs.xfs, each mount failed without a reason.
    #[tokio::test]
    async fn an_xfs_that_mkfs_did_not_complete_is_not_a_file_system() {
        let mut unfinished = facts(DeviceContent::Unfinished(FileSystem::Xfs), Some(true));
        let refused = plan(&unfinished).expect_err("no permission");
        assert!(refused.message().contains("holdfast.dev/format-unknown-content=7"), "{}", refused.message());
        unfinished.may_format = true;
        assert_eq!(plan(&unfinished).ok(), Some(Preparation::Format { is_zero: false }));
        unfinished.is_read_only = true;
        plan(&unfinished).expect_err("it is only read");

        let directory = tempfile::tempdir().expect("a directory");
        let device = directory.path().join("device");
        for (flag, expected) in [(0, false), (1, true)] {
            let mut superblock = vec![0; 512];
            superblock[126] = flag;
            std::fs::write(&device, superblock).expect("written");
            assert_eq!(read(&device, is_unfinished_xfs).await.expect("readable"), expected);
        }
    }

    /// Regression, found in review: after any other failure, such as too little memory, the message said that
    /// the file system has errors.
    #[test]
    fn only_errors_that_e2fsck_leaves_need_a_repair_by_hand() {
        let device = Path::new("/dev/ublkb0");
        let said =
            |ended: &EndedProgram| checked(ended, device).map_err(|status| status.message().to_owned());
        for code in [0, 1, 2, 3] {
            assert_eq!(said(&EndedProgram::for_tests(code, "")), Ok(()), "{code}");
        }
        for (code, needs_repair) in [
            (4, true),
            (6, true),
            (8, false),
            (12, false),
            (16, false),
            (32, false),
            (69, false),
            (128, false),
        ] {
            let words = said(&EndedProgram::for_tests(code, "its output")).expect_err("it failed");
            assert_eq!(
                words.contains("Repair it with `e2fsck /dev/ublkb0`"),
                needs_repair,
                "{code}: {words}"
            );
            assert_eq!(words.contains("could not check /dev/ublkb0"), !needs_repair, "{code}: {words}");
            assert!(words.ends_with("its output"), "{words}");
        }
        let mut killed = EndedProgram::for_tests(0, "");
        killed.code = None;
        let words = said(&killed).expect_err("it was killed");
        assert!(words.contains("csi.node.resources") && !words.contains("Repair"), "{words}");
    }

    /// Regression, found in review: the advice was to change `fsType`, which a restored claim does not have.
    #[test]
    fn another_file_system_is_refused_with_its_parameter() {
        let refused = plan(&facts(DeviceContent::FileSystem(FileSystem::Xfs), Some(true))).expect_err("xfs");
        assert!(refused.message().contains("csi.storage.k8s.io/fstype is xfs"), "{}", refused.message());
    }

    /// Found by review: a half-made file system next to the signature of an earlier one was rejected before
    /// the record of the interrupted format was checked.
    #[test]
    fn a_format_that_was_interrupted_is_begun_again() {
        let several = probed(&EndedProgram::for_tests(AMBIGUOUS, "")).expect("signatures");
        let unfinished = DeviceContent::Unfinished(FileSystem::Xfs);
        let ext4 = DeviceContent::FileSystem(FileSystem::Ext4);
        let formats = Some(Preparation::Format { is_zero: false });
        for (content, in_previous) in [
            (DeviceContent::Nothing, formats),
            (unfinished, formats),
            (ext4, Some(Preparation::Check)),
            (several, None),
        ] {
            for (interrupted, expected) in
                [(InterruptedIn::ThisAttach, formats), (InterruptedIn::PreviousAttach, in_previous)]
            {
                let half =
                    DeviceFacts { interrupted: Some(interrupted), ..facts(content.clone(), Some(true)) };
                assert_eq!(plan(&half).ok(), expected, "{content:?} {interrupted:?}");
            }
        }
    }
}
