//! Handoff: a daemon that waits for the node's directories asks their current owner to leave.
//!
//! ```text
//! successor: reads the attached volumes -> asks once a second, until it has the lock
//! owner:     the asking instance is younger -> answers -> ends as on SIGTERM: the devices wait QUIESCED;
//!            under Kubernetes it stands by, and serves again if the younger instance ends
//! ```
//! A device thus only waits once the new version's image is present, its process runs and its configuration
//! is accepted. Only the lock grants the use of the directories; a daemon that does not know the request, or
//! rejects it, keeps serving. An instance that ended after each of its takeovers must wait before the next
//! one, and after some of them it gets no other: requests to the devices wait each time.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use holdfast_proto::node::v1::HandOverRequest;
use holdfast_proto::node::v1::node_client::NodeClient;
use holdfast_service::chain;
use tokio::sync::watch;
use tokio::time::Instant;
use tonic::transport::Endpoint;
use tonic::{Code, Status};

use crate::node::{InstanceName, Instances, NodeConfig, check_attached, run_blocking};

/// Interval between requests. An owner that agreed has requests in flight to finish.
const ASK_EVERY: Duration = Duration::from_secs(1);
/// Maximum wait for a response.
const ANSWER_WITHIN: Duration = Duration::from_secs(10);

/// Time for which the owner serves before the next handoff to an instance that ended after this many handoffs
/// before it. After more, that instance gets none.
const HELD_FOR: [Duration; 3] = [Duration::ZERO, Duration::from_secs(10), Duration::from_secs(60)];

/// The owner's side.
#[derive(Debug, Clone)]
pub(crate) struct HandoffOwner {
    instances: Arc<Instances>,
    begun: Instant,
    agreed: watch::Sender<Option<InstanceName>>,
}

impl HandoffOwner {
    /// Creates the endpoint of a daemon that owns the directories.
    pub(crate) fn new(instances: Instances) -> Self {
        Self { instances: Arc::new(instances), begun: Instant::now(), agreed: watch::Sender::new(None) }
    }

    /// Creates the endpoint of an unnamed daemon, in directories that no instance used.
    #[cfg(test)]
    pub(crate) fn unnamed() -> Self {
        Self::new(Instances::join(Path::new("/nonexistent"), None))
    }

    /// Agrees to hand the devices over to `instance`.
    ///
    /// # Errors
    /// FAILED_PRECONDITION: that instance is not younger, or ended too often after it had taken over.
    pub(crate) fn agree(&self, instance: InstanceName) -> Result<(), Status> {
        if !self.instances.is_newer(&instance) {
            return Err(Status::failed_precondition(format!(
                "instance {instance} served this node before; the current daemon keeps serving"
            )));
        }
        let failed = self.instances.failed_takeovers(&instance);
        match HELD_FOR.get(failed as usize) {
            Some(held) if self.begun.elapsed() >= *held => {}
            Some(held) => {
                return Err(Status::failed_precondition(format!(
                    "instance {instance} ended after it had taken over (handoffs: {failed}); the current daemon serves for {held:?} first"
                )));
            }
            None => {
                return Err(Status::failed_precondition(format!(
                    "instance {instance} ended after each handoff ({failed}); the current daemon keeps serving. Correct the \
                     cause, then delete that pod, or start the daemon with another HOLDFAST_INSTANCE"
                )));
            }
        }
        self.agreed.send_replace(Some(instance));
        Ok(())
    }

    /// Waits for an agreement and returns the instance that takes over.
    pub(crate) async fn agreed(&self) -> InstanceName {
        let mut agreed = self.agreed.subscribe();
        loop {
            if let Some(instance) = agreed.borrow_and_update().clone() {
                return instance;
            }
            // The sender cannot be dropped: `self` holds it.
            let _changed = agreed.changed().await;
        }
    }
}

/// Repeatedly asks the owner of the directories to hand them over to `instance`. Sends no request until this
/// version can read every attached volume; until then the owner keeps serving.
pub(crate) async fn ask(config: NodeConfig, socket: PathBuf, instance: InstanceName) -> ! {
    let (mut can_read, mut last) = (false, None);
    loop {
        if !can_read {
            let config = config.clone();
            let checked = run_blocking(move || check_attached(&config)).await;
            can_read = checked.is_ok();
            if let Err(error) = checked {
                log_change(&mut last, HandoffAnswer::Refused(chain(&error)));
            }
        }
        if can_read {
            log_change(&mut last, ask_once(&socket, &instance).await);
        }
        tokio::time::sleep(ASK_EVERY).await;
    }
}

/// Outcome of a request.
#[derive(Debug, Clone, PartialEq, Eq)]
enum HandoffAnswer {
    Agreed,
    /// The reason why the owner keeps serving.
    Refused(String),
    /// No process listens: the owner has just started, or is about to exit.
    NotReached(String),
}

/// Logs an answer unless it equals the `last` one.
fn log_change(last: &mut Option<HandoffAnswer>, answer: HandoffAnswer) {
    if last.as_ref() == Some(&answer) {
        return;
    }
    match &answer {
        HandoffAnswer::Agreed => {
            tracing::info!("the daemon that serves this node agreed to leave its devices to this one");
        }
        HandoffAnswer::Refused(reason) => tracing::warn!(
            reason,
            "the devices of this node were not handed over; the daemon that has them keeps serving, and this one waits"
        ),
        HandoffAnswer::NotReached(reason) => {
            tracing::info!(reason, "the daemon that serves this node could not be asked for its devices yet");
        }
    }
    *last = Some(answer);
}

async fn ask_once(socket: &Path, instance: &InstanceName) -> HandoffAnswer {
    let connected = async {
        let endpoint = Endpoint::from_shared(format!("unix://{}", socket.display()))?;
        endpoint.timeout(ANSWER_WITHIN).connect().await
    };
    let channel = match connected.await {
        Ok(channel) => channel,
        Err(error) => return HandoffAnswer::NotReached(chain(&error)),
    };
    let request = HandOverRequest { instance: instance.to_string() };
    match NodeClient::new(channel).hand_over(request).await {
        Ok(_) => HandoffAnswer::Agreed,
        Err(status) if status.code() == Code::Unimplemented => HandoffAnswer::Refused(
            "its version does not support handoffs; delete its pod, or stop it".to_owned(),
        ),
        Err(status) => HandoffAnswer::Refused(status.message().to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn the_owner_leaves_once_it_has_agreed() {
        let dir = tempfile::tempdir().unwrap();
        let handoff = HandoffOwner::new(Instances::join(dir.path(), Some("one".parse().unwrap())));
        let refused = handoff.agree("one".parse().unwrap()).unwrap_err();
        assert_eq!(refused.code(), Code::FailedPrecondition);
        let waits = tokio::time::timeout(Duration::from_millis(20), handoff.agreed()).await;
        assert!(waits.is_err(), "a refusal changes nothing");
        handoff.agree("two".parse().unwrap()).unwrap();
        assert_eq!(handoff.agreed().await, "two".parse().unwrap());
    }

    /// Found in review: a new version that ended after each takeover took the devices again and again from
    /// the old one, which had served them well.
    #[tokio::test(start_paused = true)]
    async fn an_instance_that_ends_each_time_gets_no_further_handoff() {
        let dir = tempfile::tempdir().unwrap();
        let join = |name: &str| HandoffOwner::new(Instances::join(dir.path(), Some(name.parse().unwrap())));
        let two = || "two".parse().unwrap();
        for held in HELD_FOR {
            let owner = join("one");
            if !held.is_zero() {
                let refused = owner.agree(two()).unwrap_err();
                assert!(refused.message().contains("serves for"), "{}", refused.message());
                owner.agree("three".parse().unwrap()).expect("another one is not affected");
            }
            tokio::time::advance(held).await;
            owner.agree(two()).expect("it may try again");
            join("two");
        }
        let owner = join("one");
        tokio::time::advance(Duration::from_secs(3600)).await;
        let refused = owner.agree(two()).unwrap_err();
        assert!(refused.message().contains("delete that pod"), "{}", refused.message());
        owner.agree("three".parse().unwrap()).expect("a corrected version is another instance");
    }
}
