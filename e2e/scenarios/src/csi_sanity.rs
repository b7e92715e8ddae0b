//! The CSI project's own tests (csi-sanity) on the driver with real devices.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi_node::{CsiNode, SOCKET};
use holdfast_lab::vm::HOST;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::wire::GuestProgram;
use holdfast_lab::world::World;

use super::keeper::start_keeper;
use super::story::provision_store;

const BUCKET: &str = "csi";
/// Path of the Controller service's socket in the machine.
const CONTROLLER: &str = "/run/csi-controller.sock";
const KUBECONFIG: &str = "/root/csi.kubeconfig";
/// The result of all tests. Skipped ones test capabilities that the driver does not announce: read-only
/// publication, health. The pending one is excluded by the project itself.
const RESULT: SanityCounts = SanityCounts { passed: 93, failed: 0, pending: 1, skipped: 9 };

/// Numbers of tests by their result.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SanityCounts {
    /// The driver behaved as expected.
    pub passed: u32,
    /// The driver did not.
    pub failed: u32,
    /// Tests excluded by the project.
    pub pending: u32,
    /// Tests of capabilities that the driver does not announce.
    pub skipped: u32,
}

pub(super) fn run(world: &World) -> Result<()> {
    check_counts(sanity(world)?)
}

/// Runs on a node without ublk.
pub(super) fn fuse(world: &World) -> Result<()> {
    check_counts(sanity_on(world, || {
        start_keeper(&*world.vm_with("a", MachineOptions::without_ublk)?, "keeper", false)
    })?)
}

fn check_counts(outcome: SanityCounts) -> Result<()> {
    ensure!(outcome == RESULT, "not {RESULT:?} but {outcome:?}");
    Ok(())
}

/// Runs all tests and names the failed ones.
///
/// # Errors
/// If they cannot be run.
pub fn sanity(world: &World) -> Result<SanityCounts> {
    sanity_on(world, || Ok(()))
}

/// Runs all tests on the machine that `boot` may have booted, and names the failed ones.
fn sanity_on(world: &World, boot: impl FnOnce() -> Result<()>) -> Result<SanityCounts> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    world.share(&world.toolbox().csi_sanity()?, "bin/csi-sanity")?;
    boot()?;
    let node = world.node("a", "auto", "")?;
    let driver = CsiNode::start(world.vm("a")?)?;
    let vm = driver.vm();
    vm.put_file(KUBECONFIG, 0o600, world.csi_kubeconfig(HOST)?.as_bytes())?;
    let endpoint = format!("--endpoint=unix://{CONTROLLER}");
    let mut controller = GuestProgram {
        argv: ["holdfast-csi", "controller", &endpoint, "--metrics-address=127.0.0.1:0"]
            .map(str::to_owned)
            .to_vec(),
        ..GuestProgram::default()
    };
    controller.env.insert("KUBECONFIG".to_owned(), KUBECONFIG.to_owned());
    controller.env.insert("RUST_LOG".to_owned(), "info".to_owned());
    vm.spawn("csi-controller", &controller)?;
    vm.put_file("/root/parameters.yaml", 0o600, b"objectStore: store\n")?;
    vm.put_file("/run/attributes.yaml", 0o600, b"durability: object\n")?;

    let mut script = "csi-sanity --ginkgo.no-color --ginkgo.v".to_owned();
    for (name, value) in [
        ("endpoint", format!("unix://{SOCKET}")),
        ("controllerendpoint", format!("unix://{CONTROLLER}")),
        ("testvolumeparameters", "/root/parameters.yaml".to_owned()),
        ("testvolumemutableparameters", "/run/attributes.yaml".to_owned()),
        ("testvolumesize", (1 << 30).to_string()),
        ("testvolumeexpandsize", (2 << 30).to_string()),
        ("mountdir", "/tmp/csi-mount".to_owned()),
        ("stagingdir", "/tmp/csi-staging".to_owned()),
    ] {
        write!(script, " --csi.{name}={value}").context("a command line")?;
    }
    // The whole report is its standard output, including failed tests.
    let report = vm.exec(&format!(
        "for _ in {{1..100}}; do test -S {CONTROLLER} && break; sleep 0.1; done; {script} || true"
    ))?;
    std::fs::write(world.dir().join("csi-sanity.log"), &report).context("keep the report")?;
    let summary = report.lines().rev().find(|line| line.contains(" Passed | ")).unwrap_or_default();
    holdfast_lab::report::step(format_args!("csi-sanity: {summary}"));
    report.lines().filter(|line| line.contains("[FAIL]")).for_each(holdfast_lab::report::step);
    let outcome = read(summary).with_context(|| format!("csi-sanity printed no result: {summary:?}"))?;
    node.terminate()?;
    operator.stop()?;
    Ok(outcome)
}

/// Parses a line such as `Ran 86 of 103 Specs: 86 Passed | 0 Failed | 1 Pending | 16 Skipped`.
fn read(summary: &str) -> Option<SanityCounts> {
    let count = |word: &str| summary.split(word).next()?.split_whitespace().last()?.parse().ok();
    Some(SanityCounts {
        passed: count(" Passed")?,
        failed: count(" Failed")?,
        pending: count(" Pending")?,
        skipped: count(" Skipped")?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_summary_is_read() {
        let line = "FAIL! -- 77 Passed | 1 Failed | 1 Pending | 9 Skipped";
        assert_eq!(read(line), Some(SanityCounts { passed: 77, failed: 1, ..RESULT }));
        assert_eq!(read("Ran out of memory"), None);
    }
}
