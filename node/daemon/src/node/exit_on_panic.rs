//! Ends the process after a panic in the data plane: the kernel quiesces the devices, and the next daemon
//! recovers them. Otherwise a volume would wait indefinitely for a response.

/// Exit status of a data plane that cannot continue. Source: `EX_SOFTWARE` in sysexits(3head).
const EXIT_STATUS: i32 = 70;

/// Ends the process at once, after its last log lines.
pub(super) fn end_process() -> ! {
    holdfast_service::logs::flush();
    std::process::exit(EXIT_STATUS)
}

/// Guard of a task that must not die alone: if a panic drops it, the process ends. Contains the task's name.
pub(super) struct ExitOnPanic(pub(super) &'static str);

impl Drop for ExitOnPanic {
    fn drop(&mut self) {
        if std::thread::panicking() {
            tracing::error!(
                died = self.0,
                "internal error; the process exits; its devices are paused until the daemon restarts"
            );
            end_process();
        }
    }
}

#[cfg(test)]
mod tests {
    use std::process::Command;

    use super::*;

    const CHILD: &str = "HOLDFAST_TEST_PANICS";

    #[tokio::test]
    async fn a_panic_in_a_task_ends_the_process() {
        if std::env::var_os(CHILD).is_some() {
            let died = tokio::spawn(async {
                let _alone = ExitOnPanic("a test");
                tokio::task::yield_now().await;
                panic!("planted");
            });
            drop(died.await);
            return;
        }
        let name = "node::exit_on_panic::tests::a_panic_in_a_task_ends_the_process";
        let child = Command::new(std::env::current_exe().unwrap())
            .args(["--exact", name])
            .env(CHILD, "1")
            .output()
            .unwrap();
        assert_eq!(child.status.code(), Some(EXIT_STATUS), "{child:?}");
    }

    #[test]
    fn an_ordinary_end_ends_nothing() {
        drop(ExitOnPanic("a test"));
    }
}
