//! The cluster objects that describe the state of its volumes.

use std::net::IpAddr;

use anyhow::{Context, anyhow, bail};
use holdfast_crds::{CLAIM, ObjectStore, StorageNode, Volume};
use k8s_openapi::api::core::v1::{Event, Pod};
use k8s_openapi::jiff::Timestamp;
use kube::api::ListParams;
use kube::config::KubeConfigOptions;
use kube::{Api, Client, Config, ResourceExt};

/// Environment variables that name a proxy, and those that list the hosts to reach without it. The client
/// library reads only the former, and uses the proxy even for loopback addresses.
const PROXIES: [&str; 2] = ["HTTPS_PROXY", "https_proxy"];
const DIRECT: [&str; 2] = ["NO_PROXY", "no_proxy"];

pub(crate) struct ClusterClients {
    pub(crate) client: Client,
    /// A client without retries: status 503 means that a pod is unreachable, and its message has the reason.
    pub(crate) once: Client,
}

/// The objects of one read of the cluster.
#[derive(Debug, Default)]
pub(crate) struct ClusterObjects {
    pub(crate) volumes: Vec<Volume>,
    pub(crate) nodes: Vec<StorageNode>,
    pub(crate) stores: Vec<ObjectStore>,
}

impl ClusterClients {
    pub(crate) async fn connect(context: Option<String>) -> anyhow::Result<Self> {
        let config = if context.is_some() {
            let options = KubeConfigOptions { context, ..KubeConfigOptions::default() };
            Config::from_kubeconfig(&options).await.map_err(anyhow::Error::from)
        } else {
            Config::infer().await.map_err(anyhow::Error::from)
        };
        let mut config = config.context("no cluster: set KUBECONFIG, or choose a context with --context")?;
        let is_set =
            |proxy: &str| config.proxy_url.as_ref().is_some_and(|set| is_same(&set.to_string(), proxy));
        let get = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let is_of_environment = PROXIES.into_iter().filter_map(get).any(|proxy| is_set(&proxy));
        let port = config.cluster_url.port_u16().unwrap_or(443);
        let direct = DIRECT.into_iter().find_map(get).unwrap_or_default();
        if is_of_environment && is_direct(config.cluster_url.host().unwrap_or_default(), port, &direct) {
            config.proxy_url = None;
        }
        let mut once = config.clone();
        once.default_retry = false;
        Ok(Self { client: Client::try_from(config)?, once: Client::try_from(once)? })
    }

    pub(crate) async fn read(&self) -> anyhow::Result<ClusterObjects> {
        let (nodes, stores): (Api<StorageNode>, Api<ObjectStore>) =
            (Api::all(self.client.clone()), Api::all(self.client.clone()));
        let all = ListParams::default();
        Ok(ClusterObjects {
            volumes: self.volumes().await?,
            nodes: nodes.list(&all).await.map_err(reason).context("the StorageNodes cannot be listed")?.items,
            stores: stores
                .list(&all)
                .await
                .map_err(reason)
                .context("the ObjectStores cannot be listed")?
                .items,
        })
    }

    pub(crate) async fn volumes(&self) -> anyhow::Result<Vec<Volume>> {
        let volumes: Api<Volume> = Api::all(self.client.clone());
        Ok(volumes
            .list(&ListParams::default())
            .await
            .map_err(reason)
            .context("the Volumes cannot be listed")?
            .items)
    }

    /// Returns the pods with these labels, in one namespace or in all.
    pub(crate) async fn pods(&self, namespace: Option<&str>, labels: &str) -> anyhow::Result<Vec<Pod>> {
        let client = self.client.clone();
        let pods: Api<Pod> = match namespace {
            Some(namespace) => Api::namespaced(client, namespace),
            None => Api::all(client),
        };
        let found = pods.list(&ListParams::default().labels(labels)).await;
        Ok(found.map_err(reason).context("the pods cannot be listed")?.items)
    }

    /// Returns the events of `volume`, oldest first.
    pub(crate) async fn events(&self, volume: &Volume) -> anyhow::Result<Vec<Event>> {
        let events: Api<Event> = Api::all(self.client.clone());
        let fields = format!("involvedObject.kind=Volume,involvedObject.name={}", volume.name_any());
        let found = events.list(&ListParams::default().fields(&fields)).await;
        let mut found = found.map_err(reason).context("no events")?.items;
        found.sort_by_key(time_of);
        Ok(found)
    }
}

impl ClusterObjects {
    /// Returns the Volume called `name`, or with a namespace the Volume of the claim of that name.
    pub(crate) fn find(&self, name: &str, namespace: Option<&str>) -> anyhow::Result<&Volume> {
        let Some(namespace) = namespace else {
            return self.volumes.iter().find(|volume| volume.name_any() == name).ok_or_else(|| {
                anyhow!("no Volume is called {name}: for a claim, add its namespace with --namespace")
            });
        };
        let claim = format!("{namespace}/{name}");
        let mut found = self.volumes.iter().filter(|volume| claim_of(volume) == Some(&claim));
        let Some(volume) = found.next() else {
            bail!(
                "no Volume was created for the claim {claim}: `kubectl describe pvc {name} --namespace \
                 {namespace}` says what it waits for"
            )
        };
        // A recreated claim has two: deletionPolicy Retain kept the Volume of its predecessor.
        match found.next() {
            None => Ok(volume),
            Some(other) => bail!(
                "the Volumes {} and {} name the claim {claim}: choose one, without --namespace",
                volume.name_any(),
                other.name_any()
            ),
        }
    }
}

/// Returns only the API server's message if `error` is its answer; kube would print the whole answer.
pub(crate) fn reason(error: kube::Error) -> anyhow::Error {
    if let kube::Error::Api(status) = &error
        && !status.message.is_empty()
    {
        return anyhow!(status.message.clone());
    }
    error.into()
}

/// Returns the time of the last occurrence of an event.
pub(crate) fn time_of(event: &Event) -> Option<Timestamp> {
    let series = event.series.as_ref().and_then(|series| series.last_observed_time.as_ref());
    let once = event.event_time.as_ref();
    series.or(once).map(|time| time.0).or(event.last_timestamp.as_ref().map(|time| time.0))
}

/// Returns the namespace and name of the claim that `volume` was created for.
pub(crate) fn claim_of(volume: &Volume) -> Option<&String> {
    volume.annotations().get(CLAIM)
}

/// Returns true if `set` equals the variable's value; the library adds a path.
fn is_same(set: &str, variable: &str) -> bool {
    set.trim_end_matches('/') == variable.trim_end_matches('/')
}

/// Returns true if a host is reached without the proxy of the environment. That holds for the loopback, as
/// used by tunnels and local clusters, and for entries of `direct` with kubectl's syntax: hosts, domains with
/// their subdomains (`.domain` and `*.domain`: only subdomains), each with an optional port, addresses,
/// networks (`10.0.0.0/8`), and `*`.
fn is_direct(host: &str, port: u16, direct: &str) -> bool {
    let host = host.trim_start_matches('[').trim_end_matches(']').to_ascii_lowercase();
    let address = host.parse::<IpAddr>().ok();
    if host == "localhost" || address.is_some_and(|address| address.is_loopback()) {
        return true;
    }
    let is_in = |network: &str| address.is_some_and(|address| is_in_network(address, network));
    direct.split(',').map(|entry| entry.trim().to_ascii_lowercase()).any(|entry| {
        let entry = entry.as_str();
        if entry == "*" || is_in(entry) {
            return true;
        }
        let (name, wanted) = match entry.rsplit_once(':') {
            // Otherwise it is an IPv6 address without a port.
            Some((name, wanted)) if !name.contains(':') || name.ends_with(']') => (name, Some(wanted)),
            Some(_) | None => (entry, None),
        };
        let name = name.trim_start_matches('[').trim_end_matches(']');
        let below = name.strip_prefix('*').unwrap_or(name).strip_prefix('.');
        let domain = below.unwrap_or(name);
        let is_below = || host.strip_suffix(domain).is_some_and(|rest| rest.ends_with('.'));
        let is_named = !domain.is_empty() && ((below.is_none() && host == domain) || is_below());
        is_named && wanted.is_none_or(|wanted| wanted.parse() == Ok(port))
    })
}

/// Returns true if the address is in a network in CIDR notation.
fn is_in_network(address: IpAddr, network: &str) -> bool {
    let Some((first, bits)) = network.split_once('/') else { return false };
    let (Ok(first), Ok(bits)) = (first.parse::<IpAddr>(), bits.parse::<u32>()) else { return false };
    let (address, first, all) = match (address, first) {
        (IpAddr::V4(address), IpAddr::V4(first)) => (address.to_bits().into(), first.to_bits().into(), 32),
        (IpAddr::V6(address), IpAddr::V6(first)) => (address.to_bits(), first.to_bits(), 128),
        (IpAddr::V4(_), IpAddr::V6(_)) | (IpAddr::V6(_), IpAddr::V4(_)) => return false,
    };
    let differs: u128 = address ^ first;
    bits <= all && differs.checked_shr(all - bits).unwrap_or_default() == 0
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Regression: with HTTPS_PROXY set, every command failed in a cluster behind a tunnel.
    #[test]
    fn the_loopback_is_reached_without_the_proxy() {
        for host in ["127.0.0.1", "localhost", "[::1]", "127.8.0.1"] {
            assert!(is_direct(host, 6443, ""), "{host}");
        }
        let direct = "10.0.0.7, .corp.example,api.example";
        for host in ["10.0.0.7", "k8s.corp.example", "api.example", "b.API.example"] {
            assert!(is_direct(host, 6443, direct), "{host}");
        }
        for host in ["10.0.0.70", "notcorp.example", "corp.example", "example", "xapi.example"] {
            assert!(!is_direct(host, 6443, direct), "{host}");
        }
        assert!(is_direct("anything.example", 6443, "*"));
    }

    /// Regression: with such an entry, kubectl reached the cluster but the plugin did not.
    #[test]
    fn networks_ports_and_wildcards_are_reached_without_the_proxy() {
        for (host, entry) in [
            ("10.7.0.1", "10.0.0.0/8"),
            ("10.7.0.1", "0.0.0.0/0"),
            ("[fd00::7]", "fd00::/8"),
            ("[fd00::7]", "fd00::7"),
            ("[fd00::7]", "[fd00::7]:6443"),
            ("k8s.corp.example", "*.corp.example"),
            ("api.example", "api.example:6443"),
            ("10.7.0.1", "10.7.0.1:6443"),
        ] {
            assert!(is_direct(host, 6443, &format!("other.example, {entry}")), "{host} {entry}");
        }
        for (host, entry) in [
            ("11.7.0.1", "10.0.0.0/8"),
            ("10.7.0.1", "10.7.0.2/32"),
            ("10.7.0.1", "10.0.0.0/33"),
            ("10.7.0.1", "fd00::/8"),
            ("corp.example", "*.corp.example"),
            ("api.example", "api.example:443"),
            ("k8s.example", "10.0.0.0/8"),
        ] {
            assert!(!is_direct(host, 6443, entry), "{host} {entry}");
        }
    }

    #[test]
    fn a_proxy_of_the_kubeconfig_is_told_from_that_of_the_environment() {
        let set = "http://proxy.example:3128/";
        assert!(is_same(set, "http://proxy.example:3128") && !is_same(set, "http://other.example:3128"));
    }
}
