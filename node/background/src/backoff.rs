//! How long is waited before something is tried again.

use std::time::Duration;

use crate::TimeAndChance;

/// Waits that double up to a limit.
pub(crate) struct Backoff {
    next: Duration,
    longest: Duration,
}

impl Backoff {
    pub(crate) const fn new(first: Duration, longest: Duration) -> Self {
        Self { next: first, longest }
    }

    /// For what a volume's commit waits for.
    pub(crate) const fn of_commits() -> Self {
        Self::new(Duration::from_millis(200), Duration::from_secs(10))
    }

    /// For what a guest's read waits for.
    pub(crate) const fn of_reads() -> Self {
        Self::new(Duration::from_millis(100), Duration::from_secs(5))
    }

    pub(crate) async fn wait(&mut self, time: &impl TimeAndChance) {
        time.sleep(self.next).await;
        self.next = (self.next * 2).min(self.longest);
    }
}
