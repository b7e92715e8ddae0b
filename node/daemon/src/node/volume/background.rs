//! Interface of a volume's background work with this node: tokio, the local files, the ring thread.
//!
//! Runs on: the tokio runtime; one task a volume receives, each piece of work runs as a task of its own.
//! Answers go back to the ring thread as events. What the work does is `holdfast_background`'s.
//! On failure: work that panics would never be answered, and its volume would commit nothing more: the
//! process ends.

use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use holdfast_background::{
    Background, ColdLines, LineLimit, SegmentBuild, SideReader, Sides, UnreadableSectors,
};
use holdfast_engine::event::Errno;
use holdfast_engine::sector_map::Side;
use holdfast_engine::volume::Pending;
use holdfast_objects::Part;
use holdfast_types::SectorRange;
use tokio::sync::mpsc;
use tokio::task::JoinSet;
use tracing::Instrument;

use crate::node::clock::{NodeTime, now};
use crate::node::ends_process::EndsProcess;
use crate::node::local::volume_files::Local;
use crate::node::off_runtime::off_runtime;
use crate::node::ring::handle::RingHandle;
use crate::node::ring::label::Label;
use crate::node::ring::message::Message;
use crate::node::ring::operation::VolumeKey;
use crate::node::ring::work::{ColdRead, Work};
use crate::node::store::cold_reads::ColdReads;

/// The sides of a volume, open, and its directory.
pub(crate) struct LocalSides {
    pub(crate) local: Local,
    pub(crate) sides: [Arc<File>; 2],
}

struct SideFiles([Arc<File>; 2]);

impl SideReader for SideFiles {
    fn read(&self, side: Side, range: SectorRange, buffer: &mut [u8]) -> io::Result<()> {
        self.0[side as usize].read_exact_at(buffer, range.start.byte_offset())
    }
}

impl Sides for LocalSides {
    type Error = io::Error;

    async fn next_part(&self, mut build: SegmentBuild) -> (SegmentBuild, Result<Part, UnreadableSectors>) {
        let sides = SideFiles(self.sides.clone());
        off_runtime(move || {
            let part = build.next_part(&sides);
            (build, part)
        })
        .await
    }

    async fn store_pending(&self, pending: Pending) -> io::Result<()> {
        let local = self.local.clone();
        off_runtime(move || local.store_pending(&pending)).await.map_err(io::Error::other)
    }
}

/// The limits of a volume's log lines that single reads can cause.
#[derive(Debug, Default)]
pub(crate) struct WorkLines {
    cold: ColdLines,
    cold_failed: LineLimit,
    block_unreadable: LineLimit,
}

/// Resources that the work of one volume needs.
pub(crate) struct VolumeWork {
    pub(crate) background: Background<LocalSides, NodeTime>,
    pub(crate) cold: Arc<ColdReads>,
    pub(crate) label: Arc<Label>,
    pub(crate) lines: WorkLines,
    pub(crate) ring: RingHandle,
    pub(crate) key: VolumeKey,
}

impl VolumeWork {
    /// Takes work until the volume is gone; work still in progress then is dropped.
    pub(crate) async fn run(self: Arc<Self>, mut work: mpsc::Receiver<Work>) {
        let mut in_progress = JoinSet::new();
        loop {
            tokio::select! {
                piece = work.recv() => {
                    let Some(piece) = piece else { return };
                    let this = Arc::clone(&self);
                    let span = this.label.span();
                    let performed = async move {
                        let _unanswered = EndsProcess("background work of a volume");
                        this.perform(piece).await;
                    };
                    in_progress.spawn(performed.instrument(span));
                }
                Some(_ended) = in_progress.join_next() => {}
            }
        }
    }

    async fn perform(&self, piece: Work) {
        let work = match piece {
            Work::Cold(mut read) => {
                if let Some(slot) = read.slot.take() {
                    if let Some(held_back) = self.lines.block_unreadable.one(now()) {
                        let block = read.range.start.block().0;
                        tracing::warn!(block, held_back, "block cache read failed; fetching the block again");
                    }
                    self.cold.forget(&slot);
                }
                return self.read_cold(read).await;
            }
            Work::Other(work) => work,
        };
        let (event, tidy) = self.background.perform(work).await;
        self.ring.send(Message::Event { key: self.key, event }).await;
        if let Some(tidy) = tidy {
            self.background.tidy(tidy).await;
        }
    }

    async fn read_cold(&self, read: Box<ColdRead>) {
        let range = read.range;
        let Background { volume, objects, time, .. } = &self.background;
        let result = self.cold.block(&**objects, volume, time, &self.lines.cold, range, &read.layers).await;
        if let Err(error) = &result
            && let Some(held_back) = self.lines.cold_failed.one(now())
        {
            tracing::error!(
                first_sector = range.start.0,
                sectors = range.sectors,
                error = error as &dyn std::error::Error,
                held_back,
                "cold read failed"
            );
        }
        let slot = result.map_err(|_logged| Errno::EIO);
        self.ring.send(Message::Cold { key: self.key, read, slot }).await;
    }
}
