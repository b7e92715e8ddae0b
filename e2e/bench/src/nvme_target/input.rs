//! Received bytes, divided into commands.

use std::io::Read;
use std::net::TcpStream;

use anyhow::{Result, ensure};

use super::DATA_BYTES;
use super::command::{COMMAND_BYTES, Capsule};

/// Bytes of a PDU's header: type, flags, length of header and command, offset of the data, 4 bytes for the
/// total length.
const HEADER_BYTES: usize = 8;
/// Type of a PDU with a command.
const COMMAND: u8 = 4;
/// Room for one command with maximum data, and for bytes after it.
const BUFFER_BYTES: usize = 2 * DATA_BYTES;

/// Unused received bytes, from `begin` to `end` of the buffer.
pub(super) struct CapsuleInput {
    buffer: Vec<u8>,
    begin: usize,
    end: usize,
}

impl CapsuleInput {
    pub(super) fn new() -> Self {
        Self { buffer: vec![0; BUFFER_BYTES], begin: 0, end: 0 }
    }

    /// Reads more bytes. Returns false at the end of the connection.
    pub(super) fn read(&mut self, mut connection: &TcpStream) -> Result<bool> {
        if self.begin > 0 && self.buffer.len() - self.begin < DATA_BYTES + HEADER_BYTES + COMMAND_BYTES
            || self.begin == self.end
        {
            self.buffer.copy_within(self.begin..self.end, 0);
            self.end -= self.begin;
            self.begin = 0;
        }
        let read = connection.read(&mut self.buffer[self.end..])?;
        self.end += read;
        Ok(read > 0)
    }

    /// Returns the next command, if it is complete.
    pub(super) fn capsule(&mut self) -> Result<Option<Capsule<'_>>> {
        let unused = &self.buffer[self.begin..self.end];
        let Some((header, _)) = unused.split_first_chunk::<HEADER_BYTES>() else { return Ok(None) };
        let [kind, _flags, own_bytes, data_at, length @ ..] = *header;
        let length = usize::try_from(u32::from_le_bytes(length))?;
        let (own_bytes, data_at) = (usize::from(own_bytes), usize::from(data_at));
        ensure!(kind == COMMAND && own_bytes == HEADER_BYTES + COMMAND_BYTES, "a PDU of type {kind}");
        ensure!((own_bytes..=own_bytes + DATA_BYTES).contains(&length), "a PDU of {length} bytes");
        let Some(whole) = unused.get(..length) else { return Ok(None) };
        self.begin += length;
        let data = if length > own_bytes { whole.get(data_at..).unwrap_or_default() } else { &[] };
        Ok(Some(Capsule { command: &whole[HEADER_BYTES..own_bytes], data }))
    }
}
