//! From an ObjectStore and its Secrets to the configuration of an S3 client.

use holdfast_crds::{Credentials, ObjectStore, ObjectStoreSpec, SecretKeyRef, SecretRef};
use holdfast_s3::{InvalidConfig, S3Config};
use holdfast_service::chain;
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use super::api::{ApiError, call};
use super::retry::{OperationFailure, Retry};

/// Environment variable that names the web identity token's file (set by the platform's admission webhook).
const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Environment variable that names the role to assume.
const ROLE_ARN: &str = "AWS_ROLE_ARN";

/// Why an ObjectStore cannot be used. Nothing was sent to the store.
#[derive(Debug, thiserror::Error)]
pub(crate) enum StoreError {
    /// The volume names none.
    #[error("spec.objectStore: is empty; write the name of an ObjectStore")]
    NotNamed,
    /// No such ObjectStore.
    #[error("spec.objectStore: no ObjectStore is named `{0}`; create it")]
    Missing(String),
    /// The API server did not answer.
    #[error("the ObjectStore or its Secret could not be read")]
    Api(#[from] ApiError),
    /// A referenced Secret does not exist.
    #[error(
        "ObjectStore {store}: {field}: Secret {secret} does not exist; create it or correct the reference"
    )]
    NoSecret {
        /// The ObjectStore.
        store: String,
        /// The field that refers to the Secret.
        field: &'static str,
        /// Its namespace and name.
        secret: String,
    },
    /// A referenced Secret may not be read.
    #[error(
        "ObjectStore {store}: {field}: the node daemon may not read Secret {secret}; allow it with a Role in that namespace"
    )]
    SecretForbidden {
        /// The ObjectStore.
        store: String,
        /// The field that refers to the Secret.
        field: &'static str,
        /// Its namespace and name.
        secret: String,
    },
    /// A Secret lacks a key, or its value is not text.
    #[error("ObjectStore {store}: {field}: Secret {secret} has no usable key `{key}`; add it")]
    NoSecretKey {
        /// The ObjectStore.
        store: String,
        /// The field that refers to the Secret.
        field: &'static str,
        /// Its namespace and name.
        secret: String,
        /// The key.
        key: String,
    },
    /// Web identity is asked for, but the pod has none.
    #[error(
        "ObjectStore {store}: spec.credentials.webIdentity: {variable} is not set in the node daemon's pod; bind its service account to a role, or use secretRef"
    )]
    NoWebIdentity {
        /// The ObjectStore.
        store: String,
        /// The variable.
        variable: &'static str,
    },
    /// Both ways to give certificates are used.
    #[error("ObjectStore {0}: spec.caBundleRef: spec.caBundle is set too; remove one of them")]
    TwoCaBundles(String),
    /// A value can never work.
    #[error("ObjectStore {store}: spec.{}: {invalid}", invalid.field)]
    Invalid {
        /// The ObjectStore.
        store: String,
        /// The field and the fix.
        invalid: InvalidConfig,
    },
}

impl From<StoreError> for OperationFailure {
    fn from(error: StoreError) -> Self {
        let (reason, retry) = match &error {
            StoreError::NotNamed | StoreError::Missing(_) => ("ObjectStoreMissing", Retry::Rarely),
            StoreError::Api(_) => ("ApiUnavailable", Retry::Later),
            StoreError::NoSecret { .. } => ("SecretMissing", Retry::Rarely),
            StoreError::SecretForbidden { .. } => ("SecretForbidden", Retry::Rarely),
            StoreError::NoSecretKey { .. } => ("SecretKeyMissing", Retry::Rarely),
            StoreError::NoWebIdentity { .. } => ("WebIdentityMissing", Retry::Rarely),
            StoreError::TwoCaBundles(_) | StoreError::Invalid { .. } => ("ObjectStoreInvalid", Retry::Rarely),
        };
        Self { reason, message: chain(&error), retry }
    }
}

/// Reads the ObjectStore called `name` and what it refers to.
///
/// # Errors
/// What it lacks.
pub(crate) async fn read(client: &Client, name: &str) -> Result<S3Config, StoreError> {
    let api: Api<ObjectStore> = Api::all(client.clone());
    let found = call(api.get_opt(name)).await?;
    let store = found.ok_or_else(|| StoreError::Missing(name.to_owned()))?;
    let config = Reader { client, store: name }.config(&store.spec).await?;
    match config.check() {
        Ok(()) => Ok(config),
        Err(invalid) => Err(StoreError::Invalid { store: name.to_owned(), invalid }),
    }
}

/// Reads what one ObjectStore refers to.
struct Reader<'a> {
    client: &'a Client,
    store: &'a str,
}

impl Reader<'_> {
    async fn config(&self, spec: &ObjectStoreSpec) -> Result<S3Config, StoreError> {
        let credentials = self.credentials(&spec.credentials).await?;
        let ca_pem = match (&spec.ca_bundle, &spec.ca_bundle_ref) {
            (Some(_), Some(_)) => return Err(StoreError::TwoCaBundles(self.store.to_owned())),
            (Some(pem), None) => Some(pem.clone()),
            (None, Some(SecretKeyRef { name, namespace, key })) => {
                Some(self.secret("spec.caBundleRef", namespace, name).await?.required(key)?)
            }
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

    async fn credentials(&self, credentials: &Credentials) -> Result<holdfast_s3::Credentials, StoreError> {
        match credentials {
            Credentials::SecretRef(SecretRef { name, namespace }) => {
                let secret = self.secret("spec.credentials.secretRef", namespace, name).await?;
                Ok(holdfast_s3::Credentials::Static {
                    access_key_id: secret.required("accessKeyId")?,
                    secret_access_key: secret.required("secretAccessKey")?,
                    session_token: secret.optional("sessionToken"),
                })
            }
            Credentials::Environment(_) => Ok(holdfast_s3::Credentials::Environment),
            Credentials::WebIdentity(_) => Ok(holdfast_s3::Credentials::WebIdentity {
                token_file: self.variable(TOKEN_FILE)?.into(),
                role_arn: self.variable(ROLE_ARN)?,
            }),
        }
    }

    fn variable(&self, variable: &'static str) -> Result<String, StoreError> {
        let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
        value.ok_or_else(|| StoreError::NoWebIdentity { store: self.store.to_owned(), variable })
    }

    async fn secret(&self, field: &'static str, namespace: &str, name: &str) -> Result<Values, StoreError> {
        let (store, reference) = (self.store.to_owned(), format!("{namespace}/{name}"));
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        match call(api.get_opt(name)).await {
            Ok(Some(secret)) => Ok(Values { store, field, reference, secret }),
            Ok(None) => Err(StoreError::NoSecret { store, field, secret: reference }),
            Err(error) if error.is_forbidden() => {
                Err(StoreError::SecretForbidden { store, field, secret: reference })
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// A Secret and who refers to it.
struct Values {
    store: String,
    field: &'static str,
    reference: String,
    secret: Secret,
}

impl Values {
    fn optional(&self, key: &str) -> Option<String> {
        let value = self.secret.data.as_ref()?.get(key)?;
        let text = std::str::from_utf8(&value.0).ok()?.trim();
        (!text.is_empty()).then(|| text.to_owned())
    }

    fn required(&self, key: &str) -> Result<String, StoreError> {
        self.optional(key).ok_or_else(|| StoreError::NoSecretKey {
            store: self.store.clone(),
            field: self.field,
            secret: self.reference.clone(),
            key: key.to_owned(),
        })
    }
}
