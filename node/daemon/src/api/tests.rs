use std::time::Duration;

use holdfast_proto::node::v1::node_server::Node as _;
use holdfast_proto::node::v1::{Durability, Limits, MemoryVolume};
use holdfast_s3::S3Credentials;
use tonic::Code;

use super::*;
use crate::node::FailureKind;
use crate::volumes::tests::{Fake, attached, in_memory};

fn standalone() -> Control {
    let config = S3Config::new("volumes", "us-east-1", S3Credentials::Environment);
    Control::Standalone([("main".to_owned(), config)].into())
}

fn api(fake: &Fake) -> Api<Fake> {
    Api::new(
        fake.clone(),
        KnownStores::new(&standalone()),
        FormatPermissions::default(),
        HandoffOwner::unnamed(),
    )
}

#[tokio::test]
async fn a_bad_field_is_named_and_nothing_changes() {
    let fake = Fake::default();
    let age = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let good = AttachRequest {
        volume_id: "v".to_owned(),
        store: "main".to_owned(),
        size_bytes: None,
        replaces_epoch: None,
        max_dirty_age: None,
        durability: 0,
        memory: None,
        limits: None,
    };
    let limits = |iops, bytes_per_second| Some(Limits { iops, bytes_per_second });
    let scratch = MemoryVolume { size_bytes: 1 << 20, ..MemoryVolume::default() };
    let memory = |memory| AttachRequest { store: String::new(), memory: Some(memory), ..good.clone() };
    let cases = [
        ("volume_id: ", AttachRequest { volume_id: "V/".to_owned(), ..good.clone() }),
        ("store: is empty", AttachRequest { store: String::new(), ..good.clone() }),
        (
            "store: `x` is not one of the configured stores; use main",
            AttachRequest { store: "x".to_owned(), ..good.clone() },
        ),
        ("size_bytes: 4097 ", AttachRequest { size_bytes: Some(4097), ..good.clone() }),
        ("size_bytes: 0 ", AttachRequest { size_bytes: Some(0), ..good.clone() }),
        ("max_dirty_age: ", AttachRequest { max_dirty_age: age(0), ..good.clone() }),
        ("max_dirty_age: ", AttachRequest { max_dirty_age: age(-5), ..good.clone() }),
        ("max_dirty_age: ", AttachRequest { max_dirty_age: age(7200), ..good.clone() }),
        ("durability: 7 ", AttachRequest { durability: 7, ..good.clone() }),
        ("limits.iops: 0 is", AttachRequest { limits: limits(Some(0), None), ..good.clone() }),
        ("limits.iops: 9 is", AttachRequest { limits: limits(Some(9), Some(1 << 20)), ..good.clone() }),
        ("limits.bytes_per_second: 1 ", AttachRequest { limits: limits(None, Some(1)), ..good.clone() }),
        (
            "limits: a memory volume has none",
            AttachRequest { limits: limits(Some(10), None), ..memory(scratch) },
        ),
        ("store: a memory volume has none", AttachRequest { store: "main".to_owned(), ..memory(scratch) }),
        ("durability: a memory volume has none", AttachRequest { durability: 2, ..memory(scratch) }),
        ("size_bytes: 4097 ", memory(MemoryVolume { size_bytes: 4097, ..scratch })),
        ("memory.limit_bytes: is 0", memory(MemoryVolume { limit_bytes: Some(0), ..scratch })),
        ("memory.compression: 9 ", memory(MemoryVolume { compression: 9, ..scratch })),
    ];
    for (expected, request) in cases {
        let status = api(&fake).attach(Request::new(request)).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(expected), "{}", status.message());
    }
    assert!(fake.requests().is_empty());

    let good = CreateRequest {
        volume_id: "v".to_owned(),
        store: "main".to_owned(),
        size_bytes: 0,
        snapshot: Some("w@7".to_owned()),
    };
    for (expected, create) in [
        ("size_bytes: 1 ", CreateRequest { size_bytes: 1, ..good.clone() }),
        ("size_bytes: 0 ", CreateRequest { snapshot: None, ..good.clone() }),
        ("snapshot: `w` names no snapshot", CreateRequest { snapshot: Some("w".to_owned()), ..good.clone() }),
    ] {
        let status = api(&fake).create(Request::new(create)).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(expected), "{}", status.message());
    }
    assert_eq!(fake.created("v"), None);
}

/// Regression, found in review: `attach --durability object` of an attached volume printed its device, and
/// its FLUSHes stayed local.
#[tokio::test]
async fn an_attach_never_ignores_settings_of_an_attached_volume() {
    let fake = Fake::default();
    let plain =
        || AttachRequest { volume_id: "v".to_owned(), store: "main".to_owned(), ..Default::default() };
    let attach = async |request: AttachRequest| {
        // It has durability object, an age of 30 s, no limits and 1 GiB.
        fake.put(attached("v"));
        api(&fake).attach(Request::new(request)).await
    };
    let age = |seconds| Some(prost_types::Duration { seconds, nanos: 0 });
    let [local, object] = [Durability::Local, Durability::Object].map(i32::from);
    let limits = |iops, bytes_per_second| Some(Limits { iops, bytes_per_second });
    let same = AttachRequest {
        durability: object,
        max_dirty_age: age(30),
        size_bytes: Some(1 << 30),
        limits: limits(None, None),
        ..plain()
    };
    for agrees in [plain(), same, AttachRequest { size_bytes: Some(4096), ..plain() }] {
        let device = attach(agrees).await.expect("it asks for nothing else").into_inner().device.unwrap();
        assert_eq!(device.path, "/dev/ublkb0");
    }
    for (field, now, asked, command, request) in [
        ("durability", "object", "local", "configure", AttachRequest { durability: local, ..plain() }),
        ("max_dirty_age", "30s", "5s", "configure", AttachRequest { max_dirty_age: age(5), ..plain() }),
        (
            "limits.iops",
            "none",
            "500",
            "configure",
            AttachRequest { limits: limits(Some(500), None), ..plain() },
        ),
        (
            "limits.bytes_per_second",
            "none",
            "1Mi",
            "configure",
            AttachRequest { limits: limits(None, Some(1 << 20)), ..plain() },
        ),
        ("size_bytes", "1Gi", "2Gi", "grow", AttachRequest { size_bytes: Some(2 << 30), ..plain() }),
    ] {
        let status = attach(request).await.expect_err(field);
        assert_eq!(status.code(), Code::InvalidArgument);
        let begins = format!("{field}: v is attached on this node with {now}, and the request has {asked}. ");
        assert!(status.message().starts_with(&begins), "{}", status.message());
        assert!(status.message().contains(&format!("`holdfast-node {command}`")), "{}", status.message());
    }
}

#[tokio::test]
async fn only_a_named_instance_gets_the_devices() {
    let handoff = HandoffOwner::unnamed();
    let (stores, permissions) = (KnownStores::new(&Control::Kubernetes), FormatPermissions::default());
    let api = Api::new(Fake::default(), stores, permissions, handoff.clone());
    let ask = |instance: &str| api.hand_over(Request::new(HandOverRequest { instance: instance.to_owned() }));
    let refused = ask("a/b").await.unwrap_err();
    assert_eq!(refused.code(), Code::InvalidArgument);
    assert!(refused.message().starts_with("instance: the name of an instance has"), "{}", refused.message());
    let waits = tokio::time::timeout(Duration::from_millis(20), handoff.agreed()).await;
    assert!(waits.is_err(), "a refusal changes nothing");
    ask("pod-2").await.unwrap();
    assert_eq!(handoff.agreed().await, "pod-2".parse().unwrap());
}

/// The daemon holds the only copy of their connections: its exit would fail requests.
#[tokio::test]
async fn nothing_is_handed_over_while_devices_have_no_keeper() {
    let (fake, handoff) = (Fake::default(), HandoffOwner::unnamed());
    let (stores, permissions) = (KnownStores::new(&Control::Kubernetes), FormatPermissions::default());
    let api = Api::new(fake.clone(), stores, permissions, handoff.clone());
    let ask = || api.hand_over(Request::new(HandOverRequest { instance: "pod-2".to_owned() }));
    fake.set_unkept_devices(2);
    let refused = ask().await.unwrap_err();
    assert_eq!(refused.code(), Code::FailedPrecondition);
    assert!(refused.message().contains("2 devices without ublk have no keeper"), "{}", refused.message());
    let waits = tokio::time::timeout(Duration::from_millis(20), handoff.agreed()).await;
    assert!(waits.is_err(), "the daemon serves on");
    fake.set_unkept_devices(0);
    ask().await.unwrap();
}

/// Regression: the permission stayed in the VolumeAttachment and allowed formatting at every later attach.
#[tokio::test]
async fn a_permission_to_format_is_for_one_attach() {
    let (fake, permissions) = (Fake::default(), FormatPermissions::default());
    let api = Api::new(
        fake.clone(),
        KnownStores::new(&Control::Kubernetes),
        permissions.clone(),
        HandoffOwner::unnamed(),
    );
    fake.put(attached("v"));
    let may_format = async || {
        let request = AwaitServedRequest { volume_id: "v".to_owned(), min_epoch: 1 };
        api.await_served(Request::new(request)).await.expect("it is served").into_inner().may_format
    };
    let volume = "v".parse().expect("a volume id");
    for (epoch, expected) in
        [(None, false), (Some(2), false), (Some(3), true), (Some(4), false), (None, false)]
    {
        permissions.set(&volume, epoch);
        assert_eq!(may_format().await, expected, "{epoch:?}");
    }
}

#[tokio::test]
async fn a_failure_of_the_node_keeps_its_kind_and_words() {
    let fake = Fake::default();
    fake.fail(FailureKind::Fenced, "another writer holds v");
    let request = AttachRequest { volume_id: "v".to_owned(), store: "main".to_owned(), ..Default::default() };
    let status = api(&fake).attach(Request::new(request)).await.unwrap_err();
    assert_eq!(status.code(), Code::Aborted);
    assert_eq!(status.message(), "another writer holds v");
}

#[tokio::test]
async fn under_kubernetes_volumes_can_be_seen_but_not_changed() {
    let fake = Fake::default();
    fake.put(attached("v"));
    let api = Api::new(
        fake.clone(),
        KnownStores::new(&Control::Kubernetes),
        FormatPermissions::default(),
        HandoffOwner::unnamed(),
    );
    let detach = DetachRequest { volume_id: "v".to_owned() };
    let status = api.detach(Request::new(detach)).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("Volume object"));
    // A user attached it before Kubernetes managed the daemon; no object refers to it.
    fake.put(in_memory("scratch", None, 0));
    let detach = DetachRequest { volume_id: "scratch".to_owned() };
    api.detach(Request::new(detach)).await.unwrap();
    // Regression: one command dropped the content of a claim.
    fake.put(in_memory("claim", Some("uid"), 1_800_000_000));
    let detach = DetachRequest { volume_id: "claim".to_owned() };
    let status = api.detach(Request::new(detach)).await.unwrap_err();
    assert!(status.message().contains("Volume object"), "{status}");
    let object = Durability::Object.into();
    let change = ConfigureRequest { volume_id: "v".to_owned(), durability: object, ..Default::default() };
    let status = api.configure(Request::new(change)).await.unwrap_err();
    assert!(status.message().ends_with("spec.limits of the Volume object instead"), "{status}");
    let listed = api.list(Request::new(ListRequest {})).await.unwrap().into_inner();
    assert_eq!(listed.volumes.len(), 2);
}

#[tokio::test]
async fn lists_are_sorted_and_can_name_one_volume() {
    let fake = Fake::default();
    fake.put(attached("a"));
    fake.put(attached("b"));
    let listed = api(&fake).list(Request::new(ListRequest {})).await.unwrap().into_inner();
    let ids: Vec<&str> = listed.volumes.iter().map(|volume| volume.volume_id.as_str()).collect();
    assert_eq!(ids, ["a", "b"]);
    let request = StatsRequest { volume_id: Some("b".to_owned()) };
    let stats = api(&fake).stats(Request::new(request)).await.unwrap().into_inner();
    assert_eq!((stats.volumes.len(), stats.volumes[0].write_requests), (1, 5));
    let none = StatsRequest { volume_id: Some("c".to_owned()) };
    assert_eq!(api(&fake).stats(Request::new(none)).await.unwrap_err().code(), Code::NotFound);
}

/// Regression: a changed configuration file required a restart of the daemon.
#[tokio::test]
async fn a_request_uses_the_stores_that_were_read_last() {
    let fake = Fake::default();
    let stores = KnownStores::new(&standalone());
    let api = Api::new(fake.clone(), stores.clone(), FormatPermissions::default(), HandoffOwner::unnamed());
    let attach = |store: &str| {
        let (volume_id, store) = ("v".to_owned(), store.to_owned());
        api.attach(Request::new(AttachRequest { volume_id, store, ..Default::default() }))
    };
    assert_eq!(attach("added").await.unwrap_err().code(), Code::InvalidArgument);
    let added = S3Config::new("elsewhere", "us-east-1", S3Credentials::Environment);
    stores.replace([("added".to_owned(), added)].into());
    attach("added").await.unwrap();
    let [request] = &fake.requests()[..] else { panic!("one request") };
    assert_eq!((request.store.bucket.as_str(), request.probe), ("elsewhere", true));
    assert_eq!(attach("main").await.unwrap_err().code(), Code::InvalidArgument);
}

#[tokio::test]
async fn a_snapshot_is_taken_once_for_each_uid() {
    let fake = Fake::default();
    let uid = "0189f7e0-5c2b-7cc3-9d1e-0242ac120002";
    let ask = |store: Option<&str>, uid: &str| CreateSnapshotRequest {
        volume_id: "v".to_owned(),
        store: store.map(str::to_owned),
        uid: uid.to_owned(),
    };
    for (expected, request) in
        [("uid: ", ask(None, "u")), ("store: `x` is not one of the configured stores", ask(Some("x"), uid))]
    {
        let status = api(&fake).create_snapshot(Request::new(request)).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(expected), "{}", status.message());
    }
    for store in [None, Some("main")] {
        let taken = api(&fake).create_snapshot(Request::new(ask(store, uid))).await.unwrap().into_inner();
        let taken = taken.snapshot.unwrap();
        assert_eq!((taken.seq, taken.uid.as_str(), taken.size_bytes), (3, uid, 1 << 30));
    }
}

/// Regression: they continued to run while the node was being shut down.
#[tokio::test]
async fn operations_end_with_the_interface() {
    use tokio_stream::StreamExt;

    let (fake, dir) = (Fake::default(), tempfile::tempdir().unwrap());
    fake.put(attached("v"));
    fake.hang();
    let api = api(&fake);
    let listener = bind(&dir.path().join("node.sock")).unwrap();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let served = tokio::spawn(serve(listener, api.clone(), async { stopped.await.unwrap() }));
    let detach = async || {
        let status = api.detach(Request::new(DetachRequest { volume_id: "v".to_owned() })).await;
        let status = status.expect_err("it did not end");
        assert_eq!(status.code(), Code::Unavailable);
        assert!(status.message().starts_with("the daemon is shutting down"), "{}", status.message());
    };
    let scrub = ScrubRequest { volume_id: "v".to_owned(), store: None, repair: false };
    let mut answers = api.scrub(Request::new(scrub)).await.unwrap().into_inner();
    let ends = async {
        answers.next().await.expect("progress").expect("it is in progress");
        stop.send(()).unwrap();
        served.await.unwrap().unwrap();
        while answers.next().await.is_some() {}
    };
    tokio::join!(detach(), ends);
    detach().await;
}

#[tokio::test]
async fn a_sweep_needs_a_name_with_several_stores() {
    let (fake, stores) = (Fake::default(), KnownStores::new(&standalone()));
    let api = Api::new(fake.clone(), stores.clone(), FormatPermissions::default(), HandoffOwner::unnamed());
    let sweep = |store: Option<&str>, grace| {
        let store = store.map(str::to_owned);
        api.sweep(Request::new(SweepRequest { store, grace, ..SweepRequest::default() }))
    };
    let answer = sweep(None, None).await.unwrap().into_inner();
    assert_eq!(answer.store, "main");
    let [request] = &fake.sweeps()[..] else { panic!("one sweep") };
    assert_eq!((request.name.as_str(), request.dry_run, request.most), ("main", false, u64::MAX));
    assert_eq!((request.store.bucket.as_str(), request.grace.as_secs()), ("volumes", 86_400));

    let second = S3Config::new("elsewhere", "us-east-1", S3Credentials::Environment);
    stores.replace([("a".to_owned(), second.clone()), ("b".to_owned(), second)].into());
    let negative = Some(prost_types::Duration { seconds: -1, nanos: 0 });
    for (expected, store, grace) in [
        ("store: the daemon's configuration has several; name one with --store: a or b", None, None),
        ("store: `main` is not one of the configured stores; use a or b", Some("main"), None),
        ("grace: is negative", Some("a"), negative),
    ] {
        let status = sweep(store, grace).await.expect_err(expected);
        assert_eq!(status.code(), Code::InvalidArgument);
        assert!(status.message().starts_with(expected), "{}", status.message());
    }
    stores.replace([].into());
    let none = sweep(None, None).await.unwrap_err();
    assert!(none.message().contains("add a section [stores.<name>]"), "{}", none.message());
    assert_eq!(fake.sweeps().len(), 1);

    let api = Api::new(
        fake.clone(),
        KnownStores::new(&Control::Kubernetes),
        FormatPermissions::default(),
        HandoffOwner::unnamed(),
    );
    let status = api.sweep(Request::new(SweepRequest::default())).await.unwrap_err();
    assert_eq!(status.code(), Code::FailedPrecondition);
    assert!(status.message().contains("spec.sweep"), "{}", status.message());
}

#[tokio::test]
async fn a_sweep_ends_when_its_caller_disconnects() {
    let fake = Fake::default();
    fake.hang();
    let api = api(&fake);
    let idle = fake.users();
    let waits = api.sweep(Request::new(SweepRequest::default()));
    tokio::time::timeout(Duration::from_millis(50), waits).await.expect_err("it hangs");
    let ended = async {
        while fake.users() > idle {
            tokio::task::yield_now().await;
        }
    };
    tokio::time::timeout(Duration::from_secs(10), ended).await.expect("it runs on without its caller");
}
