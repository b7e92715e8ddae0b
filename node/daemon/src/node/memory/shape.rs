//! Size, limit and codec of a memory volume, as an attach asks for them and its files have them.

use holdfast_crds::ByteSize;
use holdfast_memory::pool::SLAB_BYTES;
use holdfast_memory::{HEAD_BYTES, PageCodec};
use holdfast_types::{SECTOR_BYTES, VolumeId};

use super::MemoryAttach;
use super::local::slabs_of;
use crate::node::{NodeError, sectors_of};

/// Shape of a memory volume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MemoryShape {
    pub(super) pages: u64,
    /// Its limit.
    pub(super) slabs: u32,
    pub(super) codec: PageCodec,
}

impl MemoryShape {
    /// The shape that an attach asks for.
    ///
    /// # Errors
    /// [`NodeError::Size`].
    pub(super) fn of(request: &MemoryAttach) -> Result<Self, NodeError> {
        let &MemoryAttach { volume: _, bytes, limit_bytes, codec } = request;
        let pages = sectors_of(bytes)?;
        let slabs = slabs_of(pages, limit_bytes).ok_or(NodeError::Size(bytes))?;
        Ok(Self { pages, slabs, codec })
    }

    /// The most bytes that its files may take: the table, and slabs up to the limit.
    pub(super) const fn most_bytes(&self) -> u64 {
        HEAD_BYTES as u64 + self.pages * size_of::<u64>() as u64 + self.slabs as u64 * SLAB_BYTES as u64
    }

    /// Fails if an attach asks for another one than the volume has.
    ///
    /// # Errors
    /// [`NodeError::MemoryDiffers`].
    pub(super) fn check_same(&self, volume: &VolumeId, asked: &Self) -> Result<(), NodeError> {
        let size = |shape: &Self| ByteSize(shape.pages * SECTOR_BYTES).to_string();
        let limit = |shape: &Self| ByteSize(u64::from(shape.slabs) * SLAB_BYTES as u64).to_string();
        let codec = |shape: &Self| match shape.codec {
            PageCodec::Lz4 => "lz4".to_owned(),
            PageCodec::Zstd => "zstd".to_owned(),
        };
        let fields: [(&'static str, &dyn Fn(&Self) -> String); 3] =
            [("size_bytes", &size), ("limit_bytes", &limit), ("compression", &codec)];
        for (field, text) in fields {
            let (attached, asked) = (text(self), text(asked));
            if attached != asked {
                return Err(NodeError::MemoryDiffers { volume: volume.clone(), field, attached, asked });
            }
        }
        Ok(())
    }
}
