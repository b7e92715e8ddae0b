//! `holdfast-node preflight`: checks the node for the daemon's requirements. Needs no daemon.

use std::path::PathBuf;
use std::process::ExitCode;

use clap::Args;
use holdfast_service::chain;
use serde_json::{Value, json};
use tokio::runtime::Runtime;

use super::{fail, finish, output};
use crate::config::Config;
use crate::failure::Failure;
use crate::node::FailureKind;
use crate::preflight::{self, Check, Verdict};

/// Arguments of `preflight`.
#[derive(Debug, Args)]
pub(super) struct Preflight {
    /// The configuration file; /dev/null for the defaults under Kubernetes, with HOLDFAST_KUBERNETES=true and
    /// HOLDFAST_NODE_NAME
    #[arg(long, value_name = "FILE", default_value = "/etc/holdfast/node.toml", env = "HOLDFAST_CONFIG")]
    config: PathBuf,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

impl Preflight {
    /// Runs the checks. Prints each result at once, or all of them as JSON at the end.
    pub(super) fn run(self) -> ExitCode {
        let config = match Config::load(&self.config) {
            Ok(config) => config,
            Err(error) => return fail(2, &chain(&error)),
        };
        let runtime = match Runtime::new() {
            Ok(runtime) => runtime,
            Err(error) => return fail(1, &format!("threads cannot be created: {error}")),
        };
        let (mut checks, mut printed) = (Vec::new(), Ok(()));
        runtime.block_on(preflight::run(&config, &mut |check| {
            if !self.json && printed.is_ok() {
                printed = output::print(&line(&check));
            }
            checks.push(check);
        }));
        if let Err(error) = printed {
            return fail(1, &format!("the checks cannot be printed: {error}"));
        }
        let text = if self.json { format!("{:#}\n", document(&checks)) } else { String::new() };
        finish(verdict(&checks), &text)
    }
}

fn line(check: &Check) -> String {
    let Check { name, found, verdict } = check;
    let fix = verdict.fix().map(|fix| format!(". Fix: {fix}")).unwrap_or_default();
    format!("{} {name}: {found}{fix}\n", verdict.name())
}

fn document(checks: &[Check]) -> Value {
    let one = |check: &Check| {
        let Check { name, found, verdict } = check;
        json!({ "name": name, "verdict": verdict.name(), "found": found, "fix": verdict.fix() })
    };
    json!({ "checks": checks.iter().map(one).collect::<Vec<_>>() })
}

fn verdict(checks: &[Check]) -> Result<(), Failure> {
    match checks.iter().filter(|check| matches!(check.verdict, Verdict::Fail { .. })).count() {
        0 => Ok(()),
        failed => {
            let message = format!("{failed} of {} checks FAIL: a daemon would not serve here", checks.len());
            Err(Failure { kind: FailureKind::Local, message })
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn check(verdict: Verdict) -> Check {
        Check { name: "kernel".to_owned(), found: "Linux 6.18.4 crashes".to_owned(), verdict }
    }

    #[test]
    fn a_line_has_verdict_state_and_fix() {
        let fix = || "boot Linux 7.1 or newer".to_owned();
        assert_eq!(line(&check(Verdict::Pass)), "PASS kernel: Linux 6.18.4 crashes\n");
        let failed = check(Verdict::Fail { fix: fix() });
        assert_eq!(line(&failed), "FAIL kernel: Linux 6.18.4 crashes. Fix: boot Linux 7.1 or newer\n");
        let expected = json!({ "checks": [
            { "name": "kernel", "verdict": "FAIL", "found": "Linux 6.18.4 crashes", "fix": fix() },
            { "name": "kernel", "verdict": "PASS", "found": "Linux 6.18.4 crashes", "fix": null },
        ] });
        assert_eq!(document(&[failed, check(Verdict::Pass)]), expected);
    }

    #[test]
    fn only_a_failed_check_fails_the_command() {
        let warned = check(Verdict::Warn { fix: String::new() });
        assert!(verdict(&[check(Verdict::Pass), warned.clone()]).is_ok());
        let failed = verdict(&[warned, check(Verdict::Fail { fix: String::new() })]).unwrap_err();
        assert_eq!(failed.kind, FailureKind::Local);
        assert!(failed.message.starts_with("1 of 2 checks FAIL"), "{}", failed.message);
    }
}
