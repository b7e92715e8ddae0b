//! Log records: each is one immutable object, and creating it is the commit.
//!
//! Payload inside the envelope (`wire`), all little-endian:
//! ```text
//! u8 length + text   volume id
//! u64 seq   u64 epoch   u8[16] nonce   u64 unix milliseconds   u8 body kind
//! fork (6): u64 sectors, the beginning (`fork`), labels as below
//! create (1): u64 sectors, n x (u8 length + text name, u8 length + text value) to the end: labels (`labels`)
//! attach (2): u64 sectors, u8 length + text node, displaced writer
//! change (3): u8 invalidated sides (1 A, 2 B), u64 generation, u32 n, n x segment reference,
//!             set of chunks (`chunk_set`), u32 m, m x merge, u64 place before which merges are closed, changes
//!             of the list of snapshots (`snapshot`), u64 sectors (0: unchanged)
//! detach (4): nothing. A second envelope may follow that of the record: the root, which is the checkpoint
//!             as of the seq before it (`manifest`)
//! delete (5): nothing: the volume's tombstone
//! ```
//! A displaced writer: `u64 epoch`, 0 if none; otherwise followed by `u8 length + text node, u64 unix
//! milliseconds`.
//! A merge: `u8 owner, u64 place, u128 ulid` of the newest input, the same of the oldest, run reference of
//! the output.
//! A segment reference is drawn in `segment.rs`, a run reference, after its `u8 owner`, in `index.rs`.

use holdfast_types::{CHUNK_SECTORS, Epoch, Nonce, Place, PlacedId, Seq, SnapshotUid, VolumeId};

use crate::chunk_set::ChunkSet;
use crate::displaced::Displaced;
use crate::fork::Fork;
use crate::index::RunRef;
use crate::limit::{MAX_DETACH_ROOT_BYTES, MAX_SECTORS, MAX_SNAPSHOTS};
use crate::manifest::Manifest;
use crate::segment::SegmentRef;
use crate::side::SideSet;
use crate::snapshot::SnapshotChange;
use crate::wire::{self, DecodeError, Kind, Reader};

pub use labels::{Labels, Origin};

mod labels;

const WHAT: &str = "log record";
/// Maximum bytes of the fields before a body, and of a body without its counted parts: mostly the longest
/// volume id.
const MAX_FIELD_BYTES: u64 = 256;
/// Maximum segments in a running writer's record.
const WRITER_SEGMENTS: usize = 1;
/// Maximum merges in a running writer's record: one of each kind.
const WRITER_MERGES: usize = 2;

/// One entry of a volume's log.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Record {
    /// The volume whose log it is.
    pub volume: VolumeId,
    /// Its position in the log.
    pub seq: Seq,
    /// The writer's epoch; zero in the records of the control plane.
    pub epoch: Epoch,
    /// The writer's nonce, chosen at its attach.
    pub nonce: Nonce,
    /// Time of its creation, milliseconds since 1970 by the writer's clock; for people, never for
    /// decisions.
    pub unix_ms: u64,
    /// Its content.
    pub body: Body,
}

/// The content of a record.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Body {
    /// Creates the volume with this many sectors. The record's nonce is the volume's identity: it
    /// distinguishes volumes of the same name in two stores or at different times.
    Create {
        /// Logical size.
        sectors: u64,
        /// The snapshot of another volume with which it begins.
        source: Option<Box<Fork>>,
        /// Purpose of the volume: for people and for a new cluster, never for the engine.
        labels: Labels,
    },
    /// Attaches a writer; every older writer is fenced.
    Attach {
        /// Logical size from here on; never smaller than before.
        sectors: u64,
        /// The writer's node: only the same node may attach the volume again without permission.
        node: String,
        /// The writer that the node replaced when it attached the volume. The node's later attaches with the
        /// same data repeat the name.
        displaced: Option<Displaced>,
    },
    /// Commits a seal, merges runs, or changes the list of snapshots. While no writer is attached, the
    /// control plane also creates such records, with epoch zero, which change only that list.
    Change {
        /// The segments with the data of the seal: no block is in two of them.
        segments: Vec<SegmentRef>,
        /// Chunks that hold data from here on and not before, if the chunk ranges of a segment are not exact.
        chunks: ChunkSet,
        /// Sides whose data is invalid from here on after a loss of the host, because the writer's own
        /// disk failed a sync. All data ever flushed on them is committed.
        invalidated: SideSet,
        /// The writer's durable map had a header of this generation, or a later one, before this record
        /// was created. A map with an older header lacks data of the commit.
        generation: u64,
        /// Merges of runs, in the list as it is before the segments are added.
        merges: Vec<Merge>,
        /// Merges with places below this are closed: later records cannot add them. Zero closes none.
        closed: Place,
        /// Changes of the list of snapshots. The registered snapshot includes everything that the record
        /// adds.
        snapshots: SnapshotChange,
        /// Logical size from here on; never smaller than before. `None` if it does not change.
        sectors: Option<u64>,
    },
    /// Releases the volume after the writer's last commit.
    Detach {
        /// The whole state before the record: a reader for which this is the last record needs no other.
        /// `None` if the state is large, or an earlier version created the record.
        root: Option<Box<Manifest>>,
    },
    /// Deletes the volume permanently.
    Delete,
}

impl Body {
    /// Returns a change of only the list of snapshots.
    pub fn of_snapshots(snapshots: SnapshotChange) -> Self {
        Self::Change {
            segments: Vec::new(),
            chunks: ChunkSet::default(),
            invalidated: SideSet::NONE,
            generation: 0,
            merges: Vec::new(),
            closed: Place::default(),
            snapshots,
            sectors: None,
        }
    }

    /// Returns the release of a volume whose state is `manifest`.
    pub fn detach(manifest: &Manifest) -> Self {
        let fits = manifest.encode_checkpoint().len() <= MAX_DETACH_ROOT_BYTES;
        Self::Detach { root: fits.then(|| Box::new(manifest.as_root())) }
    }

    /// Removes the snapshot that the record would register.
    pub fn take_no_snapshot(&mut self) {
        match self {
            Self::Change { snapshots, .. } => snapshots.taken = None,
            Self::Create { .. } | Self::Attach { .. } | Self::Detach { .. } | Self::Delete => {}
        }
    }

    /// Returns true if both are equal, except that one of them may register a snapshot.
    pub fn is_same_but_snapshot(&self, other: &Self) -> bool {
        let [mut one, mut other] = [self.clone(), other.clone()];
        one.take_no_snapshot();
        other.take_no_snapshot();
        one == other
    }

    /// Returns true if the record merges runs.
    pub fn has_merges(&self) -> bool {
        match self {
            Self::Change { merges, .. } => !merges.is_empty(),
            Self::Create { .. } | Self::Attach { .. } | Self::Detach { .. } | Self::Delete => false,
        }
    }

    /// Returns the uid of the snapshot that the record registers.
    pub fn snapshot_taken(&self) -> Option<SnapshotUid> {
        match self {
            Self::Change { snapshots, .. } => snapshots.taken,
            Self::Create { .. } | Self::Attach { .. } | Self::Detach { .. } | Self::Delete => None,
        }
    }
}

/// Neighbours of a volume's list of runs, and the run that replaces them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Merge {
    /// The newest input.
    pub newest: PlacedId,
    /// The oldest input.
    pub oldest: PlacedId,
    /// The run with equivalent content.
    pub output: RunRef,
}

impl Merge {
    /// Minimum bytes of an encoded merge.
    const MIN_BYTES: usize = 2 * wire::ID_BYTES + RunRef::MIN_BYTES;

    /// Maximum bytes.
    const MAX_BYTES: usize = 2 * wire::ID_BYTES + RunRef::MAX_BYTES;

    fn put(&self, out: &mut Vec<u8>) {
        wire::put_id(self.newest, out);
        wire::put_id(self.oldest, out);
        self.output.put(out);
    }

    fn take(fields: &mut Reader<'_>) -> Result<Self, DecodeError> {
        let (newest, oldest) = (fields.id()?, fields.id()?);
        Ok(Self { newest, oldest, output: RunRef::take(fields)? })
    }
}

impl Body {
    /// Returns the creation of a volume with `sectors` sectors, without labels.
    pub fn create(sectors: u64) -> Self {
        Self::Create { sectors, source: None, labels: Labels::default() }
    }
}

impl Record {
    /// Returns the bytes to store.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::new();
        wire::put_text(&mut out, self.volume.as_str());
        out.extend_from_slice(&self.seq.0.to_le_bytes());
        out.extend_from_slice(&self.epoch.0.to_le_bytes());
        out.extend_from_slice(&self.nonce.0);
        out.extend_from_slice(&self.unix_ms.to_le_bytes());
        match &self.body {
            Body::Create { sectors, source, labels } => {
                out.push(if source.is_some() { 6 } else { 1 });
                out.extend_from_slice(&sectors.to_le_bytes());
                if let Some(fork) = source {
                    fork.put(&mut out);
                }
                labels.put(&mut out);
            }
            Body::Attach { sectors, node, displaced } => {
                out.push(2);
                out.extend_from_slice(&sectors.to_le_bytes());
                wire::put_text(&mut out, node);
                Displaced::put(displaced.as_ref(), &mut out);
            }
            Body::Change {
                segments,
                chunks,
                invalidated,
                generation,
                merges,
                closed,
                snapshots,
                sectors,
            } => {
                out.push(3);
                out.push(invalidated.bits());
                out.extend_from_slice(&generation.to_le_bytes());
                let count = u32::try_from(segments.len()).expect("a seal makes few segments");
                out.extend_from_slice(&count.to_le_bytes());
                for segment in segments {
                    segment.put(&mut out);
                }
                chunks.put_sparse(&mut out);
                let count = u32::try_from(merges.len()).expect("one merge is in progress");
                out.extend_from_slice(&count.to_le_bytes());
                for merge in merges {
                    merge.put(&mut out);
                }
                out.extend_from_slice(&closed.stored().to_le_bytes());
                snapshots.put(&mut out);
                out.extend_from_slice(&sectors.unwrap_or(0).to_le_bytes());
            }
            Body::Detach { .. } => out.push(4),
            Body::Delete => out.push(5),
        }
        let mut whole = wire::enclose(Kind::Record, &out);
        if let Body::Detach { root: Some(root) } = &self.body {
            whole.extend_from_slice(&root.encode_checkpoint());
        }
        whole
    }

    /// Returns the maximum bytes of a running writer's record, for `sectors` sectors, envelopes included.
    pub fn max_writer_bytes(sectors: u64) -> u64 {
        let counted = WRITER_SEGMENTS * SegmentRef::MAX_BYTES
            + WRITER_MERGES * Merge::MAX_BYTES
            + MAX_SNAPSHOTS * size_of::<Seq>();
        let chunks = ChunkSet::max_sparse_bytes(sectors.div_ceil(CHUNK_SECTORS));
        let body = (counted as u64 + chunks).max(MAX_DETACH_ROOT_BYTES as u64);
        wire::ENVELOPE_BYTES as u64 + MAX_FIELD_BYTES + body
    }

    /// Returns the bytes of the first record in `bytes`, and of its root. `None` if it is missing or
    /// truncated; its checksum is not verified.
    pub fn first_in(bytes: &[u8]) -> Option<&[u8]> {
        let record = wire::enclosed_bytes(bytes)?;
        let root = wire::enclosed_bytes(&bytes[record..]).unwrap_or(0);
        Some(&bytes[..record + root])
    }

    /// Reads a stored record.
    ///
    /// # Errors
    /// [`DecodeError`] names the defect; no part of the bytes may be used then.
    pub fn decode(bytes: &[u8]) -> Result<Self, DecodeError> {
        let payload = wire::open(Kind::Record, WHAT, bytes)?;
        let behind = &bytes[wire::ENVELOPE_BYTES + payload.len()..];
        let mut fields = Reader::new(WHAT, payload);
        let name = fields.text()?;
        let volume =
            VolumeId::try_from(name).map_err(|bad| fields.bad("volume id length", bad.0.len() as u64))?;
        let seq = Seq(fields.u64()?);
        let epoch = Epoch(fields.u64()?);
        let nonce = Nonce(fields.array()?);
        let unix_ms = fields.u64()?;
        let body = match fields.u8()? {
            kind @ (1 | 6) => {
                let sectors = take_sectors(&mut fields)?;
                let source = if kind == 6 { Some(Box::new(Fork::take(&mut fields)?)) } else { None };
                Body::Create { sectors, source, labels: Labels::take(&mut fields)? }
            }
            2 => Body::Attach {
                sectors: take_sectors(&mut fields)?,
                node: fields.text()?,
                displaced: Displaced::take(&mut fields)?,
            },
            3 => {
                let bits = fields.u8()?;
                let invalidated = SideSet::from_bits(bits)
                    .ok_or_else(|| fields.bad("invalidated sides", u64::from(bits)))?;
                let generation = fields.u64()?;
                let count = fields.count(SegmentRef::MIN_BYTES)?;
                let segments = (0..count).map(|_| SegmentRef::take(&mut fields)).collect::<Result<_, _>>()?;
                let chunks = ChunkSet::take_sparse(&mut fields)?;
                let count = fields.count(Merge::MIN_BYTES)?;
                let merges = (0..count).map(|_| Merge::take(&mut fields)).collect::<Result<_, _>>()?;
                let closed = Place::from_stored(fields.u64()?);
                let snapshots = SnapshotChange::take(&mut fields)?;
                let sectors = Some(take_sectors(&mut fields)?).filter(|sectors| *sectors > 0);
                Body::Change { segments, chunks, invalidated, generation, merges, closed, snapshots, sectors }
            }
            4 => Body::Detach { root: take_root(&fields, &volume, seq, behind)? },
            5 => Body::Delete,
            other => return Err(fields.bad("body kind", u64::from(other))),
        };
        fields.end()?;
        Ok(Self { volume, seq, epoch, nonce, unix_ms, body })
    }
}

/// Reads the root of the detach record at `seq`, if bytes follow the record.
fn take_root(
    fields: &Reader<'_>,
    volume: &VolumeId,
    seq: Seq,
    behind: &[u8],
) -> Result<Option<Box<Manifest>>, DecodeError> {
    if behind.is_empty() {
        return Ok(None);
    }
    let root = Manifest::decode_checkpoint(behind)?;
    if root.volume() != volume {
        return Err(fields.bad("length of the root's volume id", root.volume().as_str().len() as u64));
    }
    if root.seq().next() != seq {
        return Err(fields.bad("seq of the root", root.seq().0));
    }
    Ok(Some(Box::new(root)))
}

fn take_sectors(fields: &mut Reader<'_>) -> Result<u64, DecodeError> {
    let sectors = fields.u64()?;
    if sectors > MAX_SECTORS { Err(fields.bad("sectors", sectors)) } else { Ok(sectors) }
}

#[cfg(test)]
mod tests {
    use holdfast_types::{Chunk, RunId, SegmentId};

    use super::*;
    use crate::chunk_ranges::ChunkRanges;

    fn record(body: Body) -> Record {
        Record {
            volume: "v".parse().unwrap(),
            seq: Seq(9),
            epoch: Epoch(2),
            nonce: Nonce([7; 16]),
            unix_ms: 1,
            body,
        }
    }

    fn segment() -> SegmentRef {
        SegmentRef {
            id: SegmentId::new(Place::until(Seq(9)), 1, [2; 10]),
            bytes: 100,
            index_offset: 40,
            index_bytes: 60,
            sectors: 5,
            chunks: ChunkRanges::around([(0, 1), (5, 3)]),
        }
    }

    fn merge() -> Merge {
        let output = RunRef {
            id: RunId::new(Place::until(Seq(9)), 1, [3; 10]),
            level: 1,
            bytes: 100,
            head_offset: 0,
            head_bytes: 50,
            sectors: 5,
            chunks: ChunkRanges::around([(0, 9)]),
        };
        Merge { newest: segment().id.0, oldest: output.id.0, output }
    }

    fn commit(segment: SegmentRef) -> Body {
        Body::Change {
            segments: vec![segment],
            chunks: ChunkSet::default(),
            invalidated: SideSet::NONE,
            generation: 1,
            merges: vec![],
            closed: Place::default(),
            snapshots: SnapshotChange::default(),
            sectors: None,
        }
    }

    #[test]
    fn every_body_survives_its_bytes() {
        let displaced = Displaced { epoch: Epoch(1), node: "b".into(), since_unix_ms: 5 };
        let mut chunks = ChunkSet::default();
        chunks.add(Chunk(300));
        let mut labels = Labels::default();
        assert!(labels.insert("volume", "data"));
        for body in [
            Body::create(3),
            Body::Create { sectors: 3, source: None, labels },
            Body::Attach { sectors: 4, node: "a".into(), displaced: None },
            Body::Attach { sectors: 4, node: "a".into(), displaced: Some(displaced) },
            commit(segment()),
            Body::Change {
                segments: vec![segment(), segment()],
                chunks,
                invalidated: SideSet::BOTH,
                generation: 7,
                merges: vec![merge()],
                closed: Place::first_merge(Epoch(2)).next(),
                snapshots: SnapshotChange {
                    taken: Some(SnapshotUid([5; 16])),
                    dropped: vec![Seq(2), Seq(7)],
                },
                sectors: Some(9),
            },
            Body::of_snapshots(SnapshotChange { taken: None, dropped: vec![Seq(3)] }),
            Body::Detach { root: None },
            Body::detach(&before()),
            Body::Delete,
        ] {
            let whole = record(body);
            assert_eq!(Record::decode(&whole.encode()), Ok(whole));
        }
    }

    /// Returns the state that the records of these tests follow.
    fn before() -> Manifest {
        let mut manifest = Manifest::empty("v".parse().unwrap());
        let attach = Body::Attach { sectors: 1 << 23, node: "n".into(), displaced: None };
        let commits = (3..9).map(|_| commit(segment()));
        for (seq, body) in (1..).zip([Body::create(1 << 23), attach].into_iter().chain(commits)) {
            let epoch = Epoch(if seq == 1 { 0 } else { 2 });
            manifest.apply(&Record { seq: Seq(seq), epoch, ..record(body) }).unwrap();
        }
        manifest
    }

    #[test]
    fn a_root_gives_the_state_after_its_detach() {
        let mut manifest = before();
        let detach = Record::decode(&record(Body::detach(&manifest)).encode()).unwrap();
        manifest.apply(&detach).unwrap();
        let Body::Detach { root: Some(root) } = &detach.body else { panic!("{detach:?}") };
        let read = Manifest::clone(root).detached_by(&detach, Seq(4)).unwrap();
        assert_eq!(read.checkpointed(), Seq(4), "records are counted from the checkpoint");
        assert_eq!(read.encode_checkpoint(), manifest.encode_checkpoint());
        assert!(!read.is_attached() && read.runs().len() == 6);
    }

    /// Earlier versions accept the record, whose bytes are those that they wrote.
    #[test]
    fn a_root_changes_no_byte_of_its_record() {
        let (plain, whole) =
            (record(Body::Detach { root: None }).encode(), record(Body::detach(&before())).encode());
        assert_eq!(whole[..plain.len()], plain);
        assert_eq!(whole[plain.len()..], before().encode_checkpoint());
    }

    #[test]
    fn a_damaged_root_or_one_of_another_place_is_refused() {
        let whole = record(Body::detach(&before())).encode();
        let plain = record(Body::Detach { root: None }).encode().len();
        for at in plain..whole.len() {
            let mut altered = whole.clone();
            altered[at] ^= 1;
            assert!(Record::decode(&altered).is_err(), "byte {at}");
            assert!(at == plain || Record::decode(&whole[..at]).is_err(), "cut at {at}");
        }
        let refused = |record: Record| Record::decode(&record.encode()).unwrap_err().to_string();
        let detach = record(Body::detach(&before()));
        let later = Record { seq: Seq(10), ..detach.clone() };
        assert_eq!(refused(later), "log record: seq of the root cannot be 8");
        let elsewhere = Record { volume: "other".parse().unwrap(), ..detach };
        assert_eq!(refused(elsewhere), "log record: length of the root's volume id cannot be 1");
    }

    /// The node reserves disk space for it: a commit must not need the space that it frees.
    #[test]
    fn the_largest_record_of_a_writer_fits_its_bound() {
        let runs = || ChunkRanges::around((0..200).map(|run| (run * 2, 1)));
        let segment = || SegmentRef { chunks: runs(), ..segment() };
        let merge = || Merge { output: RunRef { chunks: runs(), ..merge().output }, ..merge() };
        for sectors in [1, 1 << 23, MAX_SECTORS] {
            let mut chunks = ChunkSet::default();
            (0..sectors.div_ceil(CHUNK_SECTORS)).for_each(|chunk| chunks.add(Chunk(chunk)));
            let dropped = (0..MAX_SNAPSHOTS as u64).map(Seq).collect();
            let change = Body::Change {
                segments: vec![segment()],
                chunks,
                invalidated: SideSet::BOTH,
                generation: u64::MAX,
                merges: vec![merge(), merge()],
                closed: Place::until(Seq(u64::MAX)),
                snapshots: SnapshotChange { taken: Some(SnapshotUid([5; 16])), dropped },
                sectors: Some(sectors),
            };
            let volume: VolumeId = "v".repeat(63).parse().unwrap();
            let change = Record { volume: volume.clone(), ..record(change) }.encode().len() as u64;
            let detach = Record { volume, ..record(Body::Detach { root: None }) }.encode().len() as u64;
            let most = Record::max_writer_bytes(sectors);
            assert!(change <= most && detach + MAX_DETACH_ROOT_BYTES as u64 <= most, "{sectors} sectors");
            assert!(most <= change.max(detach + MAX_DETACH_ROOT_BYTES as u64) + MAX_FIELD_BYTES, "{most}");
        }
    }

    #[test]
    fn a_record_is_found_in_front_of_other_bytes() {
        for body in [commit(segment()), Body::Detach { root: None }, Body::detach(&before())] {
            let whole = record(body).encode();
            let behind =
                [&whole[..], &[0; wire::ENVELOPE_BYTES], b"HFST and what an older record left"].concat();
            for bytes in [&whole, &behind] {
                assert_eq!(Record::first_in(bytes), Some(&whole[..]));
            }
            assert_eq!(Record::first_in(&[]), None);
            assert_eq!(Record::first_in(&[0; 100]), None);
        }
        let plain = record(commit(segment())).encode();
        assert_eq!(Record::first_in(&plain[..plain.len() - 1]), None);
    }

    #[test]
    fn a_large_root_is_left_out() {
        let mut manifest = before();
        let runs: Vec<(u32, u32)> = (0..64).map(|run| (run * 2, 1)).collect();
        let large = SegmentRef {
            id: SegmentId::new(Place::until(Seq(999)), 1, [2; 10]),
            chunks: ChunkRanges::around(runs),
            ..segment()
        };
        while manifest.encode_checkpoint().len() <= MAX_DETACH_ROOT_BYTES {
            assert!(matches!(Body::detach(&manifest), Body::Detach { root: Some(_) }));
            manifest.apply(&Record { seq: manifest.seq().next(), ..record(commit(large.clone())) }).unwrap();
        }
        assert_eq!(Body::detach(&manifest), Body::Detach { root: None });
    }

    #[test]
    fn a_segment_whose_index_lies_outside_it_is_refused() {
        let altered = SegmentRef { index_bytes: 61, ..segment() };
        let refused = Record::decode(&record(commit(altered)).encode()).unwrap_err();
        assert_eq!(refused.to_string(), "log record: segment index offset cannot be 40");
    }

    #[test]
    fn sizes_that_no_volume_has_are_refused() {
        let sectors = MAX_SECTORS + 1;
        let grows = |mut body: Body| {
            if let Body::Change { sectors: size, .. } = &mut body {
                *size = Some(sectors);
            }
            body
        };
        let attach = Body::Attach { sectors, node: String::new(), displaced: None };
        for body in [Body::create(sectors), attach, grows(commit(segment()))] {
            let refused = Record::decode(&record(body).encode()).unwrap_err();
            assert_eq!(refused.to_string(), "log record: sectors cannot be 137438953473");
        }
    }
}
