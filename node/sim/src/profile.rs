//! Faults of a run, and their frequency.

use holdfast_format::safeguard::Safeguard;

use crate::bug::{Bug, Mutation};
use crate::failures::Faults;

/// A mixture of deaths and faults.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Profile {
    /// Any order of jobs and answers, nothing fails.
    Calm,
    /// Creates get ambiguous answers, checkpoints fail.
    BadStore,
    /// Local reads, writes and syncs fail.
    BadDisk,
    /// The process is killed, between steps and inside one.
    Kills,
    /// Hosts lose power.
    PowerCuts,
    /// Long lives on failing disks between power cuts.
    LongLives,
    /// Hosts take the volume from each other.
    Rivals,
    /// All of these.
    Everything,
    /// Hosts are cut off from the store, processes pause and resume after others took over.
    Partitions,
    /// Local disks fill up.
    FullDisks,
    /// Jobs are fast, and local disks fill up: uncommitted data of a lost host is young.
    Timely,
    /// Processes pause for so long that the log is truncated beyond their view of it.
    Sleepers,
    /// Hosts return with an empty disk, an older one, or a copy of another's; the bucket is rolled back; the
    /// volume is created again.
    OtherDisks,
}

/// Frequency of events that end a process, a host or an attach: one chance in this many at each opportunity;
/// `None` is never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Deaths {
    pub(crate) kill: Option<u64>,
    pub(crate) kill_inside: Option<u64>,
    pub(crate) lose_host: Option<u64>,
    pub(crate) take_over: Option<u64>,
    pub(crate) detach: Option<u64>,
    /// The volume grows: at an attach, or while it is served.
    pub(crate) grow: Option<u64>,
}

/// Frequency of faults that a host survives: one chance in this many at each opportunity; `None` is never.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct FaultRates {
    pub(crate) cut_off: Option<u64>,
    pub(crate) pause: Option<u64>,
    pub(crate) fill: Option<u64>,
    pub(crate) slow: Option<u64>,
    /// A sector becomes unreadable.
    pub(crate) corruption: Option<u64>,
    /// A host gets another disk.
    pub(crate) other_disk: Option<u64>,
}

impl Profile {
    /// All profiles.
    pub const ALL: [Self; 13] = [
        Self::Calm,
        Self::BadStore,
        Self::BadDisk,
        Self::Kills,
        Self::PowerCuts,
        Self::LongLives,
        Self::Rivals,
        Self::Everything,
        Self::Partitions,
        Self::FullDisks,
        Self::Timely,
        Self::OtherDisks,
        Self::Sleepers,
    ];

    /// Returns the profile of the runs of `seed`.
    pub fn of(seed: u64) -> Self {
        Self::ALL[(seed % Self::ALL.len() as u64) as usize]
    }

    /// Returns the first seed of its runs, and the distance between them.
    pub(crate) fn seeds(self) -> (u64, u64) {
        let first = Self::ALL.iter().position(|profile| *profile == self);
        (first.expect("all profiles are listed") as u64, Self::ALL.len() as u64)
    }

    /// Returns the profile whose runs reveal a missing safeguard, if few or no others do; otherwise `None`.
    pub(crate) fn for_bug(bug: Bug) -> Option<Self> {
        let safeguard = match bug {
            Bug::Missing(safeguard) => safeguard,
            Bug::Mutation(Mutation::RecordNeedsRoom) => return Some(Self::Timely),
            Bug::Mutation(Mutation::CompletedTwice | Mutation::ZerosNotFilled) => return None,
        };
        if [Safeguard::KeepAttachRecords, Safeguard::CheckTruncation].contains(&safeguard) {
            Some(Self::Sleepers)
        } else if [Safeguard::SealByAge, Safeguard::ReleaseStillChunks].contains(&safeguard) {
            Some(Self::Timely)
        } else if [Safeguard::RejectOlderState, Safeguard::RejectOtherStore].contains(&safeguard) {
            Some(Self::OtherDisks)
        } else if [Safeguard::CheckMergePlace, Safeguard::PrepareReleased, Safeguard::FetchTheRest]
            .contains(&safeguard)
        {
            Some(Self::BadStore)
        } else {
            None
        }
    }

    pub(crate) fn deaths(self) -> Deaths {
        let never = Deaths { grow: Some(4), ..Deaths::default() };
        match self {
            Self::Calm | Self::BadStore | Self::BadDisk => Deaths { detach: Some(900), ..never },
            Self::Kills => Deaths { kill: Some(120), kill_inside: Some(120), detach: Some(900), ..never },
            Self::PowerCuts => Deaths {
                kill: Some(700),
                kill_inside: Some(700),
                lose_host: Some(200),
                detach: Some(1200),
                ..never
            },
            Self::LongLives => Deaths { kill: Some(3000), lose_host: Some(700), detach: Some(3000), ..never },
            Self::Rivals | Self::Everything => Deaths {
                kill: Some(500),
                kill_inside: Some(500),
                lose_host: Some(700),
                take_over: Some(300),
                detach: Some(700),
                ..never
            },
            Self::Partitions => Deaths {
                kill: Some(1500),
                lose_host: Some(3000),
                take_over: Some(400),
                detach: Some(1200),
                ..never
            },
            Self::FullDisks => Deaths { kill: Some(900), lose_host: Some(900), detach: Some(900), ..never },
            Self::Timely => Deaths { kill: Some(700), lose_host: Some(900), detach: Some(1200), ..never },
            Self::Sleepers => Deaths {
                kill: Some(2000),
                lose_host: Some(3000),
                take_over: Some(400),
                detach: Some(300),
                ..never
            },
            Self::OtherDisks => Deaths {
                kill: Some(3000),
                lose_host: Some(3000),
                take_over: Some(2500),
                detach: Some(3000),
                ..never
            },
        }
    }

    pub(crate) fn fault_rates(self) -> FaultRates {
        let never = FaultRates::default();
        match self {
            Self::Calm | Self::BadStore | Self::Kills | Self::PowerCuts | Self::Rivals => never,
            // Commits need no space.
            Self::Timely => FaultRates { fill: Some(250), ..never },
            Self::BadDisk => FaultRates { corruption: Some(150), ..never },
            Self::LongLives => FaultRates { corruption: Some(300), ..never },
            Self::Everything => FaultRates {
                cut_off: Some(900),
                pause: Some(900),
                fill: Some(1500),
                slow: Some(900),
                corruption: Some(500),
                ..never
            },
            Self::Partitions => FaultRates { cut_off: Some(300), pause: Some(300), ..never },
            Self::FullDisks => FaultRates { fill: Some(250), slow: Some(400), ..never },
            Self::Sleepers => FaultRates { pause: Some(1000), ..never },
            Self::OtherDisks => FaultRates { other_disk: Some(25), pause: Some(1500), ..never },
        }
    }

    /// Returns true if every job has a bounded duration.
    pub(crate) fn is_timely(self) -> bool {
        self == Self::Timely
    }

    pub(crate) fn faults(self) -> Faults {
        let bad_store = Faults {
            create: Some(3),
            store: Some(12),
            read: Some(200),
            stale_list: Some(4),
            ..Faults::default()
        };
        match self {
            Self::Calm | Self::FullDisks | Self::Timely => Faults::default(),
            Self::BadStore
            | Self::Kills
            | Self::PowerCuts
            | Self::Rivals
            | Self::Partitions
            | Self::OtherDisks => bad_store,
            // Delays before retries would hold up commits.
            Self::Sleepers => Faults { create: Some(15), store: Some(60), ..bad_store },
            Self::BadDisk => {
                Faults { local: Some(25), sync: Some(100), create: Some(6), ..Faults::default() }
            }
            Self::LongLives => Faults { local: Some(20), sync: Some(20), ..bad_store },
            Self::Everything => Faults { local: Some(60), sync: Some(100), ..bad_store },
        }
    }
}
