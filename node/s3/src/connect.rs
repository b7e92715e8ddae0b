//! Builds the SDK client: transport, proxies, trust, credentials, without the SDK's own retries.

use std::time::Duration;

use aws_config::{
    default_provider::credentials::DefaultCredentialsChain,
    provider_config::ProviderConfig,
    web_identity_token::{StaticConfiguration, WebIdentityTokenCredentialsProvider},
};
use aws_credential_types::provider::{ProvideCredentials, error::CredentialsError, future};
use aws_sdk_s3::{
    Client, Config,
    config::{
        Credentials as KeyPair, Region, RequestChecksumCalculation, ResponseChecksumValidation,
        SharedCredentialsProvider, SharedHttpClient, StalledStreamProtectionConfig, retry::RetryConfig,
        timeout::TimeoutConfig,
    },
};
use aws_smithy_http_client::{
    Builder, Connector,
    proxy::ProxyConfig,
    tls::{Provider, TlsContext, TrustStore, rustls_provider::CryptoMode},
};

use crate::{
    config::{S3Config, S3Credentials},
    invalid_config::InvalidConfig,
    proxies::Proxies,
    store::S3Store,
};

impl S3Store {
    /// Prepares access to the bucket; sends no request yet.
    ///
    /// # Errors
    /// A field of `config` that is never valid on this host.
    pub async fn connect(config: S3Config) -> Result<Self, InvalidConfig> {
        config.check()?;
        check_trust(&config)?;
        let region = Region::new(config.region.clone());
        let proxy = config.proxies.proxy(&config.url())?;
        if let Some(proxy) = &proxy {
            tracing::info!(bucket = config.bucket, proxy = proxy.host, "requests use a proxy");
        }
        let through = proxy.as_ref().map(|proxy| proxy.config.clone());
        let http = transport(&config, through.unwrap_or_else(ProxyConfig::disabled));
        // Boxed, because this future contains the SDK's whole credentials chain and is the daemon's largest.
        let credentials = Box::pin(credentials(&config, region.clone())).await;
        let mut sdk = Config::builder()
            .behavior_version_latest()
            .region(region)
            .credentials_provider(credentials)
            .http_client(http)
            // `attempt.rs` retries, because the SDK's retries do not cover the body.
            .retry_config(RetryConfig::disabled())
            .timeout_config(TimeoutConfig::builder().connect_timeout(config.timeouts.connect).build())
            .stalled_stream_protection(StalledStreamProtectionConfig::enabled().build())
            // Frames, records and manifests have their own checksums.
            .request_checksum_calculation(RequestChecksumCalculation::WhenRequired)
            .response_checksum_validation(ResponseChecksumValidation::WhenRequired)
            .force_path_style(config.path_style);
        if let Some(endpoint) = &config.endpoint {
            sdk = sdk.endpoint_url(endpoint);
        }
        Ok(Self::new(Client::from_conf(sdk.build()), config, proxy))
    }
}

/// Rejects TLS that could never succeed because this system trusts no certificate authority.
fn check_trust(config: &S3Config) -> Result<(), InvalidConfig> {
    let wants_system = config.is_tls() && config.ca_pem.is_none();
    if wants_system && rustls_native_certs::load_native_certs().certs.is_empty() {
        let fix = "this system has no certificate authorities: set the server's here";
        return Err(InvalidConfig { field: "caBundle", value: "(not set)".to_owned(), fix });
    }
    Ok(())
}

fn transport(config: &S3Config, proxy: ProxyConfig) -> SharedHttpClient {
    let max_idle = config.max_concurrency;
    if config.is_tls() {
        let trust = match &config.ca_pem {
            Some(pem) => TrustStore::empty().with_pem_certificate(pem.as_bytes()),
            None => TrustStore::default(),
        };
        return secure(trust, max_idle, proxy);
    }
    Builder::new().build_with_connector_fn(move |settings, components| {
        let mut plain = Connector::builder().pool_max_idle_per_host(max_idle).proxy_config(proxy.clone());
        plain.set_connector_settings(settings.cloned());
        plain.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
        plain.build_http()
    })
}

/// Returns a client for TLS through `proxy`.
fn secure(trust: TrustStore, max_idle: usize, proxy: ProxyConfig) -> SharedHttpClient {
    let tls = TlsContext::builder().with_trust_store(trust).build().expect("a trust store makes a context");
    Builder::new().build_with_connector_fn(move |settings, components| {
        let mut secure = Connector::builder()
            .tls_provider(Provider::Rustls(CryptoMode::AwsLc))
            .tls_context(tls.clone())
            .pool_max_idle_per_host(max_idle)
            .proxy_config(proxy.clone());
        secure.set_connector_settings(settings.cloned());
        secure.set_sleep_impl(components.and_then(|components| components.sleep_impl()));
        secure.build()
    })
}

/// Credentials of another service, obtained within a limit.
#[derive(Debug)]
struct TimeLimited<P> {
    provider: P,
    /// Less than that of an attempt, which would blame the store.
    limit: Duration,
}

impl<P: ProvideCredentials> ProvideCredentials for TimeLimited<P> {
    fn provide_credentials<'a>(&'a self) -> future::ProvideCredentials<'a>
    where
        Self: 'a,
    {
        future::ProvideCredentials::new(async move {
            let provided = tokio::time::timeout(self.limit, self.provider.provide_credentials()).await;
            provided.unwrap_or_else(|_elapsed| Err(CredentialsError::provider_timed_out(self.limit)))
        })
    }
}

async fn credentials(config: &S3Config, region: Region) -> SharedCredentialsProvider {
    let limit = config.timeouts.attempt * 4 / 5;
    match &config.credentials {
        S3Credentials::Static { access_key_id, secret_access_key, session_token } => {
            let mut pair = KeyPair::builder()
                .access_key_id(access_key_id)
                .secret_access_key(secret_access_key)
                .provider_name("holdfast");
            pair.set_session_token(session_token.clone());
            SharedCredentialsProvider::new(pair.build())
        }
        S3Credentials::Environment => {
            let chain =
                DefaultCredentialsChain::builder().configure(provider_config(&config.proxies, &region));
            let provider = chain.region(region).build().await;
            SharedCredentialsProvider::new(TimeLimited { provider, limit })
        }
        S3Credentials::WebIdentity { token_file, role_arn } => {
            let assume = StaticConfiguration {
                web_identity_token_file: token_file.clone(),
                role_arn: role_arn.clone(),
                session_name: "holdfast".to_owned(),
            };
            let provider = WebIdentityTokenCredentialsProvider::builder()
                .configure(&provider_config(&config.proxies, &region))
                .static_configuration(assume)
                .build();
            SharedCredentialsProvider::new(TimeLimited { provider, limit })
        }
    }
}

fn provider_config(proxies: &Proxies, region: &Region) -> ProviderConfig {
    let config = ProviderConfig::without_region().with_region(Some(region.clone()));
    match proxies.of_token_service() {
        Some(proxy) => config.with_http_client(secure(TrustStore::default(), 1, proxy)),
        None => config,
    }
}

#[cfg(test)]
mod tests {
    use aws_sdk_s3::presigning::PresigningConfig;

    use super::*;

    /// Returns the address of a read of `log/1`.
    async fn address(endpoint: Option<&str>, path_style: bool) -> String {
        let credentials = S3Credentials::Static {
            access_key_id: "id".to_owned(),
            secret_access_key: "secret".to_owned(),
            session_token: None,
        };
        let store = S3Store::connect(S3Config {
            endpoint: endpoint.map(str::to_owned),
            path_style,
            prefix: "p".to_owned(),
            ..S3Config::new("bucket", "eu-north-1", credentials)
        })
        .await
        .unwrap();
        let get = store.client.get_object().bucket("bucket").key(store.full_key("log/1").unwrap());
        let soon = PresigningConfig::expires_in(Duration::from_secs(60)).unwrap();
        let signed = get.presigned(soon).await.unwrap();
        signed.uri().split('?').next().unwrap_or_default().to_owned()
    }

    #[tokio::test]
    async fn the_bucket_is_in_the_path_or_in_the_host() {
        let server = Some("http://s3.storage:9000");
        assert_eq!(address(server, true).await, "http://s3.storage:9000/bucket/p/log/1");
        assert_eq!(address(server, false).await, "http://bucket.s3.storage:9000/p/log/1");
        assert_eq!(address(None, false).await, "https://bucket.s3.eu-north-1.amazonaws.com/p/log/1");
    }
}
