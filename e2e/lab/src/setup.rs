//! Everything a run needs that is not in the source tree, made on first use.
//!
//! Owns: host packages, unpacked Debian packages, Go programs, kernel, root file system, and the
//! workspace's own programs.
//! On failure: says which step failed and what it ran; a second run continues where the first ended.

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
use crate::pins::{KERNEL, KernelPin};
use crate::report;
use boot::{Accelerator, BootFiles};
use lanes::Part;
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
pub mod root_fs;
pub mod trueno;

/// Packages whose programs and examples are tested. `holdfast-s3` has none: with it the AWS SDK, kube and
/// rustls get the features here that they have in the workspace's tests, and are compiled once for both.
const UNDER_TEST: &[&str] = &[
    "holdfast-csi",
    "holdfast-node",
    "holdfast-operator",
    "holdfast-s3",
    "holdfast-ublk",
    "kubectl-holdfast",
];
/// Time that cargo needs to fetch their dependencies.
const CRATES_EXPECTED: Duration = Duration::from_secs(20);
/// Packages that a request passes through.
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
/// Time that cargo needs to build them where nothing is compiled yet.
const PROGRAMS_EXPECTED: Duration = Duration::from_secs(160);
/// Time that it then needs to build the workspace's tests.
const TESTS_EXPECTED: Duration = Duration::from_secs(240);

/// Directory of the output of a run's steps, next to those of scenarios.
pub const LOGS: &str = "logs";

/// Ways to compile the workspace's programs.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Profile {
    /// With debug assertions: for tests.
    Dev,
    /// Optimised: for benchmarks.
    Release,
}

/// Finds, and where needed makes, each thing a run uses. Cheap to clone.
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

    /// Opens the cache. Only for what [`Toolbox::prepare`] then sets up.
    ///
    /// # Errors
    /// If it has no place, or cannot be made.
    pub fn find() -> Result<Self> {
        let clock = Arc::new(WorkClock::default());
        let cache = Cache::open(Arc::clone(&clock))?;
        Ok(Self { cache, workspace: workspace()?, clock })
    }

    /// The display of a run, with the times of the previous ones.
    ///
    /// # Errors
    /// If the directory of its files cannot be made.
    pub fn display(&self) -> Result<Display> {
        Display::open(&self.target().join("e2e").join(LOGS), Times::read(self.cache.path("times")))
    }

    /// The time spent on fetching and building, which no scenario's limit includes.
    pub fn clock(&self) -> &WorkClock {
        &self.clock
    }

    /// The root of the source tree.
    pub fn workspace(&self) -> &Path {
        &self.workspace
    }

    /// Plans the parts that [`SetupPlan::make`] makes: all that runs need and is not there yet, machines
    /// with these kernels included; with `tests` the workspace's own tests too. Independent parts are made at
    /// the same time: first packages of the host and sources of crates; then files of machines, programs in
    /// Go, programs in Rust.
    pub fn prepare<'a>(&'a self, display: &'a Display, kernels: &[KernelPin], tests: bool) -> SetupPlan<'a> {
        let first = vec![
            vec![Part::new("host packages", apt::HOST_PACKAGES_EXPECTED, || self.install_host_packages())],
            vec![Part::new("sources of crates", CRATES_EXPECTED, || self.fetch_crates())],
        ];
        let mut machines = vec![Part::new("etcd and kubectl", apt::TOOLS_EXPECTED, || self.etcd())];
        machines.extend(kernels.iter().map(|&kernel| {
            let name = format!("machines with Linux {}", kernel.release);
            Part::new(name, kernel::EXPECTED + root_fs::EXPECTED, move || {
                self.boot_files(kernel, UserSpace::Plain)
            })
        }));
        if tests {
            machines.push(Part::new("machines with systemd", root_fs::SYSTEMD_EXPECTED, || {
                self.boot_files(KERNEL, UserSpace::Systemd)
            }));
        }
        let in_go = vec![
            Part::new("versitygw", go::VERSITYGW_EXPECTED, || self.versitygw()),
            Part::new("kube-apiserver", go::KUBE_APISERVER_EXPECTED, || self.kubernetes("kube-apiserver")),
            Part::new("helm", go::HELM_EXPECTED, || self.helm()),
            Part::new("program csi-sanity", go::CSI_SANITY_EXPECTED, || self.csi_sanity()),
        ];
        let mut in_rust =
            vec![Part::new("programs under test", PROGRAMS_EXPECTED, || self.programs(Profile::Dev))];
        if tests {
            in_rust.push(Part::new("the workspace's tests", TESTS_EXPECTED, || {
                host_kernel::check()?;
                command::show(self.cargo("test").args(["--workspace", "--no-run"]))
            }));
        }
        SetupPlan::plan(display, [first, vec![machines, in_go, in_rust]])
    }

    /// Fetches what the Rust programs are built from, on this machine's platform only.
    fn fetch_crates(&self) -> Result<()> {
        let platform = format!("{}-unknown-linux-gnu", std::env::consts::ARCH);
        command::show(self.cargo("fetch").args(["--target", &platform]))
    }

    /// Kernel, initramfs, root file system and accelerator of test machines with this kernel.
    ///
    /// # Errors
    /// If a package cannot be fetched or an image cannot be made.
    pub fn boot_files(&self, kernel: KernelPin, user_space: UserSpace) -> Result<BootFiles> {
        let emulated_processors = kernel.emulated_processors;
        let kernel = kernel::prepare(&self.cache, kernel)?;
        let root_fs = root_fs::prepare(&self.cache, &kernel, user_space)?;
        let accelerator = Accelerator::probe(&self.cache, &kernel)?;
        let kernel::Kernel { vmlinux, initramfs, .. } = kernel;
        Ok(BootFiles { vmlinux, initramfs, root_fs, accelerator, emulated_processors })
    }

    /// The kernel's own ublk server.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn kublk(&self) -> Result<PathBuf> {
        kublk::prepare(&self.cache, &kernel::prepare(&self.cache, KERNEL)?)
    }

    /// Another compressed ramdisk on ublk.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn trueno_ublk(&self) -> Result<PathBuf> {
        trueno::prepare(&self.cache)
    }

    /// Tools that read the compiler's profiles.
    ///
    /// # Errors
    /// If it cannot be fetched.
    pub fn llvm(&self) -> Result<llvm::Llvm> {
        llvm::Llvm::prepare(&self.cache)
    }

    /// The S3 server.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn versitygw(&self) -> Result<PathBuf> {
        go::versitygw(&self.cache)
    }

    /// The second S3 server.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn seaweedfs(&self) -> Result<PathBuf> {
        go::seaweedfs(&self.cache, &self.workspace)
    }

    /// The directory of `velero`.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn velero(&self) -> Result<PathBuf> {
        go::velero(&self.cache, &self.workspace)
    }

    /// The directory of Velero's plugins.
    ///
    /// # Errors
    /// If they cannot be built.
    pub fn velero_plugins(&self) -> Result<PathBuf> {
        go::velero_plugins(&self.cache, &self.workspace)
    }

    /// The directory of Velero's kinds.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub fn velero_kinds(&self) -> Result<PathBuf> {
        go::velero_kinds(&self.cache, &self.workspace)
    }

    /// The program that renders the chart.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn helm(&self) -> Result<PathBuf> {
        go::helm(&self.cache)
    }

    /// The CSI project's own tests.
    ///
    /// # Errors
    /// If they cannot be built.
    pub fn csi_sanity(&self) -> Result<PathBuf> {
        go::csi_sanity(&self.cache)
    }

    /// A program of Kubernetes, such as `kube-apiserver`.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn kubernetes(&self, name: &str) -> Result<PathBuf> {
        go::kubernetes(&self.cache, &self.workspace, name)
    }

    /// A sidecar of the CSI project, such as `csi-attacher`.
    ///
    /// # Errors
    /// If it cannot be built.
    pub fn sidecar(&self, name: &str) -> Result<PathBuf> {
        go::sidecar(&self.cache, &self.workspace, name)
    }

    /// The directory of the kinds of `snapshot.storage.k8s.io`.
    ///
    /// # Errors
    /// If they cannot be fetched.
    pub fn snapshot_kinds(&self) -> Result<PathBuf> {
        go::snapshot_kinds(&self.cache, &self.workspace)
    }

    /// The Debian packages that images are made from.
    ///
    /// # Errors
    /// If one cannot be fetched.
    pub fn image_packages(&self, architecture: Architecture) -> Result<Packages> {
        Packages::prepare(&self.cache, architecture)
    }

    /// A shell and its tools, in one static program.
    ///
    /// # Errors
    /// If its package cannot be fetched.
    pub fn busybox(&self) -> Result<PathBuf> {
        Ok(apt::unpacked_tools(&self.cache)?.join("usr/bin/busybox"))
    }

    /// The API server's database.
    ///
    /// # Errors
    /// If its package cannot be fetched.
    pub fn etcd(&self) -> Result<PathBuf> {
        Ok(apt::unpacked_tools(&self.cache)?.join("usr/bin/etcd"))
    }

    /// The Kubernetes command line.
    ///
    /// # Errors
    /// If its package cannot be fetched.
    pub fn kubectl(&self) -> Result<PathBuf> {
        Ok(apt::unpacked_tools(&self.cache)?.join("usr/bin/kubectl"))
    }

    /// Builds the programs and examples under test and returns the directory they are in; examples are in
    /// `examples` below it. Always the same selection: cargo resolves features for what is selected
    /// together, and another selection would compile the dependencies once more.
    ///
    /// # Errors
    /// If cargo fails.
    pub fn programs(&self, profile: Profile) -> Result<PathBuf> {
        report::step("cargo build the programs under test");
        let mut build = self.cargo("build");
        build.args(["--bins", "--examples"]);
        for package in UNDER_TEST {
            build.args(["--package", package]);
        }
        let directory = match profile {
            Profile::Dev => "debug",
            Profile::Release => {
                build.arg("--release");
                "release"
            }
        };
        self.clock.time(|| command::show(&mut build))?;
        Ok(self.target().join(directory))
    }

    /// Builds an example of a package that is not under test, optimised, and returns it. It is selected
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

    /// Builds the program that counts what a request costs, and returns it. What a request passes through is
    /// optimised as in a release, without checks for tests; all else is what [`programs`](Self::programs) of
    /// the profile for tests has built.
    ///
    /// # Errors
    /// If cargo fails, or the kernel of this machine is too old.
    pub fn counts(&self) -> Result<PathBuf> {
        host_kernel::check()?;
        report::step("cargo build the program that counts");
        let mut build = self.cargo("build");
        // With it functions of other crates are not inlined.
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

    /// Builds the integration tests named `target` and returns their program. The whole workspace is
    /// selected for the same reason as above: this is how its tests are built.
    ///
    /// # Errors
    /// If cargo fails or there is no such test.
    pub fn test_program(&self, target: &str, profile: Profile) -> Result<PathBuf> {
        report::step(format_args!("cargo build the tests {target}"));
        let mut build = self.cargo("test");
        build.args(["--workspace", "--no-run", "--message-format=json-render-diagnostics", "--test", target]);
        if profile == Profile::Release {
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

    /// Cargo, in the workspace.
    pub fn cargo(&self, what: &str) -> Command {
        let cargo = std::env::var_os("CARGO").unwrap_or_else(|| "cargo".into());
        let mut command = Command::new(cargo);
        command.current_dir(&self.workspace).arg(what);
        command
    }

    /// Cargo's target directory.
    pub fn target(&self) -> PathBuf {
        match std::env::var_os("CARGO_TARGET_DIR") {
            Some(target) if !target.is_empty() => self.workspace.join(target),
            Some(_) | None => self.workspace.join("target"),
        }
    }
}

/// The root of the source tree this harness was built from.
fn workspace() -> Result<PathBuf> {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let root = here.ancestors().nth(2).context("the lab is two directories below the root")?;
    Ok(root.to_owned())
}
