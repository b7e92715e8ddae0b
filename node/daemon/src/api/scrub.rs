//! A scrub as a stream: progress once a second, then the report.

use std::pin::pin;
use std::time::Duration;

use holdfast_log::scrub::Progress;
use holdfast_proto::node::v1 as wire;
use holdfast_service::tasks::Tasks;
use holdfast_types::SectorRange;
use tokio::sync::{mpsc, watch};
use tokio_stream::wrappers::ReceiverStream;
use tonic::Status;

use super::status;
use crate::node::{ScrubEffect, ScrubFinding, ScrubRepair, ScrubRequest, Scrubbed};
use crate::volumes::Volumes;

/// Interval between progress messages.
const PROGRESS_EVERY: Duration = Duration::from_secs(1);
/// Queue length of responses to the caller.
const WAITING_ANSWERS: usize = 4;

/// Responses to one request.
pub(super) type Answers = ReceiverStream<Result<wire::ScrubResponse, Status>>;

/// Starts a scrub as one of `tasks`. It ends when its caller disconnects.
pub(super) fn start<V: Volumes>(tasks: &Tasks, volumes: V, request: ScrubRequest) -> Answers {
    let (answers, stream) = mpsc::channel(WAITING_ANSWERS);
    tasks.spawn(async move {
        let (progress, seen) = watch::channel(Progress::default());
        let on_progress = move |now| {
            progress.send_replace(now);
        };
        let mut work = pin!(volumes.scrub(request, on_progress));
        let mut ticks = tokio::time::interval(PROGRESS_EVERY);
        let outcome = loop {
            tokio::select! {
                outcome = &mut work => break outcome,
                () = answers.closed() => return,
                _ = ticks.tick() => {
                    let Progress { read_bytes, total_bytes } = *seen.borrow();
                    let progress = wire::ScrubProgress { read_bytes, total_bytes };
                    // A slow caller misses some.
                    drop(answers.try_send(Ok(step(wire::scrub_response::Step::Progress(progress)))));
                }
            }
        };
        let last = outcome
            .map(|scrubbed| step(wire::scrub_response::Step::Report(report(scrubbed))))
            .map_err(|failure| status::of(&failure));
        // The caller may have disconnected.
        drop(answers.send(last).await);
    });
    ReceiverStream::new(stream)
}

fn step(step: wire::scrub_response::Step) -> wire::ScrubResponse {
    wire::ScrubResponse { step: Some(step) }
}

fn report(scrubbed: Scrubbed) -> wire::ScrubReport {
    let Scrubbed { records, checkpoints, segments, frames, read_bytes, findings } = scrubbed;
    let findings = findings.into_iter().map(finding).collect();
    wire::ScrubReport { records, checkpoints, segments, frames, read_bytes, findings }
}

fn finding(finding: ScrubFinding) -> wire::ScrubFinding {
    let ScrubFinding { object, fault, effect, repair, lost } = finding;
    let effect = match effect {
        ScrubEffect::Harmless => wire::ScrubEffect::Harmless,
        ScrubEffect::Unreadable => wire::ScrubEffect::Unreadable,
        ScrubEffect::NoAttach => wire::ScrubEffect::NoAttach,
    };
    let repair = match repair {
        ScrubRepair::None => wire::ScrubRepair::None,
        ScrubRepair::Done => wire::ScrubRepair::Done,
        ScrubRepair::Partly => wire::ScrubRepair::Partly,
        ScrubRepair::Impossible => wire::ScrubRepair::Impossible,
    };
    let range = |range: &SectorRange| wire::ByteRange {
        offset_bytes: range.start.byte_offset(),
        length_bytes: range.bytes(),
    };
    let lost = lost.iter().map(range).collect();
    wire::ScrubFinding { object, fault, effect: effect.into(), repair: repair.into(), lost }
}
