//! Debian packages: installed if required on the host, otherwise unpacked into the cache.
//!
//! Packages of a newer suite are downloaded with a separate apt root, so that the host's configuration and
//! package state are unchanged. The mirror is the one that the machine already uses.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::command::{as_root, output, show};
use crate::pins::{GUEST_SUITE, HOST_PACKAGES};
use crate::report;

/// Keys of the signatures of Debian's archives.
pub const KEYRING: &str = "/usr/share/keyrings/debian-archive-keyring.gpg";
/// Packages whose programs run on the host without installation.
const TOOLS: &[&str] = &["busybox-static", "etcd-server", "kubectl"];

/// Expected time to download and install the packages of the host.
pub(super) const HOST_PACKAGES_EXPECTED: Duration = Duration::from_secs(90);
/// Expected time to download and unpack these.
pub(super) const TOOLS_EXPECTED: Duration = Duration::from_secs(20);

/// Installs missing packages of [`HOST_PACKAGES`]. One harness at a time, because `apt-get update` does not
/// wait for another one. The lock is a file at `lock`.
///
/// # Errors
/// If this is not Debian, sudo asks for a password, or apt-get fails.
pub fn install_host_packages(lock: &Path) -> Result<()> {
    if missing().is_empty() {
        return Ok(());
    }
    let lock = File::create(lock).with_context(|| format!("create {}", lock.display()))?;
    lock.lock().context("wait for another harness that installs packages")?;
    let missing = missing();
    if missing.is_empty() {
        return Ok(());
    }
    ensure!(
        Path::new("/etc/debian_version").exists(),
        "this harness sets itself up on Debian; install what these packages hold and run it there: {}",
        missing.join(" ")
    );
    report::step(format_args!("apt-get install {}", missing.join(" ")));
    let apt = || {
        let mut command = as_root("env");
        // Other programs of the host may be installing, too.
        command.args(["DEBIAN_FRONTEND=noninteractive", "apt-get", "-qq", "-o", "DPkg::Lock::Timeout=600"]);
        command
    };
    show(apt().arg("update"))?;
    show(apt().args(["install", "-y", "--no-install-recommends"]).args(missing))
}

/// Returns the missing packages of [`HOST_PACKAGES`].
fn missing() -> Vec<&'static str> {
    HOST_PACKAGES.iter().copied().filter(|package| !installed(package)).collect()
}

/// Returns the directory of the unpacked packages of `TOOLS`; programs are below `usr/bin`.
///
/// # Errors
/// If they cannot be downloaded.
pub fn unpacked_tools(cache: &Cache) -> Result<PathBuf> {
    cache.entry(&format!("tools-{GUEST_SUITE}"), TOOLS_EXPECTED, |dir| {
        AptRoot::new(GUEST_SUITE)?.unpack(TOOLS, dir)
    })
}

/// Returns the URI of the Debian archive used by this machine's apt.
///
/// # Errors
/// If apt's configuration names none.
pub fn mirror() -> Result<String> {
    let mut texts = Vec::new();
    for file in ["/etc/apt/sources.list.d/debian.sources", "/etc/apt/sources.list"] {
        if let Ok(text) = fs::read_to_string(file) {
            texts.push(text);
        }
    }
    let mut others: Vec<PathBuf> = fs::read_dir("/etc/apt/sources.list.d")
        .map(|entries| entries.flatten().map(|entry| entry.path()).collect())
        .unwrap_or_default();
    others.sort();
    for path in others {
        let enabled = path.extension().is_some_and(|kind| kind == "list" || kind == "sources");
        if enabled && let Ok(text) = fs::read_to_string(path) {
            texts.push(text);
        }
    }
    texts
        .iter()
        .find_map(|text| archive_uri(text))
        .context("no Debian archive in /etc/apt/sources.list or /etc/apt/sources.list.d")
}

/// Returns the first URI of a main Debian archive (not security, not third parties) in a sources file, in
/// one-line or deb822 format.
fn archive_uri(sources: &str) -> Option<String> {
    sources
        .lines()
        .map(str::trim)
        .filter(|line| line.starts_with("URIs:") || line.starts_with("deb "))
        .flat_map(str::split_whitespace)
        .map(|word| word.trim_end_matches('/'))
        .find(|word| {
            let fetchable = word.starts_with("http") || word.starts_with("mirror+");
            fetchable && word.ends_with("/debian")
        })
        .map(str::to_owned)
}

/// Ubuntu's archive.
const UBUNTU: &str = "http://archive.ubuntu.com/ubuntu";

/// A separate apt configuration for one suite, in a temporary directory.
#[derive(Debug)]
pub struct AptRoot {
    dir: tempfile::TempDir,
    suite: String,
}

impl AptRoot {
    /// Creates the configuration and downloads the suite's package lists.
    ///
    /// # Errors
    /// If the lists cannot be downloaded.
    pub fn new(suite: &str) -> Result<Self> {
        Self::of(suite, "amd64")
    }

    /// Creates the configuration for packages of another architecture, by its Debian name.
    ///
    /// # Errors
    /// If the lists cannot be downloaded.
    pub fn of(suite: &str, architecture: &str) -> Result<Self> {
        Self::open(&format!("[signed-by={KEYRING}] {}", mirror()?), suite, architecture)
    }

    /// Creates the configuration for a suite of Ubuntu.
    ///
    /// # Errors
    /// If the lists, or the keys of their signatures, cannot be downloaded.
    pub fn ubuntu(cache: &Cache, suite: &str) -> Result<Self> {
        let keys = cache.entry(&format!("ubuntu-keyring-{GUEST_SUITE}"), TOOLS_EXPECTED, |dir| {
            Self::new(GUEST_SUITE)?.unpack(&["ubuntu-keyring"], dir)
        })?;
        let keyring = keys.join("usr/share/keyrings/ubuntu-archive-keyring.gpg");
        Self::open(&format!("[signed-by={}] {UBUNTU}", keyring.display()), suite, "amd64")
    }

    /// Creates the configuration for an archive: its options and URI.
    fn open(archive: &str, suite: &str, architecture: &str) -> Result<Self> {
        let dir = tempfile::tempdir().context("make a directory for apt")?;
        let path = dir.path().display().to_string();
        for sub in [
            "etc/preferences.d",
            "etc/apt.conf.d",
            "etc/trusted.gpg.d",
            "etc/sources.list.d",
            "lists/partial",
            "cache/archives/partial",
        ] {
            fs::create_dir_all(dir.path().join(sub))?;
        }
        fs::write(dir.path().join("status"), "")?;
        fs::write(dir.path().join("etc/sources.list"), format!("deb {archive} {suite} main\n"))?;
        fs::write(
            dir.path().join("apt.conf"),
            format!(
                "Dir::Etc \"{path}/etc\"; Dir::State \"{path}\"; Dir::State::status \"{path}/status\";\n\
                 Dir::Etc::Main \"/etc/apt/apt.conf\"; Dir::Etc::Parts \"/etc/apt/apt.conf.d\";\n\
                 Dir::Etc::NetrcParts \"/etc/apt/auth.conf.d\"; Dir::Cache \"{path}/cache\";\n\
                 APT::Architecture \"{architecture}\"; APT::Sandbox::User \"root\";\n\
                 Acquire::Languages \"none\"; Acquire::Check-Valid-Until \"false\";\n"
            ),
        )?;
        let root = Self { dir, suite: suite.to_owned() };
        report::step(format_args!("fetch the package lists of {suite}"));
        output(root.apt("apt-get").args(["-qq", "update"]))?;
        Ok(root)
    }

    /// Returns the suite.
    pub fn suite(&self) -> &str {
        &self.suite
    }

    /// Downloads packages (without their dependencies) and unpacks them into `into`; no maintainer script
    /// runs.
    ///
    /// # Errors
    /// If one cannot be downloaded.
    pub fn unpack(&self, packages: &[&str], into: &Path) -> Result<()> {
        let debs = tempfile::tempdir().context("make a directory for packages")?;
        output(self.apt("apt-get").current_dir(debs.path()).args(["-qq", "download"]).args(packages))
            .with_context(|| format!("fetch {} from {}", packages.join(" "), self.suite))?;
        for deb in fs::read_dir(debs.path())? {
            output(Command::new("dpkg-deb").arg("-x").arg(deb?.path()).arg(into))?;
        }
        Ok(())
    }

    /// Returns the names of packages that begin with `prefix`.
    ///
    /// # Errors
    /// If apt-cache fails.
    pub fn names(&self, prefix: &str) -> Result<Vec<String>> {
        let names = output(self.apt("apt-cache").args(["pkgnames", prefix]))?;
        Ok(names.lines().map(str::to_owned).collect())
    }

    fn apt(&self, program: &str) -> Command {
        let mut command = Command::new(program);
        command.env("APT_CONFIG", self.dir.path().join("apt.conf"));
        command
    }
}

fn installed(package: &str) -> bool {
    let query = Command::new("dpkg-query").args(["-W", "-f", "${db:Status-Status}", package]).output();
    query.is_ok_and(|out| out.status.success() && out.stdout.starts_with(b"installed"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn finds_the_archive_in_both_formats_and_no_comment() {
        let deb822 = "Types: deb\n# http://old.example/archive/debian/2025\nURIs: http://a.example/debian/\n";
        assert_eq!(archive_uri(deb822).unwrap(), "http://a.example/debian");
        let one_line = "# deb http://no.example/debian sid main\n\
            deb http://sec.example/debian-security x main\n\
            deb [arch=amd64 signed-by=/k] https://b.example/debian bookworm main\n";
        assert_eq!(archive_uri(one_line).unwrap(), "https://b.example/debian");
        assert_eq!(archive_uri("deb https://third.example/apt x main\n"), None);
    }
}
