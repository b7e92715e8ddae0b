//! A volume that is on this node under the id of a Volume, and is not that Volume.
//!
//! Owns: the comparison. A name proves nothing: a person may have attached a memory
//! volume of this name, and a Volume may have been deleted and made again. Nor does an object: no log fences
//! a memory volume, so a node that was cut off and returns still has it. Its epoch says which attach it is
//! of.

use holdfast_crds::{FieldError, MemoryCompression, VolumeSpec};
use holdfast_memory::PageCodec;
use holdfast_types::VolumeId;

use super::facts::NodeFacts;
use crate::node::{MemoryAttach, MemoryIdentity, NodeVolumeStatus};

/// A difference between a volume that is here and the Volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Misfit {
    /// A person attached it: it stays.
    OfAPerson,
    /// It is of another backend, of another object, or of an attach that a later one replaced: it is
    /// detached.
    Other,
    /// It is of this Volume, whose spec has changed to what no growth makes of it: its content is not dropped
    /// unasked.
    Differs {
        /// Field of the Volume.
        field: &'static str,
        /// The value that it has here.
        attached: String,
        /// The value of the spec.
        asked: String,
    },
}

/// The difference; none for a volume that is the one of the Volume, or of which that is not known yet.
pub(super) fn misfit(facts: &NodeFacts, here: &NodeVolumeStatus) -> Option<Misfit> {
    let Some(identity) = &here.memory_identity else {
        return (facts.spec.is_memory() && here.attached.is_some()).then_some(Misfit::Other);
    };
    if identity.owner.is_none() {
        return Some(Misfit::OfAPerson);
    }
    let epoch = here.attached.as_ref()?.epoch;
    if !facts.spec.is_memory() || identity.owner != facts.uid || facts.is_outdated(epoch) {
        return Some(Misfit::Other);
    }
    // A spec that cannot be read is refused by the attach.
    let asked = memory_attach(here.volume.clone(), &facts.spec, None, epoch).ok()?;
    let (field, attached, asked) = identity.difference(&MemoryIdentity::of(&asked).ok()?)?;
    let field = match field {
        "size_bytes" => "spec.size",
        "limit_bytes" => "spec.memory.limit",
        "spill_bytes" => "spec.memory.spill",
        _ => "spec.memory.compression",
    };
    Some(Misfit::Differs { field, attached, asked })
}

/// True if a memory volume that is here has a smaller size or limit than its spec.
pub(super) fn has_less_memory(facts: &NodeFacts, here: &NodeVolumeStatus) -> bool {
    let asked = memory_attach(here.volume.clone(), &facts.spec, None, 0);
    let asked = asked.ok().and_then(|request| MemoryIdentity::of(&request).ok());
    let identity = here.memory_identity.as_ref();
    identity.zip(asked).is_some_and(|(identity, asked)| identity.grows_to(&asked))
}

/// The request to attach the memory volume of a spec.
///
/// # Errors
/// A [`FieldError`] naming the field of the spec that cannot be read.
pub(super) fn memory_attach(
    volume: VolumeId,
    spec: &VolumeSpec,
    owner: Option<String>,
    epoch: u64,
) -> Result<MemoryAttach, FieldError> {
    Ok(MemoryAttach {
        volume,
        bytes: spec.size_bytes()?,
        limit_bytes: spec.memory_limit_bytes()?,
        spill_bytes: spec.memory_spill_bytes()?,
        codec: match spec.memory.as_ref().map(|memory| memory.compression).unwrap_or_default() {
            MemoryCompression::Lz4 => PageCodec::Lz4,
            MemoryCompression::Zstd => PageCodec::Zstd,
        },
        epoch,
        owner,
    })
}
