//! The plan of a creation, without an API server.

use holdfast_proto::csi::v1::volume_capability::access_mode::Mode;
use holdfast_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use holdfast_proto::csi::v1::{CapacityRange, VolumeCapability, VolumeContentSource, volume_content_source};
use tonic::Code;

use super::*;

fn request(name: &str, required_bytes: i64) -> CreateVolumeRequest {
    CreateVolumeRequest {
        name: name.to_owned(),
        capacity_range: Some(CapacityRange { required_bytes, limit_bytes: 0 }),
        volume_capabilities: vec![VolumeCapability {
            access_mode: Some(AccessMode { mode: Mode::SingleNodeWriter.into() }),
            access_type: Some(AccessType::Mount(MountVolume::default())),
        }],
        parameters: HashMap::from([("objectStore".to_owned(), "main".to_owned())]),
        ..CreateVolumeRequest::default()
    }
}

fn wanted(name: &str, required_bytes: i64) -> WantedVolume {
    WantedVolume::try_from(request(name, required_bytes)).expect("a request")
}

#[test]
fn the_same_request_finds_its_own_volume() {
    for name in ["pvc-1", "A name of 1 volume"] {
        let first = wanted(name, 1 << 30);
        let volume = first.volume(None).expect("a volume");
        assert_eq!(volume.spec.size.as_deref(), Some("1Gi"));
        first.accept(&volume).expect("it is the one");
        wanted(name, 1 << 29).accept(&volume).expect("a smaller one would do");
        let larger = wanted(name, 2 << 30).accept(&volume).expect_err("too small");
        assert_eq!(larger.code(), Code::AlreadyExists);
        assert!(larger.message().contains("exists with 1073741824 bytes"), "{}", larger.message());
    }
}

/// Regression: after ControllerModifyVolume, the same request failed with the advice to delete the volume.
#[test]
fn settings_are_compared_until_the_spec_was_changed() {
    let first = wanted("pvc-1", 1 << 30);
    let mut volume = first.volume(None).expect("a volume");
    volume.spec.durability = holdfast_crds::DurabilityMode::Object;
    volume.metadata.generation = Some(1);
    let refused = first.accept(&volume).expect_err("it was created by another request");
    assert!(refused.message().contains("exists with another durability"), "{}", refused.message());
    volume.metadata.generation = Some(2);
    first.accept(&volume).expect("it was modified since");
    volume.spec.object_store = Some("cold".to_owned());
    assert_eq!(first.accept(&volume).expect_err("no request changes that").code(), Code::AlreadyExists);
}

/// Regression: the PersistentVolume alone was not enough to find the data again.
#[test]
fn a_new_volume_states_its_identity_and_purpose() {
    let first = WantedVolume::try_from(CreateVolumeRequest {
        parameters: HashMap::from(
            [
                ("objectStore", "main"),
                ("csi.storage.k8s.io/pvc/name", "data"),
                ("csi.storage.k8s.io/pvc/namespace", "shop"),
            ]
            .map(|(key, value)| (key.to_owned(), value.to_owned())),
        ),
        ..request("pvc-1", 1 << 30)
    });
    let volume = first.expect("a request").volume(Some("fast".to_owned())).expect("a volume");
    for (annotation, value) in [(CLAIM, "shop/data"), (STORAGE_CLASS, "fast"), (FS_TYPE, "ext4")] {
        assert_eq!(volume.annotations().get(annotation).map(String::as_str), Some(value));
    }
    let id = volume.spec.volume_id.clone().expect("an id");
    let mut volume = volume;
    volume.status = Some(holdfast_crds::VolumeStatus { volume_id: Some(id.clone()), ..Default::default() });
    let context =
        described(&volume, Nodes::Served, None).expect("an answer").volume.expect("a volume").volume_context;
    assert_eq!((context["volumeID"].as_str(), context["objectStore"].as_str()), (id.as_str(), "main"));
}

fn for_readers(name: &str, snapshot: Option<&str>, modes: &[Mode]) -> CreateVolumeRequest {
    let capability = |mode: &Mode| VolumeCapability {
        access_mode: Some(AccessMode { mode: (*mode).into() }),
        access_type: Some(AccessType::Mount(MountVolume::default())),
    };
    let source = snapshot.map(|id| {
        let snapshot = volume_content_source::SnapshotSource { snapshot_id: id.to_owned() };
        VolumeContentSource { r#type: Some(volume_content_source::Type::Snapshot(snapshot)) }
    });
    CreateVolumeRequest {
        volume_capabilities: modes.iter().map(capability).collect(),
        volume_content_source: source,
        ..request(name, 0)
    }
}

/// Regression: ReadOnlyMany was rejected.
#[test]
fn readers_of_many_nodes_need_a_source() {
    let modes = [Mode::MultiNodeReaderOnly];
    let shared = WantedVolume::try_from(for_readers("pvc-1", Some("backup"), &modes)).expect("a request");
    let volume = shared.volume(None).expect("a volume");
    assert!(readers::has_readers(&volume));
    shared.accept(&volume).expect("it is the one");
    let plain = for_readers("pvc-1", Some("backup"), &[Mode::SingleNodeWriter]);
    let plain = WantedVolume::try_from(plain).expect("a request");
    for (wanted, found) in [(&plain, &volume), (&shared, &plain.volume(None).expect("a volume"))] {
        let refused = wanted.accept(found).expect_err("for other users");
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert!(refused.message().contains("another access mode"), "{}", refused.message());
    }
    let mixed = [Mode::SingleNodeWriter, Mode::MultiNodeReaderOnly];
    for (request, words) in [
        (for_readers("pvc-1", None, &modes), "volume_content_source: is missing"),
        (for_readers("pvc-1", Some("backup"), &mixed), "write accessModes [ReadOnlyMany] alone"),
    ] {
        let refused = WantedVolume::try_from(request).expect_err(words);
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(words), "{}", refused.message());
    }
}

/// A user's volume has the name that the hash of another name produced.
#[test]
fn a_colliding_name_is_refused() {
    let hashed = wanted("A.b", 1 << 30);
    let foreign = wanted(&hashed.name.object, 1 << 30).volume(None).expect("a volume");
    assert_eq!(hashed.accept(&foreign).expect_err("another").code(), Code::AlreadyExists);
}

#[test]
fn a_volume_in_deletion_is_awaited() {
    let wanted = wanted("pvc-1", 1 << 30);
    let mut volume = wanted.volume(None).expect("a volume");
    volume.metadata.deletion_timestamp =
        Some(holdfast_crds::Time("2026-01-01T00:00:00Z".parse().expect("a time")));
    assert_eq!(wanted.accept(&volume).expect_err("not yet").code(), Code::Aborted);
}

#[test]
fn a_small_claim_is_rounded_up_for_its_file_system() {
    let bytes = |fs_type: &str| {
        let mut request = request("pvc-1", 1 << 20);
        let mount = MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() };
        request.volume_capabilities[0].access_type = Some(AccessType::Mount(mount));
        WantedVolume::try_from(request).expect("a request").capacity.bytes
    };
    assert_eq!([bytes(""), bytes("btrfs"), bytes("xfs")], [8 << 20, 128 << 20, 300 << 20]);
}

/// Regression: the Volume stayed after the StorageClass had been corrected, and blocked the claim's name.
#[test]
fn a_volume_of_a_corrected_class_is_recreated() {
    let with = |store: &str, claim: Option<&str>| {
        let mut request = request("pvc-1", 1 << 30);
        request.parameters.insert("objectStore".to_owned(), store.to_owned());
        if let Some(claim) = claim {
            request.parameters.insert("csi.storage.k8s.io/pvc/namespace".to_owned(), "shop".to_owned());
            request.parameters.insert("csi.storage.k8s.io/pvc/name".to_owned(), claim.to_owned());
        }
        WantedVolume::try_from(request).expect("a request")
    };
    let wrong = with("typo", Some("data")).volume(None).expect("a volume");
    let corrected = with("main", Some("data"));
    assert!(corrected.made_by_mistake(&wrong));
    assert_eq!(corrected.accept(&wrong).expect_err("it is deleted").code(), Code::Aborted);
    assert!(!corrected.made_by_mistake(&corrected.volume(None).expect("a volume")), "it is the one");

    let mut begun = wrong.clone();
    begun.status =
        Some(holdfast_crds::VolumeStatus { volume_id: Some("id".to_owned()), ..Default::default() });
    for (wanted, found) in
        [(corrected, begun), (with("main", Some("other")), wrong.clone()), (with("main", None), wrong)]
    {
        assert!(!wanted.made_by_mistake(&found));
        let refused = wanted.accept(&found).expect_err("another");
        assert_eq!(refused.code(), Code::AlreadyExists);
        assert!(refused.message().contains("kubectl delete volume pvc-1"), "{}", refused.message());
    }
}

/// Regression, found in review: the Volume stayed after its claim was deleted, because no sidecar knows a
/// volume whose creation failed.
#[tokio::test]
async fn a_volume_that_the_operator_refused_is_deleted() {
    let of_claim = |claim: &str| {
        let mut request = request("pvc-1", 1 << 30);
        request.parameters.insert("objectStore".to_owned(), "main".to_owned());
        request.parameters.insert("csi.storage.k8s.io/pvc/namespace".to_owned(), "shop".to_owned());
        request.parameters.insert("csi.storage.k8s.io/pvc/name".to_owned(), claim.to_owned());
        WantedVolume::try_from(request).expect("a request")
    };
    let wanted = of_claim("data");
    let left = async |phase: &str, node: &str, wanted: &WantedVolume| {
        let mut there = serde_json::to_value(of_claim("data").volume(None).expect("a volume")).expect("JSON");
        there["metadata"]["uid"] = "1".into();
        there["metadata"]["resourceVersion"] = "1".into();
        there["status"] =
            serde_json::json!({ "phase": phase, "volumeId": "id", "node": node, "conditions": [] });
        let (volumes, server) = memory::fake::FakeApi::start(vec![there], 0, |_| {});
        let until = Instant::now() + std::time::Duration::from_secs(20);
        wanted.delete_refused(&volumes, "pvc-1", until).await;
        server.volumes().len()
    };
    assert_eq!(left("Failed", "", &wanted).await, 0);
    assert_eq!(left("Pending", "", &wanted).await, 1, "it may be provisioned yet");
    assert_eq!(left("Failed", "a", &wanted).await, 1, "a node has it");
    assert_eq!(left("Failed", "", &of_claim("other")).await, 1, "of another claim");
}

#[test]
fn invalid_fields_are_named() {
    let source = CreateVolumeRequest {
        volume_content_source: Some(VolumeContentSource::default()),
        ..request("a", 1 << 30)
    };
    let attributes = CreateVolumeRequest {
        mutable_parameters: HashMap::from([("iops".to_owned(), "3".to_owned())]),
        ..request("a", 1 << 30)
    };
    let no_capability = CreateVolumeRequest { volume_capabilities: Vec::new(), ..request("a", 1 << 30) };
    for (request, words) in [
        (source, "volume_content_source.type: "),
        (attributes, "mutable_parameters.iops: "),
        (no_capability, "volume_capabilities: is empty"),
    ] {
        let refused = WantedVolume::try_from(request).expect_err(words);
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().starts_with(words), "{}", refused.message());
    }
}

#[test]
fn a_volume_begins_with_its_source_and_no_other() {
    let from = |id: &str| {
        let snapshot = volume_content_source::SnapshotSource { snapshot_id: id.to_owned() };
        let r#type = Some(volume_content_source::Type::Snapshot(snapshot));
        let volume_content_source = Some(VolumeContentSource { r#type });
        WantedVolume::try_from(CreateVolumeRequest { volume_content_source, ..request("pvc-1", 0) })
            .expect("a request")
    };
    let first = from("backup");
    let volume = first.volume(None).expect("a volume");
    first.accept(&volume).expect("it is the one");
    let described = described(&volume, Nodes::Served, None).expect("an answer").volume.expect("a volume");
    assert!(described.content_source.is_some());
    for other in [from("other"), wanted("pvc-1", 0)] {
        let refused = other.accept(&volume).expect_err("another content");
        assert!(refused.message().contains("another initial content"), "{}", refused.message());
    }
}

/// A node that an autoscaler has yet to create has no label: with a node affinity, a pod was never scheduled.
#[test]
fn a_volume_for_any_node_has_no_topology() {
    let spec = serde_json::json!({ "size": "1Gi", "objectStore": "main" });
    let volume = Volume::new("pvc-1", serde_json::from_value(spec).expect("a spec"));
    for (nodes, topologies) in [(Nodes::Served, vec![topology::served()]), (Nodes::Any, Vec::new())] {
        let described_volume = described(&volume, nodes, None).expect("an answer").volume.expect("a volume");
        assert_eq!(described_volume.accessible_topology, topologies, "{nodes:?}");
    }
}

#[test]
fn a_volume_for_ublk_is_made_for_nodes_with_it() {
    let parameters = [("objectStore", "main"), ("transport", "ublk")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let on = |topologies: Vec<v1::Topology>| {
        let requirement = v1::TopologyRequirement { requisite: topologies, preferred: Vec::new() };
        let parameters = HashMap::from(parameters.clone());
        let accessibility_requirements = Some(requirement);
        WantedVolume::try_from(CreateVolumeRequest {
            parameters,
            accessibility_requirements,
            ..request("pvc-1", 1 << 30)
        })
    };
    let first = on(vec![topology::of_node("a", true)]).expect("a request");
    let volume = first.volume(None).expect("a volume");
    assert!(volume.spec.needs_ublk());
    first.accept(&volume).expect("it is the one");
    let answer = described(&volume, Nodes::Served, None).expect("an answer").volume.expect("a volume");
    assert_eq!(answer.accessible_topology, [topology::of_volume(true)]);
    let refused = on(vec![topology::of_node("a", false)]).expect_err("no node has ublk");
    assert_eq!(refused.code(), Code::ResourceExhausted);
    let refused = wanted("pvc-1", 1 << 30).accept(&volume).expect_err("of another class");
    assert!(refused.message().contains("exists with another transport"), "{}", refused.message());
}

/// A request for a memory volume with a memory limit of half its size, on node `a`.
fn in_memory(name: &str, required_bytes: i64) -> CreateVolumeRequest {
    let parameters = [("backend", "memory"), ("maxMemoryPercent", "50")];
    let parameters = parameters.map(|(key, value)| (key.to_owned(), value.to_owned()));
    let requirement = v1::TopologyRequirement {
        requisite: vec![topology::on("b"), topology::on("a")],
        preferred: vec![topology::on("a")],
    };
    CreateVolumeRequest {
        parameters: HashMap::from(parameters),
        accessibility_requirements: Some(requirement),
        ..request(name, required_bytes)
    }
}

#[test]
fn a_memory_volume_is_made_for_the_chosen_node() {
    let wanted = WantedVolume::try_from(in_memory("pvc-1", 1 << 30)).expect("a request");
    let volume = wanted.volume(None).expect("a volume");
    assert!(volume.spec.is_memory() && volume.spec.object_store.is_none());
    assert_eq!(volume.labels().get(MEMORY_NODE).map(String::as_str), Some("a"));
    wanted.accept(&volume).expect("it is the one");
    let answer = described(&volume, Nodes::Served, None).expect("an answer").volume.expect("a volume");
    assert_eq!(answer.accessible_topology, [topology::on("a")]);
    assert!(!answer.volume_context.contains_key("objectStore"));
    let other = WantedVolume::try_from(request("pvc-1", 1 << 30)).expect("a request");
    let refused = other.accept(&volume).expect_err("in an object store");
    assert!(refused.message().contains("backend `memory`"), "{}", refused.message());
}

/// Regression: an autoscaler copied the labels of a full node. It created one node after another for a pod
/// whose memory volume was on the full one.
#[test]
fn a_memory_volume_does_not_fit_copies_of_its_node() {
    let wanted = WantedVolume::try_from(in_memory("pvc-1", 1 << 30)).expect("a request");
    let volume = wanted.volume(None).expect("a volume");
    let answer = described(&volume, Nodes::Served, Some("host-a")).expect("an answer").volume;
    let [topology] = answer.expect("a volume").accessible_topology.try_into().expect("one topology");
    let node = |host_name: &str| {
        let mut labels = topology::of_node("a", true).segments;
        labels.insert(topology::HOST_NAME_KEY.to_owned(), host_name.to_owned());
        labels
    };
    let covers = |labels: HashMap<String, String>| {
        topology.segments.iter().all(|(key, value)| labels.get(key) == Some(value))
    };
    assert!(covers(node("host-a")) && !covers(node("template-node-for-group")), "{topology:?}");
}

#[test]
fn inapplicable_fields_of_a_memory_volume_are_named() {
    let with = |mut other: CreateVolumeRequest| {
        let memory = in_memory("pvc-1", 1 << 30);
        other.parameters = memory.parameters;
        other.accessibility_requirements = memory.accessibility_requirements;
        other
    };
    let nowhere = CreateVolumeRequest { accessibility_requirements: None, ..in_memory("pvc-1", 0) };
    for (request, words) in [
        (with(for_readers("pvc-1", Some("backup"), &[Mode::SingleNodeWriter])), "volume_content_source: "),
        (
            with(for_readers("pvc-1", None, &[Mode::MultiNodeReaderOnly])),
            "[ReadWriteOnce] or [ReadWriteOncePod]",
        ),
        (nowhere, "accessibility_requirements: no topology has topology.holdfast.dev/node"),
    ] {
        let refused = WantedVolume::try_from(request).expect_err(words);
        assert_eq!(refused.code(), Code::InvalidArgument);
        assert!(refused.message().contains(words), "{}", refused.message());
    }
}

/// The scheduler then tries another node.
#[test]
fn a_node_that_cannot_promise_the_memory_is_exhausted() {
    let parameters = MemoryParameters { max_percent: Some(50), ..MemoryParameters::default() };
    let most = parameters.most(1 << 30);
    has_room(parameters, 1 << 30, "a", most).expect("it fits");
    let refused = |parameters, left| {
        let refused = has_room(parameters, 1 << 30, "a", left).expect_err("there is too little");
        assert_eq!(refused.code(), Code::ResourceExhausted);
        refused.message().to_owned()
    };
    let less = NodeRoom { memory_bytes: most.memory_bytes - 1, ..most };
    let message = refused(parameters, less);
    assert!(message.contains("node a can promise") && message.contains("node.memoryVolumes"), "{message}");
    assert!(message.ends_with("A node without ublk has no room"), "{message}");
    let spilling = MemoryParameters { spill_percent: Some(25), ..parameters };
    let message = refused(spilling, most);
    assert!(
        message.contains("256Mi of disk for its spill file, but node a can promise only 0 more"),
        "{message}"
    );
    assert!(message.contains("lower spillPercent") && message.contains("node.memorySpill"), "{message}");
}

/// Regression, found in review: the scheduler chose another node, and the claim was bound to the memory of
/// the first node and the host name of the second.
#[test]
fn a_memory_volume_of_another_node_is_recreated() {
    let of_claim = |claim: &str| {
        let mut request = in_memory("pvc-1", 1 << 30);
        request.parameters.insert("csi.storage.k8s.io/pvc/namespace".to_owned(), "shop".to_owned());
        request.parameters.insert("csi.storage.k8s.io/pvc/name".to_owned(), claim.to_owned());
        WantedVolume::try_from(request).expect("a request")
    };
    let wanted = of_claim("data");
    let same = wanted.volume(None).expect("a volume");
    wanted.accept(&same).expect("it is the one");
    let mut other = same;
    other.labels_mut().insert(MEMORY_NODE.to_owned(), "b".to_owned());
    let status = |status: serde_json::Value| Some(serde_json::from_value(status).expect("a status"));
    let provisioned = serde_json::json!({ "volumeId": "id" });
    other.status = status(provisioned);
    assert!(wanted.made_by_mistake(&other), "it has no content yet");
    let refused = wanted.accept(&other).expect_err("it is deleted");
    assert_eq!(refused.code(), Code::Aborted);
    assert!(refused.message().contains("the memory of node b"), "{}", refused.message());
    assert!(!of_claim("another").made_by_mistake(&other));

    let mut granted = other.clone();
    granted.spec.node_name = Some("b".to_owned());
    let mut used = other.clone();
    used.status = status(serde_json::json!({ "volumeId": "id", "node": "", "lastEpoch": 3 }));
    for used in [granted, used] {
        assert!(!wanted.made_by_mistake(&used), "its content is there");
        assert_eq!(wanted.accept(&used).expect_err("another").code(), Code::AlreadyExists);
        assert_eq!(check_unused(&used).expect_err("used").code(), Code::Aborted);
    }
    other.labels_mut().remove(MEMORY_NODE);
    assert!(wanted.made_by_mistake(&other), "no node is known");
}

/// Regression, found in review: the provisioner and the resizer, in different processes, promised the same
/// memory.
#[tokio::test]
async fn a_memory_volume_that_another_process_overtook_is_deleted() {
    let created = async |limit_bytes, meanwhile| {
        let (volumes, server) = memory::fake::FakeApi::start(Vec::new(), limit_bytes, meanwhile);
        let wanted = WantedVolume::try_from(in_memory("pvc-1", 1 << 30)).expect("a request");
        let until = Instant::now() + std::time::Duration::from_secs(20);
        let parameters = MemoryParameters { max_percent: Some(50), ..MemoryParameters::default() };
        let created = wanted.create_in_memory(&volumes, (parameters, "a"), None, until).await;
        let names: Vec<String> = server.volumes().into_iter().map(|(name, _size)| name).collect();
        (created.map(drop).map_err(|refused| refused.code()), names.join(" "))
    };
    let rival = |volumes: &mut Vec<serde_json::Value>| volumes.push(memory::fake::volume("rival", "1Gi"));
    let exhausted = || Err(Code::ResourceExhausted);
    assert_eq!(created(1 << 30, |_| {}).await, (Ok(()), "pvc-1".to_owned()));
    assert_eq!(created(1 << 20, |_| {}).await, (exhausted(), String::new()));
    assert_eq!(created(3 << 30, rival).await, (Ok(()), "pvc-1 rival".to_owned()));
    assert_eq!(created(5 << 28, rival).await, (exhausted(), "rival".to_owned()), "room for one of both");
}
