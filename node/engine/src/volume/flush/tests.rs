use std::panic::{AssertUnwindSafe, catch_unwind};

use super::super::core::tests::{core, sector_of};
use super::super::lifecycle::Lifecycle;
use super::super::{Durability, Setup, Volume};
use super::*;
use crate::durable_map::{DamagedMap, FoundPage, file_bytes, journal_extent, newest_pages};
use holdfast_types::Chunk;

type Tested = (FlushRounds, Core<Vec<u8>>, Vec<Action>);

const STATES: [&str; 8] = [
    "idle",
    "syncing sides",
    "writing pages",
    "syncing pages",
    "writing header",
    "syncing header",
    "filling journal",
    "syncing journal",
];

fn name(rounds: &FlushRounds) -> &'static str {
    match rounds.step {
        RoundStep::Idle => STATES[0],
        RoundStep::SyncingSides { .. } => STATES[1],
        RoundStep::WritingPages { .. } => STATES[2],
        RoundStep::SyncingPages(_) => STATES[3],
        RoundStep::WritingHeader(_) => STATES[4],
        RoundStep::SyncingHeader(_) => STATES[5],
        RoundStep::FillingJournal { .. } => STATES[6],
        RoundStep::SyncingJournal { .. } => STATES[7],
    }
}

fn new_round() -> Tested {
    let mut core = core(64);
    core.record_write(sector_of(0), Side::A);
    (FlushRounds::after_takeover(&core.map, false, 0), core, Vec::new())
}

#[derive(Debug, Clone, Copy)]
enum RoundEvent {
    Begin,
    SideSynced(Side, Result<(), Errno>),
    MapWritten(Result<(), Errno>),
    MapSynced(Result<(), Errno>),
}

fn apply_event(tested: &mut Tested, event: RoundEvent) -> Option<RoundEnd> {
    let (rounds, core, out) = tested;
    match event {
        RoundEvent::Begin => rounds.begin(core, out),
        RoundEvent::SideSynced(side, result) => rounds.side_synced(side, result, core, out),
        RoundEvent::MapWritten(result) => rounds.map_written(result, core, out),
        RoundEvent::MapSynced(result) => rounds.map_synced(result, core, out),
    }
}

/// Returns a round in the state of this index, with one answer missing before the next.
fn round_in_state(state: usize) -> Tested {
    let mut tested = new_round();
    let way = [
        &[RoundEvent::Begin, RoundEvent::SideSynced(Side::A, Ok(()))][..],
        &[RoundEvent::SideSynced(Side::B, Ok(()))],
        &[RoundEvent::MapWritten(Ok(()))],
        &[RoundEvent::MapSynced(Ok(()))],
        &[RoundEvent::MapWritten(Ok(()))],
    ];
    for event in way[..state.min(5)].iter().copied().flatten() {
        assert!(apply_event(&mut tested, *event).is_none());
    }
    if state > 5 {
        assert!(apply_event(&mut tested, RoundEvent::MapSynced(Ok(()))).is_some());
        // A sector in each of this many pages justifies a slot of the journal.
        (0..8).for_each(|page| tested.1.record_write(sector_of(page), Side::B));
        assert!(apply_event(&mut tested, RoundEvent::Begin).is_none());
        if state > 6 {
            apply_event(&mut tested, RoundEvent::MapWritten(Ok(())));
        }
    }
    assert_eq!(name(&tested.0), STATES[state]);
    tested
}

#[test]
fn every_event_in_every_state() {
    let failed = Err(Errno::EIO);
    // The next state from each of `STATES`; `None` if the event cannot happen.
    let table = [
        (RoundEvent::Begin, [Some("syncing sides"), None, None, None, None, None, None, None]),
        (
            RoundEvent::SideSynced(Side::B, Ok(())),
            [None, Some("writing pages"), None, None, None, None, None, None],
        ),
        (RoundEvent::SideSynced(Side::B, failed), [None, Some("failed"), None, None, None, None, None, None]),
        (
            RoundEvent::MapWritten(Ok(())),
            [
                None,
                None,
                Some("syncing pages"),
                None,
                Some("syncing header"),
                None,
                Some("syncing journal"),
                None,
            ],
        ),
        (
            RoundEvent::MapWritten(failed),
            [None, None, Some("failed"), None, Some("failed"), None, Some("writing pages"), None],
        ),
        (
            RoundEvent::MapSynced(Ok(())),
            [None, None, None, Some("writing header"), None, Some("durable"), None, Some("writing pages")],
        ),
        (
            RoundEvent::MapSynced(failed),
            [None, None, None, Some("failed"), None, Some("failed"), None, Some("failed")],
        ),
    ];
    for (event, row) in table {
        for (state, expected) in row.into_iter().enumerate() {
            let mut tested = round_in_state(state);
            let next = catch_unwind(AssertUnwindSafe(|| match apply_event(&mut tested, event) {
                Some(RoundEnd { result: Ok(_), .. }) => "durable",
                Some(RoundEnd { result: Err(_), .. }) => "failed",
                None => name(&tested.0),
            }));
            assert_eq!(next.ok(), expected, "{event:?} while {}", STATES[state]);
        }
    }
}

#[test]
fn a_flush_joins_the_next_round() {
    let waiter = |id| FlushWaiter { id: RequestId(id), seal: 0 };
    let mut tested = new_round();
    tested.0.join(waiter(1));
    assert!(tested.0.is_due(&tested.1));
    apply_event(&mut tested, RoundEvent::Begin);
    tested.0.join(waiter(2));
    assert!(!tested.0.is_due(&tested.1), "one round runs at a time");
    for event in [
        RoundEvent::SideSynced(Side::A, Ok(())),
        RoundEvent::SideSynced(Side::B, Ok(())),
        RoundEvent::MapWritten(Ok(())),
        RoundEvent::MapSynced(Ok(())),
        RoundEvent::MapWritten(Ok(())),
    ] {
        assert!(apply_event(&mut tested, event).is_none());
    }
    let end = apply_event(&mut tested, RoundEvent::MapSynced(Ok(()))).unwrap();
    assert_eq!((end.waiters, end.unserved), (vec![waiter(1)], vec![]));
    assert!(tested.0.is_due(&tested.1));
}

#[test]
fn a_round_with_nothing_to_write_ends_at_once() {
    let mut tested = round_in_state(5);
    apply_event(&mut tested, RoundEvent::MapSynced(Ok(()))).unwrap();
    let number = tested.0.want();
    assert_eq!(tested.0.progress(number, 0), RoundProgress::Pending);
    tested.2.clear();
    assert!(apply_event(&mut tested, RoundEvent::Begin).is_some_and(|end| end.result.is_ok()));
    assert_eq!(tested.0.progress(number, 0), RoundProgress::Ended);
    assert_eq!(tested.2, []);
}

#[test]
fn a_failed_round_is_retried_and_covers_all_changes() {
    let mut tested = round_in_state(2);
    assert!(
        apply_event(&mut tested, RoundEvent::MapWritten(Err(Errno::EIO)))
            .is_some_and(|end| end.result.is_err())
    );
    assert_eq!(tested.0.progress(1, 0), RoundProgress::Pending);
    assert_eq!(tested.0.progress(1, RETRY_ROUND_AFTER_MS), RoundProgress::Failed);
    tested.2.clear();
    apply_event(&mut tested, RoundEvent::Begin);
    let syncs = Side::BOTH.map(|side| Action::SyncSide { side });
    assert_eq!(tested.2, syncs, "both sides are synced again");
}

#[test]
fn after_a_failed_sync_only_the_last_round_runs() {
    let (mut rounds, mut core, mut out) = round_in_state(1);
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

/// Runs a successful round and returns the offsets of its writes.
fn written(rounds: &mut FlushRounds, core: &mut Core<Vec<u8>>) -> Vec<u64> {
    let mut offsets = Vec::new();
    let all = |writes: &[MapWrite]| {
        offsets.extend(writes.iter().map(|write| write.offset));
        Some(Ok(()))
    };
    assert_eq!(run(rounds, core, all), Some(Ok(())));
    offsets
}

/// The pages of a released chunk take part in no round, not even in the next process's first: if only the
/// journal had them, they would become dirty again.
#[test]
fn an_empty_page_is_written_to_a_slot() {
    let (mut rounds, mut core, _) = new_round();
    written(&mut rounds, &mut core);
    (1..9).for_each(|page| core.record_write(sector_of(page), Side::A));
    let journaled = written(&mut rounds, &mut core);
    assert!(journaled.iter().filter(|offset| **offset > header_offset(1)).all(|at| *at >= journal_offset(0)));
    for page in 1..9 {
        core.clear(page, Side::A);
        assert!(core.forget_clean(sector_of(page)));
    }
    let emptied = written(&mut rounds, &mut core);
    let pages = emptied.iter().filter(|at| (page_offset(0, 0)..journal_offset(0)).contains(*at)).count();
    assert_eq!(pages, 8, "{emptied:?}");
}

/// The file of a durable map.
struct Disk {
    file: Vec<u8>,
    journal: Vec<u8>,
}

impl Disk {
    fn of(pages: u64) -> Self {
        let journal = vec![0; journal_extent(pages).1 as usize];
        Self { file: vec![0; file_bytes(pages) as usize], journal }
    }

    /// Writes the units of each write that `selects` selects.
    fn write(&mut self, writes: &[MapWrite], selects: impl Fn(usize) -> bool) {
        for write in writes {
            let (area, at) = match write.offset.checked_sub(journal_offset(0)) {
                Some(at) => (&mut self.journal, at as usize),
                None => (&mut self.file, write.offset as usize),
            };
            for (index, unit) in
                write.bytes.chunks_exact(512).enumerate().filter(|(index, _)| selects(*index))
            {
                area[at + index * 512..][..512].copy_from_slice(unit);
            }
        }
    }

    fn header(&self) -> (u64, Header) {
        Header::newest(&self.file[..page_offset(0, 0) as usize]).unwrap().unwrap()
    }

    /// Returns the first sectors of the dirty runs that an attach finds after the loss of the host.
    fn dirty(&self) -> Result<Vec<u64>, DamagedMap> {
        let pairs = self.file[page_offset(0, 0) as usize..].chunks_exact(8192);
        let pages: Vec<_> = (0..).zip(pairs.map(<[u8]>::to_vec)).collect();
        let found = newest_pages(&self.header().1, &pages, &self.journal)?;
        Ok(found.iter().flat_map(FoundPage::dirty_runs).map(|(run, _)| run.start.0).collect())
    }
}

/// Runs a round, and passes its writes of the map to `write`. The round does not end if that returns `None`.
fn run(
    rounds: &mut FlushRounds,
    core: &mut Core<Vec<u8>>,
    mut write: impl FnMut(&[MapWrite]) -> Option<Result<(), Errno>>,
) -> Option<Result<(), Errno>> {
    let mut actions = Vec::new();
    let mut end = rounds.begin(core, &mut actions);
    let mut actions = std::collections::VecDeque::from(actions);
    while end.is_none() {
        let mut out = Vec::new();
        let action = actions.pop_front().expect("a round asks for something until it ends");
        end = if let Action::SyncSide { side } = action {
            rounds.side_synced(side, Ok(()), core, &mut out)
        } else if let Action::WriteMap(writes) = action {
            rounds.map_written(write(&writes)?, core, &mut out)
        } else if action == Action::SyncMap {
            rounds.map_synced(Ok(()), core, &mut out)
        } else {
            assert_eq!(action, Action::Report(Report::LocalDiskFailed(Errno::ENOSPC)));
            None
        };
        actions.extend(out);
    }
    end.map(|end| end.result.map(|_| ()))
}

/// Runs a successful round.
fn flush(rounds: &mut FlushRounds, core: &mut Core<Vec<u8>>, disk: &mut Disk) {
    let all = |writes: &[MapWrite]| {
        disk.write(writes, |_| true);
        Some(Ok(()))
    };
    assert_eq!(run(rounds, core, all), Some(Ok(())));
}

/// Returns a volume after its first round, and its durable map.
fn flushed() -> (FlushRounds, Core<Vec<u8>>, Disk) {
    let (mut rounds, mut core, _) = new_round();
    let mut disk = Disk::of(64);
    flush(&mut rounds, &mut core, &mut disk);
    (rounds, core, disk)
}

/// Runs a round whose first write to a slot of a page not in `spared` fails half-way.
fn fail(rounds: &mut FlushRounds, core: &mut Core<Vec<u8>>, disk: &mut Disk, spared: &[u64]) {
    let half = |writes: &[MapWrite]| {
        let is_spared = spared.contains(&((writes[0].offset - page_offset(0, 0)) / 8192));
        disk.write(writes, |unit| is_spared || unit < 4);
        Some(if is_spared { Ok(()) } else { Err(Errno::EIO) })
    };
    assert_eq!(run(rounds, core, half), Some(Err(Errno::EIO)));
}

fn written_pages(core: &mut Core<Vec<u8>>, pages: std::ops::Range<u64>) {
    pages.for_each(|page| core.record_write(sector_of(page), Side::A));
}

/// Regression: the round after a failed write put the page's blocks into the journal. Its header covered the
/// slot that the failed write had left torn. The write must be repeated in that slot.
#[test]
fn a_failed_page_write_is_repeated_in_its_slot() {
    let (mut rounds, mut core, mut disk) = flushed();
    written_pages(&mut core, 3..4);
    fail(&mut rounds, &mut core, &mut disk, &[]);
    written_pages(&mut core, 4..12);
    flush(&mut rounds, &mut core, &mut disk);
    let expected = std::iter::once(0).chain(3..12).map(|page| sector_of(page).start.0);
    assert_eq!(disk.dirty(), Ok(expected.collect()));
}

/// The same for a page that is written because the journal is full: it is not among the changed pages.
#[test]
fn a_failed_write_of_a_full_journals_page_is_repeated() {
    let (mut rounds, mut core, mut disk) = flushed();
    written_pages(&mut core, 1..9);
    flush(&mut rounds, &mut core, &mut disk);
    while rounds.journal.next_slot() + 1 < journal_extent(64).1 / 4096 {
        for page in 9..17 {
            core.record_write(sector_of(page), Side::A);
            core.unflushed.range_changed(sector_of(page));
        }
        flush(&mut rounds, &mut core, &mut disk);
    }
    let changed: Vec<u64> = (9..17).collect();
    changed.iter().for_each(|page| core.unflushed.range_changed(sector_of(*page)));
    // The round finds no space: it writes the changed pages to slots, and then the pages of the journal.
    fail(&mut rounds, &mut core, &mut disk, &changed);
    written_pages(&mut core, 20..21);
    core.unflushed.header_changed();
    flush(&mut rounds, &mut core, &mut disk);
    let expected = (0..17).chain([20]).map(|page| sector_of(page).start.0);
    assert_eq!(disk.dirty(), Ok(expected.collect()));
}

/// Invariant 13: the header before the newest one does not mention a journal, and the newest one is zeros,
/// as if it had never been synced.
#[test]
fn decay_of_the_header_does_not_hide_the_journal() {
    let (mut rounds, mut core, mut disk) = flushed();
    written_pages(&mut core, 1..9);
    flush(&mut rounds, &mut core, &mut disk);
    let all: Vec<u64> = (0..9).map(|page| sector_of(page).start.0).collect();
    assert_eq!(disk.dirty(), Ok(all.clone()));
    let newest = header_offset(u8::from(disk.header().0 % 2 == 1)) as usize;
    disk.file[newest..][..512].fill(0);
    assert!(disk.dirty().is_ok_and(|found| found == all), "flushed data is lost, and no error says so");
}

/// Every chunk was released, so the next process finds nothing in the live map; but the header on the disk
/// says that the journal counts, until its first round has ended.
#[test]
fn a_journal_named_by_the_header_is_not_filled_again() {
    let (mut rounds, mut core, mut disk) = flushed();
    written_pages(&mut core, 1..9);
    flush(&mut rounds, &mut core, &mut disk);
    for page in 0..9 {
        core.clear(page, Side::A);
        assert!(core.forget_clean(sector_of(page)));
    }
    flush(&mut rounds, &mut core, &mut disk);
    (0..8).for_each(|chunk| assert!(core.map.unprepare(Chunk(chunk))));
    assert_eq!(disk.dirty(), Ok(vec![]));

    core.map.publish();
    let memory = std::mem::take(core.map.memory_mut());
    let (header_generation, header) = disk.header();
    assert!(header.has_journal);
    let (limits, durability) = (core.limits, Durability::Local);
    let setup = Setup { requests: 4, limits, durability, header, header_generation, unix_ms_at_zero: 0 };
    let Volume { mut rounds, mut core, .. } = Volume::resume(setup, memory, None, 0).unwrap();
    (0..8).for_each(|chunk| core.map.set_prepared(Chunk(chunk)));
    written_pages(&mut core, 0..9);
    // A power cut interrupts the first write: half of it is on the disk.
    run(&mut rounds, &mut core, |writes| {
        disk.write(writes, |unit| unit >= 4);
        None
    });
    assert!(disk.dirty().is_ok(), "a power cut is no damage: {:?}", disk.dirty());
}

/// A volume attached by an earlier version has no space for a journal yet, and the disk may be full.
#[test]
fn a_flush_needs_no_space_for_the_journal() {
    let (mut rounds, mut core, mut disk) = flushed();
    written_pages(&mut core, 1..9);
    let full = |writes: &[MapWrite]| {
        let has_place = writes[0].offset < journal_offset(0);
        disk.write(writes, |_| has_place);
        Some(if has_place { Ok(()) } else { Err(Errno::ENOSPC) })
    };
    assert_eq!(run(&mut rounds, &mut core, full), Some(Ok(())));
    let all: Vec<u64> = (0..9).map(|page| sector_of(page).start.0).collect();
    assert_eq!(disk.dirty(), Ok(all));
    (1..9).for_each(|page| core.unflushed.range_changed(sector_of(page)));
    let again = written(&mut rounds, &mut core);
    assert!(again.iter().all(|offset| *offset < journal_offset(0)), "it is not tried again: {again:?}");
}
