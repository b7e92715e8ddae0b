//! The kernel's ublk driver: its control device, its features, the resulting transport; and FUSE if it is
//! missing.

use std::io::ErrorKind;
use std::path::{Path, PathBuf};

use holdfast_service::chain;
use holdfast_ublk::{CONTROL_PATH, Features, KernelRelease, Transport, Unsupported};

use super::Check;
use crate::node::{NodeConfig, TransportChoice, check_fuse};

const MODULE: &str = "ublk_drv";
const TRANSPORT: &str = "transport";
const PANIC_ON_WARN: &str = "/proc/sys/kernel/panic_on_warn";
/// Root directories that may have the host's modules: its own, even from a privileged pod with `hostPID` (see
/// `host.rs`), and this process's.
const ROOTS: [&str; 2] = ["/proc/1/root", "/"];

/// The driver, as a daemon would find it.
#[derive(Debug)]
pub(super) struct DriverFacts {
    pub(super) probed: Result<Features, Unsupported>,
    /// Devices without the driver; `None` if they are not permitted.
    pub(super) fuse: Option<Result<(), Unsupported>>,
    pub(super) module: Module,
    /// False if the driver cannot be queried for lack of a ring.
    pub(super) has_ring: bool,
    /// True if a warning of the kernel stops the host.
    pub(super) panics_on_warning: bool,
}

/// The kernel module of the driver.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Module {
    /// It is loaded.
    Loaded,
    /// The host has its file.
    Loadable,
    /// The host has modules for this kernel, but not this one.
    Absent,
    /// No modules for this kernel are visible.
    Unknown,
}

impl Module {
    fn find(roots: &[&Path], release: Option<&KernelRelease>) -> Self {
        if roots.iter().any(|root| root.join("sys/module").join(MODULE).exists()) {
            return Self::Loaded;
        }
        let Some(release) = release else { return Self::Unknown };
        let lists = |root: &&Path| -> [PathBuf; 2] {
            let modules = root.join("lib/modules").join(release.to_string());
            ["modules.dep", "modules.builtin"].map(|list| modules.join(list))
        };
        let mut texts =
            roots.iter().flat_map(lists).filter_map(|list| std::fs::read_to_string(list).ok()).peekable();
        if texts.peek().is_none() {
            return Self::Unknown;
        }
        let names = |text: String| text.contains(&format!("/{MODULE}.ko"));
        if texts.any(names) { Self::Loadable } else { Self::Absent }
    }
}

impl DriverFacts {
    pub(super) fn observe(release: Option<KernelRelease>, has_ring: bool, config: &NodeConfig) -> Self {
        let NodeConfig { transport, run_dir, keeper, .. } = config;
        let module = Module::find(&ROOTS.map(Path::new), release.as_ref());
        let fuse = transport.may_be_fuse().then(|| check_fuse(run_dir, *keeper));
        let panics_on_warning =
            std::fs::read_to_string(PANIC_ON_WARN).is_ok_and(|setting| setting.trim() != "0");
        Self { probed: Features::probe(), fuse, module, has_ring, panics_on_warning }
    }
}

/// Checks the driver, and, if it responds, its features and the transport.
pub(super) fn check(facts: &DriverFacts, choice: TransportChoice) -> Vec<Check> {
    const NAME: &str = "ublk driver";
    if let (TransportChoice::Only(Transport::Fuse), Some(fuse)) = (choice, &facts.fuse) {
        return vec![match fuse {
            Ok(()) => Check::pass(TRANSPORT, "fuse, as data.transport requests"),
            Err(without @ Unsupported::NoKeeper { .. }) => {
                Check::warn(TRANSPORT, chain(without), fix(without, facts.module))
            }
            Err(refusal) => {
                let found = format!("data.transport requests fuse: {}", chain(refusal));
                Check::fail(TRANSPORT, found, "set data.transport = \"auto\"")
            }
        }];
    }
    match &facts.probed {
        Ok(features) => {
            let found = format!("{CONTROL_PATH} answers, and offers {}", features.names());
            vec![Check::pass(NAME, found), check_features(features), transport(facts, features, choice)]
        }
        Err(Unsupported::NoFeatures { .. } | Unsupported::NoAccess(_)) if !facts.has_ring => {
            let found = format!("{CONTROL_PATH} exists. It cannot be queried without io_uring");
            vec![Check::fail(NAME, found, "permit io_uring first")]
        }
        Err(unsupported) => {
            let found = match unsupported {
                Unsupported::NoDriver => format!("{CONTROL_PATH} does not exist"),
                Unsupported::NoAccess(error) => format!("{CONTROL_PATH} cannot be used ({error})"),
                Unsupported::BrokenKernel { .. }
                | Unsupported::Release(_)
                | Unsupported::NoFeatures { .. }
                | Unsupported::MissingFeature { .. }
                | Unsupported::NoFuse { .. }
                | Unsupported::NoKeeper { .. }
                | Unsupported::UnknownTransport { .. } => chain(unsupported),
            };
            let driver = facts.module;
            let fix = fix(unsupported, driver);
            let slower = "fuse. Each request passes a loop device and FUSE, and is copied twice";
            let transport = match &facts.fuse {
                Some(Ok(())) => Check::warn(TRANSPORT, slower, fix),
                // The keeper starts together with the daemon.
                Some(Err(without @ Unsupported::NoKeeper { .. })) => {
                    let found = format!("{slower}. Now there is none: {}", chain(without));
                    Check::warn(TRANSPORT, found, self::fix(without, driver))
                }
                Some(Err(refusal)) => {
                    let found = format!("{found}. Without ublk: {}", chain(refusal));
                    return vec![Check::fail(NAME, found, fix)];
                }
                None => return vec![Check::fail(NAME, found, fix)],
            };
            if choice == TransportChoice::Auto && unsupported.is_without_ublk() {
                return vec![Check::warn(NAME, found, fix), transport];
            }
            vec![Check::fail(NAME, found, fix)]
        }
    }
}

fn fix(unsupported: &Unsupported, module: Module) -> &'static str {
    match unsupported {
        Unsupported::BrokenKernel { .. } => "boot Linux 7.1 or newer",
        Unsupported::Release(_) => "mount /proc",
        Unsupported::NoDriver => match module {
            Module::Loaded => "mount the host's /dev: the module is loaded, and this /dev lacks its device",
            Module::Loadable => {
                "load the module: `modprobe ublk_drv`, and a line `ublk_drv` in /etc/modules-load.d/ublk.conf for the \
                 next start"
            }
            Module::Absent => {
                "install the modules that the distribution has in a package of their own (Ubuntu: \
                 linux-modules-extra-$(uname -r)), or a kernel with CONFIG_BLK_DEV_UBLK; then `modprobe ublk_drv`"
            }
            Module::Unknown => "load the module on the host: `modprobe ublk_drv` (Linux 6.12 or newer)",
        },
        Unsupported::NoAccess(error) if error.kind() == ErrorKind::PermissionDenied => {
            "run as root with access to the device (in a pod: privileged). With SELinux also permit io_uring { cmd } to the \
             process (`ausearch -m avc` shows a denial)"
        }
        Unsupported::NoAccess(_) => "run as root with access to the device (in a pod: privileged)",
        Unsupported::NoFeatures { .. } | Unsupported::MissingFeature { .. } => "boot Linux 6.12 or newer",
        Unsupported::NoFuse { .. } => {
            "boot Linux 6.9 or newer, load the modules fuse and loop, and set the parameter that is named, if any, to 0"
        }
        Unsupported::NoKeeper { .. } => {
            "set node.withoutUblk.enabled of the chart, or run `holdfast-node keeper` on the node"
        }
        Unsupported::UnknownTransport { .. } => "set data.transport to auto, zero-copy, user-copy or fuse",
    }
}

fn check_features(features: &Features) -> Check {
    const NAME: &str = "ublk features";
    let grows = "it lacks UPDATE_SIZE. A volume grows at its next attach only";
    let scans = "it lacks NO_AUTO_PART_SCAN. The kernel reads the partition table of each device that starts, and creates \
                 devices for its partitions. A daemon that is killed meanwhile may hang in the kernel with its device";
    let found: Vec<&str> = [(features.can_resize(), grows), (features.can_skip_partitions(), scans)]
        .into_iter()
        .filter_map(|(has, lack)| (!has).then_some(lack))
        .collect();
    match found[..] {
        [] => Check::pass(NAME, "all features that a daemon uses"),
        [only] if features.can_skip_partitions() => Check::warn(NAME, only, "boot Linux 6.16 or newer"),
        _ => Check::warn(NAME, found.join("; "), "boot Linux 7.0 or newer"),
    }
}

/// Checks the transport, and if a warning that the kernel prints about it stops the host (`docs/kernels.md`).
fn transport(facts: &DriverFacts, features: &Features, choice: TransportChoice) -> Check {
    let chosen = choice.among(Ok(features.clone()), || Err(Unsupported::NoDriver));
    if facts.panics_on_warning && matches!(chosen, Ok(Transport::ZeroCopy)) {
        let found = "zero-copy, and kernel.panic_on_warn is set. A kernel that was built with UBSAN may warn about the \
                     first request, without harm, and then stops the host";
        return Check::warn(
            TRANSPORT,
            found,
            "set data.transport = \"user-copy\", or kernel.panic_on_warn = 0",
        );
    }
    check_transport(features, choice)
}

fn check_transport(features: &Features, choice: TransportChoice) -> Check {
    const NAME: &str = TRANSPORT;
    // A driver that responds offers a transport, or the kernel is too old for FUSE, too.
    let fuse = || Err(Unsupported::NoDriver);
    match (choice.among(Ok(features.clone()), fuse), choice) {
        (Ok(transport @ Transport::UserCopy), TransportChoice::Auto) => {
            let why = features.check(Transport::ZeroCopy).err().map(|refusal| chain(&refusal));
            let found = format!(
                "{transport}. Each request is copied once more: {}",
                why.as_deref().unwrap_or("zero-copy is not offered")
            );
            Check::warn(NAME, found, "boot Linux 6.16 or newer for zero-copy")
        }
        (Ok(transport), TransportChoice::Auto) => Check::pass(NAME, transport.name()),
        (Ok(transport), TransportChoice::Only(_)) => {
            Check::pass(NAME, format!("{transport}, as data.transport requests"))
        }
        (Err(refusal), TransportChoice::Auto) => {
            Check::fail(NAME, chain(&refusal), "boot Linux 6.12 or newer")
        }
        (Err(refusal), TransportChoice::Only(asked)) => {
            let since = match asked {
                Transport::ZeroCopy => "6.16",
                Transport::UserCopy | Transport::KernelCopy => "6.12",
                Transport::Fuse => "6.9",
            };
            let found = format!("data.transport requests {asked}: {}", chain(&refusal));
            Check::fail(NAME, found, format!("boot Linux {since} or newer, or set data.transport = \"auto\""))
        }
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;

    #[test]
    fn a_module_is_found_where_the_host_keeps_it() {
        let root = tempfile::tempdir().unwrap();
        let release = KernelRelease::new("7.3.4-generic");
        let find = || Module::find(&[root.path()], Some(&release));
        assert_eq!(find(), Module::Unknown, "a container has no modules");
        assert_eq!(Module::find(&[root.path()], None), Module::Unknown);
        let modules = root.path().join("lib/modules/7.3.4-generic");
        fs::create_dir_all(&modules).unwrap();
        fs::write(modules.join("modules.dep"), "kernel/drivers/block/loop.ko.xz:\n").unwrap();
        assert_eq!(find(), Module::Absent);
        fs::write(modules.join("modules.dep"), "kernel/drivers/block/ublk_drv.ko.xz:\n").unwrap();
        assert_eq!(find(), Module::Loadable);
        fs::create_dir_all(root.path().join("sys/module/ublk_drv")).unwrap();
        assert_eq!(find(), Module::Loaded);
    }
}
