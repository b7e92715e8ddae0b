//! Runs a program to completion, with a detailed error.

use std::ffi::OsStr;
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, bail};

use crate::report;

/// Runs `command` without output and returns its standard output.
///
/// # Errors
/// If it cannot be started or its exit code is not 0; the error contains its output.
pub fn output(command: &mut Command) -> Result<String> {
    let shown = shown(command);
    let out = command.stdin(Stdio::null()).output().with_context(|| format!("start {shown}"))?;
    if !out.status.success() {
        bail!(
            "{shown}: {}\n{}{}",
            out.status,
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
    }
    String::from_utf8(out.stdout).with_context(|| format!("output of {shown} is not UTF-8"))
}

/// Runs `command`; its output goes to the progress log of this thread.
///
/// # Errors
/// If it cannot be started or its exit code is not 0.
pub fn show(command: &mut Command) -> Result<()> {
    let shown = shown(command);
    let status = command
        .stdin(Stdio::null())
        .stdout(report::progress()?)
        .stderr(report::progress()?)
        .status()
        .with_context(|| format!("start {shown}"))?;
    if !status.success() {
        bail!("{shown}: {status}");
    }
    Ok(())
}

/// Returns a command that runs `program` as root: directly, or through sudo.
pub fn as_root(program: impl AsRef<OsStr>) -> Command {
    if rustix::process::geteuid().is_root() {
        Command::new(program)
    } else {
        let mut command = Command::new("sudo");
        command.arg("--non-interactive").arg(program);
        command
    }
}

/// Copies a program without its debug information.
///
/// # Errors
/// If it is not a program, or cannot be written.
pub fn strip(program: &Path, to: &Path) -> Result<()> {
    output(Command::new("strip").arg("-o").arg(to).arg(program)).map(drop)
}

/// Formats the program and its arguments, for messages.
fn shown(command: &Command) -> String {
    let mut words = vec![command.get_program().to_string_lossy()];
    words.extend(command.get_args().map(OsStr::to_string_lossy));
    let mut line = words.join(" ");
    if line.len() > 300 {
        line.truncate(line.floor_char_boundary(300));
        line.push_str(" ...");
    }
    line
}
