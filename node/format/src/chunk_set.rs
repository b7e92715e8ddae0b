//! Sets of a volume's chunks, one bit per chunk.
//!
//! ```text
//! in a checkpoint: u32 n, n x u64: bit c % 64 of word c / 64 is chunk c; the last word is not 0
//! in a record:     u32 n, n x (u32 number of the word, u64 word): ascending, none is 0
//! ```

use holdfast_types::{CHUNK_SECTORS, Chunk};

use crate::chunk_ranges::ChunkRanges;
use crate::limit::MAX_SECTORS;
use crate::wire::{DecodeError, Reader};

const WORD_BITS: u64 = u64::BITS as u64;

/// A set of chunks, which takes 10 KiB for a volume of 10 TiB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ChunkSet {
    /// The last word is not 0.
    words: Vec<u64>,
}

impl ChunkSet {
    /// Adds every chunk of `ranges`.
    pub(crate) fn insert(&mut self, ranges: &ChunkRanges) {
        for (first, count) in ranges.ranges() {
            for chunk in *first..first + count {
                self.add(Chunk(u64::from(chunk)));
            }
        }
    }

    /// Adds a chunk.
    ///
    /// # Panics
    /// If the chunk is beyond the largest volume.
    pub fn add(&mut self, chunk: Chunk) {
        assert!(chunk.0 < MAX_SECTORS / CHUNK_SECTORS, "no volume has chunk {}", chunk.0);
        let word = (chunk.0 / WORD_BITS) as usize;
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        self.words[word] |= 1 << (chunk.0 % WORD_BITS);
    }

    /// Adds every chunk of `other`.
    pub(crate) fn add_all(&mut self, other: &Self) {
        let words = self.words.len().max(other.words.len());
        self.words.resize(words, 0);
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word |= other);
    }

    /// Returns its chunks that are not in `other`.
    pub fn minus(mut self, other: &Self) -> Self {
        self.words.iter_mut().zip(&other.words).for_each(|(word, other)| *word &= !other);
        let used = self.words.iter().rposition(|word| *word != 0).map_or(0, |last| last + 1);
        self.words.truncate(used);
        self
    }

    /// Returns the chunk after its last one; 0 if it is empty.
    pub(crate) fn end(&self) -> u64 {
        let last = self.words.last().copied().unwrap_or_default();
        self.words.len() as u64 * WORD_BITS - if last == 0 { 0 } else { u64::from(last.leading_zeros()) }
    }

    pub(crate) fn contains(&self, chunk: Chunk) -> bool {
        let word = usize::try_from(chunk.0 / WORD_BITS).ok().and_then(|word| self.words.get(word));
        word.is_some_and(|word| word & (1 << (chunk.0 % WORD_BITS)) != 0)
    }

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        let count = u32::try_from(self.words.len()).expect("a volume has at most 2^22 chunks");
        out.extend_from_slice(&count.to_le_bytes());
        self.words.iter().for_each(|word| out.extend_from_slice(&word.to_le_bytes()));
    }

    /// Reads the set of a volume of `chunks` chunks.
    pub(crate) fn take(fields: &mut Reader<'_>, chunks: u64) -> Result<Self, DecodeError> {
        let count = fields.count(8)?;
        let words = (0..count).map(|_| fields.u64()).collect::<Result<Vec<u64>, _>>()?;
        let set = Self { words };
        if set.words.last() == Some(&0) || set.end() > chunks {
            return Err(fields.bad("chunks with data", set.end()));
        }
        Ok(set)
    }

    /// Writes the nonzero words.
    pub(crate) fn put_sparse(&self, out: &mut Vec<u8>) {
        let words = || (0u32..).zip(&self.words).filter(|(_, word)| **word != 0);
        let count = u32::try_from(words().count()).expect("a volume has at most 2^22 chunks");
        out.extend_from_slice(&count.to_le_bytes());
        for (number, word) in words() {
            out.extend_from_slice(&number.to_le_bytes());
            out.extend_from_slice(&word.to_le_bytes());
        }
    }

    /// Returns the maximum size that `put_sparse` writes for a volume of `chunks` chunks, in bytes.
    pub(crate) fn max_sparse_bytes(chunks: u64) -> u64 {
        4 + 12 * chunks.div_ceil(WORD_BITS)
    }

    /// Reads a set that `put_sparse` wrote, of any volume.
    pub(crate) fn take_sparse(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let mut words = Vec::new();
        for _ in 0..fields.count(12)? {
            let (number, word) = (fields.u32()?, fields.u64()?);
            let is_past = (number as usize) < words.len();
            if is_past || word == 0 || u64::from(number) >= MAX_SECTORS / CHUNK_SECTORS / WORD_BITS {
                return Err(fields.bad("word of chunks", u64::from(number)));
            }
            words.resize(number as usize, 0);
            words.push(word);
        }
        Ok(Self { words })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_set_survives_its_bytes_and_ends_within_the_volume() {
        let mut set = ChunkSet::default();
        set.insert(&ChunkRanges::around([(3, 1), (63, 3), (200, 1)]));
        let found: Vec<u64> = (0..300).filter(|chunk| set.contains(Chunk(*chunk))).collect();
        assert_eq!(found, [3, 63, 64, 65, 200]);
        assert!(!set.contains(Chunk(u64::MAX)));
        let mut bytes = Vec::new();
        set.put(&mut bytes);
        let read = |chunks| ChunkSet::take(&mut Reader::new("set", &bytes), chunks);
        assert_eq!(read(201), Ok(set.clone()));
        assert!(read(200).is_err());
        let mut trailing = Vec::new();
        ChunkSet { words: vec![1, 0] }.put(&mut trailing);
        assert!(ChunkSet::take(&mut Reader::new("set", &trailing), 1000).is_err());
    }

    #[test]
    fn a_sparse_set_survives_its_bytes_and_ascends() {
        let mut set = ChunkSet::default();
        assert_eq!(set.end(), 0);
        for chunk in [3, 64, 4_000_000] {
            set.add(Chunk(chunk));
        }
        assert_eq!(set.end(), 4_000_001);
        let mut bytes = Vec::new();
        set.put_sparse(&mut bytes);
        assert_eq!(bytes.len(), 4 + 3 * 12);
        assert_eq!(ChunkSet::take_sparse(&mut Reader::new("set", &bytes)), Ok(set));
        let stored = |words: &[(u32, u64)]| {
            let mut bytes = (words.len() as u32).to_le_bytes().to_vec();
            for (number, word) in words {
                bytes.extend_from_slice(&number.to_le_bytes());
                bytes.extend_from_slice(&word.to_le_bytes());
            }
            bytes
        };
        for altered in
            [&[(1, 1), (1, 2)][..], &[(2, 1), (1, 1)], &[(1, 0)], &[(1 << 16, 1)], &[(u32::MAX, 1)]]
        {
            assert!(ChunkSet::take_sparse(&mut Reader::new("set", &stored(altered))).is_err(), "{altered:?}");
        }
    }

    #[test]
    fn what_is_in_another_set_is_taken_out() {
        let of = |chunks: &[u64]| {
            let mut set = ChunkSet::default();
            chunks.iter().for_each(|chunk| set.add(Chunk(*chunk)));
            set
        };
        assert_eq!(of(&[1, 70, 300]).minus(&of(&[1, 300, 9000])), of(&[70]));
        assert_eq!(of(&[1, 300]).minus(&of(&[1, 300])), ChunkSet::default());
        assert_eq!(of(&[300]).minus(&of(&[1])), of(&[300]));
        let mut both = of(&[1]);
        both.add_all(&of(&[300]));
        both.add_all(&of(&[2]));
        assert_eq!(both, of(&[1, 2, 300]));
    }
}
