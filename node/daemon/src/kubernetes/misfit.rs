//! A volume on this node that has the id of a Volume, but is not that Volume.
//!
//! Owns: the comparison. A name proves nothing: a user may have attached a memory volume of this name, and a
//! Volume may have been deleted and recreated. An object proves nothing either: no log fences a memory
//! volume, so a node that was cut off and returns still has it. The epoch identifies the attach that it
//! belongs to.

use holdfast_crds::{FieldError, MemoryCompression, VolumeSpec};
use holdfast_memory::PageCodec;
use holdfast_types::VolumeId;

use super::facts::NodeFacts;
use crate::node::{MemoryAttach, MemoryIdentity, NodeVolumeStatus};

/// Difference between a volume on this node and the Volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Misfit {
    /// A user attached it: it stays.
    AttachedByUser,
    /// It belongs to another backend, another object, or an attach that a later one replaced: it is detached.
    Other,
    /// It belongs to this Volume, but no growth leads to the changed spec: its content is not dropped without
    /// a request.
    Differs {
        /// Field of the Volume.
        field: &'static str,
        /// Its current value on this node.
        attached: String,
        /// The value in the spec.
        asked: String,
    },
}

/// Returns the difference; `None` if the volume matches the Volume, or if that is still unknown.
pub(super) fn misfit(facts: &NodeFacts, here: &NodeVolumeStatus) -> Option<Misfit> {
    let Some(identity) = &here.memory_identity else {
        return (facts.spec.is_memory() && here.attached.is_some()).then_some(Misfit::Other);
    };
    if identity.owner.is_none() {
        return Some(Misfit::AttachedByUser);
    }
    let epoch = here.attached.as_ref()?.epoch;
    if !facts.spec.is_memory() || identity.owner != facts.uid || facts.is_outdated(epoch) {
        return Some(Misfit::Other);
    }
    // The attach rejects an unreadable spec.
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

/// Returns true if a memory volume on this node has a smaller size or limit than its spec.
pub(super) fn has_less_memory(facts: &NodeFacts, here: &NodeVolumeStatus) -> bool {
    let asked = memory_attach(here.volume.clone(), &facts.spec, None, 0);
    let asked = asked.ok().and_then(|request| MemoryIdentity::of(&request).ok());
    let identity = here.memory_identity.as_ref();
    identity.zip(asked).is_some_and(|(identity, asked)| identity.grows_to(&asked))
}

/// Builds the request to attach the memory volume of a spec.
///
/// # Errors
/// A [`FieldError`] naming the invalid field of the spec, or the one with a value of a later release.
pub(super) fn memory_attach(
    volume: VolumeId,
    spec: &VolumeSpec,
    owner: Option<String>,
    epoch: u64,
) -> Result<MemoryAttach, FieldError> {
    spec.check_servable()?;
    Ok(MemoryAttach {
        volume,
        bytes: spec.size_bytes()?,
        limit_bytes: spec.memory_limit_bytes()?,
        spill_bytes: spec.memory_spill_bytes()?,
        codec: match spec.memory.as_ref().map(|memory| memory.compression).unwrap_or_default() {
            // An unknown codec was refused above.
            MemoryCompression::Lz4 | MemoryCompression::Unknown => PageCodec::Lz4,
            MemoryCompression::Zstd => PageCodec::Zstd,
        },
        epoch,
        owner,
    })
}
