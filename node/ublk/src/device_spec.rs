//! What a device is asked to be, and how the kernel is told.

use libublk::sys;

use crate::{ControlError, KERNEL_SECTORS_PER_SECTOR, SECTOR_BYTES, Transport};

/// The most a single discard or write-zeroes request covers: 1 GiB.
const MAX_ZERO_BYTES: u64 = 1 << 30;
const SECTOR_SHIFT: u8 = SECTOR_BYTES.trailing_zeros() as u8;

/// What a device is to be.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DeviceSpec {
    /// The number in `/dev/ublkbN`; `None`: the kernel chooses.
    pub id: Option<u32>,
    /// Its size in sectors of 4096 bytes, at least 1.
    pub sectors: u64,
    /// How many queues, at least 1.
    pub queues: u16,
    /// How many requests a queue holds, 1 to 4096.
    pub depth: u16,
    /// The most bytes a read or write request covers: a multiple of 4096, at most 32 MiB.
    pub max_io_bytes: u32,
    /// How data is moved.
    pub transport: Transport,
    /// What the device is known by later: the kernel keeps it and makes nothing of it.
    pub tag: u64,
}

impl DeviceSpec {
    /// The most that `max_io_bytes` can be.
    pub const MAX_IO_BYTES: u32 = 32 << 20;

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
        check(io_fits, "max_io_bytes", "must be a multiple of 4096, at most 32 MiB")
    }

    pub(crate) fn params(&self) -> sys::ublk_params {
        let zero_sectors = (MAX_ZERO_BYTES / 512) as u32;
        sys::ublk_params {
            len: size_of::<sys::ublk_params>() as u32,
            types: sys::UBLK_PARAM_TYPE_BASIC | sys::UBLK_PARAM_TYPE_DISCARD,
            basic: sys::ublk_param_basic {
                // Not FUA: with it the kernel would send no FLUSH for a forced write.
                attrs: sys::UBLK_ATTR_VOLATILE_CACHE,
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
            ..Default::default()
        }
    }
}
