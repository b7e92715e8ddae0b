//! The loop device of a connection's file: bound, found again, cleared.
//!
//! A loop device is known by the name of its file, which the kernel shows without asking the file's server
//! (`/sys/block/loopN/loop/backing_file`). The name has the tag of the volume's device.
//!
//! *Runs on*: control threads. What may wait for the server of the file (its open, the binding, the last
//! close of the device, which writes back) is done by a process of its own ([`LoopCommand`]): a thread of the
//! server that waits for its own server cannot be ended, nor can its process, and the next server would wait
//! for that.
//! *Invariants*: a device is cleared only while its file has the expected tag.
#![allow(unsafe_code)] // ioctl(2)

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::connection::FuseConnection;

/// The device by which loop devices are made.
pub const LOOP_CONTROL_PATH: &str = "/dev/loop-control";
/// Bytes of a logical block.
const BLOCK_BYTES: u32 = 4096;
const BLOCK_DEVICES: &str = "/sys/block";
const PREFIX: &str = "holdfast-";
/// The most times that another program takes the free number first.
const TRIES: u32 = 32;
/// The longest wait for a device to be bound or cleared.
const WITHIN: Duration = Duration::from_secs(20);
/// Time between two looks at a device that is being cleared.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// From `linux/loop.h`.
mod kernel {
    pub(super) const CLR_FD: libc::c_ulong = 0x4C01;
    pub(super) const GET_STATUS64: libc::c_ulong = 0x4C05;
    pub(super) const CONFIGURE: libc::c_ulong = 0x4C0A;
    pub(super) const CTL_GET_FREE: libc::c_ulong = 0x4C82;
    pub(super) const FLAG_DIRECT_IO: u32 = 16;

    /// `struct loop_info64`.
    #[derive(Clone, Copy)]
    #[repr(C)]
    pub(super) struct LoopInfo {
        pub(super) device: u64,
        pub(super) inode: u64,
        pub(super) rdevice: u64,
        pub(super) offset: u64,
        pub(super) size_limit: u64,
        pub(super) number: u32,
        pub(super) encrypt_type: u32,
        pub(super) encrypt_key_size: u32,
        pub(super) flags: u32,
        pub(super) file_name: [u8; 64],
        pub(super) crypt_name: [u8; 64],
        pub(super) encrypt_key: [u8; 32],
        pub(super) init: [u64; 2],
    }

    /// `struct loop_config`.
    #[repr(C)]
    pub(super) struct LoopConfig {
        pub(super) fd: u32,
        pub(super) block_size: u32,
        pub(super) info: LoopInfo,
        pub(super) reserved: [u64; 8],
    }
}

/// Name of the file below the device with a tag.
#[must_use]
pub fn file_name(tag: u64) -> String {
    format!("{PREFIX}{tag:016x}")
}

/// A loop device on a file of ours.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// The number in `/dev/loopN`.
    pub number: u32,
    /// Tag in the name of its file.
    pub tag: u64,
}

impl LoopDevice {
    /// All of this host.
    ///
    /// # Errors
    /// The kernel's.
    pub fn list() -> io::Result<Vec<Self>> {
        Self::list_in(Path::new(BLOCK_DEVICES))
    }

    fn list_in(devices: &Path) -> io::Result<Vec<Self>> {
        let names = fs::read_dir(devices)?.flatten().map(|entry| entry.file_name());
        let numbers = names.filter_map(|name| name.to_str()?.strip_prefix("loop")?.parse().ok());
        Ok(numbers.filter_map(|number| Self::find_in(devices, number)).collect())
    }

    /// The one of this number, if its file is one of ours.
    #[must_use]
    pub fn find(number: u32) -> Option<Self> {
        Self::find_in(Path::new(BLOCK_DEVICES), number)
    }

    fn find_in(devices: &Path, number: u32) -> Option<Self> {
        let file = devices.join(format!("loop{number}/loop/backing_file"));
        let name = fs::read_to_string(file).ok()?;
        let tag = name.trim_end().trim_start_matches('/').strip_prefix(PREFIX)?;
        (tag.len() == 16).then_some(())?;
        Some(Self { number, tag: u64::from_str_radix(tag, 16).ok()? })
    }

    /// Its path.
    #[must_use]
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// Its size in bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn len_bytes(self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("{BLOCK_DEVICES}/loop{}/size", self.number))?;
        let units: u64 = text.trim().parse().map_err(io::Error::other)?;
        Ok(units * 512)
    }

    /// Binds a free loop device to the file of a connection whose file system is `mount`, and answers the
    /// requests for metadata that this makes. `program` becomes [`LoopCommand::run`].
    ///
    /// # Errors
    /// The kernel's, or that of the program.
    pub fn bind(
        mut program: Command,
        connection: &FuseConnection,
        mount: OwnedFd,
        tag: u64,
    ) -> io::Result<Self> {
        program.args([BIND, connection.name()]).stdin(Stdio::from(mount));
        let mut child = start(program)?;
        let mut ended = None;
        let bound = connection.introduce(WITHIN, || {
            ended = child.try_wait().unwrap_or(None);
            ended.is_some()
        });
        match bound {
            Ok(true) => {}
            Ok(false) => {
                drop(child.kill());
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has not bound the device"));
            }
            Err(error) => {
                drop(child.kill());
                return Err(error);
            }
        }
        let text = output(&mut child)?;
        let number = text.trim().parse().map_err(io::Error::other)?;
        Ok(Self { number, tag })
    }

    /// Clears the device. With `unless_used` it fails with `EBUSY` where a file system or another device has
    /// claimed it; else it is cleared once the last program has closed it. `program` becomes
    /// [`LoopCommand::run`].
    ///
    /// # Errors
    /// The kernel's, or that of the program.
    pub fn clear(self, mut program: Command, unless_used: bool) -> io::Result<()> {
        let how = if unless_used { CLEAR_UNUSED } else { CLEAR };
        program.args([how, &self.number.to_string(), &file_name(self.tag)]).stdin(Stdio::null());
        let mut child = start(program)?;
        let begun = Instant::now();
        loop {
            if child.try_wait()?.is_some() {
                return output(&mut child).map(drop);
            }
            if begun.elapsed() > WITHIN {
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has not cleared the device"));
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// True once the device has no file of this tag any more; looks for at most `within`.
    #[must_use]
    pub fn await_cleared(self, within: Duration) -> bool {
        let begun = Instant::now();
        while Self::find(self.number) == Some(self) {
            if begun.elapsed() > within {
                return false;
            }
            std::thread::sleep(LOOK_EVERY);
        }
        true
    }
}

fn start(mut program: Command) -> io::Result<Child> {
    program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Takes the output of a process that has ended, or why it failed.
fn output(child: &mut Child) -> io::Result<String> {
    let status = child.wait()?;
    let mut text = String::new();
    if status.success() {
        if let Some(stdout) = &mut child.stdout {
            stdout.read_to_string(&mut text)?;
        }
        return Ok(text);
    }
    if status.code() == Some(libc::EBUSY) {
        return Err(io::Error::from_raw_os_error(libc::EBUSY));
    }
    if let Some(stderr) = &mut child.stderr {
        stderr.read_to_string(&mut text)?;
    }
    Err(io::Error::other(text.trim().to_owned()))
}

const BIND: &str = "bind";
const CLEAR: &str = "clear";
const CLEAR_UNUSED: &str = "clear-unused";

/// Commands about a loop device that a process of its own runs, by its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopCommand {
    /// Binds the file of this name in the file system that standard input is, and prints the number.
    Bind(String),
    /// Clears the device of this number, if its file has this name.
    Clear {
        /// Its number.
        number: u32,
        /// The name of its file.
        name: String,
        /// Fails where the device is claimed.
        unless_used: bool,
    },
}

impl LoopCommand {
    /// The command with these arguments.
    #[must_use]
    pub fn of(arguments: &[String]) -> Option<Self> {
        match arguments {
            [bind, name] if bind == BIND => Some(Self::Bind(name.clone())),
            [clear, number, name] if clear == CLEAR || clear == CLEAR_UNUSED => Some(Self::Clear {
                number: number.parse().ok()?,
                name: name.clone(),
                unless_used: clear == CLEAR_UNUSED,
            }),
            _ => None,
        }
    }

    /// Runs the command. Returns what is to be printed.
    ///
    /// # Errors
    /// The kernel's. A process ends with `EBUSY` as its exit code where that is the error.
    pub fn run(self) -> io::Result<String> {
        match self {
            Self::Bind(name) => {
                // SAFETY: the file descriptor of standard input is open, and nothing else uses it.
                let mount = unsafe { BorrowedFd::borrow_raw(0) };
                bind(mount, &name).map(|number| number.to_string())
            }
            Self::Clear { number, name, unless_used } => {
                clear(number, &name, unless_used).map(|()| String::new())
            }
        }
    }
}

fn bind(mount: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let file = open_at(mount, name)?;
    let control = OpenOptions::new().read(true).write(true).open(LOOP_CONTROL_PATH)?;
    for _ in 0..TRIES {
        let number = request(&control, kernel::CTL_GET_FREE, 0)?;
        let number = u32::try_from(number).map_err(io::Error::other)?;
        tune(number)?;
        let device = OpenOptions::new().read(true).write(true).open(format!("/dev/loop{number}"))?;
        let mut config = kernel::LoopConfig {
            fd: file.as_raw_fd().cast_unsigned(),
            block_size: BLOCK_BYTES,
            info: NO_INFO,
            reserved: [0; 8],
        };
        config.info.flags = kernel::FLAG_DIRECT_IO;
        for (to, from) in config.info.file_name.iter_mut().zip(name.bytes().take(63)) {
            *to = from;
        }
        match request(&device, kernel::CONFIGURE, (&raw const config).addr()) {
            Ok(_) => {}
            // Another program was first.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(error) => return Err(error),
        }
        let mut status = NO_INFO;
        let shown = request(&device, kernel::GET_STATUS64, (&raw mut status).addr());
        if shown.is_err() || status.flags & kernel::FLAG_DIRECT_IO == 0 {
            request(&device, kernel::CLR_FD, 0)?;
            shown?;
            return Err(io::Error::other("the loop device does not use direct I/O"));
        }
        return Ok(number);
    }
    Err(io::ErrorKind::ResourceBusy.into())
}

const NO_INFO: kernel::LoopInfo = kernel::LoopInfo {
    device: 0,
    inode: 0,
    rdevice: 0,
    offset: 0,
    size_limit: 0,
    number: 0,
    encrypt_type: 0,
    encrypt_key_size: 0,
    flags: 0,
    file_name: [0; 64],
    crypt_name: [0; 64],
    encrypt_key: [0; 32],
    init: [0; 2],
};

/// Sets the attributes of the queue of a device that is not bound yet: afterwards the kernel would wait for
/// requests of programs that look at each new device.
fn tune(number: u32) -> io::Result<()> {
    let queue = PathBuf::from(format!("{BLOCK_DEVICES}/loop{number}/queue"));
    for (attribute, value) in [("scheduler", "none"), ("wbt_lat_usec", "0"), ("max_sectors_kb", "1024")] {
        let path = queue.join(attribute);
        let Ok(now) = fs::read_to_string(&path) else { continue };
        let now = now.trim();
        if now != value && !now.contains(&format!("[{value}]")) {
            fs::write(&path, value)?;
        }
    }
    Ok(())
}

fn clear(number: u32, name: &str, unless_used: bool) -> io::Result<()> {
    let exclusive = if unless_used { libc::O_EXCL } else { 0 };
    let opened =
        OpenOptions::new().read(true).write(true).custom_flags(exclusive).open(format!("/dev/loop{number}"));
    let device = match opened {
        Ok(device) => device,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => return Ok(()),
        Err(error) => return Err(error),
    };
    let bound = LoopDevice::find(number).map(|bound| file_name(bound.tag));
    if bound.as_deref() != Some(name) {
        return Ok(());
    }
    match request(&device, kernel::CLR_FD, 0) {
        Err(error) if error.raw_os_error() != Some(libc::ENXIO) => Err(error),
        Ok(_) | Err(_) => Ok(()),
    }
}

fn open_at(directory: BorrowedFd<'_>, name: &str) -> io::Result<File> {
    let name = std::ffi::CString::new(name)?;
    // SAFETY: the name is a C string.
    let raw = unsafe { libc::openat(directory.as_raw_fd(), name.as_ptr(), libc::O_RDWR | libc::O_CLOEXEC) };
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: a file descriptor that was just made and has no other owner.
    Ok(unsafe { File::from_raw_fd(raw) })
}

fn request(device: &File, command: libc::c_ulong, argument: usize) -> io::Result<i32> {
    // SAFETY: each command takes an integer or the address of its structure, which the caller has.
    let done = unsafe { libc::ioctl(device.as_raw_fd(), command, argument) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(done) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn structures_are_as_long_as_the_kernels() {
        assert_eq!((size_of::<kernel::LoopInfo>(), size_of::<kernel::LoopConfig>()), (232, 304));
    }

    #[test]
    fn only_a_file_with_a_tag_is_ours() {
        let devices = tempfile::tempdir().unwrap();
        let tag = 0xb1_23_45_67_89_ab_cd_ef;
        for (number, file) in [
            (0, format!("/{}\n", file_name(tag))),
            (1, "/images/holdfast-disk\n".to_owned()),
            (2, "/holdfast-12\n".to_owned()),
            (3, format!("/images/{}\n", file_name(tag))),
        ] {
            let dir = devices.path().join(format!("loop{number}/loop"));
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("backing_file"), file).unwrap();
        }
        fs::create_dir_all(devices.path().join("loop9")).unwrap();
        assert_eq!(LoopDevice::list_in(devices.path()).unwrap(), [LoopDevice { number: 0, tag }]);
    }

    #[test]
    fn a_command_is_its_arguments() {
        let of =
            |words: &[&str]| LoopCommand::of(&words.iter().map(|&word| word.to_owned()).collect::<Vec<_>>());
        assert_eq!(of(&[BIND, "x"]), Some(LoopCommand::Bind("x".to_owned())));
        let clear = LoopCommand::Clear { number: 3, name: "x".to_owned(), unless_used: true };
        assert_eq!(of(&[CLEAR_UNUSED, "3", "x"]), Some(clear));
        assert_eq!((of(&[CLEAR, "x", "x"]), of(&[])), (None, None));
    }
}
