//! Processor architectures.

use anyhow::{Result, bail};

/// Processor architectures for which images are built.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Architecture {
    /// x86-64.
    Amd64,
    /// AArch64.
    Arm64,
}

impl Architecture {
    /// Returns the architecture of the host, for which its cargo builds.
    ///
    /// # Errors
    /// If no images exist for the host's architecture.
    pub fn of_host() -> Result<Self> {
        match std::env::consts::ARCH {
            "x86_64" => Ok(Self::Amd64),
            "aarch64" => Ok(Self::Arm64),
            other => bail!("no images are made for {other}: run this on x86-64 or AArch64"),
        }
    }

    /// Returns the name of the architecture, which is the same for Debian and OCI.
    pub fn name(self) -> &'static str {
        match self {
            Self::Amd64 => "amd64",
            Self::Arm64 => "arm64",
        }
    }

    /// Returns the directory of the libraries.
    pub(crate) fn libraries(self) -> &'static str {
        match self {
            Self::Amd64 => "usr/lib/x86_64-linux-gnu",
            Self::Arm64 => "usr/lib/aarch64-linux-gnu",
        }
    }

    /// Returns the path of the dynamic loader named in every program.
    pub(crate) fn loader(self) -> &'static str {
        match self {
            Self::Amd64 => "usr/lib64/ld-linux-x86-64.so.2",
            Self::Arm64 => "usr/lib/ld-linux-aarch64.so.1",
        }
    }
}
