//! Kubeconfig files. JSON is a subset of YAML, so no YAML library is needed.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde_json::{Value, json};

/// Returns the kubeconfig of a user authenticated by a certificate.
pub(super) fn with_certificate(authority: &str, server: &str, certificate: &str, key: &str) -> String {
    config(
        authority,
        server,
        "default",
        &json!({
            "client-certificate-data": STANDARD.encode(certificate),
            "client-key-data": STANDARD.encode(key),
        }),
    )
}

/// Returns the kubeconfig of a service account of `namespace`, authenticated by a token.
pub(super) fn with_token(authority: &str, server: &str, namespace: &str, token: &str) -> String {
    config(authority, server, namespace, &json!({ "token": token }))
}

fn config(authority: &str, server: &str, namespace: &str, user: &Value) -> String {
    let cluster = json!({
        "server": server,
        "certificate-authority-data": STANDARD.encode(authority),
    });
    let context = json!({ "cluster": "e2e", "user": "e2e", "namespace": namespace });
    json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{ "name": "e2e", "cluster": cluster }],
        "users": [{ "name": "e2e", "user": user }],
        "contexts": [{ "name": "e2e", "context": context }],
        "current-context": "e2e",
    })
    .to_string()
}
