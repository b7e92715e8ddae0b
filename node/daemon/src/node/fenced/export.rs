//! The export of a fenced writer's data to a file: a sparse image of the volume that holds only what was
//! never uploaded, and beside it, as JSON, which bytes those are, and which of them the local disk cannot
//! read.
//!
//! Invariant: under its name the image is whole; what a failure leaves under another name is removed.

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

/// Bytes copied at once.
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
    /// Bytes that were never uploaded and are in the image.
    pub(crate) bytes: u64,
    /// Ranges they lie in.
    pub(crate) ranges: usize,
    /// Bytes that were never uploaded and are not in the image: the local disk cannot read them.
    pub(crate) unreadable_bytes: u64,
}

/// The JSON beside the image.
#[derive(Debug, Serialize)]
struct ImageMap<'a> {
    volume: &'a str,
    epoch: u64,
    size_bytes: u64,
    /// Ascending, apart; everything else in the image is a hole and says nothing.
    ranges: Vec<ByteRange>,
    /// Ranges that belong into the image and could not be read; also ascending, apart.
    unreadable: Vec<ByteRange>,
}

#[derive(Debug, PartialEq, Eq, Serialize)]
struct ByteRange {
    offset_bytes: u64,
    length_bytes: u64,
}

/// Writes what `kept` holds to `output` and `<output>.json`.
///
/// # Errors
/// [`FencedError::OutputExists`] unless `overwrite`; else which file could not be used. Sectors that the disk
/// cannot read are no error: [`Exported`] and the JSON say which are missing. Nothing is left behind by a
/// failure; with `overwrite`, an image without a map is what a failure at the very end may leave.
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
    // A map lies beside its own image or not at all: the old one goes before the old image is replaced.
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

/// Result of copying the data that was never uploaded, whichever side holds it.
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

/// Copies a piece. Returns true if the disk could read all of it.
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
        // A side that ends early is no side.
        Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => {
            return Err(file(path, "read")(error).into());
        }
        Err(error) => {
            tracing::debug!(path = %path.display(), sector = piece.start.0, %error, "cannot be read");
            return Ok(false);
        }
        Ok(()) => {}
    }
    // What reads as zeros stays a hole.
    if piece_bytes.iter().any(|byte| *byte != 0) {
        image
            .handle
            .write_all_at(piece_bytes, piece.start.byte_offset())
            .map_err(file(&image.path, "written"))?;
    }
    Ok(true)
}

/// A file that has not got its name yet; removed unless it gets it.
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
        fs::rename(&self.path, target).map_err(file(target, "put in its place"))?;
        let dir = target.parent().filter(|dir| !dir.as_os_str().is_empty()).unwrap_or(Path::new("."));
        Ok(sync_dir(dir)?)
    }
}

impl Drop for Fresh {
    fn drop(&mut self) {
        match fs::remove_file(&self.path) {
            // It has its name.
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
