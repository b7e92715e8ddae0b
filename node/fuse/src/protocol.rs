//! The FUSE messages that a file system of one file needs, as functions over bytes.
//!
//! Source: `include/uapi/linux/fuse.h` of Linux, protocol 7.40. Integers are in the host's order. A request:
//!
//! ```text
//! 0      4        8         16       24    28    32    36           40
//! +------+--------+---------+--------+-----+-----+-----+------------+------------------------
//! | len  | opcode | unique  | node   | uid | gid | pid | extensions | body of the operation
//! +------+--------+---------+--------+-----+-----+-----+------------+------------------------
//! ```
//!
//! A reply, or a notification, whose `unique` is 0:
//!
//! ```text
//! 0      4        8         16
//! +------+--------+---------+----------------------------
//! | len  | -errno | unique  | body
//! +------+--------+---------+----------------------------
//! ```
//!
//! *Invariants*: no input makes a function here panic; bytes that do not match their structure are refused.

/// Length of the head of a request, in bytes.
pub const REQUEST_HEAD_BYTES: usize = 40;
/// Length of the head of a reply, in bytes.
pub const REPLY_HEAD_BYTES: usize = 16;
/// Bytes of a WRITE request before its data.
pub const WRITE_HEAD_BYTES: usize = REQUEST_HEAD_BYTES + 40;
/// Maximum length of a READ or a WRITE; the kernel splits longer requests of the device into pieces of this
/// length. It also splits a piece that spans more than `MAX_PAGES_OF_REQUEST` pages. Memory of a program that
/// is aligned to 512 bytes spans one page more than its length: with twice this maximum, pieces would not be
/// multiples of a sector.
pub const MAX_IO_BYTES: u32 = 512 << 10;
/// The bit of `unique` in a request that the kernel resends.
pub const UNIQUE_RESEND: u64 = 1 << 63;

const MAJOR: u32 = 7;
const MINOR: u32 = 40;
/// Node of the root directory.
const ROOT: u64 = 1;
/// Node of the file.
const FILE: u64 = 2;
/// Seconds for which the kernel may cache attributes: [`grown`] notifies it of a change.
const VALID_SECONDS: u64 = 1 << 30;
const PAGE_BYTES: u32 = 4096;
/// The kernel's default maximum.
const MAX_PAGES_OF_REQUEST: u16 = 256;

const ASYNC_READ: u64 = 1 << 0;
const BIG_WRITES: u64 = 1 << 5;
const ASYNC_DIO: u64 = 1 << 15;
const MAX_PAGES: u64 = 1 << 22;
const INIT_EXT: u64 = 1 << 30;
const HAS_RESEND: u64 = 1 << 39;

const FOPEN_DIRECT_IO: u32 = 1 << 0;
const FOPEN_PARALLEL_DIRECT_WRITES: u32 = 1 << 6;

const NOTIFY_STORE: i32 = 4;
const NOTIFY_RETRIEVE: i32 = 5;
const NOTIFY_RESEND: i32 = 7;

mod opcode {
    pub(super) const LOOKUP: u32 = 1;
    pub(super) const FORGET: u32 = 2;
    pub(super) const GETATTR: u32 = 3;
    pub(super) const SETATTR: u32 = 4;
    pub(super) const OPEN: u32 = 14;
    pub(super) const READ: u32 = 15;
    pub(super) const WRITE: u32 = 16;
    pub(super) const STATFS: u32 = 17;
    pub(super) const RELEASE: u32 = 18;
    pub(super) const FSYNC: u32 = 20;
    pub(super) const FLUSH: u32 = 25;
    pub(super) const INIT: u32 = 26;
    pub(super) const INTERRUPT: u32 = 36;
    pub(super) const DESTROY: u32 = 38;
    pub(super) const BATCH_FORGET: u32 = 42;
    pub(super) const FALLOCATE: u32 = 43;
}

/// A request of the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FuseMessage<'a> {
    /// Number that its reply carries.
    pub unique: u64,
    /// Node of the request.
    pub node: u64,
    /// Operation and its arguments.
    pub request: FuseRequest<'a>,
}

/// Operations of a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum FuseRequest<'a> {
    /// Begins the protocol.
    Init {
        /// Version of the kernel's protocol.
        version: (u32, u32),
        /// Maximum read-ahead in bytes.
        max_readahead_bytes: u32,
        /// Features that the kernel offers.
        flags: u64,
    },
    /// Looks up a name in a directory.
    Lookup {
        /// The name, without its terminating zero.
        name: &'a [u8],
    },
    /// Reads the attributes of a node.
    GetAttributes,
    /// Changes the attributes of a node.
    SetAttributes,
    /// Opens the file.
    Open,
    /// Reads data.
    Read(FileSpan),
    /// Writes data, which follows [`WRITE_HEAD_BYTES`].
    Write(FileSpan),
    /// Makes completed writes durable.
    Sync,
    /// Changes the allocation of a range.
    Allocate {
        /// Offset of the range in the file, in bytes.
        offset_bytes: u64,
        /// Length of the range, in bytes.
        len_bytes: u64,
        /// `FALLOC_FL_*` of `linux/falloc.h`.
        mode: u32,
    },
    /// Reads the sizes of the file system.
    StatFs,
    /// Needs a reply without a body: RELEASE, FLUSH, DESTROY.
    Acknowledge,
    /// Needs no reply: FORGET, BATCH_FORGET, INTERRUPT.
    Silent,
    /// Any other operation.
    Unknown,
}

/// A part of the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FileSpan {
    /// Offset in bytes.
    pub offset_bytes: u64,
    /// Length in bytes, at most [`MAX_IO_BYTES`].
    pub len_bytes: u32,
}

/// Reasons why bytes are not a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Malformed {
    /// Their length is not that in their head, or less than a head. No reply is possible.
    Head,
    /// The body does not have the structure of its operation.
    Body {
        /// Number that its reply carries.
        unique: u64,
    },
}

/// Reads a request.
///
/// # Errors
/// [`Malformed`]. A request with [`Malformed::Body`] is answered with `EIO`.
pub fn parse(bytes: &[u8]) -> Result<FuseMessage<'_>, Malformed> {
    let head = MessageFields(bytes);
    let (Some(len), Some(opcode), Some(unique), Some(node)) =
        (head.u32(0), head.u32(4), head.u64(8), head.u64(16))
    else {
        return Err(Malformed::Head);
    };
    let extension_bytes = usize::from(head.u16(36).ok_or(Malformed::Head)?) * 8;
    if len as usize != bytes.len() || bytes.len() < REQUEST_HEAD_BYTES {
        return Err(Malformed::Head);
    }
    let malformed = Malformed::Body { unique };
    let end = bytes.len().checked_sub(extension_bytes).ok_or(malformed)?;
    let body = MessageFields(bytes.get(REQUEST_HEAD_BYTES..end).ok_or(malformed)?);
    let request = request(opcode, &body).ok_or(malformed)?;
    Ok(FuseMessage { unique, node, request })
}

fn request<'a>(opcode: u32, body: &MessageFields<'a>) -> Option<FuseRequest<'a>> {
    Some(match opcode {
        opcode::INIT => {
            let flags = u64::from(body.u32(12)?);
            // Older kernels send only 16 bytes.
            let more = if flags & INIT_EXT == 0 { 0 } else { body.u32(16)? };
            FuseRequest::Init {
                version: (body.u32(0)?, body.u32(4)?),
                max_readahead_bytes: body.u32(8)?,
                flags: flags | u64::from(more) << 32,
            }
        }
        opcode::LOOKUP => FuseRequest::Lookup { name: body.0.strip_suffix(&[0])? },
        opcode::GETATTR => FuseRequest::GetAttributes,
        opcode::SETATTR => FuseRequest::SetAttributes,
        opcode::OPEN => FuseRequest::Open,
        opcode::READ => FuseRequest::Read(body.span()?),
        opcode::WRITE => {
            let span = body.span()?;
            let data_bytes = body.0.len().checked_sub(WRITE_HEAD_BYTES - REQUEST_HEAD_BYTES)?;
            if data_bytes != span.len_bytes as usize {
                return None;
            }
            FuseRequest::Write(span)
        }
        opcode::FSYNC => FuseRequest::Sync,
        opcode::FALLOCATE => FuseRequest::Allocate {
            offset_bytes: body.u64(8)?,
            len_bytes: body.u64(16)?,
            mode: body.u32(24)?,
        },
        opcode::STATFS => FuseRequest::StatFs,
        opcode::RELEASE | opcode::FLUSH | opcode::DESTROY => FuseRequest::Acknowledge,
        opcode::FORGET | opcode::BATCH_FORGET | opcode::INTERRUPT => FuseRequest::Silent,
        _ => FuseRequest::Unknown,
    })
}

/// Encodes the head of a reply with a body of `body_bytes`, or with an error number (positive; 0 is success).
#[must_use]
pub fn reply_head(unique: u64, error: i32, body_bytes: u32) -> [u8; REPLY_HEAD_BYTES] {
    let mut head = [0; REPLY_HEAD_BYTES];
    head[0..4].copy_from_slice(&(REPLY_HEAD_BYTES as u32 + body_bytes).to_ne_bytes());
    head[4..8].copy_from_slice(&error.wrapping_neg().to_ne_bytes());
    head[8..16].copy_from_slice(&unique.to_ne_bytes());
    head
}

/// Encodes the notification that makes the kernel resend every request that was read and not answered (since
/// Linux 6.9).
#[must_use]
pub fn resend() -> [u8; REPLY_HEAD_BYTES] {
    reply_head(0, -NOTIFY_RESEND, 0)
}

/// Encodes the notification that the file has grown to this length: the kernel stores a byte at the new end
/// in the page cache of the file, which no request of the device reads.
#[must_use]
pub fn grown(len_bytes: u64) -> Vec<u8> {
    let mut body = MessageBytes::default();
    body.u64(FILE).u64(len_bytes.saturating_sub(1)).u32(1).u32(0).bytes(&[0]);
    let head = reply_head(0, -NOTIFY_STORE, body.0.len() as u32);
    [&head[..], &body.0].concat()
}

/// Encodes the notification that makes the kernel send a request with this number to the server, without any
/// bytes of the file.
#[must_use]
pub fn retrieve(unique: u64) -> Vec<u8> {
    let mut body = MessageBytes::default();
    body.u64(unique).u64(FILE).u64(0).u32(0).u32(0);
    let head = reply_head(0, -NOTIFY_RETRIEVE, body.0.len() as u32);
    [&head[..], &body.0].concat()
}

/// Encodes the body of the reply to a complete WRITE.
#[must_use]
pub fn written(len_bytes: u32) -> [u8; 8] {
    let mut body = [0; 8];
    body[0..4].copy_from_slice(&len_bytes.to_ne_bytes());
    body
}

/// The metadata of a connection's file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FuseFile {
    /// Name in the root directory.
    pub name: String,
    /// Size in bytes.
    pub len_bytes: u64,
    /// Maximum number of requests with data in progress.
    pub max_background: u16,
}

impl FuseFile {
    /// Encodes the whole reply to a request without data: metadata or a refusal. `None` if the request moves
    /// or changes data, or needs no reply.
    #[must_use]
    pub fn answer(&self, message: &FuseMessage<'_>) -> Option<Vec<u8>> {
        let &FuseMessage { unique, node, request } = message;
        let answer = match request {
            FuseRequest::Init { version, max_readahead_bytes, flags } => {
                self.init(version, max_readahead_bytes, flags)
            }
            FuseRequest::Lookup { name } if node == ROOT && name == self.name.as_bytes() => Ok(self.entry()),
            FuseRequest::Lookup { .. } => Err(libc::ENOENT),
            FuseRequest::GetAttributes => self.attributes(node).map(|attributes| {
                let mut body = MessageBytes::default();
                body.u64(VALID_SECONDS).u32(0).u32(0).bytes(&attributes);
                body.0
            }),
            FuseRequest::SetAttributes => Err(libc::EPERM),
            FuseRequest::Open if node == FILE => {
                let mut body = MessageBytes::default();
                body.u64(0).u32(FOPEN_DIRECT_IO | FOPEN_PARALLEL_DIRECT_WRITES).u32(0);
                Ok(body.0)
            }
            FuseRequest::Open => Err(libc::EISDIR),
            FuseRequest::StatFs => {
                let mut body = MessageBytes::default();
                let blocks = self.len_bytes / u64::from(PAGE_BYTES);
                body.u64(blocks).u64(0).u64(0).u64(2).u64(0).u32(PAGE_BYTES).u32(255).u32(PAGE_BYTES);
                body.0.resize(80, 0);
                Ok(body.0)
            }
            FuseRequest::Acknowledge => Ok(Vec::new()),
            FuseRequest::Unknown => Err(libc::ENOSYS),
            FuseRequest::Read(_)
            | FuseRequest::Write(_)
            | FuseRequest::Sync
            | FuseRequest::Allocate { .. }
            | FuseRequest::Silent => return None,
        };
        let (error, body) = answer.map_or_else(|error| (error, Vec::new()), |body| (0, body));
        let len_bytes = u32::try_from(body.len()).expect("a body has at most some hundred bytes");
        Some([&reply_head(unique, error, len_bytes)[..], &body].concat())
    }

    /// Refuses a kernel without RESEND, with which requests would be lost when the daemon exits.
    fn init(&self, (major, minor): (u32, u32), readahead_bytes: u32, offered: u64) -> Result<Vec<u8>, i32> {
        if major != MAJOR || minor < MINOR || offered & HAS_RESEND == 0 {
            return Err(libc::EPROTO);
        }
        let flags = offered & (ASYNC_READ | BIG_WRITES | ASYNC_DIO | MAX_PAGES | INIT_EXT | HAS_RESEND);
        let mut body = MessageBytes::default();
        body.u32(MAJOR).u32(MINOR).u32(readahead_bytes).u32(flags as u32);
        body.u16(self.max_background).u16(self.max_background).u32(MAX_IO_BYTES).u32(1);
        body.u16(MAX_PAGES_OF_REQUEST).u16(0).u32((flags >> 32) as u32);
        body.0.resize(64, 0);
        Ok(body.0)
    }

    fn entry(&self) -> Vec<u8> {
        let mut body = MessageBytes::default();
        body.u64(FILE).u64(1).u64(VALID_SECONDS).u64(VALID_SECONDS).u32(0).u32(0);
        body.bytes(&self.attributes(FILE).expect("the file has attributes"));
        body.0
    }

    fn attributes(&self, node: u64) -> Result<Vec<u8>, i32> {
        let (len_bytes, mode, links) = match node {
            ROOT => (0, libc::S_IFDIR | 0o700, 2),
            FILE => (self.len_bytes, libc::S_IFREG | 0o600, 1),
            _ => return Err(libc::ENOENT),
        };
        let mut body = MessageBytes::default();
        body.u64(node).u64(len_bytes).u64(len_bytes / 512).u64(0).u64(0).u64(0).u32(0).u32(0).u32(0);
        body.u32(mode).u32(links).u32(0).u32(0).u32(0).u32(PAGE_BYTES).u32(0);
        Ok(body.0)
    }
}

/// Fields of a received structure.
struct MessageFields<'a>(&'a [u8]);

impl MessageFields<'_> {
    fn array<const N: usize>(&self, at: usize) -> Option<[u8; N]> {
        self.0.get(at..)?.first_chunk().copied()
    }

    fn u16(&self, at: usize) -> Option<u16> {
        self.array(at).map(u16::from_ne_bytes)
    }

    fn u32(&self, at: usize) -> Option<u32> {
        self.array(at).map(u32::from_ne_bytes)
    }

    fn u64(&self, at: usize) -> Option<u64> {
        self.array(at).map(u64::from_ne_bytes)
    }

    /// Reads offset and length in `struct fuse_read_in` and `struct fuse_write_in`, of 40 bytes.
    fn span(&self) -> Option<FileSpan> {
        let span = FileSpan { offset_bytes: self.u64(8)?, len_bytes: self.u32(16)? };
        (self.0.len() >= WRITE_HEAD_BYTES - REQUEST_HEAD_BYTES && span.len_bytes <= MAX_IO_BYTES)
            .then_some(span)
    }
}

/// A structure to send.
#[derive(Default)]
struct MessageBytes(Vec<u8>);

impl MessageBytes {
    fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    fn u16(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn u32(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }

    fn u64(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_ne_bytes())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn file() -> FuseFile {
        FuseFile { name: "volume".to_owned(), len_bytes: 1 << 30, max_background: 112 }
    }

    fn message(opcode: u32, unique: u64, node: u64, body: &[u8]) -> Vec<u8> {
        let mut bytes = MessageBytes::default();
        let len = u32::try_from(REQUEST_HEAD_BYTES + body.len()).unwrap();
        bytes.u32(len).u32(opcode).u64(unique).u64(node).u32(0).u32(0).u32(0).u32(0).bytes(body);
        bytes.0
    }

    fn span(offset_bytes: u64, len_bytes: u32) -> Vec<u8> {
        let mut body = MessageBytes::default();
        body.u64(0).u64(offset_bytes).u32(len_bytes).u32(0).u64(0).u32(0).u32(0);
        body.0
    }

    fn error_of(answer: &[u8]) -> i32 {
        i32::from_ne_bytes(answer[4..8].try_into().unwrap())
    }

    #[test]
    fn each_reply_has_the_length_of_its_structure() {
        let mut init = MessageBytes::default();
        init.u32(7).u32(45).u32(65536).u32((ASYNC_DIO | INIT_EXT) as u32).u32((HAS_RESEND >> 32) as u32);
        init.0.resize(64, 0);
        for (opcode, node, body, len_bytes) in [
            (opcode::INIT, 0, init.0, 64),
            (opcode::LOOKUP, ROOT, b"volume\0".to_vec(), 128),
            (opcode::GETATTR, FILE, vec![0; 16], 104),
            (opcode::GETATTR, ROOT, vec![0; 16], 104),
            (opcode::OPEN, FILE, vec![0; 8], 16),
            (opcode::STATFS, ROOT, Vec::new(), 80),
            (opcode::RELEASE, FILE, vec![0; 24], 0),
        ] {
            let bytes = message(opcode, 9, node, &body);
            let answer = file().answer(&parse(&bytes).unwrap()).unwrap();
            assert_eq!((answer.len(), error_of(&answer)), (REPLY_HEAD_BYTES + len_bytes, 0), "{opcode}");
            assert_eq!(answer[0..4], u32::try_from(answer.len()).unwrap().to_ne_bytes());
            assert_eq!(answer[8..16], 9u64.to_ne_bytes());
        }
    }

    #[test]
    fn what_one_file_does_not_have_is_refused() {
        for (opcode, node, body, errno) in [
            (opcode::LOOKUP, ROOT, &b"other\0"[..], libc::ENOENT),
            (opcode::LOOKUP, FILE, b"volume\0", libc::ENOENT),
            (opcode::GETATTR, 7, &[0; 16], libc::ENOENT),
            (opcode::SETATTR, FILE, &[0; 88], libc::EPERM),
            (opcode::OPEN, ROOT, &[0; 8], libc::EISDIR),
            (9, ROOT, b"dir\0", libc::ENOSYS),
            (u32::MAX, ROOT, &[], libc::ENOSYS),
        ] {
            let bytes = message(opcode, 3, node, body);
            let answer = file().answer(&parse(&bytes).unwrap()).unwrap();
            assert_eq!((answer.len(), error_of(&answer)), (REPLY_HEAD_BYTES, -errno), "{opcode}");
        }
    }

    /// Without RESEND, requests of a killed daemon would never be answered.
    #[test]
    fn a_kernel_without_resend_is_refused() {
        for minor in [39, 45] {
            let mut body = MessageBytes::default();
            body.u32(7).u32(minor).u32(0).u32(ASYNC_DIO as u32);
            let bytes = message(opcode::INIT, 1, 0, &body.0);
            let answer = file().answer(&parse(&bytes).unwrap()).unwrap();
            assert_eq!(error_of(&answer), -libc::EPROTO);
        }
    }

    #[test]
    fn requests_with_data_keep_their_range() {
        let bytes = message(opcode::READ, UNIQUE_RESEND | 8, FILE, &span(8192, 4096));
        let parsed = parse(&bytes).unwrap();
        assert_eq!(parsed.request, FuseRequest::Read(FileSpan { offset_bytes: 8192, len_bytes: 4096 }));
        assert_eq!(parsed.unique, UNIQUE_RESEND | 8, "the reply carries the bit too");
        let write = [span(0, 4096), vec![7; 4096]].concat();
        let bytes = message(opcode::WRITE, 8, FILE, &write);
        let FuseRequest::Write(found) = parse(&bytes).unwrap().request else { panic!() };
        assert_eq!(found, FileSpan { offset_bytes: 0, len_bytes: 4096 });
        let mut body = MessageBytes::default();
        body.u64(0).u64(4096).u64(1 << 31).u32(3).u32(0);
        let bytes = message(opcode::FALLOCATE, 8, FILE, &body.0);
        let expected = FuseRequest::Allocate { offset_bytes: 4096, len_bytes: 1 << 31, mode: 3 };
        assert_eq!(parse(&bytes).unwrap().request, expected);
    }

    #[test]
    fn a_body_that_does_not_fit_is_refused_by_number() {
        let short = message(opcode::READ, 5, FILE, &span(0, 4096)[..39]);
        let too_long = message(opcode::READ, 5, FILE, &span(0, MAX_IO_BYTES + 1));
        let without_data = message(opcode::WRITE, 5, FILE, &span(0, 4096));
        let without_end = message(opcode::LOOKUP, 5, ROOT, b"volume");
        for bytes in [short, too_long, without_data, without_end] {
            assert_eq!(parse(&bytes), Err(Malformed::Body { unique: 5 }));
        }
        let mut long_extension = message(opcode::OPEN, 5, FILE, &[0; 8]);
        long_extension[36] = 200;
        assert_eq!(parse(&long_extension), Err(Malformed::Body { unique: 5 }));
    }

    proptest! {
        #[test]
        fn arbitrary_bytes_are_parsed_or_refused(mut bytes in proptest::collection::vec(any::<u8>(), 0..256), fits: bool, opcode in 0u32..60) {
            if fits && bytes.len() >= REQUEST_HEAD_BYTES {
                let len = u32::try_from(bytes.len()).unwrap();
                bytes[0..4].copy_from_slice(&len.to_ne_bytes());
                bytes[4..8].copy_from_slice(&opcode.to_ne_bytes());
                bytes[36..38].copy_from_slice(&[0; 2]);
            }
            if let Ok(parsed) = parse(&bytes)
                && let Some(answer) = file().answer(&parsed)
            {
                prop_assert_eq!(answer[0..4].to_vec(), u32::try_from(answer.len()).unwrap().to_ne_bytes().to_vec());
                prop_assert_eq!(answer[8..16].to_vec(), parsed.unique.to_ne_bytes().to_vec());
            }
        }

        #[test]
        fn a_range_survives_its_message(offset: u64, len in 0..=MAX_IO_BYTES, unique: u64) {
            let bytes = message(opcode::READ, unique, FILE, &span(offset, len));
            let expected = FuseRequest::Read(FileSpan { offset_bytes: offset, len_bytes: len });
            prop_assert_eq!(parse(&bytes), Ok(FuseMessage { unique, node: FILE, request: expected }));
        }
    }
}
