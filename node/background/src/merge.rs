//! A merge of index runs as background work: reads the inputs, stores the output.
//!
//! Owns: the reading of indexes and pages, the parts of the output, the retries. Does not own: the choice of
//! a merge and what becomes of its output, which are the volume's.
//! Memory: one part of output and [`READ_BYTES`] of pages, beside the heads of the inputs and the indexes of
//! segments. A node makes two merges at once ([`MergeTurns`]), so they need no share of the memory for
//! uploads: commits never wait for them.
//! On failure: a merge is repeated from its beginning while the store does not answer. All heads are read
//! before the first part is made. An input that is damaged or missing, found so twice, ends the merge, and so
//! does an output that the store refuses twice: the list stays as it is.

use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use futures::lock::Mutex;
use holdfast_engine::index::merge::{Input, Merge, MergeStep};
use holdfast_engine::index::policy::MergeKind;
use holdfast_engine::index::{MergePlan, Run, RunHead, RunRef, SegmentObject};
use holdfast_objects::{ObjectStore, Part, PartFailed, Parts, SegmentError, StoreError};
use holdfast_types::{Lineage, PlacedId, RunId};

use crate::backoff::JobBackoff;
use crate::cold::ColdError;
use crate::{Background, Environment, Sides};

/// Bytes of pages in memory, of all inputs together; of each input at least a page.
const READ_BYTES: u64 = 4 << 20;
/// Most parts of an object in S3.
const MAX_PARTS: u64 = 10_000;

/// Turns of a node's merges. One into a base may take hours, and those of levels do not wait for it.
#[derive(Debug, Default)]
pub struct MergeTurns {
    levels: Mutex<()>,
    base: Mutex<()>,
}

impl MergeTurns {
    fn of(&self, kind: MergeKind) -> &Mutex<()> {
        match kind {
            MergeKind::Level => &self.levels,
            MergeKind::Base => &self.base,
        }
    }
}

/// Reason why an attempt of a merge failed.
#[derive(Debug)]
struct Unmerged {
    /// The input that could not be read, by its place in the plan; none where the output was not stored.
    input: Option<usize>,
    error: ColdError,
}

impl Unmerged {
    /// The store's answer that ends the merge once it came twice.
    fn finding(&self) -> Option<String> {
        if let ColdError::Store { source: StoreError::Refused { code, .. }, .. } = &self.error {
            return Some(code.clone());
        }
        self.error.finding()
    }
}

/// The parts of a merge's output.
struct Output<'a, S> {
    sides: &'a S,
    objects: &'a dyn ObjectStore,
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
    failed: Option<Unmerged>,
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
            let (id, level) = (self.id, self.plan.level);
            let step = self.sides.compute(move || {
                let step = merge.advance();
                let closed = (step == MergeStep::Ended).then(|| merge.close(id, level));
                (merge, step, closed)
            });
            let (mut merge, step, closed) = step.await;
            self.closed = closed;
            if let MergeStep::NeedsPage { input, page } = step
                && let Err(error) = self.feed(&mut merge, input, page).await
            {
                self.failed = Some(Unmerged { input: Some(input), error });
                return Err(PartFailed);
            }
            self.merge = Some(merge);
        }
    }

    fn max_at_once(&self) -> usize {
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
        let key = self.plan.inputs.lineage().run_key(run.id);
        let read = match self.objects.get_range(&key, range.clone()).await {
            Ok(read) => read,
            Err(source) => return Err(ColdError::Store { key, source }),
        };
        let head = Arc::clone(head);
        let decode = move || {
            let decode = |number| {
                let Range { start, end } = head.page_range(number);
                let at = |offset: u64| usize::try_from(offset - range.start).expect("a few MiB");
                head.page(number, &read[at(start)..at(end)])
            };
            (page..=last).map(decode).collect::<Result<Vec<_>, _>>()
        };
        let pages = self.sides.compute(decode).await.map_err(|source| ColdError::Index { key, source })?;
        pages.into_iter().for_each(|page| merge.feed(input, page));
        Ok(())
    }
}

impl<S: Sides, T: Environment> Background<S, T> {
    /// Does a merge.
    ///
    /// # Errors
    /// The input that is damaged, or the oldest one where the store refuses the output.
    pub(crate) async fn merge(&self, plan: &MergePlan) -> Result<RunRef, PlacedId> {
        let id = RunId::new(plan.place, self.time.unix_ms(), self.time.random());
        let mut backoff = JobBackoff::of_commits();
        let mut found: Option<String> = None;
        loop {
            let attempt = {
                let _turn = self.pools.merging.of(plan.kind).lock().await;
                self.merge_once(plan, id).await
            };
            let failed = match attempt {
                Ok(run) => return Ok(run),
                Err(failed) => failed,
            };
            let finding = failed.finding();
            if finding.is_some() && finding == found {
                let run = plan.inputs[failed.input.unwrap_or(plan.inputs.len() - 1)].id();
                let (volume, error): (_, &(dyn Error + 'static)) = (&self.volume, &failed.error);
                tracing::error!(%volume, %run, error, "index run was not merged; a scrub names what is damaged");
                return Err(run);
            }
            self.warn("the merge of index runs waits", &failed.error);
            found = finding;
            backoff.wait(&self.time).await;
        }
    }

    async fn merge_once(&self, plan: &MergePlan, id: RunId) -> Result<RunRef, Unmerged> {
        let mut inputs = Vec::with_capacity(plan.inputs.len());
        for (at, run) in plan.inputs.iter().enumerate() {
            let input = self.input(plan.inputs.lineage(), run).await;
            inputs.push(input.map_err(|error| Unmerged { input: Some(at), error })?);
        }
        let key = plan.inputs.lineage().run_key(id);
        let mut output = Output {
            sides: &self.sides,
            objects: &*self.objects,
            plan,
            id,
            inputs: &inputs,
            part_bytes: part_bytes(plan, self.pools.upload_memory.part_bytes()),
            merge: Some(Merge::new(inputs.iter().cloned(), plan.is_oldest)),
            closed: None,
            failed: None,
        };
        let stored = self.objects.put_segment(&key, &mut output).await;
        match (stored, output.failed) {
            (Ok(()), _) => {
                let (run, head) = output.closed.expect("a store takes all parts of what it stored");
                self.pools.indexes.keep_head(id, head);
                Ok(run)
            }
            (Err(_), Some(failed)) => Err(failed),
            (Err(SegmentError::Store(source)), None) => {
                Err(Unmerged { input: None, error: ColdError::Store { key, source } })
            }
            (Err(SegmentError::Part(PartFailed)), None) => {
                unreachable!("each part that fails has its reason")
            }
        }
    }

    async fn input(&self, lineage: &Lineage, run: &Run) -> Result<Input, ColdError> {
        let (objects, indexes) = (&*self.objects, &self.pools.indexes);
        Ok(match run {
            Run::Segment(segment) => {
                let index = indexes.index(objects, lineage, segment).await?;
                Input::Segment(SegmentObject::from(&**segment), index)
            }
            Run::Merged(run) => Input::Merged(indexes.head(objects, lineage, run).await?),
        })
    }
}

/// Length of the output's parts: `usual`, or so long that a store takes all of them. A run of zeros may be
/// cut at each entry of another input, so the output has at most twice the bytes of the inputs.
fn part_bytes(plan: &MergePlan, usual: usize) -> usize {
    let bytes = |run: &Run| match run {
        Run::Segment(segment) => u64::from(segment.index_bytes),
        Run::Merged(run) => run.bytes,
    };
    let most = 2 * plan.inputs.iter().map(bytes).sum::<u64>();
    usual.max(usize::try_from(most.div_ceil(MAX_PARTS)).expect("a part fits into memory"))
}

#[cfg(test)]
mod tests;
