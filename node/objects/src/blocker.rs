//! Causes for which a reachable store rejects requests until a user fixes them.

/// Cause, other than missing rights, for which a reachable store rejects a kind of request. None clears by
/// itself; once it is fixed at the store or on this host, waiting requests continue.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Blocker {
    /// The object is in an archive class and cannot be read until it is restored.
    Archived,
    /// A quota or a spending cap is exhausted.
    Quota,
    /// The account is suspended, unpaid or not signed up.
    Account,
    /// The bucket's encryption key is disabled, deleted or not permitted.
    Key,
    /// The server's disks are full.
    ServerFull,
    /// The bucket requires a checksum in each upload because of Object Lock.
    Retention,
    /// The bucket is in another region or behind another endpoint.
    Region,
    /// This host's clock differs too much from the server's.
    Clock,
    /// No credentials could be obtained, so no request was sent.
    NoCredentials,
}

impl Blocker {
    /// All blockers.
    pub const ALL: [Self; 9] = [
        Self::Archived,
        Self::Quota,
        Self::Account,
        Self::Key,
        Self::ServerFull,
        Self::Retention,
        Self::Region,
        Self::Clock,
        Self::NoCredentials,
    ];

    /// Returns the reason for a condition.
    pub const fn reason(self) -> &'static str {
        match self {
            Self::Archived => "ObjectArchived",
            Self::Quota => "QuotaExceeded",
            Self::Account => "AccountSuspended",
            Self::Key => "EncryptionKeyUnusable",
            Self::ServerFull => "ServerFull",
            Self::Retention => "ObjectLockRetention",
            Self::Region => "WrongRegion",
            Self::Clock => "ClockSkewed",
            Self::NoCredentials => "CredentialsMissing",
        }
    }

    /// Returns the related field of the `ObjectStore` resource.
    pub const fn field(self) -> &'static str {
        match self {
            Self::Archived | Self::Quota | Self::Key | Self::Retention => "bucket",
            Self::ServerFull => "endpoint",
            Self::Region => "region",
            Self::Account | Self::Clock | Self::NoCredentials => "credentials",
        }
    }

    /// Returns the state of the store as a clause.
    pub const fn state(self) -> &'static str {
        match self {
            Self::Archived => "an object is in an archive class and cannot be read",
            Self::Quota => "a quota of the bucket or the account is exhausted",
            Self::Account => "the account at the provider is suspended or has a problem",
            Self::Key => "the encryption key of the bucket is disabled, deleted or not permitted",
            Self::ServerFull => "the server's storage is full",
            Self::Retention => {
                "the bucket retains every object by Object Lock and rejects uploads without a checksum"
            }
            Self::Region => "the bucket is in another region or behind another endpoint",
            Self::Clock => "the server rejects this host's clock time",
            Self::NoCredentials => "no credentials could be obtained",
        }
    }

    /// Returns the remedy as an instruction.
    pub const fn fix(self) -> &'static str {
        match self {
            Self::Archived => {
                "restore the archived objects, then remove the lifecycle rule that archives them"
            }
            Self::Quota => {
                "raise the quota or spending cap, or delete volumes and snapshots that are not needed"
            }
            Self::Account => "ask the provider about the account: payment, suspension, sign-up",
            Self::Key => {
                "enable the key, or allow this role to use it in the key's policy (kms:GenerateDataKey, kms:Decrypt)"
            }
            Self::ServerFull => "add storage to the server, or delete what is not needed",
            Self::Retention => "remove the bucket's default retention, or use another bucket",
            Self::Region => "set the bucket's own region and the endpoint of that region",
            Self::Clock => "synchronize the clock of this host (NTP)",
            Self::NoCredentials => "check the environment, the token file and the role",
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;

    #[test]
    fn each_blocker_has_a_reason_and_a_remedy_of_its_own() {
        let reasons: BTreeSet<_> = Blocker::ALL.map(Blocker::reason).into();
        let fixes: BTreeSet<_> = Blocker::ALL.map(Blocker::fix).into();
        assert_eq!((reasons.len(), fixes.len()), (Blocker::ALL.len(), Blocker::ALL.len()));
        for blocker in Blocker::ALL {
            assert!(!blocker.state().contains("; ") && !blocker.fix().contains("; "), "{blocker:?}");
        }
    }
}
