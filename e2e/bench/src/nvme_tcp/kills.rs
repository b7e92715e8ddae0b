//! Repeated kills of the target under forced writes and a file system, with an immediate successor. A script
//! in the machine runs each round, so the times do not depend on the host.

use std::time::Duration;

use anyhow::Result;
use holdfast_lab::churn::ensure_reported_exist;
use holdfast_lab::report;
use holdfast_lab::vm::bash;
use holdfast_scenarios::kill_rounds::longest_write;

use super::target::RunningTarget;
use crate::Figure;

/// Kills per way.
const KILLS: usize = 20;
/// Mount point of the file system.
const MOUNT_POINT: &str = "/mnt/nvme";
/// Threads that use the file system.
const WORKERS: u32 = 2;
/// Names of the programs that generate load.
const RAW: &str = "nvme-raw";
const EXT4: &str = "nvme-ext4";
const SIGKILL: i32 = 9;
/// Makes fio report and exit.
const SIGINT: i32 = 2;
const END_LIMIT: Duration = Duration::from_secs(300);

/// Work of a killed target's successor, besides listening.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Successor {
    /// Nothing: the kernel reconnects after its delay, at least one second.
    Waits,
    /// Makes the kernel create a second controller, which is a new path to the same namespaces, and remove
    /// the first.
    Connects,
}

impl Successor {
    pub(super) const ALL: [Self; 2] = [Self::Waits, Self::Connects];

    /// Returns a script of one kill and of the successor until it serves both devices.
    fn round(self, raw: &str, ext4: &str) -> String {
        let (connect, remove) = match self {
            Self::Waits => ("", ""),
            // The first controller is removed once the second has a path to both namespaces: without any
            // path, Linux 6.1 fails requests.
            Self::Connects => (
                "until connect ,duplicate_connect; do sleep 0.001; done",
                "echo 1 > /sys/class/nvme/$old/delete_controller",
            ),
        };
        format!(
            "old=$(controllers); stop; start\n{connect}\n\
             for device in {raw} {ext4}; do\n\
               read=\"dd if=$device of=/dev/null bs=4k count=1 iflag=direct status=none\"\n\
               timeout 60 $read || {{ echo \"$device hangs\"; exit 1; }}\n\
             done\n{remove}"
        )
    }
}

/// Outcome of the kills in one way.
pub(super) struct TargetKills {
    rounds: usize,
    errors: Vec<String>,
    longest: Duration,
}

/// Kills the target repeatedly under load and verifies the data.
pub(super) fn kill(target: &RunningTarget<'_>, successor: Successor) -> Result<TargetKills> {
    let (raw, ext4) = (target.raw()?, target.for_file_system()?);
    target.vm.exec(&format!("mkfs.ext4 -q -F {ext4}; mkdir -p {MOUNT_POINT}; mount {ext4} {MOUNT_POINT}"))?;
    target.vm.exec(&format!("rm -f /var/log/holdfast/{{{RAW},{EXT4}}}.log; dmesg --clear"))?;
    target.vm.spawn(EXT4, &bash(&format!("exec holdfast-e2e churn {MOUNT_POINT} {WORKERS}")))?;
    let fio = format!(
        "exec fio --name=raw --filename={raw} --direct=1 --sync=dsync --rw=randwrite --bs=4k --ioengine=psync --thread \
         --numjobs=4 --offset_increment=8M --size=8M --time_based --runtime=100000 --group_reporting --output-format=json"
    );
    target.vm.spawn(RAW, &bash(&fio))?;
    let mut killed = TargetKills { rounds: 0, errors: Vec::new(), longest: Duration::ZERO };
    let round = successor.round(&raw, &ext4);
    for number in 0..KILLS {
        // The intervals between kills vary.
        let apart = 0.2 + 0.01 * (number % 10) as f64;
        if let Err(error) = target.script(&format!("sleep {apart}\n{round}")) {
            report::step(format_args!("{successor:?}, kill {number}: {error:#}"));
            killed.errors.push(error.to_string());
            return Ok(killed);
        }
        killed.rounds += 1;
    }
    for program in [RAW, EXT4] {
        if let Some(exit) = target.vm.status(program)? {
            killed.errors.push(format!("{program} ended: {exit:?}\n{}", target.vm.log(program)?));
        }
    }
    if killed.errors.is_empty() {
        killed.longest = end(target)?;
        if let Err(error) = check(target, &ext4) {
            killed.errors.push(format!("{error:#}"));
        }
    }
    report::step(format_args!(
        "{successor:?}: {} kills, the longest forced write took {:.1?}",
        killed.rounds, killed.longest
    ));
    killed.errors.iter().for_each(report::step);
    Ok(killed)
}

/// Stops the load. Returns the longest time of a forced write.
fn end(target: &RunningTarget<'_>) -> Result<Duration> {
    target.vm.signal(EXT4, SIGKILL)?;
    target.vm.wait(EXT4, END_LIMIT)?;
    target.vm.signal(RAW, SIGINT)?;
    target.vm.wait(RAW, END_LIMIT)?;
    longest_write(&target.vm.log(RAW)?)
}

/// Checks that the kernel reported no error, the file system is consistent, and each flushed file exists.
fn check(target: &RunningTarget<'_>, ext4: &str) -> Result<()> {
    let found = target.vm.exec(&format!(
        "umount {MOUNT_POINT}; e2fsck -fn {ext4} >&2; mount {ext4} {MOUNT_POINT}; holdfast-e2e churn-check {MOUNT_POINT}; \
         umount {MOUNT_POINT}; ! dmesg | grep -iE 'I/O error|corrupt' >&2"
    ))?;
    ensure_reported_exist(&target.vm.log(EXT4)?, &found)
}

/// Results of the kills on all kernels.
#[derive(Default)]
pub(super) struct KillFigures {
    rounds: usize,
    errors: usize,
    waits: Duration,
    connects: Duration,
}

impl KillFigures {
    pub(super) fn add(&mut self, successor: Successor, TargetKills { rounds, errors, longest }: TargetKills) {
        self.rounds += rounds;
        self.errors += errors.len();
        let all = match successor {
            Successor::Waits => &mut self.waits,
            Successor::Connects => &mut self.connects,
        };
        *all = longest.max(*all);
    }

    pub(super) fn figures(&self) -> [Figure; 4] {
        let figure = |name: &str, value: f64, unit, against: &str| Figure {
            name: format!("nvme_tcp_{name}"),
            value,
            unit,
            against: against.to_owned(),
            bar: None,
        };
        let ms = |longest: Duration| longest.as_secs_f64() * 1e3;
        [
            figure("kill_rounds", self.rounds as f64, "count", "kills of the target, on all kernels"),
            figure(
                "kill_errors",
                self.errors as f64,
                "count",
                "programs that saw an error, devices that hang, damage",
            ),
            figure("longest_gap_ms", ms(self.waits), "ms", "the longest forced write, reconnect_delay=1"),
            figure(
                "new_controller_longest_gap_ms",
                ms(self.connects),
                "ms",
                "the same where the successor makes a second controller",
            ),
        ]
    }
}
