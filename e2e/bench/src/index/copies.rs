//! Snapshots and forks: their requests, and the effect of many of them on others.

use anyhow::Result;

use super::{Cost, IndexBench, figure};
use crate::{Bar, Figure};

const VOLUME: &str = "origin";
/// Depth of the chain of forks.
const DEPTH: u32 = 99;
/// Together with the four records of two attaches and two detaches this is a multiple of 32, the distance of
/// checkpoints, so the log has as many records after the newest checkpoint as without the snapshots.
const SNAPSHOTS: u32 = 32 * 32 - 4;
/// Snapshots per script.
const SCRIPT: u32 = 102;

pub(super) fn measure(bench: &mut IndexBench) -> Result<Vec<Figure>> {
    let mut figures = one_of_each(bench)?;
    figures.extend(deep_forks(bench)?);
    figures.push(many_snapshots(bench)?);
    Ok(figures)
}

fn puts(cost: &Cost) -> f64 {
    cost.of("PutObject")
}

fn snapshot(bench: &IndexBench, volume: &str) -> Result<String> {
    Ok(bench.node.cli(&["snapshot", "create", volume, "--store", "store"])?.trim().to_owned())
}

fn write_sector(bench: &IndexBench, device: &str, sector: u32) -> Result<()> {
    let at = (128 << 8) + sector;
    let script =
        format!("dd if=/dev/urandom of={device} bs=4k count=1 seek={at} oflag=direct conv=fsync status=none");
    bench.vm.exec(&script).map(drop)
}

/// Counts the requests of one snapshot and of one fork.
fn one_of_each(bench: &IndexBench) -> Result<Vec<Figure>> {
    bench.create(VOLUME, "512Mi")?;
    let device = bench.attach(VOLUME, &[])?;
    write_sector(bench, &device, 1)?;
    let (first, dirty) = bench.costs(|| snapshot(bench, VOLUME))?;
    let (_, clean) = bench.costs(|| snapshot(bench, VOLUME))?;
    bench.detach(VOLUME)?;
    let create = || bench.node.cli(&["create", "fork", "--from", &first, "--store", "store"]);
    let (_, fork) = bench.costs(create)?;
    Ok(vec![
        figure(
            "snapshot_puts_clean",
            puts(&clean),
            "requests",
            Bar::AtMost(2.0),
            "a root and a record: nothing is dirty",
        ),
        figure(
            "snapshot_puts_dirty",
            puts(&dirty),
            "requests",
            Bar::AtMost(3.0),
            "a segment, a root and a record",
        ),
        figure("fork_puts", puts(&fork), "requests", Bar::AtMost(1.0), "docs/design.md has why"),
        figure("fork_gets", fork.of("GetObject"), "requests", Bar::AtMost(1.0), "docs/design.md has why"),
    ])
}

/// Compares a chain of forks, each with one written sector, to a single volume with the same writes.
fn deep_forks(bench: &mut IndexBench) -> Result<Vec<Figure>> {
    bench.create("alone", "512Mi")?;
    // Each synced write is one commit, so this volume makes as many segments as the forks below.
    let alone = bench.attach("alone", &["--durability", "object"])?;
    bench.create("chain-0", "512Mi")?;
    for nth in 0..=DEPTH {
        let chain = format!("chain-{nth}");
        if nth > 0 {
            let behind = format!("chain-{}", nth - 1);
            bench.node.cli(&["create", &chain, "--from", &behind, "--store", "store"])?;
        }
        write_sector(bench, &alone, nth * 32)?;
        let device = bench.attach(&chain, &[])?;
        write_sector(bench, &device, nth * 32)?;
        bench.detach(&chain)?;
    }
    bench.detach("alone")?;
    bench.restart_empty()?;
    let mut gets = Vec::new();
    for volume in ["alone", &format!("chain-{DEPTH}")] {
        let device = bench.attach(volume, &[])?;
        let ((), read) = bench.costs(|| bench.read_cold(&device, 32))?;
        gets.push(read.of("GetObject"));
        bench.detach(volume)?;
    }
    let against = format!("GETs of the first 4 KiB: {} and {}", gets[1], gets[0]);
    Ok(vec![figure("fork_100_deep_gets_vs_1", gets[1] / gets[0], "ratio", Bar::AtMost(1.3), against)])
}

/// Compares attaches of a volume with 2 snapshots and with more than a thousand.
fn many_snapshots(bench: &mut IndexBench) -> Result<Figure> {
    let mut attaches = Vec::new();
    for more in [0, SNAPSHOTS] {
        if more > 0 {
            bench.attach(VOLUME, &[])?;
            for _ in 0..more / SCRIPT {
                let one = format!("holdfast-node snapshot create {VOLUME} > /dev/null");
                bench.vm.exec(&format!("for _ in $(seq {SCRIPT}); do {one}; done"))?;
            }
            bench.detach(VOLUME)?;
        }
        bench.restart_empty()?;
        let (_device, attach) = bench.costs(|| bench.attach(VOLUME, &[]))?;
        attaches.push(attach.requests.len() as f64);
        bench.detach(VOLUME)?;
    }
    Ok(figure(
        "snapshots_1000_attach_requests_vs_1",
        attaches[1] / attaches[0],
        "ratio",
        Bar::AtMost(1.1),
        format!("{} and {} requests, with {} and 2 snapshots", attaches[1], attaches[0], SNAPSHOTS + 2),
    ))
}
