//! The kernel of the test machines, as a distribution built it: unpacked, and a small initramfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::command::output;
use crate::pins::{Distribution, KernelPin};
use crate::report;
use crate::setup::apt::{self, AptRoot};

/// Modules that the initramfs loads, in order, before the root file system is mounted, unless they are built
/// in: the disk driver is the last one.
const EARLY_MODULES: &[&str] =
    &["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci", "virtio_blk"];
/// Package name prefixes before a kernel release. Debian's kernels have modules in separate packages since
/// 7.0, with a package of the first name; Ubuntu's always have, those of servers and desktops apart until
/// 6.17.
const SPLIT: &str = "linux-binary-";
const IMAGE: &str = "linux-image-";
const MODULES: &str = "linux-modules-";
const EXTRA_MODULES: &str = "linux-modules-extra-";
/// Kernel command line option: reports that the kernel boots, and powers the machine off.
pub const PROBE: &str = "holdfast.probe";
/// Line printed by the initramfs if [`PROBE`] is set.
pub const PROBE_ANSWER: &str = "HOLDFAST-KERNEL-BOOTS";

/// Expected time to download and unpack a kernel.
pub(super) const EXPECTED: Duration = Duration::from_secs(30);

/// Mount point of the share disk with the agent in a test machine.
pub const SHARE: &str = "/holdfast";

/// A kernel ready to boot.
#[derive(Debug, Clone)]
pub struct GuestKernel {
    /// The release, as printed by `uname -r`.
    pub release: String,
    /// The suite that it came from, which also has its source.
    pub suite: String,
    /// The uncompressed kernel: QEMU starts it directly (PVH), without decompression.
    pub vmlinux: PathBuf,
    /// Loads the disk driver, mounts root and share, and starts the agent as process 1.
    pub initramfs: PathBuf,
    /// The release's module tree, to be copied into the root file system.
    pub modules: PathBuf,
}

/// Returns true if the cache has the kernel.
pub(super) fn is_prepared(cache: &Cache, pin: KernelPin) -> bool {
    cache.path(&key(pin)).exists()
}

/// Returns the name of a kernel's entry in the cache.
fn key(pin: KernelPin) -> String {
    format!("kernel-{}-{}", pin.suites.join("-"), pin.release)
}

/// Downloads kernel and modules and creates the initramfs.
///
/// # Errors
/// If no suite has a matching kernel any more, or a step fails.
pub fn prepare(cache: &Cache, pin: KernelPin) -> Result<GuestKernel> {
    let dir = cache.entry(&key(pin), EXPECTED, |dir| {
        let KernelPackages { root, release, packages } = find(cache, pin)?;
        let unpacked = dir.join("packages");
        root.unpack(&packages.iter().map(String::as_str).collect::<Vec<_>>(), &unpacked)?;
        let modules = unpacked.join("usr/lib/modules").join(&release);
        let old_place = unpacked.join("lib/modules");
        if old_place.exists() {
            fs::create_dir_all(unpacked.join("usr/lib"))?;
            fs::rename(old_place, unpacked.join("usr/lib/modules"))?;
        }
        let in_boot = unpacked.join("boot").join(format!("vmlinuz-{release}"));
        let image = if in_boot.exists() { in_boot } else { modules.join("vmlinuz") };
        extract_vmlinux(&image, &dir.join("vmlinux"))?;
        make_initramfs(cache, &modules, &dir.join("initramfs.cpio"))?;
        fs::write(dir.join("suite"), root.suite())?;
        Ok(fs::write(dir.join("release"), release)?)
    })?;
    let release = fs::read_to_string(dir.join("release")).context("read the kernel's release")?;
    Ok(GuestKernel {
        vmlinux: dir.join("vmlinux"),
        initramfs: dir.join("initramfs.cpio"),
        modules: dir.join("packages/usr/lib/modules").join(&release),
        suite: fs::read_to_string(dir.join("suite")).context("read the kernel's suite")?,
        release,
    })
}

/// A kernel in a suite.
struct KernelPackages {
    root: AptRoot,
    release: String,
    packages: Vec<String>,
}

/// Returns the pinned release, or the nearest one, from the suites of the pin.
fn find(cache: &Cache, pin: KernelPin) -> Result<KernelPackages> {
    let major = pin.release.split('.').next().unwrap_or_default();
    let mut nearest: Option<KernelPackages> = None;
    for suite in pin.suites {
        let found = match pin.distribution {
            Distribution::Debian => AptRoot::new(suite),
            Distribution::Ubuntu => AptRoot::ubuntu(cache, suite),
        };
        let found = found.and_then(|root| Ok((root.names("linux-")?, root)));
        let (names, root) = match found {
            Ok(found) => found,
            Err(error) => {
                report::step(format_args!("{suite} was not read: {error:#}"));
                continue;
            }
        };
        let releases = |prefix| names.iter().filter_map(move |name| name.strip_prefix(prefix));
        let known = nearest.as_ref().map(|found| found.release.clone());
        let all = releases(SPLIT).chain(releases(IMAGE)).chain(known.as_deref());
        let Some(best) = choose(pin, all).map(str::to_owned) else { continue };
        if known.as_ref() != Some(&best) {
            let has = |prefix| releases(prefix).any(|release| release == best);
            let prefixes: &[&str] = match pin.distribution {
                Distribution::Debian if has(SPLIT) => &["linux-base-", SPLIT, MODULES],
                Distribution::Debian => &[IMAGE],
                Distribution::Ubuntu if has(EXTRA_MODULES) => &[IMAGE, MODULES, EXTRA_MODULES],
                Distribution::Ubuntu => &[IMAGE, MODULES],
            };
            let packages = prefixes.iter().map(|prefix| format!("{prefix}{best}")).collect();
            nearest = Some(KernelPackages { root, release: best, packages });
        }
        if nearest.as_ref().is_some_and(|found| found.release == pin.release) {
            break;
        }
    }
    nearest.with_context(|| format!("no suite has a kernel {major}.*{}", pin.flavour()))
}

/// Returns the pinned release if available, otherwise the newest of its series, otherwise the newest of its
/// major version if the distribution drops old ones.
fn choose<'a>(pin: KernelPin, releases: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let series = |release: &str| numbers(release).into_iter().take(2).collect::<Vec<_>>();
    let pinned = series(pin.release);
    let kept = if pin.distribution == Distribution::Ubuntu { 2 } else { 1 };
    releases
        .filter(|release| release.ends_with(pin.flavour()) && !release.contains("rc"))
        .filter(|release| release.starts_with(|c: char| c.is_ascii_digit()))
        .filter(|release| series(release).get(..kept) == pinned.get(..kept))
        .max_by_key(|release| (*release == pin.release, series(release) == pinned, numbers(release)))
}

/// Returns the numbers of a release, for ordering.
fn numbers(release: &str) -> Vec<u32> {
    release.split(|c: char| !c.is_ascii_digit()).filter_map(|number| number.parse().ok()).collect()
}

/// Extracts the ELF image from a bzImage. An LZ4-compressed one is kept as it is: the host has no program for
/// that, and QEMU starts it, too. Offsets: Documentation/arch/x86/boot.rst, "The Real-Mode Kernel Header"
/// (setup_sects at 0x1f1, payload_offset at 0x248, payload_length at 0x24c). The payload is a compressed
/// stream followed by its uncompressed length in 4 bytes.
fn extract_vmlinux(vmlinuz: &Path, vmlinux: &Path) -> Result<()> {
    let image = fs::read(vmlinuz).with_context(|| format!("read {}", vmlinuz.display()))?;
    let word = |at: usize| -> Result<usize> {
        let bytes = image.get(at..at + 4).context("the kernel image is short")?;
        let value = u32::from_le_bytes(bytes.try_into().context("four bytes")?);
        Ok(usize::try_from(value)?)
    };
    let setup_sectors = match image.get(0x1f1) {
        None | Some(0) => 4,
        Some(count) => usize::from(*count),
    };
    let start = (setup_sectors + 1) * 512 + word(0x248)?;
    let end = start + word(0x24c)? - 4;
    let payload = image.get(start..end).context("the kernel image is shorter than its header says")?;
    let program = match payload {
        [0x28, 0xb5, 0x2f, 0xfd, ..] => "zstd",
        [0xfd, b'7', b'z', b'X', b'Z', ..] => "xz",
        [0x1f, 0x8b, ..] => "gzip",
        [0x02, 0x21, 0x4c, 0x18, ..] => return Ok(fs::write(vmlinux, image)?),
        _ => anyhow::bail!("the kernel is compressed in a way this harness does not know"),
    };
    let packed = vmlinux.with_extension("packed");
    fs::write(&packed, payload)?;
    let unpacked =
        Command::new(program).arg("-dc").arg(&packed).output().with_context(|| format!("start {program}"))?;
    ensure!(
        unpacked.stdout.starts_with(b"\x7fELF"),
        "{program} found no ELF image in {}: {}",
        vmlinuz.display(),
        String::from_utf8_lossy(&unpacked.stderr)
    );
    fs::write(vmlinux, unpacked.stdout)?;
    fs::remove_file(packed)?;
    Ok(())
}

fn make_initramfs(cache: &Cache, modules: &Path, image: &Path) -> Result<()> {
    let tree = tempfile::tempdir().context("make a directory for the initramfs")?;
    for dir in ["bin", "dev", "proc", "sys", "mnt", "lib"] {
        fs::create_dir(tree.path().join(dir))?;
    }
    let busybox = apt::unpacked_tools(cache)?.join("usr/bin/busybox");
    fs::copy(busybox, tree.path().join("bin/busybox"))?;
    let mut loaded = Vec::new();
    let built_in = fs::read_to_string(modules.join("modules.builtin")).context("read the list of modules")?;
    for module in EARLY_MODULES {
        let found = output(Command::new("find").arg(modules).args(["-name", &format!("{module}.ko*")]))?;
        let Some(packed) = found.lines().next() else {
            let is_needed = EARLY_MODULES.last() == Some(module);
            let is_built_in = built_in.lines().any(|path| path.ends_with(&format!("/{module}.ko")));
            ensure!(is_built_in || !is_needed, "the kernel packages contain no {module}");
            continue;
        };
        loaded.push(*module);
        let to = tree.path().join(format!("lib/{module}.ko"));
        let program = match packed.rsplit('.').next() {
            Some("xz") => "xz",
            Some("zst") => "zstd",
            _ => {
                fs::copy(packed, to)?;
                continue;
            }
        };
        let unpacked = Command::new(program).args(["-dc", packed]).output()?;
        ensure!(unpacked.status.success(), "{program} cannot unpack {packed}");
        fs::write(to, unpacked.stdout)?;
    }
    let init = tree.path().join("init");
    fs::write(&init, init_script(&loaded))?;
    output(Command::new("chmod").arg("755").arg(init))?;
    output(
        Command::new("sh")
            .current_dir(tree.path())
            .args(["-c", "find . | cpio --quiet -o -H newc > \"$0\""])
            .arg(image),
    )?;
    Ok(())
}

/// Returns the init script. Disks appear in the order they are attached: root file system, share, state.
fn init_script(modules: &[&str]) -> String {
    let insmod: String = modules.iter().map(|module| format!("$B insmod /lib/{module}.ko\n")).collect();
    format!(
        r#"#!/bin/busybox sh
B=/bin/busybox
$B mount -t devtmpfs dev /dev
$B mount -t proc proc /proc
if $B grep -q {PROBE} /proc/cmdline; then
  $B echo {PROBE_ANSWER}
  $B echo o > /proc/sysrq-trigger
  $B sleep 100
fi
$B mount -t sysfs sys /sys
{insmod}i=0
while [ ! -b /dev/vdb ] && [ $i -lt 500 ]; do $B usleep 20000; i=$((i+1)); done
$B mount -t ext4 -o rw,noatime /dev/vda /mnt || exec $B sh
$B mkdir -p /mnt{SHARE}
$B mount -t ext4 -o ro /dev/vdb /mnt{SHARE} || exec $B sh
$B mount --move /dev /mnt/dev
$B mount --move /proc /mnt/proc
$B mount --move /sys /mnt/sys
exec $B switch_root /mnt {SHARE}/bin/holdfast-e2e guest-agent
"#
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pins::KERNEL;

    #[test]
    fn the_pinned_release_or_its_nearest_is_chosen() {
        let there = [
            "7.2.12+deb13-cloud-amd64",
            "7.2.9+deb13-cloud-amd64",
            "7.3.4+deb13-cloud-amd64",
            "7.3.5+deb13-cloud-amd64",
            "7.10.1+deb14-cloud-amd64",
            "7.11.0~rc1+deb14-cloud-amd64",
            "7.11.0+deb14-amd64",
        ];
        let choose = |release| super::choose(KernelPin { release, ..KERNEL }, there.into_iter());
        assert_eq!(choose("7.3.4+deb13-cloud-amd64"), Some("7.3.4+deb13-cloud-amd64"));
        assert_eq!(choose("7.2.13+deb14-cloud-amd64"), Some("7.2.12+deb13-cloud-amd64"));
        assert_eq!(choose("7.4.1+deb14-cloud-amd64"), Some("7.10.1+deb14-cloud-amd64"));
        assert_eq!(super::choose(KERNEL, std::iter::empty()), None);
    }

    #[test]
    fn another_series_of_ubuntu_is_never_chosen_instead() {
        let there = [
            "6.8.0-149-generic",
            "6.8.0-51-generic",
            "6.8.0-1070-aws",
            "unsigned-6.8.0-151-generic",
            "6.17.0-42-generic",
        ];
        let choose = |release| super::choose(KernelPin::of(release).unwrap(), there.into_iter());
        assert_eq!(choose("6.8.0-51-generic"), Some("6.8.0-51-generic"));
        assert_eq!(choose("6.8.0-151-generic"), Some("6.8.0-149-generic"));
        assert_eq!(choose("6.8.0-1069-aws"), Some("6.8.0-1070-aws"));
        assert_eq!(choose("6.14.0-37-generic"), None);
    }

    #[test]
    fn releases_are_ordered_by_number() {
        assert!(numbers("7.10.2+deb14-cloud-amd64") > numbers("7.9.13+deb14-cloud-amd64"));
    }
}
