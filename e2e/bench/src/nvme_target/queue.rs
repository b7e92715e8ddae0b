//! Commands of a connection: Fabrics commands, then those of its kind of queue.

use std::os::unix::fs::FileExt;

use anyhow::Result;
use rustix::fs::{FallocateFlags, fallocate};

use super::admin::NvmeController;
use super::command::{Capsule, CommandStatus, Outcome};
use super::output::{AnswerOutput, PageBuffer};
use super::{BLOCK_BYTES, DATA_BYTES, Namespace, Subsystem};

const FABRICS: u8 = 0x7f;
/// Types of Fabrics commands.
const PROPERTY_SET: u8 = 0;
const CONNECT: u8 = 1;
const PROPERTY_GET: u8 = 4;
/// Opcodes of an I/O queue. Source: NVM command set specification 1.0, 3.
const FLUSH: u8 = 0;
const WRITE: u8 = 1;
const READ: u8 = 2;
const WRITE_ZEROES: u8 = 8;
const DEALLOCATE: u8 = 9;
/// Bit of word 12: the write must be durable when it is answered.
const FORCED: u32 = 1 << 30;
/// Bytes per range of a deallocation: attributes, 4 bytes for the length, 8 for the start.
const RANGE_BYTES: usize = 16;

/// A connection with its state.
pub(super) struct NvmeQueue<'a> {
    subsystem: &'a Subsystem,
    kind: QueueKind,
    /// Aligned memory for direct writes.
    aligned: PageBuffer,
}

enum QueueKind {
    /// No command was received yet.
    New,
    Admin(NvmeController),
    Io,
}

impl<'a> NvmeQueue<'a> {
    pub(super) fn new(subsystem: &'a Subsystem) -> Self {
        Self { subsystem, kind: QueueKind::New, aligned: PageBuffer::new(DATA_BYTES) }
    }

    /// Executes and answers a command.
    pub(super) fn answer(&mut self, capsule: &Capsule<'_>, output: &mut AnswerOutput<'_>) -> Result<()> {
        if capsule.opcode() == FABRICS {
            let outcome = self.fabrics(capsule);
            return output.response(capsule.id(), outcome);
        }
        match &mut self.kind {
            QueueKind::New => output.response(capsule.id(), Err(CommandStatus::InvalidField)),
            QueueKind::Admin(controller) => controller.answer(self.subsystem, capsule, output),
            QueueKind::Io => self.io(capsule, output),
        }
    }

    fn fabrics(&mut self, capsule: &Capsule<'_>) -> Outcome {
        match (capsule.fabrics_type(), &mut self.kind) {
            (CONNECT, QueueKind::New) => {
                let queue = capsule.u16(42);
                if queue == 0 {
                    let id = self.subsystem.new_controller();
                    self.kind = QueueKind::Admin(NvmeController::new(id));
                    return Ok(u64::from(id));
                }
                self.kind = QueueKind::Io;
                let id = capsule.data.get(16..18).ok_or(CommandStatus::InvalidField)?;
                Ok(u64::from(id[0]) | u64::from(id[1]) << 8)
            }
            (PROPERTY_SET, QueueKind::Admin(controller)) => controller.set(capsule.u32(44), capsule.u64(48)),
            (PROPERTY_GET, QueueKind::Admin(controller)) => controller.get(capsule.u32(44)),
            (_, _) => Err(CommandStatus::InvalidField),
        }
    }

    fn io(&mut self, capsule: &Capsule<'_>, output: &mut AnswerOutput<'_>) -> Result<()> {
        let Some(namespace) = self.subsystem.namespace(capsule.namespace()) else {
            return output.response(capsule.id(), Err(CommandStatus::InvalidNamespace));
        };
        let outcome = match capsule.opcode() {
            READ => {
                let bytes = capsule.data_bytes();
                return output.data(capsule.id(), bytes, |data| namespace.read(capsule.u64(40), data));
            }
            WRITE => {
                let data = &mut self.aligned.bytes()[..capsule.data.len()];
                data.copy_from_slice(capsule.data);
                namespace.write(capsule.u64(40), data, capsule.u32(48) & FORCED != 0)
            }
            FLUSH => namespace.flush(),
            WRITE_ZEROES => namespace.zero(capsule.u64(40), u64::from(capsule.u16(48)) + 1),
            DEALLOCATE => deallocate(namespace, capsule),
            _ => Err(CommandStatus::InvalidOpcode),
        };
        output.response(capsule.id(), outcome)
    }
}

/// Discards each range. Linux always sends memory for 256 ranges.
fn deallocate(namespace: &Namespace, capsule: &Capsule<'_>) -> Outcome {
    let ranges = usize::from(capsule.command[40]) + 1;
    for range in capsule.data.chunks_exact(RANGE_BYTES).take(ranges) {
        let number = |at: usize, bytes: usize| {
            range[at..at + bytes].iter().rev().fold(0, |number, byte| number << 8 | u64::from(*byte))
        };
        namespace.zero(number(8, 8), number(4, 4))?;
    }
    Ok(0)
}

impl Namespace {
    /// Returns the offset of a block, if `bytes` from it on are inside the namespace.
    fn place(&self, block: u64, bytes: usize) -> Result<u64, CommandStatus> {
        let bytes = u64::try_from(bytes).map_err(|_longer| CommandStatus::OutOfRange)?;
        let room = self.blocks.checked_sub(block).and_then(|blocks| blocks.checked_mul(BLOCK_BYTES));
        if room.is_some_and(|room| bytes <= room) {
            Ok(block * BLOCK_BYTES)
        } else {
            Err(CommandStatus::OutOfRange)
        }
    }

    fn read(&self, block: u64, data: &mut [u8]) -> Outcome {
        let place = self.place(block, data.len())?;
        self.file.read_exact_at(data, place).map(|()| 0).map_err(|_failed| CommandStatus::UnrecoveredRead)
    }

    fn write(&self, block: u64, data: &[u8], forced: bool) -> Outcome {
        let place = self.place(block, data.len())?;
        self.file.write_all_at(data, place).map_err(|_failed| CommandStatus::WriteFault)?;
        if forced { self.flush() } else { Ok(0) }
    }

    fn flush(&self) -> Outcome {
        self.file.sync_data().map(|()| 0).map_err(|_failed| CommandStatus::WriteFault)
    }

    /// Zeroes blocks and deallocates their space.
    fn zero(&self, block: u64, blocks: u64) -> Outcome {
        let bytes = blocks.checked_mul(BLOCK_BYTES).ok_or(CommandStatus::OutOfRange)?;
        let place =
            self.place(block, usize::try_from(bytes).map_err(|_longer| CommandStatus::OutOfRange)?)?;
        let how = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        fallocate(&self.file, how, place, bytes).map(|()| 0).map_err(|_failed| CommandStatus::WriteFault)
    }
}
