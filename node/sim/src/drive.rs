//! One host driven in order: each job done and answered before the next, what does not run is started.

use holdfast_engine::event::Op;
use holdfast_types::SectorRange;

use crate::invariant::Invariant;
use crate::world::World;

/// Steps after which a host that should have come to rest is stuck.
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

/// One step of [`until`].
pub fn step(world: &mut World, host: usize) {
    if world.hosts[host].process.is_none() {
        if !world.resume(host) {
            let replaces = world.holder();
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

/// True if the client of `host` may ask and waits for nothing.
pub fn is_idle(world: &World, host: usize) -> bool {
    world.hosts[host].device.as_ref().is_some_and(|device| device.ready && device.is_idle())
}

/// The client reads every sector it ever touched; each answer is checked against the model.
pub fn read_all(world: &mut World, host: usize) {
    until(world, host, |world| is_idle(world, host));
    let touched = world.hosts[host].content.expect.touched();
    for run in touched.chunk_by(|one, next| next - one == 1) {
        for piece in SectorRange::new(run[0], run.len() as u64).split_at_multiples(64) {
            world.request(host, Op::Read, piece).expect("the device is idle");
            until(world, host, |world| is_idle(world, host));
        }
    }
}

/// The client stops and the engine detaches.
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

/// Checks that the data that the client of `host` wrote is there: here, in the store alone, and on `other`.
pub fn check_everywhere(world: &mut World, host: usize, other: usize) {
    read_all(world, host);
    detach(world, host);
    if !world.has_released(host) {
        // It learned only now that it had been fenced: it attaches again, after the writer that fenced it.
        read_all(world, host);
        detach(world, host);
    }
    world.check_store(host);
    world.check_snapshots();
    read_all(world, other);
}
