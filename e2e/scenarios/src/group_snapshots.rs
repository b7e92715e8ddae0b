//! VolumeGroupSnapshots: of Volumes on two nodes, to which a program writes alternately, and of a detached
//! one; during the death of a daemon and an outage of the store; once deleted, they leave nothing behind.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::operator::Operator;
use holdfast_lab::report;
use holdfast_lab::s3::S3Server;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;

use super::provisioning::{apply, condition, volume};
use super::story::{provision_store, serve};
use super::volume_snapshots::{field, from_snapshot};

const BUCKET: &str = "group-snapshots";
const LIMIT: Duration = Duration::from_secs(60);
/// Groups taken while both Volumes are written.
const GROUPS: [&str; 3] = ["first", "second", "third"];
/// Writes before the first group, between groups, and after the last one.
const SOME_WRITES: u64 = 5;
/// Time for which a node is stopped, less than the maximum duration of a hold.
const STOPPED: Duration = Duration::from_secs(2);
/// A write that waits longer than the maximum duration of a hold was lost.
const MAX_WRITE: Duration = Duration::from_secs(30);

/// A Volume and the node that serves it.
struct PlacedVolume<'a> {
    node: &'a NodeDaemon,
    device: String,
}

impl PlacedVolume<'_> {
    /// Writes a number to the first block.
    fn write(&self, number: u64) -> Result<()> {
        let device = &self.device;
        let write = format!(
            "printf %08d {number} | dd of={device} bs=4096 conv=sync,notrunc oflag=direct status=none"
        );
        self.node.vm().exec(&write).map(drop)
    }

    fn read(&self) -> Result<u64> {
        let device = &self.device;
        let read = format!("dd if={device} bs=4096 count=1 iflag=direct status=none | head -c 8");
        let text = self.node.vm().exec(&read)?;
        text.trim().trim_start_matches('0').parse().with_context(|| format!("{device} holds {text:?}"))
    }
}

/// Numbers written to the first Volume, and then to the second one, without a pause.
struct PairWriter<'a> {
    first: &'a PlacedVolume<'a>,
    second: &'a PlacedVolume<'a>,
    done: AtomicU64,
    stop: AtomicBool,
}

impl PairWriter<'_> {
    /// Returns the longest duration of a write.
    fn run(&self) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        while !self.stop.load(Ordering::Relaxed) {
            let number = self.done.load(Ordering::Relaxed) + 1;
            for place in [self.first, self.second] {
                let began = Instant::now();
                place.write(number)?;
                longest = longest.max(began.elapsed());
            }
            self.done.store(number, Ordering::Relaxed);
        }
        Ok(longest)
    }

    /// Waits until some more numbers are written. Returns the last one.
    fn wait_more_writes(&self) -> Result<u64> {
        let wanted = self.done.load(Ordering::Relaxed) + SOME_WRITES;
        until("some more writes", LIMIT, || {
            let done = self.done.load(Ordering::Relaxed);
            Ok((done >= wanted).then_some(done))
        })
    }
}

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    for name in ["left", "right", "idle"] {
        apply(world, &volume(name, "store", "64Mi"))?;
        world.wait_for(&format!("volume/{name}"), "jsonpath={.status.phase}=Ready")?;
    }
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let a = NodeDaemon::start(world.vm("a")?, &control, "user-copy", "")?;
    let b = NodeDaemon::start(world.vm("b")?, &control, "user-copy", "")?;
    let left = PlacedVolume { node: &a, device: serve(world, &a, "left")? };
    let right = PlacedVolume { node: &b, device: serve(world, &b, "right")? };

    let before = take_groups(world, &left, &right)?;
    report::step(world.kubectl(["get", "hfgroup,volumesnapshots", "--output=wide"])?);
    check_restored(world, &left, &right, before)?;
    check_missing_volume(world)?;
    check_killed_daemon(world, &b, &left)?;
    check_hold(world, &operator, &left, &right)?;
    check_outage(world, &s3, &left)?;

    report::step("delete the groups: their snapshots are deleted and forgotten");
    let deleted = ["delete", "hfgroup", "first", "second", "third", "patient", "--timeout=120s"];
    world.kubectl(deleted)?;
    let remaining = world.kubectl(["get", "volumesnapshots", "--output=name"])?;
    ensure!(remaining.is_empty(), "left: {remaining}");
    for name in ["left", "right", "idle"] {
        let id = field(world, &format!("volume/{name}"), "{.status.volumeId}")?;
        let objects = |folder: &str| -> Result<usize> {
            Ok(s3.keys(BUCKET, &format!("volumes/{id}/{folder}/"))?.len())
        };
        let (taken, forgotten) = (objects("snapshots")?, objects("forgotten")?);
        ensure!(taken >= 3 && taken == forgotten, "{name}: {taken} snapshots, {forgotten} forgotten");
    }
    a.terminate()?;
    b.terminate()?;
    operator.stop()
}

/// Snapshots both Volumes and a detached one, while a program writes alternately. Returns the last number
/// written before each of [`GROUPS`] was requested.
fn take_groups(world: &World, left: &PlacedVolume<'_>, right: &PlacedVolume<'_>) -> Result<Vec<u64>> {
    report::step("write both alternately, and snapshot them and a detached one three times meanwhile");
    let writer = PairWriter { first: left, second: right, done: 0.into(), stop: false.into() };
    let (longest, before) = thread::scope(|scope| {
        let writes = scope.spawn(|| writer.run());
        let groups = || -> Result<Vec<u64>> {
            let before = GROUPS.into_iter().map(|name| {
                let before = writer.wait_more_writes()?;
                apply(world, &group(name, "[left, right, idle]"))?;
                wait_taken(world, name)?;
                Ok(before)
            });
            let before = before.collect::<Result<_>>()?;
            writer.wait_more_writes()?;
            Ok(before)
        };
        let before = groups();
        writer.stop.store(true, Ordering::Relaxed);
        let longest = writes.join().map_err(|_panic| anyhow::anyhow!("the writer panicked"))??;
        Ok::<_, anyhow::Error>((longest, before?))
    })?;
    report::step(format_args!("{} writes of each; the longest took {longest:?}", writer.done.into_inner()));
    ensure!(longest < MAX_WRITE, "a write waited for {longest:?}");
    Ok(before)
}

/// Restores both Volumes from [`GROUPS`], which have at least the writes `before` them.
fn check_restored(
    world: &World,
    left: &PlacedVolume<'_>,
    right: &PlacedVolume<'_>,
    before: Vec<u64>,
) -> Result<()> {
    report::step("restore the groups: each write to the right one comes with that to the left one");
    for (name, before) in GROUPS.into_iter().zip(before) {
        let restored = |place: &PlacedVolume, index: usize| -> Result<u64> {
            let copy = format!("{name}-copy-{index}");
            let snapshot = member(world, name, index)?;
            apply(world, &from_snapshot(&copy, &snapshot))?;
            world.wait_for(&format!("volume/{copy}"), "jsonpath={.status.phase}=Ready")?;
            let device = serve(world, place.node, &copy)?;
            let number = PlacedVolume { node: place.node, device }.read()?;
            world.kubectl(["delete", "volume", &copy, "--timeout=60s"])?;
            Ok(number)
        };
        let (left, right) = (restored(left, 0)?, restored(right, 1)?);
        report::step(format_args!("{name}: left {left}, right {right}, at least {before}"));
        ensure!(left == right || left == right + 1, "{name}: {left} on the left, {right} on the right");
        ensure!(right >= before, "{name} lacks what was written before it was asked for");
    }
    Ok(())
}

/// A group of two Volumes waits for the daemon of one of them, and writes to the other one do not.
fn check_killed_daemon(world: &World, killed: &NodeDaemon, left: &PlacedVolume<'_>) -> Result<()> {
    report::step("kill the daemon of one Volume: the others are written, and the group waits for it");
    killed.kill()?;
    apply(world, &group("patient", "[left, right]"))?;
    until("the other node to be prepared", LIMIT, || {
        let progress = field(world, "volumesnapshot/patient-1-0", "{.status.groupProgress}");
        Ok((progress.unwrap_or_default() == "Prepared").then_some(()))
    })?;
    left.write(1)?;
    killed.restart()?;
    wait_taken(world, "patient")
}

/// A group with a missing Volume takes no snapshot, and reports the reason.
fn check_missing_volume(world: &World) -> Result<()> {
    report::step("a group with a missing Volume takes no snapshot, reports this, and can be deleted");
    apply(world, &group("lost", "[left, nothing]"))?;
    until("the group to say what it lacks", LIMIT, || {
        let text = condition(world, "hfgroup/lost", "Ready")?;
        Ok((text.starts_with("VolumeNotFound: ") && text.contains("nothing")).then_some(()))
    })?;
    ensure!(field(world, "volumesnapshot/lost-1-0", "{.status.snapshotId}")?.is_empty(), "one was taken");
    world.kubectl(["delete", "hfgroup", "lost", "--timeout=60s"]).map(drop)
}

/// The second node is stopped before it fixes its point: writes to the first one wait for it, and are not in
/// its snapshot.
fn check_hold(
    world: &World,
    operator: &Operator,
    left: &PlacedVolume<'_>,
    right: &PlacedVolume<'_>,
) -> Result<()> {
    report::step("stop a prepared node: writes to the other node's Volume wait for it");
    let signal = |signal: &str| right.node.vm().exec(&format!("pkill -{signal} -x holdfast-node")).map(drop);
    let reaches = |member: &str, progress: &str| {
        world.wait_for(
            &format!("volumesnapshot/{member}"),
            &format!("jsonpath={{.status.groupProgress}}={progress}"),
        )
    };
    left.write(1)?;
    signal("STOP")?;
    apply(world, &group("skewed", "[left, right]"))?;
    reaches("skewed-1-0", "Prepared")?;
    operator.freeze()?;
    signal("CONT")?;
    reaches("skewed-1-1", "Prepared")?;
    signal("STOP")?;
    operator.thaw()?;
    reaches("skewed-1-0", "Held")?;
    thread::scope(|scope| {
        let (done, written) = mpsc::channel();
        scope.spawn(move || done.send(left.write(2)));
        let early = written.recv_timeout(STOPPED);
        signal("CONT")?;
        ensure!(early.is_err(), "a write completed while the other node had no point: {early:?}");
        written.recv_timeout(MAX_WRITE).context("the write still waits")?
    })?;
    wait_taken(world, "skewed")?;
    ensure!(field(world, "hfgroup/skewed", "{.status.attempt}")? == "1", "the hold has lapsed");
    apply(world, &from_snapshot("skewed-copy", "skewed-1-0"))?;
    world.wait_for("volume/skewed-copy", "jsonpath={.status.phase}=Ready")?;
    let device = serve(world, left.node, "skewed-copy")?;
    let number = PlacedVolume { node: left.node, device }.read()?;
    ensure!(number == 1, "the snapshot has write {number}, which came after its point");
    world.kubectl(["delete", "volume", "skewed-copy", "--timeout=60s"])?;
    world.kubectl(["delete", "hfgroup", "skewed", "--timeout=60s"]).map(drop)
}

/// Without the store, no write waits for a group, and a group can be deleted.
fn check_outage(world: &World, s3: &S3Server, left: &PlacedVolume<'_>) -> Result<()> {
    report::step("without the store no write waits for a group, and it can be deleted");
    left.write(2)?;
    s3.stop();
    apply(world, &group("waiting", "[left, right]"))?;
    world.wait_for("volumesnapshot/waiting-1-0", "jsonpath={.status.groupProgress}=Preparing")?;
    for number in 3..8 {
        left.write(number)?;
    }
    let progress = field(world, "volumesnapshot/waiting-1-0", "{.status.groupProgress}")?;
    ensure!(progress == "Preparing", "{progress}, without its store");
    world.kubectl(["delete", "hfgroup", "waiting", "--timeout=60s"])?;
    s3.resume()
}

fn group(name: &str, volumes: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: VolumeGroupSnapshot\nmetadata: {{name: {name}}}\n\
         spec: {{volumes: {volumes}}}\n"
    )
}

/// Waits until a group is taken.
fn wait_taken(world: &World, name: &str) -> Result<()> {
    world.wait_for(&format!("hfgroup/{name}"), "condition=Ready")?;
    let text = condition(world, &format!("hfgroup/{name}"), "Ready")?;
    ensure!(text.starts_with("Taken: "), "{name} says {text}");
    Ok(())
}

/// Returns the name of the VolumeSnapshot at this index of the group.
fn member(world: &World, group: &str, index: usize) -> Result<String> {
    field(world, &format!("hfgroup/{group}"), &format!("{{.status.snapshots[{index}].snapshot}}"))
}
