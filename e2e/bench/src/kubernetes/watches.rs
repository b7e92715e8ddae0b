//! Additional events of Volumes caused by another node.

use anyhow::Result;
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::report;
use holdfast_lab::world::World;
use holdfast_scenarios::node_loss::{CHANGES, events_of_changes};
use holdfast_scenarios::provisioning::{apply, volume};
use holdfast_scenarios::story::serve;

use super::count;
use crate::Figure;

/// The changed Volume, of node a.
const WATCHED: &str = "watched";
/// Rounds of changes; the minimum counts, because the API server's bookmarks are events too.
const ROUNDS: usize = 3;

/// Counts the events per change of a Volume of node a, while it is the only node.
pub(super) fn of_one_node(world: &World, a: &NodeDaemon) -> Result<f64> {
    apply(world, &volume(WATCHED, "store", "16Mi"))?;
    world.wait_for(&format!("volume/{WATCHED}"), "jsonpath={.status.phase}=Ready")?;
    serve(world, a, WATCHED)?;
    report::step(format_args!("change a Volume of node a, {ROUNDS} times {CHANGES} times"));
    events_of_a_change(world)
}

/// Counts them again with another node, and compares.
pub(super) fn figure(world: &World, alone: f64) -> Result<Figure> {
    report::step("change it again, with another node there");
    let both = events_of_a_change(world)?;
    let more = ((both - alone) * CHANGES as f64).round();
    let each = format!(
        "none of {CHANGES} changes of a Volume of another node; {both:.2} events a change, before {alone:.2}"
    );
    Ok(count("foreign_watch_events", more, &each).exactly(0.0))
}

fn events_of_a_change(world: &World) -> Result<f64> {
    let mut least = f64::INFINITY;
    for _ in 0..ROUNDS {
        let before = world.control_plane()?.requests()?.len();
        let events = events_of_changes(world, WATCHED)?;
        let requests = world.control_plane()?.requests()?.split_off(before);
        // Concurrent writes of the programs are changes as well.
        let changes =
            requests.iter().filter(|one| one.is_write() && one.resource == "volumes" && one.status < 300);
        least = least.min(events as f64 / changes.count() as f64);
    }
    Ok(least)
}
