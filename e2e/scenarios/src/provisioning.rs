//! Object stores and volumes without a node: the operator, the API server and the S3 server.

use std::fs;

use anyhow::{Context, Result, ensure};
use holdfast_lab::operator::NAMESPACE;
use holdfast_lab::s3::{ACCESS_KEY, REGION, S3Server, SECRET_KEY};
use holdfast_lab::world::World;

const BUCKET: &str = "volumes";

/// A configuration that makes an object store unfit, the reason, and the field named to the user.
struct UnfitStore {
    name: &'static str,
    bucket: &'static str,
    secret: &'static str,
    reachable: bool,
    reason: &'static str,
    message: &'static str,
}

const UNFIT: &[UnfitStore] = &[
    UnfitStore {
        name: "wrong-key",
        bucket: BUCKET,
        secret: "wrong",
        reachable: true,
        reason: "CredentialsRejected",
        message: "spec.credentials",
    },
    UnfitStore {
        name: "no-bucket",
        bucket: "elsewhere",
        secret: "right",
        reachable: true,
        reason: "BucketNotFound",
        message: "spec.bucket",
    },
    UnfitStore {
        name: "away",
        bucket: BUCKET,
        secret: "right",
        reachable: false,
        reason: "Unreachable",
        message: "spec.endpoint",
    },
];

pub(super) fn run(world: &World) -> Result<()> {
    let s3 = world.s3()?;
    s3.create_bucket(BUCKET)?;
    let operator = world.operator()?;
    for (name, key) in [("right", SECRET_KEY), ("wrong", "not-the-secret-key")] {
        world.kubectl([
            "create",
            "secret",
            "generic",
            name,
            &format!("--namespace={NAMESPACE}"),
            &format!("--from-literal=accessKeyId={ACCESS_KEY}"),
            &format!("--from-literal=secretAccessKey={key}"),
        ])?;
    }

    apply(world, &object_store("store", BUCKET, "right", &s3.endpoint()))?;
    world.wait_for("objectstore/store", "condition=Ready")?;
    let before = count_created_objects(&s3)?;
    apply(world, &volume("first", "store", "1Gi"))?;
    world.wait_for("volume/first", "jsonpath={.status.phase}=Ready")?;
    ensure!(
        count_created_objects(&s3)? == before + 1,
        "a volume was created with {} PUTs",
        count_created_objects(&s3)? - before
    );

    for unfit in UNFIT {
        refuse(world, &s3, unfit)?;
    }
    apply(world, &volume("orphan", "missing", "1Gi"))?;
    expect_unprovisioned(world, "orphan", "spec.objectStore", "missing")?;

    operator.kill();
    apply(world, &volume("second", "store", "1Gi"))?;
    operator.restart()?;
    world.wait_for("volume/second", "jsonpath={.status.phase}=Ready")?;

    for name in ["first", "second"] {
        world.kubectl(["delete", "volume", name, "--timeout=60s"])?;
    }
    expect_removed(&s3, BUCKET, 2)?;
    operator.stop()
}

/// Checks that the bucket holds only the remains of this many removed volumes: the first record of each log,
/// its tombstone and its first truncation marker.
pub(super) fn expect_removed(s3: &S3Server, bucket: &str, volumes: usize) -> Result<()> {
    check_remains(&s3.keys(bucket, "")?, volumes)
}

/// Checks that the keys are the remains of this many removed volumes.
pub(super) fn check_remains(left: &[String], volumes: usize) -> Result<()> {
    let count = |kind: &str| left.iter().filter(|key| key.contains(kind)).count();
    ensure!(
        left.len() == 3 * volumes && count("/log/") == 2 * volumes && count("/truncated/") == volumes,
        "not only what stays of {volumes} removed volumes but {left:?}"
    );
    Ok(())
}

/// The store is not Ready for the expected reason, and a volume in it is not provisioned.
fn refuse(world: &World, s3: &S3Server, unfit: &UnfitStore) -> Result<()> {
    let UnfitStore { name, bucket, secret, reachable, reason, message } = unfit;
    let endpoint = if *reachable {
        s3.endpoint()
    } else {
        // Reserved: nothing ever listens there.
        "http://127.0.0.1:1".to_owned()
    };
    apply(world, &object_store(name, bucket, secret, &endpoint))?;
    let store = format!("objectstore/{name}");
    world.wait_for(&store, "condition=Ready=False")?;
    let found = condition(world, &store, "Ready")?;
    ensure!(found.starts_with(&format!("{reason}: {message}")), "{store} is not Ready for {found:?}");
    apply(world, &volume(name, name, "1Gi"))?;
    expect_unprovisioned(world, name, "spec.objectStore", reason)
}

fn expect_unprovisioned(world: &World, name: &str, field: &str, why: &str) -> Result<()> {
    let volume = format!("volume/{name}");
    world.wait_for(&volume, "condition=Provisioned=False")?;
    let found = condition(world, &volume, "Provisioned")?;
    ensure!(found.contains(field) && found.contains(why), "{volume} is not provisioned for {found:?}");
    Ok(())
}

/// Returns "reason: message" of a condition.
pub(super) fn condition(world: &World, object: &str, kind: &str) -> Result<String> {
    let one = format!("{{.status.conditions[?(@.type==\"{kind}\")]");
    let path = format!("jsonpath={one}.reason}}: {one}.message}}");
    world.kubectl(["get", object, "--output", &path])
}

/// Returns the number of creates in the bucket's volumes so far, without those of a store's probes.
///
/// # Errors
/// If the access log cannot be read.
pub fn count_created_objects(s3: &S3Server) -> Result<usize> {
    let requests = s3.requests()?;
    let count_created_objects =
        requests.iter().filter(|one| one.operation == "PutObject" && one.key.contains("volumes/"));
    Ok(count_created_objects.count())
}

/// Applies a document.
///
/// # Errors
/// If the API server rejects it.
pub fn apply(world: &World, document: &str) -> Result<()> {
    let file = world.dir().join("document.yaml");
    fs::write(&file, document).context("write a document")?;
    world.kubectl(["apply", "--filename", &file.display().to_string()]).map(drop)
}

/// Returns an ObjectStore that keeps nothing of a deleted Volume.
pub(super) fn object_store(name: &str, bucket: &str, secret: &str, endpoint: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\n\
         kind: ObjectStore\n\
         metadata: {{name: {name}}}\n\
         spec:\n  bucket: {bucket}\n  endpoint: {endpoint}\n  region: {REGION}\n  pathStyle: true\n  keepDeleted: 0s\n  \
         credentials: {{secretRef: {{name: {secret}, namespace: {NAMESPACE}}}}}\n"
    )
}

/// Returns a Volume in an ObjectStore.
pub fn volume(name: &str, store: &str, size: &str) -> String {
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\n\
         kind: Volume\n\
         metadata: {{name: {name}}}\n\
         spec: {{size: {size}, objectStore: {store}}}\n"
    )
}

/// Returns a Volume that adopts the volume with this id; without a size if that is empty.
pub(super) fn adopting_volume(name: &str, id: &str, size: &str) -> String {
    let size = if size.is_empty() { String::new() } else { format!(", size: {size}") };
    format!(
        "apiVersion: storage.holdfast.dev/v1alpha1\nkind: Volume\nmetadata: {{name: {name}}}\n\
         spec: {{objectStore: store, volumeID: {id}, source: {{existing: {{}}}}{size}}}\n"
    )
}
