//! Documents that the API server accepts and rejects: those of `crds/tests`.

use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use holdfast_lab::world::World;

/// Prefix of the expected error.
const EXPECT: &str = "# expect: ";

pub(super) fn run(world: &World) -> Result<()> {
    world.install_crds()?;
    let tests = world.toolbox().workspace().join("crds/tests");
    let mut wrong = Vec::new();
    for file in documents(&tests.join("accepted"))? {
        if let Err(error) = accept(world, &file) {
            wrong.push(format!("{error:#}"));
        }
    }
    for file in documents(&tests.join("rejected"))? {
        if let Err(error) = refuse(world, &file) {
            wrong.push(format!("{error:#}"));
        }
    }
    ensure!(wrong.is_empty(), "{}", wrong.join("\n"));
    Ok(())
}

/// Every document of the file is accepted.
fn accept(world: &World, file: &Path) -> Result<()> {
    let text = fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
    for document in text.split("\n---\n") {
        apply(world, document).with_context(|| format!("{} is refused", file.display()))?;
    }
    Ok(())
}

/// Every document of the file except the last is accepted, and the last is rejected as expected.
fn refuse(world: &World, file: &Path) -> Result<()> {
    let name = file.display();
    let text = fs::read_to_string(file).with_context(|| format!("read {name}"))?;
    let expected = text
        .lines()
        .find_map(|line| line.strip_prefix(EXPECT))
        .with_context(|| format!("{name} does not say what it expects"))?;
    let (before, last) = match text.rsplit_once("\n---\n") {
        Some((before, last)) => (before.split("\n---\n").collect(), last),
        None => (Vec::new(), text.as_str()),
    };
    for document in before {
        apply(world, document).with_context(|| format!("{name}: an earlier document is refused"))?;
    }
    let refusal = apply(world, last).err().map(|error| format!("{error:#}"));
    let refusal = refusal.with_context(|| format!("{name} is accepted"))?;
    ensure!(refusal.contains(expected), "{name}: not {expected:?} but {refusal}");
    Ok(())
}

fn apply(world: &World, document: &str) -> Result<()> {
    let file = world.dir().join("document.yaml");
    fs::write(&file, document).context("write a document")?;
    let file = file.display().to_string();
    world.kubectl(["apply", "--filename", &file]).map(drop)
}

fn documents(dir: &Path) -> Result<Vec<PathBuf>> {
    let entries = fs::read_dir(dir).with_context(|| format!("list {}", dir.display()))?;
    let mut files: Vec<PathBuf> = entries.flatten().map(|entry| entry.path()).collect();
    files.sort();
    ensure!(!files.is_empty(), "no documents in {}", dir.display());
    Ok(files)
}
