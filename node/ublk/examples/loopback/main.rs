//! Serves files as ublk devices: the smallest program that uses the whole crate.
//!
//! `loopback --dir D --devices N` creates (or recovers) `D/<i>.img`, serves each as a device, all on one ring
//! and one thread, and prints `READY` with the block devices. It records the ids in `D/ids`; with `--recover`
//! it recovers the devices of the previous process, however that exited. SIGTERM leaves the devices quiesced,
//! SIGINT deletes them.
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

/// Maximum number of concurrent recoveries.
const RECOVERY_THREADS: usize = 8;

/// Returns the tag that identifies the device of a file; a production server needs one that no other program
/// uses.
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
    /// Maximum number of requests in a queue.
    #[arg(long, default_value_t = 32)]
    depth: u16,
    /// "zero-copy", "user-copy" or "kernel-copy"; by default the best that the kernel supports.
    #[arg(long)]
    transport: Option<Transport>,
    /// Maximum size of the parts in which requests are moved.
    #[arg(long, default_value_t = 1 << 20)]
    part_bytes: u32,
    /// Use the page cache.
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

/// Recovers several devices in parallel: most of a recovery is waiting for the kernel.
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

/// SIGTERM and SIGINT, received by the main thread only.
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
        // SAFETY: an initialised set; the call does not return the old mask.
        unsafe { libc::pthread_sigmask(libc::SIG_BLOCK, &raw const set, std::ptr::null_mut()) };
        Self(set)
    }

    fn wait(&self) -> i32 {
        let mut signal = 0;
        // SAFETY: an initialised set and room for the number.
        unsafe { libc::sigwait(&raw const self.0, &raw mut signal) };
        signal
    }
}
