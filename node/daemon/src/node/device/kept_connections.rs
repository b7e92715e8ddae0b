//! This process's connections, by the tag of their device, and the keeper that holds them, too.
//!
//! Owns: the connections, and the communication with the keeper.
//! Does not own: devices.
//! Runs on: threads that may block, and one that watches the keeper while connections exist.
//! Invariants: while a keeper serves, it holds a connection from before its device is bound until after it is
//! cleared.
//! On failure: the exit of the keeper is detected, and the next one gets all connections. A daemon under
//! Kubernetes does not start one, because its children end with its pod. Any other daemon does, even if a
//! keeper run by a user was asked to exit: they would wait for each other. A connection that the keeper did
//! not close is closed later.

use std::collections::{BTreeMap, BTreeSet};
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use holdfast_fuse::{FuseConnection, Keeper, KeeperEvent, KeeperWatch, is_absent};
use holdfast_service::chain;
use holdfast_ublk::Unsupported;
use parking_lot::Mutex;

/// The command of the daemon's own program that becomes the keeper.
pub(crate) const KEEPER: &str = "keeper";
/// Its option for a keeper started by a daemon.
pub(crate) const KEEPER_FOR_DAEMON: &str = "for-daemon";
/// The program of this process, even after an upgrade has replaced its file.
const OWN_PROGRAM: &str = "/proc/self/exe";
/// Interval between attempts to start or reach a keeper.
const KEEPER_AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Interval between checks for a keeper started by another process.
const KEEPER_LOOK_EVERY: Duration = Duration::from_millis(100);
/// Maximum wait for a started keeper to replace another one.
const REPLACED_WITHIN: Duration = Duration::from_secs(5);

/// Process that runs the keeper.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum KeeperStart {
    /// The daemon starts it with its first device.
    ByDaemon,
    /// Another process runs it, in a separate pod: without it, no device can be added.
    Outside,
}

/// The connections. Clones share them.
#[derive(Clone)]
pub(super) struct KeptConnections(Arc<KeptInner>);

struct KeptInner {
    keeper: Keeper,
    starts: KeeperStart,
    run_dir: PathBuf,
    /// Program that becomes a keeper of a run directory.
    own_keeper: fn(&Path) -> Command,
    /// Held while a connection is given to, requested from or closed by the keeper, and while the keeper is
    /// replaced: its connections follow this process's, and only one thread at a time starts a keeper.
    keeping: Mutex<()>,
    state: Mutex<KeptState>,
}

#[derive(Default)]
struct KeptState {
    connections: BTreeMap<u64, FuseConnection>,
    /// Connections held by a keeper that was not asked to exit.
    kept: BTreeSet<u64>,
    /// Connections that this process no longer has, and that the keeper failed to close.
    unclosed: BTreeSet<u64>,
    /// The keeper was asked to exit.
    is_ending: bool,
    is_watching: bool,
}

impl KeptConnections {
    /// Creates an empty set, for a daemon with this run directory.
    pub(super) fn new(run_dir: &Path, starts: KeeperStart) -> Self {
        Self(Arc::new(KeptInner {
            keeper: Keeper::of(run_dir),
            starts,
            run_dir: run_dir.to_owned(),
            own_keeper,
            keeping: Mutex::default(),
            state: Mutex::default(),
        }))
    }

    /// Returns the client of the keeper.
    pub(super) fn keeper(&self) -> &Keeper {
        &self.0.keeper
    }

    /// Returns a connection of this process.
    pub(super) fn get(&self, tag: u64) -> Option<FuseConnection> {
        self.0.state.lock().connections.get(&tag).cloned()
    }

    /// Takes a connection from the keeper, which keeps it, too: `open` creates it from its file. `None` if
    /// the keeper does not have it.
    pub(super) fn take(
        &self,
        tag: u64,
        open: impl FnOnce(std::fs::File) -> FuseConnection,
    ) -> io::Result<Option<()>> {
        let _alone = self.0.keeping.lock();
        let kept = self.0.keeper.take(tag)?;
        Ok(kept.map(|file| self.serves(tag, open(file.into()))))
    }

    /// Checks that a keeper run by another process serves, and is not about to exit.
    ///
    /// # Errors
    /// [`Unsupported::NoKeeper`].
    pub(super) fn check(&self) -> Result<(), Unsupported> {
        if self.0.starts == KeeperStart::ByDaemon {
            return Ok(());
        }
        let found = match self.0.keeper.watch() {
            Ok(watch) if watch.is_ending() => "it is about to exit",
            Ok(_) => return Ok(()),
            Err(error) if is_absent(&error) => "none serves",
            Err(_) => "it does not answer",
        };
        Err(Unsupported::NoKeeper { socket: self.0.keeper.socket().to_owned(), found })
    }

    /// Gives a new connection to the keeper, and starts that if it is this daemon's responsibility.
    pub(super) fn keep(&self, tag: u64, connection: &FuseConnection) -> io::Result<()> {
        let _alone = self.0.keeping.lock();
        self.give(tag, connection)?;
        self.serves(tag, connection.clone());
        Ok(())
    }

    /// Gives the keeper a connection. Returns whether the keeper was started for that.
    fn give(&self, tag: u64, connection: &FuseConnection) -> io::Result<bool> {
        let KeptInner { keeper, starts, run_dir, own_keeper, .. } = &*self.0;
        match starts {
            KeeperStart::ByDaemon => keeper.keep_or_start(tag, connection.file(), || own_keeper(run_dir)),
            KeeperStart::Outside => keeper.keep(tag, connection.file()).map(|()| false),
        }
    }

    /// Records a connection of this process that the keeper has.
    fn serves(&self, tag: u64, connection: FuseConnection) {
        let mut state = self.0.state.lock();
        state.connections.insert(tag, connection);
        if !state.is_ending {
            state.kept.insert(tag);
        }
        drop(state);
        self.watch();
    }

    /// Closes a connection, except for its use by a ring.
    pub(super) fn forget(&self, tag: u64) {
        let _alone = self.0.keeping.lock();
        let mut state = self.0.state.lock();
        state.connections.remove(&tag);
        state.kept.remove(&tag);
        drop(state);
        let Err(error) = self.0.keeper.drop(tag) else { return };
        tracing::warn!(%error, "the keeper did not close a connection of FUSE; the daemon retries the close");
        let mut state = self.0.state.lock();
        let is_first = state.unclosed.is_empty();
        state.unclosed.insert(tag);
        if is_first {
            let connections = self.clone();
            thread::spawn(move || connections.close_later());
        }
    }

    /// Retries the closing of connections by the keeper. Those that remain when this process exits are closed
    /// by the sweep of the next start.
    fn close_later(&self) {
        loop {
            thread::sleep(KEEPER_AGAIN_AFTER);
            let _alone = self.0.keeping.lock();
            let mut unclosed = self.0.state.lock().unclosed.clone();
            // A connection that is in use again is closed later.
            unclosed.retain(|tag| self.get(*tag).is_none() && self.0.keeper.drop(*tag).is_err());
            let mut state = self.0.state.lock();
            state.unclosed = unclosed;
            if state.unclosed.is_empty() {
                return;
            }
        }
    }

    /// Watches the keeper while connections exist, so that the next one gets all of them when it exits.
    fn watch(&self) {
        if std::mem::replace(&mut self.0.state.lock().is_watching, true) {
            return;
        }
        let devices = self.clone();
        thread::spawn(move || {
            let again_after = match devices.0.starts {
                KeeperStart::ByDaemon => KEEPER_AGAIN_AFTER,
                KeeperStart::Outside => KEEPER_LOOK_EVERY,
            };
            let (mut is_next, mut is_logged) = (false, false);
            while devices.is_needed() {
                match devices.follow_keeper(is_next) {
                    Ok(()) => is_logged = false,
                    Err(error) => {
                        // This includes a keeper that had a connection only briefly.
                        let unkept = devices.lose(false);
                        if !std::mem::replace(&mut is_logged, true) {
                            tracing::error!(
                                error = chain(&error),
                                devices = unkept,
                                "no keeper of FUSE connections runs: an exit of this daemon would fail the \
                                 requests to its devices"
                            );
                        }
                        thread::sleep(again_after);
                    }
                }
                is_next = true;
            }
        });
    }

    /// Returns false, and ends the watch, if no connection needs a keeper any more.
    fn is_needed(&self) -> bool {
        let mut state = self.0.state.lock();
        state.is_watching = !state.connections.is_empty();
        state.is_watching
    }

    /// Gives the current keeper the missing connections, and waits until it is gone.
    fn follow_keeper(&self, is_next: bool) -> io::Result<()> {
        let mut watch = match self.0.keeper.watch() {
            Err(error) if is_absent(&error) && self.0.starts == KeeperStart::ByDaemon => {
                self.give_missing(&BTreeSet::new(), false)?;
                self.0.keeper.watch()?
            }
            watch => watch?,
        };
        // From the watched keeper, or its successor.
        let listed = self.0.keeper.list()?.into_iter().collect();
        self.give_missing(&listed, watch.is_ending())?;
        if is_next {
            tracing::warn!(unkept = self.unkept(), "another keeper of FUSE connections has all connections");
        }
        let mut is_ending = watch.is_ending();
        loop {
            if is_ending {
                let devices = self.lose(true);
                if devices == 0 {
                    break;
                }
                tracing::warn!(
                    devices,
                    "the keeper of FUSE connections was asked to exit, and waits for another one"
                );
                if self.0.starts == KeeperStart::ByDaemon {
                    self.replace(&mut watch)?;
                    break;
                }
            }
            match watch.await_event() {
                KeeperEvent::Ending => is_ending = true,
                KeeperEvent::Gone => break,
            }
        }
        self.lose(false);
        Ok(())
    }

    /// Replaces a keeper that was asked to exit by one of this daemon.
    fn replace(&self, watch: &mut KeeperWatch) -> io::Result<()> {
        Keeper::start((self.0.own_keeper)(&self.0.run_dir))?;
        if watch.ends(REPLACED_WITHIN) {
            // A keeper without connections exits after a request: the last device may be gone by now.
            return self.0.keeper.list().map(drop);
        }
        let waits = "a keeper was started to replace one that was asked to exit, but has not replaced it";
        Err(io::Error::new(io::ErrorKind::TimedOut, waits))
    }

    /// Marks all connections as not kept. Returns their number.
    fn lose(&self, is_ending: bool) -> usize {
        let mut state = self.0.state.lock();
        state.kept.clear();
        state.is_ending = is_ending;
        state.connections.len()
    }

    /// Gives the connections that are not `listed` to the keeper.
    fn give_missing(&self, listed: &BTreeSet<u64>, is_ending: bool) -> io::Result<()> {
        let _alone = self.0.keeping.lock();
        let connections = self.0.state.lock().connections.clone();
        for (tag, connection) in connections.iter().filter(|(tag, _)| !listed.contains(tag)) {
            self.give(*tag, connection)?;
        }
        let mut state = self.0.state.lock();
        state.is_ending = is_ending;
        if !is_ending {
            state.kept.extend(connections.into_keys());
        }
        Ok(())
    }

    /// Returns the number of connections of this process that no keeper currently has.
    pub(super) fn unkept(&self) -> usize {
        let state = self.0.state.lock();
        state.connections.keys().filter(|tag| !state.kept.contains(tag)).count()
    }
}

fn own_keeper(run_dir: &Path) -> Command {
    let mut program = Command::new(OWN_PROGRAM);
    program.arg(KEEPER).arg("--run-dir").arg(run_dir).arg(format!("--{KEEPER_FOR_DAEMON}"));
    program
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Write};
    use std::os::unix::net::UnixListener;
    use std::sync::atomic::{AtomicUsize, Ordering};
    use std::time::Instant;

    use super::*;

    const SOON: Duration = Duration::from_secs(10);

    fn connections(run_dir: &tempfile::TempDir) -> KeptConnections {
        KeptConnections::new(run_dir.path(), KeeperStart::Outside)
    }

    fn connection() -> FuseConnection {
        FuseConnection::new(tempfile::tempfile().unwrap(), "volume".to_owned(), 1 << 20)
    }

    fn until(what: &str, mut is_so: impl FnMut() -> bool) {
        let begun = Instant::now();
        while !is_so() {
            assert!(begun.elapsed() < SOON, "{what}");
            thread::sleep(KEEPER_LOOK_EVERY / 5);
        }
    }

    /// A keeper run by another process.
    struct KeeperProcess(std::process::Child);

    impl KeeperProcess {
        fn start(run_dir: &tempfile::TempDir) -> Self {
            let keeper = Self::begin(run_dir);
            until("it serves", || Keeper::of(run_dir.path()).watch().is_ok());
            keeper
        }

        fn begin(run_dir: &tempfile::TempDir) -> Self {
            // The threads of the test program would end it on SIGTERM.
            Self(test("becomes_a_keeper", run_dir.path()).spawn().unwrap())
        }

        fn tell_to_end(&self) {
            assert!(Command::new("kill").arg(self.0.id().to_string()).status().unwrap().success());
        }
    }

    /// Runs one of these tests in a separate process, for a run directory.
    fn test(name: &str, run_dir: &Path) -> Command {
        let mut itself = Command::new("env");
        itself.arg("--block-signal=TERM").arg(std::env::current_exe().unwrap());
        itself.args(["--exact", &format!("node::device::kept_connections::tests::{name}"), "--ignored"]);
        itself.env("KEEPER_OF", run_dir).stdout(std::process::Stdio::null());
        itself
    }

    impl Drop for KeeperProcess {
        fn drop(&mut self) {
            self.0.kill().unwrap();
            self.0.wait().unwrap();
        }
    }

    #[test]
    #[ignore = "is a keeper, of the other tests"]
    fn becomes_a_keeper() {
        if let Ok(run_dir) = std::env::var("KEEPER_OF") {
            holdfast_fuse::keeper::run(Path::new(&run_dir)).unwrap();
        }
    }

    #[test]
    #[ignore = "is a keeper that a daemon of another test has started"]
    fn becomes_a_keeper_of_a_daemon() {
        if let Ok(run_dir) = std::env::var("KEEPER_OF") {
            holdfast_fuse::keeper::run_for_daemon(Path::new(&run_dir)).unwrap();
        }
    }

    /// Regression: when a daemon without Kubernetes and a keeper in the foreground were asked to exit at the
    /// same time, the daemon waited for a keeper that would stay, and the keeper for the daemon's devices,
    /// until they were killed.
    #[test]
    fn a_keeper_that_was_told_to_end_is_replaced_by_the_daemon() {
        let run_dir = tempfile::tempdir().unwrap();
        static STARTED: AtomicUsize = AtomicUsize::new(0);
        let mut kept = connections(&run_dir);
        let inner = Arc::get_mut(&mut kept.0).unwrap();
        inner.starts = KeeperStart::ByDaemon;
        inner.own_keeper = |run_dir| {
            STARTED.fetch_add(1, Ordering::Relaxed);
            test("becomes_a_keeper_of_a_daemon", run_dir)
        };
        let mut foreground = KeeperProcess::start(&run_dir);
        kept.keep(1, &connection()).unwrap();
        foreground.tell_to_end();
        until("it ends", || foreground.0.try_wait().unwrap().is_some_and(|ended| ended.success()));
        until("the daemon may end too", || kept.unkept() == 0);
        assert_eq!(Keeper::of(run_dir.path()).list().unwrap(), [1]);
        kept.forget(1);
        until("the daemon's keeper ends", || {
            Keeper::of(run_dir.path()).watch().is_err_and(|error| is_absent(&error))
        });
        // The last device is gone: no keeper is needed.
        let mut foreground = KeeperProcess::start(&run_dir);
        kept.keep(2, &connection()).unwrap();
        kept.forget(2);
        foreground.tell_to_end();
        until("it ends too", || foreground.0.try_wait().unwrap().is_some_and(|ended| ended.success()));
        until("it is followed no more", || !kept.0.state.lock().is_watching);
        assert_eq!(STARTED.load(Ordering::Relaxed), 1);
    }

    /// Regression: until the daemon's next start, the keeper held the connection and the kernel its state.
    #[test]
    fn a_connection_that_was_not_closed_is_closed_later() {
        let run_dir = tempfile::tempdir().unwrap();
        let kept = connections(&run_dir);
        let listener = UnixListener::bind(Keeper::of(run_dir.path()).socket()).unwrap();
        let asked = thread::spawn(move || {
            let (mut tags, mut fails) = (BTreeSet::new(), 2);
            while tags.len() < 2 {
                let (mut stream, _) = listener.accept().unwrap();
                let mut request = [0; 10];
                stream.read_exact(&mut request).unwrap();
                let [_, b'D', tag @ ..] = request else { panic!("{request:?}") };
                let done = fails == 0;
                stream.write_all(if done { b"y" } else { b"f" }).unwrap();
                if done {
                    tags.insert(u64::from_ne_bytes(tag));
                }
                fails -= u32::from(!done);
            }
            tags
        });
        kept.forget(7);
        kept.forget(8);
        assert_eq!(asked.join().unwrap(), BTreeSet::from([7, 8]));
        until("nothing is left", || kept.0.state.lock().unclosed.is_empty());
    }

    /// Without a keeper, an attach fails with the reason, before it changes anything.
    #[test]
    fn no_device_is_added_while_no_keeper_serves() {
        let run_dir = tempfile::tempdir().unwrap();
        let kept = connections(&run_dir);
        assert!(is_absent(&kept.keep(1, &connection()).unwrap_err()));
        assert_eq!((kept.unkept(), kept.0.state.lock().connections.len()), (0, 0));
        let keeper_of = |kept: &KeptConnections| kept.check().map_err(|error| error.to_string());
        let refused = keeper_of(&kept).unwrap_err();
        assert!(
            refused.contains("none serves. Without it") && refused.contains("holdfast-node keeper"),
            "{refused}"
        );
        let keeper = KeeperProcess::start(&run_dir);
        keeper_of(&kept).unwrap();
        kept.keep(1, &connection()).unwrap();
        assert_eq!(kept.unkept(), 0);
        keeper.tell_to_end();
        until("it is not counted as keeping", || kept.unkept() == 1);
        assert!(keeper_of(&kept).unwrap_err().contains("about to exit"));
    }

    /// The daemon gives the next keeper all connections: after a replacement, and after a kill.
    #[test]
    fn the_next_keeper_has_all_connections() {
        let run_dir = tempfile::tempdir().unwrap();
        let kept = connections(&run_dir);
        let first = KeeperProcess::start(&run_dir);
        for tag in [1, 2] {
            kept.keep(tag, &connection()).unwrap();
        }
        drop(first);
        until("the end is noted", || kept.unkept() == 2);
        let second = KeeperProcess::start(&run_dir);
        until("the second one has all", || kept.unkept() == 0);
        assert_eq!(Keeper::of(run_dir.path()).list().unwrap(), [1, 2]);
        let mut watch = Keeper::of(run_dir.path()).watch().unwrap();
        let third = KeeperProcess::begin(&run_dir);
        assert_eq!(watch.await_event(), KeeperEvent::Gone, "the third one has taken over");
        drop(second);
        until("it is followed", || kept.unkept() == 0);
        kept.forget(1);
        assert_eq!(Keeper::of(run_dir.path()).list().unwrap(), [2]);
        drop(third);
        until("its end is noted too", || kept.unkept() == 1);
    }
}
