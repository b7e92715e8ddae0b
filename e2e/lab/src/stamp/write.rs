//! The writer in a test machine: stamps, flushes, and reports each flush to the harness before it continues.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::net::TcpStream;
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::Path;

use anyhow::{Context, Result, ensure};
use rustix::fs::{FallocateFlags, OFlags, fallocate};

use super::{
    Change, GROUP_DISTANCE_BYTES, GROUP_SECTORS, LANE_SECTORS, SECTOR_BYTES, read_stamp, round, stamp,
};

/// The harness's response to a recorded report.
pub const ACKNOWLEDGED: &str = "noted";

/// Direct I/O needs memory with this alignment.
#[repr(align(4096))]
struct Aligned([u8; 32 * SECTOR_BYTES]);

/// Writes all lanes concurrently, round by round, until a write or the harness fails.
///
/// # Errors
/// The failure; it never returns without one.
pub fn run(device: &Path, lanes: u32, seed: u64, report_to: &str) -> Result<()> {
    let ends: Vec<Result<()>> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..lanes)
            .map(|lane| {
                scope.spawn(move || {
                    let ended = write_lane(device, lane, seed, report_to);
                    // A failure of one lane fails all of them: the harness sees the process exit.
                    if let Err(error) = &ended {
                        eprintln!("lane {lane}: {error:#}");
                        std::process::exit(1);
                    }
                    ended
                })
            })
            .collect();
        writers.into_iter().filter_map(|writer| writer.join().ok()).collect()
    });
    ends.into_iter().collect()
}

fn write_lane(device: &Path, lane: u32, seed: u64, report_to: &str) -> Result<()> {
    let mut harness = TcpStream::connect(report_to).context("reach the harness")?;
    harness.set_nodelay(true)?;
    let mut answers = BufReader::new(harness.try_clone().context("listen to the harness")?);
    let disk = open(device)?;
    let mut buffer = Box::new(Aligned([0; 32 * SECTOR_BYTES]));
    for number in 1.. {
        for Change { first, sectors, zero } in round(seed, lane, number).into_iter().flat_map(Change::pieces)
        {
            let offset = offset(lane, first);
            let bytes = sectors as usize * SECTOR_BYTES;
            if zero {
                let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
                fallocate(&disk, flags, offset, bytes as u64).context("zero a range")?;
                continue;
            }
            for (sector, place) in (first..).zip(buffer.0[..bytes].chunks_exact_mut(SECTOR_BYTES)) {
                place.copy_from_slice(&stamp(seed, lane, sector, number));
            }
            disk.write_all_at(&buffer.0[..bytes], offset).context("write")?;
        }
        disk.sync_data().context("flush")?;
        writeln!(harness, "{lane} {number}").context("report")?;
        let mut answer = String::new();
        answers.read_line(&mut answer).context("hear the harness")?;
        ensure!(answer.trim() == ACKNOWLEDGED, "the harness answers {answer:?}");
    }
    Ok(())
}

/// Reads all lanes; returns a line per lane, with the round of each sector, or `x` for an invalid one.
///
/// # Errors
/// If a read fails.
pub fn read(device: &Path, lanes: u32, seed: u64) -> Result<String> {
    let disk = open(device)?;
    let mut buffer = Box::new(Aligned([0; 32 * SECTOR_BYTES]));
    let mut text = String::new();
    for lane in 0..lanes {
        for first in (0..LANE_SECTORS).step_by(GROUP_SECTORS as usize) {
            disk.read_exact_at(&mut buffer.0, offset(lane, first)).context("read")?;
            for (sector, bytes) in (first..).zip(buffer.0.chunks_exact(SECTOR_BYTES)) {
                match read_stamp(seed, lane, sector, bytes) {
                    Some(round) => text.push_str(&round.to_string()),
                    None => text.push('x'),
                }
                text.push(if sector + 1 == LANE_SECTORS { '\n' } else { ' ' });
            }
        }
    }
    Ok(text)
}

fn open(device: &Path) -> Result<File> {
    let direct = OFlags::DIRECT.bits().cast_signed();
    let opened = File::options().read(true).write(true).custom_flags(direct).open(device);
    opened.with_context(|| format!("open {}", device.display()))
}

fn offset(lane: u32, sector: u32) -> u64 {
    let group = lane * (LANE_SECTORS / GROUP_SECTORS) + sector / GROUP_SECTORS;
    u64::from(group) * GROUP_DISTANCE_BYTES + u64::from(sector % GROUP_SECTORS) * SECTOR_BYTES as u64
}
