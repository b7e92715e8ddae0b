//! Scenarios up to a death. They are small, with few sectors of few map pages written between two syncs,
//! so that every outcome of a power cut can be tried.

use holdfast_engine::event::Op;
use holdfast_engine::round_size::RoundSize;
use holdfast_engine::settings::{DirtyLimits, Durability};
use holdfast_format::record::{Body, Record};
use holdfast_format::safeguard::Safeguard;
use holdfast_types::{CHUNK_SECTORS, SectorRange};

use super::stage::{Played, Stage};
use crate::bug::Bug;
use crate::calls::StoreCall;
use crate::disk::Fate;
use crate::world::{Faults, World};

pub(super) const HOSTS: usize = 2;
/// One chunk, two map pages.
const SECTORS: u64 = 5000;
/// Each map page is a separate group, and the journal has room for one record.
const ONE_BY_ONE: RoundSize =
    RoundSize { copied: 1, journaled: 1, written: 1, saved: 1, journal_slots: Some(2) };
const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 12 * 4096, max_bytes: 24 * 4096, max_age_ms: 10_000 };

/// A fixed sequence of events that reaches certain crash points.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum CrashScenario {
    /// Writes, flushes, zeroes; seals, commits and a checkpoint; the detach.
    Life,
    /// The process dies, once with a record in flight, once during its detach.
    Takeover,
    /// The host dies with both sides dirty, and their data is committed.
    Recovery,
    /// Creates get ambiguous answers.
    Doubt,
    /// Another host takes the volume, and the first one detects it.
    Rival,
    /// Local reads, writes and syncs fail.
    BadDisk,
    /// The sides are limited to little data.
    Cramped,
    /// Two hosts attach at once.
    Race,
    /// The host's clean data is uploaded again.
    Repair,
    /// Flushes wait for their commit.
    Object,
    /// FUA writes: concurrent with flushes and discards, overlapping, across a crash of the process, and
    /// last without a flush.
    Fua,
    /// FUA writes wait for their commit, and another host takes the volume in the meantime.
    ObjectFua,
    /// Map pages of a round are copied while others of it are in flight to the disk, and their sectors are
    /// written.
    Groups,
    /// The journal of the durable map: it fills up and restarts, a process takes it over, and the data
    /// that it describes is evicted.
    Journal,
    /// The local disk cannot read data to upload, once before and once after the loss of the host.
    Corruption,
    /// Commits whose runs are merged.
    Merges,
    /// A read of an object takes so long that runs are merged, and a sweep deletes the object.
    SweptRead,
    /// Snapshots: one that a commit carries, one of a clean volume while a seal begins, one that the
    /// detach waits for.
    Snapshots,
    /// The serving volume grows: by a separate record, and by that of a commit.
    Growth,
    /// An attaching process pauses until the position of its record was truncated.
    Sleeper,
    /// The bucket is backed up before a commit whose round the death interrupts, and restored after it.
    RolledBack,
    /// A round tears the slot of a map page, which the journal could take in the next one.
    TornSlot,
    /// The control plane takes snapshots of a detached volume: at a position with the mark of another one,
    /// and at one with the root of another one. Meanwhile another control plane and then a writer extend the
    /// log.
    Control,
}

impl CrashScenario {
    /// All scenarios.
    pub const ALL: [Self; 23] = [
        Self::Life,
        Self::Takeover,
        Self::Recovery,
        Self::Doubt,
        Self::Rival,
        Self::BadDisk,
        Self::Cramped,
        Self::Race,
        Self::Repair,
        Self::Object,
        Self::Fua,
        Self::ObjectFua,
        Self::Groups,
        Self::Journal,
        Self::Corruption,
        Self::Merges,
        Self::SweptRead,
        Self::Snapshots,
        Self::Growth,
        Self::Sleeper,
        Self::RolledBack,
        Self::TornSlot,
        Self::Control,
    ];

    /// Returns the scenario that reveals a missing safeguard; `None` if random runs reveal it. A scenario is
    /// needed for a death between two certain steps, or a rare order of steps.
    pub(crate) fn for_bug(bug: Bug) -> Option<Self> {
        match bug {
            Bug::Missing(Safeguard::SyncEachGroup) => Some(Self::Groups),
            Bug::Missing(Safeguard::ClearOlderFirst) => Some(Self::Corruption),
            Bug::Missing(Safeguard::PagesNameRecords | Safeguard::RejectLostRecords) => {
                Some(Self::RolledBack)
            }
            Bug::Missing(Safeguard::PlanMergedReads) => Some(Self::SweptRead),
            Bug::Missing(
                Safeguard::ReplayOnlyNewer | Safeguard::KeepJournal | Safeguard::JournalAfterFullRound,
            ) => Some(Self::Journal),
            Bug::Missing(Safeguard::RewriteTornSlot) => Some(Self::TornSlot),
            Bug::Missing(
                Safeguard::CheckSnapshotPlace | Safeguard::CompareRoots | Safeguard::LookForMark,
            ) => Some(Self::Control),
            Bug::Missing(_) | Bug::Mutation(_) => None,
        }
    }

    /// Returns the faults up to the death.
    fn faults(self) -> Faults {
        match self {
            Self::Life
            | Self::Takeover
            | Self::Recovery
            | Self::Rival
            | Self::Cramped
            | Self::Race
            | Self::Repair
            | Self::Object
            | Self::Fua
            | Self::ObjectFua
            | Self::Groups
            | Self::Journal
            | Self::Corruption
            | Self::Merges
            | Self::SweptRead
            | Self::Snapshots
            | Self::Growth
            | Self::Sleeper
            | Self::RolledBack
            | Self::TornSlot
            | Self::Control => Faults::default(),
            Self::Doubt => Faults { create: Some(2), ..Faults::default() },
            Self::BadDisk => Faults { local: Some(6), sync: Some(6), ..Faults::default() },
        }
    }

    pub(super) fn world(self, seed: u64) -> World {
        let mut world = World::new(seed, HOSTS, SECTORS, LIMITS, self.faults());
        if matches!(
            self,
            Self::Life
                | Self::Recovery
                | Self::BadDisk
                | Self::Fua
                | Self::Groups
                | Self::Corruption
                | Self::RolledBack
        ) {
            world.slice_rounds(ONE_BY_ONE);
        }
        match self {
            // The second commit makes the checkpoint.
            Self::Life => world.age_log(28),
            Self::Recovery => world.age_headers(),
            Self::Cramped => world.limit_cache(24),
            // Room for two records.
            Self::Journal => {
                world.slice_rounds(RoundSize { journal_slots: Some(3), ..ONE_BY_ONE });
            }
            Self::Object | Self::ObjectFua => world.set_durability(Durability::Object),
            Self::Sleeper => world.shorten_log(1),
            // A record justifies its slot with two pages.
            Self::TornSlot => world.slice_rounds(RoundSize {
                copied: 4,
                journaled: 4,
                written: 4,
                saved: 2,
                journal_slots: Some(4),
            }),
            Self::Corruption
            | Self::Fua
            | Self::Groups
            | Self::Growth
            | Self::Merges
            | Self::Race
            | Self::Repair
            | Self::RolledBack
            | Self::Snapshots
            | Self::Control
            | Self::SweptRead
            | Self::Takeover
            | Self::Doubt
            | Self::Rival
            | Self::BadDisk => {}
        }
        world
    }

    pub(super) fn play(self, world: &mut World) -> Played {
        let mut stage = Stage { world, host: 0 };
        match self {
            Self::Life => life(&mut stage),
            Self::Takeover => takeover(&mut stage),
            Self::Recovery => recovery(&mut stage),
            Self::Doubt => doubt(&mut stage),
            Self::Rival => rival(&mut stage),
            Self::BadDisk => bad_disk(&mut stage),
            Self::Cramped => cramped(&mut stage),
            Self::Race => race(&mut stage),
            Self::Repair => repair(&mut stage),
            Self::Object => object(&mut stage),
            Self::Fua => fua(&mut stage),
            Self::ObjectFua => object_fua(&mut stage),
            Self::Groups => groups(&mut stage),
            Self::Journal => journal(&mut stage),
            Self::Corruption => corrupt(&mut stage),
            Self::Merges => merges(&mut stage),
            Self::SweptRead => swept_read(&mut stage),
            Self::Snapshots => snapshots(&mut stage),
            Self::Growth => growth(&mut stage),
            Self::Sleeper => sleeper(&mut stage),
            Self::RolledBack => rolled_back(&mut stage),
            Self::TornSlot => torn_slot(&mut stage),
            Self::Control => control(&mut stage),
        }
    }
}

fn life(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2), (Op::Write, 4095, 2)])?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 1, 2), (Op::Discard, 4094, 3), (Op::Write, 4999, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0), (Op::Write, 3, 1)])?;
    // Enough for a seal, which is committed while the rest is written.
    stage.complete(&[(Op::Write, 30, 8), (Op::Write, 2, 1)])?;
    stage.complete(&[(Op::Write, 31, 1), (Op::WriteZeroes, 0, 1), (Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 32, 1), (Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 4096, 11), (Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Read, 0, 8), (Op::Flush, 0, 0)])?;
    stage.detach()
}

fn takeover(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2), (Op::Flush, 0, 0)])?;
    stage.issue(&[(Op::Write, 10, 12), (Op::Write, 1, 1), (Op::Read, 0, 1)])?;
    stage.run_until(record_in_flight)?;
    stage.world.kill(0);
    stage.run_until_idle()?;
    stage.complete(&[(Op::Write, 4097, 2), (Op::WriteZeroes, 1, 1), (Op::Flush, 0, 0)])?;
    stage.run_until(|world| world.status(0).is_some_and(|status| !status.seal.in_progress))?;
    stage.world.begin_detach(0);
    stage.run_until(record_in_flight)?;
    stage.world.kill(0);
    stage.detach()
}

fn recovery(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2), (Op::Write, 4097, 1), (Op::Flush, 0, 0)])?;
    stage.issue(&[(Op::Write, 10, 12), (Op::Flush, 0, 0)])?;
    stage.run_until(|world| world.status(0).is_some_and(|status| status.seal.in_progress))?;
    stage.issue(&[(Op::Write, 1, 2), (Op::Flush, 0, 0)])?;
    stage.run_until(|world| world.has_store_call(0, |call| matches!(call, StoreCall::PutSegment { .. })))?;
    stage.world.lose_host(0, Some(Fate::Everything));
    stage.complete(&[(Op::Write, 2, 1), (Op::Write, 4098, 1)])?;
    stage.complete(&[(Op::Read, 0, 4), (Op::Flush, 0, 0)])
}

fn doubt(stage: &mut Stage<'_>) -> Played {
    for round in 0..4 {
        stage.complete(&[(Op::Write, round, 2), (Op::Write, 20, 11)])?;
        stage.run_until(|world| world.status(0).is_some_and(|status| !status.seal.in_progress))?;
    }
    stage.complete(&[(Op::Read, 0, 8), (Op::Flush, 0, 0)])
}

fn merges(stage: &mut Stage<'_>) -> Played {
    let committed = |world: &World| world.status(0).is_some_and(|status| !status.seal.in_progress);
    for round in 0..5 {
        stage.complete(&[(Op::Write, 64 * round, 2), (Op::Write, 20, 11)])?;
        stage.run_until(committed)?;
    }
    // The process dies with a record in flight that carries a merge; its successor has runs to merge at once.
    stage.issue(&[(Op::Write, 500, 12)])?;
    stage.run_until(merge_record_in_flight)?;
    stage.world.kill(0);
    stage.run_until_idle()?;
    for round in 0..3 {
        stage.complete(&[(Op::Write, 64 * round, 2), (Op::Write, 20, 11)])?;
        stage.run_until(committed)?;
    }
    stage.complete(&[(Op::Read, 0, 8), (Op::WriteZeroes, 64, 2), (Op::Flush, 0, 0)])?;
    stage.detach()
}

fn swept_read(stage: &mut Stage<'_>) -> Played {
    let committed = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
    stage.complete(&[(Op::Write, 0, 12)])?;
    stage.run_until(committed)?;
    stage.evict_all()?;
    stage.issue(&[(Op::Read, 0, 4)])?;
    stage.run_until_without_reads(|world| {
        world.has_store_call(0, |call| matches!(call, StoreCall::GetRange { .. }))
    })?;
    // All data of the first segment is overwritten, then merged: the third commit carries that.
    stage.issue(&[(Op::Write, 0, 12)])?;
    stage.run_until_without_reads(World::has_stored_merge)?;
    stage.issue(&[(Op::Write, 20, 12)])?;
    stage.run_until_without_reads(World::has_merge)?;
    stage.world.begin_sweep();
    while !stage.world.control_is_idle() {
        stage.world.step_control();
        stage.check_alive()?;
    }
    assert_eq!(stage.world.segments().count(), 2, "the object that is read was deleted");
    stage.run_until_idle()?;
    stage.evict_all()?;
    stage.complete(&[(Op::Read, 0, 4)])
}

fn rival(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 12)])?;
    stage.run_until(|world| world.has_commit())?;
    stage.complete(&[(Op::Write, 1, 2), (Op::Flush, 0, 0)])?;
    // Quiet for long enough to probe the log, without another writer.
    for _ in 0..24 {
        stage.step()?;
    }
    stage.complete(&[(Op::Write, 2, 1)])?;
    stage.host = 1;
    stage.complete(&[(Op::Write, 3, 2), (Op::Flush, 0, 0)])?;
    stage.host = 0;
    // By now it would commit, or probe.
    stage.run_until(|world| world.is_fenced(0))?;
    // Its data that was not uploaded is preserved when it returns.
    stage.run_until(|world| !world.has_device(0))?;
    stage.complete(&[(Op::Read, 0, 8)])
}

fn race(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2), (Op::Flush, 0, 0)])?;
    stage.detach()?;
    stage.run_until(record_in_flight)?;
    stage.host = 1;
    stage.complete(&[(Op::Write, 1, 2), (Op::Flush, 0, 0)])?;
    stage.host = 0;
    stage.complete(&[(Op::Read, 0, 4)])
}

fn bad_disk(stage: &mut Stage<'_>) -> Played {
    for round in 0..6 {
        stage.complete(&[(Op::Write, round, 2), (Op::Write, 4096 + round, 1), (Op::Flush, 0, 0)])?;
        stage.complete(&[(Op::Write, 20, 6), (Op::Read, 0, 4), (Op::Discard, round, 1)])?;
    }
    stage.complete(&[(Op::Flush, 0, 0)])
}

fn cramped(stage: &mut Stage<'_>) -> Played {
    // All local data is evicted at once.
    stage.complete(&[(Op::Write, 0, 24)])?;
    stage.run_until(|world| world.held_sectors(0) == 0)?;
    for round in 0..5 {
        stage.complete(&[(Op::Write, round * 7, 8), (Op::Write, 4090 + round, 4), (Op::Flush, 0, 0)])?;
        // In between, data is sealed, committed and evicted.
        for _ in 0..30 {
            stage.step()?;
        }
        stage.complete(&[(Op::Read, round, 12), (Op::Write, 100 + round, 1)])?;
    }
    stage.complete(&[(Op::Flush, 0, 0)])
}

fn repair(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 12)])?;
    stage.run_until(World::has_commit)?;
    stage.complete(&[(Op::Write, 1, 2), (Op::Flush, 0, 0)])?;
    stage.world.repair(0, vec![SectorRange::new(0, 8)], true);
    stage.check_alive()?;
    stage.complete(&[(Op::Write, 2, 2), (Op::Flush, 0, 0)])?;
    for _ in 0..60 {
        stage.step()?;
    }
    stage.complete(&[(Op::Read, 0, 8)])
}

fn object(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2), (Op::Flush, 0, 0)])?;
    stage.issue(&[(Op::Write, 1, 2), (Op::Flush, 0, 0), (Op::Write, 2, 1)])?;
    stage.run_until(record_in_flight)?;
    stage.complete(&[(Op::Flush, 0, 0), (Op::Discard, 0, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0), (Op::Read, 0, 4)])
}

fn fua(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::WriteFua, 0, 2)])?;
    // The data of some is stored after the round of the others has begun.
    stage.complete(&[(Op::Write, 2, 1), (Op::WriteFua, 1, 2), (Op::Flush, 0, 0), (Op::WriteFua, 4095, 2)])?;
    stage.complete(&[(Op::WriteFua, 0, 3), (Op::Discard, 1, 1), (Op::WriteFua, 1, 1)])?;
    // Reissued to the next process.
    stage.issue(&[(Op::WriteFua, 4, 1), (Op::WriteFua, 0, 1)])?;
    stage.step()?;
    stage.step()?;
    stage.world.kill(0);
    stage.run_until_idle()?;
    // Enough for a seal: written before the sides are swapped, and while the sealed one drains.
    stage.complete(&[(Op::WriteFua, 20, 12), (Op::WriteFua, 21, 1)])?;
    stage.complete(&[(Op::WriteFua, 22, 1)])?;
    stage.complete(&[(Op::Read, 0, 8)])?;
    stage.detach()
}

fn object_fua(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::WriteFua, 0, 2)])?;
    stage.issue(&[(Op::WriteFua, 1, 2), (Op::Flush, 0, 0), (Op::WriteFua, 2, 1)])?;
    stage.run_until(record_in_flight)?;
    stage.complete(&[(Op::WriteFua, 0, 1), (Op::Discard, 1, 1)])?;
    // In flight when the writer is fenced.
    stage.issue(&[(Op::WriteFua, 4, 1)])?;
    stage.run_until(record_in_flight)?;
    stage.host = 1;
    stage.complete(&[(Op::WriteFua, 3, 2)])?;
    stage.host = 0;
    stage.run_until(|world| world.is_fenced(0))?;
    stage.run_until(|world| !world.has_device(0))?;
    stage.complete(&[(Op::Read, 0, 8)])
}

fn groups(stage: &mut Stage<'_>) -> Played {
    let committed = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
    // From here on both sides have an older copy of sector 4096, which is in the second page.
    for _ in 0..2 {
        stage.complete(&[(Op::Write, 4096, 12)])?;
        stage.run_until(committed)?;
    }
    stage.complete(&[(Op::Write, 0, 1), (Op::Write, 4200, 1)])?;
    // Written after the first page of a round was copied, and the side synced for it.
    stage.issue(&[(Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 4096, 1)])?;
    stage.complete(&[(Op::Write, 4201, 1), (Op::Write, 1, 1)])?;
    stage.issue(&[(Op::WriteFua, 4202, 1)])?;
    stage.complete(&[(Op::Discard, 4097, 1), (Op::Write, 4098, 1)])?;
    stage.complete(&[(Op::Read, 4096, 8)])
}

fn journal(stage: &mut Stage<'_>) -> Played {
    const SECOND: u64 = CHUNK_SECTORS + 4096;
    stage.complete(&[(Op::Read, 0, 1)])?;
    stage.grow(CHUNK_SECTORS + SECTORS)?;
    stage.run_until(|world| world.device_sectors(0) == Some(CHUNK_SECTORS + SECTORS))?;
    // The third does not fit: both pages are written.
    for start in [CHUNK_SECTORS, SECOND, SECOND + 1, CHUNK_SECTORS + 1] {
        stage.complete(&[(Op::Write, start, 1)])?;
        stage.complete(&[(Op::Flush, 0, 0)])?;
    }
    // The first round of the next process begins with a page that was never written. Its journal has more
    // room.
    stage.world.slice_rounds(RoundSize { journal_slots: Some(16), ..ONE_BY_ONE });
    stage.world.kill(0);
    stage.complete(&[(Op::Write, 0, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    // The sides are empty afterwards.
    stage.complete(&[(Op::Write, CHUNK_SECTORS + 4, 12)])?;
    stage.world.limit_cache(0);
    stage.run_until(|world| world.held_sectors(0) == 0)?;
    stage.world.limit_cache(100);
    stage.world.kill(0);
    stage.run_until_idle()?;
    stage.complete(&[(Op::Write, 1, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Read, 0, 4), (Op::Read, CHUNK_SECTORS, 16)])
}

fn corrupt(stage: &mut Stage<'_>) -> Played {
    let lost = |world: &World| world.status(0).is_some_and(|status| status.unreadable.is_some());
    let committed = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
    stage.complete(&[(Op::Write, 1, 11)])?;
    stage.world.corrupt(0, 3);
    stage.complete(&[(Op::Write, 12, 1), (Op::Flush, 0, 0)])?;
    stage.run_until(lost)?;
    stage.complete(&[(Op::Write, 5, 2), (Op::Write, 4097, 1), (Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 3, 1)])?;
    stage.issue(&[(Op::Write, 4, 1)])?;
    stage.run_until(committed)?;
    stage.complete(&[(Op::Write, 2, 2), (Op::Write, 4098, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.world.corrupt(0, 4098);
    stage.world.lose_host(0, Some(Fate::Everything));
    stage.run_until(lost)?;
    stage.complete(&[(Op::Write, 1, 1), (Op::Discard, 4098, 1), (Op::Flush, 0, 0)])?;
    stage.run_until(committed)?;
    stage.complete(&[(Op::Read, 0, 8)])
}

fn snapshots(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2), (Op::Write, 4097, 1)])?;
    stage.snapshot()?;
    stage.run_until(|world| world.has_snapshots(1))?;
    stage.run_until(|world| world.status(0).is_some_and(|status| !status.seal.in_progress))?;
    // A seal begins while the record of the next one is in flight.
    stage.snapshot()?;
    stage.issue(&[(Op::Write, 1, 12)])?;
    stage.run_until(|world| world.has_snapshots(2))?;
    stage.complete(&[(Op::Write, 3, 1), (Op::Flush, 0, 0)])?;
    stage.snapshot()?;
    stage.detach()
}

fn growth(stage: &mut Stage<'_>) -> Played {
    let has = |sectors| move |world: &World| world.device_sectors(0) == Some(sectors);
    stage.complete(&[(Op::Write, 0, 1), (Op::Write, SECTORS - 1, 1), (Op::Flush, 0, 0)])?;
    // Another map page of the same chunk.
    stage.grow(2 * SECTORS)?;
    stage.run_until(has(2 * SECTORS))?;
    stage.complete(&[(Op::Write, SECTORS - 1, 2), (Op::Write, 2 * SECTORS - 1, 1), (Op::Flush, 0, 0)])?;
    // Another chunk, during a commit.
    stage.issue(&[(Op::Write, 20, 12)])?;
    stage.run_until(|world| world.status(0).is_some_and(|status| status.seal.in_progress))?;
    stage.grow(CHUNK_SECTORS + 2)?;
    stage.run_until(has(CHUNK_SECTORS + 2))?;
    stage.complete(&[(Op::Write, CHUNK_SECTORS - 1, 2), (Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Read, CHUNK_SECTORS - 4, 6), (Op::Write, 21, 11)])?;
    stage.detach()
}

fn sleeper(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 12)])?;
    stage.run_until(World::has_commit)?;
    stage.host = 1;
    stage.run_until(|world| has_record_in_flight(world, 1))?;
    stage.host = 0;
    for round in 0..5 {
        stage.complete(&[(Op::Write, round, 12)])?;
        stage.run_until(|world| world.status(0).is_some_and(|status| !status.seal.in_progress))?;
    }
    stage.host = 1;
    stage.complete(&[(Op::Read, 0, 4)])
}

fn rolled_back(stage: &mut Stage<'_>) -> Played {
    let committed = |world: &World| world.status(0).is_some_and(|status| status.dirty_bytes == 0);
    stage.complete(&[(Op::Write, 0, 12), (Op::Write, 4096, 2)])?;
    stage.run_until(committed)?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.world.take_backup();
    stage.complete(&[(Op::Write, 2, 1), (Op::Write, 4097, 1), (Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 20, 12)])?;
    stage.run_until(committed)?;
    // Its round marks data as clean that the backup lacks.
    stage.complete(&[(Op::Write, 40, 1), (Op::Write, 4200, 1), (Op::Flush, 0, 0)])
}

fn torn_slot(stage: &mut Stage<'_>) -> Played {
    // Each page is alone in its round: it goes to a slot.
    for page in [0, 4096] {
        stage.complete(&[(Op::Write, page, 1)])?;
        stage.complete(&[(Op::Flush, 0, 0)])?;
    }
    stage.complete(&[(Op::Write, 1, 1)])?;
    stage.world.set_faults(Faults { local: Some(1), ..Faults::default() });
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.world.set_faults(Faults::default());
    // Both pages justify a record, and the header mentions the journal for the first time.
    stage.complete(&[(Op::Write, 4097, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.complete(&[(Op::Write, 2, 1), (Op::Write, 4098, 1)])?;
    stage.complete(&[(Op::Flush, 0, 0)])?;
    stage.world.lose_host(0, Some(Fate::Everything));
    stage.complete(&[(Op::Read, 0, 4), (Op::Read, 4096, 4)])
}

fn control(stage: &mut Stage<'_>) -> Played {
    stage.complete(&[(Op::Write, 0, 2)])?;
    stage.detach()?;
    stage.world.leave_mark();
    stage.world.begin_control_snapshot(false);
    stage.end_control()?;
    stage.world.leave_root();
    stage.world.begin_control_snapshot(false);
    stage.end_control()?;
    // This one pauses until the position of its record was truncated.
    stage.world.begin_control_snapshot(false);
    stage.run_control_until(World::control_creates_record)?;
    stage.world.take_control_snapshot();
    stage.world.shorten_log(1);
    for round in 0..6 {
        stage.complete(&[(Op::Write, round, 12)])?;
        stage.run_until(|world| world.status(0).is_some_and(|status| !status.seal.in_progress))?;
    }
    stage.end_control()?;
    stage.detach()?;
    stage.complete(&[(Op::Read, 0, 4)])
}

/// Returns true if host 0 has a log record in flight that carries a merge.
fn merge_record_in_flight(world: &World) -> bool {
    world.has_store_call(0, |call| {
        let StoreCall::Create { body, .. } = call else { return false };
        let merge_record_in_flight =
            |record: Record| matches!(record.body, Body::Change { merges, .. } if !merges.is_empty());
        Record::decode(body).is_ok_and(merge_record_in_flight)
    })
}

/// Returns true if host 0 has a log record in flight.
fn record_in_flight(world: &World) -> bool {
    has_record_in_flight(world, 0)
}

fn has_record_in_flight(world: &World, host: usize) -> bool {
    world.has_store_call(host, |call| matches!(call, StoreCall::Create { .. }))
}
