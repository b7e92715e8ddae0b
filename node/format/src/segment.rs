//! Segments: the dirty sectors of one seal as compressed frames, and their index.
//!
//! ```text
//! frames      each: the frame's sectors in order of their number, raw or one zstd frame
//! index       envelope (see `wire`) around `u32 n, n x entry`
//! trailer     "HFSG", u32 index bytes, u64 index offset
//!
//! entry (48 bytes, ascending by block, apart):
//! 0   4  block number          4   4  run: blocks covered (1 unless zero)
//! 8   4  sector mask           12  4  stored bytes
//! 16  8  offset                24  1  codec: 0 zero, 1 raw, 2 zstd    25  7  zero
//! 32 16  BLAKE3-128 of the uncompressed bytes (zeros for a zero frame)
//!
//! reference, in records and checkpoints:
//! u8 owner, u64 place, u128 ulid, u64 bytes, u64 index offset, u32 index bytes, chunk ranges (see `chunk_ranges`)
//! ```
//! A zero frame stores no bytes; a run of wholly zero blocks is one entry with the full mask.
//! Invariant: no frame is returned before its hash was verified (3 in `docs/invariants.md`).

use std::borrow::Cow;
use std::cell::RefCell;

use holdfast_types::{BLOCK_BYTES, Block, CHUNK_BLOCKS, Mask, SECTOR_BYTES, SegmentId};

use crate::chunk_ranges::ChunkRanges;
use crate::safeguard::{Safeguard::CheckFrameChecksum, safeguard};
use crate::wire::{self, DecodeError, Kind, Reader};

const WHAT: &str = "segment index";
const ENTRY_BYTES: usize = 48;
/// Bytes after the index.
pub const TRAILER_BYTES: u64 = 16;
/// Upper bound of frame offsets: 1 TiB, which leaves space for other fields in an entry of a run.
pub(crate) const MAX_OFFSET: u64 = 1 << 40;
/// Level 1 compresses 0.4 to 0.5 GB/s per core and reaches most of the ratio of higher levels.
const ZSTD_LEVEL: i32 = 1;
/// A frame stays raw unless compression saves at least one part in this many.
const LEAST_SAVING: usize = 16;

/// Encoding of a frame's stored bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(u8)]
pub enum Codec {
    /// No bytes: every sector of the mask is zero.
    Zero = 0,
    /// Uncompressed.
    Raw = 1,
    /// One zstd frame.
    Zstd = 2,
}

/// One frame's location and checksum.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Frame {
    /// First block covered.
    pub block: u32,
    /// Blocks covered; more than one only for zero frames.
    pub run: u32,
    /// Sectors of each block covered.
    pub mask: Mask,
    /// Byte offset of the stored bytes in the segment.
    pub offset: u64,
    /// Stored bytes.
    pub stored: u32,
    /// Their encoding.
    pub codec: Codec,
    /// BLAKE3-128 of the uncompressed bytes.
    pub hash: [u8; 16],
}

impl Frame {
    /// Returns the uncompressed size of one block's frame, in bytes.
    pub fn bytes(&self) -> usize {
        self.mask.count() as usize * SECTOR_BYTES as usize
    }
}

/// Reason why a frame's stored bytes were rejected.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum FrameError {
    /// The number of bytes differs from the index.
    #[error("frame of block {block} has {have} stored bytes, its index says {need}")]
    Length {
        /// The frame's block.
        block: u32,
        /// Bytes found.
        have: usize,
        /// Bytes expected.
        need: usize,
    },
    /// zstd rejected them.
    #[error("frame of block {block} does not decompress")]
    Compression {
        /// The frame's block.
        block: u32,
        /// The error that zstd returned.
        source: std::io::Error,
    },
    /// The content differs from the written data.
    #[error("frame of block {block} fails its checksum")]
    Checksum {
        /// The frame's block.
        block: u32,
    },
}

/// Location of a segment, and the chunks that it touches.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SegmentRef {
    /// Its name.
    pub id: SegmentId,
    /// Size of the object in bytes.
    pub bytes: u64,
    /// Byte offset of the index envelope in the object.
    pub index_offset: u64,
    /// Length of the index envelope in bytes.
    pub index_bytes: u32,
    /// Sectors of all its frames, including zero frames.
    pub sectors: u64,
    /// The chunks that it has frames for.
    pub chunks: ChunkRanges,
}

impl SegmentRef {
    /// Minimum bytes of an encoded reference.
    pub(crate) const MIN_BYTES: usize = wire::ID_BYTES + 32;
    /// Maximum bytes.
    pub(crate) const MAX_BYTES: usize = Self::MIN_BYTES + ChunkRanges::MAX_RANGE_BYTES;

    pub(crate) fn put(&self, out: &mut Vec<u8>) {
        wire::put_id(self.id.0, out);
        out.extend_from_slice(&self.bytes.to_le_bytes());
        out.extend_from_slice(&self.index_offset.to_le_bytes());
        out.extend_from_slice(&self.index_bytes.to_le_bytes());
        out.extend_from_slice(&self.sectors.to_le_bytes());
        self.chunks.put(out);
    }

    pub(crate) fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let id = SegmentId(fields.id()?);
        let bytes = fields.u64()?;
        let index_offset = fields.u64()?;
        let index_bytes = fields.u32()?;
        if index_offset.checked_add(u64::from(index_bytes)).is_none_or(|end| end > bytes) {
            return Err(fields.bad("segment index offset", index_offset));
        }
        let sectors = fields.u64()?;
        Ok(Self { id, bytes, index_offset, index_bytes, sectors, chunks: ChunkRanges::take(fields)? })
    }
}

/// Frames that were built separately from their segment: offsets count from the first of them.
#[derive(Debug, Default)]
pub struct PackedFrames {
    body: Vec<u8>,
    frames: Vec<Frame>,
}

impl PackedFrames {
    /// Returns the number of their stored bytes.
    pub fn stored_bytes(&self) -> usize {
        self.body.len()
    }
}

/// Collects the dirty sectors of one seal, lowest block first. Its bytes can be taken while it grows.
pub struct SegmentBuilder {
    /// Bytes of the object that were not taken yet.
    body: Vec<u8>,
    /// Number of bytes that were taken.
    taken: u64,
    frames: Vec<Frame>,
    compressor: zstd::bulk::Compressor<'static>,
}

impl Default for SegmentBuilder {
    fn default() -> Self {
        Self {
            body: Vec::new(),
            taken: 0,
            frames: Vec::new(),
            compressor: zstd::bulk::Compressor::new(ZSTD_LEVEL).expect("a fixed level that zstd knows"),
        }
    }
}

impl SegmentBuilder {
    /// Reserves space for bytes that accumulate until they are taken. A buffer that grows as needed may
    /// allocate twice its contents.
    pub fn reserve(&mut self, bytes: usize) {
        self.body.reserve_exact(bytes);
    }

    /// Adds the sectors `mask` of `block`; `bytes` are those sectors, lowest first.
    ///
    /// # Panics
    /// If `bytes` is not 4096 bytes for each sector of a non-empty `mask`, or blocks do not ascend.
    pub fn push(&mut self, block: Block, mask: Mask, bytes: &[u8]) {
        if !is_zero(bytes) {
            return self.push_data(block, mask, bytes);
        }
        assert!(!mask.is_empty() && bytes.len() == mask.count() as usize * SECTOR_BYTES as usize);
        let block = self.next_block(block);
        self.push_zeros(block, 1, mask);
    }

    /// Adds the sectors as a frame with bytes, even zeros.
    ///
    /// # Panics
    /// Like [`Self::push`].
    pub fn push_data(&mut self, block: Block, mask: Mask, bytes: &[u8]) {
        assert!(!mask.is_empty() && bytes.len() == mask.count() as usize * SECTOR_BYTES as usize);
        let hash = wire::checksum(bytes);
        let worth = bytes.len() - bytes.len() / LEAST_SAVING;
        let packed = self.compressor.compress(bytes).ok().filter(|packed| packed.len() < worth);
        let (codec, stored): (Codec, Cow<'_, [u8]>) = match packed {
            Some(packed) => (Codec::Zstd, packed.into()),
            None => (Codec::Raw, bytes.into()),
        };
        let block = self.next_block(block);
        self.push_frame(Frame { block, run: 1, mask, offset: 0, stored: 0, codec, hash }, &stored);
    }

    /// Takes the pushed frames, for [`Self::append`] of another builder. This one is empty then.
    ///
    /// # Panics
    /// If bytes were taken before.
    pub fn take_frames(&mut self) -> PackedFrames {
        assert!(self.taken == 0, "no bytes were taken before");
        self.body.shrink_to_fit();
        PackedFrames { body: std::mem::take(&mut self.body), frames: std::mem::take(&mut self.frames) }
    }

    /// Adds frames of another builder, with the same resulting bytes as if their blocks had been pushed here.
    ///
    /// # Panics
    /// If blocks do not ascend.
    pub fn append(&mut self, packed: PackedFrames) {
        let PackedFrames { body, frames } = packed;
        let begin = self.end();
        let mut frames = frames.into_iter().peekable();
        // A run of zeros may continue across the boundary.
        if let Some(first) = frames.next_if(|first| first.codec == Codec::Zero) {
            let block = self.next_block(Block(u64::from(first.block)));
            self.push_zeros(block, first.run, first.mask);
        }
        for frame in frames {
            let block = self.next_block(Block(u64::from(frame.block)));
            self.frames.push(Frame { block, offset: begin + frame.offset, ..frame });
        }
        self.body.extend_from_slice(&body);
    }

    /// Adds a frame of another segment in its stored form.
    ///
    /// # Panics
    /// If it has no bytes, or blocks do not ascend.
    pub fn push_stored(&mut self, frame: &Frame, stored: &[u8]) {
        assert!(!stored.is_empty() && stored.len() == frame.stored as usize);
        self.next_block(Block(u64::from(frame.block)));
        self.push_frame(*frame, stored);
    }

    fn push_frame(&mut self, frame: Frame, bytes: &[u8]) {
        let offset = self.end();
        self.body.extend_from_slice(bytes);
        let stored = u32::try_from(bytes.len()).expect("at most 128 KiB");
        self.frames.push(Frame { offset, stored, ..frame });
    }

    /// Returns the number of the next block to add.
    fn next_block(&self, block: Block) -> u32 {
        let block = u32::try_from(block.0).expect("MAX_SECTORS bounds the block number");
        assert!(self.frames.last().is_none_or(|last| last.block + last.run <= block), "blocks ascend");
        block
    }

    fn push_zeros(&mut self, block: u32, run: u32, mask: Mask) {
        if let Some(last) = self.frames.last_mut()
            && last.codec == Codec::Zero
            && last.mask == Mask::FULL
            && mask == Mask::FULL
            && last.block + last.run == block
        {
            last.run += run;
            return;
        }
        let offset = self.end();
        self.frames.push(Frame { block, run, mask, offset, stored: 0, codec: Codec::Zero, hash: [0; 16] });
    }

    /// Returns the byte offset of the next byte in the object.
    fn end(&self) -> u64 {
        self.taken + self.body.len() as u64
    }

    /// Returns the number of bytes that can be taken.
    pub fn ready(&self) -> usize {
        self.body.len()
    }

    /// Takes the next `length` bytes of the object, or all that are ready.
    pub fn take(&mut self, length: usize) -> Vec<u8> {
        let is_all = length >= self.body.len();
        let length = length.min(self.body.len());
        let mut rest = Vec::with_capacity(if is_all { 0 } else { self.body.capacity() });
        rest.extend_from_slice(&self.body[length..]);
        self.body.truncate(length);
        // The upload accounts for this builder's memory.
        self.body.shrink_to_fit();
        self.taken += length as u64;
        std::mem::replace(&mut self.body, rest)
    }

    /// Adds the index and the trailer, the last bytes to take. Returns the reference for a commit record,
    /// and the index. Nothing may be pushed afterwards.
    pub fn close(&mut self, id: SegmentId) -> (SegmentRef, FrameIndex) {
        let mut frames = std::mem::take(&mut self.frames);
        // The index may be cached for a long time.
        frames.shrink_to_fit();
        let index = FrameIndex { frames };
        let index_offset = self.end();
        self.body.reserve_exact(index.stored_bytes() + TRAILER_BYTES as usize);
        index.encode_at_end(&mut self.body);
        let index_bytes = u32::try_from(self.end() - index_offset).expect("an index is smaller than 4 GiB");
        let bytes = self.end() + TRAILER_BYTES;
        let of_frame = |frame: &Frame| u64::from(frame.run) * u64::from(frame.mask.count());
        let sectors = index.frames.iter().map(of_frame).sum();
        let chunks = chunk_ranges(&index.frames);
        let segment = SegmentRef { id, bytes, index_offset, index_bytes, sectors, chunks };
        self.body.extend_from_slice(&trailer(index_offset, index_bytes));
        (segment, index)
    }

    /// Returns the reference for a commit record, and all bytes that were not taken: the whole object if
    /// none were.
    pub fn finish(mut self, id: SegmentId) -> (SegmentRef, Vec<u8>) {
        let (segment, _index) = self.close(id);
        (segment, self.body)
    }
}

/// Returns the last bytes of the segment's object.
pub fn trailer(index_offset: u64, index_bytes: u32) -> [u8; TRAILER_BYTES as usize] {
    let mut out = [0; TRAILER_BYTES as usize];
    out[..4].copy_from_slice(b"HFSG");
    out[4..8].copy_from_slice(&index_bytes.to_le_bytes());
    out[8..].copy_from_slice(&index_offset.to_le_bytes());
    out
}

/// Returns the chunks that `frames` (ascending) touch.
fn chunk_ranges(frames: &[Frame]) -> ChunkRanges {
    ChunkRanges::around(frames.iter().map(|frame| {
        let first = frame.block / CHUNK_BLOCKS as u32;
        let last = (frame.block + (frame.run - 1)) / CHUNK_BLOCKS as u32;
        (first, last + 1 - first)
    }))
}

fn is_zero(bytes: &[u8]) -> bool {
    let (words, rest) = bytes.as_chunks::<16>();
    words.iter().all(|word| u128::from_ne_bytes(*word) == 0) && rest.iter().all(|byte| *byte == 0)
}

/// Memory of a frame while its segment is built, in bytes: in the index, and in its stored form.
pub const FRAME_MEMORY_BYTES: u64 = (size_of::<Frame>() + ENTRY_BYTES) as u64;

/// The index of one segment.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct FrameIndex {
    frames: Vec<Frame>,
}

impl FrameIndex {
    /// Creates the index of `frames`, ascending and apart.
    #[cfg(test)]
    pub(crate) fn of(frames: Vec<Frame>) -> Self {
        Self { frames }
    }

    /// Returns the size of its envelope in the segment, in bytes.
    fn stored_bytes(&self) -> usize {
        wire::ENVELOPE_BYTES + 4 + self.frames.len() * ENTRY_BYTES
    }

    fn encode_at_end(&self, out: &mut Vec<u8>) {
        let length = 4 + self.frames.len() * ENTRY_BYTES;
        wire::enclose_at_end(out, Kind::SegmentIndex, length, |out| {
            let count = u32::try_from(self.frames.len()).expect("fewer than 2^32 frames");
            out.extend_from_slice(&count.to_le_bytes());
            for frame in &self.frames {
                out.extend_from_slice(&frame.block.to_le_bytes());
                out.extend_from_slice(&frame.run.to_le_bytes());
                out.extend_from_slice(&frame.mask.0.to_le_bytes());
                out.extend_from_slice(&frame.stored.to_le_bytes());
                out.extend_from_slice(&frame.offset.to_le_bytes());
                out.extend_from_slice(&[frame.codec as u8, 0, 0, 0, 0, 0, 0, 0]);
                out.extend_from_slice(&frame.hash);
            }
        });
    }

    /// Reads an index envelope.
    ///
    /// # Errors
    /// [`DecodeError`] names the defect.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let mut fields = Reader::new(WHAT, wire::open(Kind::SegmentIndex, WHAT, bytes)?);
        let count = fields.count(ENTRY_BYTES)?;
        let mut frames = Vec::with_capacity(count);
        let mut free_from = 0u64;
        for _ in 0..count {
            let (block, run, mask, stored) =
                (fields.u32()?, fields.u32()?, Mask(fields.u32()?), fields.u32()?);
            let offset = fields.u64()?;
            let codec = match fields.array::<8>()? {
                [0, ..] => Codec::Zero,
                [1, ..] => Codec::Raw,
                [2, ..] => Codec::Zstd,
                [other, ..] => return Err(fields.bad("codec", u64::from(other))),
            };
            let hash = fields.array()?;
            let is_zero_run = codec == Codec::Zero && mask == Mask::FULL;
            if u64::from(block) < free_from || run == 0 || (run > 1 && !is_zero_run) {
                return Err(fields.bad("block run", u64::from(block)));
            }
            free_from = u64::from(block) + u64::from(run);
            if mask.is_empty() || free_from > 1 << 32 {
                return Err(fields.bad("sector mask", u64::from(mask.0)));
            }
            if offset >= MAX_OFFSET {
                return Err(fields.bad("offset", offset));
            }
            if u64::from(stored) > BLOCK_BYTES || (stored == 0) != (codec == Codec::Zero) {
                return Err(fields.bad("stored bytes", u64::from(stored)));
            }
            frames.push(Frame { block, run, mask, offset, stored, codec, hash });
        }
        fields.end()?;
        Ok(Self { frames })
    }

    /// Returns the frame that covers sectors of `block`, if any.
    pub fn find(&self, block: Block) -> Option<&Frame> {
        let block = u32::try_from(block.0).ok()?;
        let behind = self.frames.partition_point(|frame| frame.block <= block);
        let frame = &self.frames[behind.checked_sub(1)?];
        (block - frame.block < frame.run).then_some(frame)
    }

    /// Returns all frames, lowest block first.
    pub fn frames(&self) -> &[Frame] {
        &self.frames
    }

    /// Returns its size in memory, for a cache bounded by bytes.
    pub fn weight(&self) -> usize {
        self.frames.len() * size_of::<Frame>()
    }
}

thread_local! {
    /// The decompressor is reused, because creating one costs more than decompressing a small frame.
    static DECOMPRESSOR: RefCell<zstd::bulk::Decompressor<'static>> = RefCell::default();
}

/// Returns the sectors of `frame.mask`, lowest first, from the frame's stored bytes.
///
/// # Errors
/// [`FrameError`]: the bytes differ from the written ones and must not be served.
pub fn unpack<'a>(frame: &Frame, stored: &'a [u8]) -> Result<Cow<'a, [u8]>, FrameError> {
    let block = frame.block;
    if stored.len() != frame.stored as usize {
        return Err(FrameError::Length { block, have: stored.len(), need: frame.stored as usize });
    }
    let plain: Cow<'_, [u8]> = match frame.codec {
        Codec::Zero => return Ok(vec![0; frame.bytes()].into()),
        Codec::Raw => stored.into(),
        Codec::Zstd => DECOMPRESSOR
            .with_borrow_mut(|decompressor| decompressor.decompress(stored, frame.bytes()))
            .map_err(|source| FrameError::Compression { block, source })?
            .into(),
    };
    let is_damaged = || safeguard(CheckFrameChecksum) && wire::checksum(&plain) != frame.hash;
    if plain.len() != frame.bytes() || is_damaged() {
        return Err(FrameError::Checksum { block });
    }
    Ok(plain)
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Place, Seq};

    use super::*;

    fn noise(seed: u8, len: usize) -> Vec<u8> {
        let mut out = vec![0; len];
        blake3::Hasher::new().update(&[seed]).finalize_xof().fill(&mut out);
        out
    }

    #[test]
    fn what_is_pushed_comes_back_and_scattered_sectors_cost_their_size() {
        let mut builder = SegmentBuilder::default();
        let (scattered, text) = (noise(1, 2 * 4096), b"holdfast".repeat(32 * 512));
        builder.push(Block(3), Mask(0b101), &scattered);
        builder.push(Block(5000), Mask::FULL, &text);
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
        assert_eq!(segment.chunks.ranges(), [(0, 1), (4, 1)]);
        assert_eq!(segment.bytes, object.len() as u64);
        assert!(
            object.len() < 2 * 4096 + 4096,
            "4 KiB writes must not upload whole blocks: {}",
            object.len()
        );
        let at = segment.index_offset as usize;
        let index = FrameIndex::decode(&object[at..at + segment.index_bytes as usize]).unwrap();
        for (block, expected) in [(3, &scattered), (5000, &text)] {
            let frame = index.find(Block(block)).unwrap();
            let stored = &object[frame.offset as usize..][..frame.stored as usize];
            assert_eq!(&unpack(frame, stored).unwrap()[..], &expected[..]);
        }
        assert_eq!(index.find(Block(4)), None);
        assert_eq!(index.find(Block(2)), None);
    }

    #[test]
    fn parts_taken_early_make_the_same_object() {
        let fill = |builder: &mut SegmentBuilder, block: u64| {
            builder.push(Block(block), Mask::FULL, &noise(block as u8, BLOCK_BYTES as usize));
            builder.push(Block(block + 1), Mask(1), &[0; 4096]);
        };
        let id = SegmentId::new(Place::until(Seq(1)), 1, [0; 10]);
        let mut whole = SegmentBuilder::default();
        (0..20).step_by(2).for_each(|block| fill(&mut whole, block));
        let (segment, object) = whole.finish(id);
        let (mut builder, mut parts) = (SegmentBuilder::default(), Vec::new());
        for block in (0..20).step_by(2) {
            fill(&mut builder, block);
            while builder.ready() >= 100_000 {
                parts.push(builder.take(100_000));
                assert_eq!(parts.last().unwrap().capacity(), 100_000, "its memory is what it counts for");
            }
        }
        let (in_parts, index) = builder.close(id);
        parts.push(builder.take(100));
        parts.push(builder.take(usize::MAX));
        assert_eq!((in_parts, parts.concat() == object), (segment.clone(), true));
        let at = segment.index_offset as usize;
        assert_eq!(FrameIndex::decode(&object[at..at + segment.index_bytes as usize]).unwrap(), index);
    }

    #[test]
    fn frames_made_apart_make_the_same_object() {
        let blocks: Vec<(u64, Mask, Vec<u8>)> = (0..40)
            .map(|block| match block % 10 {
                0 => (block, Mask(0b101), noise(block as u8, 2 * 4096)),
                1 => (block, Mask::FULL, b"holdfast".repeat(BLOCK_BYTES as usize / 8)),
                2 => (block, Mask(1), vec![0; 4096]),
                _ => (block, Mask::FULL, vec![0; BLOCK_BYTES as usize]),
            })
            .collect();
        let id = SegmentId::new(Place::until(Seq(1)), 1, [0; 10]);
        let mut whole = SegmentBuilder::default();
        blocks.iter().for_each(|(block, mask, bytes)| whole.push(Block(*block), *mask, bytes));
        let whole = whole.finish(id);
        for apart in 1..12 {
            let (mut builder, mut packer) = (SegmentBuilder::default(), SegmentBuilder::default());
            for blocks in blocks.chunks(apart) {
                blocks.iter().for_each(|(block, mask, bytes)| packer.push(Block(*block), *mask, bytes));
                builder.append(packer.take_frames());
            }
            assert!(builder.finish(id) == whole, "{apart} at a time");
        }
    }

    #[test]
    fn neighbouring_zero_blocks_are_one_entry_without_bytes() {
        let mut builder = SegmentBuilder::default();
        let zeros = vec![0; BLOCK_BYTES as usize];
        for block in 10..2000 {
            builder.push(Block(block), Mask::FULL, &zeros);
        }
        let (segment, object) = builder.finish(SegmentId::new(Place::until(Seq(1)), 1, [0; 10]));
        assert_eq!(segment.chunks.ranges(), [(0, 2)]);
        let index = FrameIndex::decode(&object[segment.index_offset as usize..object.len() - 16]).unwrap();
        assert_eq!(index.frames().len(), 1);
        assert_eq!(index.find(Block(1999)).map(|f| (f.block, f.run)), Some((10, 1990)));
        assert_eq!(index.find(Block(2000)), None);
    }

    #[test]
    fn a_bent_frame_is_refused_and_named() {
        for (data, mask) in [(noise(2, 4096), Mask(1)), (b"text".repeat(1024), Mask(2))] {
            let mut builder = SegmentBuilder::default();
            builder.push(Block(7), mask, &data);
            let frame = builder.frames[0];
            for at in 0..frame.stored as usize {
                let mut altered = builder.body.clone();
                altered[at] ^= 0x40;
                let refused = unpack(&frame, &altered).expect_err("a changed byte");
                assert!(refused.to_string().contains("block 7"));
            }
            assert!(unpack(&frame, &builder.body[1..]).is_err());
        }
    }
}
