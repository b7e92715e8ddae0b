//! Export of a fenced writer's data: a sparse image of the volume with only the un-uploaded data, and a JSON
//! file next to it, which lists the ranges of this data, and those that the local disk cannot read.
//!
//! Invariant: under its final name the image is complete; a failure removes its temporary files.

use std::ffi::OsString;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

use holdfast_ring::HeapBuffer;
use holdfast_types::{SECTOR_BYTES, SectorRange};
use serde::Serialize;

use super::{Contents, FencedError, Kept, file};
use crate::node::local::file::{open_mode, sync_dir};

/// Bytes per copy operation.
const COPY_BYTES: usize = 1 << 20;

/// Result of an export.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Exported {
    /// The image.
    pub(crate) image: PathBuf,
    /// Its map.
    pub(crate) map: PathBuf,
    /// The size of the image, most of it holes.
    pub(crate) size_bytes: u64,
    /// Un-uploaded bytes in the image.
    pub(crate) bytes: u64,
    /// Number of their ranges.
    pub(crate) ranges: usize,
    /// Un-uploaded bytes missing in the image, because the local disk cannot read them.
    pub(crate) unreadable_bytes: u64,
}

/// The JSON file next to the image.
#[derive(Debug, Serialize)]
struct ImageMap<'a> {
    volume: &'a str,
    epoch: u64,
    size_bytes: u64,
    /// Ascending, disjoint; everything else in the image is a hole without meaning.
    ranges: Vec<ByteRange>,
    /// Ranges missing in the image because they could not be read; also ascending, disjoint.
    unreadable: Vec<ByteRange>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ByteRange {
    offset_bytes: u64,
    length_bytes: u64,
}

/// Writes the data of `kept` to `output` and `<output>.json`.
///
/// # Errors
/// [`FencedError::OutputExists`] unless `overwrite`; otherwise the error of a file. Unreadable sectors are
/// not an error: [`Exported`] and the JSON file list them. A failure leaves nothing behind, except that with
/// `overwrite` a failure at the very end may leave an image without its JSON file.
pub(crate) fn export(kept: &Kept, output: &Path, overwrite: bool) -> Result<Exported, FencedError> {
    let map = with_suffix(output, ".json");
    if let Some(there) = [output, &map].into_iter().find(|path| path.exists())
        && !overwrite
    {
        return Err(FencedError::OutputExists(there.to_owned()));
    }
    let contents = kept.contents()?;
    let image = Fresh::create(output)?;
    let Copied { ranges, unreadable } = copy(kept, &contents, &image)?;
    let bytes = |ranges: &[ByteRange]| ranges.iter().map(|range| range.length_bytes).sum();
    let exported = Exported {
        image: output.to_owned(),
        map: map.clone(),
        size_bytes: contents.sectors * SECTOR_BYTES,
        bytes: bytes(&ranges),
        ranges: ranges.len(),
        unreadable_bytes: bytes(&unreadable),
    };
    let text = serde_json::to_vec_pretty(&ImageMap {
        volume: contents.volume.as_str(),
        epoch: contents.epoch.0,
        size_bytes: exported.size_bytes,
        ranges,
        unreadable,
    })
    .map_err(|error| file(&map, "written")(error.into()))?;
    let mut fresh_map = Fresh::create(&map)?;
    fresh_map.handle.write_all(&text).map_err(file(&fresh_map.path, "written"))?;
    // The JSON file must match the image: the old one is removed before the old image is replaced.
    match fs::remove_file(&map) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => {
            return Err(file(&map, "removed")(error).into());
        }
        Ok(()) | Err(_) => {}
    }
    image.put_in_place(output)?;
    fresh_map.put_in_place(&map)?;
    Ok(exported)
}

/// Result of copying the un-uploaded data of both sides.
#[derive(Default)]
struct Copied {
    ranges: Vec<ByteRange>,
    unreadable: Vec<ByteRange>,
}

fn append(ranges: &mut Vec<ByteRange>, run: SectorRange) {
    let offset_bytes = run.start.byte_offset();
    match ranges.last_mut() {
        Some(last) if last.offset_bytes + last.length_bytes == offset_bytes => {
            last.length_bytes += run.bytes()
        }
        Some(_) | None => ranges.push(ByteRange { offset_bytes, length_bytes: run.bytes() }),
    }
}

fn copy(kept: &Kept, contents: &Contents, image: &Fresh) -> Result<Copied, FencedError> {
    image.handle.set_len(contents.sectors * SECTOR_BYTES).map_err(file(&image.path, "resized"))?;
    let sides = ["a.data", "b.data"].map(|name| kept.dir.join(name));
    let open = |path: &PathBuf| open_mode(path, OpenOptions::new().read(true)).map_err(file(path, "opened"));
    let handles: [File; 2] = [open(&sides[0])?, open(&sides[1])?];
    let mut buffer = HeapBuffer::zeroed(COPY_BYTES);
    let mut copied = Copied::default();
    for (run, side) in &contents.runs {
        let (from, path) = (&handles[*side as usize], &sides[*side as usize]);
        for piece in run.split_at_multiples(COPY_BYTES as u64 / SECTOR_BYTES) {
            if copy_piece(piece, from, path, image, &mut buffer)? {
                append(&mut copied.ranges, piece);
                continue;
            }
            for sector in piece.split_at_multiples(1) {
                let there = copy_piece(sector, from, path, image, &mut buffer)?;
                append(if there { &mut copied.ranges } else { &mut copied.unreadable }, sector);
            }
        }
    }
    Ok(copied)
}

/// Copies a piece. Returns true if the disk was able to read all of it.
fn copy_piece(
    piece: SectorRange,
    from: &File,
    path: &Path,
    image: &Fresh,
    buffer: &mut HeapBuffer,
) -> Result<bool, FencedError> {
    let bytes = usize::try_from(piece.bytes()).expect("a piece is at most COPY_BYTES");
    let piece_bytes = &mut buffer[..bytes];
    match from.read_exact_at(piece_bytes, piece.start.byte_offset()) {
        // A side that is too short is not valid.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(file(path, "read")(error).into());
        }
        Err(error) => {
            tracing::debug!(path = %path.display(), sector = piece.start.0, %error, "cannot be read");
            return Ok(false);
        }
        Ok(()) => {}
    }
    // Zeros stay a hole.
    if piece_bytes.iter().any(|byte| *byte != 0) {
        image
            .handle
            .write_all_at(piece_bytes, piece.start.byte_offset())
            .map_err(file(&image.path, "written"))?;
    }
    Ok(true)
}

/// A file under its temporary name, which is removed unless it gets its final one.
struct Fresh {
    path: PathBuf,
    handle: File,
}

impl Fresh {
    fn create(target: &Path) -> Result<Self, FencedError> {
        let path = with_suffix(target, ".partial");
        let handle = OpenOptions::new()
            .write(true)
            .create(true)
            .truncate(true)
            .mode(0o600)
            .open(&path)
            .map_err(file(&path, "created"))?;
        Ok(Self { path, handle })
    }

    fn put_in_place(self, target: &Path) -> Result<(), FencedError> {
        self.handle.sync_all().map_err(file(&self.path, "synced"))?;
        fs::rename(&self.path, target).map_err(file(target, "moved into place"))?;
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(sync_dir(dir)?)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        match fs::remove_file(&self.path) {
            // The file has its final name.
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => tracing::warn!(path = %self.path.display(), %error, "a partial export stays"),
            Ok(()) => {}
        }
    }
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(suffix);
    name.into()
}
