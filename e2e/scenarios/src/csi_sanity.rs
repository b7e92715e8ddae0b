//! The CSI project's own tests (csi-sanity) on the driver with real devices.

use std::fmt::Write;

use anyhow::{Context, Result, ensure};
use holdfast_lab::csi_node::{CsiNode, SOCKET};
use holdfast_lab::vm::HOST;
use holdfast_lab::wire::Program;
use holdfast_lab::world::World;

use super::story::provision_store;

const BUCKET: &str = "csi";
/// Path of the Controller service's socket in the machine.
const CONTROLLER: &str = "/run/csi-controller.sock";
const KUBECONFIG: &str = "/root/csi.kubeconfig";
/// The result of all tests. Skipped are those of capabilities that the driver does not announce: groups,
/// capacity, read-only publication, health. Pending is one that the project itself leaves out.
const RESULT: &str = "86 Passed | 0 Failed | 1 Pending | 16 Skipped";

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    provision_store(world, &s3, BUCKET)?;
    world.share(&world.toolbox().csi_sanity()?, "bin/csi-sanity")?;
    let node = world.node("a", "auto", "")?;
    let driver = CsiNode::start(world.vm("a")?)?;
    let vm = driver.vm();
    vm.put(KUBECONFIG, 0o600, world.csi_kubeconfig(HOST)?.as_bytes())?;
    let endpoint = format!("--endpoint=unix://{CONTROLLER}");
    let mut controller = Program {
        argv: ["holdfast-csi", "controller", &endpoint, "--metrics-address=127.0.0.1:0"]
            .map(str::to_owned)
            .to_vec(),
        ..Program::default()
    };
    controller.env.insert("KUBECONFIG".to_owned(), KUBECONFIG.to_owned());
    controller.env.insert("RUST_LOG".to_owned(), "info".to_owned());
    vm.spawn("csi-controller", &controller)?;
    vm.put("/root/parameters.yaml", 0o600, b"objectStore: store\n")?;
    vm.put("/root/attributes.yaml", 0o600, b"durability: object\n")?;

    let mut script = "csi-sanity --ginkgo.no-color --ginkgo.v".to_owned();
    for (name, value) in [
        ("endpoint", format!("unix://{SOCKET}")),
        ("controllerendpoint", format!("unix://{CONTROLLER}")),
        ("testvolumeparameters", "/root/parameters.yaml".to_owned()),
        ("testvolumemutableparameters", "/root/attributes.yaml".to_owned()),
        ("testvolumesize", (1 << 30).to_string()),
        ("testvolumeexpandsize", (2 << 30).to_string()),
        ("mountdir", "/tmp/csi-mount".to_owned()),
        ("stagingdir", "/tmp/csi-staging".to_owned()),
    ] {
        write!(script, " --csi.{name}={value}").context("a command line")?;
    }
    // The whole report is its standard output; a failed test is in it.
    let report = vm.exec(&format!(
        "for _ in {{1..100}}; do test -S {CONTROLLER} && break; sleep 0.1; done; {script} || true"
    ))?;
    std::fs::write(world.dir().join("csi-sanity.log"), &report).context("keep the report")?;
    let summary = report.lines().rev().find(|line| line.contains(" Passed | ")).unwrap_or_default();
    ensure!(summary.contains(RESULT), "csi-sanity: {summary}\n{}", failures(&report));
    holdfast_lab::report::step(format_args!("csi-sanity: {summary}"));
    node.terminate()?;
    operator.stop()
}

/// The lines of a report that name a failed test.
fn failures(report: &str) -> String {
    let lines: Vec<&str> = report.lines().filter(|line| line.contains("[FAIL]")).collect();
    lines.join("\n")
}
