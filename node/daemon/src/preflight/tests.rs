//! The verdict of each check on made-up facts, and the checks of this host.

use std::fs;
use std::io;
use std::path::Path;
use std::time::Duration;

use holdfast_ring::RingError;
use holdfast_s3::{ProbeFailure, Probed, S3Config, S3Credentials, S3Store, ServerClock};
use holdfast_ublk::{DriverCrash, Features, Transport, Unsupported};

use super::disk::DiskFacts;
use super::driver::{DriverFacts, Module};
use super::io_uring::RingFacts;
use super::memory::MemoryFacts;
use super::store::UnusableStore;
use super::*;
use crate::node::{CacheRoom, KeeperStart, NodeConfig, NodeError, StateDisk, TransportChoice};

/// Bits of `linux/ublk_cmd.h`: requirements of every device, the two transports, growth, no partition scan.
const REQUIRED: u64 = 1 << 3 | 1 << 4 | 1 << 6;
const ZERO_COPY: u64 = 1 | 1 << 11;
const USER_COPY: u64 = 1 << 7;
const UPDATE_SIZE: u64 = 1 << 10;
const NO_PARTITIONS: u64 = 1 << 18;
const ALL: u64 = REQUIRED | ZERO_COPY | USER_COPY | UPDATE_SIZE | NO_PARTITIONS;

/// Checks the verdict, and that its description and fix contain these words.
fn expect_verdict(check: &Check, verdict: &str, words: &[&str]) {
    assert_eq!(check.verdict.name(), verdict, "{check:?}");
    assert_eq!(check.verdict.fix().is_some(), verdict != "PASS", "{check:?}");
    let text = format!("{}. Fix: {}", check.found, check.verdict.fix().unwrap_or_default());
    assert!(!check.found.ends_with('.'), "{text}");
    for word in words {
        assert!(text.contains(word), "{word:?} is not in {text:?}");
    }
}

fn errno(code: i32) -> io::Error {
    io::Error::from_raw_os_error(code)
}

#[test]
fn a_kernel_is_checked_for_its_known_faults() {
    for (release, verdict, words) in [
        ("7.3.4+deb13-cloud-amd64", "PASS", &["7.3.4"][..]),
        ("6.18.4", "FAIL", &["can crash", "refuses to serve", "boot Linux 7.1"]),
        ("6.17.0-1014-azure", "FAIL", &["boot Linux 7.1"]),
        (
            "6.8.0-48-generic",
            "FAIL",
            &["while it recovers a ublk device", "CVE-2024-46735", "boot Linux 7.1"],
        ),
        ("6.8.0-1015-raspi", "WARN", &["CVE-2024-46735", "6.8.0-50 or newer"]),
        ("6.12.117+deb13-cloud-amd64", "WARN", &["teardown of a ublk server", "boot Linux 7.1"]),
        ("6.18.44", "WARN", &["teardown of a ublk server", "boot Linux 7.1"]),
        ("custom", "WARN", &["names no version", "docs/kernels.md"]),
    ] {
        expect_verdict(&kernel::check(Ok(&KernelRelease::new(release))), verdict, words);
    }
    expect_verdict(&kernel::check(Err(&errno(libc::ENOENT))), "FAIL", &["osrelease", "mount /proc"]);
}

#[test]
fn a_pid_namespace_is_refused_on_kernels_that_compare_pids() {
    let check =
        |release, is_of_host| kernel::check_pid_namespace(Some(&KernelRelease::new(release)), is_of_host);
    expect_verdict(&check("6.17.13", true), "PASS", &[]);
    expect_verdict(&check("6.17.13", false), "FAIL", &["6.17.13", "EINVAL", "hostPID: true"]);
    expect_verdict(&check("6.18.44", false), "WARN", &["shutdown of the host", "hostPID: true"]);
    expect_verdict(&check("7.3.4", false), "WARN", &["shutdown of the host", "hostPID: true"]);
    expect_verdict(&kernel::check_pid_namespace(None, false), "WARN", &["hostPID: true"]);
}

/// Regression, found in review: kernels before 6.15 refuse the 65th ublk device of a host with `EACCES`.
#[test]
fn a_limit_of_devices_that_cannot_be_raised_is_reported() {
    let check = |devices, can_be_raised| {
        kernel::check_device_limit(Some(DeviceLimit { devices, can_be_raised })).unwrap()
    };
    expect_verdict(&check(64, true), "PASS", &["64 devices", "raises"]);
    expect_verdict(&check(64, false), "WARN", &["64 devices", "ublks_max cannot be written", "6.15"]);
    expect_verdict(&check(DeviceLimit::RAISED, false), "PASS", &[]);
    assert_eq!(kernel::check_device_limit(None), None);
}

#[test]
fn a_refused_ring_is_reported_with_its_cause() {
    let facts =
        |made, disabled, is_filtered| RingFacts { made, disabled, is_filtered, open_files: Ok(1 << 20) };
    expect_verdict(&io_uring::check(&facts(Ok(()), Some(0), false)), "PASS", &["1048576"]);
    let setup = |code| Err(RingError::Setup(errno(code)));
    let table = |code| Err(RingError::RegisterTable { what: "files", entries: 8192, source: errno(code) });
    for (made, disabled, is_filtered, word) in [
        (setup(libc::EPERM), Some(2), true, "`sysctl kernel.io_uring_disabled=0`, and"),
        (setup(libc::EPERM), Some(1), false, "CAP_SYS_ADMIN"),
        (setup(libc::EPERM), Some(0), true, "seccomp"),
        (setup(libc::ENOSYS), None, true, "seccomp"),
        (Err(RingError::Enter(errno(libc::EPERM))), Some(0), true, "seccomp"),
        (setup(libc::EACCES), Some(0), false, "security module"),
        (setup(libc::ENOSYS), None, false, "CONFIG_IO_URING"),
        (setup(libc::EINVAL), None, false, "boot Linux"),
        (table(libc::EMFILE), Some(0), false, "8192 at least (LimitNOFILE="),
        (setup(libc::ENOMEM), Some(0), false, "LimitMEMLOCK=infinity"),
    ] {
        expect_verdict(&io_uring::check(&facts(made, disabled, is_filtered)), "FAIL", &[word]);
    }
}

#[test]
fn a_missing_driver_is_reported_with_the_fix() {
    let release = || KernelRelease::new("6.4.1");
    let facts = |refused, module, has_ring| DriverFacts {
        probed: Err(refused),
        fuse: Some(Err(Unsupported::NoDriver)),
        module,
        has_ring,
        panics_on_warning: false,
    };
    for (refused, module, has_ring, words) in [
        (
            Unsupported::NoDriver,
            Module::Loadable,
            true,
            &["/dev/ublk-control", "`modprobe ublk_drv`, and"][..],
        ),
        (Unsupported::NoDriver, Module::Absent, true, &["linux-modules-extra", "CONFIG_BLK_DEV_UBLK"]),
        (Unsupported::NoDriver, Module::Unknown, true, &["`modprobe ublk_drv` (Linux"]),
        (Unsupported::NoDriver, Module::Loaded, true, &["mount the host's /dev"]),
        (
            Unsupported::NoAccess(errno(libc::EACCES)),
            Module::Loaded,
            true,
            &["Permission denied", "privileged", "SELinux", "io_uring { cmd }"],
        ),
        (Unsupported::NoFeatures { release: release() }, Module::Loaded, true, &["6.4.1", "boot Linux 6.12"]),
        (Unsupported::NoFeatures { release: release() }, Module::Loaded, false, &["permit io_uring first"]),
        (Unsupported::NoAccess(errno(libc::EPERM)), Module::Loaded, false, &["permit io_uring first"]),
        (
            Unsupported::BrokenKernel { release: release(), crash: DriverCrash::OnAdd },
            Module::Loaded,
            true,
            &["boot Linux 7.1"],
        ),
        (
            Features::of(release(), 0).unwrap_err(),
            Module::Loaded,
            true,
            &["USER_RECOVERY", "boot Linux 6.12"],
        ),
    ] {
        let checks = driver::check(&facts(refused, module, has_ring), TransportChoice::Auto);
        assert_eq!(checks.len(), 1, "{checks:?}");
        expect_verdict(&checks[0], "FAIL", words);
    }
}

/// Regression: a node without the driver was rejected although FUSE could serve its volumes.
#[test]
fn without_the_driver_fuse_serves_with_a_warning() {
    let facts = |fuse| DriverFacts {
        probed: Err(Unsupported::NoDriver),
        fuse: Some(fuse),
        module: Module::Absent,
        has_ring: true,
        panics_on_warning: true,
    };
    let checks = driver::check(&facts(Ok(())), TransportChoice::Auto);
    assert_eq!(checks.len(), 2, "{checks:?}");
    expect_verdict(&checks[0], "WARN", &["/dev/ublk-control", "CONFIG_BLK_DEV_UBLK"]);
    expect_verdict(&checks[1], "WARN", &["fuse", "copied twice"]);
    let only = TransportChoice::Only(Transport::Fuse);
    expect_verdict(&driver::check(&facts(Ok(())), only)[0], "PASS", &["as data.transport requests"]);
    let release = KernelRelease::new("6.1.0");
    let without = || Err(Unsupported::NoKeeper { socket: "/run/keeper.sock".into(), found: "none serves" });
    for (choice, at) in [(TransportChoice::Auto, 1), (only, 0)] {
        let checks = driver::check(&facts(without()), choice);
        assert_eq!(checks.len(), at + 1);
        expect_verdict(
            &checks[at],
            "WARN",
            &["/run/keeper.sock, and none serves", "node.withoutUblk.enabled"],
        );
    }
    let refused = Unsupported::NoFuse { release, lack: "boot Linux 6.9 or newer" };
    expect_verdict(&driver::check(&facts(Err(refused)), only)[0], "FAIL", &["6.1.0", "6.9", "auto"]);
    let limited =
        Unsupported::NoFuse { release: KernelRelease::new("6.18.0"), lack: "set the sysctl x to 0" };
    expect_verdict(
        &driver::check(&facts(Err(limited)), TransportChoice::Auto)[0],
        "FAIL",
        &["set the sysctl x to 0"],
    );
    let forbidden = Err(Unsupported::NoAccess(errno(libc::EACCES)));
    let facts_of_pod = DriverFacts { probed: forbidden, ..facts(Ok(())) };
    let checks = driver::check(&facts_of_pod, TransportChoice::Auto);
    assert_eq!(checks.len(), 1, "the driver may be there: {checks:?}");
    expect_verdict(&checks[0], "FAIL", &["Permission denied"]);
    let ublk = TransportChoice::Only(Transport::UserCopy);
    let observed = DriverFacts::observe(None, true, &NodeConfig { transport: ublk, ..node() });
    assert!(observed.fuse.is_none(), "nothing of FUSE is opened");
    expect_verdict(&driver::check(&facts(Ok(())), ublk)[0], "FAIL", &["/dev/ublk-control"]);
}

#[test]
fn features_decide_growth_partitions_and_the_transport() {
    let check = |bits, choice| {
        let probed = Features::of(KernelRelease::new("7.0.0"), bits);
        let fuse = Some(Err(Unsupported::NoDriver));
        let facts =
            DriverFacts { probed, fuse, module: Module::Loaded, has_ring: true, panics_on_warning: false };
        <[Check; 3]>::try_from(driver::check(&facts, choice)).unwrap()
    };
    let auto = |bits| check(bits, TransportChoice::Auto);
    let [driver, features, transport] = auto(ALL);
    expect_verdict(&driver, "PASS", &["/dev/ublk-control", "NO_AUTO_PART_SCAN"]);
    expect_verdict(&features, "PASS", &[]);
    expect_verdict(&transport, "PASS", &["zero-copy"]);
    let [_, features, _] = auto(ALL & !UPDATE_SIZE);
    expect_verdict(&features, "WARN", &["grows at its next attach", "boot Linux 6.16"]);
    let [_, features, transport] = auto(REQUIRED | USER_COPY);
    expect_verdict(
        &features,
        "WARN",
        &["UPDATE_SIZE", "NO_AUTO_PART_SCAN", "devices for its partitions", "boot Linux 7.0"],
    );
    expect_verdict(&transport, "WARN", &["user-copy", "lacks SUPPORT_ZERO_COPY", "boot Linux 6.16"]);
    let [_, _, transport] = auto(REQUIRED);
    expect_verdict(&transport, "FAIL", &["lacks USER_COPY", "boot Linux 6.12"]);
    let only = |bits, transport| check(bits, TransportChoice::Only(transport))[2].clone();
    expect_verdict(&only(ALL, Transport::UserCopy), "PASS", &["as data.transport requests"]);
    let lacks = "or set data.transport = \"auto\"";
    expect_verdict(
        &only(REQUIRED | USER_COPY, Transport::ZeroCopy),
        "FAIL",
        &["SUPPORT_ZERO_COPY", "6.16", lacks],
    );
    expect_verdict(&only(REQUIRED | ZERO_COPY, Transport::UserCopy), "FAIL", &["USER_COPY", "6.12", lacks]);
}

/// Regression, found in review: a kernel whose harmless warning about zero copy stops the host passed.
#[test]
fn zero_copy_with_panic_on_warn_is_reported() {
    let transport = |bits, choice| {
        let facts = DriverFacts {
            probed: Features::of(KernelRelease::new("7.3.4"), bits),
            fuse: None,
            module: Module::Loaded,
            has_ring: true,
            panics_on_warning: true,
        };
        driver::check(&facts, choice).pop().unwrap()
    };
    for choice in [TransportChoice::Auto, TransportChoice::Only(Transport::ZeroCopy)] {
        let words = ["kernel.panic_on_warn", "UBSAN", "data.transport = \"user-copy\""];
        expect_verdict(&transport(ALL, choice), "WARN", &words);
    }
    expect_verdict(&transport(ALL, TransportChoice::Only(Transport::UserCopy)), "PASS", &["user-copy"]);
    expect_verdict(
        &transport(REQUIRED | ZERO_COPY, TransportChoice::Only(Transport::UserCopy)),
        "FAIL",
        &["USER_COPY"],
    );
}

#[test]
fn memory_is_compared_with_what_the_daemon_may_use() {
    let facts = |limit, available| MemoryFacts {
        needed: 512 << 20,
        limit,
        total: Some(4 << 30),
        available: Some(available),
    };
    expect_verdict(&memory::check(&facts(None, 1 << 30)), "PASS", &["512Mi of 1Gi"]);
    expect_verdict(
        &memory::check(&facts(Some(256 << 20), 1 << 30)),
        "FAIL",
        &["its limit is 256Mi", "data.upload_memory"],
    );
    let small = MemoryFacts { total: Some(256 << 20), ..facts(None, 0) };
    expect_verdict(&memory::check(&small), "FAIL", &["its limit is 256Mi"]);
    expect_verdict(
        &memory::check(&facts(Some(1 << 30), 100 << 20)),
        "WARN",
        &["100Mi are available", "data.upload_memory"],
    );
    let unknown = MemoryFacts { needed: 512 << 20, limit: None, total: None, available: None };
    expect_verdict(&memory::check(&unknown), "PASS", &["512Mi"]);
    expect_verdict(&memory::check_io_flusher(Ok(())), "PASS", &[]);
    expect_verdict(&memory::check_io_flusher(Err(errno(libc::EPERM))), "WARN", &["CAP_SYS_RESOURCE"]);
}

#[test]
fn a_state_directory_is_local_and_persistent() {
    let check = |file_system: Result<i64, io::Error>| {
        directories::check_state(Path::new("/state"), file_system.as_ref())
    };
    expect_verdict(&check(Ok(0xef53)), "PASS", &["/state is on ext4"]);
    expect_verdict(&check(Ok(0x1234)), "PASS", &["type 0x1234"]);
    expect_verdict(&check(Ok(0x0102_1994)), "FAIL", &["tmpfs", "lost with it", "node.state_dir"]);
    expect_verdict(&check(Ok(0x794c_7630)), "FAIL", &["overlay", "the container", "node.state_dir"]);
    expect_verdict(&check(Ok(0x6969)), "FAIL", &["nfs", "not a local file system", "node.state_dir"]);
    expect_verdict(&check(Err(errno(libc::EACCES))), "FAIL", &["Permission denied", "run as root"]);
    expect_verdict(&check(Err(errno(libc::ENOSPC))), "FAIL", &["No space left", "free space"]);
    expect_verdict(&check(Err(errno(libc::EROFS))), "FAIL", &["Read-only file system", "node.state_dir"]);
}

#[test]
fn each_operation_of_the_disk_can_fail() {
    let good =
        || DiskFacts { is_direct: true, sector: Ok(()), sync: Ok(Duration::from_millis(2)), hole: Ok(()) };
    for check in disk::check(&good()) {
        expect_verdict(&check, "PASS", &[]);
    }
    let [direct, ..] = disk::check(&DiskFacts { is_direct: false, ..good() });
    expect_verdict(&direct, "WARN", &["may return older data", "ext4 or xfs"]);
    let [direct, ..] = disk::check(&DiskFacts { sector: Err(errno(libc::EINVAL)), ..good() });
    expect_verdict(&direct, "FAIL", &["4096 bytes", "Invalid argument", "ext4 or xfs"]);
    let [_, sync, _] = disk::check(&DiskFacts { sync: Err(errno(libc::EIO)), ..good() });
    expect_verdict(&sync, "FAIL", &["would not be durable", "another one"]);
    let [_, _, hole] = disk::check(&DiskFacts { hole: Err(errno(libc::EOPNOTSUPP)), ..good() });
    expect_verdict(&hole, "FAIL", &["discard or evict", "ext4 or xfs"]);

    let sectors = |physical_block_bytes| {
        disk::check_sectors(Some(&StateDisk { device: "sda".to_owned(), physical_block_bytes }))
    };
    expect_verdict(&sectors(4096), "PASS", &["sda"]);
    expect_verdict(&sectors(512), "WARN", &["A power cut may mix", "blocks of 4096 bytes"]);
    expect_verdict(&disk::check_sectors(None), "WARN", &["no block device", "ext4 or xfs"]);
}

fn node() -> NodeConfig {
    NodeConfig {
        node_name: "a".to_owned(),
        state_dir: "/state".into(),
        run_dir: "/run/holdfast".into(),
        ring_threads: 1,
        transport: TransportChoice::Auto,
        keeper: KeeperStart::ByDaemon,
        slab_bytes: 16 << 20,
        cache_bytes: None,
        seal_bytes: 64 << 20,
        max_dirty_bytes: 128 << 20,
        upload_memory_bytes: 64 << 20,
        max_dirty_age: Duration::from_secs(30),
        memory_volumes_bytes: 0,
        memory_spill_bytes: 0,
    }
}

#[test]
fn the_cache_has_room_for_two_seals() {
    let room = |quota_bytes: u64| CacheRoom { free_bytes: 10 << 30, quota_bytes };
    let auto = |quota| disk::check_room(room(quota), &node());
    expect_verdict(
        &auto(9 << 30),
        "PASS",
        &["10Gi are free", "16Mi for data.slab_size", "9Gi for the cache"],
    );
    expect_verdict(&auto(127 << 20), "FAIL", &["twice data.seal_size (128Mi)", "a larger disk"]);
    let wanted = NodeConfig { cache_bytes: Some(20 << 30), ..node() };
    expect_verdict(
        &disk::check_room(room(9 << 30), &wanted),
        "WARN",
        &["less than data.cache_size (20Gi)", "data.cache_size"],
    );
    expect_verdict(&disk::check_room(room(20 << 30), &wanted), "PASS", &[]);
}

#[test]
fn a_run_directory_is_a_tmpfs_of_its_own() {
    let dir = Path::new("/run/holdfast");
    let check = |fit, written: Result<(), io::Error>| {
        directories::check_run(dir, fit, written.as_ref(), Some(1 << 30))
    };
    expect_verdict(&check(Ok(()), Ok(())), "PASS", &["1Gi free"]);
    expect_verdict(
        &check(Err(NodeError::RunDir(dir.into())), Ok(())),
        "FAIL",
        &["not on a tmpfs", "below /run"],
    );
    expect_verdict(
        &check(Err(NodeError::SameDir(dir.into())), Ok(())),
        "FAIL",
        &["node.state_dir too", "two different"],
    );
    expect_verdict(&check(Ok(()), Err(errno(libc::ENOSPC))), "FAIL", &["No space left", "free space"]);
}

#[test]
fn another_daemon_is_reported_and_is_no_failure() {
    expect_verdict(&check_daemon(Ok(false)), "PASS", &["none"]);
    expect_verdict(&check_daemon(Ok(true)), "PASS", &["serves this node"]);
    expect_verdict(&check_daemon(Err(errno(libc::EACCES))), "PASS", &["Permission denied"]);
    let state = tempfile::tempdir().unwrap();
    assert!(!is_held(state.path()).unwrap(), "there is no lock");
    let lock = fs::File::create(state.path().join("lock")).unwrap();
    assert!(!is_held(state.path()).unwrap(), "no process holds it");
    lock.lock().unwrap();
    assert!(is_held(state.path()).unwrap());
}

#[test]
fn a_store_fault_is_reported_with_field_and_fix() {
    let verdict = |probed| store::verdict("main", "volumes", probed);
    let clock = |clock| verdict(Ok(Probed { clock }));
    expect_verdict(&clock(ServerClock::Agrees), "PASS", &["bucket volumes"]);
    expect_verdict(&clock(ServerClock::Unknown), "PASS", &[]);
    expect_verdict(&clock(ServerClock::Behind(Duration::from_secs(59))), "PASS", &[]);
    let hour = Duration::from_secs(3600);
    expect_verdict(
        &clock(ServerClock::Behind(hour)),
        "WARN",
        &["1h behind this host's", "synchronize the clock"],
    );
    expect_verdict(
        &clock(ServerClock::Ahead(hour)),
        "WARN",
        &["1h ahead of this host's", "synchronize the clock"],
    );
    let ignored = verdict(Err(ProbeFailure::CreateOnceIgnored.into()));
    expect_verdict(&ignored, "FAIL", &["ignores it", "use a server with conditional writes"]);
    assert_eq!(
        (ignored.name.as_str(), ignored.verdict.fix()),
        ("store main", Some("use a server with conditional writes"))
    );
    let bucket = ProbeFailure::NoBucket { bucket: "volumes".to_owned() };
    expect_verdict(&verdict(Err(bucket.into())), "FAIL", &["bucket: volumes does not exist", "create it"]);
}

#[tokio::test]
async fn a_store_that_cannot_be_reached_or_read_is_named() {
    let credentials = S3Credentials::Static {
        access_key_id: "id".to_owned(),
        secret_access_key: "secret".to_owned(),
        session_token: None,
    };
    let free = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let config = S3Config {
        endpoint: Some(format!("http://{free}")),
        path_style: true,
        ..S3Config::new("volumes", "us-east-1", credentials)
    };
    let check = store::check("main", &config).await;
    expect_verdict(&check, "FAIL", &["endpoint: the server cannot be reached (", "check the address"]);
    let invalid = S3Config { bucket: "NO".to_owned(), ..config };
    let unfit: UnusableStore = S3Store::connect(invalid).await.unwrap_err().into();
    expect_verdict(
        &store::verdict("main", "NO", Err(unfit)),
        "FAIL",
        &["bucket: \"NO\" is not valid", "3 to 63"],
    );
}

/// Returns everything below a directory, with its size.
fn tree(dir: &Path) -> Vec<(std::path::PathBuf, u64)> {
    let mut found = Vec::new();
    for entry in fs::read_dir(dir).unwrap().map(Result::unwrap) {
        let metadata = entry.metadata().unwrap();
        found.push((entry.path(), metadata.len()));
        if metadata.is_dir() {
            found.extend(tree(&entry.path()));
        }
    }
    found.sort();
    found
}

/// Most test hosts do not meet the requirements of a standalone daemon with this configuration: the verdicts
/// depend on the host, but each check has one.
#[tokio::test]
async fn all_checks_are_reported_and_leave_nothing() {
    let (state, run) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
    fs::write(state.path().join("other"), "file").unwrap();
    let config = Config {
        node: NodeConfig {
            state_dir: state.path().join("deep/state"),
            run_dir: run.path().join("holdfast"),
            ..node()
        },
        socket: run.path().join("node.sock"),
        metrics: None,
        control: Control::Kubernetes,
    };
    let before = [tree(state.path()), tree(run.path())];
    let mut text = Vec::new();
    super::run(&config, &mut |check| text.push(check)).await;
    assert_eq!([tree(state.path()), tree(run.path())], before);
    let names: Vec<&str> = text.iter().map(|check| check.name.as_str()).collect();
    for name in
        ["kernel", "PID namespace", "io_uring", "ublk driver", "memory", "memory reclaim", "other daemon"]
    {
        assert_eq!(names.iter().filter(|text| **text == name).count(), 1, "{name}: {names:?}");
    }
    assert!(names.contains(&"state directory") && names.contains(&"run directory"), "{names:?}");
    assert_eq!(names.last(), Some(&"stores"));
    for check in &text {
        expect_verdict(check, check.verdict.name(), &[]);
    }
}
