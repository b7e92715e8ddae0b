//! A merge of index runs as background work: reads the inputs, stores the output.
//!
//! Owns: the reading of indexes and pages, the parts of the output, the retries. Does not own: the choice of
//! a merge and what becomes of its output, which are the volume's.
//! Memory: one part of output and [`READ_BYTES`] of pages, beside the heads of the inputs and the indexes of
//! segments. A node has one merge in progress, so it needs no share of the memory for uploads: commits never
//! wait for it.
//! On failure: a merge is repeated from its beginning while the store does not answer. An input that is
//! damaged or missing, found so twice, ends it: the list stays as it is.

use std::error::Error;
use std::ops::Range;

use async_trait::async_trait;
use holdfast_engine::index::merge::{Input, Merge, Step};
use holdfast_engine::index::{MergePlan, Run, RunHead, RunRef, SegmentObject};
use holdfast_objects::{ObjectStore, Part, PartFailed, Parts, SegmentError};
use holdfast_types::key::ObjectKey;
use holdfast_types::{RunId, VolumeId};

use crate::backoff::JobBackoff;
use crate::cold::{ColdError, read_stored};
use crate::{Background, Sides, TimeAndChance};

/// Bytes of pages in memory, of all inputs together; of each input at least a page.
const READ_BYTES: u64 = 4 << 20;

/// The parts of a merge's output.
struct Output<'a, S> {
    sides: &'a S,
    objects: &'a dyn ObjectStore,
    volume: &'a VolumeId,
    plan: &'a MergePlan,
    id: RunId,
    /// The heads of the merged inputs, by their place in the plan.
    inputs: &'a [Input],
    part_bytes: usize,
    /// Gone while a step is made.
    merge: Option<Merge>,
    /// Once all inputs were read.
    closed: Option<(RunRef, RunHead)>,
    /// The reason, if no part was made.
    failed: Option<ColdError>,
}

#[async_trait]
impl<S: Sides> Parts for Output<'_, S> {
    async fn next(&mut self) -> Result<Part, PartFailed> {
        loop {
            let mut merge = self.merge.take().ok_or(PartFailed)?;
            if self.closed.is_some() || merge.ready() >= self.part_bytes {
                let bytes = merge.take(self.part_bytes).into();
                let is_last = self.closed.is_some() && merge.ready() == 0;
                self.merge = Some(merge);
                return Ok(Part { bytes, is_last });
            }
            let (mut merge, step) = self.sides.merge_step(merge).await;
            match step {
                Step::NeedsPage { input, page } => {
                    if let Err(error) = self.feed(&mut merge, input, page).await {
                        self.failed = Some(error);
                        return Err(PartFailed);
                    }
                }
                Step::Wrote => {}
                Step::Ended => self.closed = Some(merge.close(self.id, self.plan.level)),
            }
            self.merge = Some(merge);
        }
    }

    fn most_at_once(&self) -> usize {
        1
    }
}

impl<S: Sides> Output<'_, S> {
    /// Reads `page` of an input, and as many behind it as there is room for.
    async fn feed(&self, merge: &mut Merge, input: usize, page: usize) -> Result<(), ColdError> {
        let (Input::Merged(head), Run::Merged(run)) = (&self.inputs[input], &self.plan.inputs[input]) else {
            unreachable!("only merged runs have pages");
        };
        let room = READ_BYTES / self.inputs.len() as u64;
        let first = head.page_range(page);
        let fits = |page: &usize| head.page_range(*page).end - first.start <= room;
        let last = (page..head.pages()).take_while(fits).last().unwrap_or(page);
        let range = first.start..head.page_range(last).end;
        let key = ObjectKey::Run(self.volume.clone(), run.id).to_string();
        let pages = read_stored(self.objects, key, range.clone(), |bytes| {
            (page..=last)
                .map(|number| {
                    let Range { start, end } = head.page_range(number);
                    let at = |offset: u64| usize::try_from(offset - range.start).expect("a few MiB");
                    head.page(number, &bytes[at(start)..at(end)])
                })
                .collect::<Result<Vec<_>, _>>()
        })
        .await?;
        pages.into_iter().for_each(|page| merge.feed(input, page));
        Ok(())
    }
}

impl<S: Sides, T: TimeAndChance> Background<S, T> {
    /// Does a merge. `None` if an input is damaged.
    pub(crate) async fn merge(&self, plan: &MergePlan) -> Option<RunRef> {
        let id = RunId::new(plan.place, self.time.unix_ms(), self.time.random());
        let mut backoff = JobBackoff::of_commits();
        let mut found: Option<String> = None;
        loop {
            let attempt = {
                let _alone = self.pools.merging.lock().await;
                self.merge_once(plan, id).await
            };
            let error = match attempt {
                Ok(run) => return Some(run),
                Err(error) => error,
            };
            let finding = error.finding();
            let volume = &self.volume;
            if finding.is_some() && finding == found {
                let error: &(dyn Error + 'static) = &error;
                tracing::error!(%volume, error, "index runs were not merged; a scrub names what is damaged");
                return None;
            }
            self.warn("the merge of index runs waits", &error);
            found = finding;
            backoff.wait(&self.time).await;
        }
    }

    async fn merge_once(&self, plan: &MergePlan, id: RunId) -> Result<RunRef, ColdError> {
        let (objects, volume) = (&*self.objects, &self.volume);
        let mut inputs = Vec::with_capacity(plan.inputs.len());
        for run in plan.inputs.iter() {
            inputs.push(match run {
                Run::Segment(segment) => {
                    let index = self.pools.indexes.index(objects, volume, segment).await?;
                    Input::Segment(SegmentObject::from(&**segment), index)
                }
                Run::Merged(run) => Input::Merged(self.pools.indexes.head(objects, volume, run).await?),
            });
        }
        let key = ObjectKey::Run(volume.clone(), id).to_string();
        let mut output = Output {
            sides: &self.sides,
            objects,
            volume,
            plan,
            id,
            inputs: &inputs,
            part_bytes: self.pools.upload_memory.part_bytes(),
            merge: Some(Merge::new(inputs.iter().cloned(), plan.is_oldest)),
            closed: None,
            failed: None,
        };
        let stored = objects.put_segment(&key, &mut output).await;
        match (stored, output.failed) {
            (Ok(()), _) => {
                let (run, head) = output.closed.expect("a store takes all parts of what it stored");
                self.pools.indexes.keep_head(id, head);
                Ok(run)
            }
            (Err(_), Some(error)) => Err(error),
            (Err(SegmentError::Store(source)), None) => Err(ColdError::Store { key, source }),
            (Err(SegmentError::Part(PartFailed)), None) => {
                unreachable!("each part that fails has its reason")
            }
        }
    }
}

#[cfg(test)]
mod tests;
