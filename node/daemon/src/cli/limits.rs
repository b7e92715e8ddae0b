//! Limits of a volume on the command line, where `none` removes them.

use std::str::FromStr;

use holdfast_crds::{ByteSize, InvalidQuantity};

/// Word for "no limit".
const NONE: &str = "none";

/// Maximum requests per second; zero: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaxIops(pub(super) u64);

/// Maximum bytes per second; zero: no limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct MaxThroughput(pub(super) u64);

impl MaxIops {
    /// Returns the limit, if there is one.
    pub(super) fn limit(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl MaxThroughput {
    /// Returns the limit, if there is one.
    pub(super) fn limit(self) -> Option<u64> {
        (self.0 > 0).then_some(self.0)
    }
}

impl FromStr for MaxIops {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == NONE => Ok(Self(0)),
            Ok(0) => Err("0 is no limit; write `none` to remove it".to_owned()),
            Ok(iops) => Ok(Self(iops)),
            Err(_invalid) => {
                Err("it is not a number of requests; write for example 3000, or `none`".to_owned())
            }
        }
    }
}

impl FromStr for MaxThroughput {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.parse() {
            _ if text == NONE => Ok(Self(0)),
            Ok(ByteSize(0)) => Err("0 is no limit; write `none` to remove it".to_owned()),
            Ok(ByteSize(bytes)) => Ok(Self(bytes)),
            Err(InvalidQuantity { .. }) => {
                Err("it is not a number of bytes; write for example 125Mi, or `none`".to_owned())
            }
        }
    }
}
