//! Object stores: connected once for each configuration, and remembered across a restart.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};

use holdfast_s3::{Credentials, S3Config, S3Store};
use serde::{Deserialize, Serialize};

use super::error::NodeError;
use super::watched_store::WatchedStore;

/// An [`S3Config`] as the tmpfs directory keeps it (mode 0600), so that a restarted daemon needs nobody to go on.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct StoreRecord {
    endpoint: Option<String>,
    region: String,
    bucket: String,
    prefix: String,
    path_style: bool,
    ca_pem: Option<String>,
    credentials: CredentialsRecord,
}

#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
enum CredentialsRecord {
    Static { access_key_id: String, secret_access_key: String, session_token: Option<String> },
    Environment,
    WebIdentity { token_file: PathBuf, role_arn: String },
}

impl std::fmt::Debug for CredentialsRecord {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("credentials")
    }
}

impl From<&S3Config> for StoreRecord {
    fn from(config: &S3Config) -> Self {
        let credentials = match config.credentials.clone() {
            Credentials::Static { access_key_id, secret_access_key, session_token } => {
                CredentialsRecord::Static { access_key_id, secret_access_key, session_token }
            }
            Credentials::Environment => CredentialsRecord::Environment,
            Credentials::WebIdentity { token_file, role_arn } => {
                CredentialsRecord::WebIdentity { token_file, role_arn }
            }
        };
        Self {
            endpoint: config.endpoint.clone(),
            region: config.region.clone(),
            bucket: config.bucket.clone(),
            prefix: config.prefix.clone(),
            path_style: config.path_style,
            ca_pem: config.ca_pem.clone(),
            credentials,
        }
    }
}

impl From<&StoreRecord> for S3Config {
    fn from(record: &StoreRecord) -> Self {
        let credentials = match record.credentials.clone() {
            CredentialsRecord::Static { access_key_id, secret_access_key, session_token } => {
                Credentials::Static { access_key_id, secret_access_key, session_token }
            }
            CredentialsRecord::Environment => Credentials::Environment,
            CredentialsRecord::WebIdentity { token_file, role_arn } => {
                Credentials::WebIdentity { token_file, role_arn }
            }
        };
        Self {
            endpoint: record.endpoint.clone(),
            prefix: record.prefix.clone(),
            path_style: record.path_style,
            ca_pem: record.ca_pem.clone(),
            ..Self::new(record.bucket.clone(), record.region.clone(), credentials)
        }
    }
}

/// The stores in use; volumes of one configuration share its connections.
///
/// A store is kept under its name as it was asked for last. With other settings (credentials that were rotated) it lives
/// on while a volume uses it so.
#[derive(Debug, Default)]
pub(crate) struct Stores {
    connected: tokio::sync::Mutex<Connected>,
}

#[derive(Debug, Default)]
struct Connected {
    newest: BTreeMap<String, (StoreRecord, Arc<WatchedStore>)>,
    superseded: Vec<(StoreRecord, Weak<WatchedStore>)>,
}

impl Connected {
    fn find(&self, record: &StoreRecord) -> Option<Arc<WatchedStore>> {
        let newest =
            self.newest.values().find(|(known, _)| known == record).map(|(_, store)| Arc::clone(store));
        let older = || self.superseded.iter().find(|(known, _)| known == record)?.1.upgrade();
        newest.or_else(older)
    }

    fn keep(&mut self, name: &str, record: &StoreRecord, store: &Arc<WatchedStore>) {
        let before = self.newest.insert(name.to_owned(), (record.clone(), Arc::clone(store)));
        self.superseded.extend(before.map(|(record, store)| (record, Arc::downgrade(&store))));
        let store = Arc::downgrade(store);
        self.superseded.retain(|(_, known)| known.strong_count() > 0 && !known.ptr_eq(&store));
    }
}

impl Stores {
    /// The store of this configuration.
    pub(crate) async fn connect(
        &self,
        name: &str,
        record: &StoreRecord,
    ) -> Result<Arc<WatchedStore>, NodeError> {
        let mut connected = self.connected.lock().await;
        let store = match connected.find(record) {
            Some(store) => store,
            None => {
                let store = S3Store::connect(record.into())
                    .await
                    .map_err(|source| NodeError::StoreConfig { name: name.to_owned(), source })?;
                Arc::new(WatchedStore::new(Arc::new(store)))
            }
        };
        connected.keep(name, record, &store);
        Ok(store)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record(secret: &str) -> StoreRecord {
        let credentials = Credentials::Static {
            access_key_id: "key".to_owned(),
            secret_access_key: secret.to_owned(),
            session_token: None,
        };
        let config = S3Config {
            endpoint: Some("http://127.0.0.1:1".to_owned()),
            ..S3Config::new("bucket".to_owned(), "us-east-1".to_owned(), credentials)
        };
        (&config).into()
    }

    /// Found by reading: each rotation left a client behind for ever, with its connections and credentials.
    #[tokio::test]
    async fn a_client_with_old_credentials_lives_as_long_as_a_volume_uses_it() {
        let stores = Stores::default();
        let old = stores.connect("main", &record("old")).await.unwrap();
        let unused = Arc::downgrade(&stores.connect("main", &record("between")).await.unwrap());
        assert!(unused.upgrade().is_some(), "the newest waits for the next volume");
        let new = stores.connect("main", &record("new")).await.unwrap();
        assert!(unused.upgrade().is_none(), "nobody uses it");
        // A volume that is taken up with what it was attached with.
        let again = stores.connect("main", &record("old")).await.unwrap();
        assert!(Arc::ptr_eq(&old, &again));
        let newest = stores.connect("main", &record("new")).await.unwrap();
        assert!(Arc::ptr_eq(&new, &newest));
        let weak = Arc::downgrade(&old);
        drop((old, again));
        assert!(weak.upgrade().is_none(), "its last volume is gone");
        drop((new, newest));
        stores.connect("main", &record("new")).await.unwrap();
        let known = stores.connected.lock().await;
        assert_eq!((known.newest.len(), known.superseded.len()), (1, 0));
    }

    #[tokio::test]
    async fn volumes_of_one_configuration_share_a_client_under_any_name() {
        let stores = Stores::default();
        let one = stores.connect("one", &record("same")).await.unwrap();
        let other = stores.connect("other", &record("same")).await.unwrap();
        assert!(Arc::ptr_eq(&one, &other));
    }
}
