//! Building the SDK client: transport, trust, credentials, and none of the SDK's own retries.

use aws_config::{
    default_provider::credentials::DefaultCredentialsChain,
    provider_config::ProviderConfig,
    web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider},
};
use aws_sdk_s3::{
    Client, Config,
    config::{
        Credentials as KeyPair, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
};
use aws_smithy_http_client::{
    Builder,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};

use crate::{
    config::{Credentials, InvalidConfig, S3Config},
    store::S3Store,
};

impl S3Store {
    /// Prepares to talk to the bucket; sends nothing yet.
    ///
    /// # Errors
    /// A field of `config` that can never work.
    pub async fn connect(config: S3Config) -> Result<Self, InvalidConfig> {
        config.check()?;
        let region = Region::new(config.region.clone());
        let http = transport(&config);
        let mut sdk = Config::builder()
            .behavior_version_latest()
            .region(region.clone())
            .credentials_provider(credentials(&config.credentials, region).await)
            .http_client(http)
            // Attempts are repeated in `attempt.rs`, because the SDK's retries end where the body begins.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(config.timeouts.connect).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::enabled().build())
            // Frames, records and manifests carry checksums of their own.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .force_path_style(config.path_style);
        if let Some(endpoint) = &config.endpoint {
            sdk = sdk.endpoint_url(endpoint);
        }
        Ok(Self::new(Client::from_conf(sdk.build()), config))
    }
}

fn transport(config: &S3Config) -> SharedHttpClient {
    let builder = Builder::new().pool_max_idle_per_host(config.max_concurrency);
    if !config.is_tls() {
        return builder.build_http();
    }
    let trust = match &config.ca_pem {
        Some(pem) => TrustStore::empty().with_pem_certificate(pem.as_bytes()),
        None => TrustStore::default(),
    };
    let tls = TlsContext::builder().with_trust_store(trust).build().expect("a trust store makes a context");
    builder.tls_provider(Provider::Rustls(CryptoMode::AwsLc)).tls_context(tls).build_https()
}

async fn credentials(credentials: &Credentials, region: Region) -> SharedCredentialsProvider {
    match credentials {
        Credentials::Static { access_key_id, secret_access_key, session_token } => {
            let mut pair = KeyPair::builder()
                .access_key_id(access_key_id)
                .secret_access_key(secret_access_key)
                .provider_name("holdfast");
            pair.set_session_token(session_token.clone());
            SharedCredentialsProvider::new(pair.build())
        }
        Credentials::Environment => {
            SharedCredentialsProvider::new(DefaultCredentialsChain::builder().region(region).build().await)
        }
        Credentials::WebIdentity { token_file, role_arn } => {
            let assume = StaticConfiguration {
                web_identity_token_file: token_file.clone(),
                role_arn: role_arn.clone(),
                session_name: "holdfast".to_owned(),
            };
            let provider = ProviderConfig::without_region().with_region(Some(region));
            SharedCredentialsProvider::new(
                WebIdentityTokenCredentialsProvider::builder()
                    .configure(&provider)
                    .static_configuration(assume)
                    .build(),
            )
        }
    }
}
