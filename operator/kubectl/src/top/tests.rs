use serde_json::{Value, json};

use super::figures::tests::{TEXT, later, rows};
use super::*;
use crate::why::tests::seen;

/// Builds a pod as the chart creates it.
fn pod(name: &str, node: Option<&str>, status: Value) -> Pod {
    let ports =
        json!([{"name": "health", "containerPort": 9999}, {"name": "metrics", "containerPort": 9181}]);
    serde_json::from_value(json!({
        "metadata": {"name": name, "namespace": "holdfast-system"},
        "spec": {"nodeName": node, "containers": [{"name": "node", "ports": ports}]},
        "status": status,
    }))
    .unwrap()
}

fn running() -> Value {
    json!({"phase": "Running", "podIP": "10.0.0.7"})
}

/// Returns the answer of node b, which serves the volume pvc-1.
fn answer() -> Vec<VolumeRow> {
    let of_b = |row: VolumeRow| VolumeRow { node: "b".to_owned(), ..row };
    rows(TEXT, &later(), Duration::from_secs(2)).into_iter().map(of_b).collect()
}

fn outcome_of(names: &[&str], answers: Vec<(&str, Result<Vec<VolumeRow>, &str>)>) -> (String, bool) {
    let seen = seen();
    let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
    let wanted = wanted(&seen.volumes, &names).unwrap();
    let answers = answers.into_iter().map(|(node, rows)| (node.to_owned(), rows.map_err(str::to_owned)));
    outcome(&wanted, !names.is_empty(), answers.collect(), SortBy::Name)
}

#[test]
fn all_answers_are_in_the_table() {
    let (text, is_complete) = outcome_of(&[], vec![("a", Ok(Vec::new())), ("b", Ok(answer()))]);
    assert!(is_complete && text.starts_with("VOLUME") && text.lines().count() == 2, "{text}");
    assert!(text.contains("pvc-1   shop/data  b        1000      50.0"), "{text}");
}

#[test]
fn without_volumes_a_sentence_is_printed() {
    let found = outcome(&[], false, vec![("a".to_owned(), Ok(Vec::new()))], SortBy::Name);
    assert_eq!(found, ("No volume is attached.\n".to_owned(), true));
}

#[test]
fn an_unresponsive_node_is_named_below_the_table() {
    let answers = vec![("a", Err("no answer within 5 s")), ("b", Ok(answer()))];
    let (text, is_complete) = outcome_of(&[], answers);
    assert!(!is_complete && text.contains("pvc-1"), "{text}");
    let last = text.lines().last().unwrap();
    assert_eq!(last, "Node a does not answer, and its volumes are missing: no answer within 5 s");
}

#[test]
fn a_serving_node_without_a_daemon_is_named() {
    let (text, is_complete) = outcome_of(&[], vec![("a", Ok(Vec::new()))]);
    assert!(!is_complete, "{text}");
    assert!(
        text.ends_with(
            "Node b does not answer, and its volumes are missing: no pod of the daemon runs there\n"
        )
    );
}

/// The new daemon starts while the old one still serves.
#[test]
fn one_of_two_daemons_of_a_node_is_enough() {
    let (text, is_complete) = outcome_of(&[], vec![("b", Err("it is Pending")), ("b", Ok(answer()))]);
    assert!(is_complete && !text.contains("Pending"), "{text}");
}

#[test]
fn named_volumes_are_shown_alone() {
    let other = || {
        answer().into_iter().map(|row| VolumeRow { id: "id-9".to_owned(), name: "other".to_owned(), ..row })
    };
    for name in ["pvc-1", "shop/data"] {
        let (text, is_complete) =
            outcome_of(&[name], vec![("b", Ok(answer().into_iter().chain(other()).collect()))]);
        assert!(is_complete && text.contains("pvc-1") && !text.contains("other"), "{text}");
    }
    let (text, is_complete) = outcome_of(&["idle"], Vec::new());
    assert_eq!(text, "Volume idle is not attached to any node.\n");
    assert!(!is_complete);
    let (text, _) = outcome_of(&["pvc-1"], vec![("b", Ok(other().collect()))]);
    assert!(
        text.ends_with("Volume pvc-1 (claim shop/data) is not attached: node b attaches or detaches it.\n"),
        "{text}"
    );
}

#[test]
fn an_unknown_volume_is_refused() {
    let refused = wanted(&seen().volumes, &["pvc-1".to_owned(), "pvc-7".to_owned()]).unwrap_err().to_string();
    assert!(refused.starts_with("no Volume is called pvc-7, "), "{refused}");
}

#[test]
fn a_volume_whose_counters_began_again_is_named() {
    let rows = answer().into_iter().map(|row| VolumeRow { is_new: true, ..row }).collect();
    let (text, is_complete) = outcome_of(&[], vec![("b", Ok(rows))]);
    assert!(is_complete, "nothing is missing but a rate: {text}");
    assert!(
        text.ends_with("\n\nVolume pvc-1 has no rates: its counters were reset between the two reads.\n")
    );
}

#[test]
fn a_daemon_is_asked_at_the_port_of_its_metrics() {
    let found = daemons(&[
        pod("ended", Some("a"), json!({"phase": "Failed"})),
        pod("waits", None, json!({"phase": "Pending"})),
        pod("starts", Some("a"), json!({"phase": "Pending"})),
        pod("serves", Some("a"), running()),
    ])
    .unwrap();
    let [starts, serves] = &found[..] else { panic!("{found:?}") };
    let why = "pod holdfast-system/starts is Pending and has no address";
    assert_eq!(starts.target, Err(why.to_owned()));
    assert_eq!(serves.target, Ok(("holdfast-system".to_owned(), "serves:9181".to_owned())));
    assert_eq!(serves.node, "a");
}

#[test]
fn without_daemons_the_labels_are_named() {
    let refused = daemons(&[]).unwrap_err().to_string();
    assert!(refused.contains("app.kubernetes.io/component=node"), "{refused}");
}
