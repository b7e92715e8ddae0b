//! A state disk that records writes and flushes, so that its state after a power failure can be rebuilt; it
//! also fails on request.
//!
//! QEMU accesses it over NBD. Requests are served sequentially, so the record has the disk's order. Writes
//! are torn only at boundaries of the physical blocks that the disk announces: "the smallest unit a physical
//! storage device can write atomically" (Linux, `Documentation/ABI/stable/sysfs-block`). Smaller tears are
//! left to the simulation, which knows the affected structures. A failed flush loses the writes that it was
//! to make durable: later flushes cover only later writes, and the machine, which reads the disk's cache,
//! cannot detect this.
//!
//! Owns: the image, a copy of it from before the first write, the record.
//! Runs on: one thread; [`RecordedDisk`] may be used by any.
//! Invariants: a position in the record, read after data was made durable on the disk, is after the data's
//! flush.

use std::fs::File;
use std::io::{BufReader, Write};
use std::net::{Ipv4Addr, Shutdown, TcpListener, TcpStream};
use std::ops::Range;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, MutexGuard};

use anyhow::{Context, Result, ensure};

use super::nbd::{self, EIO, NbdRequest};
use crate::chance::Chance;
use crate::command::output;

/// A disk that records its writes.
#[derive(Debug)]
pub struct RecordedDisk {
    port: u16,
    before: PathBuf,
    /// Unit in bytes that a power failure leaves in its old or its new state.
    block_bytes: usize,
    shared: Arc<Recording>,
}

/// Unflushed writes that survive a power failure.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Survivors {
    /// None.
    Nothing,
    /// Each with even chances; some of them partially.
    Some,
}

/// Composition of one rebuilt disk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PowerCut {
    /// Writes made durable by a flush.
    pub flushed: usize,
    /// Unflushed writes that survived.
    pub left: usize,
    /// Unflushed writes that survived partially.
    pub torn: usize,
    /// Unflushed writes that were lost.
    pub lost: usize,
}

#[derive(Debug)]
struct Recording {
    image: File,
    data: File,
    size_bytes: u64,
    state: Mutex<RecordingState>,
}

#[derive(Debug, Default)]
struct RecordingState {
    record: Vec<RecordedStep>,
    data_bytes: u64,
    failing_reads: Vec<Range<u64>>,
    failing_flushes: bool,
    failed_reads: usize,
    is_ended: bool,
    client: Option<TcpStream>,
}

#[derive(Debug, Clone, Copy)]
enum RecordedStep {
    /// Bytes of the record's data, written to an offset of the disk.
    Write {
        offset: u64,
        at: u64,
        bytes: usize,
    },
    Flush,
    /// Writes since the previous flush are not made durable by any later one.
    FailedFlush,
}

impl RecordedDisk {
    /// Serves the image; its record and a copy of it are stored next to it. Writes are torn between blocks of
    /// `block_bytes`.
    ///
    /// # Errors
    /// If a file cannot be created or no port is free.
    pub fn start(image: &Path, block_bytes: u32) -> Result<Self> {
        let before = image.with_extension("before");
        copy_sparse(image, &before)?;
        let open = |path: &Path| {
            let file = File::options().read(true).write(true).create(true).truncate(false).open(path);
            file.with_context(|| format!("open {}", path.display()))
        };
        let image_file = open(image)?;
        let size_bytes = image_file.metadata().context("read the image's size")?.len();
        let data = open(&image.with_extension("record"))?;
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).context("find a port for the disk")?;
        let port = listener.local_addr().context("read the disk's port")?.port();
        let shared = Arc::new(Recording { image: image_file, data, size_bytes, state: Mutex::default() });
        let serving = Arc::clone(&shared);
        std::thread::spawn(move || serving.accept(&listener));
        let block_bytes = usize::try_from(block_bytes).context("a block's size")?;
        Ok(Self { port, before, block_bytes, shared })
    }

    /// Returns the address for QEMU.
    pub fn url(&self) -> String {
        format!("nbd://127.0.0.1:{}", self.port)
    }

    /// Returns the current length of the record.
    pub fn position(&self) -> usize {
        self.shared.lock().record.len()
    }

    /// Writes the disk's state after a power failure at `position` to `to`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn rebuild(
        &self,
        position: usize,
        left: Survivors,
        chance: &mut Chance,
        to: &Path,
    ) -> Result<PowerCut> {
        copy_sparse(&self.before, to)?;
        let disk = File::options().write(true).open(to).with_context(|| format!("open {}", to.display()))?;
        let record = self.shared.lock().record[..position].to_vec();
        let mut cut = PowerCut { flushed: 0, left: 0, torn: 0, lost: 0 };
        for (entry, durable) in record.iter().zip(durable(&record)) {
            let RecordedStep::Write { offset, at, bytes } = *entry else { continue };
            let mut data = vec![0; bytes];
            self.shared.data.read_exact_at(&mut data, at).context("read the record")?;
            let fate = if durable {
                WriteFate::Left
            } else {
                WriteFate::draw(left, bytes > self.block_bytes, chance)
            };
            *match fate {
                WriteFate::Left if durable => &mut cut.flushed,
                WriteFate::Left => &mut cut.left,
                WriteFate::Torn => &mut cut.torn,
                WriteFate::Lost => &mut cut.lost,
            } += 1;
            let unit = if fate == WriteFate::Torn { self.block_bytes } else { bytes };
            for (offset, part) in (offset..).step_by(unit).zip(data.chunks(unit)) {
                if fate == WriteFate::Left || fate == WriteFate::Torn && chance.below(2) == 0 {
                    disk.write_all_at(part, offset).context("write the rebuilt disk")?;
                }
            }
        }
        Ok(cut)
    }

    /// Fails reads of these byte ranges from now on; overwritten parts become readable.
    pub fn fail_reads(&self, ranges: Vec<Range<u64>>) {
        self.shared.lock().failing_reads = ranges;
    }

    /// Returns the number of failed reads so far.
    pub fn failed_reads(&self) -> usize {
        self.shared.lock().failed_reads
    }

    /// Makes flushes fail from now on, or succeed again.
    pub fn fail_flushes(&self, fail: bool) {
        self.shared.lock().failing_flushes = fail;
    }
}

impl Drop for RecordedDisk {
    fn drop(&mut self) {
        let mut state = self.shared.lock();
        state.is_ended = true;
        if let Some(client) = &state.client {
            // An error means that it is already gone.
            client.shutdown(Shutdown::Both).ok();
        }
        drop(state);
        // Wakes the accepting thread; fails only if that thread is gone.
        drop(TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)));
    }
}

impl Recording {
    fn accept(&self, listener: &TcpListener) {
        for client in listener.incoming() {
            let Ok(client) = client else { continue };
            {
                let mut state = self.lock();
                if state.is_ended {
                    return;
                }
                state.client = client.try_clone().ok();
            }
            // It ends when the machine is powered off.
            drop(self.serve(client));
        }
    }

    fn serve(&self, mut client: TcpStream) -> Result<()> {
        client.set_nodelay(true)?;
        if !nbd::negotiate(&mut client, self.size_bytes)? {
            return Ok(());
        }
        let mut requests = BufReader::with_capacity(1 << 20, client.try_clone().context("share the client")?);
        while let Some(request) = nbd::next(&mut requests)? {
            match request {
                NbdRequest::Read { cookie, offset, bytes } => {
                    let (error, data) = self.read(offset, bytes)?;
                    nbd::reply(&mut client, cookie, error, &data)?;
                }
                NbdRequest::Write { cookie, offset, data } => {
                    self.write(offset, &data)?;
                    nbd::reply(&mut client, cookie, 0, &[])?;
                }
                NbdRequest::Flush { cookie } => nbd::reply(&mut client, cookie, self.flush(), &[])?,
            }
        }
        client.flush().context("end cleanly")
    }

    fn read(&self, offset: u64, bytes: u32) -> Result<(u32, Vec<u8>)> {
        let wanted = offset..offset + u64::from(bytes);
        {
            let mut state = self.lock();
            let touches = |range: &Range<u64>| range.start < wanted.end && wanted.start < range.end;
            if state.failing_reads.iter().any(touches) {
                state.failed_reads += 1;
                return Ok((EIO, Vec::new()));
            }
        }
        let mut data = vec![0; bytes as usize];
        self.image.read_exact_at(&mut data, offset).context("read the image")?;
        Ok((0, data))
    }

    fn write(&self, offset: u64, data: &[u8]) -> Result<()> {
        ensure!(offset + data.len() as u64 <= self.size_bytes, "a write beyond the disk's end");
        let mut state = self.lock();
        let at = state.data_bytes;
        let end = offset + data.len() as u64;
        let failing = std::mem::take(&mut state.failing_reads);
        let rest = |range: &Range<u64>| [range.start..range.end.min(offset), range.start.max(end)..range.end];
        state.failing_reads = failing.iter().flat_map(rest).filter(|range| !range.is_empty()).collect();
        self.data.write_all_at(data, at).context("write the record")?;
        self.image.write_all_at(data, offset).context("write the image")?;
        state.data_bytes += data.len() as u64;
        state.record.push(RecordedStep::Write { offset, at, bytes: data.len() });
        Ok(())
    }

    fn flush(&self) -> u32 {
        let mut state = self.lock();
        let (entry, error) =
            if state.failing_flushes { (RecordedStep::FailedFlush, EIO) } else { (RecordedStep::Flush, 0) };
        state.record.push(entry);
        error
    }

    fn lock(&self) -> MutexGuard<'_, RecordingState> {
        self.state.lock().expect("nothing panics while it holds this lock")
    }
}

/// Returns for each entry true if its write was flushed: the next flush succeeded.
fn durable(record: &[RecordedStep]) -> Vec<bool> {
    let mut next_succeeds = false;
    let mut durable: Vec<bool> = record
        .iter()
        .rev()
        .map(|entry| {
            next_succeeds = match entry {
                RecordedStep::Write { .. } => next_succeeds,
                RecordedStep::Flush => true,
                RecordedStep::FailedFlush => false,
            };
            next_succeeds
        })
        .collect();
    durable.reverse();
    durable
}

/// Result of a power failure for a write.
#[derive(Clone, Copy, PartialEq, Eq)]
enum WriteFate {
    Left,
    /// Each of its blocks survives with even chances.
    Torn,
    Lost,
}

impl WriteFate {
    /// Returns the result for an unflushed write.
    fn draw(survivors: Survivors, has_blocks: bool, chance: &mut Chance) -> Self {
        match survivors {
            Survivors::Nothing => Self::Lost,
            Survivors::Some => match chance.below(4) {
                0 if has_blocks => Self::Torn,
                0 | 1 => Self::Lost,
                _ => Self::Left,
            },
        }
    }
}

/// Copies a file without its holes.
///
/// # Errors
/// If `cp` fails.
fn copy_sparse(from: &Path, to: &Path) -> Result<()> {
    output(Command::new("cp").args(["--sparse=always", "--"]).arg(from).arg(to)).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Returns the rebuilt disk's first byte of each block.
    fn rebuilt(disk: &RecordedDisk, position: usize, left: Survivors, to: &Path) -> Vec<u8> {
        disk.rebuild(position, left, &mut Chance::new(1), to).unwrap();
        std::fs::read(to).unwrap().chunks(4096).map(|sector| sector[0]).collect()
    }

    /// The unflushed writes that survive are chosen randomly.
    #[test]
    fn a_cut_keeps_flushed_writes_and_some_others() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, [1; 4 * 4096]).unwrap();
        let disk = RecordedDisk::start(&image, 4096).unwrap();
        disk.shared.write(0, &[2; 4096]).unwrap();
        assert_eq!(disk.shared.flush(), 0);
        let flushed = disk.position();
        disk.shared.write(4096, &[3; 4096]).unwrap();
        disk.shared.write(0, &[4; 4096]).unwrap();
        let to = dir.path().join("cut");
        let end = disk.position();
        assert_eq!(rebuilt(&disk, flushed, Survivors::Nothing, &to), [2, 1, 1, 1]);
        assert_eq!(rebuilt(&disk, end, Survivors::Nothing, &to), [2, 1, 1, 1]);
        assert_eq!(
            rebuilt(&disk, flushed - 1, Survivors::Nothing, &to),
            [1, 1, 1, 1],
            "it was not flushed yet"
        );
    }

    #[test]
    fn no_later_flush_repairs_a_failed_one() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, [1; 2 * 4096]).unwrap();
        let disk = RecordedDisk::start(&image, 4096).unwrap();
        disk.shared.write(0, &[2; 4096]).unwrap();
        disk.fail_flushes(true);
        assert_eq!(disk.shared.flush(), EIO);
        disk.fail_flushes(false);
        disk.shared.write(4096, &[3; 4096]).unwrap();
        assert_eq!(disk.shared.flush(), 0);
        let to = dir.path().join("cut");
        assert_eq!(rebuilt(&disk, disk.position(), Survivors::Nothing, &to), [1, 3]);
        assert_eq!(disk.shared.read(0, 4096).unwrap(), (0, vec![2; 4096]), "until then it reads as written");
    }

    #[test]
    fn writes_tear_between_the_blocks_that_the_disk_announces() {
        let dir = tempfile::tempdir().unwrap();
        for (block_bytes, torn_sectors) in [(4096, false), (512, true)] {
            let image = dir.path().join("image");
            std::fs::write(&image, [1; 4 * 4096]).unwrap();
            let disk = RecordedDisk::start(&image, block_bytes).unwrap();
            disk.shared.write(0, &[2; 4 * 4096]).unwrap();
            let to = dir.path().join("cut");
            let mut chance = Chance::new(1);
            let (mut torn, mut mixed) = (0, false);
            for _ in 0..100 {
                torn += disk.rebuild(1, Survivors::Some, &mut chance, &to).unwrap().torn;
                let image = std::fs::read(&to).unwrap();
                mixed |= image.chunks(4096).any(|sector| sector.contains(&1) && sector.contains(&2));
            }
            assert!(torn > 0);
            assert_eq!(mixed, torn_sectors, "blocks of {block_bytes} bytes");
        }
    }

    #[test]
    fn reads_fail_at_the_chosen_places() {
        let dir = tempfile::tempdir().unwrap();
        let image = dir.path().join("image");
        std::fs::write(&image, [1; 4 * 4096]).unwrap();
        let disk = RecordedDisk::start(&image, 4096).unwrap();
        disk.fail_reads(vec![4096..8192, 12288..16384]);
        assert_eq!(disk.shared.read(0, 8192).unwrap().0, EIO);
        assert_eq!(disk.shared.read(8192, 4096).unwrap(), (0, vec![1; 4096]));
        assert_eq!(disk.shared.read(12288, 512).unwrap().0, EIO);
        assert_eq!(disk.failed_reads(), 2);
        disk.shared.write(4096, &[2; 2048]).unwrap();
        assert_eq!(disk.shared.read(4096, 2048).unwrap(), (0, vec![2; 2048]), "overwritten");
        assert_eq!(disk.shared.read(6144, 512).unwrap().0, EIO);
        assert_eq!(disk.shared.read(12288, 512).unwrap().0, EIO);
    }
}
