//! Sets of a volume's chunks, one bit a chunk.
//!
//! ```text
//! u32 n, n x u64: bit c % 64 of word c / 64 is chunk c; the last word is not 0
//! ```

use holdfast_types::Chunk;

use crate::fence::Fence;
use crate::wire::{DecodeError, Reader};

const WORD_BITS: u64 = u64::BITS as u64;

/// A set of chunks: 10 KiB for a volume of 10 TiB.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub(crate) struct ChunkSet {
    words: Vec<u64>,
}

impl ChunkSet {
    /// Adds every chunk of `fence`.
    pub(crate) fn insert(&mut self, fence: &Fence) {
        for (first, count) in fence.runs() {
            for chunk in *first..first + count {
                let word = (u64::from(chunk) / WORD_BITS) as usize;
                if word >= self.words.len() {
                    self.words.resize(word + 1, 0);
                }
                self.words[word] |= 1 << (u64::from(chunk) % WORD_BITS);
            }
        }
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
        if let Some(last) = words.last() {
            let end = count as u64 * WORD_BITS - u64::from(last.leading_zeros());
            if *last == 0 || end > chunks {
                return Err(fields.bad("chunks with data", end));
            }
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
        set.insert(&Fence::around([(3, 1), (63, 3), (200, 1)]));
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
}
