//! Users of the file: readers and writers that verify their data.
#![allow(unsafe_code)] // sched_setaffinity(2)

use std::fs::OpenOptions;
use std::io;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use crate::say;

/// Bytes of the file per thread.
const REGION_BYTES: usize = 4 << 20;
/// Request sizes of the threads with an even number, and of the others.
const SMALL_BYTES: usize = 4096;
const LARGE_BYTES: usize = 256 << 10;

#[repr(align(4096))]
struct AlignedBlock([u8; LARGE_BYTES]);

#[derive(Default)]
struct LoadCounts {
    operations: AtomicU64,
    errors: AtomicU64,
    longest_us: AtomicU64,
}

/// Writes and reads for `seconds` on `threads` threads, then prints the counts.
pub(crate) fn run(path: &Path, seconds: u64, threads: usize) -> io::Result<()> {
    let counts = LoadCounts::default();
    let end = Instant::now() + Duration::from_secs(seconds);
    std::thread::scope(|scope| {
        for thread in 0..threads {
            let counts = &counts;
            scope.spawn(move || {
                let mut turn = 0;
                while Instant::now() < end {
                    if let Err(error) = turns(path, thread, &mut turn, end, counts) {
                        say(format_args!("thread {thread}, turn {turn}: {error}"));
                        counts.errors.fetch_add(1, Ordering::Relaxed);
                    }
                }
            });
        }
    });
    let LoadCounts { operations, errors, longest_us } = counts;
    let [operations, errors, longest_us] = [operations, errors, longest_us].map(AtomicU64::into_inner);
    io::Write::write_all(&mut io::stdout(), format!("{operations} {errors} {longest_us}\n").as_bytes())
}

/// Writes a block and reads it back, repeatedly until `end` or an error.
fn turns(path: &Path, thread: usize, turn: &mut usize, end: Instant, counts: &LoadCounts) -> io::Result<()> {
    let file = OpenOptions::new().read(true).write(true).custom_flags(libc::O_DIRECT).open(path)?;
    let mut block = Box::new(AlignedBlock([0; LARGE_BYTES]));
    let block = &mut block.0[..if thread.is_multiple_of(2) { SMALL_BYTES } else { LARGE_BYTES }];
    while Instant::now() < end {
        *turn += 1;
        let at = (thread * REGION_BYTES + *turn * block.len() % REGION_BYTES) as u64;
        let word = (*turn << 8 | thread).to_ne_bytes();
        block.chunks_exact_mut(word.len()).for_each(|chunk| chunk.copy_from_slice(&word));
        timed(counts, || file.write_all_at(block, at))?;
        block.fill(0);
        timed(counts, || file.read_exact_at(block, at))?;
        if block.chunks_exact(word.len()).any(|chunk| chunk != word) {
            return Err(io::Error::other("other bytes than were written"));
        }
    }
    Ok(())
}

fn timed(counts: &LoadCounts, operation: impl FnOnce() -> io::Result<()>) -> io::Result<()> {
    let begun = Instant::now();
    let done = operation();
    let took_us = u64::try_from(begun.elapsed().as_micros()).unwrap_or(u64::MAX);
    counts.longest_us.fetch_max(took_us, Ordering::Relaxed);
    counts.operations.fetch_add(1, Ordering::Relaxed);
    done
}

/// Binds the calling thread to a processor, or to none.
pub(crate) fn stay_on(processor: Option<usize>) -> io::Result<()> {
    // SAFETY: zeros are an empty set.
    let mut set: libc::cpu_set_t = unsafe { std::mem::zeroed() };
    let processors = processor.map_or(0..1024, |processor| processor..processor + 1);
    for processor in processors {
        // SAFETY: the function checks the number.
        unsafe { libc::CPU_SET(processor, &mut set) };
    }
    // SAFETY: the set outlives the call.
    let done = unsafe { libc::sched_setaffinity(0, size_of::<libc::cpu_set_t>(), &raw const set) };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}
