//! `holdfast-node scrub`: asks the daemon, shows the progress on standard error, then the report.

use std::io::{self, Write};
use std::time::Instant;

use holdfast_crds::ByteSize;
use holdfast_proto::node::v1::{
    ByteRange, ScrubEffect, ScrubFinding, ScrubProgress, ScrubRepair, ScrubReport, ScrubRequest,
    scrub_response,
};
use serde_json::{Value, json};
use tonic::Status;

use super::client::{connect, refused};
use super::output::Render;
use super::{Scrub, Target};
use crate::failure::Failure;
use crate::node::FailureKind;

/// Maximum ranges per object shown to a user; JSON has all of them.
const SHOWN_RANGES: usize = 8;

/// Scrubs the volume; the report goes to `out`.
///
/// # Errors
/// [`FailureKind::Corrupt`] if damage with an effect remains; the daemon's rejection, or the reason it was
/// not reached.
pub(super) async fn run(scrub: Scrub, out: &mut String) -> Result<(), Failure> {
    let Scrub { volume, store, repair, target } = scrub;
    let request = ScrubRequest { volume_id: volume, store, repair };
    let mut answers = connect(&target).await?.scrub(request).await.map_err(refused)?.into_inner();
    let begun = Instant::now();
    while let Some(answer) = answers.message().await.map_err(refused)? {
        match answer.step {
            Some(scrub_response::Step::Progress(progress)) => show(&progress, begun, &target),
            Some(scrub_response::Step::Report(report)) => {
                out.push_str(&if target.json { format!("{:#}\n", report.json()) } else { report.text() });
                return verdict(&report);
            }
            None => {}
        }
    }
    Err(refused(Status::unavailable("the daemon ended before the scrub did")))
}

fn verdict(report: &ScrubReport) -> Result<(), Failure> {
    let affects = |finding: &&ScrubFinding| {
        finding.effect() != ScrubEffect::Harmless && finding.repair() != ScrubRepair::Done
    };
    match report.findings.iter().filter(affects).count() {
        0 => Ok(()),
        count => {
            let message = format!("damage that affects the volume remains (objects: {count})");
            Err(Failure { kind: FailureKind::Corrupt, message })
        }
    }
}

fn show(progress: &ScrubProgress, begun: Instant, target: &Target) {
    let ScrubProgress { read_bytes, total_bytes } = progress;
    if !target.json && *read_bytes > 0 {
        let rate = *read_bytes as f64 / begun.elapsed().as_secs_f64() / f64::from(1 << 20);
        let (read, total) = (read_bytes >> 20, total_bytes.div_ceil(1 << 20));
        drop(writeln!(io::stderr(), "{read} of {total} MiB read, {rate:.0} MiB/s"));
    }
}

impl Render for ScrubReport {
    fn text(&self) -> String {
        let Self { records, checkpoints, segments, frames, read_bytes, findings } = self;
        let mut text = format!(
            "read: log records {records}, checkpoints {checkpoints}, segments {segments}, frames {frames}, bytes of segments {read_bytes}\n"
        );
        for finding in findings {
            text.push_str(&format!("{} {}\n", finding.object, finding.fault));
            text.push_str(&format!("  {}\n", sentence(finding)));
            for range in finding.lost.iter().take(SHOWN_RANGES) {
                text.push_str(&format!(
                    "  lost: {} at byte {}\n",
                    ByteSize(range.length_bytes),
                    range.offset_bytes
                ));
            }
            if finding.lost.len() > SHOWN_RANGES {
                let more = finding.lost.len() - SHOWN_RANGES;
                text.push_str(&format!("  lost: {more} more ranges; --json shows all\n"));
            }
        }
        text.push_str(match findings.as_slice() {
            [] => "nothing is damaged\n",
            _ => "",
        });
        text
    }

    fn json(&self) -> Value {
        let Self { records, checkpoints, segments, frames, read_bytes, findings } = self;
        let range = |range: &ByteRange| {
            let ByteRange { offset_bytes, length_bytes } = range;
            json!({ "offset_bytes": offset_bytes, "length_bytes": length_bytes })
        };
        let one = |finding: &ScrubFinding| {
            let ScrubFinding { object, fault, effect: _, repair: _, lost } = finding;
            json!({
                "object": object,
                "fault": fault,
                "effect": effect_name(finding.effect()),
                "repair": repair_name(finding.repair()),
                "lost": lost.iter().map(range).collect::<Vec<_>>(),
            })
        };
        json!({
            "records": records,
            "checkpoints": checkpoints,
            "segments": segments,
            "frames": frames,
            "read_bytes": read_bytes,
            "findings": findings.iter().map(one).collect::<Vec<_>>(),
        })
    }
}

/// Returns a finding's meaning and the action to take.
fn sentence(finding: &ScrubFinding) -> &'static str {
    match (finding.effect(), finding.repair()) {
        (_, ScrubRepair::Done) => "repaired",
        (ScrubEffect::Harmless, _) => "harmless: something newer replaces it, or no reader needs it",
        (_, ScrubRepair::Partly) => "partly repaired; this node does not have the rest",
        (ScrubEffect::Unreadable, ScrubRepair::Impossible) => {
            "not repaired: this node does not have the lost data; write it again, or restore it from a copy"
        }
        (ScrubEffect::Unreadable, _) => "reads of the lost bytes fail until they are written again",
        (ScrubEffect::NoAttach, ScrubRepair::Impossible) => {
            "not repaired: the volume cannot be attached until this object is restored"
        }
        (ScrubEffect::NoAttach, _) => "the volume cannot be attached until this is repaired",
        (ScrubEffect::Unspecified, _) => "this program does not know this effect: upgrade it",
    }
}

fn effect_name(effect: ScrubEffect) -> &'static str {
    match effect {
        ScrubEffect::Unspecified => "unknown",
        ScrubEffect::Harmless => "harmless",
        ScrubEffect::Unreadable => "unreadable",
        ScrubEffect::NoAttach => "no-attach",
    }
}

fn repair_name(repair: ScrubRepair) -> &'static str {
    match repair {
        ScrubRepair::Unspecified => "unknown",
        ScrubRepair::None => "none",
        ScrubRepair::Done => "done",
        ScrubRepair::Partly => "partly",
        ScrubRepair::Impossible => "impossible",
    }
}
