//! Lanes: scenarios on the kernels of their machines, and those that a run plays.

use std::fmt;

use anyhow::{Context, Result, ensure};
use holdfast_lab::pins::{KERNEL, KernelPin, LTS_KERNEL};

use super::{ALL, BY_NAME, Scenario};

/// A scenario and the kernel of its machines. Its name, as in `kill-rounds-user-copy@6.12`, contains that of
/// the kernel unless that is the default.
#[derive(Debug, Clone, Copy)]
pub struct ScenarioLane {
    /// The scenario.
    pub scenario: &'static Scenario,
    /// The kernel.
    pub kernel: KernelPin,
}

impl fmt::Display for ScenarioLane {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.scenario.name)?;
        if self.kernel == KERNEL { Ok(()) } else { write!(f, "@{}", self.kernel.name()) }
    }
}

/// Scenarios that run on this kernel, too, in a run without a filter.
const ALSO_ON: &[(&str, KernelPin)] = &[("ublk-devices", LTS_KERNEL), ("ublk-user-copy", LTS_KERNEL)];
/// Scenarios that run on this kernel without a filter, because the default one has a faster transport.
const INSTEAD_ON: &[(&str, KernelPin)] = &[("kill-rounds-user-copy", LTS_KERNEL)];

/// Returns the lanes of a run without a filter, in order.
pub fn usual_lanes() -> Vec<ScenarioLane> {
    let on = |lanes: &'static [(&str, KernelPin)], scenario: &Scenario| {
        lanes.iter().find(|(name, _)| *name == scenario.name).map(|(_, kernel)| *kernel)
    };
    let usual = ALL
        .iter()
        .map(|scenario| ScenarioLane { scenario, kernel: on(INSTEAD_ON, scenario).unwrap_or(KERNEL) });
    let also =
        ALL.iter().filter_map(|scenario| Some(ScenarioLane { scenario, kernel: on(ALSO_ON, scenario)? }));
    usual.chain(also).collect()
}

/// Returns the lanes selected by a part of a name: among those of a run without a filter, and every scenario
/// on the default kernel; or, with `@` and the name of a kernel after the part (see [`KernelPin::of`]), every
/// scenario on that kernel.
///
/// # Errors
/// If there is no such kernel.
pub fn lanes(filter: &str) -> Result<Vec<ScenarioLane>> {
    let Some((part, kernel)) = filter.split_once('@') else {
        let on_usual = ALL.iter().chain(BY_NAME).map(|scenario| ScenarioLane { scenario, kernel: KERNEL });
        let on_others = usual_lanes().into_iter().filter(|lane| lane.kernel != KERNEL);
        let all = on_usual.chain(on_others);
        return ensure_some(filter, all.filter(|lane| lane.scenario.name.contains(filter)).collect());
    };
    let kernel = KernelPin::of(kernel)?;
    let all = ALL.iter().chain(BY_NAME).filter(|scenario| scenario.name.contains(part));
    let all = all.filter(|scenario| !part.is_empty() || !WITH_A_PROGRAM.contains(&scenario.name));
    ensure_some(filter, all.map(|scenario| ScenarioLane { scenario, kernel }).collect())
}

/// Returns these lanes, unless there are none: a wrong name must not look like a run without failures.
fn ensure_some(filter: &str, lanes: Vec<ScenarioLane>) -> Result<Vec<ScenarioLane>> {
    ensure!(!lanes.is_empty(), "no scenario has {filter:?} in its name: `cargo e2e list` shows them");
    Ok(lanes)
}

/// Returns the lane of this name.
///
/// # Errors
/// If it does not exist.
pub fn lane(name: &str) -> Result<ScenarioLane> {
    let found = lanes(name)?.into_iter().find(|lane| lane.to_string() == name);
    found.with_context(|| format!("no scenario {name:?}"))
}

/// Lanes that alternate in runs without a filter, one per day: together they would take too long.
/// docs/testing.md has the date of each one's last success.
pub const IN_TURN: &[&str] = &[
    "ublk-many@6.12",
    "device-identity@6.12",
    "host-shutdown@6.12",
    "cluster",
    "standalone-user-copy@6.12",
    "kill-rounds-user-copy",
    "kill-rounds-fuse",
    "host-daemons@6.12",
    "failover",
    "held-requests-user-copy@6.12",
    "kill-rounds-zero-copy@7.2",
    "story-user-copy@6.12",
    "ublk-zero-copy@7.2",
    "without-ublk@6.12",
    "seaweedfs",
    "velero",
    "claims-without-ublk",
    "story-user-copy",
    "held-requests-user-copy",
    "memory-pressure-user-copy",
    "memory-pressure-fuse",
    "memory-volumes@6.12",
    "standalone-user-copy",
    "csi-sanity-fuse",
    "story-fuse",
    "kill-rounds-user-copy@6.8",
    "standalone-user-copy@6.8",
    "story-user-copy@6.8",
    "held-requests-user-copy@6.8",
    "device-identity@6.8",
    "memory-volumes@6.8",
    "csi-node@6.8",
    "host-daemons@6.8",
    "kill-rounds-zero-copy@6.17",
    "kill-rounds-zero-copy@7.0",
    "without-ublk@6.14",
    "claims-without-ublk@6.12",
    "csi-node@6.12",
    "csi-sanity-fuse@6.12",
    "stalled-disk-user-copy@6.8",
    "stalled-disk-user-copy",
    "stalled-disk-zero-copy",
    "stalled-disk-fuse",
];

/// Scenarios of a run without a filter that start only while its time permits, except for a different one
/// each day, which always runs: simulations, tests of the workspace or another lane cover much of each. Their
/// number is prime, so that weekly runs play each of them, too.
const IF_TIME_ALLOWS: &[&str] = &[
    "adoption",
    "api-outage",
    "cache-disk",
    "changed-blocks",
    "cordon",
    "damage",
    "device-identity",
    "fenced",
    "group-snapshots",
    "limits",
    "memory-pressure-zero-copy",
    "node-loss",
    "partition",
    "pid-namespace",
    "provisioning",
    "read-only-many",
    "restore",
    "rotation",
    "store-dialects",
    "traces",
    "truncation",
    "ublk-kernel-copy",
    "ublk-many",
];

/// Returns the position of a lane among those that start only while the time of a run permits, on this day
/// since 1970; `None` for a lane of every run.
pub fn day_order(lane: &ScenarioLane, day: u64) -> Option<u64> {
    let place = IF_TIME_ALLOWS.iter().position(|name| **name == lane.to_string())? as u64;
    let all = IF_TIME_ALLOWS.len() as u64;
    Some((place + all - day % all) % all)
}

/// Scenarios outside the rotation: each needs a program that the lab cannot build, and fails without it.
pub const WITH_A_PROGRAM: &[&str] = &["autoscaler"];

/// Returns the lane of the rotation for this day, counted from 1970.
///
/// # Errors
/// If the list names one that does not exist.
pub fn rotation_lane(day: u64) -> Result<ScenarioLane> {
    let place = day % IN_TURN.len() as u64;
    lane(IN_TURN[place as usize])
}

#[cfg(test)]
mod tests {
    use super::*;
    use holdfast_lab::pins::OLDER_KERNEL;

    #[test]
    fn each_rotating_lane_has_its_day() {
        let usual: Vec<String> = usual_lanes().iter().map(ScenarioLane::to_string).collect();
        let days: Vec<String> =
            (0..IN_TURN.len() as u64).map(|day| rotation_lane(20_000 + day).unwrap().to_string()).collect();
        assert!(IN_TURN.iter().all(|name| days.iter().any(|day| day == name)), "{days:?}");
        assert!(days.iter().all(|name| !usual.contains(name)), "one runs twice: {days:?}");
        let others: Vec<&str> = BY_NAME.iter().map(|scenario| scenario.name).collect();
        assert!(others.iter().all(|name| IN_TURN.contains(name) != WITH_A_PROGRAM.contains(name)));
        assert!(WITH_A_PROGRAM.iter().all(|name| others.contains(name)));
    }

    #[test]
    fn each_postponable_lane_comes_first_on_one_day() {
        let usual = usual_lanes();
        let all = IF_TIME_ALLOWS.len() as u64;
        assert!((2..all).all(|number| !all.is_multiple_of(number)), "{all} is not prime");
        let first = |day| {
            let places = usual.iter().filter_map(|lane| Some((day_order(lane, day)?, lane)));
            let mut places: Vec<(u64, String)> =
                places.map(|(place, lane)| (place, lane.to_string())).collect();
            places.sort_unstable();
            assert!(places.iter().map(|(place, _)| *place).eq(0..all), "{places:?}");
            places.remove(0).1
        };
        let mut days: Vec<String> = (0..all).map(|day| first(20_000 + day)).collect();
        days.sort_unstable();
        assert_eq!(days, IF_TIME_ALLOWS);
        assert!(!usual.iter().any(|lane| lane.scenario.alone && day_order(lane, 0).is_some()));
    }

    #[test]
    fn each_additional_lane_is_found_by_its_name() {
        let usual = usual_lanes();
        assert_eq!(usual.len(), ALL.len() + ALSO_ON.len());
        for each in usual {
            let found = lane(&each.to_string()).unwrap();
            assert_eq!((found.scenario.name, found.kernel), (each.scenario.name, each.kernel));
        }
    }

    #[test]
    fn a_filter_chooses_by_name_and_by_kernel() {
        let names = |filter| lanes(filter).unwrap().iter().map(ScenarioLane::to_string).collect::<Vec<_>>();
        assert_eq!(names("ublk-devices"), ["ublk-devices", "ublk-devices@6.12"]);
        assert_eq!(names("ublk-devices@7.2"), ["ublk-devices@7.2"]);
        assert_eq!(names("rounds-user"), ["kill-rounds-user-copy", "kill-rounds-user-copy@6.12"]);
        assert_eq!(names("failover"), ["failover"]);
        assert_eq!(names("@7.2").len(), ALL.len() + BY_NAME.len() - WITH_A_PROGRAM.len());
        assert_eq!(lanes("story@7.2").unwrap()[0].kernel, OLDER_KERNEL);
        let refused = lanes("story@5.10").unwrap_err().to_string();
        assert_eq!(
            refused,
            "no kernel \"5.10\"; there are 7.3, 7.2, 6.12, 6.8, 6.11, 6.14, 6.17, 7.0, and all releases of Ubuntu"
        );
    }
}
