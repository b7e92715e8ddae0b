//! A handoff: a daemon that waits for the node's directories asks the one that has them to leave.
//!
//! ```text
//! successor: reads what is attached -> asks once a second, until it has the lock
//! owner:     the asking instance is younger -> answers -> ends as on SIGTERM: the devices wait QUIESCED
//! ```
//! So the image of a new version is there, its process runs and its configuration is accepted before a device
//! waits. The lock alone says which process may use the directories; a daemon that does not know the request,
//! or refuses it, serves on.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::node::v1::HandOverRequest;
use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_service::chain;
use tokio::sync::watch;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::node::{Instance, Instances, NodeConfig, check_attached, run_blocking};

/// Time between two requests. An owner that agreed has requests in flight to finish.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Longest wait for an answer.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// The owner's side.
#[derive(Debug, Clone)]
pub(crate) struct Handoff {
    instances: Arc<Instances>,
    agreed: watch::Sender<Option<Instance>>,
}

impl Handoff {
    /// Of a daemon that has the directories.
    pub(crate) fn new(instances: Instances) -> Self {
        Self { instances: Arc::new(instances), agreed: watch::Sender::new(None) }
    }

    /// Of a daemon without a name, in a directory that no instance used.
    #[cfg(test)]
    pub(crate) fn unnamed() -> Self {
        Self::new(Instances::join(Path::new("/nonexistent"), None))
    }

    /// Agrees to leave the devices to `instance`.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: it is not younger.
    pub(crate) fn agree(&self, instance: Instance) -> Result<(), Status> {
        if !self.instances.is_younger(&instance) {
            return Err(Status::failed_precondition(format!(
                "instance {instance} served this node before; the present daemon serves on"
            )));
        }
        self.agreed.send_replace(Some(instance));
        Ok(())
    }

    /// Waits until it has agreed; with which instance.
    pub(crate) async fn agreed(&self) -> Instance {
        let mut agreed = self.agreed.subscribe();
        loop {
            if let Some(instance) = agreed.borrow_and_update().clone() {
                return instance;
            }
            // The sender is here.
            let _changed = agreed.changed().await;
        }
    }
}

/// Asks the owner of the directories to leave them to `instance`, again and again. Does not ask while this
/// version cannot read what is attached: the owner serves on.
pub(crate) async fn ask(config: NodeConfig, socket: PathBuf, instance: Instance) -> ! {
    let (mut can_read, mut last) = (false, None);
    loop {
        if !can_read {
            let config = config.clone();
            let checked = run_blocking(move || check_attached(&config)).await;
            can_read = checked.is_ok();
            if let Err(error) = checked {
                note(&mut last, Answer::Refused(chain(&error)));
            }
        }
        if can_read {
            note(&mut last, ask_once(&socket, &instance).await);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum Answer {
    Agreed,
    /// The reason for which the owner serves on.
    Refused(String),
    /// No process listens: the owner has just begun, or is about to end.
    NotReached(String),
}

/// Logs an answer unless it is the `last` one again.
fn note(last: &mut Option<Answer>, answer: Answer) {
    if last.as_ref() == Some(&answer) {
        return;
    }
    match &answer {
        Answer::Agreed => {
            tracing::info!("the daemon that serves this node agreed to leave its devices to this one");
        }
        Answer::Refused(reason) => tracing::warn!(
            reason,
            "the devices of this node were not handed over; the daemon that has them serves on, and this one waits"
        ),
        Answer::NotReached(reason) => {
            tracing::info!(reason, "the daemon that has this node could not be asked yet for its devices");
        }
    }
    *last = Some(answer);
}

async fn ask_once(socket: &Path, instance: &Instance) -> Answer {
    let connected = async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        endpoint.timeout(ANSWER_WITHIN).connect().await
    };
    let channel = match connected.await {
        Ok(channel) => channel,
        Err(error) => return Answer::NotReached(chain(&error)),
    };
    let request = HandOverRequest { instance: instance.to_string() };
    match NodeClient::new(channel).hand_over(request).await {
        Ok(_) => Answer::Agreed,
        Err(status) if status.code() == Code::Unimplemented => {
            Answer::Refused("its version knows no handoff; delete its pod, or end it".to_owned())
        }
        Err(status) => Answer::Refused(status.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_owner_leaves_once_it_has_agreed() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = Handoff::new(Instances::join(dir.path(), Some("one".parse().unwrap())));
        let refused = handoff.agree("one".parse().unwrap()).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let waits = tokio::time::timeout(Duration::from_millis(20), handoff.agreed()).await;
        assert!(waits.is_err(), "a refusal changes nothing");
        handoff.agree("two".parse().unwrap()).unwrap();
        assert_eq!(handoff.agreed().await, "two".parse().unwrap());
    }
}
