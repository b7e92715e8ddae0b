//! Small JSON files that are replaced as a whole, even on a full disk.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::node::error::{NodeError, file};
use crate::node::local::record_file::replace_exact;

/// Returns the value in a JSON file; `None` if the file does not exist.
///
/// # Errors
/// [`NodeError::Damaged`]; an unreadable file.
pub(in crate::node) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, NodeError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| NodeError::Damaged { path: path.to_owned(), source: error.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file(path, "read")(error)),
    }
}

/// Replaces the file's value by `value`.
///
/// # Errors
/// The file cannot be written.
pub(in crate::node) fn write(path: &Path, value: &impl Serialize) -> Result<(), NodeError> {
    let text = serde_json::to_vec(value)
        .map_err(|error| NodeError::Damaged { path: path.to_owned(), source: error.into() })?;
    replace_exact(path, &text, 0o600)
}
