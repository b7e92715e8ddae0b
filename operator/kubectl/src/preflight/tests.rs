//! The Pod document, and the messages about Pods and nodes.

use clap::Parser;
use kube::core::Status;

use super::*;
use crate::{Command, Settings};

/// The DaemonSet and the values that the Pod must match.
const DAEMON_SET: &str = include_str!("../../../../charts/holdfast/templates/node-daemonset.yaml");
const VALUES: &str = include_str!("../../../../charts/holdfast/values.yaml");

fn run() -> PreflightRun {
    PreflightRun {
        name: "run-1".to_owned(),
        image: image_of(None),
        image_pull_secret: None,
        namespace: "default".to_owned(),
        state_dir: STATE_DIR.to_owned(),
        limit: Duration::from_secs(300),
    }
}

fn parse(line: &str) -> Result<Preflight, clap::Error> {
    let settings = Settings::try_parse_from(["kubectl-holdfast"].into_iter().chain(line.split(' ')))?;
    let Command::Preflight(preflight) = settings.command else { panic!("{settings:?}") };
    Ok(preflight)
}

#[test]
fn nodes_are_named_or_all() {
    let some = parse("preflight a b --image other:1 --namespace tools --timeout 90s").unwrap();
    assert_eq!((some.nodes.len(), some.all, some.image.as_deref()), (2, false, Some("other:1")));
    assert_eq!((some.namespace.as_str(), some.timeout.0), ("tools", Duration::from_secs(90)));
    let all = parse("preflight --all").unwrap();
    assert_eq!((all.namespace.as_str(), all.state_dir.as_str()), ("default", "/var/lib/holdfast"));
    assert!(parse("preflight --json").is_err());
    assert!(Settings::try_parse_from(["kubectl-holdfast", "preflight"]).is_err());
    assert!(parse("preflight a --all").is_err());
}

#[test]
fn the_pod_is_on_its_node_whatever_taints_it_has() {
    let pod = pod("worker-1", &PreflightRun { state_dir: "/mnt/nvme".to_owned(), ..run() });
    let checked: Pod = serde_json::from_value(pod.clone()).unwrap();
    let spec = checked.spec.unwrap();
    assert_eq!(spec.node_name.as_deref(), Some("worker-1"));
    assert_eq!(spec.restart_policy.as_deref(), Some("Never"));
    assert_eq!((spec.host_pid, spec.automount_service_account_token), (Some(true), Some(false)));
    assert_eq!(spec.active_deadline_seconds, Some(360));
    assert_eq!(pod["spec"]["tolerations"], json!([{ "operator": "Exists" }]));
    let container = &spec.containers[0];
    assert_eq!(container.args.as_deref().unwrap(), ["preflight", "--config=/dev/null"]);
    let variable = |name: &str| {
        let all = container.env.as_deref().unwrap();
        all.iter().find(|variable| variable.name == name).and_then(|variable| variable.value.clone())
    };
    assert_eq!(variable("HOLDFAST_NODE_NAME").as_deref(), Some("worker-1"));
    assert_eq!(variable("HOLDFAST_STATE_DIR").as_deref(), Some("/mnt/nvme"));
    assert_eq!(pod["spec"]["volumes"][1]["hostPath"]["path"], "/mnt/nvme");
    assert_eq!(pod["spec"]["containers"][0]["volumeMounts"][1]["mountPath"], "/mnt/nvme");
    for (label, value) in LABELS.into_iter().chain([(RUN, "run-1")]) {
        assert_eq!(pod["metadata"]["labels"][label], value);
    }
}

/// A Pod with less access to the node than the daemon would fail healthy nodes.
#[test]
fn the_pod_matches_the_daemon_set() {
    let pod = pod("a", &run());
    let spec = &pod["spec"];
    let has = |text: &str| assert!(DAEMON_SET.contains(text), "the DaemonSet does not say {text:?}");
    assert_eq!(spec["hostPID"], true);
    has("hostPID: true");
    let container = &spec["containers"][0];
    assert_eq!(container["securityContext"], json!({ "privileged": true, "readOnlyRootFilesystem": true }));
    has("privileged: true\n            readOnlyRootFilesystem: true");
    // Regression: a file was created in the host's /dev, and the losing pod failed to start.
    assert_eq!(container["terminationMessagePath"], "/termination-log");
    has("terminationMessagePath: /termination-log");
    let named = |items: &Value| -> Vec<String> {
        items.as_array().unwrap().iter().map(|item| item["name"].as_str().unwrap().to_owned()).collect()
    };
    assert_eq!(named(&container["volumeMounts"]), ["dev", "state", "run"]);
    for mount in [
        "{name: dev, mountPath: /dev}",
        "{name: state, mountPath: {{ .Values.node.stateDir }}}",
        "{name: run, mountPath: {{ .Values.node.runDir }}}",
        "hostPath: {path: /dev, type: Directory}",
        "hostPath: {path: {{ .Values.node.stateDir }}, type: DirectoryOrCreate}",
        "hostPath: {path: {{ .Values.node.runDir }}, type: DirectoryOrCreate}",
    ] {
        has(mount);
    }
    let mounts = DAEMON_SET.matches("mountPath:").count();
    assert_eq!(mounts, 5, "and the configuration, in the place of which are variables, and udev's directory");
    for value in [
        format!("stateDir: {STATE_DIR}\n"),
        format!("runDir: {RUN_DIR}\n"),
        "repository: holdfast-node\n".to_owned(),
    ] {
        assert!(VALUES.contains(&value), "the chart's values do not say {value:?}");
    }
}

/// `node/daemon` has the defaults (`docs/configuration.md`); the Pod sets none of these.
#[test]
fn the_charts_other_values_are_the_daemons_defaults() {
    let page = include_str!("../../../../docs/configuration.md");
    for (value, setting) in [
        ("transport: auto", "| `data.transport` | `auto` |"),
        ("ringThreads: 2", "| `data.ring_threads` | `2` |"),
        ("slabSize: 4Gi", "| `data.slab_size` | `4Gi` |"),
        ("cacheSize: \"\"", "| `data.cache_size` | nine tenths"),
        ("sealSize: 64Mi", "| `data.seal_size` | `64Mi` |"),
        ("maxDirty: 4Gi", "| `data.max_dirty` | `4Gi` |"),
        ("uploadMemory: 256Mi", "| `data.upload_memory` | `256Mi` |"),
    ] {
        assert!(VALUES.contains(&format!("  {value}\n")), "{value}");
        assert!(page.contains(setting), "{setting}");
    }
}

#[test]
fn the_image_is_that_of_this_version() {
    let version = env!("CARGO_PKG_VERSION");
    assert_eq!(image_of(None), format!("holdfast-node:{version}"));
    assert_eq!(image_of(Some("ghcr.io/one/two")), format!("ghcr.io/one/two/holdfast-node:{version}"));
}

#[test]
fn runs_are_distinguished_by_a_label() {
    let all = "app.kubernetes.io/name=holdfast,app.kubernetes.io/component=preflight";
    assert_eq!(selector(None), all);
    assert_eq!(selector(Some("r")), format!("{all},holdfast.dev/preflight=r"));
    assert!(run_name().len() <= 63);
}

fn node(name: &str, os: &str, ready: &str) -> Node {
    serde_json::from_value(json!({
        "metadata": { "name": name, "labels": { "kubernetes.io/os": os } },
        "status": { "conditions": [
            { "type": "MemoryPressure", "status": "False" },
            { "type": "Ready", "status": ready, "reason": "NodeStatusUnknown", "message": "Kubelet stopped posting" },
        ] },
    }))
    .unwrap()
}

#[test]
fn nodes_that_start_no_pod_are_named() {
    let known = [node("a", "linux", "True"), node("b", "windows", "True"), node("c", "linux", "Unknown")];
    let names = |nodes: Vec<Node>| nodes.iter().map(Node::name_any).collect::<Vec<_>>();
    assert_eq!(names(linux(&known)), ["a", "c"]);
    let chosen = choose(&known, ["c", "a", "c"].map(str::to_owned).into()).unwrap();
    assert_eq!(names(chosen), ["c", "a"]);
    let refused = choose(&known, vec!["d".to_owned()]).unwrap_err().to_string();
    assert_eq!(refused, "no Node is called d: `kubectl get nodes` lists them");
    assert_eq!(unready(&known[0]), None);
    assert!(unready(&known[2]).unwrap().ends_with("starts no Pod: Kubelet stopped posting"));
    assert_eq!(unready(&Node::default()), None, "a node that says nothing is tried");
}

fn pod_with(status: Value) -> Pod {
    serde_json::from_value(json!({ "metadata": {}, "status": status })).unwrap()
}

/// Returns the outcome of a Pod in which a failed pull was first seen `failed` ago.
fn ended_after(status: Value, failed: Duration) -> Option<PodEnd> {
    let first = Instant::now();
    end(&pod_with(status), first + failed, &OnceLock::from(first))
}

fn ended(status: Value) -> Option<PodEnd> {
    ended_after(status, PULL_RETRIES)
}

fn waiting(reason: &str, message: &str) -> Value {
    let state = json!({ "waiting": { "reason": reason, "message": message } });
    json!({ "phase": "Pending", "containerStatuses": [
        { "name": "preflight", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state },
    ] })
}

#[test]
fn a_pod_ends_with_a_code_or_a_cause() {
    assert_eq!(ended(json!({})), None);
    assert_eq!(ended(json!({ "phase": "Pending" })), None);
    assert_eq!(ended(waiting("ContainerCreating", "")), None);
    let state = json!({ "terminated": { "exitCode": 1 } });
    let terminated = json!({ "phase": "Failed", "containerStatuses": [
        { "name": "preflight", "image": "", "imageID": "", "ready": false, "restartCount": 0, "state": state },
    ] });
    assert_eq!(ended(terminated), Some(PodEnd::Exit(1)));
    for (status, words) in [
        (
            waiting("ErrImagePull", "holdfast-node:9: not found"),
            ["ErrImagePull: holdfast-node:9: not found", "--image"],
        ),
        (waiting("ImagePullBackOff", "Back-off pulling image"), ["ImagePullBackOff: Back-off", "--image"]),
        (waiting("CreateContainerError", "no such device"), ["CreateContainerError", "no such device"]),
        (
            json!({ "phase": "Failed", "reason": "OutOfpods", "message": "Node didn't have enough resource" }),
            ["OutOfpods", "enough resource"],
        ),
    ] {
        let Some(PodEnd::Failed(said)) = ended(status) else { panic!("it has ended") };
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

/// Regression, found in review: one failed pull ended the check of a node.
#[test]
fn a_failed_pull_is_repeated_before_the_check_ends() {
    let soon = Duration::from_secs(5);
    for reason in ["ErrImagePull", "ImagePullBackOff"] {
        assert_eq!(ended_after(waiting(reason, "503"), soon), None);
        assert!(ended(waiting(reason, "503")).is_some());
    }
    assert!(ended_after(waiting("InvalidImageName", "a b"), soon).is_some(), "no pull can succeed");
}

/// Regression, found in review: the time for retries began with the Pod, so a pull that failed later was not
/// repeated.
#[test]
fn the_time_for_retries_begins_with_the_first_failed_pull() {
    let (created, pull_failed) = (Instant::now(), OnceLock::new());
    let end_at = |second: u64, reason: &str| {
        end(&pod_with(waiting(reason, "503")), created + Duration::from_secs(second), &pull_failed)
    };
    assert_eq!(end_at(39, "ContainerCreating"), None);
    assert_eq!(end_at(40, "ErrImagePull"), None);
    assert_eq!(end_at(69, "ImagePullBackOff"), None);
    assert!(end_at(70, "ImagePullBackOff").is_some());
}

/// Regression, found in review: the image of a private registry could not be checked.
#[test]
fn the_pod_has_the_secret_of_a_private_registry() {
    let image_pull_secret = parse("preflight a --image-pull-secret registry").unwrap().image_pull_secret;
    assert_eq!(image_pull_secret.as_deref(), Some("registry"));
    let with = pod("a", &PreflightRun { image_pull_secret, ..run() });
    assert_eq!(with["spec"]["imagePullSecrets"], json!([{ "name": "registry" }]));
    assert_eq!(pod("a", &run())["spec"]["imagePullSecrets"], json!([]));
}

#[test]
fn a_refused_pod_is_reported_with_the_fix() {
    let refused = |code: u16, message: &str| {
        let status = Status { code, message: message.to_owned(), ..Status::default() };
        format!("{:#}", refused(kube::Error::Api(status.into()), &run()))
    };
    let policy = "pods \"x\" is forbidden: violates PodSecurity \"restricted:latest\": privileged";
    for (code, message, words) in [
        (
            403,
            policy,
            ["namespace default does not admit privileged Pods", "enforce=privileged", "restricted:latest"],
        ),
        (403, "User \"u\" cannot create resource", ["you may not create Pods", "--namespace", "User \"u\""]),
        (
            404,
            "namespaces \"default\" not found",
            ["no namespace is called default", "create it", "not found"],
        ),
        (500, "broken", ["cannot be created", "namespace default", "broken"]),
    ] {
        let said = refused(code, message);
        assert!(words.iter().all(|word| said.contains(word)), "{said}");
    }
}

#[test]
fn a_nodes_lines_are_printed_with_its_verdict() {
    let checked = |failure: Option<&str>| Checked {
        node: "a".to_owned(),
        log: "PASS kernel: Linux\nFAIL io_uring: no\n".to_owned(),
        failure: failure.map(str::to_owned),
    };
    let lines = "Node a\n  PASS kernel: Linux\n  FAIL io_uring: no\n";
    assert_eq!(text(&checked(None)), format!("{lines}  Node a is fit.\n"));
    assert_eq!(
        text(&checked(Some("a check failed"))),
        format!("{lines}  Node a is not fit: a check failed\n")
    );
}
