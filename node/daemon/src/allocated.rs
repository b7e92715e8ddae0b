//! Counts the bytes that a test's thread allocates, and their peak.
#![allow(unsafe_code)] // an allocator that counts, over the system's

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;

thread_local! {
    /// Bytes allocated by this thread minus those it freed; negative if it frees other threads' allocations.
    static ALLOCATED: Cell<i64> = const { Cell::new(0) };
    static MOST: Cell<i64> = const { Cell::new(0) };
}

struct Counted;

#[global_allocator]
static COUNTED: Counted = Counted;

fn count(bytes: i64) {
    // A thread that is exiting has no counters any more.
    let now = ALLOCATED.try_with(|allocated| {
        allocated.set(allocated.get() + bytes);
        allocated.get()
    });
    let Ok(now) = now else { return };
    let _of_a_live_thread = MOST.try_with(|most| most.set(most.get().max(now)));
}

fn signed(bytes: usize) -> i64 {
    i64::try_from(bytes).expect("no allocation is larger")
}

// SAFETY: every call is passed on unchanged to the system's allocator; counting allocates nothing.
unsafe impl GlobalAlloc for Counted {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(signed(layout.size()));
        // SAFETY: the caller upholds the contract of `alloc`.
        unsafe { System.alloc(layout) }
    }

    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-signed(layout.size()));
        // SAFETY: `at` came from `alloc` above with this layout, by the caller's contract.
        unsafe { System.dealloc(at, layout) }
    }
}

/// Returns the peak of bytes that `work` allocated on this thread, above the level before the call.
pub(crate) fn peak_bytes<T>(work: impl FnOnce() -> T) -> (T, u64) {
    let before = ALLOCATED.get();
    MOST.set(before);
    let done = work();
    (done, u64::try_from(MOST.get() - before).expect("it is at least what was there"))
}
