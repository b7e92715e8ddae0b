//! The daemon's configuration: one TOML file, overridden by environment variables.
//!
//! Owns: names, defaults and limits of all settings (`docs/configuration.md` lists them).
//! Does not own: the effect of the settings.
//! Invariants: a [`Config`] that exists is valid; nothing outside this module reads the environment for
//! settings.
//! On failure: a [`ConfigError`] that names the file, the line, the setting and the fix; the daemon does not
//! start.

mod source;
mod store;

use std::collections::BTreeMap;
use std::io;
use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::time::Duration;

use holdfast_crds::{ByteSize, TimeSpan};
use holdfast_s3::S3Config;
use holdfast_ublk::Transport;
use serde::Deserialize;

use self::source::ConfigSource;
pub(crate) use self::source::SettingPlace;
use self::store::StoreSection;
use crate::node::{KeeperStart, NodeConfig, TransportChoice};

/// Default path of the socket between the CLI and the daemon.
pub(crate) const DEFAULT_SOCKET: &str = "/run/holdfast/node.sock";
/// Default path of the state directory.
pub(crate) const DEFAULT_STATE_DIR: &str = "/var/lib/holdfast";

/// Default path of the run directory.
pub(crate) const DEFAULT_RUN_DIR: &str = "/run/holdfast";

/// Maximum path length of a Unix socket, in bytes. Source: `sun_path` in unix(7), minus the final NUL.
const MAX_SOCKET_PATH: usize = 107;
const MAX_RING_THREADS: usize = 64;
const MIN_SLAB_BYTES: u64 = 16 << 20;
const MIN_SEAL_BYTES: u64 = 1 << 20;
/// After an outage, one segment holds all dirty data: 10,000 parts of some 26 MiB, and an index below 4 GiB
/// even if each sector is a separate frame.
const MAX_DIRTY_BYTES: u64 = 256 << 30;
/// A few parts of a segment.
const MIN_UPLOAD_BYTES: u64 = 64 << 20;
const DIRTY_AGES: std::ops::RangeInclusive<Duration> = Duration::from_secs(1)..=Duration::from_secs(3600);

/// Configuration of the daemon.
#[derive(Debug)]
pub(crate) struct Config {
    /// The data plane.
    pub(crate) node: NodeConfig,
    /// Path of the local gRPC socket.
    pub(crate) socket: PathBuf,
    /// Address of `/metrics` and `/healthz`; `None`: not served.
    pub(crate) metrics: Option<SocketAddr>,
    /// Interface that assigns the volumes to serve.
    pub(crate) control: Control,
}

/// Interface that assigns the volumes to serve.
#[derive(Debug)]
pub(crate) enum Control {
    /// The Volume objects of a cluster.
    Kubernetes,
    /// Requests on the local socket, which name one of these stores.
    Standalone(BTreeMap<String, S3Config>),
}

/// The configuration is invalid.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConfigError {
    /// The file is missing or unreadable.
    #[error("{} cannot be read; name the configuration file with --config", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Error of the read.
        #[source]
        source: io::Error,
    },
    /// A setting is unknown, missing, or has an invalid value.
    #[error("{place}: {problem}")]
    Value {
        /// The setting and its location.
        place: SettingPlace,
        /// The problem and its fix.
        problem: String,
    },
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct Document {
    kubernetes: bool,
    node: NodeSection,
    data: DataSection,
    api: ApiSection,
    metrics: MetricsSection,
    stores: BTreeMap<String, StoreSection>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct NodeSection {
    name: Option<String>,
    state_dir: PathBuf,
    run_dir: PathBuf,
}

impl Default for NodeSection {
    fn default() -> Self {
        Self { name: None, state_dir: DEFAULT_STATE_DIR.into(), run_dir: DEFAULT_RUN_DIR.into() }
    }
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct DataSection {
    ring_threads: usize,
    transport: TransportSetting,
    slab_size: ByteSize,
    cache_size: Option<ByteSize>,
    seal_size: ByteSize,
    max_dirty: ByteSize,
    upload_memory: ByteSize,
    max_dirty_age: TimeSpan,
    memory_volumes: ByteSize,
    memory_spill: ByteSize,
}

impl Default for DataSection {
    fn default() -> Self {
        Self {
            ring_threads: 2,
            transport: TransportSetting::Auto,
            slab_size: ByteSize(4 << 30),
            cache_size: None,
            seal_size: ByteSize(64 << 20),
            max_dirty: ByteSize(4 << 30),
            upload_memory: ByteSize(256 << 20),
            max_dirty_age: TimeSpan(Duration::from_secs(30)),
            memory_volumes: ByteSize(0),
            memory_spill: ByteSize(0),
        }
    }
}

#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(rename_all = "kebab-case")]
enum TransportSetting {
    Auto,
    ZeroCopy,
    UserCopy,
    Fuse,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct ApiSection {
    socket: PathBuf,
}

impl Default for ApiSection {
    fn default() -> Self {
        Self { socket: DEFAULT_SOCKET.into() }
    }
}

#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields, default)]
struct MetricsSection {
    listen: Option<SocketAddr>,
}

impl Config {
    /// Reads the file at `path` and the process's environment.
    ///
    /// # Errors
    /// [`ConfigError`]; the user must correct the configuration.
    pub(crate) fn load(path: &Path) -> Result<Self, ConfigError> {
        let text = std::fs::read_to_string(path)
            .map_err(|source| ConfigError::Read { path: path.to_owned(), source })?;
        Self::parse(path, text, |name| {
            std::env::var_os(name).map(|value| value.to_string_lossy().into_owned())
        })
    }

    fn parse(
        path: &Path,
        text: String,
        variable: impl Fn(&str) -> Option<String>,
    ) -> Result<Self, ConfigError> {
        let source = ConfigSource::parse(path, text, variable)?;
        let Document { kubernetes, node, data, api, metrics, stores } = source.read()?;
        let node = node_config(&source, node, &data, kubernetes)?;
        absolute(&source, "api.socket", &api.socket)?;
        if api.socket.as_os_str().len() > MAX_SOCKET_PATH {
            let problem = format!("the path is longer than {MAX_SOCKET_PATH} bytes; choose a shorter one");
            return Err(source.error("api.socket", problem));
        }
        let control = if kubernetes {
            if !stores.is_empty() {
                let problem = "with `kubernetes = true` stores are ObjectStore objects; remove the section";
                return Err(source.error("stores", problem.to_owned()));
            }
            Control::Kubernetes
        } else {
            if stores.is_empty() {
                // An empty or truncated file would otherwise start a useless daemon.
                let problem = "no store is named, so nothing could be attached; add a section [stores.NAME], or write \
                               `kubernetes = true`; the file may be cut off";
                return Err(source.error("stores", problem.to_owned()));
            }
            Control::Standalone(s3_configs(&source, stores)?)
        };
        Ok(Self { node, socket: api.socket, metrics: metrics.listen, control })
    }
}

fn node_config(
    source: &ConfigSource,
    node: NodeSection,
    data: &DataSection,
    kubernetes: bool,
) -> Result<NodeConfig, ConfigError> {
    let NodeSection { name, state_dir, run_dir } = node;
    let refuse = |key: &str, problem: String| Err(source.error(key, problem));
    let node_name = match name {
        Some(name) if name.is_empty() => {
            return refuse("node.name", "is empty; write the node's name".to_owned());
        }
        Some(name) => name,
        None if kubernetes => {
            let problem = "is missing; set HOLDFAST_NODE_NAME from the pod's spec.nodeName, or write it here";
            return refuse("node.name", problem.to_owned());
        }
        None => rustix::system::uname().nodename().to_string_lossy().into_owned(),
    };
    absolute(source, "node.state_dir", &state_dir)?;
    absolute(source, "node.run_dir", &run_dir)?;
    check_data(source, data)?;
    let DataSection {
        ring_threads,
        transport,
        slab_size,
        cache_size,
        seal_size,
        max_dirty,
        upload_memory,
        max_dirty_age,
        memory_volumes,
        memory_spill,
    } = *data;
    Ok(NodeConfig {
        state_dir,
        run_dir,
        node_name,
        ring_threads,
        transport: match transport {
            TransportSetting::Auto => TransportChoice::Auto,
            TransportSetting::ZeroCopy => TransportChoice::Only(Transport::ZeroCopy),
            TransportSetting::UserCopy => TransportChoice::Only(Transport::UserCopy),
            TransportSetting::Fuse => TransportChoice::Only(Transport::Fuse),
        },
        keeper: if kubernetes { KeeperStart::Outside } else { KeeperStart::ByDaemon },
        slab_bytes: slab_size.0,
        cache_bytes: cache_size.map(|size| size.0),
        seal_bytes: seal_size.0,
        max_dirty_bytes: max_dirty.0,
        upload_memory_bytes: upload_memory.0,
        max_dirty_age: max_dirty_age.0,
        memory_volumes_bytes: memory_volumes.0,
        memory_spill_bytes: memory_spill.0,
    })
}

/// Rejects invalid sizes and durations, individually and in combination.
fn check_data(source: &ConfigSource, data: &DataSection) -> Result<(), ConfigError> {
    let DataSection { ring_threads, slab_size, cache_size, seal_size, max_dirty, .. } = *data;
    let refuse = |key: &str, problem: String| Err(source.error(key, problem));
    if !(1..=MAX_RING_THREADS).contains(&ring_threads) {
        let problem = format!("{ring_threads} is out of range; write 1 to {MAX_RING_THREADS}");
        return refuse("data.ring_threads", problem);
    }
    for (key, size, least) in [
        ("data.slab_size", slab_size, MIN_SLAB_BYTES),
        ("data.seal_size", seal_size, MIN_SEAL_BYTES),
        ("data.upload_memory", data.upload_memory, MIN_UPLOAD_BYTES),
    ] {
        if size.0 < least {
            return refuse(key, format!("{size} is too small; write at least {}", ByteSize(least)));
        }
    }
    // One side is uploaded while the other is filled.
    let least_cache = ByteSize(2 * seal_size.0);
    if let Some(cache_size) = cache_size.filter(|size| *size < least_cache) {
        let problem = format!("{cache_size} is less than twice data.seal_size; write at least {least_cache}");
        return refuse("data.cache_size", problem);
    }
    if max_dirty < seal_size {
        let problem = format!("{max_dirty} is less than data.seal_size; write at least {seal_size}");
        return refuse("data.max_dirty", problem);
    }
    if max_dirty.0 > MAX_DIRTY_BYTES {
        let problem = format!("{max_dirty} is too large; write at most {}", ByteSize(MAX_DIRTY_BYTES));
        return refuse("data.max_dirty", problem);
    }
    if !DIRTY_AGES.contains(&data.max_dirty_age.0) {
        return refuse(
            "data.max_dirty_age",
            "is out of range; write a duration between 1s and 1h".to_owned(),
        );
    }
    Ok(())
}

fn s3_configs(
    source: &ConfigSource,
    stores: BTreeMap<String, StoreSection>,
) -> Result<BTreeMap<String, S3Config>, ConfigError> {
    let mut configs = BTreeMap::new();
    for (name, section) in stores {
        let config = section
            .into_s3()
            .map_err(|problem| source.error(&format!("stores.{name}.{}", problem.key), problem.problem))?;
        configs.insert(name, config);
    }
    Ok(configs)
}

fn absolute(source: &ConfigSource, key: &str, path: &Path) -> Result<(), ConfigError> {
    if path.is_absolute() {
        return Ok(());
    }
    Err(source.error(key, format!("`{}` is not an absolute path; begin it with a slash", path.display())))
}

#[cfg(test)]
mod tests;
