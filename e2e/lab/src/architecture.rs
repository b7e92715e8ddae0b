//! Kinds of processors.

use anyhow::{Result, bail};

/// Kinds of processors that images are made for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64.
    Arm64,
}

impl Architecture {
    /// The host's, which its cargo builds for.
    ///
    /// # Errors
    /// If there are no images for it.
    pub fn of_host() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("no images are made for {other}: run this on x86-64 or AArch64"),
        }
    }

    /// Name of it, the same for Debian and OCI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Directory of the libraries.
    pub(crate) fn libraries(self) -> &'static str {
        match self {
            Self::Amd64 => "usr/lib/x86_64-linux-gnu",
            Self::Arm64 => "usr/lib/aarch64-linux-gnu",
        }
    }

    /// Path of the dynamic loader, which every program names.
    pub(crate) fn loader(self) -> &'static str {
        match self {
            Self::Amd64 => "usr/lib64/ld-linux-x86-64.so.2",
            Self::Arm64 => "usr/lib/ld-linux-aarch64.so.1",
        }
    }
}
