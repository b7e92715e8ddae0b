//! Words from the Controller service to the Node service: the publish context of a volume on its node.

use std::collections::HashMap;

const VOLUME_ID: &str = "volumeID";
const EPOCH: &str = "epoch";
const MAY_FORMAT: &str = "mayFormat";

/// A publication of a volume on a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct PublishContext {
    /// The volume's identity in the object store, by which the node daemon knows it.
    pub(crate) volume_id: String,
    /// Least fencing number of the writer on that node.
    pub(crate) epoch: u64,
    /// The user allows to format a volume with unknown content.
    pub(crate) may_format: bool,
}

/// The context as CSI passes it on.
pub(crate) fn write(context: &PublishContext) -> HashMap<String, String> {
    let PublishContext { volume_id, epoch, may_format } = context;
    let mut words =
        HashMap::from([(VOLUME_ID.to_owned(), volume_id.clone()), (EPOCH.to_owned(), epoch.to_string())]);
    if *may_format {
        words.insert(MAY_FORMAT.to_owned(), "yes".to_owned());
    }
    words
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_an_allowed_format_is_told() {
        for may_format in [false, true] {
            let context = PublishContext { volume_id: "id".to_owned(), epoch: 7, may_format };
            let words = write(&context);
            assert_eq!((words["volumeID"].as_str(), words["epoch"].as_str()), ("id", "7"));
            assert_eq!(words.contains_key("mayFormat"), may_format);
        }
    }
}
