//! Byte ranges in CSI's format: ascending, disjoint, and limited per message.

use holdfast_proto::csi::v1::BlockMetadata;
use holdfast_types::{SECTOR_BYTES, Sector, SectorRange};
use tonic::Status;

/// Maximum ranges per message: about 50 KB.
const MAX_RESULTS: usize = 4096;

/// Limits given in a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct RangeRequest {
    starting_offset: u64,
    max_results: usize,
}

impl RangeRequest {
    /// Parses the fields of a request.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: one is negative.
    pub(super) fn new(starting_offset: i64, max_results: i32) -> Result<Self, Status> {
        let negative = |field: &str, value: i64| {
            Status::invalid_argument(format!("{field}: {value} is negative; write 0 for the default"))
        };
        let max_results = usize::try_from(max_results)
            .map_err(|_negative| negative("max_results", i64::from(max_results)))?;
        let starting_offset = u64::try_from(starting_offset)
            .map_err(|_negative| negative("starting_offset", starting_offset))?;
        Ok(Self { starting_offset, max_results })
    }

    /// Returns the sector of the first requested byte, in a snapshot of this many sectors.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`: the offset is beyond the end.
    pub(super) fn first_sector(self, sectors: u64) -> Result<Sector, Status> {
        let capacity = sectors * SECTOR_BYTES;
        if self.starting_offset > capacity {
            let at = self.starting_offset;
            return Err(Status::out_of_range(format!(
                "starting_offset: {at} is beyond the end of the snapshot, which has {capacity} bytes"
            )));
        }
        Ok(Sector(self.starting_offset / SECTOR_BYTES))
    }

    /// Returns the maximum number of ranges per message.
    pub(super) fn max_results(self) -> usize {
        if self.max_results == 0 { MAX_RESULTS } else { self.max_results.min(MAX_RESULTS) }
    }
}

/// Ranges being grouped into messages.
#[derive(Debug)]
pub(super) struct Ranges {
    first: Sector,
    max_results: usize,
    ready: Vec<BlockMetadata>,
    /// The last range, which may still grow.
    last: Option<SectorRange>,
}

impl Ranges {
    /// Starts at a sector, with at most `max_results` ranges per message.
    pub(super) fn new(first: Sector, max_results: usize) -> Self {
        Self { first, max_results, ready: Vec::new(), last: None }
    }

    /// Adds a range that lies after all others, or touches the last. Returns a message once it is full.
    pub(super) fn push(&mut self, range: SectorRange) -> Option<Vec<BlockMetadata>> {
        let first = self.first.0.max(range.start.0);
        let range = SectorRange::new(first, range.end().checked_sub(first).filter(|count| *count > 0)?);
        match &mut self.last {
            Some(last) if last.end() == range.start.0 => {
                last.sectors += range.sectors;
                None
            }
            last => {
                let before = last.replace(range)?;
                self.ready.push(bytes(before));
                (self.ready.len() == self.max_results).then(|| std::mem::take(&mut self.ready))
            }
        }
    }

    /// Returns the rest as a message, which may be empty only if it is the first.
    pub(super) fn end(mut self, is_first: bool) -> Option<Vec<BlockMetadata>> {
        self.ready.extend(self.last.map(bytes));
        (is_first || !self.ready.is_empty()).then_some(self.ready)
    }
}

fn bytes(range: SectorRange) -> BlockMetadata {
    let signed = |bytes: u64| i64::try_from(bytes).unwrap_or(i64::MAX);
    BlockMetadata { byte_offset: signed(range.start.byte_offset()), size_bytes: signed(range.bytes()) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the messages for these ranges, in sectors.
    fn messages(first: u64, max_results: usize, ranges: &[(u64, u64)]) -> Vec<Vec<(u64, u64)>> {
        let mut told = Ranges::new(Sector(first), max_results);
        let mut messages: Vec<_> =
            ranges.iter().filter_map(|(start, count)| told.push(SectorRange::new(*start, *count))).collect();
        messages.extend(told.end(messages.is_empty()));
        let sectors = |bytes: i64| bytes as u64 / SECTOR_BYTES;
        let pair = |range: BlockMetadata| (sectors(range.byte_offset), sectors(range.size_bytes));
        messages.into_iter().map(|message| message.into_iter().map(pair).collect()).collect()
    }

    #[test]
    fn ranges_that_touch_are_one() {
        assert_eq!(messages(0, 9, &[(0, 2), (2, 3), (7, 1)]), [[(0, 5), (7, 1)]]);
    }

    #[test]
    fn no_message_has_more_ranges_than_asked_for() {
        let ranges = [(0, 1), (2, 1), (4, 1), (5, 1), (7, 1), (9, 1)];
        assert_eq!(messages(0, 2, &ranges), [vec![(0, 1), (2, 1)], vec![(4, 2), (7, 1)], vec![(9, 1)]]);
        assert_eq!(messages(0, 5, &ranges), [[(0, 1), (2, 1), (4, 2), (7, 1), (9, 1)]]);
    }

    #[test]
    fn an_answer_has_a_message_even_if_nothing_changed() {
        assert_eq!(messages(0, 9, &[]), [[]; 1]);
    }

    #[test]
    fn nothing_ends_before_the_first_byte_asked_for() {
        assert_eq!(messages(3, 9, &[(0, 2), (2, 4), (8, 1)]), [[(3, 3), (8, 1)]]);
        assert_eq!(messages(3, 9, &[(0, 3)]), [[]; 1]);
    }

    #[test]
    fn bad_limits_name_their_field() {
        let said = |starting_offset, max_results| {
            RangeRequest::new(starting_offset, max_results)
                .and_then(|asked| asked.first_sector(10))
                .map_err(|status| format!("{:?}: {}", status.code(), status.message()))
        };
        assert!(said(-1, 0).is_err_and(|it| it.starts_with("InvalidArgument: starting_offset: -1 ")));
        assert!(said(0, -1).is_err_and(|it| it.starts_with("InvalidArgument: max_results: -1 ")));
        assert!(said(40_961, 0).is_err_and(|it| it.starts_with("OutOfRange: starting_offset: 40961 ")));
        assert_eq!(said(40_960, 0), Ok(Sector(10)), "what follows the last range of a whole answer");
        assert_eq!(said(4097, 0), Ok(Sector(1)));
        assert_eq!(RangeRequest::new(0, 7).map(RangeRequest::max_results).ok(), Some(7));
        assert_eq!(RangeRequest::new(0, 1 << 30).map(RangeRequest::max_results).ok(), Some(MAX_RESULTS));
    }
}
