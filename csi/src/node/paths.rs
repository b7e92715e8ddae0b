//! Paths in requests.

use std::path::PathBuf;

use tonic::Status;

/// Checks a path for a mount or unmount.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing or relative.
pub(super) fn absolute(field: &str, path: String) -> Result<PathBuf, Status> {
    let named = named(field, path)?;
    if named.is_absolute() {
        return Ok(named);
    }
    let path = named.display();
    Err(Status::invalid_argument(format!("{field}: `{path}` is relative; name an absolute path")))
}

/// Checks a path at which a volume is looked up: a relative path never has one.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing.
pub(super) fn named(field: &str, path: String) -> Result<PathBuf, Status> {
    if path.is_empty() {
        return Err(Status::invalid_argument(format!("{field}: is empty; name a path")));
    }
    // The kernel's mount list has no trailing slashes.
    Ok(path.trim_end_matches('/').into())
}

/// Checks the id of a volume in a request.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing.
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
        assert!(
            named("volume_path", String::new()).is_err() && named("volume_path", "a/b".to_owned()).is_ok()
        );
    }
}
