//! Files of an image, as a tar that depends only on them.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use tar::{Builder, EntryType, Header};

/// Files by their path, without a leading slash. They belong to root and have no timestamps, so that equal
/// files produce equal tars.
#[derive(Debug, Default)]
pub struct ImageLayer(BTreeMap<String, LayerEntry>);

#[derive(Debug)]
enum LayerEntry {
    Directory { mode: u32 },
    File { mode: u32, bytes: Vec<u8> },
    Link { target: String },
}

impl ImageLayer {
    /// Adds a file, and the directories above it.
    pub fn file(&mut self, path: &str, mode: u32, bytes: Vec<u8>) {
        self.add(path, LayerEntry::File { mode, bytes });
    }

    /// Adds a symbolic link, and the directories above it.
    pub fn link(&mut self, path: &str, target: &str) {
        self.add(path, LayerEntry::Link { target: target.to_owned() });
    }

    /// Adds a directory, and those above it.
    pub fn directory(&mut self, path: &str, mode: u32) {
        self.add(path, LayerEntry::Directory { mode });
    }

    /// Returns true if the path exists.
    pub fn contains(&self, path: &str) -> bool {
        self.0.contains_key(path)
    }

    /// Returns the bytes of all files.
    pub fn size_bytes(&self) -> u64 {
        let sizes = self.0.values().map(|entry| match entry {
            LayerEntry::File { bytes, .. } => bytes.len() as u64,
            LayerEntry::Directory { .. } | LayerEntry::Link { .. } => 0,
        });
        sizes.sum()
    }

    /// Returns the files as a tar. A directory sorts before its contents.
    ///
    /// # Errors
    /// If a path does not fit a tar.
    pub fn tar(&self) -> Result<Vec<u8>> {
        let mut tar = Builder::new(Vec::new());
        for (path, entry) in &self.0 {
            let mut header = Header::new_gnu();
            header.set_uid(0);
            header.set_gid(0);
            header.set_mtime(0);
            let added = match entry {
                LayerEntry::Directory { mode } => {
                    header.set_entry_type(EntryType::Directory);
                    header.set_mode(*mode);
                    header.set_size(0);
                    tar.append_data(&mut header, format!("{path}/"), std::io::empty())
                }
                LayerEntry::File { mode, bytes } => {
                    header.set_mode(*mode);
                    header.set_size(bytes.len() as u64);
                    tar.append_data(&mut header, path, bytes.as_slice())
                }
                LayerEntry::Link { target } => {
                    header.set_entry_type(EntryType::Symlink);
                    header.set_mode(0o777);
                    header.set_size(0);
                    tar.append_link(&mut header, path, target)
                }
            };
            added.with_context(|| format!("add {path} to a layer"))?;
        }
        tar.into_inner().context("end a layer")
    }

    fn add(&mut self, path: &str, entry: LayerEntry) {
        let ends = path.match_indices('/').map(|(end, _)| end);
        for end in ends {
            self.0.entry(path[..end].to_owned()).or_insert(LayerEntry::Directory { mode: 0o755 });
        }
        self.0.insert(path.to_owned(), entry);
    }
}
