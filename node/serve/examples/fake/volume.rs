//! A volume for a ring thread without the ublk driver.
#![allow(unsafe_code)] // maps a file of its own

use std::fs::File;
use std::io;
use std::os::fd::AsFd;
use std::sync::Arc;

use holdfast_engine::durable_map::Header;
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_format::chunk_ranges::ChunkRanges;
use holdfast_format::chunk_set::ChunkSet;
use holdfast_format::manifest::Manifest;
use holdfast_format::record::{Body, Record};
use holdfast_format::segment::SegmentRef;
use holdfast_format::side::{Side, SideSet};
use holdfast_format::snapshot::SnapshotChange;
use holdfast_serve::{IoLimits, Label, LiveMap, Message, NewVolume, PublishedStatus, Start};
use holdfast_types::{CHUNK_SECTORS, Epoch, Nonce, Place, SegmentId, Seq, VolumeId};
use rustix::fs::{FallocateFlags, fallocate};
use tokio::sync::{mpsc, oneshot};

use crate::files::{in_memory, read_at_once};
use crate::served::NewFake;

/// A volume with an object store.
pub(crate) struct FakeVolume {
    /// Its length.
    pub(crate) sectors: u64,
    /// Its data files.
    pub(crate) sides: [File; 2],
    /// Its log.
    pub(crate) manifest: Manifest,
}

/// Returns its name.
pub(crate) fn name() -> VolumeId {
    "fake".parse().expect("a name")
}

impl FakeVolume {
    /// Returns a volume with a segment that may hold each block, without data on a side at first.
    pub(crate) fn stored(sectors: u64) -> Self {
        let segment = SegmentRef {
            id: SegmentId::new(Place::until(Seq(3)), 1, [1; 10]),
            bytes: 10,
            index_offset: 0,
            index_bytes: 10,
            sectors,
            chunks: ChunkRanges::around([(0, sectors.div_ceil(CHUNK_SECTORS) as u32)]),
        };
        let attach = Body::Attach { sectors, node: "n".into(), displaced: None };
        let change = Body::Change {
            segments: vec![segment],
            chunks: ChunkSet::default(),
            invalidated: SideSet::NONE,
            generation: 1,
            merges: vec![],
            closed: Place::default(),
            snapshots: SnapshotChange::default(),
            sectors: None,
        };
        let mut manifest = Manifest::empty(name());
        for (seq, epoch, body) in [(1, 0, Body::create(sectors)), (2, 1, attach), (3, 1, change)] {
            let (seq, epoch, nonce) = (Seq(seq), Epoch(epoch), Nonce([7; 16]));
            let record = Record { volume: name(), seq, epoch, nonce, unix_ms: 0, body };
            manifest.apply(&record).expect("the records follow each other");
        }
        // A request that comes with the queues may write a sector, which is also read.
        Self { sectors, sides: [read_at_once(in_memory(0)), in_memory(0)], manifest }
    }

    /// Returns the message that adds the volume to a ring thread, for a device of this many requests, and the
    /// status that the thread publishes.
    pub(crate) fn message(self, requests: u16) -> io::Result<(NewFake, Arc<PublishedStatus>)> {
        let Self { sectors, sides, manifest } = self;
        let nonce = Nonce([7; 16]);
        let header = Header {
            volume: name(),
            identity: nonce,
            sectors,
            epoch: Epoch(1),
            writer: nonce,
            nonces: vec![nonce],
            active: Side::A,
            closed_clean: false,
            invalidated: SideSet::NONE,
            has_journal: false,
            seq: Seq(0),
            synced_generation: 0,
        };
        let setup = Setup {
            requests: requests.into(),
            limits: DirtyLimits { seal_bytes: 1 << 49, max_bytes: 1 << 50, max_age_ms: 1 << 40 },
            durability: Durability::Local,
            header,
            header_generation: 1,
            unix_ms_at_zero: 0,
        };
        let live = in_memory(map_bytes(sectors));
        fallocate(live.as_fd(), FallocateFlags::empty(), 0, map_bytes(sectors))?;
        // SAFETY: only this program uses the file, and all of it is allocated.
        let live_map = unsafe { LiveMap::map(&live) }?;
        let start = Start::Attach(Box::new(AttachState::in_log(manifest)));
        let published = Arc::new(PublishedStatus::new(|_| ()));
        let (to, work) = mpsc::channel(1024);
        let volume = Box::new(NewVolume {
            planned: start.make(setup, live_map).map_err(io::Error::other)?,
            limits: IoLimits::NONE,
            label: Arc::new(Label::new(name(), Epoch(1))),
            live,
            sides,
            map: in_memory(1 << 30),
            work: to,
            published: Arc::clone(&published),
            place: Box::new(()),
        });
        let (done, added) = oneshot::channel();
        Ok((NewFake { message: Message::Add { volume, done }, added, work, pages: None }, published))
    }
}
