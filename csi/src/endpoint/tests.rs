//! The driver on a real socket, queried by a real client.

use holdfast_proto::csi::v1::identity_client::IdentityClient;
use holdfast_proto::csi::v1::identity_server::IdentityServer;
use holdfast_proto::csi::v1::{GetPluginCapabilitiesRequest, GetPluginInfoRequest, ProbeRequest};
use tokio::sync::oneshot;
use tonic::transport::Endpoint;

use super::*;
use crate::identity::Identity;
use crate::probe;
use crate::readiness::Readiness;

#[tokio::test]
async fn the_driver_identifies_itself_and_removes_its_socket() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("csi.sock");
    let (stop, stopped) = oneshot::channel::<()>();
    let socket = listen(&path).expect("listens");
    let services = Routes::new(IdentityServer::new(Identity::new(Readiness::ready())));
    let driver = tokio::spawn(socket.serve(services, async { stopped.await.expect("the stop signal") }));

    let endpoint = Endpoint::from_shared(format!("unix://{}", path.display())).expect("an endpoint");
    let mut client = IdentityClient::new(endpoint.connect().await.expect("connects"));
    let info = client.get_plugin_info(GetPluginInfoRequest {}).await.expect("info").into_inner();
    assert_eq!(
        (info.name.as_str(), info.vendor_version.as_str()),
        ("csi.holdfast.dev", env!("CARGO_PKG_VERSION"))
    );
    let capabilities =
        client.get_plugin_capabilities(GetPluginCapabilitiesRequest {}).await.expect("capabilities");
    assert_eq!(capabilities.into_inner().capabilities.len(), 4);
    assert_eq!(client.probe(ProbeRequest {}).await.expect("probe").into_inner().ready, Some(true));

    drop(client);
    stop.send(()).expect("the driver listens");
    driver.await.expect("ends").expect("without an error");
    assert!(!path.exists());
}

#[tokio::test]
async fn a_driver_is_alive_before_it_is_ready() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("csi.sock");
    let socket = listen(&path).expect("listens");
    let readiness = Readiness::not_ready("the kubelet \u{2014} or its socket \u{2014} is missing");
    let services = Routes::new(IdentityServer::new(Identity::new(readiness.clone())));
    let driver = tokio::spawn(socket.serve(services, std::future::pending()));
    probe::ask(&path, false).await.expect("alive");
    let unready = probe::ask(&path, true).await.expect_err("not registered");
    let expected = "the driver is not ready: the kubelet \u{2014} or its socket \u{2014} is missing";
    assert_eq!(unready.to_string(), expected);
    readiness.set(None);
    probe::ask(&path, true).await.expect("ready");
    driver.abort();
}

#[tokio::test]
async fn only_a_dead_socket_is_replaced() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("csi.sock");
    drop(std::os::unix::net::UnixListener::bind(&path).expect("a dead socket"));
    let live = listen(&path).expect("takes the dead one's place");
    assert!(matches!(listen(&path), Err(ListenError::Taken { .. })));
    drop(live);
    assert!(!path.exists());
}

#[tokio::test]
async fn a_file_is_never_removed() {
    let directory = tempfile::tempdir().expect("a directory");
    let path = directory.path().join("csi.sock");
    std::fs::write(&path, "precious").expect("written");
    assert!(matches!(listen(&path), Err(ListenError::NotASocket { .. })));
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
    let missing = listen(&directory.path().join("no/csi.sock")).expect_err("no directory");
    assert!(missing.to_string().contains("--endpoint"), "{missing}");
}
