//! Connections to object stores: one for each ObjectStore, renewed when its spec or Secret changes.

use std::collections::HashMap;
use std::sync::Arc;

use holdfast_crds::{Credentials, ObjectStore, ObjectStoreSpec, SecretKeyRef, SecretRef};
use holdfast_s3::{InvalidConfig, S3Config, S3Store};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};
use tokio::sync::Mutex;

use crate::requeue::Retry;

/// Environment variable that names the web identity token's file (set by the platform's admission webhook).
const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Environment variable that names the role to assume.
const ROLE_ARN: &str = "AWS_ROLE_ARN";

/// Why no connection could be made. Nothing was sent to the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum ConnectError {
    /// No such ObjectStore.
    #[error("no ObjectStore is named `{0}`")]
    NoObjectStore(String),
    /// The API server did not answer.
    #[error("the API server refused a request")]
    Api(#[source] kube::Error),
    /// A referenced Secret does not exist.
    #[error("{field}: Secret {namespace}/{name} does not exist; create it or correct the reference")]
    NoSecret {
        /// The field that refers to it.
        field: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A referenced Secret may not be read.
    #[error(
        "{field}: the operator may not read Secret {namespace}/{name}; allow it with a Role in that namespace"
    )]
    SecretForbidden {
        /// The field that refers to it.
        field: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
    },
    /// A Secret lacks a key, or its value is not text.
    #[error("{field}: Secret {namespace}/{name} has no usable key `{key}`; add it")]
    NoSecretKey {
        /// The field that refers to it.
        field: &'static str,
        /// Its namespace.
        namespace: String,
        /// Its name.
        name: String,
        /// The key that is missing.
        key: String,
    },
    /// Web identity is asked for, but the pod has none.
    #[error(
        "spec.credentials.webIdentity: {0} is not set in the operator's pod; bind its service account to a role, or use secretRef"
    )]
    NoWebIdentity(&'static str),
    /// Both ways to give certificates are used.
    #[error("spec.caBundleRef: spec.caBundle is set too; remove one of them")]
    TwoCaBundles,
    /// A value can never work.
    #[error("spec.{0}")]
    Invalid(InvalidConfig),
}

impl From<InvalidConfig> for ConnectError {
    fn from(invalid: InvalidConfig) -> Self {
        Self::Invalid(invalid)
    }
}

impl ConnectError {
    /// When to try again.
    pub(crate) fn retry(&self) -> Retry {
        match self {
            Self::Api(_) => Retry::Later,
            // A Secret is often created a moment after what refers to it, and Secrets are not watched.
            Self::NoObjectStore(_)
            | Self::NoSecret { .. }
            | Self::NoSecretKey { .. }
            | Self::SecretForbidden { .. } => Retry::Later,
            Self::NoWebIdentity(_) | Self::TwoCaBundles | Self::Invalid(_) => Retry::Rarely,
        }
    }

    /// Reason of the condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::NoObjectStore(_) => "ObjectStoreMissing",
            Self::Api(_) => "ApiUnavailable",
            Self::NoSecret { .. } => "SecretMissing",
            Self::SecretForbidden { .. } => "SecretForbidden",
            Self::NoSecretKey { .. } => "SecretKeyMissing",
            Self::NoWebIdentity(_) => "WebIdentityMissing",
            Self::TwoCaBundles | Self::Invalid(_) => "InvalidSpec",
        }
    }
}

/// Connections by the name of their ObjectStore. That of a deleted ObjectStore stays until the process ends: there are few.
#[derive(Debug, Default)]
pub(crate) struct Connections {
    open: Mutex<HashMap<String, Connection>>,
}

#[derive(Debug)]
struct Connection {
    /// What the connection was made from: the ObjectStore's uid and generation, the resource versions of its Secrets.
    made_from: Vec<String>,
    store: Arc<S3Store>,
}

impl Connections {
    /// The connection to the ObjectStore called `name`; made anew if it or its Secrets changed. Sends nothing to the
    /// store.
    ///
    /// # Errors
    /// What the ObjectStore lacks.
    pub(crate) async fn open(&self, client: Client, name: &str) -> Result<Arc<S3Store>, ConnectError> {
        let api: Api<ObjectStore> = Api::all(client.clone());
        let found = api.get_opt(name).await.map_err(ConnectError::Api)?;
        let object_store = found.ok_or_else(|| ConnectError::NoObjectStore(name.to_owned()))?;
        let mut secrets = Secrets { client, made_from: made_from(&object_store) };
        let config = secrets.config(&object_store.spec).await?;
        let mut open = self.open.lock().await;
        if let Some(connection) = open.get(name)
            && connection.made_from == secrets.made_from
        {
            return Ok(connection.store.clone());
        }
        let store = Arc::new(S3Store::connect(config).await?);
        let connection = Connection { made_from: secrets.made_from, store: store.clone() };
        open.insert(name.to_owned(), connection);
        Ok(store)
    }

    /// The uids and resource versions of the Secrets that the connection to the ObjectStore called `name` was made from last.
    pub(crate) async fn credentials_version(&self, name: &str) -> Option<String> {
        let open = self.open.lock().await;
        let (_object_store, secrets) = open.get(name)?.made_from.split_at(OBJECT_STORE_PARTS);
        (!secrets.is_empty()).then(|| secrets.join("/"))
    }
}

/// How many parts of what a connection was made from are the ObjectStore's own.
const OBJECT_STORE_PARTS: usize = 2;

fn made_from(store: &ObjectStore) -> Vec<String> {
    let uid = store.metadata.uid.clone().unwrap_or_default();
    let own: [String; OBJECT_STORE_PARTS] = [uid, store.metadata.generation.unwrap_or_default().to_string()];
    own.into()
}

/// Reads Secrets and notes which version of each was read.
struct Secrets {
    client: Client,
    made_from: Vec<String>,
}

impl Secrets {
    async fn config(&mut self, spec: &ObjectStoreSpec) -> Result<S3Config, ConnectError> {
        let credentials = self.credentials(&spec.credentials).await?;
        let ca_pem = match (&spec.ca_bundle, &spec.ca_bundle_ref) {
            (Some(_), Some(_)) => return Err(ConnectError::TwoCaBundles),
            (Some(pem), None) => Some(pem.clone()),
            (None, Some(reference)) => Some(self.ca_bundle(reference).await?),
            (None, None) => None,
        };
        Ok(S3Config {
            endpoint: spec.endpoint.clone(),
            prefix: spec.prefix.clone(),
            path_style: spec.path_style,
            ca_pem,
            ..S3Config::new(&spec.bucket, &spec.region, credentials)
        })
    }

    async fn credentials(
        &mut self,
        credentials: &Credentials,
    ) -> Result<holdfast_s3::Credentials, ConnectError> {
        match credentials {
            Credentials::SecretRef(SecretRef { name, namespace }) => {
                let field = "spec.credentials.secretRef";
                let secret = self.read(field, namespace, name).await?;
                Ok(holdfast_s3::Credentials::Static {
                    access_key_id: secret.required("accessKeyId")?,
                    secret_access_key: secret.required("secretAccessKey")?,
                    session_token: secret.optional("sessionToken"),
                })
            }
            Credentials::Environment(_) => Ok(holdfast_s3::Credentials::Environment),
            Credentials::WebIdentity(_) => {
                let variable = |name| std::env::var(name).ok().filter(|value| !value.is_empty());
                Ok(holdfast_s3::Credentials::WebIdentity {
                    token_file: variable(TOKEN_FILE).ok_or(ConnectError::NoWebIdentity(TOKEN_FILE))?.into(),
                    role_arn: variable(ROLE_ARN).ok_or(ConnectError::NoWebIdentity(ROLE_ARN))?,
                })
            }
        }
    }

    async fn ca_bundle(&mut self, reference: &SecretKeyRef) -> Result<String, ConnectError> {
        let SecretKeyRef { name, namespace, key } = reference;
        self.read("spec.caBundleRef", namespace, name).await?.required(key)
    }

    async fn read(
        &mut self,
        field: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Values, ConnectError> {
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let (namespace, name) = (namespace.to_owned(), name.to_owned());
        let found = match api.get_opt(&name).await {
            Ok(found) => found,
            Err(kube::Error::Api(status)) if status.code == 403 => {
                return Err(ConnectError::SecretForbidden { field, namespace, name });
            }
            Err(error) => return Err(ConnectError::Api(error)),
        };
        let Some(secret) = found else { return Err(ConnectError::NoSecret { field, namespace, name }) };
        self.made_from.extend(secret.metadata.uid.clone());
        self.made_from.extend(secret.metadata.resource_version.clone());
        Ok(Values { field, namespace, name, secret })
    }
}

/// A Secret and the field that refers to it.
struct Values {
    field: &'static str,
    namespace: String,
    name: String,
    secret: Secret,
}

impl Values {
    fn optional(&self, key: &str) -> Option<String> {
        let value = self.secret.data.as_ref()?.get(key)?;
        String::from_utf8(value.0.clone())
            .ok()
            .map(|text| text.trim().to_owned())
            .filter(|text| !text.is_empty())
    }

    fn required(&self, key: &str) -> Result<String, ConnectError> {
        self.optional(key).ok_or_else(|| ConnectError::NoSecretKey {
            field: self.field,
            namespace: self.namespace.clone(),
            name: self.name.clone(),
            key: key.to_owned(),
        })
    }
}
