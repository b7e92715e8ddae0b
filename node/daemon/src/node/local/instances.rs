//! The daemon instances that used a run directory, in the order of their first use.
//!
//! ```text
//! <run>/instances    their names, a list in JSON (tmpfs)
//! <run>/takeovers    the last one, and how often each ended after it had taken over from an older one (tmpfs)
//! ```
//! A pod is an instance: its daemon may be restarted. The owner of the directories hands them over to younger
//! instances only, and not endlessly to one that ends each time: otherwise the daemons of an old and a new
//! pod would alternate indefinitely.

use std::collections::BTreeMap;
use std::fmt;
use std::path::Path;
use std::str::FromStr;

use holdfast_service::chain;
use serde::{Deserialize, Serialize};

use crate::node::error::NodeError;
use crate::node::local::record_json::{read, write};

/// Maximum of remembered instances; older ones do not return, because their pods are gone.
const MAX_INSTANCES: usize = 64;

/// Name of an instance, such as the uid of its pod.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(try_from = "String")]
pub(crate) struct InstanceName(String);

/// An invalid name of an instance.
#[derive(Debug, thiserror::Error)]
#[error("the name of an instance has 1 to 63 of a-z, A-Z, 0-9 and '-', such as the uid of a pod")]
pub(crate) struct InstanceError;

impl TryFrom<String> for InstanceName {
    type Error = InstanceError;

    fn try_from(name: String) -> Result<Self, InstanceError> {
        let is_fit = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-';
        if (1..=63).contains(&name.len()) && name.bytes().all(is_fit) {
            Ok(Self(name))
        } else {
            Err(InstanceError)
        }
    }
}

impl FromStr for InstanceName {
    type Err = InstanceError;

    fn from_str(name: &str) -> Result<Self, InstanceError> {
        name.to_owned().try_into()
    }
}

impl fmt::Display for InstanceName {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(formatter)
    }
}

/// The instances that have used a run directory, including the current one.
#[derive(Debug)]
pub(crate) struct Instances {
    /// Oldest first.
    known: Vec<InstanceName>,
    own: Option<InstanceName>,
    takeovers: Takeovers,
}

/// `<run>/takeovers`.
#[derive(Debug, Default, Clone, PartialEq, Eq, Serialize, Deserialize)]
struct Takeovers {
    /// The last instance that used the directory.
    last: Option<InstanceName>,
    /// Number of times that an older instance had to follow each of these.
    failed: BTreeMap<InstanceName, u32>,
}

impl Instances {
    /// Returns those of `run_dir`, which this process owns now, as `own` if it has a name. If the file cannot
    /// be read or written, it logs a warning: the node is still served.
    pub(crate) fn join(run_dir: &Path, own: Option<InstanceName>) -> Self {
        let path = run_dir.join("instances");
        let mut known = read::<Vec<InstanceName>>(&path)
            .unwrap_or_else(|error| warned(&path, &error))
            .unwrap_or_default();
        if let Some(own) = own.as_ref().filter(|own| !known.contains(own)) {
            known.push(own.clone());
            known.drain(..known.len().saturating_sub(MAX_INSTANCES));
            write(&path, &known).unwrap_or_else(|error| warned(&path, &error));
        }
        let mut joined = Self { known, own, takeovers: Takeovers::default() };
        joined.count_takeover(&run_dir.join("takeovers"));
        joined
    }

    /// Counts a failed takeover of the last instance if this process follows a younger one.
    fn count_takeover(&mut self, path: &Path) {
        let before = read::<Takeovers>(path).unwrap_or_else(|error| warned(path, &error)).unwrap_or_default();
        let mut takeovers = before.clone();
        takeovers.failed.retain(|instance, _| self.known.contains(instance));
        if let Some(last) = takeovers.last.take().filter(|last| self.own.is_some() && self.is_newer(last)) {
            *takeovers.failed.entry(last).or_default() += 1;
        }
        takeovers.last.clone_from(&self.own);
        if takeovers != before {
            write(path, &takeovers).unwrap_or_else(|error| warned(path, &error));
        }
        self.takeovers = takeovers;
    }

    /// Returns the number of times that `other` took over from an older instance and ended, so that the older
    /// one served again.
    pub(crate) fn failed_takeovers(&self, other: &InstanceName) -> u32 {
        self.takeovers.failed.get(other).copied().unwrap_or_default()
    }

    /// Returns true if `other` first used the directory after this process's instance, or never did.
    pub(crate) fn is_newer(&self, other: &InstanceName) -> bool {
        let age = |instance: &InstanceName| self.known.iter().position(|known| known == instance);
        match (age(other), self.own.as_ref().and_then(age)) {
            (None, _) => true,
            (Some(other), Some(own)) => other > own,
            (Some(_), None) => false,
        }
    }
}

fn warned<T: Default>(path: &Path, error: &NodeError) -> T {
    tracing::warn!(
        path = %path.display(),
        error = chain(error),
        "the instances of the daemon could not be recorded; an older one may ask for the node's devices"
    );
    T::default()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn instance(name: &str) -> InstanceName {
        name.parse().unwrap()
    }

    #[test]
    fn only_younger_instances_are_left_to() {
        let dir = tempfile::tempdir().unwrap();
        let run = dir.path();
        let first = Instances::join(run, Some(instance("one")));
        assert!(!first.is_newer(&instance("one")), "it serves already");
        assert!(first.is_newer(&instance("two")));
        let second = Instances::join(run, Some(instance("two")));
        assert!(!second.is_newer(&instance("one")), "its pod is the one that is replaced");
        // The first one serves again because the second one died; it is still the older one.
        let again = Instances::join(run, Some(instance("one")));
        assert!(again.is_newer(&instance("two")) && again.is_newer(&instance("three")));
        let unnamed = Instances::join(run, None);
        assert!(unnamed.is_newer(&instance("three")) && !unnamed.is_newer(&instance("two")));
    }

    #[test]
    fn only_takeovers_that_an_older_instance_follows_have_failed() {
        let dir = tempfile::tempdir().unwrap();
        let join = |name| Instances::join(dir.path(), Some(instance(name)));
        let failed = |name| join("one").failed_takeovers(&instance(name));
        assert_eq!(failed("two"), 0);
        join("two");
        assert_eq!([failed("two"), failed("two")], [1, 1], "the first one was restarted alone");
        join("two");
        join("two");
        assert_eq!([failed("two"), failed("three"), failed("one")], [2, 0, 0]);
        join("two");
        let third = join("three");
        assert_eq!(third.failed_takeovers(&instance("two")), 2, "it was replaced by a younger one");
    }

    #[test]
    fn a_damaged_list_does_not_keep_the_daemon_from_serving() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("instances"), "[\"a b\"]").unwrap();
        let instances = Instances::join(dir.path(), Some(instance("one")));
        assert!(instances.is_newer(&instance("two")) && !instances.is_newer(&instance("one")));
        let next = Instances::join(dir.path(), Some(instance("two")));
        assert!(!next.is_newer(&instance("one")), "the list was written again");
    }

    #[test]
    fn few_instances_are_remembered() {
        let dir = tempfile::tempdir().unwrap();
        for number in 0..MAX_INSTANCES + 10 {
            Instances::join(dir.path(), Some(instance(&format!("pod-{number}"))));
        }
        let known: Vec<InstanceName> = read(&dir.path().join("instances")).unwrap().unwrap();
        assert_eq!((known.len(), &known[0]), (MAX_INSTANCES, &instance("pod-10")));
    }

    #[test]
    fn names_that_no_instance_has_are_refused() {
        for name in ["", "a b", "a/b", &"a".repeat(64)] {
            assert!(name.parse::<InstanceName>().is_err(), "{name:?}");
        }
    }
}
