//! Merges index runs in the background: reads the inputs, stores the output.
//!
//! Owns: reading indexes and pages, the parts of the output, the retries.
//! Does not own: the choice of a merge and the use of its output, which belong to the volume.
//! Memory: one part of output, [`READ_BYTES`] of pages, a segment of relocated frames in raw and stored form,
//! and its pending input, plus the heads of the inputs and the indexes of segments. A node runs two merges in
//! parallel for each of its few stores (`merge_turns.rs`), so they need no share of the upload memory:
//! commits never wait for them.
//! On failure: a merge restarts while the store does not answer. All heads are read before the first part is
//! created. An input confirmed as damaged or missing ends the merge, and so does an output that the store
//! rejects twice: the list does not change. A segment whose frames are confirmed as unreadable stays. Only
//! merges into the base relocate frames, so that those of levels are not delayed. Data relocated before a
//! failed attempt is not stored again.

use std::collections::HashMap;
use std::error::Error;
use std::ops::Range;
use std::sync::Arc;

use async_trait::async_trait;
use holdfast_format::index::merge::{Input, MergeStep, RunMerge};
use holdfast_format::index::policy::MergeKind;
use holdfast_format::index::relocate::{Fingerprint, groups};
use holdfast_format::index::{MergePlan, Run, RunHead, RunRef, SegmentObject};
use holdfast_format::safeguard::{Safeguard::AddOnlyOwn, safeguard};
use holdfast_format::segment::SegmentRef;
use holdfast_log::ObjectError;
use holdfast_objects::{ObjectStore, Part, PartFailed, Parts, SegmentError, StoreError, part_length};
use holdfast_types::{Lineage, PlacedId, RunId, SegmentId};

use crate::backoff::JobBackoff;
use crate::{Background, Environment, Sides};

mod relocate;

use relocate::Mover;

/// Bytes of pages in memory, for all inputs together; at least one page per input.
const READ_BYTES: u64 = 4 << 20;

/// The part of a merge that failed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FailedPart {
    /// An input could not be read: its index in the plan.
    Input(usize),
    /// Frames of this segment could not be relocated; `None`: relocated frames could not be stored.
    Relocation(Option<SegmentId>),
    /// The output was not stored.
    Output,
}

/// Reason why an attempt of a merge failed.
#[derive(Debug)]
struct Unmerged {
    failed: FailedPart,
    error: ObjectError,
}

impl Unmerged {
    /// Returns the response that ends the merge once it is confirmed.
    fn finding(&self) -> Option<String> {
        if let ObjectError::Store { source: StoreError::Refused { code, .. }, .. } = &self.error {
            return Some(code.clone());
        }
        self.error.finding()
    }
}

/// Relocation of a merge, kept across its attempts because its inputs do not change.
#[derive(Debug, Default)]
struct KeptRelocation {
    /// The segments to relocate, and the group of each.
    groups: HashMap<SegmentId, u32>,
    /// Segments created from their frames.
    stored: HashMap<Fingerprint, SegmentRef>,
}

/// Reads pages of a merge's inputs.
struct PageReader<'a, S> {
    sides: &'a S,
    objects: &'a dyn ObjectStore,
    plan: &'a MergePlan,
    /// The heads of the merged inputs, by their index in the plan.
    inputs: &'a [Input],
}

/// The parts of a merge's output.
struct Output<'a, S, T> {
    reader: PageReader<'a, S>,
    mover: Mover<'a, S, T>,
    id: RunId,
    part_bytes: usize,
    /// `None` while a step is in progress.
    merge: Option<RunMerge>,
    /// Set once all inputs are read.
    closed: Option<(RunRef, RunHead)>,
    /// The reason why a part was not created.
    failed: Option<Unmerged>,
}

#[async_trait]
impl<S: Sides, T: Environment> Parts for Output<'_, S, T> {
    async fn next(&mut self) -> Result<Part, PartFailed> {
        loop {
            let mut merge = self.merge.take().ok_or(PartFailed)?;
            if self.closed.is_some() || merge.ready() >= self.part_bytes {
                let bytes = merge.take(self.part_bytes).into();
                let is_last = self.closed.is_some() && merge.ready() == 0;
                self.merge = Some(merge);
                return Ok(Part { bytes, is_last });
            }
            let (id, level) = (self.id, self.reader.plan.level);
            let step = self.reader.sides.compute(move || {
                let step = merge.advance();
                let closed = (step == MergeStep::Ended).then(|| merge.close(id, level));
                (merge, step, closed)
            });
            let (mut merge, step, closed) = step.await;
            self.closed = closed;
            let done = match step {
                MergeStep::NeedsPage { input, page } => {
                    let fed = self.reader.feed(&mut merge, input, page).await;
                    fed.map_err(|error| Unmerged { failed: FailedPart::Input(input), error })
                }
                MergeStep::Move(frames) => {
                    let moved = self.mover.store(&frames).await;
                    moved
                        .map(|(segment, index)| {
                            merge.moved(frames.ordinal, SegmentObject::from(&segment), index);
                        })
                        .map_err(|(segment, error)| Unmerged {
                            failed: FailedPart::Relocation(segment),
                            error,
                        })
                }
                MergeStep::Wrote | MergeStep::Ended => Ok(()),
            };
            if let Err(failed) = done {
                self.failed = Some(failed);
                return Err(PartFailed);
            }
            self.merge = Some(merge);
        }
    }

    fn max_at_once(&self) -> usize {
        1
    }
}

impl<S: Sides> PageReader<'_, S> {
    /// Returns the segments to relocate, each with its visible bytes; reads all pages once.
    async fn to_relocate(&self) -> Result<Vec<(SegmentId, u64)>, Unmerged> {
        let mut survey = RunMerge::survey(self.inputs.iter().cloned());
        loop {
            let advance = move || {
                let step = survey.advance();
                (survey, step)
            };
            let (surveyed, step) = self.sides.compute(advance).await;
            survey = surveyed;
            match step {
                MergeStep::NeedsPage { input, page } => {
                    let fed = self.feed(&mut survey, input, page).await;
                    fed.map_err(|error| Unmerged { failed: FailedPart::Input(input), error })?;
                }
                MergeStep::Ended => return Ok(survey.to_relocate()),
                MergeStep::Wrote | MergeStep::Move(_) => unreachable!("a survey has no output"),
            }
        }
    }

    /// Reads `page` of an input, and as many pages after it as memory permits.
    async fn feed(&self, merge: &mut RunMerge, input: usize, page: usize) -> Result<(), ObjectError> {
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
            Err(source) => return Err(ObjectError::Store { key, source }),
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
        let pages = self.sides.compute(decode).await.map_err(|source| ObjectError::Index { key, source })?;
        pages.into_iter().for_each(|page| merge.feed(input, page));
        Ok(())
    }
}

impl<S: Sides, T: Environment> Background<S, T> {
    /// Runs a merge.
    ///
    /// # Errors
    /// The damaged input, or the oldest one if the store rejects the output.
    pub(crate) async fn merge(&self, plan: &MergePlan) -> Result<RunRef, PlacedId> {
        let mut backoff = JobBackoff::of_commits();
        let mut before: Option<(FailedPart, Option<String>)> = None;
        let mut relocation = (plan.kind != MergeKind::Base).then(KeptRelocation::default);
        loop {
            let attempt = {
                let turn = self.pools.merging.of(plan.kind, self.store);
                let _turn = turn.lock().await;
                self.merge_once(plan, &mut relocation).await
            };
            let unmerged = match attempt {
                Ok(run) => return Ok(run),
                Err(unmerged) => unmerged,
            };
            let Unmerged { failed, error } = &unmerged;
            let now = Some((*failed, unmerged.finding()));
            let is_again = now == before;
            before = now;
            let (volume, source): (_, &(dyn Error + 'static)) = (&self.volume, error);
            match failed {
                // A merge does not wait for optional work.
                FailedPart::Relocation(Some(segment)) if is_again => {
                    tracing::error!(%volume, %segment, error = source, "segment was not relocated; a scrub lists the damage");
                    relocation.get_or_insert_default().groups.remove(segment);
                    continue;
                }
                FailedPart::Relocation(None) if is_again && unmerged.finding().is_some() => {
                    tracing::error!(%volume, error = source, "no segment was relocated");
                    relocation = Some(KeptRelocation::default());
                    continue;
                }
                FailedPart::Input(_) | FailedPart::Output if is_again && unmerged.finding().is_some() => {
                    let at = if let FailedPart::Input(at) = failed { *at } else { plan.inputs.len() - 1 };
                    let run = plan.inputs[at].id();
                    tracing::error!(%volume, %run, error = source, "index run was not merged; a scrub lists the damage");
                    return Err(run);
                }
                FailedPart::Relocation(_) | FailedPart::Input(_) | FailedPart::Output => {}
            }
            self.warn("the merge of index runs waits", &unmerged.error);
            backoff.wait(&self.time).await;
        }
    }

    /// Makes one attempt. `relocation` is set once the segments to relocate are known.
    async fn merge_once(
        &self,
        plan: &MergePlan,
        relocation: &mut Option<KeptRelocation>,
    ) -> Result<RunRef, Unmerged> {
        let mut inputs = Vec::with_capacity(plan.inputs.len());
        for (at, run) in plan.inputs.iter().enumerate() {
            let input = self.input(plan.inputs.lineage(), run).await;
            inputs.push(input.map_err(|error| Unmerged { failed: FailedPart::Input(at), error })?);
        }
        let (sides, objects) = (&self.sides, &*self.objects);
        let reader = PageReader { sides, objects, plan, inputs: &inputs };
        let KeptRelocation { groups, stored } = match relocation {
            Some(known) => known,
            None => {
                let groups = groups(reader.to_relocate().await?);
                relocation.insert(KeptRelocation { groups, stored: HashMap::new() })
            }
        };
        // The objects of two attempts may differ: each has its own name.
        let mut id = RunId::new(plan.place, self.time.unix_ms(), self.time.random());
        if !safeguard(AddOnlyOwn) {
            id.0.owner = plan.inputs.last().map_or(0, |run| run.id().owner);
        }
        let key = plan.inputs.lineage().run_key(id);
        let usual = self.pools.upload_memory.part_bytes();
        let mut output = Output {
            reader,
            mover: Mover { sides, time: &self.time, objects, indexes: &self.pools.indexes, plan, stored },
            id,
            part_bytes: part_bytes(plan, usual),
            merge: Some(RunMerge::new(inputs.iter().cloned(), plan.is_oldest).relocating(groups.clone())),
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
                Err(Unmerged { failed: FailedPart::Output, error: ObjectError::Store { key, source } })
            }
            (Err(SegmentError::Part(PartFailed)), None) => {
                unreachable!("each part that fails has its reason")
            }
        }
    }

    async fn input(&self, lineage: &Lineage, run: &Run) -> Result<Input, ObjectError> {
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

/// Returns the length of the output's parts: `usual`, or longer if there would be too many. A run of zeros
/// may be split at each entry of another input, so the output has at most twice the bytes of the inputs.
fn part_bytes(plan: &MergePlan, usual: usize) -> usize {
    let bytes = |run: &Run| match run {
        Run::Segment(segment) => u64::from(segment.index_bytes),
        Run::Merged(run) => run.bytes,
    };
    let most = 2 * plan.inputs.iter().map(bytes).sum::<u64>();
    part_length(most, usual)
}

#[cfg(test)]
pub(crate) mod tests;
