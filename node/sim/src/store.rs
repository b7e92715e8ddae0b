//! A simulated object store: create-once log records, checkpoints, segments; PUTs that arrive late.

use std::collections::BTreeMap;
use std::rc::Rc;

use holdfast_engine::action::DirtyBlock;
use holdfast_engine::compose::{compose, place};
use holdfast_engine::manifest::Manifest;
use holdfast_engine::record::{Body, Record, SegmentRef};
use holdfast_engine::segment::{FrameIndex, SegmentBuilder, unpack};
use holdfast_types::{BLOCK_BYTES, BLOCK_SECTORS, Block, Nonce, SECTOR_BYTES, SegmentId, Seq, VolumeId};

use crate::disk::Stamp;
use crate::expect::Cut;
use crate::invariant::Invariant;

pub(crate) struct Segment {
    pub(crate) object: Vec<u8>,
    index: FrameIndex,
    cut: Rc<Cut>,
}

/// A writer's record that came into the log.
pub(crate) struct Landed {
    /// Whose.
    pub(crate) nonce: Nonce,
    /// What it captured, of a commit; `None` of an attach.
    pub(crate) commit: Option<Rc<Cut>>,
}

/// The bucket.
pub(crate) struct Store {
    volume: VolumeId,
    pub(crate) log: BTreeMap<u64, Vec<u8>>,
    pub(crate) checkpoints: BTreeMap<u64, Vec<u8>>,
    pub(crate) segments: BTreeMap<SegmentId, Segment>,
    /// PUTs of log records on their way: nobody waits for their answer any more.
    pub(crate) late: Vec<(Seq, Vec<u8>)>,
    /// Records that nobody took note of yet.
    pub(crate) landed: Vec<Landed>,
    pub(crate) requests: u64,
}

impl Store {
    pub(crate) fn new(volume: VolumeId, sectors: u64) -> Self {
        let mut store = Self {
            volume: volume.clone(),
            log: BTreeMap::new(),
            checkpoints: BTreeMap::new(),
            segments: BTreeMap::new(),
            late: Vec::new(),
            landed: Vec::new(),
            requests: 0,
        };
        let create = Record {
            volume,
            seq: Seq::FIRST,
            epoch: Default::default(),
            nonce: Nonce::default(),
            unix_ms: 0,
            body: Body::Create { sectors },
        };
        assert!(store.create(Seq::FIRST, &create.encode()));
        store
    }

    /// Creates `log/<seq>` unless it is there; says whether this PUT made it.
    pub(crate) fn create(&mut self, seq: Seq, bytes: &[u8]) -> bool {
        self.requests += 1;
        if self.log.contains_key(&seq.0) {
            return false;
        }
        let record = Record::decode(bytes).expect("writers send whole records");
        Invariant::LogIsAChain
            .check(record.seq == seq, || format!("record {} is to stand at {}", record.seq.0, seq.0));
        match &record.body {
            Body::Commit(segment) => {
                let Some(stored) = self.segments.get(&segment.id) else {
                    Invariant::NothingReferencedIsMissing
                        .broken("a commit names a segment that was never stored")
                };
                self.landed.push(Landed { nonce: record.nonce, commit: Some(stored.cut.clone()) });
            }
            Body::Attach { .. } => self.landed.push(Landed { nonce: record.nonce, commit: None }),
            Body::Create { .. } | Body::Detach | Body::Delete => {}
        }
        self.log.insert(seq.0, bytes.to_vec());
        // Every record must follow from those before it: a fenced writer's would not.
        self.manifest();
        true
    }

    pub(crate) fn record(&mut self, seq: Seq) -> Option<Vec<u8>> {
        self.requests += 1;
        self.log.get(&seq.0).cloned()
    }

    pub(crate) fn put_checkpoint(&mut self, seq: Seq, bytes: Vec<u8>) {
        self.requests += 1;
        if let Some(there) = self.checkpoints.get(&seq.0) {
            Invariant::LogIsAChain.check(*there == bytes, || format!("two checkpoints {} differ", seq.0));
        }
        self.checkpoints.insert(seq.0, bytes);
    }

    /// The newest checkpoint and the records after it.
    pub(crate) fn manifest(&mut self) -> Manifest {
        let mut manifest = match self.checkpoints.last_key_value() {
            Some((_, bytes)) => Manifest::decode_checkpoint(bytes).expect("nobody damages checkpoints"),
            None => Manifest::empty(self.volume.clone()),
        };
        for (seq, bytes) in self.log.range(manifest.seq().0 + 1..) {
            let record = Record::decode(bytes).expect("nobody damages records");
            if let Err(error) = manifest.apply(&record) {
                Invariant::LogIsAChain.broken(&format!("log/{seq} cannot stand where it does: {error}"));
            }
        }
        manifest
    }

    /// What the volume reads as for whoever attaches with nothing of his own.
    pub(crate) fn last_cut(&self) -> Rc<Cut> {
        for bytes in self.log.values().rev() {
            if let Body::Commit(segment) = Record::decode(bytes).expect("nobody damages records").body {
                return self.segments[&segment.id].cut.clone();
            }
        }
        Rc::default()
    }

    /// Stores the dirty sectors, read from the sides by `read(sector, from side B)`, as one segment.
    pub(crate) fn upload(
        &mut self,
        id: SegmentId,
        dirty: &[DirtyBlock],
        cut: Rc<Cut>,
        read: impl Fn(u64, bool) -> Stamp,
    ) -> SegmentRef {
        self.requests += 1;
        let mut builder = SegmentBuilder::default();
        for DirtyBlock { block, a, b } in dirty {
            Invariant::StoresItsOwnRange.check(a.intersect(*b).is_empty(), || {
                format!("sectors of {block:?} are uploaded from both sides")
            });
            let mask = a.union(*b);
            let mut bytes = Vec::with_capacity(mask.count() as usize * SECTOR_BYTES as usize);
            for bit in (0..32).filter(|bit| mask.contains(*bit)) {
                let sector = block.first_sector().0 + u64::from(bit);
                bytes.extend_from_slice(&content(sector, read(sector, b.contains(bit))));
            }
            builder.push(*block, mask, &bytes);
        }
        let (segment, object) = builder.finish(id);
        let at = usize::try_from(segment.index_offset).expect("it fits");
        let index = FrameIndex::decode(&object[at..at + segment.index_bytes as usize]).expect("just built");
        self.segments.insert(id, Segment { object, index, cut });
        segment
    }

    /// One block composed from `layers`.
    pub(crate) fn read_block<'a>(
        &mut self,
        block: Block,
        layers: impl IntoIterator<Item = &'a std::sync::Arc<SegmentRef>>,
    ) -> Vec<Stamp> {
        self.requests += 1;
        let layers = layers.into_iter().map(|segment| (segment, &self.segments[&segment.id].index));
        let plan = compose(block, layers);
        let mut bytes = vec![0; BLOCK_BYTES as usize];
        for piece in &plan.pieces {
            let object = &self.segments[&piece.segment.id].object;
            let stored = &object[piece.frame.offset as usize..][..piece.frame.stored as usize];
            place(piece, &unpack(&piece.frame, stored).expect("nobody damages segments"), &mut bytes);
        }
        let first = block.first_sector().0;
        let sectors = bytes.chunks(SECTOR_BYTES as usize).enumerate();
        sectors.map(|(index, bytes)| stamp(first + index as u64, bytes)).collect()
    }

    /// One block as the log's end says.
    pub(crate) fn read_remote(&mut self, manifest: &Manifest, block: Block) -> Vec<Stamp> {
        match manifest.layers(block.chunk()) {
            Some(layers) => self.read_block(block, layers.iter()),
            None => vec![0; BLOCK_SECTORS as usize],
        }
    }
}

/// The bytes of a sector whose stamp is `stamp`: they say which sector and which write.
fn content(sector: u64, stamp: Stamp) -> Vec<u8> {
    if stamp == 0 {
        return vec![0; SECTOR_BYTES as usize];
    }
    [stamp.to_le_bytes(), (!sector).to_le_bytes()].concat().repeat(SECTOR_BYTES as usize / 16)
}

fn stamp(sector: u64, bytes: &[u8]) -> Stamp {
    let stamp = u64::from_le_bytes(bytes[..8].try_into().expect("8 bytes"));
    Invariant::NeverForeignBytes.check(bytes == content(sector, stamp), || {
        format!("sector {sector} holds bytes of another sector or of two writes")
    });
    stamp
}
