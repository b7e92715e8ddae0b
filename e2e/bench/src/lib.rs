//! Benchmarks: figures that are comparable between machines.
//!
//! They come from a test machine whose clock counts instructions (see [`MachineOptions::benchmark`]), so they
//! are counts, or ratios of two measurements in one boot; never times of the host. Exceptions: some bars of
//! `kubernetes` and `index-stores` are waiting times of a user or a write, and that of the recovery in
//! `memory` is a waiting time of requests. Those of `cache-hits` are ratios of two measurements on the host.
//!
//! [`MachineOptions::benchmark`]: holdfast_lab::vm::machine::MachineOptions::benchmark

use std::time::Duration;

use anyhow::{Result, ensure};
use holdfast_lab::pins::{KERNEL, KernelPin};
use holdfast_lab::report;
use holdfast_lab::setup::{BuildProfile, Toolbox};
use holdfast_lab::world::World;
use serde::Serialize;

mod cache_hits;
pub mod coverage;
mod daemon;
mod data_plane;
mod devices;
mod distant_store;
mod external_storage;
mod field;
pub mod fio;
mod fuse_uring;
mod house;
mod index;
mod kubernetes;
pub mod kublk;
mod main_job;
mod memory;
pub mod nvme_target;
mod nvme_tcp;
mod proof;
mod proof_faults;
mod proof_turns;
mod references;
mod ring;
mod soak;
mod without_ublk;
mod zerofs;

/// Number of lines shown of each log when a benchmark fails.
const LOG_LINES: usize = 60;

/// One benchmark.
#[derive(Debug, Clone, Copy)]
pub struct Benchmark {
    /// Name on the command line.
    pub name: &'static str,
    /// The measured quantity.
    pub about: &'static str,
    /// Duration on two idle cores, without set-up and compilation.
    pub expected: Duration,
    /// Build of the measured programs; benchmarks that only count need no optimised one.
    pub profile: BuildProfile,
    /// Runs it in its own world and returns its figures.
    pub run: fn(&World) -> Result<Vec<Figure>>,
}

/// Benchmarks that run by default.
pub const ALL: &[Benchmark] = &[
    Benchmark {
        name: "ring",
        about: "ublk devices of node/ublk against the kernel's own server, files on ext4 on a ramdisk",
        expected: Duration::from_secs(120),
        profile: BuildProfile::Release,
        run: ring::run,
    },
    Benchmark {
        name: "main-job",
        about: "volumes of the daemon: S3 requests of each step, 64 volumes",
        expected: Duration::from_secs(180),
        profile: BuildProfile::Release,
        run: main_job::run,
    },
    Benchmark {
        name: "data-plane",
        about: "requests of volumes against the kernel's own server: both transports, one device and 16",
        expected: Duration::from_secs(550),
        profile: BuildProfile::Release,
        run: data_plane::run,
    },
    Benchmark {
        name: "distant-store",
        about: "uploads to a distant store against a serial one, commits of 1,000 volumes, late reads; on this host",
        expected: Duration::from_secs(240),
        profile: BuildProfile::Release,
        run: distant_store::run,
    },
    Benchmark {
        name: "devices-zero-copy",
        about: "512 volumes on one node: memory, files and idle work of each, all of them over a kill",
        expected: Duration::from_secs(900),
        profile: BuildProfile::Release,
        run: devices::run_zero_copy,
    },
    Benchmark {
        name: "devices-user-copy",
        about: "the same with user copy",
        expected: Duration::from_secs(900),
        profile: BuildProfile::Release,
        run: devices::run_user_copy,
    },
    Benchmark {
        name: "memory",
        about: "memory volumes against brd, zram and trueno-ublk: requests, compression, overhead",
        expected: Duration::from_secs(420),
        profile: BuildProfile::Release,
        run: memory::run,
    },
    Benchmark {
        name: "memory-faults",
        about: "memory volumes over 40 ends of the daemon, with pages on the disk, and in a full control group",
        expected: Duration::from_secs(600),
        profile: BuildProfile::Dev,
        run: memory::faults::run,
    },
    Benchmark {
        name: "cache-hits",
        about: "hits of the node's cache against foyer's disk cache and a bare ring, files in memory",
        expected: Duration::from_secs(300),
        profile: BuildProfile::Release,
        run: cache_hits::run,
    },
    Benchmark {
        name: "without-ublk-requests",
        about: "requests of volumes without ublk, by FUSE and a loop device, against those with ublk",
        expected: Duration::from_secs(150),
        profile: BuildProfile::Release,
        run: without_ublk::run_requests,
    },
    Benchmark {
        name: "without-ublk-kills",
        about: "120 ends of the daemon without ublk under file systems, on two kernels, and ten of its keeper",
        expected: Duration::from_secs(2400),
        profile: BuildProfile::Dev,
        run: without_ublk::run_kills,
    },
    Benchmark {
        name: "without-ublk-scenarios",
        about: "the scenarios of nodes without ublk: claims, csi-sanity, memory pressure, ends of daemon and keeper",
        expected: Duration::from_secs(700),
        profile: BuildProfile::Dev,
        run: without_ublk::run_scenarios,
    },
    Benchmark {
        name: "nvme-tcp",
        about: "an NVMe/TCP target on the loopback: kills of it on three kernels, requests against volumes by FUSE",
        expected: Duration::from_secs(600),
        profile: BuildProfile::Release,
        run: nvme_tcp::run,
    },
    Benchmark {
        name: "fuse-uring",
        about: "FUSE over io_uring whose ring a keeper has: ends of server and keeper, zero copy against copies",
        expected: Duration::from_secs(900),
        profile: BuildProfile::Dev,
        run: fuse_uring::run,
    },
    Benchmark {
        name: "index-policy",
        about: "index runs and records of a volume of 10 TiB, a commit of 1 TiB against one of 10 GiB, sweeps",
        expected: Duration::from_secs(60),
        profile: BuildProfile::Dev,
        run: index::run_policy,
    },
    Benchmark {
        name: "index-commits",
        about: "an attach and a first read after 3,000 commits, on a node that has nothing",
        expected: Duration::from_secs(600),
        profile: BuildProfile::Dev,
        run: index::run_commits,
    },
    Benchmark {
        name: "index-copies",
        about: "requests of snapshots and forks, 100 forks of forks, 1,000 snapshots",
        expected: Duration::from_secs(900),
        profile: BuildProfile::Dev,
        run: index::run_copies,
    },
    Benchmark {
        name: "index-space",
        about: "bytes sent and stored for a volume that is overwritten ten times",
        expected: Duration::from_secs(600),
        profile: BuildProfile::Release,
        run: index::run_space,
    },
    Benchmark {
        name: "index-stores",
        about: "commits of a store while another one of its node does not answer, or refuses the key",
        expected: Duration::from_secs(200),
        profile: BuildProfile::Dev,
        run: index::run_stores,
    },
    Benchmark {
        name: "index-deleted",
        about: "objects that stay of volumes with snapshots and forks, all deleted and swept",
        expected: Duration::from_secs(200),
        profile: BuildProfile::Dev,
        run: index::run_deleted,
    },
    Benchmark {
        name: "kubernetes-claims",
        about: "claims: API and S3 requests of a life, times to a volume and to a grant, takeover",
        expected: Duration::from_secs(250),
        profile: BuildProfile::Dev,
        run: kubernetes::run_claims,
    },
    Benchmark {
        name: "kubernetes-scenarios",
        about: "csi-sanity, chaos, adoption by a new cluster, rotated keys",
        expected: Duration::from_secs(400),
        profile: BuildProfile::Dev,
        run: kubernetes::run_scenarios,
    },
    Benchmark {
        name: "kubernetes-images",
        about: "sizes of the images",
        expected: Duration::from_secs(20),
        profile: BuildProfile::Dev,
        run: kubernetes::run_images,
    },
    Benchmark {
        name: "house",
        about: "the structure of the source: circles, arrows, names, words, sizes",
        expected: Duration::from_secs(60),
        profile: BuildProfile::Dev,
        run: house::run,
    },
    Benchmark {
        name: "proof",
        about: "what the simulation plays and finds, and how much of the engine it runs",
        expected: Duration::from_secs(600),
        profile: BuildProfile::Release,
        run: proof::run,
    },
    Benchmark {
        name: "proof-turns",
        about: "the longest turn of a ring thread for a volume of 1 TiB of which all was touched",
        expected: Duration::from_secs(120),
        profile: BuildProfile::Release,
        run: proof_turns::run,
    },
    Benchmark {
        name: "proof-faults",
        about: "20 power cuts that lose unflushed writes, three minutes without the store, 4 GiB uploaded after it, 100 ends of the daemon under file systems",
        expected: Duration::from_secs(1800),
        profile: BuildProfile::Release,
        run: proof_faults::run,
    },
];

/// Benchmarks that run only by name.
pub const BY_NAME: &[Benchmark] = &[
    Benchmark {
        name: "field-simulated",
        about: "memory of an attach of 1 TiB, file systems that take no write, clocks a day off, two clusters on one bucket",
        expected: Duration::from_secs(300),
        profile: BuildProfile::Dev,
        run: field::run_simulated,
    },
    Benchmark {
        name: "field-stores",
        about: "answers that stores give in their own way: messages, objects that are lost; a bucket whose cluster is lost",
        expected: Duration::from_secs(300),
        profile: BuildProfile::Dev,
        run: field::run_stores,
    },
    Benchmark {
        name: "field-kernels",
        about: "60 ends of the daemon under file systems on each of two kernels, with user copy",
        expected: Duration::from_secs(1500),
        profile: BuildProfile::Dev,
        run: field::run_kernels,
    },
    Benchmark {
        name: "field-host",
        about: "200 attaches and 30 ends of the daemon on a host whose daemons look at all block devices",
        expected: Duration::from_secs(1500),
        profile: BuildProfile::Dev,
        run: field::run_host,
    },
    Benchmark {
        name: "soak",
        about: "memory, files, threads and run directory of a daemon with 16 volumes under load, over ends and then without, with both transports; HOLDFAST_SOAK_MINUTES in place of 60",
        expected: Duration::from_secs(3900),
        profile: BuildProfile::Dev,
        run: soak::run,
    },
    Benchmark {
        name: "external-storage",
        about: "Kubernetes' own tests of storage drivers on a cluster with the chart; HOLDFAST_SPECS, a regular expression, chooses some",
        expected: Duration::from_secs(7200),
        profile: BuildProfile::Dev,
        run: external_storage::run,
    },
];

/// One number.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Figure {
    /// Name, in snake case.
    pub name: String,
    /// The value.
    pub value: f64,
    /// Its unit; `ratio` for ratios.
    pub unit: &'static str,
    /// The value to compare it with, or its bound.
    pub against: String,
    /// Its bar, if it has one.
    #[serde(skip)]
    pub bar: Option<Bar>,
}

/// Requirement on a figure.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bar {
    /// At least this value.
    AtLeast(f64),
    /// At most this value.
    AtMost(f64),
    /// Exactly this value.
    Exactly(f64),
}

impl Bar {
    /// Returns true if `value` clears the bar; NaN does not.
    fn is_cleared(self, value: f64) -> bool {
        match self {
            Self::AtLeast(least) => value >= least,
            Self::AtMost(most) => value <= most,
            Self::Exactly(due) => (value - due).abs() < f64::EPSILON,
        }
    }
}

/// Runs the benchmarks whose name contains `filter`, prints their figures as a table and then as one JSON
/// object per line.
///
/// # Errors
/// If no benchmark matches, one fails, or, after printing all figures, one misses its bar.
pub fn run(filter: Option<&str>) -> Result<()> {
    let chosen: Vec<&Benchmark> = match filter {
        None => ALL.iter().collect(),
        Some(part) => ALL.iter().chain(BY_NAME).filter(|benchmark| benchmark.name.contains(part)).collect(),
    };
    ensure!(!chosen.is_empty(), "no such benchmark; `cargo e2e list` names them all");
    let toolbox = Toolbox::open()?;
    let (mut figures, mut failed) = (Vec::new(), Vec::new());
    for benchmark in chosen {
        report::step(format_args!("benchmark {}: {}", benchmark.name, benchmark.about));
        let world = World::new(&toolbox, benchmark.name, KERNEL, benchmark.profile)?;
        match (benchmark.run)(&world) {
            Ok(measured) => figures.extend(measured),
            // Keeps the figures of the other benchmarks.
            Err(error) => {
                eprintln!("{}", world.logs(LOG_LINES));
                failed.push(format!("{} failed: {error:#}", benchmark.name));
            }
        }
    }
    report::line("| figure | value | unit | against |");
    report::line("|---|---|---|---|");
    for figure in &figures {
        let Figure { name, value, unit, against, bar: _ } = figure;
        report::line(format_args!("| {name} | {value:.3} | {unit} | {against} |"));
    }
    for figure in &figures {
        report::line(serde_json::to_string(figure)?);
    }
    failed.extend(figures.iter().filter_map(missed));
    ensure!(failed.is_empty(), "{}", failed.join("; "));
    Ok(())
}

/// Describes the bar that a figure misses, if it does.
fn missed(figure: &Figure) -> Option<String> {
    let Figure { name, value, unit: _, against, bar } = figure;
    let bar = bar.filter(|bar| !bar.is_cleared(*value))?;
    Some(format!("missed: {name} is {value:.3}, must be {bar:?} ({against})"))
}

/// Plays a scenario in its own world, with development builds, which have assertions: speed does not matter
/// here.
fn play<T>(world: &World, name: &str, scenario: impl FnOnce(&World) -> Result<T>) -> Result<T> {
    play_on(world, KERNEL, name, scenario)
}

/// Like [`play`], on this kernel.
fn play_on<T>(
    world: &World,
    kernel: KernelPin,
    name: &str,
    scenario: impl FnOnce(&World) -> Result<T>,
) -> Result<T> {
    let own = World::new(world.toolbox(), name, kernel, BuildProfile::Dev)?;
    let played = scenario(&own).and_then(|outcome| own.check_kernels().map(|()| outcome));
    if played.is_err() {
        eprintln!("{}", own.logs(LOG_LINES));
    }
    played
}

/// Returns the median of an odd number of values.
pub fn median(mut values: Vec<f64>) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missed_bar_is_named() {
        let figure = |value, bar| Figure {
            name: "speed".to_owned(),
            value,
            unit: "ratio",
            against: "kublk".to_owned(),
            bar: Some(bar),
        };
        assert!(missed(&figure(0.84, Bar::AtLeast(0.85))).unwrap().starts_with("missed: speed is 0.840"));
        assert!(missed(&figure(f64::NAN, Bar::AtMost(2.0))).is_some());
        assert!(missed(&figure(2.0, Bar::AtMost(2.0))).is_none());
        assert!(missed(&figure(3.0, Bar::Exactly(2.0))).is_some());
        assert!(missed(&figure(2.0, Bar::Exactly(2.0))).is_none());
    }

    #[test]
    fn the_median_is_the_middle_one() {
        assert!((median(vec![9.0, 1.0, 2.0]) - 2.0).abs() < f64::EPSILON);
        assert!(median(Vec::new()).is_nan());
    }
}
