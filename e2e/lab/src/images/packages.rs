//! Unpacked Debian packages, and the selection of their files for images.

use std::collections::BTreeSet;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use super::layer::ImageLayer;
use crate::architecture::Architecture;
use crate::cache::{Cache, fingerprint};
use crate::command::output;
use crate::pins::{IMAGE_PACKAGES, IMAGE_SUITE};
use crate::setup::apt::AptRoot;

/// Expected time to download and unpack them.
const EXPECTED: Duration = Duration::from_secs(20);
/// Directory of the certificates trusted by the package `ca-certificates`.
const AUTHORITIES: &str = "usr/share/ca-certificates/mozilla";

/// The packages that images are made from.
#[derive(Debug, Clone)]
pub struct Packages {
    tree: PathBuf,
    architecture: Architecture,
}

impl Packages {
    /// Downloads them and unpacks them into the cache.
    ///
    /// # Errors
    /// If one cannot be downloaded.
    pub fn prepare(cache: &Cache, architecture: Architecture) -> Result<Self> {
        let key =
            format!("image-{IMAGE_SUITE}-{}-{}", architecture.name(), fingerprint(&IMAGE_PACKAGES.join(",")));
        let tree = cache.entry(&key, EXPECTED, |dir| {
            AptRoot::of(IMAGE_SUITE, architecture.name())?.unpack(IMAGE_PACKAGES, dir)
        })?;
        Ok(Self { tree, architecture })
    }

    /// Returns their architecture.
    pub fn architecture(&self) -> Architecture {
        self.architecture
    }

    /// Returns the certificates of all authorities trusted by Debian, as one file.
    ///
    /// # Errors
    /// If the package is missing.
    pub fn authorities(&self) -> Result<Vec<u8>> {
        let directory = self.tree.join(AUTHORITIES);
        let mut files = Vec::new();
        for entry in fs::read_dir(&directory).with_context(|| format!("list {}", directory.display()))? {
            files.push(entry?.path());
        }
        files.sort();
        let mut all = String::new();
        for file in files {
            all.push_str(fs::read_to_string(&file)?.trim_end());
            all.push('\n');
        }
        ensure!(!all.is_empty(), "no certificates in {}", directory.display());
        Ok(all.into_bytes())
    }

    /// Adds a file, the targets of its links, and its libraries.
    ///
    /// # Errors
    /// If the file, or one of its libraries, is missing in the packages.
    pub fn add(&self, layer: &mut ImageLayer, path: &str) -> Result<()> {
        let file = self.tree.join(path);
        let found = file.symlink_metadata().with_context(|| format!("no package has {path}"))?;
        if found.is_symlink() {
            let target = fs::read_link(&file)?;
            let target = target.to_str().context("a link's target is text")?;
            ensure!(!target.contains('/'), "{path} links to another directory: {target}");
            layer.link(path, target);
            let (directory, _) = path.rsplit_once('/').context("a file below the root")?;
            return self.add(layer, &format!("{directory}/{target}"));
        }
        // Without set-user-ID: nothing in an image gains privileges.
        layer.file(path, found.permissions().mode() & 0o755, fs::read(&file)?);
        self.add_libraries(layer, &file)
    }

    /// Adds the libraries of a program, and their libraries.
    ///
    /// # Errors
    /// If one is missing.
    pub fn add_libraries(&self, layer: &mut ImageLayer, program: &Path) -> Result<()> {
        let loader = self.architecture.loader();
        for name in needed_libraries(program)? {
            let at = self.architecture.libraries();
            let path = if loader.ends_with(&name) { loader.to_owned() } else { format!("{at}/{name}") };
            if layer.contains(&path) {
                continue;
            }
            // Under the name that is looked up: in the package, the file name has the version.
            let file = self.tree.join(&path);
            let bytes = fs::read(&file)
                .with_context(|| format!("{} needs {name}, which no package has", program.display()))?;
            layer.file(&path, 0o755, bytes);
            self.add_libraries(layer, &file)?;
        }
        Ok(())
    }
}

/// Returns the names of a file's libraries: none if it is not a program.
fn needed_libraries(file: &Path) -> Result<BTreeSet<String>> {
    if !fs::read(file)?.starts_with(b"\x7fELF") {
        return Ok(BTreeSet::new());
    }
    // Supports programs for other processors, too, which ldd(1) would execute.
    let dynamic = output(Command::new("readelf").env("LC_ALL", "C").args(["--dynamic", "--wide"]).arg(file))?;
    let lines = dynamic.lines().filter(|line| line.contains("(NEEDED)"));
    let names = lines.filter_map(|line| line.split_once('[')?.1.strip_suffix(']'));
    Ok(names.map(str::to_owned).collect())
}
