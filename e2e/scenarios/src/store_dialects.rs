//! Servers and providers whose S3 differs from the lab's: the reports of `preflight` and the ObjectStore
//! about each, and the recovery afterwards. No machine: the operator, the API server, the S3 server and a
//! proxy in front of it.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::fs;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::report;
use holdfast_lab::s3::dialect::{Dialect, DialectProxy};
use holdfast_lab::s3::{ACCESS_KEY, REGION, SECRET_KEY};
use holdfast_lab::wait::until;
use holdfast_lab::world::World;
use serde_json::Value;

use super::provisioning::{apply, object_store, volume};

/// Time limit of the recovery.
const RECOVERY_LIMIT: Duration = Duration::from_secs(30);
/// Maximum wait for a condition: a first byte after 10 s costs a probe three attempts.
const CONDITION_LIMIT: Duration = Duration::from_secs(120);
/// Servers that check before they store, each with another delay.
const LOOKERS: u64 = 20;

/// A dialect, and the messages about it.
struct DialectRow {
    name: &'static str,
    dialect: Dialect,
    /// The reason of the ObjectStore's condition; `None` if it is still Ready.
    reason: Option<&'static str>,
    /// Start of the message, which names the field.
    state: &'static str,
    /// A part of the fix.
    fix: &'static str,
}

const fn row(
    name: &'static str,
    dialect: Dialect,
    reason: &'static str,
    state: &'static str,
    fix: &'static str,
) -> DialectRow {
    DialectRow { name, dialect, reason: Some(reason), state, fix }
}

/// Returns a dialect that requires no action by the user.
const fn fine(name: &'static str, dialect: Dialect) -> DialectRow {
    DialectRow { name, dialect, reason: None, state: "", fix: "" }
}

const fn answers(
    method: Option<&'static str>,
    status: &'static str,
    code: &'static str,
    message: &'static str,
) -> Dialect {
    Dialect::Answers { method, status, code, message }
}

const FORBIDDEN: &str = "403 Forbidden";
const QUOTA: &str = "bucket: a quota of the bucket or the account is exhausted";
const KEY: &str = "bucket: the encryption key of the bucket is disabled, deleted or not permitted";
const REGION_STATE: &str = "region: the bucket is not in us-east-1";
const NOT_S3: &str = "endpoint: a response does not come from an S3 server";
const PUT: Option<&str> = Some("PUT");

const ROWS: &[DialectRow] = &[
    row(
        "replaces",
        Dialect::CreateReplaces,
        "CreateOnceIgnored",
        "bucket: the server accepts If-None-Match but ignores it",
        "use a server with conditional writes",
    ),
    row(
        "looks-first",
        Dialect::CreateLooksFirst(Duration::from_millis(100)),
        "CreateOnceNotAtomic",
        "endpoint: the server lets several creates of one key at once succeed",
        "atomic conditional writes",
    ),
    row(
        "archived",
        Dialect::Archived,
        "ObjectArchived",
        "bucket: an object is in an archive class",
        "lifecycle rule",
    ),
    row(
        "retention",
        Dialect::Retention,
        "ObjectLockRetention",
        "bucket: the bucket retains",
        "default retention",
    ),
    row(
        "quota",
        answers(PUT, FORBIDDEN, "QuotaExceeded", "Quota"),
        "QuotaExceeded",
        QUOTA,
        "raise the quota",
    ),
    row(
        "spending-cap",
        answers(PUT, FORBIDDEN, "AccessDenied", "Cannot upload, storage cap exceeded"),
        "QuotaExceeded",
        QUOTA,
        "raise the quota",
    ),
    row(
        "full",
        answers(PUT, "507 Insufficient Storage", "XMinioStorageFull", "Full"),
        "ServerFull",
        "endpoint: the server's storage is full",
        "add storage",
    ),
    row(
        "account",
        answers(None, FORBIDDEN, "AccountProblem", "Problem"),
        "AccountSuspended",
        "credentials: the account at the provider",
        "ask the provider",
    ),
    row(
        "key-disabled",
        answers(PUT, "400 Bad Request", "KMS.DisabledException", "It is disabled"),
        "EncryptionKeyUnusable",
        KEY,
        "enable the key",
    ),
    row(
        "key-denied",
        answers(PUT, FORBIDDEN, "AccessDenied", "not authorized to perform: kms:GenerateDataKey"),
        "EncryptionKeyUnusable",
        KEY,
        "kms:GenerateDataKey",
    ),
    row(
        "slow-down",
        Dialect::SlowDown(1),
        "Throttled",
        "endpoint: the server throttles requests",
        "the check is retried",
    ),
    row(
        "busy",
        answers(PUT, "409 Conflict", "OperationAborted", "In progress"),
        "BucketBusy",
        "bucket: the server is still processing another operation on it",
        "the check is retried",
    ),
    row(
        "fails",
        answers(None, "503 Service Unavailable", "ServiceUnavailable", "Try again"),
        "ServerFails",
        "endpoint: the server reports an internal error (HTTP 503 ServiceUnavailable)",
        "check the server",
    ),
    row(
        "bodies-cut",
        Dialect::BodiesCut,
        "AnswersBreakOff",
        "endpoint: the server's responses end prematurely",
        "in front of it",
    ),
    row(
        "lengths-wrong",
        Dialect::LengthsWrong,
        "ReadBackFailed",
        "bucket: an object read back differs from the written one",
        "in front of it",
    ),
    row("no-etags", Dialect::NoETags, "NotS3", NOT_S3, "in front of it"),
    row(
        "errors-in-200",
        Dialect::ErrorsIn200,
        "ServerFails",
        "endpoint: the server reports an internal error (HTTP 200 InternalError)",
        "check the server",
    ),
    row("portal", Dialect::Page("200 OK"), "NotS3", NOT_S3, "in front of it"),
    row("portal-403", Dialect::Page(FORBIDDEN), "NotS3", NOT_S3, "in front of it"),
    row(
        "moved",
        answers(None, "301 Moved Permanently", "PermanentRedirect", "Address it elsewhere"),
        "WrongRegion",
        REGION_STATE,
        "endpoint of that region",
    ),
    row(
        "moving",
        answers(None, "307 Temporary Redirect", "TemporaryRedirect", "Send it elsewhere"),
        "WrongRegion",
        REGION_STATE,
        "endpoint of that region",
    ),
    row(
        "region",
        answers(None, "400 Bad Request", "AuthorizationHeaderMalformed", "expecting 'eu-central-1'"),
        "WrongRegion",
        REGION_STATE,
        "endpoint of that region",
    ),
    row(
        "clock",
        answers(None, FORBIDDEN, "RequestTimeTooSkewed", "The difference is too large"),
        "ClockSkewed",
        "credentials: the server rejects this host's clock time",
        "synchronize the clock",
    ),
    row(
        "no-creates",
        answers(PUT, "501 Not Implemented", "NotImplemented", "A header is not implemented"),
        "CreateOnceUnsupported",
        "bucket: the server does not support conditional writes",
        "use one that does",
    ),
    fine("delete-markers", Dialect::DeleteMarkers),
    fine("list-late", Dialect::ListBeginsAfter(Duration::from_secs(10))),
    fine("list-lags", Dialect::ListLags(Duration::from_secs(5))),
];

/// Messages about the dialects, and the outcome of their end.
#[derive(Debug)]
pub struct DialectsOutcome {
    /// Number of dialects.
    pub dialects: usize,
    /// Dialects with other messages, and those messages.
    pub wrong: Vec<String>,
    /// Number of servers whose create-once is not atomic, and of those detected as such.
    pub not_atomic: (u64, u64),
    /// Buckets whose contents differ from the acknowledged ones.
    pub lost: Vec<String>,
}

pub(super) fn run(world: &World) -> Result<()> {
    let DialectsOutcome { dialects: _, wrong, not_atomic: (due, found), lost } = play(world)?;
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    ensure!(found == due, "found {found} of {due} servers whose create-once is not atomic");
    ensure!(lost.is_empty(), "not the first record of one volume alone: {lost:?}");
    Ok(())
}

/// Runs preflight and the operator with each dialect, then ends the dialects.
///
/// # Errors
/// If anything fails that is not counted, or something does not recover in time.
pub fn play(world: &World) -> Result<DialectsOutcome> {
    let s3 = world.s3()?;
    let proxy = DialectProxy::start(s3.port())?;
    let mut buckets: BTreeMap<String, Dialect> =
        ROWS.iter().map(|row| (row.name.to_owned(), row.dialect)).collect();
    buckets.extend((0..LOOKERS).map(|number| {
        (format!("looker-{number}"), Dialect::CreateLooksFirst(Duration::from_millis(20 + 25 * number)))
    }));
    for (bucket, dialect) in &buckets {
        s3.create_bucket(bucket)?;
        proxy.set_dialect(bucket, *dialect);
    }
    world.operator()?;
    world.kubectl([
        "create",
        "secret",
        "generic",
        "right",
        &format!("--namespace={NAMESPACE}"),
        &format!("--from-literal=accessKeyId={ACCESS_KEY}"),
        &format!("--from-literal=secretAccessKey={SECRET_KEY}"),
    ])?;
    let mut documents = String::new();
    for DialectRow { name, .. } in ROWS {
        let store = object_store(name, name, "right", &proxy.endpoint());
        write!(documents, "{store}---\n{}---\n", volume(name, name, "1Gi"))?;
    }
    apply(world, &documents)?;

    report::step("the reports of preflight");
    let lines = preflight(world, &proxy, buckets.keys())?;
    let mut wrong = check_preflight(&lines)?;
    let found = count_detected_lookers(&lines)?;
    report::step("the conditions of the ObjectStores");
    wrong.extend(check_stores(world)?);

    report::step("it is over");
    let over = Instant::now();
    proxy.end();
    let all_ready = || {
        let stores = conditions(world, "objectstores", "Ready")?;
        let volumes = conditions(world, "volumes", "Provisioned")?;
        let ready = |found: &BTreeMap<String, ReportedCondition>| {
            ROWS.iter().all(|row| found.get(row.name).is_some_and(|lines| lines.status == "True"))
        };
        Ok((ready(&stores) && ready(&volumes)).then_some(()))
    };
    until("stores and volumes to be ready", CONDITION_LIMIT, all_ready)
        .with_context(|| format!("{:?}", conditions(world, "volumes", "Provisioned")))?;
    let duration = over.elapsed();
    ensure!(duration <= RECOVERY_LIMIT, "it took {duration:?} until everything continued");
    let mut lost = Vec::new();
    for bucket in buckets.keys() {
        let keys = s3.keys(bucket, "")?;
        let due = usize::from(!bucket.starts_with("looker-"));
        if keys.len() != due || keys.iter().any(|key| !key.contains("/log/")) {
            lost.push(format!("{bucket}: {keys:?}"));
        }
    }
    report::step(format_args!(
        "{} dialects, {} of them wrong, {found} of {LOOKERS} lookers found, all continued after {:.1} s",
        ROWS.len(),
        wrong.len(),
        duration.as_secs_f64()
    ));
    Ok(DialectsOutcome { dialects: ROWS.len(), wrong, not_atomic: (LOOKERS, found), lost })
}

/// Runs `holdfast-node preflight` on this host with a store for each bucket. Returns its lines about stores.
fn preflight<'a>(
    world: &World,
    proxy: &DialectProxy,
    buckets: impl Iterator<Item = &'a String>,
) -> Result<BTreeMap<String, String>> {
    let dir = world.dir();
    let [state, run] = ["state", "run"].map(|name| dir.join(name).display().to_string());
    let mut config = format!("node.name = \"a\"\nnode.state_dir = \"{state}\"\nnode.run_dir = \"{run}\"\n");
    for bucket in buckets {
        write!(
            config,
            "[stores.{bucket}]\nendpoint = \"{}\"\nregion = \"{REGION}\"\nbucket = \"{bucket}\"\nprefix = \"preflight\"\n\
             path_style = true\n[stores.{bucket}.credentials]\naccess_key_id = \"{ACCESS_KEY}\"\n\
             secret_access_key = \"{SECRET_KEY}\"\n",
            proxy.endpoint()
        )?;
    }
    let file = dir.join("preflight.toml");
    fs::write(&file, config).context("write a configuration")?;
    let program = world.programs()?.join("holdfast-node");
    // It fails: this host has no ublk driver.
    let done =
        Command::new(program).args(["preflight", "--config"]).arg(file).output().context("run preflight")?;
    let printed = String::from_utf8_lossy(&done.stdout).into_owned();
    let store = |line: &str| {
        let (_, rest) = line.split_once(" store ")?;
        let (name, _) = rest.split_once(": ")?;
        Some((name.to_owned(), line.to_owned()))
    };
    let lines: BTreeMap<String, String> = printed.lines().filter_map(store).collect();
    ensure!(!lines.is_empty(), "no store in\n{printed}{}", String::from_utf8_lossy(&done.stderr));
    Ok(lines)
}

fn line<'a>(lines: &'a BTreeMap<String, String>, name: &str) -> Result<&'a str> {
    lines.get(name).map(String::as_str).with_context(|| format!("no line of {name}: {lines:?}"))
}

/// Returns the lines of preflight that lack the fault or its fix.
fn check_preflight(lines: &BTreeMap<String, String>) -> Result<Vec<String>> {
    let mut wrong = Vec::new();
    for DialectRow { name, reason, state, fix, .. } in ROWS {
        let line = line(lines, name)?;
        let is_named = match (reason, line.split_once(". Fix: ")) {
            (None, _) => line.starts_with(&format!("PASS store {name}: ")),
            (Some(_), None) => false,
            (Some(_), Some((found, action))) => {
                found.starts_with(&format!("FAIL store {name}: {state}")) && action.contains(fix)
            }
        };
        if !is_named {
            wrong.push(format!("not {state:?}, {fix:?}: {line}"));
        }
    }
    Ok(wrong)
}

fn count_detected_lookers(lines: &BTreeMap<String, String>) -> Result<u64> {
    let mut found = 0;
    for number in 0..LOOKERS {
        let line = line(lines, &format!("looker-{number}"))?;
        found += u64::from(line.starts_with("FAIL ") && line.contains("(If-None-Match is not atomic)"));
    }
    Ok(found)
}

/// Waits until each ObjectStore reports its fault. Returns those that do not.
fn check_stores(world: &World) -> Result<Vec<String>> {
    let is_reported = |row: &DialectRow, found: &BTreeMap<String, ReportedCondition>| {
        let Some(condition) = found.get(row.name) else { return false };
        match row.reason {
            None => condition.status == "True",
            Some(reason) => {
                condition.status == "False"
                    && condition.reason == reason
                    && condition.message.starts_with(&format!("spec.{}", row.state))
                    && condition.message.contains(row.fix)
            }
        }
    };
    let mut wrong = Vec::new();
    let all_reported = || {
        let found = conditions(world, "objectstores", "Ready")?;
        let missing = ROWS.iter().filter(|row| !is_reported(row, &found));
        wrong = missing.map(|row| format!("{}: {:?}", row.name, found.get(row.name))).collect();
        Ok(wrong.is_empty().then_some(()))
    };
    let reported = until("each ObjectStore to say its fault", CONDITION_LIMIT, all_reported);
    if wrong.is_empty() {
        reported?;
    }
    Ok(wrong)
}

/// A condition.
#[derive(Debug)]
struct ReportedCondition {
    status: String,
    reason: String,
    message: String,
}

/// Returns the condition of this type of each object of a kind that has it.
fn conditions(world: &World, kind: &str, type_: &str) -> Result<BTreeMap<String, ReportedCondition>> {
    let list: Value =
        serde_json::from_str(&world.kubectl(["get", kind, "--output=json"])?).context("a list")?;
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let items = list["items"].as_array().context("a list without items")?;
    let parse_item = |item: &Value| {
        let found = item["status"]["conditions"].as_array()?.iter().find(|found| found["type"] == type_)?;
        let [status, reason, message] = ["status", "reason", "message"].map(|field| text(&found[field]));
        Some((text(&item["metadata"]["name"]), ReportedCondition { status, reason, message }))
    };
    Ok(items.iter().filter_map(parse_item).collect())
}
