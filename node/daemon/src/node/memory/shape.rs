//! Size, limits, codec and owner of a memory volume, as requested by an attach and stored in its files.

use holdfast_crds::ByteSize;
use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{HEAD_BYTES, PageCodec, TableHead};
use holdfast_types::{SECTOR_BYTES, VolumeId};

use super::local::slabs_of;
use crate::node::{GrowTo, NodeError, sectors_of};

/// Maximum queues of a memory volume's device: if enough ring threads exist, each has its own.
pub(super) const MOST_QUEUES: u16 = 4;
/// Maximum requests of a memory volume's device, over all queues, and the longest read or write. With kernel
/// copy each request has a buffer of this length, locked in memory: longer requests are split.
pub(super) const DEPTH: u16 = 64;
pub(super) const MAX_IO_BYTES: u32 = 128 << 10;
/// Maximum bytes of a discard, during which the ring thread serves no other volume.
pub(super) const MAX_ZERO_BYTES: u32 = 4 << 20;
/// Total buffer size of a device, in bytes.
pub(super) const BUFFER_BYTES: u64 = DEPTH as u64 * MAX_IO_BYTES as u64;

/// Request to attach a memory volume.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryAttach {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// Its size.
    pub(crate) bytes: u64,
    /// Memory limit of its content, in bytes; `None`: enough for any content.
    pub(crate) limit_bytes: Option<u64>,
    /// Disk space for pages without memory, in bytes; `None`: no spill file.
    pub(crate) spill_bytes: Option<u64>,
    /// Codec of its pages.
    pub(crate) codec: PageCodec,
    /// The epoch, which rises with each attach, of a Kubernetes Volume; 0 for a volume that a user attaches.
    pub(crate) epoch: u64,
    /// The uid of that Volume; `None` for a volume that a user attaches.
    pub(crate) owner: Option<String>,
}

/// Distinguishes successive memory volumes of one name on a node.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct MemoryIdentity {
    pub(super) shape: MemoryShape,
    /// The uid of its Volume object; `None` if a user attached it.
    pub(crate) owner: Option<String>,
}

impl MemoryIdentity {
    /// Returns the identity of a volume attached by `request`.
    ///
    /// # Errors
    /// [`NodeError::Size`].
    pub(crate) fn of(request: &MemoryAttach) -> Result<Self, NodeError> {
        Ok(Self { shape: MemoryShape::of(request)?, owner: request.owner.clone() })
    }

    /// Returns the first of size, limits and codec that no growth can change to the `asked` one: its name in
    /// a request, and both values.
    pub(crate) fn difference(&self, asked: &Self) -> Option<(&'static str, String, String)> {
        self.shape.difference(&asked.shape, true)
    }

    /// Returns true if a growth leads to the `asked` identity.
    pub(crate) fn grows_to(&self, asked: &Self) -> bool {
        self.shape != asked.shape && self.difference(asked).is_none()
    }
}

/// Shape of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryShape {
    pub(super) pages: u64,
    /// Its limit.
    pub(super) slabs: u32,
    pub(super) codec: PageCodec,
    /// Maximum pages of its spill file; 0: no spill file.
    pub(super) spill_pages: u64,
}

impl MemoryShape {
    /// Returns the shape requested by an attach.
    ///
    /// # Errors
    /// [`NodeError::Size`].
    pub(super) fn of(request: &MemoryAttach) -> Result<Self, NodeError> {
        let &MemoryAttach { volume: _, bytes, limit_bytes, spill_bytes, codec, epoch: _, owner: _ } = request;
        let pages = sectors_of(bytes)?;
        let slabs = slabs_of(pages, limit_bytes).ok_or(NodeError::Size(bytes))?;
        let spill_pages = spill_bytes.map_or(0, |bytes| bytes.div_ceil(SECTOR_BYTES).min(pages));
        Ok(Self { pages, slabs, codec, spill_pages })
    }

    /// Returns the shape after a growth.
    ///
    /// # Errors
    /// [`NodeError::Size`]; [`NodeError::MemoryShrinks`].
    pub(super) fn grown(&self, volume: &VolumeId, to: &GrowTo) -> Result<Self, NodeError> {
        let &GrowTo { bytes, memory_limit_bytes, memory_spill_bytes } = to;
        let pages = sectors_of(bytes)?;
        let takes_any_content = slabs_of(self.pages, None) == Some(self.slabs);
        let slabs = match memory_limit_bytes {
            None if !takes_any_content => Some(self.slabs),
            limit_bytes => slabs_of(pages, limit_bytes),
        };
        let slabs = slabs.ok_or(NodeError::Size(bytes))?;
        let spill_pages =
            memory_spill_bytes.map_or(self.spill_pages, |bytes| bytes.div_ceil(SECTOR_BYTES).min(pages));
        let grown = Self { pages, slabs, codec: self.codec, spill_pages };
        if let Some((field, attached, asked)) = self.difference(&grown, true) {
            return Err(NodeError::MemoryShrinks { volume: volume.clone(), field, attached, asked });
        }
        Ok(grown)
    }

    /// Returns its head.
    pub(super) const fn head(&self, nonce: u64) -> TableHead {
        let &Self { pages, slabs, codec, spill_pages } = self;
        TableHead { pages, slabs, codec, nonce, spill_pages }
    }

    /// Returns its maximum memory in bytes: its files, and the buffers of its device.
    pub(super) const fn max_bytes(&self) -> u64 {
        self.file_bytes() + BUFFER_BYTES
    }

    /// Returns the maximum bytes of its files: the table, and slabs up to the limit.
    pub(super) const fn file_bytes(&self) -> u64 {
        self.table_bytes() + self.slabs as u64 * SLAB_BYTES as u64
    }

    /// Returns its maximum disk space, in bytes.
    pub(super) const fn spill_bytes(&self) -> u64 {
        self.spill_pages * SECTOR_BYTES
    }

    /// Returns the length of its table in bytes.
    pub(super) const fn table_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + self.pages * size_of::<u64>() as u64
    }

    /// Fails if an attach requests another shape than the volume's.
    ///
    /// # Errors
    /// [`NodeError::MemoryDiffers`].
    pub(super) fn check_same(&self, volume: &VolumeId, asked: &Self) -> Result<(), NodeError> {
        match self.difference(asked, false) {
            None => Ok(()),
            Some((field, attached, asked)) => {
                Err(NodeError::MemoryDiffers { volume: volume.clone(), field, attached, asked })
            }
        }
    }

    /// Returns the first of size, limits and codec that differs from `asked`, and, if it `may_grow`, cannot
    /// be changed to it by a growth.
    fn difference(&self, asked: &Self, may_grow: bool) -> Option<(&'static str, String, String)> {
        let numbers = |shape: &Self| {
            let limit_bytes = u64::from(shape.slabs) * SLAB_BYTES as u64;
            [shape.pages * SECTOR_BYTES, limit_bytes, shape.spill_bytes()]
        };
        // A spill file is only created at an attach.
        let grows = [may_grow, may_grow, may_grow && self.spill_pages > 0];
        for (((field, grows), had), wanted) in ["size_bytes", "limit_bytes", "spill_bytes"]
            .into_iter()
            .zip(grows)
            .zip(numbers(self))
            .zip(numbers(asked))
        {
            if had != wanted && !(grows && had < wanted) {
                return Some((field, ByteSize(had).to_string(), ByteSize(wanted).to_string()));
            }
        }
        let codec = |codec| match codec {
            PageCodec::Lz4 => "lz4".to_owned(),
            PageCodec::Zstd => "zstd".to_owned(),
        };
        (self.codec != asked.codec).then(|| ("compression", codec(self.codec), codec(asked.codec)))
    }
}

#[cfg(test)]
mod tests {
    use holdfast_crds::{max_memory_bytes, max_spill_bytes};

    use super::*;

    /// The controller counts the same maximum as the node.
    #[test]
    fn a_volume_takes_what_kubernetes_counts() {
        for (bytes, limit_bytes, spill_bytes) in [
            (4096, None, None),
            (1 << 30, None, Some(1 << 20)),
            (1 << 30, Some(1 << 20), Some(1 << 30)),
            (5 << 30, Some((3 << 30) + 4096), Some((1 << 30) + 1)),
            ((1 << 30) + 4096, Some(8 << 30), Some(8 << 30)),
        ] {
            let volume = "v".parse().unwrap();
            let request = MemoryAttach {
                volume,
                bytes,
                limit_bytes,
                spill_bytes,
                codec: PageCodec::Lz4,
                epoch: 0,
                owner: None,
            };
            let shape = MemoryShape::of(&request).unwrap();
            assert_eq!(shape.max_bytes(), max_memory_bytes(bytes, limit_bytes), "{bytes} {limit_bytes:?}");
            assert_eq!(shape.spill_bytes(), max_spill_bytes(bytes, spill_bytes), "{bytes} {spill_bytes:?}");
        }
    }
}
