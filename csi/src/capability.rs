//! Requested use of a volume: mounted or as a raw block device, by one or several users.

use holdfast_proto::csi::v1::VolumeCapability;
use holdfast_proto::csi::v1::volume_capability::access_mode::Mode;
use holdfast_proto::csi::v1::volume_capability::{AccessMode, AccessType, MountVolume};
use tonic::Status;

/// Use of a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Capability {
    /// Form of access.
    pub(crate) access: VolumeAccess,
    /// The paths and nodes that may use it at the same time.
    pub(crate) scope: AccessScope,
}

/// Form of access to a volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum VolumeAccess {
    /// As a raw block device.
    Block,
    /// With a file system.
    Mount {
        /// The file system.
        file_system: FileSystem,
        /// Options of the mount.
        options: Vec<String>,
    },
}

impl VolumeAccess {
    /// Returns true if the mount options ask for a read-only file system: the last of `ro` and `rw` counts,
    /// as for mount(8).
    pub(crate) fn is_read_only(&self) -> bool {
        match self {
            Self::Block => false,
            Self::Mount { file_system: _, options } => {
                let mut options = options.iter().flat_map(|options| options.split(','));
                options.rfind(|option| matches!(*option, "ro" | "rw")) == Some("ro")
            }
        }
    }
}

/// The paths and nodes that may use a volume at the same time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AccessScope {
    /// One path of one node at a time (ReadWriteOncePod).
    OnePath,
    /// Any number of paths of one node (ReadWriteOnce).
    OneNode,
    /// Any number of paths of any number of nodes, all of them read-only (ReadOnlyMany).
    ManyReaders,
}

/// A file system that the driver creates and mounts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum FileSystem {
    /// ext4, the default.
    Ext4,
    /// XFS.
    Xfs,
    /// Btrfs.
    Btrfs,
}

impl FileSystem {
    /// All supported file systems.
    pub(crate) const ALL: [Self; 3] = [Self::Ext4, Self::Xfs, Self::Btrfs];

    /// Returns its name, as used by mount(8) and blkid(8).
    pub(crate) const fn name(self) -> &'static str {
        match self {
            Self::Ext4 => "ext4",
            Self::Xfs => "xfs",
            Self::Btrfs => "btrfs",
        }
    }

    /// Returns the minimum size of a device for the file system, in bytes. Source: mkfs.xfs(8); mkfs.btrfs(8)
    /// needs at least 109 MiB; a smaller ext4 has no journal.
    pub(crate) const fn min_bytes(self) -> u64 {
        match self {
            Self::Ext4 => 8 << 20,
            Self::Xfs => 300 << 20,
            Self::Btrfs => 128 << 20,
        }
    }

    /// Returns the file system of that name.
    pub(crate) fn named(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|one| one.name() == name)
    }
}

/// An unsupported capability. Display names the field and the fix.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum UnsupportedCapability {
    /// No capability was given.
    #[error("volume_capability: is missing; specify `mount` or `block` access")]
    Missing,
    /// Neither access form was given.
    #[error("volume_capability.access_type: is missing; specify `mount` or `block`")]
    NoAccessType,
    /// The mode is missing or unknown.
    #[error(
        "volume_capability.access_mode: is missing or unknown; specify ReadWriteOnce, ReadWriteOncePod or ReadOnlyMany"
    )]
    NoAccessMode,
    /// The mode needs writers on several nodes at a time, or is not one that Kubernetes uses.
    #[error(
        "volume_capability.access_mode: {0} is not supported. One node writes a volume at a time. Write \
         accessModes ReadWriteOnce or ReadWriteOncePod, or ReadOnlyMany with a dataSource"
    )]
    AccessMode(&'static str),
    /// The driver does not support the file system.
    #[error("volume_capability.mount.fs_type: `{0}` is not supported; write ext4, xfs or btrfs")]
    FileSystem(String),
    /// Group ownership by a mount option was requested.
    #[error(
        "volume_capability.mount.volume_mount_group: is not supported; the kubelet sets fsGroup by itself"
    )]
    MountGroup,
}

impl From<UnsupportedCapability> for Status {
    fn from(unsupported: UnsupportedCapability) -> Self {
        Self::invalid_argument(unsupported.to_string())
    }
}

impl Capability {
    /// Returns the minimum size of a volume for this use in bytes, and the file system that needs it.
    pub(crate) fn min_bytes(&self) -> Option<(u64, FileSystem)> {
        match self.access {
            VolumeAccess::Block => None,
            VolumeAccess::Mount { file_system, .. } => Some((file_system.min_bytes(), file_system)),
        }
    }
}

impl TryFrom<Option<VolumeCapability>> for Capability {
    type Error = UnsupportedCapability;

    fn try_from(capability: Option<VolumeCapability>) -> Result<Self, UnsupportedCapability> {
        let VolumeCapability { access_mode, access_type } =
            capability.ok_or(UnsupportedCapability::Missing)?;
        let access = match access_type.ok_or(UnsupportedCapability::NoAccessType)? {
            AccessType::Block(_) => VolumeAccess::Block,
            AccessType::Mount(mount) => mounted(mount)?,
        };
        let AccessMode { mode } = access_mode.ok_or(UnsupportedCapability::NoAccessMode)?;
        let scope = scope(Mode::try_from(mode).map_err(|_unknown| UnsupportedCapability::NoAccessMode)?)?;
        Ok(Self { access, scope })
    }
}

fn mounted(mount: MountVolume) -> Result<VolumeAccess, UnsupportedCapability> {
    let MountVolume { fs_type, mount_flags, volume_mount_group } = mount;
    if !volume_mount_group.is_empty() {
        return Err(UnsupportedCapability::MountGroup);
    }
    let file_system = match fs_type.as_str() {
        "" => FileSystem::Ext4,
        name => FileSystem::named(name).ok_or_else(|| UnsupportedCapability::FileSystem(name.to_owned()))?,
    };
    Ok(VolumeAccess::Mount { file_system, options: mount_flags })
}

fn scope(mode: Mode) -> Result<AccessScope, UnsupportedCapability> {
    match mode {
        Mode::SingleNodeWriter | Mode::SingleNodeMultiWriter => Ok(AccessScope::OneNode),
        Mode::SingleNodeSingleWriter => Ok(AccessScope::OnePath),
        Mode::MultiNodeReaderOnly => Ok(AccessScope::ManyReaders),
        Mode::Unknown => Err(UnsupportedCapability::NoAccessMode),
        Mode::SingleNodeReaderOnly | Mode::MultiNodeSingleWriter | Mode::MultiNodeMultiWriter => {
            Err(UnsupportedCapability::AccessMode(mode.as_str_name()))
        }
    }
}

#[cfg(test)]
mod tests {
    use holdfast_proto::csi::v1::volume_capability::BlockVolume;

    use super::*;

    fn capability(access_type: AccessType, mode: Mode) -> Option<VolumeCapability> {
        Some(VolumeCapability {
            access_mode: Some(AccessMode { mode: mode.into() }),
            access_type: Some(access_type),
        })
    }

    fn mount(fs_type: &str) -> AccessType {
        AccessType::Mount(MountVolume { fs_type: fs_type.to_owned(), ..MountVolume::default() })
    }

    #[test]
    fn one_node_uses_a_volume_mounted_or_raw() {
        let found =
            Capability::try_from(capability(mount(""), Mode::SingleNodeMultiWriter)).expect("offered");
        let VolumeAccess::Mount { file_system, .. } = found.access else { panic!("mounted") };
        assert_eq!((file_system, found.scope), (FileSystem::Ext4, AccessScope::OneNode));
        let raw = capability(AccessType::Block(BlockVolume {}), Mode::SingleNodeSingleWriter);
        let expected = Capability { access: VolumeAccess::Block, scope: AccessScope::OnePath };
        assert_eq!(Capability::try_from(raw), Ok(expected));
    }

    #[test]
    fn many_nodes_read_a_volume() {
        let raw = capability(AccessType::Block(BlockVolume {}), Mode::MultiNodeReaderOnly);
        let expected = Capability { access: VolumeAccess::Block, scope: AccessScope::ManyReaders };
        assert_eq!(Capability::try_from(raw), Ok(expected));
    }

    #[test]
    fn everything_else_is_refused_by_field_and_fix() {
        for (request, words) in [
            (None, "volume_capability: is missing"),
            (capability(mount("zfs"), Mode::SingleNodeWriter), "`zfs` is not supported; write ext4, xfs"),
            (capability(mount(""), Mode::MultiNodeMultiWriter), "MULTI_NODE_MULTI_WRITER is not supported"),
            (capability(mount(""), Mode::SingleNodeReaderOnly), "or ReadOnlyMany with a dataSource"),
            (capability(mount(""), Mode::Unknown), "access_mode: is missing"),
        ] {
            let refused = Capability::try_from(request).expect_err(words).to_string();
            assert!(refused.contains(words), "{refused}");
        }
    }
}
