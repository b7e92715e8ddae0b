use futures::FutureExt;
use holdfast_format::segment::FrameError;
use holdfast_objects::StoreError;
use holdfast_types::Sector;
use parking_lot::Mutex;

use super::*;
use crate::scripted_time::ScriptedTime;

const KEY: &str = "volumes/v/segments/a";

fn store(source: StoreError) -> ColdError {
    ObjectError::Store { key: KEY.to_owned(), source }.into()
}

fn missing() -> ColdError {
    store(StoreError::NotFound { key: KEY.to_owned() })
}

fn damaged() -> ColdError {
    let source = FrameError::Length { block: 0, have: 3, need: 4 };
    ObjectError::Frame { key: KEY.to_owned(), source }.into()
}

/// Runs a read whose attempts end with `answers`, in this order; returns its result and the delays between
/// the attempts.
fn read(answers: Vec<Result<u8, ColdError>>) -> (Result<u8, ColdError>, Vec<Duration>) {
    let time = ScriptedTime::new(|_wait| {});
    let answers = Mutex::new(answers.into_iter());
    let range = SectorRange::new(Sector(3).0, 1);
    let done = retry_while_unavailable(&time, &ColdLines::default(), range, |_wanted| async {
        answers.lock().next().expect("no further try is due")
    })
    .now_or_never()
    .unwrap();
    assert_eq!(answers.into_inner().count(), 0, "a try is missing");
    (done, time.waits.into_inner())
}

/// Regression: each of these failed the client's read at once, and an ext4 on the volume became read-only.
#[test]
fn a_read_waits_out_answers_of_proxies_and_failovers() {
    let refused = || StoreError::Refused { code: "HTTP 421".to_owned(), source: "x".into() };
    let answers = vec![
        Err(store(refused())),
        Err(store(StoreError::NoBucket { bucket: "b".to_owned() })),
        Err(store(StoreError::Denied { code: "ExpiredToken".to_owned(), source: "x".into() })),
        Err(store(StoreError::WrongLength { key: KEY.to_owned(), got_bytes: 3, want_bytes: 4 })),
        Err(store(StoreError::BadAnswer { field: "Content-Range" })),
        Err(store(StoreError::TooLarge { key: KEY.to_owned(), size_bytes: 5, max_bytes: 4 })),
        Err(store(StoreError::Unavailable("x".into()))),
        Ok(7),
    ];
    let (done, waits) = read(answers);
    assert_eq!((done.unwrap(), waits.len()), (7, 7));
}

/// Regression: damage and absence were trusted without confirmation.
#[test]
fn an_unconfirmed_finding_fails_no_read() {
    for finding in [missing, damaged] {
        // The whole block, then only the range, then the range again.
        let (done, waits) = read(vec![Err(finding()), Err(finding()), Ok(7)]);
        assert_eq!((done.unwrap(), &waits[..]), (7, &[CONFIRM_AFTER][..]));
    }
    let (done, waits) = read(vec![Err(missing()), Err(missing()), Err(damaged()), Err(missing()), Ok(7)]);
    assert_eq!((done.unwrap(), &waits[..]), (7, &[CONFIRM_AFTER; 3][..]), "three findings, no two alike");
}

#[test]
fn a_confirmed_finding_fails_the_read() {
    for finding in [missing, damaged] {
        let (done, waits) = read(vec![Err(finding()), Err(finding()), Err(finding())]);
        assert_eq!(done.unwrap_err().to_string(), finding().to_string());
        assert_eq!(waits, [CONFIRM_AFTER]);
    }
    let away = || Err(store(StoreError::Unavailable("x".into())));
    let (done, waits) = read(vec![Err(missing()), Err(missing()), away(), Err(missing())]);
    assert!(done.is_err());
    assert_eq!(waits.len(), 2, "an outage in between is no word on the object");
}

#[test]
fn a_range_that_needs_nothing_damaged_is_read_at_once() {
    let (done, waits) = read(vec![Err(damaged()), Ok(7)]);
    assert_eq!((done.unwrap(), waits.len()), (7, 0));
}
