//! Memory volumes of Kubernetes, in a cluster without an object store: claims through the CSI driver and a
//! Volume applied by a user.

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{Csi, LIMIT, RequestedVolume, Use, expect_granted, expect_refused};
use holdfast_lab::csi_node::{CsiNode, PublishedVolume};
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::report;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::csi_node::{publish, release};
use super::provisioning::apply;

/// Memory of the node, and disk space for pages beyond it.
const DATA: &str = "memory_volumes = \"256Mi\"\nmemory_spill = \"64Mi\"";
const MIB: i64 = 1 << 20;
/// Size of the claim.
const CLAIM_BYTES: i64 = 128 * MIB;
/// Its size after an expansion.
const LARGER_BYTES: i64 = 160 * MIB;
const CLAIM: &str = "pvc-scratch";
/// Parameters of a class with spilling: a quarter of the size is memory, all of it may be on the disk.
const SPILLING: [(&str, &str); 2] = [("maxMemoryPercent", "25"), ("spillPercent", "100")];
const SPILL_CLAIM: &str = "pvc-spill";
const SPILL_BYTES: i64 = 60 * MIB;
/// Its content: more than fits in its memory.
const SOURCE: &str = "/dev/shm/source";

pub(super) fn run(world: &World) -> Result<()> {
    let operator = world.operator()?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();
    let a = world.node("a", "auto", DATA)?;
    let on_a = CsiNode::start(world.vm("a")?)?;
    let info = expect_granted("info", on_a.info()?)?;
    let topology = info.accessible_topology.unwrap_or_default().segments;
    ensure!(topology.get("topology.holdfast.dev/node").is_some_and(|node| node == "a"), "{topology:?}");

    report::step("create a claim: the node can promise as much less");
    let whole = wait_capacity(&csi, &[], |bytes| bytes > 0)?;
    ensure!(whole > 240 * MIB && whole < 256 * MIB, "{whole} bytes of 256Mi");
    let scratch = claim(&csi)?;
    let left = wait_capacity(&csi, &[], |bytes| bytes < whole)?;
    ensure!(left > 100 * MIB && left < whole - CLAIM_BYTES, "{left} bytes are left of {whole}");
    let too_large = csi.create(&RequestedVolume::in_memory("pvc-large", CLAIM_BYTES, "a"), LIMIT)?;
    expect_refused("a claim that does not fit", too_large, "ResourceExhausted", "node a can promise")?;

    report::step("write a file; kill and restart the daemon");
    let context = publish(&csi, CLAIM, "a")?;
    let scratch = PublishedVolume { context, ..scratch };
    expect_granted("stage", on_a.stage(&scratch, LIMIT)?)?;
    expect_granted("publish", on_a.publish(&scratch, "pod", false)?)?;
    let target = scratch.target("pod");
    on_a.vm().exec(&format!("echo kept > {target}/file; sync -f {target}"))?;
    a.kill()?;
    a.restart()?;
    on_a.vm().exec(&format!("echo 3 > /proc/sys/vm/drop_caches; grep -qx kept {target}/file"))?;
    ensure!(loss_reason(world, CLAIM)?.is_empty(), "nothing was lost: {}", loss_reason(world, CLAIM)?);
    check_refusals(&csi)?;
    expand_in_use(&csi, &on_a, &scratch, left, world.kernel().is_at_least(6, 16))?;

    report::step("restart the host: the loss is reported before the empty device is created");
    on_a.vm().reset()?;
    a.restart()?;
    let on_a = CsiNode::start(world.vm("a")?)?;
    until(
        "the loss to be said",
        LIMIT,
        || Ok((loss_reason(world, CLAIM)? == "NodeRestarted").then_some(())),
    )?;
    expect_granted("stage", on_a.stage(&scratch, LIMIT)?)?;
    expect_granted("publish", on_a.publish(&scratch, "pod", false)?)?;
    on_a.vm().exec(&format!("test -d {target}/lost+found && test ! -e {target}/file"))?;
    let event = "--field-selector=reason=NodeRestarted,type=Warning";
    until("its event", LIMIT, || {
        let events = world.kubectl(["get", "events", "--all-namespaces", event, "--output=name"])?;
        Ok((!events.trim().is_empty()).then_some(()))
    })?;
    release(&on_a, &scratch, "pod")?;

    report::step("delete the claim: the node can promise it again");
    expect_granted("withdraw", csi.unpublish(CLAIM, "a", LIMIT)?)?;
    ensure!(loss_reason(world, CLAIM)? == "Detached", "a detach drops the content");
    expect_granted("delete", csi.delete(CLAIM, LIMIT)?)?;
    ensure!(wait_capacity(&csi, &[], |bytes| bytes == whole)? == whole, "all of it");

    check_spilled_claim(world, &csi, &a, &on_a)?;
    check_applied_volume(world, &a)?;
    a.vm().exec(
        "! ls /dev/ublkb* 2>/dev/null; test -z \"$(ls /run/holdfast/memory.d)\"; ! ls -d /var/lib/holdfast/memory.d/* 2>/dev/null",
    )?;
    a.terminate()?;
    operator.stop()
}

/// Creates the claim, twice.
fn claim(csi: &Csi) -> Result<PublishedVolume> {
    let usage = Use::mounted("ext4");
    let new = RequestedVolume::in_memory(CLAIM, CLAIM_BYTES, "a").with_use(&usage);
    let created = expect_granted("create", csi.create(&new, LIMIT)?)?;
    let topology = created.accessible_topology.first().context("it is on one node")?;
    ensure!(
        topology.segments.get("topology.holdfast.dev/node").is_some_and(|node| node == "a"),
        "{topology:?}"
    );
    expect_granted("create again", csi.create(&new, LIMIT)?)?;
    Ok(PublishedVolume { volume: CLAIM.to_owned(), context: Default::default(), usage })
}

/// Expands the claim, but not beyond the capacity of the node, which is `left` bytes at first. The device
/// grows at once if the kernel `resizes` devices in use.
fn expand_in_use(
    csi: &Csi,
    on_node: &CsiNode,
    scratch: &PublishedVolume,
    left: i64,
    resizes: bool,
) -> Result<()> {
    report::step("expand the claim while its pod uses it");
    let small = expect_granted("stats", on_node.total(scratch, "pod")?)?;
    let too_large = csi.expand(CLAIM, 256 * MIB)?;
    expect_refused("more than the node has", too_large, "ResourceExhausted", "but node a can promise")?;
    let expanded = csi.expand(CLAIM, LARGER_BYTES)?;
    if !resizes {
        // The resizer repeats the request, which succeeds once the volume is attached again.
        return expect_refused(
            "expand in use",
            expanded,
            "FailedPrecondition",
            "it grows at its next attach",
        );
    }
    ensure!(expect_granted("expand", expanded)? == LARGER_BYTES, "its new size");
    expect_granted("expand its file system", on_node.expand(scratch, "pod", LARGER_BYTES)?)?;
    let total = expect_granted("stats", on_node.total(scratch, "pod")?)?;
    ensure!(total > small + 16 * MIB, "a file system of {total} bytes, and {small} before");
    on_node.vm().exec(&format!("grep -qx kept {}/file", scratch.target("pod")))?;
    let less = wait_capacity(csi, &[], |bytes| bytes < left)?;
    ensure!(less < left - 15 * MIB, "{less} bytes are left of {left}");
    Ok(())
}

/// A claim exceeds its memory, and the rest is on the disk: no write fails, and a kill changes nothing. The
/// disk of the node is promised only once.
fn check_spilled_claim(world: &World, csi: &Csi, node: &NodeDaemon, on_node: &CsiNode) -> Result<()> {
    report::step("create a claim that spills: the disk of the node is promised");
    wait_capacity(csi, &SPILLING, |bytes| bytes == 64 * MIB)?;
    let usage = Use::mounted("ext4");
    let new = |name, bytes| {
        let new = RequestedVolume::in_memory(name, bytes, "a").with_use(&usage);
        SPILLING.into_iter().fold(new, |new, (key, value)| new.parameter(key, value))
    };
    let too_large = csi.create(&new("pvc-large", 65 * MIB), LIMIT)?;
    let words = "of disk for its spill file, but node a can promise only 64Mi more";
    expect_refused("more than the node has", too_large, "ResourceExhausted", words)?;
    let no_share = RequestedVolume::in_memory("pvc-none", MIB, "a").parameter("spillPercent", "0");
    expect_refused(
        "no share",
        csi.create(&no_share, LIMIT)?,
        "InvalidArgument",
        "parameters.spillPercent: `0` is not",
    )?;
    expect_granted("create", csi.create(&new(SPILL_CLAIM, SPILL_BYTES), LIMIT)?)?;
    wait_capacity(csi, &SPILLING, |bytes| bytes == 4 * MIB)?;

    report::step("fill it beyond its memory; kill and restart the daemon");
    let context = publish(csi, SPILL_CLAIM, "a")?;
    let claim = PublishedVolume { volume: SPILL_CLAIM.to_owned(), context, usage };
    expect_granted("stage", on_node.stage(&claim, LIMIT)?)?;
    expect_granted("publish", on_node.publish(&claim, "pod", false)?)?;
    let file = format!("{}/file", claim.target("pod"));
    let compare = format!("echo 3 > /proc/sys/vm/drop_caches; cmp {SOURCE} {file}");
    let vm = on_node.vm();
    vm.exec(&format!("head -c 40M /dev/urandom > {SOURCE}; cp {SOURCE} {file}; sync {file}; {compare}"))?;
    node.kill()?;
    node.restart()?;
    vm.exec(&format!("{compare}; rm {SOURCE}; ! dmesg | grep -iE 'I/O error|corrupt' >&2"))?;

    report::step("the StorageNode and the Volume report this; another volume is rejected");
    let path = "--output=jsonpath={.status.memory.spill.limitBytes} {.status.memory.spill.promisedBytes} \
                {.status.memory.spill.usedBytes}";
    until("the spilled bytes of the node", LIMIT, || {
        let found = world.kubectl(["get", "storagenode/a", path])?;
        let figures: Vec<i64> = found.split(' ').filter_map(|figure| figure.parse().ok()).collect();
        Ok(matches!(figures[..], [limit, promised, used]
            if limit == 64 * MIB && promised == SPILL_BYTES && (20 * MIB..SPILL_BYTES).contains(&used))
        .then_some(()))
    })?;
    // The node and its volumes are reported separately.
    until("the spilled bytes of the volume", LIMIT, || {
        let path = "--output=jsonpath={.status.conditions[?(@.type=='Writable')].message}";
        let text = world.kubectl(["get", &format!("volume/{SPILL_CLAIM}"), path])?;
        Ok(text.contains("bytes (limit 62914560) are spilled to the disk of node a").then_some(()))
    })?;
    apply(
        world,
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {name: more}\nspec: {size: 64Mi, backend: memory, \
         memory: {limit: 8Mi, spill: 8Mi}, nodeName: a}\n",
    )?;
    until("the refusal", LIMIT, || {
        let path = "--output=jsonpath={.status.conditions[?(@.type=='Attached')]['reason','message']}";
        let text = world.kubectl(["get", "volume/more", path])?;
        let words = "4Mi of data.memory_spill (64Mi) is left on this node";
        Ok((text.starts_with("NodeFull ") && text.contains(words)).then_some(()))
    })?;
    world.kubectl(["delete", "volume/more", "--timeout=60s"])?;

    release(on_node, &claim, "pod")?;
    expect_granted("withdraw", csi.unpublish(SPILL_CLAIM, "a", LIMIT)?)?;
    ensure!(loss_reason(world, SPILL_CLAIM)? == "Detached", "a detach drops the content");
    expect_granted("delete", csi.delete(SPILL_CLAIM, LIMIT)?)?;
    wait_capacity(csi, &SPILLING, |bytes| bytes == 64 * MIB).map(drop)
}

/// Returns the capacity of node `a` for a class, once it is right.
fn wait_capacity(csi: &Csi, class: &[(&str, &str)], is_right: impl Fn(i64) -> bool) -> Result<i64> {
    until("the capacity", LIMIT, || {
        let bytes = expect_granted("capacity", csi.memory_capacity("a", class)?)?;
        Ok(is_right(bytes).then_some(bytes))
    })
}

fn check_refusals(csi: &Csi) -> Result<()> {
    let word = "InvalidArgument";
    expect_refused(
        "a snapshot",
        csi.snapshot("snap", CLAIM, LIMIT)?,
        word,
        "which has no snapshots. Copy the files",
    )?;
    let clone = RequestedVolume::in_memory("pvc-clone", MIB, "a").from_volume(CLAIM);
    expect_refused("a clone", csi.create(&clone, LIMIT)?, word, "starts empty")?;
    let shared = RequestedVolume::in_memory("pvc-shared", MIB, "a").with_use(&Use::read("ext4"));
    expect_refused("readers", csi.create(&shared, LIMIT)?, word, "Write accessModes [ReadWriteOnce]")?;
    let unknown = RequestedVolume::in_memory("pvc-kept", MIB, "a").parameter("durability", "object");
    expect_refused("durability", csi.create(&unknown, LIMIT)?, word, "parameters.durability: is not known")
}

/// A Volume applied by a user, and deleted while it is attached.
fn check_applied_volume(world: &World, node: &NodeDaemon) -> Result<()> {
    report::step("apply a Volume, use its device, delete it");
    apply(
        world,
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {name: tmp}\nspec: {size: 64Mi, backend: memory, \
         memory: {limit: 8Mi, compression: zstd}, nodeName: a}\n",
    )?;
    let device = until("the device", LIMIT, || {
        let path = "--output=jsonpath={.status.phase} {.status.devicePath}";
        let found = world.kubectl(["get", "volume/tmp", path])?;
        Ok(found.strip_prefix("Attached ").map(str::to_owned))
    })?;
    node.vm().wait_block_device(&device, LIMIT)?;
    // Writes beyond the limit fail, and earlier content is still there.
    node.vm().exec(&format!(
        "head -c 4M /dev/urandom > /tmp/part; dd if=/tmp/part of={device} bs=1M oflag=direct status=none; \
         if dd if=/dev/urandom of={device} bs=1M seek=8 oflag=direct status=none 2>/dev/null; then exit 1; fi; \
         head -c 4M {device} | cmp - /tmp/part"
    ))?;
    until("the limit to be said", LIMIT, || {
        let path = "--output=jsonpath={.status.conditions[?(@.type=='Writable')].reason}";
        Ok((world.kubectl(["get", "volume/tmp", path])? == "MemoryFull").then_some(()))
    })?;
    report::step("raise its limit and its size: writes succeed, and its content stays");
    for (change, words) in [
        ("{spill: 4Mi}", "spec.memory.spill cannot be added or removed"),
        ("{limit: null}", "spec.memory.limit cannot be added or removed"),
        ("{compression: lz4}", "spec.memory.compression is immutable"),
    ] {
        let change = format!("--patch=spec: {{memory: {change}}}");
        let refused = world.kubectl(["patch", "volume/tmp", "--type=merge", &change]);
        let refused = refused.err().context("it is refused")?;
        ensure!(format!("{refused:#}").contains(words), "{change}: {refused:#}");
    }
    let patch = |spec: &str| {
        let change = format!("--patch=spec: {spec}");
        world.kubectl(["patch", "volume/tmp", "--type=merge", &change]).map(drop)
    };
    let attached = |words: &str| {
        until(words, LIMIT, || {
            let path = "--output=jsonpath={.status.conditions[?(@.type=='Attached')]['reason','message']}";
            Ok(world.kubectl(["get", "volume/tmp", path])?.contains(words).then_some(()))
        })
    };
    // Its limit stays, and this is reported.
    patch("{memory: {limit: 4Mi}}")?;
    attached("SpecDiffers spec.memory.limit: is 4Mi")?;
    // The node has no space for it, and the volume stays served; a smaller size is accepted.
    patch("{size: 2Gi, memory: {limit: 1Gi}}")?;
    attached("NodeFull memory.limit_bytes: ")?;
    patch("{size: 96Mi, memory: {limit: 80Mi}}")?;
    until("the size", LIMIT, || {
        let path = "--output=jsonpath={.status.attachedSizeBytes}";
        Ok((world.kubectl(["get", "volume/tmp", path])? == (96 * MIB).to_string()).then_some(()))
    })?;
    node.vm().exec(&format!(
        "dd if=/dev/urandom of={device} bs=1M seek=32 count=64 oflag=direct status=none; head -c 4M {device} | cmp - /tmp/part"
    ))?;
    world.kubectl(["delete", "volume/tmp", "--timeout=60s"]).map(drop)
}

/// Returns the reason of the condition `ContentLost` of a Volume; empty without the condition.
fn loss_reason(world: &World, volume: &str) -> Result<String> {
    let path = "--output=jsonpath={.status.conditions[?(@.type=='ContentLost')].reason}";
    world.kubectl(["get", &format!("volume/{volume}"), path])
}
