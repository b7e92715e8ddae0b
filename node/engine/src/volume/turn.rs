//! Turns: the order in which the owners of a volume's state act after an event.
//!
//! Owns: the order. Does not own: the state; `Volume::settle` gives each turn to its owner.

/// An owner's turn to do what follows from the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// The record that the previous process was about to put into the log; nothing goes there before it.
    Repeat,
    /// A round begins if one is asked for.
    Round,
    Evict,
    /// The eviction continues if the round that it asked for ended at once, since there was nothing to write.
    Punch,
    Repair,
    Cut,
    Seal,
    Snapshot,
    Growth,
    Merge,
    Checkpoint,
    Detach,
    /// The last round of a fenced writer.
    LastRound,
}

/// After most events.
pub(super) const AFTER_EVENT: &[Turn] = &[
    Turn::Repeat,
    Turn::Round,
    Turn::Evict,
    Turn::Round,
    Turn::Punch,
    Turn::Repair,
    Turn::Cut,
    Turn::Seal,
    Turn::Cut,
    Turn::Round,
    Turn::Snapshot,
    Turn::Growth,
    Turn::Merge,
    Turn::Checkpoint,
    Turn::Detach,
    Turn::Round,
];
/// After a flush. A seal that it asks for may ask for a round: then one round serves both.
pub(super) const AFTER_FLUSH: &[Turn] = &[Turn::Seal, Turn::Round];
/// After any event of a fenced writer.
pub(super) const AFTER_FENCING: &[Turn] = &[Turn::Round, Turn::LastRound, Turn::Round, Turn::LastRound];
