//! Panics of a run: its deaths are silent, and violations are caught with their descriptions.

use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Once;

use crate::invariant::{self, Invariant};
use crate::memory::Killed;

/// Something that must not happen.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// The violated invariant; `None` if an assertion of the engine failed.
    pub invariant: Option<Invariant>,
    /// The observation.
    pub message: String,
    /// The check that detected it: `file:line`.
    pub check: String,
}

impl Violation {
    /// Returns true for the same fault: the same invariant, or the same assertion.
    pub fn is_like(&self, other: &Self) -> bool {
        self.invariant == other.invariant && (self.invariant.is_some() || self.check == other.check)
    }
}

thread_local! {
    static CATCHING: Cell<bool> = const { Cell::new(false) };
    static CAUGHT: RefCell<Option<Violation>> = const { RefCell::new(None) };
}

/// Suppresses the output of deaths that runs cause, and of panics that [`catch`] catches.
pub(crate) fn silence() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let rest = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            if info.payload().is::<Killed>() {
                return;
            }
            if !CATCHING.get() {
                return rest(info);
            }
            let message = info.payload_as_str().unwrap_or("a panic without a message").to_owned();
            let check = info.location().map(|at| format!("{}:{}", at.file(), at.line())).unwrap_or_default();
            CAUGHT.set(Some(Violation { invariant: invariant::take_broken(), message, check }));
        }));
    });
}

/// Runs `body`; a panic in it, here or in the engine, is a violation.
pub(crate) fn catch<T>(body: impl FnOnce() -> T) -> Result<T, Violation> {
    silence();
    CATCHING.set(true);
    let ended = catch_unwind(AssertUnwindSafe(body));
    CATCHING.set(false);
    ended.map_err(|_payload| CAUGHT.take().expect("the hook saw the panic"))
}
