//! The store is unreachable for minutes while volumes are written: nothing fails, writes wait at the quota,
//! flushes continue, cold reads wait, and the Volumes report this. Afterwards everything catches up, but not
//! all at once.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use holdfast_lab::node::{ControlInterface, NodeDaemon};
use holdfast_lab::report;
use holdfast_lab::s3::proxy::FaultProxy;
use holdfast_lab::vm::{Vm, bash};
use holdfast_lab::wait::until;
use holdfast_lab::wire::Exit;
use holdfast_lab::world::World;

use super::load::Load;
use super::provisioning::apply;
use super::story::provision_store_at;
use super::volumes::{Served, VolumeCondition, reported, serve_all};

mod full_cache;

const BUCKET: &str = "outage";
/// Under continuous verified load.
const BUSY: &str = "busy";
/// Written a little during the outage.
const CALM: [&str; 6] = ["calm-1", "calm-2", "calm-3", "calm-4", "calm-5", "calm-6"];
/// The claim of that volume; no controller binds it.
const CLAIM: &str = "apiVersion: v1\nkind: PersistentVolumeClaim\nmetadata: {name: busy}\n\
                     spec: {volumeName: busy, accessModes: [ReadWriteOnce], resources: {requests: {storage: 128Mi}}}\n";
/// Volume whose data is only in the store when it becomes unreachable.
const COLD: &str = "cold";
/// A small quota, which the load reaches soon.
const DATA: &str = "slab_size = \"64Mi\"\nseal_size = \"2Mi\"\nmax_dirty = \"4Mi\"";
/// Conditions of a Volume.
const STORE_REACHABLE: &str = "StoreReachable";
const WRITABLE: &str = "Writable";
/// Duration of the outage in the scenario, in real time, once writes wait.
const SHORT: Duration = Duration::from_secs(45);
/// Longer than the scenario, in seconds of the machine's time.
const LOAD_SECONDS: u32 = 3600;
const LIMIT: Duration = Duration::from_secs(300);
/// Maximum attempts per second to reach an unreachable store, of all volumes together: the interval is half a
/// second.
const MAX_ATTEMPTS_A_SECOND: f64 = 2.5;
/// Maximum requests in the first second after the outage, and in flight at once: eight volumes wait for it.
const MAX_AT_ONCE: usize = 16;

pub(super) fn run(world: &World) -> Result<()> {
    let errors = outage(world, SHORT)?;
    ensure!(errors == 0, "{errors} requests failed");
    Ok(())
}

/// Plays the outage with the store unreachable for `away`. Returns the number of failed application requests.
///
/// # Errors
/// If a user would have noticed anything else.
pub fn outage(world: &World, away: Duration) -> Result<u64> {
    let s3 = world.s3()?;
    let proxy = FaultProxy::start(s3.port())?;
    let operator = world.operator()?;
    provision_store_at(world, &s3, BUCKET, &proxy.endpoint_everywhere())?;
    let control = ControlInterface::Kubernetes { kubeconfig: world.node_kubeconfig()? };
    let node = NodeDaemon::start(world.vm("a")?, &control, "auto", full_cache::DATA)?;
    let mut errors = full_cache::overfill(world, &node, &proxy)?;
    node.terminate()?;
    let sum = node.vm().exec(&format!("rm -r /var/lib/holdfast/*; head -c 4M /tmp/{COLD} | sha256sum"))?;
    let node = NodeDaemon::start(world.vm("a")?, &control, "auto", DATA)?;
    errors += check_delays(world, &node, &proxy, away, &sum)?;
    world.kubectl(["delete", "volumes", "--all", "--timeout=300s"])?;
    node.terminate()?;
    operator.stop()?;
    Ok(errors as u64)
}

/// The store becomes unreachable under load and returns. `sum` is that of the first 4 MiB of [`COLD`].
/// Returns the number of failed requests.
fn check_delays(
    world: &World,
    node: &NodeDaemon,
    proxy: &FaultProxy,
    away: Duration,
    sum: &str,
) -> Result<f64> {
    let vm = node.vm();
    let names = CALM.map(|name| (name, "16Mi")).into_iter().chain([(BUSY, "128Mi"), (COLD, "16Mi")]);
    let served = serve_all(world, node, &names.collect::<Vec<_>>())?;
    apply(world, CLAIM)?;
    world.kubectl(["annotate", "volume", BUSY, "holdfast.dev/persistentvolumeclaim=default/busy"])?;
    let (busy, cold, calm) = (&served[BUSY], &served[COLD], CALM.map(|name| &served[name]));
    // All of it is on the node: a read of unwritten data would query the store.
    vm.exec(&format!(
        "dd if=/dev/zero of={} bs=1M count=64 oflag=direct conv=fsync status=none",
        busy.device
    ))?;
    let before = conditions(world, BUSY)?;
    let load = Load::start(vm, &busy.device, LOAD_SECONDS)?;

    report::step("the store becomes unreachable; writes continue to the quota and wait there");
    proxy.make_unreachable();
    for volume in calm {
        // Written and flushed while the store is unreachable.
        vm.exec(&format!(
            "dd if=/dev/urandom of={} bs=64k count=4 oflag=direct conv=fsync status=none",
            volume.device
        ))?;
    }
    until("writes that wait at the quota", LIMIT, || {
        load.check()?;
        let delayed = node.metric("holdfast_volume_writes_delayed_seconds", &busy.id)?;
        Ok((delayed > Some(0.0)).then_some(()))
    })?;
    vm.spawn(
        "cold-read",
        &bash(&format!("dd if={} bs=1M count=4 iflag=direct status=none | sha256sum", cold.device)),
    )?;
    let from = (Instant::now(), proxy.reset_connections());
    let flushes = flush_while_away(vm, busy, calm[0], from.0, away)?;
    ensure!(vm.status("cold-read")?.is_none(), "a cold read ended while the store was unreachable");
    check_metrics(node, busy, calm[0], away)?;
    let during = check_reported(world, &before)?;
    let attempts = proxy.reset_connections() - from.1;
    let a_second = attempts as f64 / from.0.elapsed().as_secs_f64();
    report::step(format_args!(
        "{flushes} flushes completed; {a_second:.1} attempts a second to reach the store"
    ));
    ensure!(
        a_second <= MAX_ATTEMPTS_A_SECOND,
        "{a_second:.1} attempts a second to reach an unreachable store"
    );

    report::step("the store is back");
    let answers_since = Instant::now();
    proxy.make_reachable();
    let exit = vm.wait("cold-read", LIMIT)?;
    ensure!(exit == Exit::Code(0) && vm.log("cold-read")? == sum, "the cold read ended by {exit:?}");
    load.wait_progress()?;
    wait_committed(node, calm)?;
    check_return(proxy, answers_since)?;
    load.stop()?;
    wait_all_answer(world)?;
    let after = conditions(world, BUSY)?;
    ensure!(changed_later(&during, &after), "{after:?} is not later than {during:?}");
    wait_events(world, &["Normal/Answering", "Normal/Serving"])?;
    sum_of(node, "holdfast_volume_failed_requests_total", served.values())
}

/// Flushes both volumes until the store has been unreachable for `away`. Returns the number of flushes.
fn flush_while_away(vm: &Vm, busy: &Served, calm: &Served, since: Instant, away: Duration) -> Result<u32> {
    let mut flushes = 0;
    while since.elapsed() < away {
        // A flush of data that is already on the node, while writes wait.
        vm.exec(&format!(
            "sync {}; dd if=/dev/urandom of={} bs=4k count=1 oflag=direct conv=fsync,notrunc status=none",
            busy.device, calm.device
        ))?;
        flushes += 1;
    }
    Ok(flushes)
}

/// Checks the metrics of both volumes, whose store has been unreachable for at least `away`.
fn check_metrics(node: &NodeDaemon, busy: &Served, calm: &Served, away: Duration) -> Result<()> {
    let oldest = node.metric("holdfast_volume_oldest_dirty_seconds", &busy.id)?.unwrap_or(0.0);
    ensure!(oldest >= away.as_secs_f64(), "the oldest dirty data is {oldest} s old");
    for volume in [busy, calm] {
        let reported = node.metric("holdfast_volume_store_unreachable_seconds", &volume.id)?;
        ensure!(
            reported >= Some(away.as_secs_f64()),
            "{} says that the store is unreachable for {reported:?} s",
            volume.id
        );
    }
    let delayed = node.metric("holdfast_volume_writes_delayed_seconds", &busy.id)?;
    ensure!(delayed > Some(0.0), "the volume does not say that its writes wait: {delayed:?}");
    Ok(())
}

/// Checks the conditions of the Volumes during the outage. Returns those of [`BUSY`], which were `before`
/// until then.
fn check_reported(world: &World, before: &[VolumeCondition; 2]) -> Result<[VolumeCondition; 2]> {
    report::step(format_args!("kubectl get volumes\n{}", world.kubectl(["get", "volumes"])?));
    let busy = conditions(world, BUSY)?;
    for condition in &busy {
        report::step(format_args!("{}: {}", condition.status_and_reason, condition.message));
    }
    let [away, delayed] = &busy;
    for part in [
        "ObjectStore store has served no request of node a since 2",
        " bytes wait to be uploaded",
        "Last error: ",
    ] {
        ensure!(
            away.status_and_reason == "False/StoreUnreachable" && away.message.contains(part),
            "{part:?} is not in {away:?}"
        );
    }
    for part in ["none fails", "data.max_dirty"] {
        ensure!(
            delayed.status_and_reason == "False/DirtyLimit" && delayed.message.contains(part),
            "{part:?} is not in {delayed:?}"
        );
    }
    ensure!(changed_later(before, &busy), "{busy:?} is not later than {before:?}");
    let [away, delayed] = conditions(world, CALM[0])?;
    ensure!(away.status_and_reason == "False/StoreUnreachable", "{away:?}");
    ensure!(
        delayed.status_and_reason == "True/Serving",
        "{} is written all the time, and {delayed:?}",
        CALM[0]
    );
    world.wait_for("volumes", "condition=Attached")?;
    wait_events(world, &["Warning/StoreUnreachable", "Warning/DirtyLimit"])?;
    Ok(busy)
}

/// Waits until these events of [`BUSY`] are reported, for the Volume and for its claim: they are written
/// after the conditions.
fn wait_events(world: &World, wanted: &[&str]) -> Result<()> {
    for kind in ["Volume", "PersistentVolumeClaim"] {
        let about = format!("--field-selector=involvedObject.kind={kind},involvedObject.name={BUSY}");
        let path = "--output=jsonpath={range .items[*]}{.type}/{.reason} {end}";
        until(&format!("events of the {kind}"), LIMIT, || {
            let events = world.kubectl(["get", "events", &about, path])?;
            Ok(wanted.iter().all(|event| events.contains(event)).then_some(()))
        })?;
    }
    Ok(())
}

/// Returns the conditions of a volume: its store responds, and its writes continue.
fn conditions(world: &World, volume: &str) -> Result<[VolumeCondition; 2]> {
    Ok([reported(world, volume, STORE_REACHABLE)?, reported(world, volume, WRITABLE)?])
}

fn changed_later(before: &[VolumeCondition; 2], after: &[VolumeCondition; 2]) -> bool {
    before.iter().zip(after).all(|(before, after)| after.since > before.since)
}

/// Waits until all Volumes report that their store responds and that writes do not wait.
fn wait_all_answer(world: &World) -> Result<()> {
    world.wait_for("volumes", &format!("condition={STORE_REACHABLE}"))?;
    world.wait_for("volumes", &format!("condition={WRITABLE}"))
}

fn wait_committed<'a>(node: &NodeDaemon, volumes: impl IntoIterator<Item = &'a Served>) -> Result<()> {
    for volume in volumes {
        until("everything to be committed", LIMIT, || {
            let dirty = node.metric("holdfast_volume_dirty_bytes", &volume.id)?;
            let away = node.metric("holdfast_volume_store_unreachable_seconds", &volume.id)?;
            Ok((dirty == Some(0.0) && away == Some(0.0)).then_some(()))
        })?;
    }
    Ok(())
}

/// Returns the sum of a figure over several volumes.
fn sum_of<'a>(node: &NodeDaemon, figure: &str, volumes: impl IntoIterator<Item = &'a Served>) -> Result<f64> {
    volumes.into_iter().map(|volume| Ok(node.metric(figure, &volume.id)?.unwrap_or(0.0))).sum()
}

/// Checks the node's load on the store after the outage.
fn check_return(proxy: &FaultProxy, answers_since: Instant) -> Result<()> {
    // The operator's probe of create-once is 22 requests, and may come in the same second.
    let is_of_node = |target: &str| !target.contains("/probe/");
    let since = proxy
        .received()
        .into_iter()
        .filter(|passed| passed.at >= answers_since && is_of_node(&passed.target));
    let since: Vec<_> = since.collect();
    let first = since.iter().filter(|passed| passed.at - answers_since <= Duration::from_secs(1)).count();
    let at_once = since.iter().map(|passed| passed.in_flight).max().unwrap_or(0);
    report::step(format_args!("{first} requests in its first second, at most {at_once} at once"));
    ensure!(
        first <= MAX_AT_ONCE && at_once <= MAX_AT_ONCE,
        "a herd: {first} requests in the first second, at most {at_once} at once"
    );
    Ok(())
}
