//! Status of a volume: for users, metrics and Kubernetes.

use std::sync::atomic::Ordering;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use holdfast_engine::event::Errno;
use holdfast_engine::settings::Durability;
use holdfast_engine::volume::{Delay, IndexStatus, PaceStatus, Status, Unreadable};
use holdfast_memory::MemoryFigures;
use holdfast_objects::{RequestCounts, StoreTraffic};
use holdfast_s3::StoreAdaptation;
use holdfast_types::VolumeId;
use holdfast_ublk::Device;

use crate::node::store::watched::{RefusedDeletes, StoreHealth, StoreOutage};
use crate::node::volume::present::Present;
use crate::node::volume::state::{State, WriterState};
use crate::node::volume::table::{SeenVolume, refusal};
use crate::node::{Attached, MemoryIdentity};
use holdfast_serve::{LimitStatus, ServedCounts};

/// Maximum time of a deletion that is not delayed by a program.
const HELD_OPEN_AFTER: Duration = Duration::from_secs(1);

/// Shorter faults of a store are not reported.
const STORE_FAULT_AFTER: Duration = Duration::from_secs(5);

/// State of a volume, as reported.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum VolumeState {
    /// Being attached.
    Attaching,
    /// Served.
    Attached,
    /// Its final commit is in progress.
    Detaching,
    /// Another writer owns it; all I/O fails.
    Fenced,
    /// Recovery after a daemon restart has neither ended nor failed yet: requests to its device wait.
    Recovering,
    /// Recovery after a daemon restart failed and is retried: requests to its device wait.
    Quiesced,
    /// Its attach failed halfway, or another program removed its device: no device serves it, and only a
    /// detach is possible.
    Unserved,
}

impl VolumeState {
    /// Returns the state to report; `None` for a volume that is not attached.
    pub(in crate::node) fn of(state: &State) -> Option<Self> {
        let shown = match state {
            State::Evicting | State::Detached => return None,
            State::Recovering { error: None, .. } => return Some(Self::Recovering),
            State::Recovering { error: Some(_), .. } => return Some(Self::Quiesced),
            State::Attaching { .. } => Self::Attaching,
            State::Unserved { .. } => Self::Unserved,
            State::Serving { .. } => Self::Attached,
            State::Detaching { .. } => Self::Detaching,
        };
        Some(match state.writer()? {
            WriterState::Fenced | WriterState::Preserved { .. } => Self::Fenced,
            WriterState::Starting if shown != Self::Unserved => Self::Attaching,
            WriterState::Starting | WriterState::Ready | WriterState::Detached => shown,
        })
    }
}

/// A volume on this node.
#[derive(Debug, Clone)]
pub(crate) struct NodeVolumeStatus {
    /// The volume.
    pub(crate) volume: VolumeId,
    /// Its state.
    pub(crate) state: VolumeState,
    /// Message for a user.
    pub(crate) message: Option<String>,
    /// Its device, if it exists.
    pub(crate) attached: Option<Attached>,
    /// Its commits.
    pub(crate) commit: CommitStatus,
    /// False if every byte reads as zero and no writer was replaced; `None` while unknown.
    pub(crate) holds_data: Option<bool>,
    /// Point at which a FLUSH is complete; `None` while unknown.
    pub(crate) durability: Option<Durability>,
    /// Age at which data is uploaded; `None` while unknown.
    pub(crate) max_dirty_age: Option<Duration>,
    /// Its store.
    pub(crate) store: StoreStatus,
    /// Delays of its requests.
    pub(crate) delays: DelayStatus,
    /// Its part of the local disk.
    pub(crate) disk: DiskStatus,
    /// Its list of index runs.
    pub(crate) index: IndexStatus,
    /// Requests and bytes served so far.
    pub(crate) served: ServedCounts,
    /// Memory used by a memory volume, once it is served; `None` for others.
    pub(crate) memory: Option<MemoryFigures>,
    /// Shape and owner of a memory volume, once its files are open; `None` for others.
    pub(crate) memory_identity: Option<MemoryIdentity>,
}

/// Committed and pending data of a volume.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct CommitStatus {
    /// The last record in the log.
    pub(crate) seq: Option<u64>,
    /// Bytes not yet committed; `None` while unknown.
    pub(crate) dirty_bytes: Option<u64>,
    /// Age of the oldest of them.
    pub(crate) oldest_dirty: Option<Duration>,
    /// All writes completed before this time are committed; `None` while unknown.
    pub(crate) durable_through: Option<SystemTime>,
}

/// A volume's store from this node's view, which all volumes of the store share.
#[derive(Debug, Clone, Default)]
pub(crate) struct StoreStatus {
    /// Its name.
    pub(crate) name: String,
    /// Availability of the store for this node.
    pub(crate) health: StoreHealth,
    /// Reason why its newest configuration is not in use.
    pub(crate) change_refused: Option<String>,
    /// Deletes that it denied.
    pub(crate) refused_deletes: RefusedDeletes,
    /// Requests sent to it; `None` while it is not connected.
    pub(crate) requests: Option<RequestCounts>,
    /// Requests of the volume's reads, uploads, commits and merges since it was attached or recovered here.
    pub(crate) of_volume: StoreTraffic,
    /// Adaptation of the requests to it; `None` while it is not connected.
    pub(crate) adaptation: Option<StoreAdaptation>,
}

/// Delays of a volume's requests.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct DelayStatus {
    /// Reason why writes wait, and for how long.
    pub(crate) writes: Option<(Delay, Duration)>,
    /// Writes delayed by pacing.
    pub(crate) pace: PaceStatus,
    /// Its limits in effect, and the resulting delays.
    pub(crate) limits: LimitStatus,
    /// Requests that wait for the store, memory or space.
    pub(crate) waiting_requests: usize,
}

/// State of the local disk for a volume.
#[derive(Debug, Clone, Default)]
pub(crate) struct DiskStatus {
    /// A sync failed: flushes wait for commits until the next attach.
    pub(crate) sync_failed: bool,
    /// Un-uploaded data that the disk cannot read: nothing is uploaded in the meantime.
    pub(crate) unreadable: Option<Unreadable>,
    /// Error of its failing writes of the map or the log record, and their duration.
    pub(crate) unkept: Option<(Errno, Duration)>,
    /// Bytes held by the sides.
    pub(crate) cached_bytes: u64,
    /// Clean bytes evicted from the sides since this process serves the volume.
    pub(crate) evicted_bytes: u64,
}

impl NodeVolumeStatus {
    /// Returns true for a memory volume that a user attached: it has no Volume object.
    pub(crate) fn is_attached_by_user(&self) -> bool {
        self.memory_identity.as_ref().is_some_and(|identity| identity.owner.is_none())
    }

    /// Returns the current status of a volume; `None` if it is detached.
    pub(in crate::node) fn of(seen: SeenVolume) -> Option<Self> {
        let SeenVolume { volume, state, present } = seen;
        let shown = VolumeState::of(&state)?;
        Some(match present {
            Some(present) => Self::present(volume, &present, &state, shown),
            None => {
                let message = recovery_failure(&volume, &state);
                let (store_name, durability) = match state {
                    State::Attaching { store_name, durability, .. } => (store_name, Some(durability)),
                    State::Recovering { .. }
                    | State::Serving { .. }
                    | State::Unserved { .. }
                    | State::Detaching { .. }
                    | State::Evicting
                    | State::Detached => (String::new(), None),
                };
                Self { message, ..Self::unknown(volume, shown, store_name, durability) }
            }
        })
    }

    /// Returns the status of a volume that is not on a ring thread.
    pub(in crate::node) fn unknown(
        volume: VolumeId,
        state: VolumeState,
        store_name: String,
        durability: Option<Durability>,
    ) -> Self {
        Self {
            volume,
            state,
            message: None,
            attached: None,
            commit: CommitStatus::default(),
            holds_data: None,
            durability,
            max_dirty_age: None,
            store: StoreStatus { name: store_name, ..StoreStatus::default() },
            delays: DelayStatus::default(),
            disk: DiskStatus::default(),
            index: IndexStatus::default(),
            served: ServedCounts::default(),
            memory: None,
            memory_identity: None,
        }
    }

    fn present(volume: VolumeId, present: &Present, state: &State, shown: VolumeState) -> Self {
        let status = present.published.status();
        let health = present.objects.health().of(&volume, status.parked);
        let message =
            recovery_failure(&volume, state).or_else(|| message(state, &status, health.unreachable()));
        let held_open = state.deletion().filter(|(_, since)| since.elapsed() >= HELD_OPEN_AFTER);
        let held_open = held_open.map(|(device, _)| still_open(device));
        let message = match (message, held_open) {
            (Some(message), Some(held_open)) => Some(format!("{message}; {held_open}")),
            (message, held_open) => message.or(held_open),
        };
        Self {
            volume,
            state: shown,
            message,
            attached: state.serving_device().map(|device| present.attached_by(device)),
            commit: CommitStatus {
                seq: status.committed.map(|seq| seq.0),
                dirty_bytes: Some(status.dirty_bytes),
                oldest_dirty: status.oldest_dirty_ms.map(Duration::from_millis),
                durable_through: status
                    .durable_until_unix_ms
                    .map(|ms| UNIX_EPOCH + Duration::from_millis(ms)),
            },
            holds_data: status.holds_data,
            durability: Some(status.settings.durability),
            max_dirty_age: Some(Duration::from_millis(status.settings.max_age_ms)),
            store: StoreStatus {
                name: present.store_name.clone(),
                health,
                change_refused: present.objects.refused_change(),
                refused_deletes: present.objects.refused_deletes(),
                requests: Some(present.objects.current().counts()),
                of_volume: present.requests.traffic(),
                adaptation: present.objects.current().adaptation(),
            },
            delays: DelayStatus {
                writes: status.delayed.map(|(delay, ms)| (delay, Duration::from_millis(ms))),
                pace: status.pace,
                limits: present.published.limits(),
                waiting_requests: status.parked,
            },
            disk: DiskStatus {
                sync_failed: status.sync_failed,
                unreadable: status.unreadable,
                unkept: status.unkept.map(|(errno, ms)| (errno, Duration::from_millis(ms))),
                cached_bytes: present.published.cached_bytes.load(Ordering::Relaxed),
                evicted_bytes: status.evicted_bytes,
            },
            index: status.index,
            served: present.published.served(),
            memory: None,
            memory_identity: None,
        }
    }
}

fn still_open(device: Device) -> String {
    format!(
        "{} is stopped and still open by a process; it is deleted once that has closed it",
        device.block_path().display()
    )
}

/// Returns the reason why a volume of the previous process is not served, if so.
fn recovery_failure(volume: &VolumeId, state: &State) -> Option<String> {
    matches!(state, State::Recovering { .. }).then(|| refusal(volume, state).to_string())
}

/// Returns the most important message about a volume on a ring thread.
fn message(state: &State, status: &Status, outage: Option<&StoreOutage>) -> Option<String> {
    if state.is_fenced() {
        let preserve_error = match state {
            State::Detaching { preserve_error, .. } => preserve_error.clone(),
            State::Attaching { .. }
            | State::Recovering { .. }
            | State::Serving { .. }
            | State::Unserved { .. }
            | State::Evicting
            | State::Detached => None,
        };
        return preserve_error
            .or_else(|| Some("another writer holds the volume; local data is kept".to_owned()));
    }
    let is_unserved = matches!(state, State::Unserved { .. });
    if state.writer() == Some(WriterState::Starting) && !is_unserved {
        let uploading = "uploading data that was left dirty by the previous process";
        return Some(with_store_fault(uploading, outage));
    }
    let unreadable = || unreadable(status, state.serving_device().is_some()).or_else(|| unkept(status));
    match state {
        State::Serving { .. } => unreadable().or_else(|| match fault(status) {
            Some(WaitCause::Store) => Some(with_store_fault("requests wait for the object store", outage)),
            Some(WaitCause::Local(said)) => Some(said.to_owned()),
            None => {
                let lasting = |outage: &&StoreOutage| {
                    outage.since.elapsed().is_ok_and(|passed| passed >= STORE_FAULT_AFTER)
                };
                let served = "local data is served, and uploads wait for the object store";
                outage.filter(lasting).map(|outage| with_store_fault(served, Some(outage)))
            }
        }),
        State::Detaching { .. } => {
            let commits = || {
                (status.dirty_bytes > 0).then(|| with_store_fault("the last commit is in progress", outage))
            };
            unreadable().or_else(commits)
        }
        State::Unserved { .. } => {
            let said = "no device serves it: its attach failed, or another program removed its device (`losetup --detach`, an \
                        abort of its connection); detach it, then attach it again";
            Some(said.to_owned())
        }
        State::Attaching { .. } | State::Recovering { .. } | State::Evicting | State::Detached => None,
    }
}

/// Appends the store's last error to a state, if the store does not serve the volume.
fn with_store_fault(state: &str, outage: Option<&StoreOutage>) -> String {
    outage.map_or_else(|| state.to_owned(), |outage| format!("{state}: {}", outage.error))
}

fn unreadable(status: &Status, has_device: bool) -> Option<String> {
    let Unreadable { bytes, first, .. } = status.unreadable?;
    let first = first.start.byte_offset();
    let remedy = if has_device {
        "write or discard them"
    } else {
        "the detach waits until it can. Or let another node take the volume over, without the unuploaded data \
         (`attach --take-over` there, or the annotation holdfast.dev/force-detach). Then `holdfast-node fenced \
         export` here exports that data, except these bytes"
    };
    Some(format!(
        "nothing is uploaded: the local disk cannot read {bytes} bytes from byte {first} on; {remedy}"
    ))
}

/// Returns the message for a volume whose next commit is blocked by the local disk.
fn unkept(status: &Status) -> Option<String> {
    let (errno, _) = status.unkept?;
    Some(if errno == Errno::ENOSPC {
        "commits wait: the disk under node.state_dir is full; free space on it".to_owned()
    } else {
        let error = std::io::Error::from_raw_os_error(errno.0);
        format!(
            "commits wait: the disk under node.state_dir fails writes of the volume's map ({error}); check it"
        )
    })
}

/// Reason why requests wait or a volume is impaired.
enum WaitCause {
    /// They wait for the store.
    Store,
    /// Any other reason.
    Local(&'static str),
}

fn fault(status: &Status) -> Option<WaitCause> {
    if status.parked > 0 {
        Some(WaitCause::Local(if status.full.run_dir {
            "writes wait: the run directory (node.run_dir) is full; free space in that tmpfs or enlarge it"
        } else if status.full.disk {
            "requests wait: the local disk is full"
        } else if status.full.cache {
            "writes wait: the cache is full of data that is not uploaded yet"
        } else {
            return Some(WaitCause::Store);
        }))
    } else if status.sync_failed {
        let said = "the local disk failed a sync: flushes wait for uploads until the next attach";
        Some(WaitCause::Local(said))
    } else if status.repairing {
        Some(WaitCause::Local("damage in the store is being repaired"))
    } else {
        None
    }
}

#[cfg(test)]
mod tests {
    use holdfast_engine::volume::FullResources;
    use holdfast_objects::{Blocker, ErrorKind};
    use holdfast_types::SectorRange;

    use super::*;
    use crate::node::volume::state::BlockDevice;
    use crate::node::volume::state::tests::device;

    #[test]
    fn a_status_message_names_the_fault_and_the_remedy() {
        let lost = Unreadable { first: SectorRange::new(16, 2), bytes: 8192, since_unix_ms: 0 };
        let unreadable = Status { unreadable: Some(lost), dirty_bytes: 8192, parked: 1, ..Status::default() };
        let serving = State::Serving { device: device(), writer: WriterState::Ready };
        assert_eq!(VolumeState::of(&serving), Some(VolumeState::Attached));
        let said = message(&serving, &unreadable, None).unwrap();
        assert!(said.contains("8192 bytes from byte 65536 on; write or discard them"), "{said}");
        let detaching = State::Detaching {
            device: BlockDevice::None,
            writer: WriterState::Ready,
            is_running: true,
            preserve_error: None,
        };
        assert_eq!(VolumeState::of(&detaching), Some(VolumeState::Detaching));
        assert!(
            message(&detaching, &unreadable, None)
                .unwrap()
                .contains("the detach waits until it can. Or let another node take the volume over"),
            "there is no device to write to"
        );

        let full = Status {
            parked: 1,
            full: FullResources { disk: true, ..FullResources::default() },
            sync_failed: true,
            ..Status::default()
        };
        assert_eq!(message(&serving, &full, None).as_deref(), Some("requests wait: the local disk is full"));
        let full = Status {
            parked: 1,
            full: FullResources { run_dir: true, ..FullResources::default() },
            ..Status::default()
        };
        assert!(message(&serving, &full, None).unwrap().contains("the run directory (node.run_dir) is full"));
        for (errno, part) in
            [(Errno::ENOSPC, "is full; free space"), (Errno::EROFS, "(Read-only file system")]
        {
            let unkept = Status { unkept: Some((errno, 1)), dirty_bytes: 1, ..Status::default() };
            for state in [&serving, &detaching] {
                let said = message(state, &unkept, None).unwrap();
                assert!(said.contains("the disk under node.state_dir") && said.contains(part), "{said}");
            }
        }
        let sync_failed = Status { sync_failed: true, ..Status::default() };
        assert!(message(&serving, &sync_failed, None).unwrap().starts_with("the local disk failed a sync"));
        let fine = Status::default();
        assert_eq!(message(&serving, &fine, None), None);
    }

    /// Regression: `list` showed no message, or none that named a cause.
    #[test]
    fn a_store_that_does_not_serve_the_volume_is_named() {
        let outage = StoreOutage {
            since: SystemTime::now() - Duration::from_secs(6),
            error: "the object store cannot serve the request (QuotaExceeded)".to_owned(),
            kind: ErrorKind::Blocked(Blocker::Quota),
            object: None,
        };
        let serving = State::Serving { device: device(), writer: WriterState::Ready };
        let said = |status: &Status| message(&serving, status, Some(&outage)).unwrap();
        let (fine, parked) = (Status::default(), Status { parked: 1, ..Status::default() });
        for (status, state) in [(&fine, "uploads wait for the object store: "), (&parked, "requests wait")] {
            let said = said(status);
            assert!(said.contains(state) && said.ends_with("(QuotaExceeded)"), "{said}");
        }
        let short = StoreOutage { since: SystemTime::now(), ..outage.clone() };
        assert_eq!(message(&serving, &fine, Some(&short)), None);
    }

    /// Regression: it was reported as attaching until it was detached.
    #[test]
    fn an_attach_that_failed_half_way_is_unserved() {
        for (writer, shown) in [
            (WriterState::Starting, VolumeState::Unserved),
            (WriterState::Ready, VolumeState::Unserved),
            (WriterState::Detached, VolumeState::Unserved),
            (WriterState::Fenced, VolumeState::Fenced),
        ] {
            let unserved = State::Unserved { device: BlockDevice::Idle(device()), writer };
            assert_eq!(VolumeState::of(&unserved), Some(shown), "{writer:?}");
            let said = message(&unserved, &Status::default(), None).unwrap();
            let names_the_way_out = said.ends_with("detach it, then attach it again");
            assert_eq!(names_the_way_out, shown == VolumeState::Unserved, "{said}");
        }
        let starting = State::Attaching {
            store_name: String::new(),
            durability: Durability::Local,
            device: BlockDevice::None,
            writer: WriterState::Starting,
        };
        assert_eq!(VolumeState::of(&starting), Some(VolumeState::Attaching));
    }
}
