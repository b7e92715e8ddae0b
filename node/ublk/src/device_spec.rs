//! Description of a device to add, and its encoding for the kernel.

use libublk::sys;

use crate::{ControlError, KERNEL_SECTORS_PER_SECTOR, SECTOR_BYTES, Transport};

/// Alignment mask for the address of a request's memory. With zero copy the local disk receives that memory,
/// and no disk with sectors of up to 4096 bytes needs a larger alignment: dm-crypt needs the largest, one
/// sector. The kernel accepts no mask above a page.
const DMA_ALIGNMENT: u32 = SECTOR_BYTES as u32 - 1;
const SECTOR_SHIFT: u8 = SECTOR_BYTES.trailing_zeros() as u8;

/// A device to add.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The number in `/dev/ublkbN`; `None` lets the kernel choose.
    pub id: Option<u32>,
    /// Size in sectors of 4096 bytes, at least 1.
    pub sectors: u64,
    /// Number of queues, at least 1.
    pub queues: u16,
    /// Maximum number of requests in a queue, 1 to 4096.
    pub depth: u16,
    /// Maximum length of a read or write request in bytes: a multiple of 4096, at most 32 MiB.
    pub max_io_bytes: u32,
    /// Maximum length of a discard or write-zeroes request in bytes: a multiple of 4096, at most 1 GiB.
    pub max_zero_bytes: u32,
    /// Transport of its data.
    pub transport: Transport,
    /// Tag that identifies the device later: the kernel stores it without interpreting it.
    pub tag: u64,
}

impl DeviceSpec {
    /// Maximum of `max_io_bytes`.
    pub const MAX_IO_BYTES: u32 = 32 << 20;
    /// Maximum of `max_zero_bytes`.
    pub const MAX_ZERO_BYTES: u32 = 1 << 30;

    pub(crate) fn validate(&self) -> Result<(), ControlError> {
        let check = |holds: bool, field, rule| {
            if holds { Ok(()) } else { Err(ControlError::Invalid { field, rule }) }
        };
        let id_fits = self.id.is_none_or(|id| i32::try_from(id).is_ok());
        check(id_fits, "id", "must be at most 2147483647")?;
        let size_fits = self.sectors >= 1 && self.sectors <= u64::MAX / SECTOR_BYTES;
        check(size_fits, "sectors", "must be at least 1 and the size must fit 64 bits of bytes")?;
        check((1..=4096).contains(&self.queues), "queues", "must be 1 to 4096")?;
        check((1..=4096).contains(&self.depth), "depth", "must be 1 to 4096")?;
        let max = self.max_io_bytes;
        let io_fits = max > 0 && max <= Self::MAX_IO_BYTES && u64::from(max).is_multiple_of(SECTOR_BYTES);
        check(io_fits, "max_io_bytes", "must be a multiple of 4096, at most 32 MiB")?;
        let max = self.max_zero_bytes;
        let zero_fits = max > 0 && max <= Self::MAX_ZERO_BYTES && u64::from(max).is_multiple_of(SECTOR_BYTES);
        check(zero_fits, "max_zero_bytes", "must be a multiple of 4096, at most 1 GiB")
    }

    pub(crate) fn params(&self) -> Params {
        let zero_sectors = self.max_zero_bytes / 512;
        Params {
            len: size_of::<Params>() as u32,
            types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD | sys::UBLK_PARAM_TYPE_DMA_ALIGN,
            basic: sys::ublk_param_basic {
                // FUA is always announced: without it the kernel can lose the device when its server exits
                // (`docs/kernels.md`).
                attrs: sys::UBLK_ATTR_VOLATILE_CACHE | sys::UBLK_ATTR_FUA,
                logical_bs_shift: SECTOR_SHIFT,
                physical_bs_shift: SECTOR_SHIFT,
                io_opt_shift: SECTOR_SHIFT,
                io_min_shift: SECTOR_SHIFT,
                max_sectors: self.max_io_bytes / 512,
                dev_sectors: self.sectors * KERNEL_SECTORS_PER_SECTOR,
                ..Default::default()
            },
            discard: sys::ublk_param_discard {
                discard_granularity: SECTOR_BYTES as u32,
                max_discard_sectors: zero_sectors,
                max_write_zeroes_sectors: zero_sectors,
                max_discard_segments: 1,
                ..Default::default()
            },
            devt: sys::ublk_param_devt::default(),
            zoned: sys::ublk_param_zoned::default(),
            dma: sys::ublk_param_dma_align { alignment: DMA_ALIGNMENT, ..Default::default() },
        }
    }
}

/// The used part of `struct ublk_params`; the version in `libublk` ends before the alignment.
#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub(crate) struct Params {
    len: u32,
    types: u32,
    basic: sys::ublk_param_basic,
    discard: sys::ublk_param_discard,
    devt: sys::ublk_param_devt,
    zoned: sys::ublk_param_zoned,
    dma: sys::ublk_param_dma_align,
}

#[cfg(test)]
mod tests {
    use super::Params;

    #[test]
    fn the_alignment_lies_where_the_kernel_reads_it() {
        assert_eq!(
            std::mem::offset_of!(Params, zoned),
            std::mem::offset_of!(libublk::sys::ublk_params, zoned)
        );
        assert_eq!(std::mem::offset_of!(Params, dma), 108);
        assert_eq!(size_of::<Params>(), 120);
    }
}
