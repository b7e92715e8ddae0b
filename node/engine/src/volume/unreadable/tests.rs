use holdfast_format::side::Side;

use super::super::core::tests::core;
use super::*;

const ONE: SideSet = SideSet::only(Side::B);

fn found(ranges: &[SectorRange], now: Millis) -> (UnreadableDirty, Vec<Action>) {
    let mut core = core(1);
    core.now = now;
    let (mut unreadable, mut out) = (UnreadableDirty::default(), Vec::new());
    unreadable.found(ranges.to_vec(), ONE, &core, &mut out);
    (unreadable, out)
}

#[test]
fn each_range_is_reported_once() {
    let range = SectorRange::new(8, 4);
    let (mut unreadable, mut out) = found(&[range], 5);
    unreadable.found(vec![range], ONE, &core(1), &mut out);
    assert_eq!(out, [Action::Report(Report::UploadUnreadable(range))]);
    let shown = unreadable.shown().unwrap();
    assert_eq!((shown.first, shown.bytes, shown.since_unix_ms), (range, 4 * SECTOR_BYTES, 5));
    unreadable.committed(&mut out);
    assert_eq!(out.last(), Some(&Action::Report(Report::UploadReadable)));
    assert!(!unreadable.is_any());
}

#[test]
fn the_wait_between_attempts_doubles() {
    let range = SectorRange::new(8, 4);
    let (mut unreadable, mut out) = found(&[range], 0);
    let [first, longest] = READ_AGAIN_AFTER_MS;
    assert_eq!(
        (unreadable.retry(ONE, first - 1), unreadable.retry(ONE, first)),
        (ReadRetry::NotYet, ReadRetry::SameSides)
    );
    assert_eq!(unreadable.retry(SideSet::BOTH, first), ReadRetry::BothSides);
    for _ in 0..9 {
        unreadable.found(vec![range], ONE, &core(1), &mut out);
    }
    assert_eq!(unreadable.wait, longest);
}

#[test]
fn overwritten_data_is_no_longer_awaited() {
    let (mut unreadable, _) = found(&[SectorRange::new(8, 4)], 0);
    assert!(unreadable.is_overwritten_by(SectorRange::new(11, 8)));
    unreadable.stored(SectorRange::new(9, 2));
    assert_eq!(unreadable.ranges, [SectorRange::new(8, 1), SectorRange::new(11, 1)]);
    assert_eq!(unreadable.retry(ONE, 0), ReadRetry::NotYet);
    unreadable.stored(SectorRange::new(0, 64));
    assert_eq!(unreadable.retry(ONE, 0), ReadRetry::BothSides);
}
