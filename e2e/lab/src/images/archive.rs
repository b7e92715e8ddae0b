//! An image as an archive in the OCI image layout, for import by container runtimes. Source:
//! <https://github.com/opencontainers/image-spec>, `image-layout.md`, `manifest.md` and `config.md`.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::layer::ImageLayer;
use super::{Image, VERSION};

/// Compression level of layers: the highest one that takes seconds instead of minutes.
const LEVEL: i32 = 12;
/// Timestamp of all content.
const EPOCH: &str = "1970-01-01T00:00:00Z";
/// Search path of programs.
const PATH: &str = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";

/// Properties of a written archive.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Written {
    /// Digest of the manifest, which identifies the image in registries.
    pub digest: String,
    /// Bytes of all files in it.
    pub unpacked_bytes: u64,
    /// Bytes that a node downloads: the compressed layers.
    pub fetched_bytes: u64,
}

/// The files of the layout's `blobs/sha256`.
#[derive(Default)]
struct Blobs(Vec<(String, Vec<u8>)>);

impl Blobs {
    /// Adds a blob and returns its descriptor.
    fn add(&mut self, kind: &str, bytes: Vec<u8>) -> Value {
        let hash = hash(&bytes);
        let descriptor = json!({
            "mediaType": format!("application/vnd.oci.image.{kind}"),
            "digest": format!("sha256:{hash}"),
            "size": bytes.len(),
        });
        self.0.push((hash, bytes));
        descriptor
    }
}

/// Writes `image` to `path`.
///
/// # Errors
/// If the file cannot be written.
pub(super) fn write(image: &Image, path: &Path) -> Result<Written> {
    let mut blobs = Blobs::default();
    let (mut layers, mut plain) = (Vec::new(), Vec::new());
    for layer in &image.layers {
        let tar = layer.tar()?;
        plain.push(format!("sha256:{}", hash(&tar)));
        let packed = zstd::encode_all(tar.as_slice(), LEVEL).context("compress a layer")?;
        layers.push(blobs.add("layer.v1.tar+zstd", packed));
    }
    let fetched_bytes = blobs.0.iter().map(|(_, bytes)| bytes.len() as u64).sum();
    let config = blobs.add("config.v1+json", config(image, &plain).to_string().into_bytes());
    let manifest = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.manifest.v1+json",
        "config": config,
        "layers": layers,
    });
    let mut manifest = blobs.add("manifest.v1+json", manifest.to_string().into_bytes());
    let digest = manifest["digest"].as_str().unwrap_or_default().to_owned();
    manifest["platform"] = json!({ "architecture": image.architecture.name(), "os": "linux" });
    // containerd reads the image's full name from the first, other tools its tag from the second.
    let tag = image.reference.rsplit(':').next();
    manifest["annotations"] =
        json!({ "io.containerd.image.name": image.reference, "org.opencontainers.image.ref.name": tag });
    let index = json!({
        "schemaVersion": 2,
        "mediaType": "application/vnd.oci.image.index.v1+json",
        "manifests": [manifest],
    });

    let mut files = ImageLayer::default();
    files.file("oci-layout", 0o644, json!({ "imageLayoutVersion": "1.0.0" }).to_string().into_bytes());
    files.file("index.json", 0o644, index.to_string().into_bytes());
    for (hash, bytes) in blobs.0 {
        files.file(&format!("blobs/sha256/{hash}"), 0o644, bytes);
    }
    fs::write(path, files.tar()?).with_context(|| format!("write {}", path.display()))?;
    let unpacked_bytes = image.layers.iter().map(ImageLayer::size_bytes).sum();
    Ok(Written { digest, unpacked_bytes, fetched_bytes })
}

fn config(image: &Image, layers: &[String]) -> Value {
    let history: Vec<Value> =
        layers.iter().map(|_| json!({ "created": EPOCH, "created_by": "cargo e2e images" })).collect();
    json!({
        "created": EPOCH,
        "architecture": image.architecture.name(),
        "os": "linux",
        "config": {
            "User": image.user,
            "Entrypoint": image.entrypoint,
            "Env": [PATH],
            "WorkingDir": "/",
            "Labels": {
                "org.opencontainers.image.licenses": env!("CARGO_PKG_LICENSE"),
                "org.opencontainers.image.version": VERSION,
            },
        },
        "rootfs": { "type": "layers", "diff_ids": layers },
        "history": history,
    })
}

fn hash(bytes: &[u8]) -> String {
    Sha256::digest(bytes).iter().map(|byte| format!("{byte:02x}")).collect()
}
