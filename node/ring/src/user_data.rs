//! The 64 bits that travel with an operation and come back with its completion.
//!
//! ```text
//!  63      56 55            40 39            24 23                    0
//! +----------+----------------+----------------+-----------------------+
//! |   kind   |     device     |      tag       |          aux          |
//! +----------+----------------+----------------+-----------------------+
//! ```

/// What an operation was for, packed into the 64 bits io_uring carries.
///
/// The owner of the ring dispatches on [`kind`](Self::kind); the other fields mean what that kind
/// says. Kinds up to [`LAST_RESERVED_KIND`](Self::LAST_RESERVED_KIND) belong to the crates below the
/// owner (0 to this crate, 1 to `holdfast-ublk`), the rest are the owner's.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct UserData(u64);

impl UserData {
    /// The last kind that an owner may not use for its own operations.
    pub const LAST_RESERVED_KIND: u8 = 15;
    /// The largest value of [`aux`](Self::aux).
    pub const MAX_AUX: u32 = (1 << 24) - 1;

    /// The completion of the poll that a [`Waker`](crate::Waker) fires.
    pub(crate) const WAKE: Self = Self::new(0, 0, 0, 0);

    /// Packs the four fields.
    ///
    /// # Panics
    /// If `aux` is above [`MAX_AUX`](Self::MAX_AUX).
    #[must_use]
    pub const fn new(kind: u8, device: u16, tag: u16, aux: u32) -> Self {
        assert!(aux <= Self::MAX_AUX, "aux has 24 bits");
        Self(((kind as u64) << 56) | ((device as u64) << 40) | ((tag as u64) << 24) | aux as u64)
    }

    /// Which sort of operation this is.
    #[must_use]
    pub const fn kind(self) -> u8 {
        (self.0 >> 56) as u8
    }

    /// Which device (or other slot of the owner) it belongs to.
    #[must_use]
    pub const fn device(self) -> u16 {
        (self.0 >> 40) as u16
    }

    /// Which request of the device it belongs to.
    #[must_use]
    pub const fn tag(self) -> u16 {
        (self.0 >> 24) as u16
    }

    /// 24 more bits, for example the number of a part of the request.
    #[must_use]
    pub const fn aux(self) -> u32 {
        self.0 as u32 & Self::MAX_AUX
    }

    /// The same with another `aux`.
    ///
    /// # Panics
    /// If `aux` is above [`MAX_AUX`](Self::MAX_AUX).
    #[must_use]
    pub const fn with_aux(self, aux: u32) -> Self {
        Self::new(self.kind(), self.device(), self.tag(), aux)
    }

    /// The packed form, as an entry of the submission queue carries it.
    #[must_use]
    pub const fn to_bits(self) -> u64 {
        self.0
    }

    /// Reads the packed form back.
    #[must_use]
    pub const fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

impl std::fmt::Debug for UserData {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("UserData")
            .field("kind", &self.kind())
            .field("device", &self.device())
            .field("tag", &self.tag())
            .field("aux", &self.aux())
            .finish()
    }
}

#[cfg(test)]
mod tests {
    use super::UserData;

    #[test]
    fn every_field_comes_back_as_it_was_packed() {
        for data in [
            UserData::new(0, 0, 0, 0),
            UserData::new(u8::MAX, u16::MAX, u16::MAX, UserData::MAX_AUX),
            UserData::new(17, 0x1234, 0x4321, 0x00ab_cdef),
        ] {
            let back = UserData::from_bits(data.to_bits());
            assert_eq!(back, UserData::new(data.kind(), data.device(), data.tag(), data.aux()));
        }
        let one_each = UserData::new(1, 2, 3, 4);
        assert_eq!((one_each.kind(), one_each.device(), one_each.tag(), one_each.aux()), (1, 2, 3, 4));
        assert_eq!(one_each.with_aux(9), UserData::new(1, 2, 3, 9));
    }
}
