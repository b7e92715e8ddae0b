//! Scans one merged run: its length, trailer, head and pages.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use holdfast_format::DecodeError;
use holdfast_format::index::{Run, RunHead, RunPage, RunRef, Runs, TRAILER_BYTES, trailer};
use holdfast_format::segment::{Codec, Frame};
use holdfast_objects::{ObjectStore, StoreError};
use holdfast_types::{Block, Lineage, VolumeId};

use super::Damage;
use crate::error::{LogFailure, store};

/// Maximum bytes of pages per read.
const READ_BYTES: u64 = 4 << 20;

/// Findings in one run.
pub(super) struct RunScan {
    pub(super) run: Arc<RunRef>,
    pub(super) key: String,
    /// `None` if it is damaged.
    pub(super) head: Option<RunHead>,
    /// Damage of the whole run.
    pub(super) lost: Option<Damage>,
    /// Damaged pages, ascending.
    pub(super) pages: Vec<(usize, DecodeError)>,
    /// Faults without effect.
    pub(super) blemishes: Vec<Damage>,
}

/// Reads the heads of the merged runs among `runs`, keyed by their index in the list.
pub(super) async fn scan_heads(
    objects: &dyn ObjectStore,
    runs: &Runs,
) -> Result<BTreeMap<usize, RunScan>, LogFailure> {
    let mut scans = BTreeMap::new();
    for (number, run) in runs.iter().enumerate() {
        if let Run::Merged(run) = run {
            scans.insert(number, scan_head(objects, runs.lineage(), Arc::clone(run)).await?);
        }
    }
    Ok(scans)
}

/// Reads the end of a run's object and its head.
async fn scan_head(
    objects: &dyn ObjectStore,
    lineage: &Lineage,
    run: Arc<RunRef>,
) -> Result<RunScan, LogFailure> {
    let volume = lineage.volume();
    let key = lineage.run_key(run.id);
    let (pages, blemishes) = (Vec::new(), Vec::new());
    let mut scan = RunScan { run, key, head: None, lost: None, pages, blemishes };
    let failed = |error| store("read an index run", volume)(error);
    let end = match objects.get_suffix(&scan.key, TRAILER_BYTES).await {
        Ok(end) => end,
        Err(StoreError::NotFound { .. }) => return Ok(scan.lost(Damage::Missing)),
        Err(error) => return Err(failed(error)),
    };
    let (have, need) = (end.size_bytes, scan.run.bytes);
    let range = scan.run.head_range();
    if have < range.end {
        return Ok(scan.lost(Damage::Length { have, need }));
    }
    if have != need {
        scan.blemishes.push(Damage::Length { have, need });
    } else if end.bytes != trailer(&scan.run)[..] {
        scan.blemishes.push(Damage::Trailer);
    }
    match objects.get_range(&scan.key, range).await {
        Ok(bytes) => match RunHead::decode(&scan.run, &bytes) {
            Ok(head) => scan.head = Some(head),
            Err(error) => return Ok(scan.lost(Damage::Bytes(error))),
        },
        Err(StoreError::NotFound { .. }) => return Ok(scan.lost(Damage::Missing)),
        Err(error) => return Err(failed(error)),
    }
    Ok(scan)
}

impl RunScan {
    fn lost(self, fault: Damage) -> Self {
        Self { lost: Some(fault), ..self }
    }

    /// Reads all pages. Collects damaged ones in `pages`.
    pub(super) async fn scan_pages(
        &mut self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        meter: &(dyn Fn(u64) + Send + Sync),
    ) -> Result<(), LogFailure> {
        let mut damaged = Vec::new();
        let count = |number: usize, page: Result<RunPage, DecodeError>| {
            if let Err(error) = page {
                damaged.push((number, error));
            }
        };
        match self.each_page(objects, volume, meter, count).await {
            Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => {
                self.lost = Some(Damage::Missing);
                self.head = None;
                return Ok(());
            }
            read => read?,
        }
        self.pages = damaged;
        Ok(())
    }

    /// Passes each page to `take`.
    async fn each_page(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        meter: &(dyn Fn(u64) + Send + Sync),
        mut take: impl FnMut(usize, Result<RunPage, DecodeError>),
    ) -> Result<(), LogFailure> {
        let Some(head) = &self.head else { return Ok(()) };
        let mut page = 0;
        while page < head.pages() {
            let first = head.page_range(page);
            let fits = |page: &usize| head.page_range(*page).end - first.start <= READ_BYTES;
            let last = (page..head.pages()).take_while(fits).last().unwrap_or(page);
            let range = first.start..head.page_range(last).end;
            let bytes = objects
                .get_range(&self.key, range.clone())
                .await
                .map_err(store("read an index run", volume))?;
            for number in page..=last {
                let Range { start, end } = head.page_range(number);
                let at = |offset: u64| usize::try_from(offset - range.start).expect("a read is some MiB");
                take(number, head.page(number, &bytes[at(start)..at(end)]));
            }
            meter(range.end - range.start);
            page = last + 1;
        }
        Ok(())
    }

    /// Returns the frames with bytes that the run names in these segments, by ordinal. Damaged pages, and a
    /// run that was swept in the meantime, name none.
    pub(super) async fn frames_of(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        mut wanted: BTreeMap<u32, Vec<Frame>>,
    ) -> Result<BTreeMap<u32, Vec<Frame>>, LogFailure> {
        let take = |_number: usize, page: Result<RunPage, DecodeError>| {
            for entry in page.iter().flat_map(RunPage::entries) {
                if entry.frame.codec != Codec::Zero
                    && let Some(frames) = wanted.get_mut(&entry.segment)
                {
                    frames.push(entry.frame);
                }
            }
        };
        match self.each_page(objects, volume, &|_bytes| (), take).await {
            Ok(()) | Err(LogFailure::Store { source: StoreError::NotFound { .. }, .. }) => Ok(wanted),
            Err(error) => Err(error),
        }
    }

    /// Returns the page with the entries of `block`; `None` if it does not exist or is damaged.
    pub(super) async fn page_of(
        &self,
        objects: &dyn ObjectStore,
        volume: &VolumeId,
        block: Block,
    ) -> Result<Option<RunPage>, LogFailure> {
        let Some((head, page)) = self.head.as_ref().and_then(|head| Some((head, head.page_of(block)?)))
        else {
            return Ok(None);
        };
        match objects.get_range(&self.key, head.page_range(page)).await {
            Ok(bytes) => Ok(head.page(page, &bytes).ok()),
            Err(StoreError::NotFound { .. } | StoreError::OutOfRange { .. }) => Ok(None),
            Err(error) => Err(store("read an index run", volume)(error)),
        }
    }
}
