//! Figures of the formats: costs of indexes, of snapshots and forks, contents of the bucket, and the effect
//! of one store of a node on another.
//!
//! `holdfast-sim tiers` plays the policy of large volumes without data. For everything else a daemon runs
//! with real volumes, and the S3 server and the machine's network card count; the latter includes HTTP and
//! the traffic of the machine's agent.

use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::output;
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::s3::{S3Request, S3Server};
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;
use serde_json::Value;

use super::proof::Simulation;
use super::{Bar, Figure, proof_turns};

mod copies;
mod deleted;
mod space;
mod stores;

const BUCKET: &str = "index";
const STATE_DIR: &str = "/var/lib/holdfast";
/// A seal is made at the end of a command, by a FLUSH, or after 1 MiB.
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"1Mi\"\nmax_dirty_age = \"1h\"";
const DEVICE_LIMIT: Duration = Duration::from_secs(60);
const FIO_LIMIT: Duration = Duration::from_secs(2700);
const SETTLE_LIMIT: Duration = Duration::from_secs(300);
/// A due merge begins sooner, and pauses less between its requests.
const MERGE_PAUSE: Duration = Duration::from_secs(3);
const MIB: f64 = 1_048_576.0;
/// Number of commits of the volume that an empty node attaches.
const COMMITS: u32 = 3_000;

/// The daemon and its environment.
struct IndexBench {
    vm: Arc<Vm>,
    s3: Arc<S3Server>,
    control: ControlInterface,
    node: NodeDaemon,
}

/// Costs of a step.
struct Cost {
    requests: Vec<S3Request>,
    /// Bytes received by the machine; then bytes sent.
    received_bytes: f64,
    sent_bytes: f64,
}

impl Cost {
    fn of(&self, operation: &str) -> f64 {
        self.requests.iter().filter(|request| request.operation == operation).count() as f64
    }
}

/// Measures the figures that need no daemon.
pub(super) fn run_policy(world: &World) -> Result<Vec<Figure>> {
    let mut figures = tiers(world)?;
    figures.extend(counts(world)?);
    Ok(figures)
}

pub(super) fn run_commits(world: &World) -> Result<Vec<Figure>> {
    with_daemon(world, many_commits)
}

pub(super) fn run_copies(world: &World) -> Result<Vec<Figure>> {
    with_daemon(world, copies::measure)
}

pub(super) fn run_space(world: &World) -> Result<Vec<Figure>> {
    with_daemon(world, |bench| space::measure(bench))
}

pub(super) fn run_stores(world: &World) -> Result<Vec<Figure>> {
    stores::measure(world)
}

pub(super) fn run_deleted(world: &World) -> Result<Vec<Figure>> {
    deleted::measure(world)
}

/// Runs `measure` with a daemon in a machine and an empty bucket.
fn with_daemon(
    world: &World,
    measure: impl FnOnce(&mut IndexBench) -> Result<Vec<Figure>>,
) -> Result<Vec<Figure>> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let vm = world.vm_with("index", MachineOptions::node)?;
    let control = ControlInterface::standalone(&s3, BUCKET);
    let node = NodeDaemon::start(Arc::clone(&vm), &control, "zero-copy", DATA)?;
    let figures = measure(&mut IndexBench { vm: Arc::clone(&vm), s3, control, node })?;
    vm.power_off()?;
    Ok(figures)
}

fn figure(name: &str, value: f64, unit: &'static str, bar: Bar, against: impl Into<String>) -> Figure {
    Figure { name: name.to_owned(), value, unit, against: against.into(), bar: Some(bar) }
}

/// Measures the policy over the life of a volume of 10 TiB.
fn tiers(world: &World) -> Result<Vec<Figure>> {
    let played = Simulation::build(world.toolbox())?.run(&["tiers"])?;
    let random = &played.0["10tib_random"];
    let of = |key: &str| random[key].as_f64().with_context(|| format!("no {key} in {random}"));
    let life = "10 TiB filled with random 4 KiB in seals of 64 MiB";
    Ok(vec![
        figure("root_bytes_10tib_random", of("root_bytes")?, "bytes", Bar::AtMost(65_536.0), life),
        figure("log_record_bytes_max", of("record_bytes_max")?, "bytes", Bar::AtMost(4096.0), life),
        figure("runs_max_10tib", of("runs_max")?, "count", Bar::AtMost(48.0), life),
        figure(
            "index_percent_of_written",
            of("index_percent_of_written")?,
            "percent",
            Bar::AtMost(10.0),
            life,
        ),
    ])
}

/// Collects figures that tests print: the work of a ring thread for the commit of 16,384 scattered sectors,
/// and requests of sweeps.
fn counts(world: &World) -> Result<Vec<Figure>> {
    let sweeps = world.toolbox().test_program("sweep", BuildProfile::Dev)?;
    let sweeps = output(Command::new(sweeps).args(["a_later_sweep", "--nocapture", "--test-threads=1"]))?;
    let sweeps = printed(&sweeps)?;
    let of = |key: &str| sweeps[key].as_f64().with_context(|| format!("no {key} in {sweeps}"));
    let (one, many) = (of("first_of_one")?, of("second_of_thousand")?);
    let commit = printed(&proof_turns::output_of(world, "commit_events_cost_the_same")?)?;
    let pair = |key: &str| -> Result<[f64; 2]> {
        let of = |size: &str| commit[size][key].as_f64().with_context(|| format!("no {key} in {commit}"));
        Ok([of("10gib")?, of("1tib")?])
    };
    let ([small_turn, large_turn], [small, large]) = (pair("max_steps")?, pair("all_ns")?);
    Ok(vec![
        figure(
            "sweep_second_pass_vs_1",
            many / one,
            "ratio",
            Bar::AtMost(1.1),
            format!("{many} requests of a second sweep with 1,025 snapshots, {one} of a first with one"),
        ),
        figure(
            "ring_steps_per_turn_1tib_vs_10gib",
            large_turn / small_turn,
            "ratio",
            Bar::AtMost(1.5),
            "accesses to the live map in the longest turn of the commit of 16,384 scattered sectors",
        ),
        figure(
            "ring_steps_per_commit_1tib_vs_10gib",
            large / small,
            "ratio",
            Bar::AtMost(1.5),
            format!("{large} instructions for all turns of it, {small}: 16,384 pages of the map, 640"),
        ),
    ])
}

/// Parses the JSON that a test printed, possibly after its name.
fn printed(output: &str) -> Result<Value> {
    let json = |line: &str| serde_json::from_str::<Value>(&line[line.find('{')?..]).ok();
    output.lines().find_map(json).with_context(|| format!("no figures in {output}"))
}

impl IndexBench {
    /// Runs `work` and returns its result and costs.
    fn costs<T>(&self, work: impl FnOnce() -> Result<T>) -> Result<(T, Cost)> {
        let (requests, [received, sent]) = (self.s3.requests()?.len(), self.network()?);
        let result = work()?;
        let [received_after, sent_after] = self.network()?;
        let requests = self.s3.requests()?.split_off(requests);
        Ok((
            result,
            Cost { requests, received_bytes: received_after - received, sent_bytes: sent_after - sent },
        ))
    }

    /// Returns the bytes that the machine received and sent since its start.
    fn network(&self) -> Result<[f64; 2]> {
        let counters = self.vm.exec("cat /sys/class/net/e*/statistics/{rx,tx}_bytes")?;
        let mut counters = counters.lines().map(str::parse::<f64>);
        let mut next = || Ok::<_, anyhow::Error>(counters.next().context("a network card")??);
        Ok([next()?, next()?])
    }

    /// Restarts the daemon after deleting all volume data on the node. All volumes must be detached.
    fn restart_empty(&mut self) -> Result<()> {
        self.node.terminate()?;
        self.vm.exec(&format!("rm -r {STATE_DIR}/*"))?;
        self.node = NodeDaemon::start(Arc::clone(&self.vm), &self.control, "zero-copy", DATA)?;
        // A daemon probes a bucket before its first use: those requests do not belong to a volume.
        self.node.cli(&["snapshot", "list", "nothing", "--store", "store"]).err().context("a refusal")?;
        Ok(())
    }

    fn create(&self, volume: &str, size: &str) -> Result<()> {
        self.node.cli(&["create", volume, "--size", size, "--store", "store"]).map(drop)
    }

    fn attach(&self, volume: &str, more: &[&str]) -> Result<String> {
        let device = self.node.cli(&[&["attach", volume, "--store", "store"], more].concat())?;
        let device = device.trim().to_owned();
        self.vm.wait_block_device(&device, DEVICE_LIMIT)?;
        Ok(device)
    }

    fn detach(&self, volume: &str) -> Result<()> {
        self.node.cli(&["detach", volume]).map(drop)
    }

    /// Writes 4 KiB of noise at random offsets, with these options of fio.
    fn write_random(&self, device: &str, requests: u32, options: &str) -> Result<()> {
        let bytes = u64::from(requests) * 4096;
        let script = format!(
            "fio --name=job --filename={device} --direct=1 --rw=randwrite --bs=4k --io_size={bytes} {options} \
             --refill_buffers --buffer_compress_percentage=0 --output-format=terse"
        );
        let done = self.vm.run(&bash(&script), FIO_LIMIT)?;
        ensure!(done.exit == Exit::Code(0), "{script}: {:?}\n{}{}", done.exit, done.stdout, done.stderr);
        Ok(())
    }

    /// Waits until no merge of index runs is in progress.
    fn let_merges_end(&self) -> Result<()> {
        until("merges to end", SETTLE_LIMIT, || {
            let before = self.s3.requests()?.len();
            std::thread::sleep(MERGE_PAUSE);
            Ok((self.s3.requests()?.len() == before).then_some(()))
        })
    }

    /// Reads a sector of the device's second chunk, because the kernel scans the first for partitions.
    fn read_cold(&self, device: &str, sector: u32) -> Result<()> {
        let at = (128 << 8) + sector;
        self.vm
            .exec(&format!("dd if={device} of=/dev/null bs=4k count=1 skip={at} iflag=direct status=none"))
            .map(drop)
    }
}

/// Measures a volume of 8 GiB with many small commits, on a node without its data.
fn many_commits(bench: &mut IndexBench) -> Result<Vec<Figure>> {
    const VOLUME: &str = "scattered";
    bench.create(VOLUME, "8Gi")?;
    let device = bench.attach(VOLUME, &["--durability", "object"])?;
    bench.write_random(&device, COMMITS, "--norandommap --ioengine=psync --fdatasync=1")?;
    let commits = bench.node.metric("holdfast_volume_committed_seq", VOLUME)?;
    ensure!(commits >= Some(f64::from(COMMITS)), "{commits:?} records are no {COMMITS} commits");
    bench.let_merges_end()?;
    bench.detach(VOLUME)?;
    bench.restart_empty()?;
    let (device, attach) = bench.costs(|| bench.attach(VOLUME, &[]))?;
    let ((), read) = bench.costs(|| bench.read_cold(&device, 77))?;
    bench.detach(VOLUME)?;
    let what = format!("8 GiB, {COMMITS} commits of a scattered 4 KiB, a node that has nothing");
    Ok(vec![
        figure(
            "attach_requests_3000",
            attach.requests.len() as f64,
            "requests",
            Bar::AtMost(66.0),
            what.clone(),
        ),
        figure("attach_mib_3000", attach.received_bytes / MIB, "MiB", Bar::AtMost(1.0), what.clone()),
        figure(
            "cold_first_read_gets",
            read.of("GetObject"),
            "requests",
            Bar::AtMost(100.0),
            format!("the first 4 KiB of a chunk; {what}"),
        ),
        figure("cold_first_read_mib", read.received_bytes / MIB, "MiB", Bar::AtMost(8.0), what),
    ])
}
