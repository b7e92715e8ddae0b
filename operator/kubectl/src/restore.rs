//! `kubectl holdfast restore`: the documents of `holdfast-operator restore`, from a pod of the operator.
//!
//! Owns: the choice of the pod, and forwarding the command's output and exit status.
//! Does not own: the documents. The bucket's credentials never leave the cluster.
//! Costs: one LIST of pods, one exec.
//! On failure: a connection that breaks before the command has ended is an error: documents may be missing.

use std::collections::BTreeMap;
use std::io::Write;
use std::pin::pin;
use std::process::ExitCode;

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Status;
use kube::api::AttachParams;
use kube::{Api, ResourceExt};
use tokio::io::{AsyncRead, AsyncReadExt};

use crate::cluster::{ClusterClients, reason};

/// Labels that the chart gives the operator's pods.
const PODS: &str = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=operator";
/// Label that holds the release's name.
const RELEASE: &str = "app.kubernetes.io/instance";
/// Container and program of the operator.
const CONTAINER: &str = "operator";
const PROGRAM: &str = "holdfast-operator";
/// Size of a forwarded chunk, in bytes.
const CHUNK_BYTES: usize = 64 << 10;

/// Runs the command with these options in a pod of the operator, and forwards its output and exit code.
pub(crate) async fn restore(
    cluster: &ClusterClients,
    store: &str,
    options: &[&str],
    namespace: Option<&str>,
) -> anyhow::Result<ExitCode> {
    let pods = cluster.pods(namespace, PODS).await?;
    let pod = choose(&pods)?;
    let (namespace, name) = (pod.namespace().unwrap_or_default(), pod.name_any());
    let title = format!("pod {namespace}/{name}");
    let mut command = vec![PROGRAM, "restore", store];
    command.extend(options);
    let streams = AttachParams {
        container: Some(CONTAINER.to_owned()),
        max_stdout_buf_size: Some(CHUNK_BYTES),
        max_stderr_buf_size: Some(CHUNK_BYTES),
        ..AttachParams::default()
    };
    let pods: Api<Pod> = Api::namespaced(cluster.client.clone(), &namespace);
    let running = pods.exec(&name, command, &streams).await;
    let mut running =
        running.map_err(reason).with_context(|| format!("{PROGRAM} cannot be run in {title}"))?;
    let (stdout, stderr) = running.stdout().zip(running.stderr()).context("no streams")?;
    let status = running.take_status().context("no status")?;
    let output = async {
        tokio::try_join!(pass_on(stdout, std::io::stdout()), pass_on(stderr, std::io::stderr())).map(drop)
    };
    let status = end(output, status).await?.with_context(|| {
        format!("the connection to {title} broke before the command had ended: documents may be missing, run it again")
    })?;
    exit_code(&status).map(ExitCode::from).with_context(|| format!("{PROGRAM} was not run in {title}"))
}

/// Returns the pod to run the command in: the first that is Ready.
///
/// # Errors
/// No pod is Ready, or the pods belong to several releases.
fn choose(pods: &[Pod]) -> anyhow::Result<&Pod> {
    let mut releases = BTreeMap::<(String, String), Vec<&Pod>>::new();
    for pod in pods {
        let release = pod.labels().get(RELEASE).cloned().unwrap_or_default();
        releases.entry((pod.namespace().unwrap_or_default(), release)).or_default().push(pod);
    }
    if releases.len() > 1 {
        let named: Vec<String> =
            releases.keys().map(|(namespace, release)| format!("{release} in {namespace}")).collect();
        bail!("several releases have an operator: {}. Choose one with --namespace", named.join(", "));
    }
    let Some(pods) = releases.into_values().next() else {
        bail!(
            "no pod of the operator was found: none has the labels {PODS}. Install the chart, or name its \
             namespace with --namespace"
        )
    };
    if let Some(pod) = pods.iter().find(|pod| is_ready(pod)) {
        return Ok(pod);
    }
    let states: Vec<String> = pods.iter().map(|pod| state(pod)).collect();
    bail!(
        "no pod of the operator is Ready: {}. `kubectl describe pod` says what it waits for",
        states.join(", ")
    )
}

fn is_ready(pod: &Pod) -> bool {
    let conditions = pod.status.iter().flat_map(|status| status.conditions.iter().flatten());
    let is_ready = conditions.into_iter().any(|it| it.type_ == "Ready" && it.status == "True");
    is_ready && pod.metadata.deletion_timestamp.is_none()
}

/// Returns the name and phase of a pod that is not Ready.
fn state(pod: &Pod) -> String {
    let phase = pod.status.as_ref().and_then(|status| status.phase.as_deref()).unwrap_or("without a phase");
    let ends = if pod.metadata.deletion_timestamp.is_some() { " and being deleted" } else { "" };
    format!("{}/{} is {phase}{ends}", pod.namespace().unwrap_or_default(), pod.name_any())
}

/// Returns the status of the command after forwarding all of its output; `None` if the connection broke.
async fn end<S>(
    output: impl Future<Output = anyhow::Result<()>>,
    status: impl Future<Output = Option<S>>,
) -> anyhow::Result<Option<S>> {
    let (mut output, mut status) = (pin!(output), pin!(status));
    tokio::select! {
        passed_on = &mut output => {
            passed_on?;
            Ok(status.await)
        }
        ended = &mut status => {
            // The streams of a broken connection may never end.
            if ended.is_some() {
                output.await?;
            }
            Ok(ended)
        }
    }
}

/// Copies `from` to `to` unchanged until its end.
async fn pass_on(mut from: impl AsyncRead + Unpin, mut to: impl Write) -> anyhow::Result<()> {
    let mut chunk = vec![0; CHUNK_BYTES];
    loop {
        let count = from.read(&mut chunk).await.context("the output of the command cannot be read")?;
        if count == 0 {
            return to.flush().context("the output cannot be written");
        }
        to.write_all(&chunk[..count]).context("the output cannot be written")?;
    }
}

/// Returns the exit code of the command.
///
/// # Errors
/// The command did not run.
fn exit_code(status: &Status) -> anyhow::Result<u8> {
    if status.status.as_deref() == Some("Success") {
        return Ok(0);
    }
    let causes = status.details.iter().flat_map(|details| details.causes.iter().flatten());
    let mut codes = causes.filter(|cause| cause.reason.as_deref() == Some("ExitCode"));
    let code = codes.find_map(|cause| cause.message.as_deref()?.parse().ok());
    code.ok_or_else(|| anyhow!(status.message.clone().unwrap_or_else(|| "no reason was given".to_owned())))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod(namespace: &str, name: &str, ready: &str) -> Pod {
        serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": namespace, "labels": {RELEASE: "holdfast"}},
            "status": {"phase": "Running", "conditions": [
                {"type": "PodScheduled", "status": "True"}, {"type": "Ready", "status": ready}]},
        }))
        .unwrap()
    }

    fn refused(pods: &[Pod]) -> String {
        choose(pods).unwrap_err().to_string()
    }

    #[test]
    fn the_command_runs_in_a_pod_that_is_ready() {
        let mut ends = pod("a", "ends", "True");
        ends.metadata.deletion_timestamp =
            Some(serde_json::from_value(json!("2026-11-26T00:00:00Z")).unwrap());
        let pods = [ends, pod("a", "starts", "False"), pod("a", "works", "True")];
        assert_eq!(choose(&pods).unwrap().name_any(), "works");
        assert_eq!(
            refused(&pods[..2]),
            "no pod of the operator is Ready: a/ends is Running and being deleted, a/starts is Running. \
             `kubectl describe pod` says what it waits for"
        );
    }

    #[test]
    fn without_an_operator_the_labels_are_named() {
        let refused = refused(&[]);
        assert!(refused.contains("none has the labels app.kubernetes.io/name=holdfast,"), "{refused}");
    }

    #[test]
    fn of_several_releases_one_is_to_be_chosen() {
        assert_eq!(
            refused(&[pod("a", "x", "True"), pod("b", "y", "True")]),
            "several releases have an operator: holdfast in a, holdfast in b. Choose one with --namespace"
        );
    }

    #[tokio::test]
    async fn output_is_passed_on_as_it_is() {
        let bytes: Vec<u8> = (0..3 * CHUNK_BYTES).map(|at| u8::try_from(at % 251).unwrap()).collect();
        let mut out = Vec::new();
        pass_on(bytes.as_slice(), &mut out).await.unwrap();
        assert!(out == bytes);
    }

    #[tokio::test]
    async fn a_connection_that_breaks_is_no_end() {
        let silent = std::future::pending();
        assert_eq!(end(silent, async { None::<()> }).await.unwrap(), None);
        assert_eq!(end(async { Ok(()) }, async { None::<()> }).await.unwrap(), None);
    }

    #[tokio::test]
    async fn the_output_is_complete_before_the_command_has_ended() {
        let mut written = Vec::new();
        let output = async {
            tokio::task::yield_now().await;
            pass_on(b"documents".as_slice(), &mut written).await
        };
        assert_eq!(end(output, async { Some(7) }).await.unwrap(), Some(7));
        assert_eq!(written, b"documents");
    }

    fn ended(status: serde_json::Value) -> Result<u8, String> {
        exit_code(&serde_json::from_value(status).unwrap()).map_err(|error| error.to_string())
    }

    /// The statuses are those of a kubelet.
    #[test]
    fn the_exit_code_is_that_of_the_command() {
        assert_eq!(ended(json!({"metadata": {}, "status": "Success"})), Ok(0));
        let failed = json!({
            "metadata": {}, "status": "Failure", "reason": "NonZeroExitCode",
            "message": "command terminated with non-zero exit code: exit status 7",
            "details": {"causes": [{"reason": "ExitCode", "message": "7"}]},
        });
        assert_eq!(ended(failed), Ok(7));
        let refused = json!({
            "metadata": {}, "status": "Failure", "reason": "InternalError", "code": 500,
            "message": "error executing command in container: no such file", "details": {"causes": []},
        });
        assert_eq!(ended(refused), Err("error executing command in container: no such file".to_owned()));
    }
}
