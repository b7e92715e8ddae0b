//! The server's side of the NBD protocol as used by QEMU for a disk: fixed newstyle, simple replies.
//!
//! Source: <https://github.com/NetworkBlockDevice/nbd/blob/master/doc/proto.md>.

use std::io::{Read, Write};
use std::net::TcpStream;

use anyhow::{Context, Result, bail, ensure};

const MAGIC: u64 = u64::from_be_bytes(*b"NBDMAGIC");
const OPTION_MAGIC: u64 = u64::from_be_bytes(*b"IHAVEOPT");
const OPTION_REPLY_MAGIC: u64 = 0x0003_e889_0455_65a9;
const REQUEST_MAGIC: u32 = 0x2560_9513;
const REPLY_MAGIC: u32 = 0x6744_6698;
/// Fixed newstyle, no zeroes after the export's size.
const HANDSHAKE_FLAGS: u16 = 1 | 2;
const OPTION_ABORT: u32 = 2;
const OPTION_GO: u32 = 7;
const REPLY_ACK: u32 = 1;
const REPLY_INFO: u32 = 3;
const REPLY_UNSUPPORTED: u32 = (1 << 31) | 1;
const INFO_EXPORT: u16 = 0;
/// The flags are valid; FLUSH is supported.
const EXPORT_FLAGS: u16 = 1 | 4;
/// Maximum length of an option and of a request, in bytes.
const MAX_OPTION_BYTES: u32 = 64 << 10;
const MAX_REQUEST_BYTES: u32 = 64 << 20;

/// The disk failed the request.
pub(super) const EIO: u32 = 5;

/// Requests to the disk.
#[derive(Debug)]
pub(super) enum NbdRequest {
    /// Read this many bytes.
    Read { cookie: u64, offset: u64, bytes: u32 },
    /// Write these bytes.
    Write { cookie: u64, offset: u64, data: Vec<u8> },
    /// Make earlier writes durable.
    Flush { cookie: u64 },
}

/// Negotiates a disk of `size_bytes` with the client; returns false if the client disconnected.
pub(super) fn negotiate(client: &mut TcpStream, size_bytes: u64) -> Result<bool> {
    let mut hello = Vec::new();
    hello.extend(MAGIC.to_be_bytes());
    hello.extend(OPTION_MAGIC.to_be_bytes());
    hello.extend(HANDSHAKE_FLAGS.to_be_bytes());
    client.write_all(&hello)?;
    let mut flags = [0; 4];
    client.read_exact(&mut flags).context("read the client's flags")?;
    loop {
        let mut head = [0; 16];
        client.read_exact(&mut head).context("read an option")?;
        let (magic, option, length) = (be64(&head[0..8]), be32(&head[8..12]), be32(&head[12..16]));
        ensure!(magic == OPTION_MAGIC && length <= MAX_OPTION_BYTES, "no option: {head:?}");
        let mut data = vec![0; length as usize];
        client.read_exact(&mut data).context("read an option's data")?;
        match option {
            OPTION_GO => {
                let mut info = Vec::new();
                info.extend(INFO_EXPORT.to_be_bytes());
                info.extend(size_bytes.to_be_bytes());
                info.extend(EXPORT_FLAGS.to_be_bytes());
                reply_to_option(client, option, REPLY_INFO, &info)?;
                reply_to_option(client, option, REPLY_ACK, &[])?;
                return Ok(true);
            }
            OPTION_ABORT => return Ok(false),
            _ => reply_to_option(client, option, REPLY_UNSUPPORTED, &[])?,
        }
    }
}

fn reply_to_option(client: &mut TcpStream, option: u32, kind: u32, data: &[u8]) -> Result<()> {
    let mut reply = Vec::new();
    reply.extend(OPTION_REPLY_MAGIC.to_be_bytes());
    reply.extend(option.to_be_bytes());
    reply.extend(kind.to_be_bytes());
    reply.extend(u32::try_from(data.len()).context("a short reply")?.to_be_bytes());
    reply.extend(data);
    client.write_all(&reply).context("answer an option")
}

/// Reads the next request; `None` after the client has closed the disk.
pub(super) fn next(client: &mut impl Read) -> Result<Option<NbdRequest>> {
    let mut head = [0; 28];
    client.read_exact(&mut head).context("read a request")?;
    ensure!(be32(&head[0..4]) == REQUEST_MAGIC, "no request: {head:?}");
    let (kind, cookie) = (be16(&head[6..8]), be64(&head[8..16]));
    let (offset, bytes) = (be64(&head[16..24]), be32(&head[24..28]));
    ensure!(bytes <= MAX_REQUEST_BYTES, "a request of {bytes} bytes");
    Ok(Some(match kind {
        0 => NbdRequest::Read { cookie, offset, bytes },
        1 => {
            let mut data = vec![0; bytes as usize];
            client.read_exact(&mut data).context("read what is to be written")?;
            NbdRequest::Write { cookie, offset, data }
        }
        2 => return Ok(None),
        3 => NbdRequest::Flush { cookie },
        _ => bail!("a request of kind {kind}, which the disk did not offer"),
    }))
}

/// Replies to a request: 0 or the number of an error, and the data read.
pub(super) fn reply(client: &mut impl Write, cookie: u64, error: u32, data: &[u8]) -> Result<()> {
    let mut reply = Vec::with_capacity(16 + data.len());
    reply.extend(REPLY_MAGIC.to_be_bytes());
    reply.extend(error.to_be_bytes());
    reply.extend(cookie.to_be_bytes());
    reply.extend(data);
    client.write_all(&reply).context("answer a request")
}

fn be16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u16::from(byte))
}

fn be32(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u32::from(byte))
}

fn be64(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0, |value, &byte| value << 8 | u64::from(byte))
}
