//! Length of a log: the interval of checkpoints, the length at which a writer waits for one, and the
//! positions at which a truncation may end.
//!
//! Every program that reads or writes a volume must use the same numbers: they are part of the format
//! (`docs/formats/truncation-marker.md`). Only a simulation uses smaller numbers, so that short runs reach
//! these lengths; without the feature `simulation` the numbers are fixed.

use holdfast_types::Seq;

/// Records after which a writer stores a checkpoint.
const CHECKPOINT_EVERY: u64 = 32;

#[cfg(feature = "simulation")]
thread_local! {
    static SCALED: std::cell::Cell<u64> = const { std::cell::Cell::new(CHECKPOINT_EVERY) };
}

/// Sets the interval of checkpoints to `records` in this thread, and the other lengths in proportion; `None`
/// restores those of production.
#[cfg(feature = "simulation")]
pub fn scale(records: Option<u64>) {
    SCALED.set(records.unwrap_or(CHECKPOINT_EVERY));
}

/// Returns the number of records after which a writer stores a checkpoint: 32.
#[cfg(feature = "simulation")]
pub fn checkpoint_every() -> u64 {
    SCALED.get()
}

/// Returns the number of records after which a writer stores a checkpoint: 32.
#[cfg(not(feature = "simulation"))]
pub const fn checkpoint_every() -> u64 {
    CHECKPOINT_EVERY
}

/// Returns the number of records after the newest checkpoint at which a writer waits for the next
/// checkpoint before further commits: 60.
pub fn max_records_after_checkpoint() -> u64 {
    2 * checkpoint_every() - checkpoint_every() / 8
}

/// Returns the interval of the positions at which a truncation may end: 64.
fn truncate_every() -> u64 {
    2 * checkpoint_every()
}

/// Returns the first position after `seq` at which a truncation may end. Until its marker exists, no
/// record after `seq` was ever truncated.
pub fn mark_after(seq: Seq) -> Seq {
    Seq((seq.0 / truncate_every()).saturating_add(1).saturating_mul(truncate_every()))
}

/// Returns the last position up to `seq` at which a truncation may end, if any.
pub fn mark_upto(seq: Seq) -> Option<Seq> {
    let mark = seq.0 - seq.0 % truncate_every();
    (mark > 0).then_some(Seq(mark))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn marks_lie_64_records_apart() {
        assert_eq!((checkpoint_every(), max_records_after_checkpoint()), (32, 60));
        assert_eq!([0, 63, 64].map(|seq| mark_after(Seq(seq)).0), [64, 64, 128]);
        assert_eq!(
            [0, 63, 64, 130].map(|seq| mark_upto(Seq(seq))),
            [None, None, Some(Seq(64)), Some(Seq(128))]
        );
        assert_eq!(mark_after(Seq(u64::MAX)), Seq(u64::MAX));
    }
}
