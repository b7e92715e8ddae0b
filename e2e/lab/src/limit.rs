//! Time limits of scenarios.

use std::sync::{Mutex, MutexGuard, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};

/// Adds up the time of intermittent work, on one thread or on several concurrently.
#[derive(Debug, Default)]
pub struct WorkClock(Mutex<WorkTime>);

#[derive(Debug, Default)]
struct WorkTime {
    running: u32,
    since: Option<Instant>,
    spent: Duration,
}

impl WorkClock {
    /// Runs `work` and counts its time.
    pub fn time<T>(&self, work: impl FnOnce() -> T) -> T {
        let mut counted = self.lock();
        counted.running += 1;
        counted.since.get_or_insert_with(Instant::now);
        drop(counted);
        let _counted = RunningWork(self);
        work()
    }

    /// Returns the time counted so far, including that of work in progress.
    pub fn spent(&self) -> Duration {
        let work = self.lock();
        work.spent + work.since.map_or(Duration::ZERO, |since| since.elapsed())
    }

    fn lock(&self) -> MutexGuard<'_, WorkTime> {
        self.0.lock().expect("nothing panics while it holds this lock")
    }
}

/// Ends the count when the work ends, even by a panic.
struct RunningWork<'a>(&'a WorkClock);

impl Drop for RunningWork<'_> {
    fn drop(&mut self) {
        let mut work = self.0.lock();
        work.running -= 1;
        if work.running == 0
            && let Some(since) = work.since.take()
        {
            work.spent += since.elapsed();
        }
    }
}

/// Runs `work` on a separate thread. The time of `excepted` does not count. Work that exceeds the limit still
/// runs when this returns: only the exit of the process ends it.
///
/// # Errors
/// The error of `work`, its panic, or that it exceeded `limit`.
pub fn run_within(
    limit: Duration,
    excepted: &WorkClock,
    work: impl FnOnce() -> Result<()> + Send + 'static,
) -> Result<()> {
    let started = Instant::now();
    let already_excepted = excepted.spent();
    let (done, ended) = mpsc::channel();
    thread::spawn(move || done.send(work()));
    loop {
        let allowed = limit + (excepted.spent() - already_excepted);
        let Some(left) = allowed.checked_sub(started.elapsed()) else {
            bail!("exceeded its time limit of {} s", limit.as_secs());
        };
        match ended.recv_timeout(left) {
            Ok(result) => return result,
            Err(mpsc::RecvTimeoutError::Timeout) => {}
            Err(mpsc::RecvTimeoutError::Disconnected) => bail!("panicked; the message is above"),
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    #[test]
    fn work_that_ends_in_time_keeps_its_result() {
        let clock = WorkClock::default();
        run_within(Duration::from_secs(60), &clock, || Ok(())).unwrap();
        let failed = run_within(Duration::from_secs(60), &clock, || bail!("its own reason"));
        assert_eq!(failed.unwrap_err().to_string(), "its own reason");
        let panicked = run_within(Duration::from_secs(60), &clock, || panic!("expected by this test"));
        assert!(panicked.unwrap_err().to_string().contains("panicked"));
    }

    #[test]
    fn setting_up_does_not_count() {
        let limit = Duration::from_secs(1);
        let clock = Arc::new(WorkClock::default());
        let counted = Arc::clone(&clock);
        let setting_up = move || {
            counted.time(|| thread::sleep(limit * 2));
            Ok(())
        };
        run_within(limit, &clock, setting_up).unwrap();
        let slow = run_within(limit, &clock, move || {
            thread::sleep(limit * 60);
            Ok(())
        });
        assert_eq!(slow.unwrap_err().to_string(), "exceeded its time limit of 1 s");
    }
}
