//! The OCI images, built with the programs under test and unpacked on the host.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use anyhow::{Context, Result, ensure};
use holdfast_lab::command::{as_root, output};
use holdfast_lab::images::{self, Built};
use holdfast_lab::report;
use holdfast_lab::setup::BuildProfile;
use holdfast_lab::world::World;
use serde_json::Value;

/// Programs of the CSI image, each with arguments that prove its presence.
const TOOLS: &[&str] = &[
    "blkid --version",
    "blockdev --version",
    "btrfs --version",
    "e2fsck -V",
    "flock --version",
    "mkfs.btrfs --version",
    "mkfs.ext4 -V",
    "mkfs.xfs -N -c options=/usr/share/xfsprogs/mkfs/lts_6.6.conf -d file=1,name=/none,size=512m",
    "mount --version",
    "stat --version",
    "umount --version",
    "xfs_growfs -V",
    "xfs_repair -V",
];

pub(super) fn run(world: &World) -> Result<()> {
    let [first, second] = ["first", "second"].map(|name| {
        images::build(world.toolbox(), BuildProfile::Dev, &world.dir().join("images").join(name))
    });
    for (one, other) in first?.iter().zip(second?) {
        ensure!(one.written == other.written, "{:?} is not {:?}", one.written, other.written);
        report::step(format_args!("{}: {:?}", one.recipe.name, one.written));
        let root = unpack(one, world.dir())?;
        check_program_starts(&root, &format!("{} --help", one.recipe.name))?;
        if one.recipe.name == "holdfast-csi" {
            for tool in TOOLS {
                check_program_starts(&root, tool)?;
            }
        }
    }
    Ok(())
}

/// Unpacks an image like a container runtime, and returns its root directory.
fn unpack(image: &Built, dir: &Path) -> Result<PathBuf> {
    let layout = dir.join(format!("{}-layout", image.recipe.name));
    let root = dir.join(format!("{}-root", image.recipe.name));
    fs::create_dir(&layout).and_then(|()| fs::create_dir(&root)).context("make directories")?;
    untar(&image.path, &layout)?;
    let read = |path: &Path| -> Result<Value> {
        Ok(serde_json::from_slice(&fs::read(path).with_context(|| format!("read {}", path.display()))?)?)
    };
    let blob = |descriptor: &Value| -> Result<PathBuf> {
        let digest = descriptor["digest"].as_str().context("a descriptor has a digest")?;
        Ok(layout.join("blobs").join(digest.replace(':', "/")))
    };
    let index = read(&layout.join("index.json"))?;
    let manifest = read(&blob(&index["manifests"][0])?)?;
    for layer in manifest["layers"].as_array().context("a manifest has layers")? {
        untar(&blob(layer)?, &root)?;
    }
    Ok(root)
}

fn untar(file: &Path, into: &Path) -> Result<()> {
    let zstd = fs::read(file)?.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]);
    let mut tar = Command::new("tar");
    tar.args(zstd.then_some("--zstd")).arg("-xf").arg(file).arg("-C").arg(into);
    output(&mut tar).map(drop)
}

/// Runs a program with only the image around it.
fn check_program_starts(root: &Path, line: &str) -> Result<()> {
    let mut chroot = as_root("chroot");
    chroot.arg(root).args(line.split(' ')).env("PATH", "/usr/sbin:/usr/bin:/sbin:/bin");
    output(&mut chroot).map(drop).with_context(|| format!("start {line} in its image"))
}
