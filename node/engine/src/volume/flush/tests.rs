use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::core::tests::{core, sector_of};
use super::super::lifecycle::Lifecycle;
use super::*;

type Tested = (FlushRounds, Core<Vec<u8>>, Vec<Action>);

const STATES: [&str; 6] =
    ["idle", "syncing sides", "writing pages", "syncing pages", "writing header", "syncing header"];

fn name(rounds: &FlushRounds) -> &'static str {
    match rounds.step {
        RoundStep::Idle => STATES[0],
        RoundStep::SyncingSides { .. } => STATES[1],
        RoundStep::WritingPages { .. } => STATES[2],
        RoundStep::SyncingPages(_) => STATES[3],
        RoundStep::WritingHeader(_) => STATES[4],
        RoundStep::SyncingHeader(_) => STATES[5],
    }
}

fn fresh() -> Tested {
    let mut core = core(2);
    core.record_write(sector_of(0), Side::A);
    (FlushRounds::after_takeover(2, 0), core, Vec::new())
}

#[derive(Debug, Clone, Copy)]
enum RoundEvent {
    Begin,
    SideSynced(Side, Result<(), Errno>),
    MapWritten(Result<(), Errno>),
    MapSynced(Result<(), Errno>),
}

fn take(tested: &mut Tested, event: RoundEvent) -> Option<RoundEnd> {
    let (rounds, core, out) = tested;
    match event {
        RoundEvent::Begin => rounds.begin(core, out),
        RoundEvent::SideSynced(side, result) => rounds.side_synced(side, result, core, out),
        RoundEvent::MapWritten(result) => rounds.map_written(result, core, out),
        RoundEvent::MapSynced(result) => rounds.map_synced(result, core, out),
    }
}

/// A round brought to the state of this index, with one answer left before the next.
fn at(state: usize) -> Tested {
    let mut tested = fresh();
    let way = [
        &[RoundEvent::Begin, RoundEvent::SideSynced(Side::A, Ok(()))][..],
        &[RoundEvent::SideSynced(Side::B, Ok(()))],
        &[RoundEvent::MapWritten(Ok(()))],
        &[RoundEvent::MapSynced(Ok(()))],
        &[RoundEvent::MapWritten(Ok(()))],
    ];
    for event in way[..state].iter().copied().flatten() {
        assert!(take(&mut tested, *event).is_none());
    }
    assert_eq!(name(&tested.0), STATES[state]);
    tested
}

#[test]
fn every_event_in_every_state() {
    let failed = Err(Errno::EIO);
    // The state after it, from each of `STATES`; none where the event cannot happen.
    let table = [
        (RoundEvent::Begin, [Some("syncing sides"), None, None, None, None, None]),
        (RoundEvent::SideSynced(Side::B, Ok(())), [None, Some("writing pages"), None, None, None, None]),
        (RoundEvent::SideSynced(Side::B, failed), [None, Some("failed"), None, None, None, None]),
        (
            RoundEvent::MapWritten(Ok(())),
            [None, None, Some("syncing pages"), None, Some("syncing header"), None],
        ),
        (RoundEvent::MapWritten(failed), [None, None, Some("failed"), None, Some("failed"), None]),
        (RoundEvent::MapSynced(Ok(())), [None, None, None, Some("writing header"), None, Some("durable")]),
        (RoundEvent::MapSynced(failed), [None, None, None, Some("failed"), None, Some("failed")]),
    ];
    for (event, row) in table {
        for (state, expected) in row.into_iter().enumerate() {
            let mut tested = at(state);
            let next = catch_unwind(AssertUnwindSafe(|| match take(&mut tested, event) {
                Some(RoundEnd { result: Ok(_), .. }) => "durable",
                Some(RoundEnd { result: Err(_), .. }) => "failed",
                None => name(&tested.0),
            }));
            assert_eq!(next.ok(), expected, "{event:?} while {}", STATES[state]);
        }
    }
}

#[test]
fn a_flush_takes_part_in_the_round_that_begins_after_it() {
    let waiter = |id| FlushWaiter { id: RequestId(id), seal: 0 };
    let mut tested = fresh();
    tested.0.join(waiter(1));
    assert!(tested.0.is_due(&tested.1));
    take(&mut tested, RoundEvent::Begin);
    tested.0.join(waiter(2));
    assert!(!tested.0.is_due(&tested.1), "one round runs at a time");
    for event in [
        RoundEvent::SideSynced(Side::A, Ok(())),
        RoundEvent::SideSynced(Side::B, Ok(())),
        RoundEvent::MapWritten(Ok(())),
        RoundEvent::MapSynced(Ok(())),
        RoundEvent::MapWritten(Ok(())),
    ] {
        assert!(take(&mut tested, event).is_none());
    }
    let end = take(&mut tested, RoundEvent::MapSynced(Ok(()))).unwrap();
    assert_eq!((end.waiters, end.unserved), (vec![waiter(1)], vec![]));
    assert!(tested.0.is_due(&tested.1));
}

#[test]
fn a_round_with_nothing_to_write_ends_at_once() {
    let mut tested = at(5);
    take(&mut tested, RoundEvent::MapSynced(Ok(()))).unwrap();
    let number = tested.0.want();
    assert_eq!(tested.0.progress(number, 0), RoundProgress::Pending);
    tested.2.clear();
    assert!(take(&mut tested, RoundEvent::Begin).is_some_and(|end| end.result.is_ok()));
    assert_eq!(tested.0.progress(number, 0), RoundProgress::Ended);
    assert_eq!(tested.2, []);
}

#[test]
fn a_failed_round_is_asked_for_again_after_a_while_and_covers_all() {
    let mut tested = at(2);
    assert!(
        take(&mut tested, RoundEvent::MapWritten(Err(Errno::EIO))).is_some_and(|end| end.result.is_err())
    );
    assert_eq!(tested.0.progress(1, 0), RoundProgress::Pending);
    assert_eq!(tested.0.progress(1, RETRY_ROUND_AFTER_MS), RoundProgress::Failed);
    tested.2.clear();
    take(&mut tested, RoundEvent::Begin);
    let syncs = Side::BOTH.map(|side| Action::SyncSide { side });
    assert_eq!(tested.2, syncs, "both sides are synced again");
}

#[test]
fn after_a_failed_sync_only_the_last_round_runs() {
    let (mut rounds, mut core, mut out) = at(1);
    core.map.set_sync_failed();
    rounds.join(FlushWaiter { id: RequestId(3), seal: 0 });
    let end = rounds.side_synced(Side::B, Err(Errno::EIO), &mut core, &mut out).unwrap();
    assert_eq!(end.unserved.len(), 1, "it waits for a commit instead");
    let number = rounds.want();
    assert!(!rounds.is_due(&core));
    core.lifecycle = Lifecycle::Closing(number);
    assert!(rounds.is_due(&core));
    out.clear();
    assert!(rounds.begin(&mut core, &mut out).is_none());
    assert!(matches!(out[..], [Action::WriteMap(_)]), "no sync is relied on: {out:?}");
}
