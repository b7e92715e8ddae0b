//! One trace from the creation of a claim to its first write to the store, over all programs.

use std::collections::BTreeSet;

use anyhow::{Context, Result, ensure};
use holdfast_lab::collector::{Collector, Span, tree};
use holdfast_lab::csi::{LIMIT, RequestedVolume, Use, expect_granted};
use holdfast_lab::csi_node::{CsiNode, PublishedVolume};
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::csi_node::{publish, release};
use super::story::provision_store;

const BUCKET: &str = "traces";
const VOLUME: &str = "pvc-traced";
const GIB: i64 = 1 << 30;
/// Spans of a claim's first use, by program. The spans of S3 requests are named as in `node/s3`.
const FIRST_USE: &[(&str, &str)] = &[
    ("holdfast-csi", "CreateVolume"),
    ("holdfast-operator", "reconcile_volume"),
    ("holdfast-operator", "create_object"),
    ("holdfast-csi", "ControllerPublishVolume"),
    ("holdfast-node", "attach_volume"),
    ("holdfast-node", "attach"),
    ("holdfast-csi", "NodeStageVolume"),
    ("holdfast-csi", "NodePublishVolume"),
    ("holdfast-node", "upload"),
    ("holdfast-node", "put_segment_object"),
    ("holdfast-node", "commit"),
    ("holdfast-node", "create_object"),
];
/// The same for a later use: the volume exists, and nothing is written.
const LATER_USE: &[(&str, &str)] = &[
    ("holdfast-csi", "ControllerPublishVolume"),
    ("holdfast-node", "attach_volume"),
    ("holdfast-node", "attach"),
    ("holdfast-csi", "NodeStageVolume"),
    ("holdfast-csi", "NodePublishVolume"),
];

pub(super) fn run(world: &World) -> Result<()> {
    let collector = world.collector()?;
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();
    let daemon = world.node("a", "auto", "")?;
    let node = CsiNode::start(world.vm("a")?)?;

    report::step("create a claim, use it, write to it");
    let usage = Use::block();
    let wanted = RequestedVolume::new(VOLUME, GIB, "store").with_use(&usage).parameter("maxDirtyAge", "1s");
    expect_granted("create", csi.create(&wanted, LIMIT)?)?;
    let claim = PublishedVolume { volume: VOLUME.to_owned(), context: publish(&csi, VOLUME, "a")?, usage };
    use_claim(&node, &claim)?;
    let target = claim.target("pod");
    node.vm()
        .exec(&format!("echo first | dd of={target} bs=4096 conv=sync,fsync oflag=direct status=none"))?;
    let first = wait_trace(&collector, "CreateVolume", FIRST_USE)?;

    report::step("use it again: a separate trace");
    release(&node, &claim, "pod")?;
    expect_granted("withdraw", csi.unpublish(VOLUME, "a", LIMIT)?)?;
    let again = PublishedVolume { context: publish(&csi, VOLUME, "a")?, ..claim };
    use_claim(&node, &again)?;
    let later = until("another publication", LIMIT, || {
        let spans = collector.spans();
        let is_later = |span: &&Span| span.name == "ControllerPublishVolume" && span.trace != first;
        // A request rejected while the node is unknown has a trace, too.
        let attached = |span: &&Span| spans.iter().any(|s| s.trace == span.trace && s.name == "attach");
        Ok(spans.iter().filter(is_later).find(attached).map(|span| span.trace.clone()))
    })?;
    check_trace(&collector, &later, LATER_USE)?;
    release(&node, &again, "pod")?;
    expect_granted("withdraw", csi.unpublish(VOLUME, "a", LIMIT)?)?;
    expect_granted("delete", csi.delete(VOLUME, LIMIT)?)?;
    daemon.terminate()?;
    operator.stop()
}

fn use_claim(node: &CsiNode, claim: &PublishedVolume) -> Result<()> {
    expect_granted("stage", node.stage(claim, LIMIT)?)?;
    expect_granted("publish", node.publish(claim, "pod", false)?)
}

/// Waits until the trace that starts with the span of that name has all of `wanted`. Returns its id.
fn wait_trace(collector: &Collector, first: &str, wanted: &[(&str, &str)]) -> Result<String> {
    let trace = until("a trace", LIMIT, || {
        Ok(collector.spans().into_iter().find(|span| span.name == first).map(|span| span.trace))
    })?;
    check_trace(collector, &trace, wanted)?;
    Ok(trace)
}

/// Waits until all of `wanted` have arrived; the first of them must be the root.
fn check_trace(collector: &Collector, trace: &str, wanted: &[(&str, &str)]) -> Result<()> {
    let of_trace = || collector.spans().into_iter().filter(|span| span.trace == trace).collect::<Vec<_>>();
    let missing = || {
        let spans = of_trace();
        let received: BTreeSet<_> =
            spans.iter().map(|span| (span.service.as_str(), span.name.as_str())).collect();
        let missing = wanted.iter().filter(|name| !received.contains(*name));
        missing.map(|(service, name)| format!("{service} {name}")).collect::<Vec<_>>()
    };
    // A span arrives before its parent.
    let all = until("the spans of a trace", LIMIT, || {
        Ok((missing().is_empty() && tree(trace, &of_trace()).is_ok()).then_some(()))
    });
    let spans = of_trace();
    all.with_context(|| format!("missing: {:?}, of {spans:#?}", missing()))?;
    let text = tree(trace, &spans)?;
    report::step(format_args!("trace {trace}, begin and duration of each span:\n{text}"));
    // In the meantime the log is read every second: this unlimited work belongs to no trace.
    ensure!(!spans.iter().any(|span| span.name == "read_record"), "it has reads of the log");
    let first = spans.iter().find(|span| span.parent.is_empty()).map(|span| span.name.as_str());
    ensure!(first == wanted.first().map(|(_, name)| *name), "the trace begins with {first:?}");
    Ok(())
}
