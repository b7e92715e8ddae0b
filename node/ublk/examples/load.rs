//! Reads a block device, or writes the bytes of a file to it, at a queue depth, and prints the total time in
//! nanoseconds. Direct I/O through io_uring.
//!
//! `load --device D --corpus F --write --random --depth 32 --requests 4096`
//!
//! Between the first request and the last answer it touches no data, so that it measures only the device:
//! writes use the memory into which the file was read. A load generator that writes a single pattern would
//! measure a codec on that pattern only.
#![allow(unsafe_code)] // requests name memory
#![allow(clippy::print_stdout)] // its output is for scripts

use std::fs::{File, OpenOptions};
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::OpenOptionsExt;
use std::path::PathBuf;
use std::time::Instant;

use anyhow::{Context, Result, ensure};
use clap::Parser;
use io_uring::{IoUring, opcode, types};

const PAGE_BYTES: usize = 4096;

/// Memory aligned for direct I/O.
#[derive(Clone)]
#[repr(align(4096))]
struct AlignedPage([u8; PAGE_BYTES]);

#[derive(Parser)]
struct LoadOptions {
    /// The block device.
    #[arg(long)]
    device: PathBuf,
    /// The file: the data to write, and the size of the range that requests cover.
    #[arg(long)]
    corpus: PathBuf,
    /// Write instead of reading.
    #[arg(long)]
    write: bool,
    /// Compare each page read with the same page of the file.
    #[arg(long, conflicts_with = "write")]
    check: bool,
    /// Requests at random offsets; writes take their data from another random offset of the file. Otherwise
    /// sequential, with the data at the same offset.
    #[arg(long)]
    random: bool,
    /// Length of a request.
    #[arg(long, default_value_t = PAGE_BYTES)]
    block_bytes: usize,
    /// Requests in flight.
    #[arg(long, default_value_t = 32)]
    depth: usize,
    /// Number of requests.
    #[arg(long)]
    requests: usize,
    /// Seed of the random offsets.
    #[arg(long, default_value_t = 1)]
    seed: u64,
}

fn main() -> Result<()> {
    let options = LoadOptions::parse();
    let block_pages = options.block_bytes / PAGE_BYTES;
    ensure!(block_pages > 0 && options.block_bytes.is_multiple_of(PAGE_BYTES), "a request has whole pages");
    ensure!(options.depth > 0, "a depth of 0 sends nothing");
    let mut file =
        File::open(&options.corpus).with_context(|| format!("open {}", options.corpus.display()))?;
    let pages = usize::try_from(file.metadata()?.len())? / PAGE_BYTES;
    let blocks = pages / block_pages;
    ensure!(blocks > 0, "the file is shorter than a request");
    let needs_bytes = options.write || options.check;
    let corpus = if needs_bytes { read(&mut file, pages)? } else { Vec::new() };
    let device = OpenOptions::new()
        .read(true)
        .write(options.write)
        .custom_flags(libc::O_DIRECT)
        .open(&options.device)
        .with_context(|| format!("open {}", options.device.display()))?;
    let mut buffers = vec![AlignedPage([0; PAGE_BYTES]); options.depth * block_pages];
    let mut ring = IoUring::new(u32::try_from(options.depth)?.next_power_of_two())?;
    let mut places = Places { random: options.random.then_some(options.seed | 1), next: 0, blocks };
    let mut free: Vec<usize> = (0..options.depth).collect();
    let mut in_flight = vec![0; options.depth];
    let (mut sent, mut answered) = (0, 0);
    let began = Instant::now();
    while answered < options.requests {
        while sent < options.requests
            && let Some(tag) = free.pop()
        {
            let (to, from) = (places.next(), places.source());
            in_flight[tag] = to;
            let (fd, at) = (types::Fd(device.as_raw_fd()), (to * options.block_bytes) as u64);
            let len = u32::try_from(options.block_bytes)?;
            let entry = if options.write {
                let pages = &corpus[from.unwrap_or(to) * block_pages..][..block_pages];
                opcode::Write::new(fd, pages.as_ptr().cast(), len).offset(at).build()
            } else {
                let pages = &mut buffers[tag * block_pages..][..block_pages];
                opcode::Read::new(fd, pages.as_mut_ptr().cast(), len).offset(at).build()
            };
            let entry = entry.user_data(tag as u64);
            // SAFETY: file and memory outlive the request, or the program exits. Only its tag uses the buffer
            // of a read.
            unsafe { ring.submission().push(&entry) }.context("the ring has an entry for each tag")?;
            sent += 1;
        }
        ring.submit_and_wait(1)?;
        for answer in ring.completion() {
            let tag = usize::try_from(answer.user_data())?;
            ensure!(
                usize::try_from(answer.result()) == Ok(options.block_bytes),
                "a request of {} bytes ended with {}",
                options.block_bytes,
                answer.result()
            );
            if options.check {
                let expected = &corpus[in_flight[tag] * block_pages..][..block_pages];
                let found = &buffers[tag * block_pages..][..block_pages];
                let is_same = expected.iter().zip(found).all(|(expected, found)| expected.0 == found.0);
                ensure!(is_same, "block {} is not that of the file", in_flight[tag]);
            }
            free.push(tag);
            answered += 1;
        }
    }
    println!("{}", began.elapsed().as_nanos());
    Ok(())
}

fn read(file: &mut File, pages: usize) -> Result<Vec<AlignedPage>> {
    let mut all = vec![AlignedPage([0; PAGE_BYTES]); pages];
    for page in &mut all {
        file.read_exact(&mut page.0).context("read the file")?;
    }
    Ok(all)
}

/// Offsets of requests, in blocks.
struct Places {
    /// State of a xorshift generator (Marsaglia, "Xorshift RNGs", 2003), if offsets are random.
    random: Option<u64>,
    next: usize,
    blocks: usize,
}

impl Places {
    fn next(&mut self) -> usize {
        if let Some(place) = self.source() {
            return place;
        }
        let place = self.next % self.blocks;
        self.next += 1;
        place
    }

    /// Returns a random offset; `None` if offsets are sequential.
    fn source(&mut self) -> Option<usize> {
        let state = self.random.as_mut()?;
        *state ^= *state << 13;
        *state ^= *state >> 7;
        *state ^= *state << 17;
        usize::try_from(*state % self.blocks as u64).ok()
    }
}
