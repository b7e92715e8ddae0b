//! Pages that repeat one pattern of eight bytes.

/// Returns the pattern of a page as a little-endian number, if the page repeats one.
pub(crate) fn pattern_of(page: &[u8]) -> Option<u64> {
    debug_assert!(page.len().is_multiple_of(8), "a page has whole words");
    let (first, last) = (page.first_chunk::<8>()?, page.last_chunk::<8>()?);
    // Most pages without a pattern end here.
    if first != last {
        return None;
    }
    // A page of one pattern equals itself shifted by a word.
    (page[8..] == page[..page.len() - 8]).then(|| u64::from_le_bytes(*first))
}

/// Fills a page with a pattern.
pub(crate) fn fill(page: &mut [u8], pattern: u64) {
    page.as_chunks_mut::<8>().0.fill(pattern.to_le_bytes());
}

/// Returns half of the pattern if both halves are equal.
pub(crate) fn half(pattern: u64) -> Option<u32> {
    let [low, high] = [pattern as u32, (pattern >> 32) as u32];
    (low == high).then_some(low)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::PAGE_BYTES;

    #[test]
    fn one_other_byte_ends_a_pattern() {
        for pattern in [0, u64::MAX, 0x0123_4567_89ab_cdef] {
            let mut page = [0; PAGE_BYTES];
            fill(&mut page, pattern);
            assert_eq!(pattern_of(&page), Some(pattern));
            for at in [0, 7, 8, 511, 512, 2047, 4088, 4095] {
                page[at] ^= 1;
                assert_eq!(pattern_of(&page), None, "{at}");
                page[at] ^= 1;
            }
        }
    }

    #[test]
    fn only_equal_halves_are_one_half() {
        assert_eq!(half(0x0000_0007_0000_0007), Some(7));
        assert_eq!(half(0x0000_0008_0000_0007), None);
    }
}
