//! Ownership of devices: several volumes on a kernel that reuses numbers, and a process that dies at every
//! step.

mod growth;
mod handoff_check;
mod host_shutdown;
mod stopped_outside;
mod transports;

use std::future::Future;

use holdfast_ublk::{ControlError, DeviceInfo, DeviceState};
use tokio::runtime::{Builder, Runtime};

use super::kernel::{Death, FakeKernel, Loss};
use super::logged::second_subscriber;
use tracing_subscriber::fmt::format::FmtSpan;

use super::*;
use crate::node::local::live_map;
use crate::node::local::owner::HeldOwner;
use crate::node::local::volume_files::AttachFiles;
use crate::node::ring::lock::RingLocks;
use crate::node::volume::device::LOOK_EVERY;
use holdfast_format::limit::MAX_SECTORS;

/// Maximum wait of a start for devices of the previous process.
const WITHIN: Duration = Duration::from_millis(500);

/// A host: its directories, its kernel, and its volumes' bucket.
struct Host {
    dirs: Dirs,
    kernel: Arc<FakeKernel>,
    bucket: Bucket,
    /// Serves the bucket.
    outside: Option<Runtime>,
}

impl Host {
    /// Creates a host with two devices of other programs, and volumes of these names in its bucket.
    fn new(volumes: &[&str]) -> Self {
        let outside = Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let bucket = outside.block_on(Bucket::start());
        for volume in volumes {
            let (volume, nonce) = (id(volume), Nonce([9; 16]));
            let creation = holdfast_log::Creation::plain(SECTORS, nonce, 0);
            let provisioned = holdfast_log::provision(&*bucket.objects, &volume, creation);
            outside.block_on(provisioned).unwrap();
        }
        let kernel = Arc::new(FakeKernel::new());
        kernel.add_foreign(0, DeviceState::Dead, 0);
        // From a daemon with another state directory.
        let elsewhere = Dirs::new().tag(&id(volumes[0]), 1);
        kernel.add_foreign(2, DeviceState::Quiesced, elsewhere);
        Self { dirs: Dirs::new(), kernel, bucket, outside: Some(outside) }
    }

    /// Runs a daemon until `script` ends, or until the daemon dies.
    fn daemon<F: Future<Output = ()>>(&self, script: impl FnOnce(Node) -> F) {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        let life = async {
            let started = Node::start_with(self.dirs.config(), self.kernel.clone(), WITHIN);
            let node = started.await.unwrap();
            tokio::select! {
                biased;
                () = self.kernel.death() => {}
                ended = tokio::time::timeout(3 * LIMIT, script(node.clone())) => ended.expect("the script ends"),
            }
            // A dead process holds no lock, even if its threads were waiting.
            let (owner, _all_ended) = node.leave(Duration::ZERO).await;
            drop(owner.map(HeldOwner::into_owner));
        };
        if let Err(failed) = std::panic::catch_unwind(AssertUnwindSafe(|| runtime.block_on(life))) {
            // A panic that drops a node's tasks would end the process.
            std::mem::forget(runtime);
            std::panic::resume_unwind(failed);
        }
        // Nothing of the daemon runs any more, so its threads may return.
        self.kernel.end_process();
        drop(runtime);
    }

    fn request(&self, volume: &str) -> AttachRequest {
        AttachRequest { volume: id(volume), store: self.bucket.config.clone(), ..request() }
    }

    async fn attach(&self, node: &Node, volume: &str) -> Attached {
        loop {
            match node.attach(self.request(volume)).await {
                Ok(attached) => return attached,
                Err(NodeError::Busy { .. }) => tokio::time::sleep(Duration::from_millis(5)).await,
                Err(error) => panic!("{volume}: {error}"),
            }
        }
    }

    fn device_of(&self, tag: u64) -> Option<DeviceInfo> {
        self.kernel.devices().into_values().find(|info| info.tag == tag)
    }

    /// Checks that every serving device belongs to its volume, and that every LIVE device of ours serves.
    async fn check(&self, node: &Node) {
        // A detach of the previous process may be in progress: it changes the kernel first.
        until(|| self.live() == self.serving(node)).await;
        assert_eq!(self.kernel.violations(), Vec::<String>::new());
        let devices = self.kernel.devices();
        assert_eq!((devices[&0].state, devices[&2].state), (DeviceState::Dead, DeviceState::Quiesced));
    }

    fn live(&self) -> Vec<u32> {
        let devices = self.kernel.devices().into_values();
        devices.filter(|info| info.state == DeviceState::Live).map(|info| info.id).collect()
    }

    fn serving(&self, node: &Node) -> Vec<u32> {
        let mut serving = Vec::new();
        for status in node.list() {
            let Some(attached) = &status.attached else { continue };
            let number =
                attached.device_path.to_str().unwrap().trim_start_matches("/dev/ublkb").parse().unwrap();
            if let Some(info) = self.kernel.devices().get(&number) {
                assert_eq!(info.tag, self.dirs.tag(&status.volume, attached.epoch), "{}", status.volume);
            }
            serving.push(number);
        }
        serving.sort_unstable();
        serving
    }

    /// Waits until the previous process's volumes are served or being released.
    async fn settle(&self, node: &Node) {
        settled(node, |status| matches!(status.state, VolumeState::Attached | VolumeState::Detaching)).await;
    }

    /// Detaches all volumes; only the devices of other programs remain.
    async fn detach_all(&self, node: &Node) {
        self.settle(node).await;
        for status in node.list() {
            match node.detach(&status.volume).await {
                Ok(()) | Err(NodeError::Busy { .. } | NodeError::NotAttached(_)) => {}
                Err(error) => panic!("{}: {error}", status.volume),
            }
        }
        settled(node, |_left| false).await;
        until(|| self.kernel.devices().into_keys().eq([0, 2])).await;
        self.check(node).await;
    }
}

impl Drop for Host {
    fn drop(&mut self) {
        self.outside.take().unwrap().shutdown_background();
    }
}

fn id(volume: &str) -> VolumeId {
    volume.parse().unwrap()
}

async fn until(holds: impl Fn() -> bool) {
    let held = async {
        while !holds() {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    tokio::time::timeout(LIMIT, held).await.expect("it never holds");
}

async fn settled(node: &Node, is_settled: impl Fn(&NodeVolumeStatus) -> bool) {
    until(|| node.list().iter().all(&is_settled)).await;
}

fn state_of(node: &Node, volume: &str) -> Option<VolumeState> {
    node.list().into_iter().find(|status| status.volume == id(volume)).map(|status| status.state)
}

/// Runs two attaches, a detach whose final commit waits for the store, and an attach that gets the released
/// number.
async fn reuse_a_number(host: &Host, node: Node) {
    host.attach(&node, "x").await;
    host.attach(&node, "y").await;
    host.bucket.close("volumes/x/");
    let detaching = tokio::spawn({
        let node = node.clone();
        async move { node.detach(&id("x")).await }
    });
    until(|| host.device_of(host.dirs.tag(&id("x"), 1)).is_none()).await;
    let reused = host.attach(&node, "z").await;
    assert_eq!(reused.device_path.to_str(), Some("/dev/ublkb1"), "the kernel gives a number again");
    host.check(&node).await;
    detaching.abort();
}

/// Regression, found in review: a record named a deleted device. The kernel gave its number to the next
/// volume, and after a restart both volumes recovered that device: one served the data of the other, or
/// deleted the device while it was mounted.
#[test]
fn no_volume_gets_the_device_of_another() {
    let mut deaths = 0;
    for death in (0..).flat_map(|step| [Death::Before(step), Death::After(step)]) {
        let host = &Host::new(&["x", "y", "z"]);
        host.kernel.die(Some(death));
        let survived = &std::cell::Cell::new(false);
        host.daemon(|node| async move {
            reuse_a_number(host, node).await;
            survived.set(true);
        });
        // One daemon that only recovers, and one that attaches in between.
        for _ in 0..2 {
            host.daemon(|node| async move {
                check_own_devices(host, &node).await;
            });
        }
        host.bucket.open();
        host.daemon(|node| async move { host.detach_all(&node).await });
        if survived.get() {
            break;
        }
        deaths += 1;
    }
    assert_eq!(deaths, 2 * (3 + 3 + 2 + 3), "add, open, start; stop and delete");
}

async fn check_own_devices(host: &Host, node: &Node) {
    host.settle(node).await;
    host.check(node).await;
    for volume in ["y", "z"] {
        host.attach(node, volume).await;
        host.check(node).await;
    }
}

/// The same for a daemon that dies during recovery: no device is lost, and none changes its volume.
#[test]
fn a_death_in_a_recovery_loses_no_device() {
    let mut deaths = 0;
    for death in (0..).flat_map(|step| [Death::Before(step), Death::After(step)]) {
        let host = &Host::new(&["x", "y"]);
        host.daemon(|node| async move {
            host_attaches(host, &node).await;
        });
        let before = host.kernel.devices();
        host.kernel.die(Some(death));
        let survived = &std::cell::Cell::new(false);
        host.daemon(|node| async move {
            settled(&node, |status| status.state == VolumeState::Attached).await;
            survived.set(true);
        });
        assert_eq!(host.kernel.devices()[&1], before[&1]);
        host.daemon(|node| async move {
            settled(&node, |status| status.state == VolumeState::Attached).await;
            host.check(&node).await;
            assert_eq!(node.list().len(), 2);
        });
        if survived.get() {
            break;
        }
        deaths += 1;
    }
    assert_eq!(deaths, 2 * 2 * 3, "recovery begun, before the volume is on its ring; open; recovery ended");
}

async fn host_attaches(host: &Host, node: &Node) {
    for volume in ["x", "y"] {
        host.attach(node, volume).await;
    }
    host.check(node).await;
}

/// Size of a grown volume in bytes.
const LARGER: u64 = 2 * SECTORS * SECTOR_BYTES;

impl Host {
    /// Returns the sectors of the device that serves a volume.
    fn sectors_of(&self, volume: &str, epoch: u64) -> u64 {
        let info = self.device_of(self.dirs.tag(&id(volume), epoch)).unwrap();
        let mut sectors = 0;
        self.kernel.change(info.id, |known| sectors = known.sectors);
        sectors
    }
}

/// Returns the settings of a volume, in the order of its status.
fn settings_of(node: &Node) -> (Option<Durability>, Option<Duration>) {
    let shown = node.list().remove(0);
    (shown.durability, shown.max_dirty_age)
}

/// Regression: they were reset to those of the attach.
#[test]
fn settings_outlive_the_daemon_and_end_with_the_detach() {
    let host = &Host::new(&["x"]);
    let changed = (Some(Durability::Object), Some(Duration::from_secs(5)));
    host.daemon(|node| async move {
        let change = SettingsChange { durability: changed.0, ..SettingsChange::default() };
        assert!(matches!(node.configure(&id("x"), change).await, Err(NodeError::NotAttached(_))));
        host.attach(&node, "x").await;
        let first = settings_of(&node);
        assert_eq!(first.0, Some(Durability::Local));
        for _ in 0..2 {
            node.configure(&id("x"), change).await.unwrap();
            assert_eq!(settings_of(&node), (changed.0, first.1), "in effect when it returns");
        }
        let change = SettingsChange { max_dirty_age: changed.1, ..SettingsChange::default() };
        node.configure(&id("x"), change).await.unwrap();
        assert_eq!(settings_of(&node), changed);
    });
    host.daemon(|node| async move {
        host.settle(&node).await;
        assert_eq!(settings_of(&node), changed);
        host.detach_all(&node).await;
        host.attach(&node, "x").await;
        assert_eq!(settings_of(&node).0, Some(Durability::Local), "an attach brings its own");
    });
}

/// Regression: a restart removed the limits of a volume.
#[test]
fn limits_outlive_the_daemon() {
    let host = &Host::new(&["x"]);
    let first = IoLimits { iops: Some(3000), bytes_per_second: None };
    let second = IoLimits { iops: None, bytes_per_second: Some(1 << 20) };
    host.daemon(|node| async move {
        let request = AttachRequest { limits: first, ..host.request("x") };
        node.attach(request).await.unwrap();
        assert_eq!(node.list().remove(0).delays.limits.limits, first);
        let iops = LimitChange::Remove;
        let change =
            SettingsChange { iops, bytes_per_second: LimitChange::To(1 << 20), ..Default::default() };
        assert_eq!(node.configure(&id("x"), change).await.unwrap().limits, second);
        assert_eq!(node.list().remove(0).delays.limits.limits, second, "in effect when it returns");
    });
    host.daemon(|node| async move {
        host.settle(&node).await;
        assert_eq!(node.list().remove(0).delays.limits.limits, second);
        host.detach_all(&node).await;
    });
}

/// A restarted daemon must not serve with less than promised: the record is written first.
#[test]
fn settings_that_were_not_recorded_are_not_in_effect() {
    let host = &Host::new(&["x"]);
    let local = &host.dirs.local_of(&id("x"));
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        let before = settings_of(&node);
        let spare = local.live_map_path().with_file_name("attached.new");
        fs::remove_file(&spare).unwrap();
        fs::create_dir(&spare).unwrap();
        let change = SettingsChange { durability: Some(Durability::Object), ..SettingsChange::default() };
        node.configure(&id("x"), change).await.unwrap_err();
        assert_eq!(settings_of(&node), before);
        fs::remove_dir(&spare).unwrap();
        // The record written afterwards has the settings in effect.
        node.grow(&id("x"), LARGER).await.unwrap();
        assert_eq!(local.read_record().unwrap().unwrap().durability, Durability::Local);
        node.configure(&id("x"), change).await.unwrap();
        node.grow(&id("x"), 2 * LARGER).await.unwrap();
        assert_eq!(local.read_record().unwrap().unwrap().durability, Durability::Object);
    });
}

/// A growth waits for the store; changes of settings do not.
#[test]
fn settings_change_while_a_growth_waits() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.bucket.close("volumes/x/");
        let growing = tokio::spawn({
            let node = node.clone();
            async move { node.grow(&id("x"), LARGER).await }
        });
        let change = SettingsChange { durability: Some(Durability::Object), ..SettingsChange::default() };
        node.configure(&id("x"), change).await.unwrap();
        assert!(!growing.is_finished());
        assert_eq!(settings_of(&node).0, Some(Durability::Object));
        host.bucket.open();
        growing.await.unwrap().unwrap();
        let detaching = tokio::spawn({
            let node = node.clone();
            async move { node.detach(&id("x")).await }
        });
        until(|| node.list().first().is_none_or(|shown| shown.state != VolumeState::Attached)).await;
        node.configure(&id("x"), change).await.unwrap_err();
        detaching.await.unwrap().unwrap();
    });
}

/// The log has the new size before the device, so a growth waits; the detach by another client ends the wait.
#[test]
fn a_growth_waits_for_the_store_until_a_detach() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.attach(&node, "y").await;
        host.bucket.close("volumes/x/");
        let waiting = tokio::spawn({
            let node = node.clone();
            async move { node.grow(&id("x"), LARGER).await }
        });
        node.grow(&id("y"), LARGER).await.expect("no other volume waits");
        assert!(!waiting.is_finished());
        assert_eq!(host.sectors_of("x", 1), SECTORS);
        let detaching = tokio::spawn({
            let node = node.clone();
            async move { node.detach(&id("x")).await }
        });
        let ended = waiting.await.unwrap().unwrap_err();
        assert!(matches!(ended, NodeError::Busy { .. }), "{ended}");
        host.bucket.open();
        detaching.await.unwrap().unwrap();
        host.detach_all(&node).await;
    });
}

/// Regression: after a takeover, a restarted daemon did not report the replaced writer to a repeated attach.
#[test]
fn a_takeover_is_reported_after_a_restart() {
    let host = &Host::new(&["x"]);
    let (elsewhere, x) = (&Dirs::new(), &id("x"));
    host.daemon(|node| async move {
        acquire(&*host.bucket.objects, x, &elsewhere.local_of(x), &claim("b", 1), &NodeTime).await.unwrap();
        node.attach(AttachRequest { replaces: Some(1), ..host.request("x") }).await.unwrap();
    });
    host.daemon(|node| async move {
        host.settle(&node).await;
        let displaced = host.attach(&node, "x").await.displaced;
        assert_eq!(displaced, Some(Displaced { epoch: Epoch(1), node: "b".to_owned(), since_unix_ms: 0 }));
        host.detach_all(&node).await;
        assert_eq!(host.attach(&node, "x").await.displaced, None, "it was reported until the detach");
    });
}

/// Regression, found in review: a daemon that died before a deletion left the device's number in the record.
#[test]
fn a_record_names_no_device_once_its_deletion_begins() {
    let host = &Host::new(&["x"]);
    // add, open, start, stop, delete
    host.kernel.die(Some(Death::Before(4)));
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        node.detach(&id("x")).await.unwrap();
        panic!("the daemon dies before");
    });
    let record = host.dirs.local_of(&id("x")).read_record().unwrap().unwrap();
    assert_eq!((record.device_id, record.detaching), (None, true));
    assert_eq!(host.device_of(record.tag).unwrap().state, DeviceState::Dead);
    host.daemon(|node| async move { host.detach_all(&node).await });
}

/// Regression: an attach returned a device that was removed by hand, whose number could be another program's.
/// Regression, found in review: so did `AwaitServed`, with which a pod's mount begins, and the volume stayed
/// attached.
#[test]
fn a_removed_device_is_neither_named_nor_touched() {
    for foreign in [None, Some(77)] {
        let host = &Host::new(&["x", "y"]);
        host.daemon(|node| async move {
            host.attach(&node, "x").await;
            host.attach(&node, "y").await;
            assert!(node.check_served(&id("x")).await.unwrap());
            let taken = host.kernel.remove_device(1).info.id;
            if let Some(tag) = foreign {
                host.kernel.add_foreign(taken, DeviceState::Live, tag);
            }
            let gone = match foreign {
                // The first question of either kind notices it.
                Some(_) => node.attach(host.request("x")).await.unwrap_err(),
                None => node.check_served(&id("x")).await.unwrap_err(),
            };
            let is_named = match foreign {
                None => matches!(gone, NodeError::Device(ControlError::NotFound { id: 1 })),
                Some(tag) => {
                    matches!(gone, NodeError::Device(ControlError::NotOurs { id: 1, found }) if found == tag)
                }
            };
            assert!(is_named, "{gone}");
            assert!(!node.check_served(&id("x")).await.unwrap(), "no device serves it");
            let states = || node.list().into_iter().map(|status| status.state).collect::<Vec<_>>();
            assert_eq!(states(), [VolumeState::Unserved, VolumeState::Attached]);
            let busy = node.attach(host.request("x")).await.unwrap_err();
            assert!(matches!(busy, NodeError::Busy { .. }), "{busy}");
            node.detach(&id("x")).await.unwrap();
            host.attach(&node, "x").await;
            assert!(node.check_served(&id("x")).await.unwrap());
            if let Some(tag) = foreign {
                assert_eq!(host.kernel.remove_device(1).info.tag, tag, "it is left alone");
            }
            host.detach_all(&node).await;
        });
        assert_eq!(host.kernel.violations(), Vec::<String>::new());
    }
}

/// Regression, found in review: the end of a device's connection was logged as information, and the volume
/// stayed attached.
#[test]
fn a_volume_whose_connection_ended_is_unserved() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        let present = node.0.volumes.present(&id("x")).unwrap();
        present.published.device_ended();
        assert_eq!(node.list()[0].state, VolumeState::Unserved);
        // A detach ends the connection, too.
        node.detach(&id("x")).await.unwrap();
        present.published.device_ended();
        assert!(node.list().is_empty());
    });
}

/// A device that another program created with a recorded number is neither served nor deleted.
#[test]
fn a_foreign_device_under_a_known_number_is_left_alone() {
    for state in [DeviceState::Dead, DeviceState::Quiesced] {
        let host = &Host::new(&["x"]);
        host.daemon(|node| async move {
            host.attach(&node, "x").await;
        });
        host.kernel.remove_device(1);
        host.kernel.add_foreign(1, state, 77);
        host.daemon(|node| async move {
            settled(&node, |_left| false).await;
        });
        assert_eq!(host.kernel.devices()[&1].state, state);
        assert_eq!(host.kernel.violations(), Vec::<String>::new());
        assert!(host.dirs.local_of(&id("x")).read_record().unwrap().is_none());
    }
}

/// Regression, found in review: of two records with one number, the first volume got the device.
#[test]
fn the_tag_decides_between_two_records_of_one_number() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move { host_attaches(host, &node).await });
    let local = host.dirs.local_of(&id("y"));
    let record = local.read_record().unwrap().unwrap();
    local.write_record(&AttachedRecord { device_id: Some(1), ..record }).unwrap();
    host.daemon(|node| async move {
        settled(&node, |status| status.state == VolumeState::Attached).await;
        host.check(&node).await;
        assert_eq!(node.list().len(), 2);
    });
    assert_eq!(local.read_record().unwrap().unwrap().device_id, Some(3), "the record is corrected");
}

/// Regression, found in review: a daemon that died between adding and recording a device left it until the
/// host restarted.
#[test]
fn unused_devices_of_ours_are_deleted_and_others_stay() {
    let host = &Host::new(&["x"]);
    let gone = id("gone");
    let [unused, served] = [1, 2].map(|epoch| host.dirs.tag(&gone, epoch));
    host.kernel.add_left(1, DeviceState::Dead, unused);
    host.kernel.add_left(3, DeviceState::Quiesced, served);
    host.daemon(|node| async move {
        until(|| host.device_of(unused).is_none()).await;
        assert_eq!(host.device_of(served).unwrap().state, DeviceState::Quiesced, "it may be mounted");
        // The number is free again.
        let attached = host.attach(&node, "x").await;
        assert_eq!(attached.device_path.to_str(), Some("/dev/ublkb1"));
        host.check(&node).await;
    });
}

/// Regression, found in review: the kernel hides unprivileged devices of other programs. One such device
/// blocked the deletion of unused devices, and the recovery of a volume whose device was gone.
#[test]
fn a_device_the_kernel_hides_is_skipped() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    host.kernel.remove_device(1);
    host.kernel.add_unprivileged(1);
    let unused = host.dirs.tag(&id("gone"), 1);
    host.kernel.add_left(5, DeviceState::Dead, unused);
    host.daemon(|node| async move {
        until(|| host.device_of(unused).is_none()).await;
        settled(&node, |_left| false).await;
        host.attach(&node, "x").await;
    });
    assert_eq!(host.kernel.violations(), Vec::<String>::new());
}

/// A record of another installation's device: the state directory was replaced, but the run directory stayed.
#[test]
fn the_record_of_another_installation_is_refused() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    fs::remove_file(host.dirs.state.path().join("installation")).unwrap();
    // The directories refer to each other, too, and the daemon would not start.
    fs::remove_file(host.dirs.state.path().join("run")).unwrap();
    fs::remove_file(host.dirs.run.path().join("owner")).unwrap();
    let before = host.kernel.devices();
    host.daemon(|node| async move {
        let message = only_volume(&node).message.unwrap();
        assert!(message.contains("another installation"), "{message}");
    });
    assert_eq!(host.kernel.devices(), before);
}

/// Regression, found in review: a detach was accepted while the attach was in progress. Both succeeded, and
/// the device was left without a server.
#[test]
fn a_detach_during_an_attach_is_refused() {
    let host = &Host::new(&["x"]);
    for command in ["add", "open", "start"] {
        host.daemon(|node| async move {
            host.kernel.hold(command, None);
            let attach = host.attach(&node, "x");
            let detach = async {
                until(|| node.0.volumes.present(&id("x")).is_ok()).await;
                let refused = node.detach(&id("x")).await.unwrap_err();
                assert_eq!(refused.kind(), FailureKind::Busy);
                assert_eq!(refused.to_string(), "volume x is being attached on this node");
                host.kernel.release();
            };
            futures::join!(attach, detach);
            host.check(&node).await;
            node.detach(&id("x")).await.unwrap();
            host.check(&node).await;
            assert!(node.list().is_empty() && host.kernel.devices().into_keys().eq([0, 2]));
        });
    }
}

/// The kernel deletes a device once the last program has closed it. Regression: the final commit of a detach
/// waited for that.
#[test]
fn an_open_device_does_not_delay_a_commit() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.change(1, |known| known.outlives_stop = true);
        let x = id("x");
        let status = async {
            until(|| node.list().iter().any(|status| status.message.is_some())).await;
            let log = holdfast_log::read_manifest(&*host.bucket.objects, &x).await.unwrap();
            assert!(!log.is_attached(), "the commit does not wait at all");
            only_volume(&node)
        };
        let detach = tokio::time::timeout(LIMIT, node.detach(&x));
        let (status, ended) = futures::join!(status, detach);
        assert_eq!(status.state, VolumeState::Detaching);
        let message = status.message.unwrap();
        assert!(message.contains("/dev/ublkb1 is stopped and still open by a process"), "{message}");
        ended.expect("the detach waits for the program").unwrap();
        assert!(node.list().is_empty());
        assert_eq!(host.kernel.devices()[&1].state, DeviceState::Dead);
        // It is attached again in the meantime, with another device.
        host.attach(&node, "x").await;
        host.check(&node).await;
        // The program closes it, and another program's device gets its number at once.
        host.kernel.remove_device(1);
        host.kernel.add_foreign(1, DeviceState::Quiesced, 77);
        tokio::time::sleep(2 * LOOK_EVERY).await;
        assert_eq!(host.kernel.violations(), Vec::<String>::new());
        assert_eq!(host.kernel.remove_device(1).info.tag, 77);
        host.detach_all(&node).await;
    });
}

/// The same for a daemon that takes over: it commits for a detach that the previous one started.
#[test]
fn an_open_device_delays_no_detach_after_a_restart() {
    let host = &Host::new(&["x"]);
    // add, open, start, stop, delete
    host.kernel.die(Some(Death::Before(4)));
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        node.detach(&id("x")).await.unwrap();
    });
    host.kernel.change(1, |known| known.outlives_stop = true);
    host.daemon(|node| async move {
        settled(&node, |_left| false).await;
        let log = holdfast_log::read_manifest(&*host.bucket.objects, &id("x")).await.unwrap();
        assert!(!log.is_attached());
        host.kernel.remove_device(1);
        assert_eq!(host.kernel.violations(), Vec::<String>::new());
    });
}

/// Regression, found in review: a volume left its ring while its queues were armed. The next volume got its
/// index there, and the completions of those queues.
#[test]
fn a_volume_with_open_queues_stays_on_its_ring() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        let present = node.0.volumes.present(&id("x")).unwrap();
        for _ in 0..2 {
            let refused = present.leave_ring().await.unwrap_err();
            assert!(matches!(refused, NodeError::StillArmed(_)), "{refused}");
        }
        host.attach(&node, "y").await;
        host.detach_all(&node).await;
        // Repeating it is a no-op.
        present.leave_ring().await.unwrap();
    });
}

/// Regression, found in review: a device whose recovery did not end prevented the whole node from serving.
#[test]
fn a_stalled_recovery_delays_no_other() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move { host_attaches(host, &node).await });
    host.kernel.hold("end_recovery", Some(1));
    host.daemon(|node| async move {
        until(|| state_of(&node, "y") == Some(VolumeState::Attached)).await;
        let message = || node.list()[0].message.clone().unwrap();
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Recovering));
        assert!(message().contains("its device is being recovered"), "{}", message());
        assert!(!message().contains("failed"), "nothing failed yet: {}", message());
        for refused in [node.attach(host.request("x")).await.map(drop), node.detach(&id("x")).await] {
            let refused = refused.unwrap_err();
            assert!(matches!(refused, NodeError::Recovering(_)), "{refused}");
        }
        // The kernel rejects the commands of the queues of x: the wait ends.
        node.0.volumes.present(&id("x")).unwrap().published.queue_refused(holdfast_ring::KernelErrno::EINVAL);
        until(|| message().contains("the kernel refused a queue command of device 1")).await;
        host.kernel.release();
    });
}

/// Found in review: a check of a volume during its detach cancelled the removal of its loop device.
#[test]
fn a_volume_is_not_served_while_it_is_detached() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.hold("stop_unused", Some(1));
        let detaching = node.clone();
        let detached = tokio::spawn(async move { detaching.detach(&id("x")).await });
        until(|| state_of(&node, "x") == Some(VolumeState::Detaching)).await;
        assert!(!node.check_served(&id("x")).await.unwrap());
        host.kernel.release();
        detached.await.unwrap().unwrap();
        host.detach_all(&node).await;
    });
}

/// Regression, found in review: a volume whose connection ended during its recovery stayed attached, and all
/// of its requests failed.
#[test]
fn a_connection_lost_during_recovery_is_reported_afterwards() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    host.kernel.hold("end_recovery", Some(1));
    host.daemon(|node| async move {
        until(|| node.0.volumes.present(&id("x")).is_ok()).await;
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Recovering));
        node.0.volumes.present(&id("x")).unwrap().published.device_ended();
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Recovering), "its recovery continues");
        host.kernel.release();
        until(|| state_of(&node, "x") == Some(VolumeState::Unserved)).await;
        node.detach(&id("x")).await.unwrap();
        host.detach_all(&node).await;
    });
}

/// Regression: Linux before 6.15 rejects a second START_USER_RECOVERY, so that no restart of the daemon
/// recovered a device; kernels without the fix of CVE-2024-46735 crash.
#[test]
fn a_recovery_is_begun_once_despite_later_failures() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    for refused in ["open", "end_recovery"] {
        host.kernel.refuse(&[refused]);
        host.daemon(|node| async move {
            let failed = || node.list()[0].message.as_ref().is_some_and(|message| message.contains(refused));
            until(failed).await;
            host.kernel.refuse(&[]);
            settled(&node, |status| status.state == VolumeState::Attached).await;
            host.check(&node).await;
        });
    }
}

/// Regression, found in review: a volume was added to its ring, and its uploads started, while the last
/// server's writes were still in flight.
#[test]
fn a_volume_joins_no_ring_before_its_last_server_ended() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    host.kernel.hold("start_recovery", None);
    host.daemon(|node| async move {
        assert!(matches!(node.0.volumes.present(&id("x")), Err(NodeError::Recovering(_))));
        host.kernel.release();
        settled(&node, |status| status.state == VolumeState::Attached).await;
        host.check(&node).await;
    });
}

/// Regression, found in review: the durable map was read while the last server's writes to it were in flight.
#[test]
fn a_late_write_of_the_last_server_is_seen() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    let local = &host.dirs.local_of(&id("x"));
    host.kernel.hold("start_recovery", None);
    host.daemon(|node| async move {
        let (generation, header) = local.read_header().unwrap().unwrap();
        let (files, live_map) = (local.open_files(SECTORS), live_map::open(&local.live_map_path(), SECTORS));
        let files = AttachFiles { files: files.unwrap(), live_map: live_map.unwrap() };
        local.write_header(&files, &header, generation + 7).await.unwrap();
        host.kernel.release();
        host.detach_all(&node).await;
        let (last, header) = local.read_header().unwrap().unwrap();
        assert!(last > generation + 7 && header.closed_clean, "{last}");
    });
}

/// Regression, found in review: kernels before 6.13 quiesce a device while disk writes of its dead server are
/// in flight. The volume was recovered, and such a write then overwrote a newer one.
#[test]
fn a_recovery_waits_for_the_rings_of_a_dead_daemon() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    let left = RingLocks::of_owner(&host.dirs.config().run_dir).lock().unwrap();
    host.daemon(|node| async move {
        let refused = node.0.rings.earlier().are_gone(Duration::from_millis(20)).await.unwrap_err();
        assert!(matches!(refused, NodeError::EarlierRing { .. }), "{refused}");
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Recovering));
        drop(left);
        settled(&node, |status| status.state == VolumeState::Attached).await;
        host.check(&node).await;
    });
}

#[test]
fn an_attach_that_fails_leaves_no_device() {
    let host = &Host::new(&["x"]);
    for refused in ["add", "open", "start"] {
        host.daemon(|node| async move {
            host.kernel.refuse(&[refused]);
            let failed = node.attach(host.request("x")).await.unwrap_err();
            assert!(matches!(failed, NodeError::Device(_)), "{failed}");
            assert!(node.list().is_empty() && host.kernel.devices().into_keys().eq([0, 2]));
            assert!(!host.dirs.local_of(&id("x")).live_map_path().exists());
            host.kernel.refuse(&[]);
            host.attach(&node, "x").await;
            host.detach_all(&node).await;
        });
    }
}

/// Regression, found in review: after a failed attach, an unremovable device was forgotten, with its record.
#[test]
fn a_device_that_cannot_be_removed_is_not_forgotten() {
    let host = &Host::new(&["x"]);
    for restarts in [false, true] {
        host.daemon(|node| async move {
            host.kernel.refuse(&["start", "stop", "stop_unused"]);
            node.attach(host.request("x")).await.unwrap_err();
            assert_eq!(node.list().len(), 1);
            let record = host.dirs.local_of(&id("x")).read_record().unwrap().unwrap();
            assert_eq!(record.device_id, Some(1));
            assert_eq!(host.device_of(record.tag).unwrap().id, 1);
            host.kernel.refuse(&[]);
            if !restarts {
                node.detach(&id("x")).await.unwrap();
                assert!(node.list().is_empty() && host.kernel.devices().into_keys().eq([0, 2]));
            }
        });
    }
    host.daemon(|node| async move { host.detach_all(&node).await });
}

/// A device in use is not detached, and keeps serving.
#[test]
fn a_device_in_use_is_not_detached() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.change(1, |known| known.is_used = true);
        let refused = node.detach(&id("x")).await.unwrap_err();
        let refused = refused.to_string();
        assert!(
            refused.starts_with("volume x is in use: /dev/ublkb1 is held by an unknown user"),
            "{refused}"
        );
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Attached));
        host.check(&node).await;
        assert!(!host.dirs.local_of(&id("x")).read_record().unwrap().unwrap().detaching);
        host.kernel.change(1, |known| known.is_used = false);
        host.detach_all(&node).await;
    });
}

/// The kernel never releases some devices of a dead server: an operator who reads "still held" looks for a
/// process that does not exist. The volume reports this, and nothing waits for the device.
#[test]
fn a_lost_device_is_named_and_left_alone() {
    let host = &Host::new(&["x", "y"]);
    host.daemon(|node| async move {
        host_attaches(host, &node).await;
        host.kernel.change(1, |known| known.loss = Some(Loss::ForGood));
    });
    let before = host.kernel.devices();
    host.daemon(|node| async move {
        until(|| state_of(&node, "y") == Some(VolumeState::Attached) && host.kernel.flushes() == 1).await;
        let message = node.list()[0].message.clone().unwrap();
        assert!(message.contains("the kernel has lost ublk device 1"), "{message}");
        assert!(message.contains("restart this host"), "{message}");
        assert_eq!(state_of(&node, "x"), Some(VolumeState::Quiesced));
        assert_eq!(host.kernel.devices()[&1], before[&1]);
        assert_eq!(host.kernel.violations(), Vec::<String>::new());
    });
}

/// One flush of the block device releases the kernel's wait if a request is pending.
#[test]
fn a_lost_device_that_a_flush_frees_is_recovered() {
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
        host.kernel.change(1, |known| known.loss = Some(Loss::UntilFlushed));
    });
    host.daemon(|node| async move {
        host.settle(&node).await;
        assert_eq!(host.kernel.flushes(), 1);
        host.detach_all(&node).await;
    });
}

/// A containerized node restarts with an empty run directory and the same boot id. Regression: its volumes
/// could not be attached again, and one with a damaged header prevented the daemon's start.
#[test]
fn volumes_of_an_emptied_run_directory_are_attached_again() {
    let host = Host::new(&["good", "bad"]);
    host.daemon(async |node| {
        for volume in ["good", "bad"] {
            host.attach(&node, volume).await;
        }
    });
    for entry in fs::read_dir(host.dirs.run.path()).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() { fs::remove_dir_all(path) } else { fs::remove_file(path) }.unwrap();
    }
    fs::write(host.dirs.local_of(&id("bad")).map_path(), vec![0xff; 64 << 10]).unwrap();
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    let refused = runtime.block_on(Owner::wait_with(host.dirs.config(), host.kernel.clone())).unwrap_err();
    assert!(matches!(&refused, NodeError::StateInUse { left, .. } if *left == [1, 3]), "{refused}");
    // The programs using them have ended, and an administrator deletes them.
    for device in [1, 3] {
        host.kernel.remove_device(device);
    }
    host.daemon(async |node| {
        host.attach(&node, "good").await;
        let damaged = node.attach(host.request("bad")).await.unwrap_err();
        assert!(matches!(damaged, NodeError::Damaged { .. }), "{damaged}");
        host.check(&node).await;
        host.detach_all(&node).await;
    });
}

/// Regression: while several volumes were attaching or recovering, log lines of a store or the kernel did not
/// name their volume.
#[test]
fn the_lines_of_an_operation_name_its_volume() {
    let log = tempfile::NamedTempFile::new().unwrap();
    let subscriber = tracing_subscriber::fmt()
        .with_writer(Arc::new(log.reopen().unwrap()))
        .with_ansi(false)
        .with_span_events(FmtSpan::CLOSE)
        .finish();
    let (_second, _installed) = (second_subscriber(), tracing::subscriber::set_default(subscriber));
    let host = &Host::new(&["x"]);
    host.daemon(|node| async move {
        host.attach(&node, "x").await;
    });
    host.daemon(|node| async move {
        host.settle(&node).await;
        let scrub = ScrubRequest { volume: id("x"), store: None, repair: false };
        node.scrubs().scrub(scrub, |_| {}).await.unwrap();
        host.detach_all(&node).await;
    });
    let lines = fs::read_to_string(log.path()).unwrap();
    for span in [
        "attach{volume=x epoch=1 device=1}: holdfast_node::node::volume::attach: the device serves",
        "recover{volume=x epoch=1 device=1}: ",
        "scrub{volume=x repair=false}: ",
        "detach{volume=x epoch=1 device=1}: ",
        "commit{volume=x seq=3}: ",
    ] {
        assert!(lines.contains(span), "{span} in {lines}");
    }
}
