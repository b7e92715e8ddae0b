//! `cargo e2e shell`: a prompt in a running world.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Command, ExitCode};
use std::time::Duration;

use anyhow::{Context, Result};
use holdfast_lab::pins::{KERNEL, KernelPin};
use holdfast_lab::report;
use holdfast_lab::s3::{ACCESS_KEY, REGION, SECRET_KEY};
use holdfast_lab::setup::{BuildProfile, Toolbox};
use holdfast_lab::vm::agent::Agent;
use holdfast_lab::vm::bash;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

/// Time limit of a command typed at the prompt in a machine.
const COMMAND_LIMIT: Duration = Duration::from_secs(24 * 3600);
/// The existing bucket.
const BUCKET: &str = "holdfast";

/// Starts control plane, operator, S3 server and one machine, then a shell; all end with the shell. The
/// machine boots a kernel of `series`.
///
/// # Errors
/// If no kernel of the series is pinned, or a component does not start.
pub fn run(series: Option<&str>) -> Result<()> {
    let kernel = series.map_or(Ok(KERNEL), KernelPin::of)?;
    let toolbox = Toolbox::open()?;
    let world = World::new(&toolbox, "shell", kernel, BuildProfile::Dev)?;
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    world.operator()?;
    let vm = world.vm("a")?;

    let bin = world.dir().join("bin");
    fs::create_dir(&bin).context("create a directory for commands")?;
    let kubectl = toolbox.kubectl()?;
    script(&bin.join("kubectl"), &format!("exec '{}' \"$@\"", kubectl.display()))?;
    let this = std::env::current_exe().context("find this program")?;
    let port = vm.agent_port()?;
    script(&bin.join("vm-a"), &format!("exec '{}' vm-exec {port} \"$*\"", this.display()))?;

    report::step("kubectl ...         the Kubernetes API, as administrator");
    report::step("vm-a 'COMMAND'      a command in the test machine");
    report::step(format_args!(
        "S3 bucket {BUCKET} at {} ({} in the machine)",
        s3.endpoint(),
        s3.endpoint_in_vm()
    ));
    report::step(format_args!("logs are in {}; exit ends everything", world.dir().display()));
    let path = std::env::var("PATH").unwrap_or_default();
    Command::new("bash")
        .args(["--norc", "-i"])
        .env("PS1", "holdfast$ ")
        .env("PATH", format!("{}:{path}", bin.display()))
        .env("KUBECONFIG", world.control_plane()?.admin_kubeconfig())
        .env("AWS_ENDPOINT_URL", s3.endpoint())
        .env("AWS_ACCESS_KEY_ID", ACCESS_KEY)
        .env("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
        .env("AWS_REGION", REGION)
        .status()
        .context("start bash")?;
    Ok(())
}

/// Runs a command in the machine whose agent is reached through `port`, for the shell's `vm-*` commands.
///
/// # Errors
/// If the machine does not respond.
pub fn vm_exec(port: u16, command: &str) -> Result<ExitCode> {
    let done = Agent::new("the machine", port).exec(&bash(command), COMMAND_LIMIT)?;
    eprint!("{}", done.stderr);
    report::line(done.stdout.trim_end_matches('\n'));
    Ok(match done.exit {
        Exit::Code(code) => ExitCode::from(u8::try_from(code).unwrap_or(u8::MAX)),
        Exit::Signal(_) => ExitCode::FAILURE,
    })
}

fn script(path: &Path, line: &str) -> Result<()> {
    fs::write(path, format!("#!/bin/sh\n{line}\n"))
        .and_then(|()| fs::set_permissions(path, fs::Permissions::from_mode(0o755)))
        .with_context(|| format!("write {}", path.display()))
}
