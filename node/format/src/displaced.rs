//! The writer that an attach replaced, as stored in a record and a checkpoint.
//!
//! `u64 epoch, u8 length + text node, u64 unix milliseconds of its attach`, or epoch zero alone for none.

use holdfast_types::Epoch;

use crate::wire::{self, DecodeError, Reader};

/// A writer that was replaced. The data that it had not uploaded is not in the volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Displaced {
    /// Its epoch, never zero.
    pub epoch: Epoch,
    /// Its node.
    pub node: String,
    /// Time of its attach, milliseconds since 1970.
    pub since_unix_ms: u64,
}

impl Displaced {
    pub(crate) fn put(displaced: Option<&Self>, out: &mut Vec<u8>) {
        let Some(Self { epoch, node, since_unix_ms }) = displaced else {
            return out.extend_from_slice(&0u64.to_le_bytes());
        };
        out.extend_from_slice(&epoch.0.to_le_bytes());
        wire::put_text(out, node);
        out.extend_from_slice(&since_unix_ms.to_le_bytes());
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Option<Self>, DecodeError> {
        let epoch = Epoch(fields.u64()?);
        if epoch == Epoch(0) {
            return Ok(None);
        }
        Ok(Some(Self { epoch, node: fields.text()?, since_unix_ms: fields.u64()? }))
    }
}
