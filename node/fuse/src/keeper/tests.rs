use std::fs::File;
use std::io::Write;
use std::os::fd::AsFd;
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixListener;
use std::thread::JoinHandle;

use super::message::{FAILED, HAND_OVER, REQUEST_BYTES, VERSION};
use super::place::{bind, take_place, try_lock};
use super::serve::{KeeperFiles, KeeperPlace, serve};
use super::*;

const SOON: Duration = Duration::from_secs(10);

fn file() -> OwnedFd {
    tempfile::tempfile().unwrap().into()
}

fn inode(file: &OwnedFd) -> u64 {
    File::from(file.try_clone().unwrap()).metadata().unwrap().ino()
}

/// A keeper as a thread, which ends as its process would.
struct KeeperThread {
    kept: KeeperFiles,
    thread: JoinHandle<io::Result<()>>,
}

/// Starts a keeper in the foreground.
fn begun(dir: &Path) -> KeeperThread {
    begun_with(dir, SpokenVersions::default())
}

/// Starts a keeper that supports these versions.
fn begun_with(dir: &Path, versions: SpokenVersions) -> KeeperThread {
    let (keeper, kept) = (Keeper { versions, ..Keeper::of(dir) }, KeeperFiles::default());
    kept.lock().versions = versions;
    let shared = kept.clone();
    KeeperThread { kept, thread: thread::spawn(move || run::keep(&keeper, &shared)) }
}

fn until(what: &str, mut is_so: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !is_so() {
        assert!(begun.elapsed() < SOON, "{what}");
        thread::sleep(AGAIN_AFTER);
    }
}

impl KeeperThread {
    fn has(&self, tags: &[u64]) -> bool {
        self.kept.lock().files.keys().copied().eq(tags.iter().copied())
    }
}

/// Starts a keeper with these files.
fn started(dir: &Path, tags: &[u64]) -> (Keeper, KeeperThread) {
    let (keeper, thread) = (Keeper::of(dir), begun(dir));
    until("it serves", || keeper.watch().is_ok());
    for tag in tags {
        keeper.keep(*tag, file().as_fd()).unwrap();
    }
    (keeper, thread)
}

#[test]
fn a_file_is_kept_taken_and_dropped_by_its_tag() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, _thread) = started(dir.path(), &[1]);
    let files: Vec<OwnedFd> = (0..3).map(|_| file()).collect();
    for (tag, file) in (10..).zip(&files) {
        assert!(!keeper.keep_or_start(tag, file.as_fd(), || panic!("one answers")).unwrap());
    }
    assert_eq!(keeper.list().unwrap(), [1, 10, 11, 12]);
    for (tag, file) in (10..).zip(&files) {
        assert_eq!(inode(&keeper.take(tag).unwrap().unwrap()), inode(file));
        assert_eq!(inode(&keeper.take(tag).unwrap().unwrap()), inode(file), "it keeps what it gives");
    }
    keeper.drop(11).unwrap();
    assert!(keeper.take(11).unwrap().is_none());
    assert_eq!(keeper.list().unwrap(), [1, 10, 12]);
}

/// Regression: the first keeper took the place back when the second one was replaced, and so on endlessly.
#[test]
fn the_last_of_three_keepers_has_all_files() {
    let dir = tempfile::tempdir().unwrap();
    let kept = file();
    let (keeper, first) = started(dir.path(), &[1, 2]);
    keeper.keep(3, kept.as_fd()).unwrap();
    let second = begun(dir.path());
    until("the second one has all", || second.has(&[1, 2, 3]) && first.has(&[]));
    keeper.drop(2).unwrap();
    keeper.keep(4, file().as_fd()).unwrap();
    let third = begun(dir.path());
    until("the third one has all", || third.has(&[1, 3, 4]) && second.has(&[]) && first.has(&[]));
    assert_eq!(keeper.list().unwrap(), [1, 3, 4]);
    assert_eq!(inode(&keeper.take(3).unwrap().unwrap()), inode(&kept));
    assert!(try_lock(keeper.socket()).unwrap().is_none(), "the third one has the lock");
    thread::sleep(Duration::from_millis(100));
    assert!(third.has(&[1, 3, 4]), "the others stand by");
}

/// Regression: two attaches at once started two keepers, and the second one removed the first one's socket.
#[test]
fn of_two_keepers_started_at_once_one_serves() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, both) = (Keeper::of(dir.path()), [begun(dir.path()), begun(dir.path())]);
    let tags: Vec<u64> = (0..20).collect();
    for tag in &tags {
        until("one answers", || keeper.keep(*tag, file().as_fd()).is_ok());
    }
    assert_eq!(keeper.list().unwrap(), tags);
    assert_eq!(both.iter().filter(|one| one.has(&tags)).count(), 1);
    assert_eq!(both.iter().filter(|one| one.has(&[])).count(), 1);
}

/// The socket exists all the time, and each request gets an answer.
#[test]
fn no_question_is_lost_while_keepers_take_over() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, first) = started(dir.path(), &[1, 2]);
    let run_dir = dir.path().to_owned();
    let asks = thread::spawn(move || {
        let (keeper, begun) = (Keeper::of(&run_dir), Instant::now());
        let mut tag = 100;
        while begun.elapsed() < Duration::from_millis(500) {
            keeper.watch().unwrap();
            keeper.keep(tag, file().as_fd()).unwrap();
            assert_eq!(keeper.list().unwrap(), [1, 2, tag]);
            keeper.drop(tag).unwrap();
            tag += 1;
        }
    });
    let mut keepers = vec![first];
    for _ in 0..10 {
        let next = begun(dir.path());
        until("it serves", || keepers.iter().all(|old| old.has(&[])));
        keepers.push(next);
        thread::sleep(Duration::from_millis(20));
    }
    asks.join().unwrap();
    assert_eq!(keeper.list().unwrap(), [1, 2]);
}

/// The successor exits before it confirms that it has all files.
#[test]
fn a_hand_over_that_breaks_leaves_the_keeper_serving() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, first) = started(dir.path(), &[1, 2]);
    for reads in [0, 4, 5] {
        let (status, lock, mut stream) = keeper.ask_once(HAND_OVER, 0, None).unwrap();
        assert!(status == DONE && lock.is_some());
        stream.read_exact(&mut vec![0; reads]).unwrap();
        drop(stream);
        assert_eq!(keeper.list().unwrap(), [1, 2]);
    }
    // A successor that neither confirms nor exits.
    let _stands_still = keeper.ask_once(HAND_OVER, 0, None).unwrap();
    assert_eq!(keeper.list().unwrap(), [1, 2]);
    assert!(first.has(&[1, 2]));
}

/// Starts a keeper that sends its place and the files `tags` out of `of`, and then ends like a killed
/// process; with `reads_all` only after the successor has confirmed.
fn dies_while_handing_over(dir: &Path, tags: &[u64], of: u32, reads_all: bool) -> JoinHandle<()> {
    let socket = dir.join(KEEPER_SOCKET);
    let (lock, listener) = (try_lock(&socket).unwrap().unwrap(), bind(&socket).unwrap());
    let tags = tags.to_vec();
    thread::spawn(move || {
        let (watched, _) = listener.accept().unwrap();
        (&watched).read_exact(&mut [0; REQUEST_BYTES]).unwrap();
        (&watched).write_all(&[DONE]).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
        let head = [&[DONE][..], &of.to_ne_bytes()].concat();
        send(&stream, &head, Some(lock.as_fd())).unwrap();
        send(&stream, &[DONE], Some(listener.as_fd())).unwrap();
        for tag in tags {
            send(&stream, &u64::to_ne_bytes(tag), Some(file().as_fd())).unwrap();
        }
        if reads_all {
            stream.read_exact(&mut [0]).unwrap();
        }
    })
}

/// Regression: the successor, which had the only references to the files, exited after a partial hand-over.
#[test]
fn a_successor_keeps_what_a_dead_keeper_has_sent() {
    for (sent, of, reads_all) in [(&[1, 2][..], 2, true), (&[1, 2], 2, false), (&[1], 2, false)] {
        let dir = tempfile::tempdir().unwrap();
        let dies = dies_while_handing_over(dir.path(), sent, of, reads_all);
        let successor = begun(dir.path());
        dies.join().unwrap();
        let keeper = Keeper::of(dir.path());
        until("it serves", || keeper.list().is_ok_and(|tags| tags == sent));
        assert!(successor.has(sent));
    }
}

/// A successor that cannot take the place must leave all files to the keeper that continues to serve.
#[test]
fn a_successor_releases_what_the_keeper_still_has() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(KEEPER_SOCKET);
    let (lock, listener) = (try_lock(&socket).unwrap().unwrap(), bind(&socket).unwrap());
    let serves_on = thread::spawn(move || {
        let (watched, _) = listener.accept().unwrap();
        (&watched).read_exact(&mut [0; REQUEST_BYTES]).unwrap();
        (&watched).write_all(&[DONE]).unwrap();
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
        send(&stream, &[DONE, 1, 0, 0, 0], Some(lock.as_fd())).unwrap();
        send(&stream, &[DONE], Some(listener.as_fd())).unwrap();
        send(&stream, &1u64.to_ne_bytes(), Some(file().as_fd())).unwrap();
        stream.read_exact(&mut [0]).unwrap();
        stream.write_all(&[FAILED]).unwrap();
        (lock, listener, watched)
    });
    let kept = KeeperFiles::default();
    let refused = take_place(&Keeper::of(dir.path()), &kept, Duration::ZERO).unwrap_err();
    assert_eq!(refused.kind(), io::ErrorKind::WouldBlock);
    assert!(kept.lock().files.is_empty());
    drop(serves_on.join().unwrap());
}

/// A daemon must not rely on a keeper that is about to be killed.
#[test]
fn a_keeper_that_was_told_to_end_says_so() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, first) = started(dir.path(), &[1]);
    let mut watch = keeper.watch().unwrap();
    assert!(!watch.is_ending());
    assert!(!first.kept.request_exit(), "it has a connection");
    assert_eq!((watch.await_event(), watch.is_ending()), (KeeperEvent::Ending, true));
    assert!(keeper.watch().unwrap().is_ending());
    assert_eq!(keeper.list().unwrap(), [1], "it serves on");
    let second = begun(dir.path());
    assert_eq!(watch.await_event(), KeeperEvent::Gone);
    assert!(!keeper.watch().unwrap().is_ending() && second.has(&[1]));
    first.thread.join().unwrap().unwrap();
}

#[test]
fn a_keeper_that_was_told_to_end_ends_with_its_last_file() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, empty) = started(dir.path(), &[]);
    assert!(empty.kept.request_exit());
    empty.thread.join().unwrap().unwrap();
    assert!(is_absent(&keeper.watch().unwrap_err()));
    let (keeper, last) = started(dir.path(), &[1]);
    assert!(!last.kept.request_exit());
    keeper.drop(1).unwrap();
    last.thread.join().unwrap().unwrap();
}

/// A restarted container of an old pod takes the place, and then the pod is deleted.
#[test]
fn one_that_stands_by_takes_the_place_of_one_that_ends() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, first) = started(dir.path(), &[1]);
    let second = begun(dir.path());
    until("the second one serves", || second.has(&[1]) && first.has(&[]));
    assert!(!second.kept.request_exit());
    until("the first one serves again", || first.has(&[1]));
    second.thread.join().unwrap().unwrap();
    assert_eq!(keeper.list().unwrap(), [1]);
}

#[test]
fn one_of_a_daemon_ends_when_it_holds_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, kept) = (Keeper::of(dir.path()), KeeperFiles::until_unused());
    let place = take_place(&keeper, &kept, Duration::ZERO).unwrap();
    let serves = thread::spawn(move || serve(&kept, place));
    let watch = keeper.watch();
    keeper.keep(1, file().as_fd()).unwrap_or_else(|error| assert!(is_absent(&error) || is_cut_off(&error)));
    drop(keeper.drop(1));
    drop(watch);
    serves.join().unwrap().unwrap();
    assert!(is_absent(&keeper.watch().unwrap_err()));
}

#[test]
fn an_unknown_question_or_version_is_refused_by_name() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, _thread) = started(dir.path(), &[1]);
    let unknown = keeper.ask(b'?', 1, None).unwrap_err().to_string();
    assert!(unknown.contains("does not know this question"), "{unknown}");
    let mut stream = keeper.connect().unwrap();
    stream.write_all(&[VERSION + 1, LIST]).unwrap();
    let mut answer = [0; 2];
    stream.read_exact(&mut answer).unwrap();
    assert_eq!(answer, [OTHER_VERSION, VERSION]);
    assert_eq!(stream.read(&mut [0]).unwrap(), 0, "it says no more");
    let other = tempfile::tempdir().unwrap();
    let of_other = Keeper::of(other.path());
    let listener = UnixListener::bind(of_other.socket()).unwrap();
    thread::spawn(move || {
        let (mut stream, _) = listener.accept().unwrap();
        stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
        stream.write_all(&[OTHER_VERSION, 9]).unwrap();
    });
    let refused = of_other.list().unwrap_err().to_string();
    assert!(refused.contains("speaks version 9"), "{refused}");
}

/// Regression: a keeper with the next version of the protocol could not take over from this one, nor the
/// other way round.
#[test]
fn keepers_and_daemons_of_two_versions_understand_each_other() {
    let dir = tempfile::tempdir().unwrap();
    let next = SpokenVersions { newest: VERSION + 1 };
    let (now, then) = (Keeper::of(dir.path()), Keeper { versions: next, ..Keeper::of(dir.path()) });
    let asks = |keeper: &Keeper, has: &[u64]| {
        keeper.keep(9, file().as_fd()).unwrap();
        assert!(keeper.take(9).unwrap().is_some());
        keeper.drop(9).unwrap();
        assert!(!keeper.watch().unwrap().is_ending());
        assert_eq!(keeper.list().unwrap(), has);
    };
    let (_, first) = started(dir.path(), &[1, 2]);
    asks(&then, &[1, 2]);
    let second = begun_with(dir.path(), next);
    until("the newer one has all", || second.has(&[1, 2]) && first.has(&[]));
    asks(&now, &[1, 2]);
    asks(&then, &[1, 2]);
    let third = begun(dir.path());
    until("the older one has all", || third.has(&[1, 2]) && second.has(&[]));
    asks(&then, &[1, 2]);
}

/// Regression: a truncated answer counted as "nothing is kept", so mounted devices were cleared.
#[test]
fn a_failed_question_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = Keeper::of(dir.path());
    let listener = UnixListener::bind(keeper.socket()).unwrap();
    thread::spawn(move || while listener.accept().is_ok() {});
    assert!(keeper.list().is_err() && keeper.take(1).is_err() && keeper.drop(1).is_err());
}

#[test]
fn an_answer_without_its_file_is_an_error() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = Keeper::of(dir.path());
    let listener = UnixListener::bind(keeper.socket()).unwrap();
    thread::spawn(move || {
        for status in [FAILED, DONE] {
            let (mut stream, _) = listener.accept().unwrap();
            stream.read_exact(&mut [0; REQUEST_BYTES]).unwrap();
            stream.write_all(&[status]).unwrap();
        }
    });
    assert!(keeper.take(1).is_err(), "the keeper could not give it");
    assert!(keeper.take(1).is_err(), "it did not arrive");
}

#[test]
fn a_question_that_fails_has_a_status() {
    let dir = tempfile::tempdir().unwrap();
    let (keeper, _thread) = started(dir.path(), &[1]);
    let (status, ..) = keeper.ask(KEEP, 1, None).unwrap();
    assert_eq!(status, FAILED);
}

#[test]
fn without_a_keeper_nothing_is_kept() {
    let dir = tempfile::tempdir().unwrap();
    let keeper = Keeper::of(dir.path());
    assert!(keeper.take(1).unwrap().is_none() && keeper.list().unwrap().is_empty());
    keeper.drop(1).unwrap();
}

/// Dropping a place closes its lock and socket.
#[test]
fn a_place_that_is_not_served_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join(KEEPER_SOCKET);
    let place = KeeperPlace { lock: try_lock(&socket).unwrap().unwrap(), listener: bind(&socket).unwrap() };
    assert!(try_lock(&socket).unwrap().is_none());
    drop(place);
    assert!(try_lock(&socket).unwrap().is_some());
}
