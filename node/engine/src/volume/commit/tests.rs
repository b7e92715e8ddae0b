use std::panic::{AssertUnwindSafe, catch_unwind};

use holdfast_format::snapshot::SnapshotChange;
use holdfast_types::{Epoch, SnapshotUid};

use super::super::core::tests::{NONCE, core};
use super::*;

const STATES: [&str; 7] = ["idle", "storing", "creating", "reading", "probing", "left", "rooting"];

fn name(log: &LogWriter) -> &'static str {
    match log.commit {
        Commit::Idle => STATES[0],
        Commit::Storing(_) => STATES[1],
        Commit::Creating(..) => STATES[2],
        Commit::Reading(..) => STATES[3],
        Commit::Probing(_) => STATES[4],
        Commit::Inherited(..) => STATES[5],
        Commit::StoringRoot(..) => STATES[6],
    }
}

fn writer_in_state(state: usize) -> LogWriter {
    let core = core(1);
    let mut log = LogWriter::idle(NONCE, None, 0);
    let out = &mut Vec::new();
    if state == 4 {
        log.last_log_contact = 0;
        log.probe(&Core { now: 1000, ..core }, out);
        return log;
    } else if state == 5 {
        log = writer_after(&record(NONCE));
    } else if state == 6 {
        log.create_record(snapshot(), &core, out);
        log.pending_stored(Ok(()), &core, out);
    } else if state > 0 {
        log.create_record(Body::Detach { root: None }, &core, out);
    }
    if (2..4).contains(&state) {
        log.pending_stored(Ok(()), &core, out);
    }
    if state == 3 {
        assert_eq!(log.create_answered(CreateAnswer::Ambiguous, out), LogNews::Nothing);
    }
    assert_eq!(name(&log), STATES[state]);
    log
}

/// Returns a record that registers a snapshot.
fn snapshot() -> Body {
    Body::of_snapshots(SnapshotChange { taken: Some(SnapshotUid([4; 16])), dropped: Vec::new() })
}

/// Returns a record at the next position in the log, from a process of this writer or of another.
fn record(nonce: Nonce) -> Record {
    let core = core(1);
    let manifest = core.manifest.as_ref().unwrap();
    let (volume, seq) = (manifest.volume().clone(), manifest.seq().next());
    Record { volume, seq, epoch: Epoch(1), nonce, unix_ms: 9, body: Body::Detach { root: None } }
}

/// Returns a writer whose previous process stored `record`, after it read the log.
fn writer_after(record: &Record) -> LogWriter {
    after_bytes(record.seq, record.encode())
}

fn after_bytes(seq: Seq, bytes: Vec<u8>) -> LogWriter {
    let mut log = LogWriter::idle(NONCE, Some(Pending { seq, bytes }), 0);
    log.learned(core(1).manifest.as_ref().unwrap(), 0);
    log
}

type LogEvent = (&'static str, fn(&mut LogWriter) -> LogNews);

fn read(log: &mut LogWriter, found: Option<Record>) -> LogNews {
    let bytes = found.map(|record| record.encode());
    log.record_read(record(NONCE).seq, bytes.as_deref(), 0, &mut Vec::new())
}

fn stored(log: &mut LogWriter, result: Result<(), Errno>) -> LogNews {
    log.pending_stored(result, &core(1), &mut Vec::new());
    LogNews::Nothing
}

#[test]
fn every_event_in_every_state() {
    let other = Nonce([9; 16]);
    let events: [LogEvent; 10] = [
        ("stored", |log| stored(log, Ok(()))),
        ("not stored", |log| stored(log, Err(Errno::EIO))),
        ("created", |log| log.create_answered(CreateAnswer::Created, &mut Vec::new())),
        ("exists", |log| log.create_answered(CreateAnswer::Exists, &mut Vec::new())),
        ("ambiguous", |log| log.create_answered(CreateAnswer::Ambiguous, &mut Vec::new())),
        ("nothing there", |log| read(log, None)),
        ("own there", |log| read(log, Some(record(NONCE)))),
        ("another's there", |log| read(log, Some(record(Nonce([9; 16]))))),
        ("repeated", |log| {
            log.repeat(&core(1), &mut Vec::new());
            LogNews::Nothing
        }),
        ("root stored", |log| {
            log.root_stored(&mut Vec::new());
            LogNews::Nothing
        }),
    ];
    assert_ne!(other, NONCE);
    // The next state from each of `STATES`; `None` if the event cannot happen.
    let table = [
        [None, Some("creating"), None, None, None, None, None],
        [None, Some("storing"), None, None, None, None, None],
        [None, None, Some("idle"), None, None, None, None],
        [None, None, Some("reading"), None, None, None, None],
        [None, None, Some("reading"), None, None, None, None],
        [None, None, None, Some("creating"), Some("idle"), None, None],
        [None, None, None, Some("idle"), Some("idle"), None, None],
        [None, None, None, Some("idle"), Some("idle"), None, None],
        [None, None, None, None, None, Some("creating"), None],
        [None, None, None, None, None, None, Some("creating")],
    ];
    for ((event, happens), row) in events.into_iter().zip(table) {
        for (state, expected) in row.into_iter().enumerate() {
            let mut log = writer_in_state(state);
            let next = catch_unwind(AssertUnwindSafe(|| {
                happens(&mut log);
                name(&log)
            }));
            assert_eq!(next.ok(), expected, "{event} while {}", STATES[state]);
        }
    }
}

#[test]
fn only_the_key_itself_names_the_winner() {
    let own = record(NONCE);
    assert!(matches!(
        writer_in_state(2).create_answered(CreateAnswer::Created, &mut Vec::new()),
        LogNews::Created(_)
    ));
    assert_eq!(read(&mut writer_in_state(3), Some(own.clone())), LogNews::Created(Box::new(own.clone())));
    assert_eq!(read(&mut writer_in_state(3), None), LogNews::Nothing);
    let known = Seq(own.seq.0 - 1);
    assert_eq!(read(&mut writer_in_state(3), Some(record(Nonce([9; 16])))), LogNews::Fenced(known));
    assert_eq!(read(&mut writer_in_state(4), Some(record(Nonce([9; 16])))), LogNews::Fenced(known));
    assert_eq!(read(&mut writer_in_state(4), None), LogNews::Nothing);
}

/// Regression: three owners each handled a record that may already be in the log; a repair could bypass
/// it.
#[test]
fn a_leftover_record_comes_before_any_other() {
    let (own, core) = (record(NONCE), core(1));
    let mut log = writer_after(&own);
    assert_eq!(log.inherited(), Some(&own));
    let out = &mut Vec::new();
    let late = Core { now: 5000, ..core };
    log.probe(&late, out);
    assert!(out.is_empty(), "nothing is asked of its place");
    let made = catch_unwind(AssertUnwindSafe(|| {
        log.create_record(Body::Detach { root: None }, &late, &mut Vec::new())
    }));
    assert!(made.is_err(), "no other record is made");
    log.repeat(&late, out);
    assert_eq!(out[..], [Action::CreateRecord { seq: own.seq, bytes: own.encode() }]);
}

/// The process may have died before the root was stored.
#[test]
fn a_repeated_record_of_a_snapshot_stores_the_root_first() {
    let (own, core, out) = (Record { body: snapshot(), ..record(NONCE) }, core(1), &mut Vec::new());
    let mut log = writer_after(&own);
    log.repeat(&core, out);
    let [Action::StoreRoot { seq, bytes }] = &out[..] else { panic!("{out:?}") };
    let root = Manifest::decode_checkpoint(bytes).unwrap();
    assert_eq!((*seq, root.seq(), root.sectors()), (own.seq, own.seq, core.map.sectors()));
    out.clear();
    log.root_stored(out);
    assert_eq!(out[..], [Action::CreateRecord { seq: own.seq, bytes: own.encode() }]);
    // The root is stored, regardless of the record.
    out.clear();
    let _nothing = log.create_answered(CreateAnswer::Ambiguous, out);
    out.clear();
    let _nothing = log.record_read(own.seq, None, 0, out);
    assert_eq!(out[..], [Action::CreateRecord { seq: own.seq, bytes: own.encode() }]);
}

/// The bucket was rolled back, and has another snapshot's root at this position.
#[test]
fn a_record_over_another_root_is_sent_without_its_snapshot() {
    let (own, core, out) = (Record { body: snapshot(), ..record(NONCE) }, core(1), &mut Vec::new());
    let mut log = writer_after(&own);
    log.repeat(&core, out);
    out.clear();
    log.root_barred(out);
    let passing = Record { body: Body::of_snapshots(SnapshotChange::default()), ..own };
    let (seq, bytes) = (passing.seq, passing.encode());
    assert_eq!(out[..], [Action::StorePending { seq, bytes: bytes.clone() }], "a successor repeats this one");
    out.clear();
    log.pending_stored(Ok(()), &core, out);
    assert_eq!(out[..], [Action::CreateRecord { seq, bytes }]);
    assert_eq!(log.create_answered(CreateAnswer::Created, out), LogNews::Created(Box::new(passing)));
}

/// Regression: the request of a dead process landed after its successor had read the log, and the snapshot
/// was forgotten before the successor stored its root: the newest writer considered itself fenced.
#[test]
fn a_late_record_of_a_forgotten_snapshot_fences_no_writer() {
    let sent = Record { body: snapshot(), ..record(NONCE) };
    let (mut log, out, core) = (writer_after(&sent), &mut Vec::new(), core(1));
    log.repeat(&core, out);
    log.root_barred(out);
    log.pending_stored(Ok(()), &core, out);
    assert_eq!(log.create_answered(CreateAnswer::Exists, out), LogNews::Nothing);
    assert_eq!(read(&mut log, Some(sent.clone())), LogNews::Created(Box::new(sent)));
}

#[test]
fn a_foreign_leftover_record_is_not_repeated() {
    let own = record(NONCE);
    let elsewhere = after_bytes(own.seq.next(), own.encode());
    let torn = after_bytes(own.seq, vec![1, 2, 3]);
    let of_other = writer_after(&record(Nonce([9; 16])));
    let misplaced = writer_after(&Record { seq: Seq(own.seq.0 - 1), ..own.clone() });
    let mislabelled = after_bytes(own.seq, Record { seq: own.seq.next(), ..own }.encode());
    for log in [elsewhere, torn, of_other, misplaced, mislabelled] {
        assert!(log.inherited().is_none() && log.is_idle());
    }
}

#[test]
fn one_checkpoint_is_stored_at_a_time() {
    let core = core(1);
    let mut log = LogWriter::idle(NONCE, None, 0);
    let out = &mut Vec::new();
    log.advance_checkpoint(&core, true, out);
    log.advance_checkpoint(&core, true, out);
    assert_eq!(out.len(), 1);
    log.checkpoint_written(Seq(1), false);
    log.advance_checkpoint(&core, true, out);
    assert_eq!(out.len(), 2);
}

fn at_time(now: Millis) -> Core<Vec<u8>> {
    Core { now, ..core(1) }
}

/// Regression: a commit that the local disk blocked was reported once a second, but its status had no reason.
#[test]
fn a_blocked_record_is_in_the_status() {
    let (core, mut log, mut out) = (core(1), writer_in_state(1), Vec::new());
    assert_eq!(log.unkept_for(500), None);
    for (now, errno) in [(1000, Errno::ENOSPC), (2000, Errno::EROFS)] {
        out.clear();
        log.pending_stored(Err(errno), &at_time(now), &mut out);
        assert!(
            matches!(out[..], [Action::Report(Report::LocalDiskFailed(said)), Action::StorePending { .. }] if said == errno),
            "{out:?}"
        );
    }
    assert_eq!(log.unkept_for(5000), Some((Errno::EROFS, 4000)), "since the first try");
    log.pending_stored(Ok(()), &core, &mut out);
    assert_eq!(log.unkept_for(5000), None);
}
