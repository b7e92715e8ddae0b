//! Size of a volume, chosen from the range that a caller allows.

use holdfast_crds::MAX_SIZE_BYTES;
use holdfast_proto::csi::v1::CapacityRange;
use tonic::Status;

use crate::capability::FileSystem;

/// Volume sizes are multiples of a sector, in bytes.
pub(super) const SECTOR_BYTES: u64 = 4096;
/// Size of a volume if the caller gives none.
const DEFAULT_BYTES: u64 = 1 << 30;

/// A range of sizes that a caller allows, in bytes, and the size chosen from it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Capacity {
    /// The minimum size; 0 for any.
    required_bytes: u64,
    /// The maximum size.
    limit_bytes: Option<u64>,
    /// The size to create: the minimum, rounded up to sectors.
    pub(super) bytes: u64,
}

impl Capacity {
    /// Chooses a size from a range.
    ///
    /// # Errors
    /// `INVALID_ARGUMENT` or `OUT_OF_RANGE`, naming the field.
    pub(super) fn choose(range: Option<CapacityRange>) -> Result<Self, Status> {
        let CapacityRange { required_bytes, limit_bytes } = range.unwrap_or_default();
        let positive = |name: &str, bytes: i64| {
            u64::try_from(bytes).map_err(|_negative| {
                Status::invalid_argument(format!("capacity_range.{name}: {bytes} is negative; write a size"))
            })
        };
        let required_bytes = positive("required_bytes", required_bytes)?;
        let limit = positive("limit_bytes", limit_bytes)?;
        let limit_bytes = (limit > 0).then_some(limit);
        let wanted = match (required_bytes, limit_bytes) {
            (0, None) => DEFAULT_BYTES,
            (0, Some(limit)) => DEFAULT_BYTES.min(limit / SECTOR_BYTES * SECTOR_BYTES).max(SECTOR_BYTES),
            (required, _) => required,
        };
        let out_of_range = |message: String| Err(Status::out_of_range(message));
        if wanted > MAX_SIZE_BYTES {
            return out_of_range(format!(
                "capacity_range.required_bytes: {wanted} is more than {MAX_SIZE_BYTES}; ask for at most 64Ti"
            ));
        }
        let bytes = wanted.next_multiple_of(SECTOR_BYTES);
        match limit_bytes {
            Some(limit) if bytes > limit => out_of_range(format!(
                "capacity_range.limit_bytes: {limit} is less than {bytes}, the least multiple of {SECTOR_BYTES} that \
                 suffices; raise the limit"
            )),
            Some(_) | None => Ok(Self { required_bytes, limit_bytes, bytes }),
        }
    }

    /// Returns the size, raised to the minimum that the file system needs.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`: the caller's limit is lower.
    pub(super) fn with_room(self, min_bytes: u64, file_system: FileSystem) -> Result<Self, Status> {
        let bytes = self.bytes.max(min_bytes);
        match self.limit_bytes {
            Some(limit) if bytes > limit => Err(Status::out_of_range(format!(
                "capacity_range.limit_bytes: {limit} is less than the {min_bytes} bytes that {name} needs at least; raise the \
                 limit",
                name = file_system.name()
            ))),
            Some(_) | None => Ok(Self { bytes, ..self }),
        }
    }

    /// Returns the size for a source of `source_bytes`: that size, unless the caller requests more.
    ///
    /// # Errors
    /// `OUT_OF_RANGE`: the caller requests a smaller one.
    pub(super) fn with_source(self, source_bytes: u64) -> Result<Self, Status> {
        if self.required_bytes > 0 && self.bytes < source_bytes {
            return Err(Status::out_of_range(format!(
                "capacity_range.required_bytes: {} is less than the {source_bytes} bytes of volume_content_source; ask for at \
                 least as many",
                self.required_bytes
            )));
        }
        match self.limit_bytes {
            Some(limit) if source_bytes > limit => Err(Status::out_of_range(format!(
                "capacity_range.limit_bytes: {limit} is less than the {source_bytes} bytes of volume_content_source; raise the \
                 limit"
            ))),
            Some(_) | None if self.required_bytes == 0 => Ok(Self { bytes: source_bytes, ..self }),
            Some(_) | None => Ok(self),
        }
    }

    /// Returns true if a volume of that size is acceptable.
    pub(super) fn allows(&self, bytes: u64) -> bool {
        bytes >= self.required_bytes && self.limit_bytes.is_none_or(|limit| bytes <= limit)
    }
}

/// Formats a size in bytes for a Volume's spec, with the largest suffix that fits.
pub(super) fn quantity(bytes: u64) -> String {
    let suffix = [(40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")]
        .into_iter()
        .find(|(shift, _)| bytes > 0 && bytes.is_multiple_of(1 << shift));
    suffix.map_or_else(|| bytes.to_string(), |(shift, suffix)| format!("{}{suffix}", bytes >> shift))
}

/// Converts a size to CSI's type.
pub(super) fn signed(bytes: u64) -> i64 {
    i64::try_from(bytes).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use tonic::Code;

    use super::*;

    fn choose(required_bytes: i64, limit_bytes: i64) -> Result<u64, Code> {
        let range = CapacityRange { required_bytes, limit_bytes };
        Capacity::choose(Some(range)).map(|chosen| chosen.bytes).map_err(|status| status.code())
    }

    #[test]
    fn the_least_size_that_suffices_is_chosen() {
        assert_eq!(Capacity::choose(None).map(|chosen| chosen.bytes).ok(), Some(1 << 30));
        assert_eq!(choose(0, 0), Ok(1 << 30));
        assert_eq!(choose(0, 10_000), Ok(8192));
        assert_eq!(choose(5000, 0), Ok(8192));
        assert_eq!(choose(8192, 8192), Ok(8192));
        assert_eq!(choose(8193, 9000), Err(Code::OutOfRange));
        assert_eq!(choose(1 << 50, 0), Err(Code::OutOfRange));
        assert_eq!(choose(8192, 4096), Err(Code::OutOfRange));
        assert_eq!(choose(0, 100), Err(Code::OutOfRange));
        assert_eq!(choose(-1, 0), Err(Code::InvalidArgument));
        assert_eq!(choose(0, -1), Err(Code::InvalidArgument));
        assert_eq!(choose(i64::MAX, 0), Err(Code::OutOfRange));
    }

    /// Regression: mkfs failed on such a volume when its first pod started.
    #[test]
    fn a_file_system_has_room() {
        let choose = |required_bytes, limit_bytes| {
            let range =
                Capacity::choose(Some(CapacityRange { required_bytes, limit_bytes })).expect("a range");
            let roomy = range.with_room(FileSystem::Xfs.min_bytes(), FileSystem::Xfs);
            roomy.map(|chosen| chosen.bytes).map_err(|status| status.message().to_owned())
        };
        assert_eq!(choose(1 << 30, 0), Ok(1 << 30));
        assert_eq!(choose(1 << 20, 0), Ok(300 << 20));
        assert_eq!(choose(1 << 20, 1 << 30), Ok(300 << 20));
        let refused = choose(1 << 20, 200 << 20).expect_err("no room");
        assert!(refused.contains("314572800 bytes that xfs needs at least"), "{refused}");
    }

    #[test]
    fn a_volume_within_the_range_will_do() {
        let range = Capacity::choose(Some(CapacityRange { required_bytes: 8192, limit_bytes: 16384 }));
        let range = range.expect("a range");
        assert!(range.allows(8192) && range.allows(16384));
        assert!(!range.allows(4096) && !range.allows(20480));
    }

    #[test]
    fn sizes_have_the_largest_suffix() {
        for (bytes, text) in
            [(1 << 40, "1Ti"), (3 << 30, "3Gi"), (1536 << 20, "1536Mi"), (4096, "4Ki"), (1, "1")]
        {
            assert_eq!(quantity(bytes), text);
        }
    }

    #[test]
    fn a_volume_is_as_large_as_what_it_begins_with() {
        let with = |required_bytes, limit_bytes| {
            let chosen =
                Capacity::choose(Some(CapacityRange { required_bytes, limit_bytes })).expect("a range");
            chosen.with_source(2 << 30).map(|chosen| chosen.bytes).map_err(|status| status.code())
        };
        assert_eq!(with(0, 0), Ok(2 << 30));
        assert_eq!(with(2 << 30, 0), Ok(2 << 30));
        assert_eq!(with(3 << 30, 0), Ok(3 << 30));
        assert_eq!(with(1 << 30, 0), Err(Code::OutOfRange));
        assert_eq!(with(0, 1 << 30), Err(Code::OutOfRange));
    }
}
