//! Every crash point: the process is killed, or the host lost, at each point named by the engine, and
//! after each single step of one scenario.

use std::process::Command;

use holdfast_engine::event::Op;
use holdfast_engine::settings::DirtyLimits;
use holdfast_format::crash_point::CrashPoint;
use holdfast_format::safeguard::Safeguard;
use holdfast_types::SectorRange;

use holdfast_sim::bug::{Bug, plant};
use holdfast_sim::crash::{CrashScenario, campaign};
use holdfast_sim::drive;
use holdfast_sim::world::{AttachResult, AttachStep, Faults, World};
use holdfast_sim::{Fate, Invariant};

const SECTORS: u64 = 40_000;
const LIMITS: DirtyLimits = DirtyLimits { seal_bytes: 48 * 4096, max_bytes: 96 * 4096, max_age_ms: 10_000 };

/// Writes, flushes, zeroes; the seals, uploads, commits and the checkpoint that follow; the detach.
const SCRIPT: [&[(Op, u64, u64)]; 9] = [
    &[(Op::Write, 0, 8), (Op::Write, 4090, 12), (Op::Write, 32_760, 16)],
    &[(Op::Flush, 0, 0)],
    &[(Op::Write, 4, 8), (Op::Discard, 4094, 20), (Op::Write, 39_990, 10)],
    &[(Op::Flush, 0, 0), (Op::Write, 32_764, 2)],
    // Enough dirty data for a seal, which is committed while the rest is written.
    &[(Op::Write, 100, 40), (Op::Write, 2, 4)],
    &[(Op::Write, 102, 4), (Op::WriteZeroes, 0, 4), (Op::Flush, 0, 0)],
    &[(Op::Write, 104, 4), (Op::Flush, 0, 0)],
    &[(Op::Write, 32_761, 50), (Op::Flush, 0, 0)],
    &[(Op::Read, 0, 64), (Op::Flush, 0, 0)],
];

/// Creates a world whose log reaches its next checkpoint with the second commit of the script.
fn world(seed: u64) -> World {
    let mut world = World::new(seed, 2, SECTORS, LIMITS, Faults::default());
    world.age_log(28);
    world
}

/// Runs the script on host 0 and stops after `steps` steps. Returns true if it ended before.
fn play(world: &mut World, steps: usize) -> bool {
    let mut left = steps;
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    let mut step = |world: &mut World| {
        let more = left > 0;
        left = left.saturating_sub(1);
        if more {
            drive::step(world, 0);
        }
        more
    };
    for requests in SCRIPT {
        for (op, start, sectors) in requests {
            while !world.is_ready(0) {
                if !step(world) {
                    return false;
                }
            }
            world.request(0, *op, SectorRange::new(*start, *sectors)).expect("the device has room");
        }
        while !drive::is_idle(world, 0) {
            if !step(world) {
                return false;
            }
        }
    }
    while world.has_device(0) {
        world.begin_detach(0);
        if !step(world) {
            return false;
        }
    }
    true
}

/// Runs the script repeatedly, each time one step further, with `crash` after it.
fn at_every_point(mut crash: impl FnMut(&mut World)) {
    for steps in 0..2000 {
        let mut world = world(steps as u64);
        let ended = play(&mut world, steps);
        crash(&mut world);
        if ended {
            assert!(steps > 100, "the script has its rounds, commits and its checkpoint: {steps} steps");
            return;
        }
    }
    panic!("the script does not end");
}

/// Outcomes of a power cut tried at each visit, if there are more.
const OUTCOMES: u64 = 8;

#[test]
fn every_death_at_every_crash_point_is_survived() {
    for seed in 0..2 {
        let found = campaign(&CrashScenario::ALL, seed, OUTCOMES);
        assert_eq!(found.missed(), [], "no scenario reaches these points");
        assert_eq!(found.visited.len(), CrashPoint::ALL.len());
        if let Some((crash, violation)) = found.violations.first() {
            panic!("{crash}: {} ({})", violation.message, violation.check);
        }
        assert!(found.exhausted > 0, "of some visits every outcome is tried");
    }
}

/// The deaths at crash points reveal a missing sync, without any randomness of a schedule.
#[test]
fn a_missing_sync_is_detected_at_a_crash_point() {
    for (bug, scenario, invariant) in [
        (Bug::Missing(Safeguard::SyncSidesBeforeMap), CrashScenario::Life, Invariant::FlushedSurvives),
        (Bug::Missing(Safeguard::SyncMapBeforeAnswer), CrashScenario::Life, Invariant::SyncedIsWhole),
        (Bug::Missing(Safeguard::SyncEachGroup), CrashScenario::Groups, Invariant::FlushedSurvives),
    ] {
        plant(Some(bug));
        let found = campaign(&[scenario], 0, OUTCOMES);
        plant(None);
        let seen: Vec<_> = found.violations.iter().filter_map(|(_, violation)| violation.invariant).collect();
        assert!(seen.contains(&invariant), "{bug:?} breaks {seen:?}");
        // The printed command repeats it.
        let (crash, violation) = &found.violations[0];
        let command = crash.to_string();
        let (_, arguments) = command.split_once(" -- ").expect("cargo run takes arguments");
        let mut again = Command::new(env!("CARGO_BIN_EXE_holdfast-sim"));
        again.args(arguments.split(' '));
        assert!(again.status().unwrap().success(), "{command} fails without the bug");
        let again = again.arg("--bug").arg(format!("{bug:?}")).output().unwrap();
        let output = String::from_utf8(again.stdout).unwrap();
        assert!(!again.status.success() && output.contains(&violation.message), "{command}: {output}");
    }
}

#[test]
fn the_process_is_killed_after_every_step() {
    at_every_point(|world| {
        world.kill(0);
        drive::check_everywhere(world, 0, 1);
    });
}

/// Unsynced writes are lost.
#[test]
fn a_host_lost_after_any_step_keeps_synced_writes() {
    at_every_point(|world| {
        world.lose_host(0, Some(Fate::Nothing));
        drive::check_everywhere(world, 0, 1);
    });
}

#[test]
fn the_host_is_lost_after_every_step_and_everything_survives() {
    at_every_point(|world| {
        world.lose_host(0, Some(Fate::Everything));
        drive::check_everywhere(world, 0, 1);
    });
}

/// Some of the unsynced writes survive.
#[test]
fn a_host_lost_after_any_step_keeps_some_writes() {
    for seed in 0..3 {
        let mut steps = 0;
        at_every_point(|world| {
            steps += 1;
            world.reseed(seed << 32 | steps);
            world.lose_host(0, None);
            drive::check_everywhere(world, 0, 1);
        });
    }
}

#[test]
fn the_process_is_killed_and_then_the_host_lost() {
    for steps_between in [0, 3, 9, 20] {
        at_every_point(|world| {
            world.kill(0);
            for _ in 0..steps_between {
                drive::step(world, 0);
            }
            world.lose_host(0, None);
            drive::check_everywhere(world, 0, 1);
        });
    }
}

/// The host is lost again while it commits the data left by the first loss.
#[test]
fn the_host_is_lost_twice() {
    for steps_between in [1, 8, 14, 18] {
        at_every_point(|world| {
            world.lose_host(0, None);
            for _ in 0..steps_between {
                drive::step(world, 0);
            }
            world.lose_host(0, None);
            drive::check_everywhere(world, 0, 1);
        });
    }
}

/// The loss left one state on both sides: no commit of any writer contains only part of it.
#[test]
fn a_commit_for_a_lost_host_dies_before_a_takeover() {
    for (steps_before, steps_after) in [(1, 24), (6, 40), (6, 60)] {
        at_every_point(|world| {
            world.lose_host(0, Some(Fate::Everything));
            for _ in 0..steps_before {
                drive::step(world, 0);
            }
            world.kill(0);
            for _ in 0..steps_after {
                drive::step(world, 0);
            }
            drive::read_all(world, 1);
        });
    }
}

/// Another host takes over permanently: it reads exactly the content of the last commit.
#[test]
fn another_host_takes_over_after_every_step() {
    at_every_point(|world| {
        drive::read_all(world, 1);
        // The first host returns to its state: a live process that is fenced, or nothing.
        for _ in 0..400 {
            if world.status(0).is_none() || world.is_fenced(0) {
                break;
            }
            drive::step(world, 0);
        }
        world.lose_host(0, Some(Fate::Everything));
        drive::check_everywhere(world, 1, 0);
    });
}

#[test]
fn an_attach_dies_after_every_step() {
    for step in [AttachStep::HeaderWritten, AttachStep::HeaderSynced, AttachStep::RecordSent] {
        for fate in [None, Some(Fate::Nothing), Some(Fate::Everything)] {
            let mut world = world(7);
            play(&mut world, 60);
            world.lose_host(0, None);
            assert_eq!(world.attach(0, false, Some(step)), AttachResult::Died);
            if fate.is_some() {
                world.lose_host(0, fate);
            }
            drive::check_everywhere(&mut world, 0, 1);
        }
    }
}

#[test]
fn the_first_attach_dies_with_its_header_half_written() {
    for seed in 0..40 {
        let mut world = world(seed);
        assert_eq!(world.attach(0, false, Some(AttachStep::HeaderWritten)), AttachResult::Died);
        world.lose_host(0, None);
        drive::check_everywhere(&mut world, 0, 1);
    }
}

/// The page cache left by a dead attach is not yet the state after a power cut.
#[test]
fn an_attach_dies_twice_before_its_header_is_synced() {
    for seed in 0..40 {
        let mut world = World::new(seed, 2, SECTORS, LIMITS, Faults::default());
        world.age_headers();
        play(&mut world, 40);
        world.lose_host(0, None);
        assert_eq!(world.attach(0, false, Some(AttachStep::HeaderWritten)), AttachResult::Died);
        assert_eq!(world.attach(0, false, Some(AttachStep::HeaderWritten)), AttachResult::Died);
        world.lose_host(0, None);
        drive::check_everywhere(&mut world, 0, 1);
    }
}

/// The device does not exist yet, and is no longer wanted.
#[test]
fn a_recovering_volume_is_detached() {
    let mut world = world(5);
    play(&mut world, 60);
    world.lose_host(0, Some(Fate::Everything));
    assert_eq!(world.attach(0, false, None), AttachResult::Acquired);
    assert!(world.status(0).is_some_and(|status| status.recovering));
    world.begin_detach(0);
    drive::until(&mut world, 0, |world| !world.has_device(0));
    world.check_store(0);
    drive::read_all(&mut world, 1);
}

/// The live map is created by many small changes; an incomplete map must not be taken for a whole one.
#[test]
fn a_process_dies_between_changes_of_a_new_live_map() {
    for changes in 0..400 {
        let mut world = world(3);
        // Flushed data, none of it committed yet.
        play(&mut world, 36);
        assert!(!world.has_commit());
        world.lose_host(0, Some(Fate::Everything));
        world.kill_inside(0, changes);
        let came_of = world.attach(0, false, None);
        drive::check_everywhere(&mut world, 0, 1);
        if came_of == AttachResult::Acquired {
            assert!(changes > 20, "a map has many changes");
            return;
        }
    }
    panic!("the attach never comes to its end");
}
