//! The workspace's own tests, and the interpretation of their output.

use std::fs::{self, File};
use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::display::{SHOWN_LINES, end_of};
use holdfast_lab::process::LoggedProcess;
use holdfast_lab::setup::Toolbox;

/// Minimum lines shown of each failed test, regardless of the number of failures.
const SHOWN_AT_LEAST: usize = 8;
/// Time limit, with everything but the documentation's examples compiled, while two scenarios run.
const LIMIT: Duration = Duration::from_secs(2400);

/// Runs `cargo test --workspace`, and then the tests that need the S3 server and are ignored by default.
/// Their output goes to `log`.
///
/// # Errors
/// If one of them fails.
pub fn run(toolbox: &Toolbox, log: &File) -> Result<()> {
    let versitygw = toolbox.versitygw()?;
    for arguments in [&[][..], &["--test", "s3", "--", "--ignored", "versitygw"]] {
        let mut command = toolbox.cargo("test");
        // A failure in one crate does not hide those in others.
        command
            .args(["--workspace", "--no-fail-fast"])
            .args(arguments)
            .env("HOLDFAST_TEST_VERSITYGW", &versitygw);
        let shared = || log.try_clone().context("share a step's file");
        let mut tests = LoggedProcess::spawn_to("cargo test", &command, shared()?.into(), shared()?.into())?;
        let status = tests.wait(LIMIT)?;
        ensure!(status.success(), "cargo test --workspace {}: {status}", arguments.join(" "));
    }
    Ok(())
}

/// Returns the number of passed tests, as a note.
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

/// Returns the failures in an output: the last lines of each failed test, the names of all, the programs
/// killed by a signal, and cargo's list of them. If it has none of these, returns its end.
pub fn failures(output: &str) -> String {
    /// Number of lines before the report of a signal, which show the program's last actions.
    const BEFORE_SIGNAL: usize = 14;
    let lines: Vec<&str> = output.lines().collect();
    // Lines of each failed test, starting with the one that has its name.
    let mut printed: Vec<Vec<&str>> = Vec::new();
    let mut rest = Vec::new();
    let mut within = false;
    for (at, &line) in lines.iter().enumerate() {
        if line == "failures:" {
            within = true;
        } else if line.starts_with("test result: ") {
            within = false;
        } else if within && line.starts_with("---- ") {
            printed.push(vec![line]);
        } else if within && is_name(line) {
            rest.push(line);
        } else if within && !line.is_empty() {
            printed.last_mut().unwrap_or(&mut rest).push(line);
        } else if line.contains("process didn't exit successfully") && line.contains("(signal: ") {
            rest.extend(&lines[at.saturating_sub(BEFORE_SIGNAL)..=at]);
        }
    }
    let is_list = |line: &&str| line.starts_with("error: ") && line.ends_with(" failed:");
    if let Some(at) = lines.iter().rposition(is_list) {
        rest.extend(&lines[at..]);
    }
    if printed.is_empty() && rest.is_empty() {
        return end_of(output);
    }
    let most = (SHOWN_LINES / printed.len().max(1)).max(SHOWN_AT_LEAST);
    let mut shown = Vec::new();
    for test in printed {
        let (name, lines) = test.split_first().expect("it begins with its name");
        shown.push(*name);
        if lines.len() > most {
            shown.push("...");
        }
        shown.extend(&lines[lines.len().saturating_sub(most)..]);
    }
    shown.extend(rest);
    shown.join("\n")
}

/// Returns true for a line of the list of failed tests.
fn is_name(line: &str) -> bool {
    line.strip_prefix("    ").is_some_and(|name| !name.starts_with(' ') && !name.contains(' '))
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
        let shown = "---- b stdout ----\nit broke\n    b\nerror: 1 target failed:\n    `-p x --lib`";
        assert_eq!(failures(OUTPUT), shown);
        assert_eq!(failures("error: no space left\n"), "error: no space left");
    }

    #[test]
    fn a_long_output_of_a_test_is_shortened() {
        let long: String = (0..1000).map(|line| format!("step {line}\n")).collect();
        let shown =
            failures(&OUTPUT.replace("it broke\n", &long).replace(
                "failures:\n    b\n",
                "---- c stdout ----\nit broke, too\n\nfailures:\n    b\n    c\n",
            ));
        for line in ["---- b stdout ----\n...\n", "step 999\n", "it broke, too\n", "    b\n    c\n"] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
        assert!(!shown.contains("step 0\n") && shown.lines().count() < 60, "{shown}");
    }

    /// A program ended by a signal has no result, and hundreds of other lines may follow.
    #[test]
    fn a_program_that_a_signal_ended_is_shown() {
        let aborted = "test c ... thread 'c' has overflowed its stack\n\
                       error: test failed, to rerun pass `-p y --lib`\n\nCaused by:\n  \
                       process didn't exit successfully: `y` (signal: 6, SIGABRT: process abort signal)\n";
        let shown = failures(&format!("{aborted}{OUTPUT}"));
        for line in ["has overflowed its stack", "SIGABRT", "it broke"] {
            assert!(shown.contains(line), "{line} in {shown}");
        }
    }
}
