//! Time that passes at once, and lets a test change the world meanwhile.

use std::time::Duration;

use parking_lot::Mutex;

use crate::Environment;

/// Calls `meanwhile` with the number of each wait, from 1.
pub(crate) struct ScriptedTime<F> {
    pub(crate) waits: Mutex<Vec<Duration>>,
    meanwhile: F,
}

impl<F: Fn(usize) + Send + Sync> ScriptedTime<F> {
    pub(crate) fn new(meanwhile: F) -> Self {
        Self { waits: Mutex::default(), meanwhile }
    }
}

impl<F: Fn(usize) + Send + Sync> Environment for ScriptedTime<F> {
    async fn sleep(&self, time: Duration) {
        let number = {
            let mut waits = self.waits.lock();
            waits.push(time);
            waits.len()
        };
        (self.meanwhile)(number);
    }

    fn unix_ms(&self) -> u64 {
        0
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        [0; N]
    }
}
