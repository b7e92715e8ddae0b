//! The purpose of an operation, which its completion names.

/// The purpose of an operation, in the words of the ring's owner.
pub trait RingOperation: Sized {
    /// Bits that a word may have.
    const WORD_BITS: u32 = 63;

    /// The operation as a word of [`WORD_BITS`](Self::WORD_BITS) bits, where it fits: it then travels with
    /// the entry and takes no place in the ring's table. The table recognises a completion that comes a
    /// second time, a word does not: the owner must know from its own state that the operation is in flight.
    fn to_word(&self) -> Option<u64>;

    /// The operation of a word that [`to_word`](Self::to_word) returned.
    fn from_word(word: u64) -> Self;
}
