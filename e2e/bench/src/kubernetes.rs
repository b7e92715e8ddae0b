//! Claims under Kubernetes: requests of a claim's life to the API server and the store, waiting times of
//! users, costs of a lost node, rotated keys, a lost cluster and killed processes.
//!
//! Order of the claims: first the times of programs on the host, while no machine runs; then the lives on
//! node a; then node b, whose clock counts instructions, joins and takes over. Each scenario has its own
//! world.

use holdfast_lab::csi_node::CsiNode;
use holdfast_lab::images::{self, Recipe};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::vm::machine::MachineOptions;
use holdfast_lab::world::World;
use holdfast_scenarios::{chaos, csi_sanity, restore, rotation, story};

use anyhow::Result;

use super::{Bar, Figure, play};

mod lives;
mod takeover;
mod waits;
mod watches;

const BUCKET: &str = "bench";
/// Number of volumes of the lost cluster.
const ADOPTED: usize = 10;
const MB: f64 = 1e6;

pub(super) fn run_claims(world: &World) -> Result<Vec<Figure>> {
    let s3 = world.s3()?;
    let operator = world.operator()?;
    story::provision_store(world, &s3, BUCKET)?;
    let controller = world.csi_controller()?;
    let csi = controller.csi();
    let mut figures = waits::measure(world, &csi)?;

    let a = world.node("a", "auto", "")?;
    let on_a = CsiNode::start(world.vm("a")?)?;
    figures.extend(lives::measure(world, &csi, &a, &on_a)?);
    let watched = watches::of_one_node(world, &a)?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let b = NodeDaemon::start(world.vm_with("b", MachineOptions::benchmark)?, &control, "auto", "")?;
    figures.push(watches::figure(world, watched)?);
    figures.extend(takeover::measure(world, &a, &b)?);
    b.vm().cut_power();
    operator.stop()?;
    Ok(figures)
}

/// Measures figures of scenarios that are also tests.
pub(super) fn run_scenarios(world: &World) -> Result<Vec<Figure>> {
    let sanity = play(world, "csi-sanity", csi_sanity::sanity)?;
    let chaos = play(world, "chaos", chaos::chaos)?;
    let adopted = play(world, "adopt", |world| restore::adopt(world, ADOPTED))?;
    let rotated = play(world, "rotation", rotation::rotate)?;
    for error in &rotated.errors {
        report::step(error);
    }
    Ok(vec![
        count("csi_sanity_passed", sanity.passed.into(), "tests of csi-sanity on real devices").plain(),
        count("csi_sanity_failed", sanity.failed.into(), "none").exactly(0.0),
        count(
            "chaos_cycles",
            chaos.cycles as f64,
            &format!(
                "kills of operator and CSI controller, 5 s apart, under {} claims, 100 at once",
                chaos.volumes
            ),
        )
        .plain(),
        count("chaos_leaks", chaos.leaks.len() as f64, "none of objects, Volumes, finalizers, Leases")
            .exactly(0.0),
        count("adopted_volumes", adopted.equal as f64, "those of a lost cluster's bucket, with equal sums")
            .exactly(ADOPTED as f64),
        count("adoption_puts", adopted.more_puts as f64, "none but that of each attach").exactly(0.0),
        figure(
            "rotation_seconds",
            rotated.resumed_after.as_secs_f64(),
            "s",
            "until uploads resume after the key was revoked under load",
        )
        .at_most(rotation::RESUME_WITHIN.as_secs_f64()),
        count("rotation_errors", rotated.errors.len() as f64, "none that the load saw").exactly(0.0),
    ])
}

/// Measures the unpacked sizes of the images.
pub(super) fn run_images(world: &World) -> Result<Vec<Figure>> {
    let built = images::build(world.toolbox(), BuildProfile::Release, &world.dir().join("images"))?;
    let sized = |image: &images::Built| {
        let Recipe { name, max_mb, .. } = image.recipe;
        let name = name.replace("holdfast-", "image_mb_");
        let value = image.written.unpacked_bytes as f64 / MB;
        let fetched = image.written.fetched_bytes as f64 / MB;
        figure(&name, value, "MB", &format!("of files; {fetched:.1} MB are fetched")).at_most(max_mb as f64)
    };
    Ok(built.iter().map(sized).collect())
}

/// A figure before its bar is set.
struct Unbarred(Figure);

fn figure(name: &str, value: f64, unit: &'static str, against: &str) -> Unbarred {
    Unbarred(Figure { name: name.to_owned(), value, unit, against: against.to_owned(), bar: None })
}

fn count(name: &str, value: f64, against: &str) -> Unbarred {
    figure(name, value, "count", against)
}

impl Unbarred {
    fn plain(self) -> Figure {
        self.0
    }

    fn at_most(self, most: f64) -> Figure {
        self.with(Bar::AtMost(most))
    }

    fn exactly(self, due: f64) -> Figure {
        self.with(Bar::Exactly(due))
    }

    fn with(self, bar: Bar) -> Figure {
        Figure { bar: Some(bar), ..self.0 }
    }
}
