//! The command line against a real socket, served by a node without a kernel.

use std::time::{Duration, SystemTime};

use holdfast_log::LogFailure;
use holdfast_log::sweep::{Amount, Skipped, SweepReport};
use holdfast_s3::{S3Config, S3Credentials};
use holdfast_types::SectorRange;
use tempfile::TempDir;
use tokio::task::JoinHandle;

use super::*;
use crate::api::{Api, bind, serve};
use crate::config::Control;
use crate::failure::Failure;
use crate::node::{Content, FailureKind, ScrubEffect, ScrubFinding, ScrubRepair, Scrubbed};
use crate::volumes::tests::Fake;

struct World {
    directory: TempDir,
    server: JoinHandle<()>,
    fake: Fake,
}

impl World {
    async fn start() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let fake = Fake::default();
        let store = S3Config::new("volumes", "us-east-1", S3Credentials::Environment);
        let control = Control::Standalone([("main".to_owned(), store)].into());
        let listener = bind(&directory.path().join("new/node.sock")).unwrap();
        let api = Api::new(
            fake.clone(),
            crate::api::KnownStores::new(&control),
            Default::default(),
            crate::handoff::HandoffOwner::unnamed(),
        );
        let server = tokio::spawn(async move { serve(listener, api, std::future::pending()).await.unwrap() });
        Self { directory, server, fake }
    }

    async fn run(&self, line: &str) -> Result<String, Failure> {
        let mut out = String::new();
        self.run_into(line, &mut out).await.map(|()| out)
    }

    async fn run_into(&self, line: &str, out: &mut String) -> Result<(), Failure> {
        let socket = self.directory.path().join("new/node.sock");
        let socket = ["--socket", socket.to_str().unwrap()];
        let words = ["holdfast-node"].into_iter().chain(line.split(' ')).chain(socket);
        let cli = Cli::try_parse_from(words).unwrap();
        dispatch::ask(cli.command, out).await
    }
}

impl Drop for World {
    fn drop(&mut self) {
        self.server.abort();
    }
}

#[tokio::test]
async fn a_volume_that_is_attached_grows_by_name() {
    let world = World::start().await;
    world.run("attach v --store main").await.unwrap();
    assert_eq!(world.run("grow v 2Gi").await.unwrap(), "");
    assert!(world.run("list").await.unwrap().contains("2Gi"));
    assert!(world.run("grow v 3Gi --json").await.unwrap().contains("3221225472"));
    assert_eq!(world.run("grow w 2Gi").await.unwrap_err().kind, FailureKind::NotFound);
    assert!(Cli::try_parse_from(["holdfast-node", "grow", "v", "large"]).is_err());
}

#[tokio::test]
async fn a_memory_volume_is_attached_by_size() {
    let world = World::start().await;
    let device = world.run("attach tmp --memory 1Gi --memory-limit 256Mi --compression zstd").await.unwrap();
    assert!(device.starts_with("/dev/ublkb"), "{device}");
    let listed = world.run("list --json").await.unwrap();
    let listed: serde_json::Value = serde_json::from_str(&listed).unwrap();
    assert_eq!(listed["volumes"][0]["memory"]["limit_bytes"], 256 << 20);
    for wrong in
        ["attach tmp", "attach tmp --memory 1Gi --store main", "attach tmp --store main --memory-limit 1Gi"]
    {
        let words = ["holdfast-node"].into_iter().chain(wrong.split_whitespace());
        assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn settings_of_an_attached_volume_change_by_name() {
    let world = World::start().await;
    world.run("attach v --store main").await.unwrap();
    assert_eq!(world.run("configure v --durability local").await.unwrap(), "");
    let changed = world.run("configure v --max-dirty-age 90s --json").await.unwrap();
    let changed: serde_json::Value = serde_json::from_str(&changed).unwrap();
    assert_eq!(
        changed,
        serde_json::json!({ "max_dirty_age": "1m30s", "durability": "local", "limits": null })
    );
    let list = world.run("list").await.unwrap();
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    let column = rows[0].iter().position(|name| *name == "MAX-AGE").unwrap();
    assert_eq!(rows[1][column - 1..=column], ["local", "1m30s"]);
    assert!(world.run("list --json").await.unwrap().contains("\"max_dirty_age\": \"1m30s\""));
    assert_eq!(world.run("configure w --durability object").await.unwrap_err().kind, FailureKind::NotFound);
    let far = world.run("configure v --max-dirty-age 2h").await.unwrap_err();
    assert!(far.message.starts_with("max_dirty_age: "), "{}", far.message);
    assert!(Cli::try_parse_from(["holdfast-node", "configure", "v"]).is_err(), "nothing to change");
}

#[tokio::test]
async fn limits_are_set_changed_and_removed_by_name() {
    let world = World::start().await;
    world.run("attach v --store main --max-iops 3000 --max-throughput none").await.unwrap();
    let request = world.fake.requests().pop().unwrap();
    assert_eq!((request.limits.iops, request.limits.bytes_per_second), (Some(3000), None));
    world.run("configure v --max-throughput 125Mi").await.unwrap();
    let changed = world.run("configure v --max-iops 500 --json").await.unwrap();
    let changed: serde_json::Value = serde_json::from_str(&changed).unwrap();
    let both = serde_json::json!({ "iops": 500, "bytes_per_second": 125 << 20 });
    assert_eq!(changed["limits"], both);
    let list: serde_json::Value = serde_json::from_str(&world.run("list --json").await.unwrap()).unwrap();
    assert_eq!(list["volumes"][0]["limits"], both);
    world.run("configure v --max-iops none --max-throughput none").await.unwrap();
    let list: serde_json::Value = serde_json::from_str(&world.run("list --json").await.unwrap()).unwrap();
    assert_eq!(list["volumes"][0]["limits"], serde_json::Value::Null);
    let small = world.run("configure v --max-throughput 512Ki").await.unwrap_err();
    assert!(small.message.starts_with("limits.bytes_per_second: 524288 "), "{}", small.message);
    for wrong in
        ["configure v --max-iops 0", "configure v --max-iops fast", "configure v --max-throughput 1.5Mi"]
    {
        let words = ["holdfast-node"].into_iter().chain(wrong.split_whitespace());
        assert!(Cli::try_parse_from(words).is_err(), "{wrong}");
    }
}

#[tokio::test]
async fn snapshots_are_taken_shown_and_deleted_by_name() {
    let world = World::start().await;
    assert_eq!(world.run("snapshot create v --store main").await.unwrap(), "v@3\n");
    let uid = "0189f7e0-5c2b-7cc3-9d1e-0242ac120002";
    for _ in 0..2 {
        assert_eq!(world.run(&format!("snapshot create v --uid {uid}")).await.unwrap(), "v@4\n");
    }
    let list = world.run("snapshot list v").await.unwrap();
    let rows: Vec<Vec<&str>> = list.lines().map(|line| line.split_whitespace().collect()).collect();
    assert_eq!(rows[0], ["SNAPSHOT", "CREATED", "SIZE", "UID"]);
    assert_eq!(rows[2], ["v@4", "2023-11-14T22:13:20Z", "1Gi", uid]);
    assert_eq!(world.run("snapshot delete v@3").await.unwrap(), "");
    assert_eq!(world.run("snapshot delete v@3").await.unwrap_err().kind, FailureKind::NotFound);
    world.fake.fail(FailureKind::Unavailable, "the store is unreachable");
    let failed = world.run(&format!("snapshot create v --uid {uid}")).await.unwrap_err();
    assert!(failed.message.ends_with(&format!("again: --uid {uid})")), "{}", failed.message);
    for bad in ["v", "v@", "v@x", "V@3"] {
        let words = ["holdfast-node", "snapshot", "delete", bad];
        assert!(Cli::try_parse_from(words).is_err(), "{bad}");
    }
}

#[tokio::test]
async fn a_volume_is_created_from_a_snapshot_by_its_name() {
    let world = World::start().await;
    let taken = world.run("snapshot create v --store main").await.unwrap();
    let snapshot = taken.trim();
    assert!(world.run("snapshot list v").await.unwrap().contains(snapshot));
    let same = world.run(&format!("create fork --from {snapshot} --store main --json")).await.unwrap();
    assert_eq!(serde_json::from_str::<serde_json::Value>(&same).unwrap()["size_bytes"], 1 << 30);
    let from = |bytes| Content::Snapshot { snapshot: snapshot.parse().unwrap(), bytes };
    assert_eq!(world.fake.created("fork"), Some(from(None)));
    let larger = format!("create larger --from {snapshot} --size 2Gi --store main");
    assert_eq!(world.run(&larger).await.unwrap(), "");
    assert_eq!(world.fake.created("larger"), Some(from(Some(2 << 30))));
    let gone = world.run("create other --from v@999 --store main").await.unwrap_err();
    assert_eq!((gone.kind, gone.message.contains("v@999")), (FailureKind::NotFound, true));
    for (bad, says) in [
        ("create x --store main", "--size <SIZE>"),
        ("create x --store main --from V", "volume id"),
        ("create x --store main --from v@x", "`v@x` names no snapshot"),
    ] {
        let words = ["holdfast-node"].into_iter().chain(bad.split(' '));
        let refused = Cli::try_parse_from(words).unwrap_err().to_string();
        assert!(refused.contains(says), "{refused}");
    }
}

/// A clone's temporary snapshot is deleted at the end, even if the clone is rejected.
#[tokio::test]
async fn a_volume_is_cloned_from_the_current_content() {
    let world = World::start().await;
    world.run("snapshot create v --store main").await.unwrap();
    assert_eq!(world.run("create copy --from v --size 2Gi --store main").await.unwrap(), "");
    let from = "v@4".parse().unwrap();
    assert_eq!(world.fake.created("copy"), Some(Content::Snapshot { snapshot: from, bytes: Some(2 << 30) }));
    let again = world.run("create copy --from v --size 4Gi --store main").await.unwrap_err();
    assert_eq!(again.kind, FailureKind::Invalid);
    let left = world.run("snapshot list v").await.unwrap();
    assert_eq!(left.matches("v@").count(), 1, "{left}");
}

/// Regression, found in review: Ctrl-C while the snapshot was taken left it in the store permanently.
#[tokio::test]
async fn a_stopped_clone_leaves_no_snapshot() {
    let world = World::start().await;
    world.run("snapshot create v --store main").await.unwrap();
    let clone = async |signals: usize| {
        let (stop, mut stops) = tokio::sync::mpsc::channel(2);
        for _ in 0..signals {
            stop.try_send(()).unwrap();
        }
        let socket = world.directory.path().join("new/node.sock");
        let line = ["holdfast-node", "create", "copy", "--from", "v", "--store", "main", "--socket"];
        let cli = Cli::try_parse_from(line.into_iter().chain([socket.to_str().unwrap()])).unwrap();
        let Command::Create(create) = cli.command else { unreachable!() };
        create::run_until(create, &mut stops, &mut String::new()).await.unwrap_err()
    };
    let stopped = clone(1).await;
    assert_eq!(exit::code(stopped.kind), 1);
    assert!(stopped.message.ends_with("volume copy was not created"), "{}", stopped.message);
    assert_eq!(world.fake.created("copy"), None);
    let left = world.run("snapshot list v").await.unwrap();
    assert_eq!(left.matches("v@").count(), 1, "{left}");
    // The store may not answer.
    let stopped = clone(2).await;
    assert!(
        stopped.message.contains("with uid ") && stopped.message.contains("`snapshot list v`"),
        "{stopped}"
    );
}

#[tokio::test]
async fn a_volume_is_created_attached_shown_and_detached() {
    let world = World::start().await;
    assert_eq!(world.run("create vol-1 --size 2Gi --store main").await.unwrap(), "");
    let again = world.run("create vol-1 --size 4Gi --store main").await.unwrap_err();
    assert_eq!(again.kind, FailureKind::Invalid);
    assert_eq!(
        world
            .run("attach vol-1 --store main --size 3Gi --max-dirty-age 5s --durability object")
            .await
            .unwrap(),
        "/dev/ublkb0\n"
    );
    let request = world.fake.requests().pop().unwrap();
    assert_eq!((request.bytes, request.replaces), (Some(3 << 30), None));
    assert_eq!(request.max_dirty_age, Some(std::time::Duration::from_secs(5)));
    assert_eq!(request.durability, holdfast_engine::settings::Durability::Object);

    let list = world.run("list").await.unwrap();
    let [header, row] = list.lines().collect::<Vec<_>>().try_into().unwrap();
    assert_eq!(header.split_whitespace().next(), Some("VOLUME"));
    let cells: Vec<&str> = row.split_whitespace().collect();
    assert_eq!(
        cells[..10],
        ["vol-1", "Attached", "/dev/ublkb0", "3Gi", "ublk-zero-copy", "3", "7", "8Ki", "2s", "object"]
    );

    assert_eq!(world.run("detach vol-1").await.unwrap(), "");
    let gone = world.run("detach vol-1").await.unwrap_err();
    assert_eq!((gone.kind, exit::code(gone.kind)), (FailureKind::NotFound, 3));
}

/// Regression, found in review: the command sent its default durability, so that a plain attach was no
/// request for the attached volume as it is.
#[tokio::test]
async fn a_plain_attach_of_an_attached_volume_prints_its_device() {
    let world = World::start().await;
    for _ in 0..2 {
        assert_eq!(world.run("attach v --store main").await.unwrap(), "/dev/ublkb0\n");
    }
    let refused = world.run("attach v --store main --durability local").await.unwrap_err();
    assert_eq!((refused.kind, exit::code(refused.kind)), (FailureKind::Invalid, 2));
    assert!(refused.message.starts_with("durability: v is attached on this node"), "{}", refused.message);
}

#[tokio::test]
async fn json_is_for_programs() {
    let world = World::start().await;
    let attached = world.run("attach vol-1 --store main --json").await.unwrap();
    let attached: serde_json::Value = serde_json::from_str(&attached).unwrap();
    assert_eq!(attached["device"]["path"], "/dev/ublkb0");
    assert_eq!(attached["displaced"], serde_json::Value::Null);
    let replaced = world.run("attach vol-2 --store main --take-over 4 --json").await.unwrap();
    let replaced: serde_json::Value = serde_json::from_str(&replaced).unwrap();
    assert_eq!(
        (&replaced["displaced"]["epoch"], &replaced["displaced"]["node"]),
        (&4.into(), &"lost".into())
    );
    assert_eq!(replaced["displaced"]["since"], "2023-11-14T22:13:20Z");
    let list: serde_json::Value = serde_json::from_str(&world.run("list --json").await.unwrap()).unwrap();
    assert_eq!(list["volumes"][0]["state"], "Attached");
    assert_eq!(list["volumes"][0]["committed_seq"], 7);
    assert_eq!(list["volumes"][0]["durable_through"], "2023-11-14T22:13:20.500Z");
    let stats: serde_json::Value =
        serde_json::from_str(&world.run("stats vol-1 --json").await.unwrap()).unwrap();
    assert_eq!(stats["volumes"][0]["store_requests"]["put"], 2);
}

#[tokio::test]
async fn a_refused_transport_and_a_tearing_disk_are_explained() {
    let world = World::start().await;
    let text = world.run("capabilities").await.unwrap();
    assert!(text.starts_with("kernel 6.14.0, daemon "), "{text}");
    assert!(text.contains("ublk-zero-copy  no         the ublk driver"), "{text}");
    assert!(text.contains("ublk-user-copy  yes"), "{text}");
    assert!(text.contains("transport of new devices: ublk-user-copy\n"), "{text}");
    let disk = "state disk: sda, physical blocks of 512 bytes: a power cut may tear sectors";
    assert!(text.contains(disk), "{text}");
    let json: serde_json::Value =
        serde_json::from_str(&world.run("capabilities --json").await.unwrap()).unwrap();
    assert_eq!(json["state_disk"]["physical_block_bytes"], 512);
    assert_eq!(json["transport"], "ublk-user-copy");
}

#[tokio::test]
async fn an_absent_daemon_is_named_with_the_fix() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("node.sock");
    let cli = Cli::try_parse_from(["holdfast-node", "list", "--socket", socket.to_str().unwrap()]).unwrap();
    let failure = dispatch::ask(cli.command, &mut String::new()).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Unavailable);
    assert!(failure.message.contains("node.sock; start it with `holdfast-node run`"), "{}", failure.message);
}

#[test]
fn a_bad_size_is_refused_before_anything_is_sent() {
    let line = ["holdfast-node", "create", "v", "--store", "main", "--size", "1GB"];
    let error = Cli::try_parse_from(line).unwrap_err().to_string();
    assert!(error.contains("--size") && error.contains("64Mi"), "{error}");
}

#[test]
fn fenced_writers_are_listed_without_a_daemon() {
    let state = tempfile::tempdir().unwrap();
    let dir = state.path().to_str().unwrap();
    let run = |words: &[&str]| {
        let line = [&["holdfast-node", "fenced"], words, &["--state-dir", dir]].concat();
        let Command::Fenced(fenced) = Cli::try_parse_from(line).unwrap().command else { unreachable!() };
        let mut out = String::new();
        fenced.run(&mut out).map(|()| out)
    };
    assert_eq!(run(&["list"]).unwrap(), "NAME  VOLUME  EPOCH  SIZE  NOT-UPLOADED  MESSAGE\n");
    let none = run(&["export", "disk-1", "--output", "disk.img"]).unwrap_err();
    assert_eq!(none.kind, FailureKind::NotFound);
    assert!(none.message.contains("is --state-dir the daemon's node.state_dir?"), "{}", none.message);
    std::fs::create_dir_all(state.path().join("fenced/disk-1")).unwrap();
    assert!(run(&["list"]).unwrap().contains("disk-1  -       -      -     -             "));
    let refused = run(&["delete", "disk-1"]).unwrap_err();
    assert!(refused.message.contains("has no durable map"), "{}", refused.message);
    assert_eq!(run(&["delete", "disk-1", "--confirm-data-loss", "--json"]).unwrap(), "{}\n");
}

#[tokio::test]
async fn a_scrub_without_findings_lists_the_read_objects() {
    let world = World::start().await;
    world.fake.set_scrubbed(Scrubbed {
        records: 5,
        checkpoints: 1,
        segments: 2,
        frames: 9,
        ..Scrubbed::default()
    });
    let text = world.run("scrub vol-1 --store main").await.unwrap();
    assert_eq!(
        text,
        "read: log records 5, checkpoints 1, segments 2, frames 9, bytes of segments 0\nnothing is damaged\n"
    );
    let (volume, store, repair) = world.fake.scrubs().pop().unwrap();
    assert_eq!((volume.as_str(), store.as_deref(), repair), ("vol-1", Some("main"), false));
    let unknown = world.run("scrub vol-1 --store other").await.unwrap_err();
    assert!(unknown.message.contains("use main"), "{}", unknown.message);
}

#[tokio::test]
async fn damage_is_listed_by_object_and_fails_the_scrub() {
    let world = World::start().await;
    let finding = |object: &str, effect, repair, lost: &[(u64, u64)]| ScrubFinding {
        object: object.to_owned(),
        fault: "has damaged frames (1): frame of block 2 fails its checksum".to_owned(),
        effect,
        repair,
        lost: lost.iter().map(|(start, sectors)| SectorRange::new(*start, *sectors)).collect(),
    };
    let harmless = finding("segments/1", ScrubEffect::Harmless, ScrubRepair::None, &[]);
    let repaired = finding("segments/2", ScrubEffect::Unreadable, ScrubRepair::Done, &[]);
    let many: Vec<(u64, u64)> = (0..10).map(|number| (number * 10, 2)).collect();
    let lost = finding("segments/3", ScrubEffect::Unreadable, ScrubRepair::Impossible, &many);
    world
        .fake
        .set_scrubbed(Scrubbed { findings: vec![harmless.clone(), repaired.clone()], ..Scrubbed::default() });
    let text = world.run("scrub vol-1 --repair").await.unwrap();
    assert!(
        text.contains("segments/2 has damaged frames (1): frame of block 2 fails its checksum\n  repaired\n")
    );

    world.fake.set_scrubbed(Scrubbed { findings: vec![harmless, repaired, lost], ..Scrubbed::default() });
    let mut text = String::new();
    let failure = world.run_into("scrub vol-1 --repair", &mut text).await.unwrap_err();
    assert_eq!((failure.kind, exit::code(failure.kind)), (FailureKind::Corrupt, 6));
    assert_eq!(failure.message, "damage that affects the volume remains (objects: 1)");
    assert!(text.contains("  lost: 8Ki at byte 40960\n"), "{text}");
    assert!(text.contains("  lost: 2 more ranges; --json shows all\n"), "{text}");
    let mut json = String::new();
    world.run_into("scrub vol-1 --json", &mut json).await.unwrap_err();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(
        json["findings"][2]["lost"][9],
        serde_json::json!({ "offset_bytes": 90 * 4096, "length_bytes": 8192 })
    );
    assert_eq!(json["findings"][1]["repair"], "done");
}

/// Regression, found in review: such a report was lost after hours of reading, with an error of gRPC.
#[tokio::test]
async fn a_report_larger_than_four_mebibytes_arrives() {
    let world = World::start().await;
    let lost: Vec<_> = (0..600_000).map(|number| SectorRange::new(number * 2, 1)).collect();
    let finding = ScrubFinding {
        object: "segments/1".to_owned(),
        fault: "is missing".to_owned(),
        effect: ScrubEffect::Unreadable,
        repair: ScrubRepair::None,
        lost,
    };
    world.fake.set_scrubbed(Scrubbed { findings: vec![finding], ..Scrubbed::default() });
    let mut text = String::new();
    let failure = world.run_into("scrub vol-1 --store main", &mut text).await.unwrap_err();
    assert_eq!(failure.kind, FailureKind::Corrupt, "{failure}");
    assert!(text.contains("  lost: 599992 more ranges; --json shows all\n"), "{text}");
}

#[tokio::test]
async fn a_sweep_shows_what_it_found_and_deleted() {
    let world = World::start().await;
    let report = SweepReport {
        volumes: 3,
        kept: Amount { objects: 12, bytes: 40960 },
        garbage: Amount { objects: 5, bytes: 9000 },
        deleted: Amount { objects: 4, bytes: 8000 },
        oldest: Some(SystemTime::now() - Duration::from_secs(2 * 3600 + 330)),
        snapshots: vec![("disk@17".parse().unwrap(), 12288)],
        ..SweepReport::default()
    };
    world.fake.set_swept(report);
    let text = world.run("gc --most 4").await.unwrap();
    assert_eq!(
        text,
        "store main, volumes: 3\n         OBJECTS  BYTES\nkept     12       40960\ngarbage  5        9000\n\
         deleted  4        8000\nleft     1        1000\nthe oldest garbage left is 2h5m old\n\
         SNAPSHOT  EXCLUSIVE BYTES\ndisk@17   12288\n"
    );
    world.run("gc --store main --dry-run --grace 1h30m").await.unwrap();
    let requests: Vec<_> =
        world.fake.sweeps().iter().map(|sweep| (sweep.grace.as_secs(), sweep.dry_run, sweep.most)).collect();
    assert_eq!(requests, [(86_400, false, 4), (5400, true, u64::MAX)]);
    let unknown = world.run("gc --store other").await.unwrap_err();
    assert!(unknown.message.contains("use main"), "{}", unknown.message);
    for (bad, says) in [("gc --grace 5", "such as 30s"), ("gc --most 0", "--most <OBJECTS>")] {
        let refused = Cli::try_parse_from(["holdfast-node"].into_iter().chain(bad.split(' '))).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
    }
}

#[tokio::test]
async fn volumes_that_a_sweep_skipped_are_named_with_the_fix() {
    let world = World::start().await;
    let id = |name: &str| name.parse::<holdfast_types::VolumeId>().unwrap();
    let skip = |name: &str, error: fn(holdfast_types::VolumeId) -> LogFailure| Skipped {
        volume: id(name),
        error: error(id(name)),
    };
    let changing = || skip("busy", LogFailure::Contended);
    world.fake.set_swept(SweepReport { skipped: vec![changing()], ..SweepReport::default() });
    let text = world.run("gc").await.unwrap();
    assert!(
        text.contains("all objects that busy may read were kept; the next sweep reads it again"),
        "{text}"
    );

    let damaged = |volume: holdfast_types::VolumeId| LogFailure::Damaged {
        key: format!("volumes/{volume}/log/3"),
        source: holdfast_format::DecodeError::Short { what: "a record", have: 1, need: 2 },
    };
    let skipped = || vec![changing(), skip("bad", damaged), skip("bare", LogFailure::NoLog)];
    world.fake.set_swept(SweepReport { skipped: skipped(), ..SweepReport::default() });
    let mut text = String::new();
    let failure = world.run_into("gc", &mut text).await.unwrap_err();
    assert_eq!((failure.kind, exit::code(failure.kind)), (FailureKind::Corrupt, 6));
    assert!(failure.message.starts_with("damaged volumes were skipped (volumes: 2)"), "{}", failure.message);
    assert!(text.contains("volume bad was skipped: ") && text.contains("volumes/bad/log/3"), "{text}");
    assert!(text.contains("`holdfast-node scrub bad --store main`"), "{text}");
    assert!(
        text.contains("the objects of bare were kept, and those of every volume that had snapshots"),
        "{text}"
    );

    world.fake.set_swept(SweepReport { skipped: skipped(), ..SweepReport::default() });
    let mut json = String::new();
    world.run_into("gc --json", &mut json).await.unwrap_err();
    let json: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!((&json["store"], &json["oldest"]), (&"main".into(), &serde_json::Value::Null));
    assert_eq!(json["left"], serde_json::json!({ "objects": 0, "bytes": 0 }));
    assert_eq!(
        (&json["skipped"][1]["volume_id"], &json["skipped"][1]["cause"]),
        (&"bad".into(), &"damaged".into())
    );
}

#[test]
fn the_user_pages_name_exactly_the_commands() {
    let cli = <Cli as clap::CommandFactory>::command();
    let mut named = std::collections::BTreeSet::new();
    for (path, page) in crate::documented::pages() {
        for rest in page.split("holdfast-node ").skip(1) {
            let line = rest.split(['`', '\n']).next().unwrap();
            let (mut commands, mut words) = (vec![&cli], line.split(' ').peekable());
            while commands[0].has_subcommands()
                && let Some(word) = words.next_if(|word| word.starts_with(|c: char| c.is_ascii_lowercase()))
            {
                let find = |one| {
                    let found = commands[0].find_subcommand(one);
                    found.unwrap_or_else(|| panic!("{path}: there is no `holdfast-node {line}`"))
                };
                commands = word.split('|').map(find).collect();
                named.extend(commands.iter().map(|command| command.get_name()));
            }
            for option in words.filter_map(|word| word.strip_prefix("--")) {
                let takes = |command: &&clap::Command| {
                    command.get_arguments().any(|argument| argument.get_long() == Some(option))
                };
                assert!(commands.iter().all(takes), "{path}: `holdfast-node {line}` has no --{option}");
            }
        }
    }
    for command in cli.get_subcommands().filter(|command| !command.is_hide_set()) {
        assert!(named.contains(command.get_name()), "no page names `holdfast-node {}`", command.get_name());
    }
}
