//! ReadOnlyMany: a claim created from a snapshot is read by two nodes at a time, while the snapshot's claim
//! is written. The scenario plays the sidecars and the kubelet on real devices.

use std::collections::{BTreeMap, HashMap};

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi::{
    Csi, CsiService, LIMIT, RequestedVolume, SHORT, Use, expect_granted, expect_refused,
};
use holdfast_lab::csi_node::{CsiNode, PublishedVolume};
use holdfast_lab::node::{ControlInterface, NodeDaemon, SIGKILL};
use holdfast_lab::operator::Operator;
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::vm::bash;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::csi_node::{claim, publish, release};
use super::provisioning::check_remains;
use super::story::provision_store;

const BUCKET: &str = "readers";
const MIB: i64 = 1 << 20;
/// Volumes created by the scenario, including readers.
const VOLUMES: usize = 11;
/// Snapshots created by it or on its behalf. For each, a marker in the bucket says that it is forgotten.
const SNAPSHOTS: usize = 7;

/// State shared by the steps.
struct StepContext<'a> {
    world: &'a World,
    s3: &'a S3Server,
    operator: &'a Operator,
    controller: &'a CsiService,
    csi: Csi,
    a: CsiNode,
    b: CsiNode,
    /// The daemon of node b.
    daemon: &'a NodeDaemon,
}

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();
    let daemons = [world.node("a", "auto", "")?, world.node("b", "auto", "")?];
    let (a, b) = (CsiNode::start(world.vm("a")?)?, CsiNode::start(world.vm("b")?)?);
    let parts = StepContext {
        world,
        s3: &s3,
        operator: &operator,
        controller: &controller,
        csi,
        a,
        b,
        daemon: &daemons[1],
    };

    let data = parts.write()?;
    parts.create()?;
    let (first, second) = parts.read()?;
    parts.release_first(&first, &second)?;
    parts.check_raw_device()?;
    parts.check_blank_volume()?;
    parts.delete()?;
    parts.a.vm().signal("load", SIGKILL)?;
    parts.a.vm().wait("load", LIMIT)?;
    release(&parts.a, &data, "pod")?;
    expect_granted("withdraw", parts.csi.unpublish(&data.volume, "a", LIMIT)?)?;
    expect_granted("delete", parts.csi.delete(&data.volume, LIMIT)?)?;
    for daemon in &daemons {
        daemon.vm().exec("! ls /dev/ublkb* 2>/dev/null")?;
        daemon.terminate()?;
        // They stay for a day after their detach. A daemon checks for files of an earlier life at its start,
        // and otherwise every ten minutes.
        daemon.vm().exec(
            "ls /var/lib/holdfast/volumes/*/map; touch -d '2 days ago' /var/lib/holdfast/volumes/*/map",
        )?;
        daemon.restart()?;
        until("the node to remove the caches of the deleted volumes", LIMIT, || {
            let left = daemon.vm().exec("ls /var/lib/holdfast/volumes")?;
            Ok(left.trim().is_empty().then_some(()))
        })?;
        daemon.terminate()?;
    }
    report::step("nothing is left, in the API or in the bucket");
    let objects = world.kubectl(["get", "volumes,volumesnapshots.storage.holdfast.dev", "--output=name"])?;
    ensure!(objects.is_empty(), "left: {objects}");
    check_bucket(world, &s3)?;
    operator.stop()
}

/// Volumes that had snapshots left objects, because a volume that begins with one may exist. A sweep finds
/// that none does.
fn check_bucket(world: &World, s3: &S3Server) -> Result<()> {
    let node = NodeDaemon::start(world.vm("a")?, &ControlInterface::standalone(s3, BUCKET), "auto", "")?;
    // The clock of the machine may be behind that of the server.
    let marks = until("a sweep to delete all of it", LIMIT, || {
        node.cli_with_retries(&["gc", "--store", "store", "--grace", "0s"])?;
        // A killed operator may have left the object of its probe.
        let keys = s3.keys(BUCKET, "volumes/")?;
        let (marks, left): (Vec<String>, Vec<String>) =
            keys.into_iter().partition(|key| key.contains("/forgotten/"));
        match check_remains(&left, VOLUMES) {
            Ok(()) => Ok(Some(marks)),
            Err(more) => {
                report::step(more);
                Ok(None)
            }
        }
    })?;
    ensure!(marks.len() == SNAPSHOTS, "marks of snapshots: {marks:?}");
    node.terminate()
}

impl StepContext<'_> {
    /// Creates a claim that is written continuously, and a snapshot of it whose journal must be replayed.
    fn write(&self) -> Result<PublishedVolume> {
        report::step("a snapshot is taken of a claim while it is written on node a");
        let new = RequestedVolume::new("pvc-data", 256 * MIB, "store");
        expect_granted("create", self.csi.create(&new, LIMIT)?)?;
        let context = publish(&self.csi, "pvc-data", "a")?;
        let data = PublishedVolume { volume: "pvc-data".to_owned(), context, usage: Use::mounted("ext4") };
        expect_granted("stage", self.a.stage(&data, LIMIT)?)?;
        expect_granted("publish", self.a.publish(&data, "pod", false)?)?;
        let target = data.target("pod");
        self.a.vm().exec(&format!("echo kept > {target}/file; sync -f {target}"))?;
        let load = format!(
            "n=0; while n=$((n + 1)) && echo $n > {target}/load.new && sync {target}/load.new && mv {target}/load.new \
             {target}/load; do :; done"
        );
        self.a.vm().spawn("load", &bash(&load))?;
        until("the load to begin", LIMIT, || Ok((self.rounds(&self.a, &data)? > 2).then_some(())))?;
        expect_granted("snapshot", self.csi.snapshot("backup", "pvc-data", LIMIT)?)?;
        Ok(data)
    }

    /// Returns the rounds of the load seen by a node at the path of a pod.
    fn rounds(&self, node: &CsiNode, claim: &PublishedVolume) -> Result<u64> {
        let rounds = node.vm().exec(&format!("cat {}/load 2>/dev/null || echo 0", claim.target("pod")))?;
        rounds.trim().parse().context("the load counts")
    }

    fn create(&self) -> Result<()> {
        report::step("create a volume for readers, twice; it outlives its snapshot");
        let csi = &self.csi;
        let new = || RequestedVolume::new("pvc-read", 0, "store").with_use(&Use::read("ext4"));
        expect_refused(
            "an empty one",
            csi.create(&new(), LIMIT)?,
            "InvalidArgument",
            "volume_content_source: is missing",
        )?;
        let from = new().from_snapshot("backup");
        let first = expect_granted("create", csi.create(&from, LIMIT)?)?;
        let repeated = expect_granted("create again", csi.create(&from, LIMIT)?)?;
        ensure!(first == repeated && first.capacity_bytes == 256 * MIB, "{first:?} and {repeated:?}");
        let plain = RequestedVolume::new("pvc-read", 0, "store").from_snapshot("backup");
        expect_refused("for a writer", csi.create(&plain, LIMIT)?, "AlreadyExists", "another access mode")?;
        expect_granted("delete the snapshot", csi.delete_snapshot("backup")?)?;
        let listed = expect_granted("list", csi.snapshots("")?)?;
        ensure!(listed.is_empty(), "the driver lists a snapshot of its own: {listed:?}");
        let writer = csi.publish("pvc-read", "a", LIMIT)?;
        expect_refused("a writer", writer, "InvalidArgument", "created for readers (ReadOnlyMany)")?;
        let reader = csi.publish_as("pvc-data", "b", &Use::read("ext4"), LIMIT)?;
        expect_refused("a reader", reader, "InvalidArgument", "was not created for readers")?;
        let grown = csi.expand("pvc-read", 512 * MIB)?;
        expect_refused("a larger one", grown, "InvalidArgument", "does not grow")?;
        // By mistake: the first publication reverts it.
        let mistake = self.world.kubectl([
            "delete",
            "volumesnapshots.storage.holdfast.dev",
            "--selector=holdfast.dev/readers-of=pvc-read",
            "--timeout=60s",
        ])?;
        ensure!(mistake.lines().count() == 1, "deleted: {mistake}");
        Ok(())
    }

    /// Publishes `pvc-read` on a node, and returns it as a claim there with its device.
    fn attach(&self, volume: &str, node: &str, usage: &Use) -> Result<(PublishedVolume, String)> {
        let context: HashMap<String, String> =
            expect_granted("publish", self.csi.publish_as(volume, node, usage, LIMIT)?)?;
        let repeated = expect_granted("publish again", self.csi.publish_as(volume, node, usage, LIMIT)?)?;
        ensure!(repeated == context, "{repeated:?} is not {context:?}");
        let id = context.get("volumeID").context("an id")?;
        let field = format!("--field-selector=status.volumeId={id}");
        let device = self.world.kubectl([
            "get",
            "volumes",
            &field,
            "--output=jsonpath={.items[0].status.devicePath}",
        ])?;
        Ok((PublishedVolume { volume: volume.to_owned(), context, usage: usage.clone() }, device))
    }

    /// Both nodes read at the same time. Returns the claim as known to each of them.
    fn read(&self) -> Result<(PublishedVolume, PublishedVolume)> {
        report::step("both nodes read it, whose journal is replayed on each, while the source is written");
        let usage = Use::read("ext4");
        let before = self.counts()?;
        let (on_a, _device) = self.attach("pvc-read", "a", &usage)?;
        self.report_cost("a publication", &before)?;
        let (on_b, device) = self.attach("pvc-read", "b", &usage)?;
        let listed = expect_granted("list", self.csi.list()?)?;
        let nodes: BTreeMap<&str, &[String]> =
            listed.iter().map(|one| (one.volume.as_str(), one.nodes.as_slice())).collect();
        let mut readers = nodes.get("pvc-read").context("it is listed")?.to_vec();
        readers.sort();
        ensure!(readers == ["a", "b"] && nodes.len() == 2, "listed: {nodes:?}");
        report::step(self.world.kubectl(["get", "volumes", "--label-columns=holdfast.dev/readers-of"])?);
        let deleted = self.csi.delete("pvc-read", LIMIT)?;
        expect_refused("delete in use", deleted, "FailedPrecondition", "the volume is published on node")?;

        self.b.vm().exec(&format!("dumpe2fs -h {device} 2>/dev/null | grep -q needs_recovery"))?;
        let mut rounds = Vec::new();
        for (node, claim) in [(&self.a, &on_a), (&self.b, &on_b)] {
            for _ in 0..2 {
                expect_granted("stage", node.stage(claim, LIMIT)?)?;
                expect_granted("publish", node.publish(claim, "pod", false)?)?;
                expect_granted("publish for reading", node.publish(claim, "second", true)?)?;
            }
            for pod in ["pod", "second"] {
                let target = claim.target(pod);
                node.vm().exec(&format!(
                    "grep -qx kept {target}/file; if touch {target}/file 2>/dev/null; then exit 1; fi; \
                     findmnt -no FS-OPTIONS {target} | grep -qw ro"
                ))?;
            }
            expect_granted("unpublish", node.unpublish(claim, "second")?)?;
            rounds.push(self.rounds(node, claim)?);
        }
        ensure!(rounds[0] > 0 && rounds[0] == rounds[1], "the nodes read {rounds:?}");
        Ok((on_a, on_b))
    }

    fn release_first(&self, first: &PublishedVolume, second: &PublishedVolume) -> Result<()> {
        report::step(
            "the first reader goes, over a kill of the driver; the second still reads, and a third begins",
        );
        release(&self.a, first, "pod")?;
        self.operator.kill();
        let pending = self.csi.unpublish("pvc-read", "a", SHORT)?;
        expect_refused("without an operator", pending, "Aborted", "is not released yet")?;
        self.controller.kill();
        self.controller.restart()?;
        self.operator.restart()?;
        for _ in 0..2 {
            expect_granted("unpublish", self.csi.unpublish("pvc-read", "a", LIMIT)?)?;
        }
        let target = second.target("pod");
        self.b.vm().exec(&format!("echo 3 > /proc/sys/vm/drop_caches; grep -qx kept {target}/file"))?;
        let (repeated, _device) = self.attach("pvc-read", "a", &second.usage)?;
        expect_granted("stage", self.a.stage(&repeated, LIMIT)?)?;
        expect_granted("publish", self.a.publish(&repeated, "pod", false)?)?;
        ensure!(
            self.rounds(&self.a, &repeated)? == self.rounds(&self.b, second)?,
            "the later reader reads other data"
        );
        release(&self.a, &repeated, "pod")?;
        release(&self.b, second, "pod")
    }

    /// A raw device of readers rejects writes; the next one with its number does not.
    fn check_raw_device(&self) -> Result<()> {
        report::step(
            "a raw device of a reader refuses writes, also after a kill of the daemon, and the next device of its number takes them",
        );
        let usage = Use::read_block();
        let new = RequestedVolume::new("pvc-raw", 0, "store").from_volume("pvc-data").with_use(&usage);
        expect_granted("create", self.csi.create(&new, LIMIT)?)?;
        let (raw, device) = self.attach("pvc-raw", "b", &usage)?;
        expect_granted("stage", self.b.stage(&raw, LIMIT)?)?;
        expect_granted("publish", self.b.publish(&raw, "pod", false)?)?;
        let target = raw.target("pod");
        let write = |target: &str| {
            format!(
                "dd if=/dev/urandom of={target} bs=4096 count=1 seek=9 conv=notrunc,fsync oflag=direct status=none"
            )
        };
        let writes_fail = format!(
            "sum() {{ dd if={target} bs=1M count=1 iflag=direct status=none | sha256sum; }}; before=$(sum); \
             blkid {target} | grep -q ext4; if {} 2>/dev/null; then exit 1; fi; test \"$(sum)\" = \"$before\"",
            write(&target)
        );
        self.b.vm().exec(&writes_fail)?;
        self.daemon.kill()?;
        self.daemon.restart()?;
        self.b.vm().exec(&writes_fail)?;
        release(&self.b, &raw, "pod")?;
        expect_granted("withdraw", self.csi.unpublish("pvc-raw", "b", LIMIT)?)?;
        expect_granted("delete", self.csi.delete("pvc-raw", LIMIT)?)?;

        let writable = claim(&self.csi, "pvc-writable", "b", &Use::block())?;
        expect_granted("stage", self.b.stage(&writable, LIMIT)?)?;
        expect_granted("publish", self.b.publish(&writable, "pod", false)?)?;
        self.b.vm().exec(&format!("test -b {device}; {}", write(&writable.target("pod"))))?;
        release(&self.b, &writable, "pod")?;
        expect_granted("withdraw", self.csi.unpublish("pvc-writable", "b", LIMIT)?)?;
        expect_granted("delete", self.csi.delete("pvc-writable", LIMIT)?)
    }

    /// A volume without a file system is not formatted.
    fn check_blank_volume(&self) -> Result<()> {
        report::step("a volume without a file system is not formatted for a reader");
        expect_granted(
            "create",
            self.csi.create(&RequestedVolume::new("pvc-blank", 64 * MIB, "store"), LIMIT)?,
        )?;
        let usage = Use::read("ext4");
        let new = RequestedVolume::new("pvc-nothing", 0, "store").from_volume("pvc-blank").with_use(&usage);
        expect_granted("create", self.csi.create(&new, LIMIT)?)?;
        let (nothing, device) = self.attach("pvc-nothing", "b", &usage)?;
        let stage = self.b.stage(&nothing, LIMIT)?;
        expect_refused("stage", stage, "FailedPrecondition", "has no known file system")?;
        self.b.vm().exec(&format!("if blkid --probe {device}; then exit 1; fi"))?;
        expect_granted("withdraw", self.csi.unpublish("pvc-nothing", "", LIMIT)?)?;
        for volume in ["pvc-nothing", "pvc-blank"] {
            expect_granted("delete", self.csi.delete(volume, LIMIT)?)?;
        }
        Ok(())
    }

    fn delete(&self) -> Result<()> {
        report::step("delete it with a leftover reader, despite a kill of the driver");
        let before = self.counts()?;
        expect_granted("unpublish", self.csi.unpublish("pvc-read", "a", LIMIT)?)?;
        self.report_cost("the end of a publication", &before)?;
        self.operator.kill();
        let pending = self.csi.unpublish("pvc-read", "", SHORT)?;
        expect_refused("without an operator", pending, "Aborted", "is not released yet")?;
        self.operator.restart()?;
        until("the node to release its reader", LIMIT, || {
            let found =
                self.world.kubectl(["get", "volumes", "--output=jsonpath={.items[*].status.node}"])?;
            Ok((found.trim() == "a").then_some(()))
        })?;
        self.operator.kill();
        expect_refused("without an operator", self.csi.delete("pvc-read", SHORT)?, "Aborted", "")?;
        let published = self.csi.publish_as("pvc-read", "a", &Use::read("ext4"), LIMIT)?;
        expect_refused("a reader", published, "FailedPrecondition", "is being deleted")?;
        self.controller.kill();
        self.controller.restart()?;
        self.operator.restart()?;
        for _ in 0..2 {
            expect_granted("delete", self.csi.delete("pvc-read", LIMIT)?)?;
        }
        Ok(())
    }

    /// Returns the requests to the store so far, by operation.
    fn counts(&self) -> Result<BTreeMap<String, usize>> {
        let mut counts = BTreeMap::new();
        for request in self.s3.requests()? {
            *counts.entry(request.operation).or_default() += 1;
        }
        Ok(counts)
    }

    /// Reports the requests to the store since `before`, including those of the load on the source.
    fn report_cost(&self, what: &str, before: &BTreeMap<String, usize>) -> Result<()> {
        let mut counts = self.counts()?;
        counts.iter_mut().for_each(|(operation, count)| *count -= before.get(operation).unwrap_or(&0));
        counts.retain(|_operation, count| *count > 0);
        report::step(format_args!("{what} and the load cost {counts:?}"));
        Ok(())
    }
}
