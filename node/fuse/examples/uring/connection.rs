//! The FUSE connection and its file system.
#![allow(unsafe_code)] // mount(2)

use std::ffi::CString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;

use holdfast_fuse::FuseConnection;
use holdfast_fuse::protocol::{FuseFile, FuseRequest, MAX_IO_BYTES, parse};

/// Name of the file.
pub(crate) const NAME: &str = "disk";
/// Features from bit 32 on, as in the answer to INIT: `FUSE_OVER_IO_URING`, `FUSE_HAS_IO_URING_BUFPOOL`.
const FEATURES: u32 = 1 << 9 | 1 << 11;
/// Offsets in the answer of these features and of the version.
const FEATURES_AT: usize = 16 + 32;
const MINOR_AT: usize = 16 + 4;
/// The first version with zero copy.
const MINOR: u32 = 46;
const SWITCH: &str = "/sys/module/fuse/parameters/enable_uring";

/// Opens the file with the data.
pub(crate) fn open_disk(path: &str) -> io::Result<(File, FuseFile)> {
    let mut disk = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let len_bytes = disk.seek(SeekFrom::End(0))?;
    Ok((disk, FuseFile { name: NAME.to_owned(), len_bytes, max_background: 112 }))
}

/// Mounts a new connection, with or without requests over io_uring.
pub(crate) fn connect(file: &FuseFile, directory: &str, over_io_uring: bool) -> io::Result<File> {
    let mut connection = FuseConnection::open_device()?;
    mount(&connection, directory)?;
    let mut message = vec![0; 1 << 20];
    let len = connection.read(&mut message)?;
    let malformed = || io::Error::other("no INIT came");
    let message =
        parse(&message[..len]).ok().filter(|message| matches!(message.request, FuseRequest::Init { .. }));
    let mut answer = file.answer(&message.ok_or_else(malformed)?).ok_or_else(malformed)?;
    if over_io_uring {
        fs::write(SWITCH, "Y")?;
        let features = answer[FEATURES_AT..].first_chunk_mut().ok_or_else(malformed)?;
        *features = (u32::from_ne_bytes(*features) | FEATURES).to_ne_bytes();
        *answer[MINOR_AT..].first_chunk_mut().ok_or_else(malformed)? = MINOR.to_ne_bytes();
    }
    connection.write_all(&answer)?;
    Ok(connection)
}

fn mount(connection: &File, directory: &str) -> io::Result<()> {
    let options =
        format!("fd={},rootmode=40000,user_id=0,group_id=0,max_read={MAX_IO_BYTES}", connection.as_raw_fd());
    let (options, directory) = (CString::new(options)?, CString::new(directory)?);
    let (source, kind) = (c"uring".as_ptr(), c"fuse".as_ptr());
    // SAFETY: C strings, which outlive the call.
    let done = unsafe { libc::mount(source, directory.as_ptr(), kind, 0, options.as_ptr().cast()) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
