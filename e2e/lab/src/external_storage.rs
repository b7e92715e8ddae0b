//! Kubernetes' own tests of storage drivers (`External Storage` of its `e2e.test`) on a cluster.
//!
//! Owns: the images named in these tests, the driver's declared capabilities, a run and its report.
//! Does not own: the cluster, see [`crate::cluster`].
//! On failure: `external-storage/ginkgo.log` in the world's directory has the output of the tests.

use std::fs;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::cluster::{ATTRIBUTES, tools};
use crate::images::Image;
use crate::process::{LoggedProcess, tail};
use crate::report;
use crate::setup::Toolbox;
use crate::world::World;

/// Images with a shell that the specs use. Source: `test/utils/image/manifest.go` of [`KUBERNETES`].
///
/// [`KUBERNETES`]: crate::pins::KUBERNETES
const SHELLS: [&str; 4] = [
    "registry.k8s.io/e2e-test-images/busybox:1.37.0-1",
    "registry.k8s.io/e2e-test-images/glibc-dns-testing:2.0.0",
    "registry.k8s.io/e2e-test-images/nginx:1.15-4",
    "registry.k8s.io/pause:3.10.2",
];
/// Image with the tests' own program in addition to the shell.
const AGNHOST: &str = "registry.k8s.io/e2e-test-images/agnhost:2.63.0";
/// Replacement of `dd` for a coreutils flag that busybox lacks, which only drops pages from the cache.
const DD: &str = "#!/bin/sh
for word; do
    shift
    case $word in [io]flag=nocache) ;; *) set -- \"$@\" \"$word\" ;; esac
done
exec busybox dd \"$@\"
";
/// The shell, which would run its own `dd` regardless of the path; a function takes precedence.
const SH: &str = "#!/bin/busybox sh
[ \"$1\" = -c ] || exec busybox sh \"$@\"
command=$2
shift 2
exec busybox sh -c 'dd() { /bin/dd \"$@\"; }
'\"$command\" \"$@\"
";
/// Name of the driver.
const DRIVER: &str = "csi.holdfast.dev";
/// Concurrent specs: two fully use an emulated machine.
const PROCESSES: u32 = 2;
/// Maximum time of all specs.
const LIMIT: Duration = Duration::from_secs(8 * 3600);
/// The framework's wait for each expectation of a spec; upstream's are 2 to 5 minutes.
const SLOW: &str = "15m";

/// Excluded specs, as regular expressions on their names. docs/testing.md has the reasons.
const LEFT_OUT: [&str; 5] = [
    r"\[Disruptive\]",
    r"\[Feature:SELinux\]",
    r"\[Feature:Windows\]",
    "should support volume limits",
    "with any volume data source",
];

/// The programs of a run.
#[derive(Debug)]
pub struct Suite {
    ginkgo: PathBuf,
    tests: PathBuf,
}

/// A selected spec.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Spec {
    /// Name of the spec, without those of suite and driver.
    pub name: String,
    /// The result.
    pub outcome: SpecOutcome,
    /// First line of the error, or of the reason for skipping it.
    pub reason: String,
}

/// Result of a spec.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SpecOutcome {
    /// The driver behaved as expected.
    Passed,
    /// The driver did not, or the run ended before.
    Failed,
    /// The spec tests a capability that the driver does not declare.
    Skipped,
}

/// Builds the images named in specs.
///
/// # Errors
/// If a program in them cannot be built.
pub fn images(toolbox: &Toolbox) -> Result<Vec<Image>> {
    let mut images = Vec::new();
    for reference in SHELLS {
        images.push(tools(toolbox, reference)?);
    }
    let mut agnhost = tools(toolbox, AGNHOST)?;
    let program = toolbox.kubernetes("agnhost")?;
    let bytes = fs::read(&program).with_context(|| format!("read {}", program.display()))?;
    agnhost.layers[0].file("agnhost", 0o755, bytes);
    agnhost.entrypoint = vec!["/agnhost".to_owned()];
    images.push(agnhost);
    for image in &mut images {
        image.layers[0].directory("tmp", 0o1777);
        image.layers[0].file("bin/dd", 0o755, DD.as_bytes().to_vec());
        image.layers[0].file("bin/sh", 0o755, SH.as_bytes().to_vec());
    }
    Ok(images)
}

impl Suite {
    /// Builds the programs.
    ///
    /// # Errors
    /// If one cannot be built.
    pub fn prepare(toolbox: &Toolbox) -> Result<Self> {
        Ok(Self { ginkgo: toolbox.kubernetes("ginkgo")?, tests: toolbox.kubernetes("e2e.test")? })
    }

    /// Runs the specs whose names match `chosen`, or all, on the world's cluster; `class` is the name of the
    /// StorageClass, VolumeSnapshotClass and VolumeGroupSnapshotClass.
    ///
    /// # Errors
    /// If they cannot be run; a failed spec is in the result.
    pub fn run(&self, world: &World, class: &str, chosen: Option<&str>) -> Result<Vec<Spec>> {
        let dir = world.dir().join("external-storage");
        fs::create_dir_all(&dir).with_context(|| format!("create {}", dir.display()))?;
        let driver = dir.join("driver.json");
        fs::write(&driver, declaration(class).to_string()).context("write the driver's declaration")?;
        let (log, found) = (dir.join("ginkgo.log"), dir.join("report.json"));
        let focus = format!("External.Storage.*{}.*({})", DRIVER.replace('.', r"\."), chosen.unwrap_or(""));
        let mut ginkgo = Command::new(&self.ginkgo);
        ginkgo
            .current_dir(&dir)
            .args(["run", "--no-color", "--json-report=report.json"])
            .arg(format!("--procs={PROCESSES}"))
            .arg(format!("--timeout={}s", LIMIT.as_secs()))
            .arg(format!("--focus={focus}"))
            .arg(format!("--skip={}", LEFT_OUT.join("|")))
            .arg(&self.tests)
            .args(["--", "--provider=skeleton"])
            .arg(format!("--kubeconfig={}", world.control_plane()?.admin_kubeconfig().display()))
            .arg(format!("--kubectl-path={}", world.toolbox().kubectl()?.display()))
            .arg(format!("--storage.testdriver={}", driver.display()))
            .arg(format!("--report-dir={}", dir.display()));
        report::step(format_args!("run the specs of {focus}; {} shows them", log.display()));
        let mut process = LoggedProcess::spawn("ginkgo", &ginkgo, &log)?;
        // Its exit status only shows that specs failed.
        process.end()?;
        let text = fs::read(&found).with_context(|| format!("ginkgo made no report:\n{}", tail(&log, 40)))?;
        let specs = read(&serde_json::from_slice(&text).context("read ginkgo's report")?);
        ensure!(!specs.is_empty(), "no spec has run:\n{}", tail(&log, 40));
        Ok(specs)
    }
}

/// Returns the declaration of the driver for the specs. The short waits are upstream's: specs that expect a
/// failure wait for their end. Source: `DriverInfo` of `test/e2e/storage/framework/testdriver.go`,
/// `driverDefinition` of `test/e2e/storage/external/external.go`.
fn declaration(class: &str) -> Value {
    let waits = [
        "ClaimBound",
        "ClaimProvision",
        "DataSourceProvision",
        "PodDelete",
        "PodStart",
        "PodStartSlow",
        "PVBound",
        "PVCreate",
        "PVDelete",
        "PVReclaim",
        "SnapshotCreate",
        "SnapshotDelete",
    ];
    json!({
        "StorageClass": { "FromExistingClassName": class },
        "SnapshotClass": { "FromExistingClassName": class },
        "GroupSnapshotClass": { "FromExistingClassName": class },
        "VolumeAttributesClass": { "FromExistingClassName": ATTRIBUTES },
        "Timeouts": waits.iter().map(|wait| (*wait, SLOW)).collect::<std::collections::BTreeMap<_, _>>(),
        "DriverInfo": {
            "Name": DRIVER,
            "MaxFileSize": 100 << 20,
            "SupportedSizeRange": { "Min": "1Gi", "Max": "64Ti" },
            // The first one is the class's default.
            "SupportedFsType": { "": {}, "ext4": {}, "xfs": {}, "btrfs": {} },
            "SupportedMountOption": { "noatime": {} },
            "TopologyKeys": ["topology.holdfast.dev/served"],
            "Capabilities": {
                "persistence": true,
                "block": true,
                "fsGroup": true,
                "exec": true,
                "multipods": true,
                "multiplePVsSameID": true,
                "readWriteOncePod": true,
                "controllerExpansion": true,
                "nodeExpansion": true,
                "offlineExpansion": true,
                "onlineExpansion": true,
                "snapshotDataSource": true,
                "groupSnapshot": true,
                "pvcDataSource": true,
                "topology": true,
                "volumeLimits": true,
                // The specs start from a snapshot or a claim.
                "capReadOnlyMany": true,
                // One node writes a volume at a time, and a bucket has no capacity to report. The machine's
                // kernel lacks SELinux.
                "RWX": false,
                "capacity": false,
                "seLinuxMount": false,
                "singleNodeVolume": false,
                "snapshotMetadata": false,
                "volumeMountGroup": false,
            },
        },
    })
}

/// Returns the specs of a report that ran, or that skipped themselves. It also contains unselected ones, as
/// skipped without a reason.
fn read(report: &Value) -> Vec<Spec> {
    let suites = report.as_array().into_iter().flatten();
    let all = suites.flat_map(|suite| suite["SpecReports"].as_array().into_iter().flatten());
    all.filter(|spec| spec["LeafNodeType"] == "It").filter_map(spec).collect()
}

fn spec(spec: &Value) -> Option<Spec> {
    let message = spec["Failure"]["Message"].as_str().unwrap_or_default();
    let outcome = match spec["State"].as_str()? {
        "passed" => SpecOutcome::Passed,
        "pending" => return None,
        "skipped" if message.is_empty() => return None,
        "skipped" => SpecOutcome::Skipped,
        _ => SpecOutcome::Failed,
    };
    let parts = spec["ContainerHierarchyTexts"].as_array().into_iter().flatten();
    let words: Vec<&str> = parts.chain([&spec["LeafNodeText"]]).filter_map(Value::as_str).collect();
    let name = words.join(" ");
    let name = name.split_once(&format!("[Driver: {DRIVER}] ")).map_or(name.as_str(), |(_, rest)| rest);
    let reason = message.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
    Some(Spec { name: name.to_owned(), outcome, reason: reason.to_owned() })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_report_distinguishes_specs_that_ran_from_unselected_ones() {
        let one = |state: &str, message: &str| {
            json!({
                "LeafNodeType": "It",
                "ContainerHierarchyTexts": ["External Storage", "[Driver: csi.holdfast.dev]", "volumes"],
                "LeafNodeText": "should store data",
                "State": state,
                "Failure": { "Message": message },
            })
        };
        let report = json!([{ "SpecReports": [
            one("passed", ""),
            one("skipped", ""),
            one("skipped", "Driver does not support ntfs\nmore"),
            one("timedout", "\n  wait for pod: timed out\nstack"),
            { "LeafNodeType": "SynchronizedBeforeSuite", "State": "passed" },
        ] }]);
        let spec = |outcome, reason: &str| Spec {
            name: "volumes should store data".to_owned(),
            outcome,
            reason: reason.to_owned(),
        };
        let expected = [
            spec(SpecOutcome::Passed, ""),
            spec(SpecOutcome::Skipped, "Driver does not support ntfs"),
            spec(SpecOutcome::Failed, "wait for pod: timed out"),
        ];
        assert_eq!(read(&report), expected);
    }
}
