//! Planted bugs that the simulation must detect. Each removes a safeguard of the engine, the background
//! work or the model of the daemon, or is a mutation of the daemon model's actions.

use std::cell::Cell;
use std::fmt;

use holdfast_format::safeguard::{self, Safeguard};

/// A bug to plant, one at a time.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub enum Bug {
    /// A safeguard is missing.
    Missing(Safeguard),
    /// Actions are executed wrongly.
    Mutation(Mutation),
}

/// Wrong execution of an action.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Mutation {
    /// A request is completed twice.
    CompletedTwice,
    /// The zero part of a read is answered but not filled.
    ZerosNotFilled,
    /// A full disk cannot store a log record.
    RecordNeedsRoom,
}

impl Bug {
    /// Returns all bugs.
    pub fn all() -> impl Iterator<Item = Self> {
        let mutations = [Mutation::CompletedTwice, Mutation::ZerosNotFilled, Mutation::RecordNeedsRoom];
        Safeguard::ALL.map(Self::Missing).into_iter().chain(mutations.map(Self::Mutation))
    }

    /// Returns true if only several volumes of a host reveal the bug.
    pub const fn needs_fleet(self) -> bool {
        match self {
            Self::Missing(safeguard) => safeguard.is_shared(),
            Self::Mutation(_) => false,
        }
    }

    /// Returns true if only memory volumes reveal the bug.
    pub const fn needs_memory_volume(self) -> bool {
        match self {
            Self::Missing(safeguard) => safeguard.is_of_memory(),
            Self::Mutation(_) => false,
        }
    }

    /// Returns the number of the invariant that the bug breaks, in `docs/invariants.md`.
    pub const fn invariant_number(self) -> u8 {
        match self {
            Self::Missing(safeguard) => safeguard.upholds(),
            Self::Mutation(Mutation::CompletedTwice) => 8,
            Self::Mutation(Mutation::ZerosNotFilled) => 9,
            Self::Mutation(Mutation::RecordNeedsRoom) => 14,
        }
    }
}

/// Writes the bug's name in the command line and in `docs/invariants.md`.
impl fmt::Debug for Bug {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Missing(safeguard) => safeguard.fmt(out),
            Self::Mutation(mutation) => mutation.fmt(out),
        }
    }
}

thread_local! {
    static MUTATION: Cell<Option<Mutation>> = const { Cell::new(None) };
}

/// Plants a bug in this thread's simulation, replacing the previous one.
pub fn plant(bug: Option<Bug>) {
    let (missing, mutation) = match bug {
        None => (None, None),
        Some(Bug::Missing(safeguard)) => (Some(safeguard), None),
        Some(Bug::Mutation(mutation)) => (None, Some(mutation)),
    };
    safeguard::take_out(missing);
    MUTATION.set(mutation);
}

pub(crate) fn is_mutated(mutation: Mutation) -> bool {
    MUTATION.get() == Some(mutation)
}
