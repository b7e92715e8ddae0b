//! Every pair of a state and an event.

use holdfast_ublk::{DeviceInfo, DeviceState, Expected, ForeignFeatures, Transport};

use super::*;

/// Returns a device that is independent of the kernel.
pub(in crate::node) fn device() -> Device {
    let info = DeviceInfo {
        id: 1,
        state: DeviceState::Quiesced,
        queues: 1,
        depth: 128,
        max_io_bytes: 1 << 20,
        transport: Some(Transport::ZeroCopy),
        server_pid: -1,
        tag: 5,
        has_batches: false,
        foreign: ForeignFeatures::among(0),
    };
    Device::of(&info, 64, &Expected { tag: 5, sectors: 64 }).unwrap()
}

/// The states after events other than reports of the ring thread. A row is a state, a column an event, and
/// `-` an illegal transition. A state is its variant (`at`taching, `re`covering, `se`rving, `un`served,
/// `de`taching, `pa`used: a detach that is not running, `ev`icting, `gone`) and its device: `0` none, `i`dle,
/// `s`erving, `d`eleting. For a recovery, `+` means the detach of the previous process.
const TABLE: &str = "
       added attached unmade found found0 found+ unrecovered recovered begins refused fails unpreserved stopped released deleted end  lost
at-0   at-i  -        un-0   -     -      -      -           -         -      -       -     -           -       -        -       gone -
at-i   -     se-s     un-i   -     -      -      -           -         -      -       -     -           -       at-d     -       -    -
at-d   -     -        un-d   -     -      -      -           -         -      -       -     -           -       -        at-0    gone -
re-0   -     -        -      re-i  re-0   re-i+  re-0        un-0      -      -       -     -           -       -        -       gone -
re-i   -     -        -      re-i  re-0   re-i+  re-i        se-s      -       -       -     -           -       -        -       -   -
re-0+  -     -        -      re-i  re-0   re-i+  re-0+       pa-0      -      -       -     -           -       -        -       gone -
re-i+  -     -        -      re-i  re-0   re-i+  re-i+       pa-s      -       -       -     -           -       -        -       -   -
se-s   -     -        -      -     -      -      -           -         de-s   -       -     -           -       -        -       -    un-i
un-0   -     -        -      -     -      -      -           -         de-0   -       -     -           -       -        -       -    -
un-i   -     -        -      -     -      -      -           -         de-i   -       -     -           -       -        -       -    -
un-d   -     -        -      -     -      -      -           -         de-d   -       -     -           -       -        un-0    -    -
de-0   -     -        -      -     -      -      -           -         -      un-0    pa-0  pa-0        -       -        -       gone -
de-i   -     -        -      -     -      -      -           -         -       un-i    pa-i  pa-i        de-i    de-d     -       -   -
de-s   -     -        -      -     -      -      -           -         -       se-s    pa-s  pa-s        de-i    -        -       -   -
de-d   -     -        -      -     -      -      -           -         -      un-d    pa-d  pa-d        -       -        de-0    gone -
pa-0   -     -        -      -     -      -      -           -         de-0   -       -     -           -       -        -       -    -
pa-i   -     -        -      -     -      -      -           -         de-i   -       -     -           -       -        -       -    -
pa-s   -     -        -      -     -      -      -           -         de-s   -       -     -           -       -        -       -    -
pa-d   -     -        -      -     -      -      -           -         de-d   -       -     -           -       -        pa-0    -    -
ev     -     -        -      -     -      -      -           -         -      -       -     -           -       -        -       -    -
gone   -     -        -      -     -      -      -           -         -      -       -     -           -       -        gone    -    -
";

/// The reports of the ring thread that may follow one, in the order of [`WRITERS`].
const REPORTS: [(WriterState, [bool; 6]); 6] = [
    (WriterState::Starting, [false, true, true, true, true, true]),
    (WriterState::Ready, [false, true, true, true, true, true]),
    (WriterState::Fenced, [false, false, true, true, true, false]),
    (WriterState::Preserved { complete: true }, [false, false, false, true, true, false]),
    (WriterState::Preserved { complete: false }, [false, false, false, true, true, false]),
    (WriterState::Detached, [false, false, false, false, false, true]),
];

const WRITERS: [WriterState; 6] = [
    WriterState::Starting,
    WriterState::Ready,
    WriterState::Fenced,
    WriterState::Preserved { complete: true },
    WriterState::Preserved { complete: false },
    WriterState::Detached,
];

fn name(state: &State) -> String {
    let device = match state.block_device() {
        BlockDevice::None => "0",
        BlockDevice::Idle(_) => "i",
        BlockDevice::Serving(_) => "s",
        BlockDevice::Deleting { .. } => "d",
    };
    match state {
        State::Attaching { .. } => format!("at-{device}"),
        State::Recovering { is_detaching, .. } => {
            format!("re-{device}{}", if *is_detaching { "+" } else { "" })
        }
        State::Serving { .. } => format!("se-{device}"),
        State::Unserved { .. } => format!("un-{device}"),
        State::Detaching { is_running: true, .. } => format!("de-{device}"),
        State::Detaching { is_running: false, .. } => format!("pa-{device}"),
        State::Evicting => "ev".to_owned(),
        State::Detached => "gone".to_owned(),
    }
}

fn named(name: &str, writer: WriterState) -> State {
    let (variant, device) = name.split_once('-').unwrap_or((name, "0"));
    let is_detaching = device.ends_with('+');
    let device = match device.trim_end_matches('+') {
        "0" => BlockDevice::None,
        "i" => BlockDevice::Idle(self::device()),
        "s" => BlockDevice::Serving(self::device()),
        "d" => BlockDevice::Deleting { device: self::device(), since: Instant::now() },
        other => unreachable!("{other}"),
    };
    let durability = Durability::Local;
    match variant {
        "at" => State::Attaching { store_name: "main".to_owned(), durability, device, writer },
        "re" => State::Recovering { device, writer, is_detaching, error: None },
        "se" => State::Serving { device: self::device(), writer },
        "un" => State::Unserved { device, writer },
        "de" => State::detaching(device, writer, true),
        "pa" => State::detaching(device, writer, false),
        "ev" => State::Evicting,
        "gone" => State::Detached,
        other => unreachable!("{other}"),
    }
}

fn event(name: &str) -> StateEvent {
    match name {
        "added" => StateEvent::DeviceAdded(device()),
        "attached" => StateEvent::Attached,
        "unmade" => StateEvent::AttachFailed,
        "found" => StateEvent::Found { device: Some(device()), is_detaching: false },
        "found0" => StateEvent::Found { device: None, is_detaching: false },
        "found+" => StateEvent::Found { device: Some(device()), is_detaching: true },
        "unrecovered" => StateEvent::RecoveryFailed("why".to_owned()),
        "recovered" => StateEvent::Recovered,
        "begins" => StateEvent::DetachBegan,
        "refused" => StateEvent::DetachRefused,
        "fails" => StateEvent::DetachFailed,
        "unpreserved" => StateEvent::PreserveFailed("why".to_owned()),
        "stopped" => StateEvent::DeviceStopped,
        "released" => StateEvent::DeviceReleased(Instant::now()),
        "deleted" => StateEvent::DeviceDeleted,
        "end" => StateEvent::Released,
        "lost" => StateEvent::DeviceLost,
        other => unreachable!("{other}"),
    }
}

fn rows() -> impl Iterator<Item = (&'static str, Vec<&'static str>)> {
    TABLE.lines().skip(2).map(|line| {
        let mut cells = line.split_whitespace();
        (cells.next().unwrap(), cells.collect())
    })
}

#[test]
fn each_event_leads_each_state_as_in_the_table() {
    let events: Vec<_> = TABLE.lines().nth(1).unwrap().split_whitespace().collect();
    let mut pairs = 0;
    for (state, cells) in rows() {
        assert_eq!(cells.len(), events.len(), "{state}");
        for writer in WRITERS {
            let before = named(state, writer);
            assert_eq!(name(&before), state);
            for (event_name, expected) in events.iter().zip(&cells) {
                let next = before.next(&event(event_name));
                let found = next.as_ref().map_or("-".to_owned(), name);
                assert_eq!(found, *expected, "{event_name} of {before:?}");
                let kept = next.ok().and_then(|next| next.writer());
                assert!(kept.is_none_or(|kept| kept == writer), "{event_name} of {before:?}");
                pairs += 1;
            }
        }
    }
    assert_eq!(pairs, 21 * 17 * 6);
}

#[test]
fn a_report_changes_the_writer_and_nothing_else() {
    for (state, _) in rows() {
        for (writer, may_follow) in REPORTS {
            let before = named(state, writer);
            for (report, may_follow) in WRITERS.into_iter().zip(may_follow) {
                let next = before.next(&StateEvent::Writer(report)).ok();
                let expected = before.writer().filter(|_| may_follow).map(|_| report);
                assert_eq!(next.as_ref().and_then(State::writer), expected, "{report:?} of {before:?}");
                assert!(next.is_none_or(|next| name(&next) == state));
            }
        }
    }
}

#[test]
fn the_last_error_stays_until_there_is_another() {
    let failed = named("de-0", WriterState::Fenced).next(&event("unpreserved")).unwrap();
    let again = failed.next(&event("begins")).unwrap();
    let State::Detaching { preserve_error, .. } = again else { panic!("{again:?}") };
    assert_eq!(preserve_error.as_deref(), Some("why"));
    let failed = named("re-0", WriterState::Starting).next(&event("unrecovered")).unwrap();
    let State::Recovering { error, .. } = failed.next(&event("found")).unwrap() else { panic!("{failed:?}") };
    assert_eq!(error.as_deref(), Some("why"));
}

#[tokio::test]
async fn an_event_is_published_to_waiters() {
    let cell = StateCell::new(named("at-0", WriterState::Starting));
    let ready = cell.reach(|state| state.writer() == Some(WriterState::Ready));
    let (reached, ()) = futures::join!(ready, async { cell.apply(&StateEvent::Writer(WriterState::Ready)) });
    assert_eq!(name(&reached), "at-0");
    assert!(cell.try_apply(&StateEvent::Recovered).is_err());
    assert_eq!(cell.get(), reached, "it changed nothing");
}
