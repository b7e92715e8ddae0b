//! Names: the requested name of a volume or snapshot, and the name of its object, which is its id.

use tonic::Status;

/// Annotation with the requested name, if it is not valid as an object name.
pub(crate) const CSI_NAME: &str = "holdfast.dev/csi-name";
/// Longest name of a Volume or VolumeSnapshot.
const MAX_BYTES: usize = 63;
/// Hex digits of the hash in a generated name.
const HASH_DIGITS: usize = 40;

/// Name of an object, and the requested name if it differs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct ObjectName {
    /// Name of the object.
    pub(crate) object: String,
    /// The requested name, if it is not a valid object name.
    pub(crate) csi: Option<String>,
}

impl ObjectName {
    /// Returns the object name for a requested name: the mapping is stable.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT`: the name is empty.
    pub(super) fn of(name: &str) -> Result<Self, Status> {
        Self::within(name, MAX_BYTES)
    }

    /// Returns an object name of at most `max_bytes` bytes for a requested name.
    ///
    /// # Errors
    /// Those of [`Self::of`].
    pub(crate) fn within(name: &str, max_bytes: usize) -> Result<Self, Status> {
        if name.is_empty() {
            return Err(Status::invalid_argument("name: is empty; write a name"));
        }
        if is_object_name(name) && name.len() <= max_bytes {
            return Ok(Self { object: name.to_owned(), csi: None });
        }
        let hash = blake3::hash(name.as_bytes()).to_hex();
        Ok(Self { object: format!("v-{}", &hash[..HASH_DIGITS]), csi: Some(name.to_owned()) })
    }
}

/// Checks the id of a volume in a request.
///
/// # Errors
/// `INVALID_ARGUMENT`: it is missing.
pub(super) fn volume_id(id: &str) -> Result<&str, Status> {
    if id.is_empty() { Err(Status::invalid_argument("volume_id: is empty; name a volume")) } else { Ok(id) }
}

/// Returns true if a Volume can have that name: other ids are not volume ids.
pub(crate) fn is_object_name(name: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let bytes = name.as_bytes();
    !bytes.is_empty()
        && bytes.len() <= MAX_BYTES
        && bytes.iter().all(|&byte| inner(byte))
        && bytes.first() != Some(&b'-')
        && bytes.last() != Some(&b'-')
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_fits_stays() {
        let name = "pvc-8f14e45f-ceea-467f-a1d4-91e2f1f0a9c4";
        let expected = ObjectName { object: name.to_owned(), csi: None };
        assert_eq!(ObjectName::of(name).ok(), Some(expected));
    }

    #[test]
    fn any_other_name_is_hashed_and_remembered() {
        let long = "a".repeat(128);
        for name in ["Data", "a.b", "-a", "a-", long.as_str(), "ä"] {
            let found = ObjectName::of(name).expect("a name");
            assert!(is_object_name(&found.object) && found.object.len() == 42, "{found:?}");
            assert_eq!(found.csi.as_deref(), Some(name));
            assert_eq!(ObjectName::of(name).ok(), Some(found));
        }
        assert_ne!(ObjectName::of("a.b").ok(), ObjectName::of("a.c").ok());
        assert!(ObjectName::of("").is_err());
    }

    #[test]
    fn a_shorter_limit_hashes_longer_names() {
        let fits = "groupsnapshot-8f14e45f-ceea-467f-a1d4-91e2f1f0a9c4";
        let expected = ObjectName { object: fits.to_owned(), csi: None };
        assert_eq!(ObjectName::within(fits, 52).ok(), Some(expected));
        let long = "a".repeat(53);
        let found = ObjectName::within(&long, 52).expect("a name");
        assert!(found.object.len() == 42 && found.csi.as_deref() == Some(long.as_str()), "{found:?}");
    }
}
