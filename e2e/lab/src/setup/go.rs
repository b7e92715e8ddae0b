//! Programs written in Go, built from the module proxy at pinned versions.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::cache::Cache;
use crate::command::{output, show};
use crate::pins::{
    CSI_SANITY, GO, GO_PACKAGES, GO_ROOT, GUEST_SUITE, HELM, KUBERNETES, SEAWEEDFS, SIDECARS, SNAPSHOTTER,
    VELERO, VELERO_PLUGIN, VERSITYGW,
};
use crate::setup::apt::AptRoot;

/// Times of builds from scratch on two quiet cores.
pub(super) const VERSITYGW_EXPECTED: Duration = Duration::from_secs(120);
pub(super) const SEAWEEDFS_EXPECTED: Duration = Duration::from_secs(600);
pub(super) const HELM_EXPECTED: Duration = Duration::from_secs(240);
pub(super) const CSI_SANITY_EXPECTED: Duration = Duration::from_secs(60);
pub(super) const KUBE_APISERVER_EXPECTED: Duration = Duration::from_secs(400);
/// Time of each of the others, which share most packages with the first one.
pub(super) const KUBERNETES_EXPECTED: Duration = Duration::from_secs(100);
pub(super) const SIDECAR_EXPECTED: Duration = Duration::from_secs(150);
pub(super) const E2E_TEST_EXPECTED: Duration = Duration::from_secs(300);
pub(super) const VELERO_EXPECTED: Duration = Duration::from_secs(600);
/// Programs of the snapshotter's project: the sidecar, and the cluster-wide controller.
pub const SNAPSHOT_PROGRAMS: [&str; 2] = ["csi-snapshotter", "snapshot-controller"];

/// versitygw: an S3 server over a directory.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn versitygw(cache: &Cache) -> Result<PathBuf> {
    install(cache, "versitygw", VERSITYGW, "github.com/versity/versitygw/cmd/versitygw", VERSITYGW_EXPECTED)
}

/// SeaweedFS: another S3 server, from the module in `e2e/lab/go/seaweedfs`.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn seaweedfs(cache: &Cache, workspace: &Path) -> Result<PathBuf> {
    let module = workspace.join("e2e/lab/go/seaweedfs");
    let dir = cache.entry(&format!("seaweedfs-{SEAWEEDFS}"), SEAWEEDFS_EXPECTED, |dir| {
        let package = "github.com/seaweedfs/seaweedfs/weed";
        build(cache, &["build"], &module, package, "-s -w", &dir.join("weed"))
    })?;
    Ok(dir.join("weed"))
}

/// Returns the directory of `velero`, a backup program, from the module in `e2e/lab/go/velero`.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn velero(cache: &Cache, workspace: &Path) -> Result<PathBuf> {
    cache.entry(&format!("velero-{VELERO}"), VELERO_EXPECTED, |dir| {
        // Its library would serve metrics on port 8080 of all addresses; Velero has no setting for this.
        let flags = format!(
            "-s -w -X github.com/vmware-tanzu/velero/pkg/buildinfo.Version=v{VELERO} \
             -X sigs.k8s.io/controller-runtime/pkg/metrics/server.DefaultBindAddress=0"
        );
        let package = "github.com/vmware-tanzu/velero/cmd/velero";
        build(cache, &["build"], &velero_module(workspace), package, &flags, &dir.join("velero"))
    })
}

/// Returns the directory of Velero's plugins: the one for S3.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn velero_plugins(cache: &Cache, workspace: &Path) -> Result<PathBuf> {
    let name = "velero-plugin-for-aws";
    cache.entry(&format!("{name}-{VELERO_PLUGIN}"), VELERO_EXPECTED, |dir| {
        let package = format!("github.com/vmware-tanzu/{name}/{name}");
        build(cache, &["build"], &velero_module(workspace), &package, "-s -w", &dir.join(name))
    })
}

/// Returns the directory of Velero's CRDs, from its module.
///
/// # Errors
/// If Go is unavailable or the module cannot be downloaded.
pub fn velero_kinds(cache: &Cache, workspace: &Path) -> Result<PathBuf> {
    let module = "github.com/vmware-tanzu/velero";
    Ok(fetched(cache, &velero_module(workspace), module)?.join("config/crd"))
}

fn velero_module(workspace: &Path) -> PathBuf {
    workspace.join("e2e/lab/go/velero")
}

/// helm: renders and checks charts.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn helm(cache: &Cache) -> Result<PathBuf> {
    install(cache, "helm", HELM, "helm.sh/helm/v4/cmd/helm", HELM_EXPECTED)
}

/// csi-sanity: the CSI project's own tests.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn csi_sanity(cache: &Cache) -> Result<PathBuf> {
    let package = "github.com/kubernetes-csi/csi-test/v5/cmd/csi-sanity";
    install(cache, "csi-sanity", CSI_SANITY, package, CSI_SANITY_EXPECTED)
}

/// Builds an installable program of its module.
fn install(cache: &Cache, name: &str, version: &str, package: &str, expected: Duration) -> Result<PathBuf> {
    let key = format!("{name}-{version}");
    let dir = cache.entry(&key, expected, |dir| {
        show(go(cache)?.env("GOBIN", dir).args([
            "install",
            "-trimpath",
            "-ldflags=-s -w",
            &format!("{package}@v{version}"),
        ]))
    })?;
    Ok(dir.join(name))
}

/// Builds a program of Kubernetes from the module in `e2e/lab/go/kubernetes`: upstream publishes no binary on
/// the proxy, and its own module cannot be installed from outside because it replaces the staging modules.
/// This includes `e2e.test`, `agnhost` and `ginkgo`, which runs the first one.
///
/// # Errors
/// If Go is unavailable or the build fails.
pub fn kubernetes(cache: &Cache, workspace: &Path, name: &str) -> Result<PathBuf> {
    let (package, expected) = match name {
        "kube-apiserver" => (format!("k8s.io/kubernetes/cmd/{name}"), KUBE_APISERVER_EXPECTED),
        "e2e.test" => ("k8s.io/kubernetes/test/e2e".to_owned(), E2E_TEST_EXPECTED),
        "agnhost" => ("k8s.io/kubernetes/test/images/agnhost".to_owned(), KUBERNETES_EXPECTED),
        "ginkgo" => ("github.com/onsi/ginkgo/v2/ginkgo".to_owned(), KUBERNETES_EXPECTED),
        _ => (format!("k8s.io/kubernetes/cmd/{name}"), KUBERNETES_EXPECTED),
    };
    let dir = cache.entry(&format!("{name}-{KUBERNETES}"), expected, |dir| {
        let mut minor = KUBERNETES.split('.').skip(1);
        let minor = minor.next().context("the pinned version has a minor")?;
        let mut flags = "-s -w".to_owned();
        for package in ["k8s.io/component-base/version", "k8s.io/client-go/pkg/version"] {
            flags += &format!(
                " -X {package}.gitVersion=v{KUBERNETES} -X {package}.gitMajor=1 \
                     -X {package}.gitMinor={minor} -X {package}.gitTreeState=clean"
            );
        }
        let what: &[&str] = if name == "e2e.test" { &["test", "-c", "-vet=off"] } else { &["build"] };
        build(cache, what, &workspace.join("e2e/lab/go/kubernetes"), &package, &flags, &dir.join(name))
    })?;
    Ok(dir.join(name))
}

/// Builds a sidecar of the CSI project from the module in `e2e/lab/go/sidecars`: their own modules use
/// replacements. One module, on the version of Kubernetes used here, lets them share packages.
///
/// # Errors
/// If the sidecar does not exist, Go is unavailable or the build fails.
pub fn sidecar(cache: &Cache, workspace: &Path, name: &str) -> Result<PathBuf> {
    let (project, version) = if SNAPSHOT_PROGRAMS.contains(&name) {
        ("external-snapshotter".to_owned(), SNAPSHOTTER)
    } else {
        let pinned = SIDECARS.iter().find(|(sidecar, _)| *sidecar == name);
        let (_, version) = pinned.with_context(|| format!("no sidecar {name}"))?;
        (name.replace("csi-", "external-"), *version)
    };
    let major = version.split('.').next().context("a version has a major")?;
    let dir = cache.entry(&format!("{name}-{version}"), SIDECAR_EXPECTED, |dir| {
        let package = format!("github.com/kubernetes-csi/{project}/v{major}/cmd/{name}");
        let flags = format!("-s -w -X main.version=v{version}");
        build(cache, &["build"], &sidecars(workspace), &package, &flags, &dir.join(name))
    })?;
    Ok(dir.join(name))
}

/// Returns the directory of the CRDs of snapshots and group snapshots, from the snapshotter's module.
///
/// # Errors
/// If Go is unavailable or the module cannot be downloaded.
pub fn snapshot_kinds(cache: &Cache, workspace: &Path) -> Result<PathBuf> {
    let module = "github.com/kubernetes-csi/external-snapshotter/client/v8";
    Ok(fetched(cache, &sidecars(workspace), module)?.join("config/crd"))
}

/// Returns the directory of a module required by the module in `from`.
fn fetched(cache: &Cache, from: &Path, module: &str) -> Result<PathBuf> {
    let fetched = output(go(cache)?.current_dir(from).args(["mod", "download", "-json", module]))?;
    let fetched: Value = serde_json::from_str(&fetched).context("read what go has fetched")?;
    fetched["Dir"].as_str().map(PathBuf::from).with_context(|| format!("go has fetched no {module}"))
}

/// Returns the module of the sidecars.
fn sidecars(workspace: &Path) -> PathBuf {
    workspace.join("e2e/lab/go/sidecars")
}

/// Builds a program of one of our modules, or a package's test program, at the path `into`.
fn build(cache: &Cache, what: &[&str], module: &Path, package: &str, flags: &str, into: &Path) -> Result<()> {
    show(
        go(cache)?
            .current_dir(module)
            .args(what)
            .args(["-trimpath", "-ldflags", flags, "-o"])
            .arg(into)
            .arg(package),
    )
}

/// Returns a `go` command of sufficient version: the one on the PATH, or Debian's, unpacked.
fn go(cache: &Cache) -> Result<Command> {
    let mut command = if on_path_and_new_enough() {
        Command::new("go")
    } else {
        let root = debian_go(cache)?;
        let mut command = Command::new(root.join("bin/go"));
        command.env("GOROOT", root);
        command
    };
    // No C compiler is used, no other toolchain is downloaded, and committed checksums are enforced.
    command.env("CGO_ENABLED", "0").env("GOTOOLCHAIN", "local").env("GOFLAGS", "-mod=readonly");
    Ok(command)
}

fn debian_go(cache: &Cache) -> Result<PathBuf> {
    let key = format!("go-{}.{}-{GUEST_SUITE}", GO.0, GO.1);
    let dir = cache
        .entry(&key, Duration::from_secs(30), |dir| AptRoot::new(GUEST_SUITE)?.unpack(GO_PACKAGES, dir))?;
    Ok(dir.join(GO_ROOT))
}

fn on_path_and_new_enough() -> bool {
    let version = output(Command::new("go").args(["env", "GOVERSION"]));
    version.is_ok_and(|version| parse(&version).is_some_and(|found| found >= GO))
}

/// Parses "go1.26.8" as (1, 26).
fn parse(version: &str) -> Option<(u32, u32)> {
    let mut numbers = version.trim().strip_prefix("go")?.split(['.', ' ', '-', 'r']);
    Some((numbers.next()?.parse().ok()?, numbers.next()?.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_go_versions() {
        assert_eq!(parse("go1.26.8\n"), Some((1, 26)));
        assert_eq!(parse("go1.27rc1"), Some((1, 27)));
        assert_eq!(parse("go1.30-custom"), Some((1, 30)));
        assert_eq!(parse("devel"), None);
    }
}
