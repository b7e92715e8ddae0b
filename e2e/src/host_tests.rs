//! The workspace's own tests, and what their output says.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::display::{SHOWN_LINES, end_of};
use holdfast_lab::process::Process;
use holdfast_lab::setup::Toolbox;

/// Time limit, with all but the documentation's examples compiled.
const LIMIT: Duration = Duration::from_secs(1200);

/// `cargo test --workspace`, and then the tests that are ignored without the S3 server, which is here. Their
/// output goes into `log`.
///
/// # Errors
/// If one of them fails.
pub fn run(toolbox: &Toolbox, log: &File) -> Result<()> {
    let versitygw = toolbox.versitygw()?;
    for arguments in [&[][..], &["--test", "s3", "--", "--ignored", "versitygw"]] {
        let mut command = toolbox.cargo("test");
        // What fails in one crate does not hide what fails in another.
        command
            .args(["--workspace", "--no-fail-fast"])
            .args(arguments)
            .env("HOLDFAST_TEST_VERSITYGW", &versitygw);
        let shared = || log.try_clone().context("share a step's file");
        let mut tests = Process::spawn_to("cargo test", &command, shared()?.into(), shared()?.into())?;
        let status = tests.wait(LIMIT)?;
        ensure!(status.success(), "cargo test --workspace {}: {status}", arguments.join(" "));
    }
    Ok(())
}

/// The number of tests that passed, as a note.
///
/// # Errors
/// If the output cannot be read.
pub fn passed(log: &Path) -> Result<String> {
    let text = fs::read(log).with_context(|| format!("read {}", log.display()))?;
    Ok(format!("{} passed", count(&String::from_utf8_lossy(&text))))
}

fn count(output: &str) -> u32 {
    let results = output.lines().filter_map(|line| line.strip_prefix("test result: "));
    let passed =
        results.filter_map(|result| result.split_once(". ")?.1.split_once(" passed")?.0.parse::<u32>().ok());
    passed.sum()
}

/// Output of the tests that failed, from that of all; its end if no test failed.
pub fn failures(output: &str) -> String {
    let mut shown = Vec::new();
    let mut within = false;
    for line in output.lines() {
        match line {
            "failures:" => within = true,
            line if line.starts_with("test result: ") => within = false,
            line if within && !line.is_empty() => shown.push(line),
            _ => {}
        }
    }
    if shown.is_empty() {
        return end_of(output);
    }
    if shown.len() > SHOWN_LINES {
        shown.truncate(SHOWN_LINES);
        shown.push("...");
    }
    shown.join("\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    const OUTPUT: &str = "\
running 2 tests
test a ... ok
test b ... FAILED

failures:

---- b stdout ----
it broke

failures:
    b

test result: FAILED. 1 passed; 1 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s

running 3 tests
test result: ok. 3 passed; 0 failed; 0 ignored; 0 measured; 0 filtered out; finished in 0.00s
error: 1 target failed:
    `-p x --lib`
";

    #[test]
    fn passed_tests_of_all_programs_are_counted() {
        assert_eq!(count(OUTPUT), 4);
    }

    #[test]
    fn failures_are_shown_from_amid_the_output() {
        assert_eq!(failures(OUTPUT), "---- b stdout ----\nit broke\n    b");
        assert_eq!(failures("error: no space left\n"), "error: no space left");
    }
}
