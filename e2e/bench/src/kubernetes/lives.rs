//! Requests of a claim's life by the driver, the operator and the daemon of node a: it is created, published,
//! staged, mounted and written, and then everything is undone.
//!
//! Several lives run sequentially, after a first one that does not count. For the API server, the figures are
//! means of all lives; for the store, they are maxima per step. Periodic requests, whose number does not
//! depend on claims, are counted separately: renewals of Leases, and the operator's reads of the daemons'
//! heartbeats and of the ObjectStores to sweep.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use holdfast_lab::control_plane::audit::ApiRequest;
use holdfast_lab::csi::{Csi, LIMIT, RequestedVolume, Use, expect_granted};
use holdfast_lab::csi_node::{CsiNode, PublishedVolume};
use holdfast_lab::node::NodeDaemon;
use holdfast_lab::report;
use holdfast_lab::s3::S3Request;
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use holdfast_scenarios::csi_node::{publish, release};

use super::{BUCKET, count};
use crate::Figure;

const LIVES: usize = 4;
const GIB: i64 = 1 << 30;
const POD: &str = "pod";
const COMMIT_LIMIT: Duration = Duration::from_secs(300);
/// The programs notice a deletion after its answer, the last of them every two seconds.
const SETTLED: Duration = Duration::from_secs(5);

const MOST_API_WRITES: f64 = 20.0;
const MOST_CREATE: f64 = 1.0;
const MOST_ATTACH: f64 = 6.0;
const MOST_DETACH: f64 = 3.0;
const MOST_DELETE: f64 = 6.0;

/// Requests to the store in one life, by step.
#[derive(Debug, Default)]
struct Bill {
    create: Vec<S3Request>,
    attach: Vec<S3Request>,
    write: Vec<S3Request>,
    detach: Vec<S3Request>,
    delete: Vec<S3Request>,
    /// Objects of the volume before its deletion.
    objects: usize,
}

pub(super) fn measure(world: &World, csi: &Csi, daemon: &NodeDaemon, node: &CsiNode) -> Result<Vec<Figure>> {
    report::step("a claim's life, which does not count");
    live(world, csi, daemon, node, "pvc-first")?;
    settle(world)?;
    let before = world.control_plane()?.requests()?.len();
    let mut bills = Vec::new();
    for life in 1..=LIVES {
        report::step(format_args!("life {life} of {LIVES}"));
        bills.push(live(world, csi, daemon, node, &format!("pvc-life-{life}"))?);
    }
    settle(world)?;
    let requests = world.control_plane()?.requests()?.split_off(before);
    let mut figures = api_figures(&requests);
    figures.extend(store_figures(&bills));
    Ok(figures)
}

/// Runs one life from its creation to its end.
fn live(world: &World, csi: &Csi, daemon: &NodeDaemon, node: &CsiNode, name: &str) -> Result<Bill> {
    let s3 = world.s3()?;
    let ext4 = Use::mounted("ext4");
    let mut bill = Bill::default();
    let mut seen = s3.requests()?.len();
    let mut id = None;
    let mut asked = |id: &Option<String>| -> Result<Vec<S3Request>> {
        let requests = s3.requests()?.split_off(seen);
        seen += requests.len();
        let id = id.as_deref().context("a volume that was created has an id")?;
        Ok(requests.into_iter().filter(|request| is_of(request, id)).collect())
    };

    let created = expect_granted(
        "create",
        csi.create(&RequestedVolume::new(name, GIB, "store").with_use(&ext4), LIMIT)?,
    )?;
    id.clone_from(&created.volume_context.get("volumeID").cloned());
    bill.create = asked(&id)?;
    let claim = PublishedVolume { volume: name.to_owned(), context: publish(csi, name, "a")?, usage: ext4 };
    bill.attach = asked(&id)?;

    expect_granted("stage", node.stage(&claim, LIMIT)?)?;
    expect_granted("publish", node.publish(&claim, POD, false)?)?;
    let target = claim.target(POD);
    node.vm().exec(&format!("head -c 4M /dev/urandom > {target}/file; sync -f {target}"))?;
    let volume = id.clone().context("a volume that was created has an id")?;
    until("all to be uploaded", COMMIT_LIMIT, || {
        let dirty = daemon.metric("holdfast_volume_dirty_bytes", &volume)?;
        Ok((dirty == Some(0.0)).then_some(()))
    })?;
    bill.write = asked(&id)?;

    release(node, &claim, POD)?;
    expect_granted("withdraw", csi.unpublish(name, "a", LIMIT)?)?;
    bill.detach = asked(&id)?;
    bill.objects = s3.keys(BUCKET, &format!("volumes/{volume}/"))?.len();
    expect_granted("delete", csi.delete(name, LIMIT)?)?;
    bill.delete = asked(&id)?;
    let left = s3.keys(BUCKET, &format!("volumes/{volume}/"))?;
    ensure!(!left.iter().any(|key| key.contains("/segments/")), "data is left: {left:?}");
    Ok(bill)
}

/// Returns true if the request is about this volume. Requests that delete many objects, which the server logs
/// without a key, count too, because no other volume is deleted meanwhile.
fn is_of(request: &S3Request, id: &str) -> bool {
    request.key.split('/').any(|part| part == id) || request.operation == "DeleteObjects"
}

/// Waits until no program writes any more, except to Leases.
fn settle(world: &World) -> Result<()> {
    let written = || -> Result<usize> {
        let requests = world.control_plane()?.requests()?;
        Ok(requests.iter().filter(|request| is_counted_write(request)).count())
    };
    until("the programs to have written all", COMMIT_LIMIT, || {
        let before = written()?;
        std::thread::sleep(SETTLED);
        Ok((written()? == before).then_some(()))
    })
}

fn is_ours(request: &ApiRequest) -> bool {
    request.account.starts_with("holdfast-")
}

fn is_counted_write(request: &ApiRequest) -> bool {
    is_ours(request) && request.is_write() && request.resource != "leases"
}

/// Returns true for the operator's periodic reads of the daemons' heartbeats or of the few ObjectStores.
fn is_of_time(request: &ApiRequest) -> bool {
    request.account == "holdfast-operator"
        && ["leases", "storagenodes", "objectstores"].contains(&request.resource.as_str())
}

fn api_figures(requests: &[ApiRequest]) -> Vec<Figure> {
    let writes: Vec<&ApiRequest> = requests.iter().filter(|request| is_counted_write(request)).collect();
    let lists: Vec<&ApiRequest> =
        requests.iter().filter(|request| is_ours(request) && request.verb == "list").collect();
    let (of_time, lists): (Vec<_>, Vec<_>) = lists.into_iter().partition(|request| is_of_time(request));
    let reads: Vec<&ApiRequest> =
        requests.iter().filter(|request| is_ours(request) && request.verb == "get").collect();
    let lives = LIVES as f64;
    vec![
        count(
            "api_writes_per_pvc_life",
            writes.len() as f64 / lives,
            &format!("of {LIVES} lives in all: {}", by(&writes, api_kind)),
        )
        .at_most(MOST_API_WRITES),
        count(
            "api_lists_per_pvc_life",
            lists.len() as f64 / lives,
            &format!(
                "none: no polling; of {LIVES} lives in all: {}. Beside them, as time passed: {}",
                by(&lists, api_kind),
                by(&of_time, api_kind)
            ),
        )
        .exactly(0.0),
        count(
            "api_gets_per_pvc_life",
            reads.len() as f64 / lives,
            &format!("of {LIVES} lives in all: {}", by(&reads, api_kind)),
        )
        .plain(),
    ]
}

fn store_figures(bills: &[Bill]) -> Vec<Figure> {
    let costliest = |name: &str, step: fn(&Bill) -> &Vec<S3Request>, most: f64| {
        let step = bills.iter().map(step).max_by_key(|requests| requests.len());
        let requests: Vec<&S3Request> = step.into_iter().flatten().collect();
        count(name, requests.len() as f64, &by(&requests, |request| request.operation.clone())).at_most(most)
    };
    let objects = bills.iter().map(|bill| bill.objects).max().unwrap_or_default();
    let most_delete = MOST_DELETE + objects as f64 / 1e3;
    let beside_data =
        |bill: &Bill| bill.create.len() + bill.attach.len() + bill.detach.len() + bill.delete.len();
    let all = bills.iter().map(beside_data).max().unwrap_or_default();
    let uploads = bills.iter().map(|bill| bill.write.len()).max().unwrap_or_default();
    vec![
        count(
            "s3_requests_per_pvc_life",
            all as f64,
            &format!("create, attach, detach and delete; its 4 MiB and a file system took {uploads} more"),
        )
        .at_most(MOST_CREATE + MOST_ATTACH + MOST_DETACH + most_delete),
        costliest("s3_requests_per_pvc_create", |bill| &bill.create, MOST_CREATE),
        costliest("s3_requests_per_pvc_attach", |bill| &bill.attach, MOST_ATTACH),
        costliest("s3_requests_per_pvc_detach", |bill| &bill.detach, MOST_DETACH),
        costliest("s3_requests_per_pvc_delete", |bill| &bill.delete, most_delete),
    ]
}

fn api_kind(request: &ApiRequest) -> String {
    let ApiRequest { account, verb, resource, subresource, status, .. } = request;
    let what = if subresource.is_empty() { resource.clone() } else { format!("{resource}/{subresource}") };
    let refused = if *status >= 400 { format!(" ({status})") } else { String::new() };
    format!("{} {verb} {what}{refused}", account.trim_start_matches("holdfast-"))
}

/// Formats counts by name, such as `2 GetObject, 1 PutObject`.
fn by<T>(requests: &[&T], name: impl Fn(&T) -> String) -> String {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for request in requests {
        *counts.entry(name(request)).or_default() += 1;
    }
    let counts: Vec<String> = counts.into_iter().map(|(name, count)| format!("{count} {name}")).collect();
    if counts.is_empty() { "none".to_owned() } else { counts.join(", ") }
}
