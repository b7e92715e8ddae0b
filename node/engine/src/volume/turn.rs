//! Turns: the order in which the owners of a volume's state act after an event.
//!
//! Owns: the order. Does not own: the state; `Volume::settle` passes each turn to its owner.

/// A turn of one owner, for the work that follows from the state.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Turn {
    /// Sends the record that the previous process was about to create; it precedes any other.
    Repeat,
    /// Begins a round if one is requested.
    Round,
    Evict,
    /// Continues the eviction if its round ended at once, because it had nothing to write.
    Punch,
    Repair,
    Cut,
    Seal,
    Snapshot,
    Growth,
    Merge,
    Checkpoint,
    Detach,
    /// Runs the last round of a fenced writer.
    LastRound,
}

/// The turns after most events.
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
/// The turns after a flush. The flush may request a seal, and the seal a round: then one round serves both.
pub(super) const AFTER_FLUSH: &[Turn] = &[Turn::Seal, Turn::Round];
/// The turns after any event of a fenced writer.
pub(super) const AFTER_FENCING: &[Turn] = &[Turn::Round, Turn::LastRound, Turn::Round, Turn::LastRound];
