//! Drives one host in order: each job is answered before the next, and stopped processes are restarted.

use holdfast_engine::event::Op;
use holdfast_types::SectorRange;

use crate::invariant::Invariant;
use crate::world::World;

/// Steps after which a host that has not come to rest is stuck.
const PATIENCE: usize = 20_000;

/// Drives `host` until `done`, attaching and taking over as needed.
pub fn until(world: &mut World, host: usize, done: impl Fn(&World) -> bool) {
    for _ in 0..PATIENCE {
        if done(world) {
            return;
        }
        step(world, host);
    }
    let status = world.status(host);
    Invariant::ComesToRest.broken(&format!("host {host} is stuck: {status:?}"));
}

/// Runs one step of [`until`].
pub fn step(world: &mut World, host: usize) {
    if world.hosts[host].process.is_none() {
        if !world.resume(host) {
            let replaces = world.attached_epoch();
            world.begin_attach(host, replaces, None);
        }
        return;
    }
    if world.hosts[host].device.as_ref().is_some_and(|device| device.fenced && device.is_idle()) {
        world.begin_detach(host);
    }
    match world.first_due(host) {
        Some(index) => world.step_job(host, index),
        None => world.tick(host, 500),
    }
}

/// Returns true if the client of `host` may send requests and waits for none.
pub fn is_idle(world: &World, host: usize) -> bool {
    world.hosts[host].device.as_ref().is_some_and(|device| device.ready && device.is_idle())
}

/// Reads every sector that the client ever touched; each answer is checked against the model.
pub fn read_all(world: &mut World, host: usize) {
    until(world, host, |world| is_idle(world, host));
    let touched = world.hosts[host].content.model.touched();
    for run in touched.chunk_by(|one, next| next - one == 1) {
        for piece in SectorRange::new(run[0], run.len() as u64).split_at_multiples(64) {
            world.request(host, Op::Read, piece).expect("the device is idle");
            until(world, host, |world| is_idle(world, host));
        }
    }
}

/// Stops the client and detaches the volume.
pub fn detach(world: &mut World, host: usize) {
    until(world, host, |world| is_idle(world, host));
    for _ in 0..PATIENCE {
        if world.hosts[host].device.is_none() && world.hosts[host].process.is_none() {
            return;
        }
        world.begin_detach(host);
        step(world, host);
    }
    Invariant::ComesToRest.broken(&format!("host {host} does not detach"));
}

/// Checks that the data written by the client of `host` exists: here, in the store alone, and on `other`.
pub fn check_everywhere(world: &mut World, host: usize, other: usize) {
    read_all(world, host);
    detach(world, host);
    if !world.has_released(host) {
        // It detected the fencing only now: it attaches again, after the writer that fenced it.
        read_all(world, host);
        detach(world, host);
    }
    world.check_store(host);
    world.check_snapshots();
    read_all(world, other);
}
