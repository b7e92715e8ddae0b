//! The hook of this thread's engines: it counts visits, and ends the process at one of them.

use std::cell::{Cell, RefCell};
use std::collections::BTreeMap;

use holdfast_format::crash_point::{CrashPoint, watch};

use crate::memory::Killed;

thread_local! {
    static VISITS: RefCell<BTreeMap<CrashPoint, u64>> = const { RefCell::new(BTreeMap::new()) };
    /// The point to end at, and the number of visits to skip before.
    static ARMED: Cell<Option<(CrashPoint, u64)>> = const { Cell::new(None) };
    static STRUCK: Cell<bool> = const { Cell::new(false) };
}

/// Watches the crash points of this thread during its lifetime.
pub(super) struct Watch(());

impl Watch {
    /// Begins to watch. With `armed`, the process ends at that visit of that point, counted from zero.
    pub(super) fn begin(armed: Option<(CrashPoint, u64)>) -> Self {
        VISITS.take();
        ARMED.set(armed);
        STRUCK.set(false);
        watch(Some(visit));
        Self(())
    }

    pub(super) fn visits(&self) -> BTreeMap<CrashPoint, u64> {
        VISITS.with_borrow(Clone::clone)
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        watch(None);
    }
}

/// Returns true if the process was ended.
pub(super) fn has_ended_process() -> bool {
    STRUCK.get()
}

fn visit(point: CrashPoint) {
    VISITS.with_borrow_mut(|visits| *visits.entry(point).or_default() += 1);
    match ARMED.get() {
        Some((armed, 0)) if armed == point => {
            ARMED.set(None);
            STRUCK.set(true);
            std::panic::panic_any(Killed);
        }
        Some((armed, left)) if armed == point => ARMED.set(Some((armed, left - 1))),
        Some(_) | None => {}
    }
}
