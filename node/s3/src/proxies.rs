//! HTTP proxies between this host and the server, from the environment.
//!
//! `HTTPS_PROXY` is for `https://` servers, through a CONNECT tunnel; `HTTP_PROXY` for `http://` servers;
//! `ALL_PROXY` for both if the specific variable is not set; `NO_PROXY` has the hosts, domains and networks
//! to reach directly, in addition to the loopback. Each variable is also read by its lower-case name.

use std::fmt;

use aws_smithy_http_client::proxy::ProxyConfig;
use hyper::Uri;
use hyper_util::client::proxy::matcher::Matcher;

use crate::invalid_config::InvalidConfig;

/// Always reached directly, regardless of the environment.
const LOOPBACK: &str = "localhost,127.0.0.0/8,::1";

/// Placeholder proxy, used to determine whether a host is reached through one.
const ANY_PROXY: &str = "http://proxy.invalid";

/// The configured proxies. Their URLs may contain a user and a password.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Proxies {
    /// URL of the proxy to `http://` servers.
    pub http: Option<String>,
    /// URL of the proxy to `https://` servers.
    pub https: Option<String>,
    /// URL of the proxy to servers without a specific one.
    pub all: Option<String>,
    /// Hosts, domains and networks to reach directly, separated by commas.
    pub no_proxy: Option<String>,
}

impl fmt::Debug for Proxies {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = |url: &Option<String>| url.as_deref().map(|url| without_user(url).to_owned());
        f.debug_struct("Proxies")
            .field("http", &plain(&self.http))
            .field("https", &plain(&self.https))
            .field("all", &plain(&self.all))
            .field("no_proxy", &self.no_proxy)
            .finish()
    }
}

/// The proxy of a server.
#[derive(Debug, Clone)]
pub(crate) struct Proxy {
    /// Its host and port.
    pub(crate) host: String,
    /// The variable that names it.
    pub(crate) variable: &'static str,
    pub(crate) config: ProxyConfig,
}

impl Proxies {
    /// Reads the proxies from this process's environment.
    pub fn of_environment() -> Self {
        Self::of(|name| std::env::var(name).ok())
    }

    fn of(variable: impl Fn(&str) -> Option<String>) -> Self {
        let get = |name: &str| {
            let value = variable(name).or_else(|| variable(&name.to_lowercase()));
            value.filter(|value| !value.trim().is_empty())
        };
        Self {
            http: get("HTTP_PROXY"),
            https: get("HTTPS_PROXY"),
            all: get("ALL_PROXY"),
            no_proxy: get("NO_PROXY"),
        }
    }

    /// Returns the variable for servers with or without TLS, and its URL.
    fn of_servers(&self, with_tls: bool) -> Option<(&'static str, &str)> {
        let own = if with_tls { ("HTTPS_PROXY", &self.https) } else { ("HTTP_PROXY", &self.http) };
        let (variable, url) = if own.1.is_some() { own } else { ("ALL_PROXY", &self.all) };
        Some((variable, url.as_deref()?))
    }

    /// Returns the hosts to reach directly.
    fn direct(&self) -> String {
        self.no_proxy.as_ref().map_or(LOOPBACK.to_owned(), |no| format!("{no},{LOOPBACK}"))
    }

    /// Returns the proxy for requests to `endpoint`; `None` for direct requests, whose variables are not
    /// validated.
    ///
    /// # Errors
    /// The variable with an invalid URL.
    pub(crate) fn proxy(&self, endpoint: &str) -> Result<Option<Proxy>, InvalidConfig> {
        let with_tls = endpoint.starts_with("https://");
        let Some((variable, url)) = self.of_servers(with_tls) else { return Ok(None) };
        let Ok(server) = endpoint.parse::<Uri>() else { return Ok(None) };
        let direct = self.direct();
        if Matcher::builder().all(ANY_PROXY).no(direct.as_str()).build().intercept(&server).is_none() {
            return Ok(None);
        }
        let invalid = |fix| InvalidConfig { field: variable, value: without_user(url).to_owned(), fix };
        let with_scheme = with_scheme(url);
        if !with_tls && with_scheme.starts_with("https://") {
            return Err(invalid("use http://: a proxy with TLS is not supported for a server without TLS"));
        }
        if url.matches('@').count() > 1 {
            return Err(invalid("encode an @ in the user or the password as %40"));
        }
        let bad = "use http://, a host and :port; SOCKS is not supported";
        let config = ProxyConfig::all(with_scheme.as_str()).map_err(|_reason| invalid(bad))?;
        let through = Matcher::builder().all(with_scheme).build().intercept(&server);
        Ok(through.map(|through| Proxy {
            host: through.uri().authority().map(ToString::to_string).unwrap_or_default(),
            variable,
            config: config.no_proxy(direct),
        }))
    }

    /// Returns the proxy for the provider's credential services. Those of the host itself, which speak plain
    /// HTTP, are reached directly.
    pub(crate) fn of_token_service(&self) -> Option<ProxyConfig> {
        let (_variable, url) = self.of_servers(true)?;
        let config = ProxyConfig::https(with_scheme(url).as_str()).ok()?;
        Some(config.no_proxy(self.direct()))
    }
}

fn with_scheme(url: &str) -> String {
    if url.contains("://") { url.to_owned() } else { format!("http://{url}") }
}

/// Returns a URL without its user and password.
fn without_user(url: &str) -> &str {
    url.rsplit_once('@').map_or(url, |(_, host)| host)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn proxies(set: &[(&str, &str)]) -> Proxies {
        let set = set.to_vec();
        Proxies::of(|name| set.iter().find(|(known, _)| *known == name).map(|(_, value)| (*value).to_owned()))
    }

    fn through(set: &[(&str, &str)], endpoint: &str) -> Option<String> {
        proxies(set).proxy(endpoint).unwrap().map(|proxy| format!("{} of {}", proxy.host, proxy.variable))
    }

    #[test]
    fn the_environment_says_how_a_server_is_reached() {
        let both =
            [("HTTPS_PROXY", "http://p:1"), ("http_proxy", "q:2"), ("NO_PROXY", "in.example,10.0.0.0/8")];
        let cases = [
            ("https://s3.eu-central-1.amazonaws.com", Some("p:1 of HTTPS_PROXY")),
            ("http://s3.storage:9000", Some("q:2 of HTTP_PROXY")),
            ("https://s3.in.example", None),
            ("http://10.1.2.3:9000", None),
            ("http://127.0.0.1:9000", None),
            ("https://localhost", None),
        ];
        for (endpoint, expected) in cases {
            assert_eq!(through(&both, endpoint).as_deref(), expected, "{endpoint}");
        }
        let all = [("ALL_PROXY", "http://all:3"), ("HTTPS_PROXY", " ")];
        assert_eq!(through(&all, "https://s3.example").as_deref(), Some("all:3 of ALL_PROXY"));
        // Unused variables are not validated.
        let socks = [("ALL_PROXY", "socks5://p:1080"), ("NO_PROXY", ".svc")];
        assert_eq!(through(&socks, "http://minio.storage.svc:9000"), None);
        assert_eq!(through(&socks, "http://127.0.0.1:9000"), None);
        assert_eq!(through(&[], "https://s3.example"), None);
    }

    #[test]
    fn a_url_that_no_proxy_can_have_is_refused_without_its_password() {
        for (name, url, endpoint) in [
            ("HTTPS_PROXY", "socks5://u:hush@p:1", "https://s3.example"),
            ("ALL_PROXY", "socks5://u:hush@p:1", "http://s3.example"),
            ("HTTPS_PROXY", "http://u:h@hush@p:1", "https://s3.example"),
            ("HTTPS_PROXY", "http://", "https://s3.example"),
            ("HTTP_PROXY", "https://u:hush@p:1", "http://s3.example"),
        ] {
            let set = proxies(&[(name, url)]);
            let refused = set.proxy(endpoint).expect_err(url);
            assert_eq!(refused.field, name);
            assert!(!format!("{refused} {set:?}").contains("hush"), "{refused} {set:?}");
        }
    }
}
