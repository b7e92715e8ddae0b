//! Small files of JSON that are replaced whole, also on a full disk.

use std::fs;
use std::io;
use std::path::Path;

use serde::Serialize;
use serde::de::DeserializeOwned;

use crate::node::error::{NodeError, file};
use crate::node::local::record_file::replace_exact;

/// The value in a file of JSON; none where there is no file.
///
/// # Errors
/// [`NodeError::Damaged`]; the file cannot be read.
pub(in crate::node) fn read<T: DeserializeOwned>(path: &Path) -> Result<Option<T>, NodeError> {
    match fs::read(path) {
        Ok(bytes) => serde_json::from_slice(&bytes)
            .map(Some)
            .map_err(|error| NodeError::Damaged { path: path.to_owned(), source: error.into() }),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(None),
        Err(error) => Err(file(path, "read")(error)),
    }
}

/// Puts `value` in the place of the file's.
///
/// # Errors
/// The file cannot be written.
pub(in crate::node) fn write(path: &Path, value: &impl Serialize) -> Result<(), NodeError> {
    let text = serde_json::to_vec(value)
        .map_err(|error| NodeError::Damaged { path: path.to_owned(), source: error.into() })?;
    replace_exact(path, &text, 0o600)
}
