//! The list of runs over the life of a volume, in numbers: the shipped policy, without data and without
//! I/O.
//!
//! A run is represented by its number of entries. For runs of random blocks, a merge has the expected size
//! of their union; for sequential runs, the sum. A merge chosen at one commit is carried by the next, as
//! by a writer whose merges are faster than its commits.

use holdfast_format::index::policy::{Choice, Shape, next_merge};
use holdfast_format::limit::{MAX_CHUNK_RANGES, REMEMBERED_ATTACHES};
use holdfast_types::{CHUNK_SECTORS, SECTOR_BYTES};

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;
const GIB: u64 = 1 << 30;
const TIB: u64 = 1 << 40;

/// Bytes of an entry in a segment's own index.
const SEGMENT_ENTRY: f64 = 48.0;
/// Bytes of an entry of a merged run.
const RUN_ENTRY: f64 = 40.0;
/// Bytes of a page other than its entries, and in the page table, for each entry.
const PAGE_SHARE: f64 = (32 + 4 + 8) as f64 / 1638.0;
/// Bytes of a segment in a run's table.
const TABLE_ENTRY: f64 = 45.0;

/// Bytes of the largest fence.
const CHUNK_RANGES: u64 = 4 + 8 * MAX_CHUNK_RANGES as u64;
/// Bytes of the largest reference to a segment.
const SEGMENT_REFERENCE: u64 = 25 + 28 + CHUNK_RANGES;
/// Bytes of the largest reference to a merged run.
const RUN_REFERENCE: u64 = 25 + 29 + CHUNK_RANGES;
/// Bytes of a record or a checkpoint other than references: three names of 255 bytes, and numbers.
const FRAME: u64 = 1024;
/// Bytes of an attach in a checkpoint.
const ATTACH: u64 = 32;

/// A write pattern of a volume.
#[derive(Debug, Clone, Copy)]
pub struct Workload {
    /// Its name in the output.
    pub name: &'static str,
    /// Size of the volume in bytes.
    pub volume_bytes: u64,
    /// Bytes of one entry: of a frame, uncompressed.
    pub entry_bytes: u64,
    /// Entries of each commit.
    pub entries: u64,
    /// Number of commits.
    pub commits: u64,
    /// True if the blocks are random; otherwise they ascend.
    pub is_random: bool,
}

/// The workloads of the bars (`node/sim/tests/tiers.rs`).
pub const WORKLOADS: [Workload; 4] = [
    Workload {
        name: "10tib_random",
        volume_bytes: 10 * TIB,
        entry_bytes: 4 * KIB,
        entries: 64 * MIB / (4 * KIB),
        commits: 10 * TIB / (64 * MIB),
        is_random: true,
    },
    Workload {
        name: "10tib_sequential",
        volume_bytes: 10 * TIB,
        entry_bytes: 128 * KIB,
        entries: 64 * MIB / (128 * KIB),
        commits: 10 * TIB / (64 * MIB),
        is_random: false,
    },
    Workload {
        name: "1tib_random_twice",
        volume_bytes: TIB,
        entry_bytes: 4 * KIB,
        entries: 64 * MIB / (4 * KIB),
        commits: 2 * TIB / (64 * MIB),
        is_random: true,
    },
    Workload {
        name: "100gib_database_90_days",
        volume_bytes: 100 * GIB,
        entry_bytes: 4 * KIB,
        entries: 3000,
        commits: 90 * 2880,
        is_random: true,
    },
];

/// Figures of a workload.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Figures {
    /// Maximum runs of the list after a commit.
    pub runs_max: usize,
    /// Their mean.
    pub runs_mean: f64,
    /// Bytes of indexes uploaded, in percent of the bytes written.
    pub index_percent_of_written: f64,
    /// Bytes of indexes read by merges, in percent of the bytes written.
    pub index_percent_read: f64,
    /// Number of merges.
    pub merges: u64,
    /// Bytes of the largest run.
    pub largest_run_bytes: f64,
    /// Bytes of the largest checkpoint, if all segments have the maximum number of chunk ranges.
    pub root_bytes: u64,
    /// The same for a record, not counting the chunks that it names once.
    pub record_bytes_max: u64,
}

#[derive(Debug, Clone, Copy)]
struct Tier {
    level: u8,
    entries: f64,
    /// Maximum segments that it names.
    segments: u64,
}

impl Tier {
    /// Returns the size of its index in bytes.
    fn bytes(&self) -> f64 {
        match self.level {
            0 => self.entries * SEGMENT_ENTRY,
            _ => self.entries * (RUN_ENTRY + PAGE_SHARE) + self.segments as f64 * TABLE_ENTRY,
        }
    }
}

/// Bytes of indexes.
#[derive(Debug, Default)]
struct IndexBytes {
    uploaded: f64,
    read: f64,
    merges: u64,
    largest: f64,
}

impl IndexBytes {
    fn count(&mut self, inputs: &[Tier], merged: &Tier) {
        // Indexes of level 0 were created by this writer.
        self.read += inputs.iter().filter(|run| run.level > 0).map(Tier::bytes).sum::<f64>();
        self.uploaded += merged.bytes();
        self.largest = self.largest.max(merged.bytes());
        self.merges += 1;
    }
}

impl Workload {
    /// Runs the workload.
    pub fn run(&self) -> Figures {
        let mut list: Vec<Tier> = Vec::new();
        let mut chosen: Option<Choice> = None;
        let mut of_indexes = IndexBytes::default();
        let (mut most, mut total) = (0, 0);
        for _ in 0..self.commits {
            let added = Tier { level: 0, entries: self.entries as f64, segments: 1 };
            of_indexes.uploaded += added.bytes();
            list.insert(0, added);
            if let Some(Choice { inputs, level, .. }) = chosen.take() {
                // One more run precedes them than when they were chosen.
                let inputs = inputs.start + 1..inputs.end + 1;
                let merged = self.merge(&list[inputs.clone()], level);
                of_indexes.count(&list[inputs.clone()], &merged);
                list.splice(inputs, [merged]);
            }
            chosen = next_merge(&list.iter().map(|run| self.shape(run)).collect::<Vec<_>>(), true);
            most = most.max(list.len());
            total += list.len() as u64;
        }
        let written = (self.commits * self.entries * self.entry_bytes) as f64;
        Figures {
            runs_max: most,
            runs_mean: total as f64 / self.commits as f64,
            index_percent_of_written: 100.0 * of_indexes.uploaded / written,
            index_percent_read: 100.0 * of_indexes.read / written,
            merges: of_indexes.merges,
            largest_run_bytes: of_indexes.largest,
            root_bytes: self.root_bytes(most),
            // One merge of each kind, which names its newest and its oldest input.
            record_bytes_max: FRAME + SEGMENT_REFERENCE + 2 * (2 * 25 + RUN_REFERENCE),
        }
    }

    fn shape(&self, run: &Tier) -> Shape {
        let sectors = run.entries * (self.entry_bytes / SECTOR_BYTES) as f64;
        Shape { level: run.level, sectors: sectors as u64 }
    }

    fn root_bytes(&self, runs: usize) -> u64 {
        let chunks = self.volume_bytes.div_ceil(CHUNK_SECTORS * SECTOR_BYTES);
        FRAME + REMEMBERED_ATTACHES as u64 * ATTACH + chunks.div_ceil(8) + runs as u64 * RUN_REFERENCE
    }

    fn merge(&self, inputs: &[Tier], level: u8) -> Tier {
        let places = (self.volume_bytes / self.entry_bytes) as f64;
        let entries = if self.is_random {
            let free: f64 = inputs.iter().map(|run| 1.0 - run.entries / places).product();
            places * (1.0 - free)
        } else {
            inputs.iter().map(|run| run.entries).sum::<f64>().min(places)
        };
        Tier { level, entries, segments: inputs.iter().map(|run| run.segments).sum() }
    }
}
