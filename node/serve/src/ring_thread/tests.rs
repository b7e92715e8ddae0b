#![allow(unsafe_code)] // mmap of a file of the test

use holdfast_engine::durable_map::Header;
use holdfast_engine::event::Event;
use holdfast_engine::sector_map::map_bytes;
use holdfast_engine::settings::{AttachState, DirtyLimits, Durability, Setup};
use holdfast_format::manifest::Manifest;
use holdfast_format::side::{Side, SideSet};
use holdfast_ring::Pause;
use holdfast_types::{Epoch, Nonce, Seq, VolumeId};
use holdfast_ublk::{Device, DeviceInfo, DeviceState, Expected, ForeignFeatures, Transport};
use tokio::sync::{mpsc, oneshot};

use super::*;
use crate::io_limits::IoLimits;
use crate::label::Label;
use crate::live_map::LiveMap;
use crate::logged::logged;
use crate::planned::Start;
use crate::published_status::{PublishedStatus, ServedCounts};

mod limits;

const SECTORS: u64 = 64;
const LIMIT: Duration = Duration::from_secs(20);

fn device() -> Device {
    let info = DeviceInfo {
        id: 7,
        state: DeviceState::Live,
        queues: 1,
        depth: 2,
        max_io_bytes: 4096,
        transport: Some(Transport::UserCopy),
        server_pid: -1,
        tag: 0,
        has_batches: false,
        foreign: ForeignFeatures::among(0),
    };
    Device::of(&info, 1, &Expected { tag: 0, sectors: 1 }).unwrap()
}

fn files() -> SharedFiles<File> {
    let [slab, memory] = [(); 2].map(|()| tempfile::tempfile().unwrap());
    SharedFiles { slab, memory, zeros: File::open("/dev/zero").unwrap() }
}

/// The answer was that the ring is lost, so that an administrator restarted the daemon needlessly.
#[test]
fn a_removed_volume_is_no_lost_ring() {
    let mut thread = ring_thread();
    let key = VolumeKey { index: 0, serial: 7 };
    let mut answer = |message: fn(VolumeKey, Reply) -> Message| {
        let (done, mut answer) = oneshot::channel();
        thread.on_message(message(key, done), now());
        answer.try_recv()
    };
    let opened = answer(|key, done| {
        let queues = Box::new(|_: &mut VolumeRing, _| panic!("there is no volume to open them for"));
        Message::Open { key, device: device(), queues, done }
    });
    assert!(matches!(opened, Ok(Err(RingRefusal::Gone))));
    let closed = answer(|key, done| Message::Close { key, done });
    assert!(matches!(closed, Ok(Err(RingRefusal::Gone))));
    let removed = answer(|key, done| Message::Remove { key, done });
    assert!(matches!(removed, Ok(Err(RingRefusal::Gone))));
}

/// Creates an empty volume for a ring thread, whose device has `requests` requests.
fn new_volume(requests: u32) -> NewVolume {
    let volume: VolumeId = "disk".parse().unwrap();
    let nonce = Nonce([7; 16]);
    let header = Header {
        volume: volume.clone(),
        identity: nonce,
        sectors: SECTORS,
        epoch: Epoch(1),
        writer: nonce,
        nonces: vec![nonce],
        active: Side::A,
        closed_clean: false,
        invalidated: SideSet::NONE,
        has_journal: false,
        seq: Seq(0),
        synced_generation: 0,
    };
    let setup = Setup {
        requests,
        limits: DirtyLimits { seal_bytes: 4 << 20, max_bytes: 64 << 20, max_age_ms: 30_000 },
        durability: Durability::Local,
        header,
        header_generation: 1,
        unix_ms_at_zero: 0,
    };
    let run = tempfile::tempdir_in("/dev/shm").unwrap();
    let live = File::options().read(true).write(true).create_new(true).open(run.path().join("live")).unwrap();
    live.set_len(map_bytes(SECTORS)).unwrap();
    // SAFETY: only this test uses the file, whose pages have memory.
    let live_map = unsafe { LiveMap::map(&live) }.unwrap();
    let manifest = Manifest::empty(volume.clone());
    let start = Start::Attach(Box::new(AttachState::in_log(manifest)));
    let planned = start.make(setup, live_map).unwrap();
    let file = || tempfile::tempfile().unwrap();
    NewVolume {
        planned,
        limits: IoLimits::NONE,
        label: Arc::new(Label::new(volume, Epoch(1))),
        live,
        sides: [file(), file()],
        map: file(),
        work: mpsc::channel(1).0,
        published: Arc::new(PublishedStatus::new(|_| ())),
        place: Box::new(()),
    }
}

fn ring_thread() -> RingThread {
    holdfast_ring::raise_open_file_limit().unwrap();
    RingThread::new(&files(), &tempfile::tempfile().unwrap(), mpsc::channel(1).1).unwrap()
}

/// Handles completions until `done` returns true.
fn run_turns(thread: &mut RingThread, done: impl Fn(&RingThread) -> bool) {
    let begin = Instant::now();
    while !done(thread) {
        assert!(begin.elapsed() < LIMIT, "it never comes to that");
        let mut completions = Vec::new();
        thread.ring.submit_and_wait(Some(Duration::from_millis(10)), &mut completions).unwrap();
        for completion in completions {
            thread.on_completion(completion, now());
        }
        thread.release_removed();
    }
}

/// Found by reading: such a command was dropped, and neither counted nor logged.
#[test]
fn a_late_command_of_a_closed_queue_is_counted() {
    let mut thread = ring_thread();
    let key = thread.add(new_volume(2), now()).unwrap();
    let written = logged(|| {
        for tag in [3, 4] {
            thread.ring.no_operation(InFlight::Command(QueueCommand { owner: key, queue_id: 0, tag }));
        }
        run_turns(&mut thread, |thread| thread.late == 2);
    });
    let late: Vec<_> = written.iter().filter(|line| line.contains("closed queue")).collect();
    assert!(
        matches!(&late[..], [line] if line.contains("volume=disk") && line.contains("tag=3")),
        "{written:#?}"
    );
    assert_eq!(logged(|| drop(thread)).iter().filter(|line| line.contains("times=1")).count(), 1);
}

/// Regression: each measurement of the cache woke all idle volumes, four times a second if one had I/O.
#[test]
fn a_share_of_the_cache_wakes_no_idle_volume() {
    let mut thread = ring_thread();
    let new = new_volume(2);
    let published = Arc::clone(&new.published);
    let key = thread.add(new, now()).unwrap();
    run_turns(&mut thread, RingThread::is_still);
    // A tick replaces the figures.
    let marked = ServedCounts { reads: 7, ..ServedCounts::default() };
    let gets_tick = |thread: &mut RingThread, message: Option<Message>| {
        published.show(published.status(), marked, published.limits());
        message.into_iter().chain([Message::Tick]).for_each(|message| thread.on_message(message, now()));
        published.served() != marked
    };
    let first_left_out = (0..4).position(|_| !gets_tick(&mut thread, None));
    assert!(first_left_out.is_some(), "it is idle");
    let share = |room_bytes| Event::Space { excess_bytes: 0, room_bytes };
    for room_bytes in [1 << 20, 2 << 20] {
        let event = share(room_bytes);
        assert!(!gets_tick(&mut thread, Some(Message::Event { key, event })), "{room_bytes}");
    }
    assert!(gets_tick(&mut thread, Some(Message::Event { key, event: Event::Detach })));
}

/// Found by reading: the thread, and with it the process, ended once the volume was released.
#[test]
fn an_open_during_a_pending_remove_is_refused() {
    let mut thread = ring_thread();
    let key = thread.add(new_volume(2), now()).unwrap();
    thread.on_message(Message::Event { key, event: Event::Detach }, now());
    assert!(!thread.is_still(), "its last round is in flight");
    let (done, mut removed) = oneshot::channel();
    thread.on_message(Message::Remove { key, done }, now());
    let (done, mut opened) = oneshot::channel();
    let queues = Box::new(|_: &mut VolumeRing, _| Ok(Vec::new()));
    thread.on_message(Message::Open { key, device: device(), queues, done }, now());
    assert!(matches!(opened.try_recv(), Ok(Err(RingRefusal::Removing))));
    run_turns(&mut thread, |thread| thread.removed.is_empty());
    assert!(matches!(removed.try_recv(), Ok(Ok(()))));
}

/// The pace of writes used the time of the last message, up to a tick ago.
#[test]
fn the_end_of_a_pause_sets_the_time() {
    static PAUSE: Pause = Pause::millis(20);
    let mut thread = ring_thread();
    let removed = VolumeKey { index: 0, serial: 7 };
    let before = now();
    thread.now = 0;
    thread.ring.pause(&PAUSE, InFlight::File { volume: removed, operation: FileOperation::Pause });
    while thread.late == 0 {
        assert_eq!(thread.now, 0);
        thread.turn().unwrap();
    }
    assert!((before + 20..=now()).contains(&thread.now));
}

/// Reading the clock at each turn added to the cost of each request.
#[test]
fn the_time_is_read_when_a_message_comes() {
    holdfast_ring::raise_open_file_limit().unwrap();
    let (inbox, messages) = mpsc::channel(1);
    let mut thread = RingThread::new(&files(), &tempfile::tempfile().unwrap(), messages).unwrap();
    thread.now = 0;
    let removed = VolumeKey { index: 0, serial: 7 };
    thread.ring.no_operation(InFlight::Command(QueueCommand { owner: removed, queue_id: 0, tag: 0 }));
    thread.turn().unwrap();
    assert_eq!((thread.late, thread.now), (1, 0));
    assert!(inbox.try_send(Message::Tick).is_ok());
    thread.waker().wake();
    let before = now();
    thread.turn().unwrap();
    assert!((before..=now()).contains(&thread.now));
}
