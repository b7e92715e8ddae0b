//! OCI images, built from Debian packages and our programs without a container engine.
//!
//! Owns: the content of each image.
//! Does not own: archives ([`archive`]), layers ([`layer`]), selection of package files ([`packages`]).
//! Invariants: the same program and packages produce the same bytes, and so the same digest.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};

use crate::architecture::Architecture;
use crate::command::strip;
use crate::setup::{BuildProfile, Toolbox};
use archive::Written;
use layer::ImageLayer;
use packages::Packages;

pub mod archive;
pub mod layer;
pub mod packages;

/// Version of the programs, used as the tag of their images and the chart's `appVersion`.
pub const VERSION: &str = env!("CARGO_PKG_VERSION");
/// User and group of a program without rights on its node.
const UNPRIVILEGED: &str = "65532:65532";
/// User and group of a program that opens devices and mounts file systems.
pub const ROOT: &str = "0:0";
/// Account files with a name for each user that runs an image.
const PASSWD: &str =
    "root:x:0:0:root:/root:/usr/sbin/nologin\nnonroot:x:65532:65532:nonroot:/:/usr/sbin/nologin\n";
const GROUP: &str = "root:x:0:\nnonroot:x:65532:\n";

/// Programs for file systems and mounts, run by the CSI driver.
const FILE_SYSTEM_TOOLS: &[&str] = &[
    "etc/mke2fs.conf",
    "usr/bin/btrfs",
    "usr/bin/flock",
    "usr/bin/mount",
    "usr/bin/stat",
    "usr/bin/umount",
    "usr/sbin/blkid",
    "usr/sbin/blockdev",
    "usr/sbin/e2fsck",
    "usr/sbin/mkfs.btrfs",
    "usr/sbin/mkfs.ext4",
    "usr/sbin/mkfs.xfs",
    "usr/sbin/resize2fs",
    "usr/sbin/xfs_growfs",
    "usr/sbin/xfs_repair",
    "usr/share/xfsprogs/mkfs/lts_6.6.conf",
];

/// The image of one of our programs.
#[derive(Debug, Clone, Copy)]
pub struct Recipe {
    /// Name of the program and of its repository.
    pub name: &'static str,
    /// Maximum size of its files in MB.
    pub max_mb: u64,
    /// User and group that it runs as, unless a pod overrides them.
    user: &'static str,
    /// Files of the packages that the program needs in addition to its libraries.
    pub tools: &'static [&'static str],
}

/// The images installed by the chart.
pub const ALL: &[Recipe] = &[
    Recipe { name: "holdfast-operator", max_mb: 60, user: UNPRIVILEGED, tools: &[] },
    Recipe { name: "holdfast-node", max_mb: 60, user: ROOT, tools: &[] },
    // Its controller runs as another user, set in the chart.
    Recipe { name: "holdfast-csi", max_mb: 90, user: ROOT, tools: FILE_SYSTEM_TOOLS },
];

/// An image.
#[derive(Debug)]
pub struct Image {
    /// Full reference, with registry and tag.
    pub reference: String,
    /// Numeric user and group.
    pub user: &'static str,
    /// Program and first arguments.
    pub entrypoint: Vec<String>,
    /// Processor architecture.
    pub architecture: Architecture,
    /// Files; the least frequently changed first.
    pub layers: Vec<ImageLayer>,
}

impl Image {
    /// Builds the image of one of our programs: a layer of package files and a layer with the program.
    ///
    /// # Errors
    /// If a file, or a library, is missing in the packages.
    pub fn of(recipe: &Recipe, program: &Path, packages: &Packages) -> Result<Self> {
        let mut base = ImageLayer::default();
        for (path, target) in
            [("bin", "usr/bin"), ("sbin", "usr/sbin"), ("lib", "usr/lib"), ("lib64", "usr/lib64")]
        {
            base.link(path, target);
        }
        base.directory("tmp", 0o1777);
        for (path, text) in
            [("etc/passwd", PASSWD), ("etc/group", GROUP), ("etc/nsswitch.conf", "hosts: files dns\n")]
        {
            base.file(path, 0o644, text.into());
        }
        base.file("etc/ssl/certs/ca-certificates.crt", 0o644, packages.authorities()?);
        base.link("etc/os-release", "../usr/lib/os-release");
        for tool in ["usr/lib/os-release"].iter().chain(recipe.tools) {
            packages.add(&mut base, tool)?;
        }
        packages.add_libraries(&mut base, program)?;
        Ok(Self {
            reference: format!("docker.io/library/{}:{VERSION}", recipe.name),
            user: recipe.user,
            entrypoint: vec![format!("/usr/bin/{}", recipe.name)],
            architecture: packages.architecture(),
            layers: vec![base, program_layer(&format!("usr/bin/{}", recipe.name), program)?],
        })
    }

    /// Builds an image of one program that needs no other files.
    ///
    /// # Errors
    /// If it cannot be read.
    pub fn of_static(reference: &str, name: &str, program: &Path) -> Result<Self> {
        Ok(Self {
            reference: reference.to_owned(),
            user: UNPRIVILEGED,
            entrypoint: vec![format!("/{name}")],
            architecture: Architecture::of_host()?,
            layers: vec![program_layer(name, program)?],
        })
    }

    /// Writes the image as an archive, `<last component of its repository>.tar` in `directory`.
    ///
    /// # Errors
    /// If it cannot be written.
    pub fn write(&self, directory: &Path) -> Result<(PathBuf, Written)> {
        let (repository, _tag) = self.reference.rsplit_once(':').context("a reference with a tag")?;
        let name = repository.rsplit('/').next().unwrap_or(repository);
        fs::create_dir_all(directory).with_context(|| format!("create {}", directory.display()))?;
        let path = directory.join(format!("{name}.tar"));
        let written = archive::write(self, &path)?;
        Ok((path, written))
    }
}

/// One of our images, after it was written.
#[derive(Debug)]
pub struct Built {
    /// The image.
    pub recipe: Recipe,
    /// Its archive.
    pub path: PathBuf,
    /// Properties of the archive.
    pub written: Written,
}

/// Builds the programs and writes [`ALL`] into `directory`.
///
/// # Errors
/// If a program cannot be built, a package cannot be downloaded or an archive cannot be written.
pub fn build(toolbox: &Toolbox, profile: BuildProfile, directory: &Path) -> Result<Vec<Built>> {
    let packages = toolbox.image_packages(Architecture::of_host()?)?;
    let programs = toolbox.programs(profile)?;
    let stripped = tempfile::tempdir().context("make a directory for programs")?;
    let write = |recipe: &Recipe| {
        let program = stripped.path().join(recipe.name);
        strip(&programs.join(recipe.name), &program)?;
        let (path, written) = Image::of(recipe, &program, &packages)?.write(directory)?;
        Ok(Built { recipe: *recipe, path, written })
    };
    ALL.iter().map(write).collect()
}

/// Builds a layer with one program.
fn program_layer(path: &str, program: &Path) -> Result<ImageLayer> {
    let mut layer = ImageLayer::default();
    let bytes = fs::read(program).with_context(|| format!("read {}", program.display()))?;
    layer.file(path, 0o755, bytes);
    Ok(layer)
}

#[cfg(test)]
mod tests;
