//! Time that passes instantly, and lets a test change state in the meantime. Random values are unique.

use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::Environment;

/// Calls `meanwhile` with the number of each wait, starting at 1.
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

    fn now_ms(&self) -> u64 {
        0
    }

    fn unix_ms(&self) -> u64 {
        0
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        static DRAWN: AtomicU64 = AtomicU64::new(0);
        let mut bytes = [0; N];
        let drawn = DRAWN.fetch_add(1, Ordering::Relaxed).to_le_bytes();
        bytes.iter_mut().zip(drawn).for_each(|(to, byte)| *to = byte);
        bytes
    }
}
