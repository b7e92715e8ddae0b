//! A controller: its properties and the commands of its admin queue.

use anyhow::Result;

use super::command::{Capsule, CommandStatus, Outcome};
use super::output::AnswerOutput;
use super::{Subsystem, identify};

/// Offsets of properties. Source: NVM Express base specification 2.0, 3.1.3.
const CAPABILITIES: u32 = 0x0;
const VERSION: u32 = 0x8;
const CONFIGURATION: u32 = 0x14;
const STATUS: u32 = 0x1c;
/// Entries of a queue, less one.
const LAST_ENTRY: u64 = 127;
/// Queues are contiguous, 7.5 s to become ready, the NVM command set.
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

/// A controller, by its admin queue.
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

    /// A property.
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

    /// Does a command of the admin queue and answers it.
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
            // No page has an entry.
            GET_LOG_PAGE => {
                return output.data(capsule.id(), capsule.data_bytes(), |page| {
                    page.fill(0);
                    Ok(0)
                });
            }
            // Answered when there is an event, and there is none.
            ASYNC_EVENT_REQUEST => return Ok(()),
            SET_FEATURES => match capsule.command[40] {
                // As many as are asked for.
                NUMBER_OF_QUEUES => Ok(u64::from(capsule.u32(44))),
                KEEP_ALIVE_TIMER | ASYNC_EVENTS => Ok(0),
                _ => Err(CommandStatus::InvalidField),
            },
            KEEP_ALIVE => Ok(0),
            // Bit 0: the command was not aborted.
            ABORT => Ok(1),
            _ => Err(CommandStatus::InvalidOpcode),
        };
        output.response(capsule.id(), outcome)
    }
}
