//! Serves files as ublk devices: the smallest program that uses this crate in full.
//!
//! `loopback --dir D --devices N` makes (or recovers) `D/<i>.img` and serves each as a device, all on one
//! ring and one thread, and prints `READY` with the block devices. The ids are kept in `D/ids`; started
//! again with `--recover`, it recovers the devices of the previous process, however that ended.
//! SIGTERM leaves the devices quiesced, SIGINT deletes them.
#![allow(unsafe_code)] // signal masks
#![allow(clippy::print_stdout)] // its output is for people and scripts

mod ring_thread;

use std::fs::{File, OpenOptions};
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};
use std::thread;
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use clap::Parser;
use holdfast_ring::raise_open_file_limit;
use holdfast_ublk::{Device, DeviceSpec, Expected, Features, SECTOR_BYTES, Transport};
use ring_thread::Worker;

/// Devices that are recovered at a time.
const RECOVERY_THREADS: usize = 8;

/// Tag by which the device of a file is known; a program that matters makes one that no other program's
/// device has.
fn tag(index: u16) -> u64 {
    0x6c6f_6f70_0000_0000 | u64::from(index)
}

#[derive(Parser)]
struct Options {
    /// Directory of the files and of the record of the device ids.
    #[arg(long)]
    dir: PathBuf,
    /// Number of devices.
    #[arg(long, default_value_t = 1)]
    devices: u16,
    /// Size of each device.
    #[arg(long, default_value_t = 256)]
    size_mib: u64,
    /// Requests a device holds.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// "zero-copy", "user-copy" or "kernel-copy"; the best one the kernel has if not given.
    #[arg(long)]
    transport: Option<Transport>,
    /// Move requests in parts of at most this size.
    #[arg(long, default_value_t = 1 << 20)]
    part_bytes: u32,
    /// Go through the page cache.
    #[arg(long)]
    buffered: bool,
    /// Recover the devices of the previous process.
    #[arg(long)]
    recover: bool,
}

fn main() -> Result<()> {
    let signals = Signals::block();
    raise_open_file_limit()?;
    let options = Options::parse();
    let features = Features::probe()?;
    let transport = match options.transport {
        Some(transport) => features.check(transport).map(|()| transport)?,
        None => features.best_transport()?,
    };
    let worker = Worker::spawn(options.part_bytes)?;
    let begin = Instant::now();
    let devices = if options.recover {
        recover(&options, &worker)?
    } else {
        add(&options, &features, transport, &worker)?
    };
    let paths: Vec<String> = devices.iter().map(|device| device.block_path().display().to_string()).collect();
    let threads = std::fs::read_dir("/proc/self/task")?.count();
    println!(
        "READY in {} us, {threads} threads, {transport}: {}",
        begin.elapsed().as_micros(),
        paths.join(" ")
    );

    match signals.wait() {
        libc::SIGINT => {
            for (index, device) in (0..).zip(&devices) {
                device.stop()?;
                worker.close(index)?;
                device.delete()?;
            }
            std::fs::remove_file(record(&options.dir))?;
            worker.leave()?;
            println!("DELETED");
        }
        _ => {
            worker.leave()?;
            println!("LEFT");
        }
    }
    Ok(())
}

fn record(dir: &Path) -> PathBuf {
    dir.join("ids")
}

fn add(options: &Options, features: &Features, transport: Transport, worker: &Worker) -> Result<Vec<Device>> {
    let mut devices = Vec::new();
    for index in 0..options.devices {
        let path = options.dir.join(format!("{index}.img"));
        let file = OpenOptions::new().create(true).write(true).truncate(false).open(path)?;
        file.set_len(options.size_mib << 20)?;
        let device = Device::add(
            features,
            &DeviceSpec {
                id: None,
                sectors: (options.size_mib << 20) / SECTOR_BYTES,
                queues: 1,
                depth: options.depth,
                max_io_bytes: 1 << 20,
                max_zero_bytes: DeviceSpec::MAX_ZERO_BYTES,
                transport,
                tag: tag(index),
            },
        )?;
        devices.push(device);
        let ids: Vec<String> = devices.iter().map(|device| device.id().to_string()).collect();
        std::fs::write(record(&options.dir), ids.join("\n"))?;
        worker.serve(index, &device, open(options, index)?)?;
        device.start()?;
        device.tune()?;
    }
    Ok(devices)
}

/// Several at a time: most of a recovery is waiting for the kernel.
fn recover(options: &Options, worker: &Worker) -> Result<Vec<Device>> {
    let ids = std::fs::read_to_string(record(&options.dir)).context("no record of an earlier run")?;
    let ids: Vec<(u16, &str)> = (0..).zip(ids.lines()).collect();
    let recovered: Result<Vec<Vec<Device>>> = thread::scope(|scope| {
        let share = ids.len().div_ceil(RECOVERY_THREADS).max(1);
        let threads: Vec<_> = ids
            .chunks(share)
            .map(|ids| {
                scope.spawn(move || {
                    ids.iter().map(|&(index, id)| recover_one(options, worker, index, id)).collect()
                })
            })
            .collect();
        threads.into_iter().map(|thread| thread.join().expect("recover_one does not panic")).collect()
    });
    Ok(recovered?.concat())
}

fn recover_one(options: &Options, worker: &Worker, index: u16, id: &str) -> Result<Device> {
    let expected = Expected { tag: tag(index), sectors: (options.size_mib << 20) / SECTOR_BYTES };
    let device = Device::find(id.parse()?, &expected)?;
    device.start_recovery(Duration::from_secs(30))?;
    worker.serve(index, &device, open(options, index)?)?;
    device.end_recovery()?;
    Ok(device)
}

fn open(options: &Options, index: u16) -> Result<File> {
    let flags = if options.buffered { 0 } else { libc::O_DIRECT };
    let path = options.dir.join(format!("{index}.img"));
    Ok(OpenOptions::new().read(true).write(true).custom_flags(flags).open(path)?)
}

/// SIGTERM and SIGINT, taken by the main thread only.
struct Signals(libc::sigset_t);

impl Signals {
    fn block() -> Self {
        let mut set = std::mem::MaybeUninit::uninit();
        // SAFETY: valid for writing a signal set.
        unsafe { libc::sigemptyset(set.as_mut_ptr()) };
        // SAFETY: initialised by the line above.
        let mut set = unsafe { set.assume_init() };
        for signal in [libc::SIGTERM, libc::SIGINT] {
            // SAFETY: an initialised set and a valid signal number.
            unsafe { libc::sigaddset(&raw mut set, signal) };
        }
        // SAFETY: an initialised set; the old mask is not wanted.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        Self(set)
    }

    fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: an initialised set and a place for the number.
        unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        signal
    }
}
