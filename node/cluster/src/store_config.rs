//! Converts an ObjectStore and its Secrets to the configuration of an S3 client.
//!
//! Invariants: sends no request to the store.
//! On failure: a [`StoreConfigError`] with the field and the fix.

use holdfast_crds::{
    Condition, Credentials, ObjectStore, ObjectStoreSpec, READY, SecretKeyRef, SecretRef, find_condition,
};
use holdfast_s3::{InvalidConfig, S3Config};
use k8s_openapi::api::core::v1::Secret;
use kube::{Api, Client};

use crate::api::{ApiError, call};

/// Environment variable with the path of the web identity token (set by the platform's admission webhook).
const TOKEN_FILE: &str = "AWS_WEB_IDENTITY_TOKEN_FILE";
/// Environment variable with the role to assume.
const ROLE_ARN: &str = "AWS_ROLE_ARN";

/// The configuration of an ObjectStore's client, and the versions it was read from.
#[derive(Debug)]
pub struct StoreConfig {
    /// Validated values: `S3Config::check` passed.
    pub config: S3Config,
    /// Changes with the ObjectStore's spec and its Secrets.
    pub version: StoreVersion,
    /// Result of the last probe; absent if this spec was not probed yet.
    pub ready: Option<Condition>,
}

/// The versions of an ObjectStore and of its Secrets.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StoreVersion {
    uid: Option<String>,
    generation: Option<i64>,
    /// Uid and resource version of each Secret.
    secrets: Vec<String>,
}

impl StoreVersion {
    /// Returns the versions of the Secrets as one string; `None` if the ObjectStore refers to none.
    pub fn of_secrets(&self) -> Option<String> {
        (!self.secrets.is_empty()).then(|| self.secrets.join("/"))
    }
}

/// Reason why an ObjectStore has no usable configuration.
#[derive(Debug, thiserror::Error)]
pub enum StoreConfigError {
    /// The ObjectStore does not exist.
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
        /// Namespace and name of the Secret.
        secret: String,
    },
    /// The program may not read a referenced Secret.
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
        /// Namespace and name of the Secret.
        secret: String,
        /// The missing key.
        key: String,
    },
    /// Web identity is requested, but the pod has none.
    #[error(
        "spec.credentials.webIdentity: {variable} is not set in the pod of {reader}; bind its service account to a role and recreate the pod, or use secretRef"
    )]
    NoWebIdentity {
        /// The variable.
        variable: &'static str,
        /// The program.
        reader: &'static str,
    },
    /// Both certificate fields are set.
    #[error("spec.caBundleRef: spec.caBundle is set too; remove one of them")]
    TwoCaBundles,
    /// A value is never valid.
    #[error("spec.{0}")]
    Invalid(#[from] InvalidConfig),
}

/// Reads the ObjectStore called `name` and its Secrets. `reader` is the program's name in messages, such as
/// "the operator".
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

/// Reads Secrets and records the version of each.
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
            Credentials::Unknown(_) => Err(StoreConfigError::Invalid(InvalidConfig {
                field: "credentials",
                value: "(of a later release)".to_owned(),
                fix: "upgrade Holdfast, or write credentials that this release knows",
            })),
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

/// The values of a Secret, and the field that refers to it.
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
