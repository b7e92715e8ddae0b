//! Real devices on a real kernel. These tests need root and a kernel with ublk_drv, so they run in the test
//! VM: `cargo test -p holdfast-ublk --test device -- --ignored`.
#![allow(clippy::unwrap_used)] // a test may fail loudly

#[path = "../../examples/loopback/ring_thread.rs"]
mod ring_thread;

use std::fs::{File, OpenOptions};
use std::io::{BufRead, BufReader, IoSlice, IoSliceMut, Read, Seek, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::PathBuf;
use std::process::{Child as Process, Command, Stdio};
use std::sync::{Barrier, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use holdfast_ublk::{
    ControlError, Device, DeviceSpec, DeviceState, Expected, Features, SECTOR_BYTES, Transport,
};
use ring_thread::Worker;

const SECTORS: u64 = 4096;
const TAG: u64 = 0xfeed_0123_4567_89ab;
const OURS: Expected = Expected { tag: TAG, sectors: SECTORS };
const SOON: Duration = Duration::from_secs(60);
/// Indices into a block device's statistics.
const READS: usize = 0;
const WRITES: usize = 4;
const IN_FLIGHT: usize = 8;
const FLUSHES: usize = 15;

fn features() -> Features {
    Features::probe().unwrap()
}

/// Returns the transports of this kernel's driver.
fn transports() -> impl Iterator<Item = Transport> {
    let features = features();
    let ublk = Transport::ALL.into_iter().filter(|transport| *transport != Transport::Fuse);
    ublk.filter(move |transport| features.check(*transport).is_ok())
}

fn spec(transport: Transport) -> DeviceSpec {
    DeviceSpec {
        id: None,
        sectors: SECTORS,
        queues: 1,
        depth: 16,
        max_io_bytes: 256 << 10,
        max_zero_bytes: 4 << 20,
        transport,
        tag: TAG,
    }
}

/// A served device with its backing file; both are deleted when the test ends, even if it fails.
struct Fixture {
    device: Device,
    backing: File,
    worker: Option<Worker>,
}

impl Fixture {
    fn add(transport: Transport) -> Self {
        let backing = tempfile::tempfile().unwrap();
        backing.set_len(SECTORS * SECTOR_BYTES).unwrap();
        Self { device: Device::add(&features(), &spec(transport)).unwrap(), backing, worker: None }
    }

    fn started(transport: Transport) -> Self {
        let mut fixture = Self::add(transport);
        fixture.serve();
        fixture.device.start().unwrap();
        fixture.device.tune().unwrap();
        fixture
    }

    fn serve(&mut self) {
        let worker = Worker::spawn(64 << 10).unwrap();
        worker.serve(0, &self.device, self.backing.try_clone().unwrap()).unwrap();
        self.worker = Some(worker);
    }

    /// Stops the server as SIGTERM would.
    fn leave(&mut self) {
        self.worker.take().unwrap().leave().unwrap();
    }

    fn recover(&mut self) {
        self.device.start_recovery(SOON).unwrap();
        self.serve();
        self.device.end_recovery().unwrap();
    }

    fn open_block(&self) -> File {
        OpenOptions::new().read(true).write(true).open(self.device.block_path()).unwrap()
    }

    fn attribute(&self, name: &str) -> String {
        let path = PathBuf::from(format!("/sys/block/ublkb{}", self.device.id())).join(name);
        std::fs::read_to_string(path).unwrap().trim().to_owned()
    }

    /// Reads the device's statistics once no request is in flight: the kernel wakes the program before it
    /// counts a request as completed. Source: Documentation/block/stat.rst.
    fn counts(&self) -> Vec<u64> {
        let ends = Instant::now() + SOON;
        loop {
            let stat = self.attribute("stat");
            let counts: Vec<u64> = stat.split_whitespace().map(|count| count.parse().unwrap()).collect();
            if counts[IN_FLIGHT] == 0 {
                return counts;
            }
            assert!(Instant::now() < ends, "a request stays in flight: {stat}");
            thread::yield_now();
        }
    }
}

impl Drop for Fixture {
    fn drop(&mut self) {
        if let Some(worker) = self.worker.take() {
            drop(self.device.stop().map_err(anyhow::Error::from).and_then(|()| worker.close(0)));
            drop(worker.leave());
        }
        drop(self.device.stop());
        drop(self.device.delete());
    }
}

fn pattern(seed: u8, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at / 512) as u8 ^ seed).collect()
}

#[test]
#[ignore = "needs ublk_drv"]
fn data_reads_back_from_its_place_with_every_transport() {
    for transport in transports() {
        let fixture = Fixture::started(transport);
        let block = fixture.open_block();
        let data = pattern(7, 900 << 10);
        block.write_all_at(&data, 3 * SECTOR_BYTES).unwrap();
        block.sync_all().unwrap();
        let mut stored = vec![0; data.len()];
        fixture.backing.read_exact_at(&mut stored, 3 * SECTOR_BYTES).unwrap();
        assert!(stored == data, "{transport}: the file holds what was written");

        let put = pattern(9, 600 << 10);
        fixture.backing.write_all_at(&put, 8 << 20).unwrap();
        let mut read = vec![0; put.len()];
        block.read_exact_at(&mut read, 8 << 20).unwrap();
        assert!(read == put, "{transport}: the device shows what the file holds");
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_announces_what_it_is() {
    let fixture = Fixture::started(Transport::UserCopy);
    // Kernels without zero copy do not know the parameter.
    let alignment = if features().check(Transport::ZeroCopy).is_ok() { "4095" } else { "3" };
    let expected = [
        ("size", "32768"),
        ("queue/logical_block_size", "4096"),
        ("queue/physical_block_size", "4096"),
        ("queue/write_cache", "write back"),
        ("queue/fua", "1"),
        ("queue/dma_alignment", alignment),
        ("queue/discard_granularity", "4096"),
        ("queue/discard_max_bytes", "4194304"),
        ("queue/write_zeroes_max_bytes", "4194304"),
        ("queue/max_sectors_kb", "256"),
    ];
    for (name, value) in expected {
        assert_eq!(fixture.attribute(name), value, "{name}");
    }
    assert!(["none", "[none]"].contains(&fixture.attribute("queue/scheduler").split(' ').next().unwrap()));
    let info = fixture.device.info().unwrap();
    assert_eq!((info.state, info.transport), (DeviceState::Live, Some(Transport::UserCopy)));
    assert_eq!((info.queues, info.depth, info.max_io_bytes), (1, 16, 256 << 10));
    assert_eq!((info.tag, info.foreign.is_empty()), (TAG, true));
    assert!(Device::list().unwrap().contains(&fixture.device.id()));
    assert_eq!(Device::find(fixture.device.id(), &OURS).unwrap(), fixture.device);
}

/// Memory at an address that the disk below a data file may refuse never reaches it: the block layer refuses
/// it, as `statx` announces.
#[test]
#[ignore = "needs ublk_drv"]
fn misaligned_memory_is_refused_before_the_server_sees_it() {
    for transport in transports() {
        let fixture = Fixture::started(transport);
        let direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(fixture.device.block_path())
            .unwrap();
        let mut memory = vec![3; 3 * 4096];
        let aligned = memory.as_ptr().align_offset(4096);
        let refused = direct.write_at(&memory[aligned + 512..][..4096], 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{transport}");
        let refused = direct.read_at(&mut memory[aligned + 512..][..4096], 0).unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{transport}");
        assert_eq!(direct.write_at(&memory[aligned..][..4096], 0).unwrap(), 4096, "{transport}");
        let counts = fixture.counts();
        assert_eq!(counts[WRITES], 1, "{transport}: writes in {counts:?}");
    }
}

/// A request whose memory is aligned at its start and not in the middle, as a vector of pieces can be. With
/// zero copy the disk below would refuse it, and the program would see an error of an intact disk. The kernel
/// refuses it before the server sees it.
#[test]
#[ignore = "needs ublk_drv"]
fn memory_that_is_misaligned_in_the_middle_is_refused_too() {
    for transport in transports() {
        let fixture = Fixture::started(transport);
        let mut direct = OpenOptions::new()
            .read(true)
            .write(true)
            .custom_flags(libc::O_DIRECT)
            .open(fixture.device.block_path())
            .unwrap();
        let mut memory = vec![3; 9 * 4096];
        let aligned = memory.as_ptr().align_offset(4096);
        let memory = &mut memory[aligned..][..8 * 4096];
        // Offset and length of each piece, in bytes.
        let refused: [&[(usize, usize)]; 7] = [
            &[(4, 4096)],
            &[(2048, 2048), (4096, 2048)],
            &[(0, 4096), (8192, 512), (12800, 3584)],
            &[(0, 4096), (8192 + 512, 4096)],
            &[(0, 4096), (8192, 4092), (16384, 4)],
            &[(0, 2048), (4096 + 2048, 2048)],
            &[(0, 3584), (3584, 512)],
        ];
        for pieces in refused {
            for outcome in
                [moved(&mut direct, memory, pieces, true), moved(&mut direct, memory, pieces, false)]
            {
                let refused = outcome.expect_err("the disk below may refuse it");
                assert_eq!(refused.raw_os_error(), Some(libc::EINVAL), "{transport}: {pieces:?}");
            }
        }
        let counts = fixture.counts();
        assert_eq!(counts[WRITES], 0, "{transport}: writes in {counts:?}");
        let scattered: &[(usize, usize)] = &[(4096, 4096), (0, 4096), (16384, 8192)];
        for is_write in [true, false] {
            assert_eq!(moved(&mut direct, memory, scattered, is_write).unwrap(), 16384, "{transport}");
        }
    }
}

/// Moves pieces of memory to or from the start of a device with one call. Returns the number of bytes.
fn moved(
    device: &mut File,
    memory: &mut [u8],
    pieces: &[(usize, usize)],
    is_write: bool,
) -> std::io::Result<usize> {
    device.rewind()?;
    if is_write {
        let slices: Vec<_> = pieces.iter().map(|&(at, len)| IoSlice::new(&memory[at..][..len])).collect();
        return device.write_vectored(&slices);
    }
    // In the order of their addresses: the kernel does not depend on the order.
    let mut sorted = pieces.to_vec();
    sorted.sort_unstable();
    let (mut rest, mut from, mut slices) = (memory, 0, Vec::new());
    for (at, len) in sorted {
        let (piece, after) = rest.split_at_mut(at - from).1.split_at_mut(len);
        slices.push(IoSliceMut::new(piece));
        (rest, from) = (after, at + len);
    }
    device.read_vectored(&mut slices)
}

/// Regression: the program got EIO if the kernel could not register the pages of a request (no memory, an
/// index in use).
#[test]
#[ignore = "needs ublk_drv"]
fn requests_whose_pages_are_not_registered_are_copied() {
    let fixture = Fixture::started(Transport::ZeroCopy);
    fixture.worker.as_ref().unwrap().occupy(16).unwrap();
    let block = fixture.open_block();
    let data = pattern(1, 4 << 20);
    block.write_all_at(&data, 0).unwrap();
    block.sync_all().unwrap();
    let mut stored = vec![0; data.len()];
    fixture.backing.read_exact_at(&mut stored, 0).unwrap();
    assert!(stored == data, "the file holds what was written");

    let put = pattern(2, 4 << 20);
    fixture.backing.write_all_at(&put, 8 << 20).unwrap();
    let mut read = vec![0; put.len()];
    block.read_exact_at(&mut read, 8 << 20).unwrap();
    assert!(read == put, "the device shows what the file holds");
}

/// Regression: each device had its own of a ring's 16,384 buffers: 128 requests each for 128 devices.
#[test]
#[ignore = "needs ublk_drv"]
fn devices_that_share_buffers_keep_their_data() {
    const ROUNDS: u8 = 8;
    /// Nothing forces two requests with the same tag to meet: a quiet machine once had none in 8 rounds.
    const MOST_ROUNDS: u8 = 100;
    let worker = Worker::with_buffers(64 << 10, spec(Transport::ZeroCopy).depth).unwrap();
    let mut fixtures = [(); 2].map(|()| Fixture::add(Transport::ZeroCopy));
    for (index, fixture) in (0..).zip(&fixtures) {
        worker.serve(index, &fixture.device, fixture.backing.try_clone().unwrap()).unwrap();
        fixture.device.start().unwrap();
    }
    let together = Barrier::new(fixtures.len());
    let mut round = 0;
    while round < ROUNDS || (worker.unregistered().unwrap() == 0 && round < MOST_ROUNDS) {
        thread::scope(|scope| {
            for (device, fixture) in (0..).zip(&fixtures) {
                let together = &together;
                scope.spawn(move || {
                    let data = pattern(2 * round + device, 4 << 20);
                    // If anything before it failed, the other thread would wait without end.
                    together.wait();
                    let block = fixture.open_block();
                    block.write_all_at(&data, 0).unwrap();
                    block.sync_all().unwrap();
                    // Closing the last file of the device drops its cached pages.
                    drop(block);
                    let mut stored = vec![0; data.len()];
                    fixture.backing.read_exact_at(&mut stored, 0).unwrap();
                    assert!(stored == data, "round {round}: the file holds what was written");
                    let put = pattern(!(2 * round + device), 4 << 20);
                    fixture.backing.write_all_at(&put, 8 << 20).unwrap();
                    let mut read = vec![0; put.len()];
                    fixture.open_block().read_exact_at(&mut read, 8 << 20).unwrap();
                    assert!(read == put, "round {round}: the device shows what the file holds");
                });
            }
        });
        round += 1;
    }
    let copied = worker.unregistered().unwrap();
    let requests: u64 =
        fixtures.iter().map(|fixture| fixture.counts()).map(|it| it[READS] + it[WRITES]).sum();
    eprintln!("{round} rounds: {copied} of {requests} requests found their buffer in use");
    assert!(copied > 0 && copied < requests, "{copied} of {requests}");
    fixtures[1].device.stop().unwrap();
    worker.close(1).unwrap();
    fixtures[0].worker = Some(worker);
}

/// A forced write reaches the server as one request, not as a write and a flush: the one flush in the
/// statistics is an additional effect of `O_DSYNC` on a block device.
#[test]
#[ignore = "needs ublk_drv"]
fn a_forced_write_is_one_request() {
    for transport in transports() {
        let fixture = Fixture::started(transport);
        let forced = OpenOptions::new()
            .write(true)
            .custom_flags(libc::O_DIRECT | libc::O_DSYNC)
            .open(fixture.device.block_path())
            .unwrap();
        let memory = vec![9; 2 * 4096];
        let aligned = memory.as_ptr().align_offset(4096);
        assert_eq!(forced.write_at(&memory[aligned..][..4096], 8 << 20).unwrap(), 4096, "{transport}");
        let counts = fixture.counts();
        assert_eq!(counts[FLUSHES], 1, "{transport}: flushes in {counts:?}");
        let mut stored = [0; 4096];
        fixture.backing.read_exact_at(&mut stored, 8 << 20).unwrap();
        assert_eq!(stored, [9; 4096], "{transport}");
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn starting_a_device_reads_nothing_from_it() {
    let fixture = Fixture::started(Transport::UserCopy);
    fixture.open_block().sync_all().unwrap();
    assert_eq!(fixture.counts()[READS], 0);
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_deleted_device_is_gone_and_can_be_deleted_again() {
    let fixture = Fixture::started(Transport::UserCopy);
    let device = fixture.device;
    drop(fixture);
    assert!(!device.block_path().exists());
    assert!(!Device::list().unwrap().contains(&device.id()));
    assert!(matches!(device.info(), Err(ControlError::NotFound { .. })));
    device.delete().unwrap();
}

/// Found with 70 devices on Linux 6.12: rings before 6.13 kept the file of a closed queue while the commands
/// of another device waited for requests, so only the last device of a ring could be deleted.
#[test]
#[ignore = "needs ublk_drv"]
fn a_device_is_deleted_while_another_of_its_ring_is_served() {
    let mut other = Fixture::started(Transport::UserCopy);
    let worker = other.worker.as_ref().unwrap();
    let device = Device::add(&features(), &spec(Transport::UserCopy)).unwrap();
    worker.serve(1, &device, other.backing.try_clone().unwrap()).unwrap();
    device.start().unwrap();
    device.stop().unwrap();
    worker.close(1).unwrap();
    device.delete().unwrap();
    assert!(!Device::list().unwrap().contains(&device.id()));
    other.open_block().write_all_at(&[1; 4096], 0).unwrap();
    other.leave();
    other.recover();
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_refused_spec_names_its_field_and_leaves_no_device() {
    let good = DeviceSpec { id: Some(7000), ..spec(Transport::UserCopy) };
    let bad = [
        ("sectors", DeviceSpec { sectors: 0, ..good }),
        ("sectors", DeviceSpec { sectors: u64::MAX, ..good }),
        ("queues", DeviceSpec { queues: 0, ..good }),
        ("depth", DeviceSpec { depth: 0, ..good }),
        ("depth", DeviceSpec { depth: 4097, ..good }),
        ("max_io_bytes", DeviceSpec { max_io_bytes: 0, ..good }),
        ("max_io_bytes", DeviceSpec { max_io_bytes: 4097, ..good }),
        ("max_io_bytes", DeviceSpec { max_io_bytes: 64 << 20, ..good }),
        ("max_zero_bytes", DeviceSpec { max_zero_bytes: 0, ..good }),
        ("max_zero_bytes", DeviceSpec { max_zero_bytes: 2 << 30, ..good }),
        ("id", DeviceSpec { id: Some(u32::MAX), ..good }),
    ];
    for (expected, spec) in bad {
        let error = Device::add(&features(), &spec).unwrap_err();
        assert!(
            matches!(error, ControlError::Invalid { field, .. } if field == expected),
            "{expected}: {error}"
        );
        assert!(matches!(Device::find(7000, &OURS), Err(ControlError::NotFound { id: 7000 })));
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn an_id_belongs_to_one_device() {
    let asked = DeviceSpec { id: Some(7001), ..spec(Transport::UserCopy) };
    let device = Device::add(&features(), &asked).unwrap();
    let again = Device::add(&features(), &asked).unwrap_err();
    device.delete().unwrap();
    assert_eq!(device.id(), 7001);
    assert!(matches!(again, ControlError::IdTaken { id: 7001 }), "{again}");
}

#[test]
#[ignore = "needs ublk_drv"]
fn io_waits_without_a_server_and_succeeds_with_the_next() {
    for transport in transports() {
        let mut fixture = Fixture::started(transport);
        let block = fixture.open_block();
        fixture.leave();
        let (done, ended) = mpsc::channel();
        let writer = thread::spawn(move || {
            let outcome = block.write_all_at(&pattern(5, 1 << 20), 0).and_then(|()| block.sync_all());
            done.send(outcome).unwrap();
        });
        fixture.device.start_recovery(SOON).unwrap();
        assert_eq!(fixture.device.info().unwrap().state, DeviceState::Quiesced);
        assert!(ended.try_recv().is_err(), "{transport}: no server is there to complete the write");
        fixture.serve();
        fixture.device.end_recovery().unwrap();
        ended.recv_timeout(SOON).unwrap().unwrap();
        writer.join().unwrap();
        let mut stored = vec![0; 1 << 20];
        fixture.backing.read_exact_at(&mut stored, 0).unwrap();
        assert!(stored == pattern(5, 1 << 20), "{transport}");
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_survives_many_changes_of_server_under_writes() {
    for transport in transports() {
        let mut fixture = Fixture::started(transport);
        let block = fixture.open_block();
        let (stop, stopped) = mpsc::channel::<()>();
        let writer = thread::spawn(move || {
            let mut rounds = 0u8;
            while matches!(stopped.try_recv(), Err(mpsc::TryRecvError::Empty)) {
                rounds = rounds.wrapping_add(1);
                for at in 0..8 {
                    block.write_all_at(&pattern(rounds, 64 << 10), at << 20).unwrap();
                }
                block.sync_all().unwrap();
            }
            rounds
        });
        for _ in 0..10 {
            fixture.leave();
            fixture.recover();
        }
        drop(stop);
        let rounds = writer.join().unwrap();
        let mut stored = vec![0; 64 << 10];
        for at in 0..8 {
            fixture.backing.read_exact_at(&mut stored, at << 20).unwrap();
            assert!(stored == pattern(rounds, 64 << 10), "{transport}: MiB {at} of round {rounds}");
        }
    }
}

/// A completion has at most 128 tags, and the buffer of a fetch at most 2,048.
#[test]
#[ignore = "needs ublk_drv"]
fn batches_of_a_deep_queue_carry_many_requests() {
    const THREADS: u64 = 200;
    for transport in transports() {
        let mut fixture = Fixture::add(transport);
        fixture.device.delete().unwrap();
        let deep = DeviceSpec { depth: 256, ..spec(transport) };
        fixture.device = Device::add(&features(), &deep).unwrap();
        let has_batches = transport != Transport::KernelCopy && features().release().batches_requests();
        assert_eq!(fixture.device.has_batches(), has_batches, "{transport}");
        fixture.serve();
        fixture.device.start().unwrap();
        let path = fixture.device.block_path();
        thread::scope(|scope| {
            for first in 0..THREADS {
                let path = &path;
                scope.spawn(move || {
                    let direct = OpenOptions::new()
                        .read(true)
                        .write(true)
                        .custom_flags(libc::O_DIRECT)
                        .open(path)
                        .unwrap();
                    let mut page = Aligned([0; 4096]);
                    for sector in (first..SECTORS).step_by(THREADS as usize) {
                        page.0.copy_from_slice(&pattern(sector as u8, 4096));
                        direct.write_all_at(&page.0, sector * SECTOR_BYTES).unwrap();
                        page.0.fill(0);
                        direct.read_exact_at(&mut page.0, sector * SECTOR_BYTES).unwrap();
                        assert!(page.0 == pattern(sector as u8, 4096)[..], "{transport}: sector {sector}");
                    }
                });
            }
        });
        let mut stored = vec![0; 4096];
        for sector in 0..SECTORS {
            fixture.backing.read_exact_at(&mut stored, sector * SECTOR_BYTES).unwrap();
            assert!(stored == pattern(sector as u8, 4096), "{transport}: sector {sector} of the file");
        }
    }
}

/// Memory for direct I/O.
#[repr(align(4096))]
struct Aligned([u8; 4096]);

/// Devices that an earlier version added without batches are recovered without them.
#[test]
#[ignore = "needs ublk_drv"]
fn a_device_without_batches_is_recovered_where_there_are_some() {
    const BATCHES: u64 = 1 << 15;
    let running = features();
    let earlier = Features::of(running.release().clone(), running.bits() & !BATCHES).unwrap();
    for transport in transports() {
        let mut fixture = Fixture::add(transport);
        fixture.device.delete().unwrap();
        fixture.device = Device::add(&earlier, &spec(transport)).unwrap();
        assert!(!fixture.device.has_batches(), "{transport}");
        fixture.serve();
        fixture.device.start().unwrap();
        let block = fixture.open_block();
        block.write_all_at(&pattern(1, 1 << 20), 0).unwrap();
        block.sync_all().unwrap();
        fixture.leave();
        fixture.device = Device::find(fixture.device.id(), &OURS).unwrap();
        fixture.recover();
        block.write_all_at(&pattern(2, 1 << 20), 1 << 20).unwrap();
        block.sync_all().unwrap();
        let mut stored = vec![0; 1 << 20];
        for (seed, at) in [(1, 0), (2, 1 << 20)] {
            fixture.backing.read_exact_at(&mut stored, at).unwrap();
            assert!(stored == pattern(seed, 1 << 20), "{transport}");
        }
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_in_use_is_not_taken_over() {
    let fixture = Fixture::started(Transport::UserCopy);
    let refused = fixture.device.start_recovery(Duration::from_millis(50)).unwrap_err();
    assert!(matches!(refused, ControlError::StillHeld { state: DeviceState::Live, .. }), "{refused}");
    fixture.open_block().write_all_at(&[1; 4096], 0).unwrap();
    fixture.open_block().sync_all().unwrap();
}

/// Regression: kernels before 6.15 answer the second start of a recovery with EINVAL until a queue is armed,
/// so no restart of the daemon recovered the device.
#[test]
#[ignore = "needs ublk_drv"]
fn a_recovery_is_continued_after_its_daemon_died_in_it() {
    for transport in transports() {
        let mut fixture = Fixture::started(transport);
        fixture.leave();
        fixture.device.start_recovery(SOON).unwrap();
        let held = fixture.device.open_char().unwrap();
        let refused = fixture.device.start_recovery(Duration::from_millis(50)).unwrap_err();
        assert!(matches!(refused, ControlError::StillHeld { .. }), "{transport}: {refused}");
        drop(held);
        fixture.recover();
        fixture.open_block().write_all_at(&[1; 4096], 0).unwrap();
        fixture.open_block().sync_all().unwrap();
        // Its queue was armed, and its daemon died before the end of the recovery.
        fixture.leave();
        fixture.device.start_recovery(SOON).unwrap();
        fixture.serve();
        fixture.leave();
        fixture.recover();
        fixture.open_block().write_all_at(&[2; 4096], 0).unwrap();
        fixture.open_block().sync_all().unwrap();
    }
}

/// The daemon died between the add and the start.
#[test]
#[ignore = "needs ublk_drv"]
fn a_device_can_be_started_after_its_daemon_died() {
    let mut fixture = Fixture::add(Transport::UserCopy);
    let found = Device::find(fixture.device.id(), &OURS).unwrap();
    assert_eq!(found.info().unwrap().state, DeviceState::Dead);
    fixture.serve();
    found.start().unwrap();
    let mut byte = [1];
    fixture.open_block().read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0]);
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_quiesced_device_has_given_its_idle_tags_back() {
    let mut fixture = Fixture::started(Transport::UserCopy);
    fixture.device.quiesce(SOON).unwrap();
    fixture.leave();
    fixture.recover();
    fixture.open_block().write_all_at(&[1; 4096], 0).unwrap();
    fixture.open_block().sync_all().unwrap();
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_is_stopped_while_it_is_written_to() {
    for transport in transports() {
        let fixture = Fixture::started(transport);
        let block = fixture.open_block();
        let (begun, begin) = mpsc::channel();
        let writer = thread::spawn(move || {
            loop {
                if let Err(error) =
                    block.write_all_at(&pattern(1, 1 << 20), 0).and_then(|()| block.sync_all())
                {
                    return error;
                }
                let _ = begun.send(());
            }
        });
        begin.recv_timeout(SOON).unwrap();
        let device = fixture.device;
        drop(fixture);
        writer.join().unwrap();
        assert!(matches!(device.info(), Err(ControlError::NotFound { .. })), "{transport}");
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_grows_while_it_is_open() {
    let fixture = Fixture::started(Transport::UserCopy);
    let block = fixture.open_block();
    fixture.backing.set_len(2 * SECTORS * SECTOR_BYTES).unwrap();
    fixture.device.resize(2 * SECTORS).unwrap();
    assert_eq!(fixture.attribute("size"), "65536");
    block.write_all_at(&[3; 4096], (2 * SECTORS - 1) * SECTOR_BYTES).unwrap();
    block.sync_all().unwrap();

    let dead = Fixture::add(Transport::UserCopy);
    assert!(matches!(dead.device.resize(1), Err(ControlError::Command { command: "UPDATE_SIZE", .. })));
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_failing_file_fails_the_request_and_not_the_device() {
    for transport in transports() {
        let fixture = Fixture::started(transport);
        fixture.backing.set_len(SECTOR_BYTES).unwrap();
        let block = fixture.open_block();
        let error = block.read_exact_at(&mut [0; 4096], 8 << 20).unwrap_err();
        assert_eq!(
            error.raw_os_error(),
            Some(libc::EIO),
            "{transport}: a short read is an error, not old memory"
        );
        fixture.backing.set_len(SECTORS * SECTOR_BYTES).unwrap();
        block.read_exact_at(&mut [0; 4096], 9 << 20).unwrap();
    }
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_with_another_tag_is_neither_found_nor_deleted() {
    let fixture = Fixture::started(Transport::UserCopy);
    let id = fixture.device.id();
    let other = Device::find(id, &Expected { tag: TAG + 1, ..OURS }).unwrap_err();
    assert!(matches!(other, ControlError::NotOurs { found: TAG, .. }), "{other}");
    let larger = Device::find(id, &Expected { sectors: SECTORS - 1, ..OURS }).unwrap_err();
    assert!(matches!(larger, ControlError::Resized { found: SECTORS, .. }), "{larger}");
    let is_about_to_grow = Device::find(id, &Expected { sectors: SECTORS + 1, ..OURS }).unwrap();
    assert_eq!(is_about_to_grow.sectors().unwrap(), SECTORS);

    // Another device gets its number, as the kernel hands out the lowest.
    let gone = fixture.device;
    drop(fixture);
    let spec = DeviceSpec { id: Some(id), tag: TAG + 1, ..spec(Transport::UserCopy) };
    let next = Device::add(&features(), &spec).unwrap();
    for refused in [gone.stop(), gone.stop_unused(&features()), gone.start_recovery(SOON)] {
        let refused = refused.unwrap_err();
        assert!(matches!(refused, ControlError::NotFound { .. }), "{refused}");
    }
    gone.delete().unwrap();
    assert_eq!(next.info().unwrap().tag, TAG + 1);
    next.delete().unwrap();
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_device_that_is_open_is_not_stopped() {
    let fixture = Fixture::started(Transport::UserCopy);
    let features = features();
    let block = fixture.open_block();
    if features.can_stop_unused() {
        let refused = fixture.device.stop_unused(&features).unwrap_err();
        assert!(matches!(refused, ControlError::InUse { .. }), "{refused}");
        block.write_all_at(&[1; 4096], 0).unwrap();
        block.sync_all().unwrap();
    }
    drop(block);
    fixture.device.stop_unused(&features).unwrap();
    assert!(!fixture.device.block_path().exists());
    // A second call has no effect.
    fixture.device.stop_unused(&features).unwrap();
}

#[test]
#[ignore = "needs ublk_drv"]
fn a_recovery_whose_queues_are_not_armed_ends() {
    let mut fixture = Fixture::started(Transport::UserCopy);
    fixture.leave();
    fixture.device.start_recovery(SOON).unwrap();
    let waited = fixture.device.end_recovery().unwrap_err();
    assert!(matches!(waited, ControlError::TimedOut { command: "END_USER_RECOVERY", .. }), "{waited}");
    fixture.recover();
    fixture.open_block().write_all_at(&[1; 4096], 0).unwrap();
    fixture.open_block().sync_all().unwrap();
}

/// Marks the process of a [`Child`].
const STUCK_DEVICE: &str = "HOLDFAST_STUCK_DEVICE";

/// Another server with its own device, which exits cleanly although one of its commands does not end.
struct Child(Process);

impl Child {
    /// Starts the process. It serves its device at once, and sends its command on request.
    fn start(test: &str) -> (Self, u32) {
        let mut server = Command::new(std::env::current_exe().unwrap());
        server.args(["--ignored", "--exact", "--nocapture", test]).env(STUCK_DEVICE, "");
        let mut child = Self(server.stdin(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
        let said = BufReader::new(child.0.stderr.as_mut().unwrap()).lines().next().unwrap().unwrap();
        let id = said.strip_prefix("serves ").unwrap_or_else(|| panic!("{said}")).parse().unwrap();
        (child, id)
    }

    /// Runs in the process.
    fn serve() -> ! {
        let mut fixture = Fixture::started(Transport::UserCopy);
        eprintln!("serves {}", fixture.device.id());
        let stuck = std::io::stdin().lines().next().unwrap().unwrap().parse().unwrap();
        let asks = thread::spawn(move || Device::find(stuck, &OURS));
        thread::sleep(Duration::from_secs(1));
        assert!(!asks.is_finished(), "the command has ended");
        fixture.leave();
        std::process::exit(0)
    }

    fn ask_about(&mut self, device: &Device) {
        writeln!(self.0.stdin.as_mut().unwrap(), "{}", device.id()).unwrap();
    }
}

/// Regression: DEL_DEV holds a lock of the driver that ADD_DEV needs, and waits for STOP_DEV, which waits for
/// a request. So each attach waited without limit, and a daemon with such a command kept its devices and its
/// lock when it exited.
#[test]
#[ignore = "needs ublk_drv"]
fn a_command_that_does_not_end_is_named_and_holds_up_no_other_device() {
    if std::env::var_os(STUCK_DEVICE).is_some() {
        Child::serve();
    }
    let (mut child, of_child) =
        Child::start("a_command_that_does_not_end_is_named_and_holds_up_no_other_device");
    let mut below = Fixture::started(Transport::UserCopy);
    let backing = below.open_block();
    below.leave();
    let one_tag = DeviceSpec { depth: 1, ..spec(Transport::UserCopy) };
    let mut stuck = Fixture { device: Device::add(&features(), &one_tag).unwrap(), backing, worker: None };
    stuck.serve();
    stuck.device.start().unwrap();
    let device = stuck.device;
    let mut block = stuck.open_block();
    let reads = thread::spawn(move || block.read_exact(&mut [0; 4096]));
    let begin = Instant::now();
    while stuck.attribute("stat").split_whitespace().nth(IN_FLIGHT) == Some("0") {
        assert!(begin.elapsed() < SOON, "the read does not begin");
        thread::yield_now();
    }
    let stops = thread::spawn(move || device.stop());
    thread::sleep(Duration::from_secs(1));

    child.ask_about(&device);
    let device_of_child = Device::find(of_child, &OURS).unwrap();
    let backing = below.backing.try_clone().unwrap();
    Fixture { device: device_of_child, backing, worker: None }.recover();
    assert!(child.0.try_wait().unwrap().is_none(), "the command has not ended");

    let deletes = thread::spawn(move || device.delete());
    thread::sleep(Duration::from_secs(1));
    let new = DeviceSpec { tag: TAG + 1, ..spec(Transport::UserCopy) };
    for longest in [Duration::from_secs(30), Duration::from_secs(1)] {
        let begin = Instant::now();
        let error = Device::add(&features(), &new).unwrap_err();
        assert!(matches!(error, ControlError::NotEnded { command: "ADD_DEV", .. }), "{error}");
        assert!(begin.elapsed() < longest, "an answer after {:?}", begin.elapsed());
    }
    let error = deletes.join().unwrap().unwrap_err();
    assert!(matches!(error, ControlError::NotEnded { command: "DEL_DEV", .. }), "{error}");
    assert_eq!(stuck.device.info().unwrap().id, device.id(), "it is still described");

    below.recover();
    // The kernel may complete or fail the read.
    let _read = reads.join().unwrap();
    stops.join().unwrap().unwrap();
    child.0.wait().unwrap();
    let begin = Instant::now();
    let added = loop {
        match Device::add(&features(), &new) {
            Ok(added) => break added,
            Err(ControlError::NotEnded { .. }) if begin.elapsed() < SOON => {
                thread::sleep(Duration::from_millis(100));
            }
            Err(error) => panic!("{error}"),
        }
    };
    // The thread that added a device too late deletes it.
    let tagged = |id: &u32| Device::look(*id).is_ok_and(|info| info.tag == TAG + 1);
    let begin = Instant::now();
    loop {
        let found: Vec<u32> = Device::list().unwrap().into_iter().filter(tagged).collect();
        if found == [added.id()] {
            break;
        }
        assert!(begin.elapsed() < SOON, "the device that was added too late stays: {found:?}");
        thread::sleep(Duration::from_millis(100));
    }
    added.delete().unwrap();
}
