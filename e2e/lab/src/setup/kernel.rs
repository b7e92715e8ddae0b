//! The kernel of the test machines: Debian's cloud kernel, unpacked, and a small initramfs.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::cache::Cache;
use crate::command::output;
use crate::pins::KernelPin;
use crate::report;
use crate::setup::apt::{self, AptRoot};

/// Modules that the initramfs loads, in order, before the root file system is mounted.
const EARLY_MODULES: &[&str] = &["virtio_blk"];
/// Modules that it loads before those, if packaged separately; newer kernels have them built in.
const EARLIER_MODULES: &[&str] =
    &["virtio_ring", "virtio", "virtio_pci_modern_dev", "virtio_pci_legacy_dev", "virtio_pci"];
/// Package name prefix before a kernel release: since 7.0 modules have separate packages; earlier, one
/// package had everything.
const SPLIT: &str = "linux-binary-";
const WHOLE: &str = "linux-image-";
/// Suffix of a cloud kernel's release.
const SUFFIX: &str = "-cloud-amd64";
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

/// Downloads kernel and modules and creates the initramfs.
///
/// # Errors
/// If no suite has a matching kernel any more, or a step fails.
pub fn prepare(cache: &Cache, pin: KernelPin) -> Result<GuestKernel> {
    let key = format!("kernel-{}-{}", pin.suites.join("-"), pin.release);
    let dir = cache.entry(&key, EXPECTED, |dir| {
        let KernelPackages { root, release, packages } = find(pin)?;
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

/// Returns the pinned release, or the nearest one of the same major version, from the suites of the pin.
fn find(pin: KernelPin) -> Result<KernelPackages> {
    let major = pin.release.split('.').next().unwrap_or_default();
    let mut nearest: Option<KernelPackages> = None;
    for suite in pin.suites {
        let found = AptRoot::new(suite).and_then(|root| {
            let split = root.names(&format!("{SPLIT}{major}."))?;
            let whole = root.names(&format!("{WHOLE}{major}."))?;
            Ok((root, split, whole))
        });
        let (root, split, whole) = match found {
            Ok(found) => found,
            Err(error) => {
                report::step(format_args!("{suite} was not read: {error:#}"));
                continue;
            }
        };
        let releases = |names: &[String], prefix| -> Vec<String> {
            names.iter().filter_map(|name| name.strip_prefix(prefix)).map(str::to_owned).collect()
        };
        let (split, whole) = (releases(&split, SPLIT), releases(&whole, WHOLE));
        let known = nearest.as_ref().map(|found| found.release.clone());
        let all = split.iter().chain(&whole).chain(&known).map(String::as_str);
        let Some(best) = choose(pin.release, all).map(str::to_owned) else { continue };
        if known.as_ref() != Some(&best) {
            let packages = if split.contains(&best) {
                ["base", "binary", "modules"].map(|part| format!("linux-{part}-{best}")).into()
            } else {
                vec![format!("{WHOLE}{best}")]
            };
            nearest = Some(KernelPackages { root, release: best, packages });
        }
        if nearest.as_ref().is_some_and(|found| found.release == pin.release) {
            break;
        }
    }
    nearest.with_context(|| format!("no suite has a kernel {major}.*{SUFFIX}"))
}

/// Returns the pinned release if available, otherwise the newest of its series, otherwise the newest.
fn choose<'a>(pinned: &str, releases: impl Iterator<Item = &'a str>) -> Option<&'a str> {
    let series = |release: &str| numbers(release).into_iter().take(2).collect::<Vec<_>>();
    releases
        .filter(|release| release.ends_with(SUFFIX) && !release.contains("rc"))
        .max_by_key(|release| (*release == pinned, series(release) == series(pinned), numbers(release)))
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
    for module in EARLIER_MODULES.iter().chain(EARLY_MODULES) {
        let found = output(Command::new("find").arg(modules).args(["-name", &format!("{module}.ko*")]))?;
        let Some(packed) = found.lines().next() else {
            ensure!(EARLIER_MODULES.contains(module), "the kernel packages hold no {module}");
            continue;
        };
        loaded.push(*module);
        let to = tree.path().join(format!("lib/{module}.ko"));
        if packed.ends_with(".xz") {
            let unpacked = Command::new("xz").args(["-dc", packed]).output()?;
            ensure!(unpacked.status.success(), "xz cannot unpack {packed}");
            fs::write(to, unpacked.stdout)?;
        } else {
            fs::copy(packed, to)?;
        }
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
        let choose = |pinned| super::choose(pinned, there.into_iter());
        assert_eq!(choose("7.3.4+deb13-cloud-amd64"), Some("7.3.4+deb13-cloud-amd64"));
        assert_eq!(choose("7.2.13+deb14-cloud-amd64"), Some("7.2.12+deb13-cloud-amd64"));
        assert_eq!(choose("7.4.1+deb14-cloud-amd64"), Some("7.10.1+deb14-cloud-amd64"));
        assert_eq!(super::choose("7.3.4+deb13-cloud-amd64", std::iter::empty()), None);
    }

    #[test]
    fn releases_are_ordered_by_number() {
        assert!(numbers("7.10.2+deb14-cloud-amd64") > numbers("7.9.13+deb14-cloud-amd64"));
    }
}
