//! Pending answers, with data of reads at addresses aligned for direct I/O.

use std::io::{IoSlice, Write};
use std::net::TcpStream;
use std::ops::Range;

use anyhow::{Result, ensure};

use super::DATA_BYTES;
use super::command::Outcome;

/// Alignment of memory for direct I/O.
const PAGE: usize = 4096;
/// Bytes of the header of a PDU with data, and of a response.
const HEADER_BYTES: usize = 24;
/// Types of PDUs.
const RESPONSE: u8 = 5;
const DATA: u8 = 7;
/// Flags: the last data of its command, which succeeded, so no response follows.
const LAST_AND_SUCCESS: u8 = 0b1100;
/// Room for two answers with maximum data.
const BUFFER_BYTES: usize = 2 * (DATA_BYTES + PAGE);

/// Pending answers of a connection. Each has its own piece of the buffer; one call sends all pieces.
pub(super) struct AnswerOutput<'a> {
    connection: &'a TcpStream,
    buffer: PageBuffer,
    used: usize,
    pieces: Vec<Range<usize>>,
}

impl<'a> AnswerOutput<'a> {
    pub(super) fn new(connection: &'a TcpStream) -> Self {
        Self { connection, buffer: PageBuffer::new(BUFFER_BYTES), used: 0, pieces: Vec::new() }
    }

    /// Answers a command with data from `fill`, or with a response if `fill` fails.
    pub(super) fn data(
        &mut self,
        command: [u8; 2],
        bytes: usize,
        fill: impl FnOnce(&mut [u8]) -> Outcome,
    ) -> Result<()> {
        ensure!(bytes <= DATA_BYTES, "data of {bytes} bytes");
        if (self.used + HEADER_BYTES).next_multiple_of(PAGE) + bytes > BUFFER_BYTES {
            self.flush()?;
        }
        let at = (self.used + HEADER_BYTES).next_multiple_of(PAGE);
        let buffer = self.buffer.bytes();
        let data = &mut buffer[at..at + bytes];
        let filled = fill(data);
        if filled.is_err() {
            return self.response(command, filled);
        }
        let header = &mut buffer[at - HEADER_BYTES..at];
        begin(header, [DATA, LAST_AND_SUCCESS, 24, 24], HEADER_BYTES + bytes)?;
        header[8..10].copy_from_slice(&command);
        header[10..16].fill(0);
        header[16..20].copy_from_slice(&u32::try_from(bytes)?.to_le_bytes());
        header[20..].fill(0);
        self.pieces.push(at - HEADER_BYTES..at + bytes);
        self.used = at + bytes;
        Ok(())
    }

    /// Answers a command with its outcome.
    pub(super) fn response(&mut self, command: [u8; 2], outcome: Outcome) -> Result<()> {
        if self.used + HEADER_BYTES > BUFFER_BYTES {
            self.flush()?;
        }
        let piece = self.used..self.used + HEADER_BYTES;
        let response = &mut self.buffer.bytes()[piece.clone()];
        begin(response, [RESPONSE, 0, 24, 0], HEADER_BYTES)?;
        let (result, status) = match outcome {
            Ok(result) => (result, 0),
            Err(status) => (0, status as u16),
        };
        response[8..16].copy_from_slice(&result.to_le_bytes());
        response[16..20].fill(0);
        response[20..22].copy_from_slice(&command);
        response[22..24].copy_from_slice(&(status << 1).to_le_bytes());
        self.pieces.push(piece.clone());
        self.used = piece.end;
        Ok(())
    }

    /// Sends the pending answers.
    pub(super) fn flush(&mut self) -> Result<()> {
        let buffer = self.buffer.bytes();
        let mut slices: Vec<IoSlice<'_>> =
            self.pieces.iter().map(|piece| IoSlice::new(&buffer[piece.clone()])).collect();
        let mut slices = slices.as_mut_slice();
        let mut connection = self.connection;
        while !slices.is_empty() {
            let sent = connection.write_vectored(slices)?;
            ensure!(sent > 0, "the connection takes nothing");
            IoSlice::advance_slices(&mut slices, sent);
        }
        self.pieces.clear();
        self.used = 0;
        Ok(())
    }
}

/// Writes the common part of a header: type, flags, its own length, offset of the data, total length.
fn begin(header: &mut [u8], first: [u8; 4], length: usize) -> Result<()> {
    header[..4].copy_from_slice(&first);
    header[4..8].copy_from_slice(&u32::try_from(length)?.to_le_bytes());
    Ok(())
}

/// Page-aligned memory.
pub(super) struct PageBuffer {
    memory: Vec<u8>,
    begin: usize,
    length: usize,
}

impl PageBuffer {
    pub(super) fn new(length: usize) -> Self {
        let memory = vec![0; length + PAGE];
        let begin = memory.as_ptr().align_offset(PAGE);
        Self { memory, begin, length }
    }

    pub(super) fn bytes(&mut self) -> &mut [u8] {
        &mut self.memory[self.begin..self.begin + self.length]
    }
}
