//! Controllers: their properties and the commands of their admin queues.

use anyhow::Result;

use super::command::{Capsule, CommandStatus, Outcome};
use super::output::AnswerOutput;
use super::{Subsystem, identify};

/// Offsets of properties. Source: NVM Express base specification 2.0, 3.1.3.
const CAPABILITIES: u32 = 0x0;
const VERSION: u32 = 0x8;
const CONFIGURATION: u32 = 0x14;
const STATUS: u32 = 0x1c;
/// Number of entries of a queue, minus one.
const LAST_ENTRY: u64 = 127;
/// Contiguous queues, 7.5 s to become ready, the NVM command set.
const CAPABILITY_BITS: u64 = LAST_ENTRY | 1 << 16 | 15 << 24 | 1 << 37;
/// Opcodes.
const GET_LOG_PAGE: u8 = 0x02;
const IDENTIFY: u8 = 0x06;
const ABORT: u8 = 0x08;
const SET_FEATURES: u8 = 0x09;
const ASYNC_EVENT_REQUEST: u8 = 0x0c;
const KEEP_ALIVE: u8 = 0x18;
/// Features.
const NUMBER_OF_QUEUES: u8 = 0x07;
const KEEP_ALIVE_TIMER: u8 = 0x0f;
const ASYNC_EVENTS: u8 = 0x0b;

/// A controller, one per admin queue.
pub(super) struct NvmeController {
    id: u16,
    configuration: u32,
}

impl NvmeController {
    pub(super) fn new(id: u16) -> Self {
        Self { id, configuration: 0 }
    }

    /// Sets a property.
    pub(super) fn set(&mut self, property: u32, value: u64) -> Outcome {
        if property != CONFIGURATION {
            return Err(CommandStatus::InvalidField);
        }
        self.configuration = u32::try_from(value).map_err(|_longer| CommandStatus::InvalidField)?;
        Ok(0)
    }

    /// Returns a property.
    pub(super) fn get(&self, property: u32) -> Outcome {
        match property {
            CAPABILITIES => Ok(CAPABILITY_BITS),
            VERSION => Ok(u64::from(identify::VERSION)),
            CONFIGURATION => Ok(u64::from(self.configuration)),
            STATUS => {
                let ready = u64::from(self.configuration & 1);
                let shut_down = if self.configuration >> 14 & 3 == 0 { 0 } else { 2 << 2 };
                Ok(ready | shut_down)
            }
            _ => Err(CommandStatus::InvalidField),
        }
    }

    /// Executes and answers a command of the admin queue.
    pub(super) fn answer(
        &self,
        subsystem: &Subsystem,
        capsule: &Capsule<'_>,
        output: &mut AnswerOutput<'_>,
    ) -> Result<()> {
        let outcome = match capsule.opcode() {
            IDENTIFY => {
                return output.data(capsule.id(), capsule.data_bytes(), |page| {
                    identify::fill(page, subsystem, self.id, capsule)
                });
            }
            // Log pages are empty.
            GET_LOG_PAGE => {
                return output.data(capsule.id(), capsule.data_bytes(), |page| {
                    page.fill(0);
                    Ok(0)
                });
            }
            // Never answered: no events occur.
            ASYNC_EVENT_REQUEST => return Ok(()),
            SET_FEATURES => match capsule.command[40] {
                // Grants the requested number.
                NUMBER_OF_QUEUES => Ok(u64::from(capsule.u32(44))),
                KEEP_ALIVE_TIMER | ASYNC_EVENTS => Ok(0),
                _ => Err(CommandStatus::InvalidField),
            },
            KEEP_ALIVE => Ok(0),
            // Bit 0 means that the command was not aborted.
            ABORT => Ok(1),
            _ => Err(CommandStatus::InvalidOpcode),
        };
        output.response(capsule.id(), outcome)
    }
}
