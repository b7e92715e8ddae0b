//! Reloads the stores of the configuration file on SIGHUP, for requests and attached volumes.
//!
//! Does not own: the replacement of a store's client (the data plane). All other settings keep their values
//! from the start.
//! On failure: an unusable file changes nothing; a store that could not be checked is retried.

use std::collections::BTreeMap;
use std::io;
use std::path::PathBuf;
use std::time::Duration;

use holdfast_s3::S3Config;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::api::KnownStores;
use crate::config::{Config, Control};
use crate::node::FailureKind;
use crate::volumes::Volumes;

/// Retry interval for a store that could not be checked.
const RETRY_INTERVAL: Duration = Duration::from_secs(10);

/// Listens for SIGHUP.
pub(crate) struct StoreReload {
    file: PathBuf,
    hangup: Signal,
}

impl StoreReload {
    /// Starts listening; from now on SIGHUP no longer ends the process.
    ///
    /// # Errors
    /// The signal handler cannot be installed.
    pub(crate) fn listen(file: PathBuf) -> io::Result<Self> {
        Ok(Self { file, hangup: signal(SignalKind::hangup())? })
    }

    /// Applies the configuration of `stores` to attached volumes, at once and after each SIGHUP, until `stop`
    /// ends. Volumes of the previous daemon may have been attached with an older one.
    pub(crate) async fn run(
        mut self,
        volumes: impl Volumes,
        stores: KnownStores,
        stop: impl Future<Output = ()> + Send,
    ) {
        let work = async {
            let mut rest = stores.all().unwrap_or_default();
            loop {
                rest = renew(&volumes, rest).await;
                tokio::select! {
                    _ = self.hangup.recv() => {
                        self.read(&stores);
                        rest = stores.all().unwrap_or_default();
                    }
                    () = tokio::time::sleep(RETRY_INTERVAL), if !rest.is_empty() => {}
                }
            }
        };
        tokio::select! {
            () = work => {}
            () = stop => {}
        }
    }

    fn read(&self, stores: &KnownStores) {
        if stores.all().is_none() {
            return tracing::warn!("SIGHUP changed nothing: under Kubernetes stores are ObjectStore objects");
        }
        match Config::load(&self.file) {
            Ok(Config { control: Control::Standalone(new), .. }) => {
                stores.replace(new);
                tracing::info!(file = %self.file.display(), "the stores of the configuration file were read again");
            }
            Ok(Config { control: Control::Kubernetes, .. }) => {
                tracing::error!(
                    "SIGHUP changed nothing: `kubernetes` changed in the file; restart the daemon for that"
                );
            }
            Err(error) => tracing::error!(
                error = &error as &dyn std::error::Error,
                "the configuration file could not be used, so the stores stay as they were"
            ),
        }
    }
}

/// Applies the stores. Returns those to retry.
async fn renew(volumes: &impl Volumes, stores: BTreeMap<String, S3Config>) -> BTreeMap<String, S3Config> {
    let mut again = BTreeMap::new();
    for (name, config) in stores {
        let Err(failure) = volumes.renew_store(&name, &config).await else { continue };
        tracing::error!(store = name, "attached volumes keep the former configuration: {}", failure.message);
        if failure.kind == FailureKind::Unavailable {
            again.insert(name, config);
        }
    }
    again
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::volumes::tests::Fake;

    fn write(file: &std::path::Path, secret: &str) {
        let text = format!(
            "[stores.main]\nbucket = \"volumes\"\n[stores.main.credentials]\naccess_key_id = \"{secret}\"\n\
             secret_access_key = \"s\"\n"
        );
        fs::write(file, text).unwrap();
    }

    /// Returns the stores applied to volumes, as texts, once there are `count`.
    async fn given(fake: &Fake, count: usize) -> Vec<String> {
        let enough = async {
            while fake.renewed().len() < count {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(20), enough).await.expect("nothing is given");
        fake.renewed().iter().map(|(name, config)| format!("{name} {config:?}")).collect()
    }

    /// Regression: a changed key in the configuration file required a restart, and attached volumes kept the
    /// old one even then.
    #[tokio::test]
    async fn a_hangup_gives_attached_volumes_what_the_file_says() {
        let (fake, dir) = (Fake::default(), tempfile::tempdir().unwrap());
        let file = dir.path().join("node.toml");
        write(&file, "first");
        let stores = KnownStores::new(&Config::load(&file).unwrap().control);
        let reload = StoreReload::listen(file.clone()).unwrap();
        let running = tokio::spawn(reload.run(fake.clone(), stores.clone(), std::future::pending()));
        assert!(given(&fake, 1).await[0].contains("first"));
        let hang_up = || {
            let kill = format!("kill -HUP {}", std::process::id());
            assert!(std::process::Command::new("sh").args(["-c", &kill]).status().unwrap().success());
        };
        write(&file, "second");
        hang_up();
        assert!(given(&fake, 2).await[1].contains("second"));
        assert!(format!("{stores:?}").contains("second"), "requests name it too");
        fs::write(&file, "[stores").unwrap();
        hang_up();
        assert!(given(&fake, 3).await[2].contains("second"), "a broken file changes nothing");
        running.abort();
    }
}
