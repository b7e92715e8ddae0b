//! The loop device of a connection's file: binding, finding, clearing.
//!
//! A loop device is identified by the name of its file, which the kernel reports without a request to the
//! file's server (`/sys/block/loopN/loop/backing_file`). The name contains the tag of the volume's device.
//!
//! *Runs on*: control threads. A separate process ([`LoopCommand`]) runs everything that may wait for the
//! server of the file (its open, the binding, the last close of the device, which writes back): a thread of
//! the server that waits for its own server cannot be killed, nor can its process, and the next server would
//! wait for that.
//! *Invariants*: a device is cleared only while its file has the expected tag. The attributes of a queue are
//! written only while the device is unbound and this program has it open exclusively, so that no other
//! program can bind it.
#![allow(unsafe_code)] // ioctl(2)

use std::fs::{self, File, OpenOptions};
use std::io::{self, Read};
use std::os::fd::{AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use crate::connection::FuseConnection;
use crate::keeper::note_end;
use crate::protocol::MAX_IO_BYTES;

/// The device that creates loop devices.
pub const LOOP_CONTROL_PATH: &str = "/dev/loop-control";
/// Bytes per logical block.
const BLOCK_BYTES: u32 = 4096;
const BLOCK_DEVICES: &str = "/sys/block";
const PREFIX: &str = "holdfast-";
/// Maximum number of attempts when other programs take the free number first.
const TRIES: u32 = 32;
/// Maximum wait for a device to be bound or cleared.
const WITHIN: Duration = Duration::from_secs(20);
/// Polling interval for a device that is being cleared.
const LOOK_EVERY: Duration = Duration::from_millis(5);

/// Replaces a name that is too long for a sysfs attribute.
const TOO_LONG: &str = "(too long)";

/// Attributes of a device's queue that are set before binding.
const WRITEBACK: &str = "wbt_lat_usec";
const REQUEST_KIB: &str = "max_sectors_kb";

/// From `linux/loop.h`, and `BLKROSET` of `linux/fs.h`.
mod kernel {
    pub(super) const SET_READ_ONLY: libc::c_ulong = 0x125D;
    pub(super) const CLR_FD: libc::c_ulong = 0x4C01;
    pub(super) const SET_STATUS64: libc::c_ulong = 0x4C04;
    pub(super) const GET_STATUS64: libc::c_ulong = 0x4C05;
    pub(super) const SET_CAPACITY: libc::c_ulong = 0x4C07;
    pub(super) const CONFIGURE: libc::c_ulong = 0x4C0A;
    pub(super) const CTL_GET_FREE: libc::c_ulong = 0x4C82;
    pub(super) const FLAG_AUTO_CLEAR: u32 = 4;
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

/// Returns the name of the file below the device with a tag.
#[must_use]
pub fn file_name(tag: u64) -> String {
    format!("{PREFIX}{tag:016x}")
}

/// Returns the tag in the kernel's path of a file, if the file is one of ours.
fn tag_of(path: &str) -> Option<u64> {
    let tag = path.trim_end().trim_start_matches('/').strip_prefix(PREFIX)?;
    (tag.len() == 16).then_some(())?;
    u64::from_str_radix(tag, 16).ok()
}

/// A loop device on one of our files.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoopDevice {
    /// The number in `/dev/loopN`.
    pub number: u32,
    /// The tag in the name of its file.
    pub tag: u64,
}

impl LoopDevice {
    /// Lists all of our devices on this host.
    ///
    /// # Errors
    /// The kernel's.
    pub fn list() -> io::Result<Vec<Self>> {
        Self::list_in(Path::new(BLOCK_DEVICES))
    }

    fn list_in(devices: &Path) -> io::Result<Vec<Self>> {
        let names: Vec<_> = fs::read_dir(devices)?.collect::<io::Result<_>>()?;
        let numbers =
            names.iter().filter_map(|name| name.file_name().to_str()?.strip_prefix("loop")?.parse().ok());
        numbers.filter_map(|number| Self::find_in(devices, number).transpose()).collect()
    }

    /// Finds the device of this number, if its file is one of ours.
    ///
    /// # Errors
    /// The kernel's. The device may then be one of ours.
    pub fn find(number: u32) -> io::Result<Option<Self>> {
        Self::find_in(Path::new(BLOCK_DEVICES), number)
    }

    fn find_in(devices: &Path, number: u32) -> io::Result<Option<Self>> {
        let name = file_of(devices, number)?;
        Ok(name.and_then(|name| tag_of(&name)).map(|tag| Self { number, tag }))
    }

    /// Returns the path of the device.
    #[must_use]
    pub fn path(self) -> PathBuf {
        PathBuf::from(format!("/dev/loop{}", self.number))
    }

    /// Reads the size of the device in bytes.
    ///
    /// # Errors
    /// The kernel's.
    pub fn len_bytes(self) -> io::Result<u64> {
        let text = fs::read_to_string(format!("{BLOCK_DEVICES}/loop{}/size", self.number))?;
        let units: u64 = text.trim().parse().map_err(io::Error::other)?;
        Ok(units * 512)
    }

    /// Binds a free loop device to the file of a connection whose file system is `mount`, and answers the
    /// resulting requests for metadata. `program` becomes [`LoopCommand::run`].
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
                end(child);
                return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has not bound the device"));
            }
            Err(error) => {
                end(child);
                return Err(error);
            }
        }
        let text = output(&mut child)?;
        let number = text.trim().parse().map_err(io::Error::other)?;
        Ok(Self { number, tag })
    }

    /// Clears the device. With `unless_used`, fails with `EBUSY` if a file system or another device has
    /// claimed it. The kernel clears it once the last program has closed it:
    /// [`await_cleared`](Self::await_cleared). `program` becomes [`LoopCommand::run`].
    ///
    /// # Errors
    /// The kernel's, or that of the program. [`io::ErrorKind::TimedOut`]: the device may be cleared later.
    pub fn clear(self, mut program: Command, unless_used: bool) -> io::Result<()> {
        let how = if unless_used { CLEAR_UNUSED } else { CLEAR };
        program.args([how, &self.number.to_string(), &file_name(self.tag)]);
        wait(start(without_input(program))?, WITHIN)
    }

    /// Returns true if the kernel will clear the device once its last program has closed it, because a
    /// program requested this (`losetup --detach`).
    ///
    /// # Errors
    /// The kernel's.
    pub fn awaits_clear(self) -> io::Result<bool> {
        self.awaits_clear_in(Path::new(BLOCK_DEVICES))
    }

    fn awaits_clear_in(self, devices: &Path) -> io::Result<bool> {
        match fs::read_to_string(devices.join(format!("loop{}/loop/autoclear", self.number))) {
            Ok(shown) => Ok(shown.trim() == "1"),
            Err(error) if is_unbound(&error) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Starts [`keep_bound`](Self::keep_bound) without waiting for its end: the kernel waits for the requests
    /// of the device first, which the caller may not serve yet.
    ///
    /// # Errors
    /// Those of starting the program, which becomes [`LoopCommand::run`].
    pub fn start_keep_bound(self, mut program: Command) -> io::Result<()> {
        program.args([KEEP, &self.number.to_string(), &file_name(self.tag)]);
        note_end(without_input(program).stdout(Stdio::null()).spawn()?);
        Ok(())
    }

    /// Cancels the pending clearing of a device that waits for its last program to close it. `program`
    /// becomes [`LoopCommand::run`].
    ///
    /// # Errors
    /// The kernel's, or that of the program.
    pub fn keep_bound(self, mut program: Command) -> io::Result<()> {
        program.args([KEEP, &self.number.to_string(), &file_name(self.tag)]);
        wait(start(without_input(program))?, WITHIN)
    }

    /// Sets the device's size to the size of its file in the kernel ([`FuseConnection::grow`]). `program`
    /// becomes [`LoopCommand::run`], because the kernel may send a request to the server of the file.
    ///
    /// # Errors
    /// The kernel's, or that of the program.
    pub fn grow(self, mut program: Command) -> io::Result<()> {
        program.args([GROW, &self.number.to_string(), &file_name(self.tag)]);
        wait(start(without_input(program))?, WITHIN)
    }

    /// Waits at most `within` until the kernel has released the file of this tag. Returns true if it has.
    ///
    /// # Errors
    /// The kernel's.
    pub fn await_cleared(self, within: Duration) -> io::Result<bool> {
        let begun = Instant::now();
        loop {
            let within = match self.binding_in(Path::new(BLOCK_DEVICES))? {
                LoopBinding::Bound => within,
                // The kernel finishes this without further calls.
                LoopBinding::Releases => within + WITHIN,
                LoopBinding::Gone => break,
            };
            if begun.elapsed() >= within {
                return Ok(false);
            }
            std::thread::sleep(LOOK_EVERY);
        }
        Ok(true)
    }

    /// Resets those attributes of an unbound device that are still ours to the kernel's defaults, and makes
    /// it writable, unless a program is binding it. `program` becomes [`LoopCommand::run`].
    ///
    /// # Errors
    /// The kernel's, or that of the program.
    pub fn restore_queue(number: u32, mut program: Command) -> io::Result<()> {
        program.args([RESTORE, &number.to_string()]);
        wait(start(without_input(program))?, WITHIN)
    }

    fn binding_in(self, devices: &Path) -> io::Result<LoopBinding> {
        Ok(match file_of(devices, self.number)? {
            Some(name) if name.trim().is_empty() => LoopBinding::Releases,
            Some(name) if tag_of(&name) == Some(self.tag) => LoopBinding::Bound,
            Some(_) | None => LoopBinding::Gone,
        })
    }
}

/// State of a device's file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LoopBinding {
    Bound,
    /// The kernel has removed the name and is releasing the file. The attributes of the queue can be reset
    /// only after the release.
    Releases,
    /// The device has no file, or another one.
    Gone,
}

/// Reads the name of a device's file: empty while the kernel releases it, `None` without a file.
fn file_of(devices: &Path, number: u32) -> io::Result<Option<String>> {
    name_of(fs::read(devices.join(format!("loop{number}/loop/backing_file"))))
}

/// Returns the name of a device's file as the kernel shows it. A name of ours is short and ASCII.
fn name_of(shown: io::Result<Vec<u8>>) -> io::Result<Option<String>> {
    match shown {
        Ok(name) => Ok(Some(String::from_utf8_lossy(&name).into_owned())),
        Err(error) if is_unbound(&error) => Ok(None),
        Err(error) if error.raw_os_error() == Some(libc::ENAMETOOLONG) => Ok(Some(TOO_LONG.to_owned())),
        Err(error) => Err(error),
    }
}

/// Returns true for the error of an attribute of a loop device that has no file.
fn is_unbound(error: &io::Error) -> bool {
    error.kind() == io::ErrorKind::NotFound || error.raw_os_error() == Some(libc::ENODEV)
}

fn without_input(mut program: Command) -> Command {
    program.stdin(Stdio::null());
    program
}

/// Waits for a process, and kills it if it has not exited `within` this time.
fn wait(mut child: Child, within: Duration) -> io::Result<()> {
    let begun = Instant::now();
    while child.try_wait()?.is_none() {
        if begun.elapsed() > within {
            end(child);
            return Err(io::Error::new(io::ErrorKind::TimedOut, "the kernel has not answered"));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    output(&mut child).map(drop)
}

/// Kills a process and reaps it in the background: it may wait in the kernel for this process.
fn end(mut child: Child) {
    drop(child.kill());
    note_end(child);
}

fn start(mut program: Command) -> io::Result<Child> {
    program.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn()
}

/// Reads the output of an exited process, or the cause of its failure.
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
const KEEP: &str = "keep";
const GROW: &str = "grow";
const RESTORE: &str = "restore";

/// Commands about a loop device that a separate process runs, given as its arguments.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LoopCommand {
    /// Binds the file of this name in the file system of standard input, and prints the number.
    Bind(String),
    /// Clears the device of this number, if its file has this name.
    Clear {
        /// Its number.
        number: u32,
        /// The name of its file.
        name: String,
        /// True to fail if the device is claimed.
        unless_used: bool,
    },
    /// Makes the device of this number as large as its file, if the file has this name.
    Grow {
        /// Its number.
        number: u32,
        /// The name of its file.
        name: String,
    },
    /// Cancels the pending clearing of the device of this number, if its file has this name.
    Keep {
        /// Its number.
        number: u32,
        /// The name of its file.
        name: String,
    },
    /// Resets the attributes and the write protection of the device of this number, unless a program is
    /// binding it.
    Restore(u32),
}

impl LoopCommand {
    /// Parses the arguments of a command.
    #[must_use]
    pub fn of(arguments: &[String]) -> Option<Self> {
        match arguments {
            [bind, name] if bind == BIND => Some(Self::Bind(name.clone())),
            [clear, number, name] if clear == CLEAR || clear == CLEAR_UNUSED => Some(Self::Clear {
                number: number.parse().ok()?,
                name: name.clone(),
                unless_used: clear == CLEAR_UNUSED,
            }),
            [keep, number, name] if keep == KEEP => {
                Some(Self::Keep { number: number.parse().ok()?, name: name.clone() })
            }
            [grow, number, name] if grow == GROW => {
                Some(Self::Grow { number: number.parse().ok()?, name: name.clone() })
            }
            [restore, number] if restore == RESTORE => Some(Self::Restore(number.parse().ok()?)),
            _ => None,
        }
    }

    /// Runs the command. Returns the output to print.
    ///
    /// # Errors
    /// The kernel's. For `EBUSY`, the process exits with that number as its code.
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
            Self::Keep { number, name } => keep(number, &name).map(|()| String::new()),
            Self::Grow { number, name } => grow(number, &name).map(|()| String::new()),
            Self::Restore(number) => restore(number).map(|()| String::new()),
        }
    }
}

fn bind(mount: BorrowedFd<'_>, name: &str) -> io::Result<u32> {
    let file = open_at(mount, name)?;
    let control = OpenOptions::new().read(true).write(true).open(LOOP_CONTROL_PATH)?;
    for _ in 0..TRIES {
        let number = request(&control, kernel::CTL_GET_FREE, 0)?;
        let number = u32::try_from(number).map_err(io::Error::other)?;
        let Some(device) = open_exclusively(number, true)? else {
            std::thread::sleep(LOOK_EVERY);
            continue;
        };
        if is_bound(number) {
            // Another program took the number first: its device must stay untouched.
            continue;
        }
        make_writable(&device)?;
        let tuned = TunedQueue::of(Path::new(BLOCK_DEVICES), number)?;
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
            // Another program took the number first.
            Err(error) if error.raw_os_error() == Some(libc::EBUSY) => continue,
            Err(error) => return Err(error),
        }
        let mut status = NO_INFO;
        let shown = request(&device, kernel::GET_STATUS64, (&raw mut status).addr());
        if shown.is_err() || status.flags & kernel::FLAG_DIRECT_IO == 0 {
            request(&device, kernel::CLR_FD, 0)?;
            tuned.keep();
            // The kernel clears the device when it is closed.
            drop(device);
            restore(number)?;
            shown?;
            return Err(io::Error::other("the loop device does not use direct I/O"));
        }
        tuned.keep();
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

/// The attributes of an unbound device's queue, set for binding, and reset when this is dropped.
struct TunedQueue<'a> {
    devices: &'a Path,
    number: u32,
}

impl<'a> TunedQueue<'a> {
    /// Sets the attributes: after binding, the kernel would wait for requests of programs that scan each new
    /// device.
    fn of(devices: &'a Path, number: u32) -> io::Result<Self> {
        let tuned = Self { devices, number };
        let queue = queue_of(devices, number);
        set(&queue.join("scheduler"), "none")?;
        set(&queue.join(WRITEBACK), "0")?;
        set(&queue.join(REQUEST_KIB), &(MAX_IO_BYTES >> 10).to_string())?;
        Ok(tuned)
    }

    /// Leaves the attributes as they are.
    fn keep(self) {
        std::mem::forget(self);
    }
}

impl Drop for TunedQueue<'_> {
    fn drop(&mut self) {
        untune(self.devices, self.number);
    }
}

/// Sets an attribute, if it exists.
fn set(path: &Path, value: &str) -> io::Result<()> {
    let Ok(now) = fs::read_to_string(path) else { return Ok(()) };
    let now = now.trim();
    if now == value || now.contains(&format!("[{value}]")) {
        return Ok(());
    }
    fs::write(path, value)
}

/// Resets the attributes of an unbound device to the kernel's defaults, which the next program that binds it
/// expects. Ignores refusals of the kernel.
fn untune(devices: &Path, number: u32) {
    if is_bound_in(devices, number) {
        return;
    }
    let queue = queue_of(devices, number);
    for (attribute, ours, default) in
        [(WRITEBACK, "0", "-1"), (REQUEST_KIB, &(MAX_IO_BYTES >> 10).to_string()[..], "0")]
    {
        let path = queue.join(attribute);
        if fs::read_to_string(&path).is_ok_and(|now| now.trim() == ours) {
            drop(fs::write(path, default));
        }
    }
}

fn queue_of(devices: &Path, number: u32) -> PathBuf {
    devices.join(format!("loop{number}/queue"))
}

fn is_bound(number: u32) -> bool {
    is_bound_in(Path::new(BLOCK_DEVICES), number)
}

fn is_bound_in(devices: &Path, number: u32) -> bool {
    devices.join(format!("loop{number}/loop")).exists()
}

fn clear(number: u32, name: &str, unless_used: bool) -> io::Result<()> {
    let exclusive = if unless_used { libc::O_EXCL } else { 0 };
    let Some(device) = open_bound(number, name, exclusive)? else { return Ok(()) };
    unless_unbound(request(&device, kernel::CLR_FD, 0))
}

fn restore(number: u32) -> io::Result<()> {
    // The device is opened read-only, because udev scans each device that was open for writing.
    if let Some(held) = open_exclusively(number, false)?
        && !is_bound(number)
    {
        untune(Path::new(BLOCK_DEVICES), number);
        make_writable(&held)?;
    }
    Ok(())
}

/// Removes the write protection of an unbound device (`blockdev --setro`, as for a reader's raw device): the
/// kernel would keep it for the next file that is bound to the number.
fn make_writable(device: &File) -> io::Result<()> {
    let is_read_only: libc::c_int = 0;
    request(device, kernel::SET_READ_ONLY, (&raw const is_read_only).addr()).map(drop)
}

/// Opens the device of this number so that no program can bind it; `None` if another one has it open this way
/// or is binding it, or if it does not exist.
fn open_exclusively(number: u32, for_writing: bool) -> io::Result<Option<File>> {
    let mut options = OpenOptions::new();
    options.read(true).write(for_writing).custom_flags(libc::O_EXCL);
    match options.open(format!("/dev/loop{number}")) {
        Ok(device) => Ok(Some(device)),
        Err(error) if matches!(error.raw_os_error(), Some(libc::EBUSY | libc::ENOENT | libc::ENXIO)) => {
            Ok(None)
        }
        Err(error) => Err(error),
    }
}

fn keep(number: u32, name: &str) -> io::Result<()> {
    let Some(device) = open_bound(number, name, 0)? else { return Ok(()) };
    let mut status = NO_INFO;
    unless_unbound(request(&device, kernel::GET_STATUS64, (&raw mut status).addr()))?;
    status.flags &= !kernel::FLAG_AUTO_CLEAR;
    unless_unbound(request(&device, kernel::SET_STATUS64, (&raw const status).addr()))
}

fn grow(number: u32, name: &str) -> io::Result<()> {
    let device = open_bound(number, name, 0)?.ok_or_else(|| io::Error::from_raw_os_error(libc::ENXIO))?;
    request(&device, kernel::SET_CAPACITY, 0).map(drop)
}

/// Opens the device of this number, if its file has this name.
fn open_bound(number: u32, name: &str, flags: i32) -> io::Result<Option<File>> {
    let path = format!("/dev/loop{number}");
    let device = match OpenOptions::new().read(true).write(true).custom_flags(flags).open(path) {
        Ok(device) => device,
        Err(error) if matches!(error.raw_os_error(), Some(libc::ENOENT | libc::ENXIO)) => return Ok(None),
        Err(error) => return Err(error),
    };
    let bound = LoopDevice::find(number)?.map(|bound| file_name(bound.tag));
    Ok((bound.as_deref() == Some(name)).then_some(device))
}

/// Ignores that a device no longer has a file.
fn unless_unbound(done: io::Result<i32>) -> io::Result<()> {
    match done {
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
mod tests;
