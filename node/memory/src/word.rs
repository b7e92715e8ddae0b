//! The word of a page, which locates its content.
//!
//! ```text
//! 63                         16 15         8 7          0
//! +----------------------------+------------+------------+
//! | slot: offset / 64          | size class | kind       |   kinds 2 to 5
//! +----------------------------+------------+------------+
//! | pattern of 4 bytes         | 0                       |   kind 1, in bits 32-63
//! +----------------------------+-------------------------+
//!
//! kind 0  zeros; the whole word is 0
//!      1  the pattern, repeated
//!      2  slot: a pattern of 8 bytes, repeated
//!      3  slot: u16 length, and as many bytes of an lz4 block
//!      4  slot: u16 length, and as many bytes of a zstd frame without content size
//!      5  slot: the page as it is
//!      6  the page is in the spill file, at its own offset; bits 8-63 are 0
//! ```
//! The size class is the length of a slot in units of 64 bytes, 1 to 64; for kind 5 it is 64. All slots of a
//! slab have one class. The class may be greater than the content needs.

use crate::pool::{PAGE_CLASS, PageSlot};

/// Content of a page.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Word {
    /// Zeros.
    Zeros,
    /// Four bytes, repeated.
    Filled(u32),
    /// In a slot.
    Stored(Form, PageSlot),
    /// In the spill file.
    Spilled,
}

/// Form of the content in a slot.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Form {
    /// Eight bytes, repeated.
    Pattern,
    /// A length and an lz4 block.
    Lz4,
    /// A length and a zstd frame.
    Zstd,
    /// The page as it is.
    Plain,
}

/// Bits that are not a valid word.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("word {0:#018x} is not valid")]
pub struct InvalidWord(pub u64);

const FILLED: u64 = 1;
const SPILLED: u64 = 6;

impl Form {
    const fn kind(self) -> u64 {
        match self {
            Self::Pattern => 2,
            Self::Lz4 => 3,
            Self::Zstd => 4,
            Self::Plain => 5,
        }
    }
}

impl Word {
    /// Returns its bits.
    #[must_use]
    pub const fn bits(self) -> u64 {
        match self {
            Self::Zeros => 0,
            Self::Filled(pattern) => FILLED | (pattern as u64) << 32,
            Self::Stored(form, slot) => form.kind() | (slot.class() as u64) << 8 | slot.unit() << 16,
            Self::Spilled => SPILLED,
        }
    }

    /// Decodes a word from these bits.
    ///
    /// # Errors
    /// [`InvalidWord`].
    pub const fn of(bits: u64) -> Result<Self, InvalidWord> {
        let form = match bits & 0xff {
            0 if bits == 0 => return Ok(Self::Zeros),
            FILLED if bits & 0xffff_ff00 == 0 => return Ok(Self::Filled((bits >> 32) as u32)),
            2 => Form::Pattern,
            3 => Form::Lz4,
            4 => Form::Zstd,
            5 => Form::Plain,
            SPILLED if bits == SPILLED => return Ok(Self::Spilled),
            _ => return Err(InvalidWord(bits)),
        };
        let class = (bits >> 8) as u8;
        match PageSlot::at(class, bits >> 16) {
            Some(slot) if class == PAGE_CLASS || !matches!(form, Form::Plain) => Ok(Self::Stored(form, slot)),
            Some(_) | None => Err(InvalidWord(bits)),
        }
    }

    /// Returns the slot that the word names.
    #[must_use]
    pub const fn slot(self) -> Option<PageSlot> {
        match self {
            Self::Zeros | Self::Filled(_) | Self::Spilled => None,
            Self::Stored(_, slot) => Some(slot),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_word_reads_as_it_was_written() {
        let slots = [PageSlot::at(1, 0).unwrap(), PageSlot::at(64, 4096 * 7 + 64).unwrap()];
        let forms = [Form::Pattern, Form::Lz4, Form::Zstd];
        let stored = forms.iter().flat_map(|form| slots.map(|slot| Word::Stored(*form, slot)));
        let plain = Word::Stored(Form::Plain, slots[1]);
        let others = [plain, Word::Zeros, Word::Filled(u32::MAX), Word::Filled(1), Word::Spilled];
        for word in stored.chain(others) {
            assert_eq!(Word::of(word.bits()), Ok(word));
        }
        assert_eq!(plain.bits(), (4096 * 7 + 64) << 16 | 64 << 8 | 5);
    }

    #[test]
    fn bits_without_a_meaning_are_no_word() {
        // A kind that does not exist, a spilled page with a slot, zeros with one, no class, a class that is
        // too large, a slot that reaches into the next slab, one that is no multiple of its class, a page in
        // a slot that is shorter.
        let plain = 63 << 8 | 5;
        for bits in
            [7, 0x106, 0x100, 3, 65 << 8 | 3, 63 << 8 | 3 | 4095 << 16, 2 << 8 | 3 | 1 << 16, 0x101, plain]
        {
            assert_eq!(Word::of(bits), Err(InvalidWord(bits)), "{bits:#x}");
        }
    }
}
