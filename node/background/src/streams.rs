//! Streams: sequential readers of one volume, detected from their reads of the store.
//!
//! Owns: the choice of blocks to prefetch. Does not own: the fetching; it does not know which blocks are
//! already cached.
//! Pure: no I/O, no clock.
//!
//! A *stream* is confirmed after [`REQUESTS`] contiguous requests that crossed [`BLOCKS`] block boundaries.
//! One request proves nothing, however long it is: the kernel reads around each page fault of a mapped file.
//! The window of a confirmed stream starts at [`FIRST_WINDOW`] times its request, and doubles each time the
//! reader has used a quarter of it. A reader that jumps starts a new stream, which must be confirmed again;
//! its old stream is forgotten once [`STREAMS`] others were read. Each failure doubles the number of required
//! requests, until blocks are prefetched again.

use std::ops::Range;

use holdfast_engine::event::RequestId;
use holdfast_types::{BLOCK_BYTES, SECTOR_BYTES, SectorRange};

/// Maximum streams per volume.
const STREAMS: usize = 4;
/// Number of requests that confirm a stream.
const REQUESTS: u32 = 3;
/// Maximum counted consecutive failures.
const FAILURES: u32 = 8;
/// Block boundaries that it must also cross.
const BLOCKS: u64 = 2;
/// Tolerance in sectors, in both directions, between a confirmed stream's end and its next request: for
/// readers with several requests in flight, and for local data in between.
const SLACK_SECTORS: u64 = (1 << 20) / SECTOR_BYTES;
/// Blocks of the first window per block of the request.
const FIRST_WINDOW: u64 = 4;
/// Blocks of the largest window: 16 MiB.
pub const MAX_WINDOW: u64 = (16 << 20) / BLOCK_BYTES;

/// A part of a request that is read from the store.
#[derive(Debug, Clone, Copy)]
pub struct ColdPart {
    /// The request.
    pub request: RequestId,
    /// Byte offset of `range` in the request.
    pub at_bytes: u32,
    /// Its sectors.
    pub range: SectorRange,
}

impl ColdPart {
    /// Returns its last block.
    pub fn last_block(self) -> u64 {
        SectorRange::new(self.range.end() - 1, 1).start.block().0
    }

    /// Returns the first sector of the request.
    fn request_start(self) -> u64 {
        self.range.start.0.saturating_sub(u64::from(self.at_bytes) / SECTOR_BYTES)
    }
}

/// Contiguous requests, or parts of them, that were served without a task, because their blocks were known to
/// be in the slab.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PassedReads {
    /// First sector of the first request.
    pub start: u64,
    /// The sector after the last one.
    pub end: u64,
    /// Number of requests that began among them.
    pub requests: u32,
}

/// The latest passed reads of each reader position, most recent last.
#[derive(Debug, Default)]
pub struct PassedStreams(Vec<PassedReads>);

impl PassedStreams {
    /// Records a part of a request; `is_first`: it is the request's first part.
    #[inline]
    pub fn read(&mut self, range: SectorRange, is_first: bool) {
        let requests = u32::from(is_first);
        if let Some(at) = self.0.iter().rposition(|reads| reads.end == range.start.0) {
            // The most recently read one is last.
            self.0[at..].rotate_left(1);
            let reads = self.0.last_mut().expect("it was found");
            reads.end = range.end();
            reads.requests = reads.requests.saturating_add(requests);
            return;
        }
        if self.0.len() == STREAMS {
            self.0.remove(0);
        }
        self.0.push(PassedReads { start: range.start.0, end: range.end(), requests });
    }

    /// Returns all of them, oldest first.
    pub fn take(&mut self) -> Vec<PassedReads> {
        std::mem::take(&mut self.0)
    }
}

#[derive(Debug)]
struct Stream {
    /// The sector after the last one read.
    next: u64,
    /// The block where it began.
    first_block: u64,
    requests: u32,
    /// Blocks of its window; 0 before the first step.
    window: u64,
    /// The block after the last one of its window.
    end: u64,
}

impl Stream {
    fn begin(part: ColdPart) -> Self {
        let first_block = part.range.start.block().0;
        Self { next: part.range.end(), first_block, requests: 1, window: 0, end: 0 }
    }

    /// Returns true if a request that begins at sector `start` continues the stream.
    fn continues(&self, start: u64) -> bool {
        let slack = if self.window == 0 { 0 } else { SLACK_SECTORS };
        (self.next.saturating_sub(slack)..=self.next + slack).contains(&start)
    }

    /// Returns the blocks to add to the window now, at most `room`; the reader is at `part`. The stream is
    /// confirmed after `requests`.
    fn step(&mut self, part: ColdPart, requests: u32, most: u64, room: u64) -> Option<Range<u64>> {
        let here = part.last_block() + 1;
        let is_believed = self.requests >= requests && here > self.first_block + BLOCKS;
        let is_front = part.range.end() == self.next;
        if !is_believed || !is_front || room == 0 {
            return None;
        }
        let ahead = self.end.saturating_sub(here);
        // The window grows by at least a quarter, so that one request to the store brings many blocks.
        if self.window > 0 && ahead > self.window - self.window / 4 {
            return None;
        }
        let first = FIRST_WINDOW * part.range.bytes().div_ceil(BLOCK_BYTES);
        let window = if self.window == 0 { first } else { 2 * self.window }.min(most);
        let from = here.max(self.end);
        let to = (here + window).min(from + room);
        (self.window, self.end) = (window, to.max(from));
        (from < to).then_some(from..to)
    }
}

/// The streams of a volume.
#[derive(Debug)]
pub struct Streams {
    /// Most recently read first.
    streams: Vec<Stream>,
    /// The most recent part.
    last: Option<ColdPart>,
    /// Blocks of the largest window.
    most: u64,
    /// Failures since the last successful prefetch.
    failures: u32,
}

impl Streams {
    /// Starts without streams; their windows have at most `most` blocks, and [`MAX_WINDOW`].
    pub fn new(most: u64) -> Self {
        Self { streams: Vec::new(), last: None, most: most.min(MAX_WINDOW), failures: 0 }
    }

    /// Records the next part, in the order of arrival. Returns the blocks to prefetch, at most `room`. They
    /// start right after the part at the earliest, and end [`MAX_WINDOW`] after it at the latest.
    pub fn read(&mut self, part: ColdPart, room: u64) -> Option<Range<u64>> {
        let is_same_request = self.last.is_some_and(|last| {
            last.request == part.request
                && last.at_bytes < part.at_bytes
                && last.request_start() == part.request_start()
        });
        self.last = Some(part);
        let start = part.request_start();
        // Parts of the request before this one were passed.
        let is_passed = |stream: &Stream| part.at_bytes > 0 && stream.next == part.range.start.0;
        let found = if is_same_request {
            Some(0).filter(|_| !self.streams.is_empty())
        } else {
            self.streams.iter().position(|stream| stream.continues(start) || is_passed(stream))
        };
        match found {
            Some(at) => {
                self.streams[..=at].rotate_right(1);
                let stream = &mut self.streams[0];
                let is_counted = is_same_request || is_passed(stream);
                stream.next = stream.next.max(part.range.end());
                stream.requests += u32::from(!is_counted);
                stream.step(part, REQUESTS << self.failures, self.most, room)
            }
            None => {
                self.begin(Stream::begin(part));
                None
            }
        }
    }

    /// Records cached reads that precede the next part.
    pub fn passed(&mut self, reads: PassedReads) {
        let PassedReads { start, end, requests } = reads;
        match self.streams.iter().position(|stream| stream.continues(start)) {
            Some(at) => {
                self.streams[..=at].rotate_right(1);
                let stream = &mut self.streams[0];
                stream.next = stream.next.max(end);
                stream.requests = stream.requests.saturating_add(requests);
            }
            None => {
                let first_block = SectorRange::new(start, 1).start.block().0;
                self.begin(Stream { next: end, first_block, requests, window: 0, end: 0 });
            }
        }
    }

    fn begin(&mut self, stream: Stream) {
        self.streams.truncate(STREAMS - 1);
        self.streams.insert(0, stream);
    }

    /// Forgets all streams: the store or the local disk failed the prefetch.
    pub fn failed(&mut self) {
        self.streams.clear();
        self.last = None;
        self.failures = (self.failures + 1).min(FAILURES);
    }

    /// Resets the failures after a successful prefetch.
    pub fn succeeded(&mut self) {
        self.failures = 0;
    }
}

#[cfg(test)]
mod tests {
    use holdfast_types::BLOCK_SECTORS;

    use super::*;

    /// Room for any step.
    const ROOM: u64 = u64::MAX / 2;

    /// A volume's reader, whose requests have few tags.
    struct Reader {
        streams: Streams,
        requests: u32,
    }

    impl Reader {
        fn new() -> Self {
            Self { streams: Streams::new(MAX_WINDOW), requests: 0 }
        }

        /// Reads `sectors` from `start` on as one request.
        fn read(&mut self, start: u64, sectors: u64) -> Option<Range<u64>> {
            self.requests += 1;
            let request = RequestId(self.requests % 2);
            self.streams
                .read(ColdPart { request, at_bytes: 0, range: SectorRange::new(start, sectors) }, ROOM)
        }
    }

    #[test]
    fn a_window_doubles_to_its_maximum_and_moves_on() {
        let mut reader = Reader::new();
        let steps: Vec<(u64, Range<u64>)> = (0..512)
            .filter_map(|block| Some((block, reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS)?)))
            .collect();
        let first = [(2, 3..7), (3, 7..12), (5, 12..22), (9, 22..42), (17, 42..82), (33, 82..162)];
        assert_eq!(steps[..6], first);
        // Each later step is a quarter of the window.
        assert_eq!(steps[6..8], [(65, 162..194), (97, 194..226)]);
        let fetched: Vec<u64> = steps.into_iter().flat_map(|(_, step)| step).collect();
        assert!(fetched.is_sorted_by(|one, next| next - one == 1), "each block once, without a gap");
        assert!(fetched.last().is_some_and(|last| (600..=512 + MAX_WINDOW).contains(last)));
    }

    #[test]
    fn small_requests_are_believed_after_as_many_blocks() {
        let mut reader = Reader::new();
        let first = (0..BLOCK_SECTORS * 4).find_map(|sector| Some((sector, reader.read(sector, 1)?)));
        assert_eq!(first, Some((2 * BLOCK_SECTORS, 3..7)));
    }

    #[test]
    fn large_requests_begin_with_larger_windows() {
        let mut reader = Reader::new();
        let steps: Vec<_> = (0..4).map(|megabyte| reader.read(megabyte * 256, 256)).collect();
        assert_eq!(steps, [None, None, Some(24..56), Some(56..96)]);
    }

    /// The kernel reads 128 KiB around each fault of a mapped file: two blocks.
    #[test]
    fn random_requests_are_never_believed() {
        for sectors in [1, BLOCK_SECTORS, 8 * BLOCK_SECTORS] {
            let (mut reader, mut place) = (Reader::new(), 1u64);
            for _ in 0..100_000 {
                place = place.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
                assert_eq!(reader.read((place >> 33) % (1 << 28), sectors), None, "{sectors} sectors");
            }
        }
    }

    /// A request of 1 MiB arrives as parts of one block each.
    #[test]
    fn one_request_proves_nothing_however_long() {
        let mut streams = Streams::new(MAX_WINDOW);
        for block in 0..8u64 {
            let range = SectorRange::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
            let at_bytes = (block * BLOCK_BYTES) as u32;
            assert_eq!(streams.read(ColdPart { request: RequestId(3), at_bytes, range }, ROOM), None);
        }
    }

    #[test]
    fn readers_of_several_places_do_not_disturb_each_other() {
        let mut reader = Reader::new();
        let mut fetched = [0; STREAMS];
        for block in 0..64 {
            for (number, fetched) in fetched.iter_mut().enumerate() {
                let place = number as u64 * 1_000_000 + block * BLOCK_SECTORS;
                *fetched += reader.read(place, BLOCK_SECTORS).map_or(0, |step| step.end - step.start);
            }
        }
        assert!(fetched.iter().all(|blocks| *blocks > 64), "{fetched:?}");
    }

    #[test]
    fn a_reader_that_jumps_is_a_new_stream() {
        let mut reader = Reader::new();
        assert!((0..64).filter_map(|block| reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS)).count() > 4);
        let jumped: Vec<_> =
            (10_000..10_003).map(|block| reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS)).collect();
        assert_eq!(jumped, [None, None, Some(10_003..10_007)]);
    }

    /// Several requests in flight arrive out of order; local data in between is invisible.
    #[test]
    fn a_believed_stream_survives_disorder_and_local_data() {
        let mut reader = Reader::new();
        for block in 0..8 {
            reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS);
        }
        let fetched = [10, 9, 8, 12, 11, 15, 14, 13, 20, 24]
            .into_iter()
            .filter_map(|block| reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS));
        assert!(fetched.count() > 1);
        assert_eq!(reader.streams.streams.len(), 1);
    }

    #[test]
    fn without_room_the_window_waits_and_loses_no_block() {
        let mut streams = Streams::new(MAX_WINDOW);
        let mut fetched = Vec::new();
        for block in 0..200u64 {
            let range = SectorRange::new(block * BLOCK_SECTORS, BLOCK_SECTORS);
            let part = ColdPart { request: RequestId((block % 2) as u32), at_bytes: 0, range };
            let room = [0, 1, 7, 0][block as usize % 4];
            let step = streams.read(part, room);
            assert!(step.as_ref().is_none_or(|step| step.end - step.start <= room));
            fetched.extend(step.into_iter().flatten());
        }
        assert!(fetched.is_sorted_by(|one, next| one < next));
        assert!(fetched.len() > 180, "{}", fetched.len());
    }

    #[test]
    fn each_failure_ends_the_window_for_longer() {
        let mut reader = Reader::new();
        let mut block = 0;
        let mut reads_of_a_step = |reader: &mut Reader| {
            let first = block;
            while reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS).is_none() {
                block += 1;
            }
            block += 1;
            block - first
        };
        for reads in [3, 6, 12, 24] {
            assert_eq!(reads_of_a_step(&mut reader), reads);
            reader.streams.failed();
        }
        reader.streams.succeeded();
        assert_eq!(reads_of_a_step(&mut reader), 3);
    }

    /// Blocks that were read before are known on the ring thread: their reads reach no stream.
    #[test]
    fn a_reader_is_believed_by_what_was_passed() {
        let (mut streams, mut passed) = (Streams::new(MAX_WINDOW), PassedStreams::default());
        let mut believed = None;
        for sector in 0..BLOCK_SECTORS * 4 {
            let range = SectorRange::new(sector, 1);
            // Only the first sector of each block is fetched.
            if sector % BLOCK_SECTORS > 0 {
                passed.read(range, true);
                continue;
            }
            let taken = passed.take();
            assert!(taken.len() <= 1, "they follow each other: {taken:?}");
            taken.into_iter().for_each(|reads| streams.passed(reads));
            let part = ColdPart { request: RequestId(0), at_bytes: 0, range };
            believed = believed.or(streams.read(part, ROOM).map(|blocks| (sector, blocks)));
        }
        assert_eq!(believed, Some((2 * BLOCK_SECTORS, 3..7)), "as where each was fetched");
    }

    /// The first of a request's two blocks was known: it still counts as one request.
    #[test]
    fn a_request_of_which_a_part_was_passed_continues_its_stream() {
        let (mut streams, sectors) = (Streams::new(MAX_WINDOW), BLOCK_SECTORS);
        let mut believed = None;
        for number in 0..6 {
            let start = number * sectors + sectors / 2;
            let mut passed = PassedStreams::default();
            passed.read(SectorRange::new(start, sectors / 2), true);
            passed.take().into_iter().for_each(|reads| streams.passed(reads));
            let range = SectorRange::new(start + sectors / 2, sectors / 2);
            let part =
                ColdPart { request: RequestId(0), at_bytes: (sectors / 2 * SECTOR_BYTES) as u32, range };
            believed = believed.or(streams.read(part, ROOM).map(|blocks| (number, blocks)));
        }
        assert_eq!(believed, Some((2, 4..8)));
    }

    /// Found by review: the oldest reader was forgotten first, however much it read.
    #[test]
    fn random_reads_do_not_push_out_a_passed_reader() {
        let (mut streams, mut passed) = (Streams::new(MAX_WINDOW), PassedStreams::default());
        let mut believed = None;
        for sector in 0..BLOCK_SECTORS * 4 {
            passed.read(SectorRange::new((1 << 30) + sector * 7919, 1), true);
            let range = SectorRange::new(sector, 1);
            if sector % BLOCK_SECTORS > 0 {
                passed.read(range, true);
                continue;
            }
            passed.take().into_iter().for_each(|reads| streams.passed(reads));
            let part = ColdPart { request: RequestId(0), at_bytes: 0, range };
            believed = believed.or(streams.read(part, ROOM).map(|blocks| (sector, blocks)));
        }
        assert_eq!(believed, Some((2 * BLOCK_SECTORS, 3..7)));
    }

    /// Found by review: the first part of a random request was passed, and its second part counted as part of
    /// the last request, which had the same tag.
    #[test]
    fn a_part_of_another_request_with_the_same_tag_is_no_continuation() {
        let mut reader = Reader::new();
        let begun: Vec<u64> =
            (0..8).filter(|block| reader.read(block * BLOCK_SECTORS, BLOCK_SECTORS).is_some()).collect();
        assert_eq!(begun.first(), Some(&2));
        let request = RequestId(reader.requests % 2);
        let far = SectorRange::new(1000 * BLOCK_SECTORS, BLOCK_SECTORS);
        let part = ColdPart { request, at_bytes: 64 << 10, range: far };
        assert_eq!(reader.streams.read(part, ROOM), None);
    }

    /// Readers at more positions than streams, and random ones, use no memory.
    #[test]
    fn few_passed_readers_are_remembered() {
        let mut passed = PassedStreams::default();
        for number in 0..1000 {
            passed.read(SectorRange::new(number * 7919, 1), true);
        }
        let last = passed.take();
        assert_eq!(last.len(), STREAMS);
        assert_eq!(last[STREAMS - 1], PassedReads { start: 999 * 7919, end: 999 * 7919 + 1, requests: 1 });
    }
}
