//! The node's clocks.

use std::time::Duration;

use holdfast_background::Environment;
pub(crate) use holdfast_serve::clock::{now, unix_ms, unix_ms_at_zero};

use crate::node::local::file::random;

/// Time from the node's clock, randomness from the kernel.
#[derive(Debug, Clone, Copy)]
pub(crate) struct NodeTime;

impl Environment for NodeTime {
    fn sleep(&self, time: Duration) -> impl Future<Output = ()> + Send {
        tokio::time::sleep(time)
    }

    fn now_ms(&self) -> u64 {
        now()
    }

    fn unix_ms(&self) -> u64 {
        unix_ms()
    }

    fn random<const N: usize>(&self) -> [u8; N] {
        random()
    }
}
