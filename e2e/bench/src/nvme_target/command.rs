//! The host's commands: 64 bytes, little-endian, followed by the data of a write.
//!
//! ```text
//!  0      1      2         4        8             24       32      36      39      40
//!  opcode flags  command   fabrics  namespace ... address  length  -       kind    words 10 to 15
//!                id        type                   of the data descriptor
//! ```
//!
//! Source: NVM Express base specification 2.0, 3.3.3; Fabrics commands 6.

/// Length of a command, in bytes.
pub(super) const COMMAND_BYTES: usize = 64;

/// A command and its data.
pub(super) struct Capsule<'a> {
    pub(super) command: &'a [u8],
    pub(super) data: &'a [u8],
}

impl Capsule<'_> {
    pub(super) fn opcode(&self) -> u8 {
        self.command[0]
    }

    pub(super) fn id(&self) -> [u8; 2] {
        [self.command[2], self.command[3]]
    }

    /// Returns the type of a Fabrics command.
    pub(super) fn fabrics_type(&self) -> u8 {
        self.command[4]
    }

    pub(super) fn namespace(&self) -> u32 {
        self.u32(4)
    }

    /// Returns the length of the data in either direction, in bytes.
    pub(super) fn data_bytes(&self) -> usize {
        usize::try_from(self.u32(32)).unwrap_or(usize::MAX)
    }

    pub(super) fn u16(&self, at: usize) -> u16 {
        u16::from_le_bytes([self.command[at], self.command[at + 1]])
    }

    pub(super) fn u32(&self, at: usize) -> u32 {
        u32::from(self.u16(at)) | u32::from(self.u16(at + 2)) << 16
    }

    pub(super) fn u64(&self, at: usize) -> u64 {
        u64::from(self.u32(at)) | u64::from(self.u32(at + 4)) << 32
    }
}

/// Outcome of a command: a result of 8 bytes, or a status.
pub(super) type Outcome = Result<u64, CommandStatus>;

/// Statuses of failed commands: type and code, without the phase bit. The host must not retry them, except a
/// failed read or write of the file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum CommandStatus {
    InvalidOpcode = 0x4001,
    InvalidField = 0x4002,
    InvalidNamespace = 0x400b,
    OutOfRange = 0x4080,
    WriteFault = 0x280,
    UnrecoveredRead = 0x281,
}
