//! From an ObjectStore and its Secrets to the configuration of an S3 client.
//!
//! Invariants: nothing is sent to the store.
//! On failure: a [`StoreConfigError`] that names the field and the fix.

use holdfast_crds::{
    Condition, Credentials, ObjectStore, ObjectStoreSpec, READY, SecretKeyRef, SecretRef, find_condition,
};
use holdfast_s3::{InvalidConfig, S3Config};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::api::{ApiError, call};

/// Environment variable that names the web identity token's file (set by the platform's admission webhook).
const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Environment variable that names the role to assume.
const ROLE_ARN: &str = "AWS_ROLE_ARN";

/// The configuration of an ObjectStore's client, and the versions it was read from.
#[derive(Debug)]
pub struct StoreConfig {
    /// Values that can work: `S3Config::check` passed.
    pub config: S3Config,
    /// Differs when the ObjectStore's spec or one of its Secrets differs.
    pub version: StoreVersion,
    /// Result of the last probe; absent while this spec was not probed.
    pub ready: Option<Condition>,
}

/// The versions of an ObjectStore and of the Secrets that it refers to.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreVersion {
    uid: Option<String>,
    generation: Option<i64>,
    /// Uid and resource version of each Secret.
    secrets: Vec<String>,
}

impl StoreVersion {
    /// The versions of the Secrets in one word; nothing if the ObjectStore refers to none.
    pub fn of_secrets(&self) -> Option<String> {
        (!self.secrets.is_empty()).then(|| self.secrets.join("/"))
    }
}

/// Reasons for which an ObjectStore gives no configuration.
#[derive(Debug, thiserror::Error)]
pub enum StoreConfigError {
    /// No such ObjectStore.
    #[error("no ObjectStore is named `{0}`; create it")]
    Missing(String),
    /// The API server did not answer.
    #[error("the ObjectStore or its Secret could not be read")]
    Api(#[from] ApiError),
    /// A referenced Secret does not exist.
    #[error("{field}: Secret {secret} does not exist; create it or correct the reference")]
    NoSecret {
        /// The field that refers to the Secret.
        field: &'static str,
        /// Its namespace and name.
        secret: String,
    },
    /// A referenced Secret may not be read.
    #[error("{field}: {reader} may not read Secret {secret}; allow it with a Role in that namespace")]
    SecretForbidden {
        /// The field that refers to the Secret.
        field: &'static str,
        /// The program.
        reader: &'static str,
        /// Namespace and name of the Secret.
        secret: String,
    },
    /// A Secret lacks a key, or its value is not text.
    #[error("{field}: Secret {secret} has no usable key `{key}`; add it")]
    NoSecretKey {
        /// The field that refers to the Secret.
        field: &'static str,
        /// Its namespace and name.
        secret: String,
        /// The key.
        key: String,
    },
    /// Web identity is asked for, but the pod has none.
    #[error(
        "spec.credentials.webIdentity: {variable} is not set in the pod of {reader}; bind its service account to a role, or use secretRef"
    )]
    NoWebIdentity {
        /// The variable.
        variable: &'static str,
        /// The program.
        reader: &'static str,
    },
    /// Both ways to give certificates are used.
    #[error("spec.caBundleRef: spec.caBundle is set too; remove one of them")]
    TwoCaBundles,
    /// A value can never work.
    #[error("spec.{0}")]
    Invalid(#[from] InvalidConfig),
}

/// Reads the ObjectStore called `name` and the Secrets it refers to. `reader` is the program's name in
/// messages, such as "the operator".
///
/// # Errors
/// [`StoreConfigError`].
pub async fn read(
    client: &Client,
    reader: &'static str,
    name: &str,
) -> Result<StoreConfig, StoreConfigError> {
    let api: Api<ObjectStore> = Api::all(client.clone());
    let store = call(api.get_opt(name)).await?.ok_or_else(|| StoreConfigError::Missing(name.to_owned()))?;
    let mut secrets = Secrets { client, reader, versions: Vec::new() };
    let config = secrets.config(&store.spec).await?;
    config.check()?;
    let (uid, generation) = (store.metadata.uid, store.metadata.generation);
    let conditions = store.status.map(|status| status.conditions).unwrap_or_default();
    let ready = find_condition(&conditions, READY).filter(|ready| ready.observed_generation == generation);
    let version = StoreVersion { uid, generation, secrets: secrets.versions };
    Ok(StoreConfig { config, version, ready: ready.cloned() })
}

/// Reads Secrets and notes the version of each.
struct Secrets<'a> {
    client: &'a Client,
    reader: &'static str,
    versions: Vec<String>,
}

impl Secrets<'_> {
    async fn config(&mut self, spec: &ObjectStoreSpec) -> Result<S3Config, StoreConfigError> {
        let credentials = self.credentials(&spec.credentials).await?;
        let ca_pem = match (&spec.ca_bundle, &spec.ca_bundle_ref) {
            (Some(_), Some(_)) => return Err(StoreConfigError::TwoCaBundles),
            (Some(pem), None) => Some(pem.clone()),
            (None, Some(SecretKeyRef { name, namespace, key })) => {
                Some(self.read("spec.caBundleRef", namespace, name).await?.required(key)?)
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

    async fn credentials(
        &mut self,
        credentials: &Credentials,
    ) -> Result<holdfast_s3::S3Credentials, StoreConfigError> {
        match credentials {
            Credentials::SecretRef(SecretRef { name, namespace }) => {
                let secret = self.read("spec.credentials.secretRef", namespace, name).await?;
                Ok(holdfast_s3::S3Credentials::Static {
                    access_key_id: secret.required("accessKeyId")?,
                    secret_access_key: secret.required("secretAccessKey")?,
                    session_token: secret.optional("sessionToken"),
                })
            }
            Credentials::Environment(_) => Ok(holdfast_s3::S3Credentials::Environment),
            Credentials::WebIdentity(_) => Ok(holdfast_s3::S3Credentials::WebIdentity {
                token_file: self.variable(TOKEN_FILE)?.into(),
                role_arn: self.variable(ROLE_ARN)?,
            }),
        }
    }

    fn variable(&self, variable: &'static str) -> Result<String, StoreConfigError> {
        let value = std::env::var(variable).ok().filter(|value| !value.is_empty());
        value.ok_or(StoreConfigError::NoWebIdentity { variable, reader: self.reader })
    }

    async fn read(
        &mut self,
        field: &'static str,
        namespace: &str,
        name: &str,
    ) -> Result<Values, StoreConfigError> {
        let reference = format!("{namespace}/{name}");
        let api: Api<Secret> = Api::namespaced(self.client.clone(), namespace);
        let secret = match call(api.get_opt(name)).await {
            Ok(Some(secret)) => secret,
            Ok(None) => return Err(StoreConfigError::NoSecret { field, secret: reference }),
            Err(error) if error.is_forbidden() => {
                let reader = self.reader;
                return Err(StoreConfigError::SecretForbidden { field, reader, secret: reference });
            }
            Err(error) => return Err(error.into()),
        };
        self.versions.extend(secret.metadata.uid.clone());
        self.versions.extend(secret.metadata.resource_version.clone());
        Ok(Values { field, reference, secret })
    }
}

/// A Secret and the field that refers to it.
struct Values {
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

    fn required(&self, key: &str) -> Result<String, StoreConfigError> {
        self.optional(key).ok_or_else(|| StoreConfigError::NoSecretKey {
            field: self.field,
            secret: self.reference.clone(),
            key: key.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests;
