//! Everything outside the source tree that a run needs, prepared on first use.
//!
//! Owns: host packages, unpacked Debian packages, Go programs, kernel, root file system, and the workspace's
//! own programs.
//! On failure: names the failed step and its command; a second run resumes there.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::Value;

use crate::architecture::Architecture;
use crate::cache::Cache;
use crate::command;
use crate::display::Display;
use crate::display::times::Times;
use crate::images::packages::Packages;
use crate::limit::WorkClock;
use crate::pins::{Distribution, KERNEL, KernelPin};
use crate::report;
use boot::{Accelerator, BootFiles};
use lanes::SetupPart;
pub use lanes::SetupPlan;
use root_fs::UserSpace;

pub mod apt;
pub mod boot;
pub mod go;
mod host_kernel;
pub mod kernel;
pub mod kublk;
mod lanes;
pub mod llvm;
mod registry;
pub mod root_fs;

/// Packages with tested programs and examples. `holdfast-s3` has none: with it, the AWS SDK, kube and rustls
/// get the same features as in the workspace's tests, and are compiled once for both.
const UNDER_TEST: &[&str] = &[
    "holdfast-csi",
    "holdfast-node",
    "holdfast-operator",
    "holdfast-s3",
    "holdfast-ublk",
    "kubectl-holdfast",
];
/// Expected time of cargo to download their dependencies.
const CRATES_EXPECTED: Duration = Duration::from_secs(20);
/// Packages on the path of a request.
const COUNTED: &[&str] = &[
    "io-uring",
    "holdfast-types",
    "holdfast-ring",
    "holdfast-ublk",
    "holdfast-format",
    "holdfast-engine",
    "holdfast-memory",
    "holdfast-serve",
];
/// Expected time of cargo to build them from scratch.
const PROGRAMS_EXPECTED: Duration = Duration::from_secs(160);
/// Expected additional time to build the workspace's tests.
const TESTS_EXPECTED: Duration = Duration::from_secs(240);

/// Directory for the output of a run's steps, next to those of scenarios.
pub const LOGS: &str = "logs";

/// Profiles of the workspace's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum BuildProfile {
    /// With debug assertions: for tests.
    Dev,
    /// Optimized: for benchmarks.
    Release,
}

/// Finds or creates everything that a run uses. Cheap to clone.
#[derive(Debug, Clone)]
pub struct Toolbox {
    cache: Cache,
    workspace: PathBuf,
    clock: Arc<WorkClock>,
}

impl Toolbox {
    /// Opens the cache and installs missing host packages.
    ///
    /// # Errors
    /// If a package cannot be installed.
    pub fn open() -> Result<Self> {
        let toolbox = Self::find()?;
        toolbox.install_host_packages()?;
        Ok(toolbox)
    }

    fn install_host_packages(&self) -> Result<()> {
        apt::install_host_packages(&self.cache.path("host-packages.lock"))
    }

    /// Opens the cache. Only for the set-up by [`Toolbox::prepare`].
    ///
    /// # Errors
    /// If it has no path, or cannot be created.
    pub fn find() -> Result<Self> {
        let clock = Arc::new(WorkClock::default());
        let cache = Cache::open(Arc::clone(&clock))?;
        Ok(Self { cache, workspace: workspace()?, clock })
    }

    /// Opens the display of a run, with the times of previous ones.
    ///
    /// # Errors
    /// If the directory of its files cannot be created.
    pub fn display(&self) -> Result<Display> {
        Display::open(&self.target().join("e2e").join(LOGS), Times::read(self.cache.path("times")))
    }

    /// Returns the clock of downloads and builds, which count towards no scenario's limit.
    pub fn clock(&self) -> &WorkClock {
        &self.clock
    }

    /// Returns the root of the source tree.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Plans the parts that [`SetupPlan::make`] creates: all missing requirements of runs, including machines
    /// with these kernels; with `tests` also the workspace's own tests. Independent parts run concurrently:
    /// first host packages and crate sources; then files of machines, programs in Go, programs in Rust.
    pub fn prepare<'a>(&'a self, display: &'a Display, kernels: &[KernelPin], tests: bool) -> SetupPlan<'a> {
        let first = vec![
            vec![SetupPart::new("host packages", apt::HOST_PACKAGES_EXPECTED, || {
                self.install_host_packages()
            })],
            vec![SetupPart::new("sources of crates", CRATES_EXPECTED, || self.fetch_crates())],
        ];
        let mut machines = vec![SetupPart::new("etcd and kubectl", apt::TOOLS_EXPECTED, || self.etcd())];
        machines.extend(kernels.iter().map(|&kernel| {
            let name = format!("machines with Linux {}", kernel.release);
            SetupPart::new(name, kernel::EXPECTED + root_fs::EXPECTED, move || {
                self.boot_files(kernel, UserSpace::Plain)
            })
        }));
        if tests {
            machines.push(SetupPart::new("machines with systemd", root_fs::SYSTEMD_EXPECTED, || {
                self.boot_files(KERNEL, UserSpace::Systemd)
            }));
        }
        let in_go = vec![
            SetupPart::new("versitygw", go::VERSITYGW_EXPECTED, || self.versitygw()),
            SetupPart::new("kube-apiserver", go::KUBE_APISERVER_EXPECTED, || {
                self.kubernetes("kube-apiserver")
            }),
            SetupPart::new("helm", go::HELM_EXPECTED, || self.helm()),
            SetupPart::new("program csi-sanity", go::CSI_SANITY_EXPECTED, || self.csi_sanity()),
        ];
        let mut in_rust = vec![SetupPart::new("programs under test", PROGRAMS_EXPECTED, || {
            self.programs(BuildProfile::Dev)
        })];
        if tests {
            in_rust.push(SetupPart::new("the workspace's tests", TESTS_EXPECTED, || {
                host_kernel::check()?;
                command::show(self.cargo("test").args(["--workspace", "--no-run"]))
            }));
        }
        SetupPlan::plan(display, [first, vec![machines, in_go, in_rust]])
    }

    /// Downloads the sources of the Rust programs, for this platform only.
    fn fetch_crates(&self) -> Result<()> {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        command::show(self.cargo("fetch").args(["--target", &platform]))
    }

    /// Returns kernel, initramfs, root file system and accelerator of test machines with this kernel.
    ///
    /// # Errors
    /// If a package cannot be downloaded or an image cannot be created.
    pub fn boot_files(&self, kernel: KernelPin, user_space: UserSpace) -> Result<BootFiles> {
        let emulated_processors = kernel.emulated_processors;
        let kernel = kernel::prepare(&self.cache, kernel)?;
        let root_fs = root_fs::prepare(&self.cache, &kernel, user_space)?;
        let accelerator = Accelerator::probe(&self.cache, &kernel)?;
        let kernel::GuestKernel { vmlinux, initramfs, .. } = kernel;
        Ok(BootFiles { vmlinux, initramfs, root_fs, accelerator, emulated_processors })
    }

    /// Verifies that this machine has a kernel of Ubuntu, or reaches Ubuntu's archive. Others come from the
    /// archive that every run needs.
    ///
    /// # Errors
    /// If the archive does not answer.
    pub fn find_kernel(&self, pin: KernelPin) -> Result<()> {
        match pin.distribution {
            Distribution::Debian => Ok(()),
            Distribution::Ubuntu if kernel::is_prepared(&self.cache, pin) => Ok(()),
            Distribution::Ubuntu => apt::AptRoot::ubuntu(&self.cache, pin.suites[0])
                .map(drop)
                .context("Ubuntu's archive does not answer"),
        }
    }

    /// Returns the kernel's own ublk server.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn kublk(&self) -> Result<PathBuf> {
        kublk::prepare(&self.cache, &kernel::prepare(&self.cache, KERNEL)?)
    }

    /// Returns another compressed ramdisk on ublk.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn trueno_ublk(&self) -> Result<PathBuf> {
        registry::TRUENO.prepare(&self.cache)
    }

    /// Returns a file system in an object store that serves block devices by NBD.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn zerofs(&self) -> Result<PathBuf> {
        registry::ZERO_FS.prepare(&self.cache)
    }

    /// Returns tools that read the compiler's profiles.
    ///
    /// # Errors
    /// If it cannot be downloaded.
    pub fn llvm(&self) -> Result<llvm::Llvm> {
        llvm::Llvm::prepare(&self.cache)
    }

    /// Returns the S3 server.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn versitygw(&self) -> Result<PathBuf> {
        go::versitygw(&self.cache)
    }

    /// Returns the second S3 server.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn seaweedfs(&self) -> Result<PathBuf> {
        go::seaweedfs(&self.cache, &self.workspace)
    }

    /// Returns the directory of `velero`.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn velero(&self) -> Result<PathBuf> {
        go::velero(&self.cache, &self.workspace)
    }

    /// Returns the directory of Velero's plugins.
    ///
    /// # Errors
    /// If they cannot be built.
    pub fn velero_plugins(&self) -> Result<PathBuf> {
        go::velero_plugins(&self.cache, &self.workspace)
    }

    /// Returns the directory of Velero's CRDs.
    ///
    /// # Errors
    /// If they cannot be downloaded.
    pub fn velero_kinds(&self) -> Result<PathBuf> {
        go::velero_kinds(&self.cache, &self.workspace)
    }

    /// Returns the program that renders the chart.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn helm(&self) -> Result<PathBuf> {
        go::helm(&self.cache)
    }

    /// Returns the CSI project's own tests.
    ///
    /// # Errors
    /// If they cannot be built.
    pub fn csi_sanity(&self) -> Result<PathBuf> {
        go::csi_sanity(&self.cache)
    }

    /// Returns a program of Kubernetes, such as `kube-apiserver`.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn kubernetes(&self, name: &str) -> Result<PathBuf> {
        go::kubernetes(&self.cache, &self.workspace, name)
    }

    /// Returns a sidecar of the CSI project, such as `csi-attacher`.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn sidecar(&self, name: &str) -> Result<PathBuf> {
        go::sidecar(&self.cache, &self.workspace, name)
    }

    /// Returns the directory of the CRDs of `snapshot.storage.k8s.io`.
    ///
    /// # Errors
    /// If they cannot be downloaded.
    pub fn snapshot_kinds(&self) -> Result<PathBuf> {
        go::snapshot_kinds(&self.cache, &self.workspace)
    }

    /// Returns the Debian packages used for images.
    ///
    /// # Errors
    /// If one cannot be downloaded.
    pub fn image_packages(&self, architecture: Architecture) -> Result<Packages> {
        Packages::prepare(&self.cache, architecture)
    }

    /// Returns a static program with a shell and its tools.
    ///
    /// # Errors
    /// If its package cannot be downloaded.
    pub fn busybox(&self) -> Result<PathBuf> {
        Ok(apt::unpacked_tools(&self.cache)?.join("usr/bin/busybox"))
    }

    /// Returns the API server's database.
    ///
    /// # Errors
    /// If its package cannot be downloaded.
    pub fn etcd(&self) -> Result<PathBuf> {
        Ok(apt::unpacked_tools(&self.cache)?.join("usr/bin/etcd"))
    }

    /// Returns the Kubernetes command line.
    ///
    /// # Errors
    /// If its package cannot be downloaded.
    pub fn kubectl(&self) -> Result<PathBuf> {
        Ok(apt::unpacked_tools(&self.cache)?.join("usr/bin/kubectl"))
    }

    /// Builds the programs and examples under test and returns their directory; examples are in its
    /// `examples`. The selection is always the same: cargo resolves features for selected packages together,
    /// and another selection would compile the dependencies again.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn programs(&self, profile: BuildProfile) -> Result<PathBuf> {
        report::step("cargo build the programs under test");
        let mut build = self.cargo("build");
        build.args(["--bins", "--examples"]);
        for package in UNDER_TEST {
            build.args(["--package", package]);
        }
        let directory = match profile {
            BuildProfile::Dev => "debug",
            BuildProfile::Release => {
                build.arg("--release");
                "release"
            }
        };
        self.clock.time(|| command::show(&mut build))?;
        Ok(self.target().join(directory))
    }

    /// Builds an optimized example of a package that is not under test, and returns its path. It is selected
    /// together with those for the same reason.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn example(&self, package: &str, name: &str) -> Result<PathBuf> {
        report::step(format_args!("cargo build the example {name}"));
        let mut build = self.cargo("build");
        build.args(["--release", "--example", name, "--package", package]);
        for package in UNDER_TEST {
            build.args(["--package", package]);
        }
        self.clock.time(|| command::show(&mut build))?;
        Ok(self.target().join("release/examples").join(name))
    }

    /// Builds the program that counts the costs of a request, and returns its path. Packages on the path of a
    /// request are optimized like a release, without debug checks; all others are those built by
    /// [`programs`](Self::programs) for the test profile.
    ///
    /// # Errors
    /// If cargo fails, or the kernel of this machine is too old.
    pub fn build_counting_program(&self) -> Result<PathBuf> {
        host_kernel::check()?;
        report::step("cargo build the program that counts");
        let mut build = self.cargo("build");
        // Incremental compilation prevents inlining of functions from other crates.
        build.env("CARGO_INCREMENTAL", "0");
        for package in COUNTED {
            for (key, value) in [
                ("opt-level", "3"),
                ("codegen-units", "1"),
                ("debug-assertions", "false"),
                ("overflow-checks", "false"),
            ] {
                build.args(["--config", &format!("profile.dev.package.{package}.{key}={value}")]);
            }
        }
        build.args([
            "--example",
            "counts",
            "--features",
            "holdfast-serve/fake",
            "--package",
            "holdfast-serve",
        ]);
        for package in UNDER_TEST {
            build.args(["--package", package]);
        }
        self.clock.time(|| command::show(&mut build))?;
        Ok(self.target().join("debug/examples/counts"))
    }

    /// Builds the integration tests named `target` and returns their program. The whole workspace is selected
    /// for the same reason as above: its tests are built this way.
    ///
    /// # Errors
    /// If cargo fails or the test does not exist.
    pub fn test_program(&self, target: &str, profile: BuildProfile) -> Result<PathBuf> {
        report::step(format_args!("cargo build the tests {target}"));
        let mut build = self.cargo("test");
        build.args(["--workspace", "--no-run", "--message-format=json-render-diagnostics", "--test", target]);
        if profile == BuildProfile::Release {
            build.arg("--release");
        }
        let messages = self.clock.time(|| command::output(&mut build))?;
        let program = messages.lines().find_map(|line| {
            let message: Value = serde_json::from_str(line).ok()?;
            let this = message.pointer("/target/name")?.as_str()? == target;
            this.then(|| message["executable"].as_str().map(PathBuf::from)).flatten()
        });
        program.with_context(|| format!("cargo built no test named {target}"))
    }

    /// Returns a cargo command in the workspace.
    pub fn cargo(&self, what: &str) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(&self.workspace).arg(what);
        command
    }

    /// Returns cargo's target directory.
    pub fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) if !target.is_empty() => self.workspace.join(target),
            Some(_) | None => self.workspace.join("target"),
        }
    }
}

/// Returns the root of the source tree that this harness was built from.
fn workspace() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).context("the lab is two directories below the root")?;
    Ok(root.to_owned())
}
