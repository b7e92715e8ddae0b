//! Paths in requests.

use std::path::{Path, PathBuf};

use tonic::Status;

/// Checks a path that a request names.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing or relative.
pub(super) fn absolute(field: &str, path: String) -> Result<PathBuf, Status> {
    if path.is_empty() {
        return Err(Status::invalid_argument(format!("{field}: is empty; name a path")));
    }
    if !Path::new(&path).is_absolute() {
        return Err(Status::invalid_argument(format!(
            "{field}: `{path}` is relative; name an absolute path"
        )));
    }
    // The kernel's list of mounts has no trailing slash.
    Ok(path.trim_end_matches('/').into())
}

/// Checks the id of a volume that a request is about.
///
/// # Errors
/// `INVALID_ARGUMENT`: there is none.
pub(super) fn volume(id: String) -> Result<String, Status> {
    if id.is_empty() { Err(Status::invalid_argument("volume_id: is empty; name a volume")) } else { Ok(id) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_absolute_paths_are_used() {
        assert_eq!(absolute("target_path", "/a/b/".to_owned()).ok(), Some("/a/b".into()));
        assert!(absolute("target_path", String::new()).is_err());
        assert!(absolute("target_path", "a/b".to_owned()).is_err());
    }
}
