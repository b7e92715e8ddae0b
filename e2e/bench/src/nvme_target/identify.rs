//! Pages of 4096 bytes that describe the controller and the namespaces.
//!
//! Source of the offsets: NVM Express base specification 2.0, 5.17.2.

use super::command::{COMMAND_BYTES, Capsule, CommandStatus, Outcome};
use super::{BLOCK_BYTES, DATA_BYTES, NQN, Subsystem};

/// Version 1.3, the first with namespace descriptors.
pub(super) const VERSION: u32 = 0x1_0300;
/// Kinds of pages.
const NAMESPACE: u8 = 0;
const CONTROLLER: u8 = 1;
const ACTIVE_NAMESPACES: u8 = 2;
const DESCRIPTORS: u8 = 3;
const PAGE_BYTES: usize = 4096;
/// Maximum number of commands in a queue.
const MAX_COMMANDS: u16 = 128;
/// Head of a descriptor with a UUID.
const UUID: [u8; 4] = [3, 16, 0, 0];

/// Writes the page that a command requests.
pub(super) fn fill(
    page: &mut [u8],
    subsystem: &Subsystem,
    controller: u16,
    capsule: &Capsule<'_>,
) -> Outcome {
    if page.len() != PAGE_BYTES {
        return Err(CommandStatus::InvalidField);
    }
    page.fill(0);
    let mut page = IdentifyPage(page);
    match capsule.command[40] {
        NAMESPACE => {
            let id = capsule.namespace();
            let blocks = subsystem.namespace(id).ok_or(CommandStatus::InvalidNamespace)?.blocks;
            for size in [0, 8, 16] {
                page.put(size, &blocks.to_le_bytes());
            }
            // Several controllers may share it; deallocated blocks read as zeros.
            page.put(30, &[1]);
            page.put(33, &[1 | 1 << 3]);
            page.put(104, &uuid(id));
            page.put(130, &[BLOCK_BYTES.trailing_zeros().to_le_bytes()[0]]);
        }
        CONTROLLER => describe_controller(&mut page, subsystem, controller),
        ACTIVE_NAMESPACES => {
            let after = capsule.namespace();
            let last = u32::try_from(subsystem.namespaces.len()).unwrap_or(u32::MAX);
            for (index, id) in (1..=last).filter(|id| *id > after).enumerate() {
                page.put(index * 4, &id.to_le_bytes());
            }
        }
        DESCRIPTORS => {
            let id = capsule.namespace();
            subsystem.namespace(id).ok_or(CommandStatus::InvalidNamespace)?;
            page.put(0, &UUID);
            page.put(4, &uuid(id));
        }
        _ => return Err(CommandStatus::InvalidField),
    }
    Ok(0)
}

fn describe_controller(page: &mut IdentifyPage<'_>, subsystem: &Subsystem, controller: u16) {
    page.put(4, b"1                   ");
    page.put(24, format!("{:40}", "Holdfast experiment").as_bytes());
    page.put(64, b"1       ");
    // The subsystem may have several controllers.
    page.put(76, &[1 << 1]);
    page.put(77, &[(DATA_BYTES / PAGE_BYTES).trailing_zeros().to_le_bytes()[0]]);
    page.put(78, &controller.to_le_bytes());
    page.put(80, &VERSION.to_le_bytes());
    // An I/O controller; one event request; the keep-alive granularity in units of 100 ms.
    page.put(111, &[1]);
    page.put(320, &10_u16.to_le_bytes());
    // Lengths of queue entries, as powers of two.
    page.put(512, &[0x66, 0x44]);
    page.put(514, &MAX_COMMANDS.to_le_bytes());
    let namespaces = u32::try_from(subsystem.namespaces.len()).unwrap_or(u32::MAX);
    page.put(516, &namespaces.to_le_bytes());
    // Deallocation and write-zeroes; a volatile cache.
    page.put(520, &[1 << 2 | 1 << 3, 0]);
    page.put(525, &[1]);
    // Data descriptors, also of data in the capsule, need no alignment.
    page.put(536, &(1_u32 | 1 << 20).to_le_bytes());
    page.put(768, NQN.as_bytes());
    // Lengths of a command with its data, and of a response, in units of 16 bytes: a command carries all data
    // of a write.
    let capsule = u32::try_from((COMMAND_BYTES + DATA_BYTES) / 16).unwrap_or(u32::MAX);
    page.put(1792, &capsule.to_le_bytes());
    page.put(1796, &1_u32.to_le_bytes());
    page.put(1803, &[1]);
}

/// Returns the identity of a namespace.
fn uuid(id: u32) -> [u8; 16] {
    let mut uuid = *b"Holdfast\x80\0test\0\0";
    uuid[15] = id.to_le_bytes()[0];
    uuid
}

struct IdentifyPage<'a>(&'a mut [u8]);

impl IdentifyPage<'_> {
    fn put(&mut self, at: usize, bytes: &[u8]) {
        self.0[at..at + bytes.len()].copy_from_slice(bytes);
    }
}
