//! Purpose of an operation, which its completion names.

/// Purpose of an operation, as a type of the ring's owner.
pub trait RingOperation: Sized {
    /// Number of bits of a word.
    const WORD_BITS: u32 = 63;

    /// Returns the operation as a word of [`WORD_BITS`](Self::WORD_BITS) bits, if it fits: the entry then
    /// carries it, and the ring's table needs no room for it. The table recognises a second completion of an
    /// operation, a word does not: the owner must know from its own state that the operation is in flight.
    fn to_word(&self) -> Option<u64>;

    /// Returns the operation of a word that [`to_word`](Self::to_word) returned.
    fn from_word(word: u64) -> Self;
}
