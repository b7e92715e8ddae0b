//! A server whose certificate is signed only by the given authority.

use std::sync::Arc;

use bytes::Bytes;
use holdfast_objects::{Created, ErrorKind, ObjectStore, ReadyParts};
use holdfast_s3::{S3Config, S3Store};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, IsCa, KeyPair};
use rustls::pki_types::{PrivateKeyDer, pem::PemObject};
use tokio_rustls::TlsAcceptor;

use crate::server::Server;

/// Returns a new authority's PEM and a server certificate that it signed for loopback.
fn authority() -> (String, TlsAcceptor) {
    authority_for("127.0.0.1")
}

/// The same for a server of this name.
pub(crate) fn authority_for(name: &str) -> (String, TlsAcceptor) {
    let mut params = CertificateParams::new(Vec::new()).unwrap();
    params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    let issuer = CertifiedIssuer::self_signed(params, KeyPair::generate().unwrap()).unwrap();
    let key = KeyPair::generate().unwrap();
    let leaf = CertificateParams::new(vec![name.to_owned()]).unwrap();
    let leaf = leaf.signed_by(&key, &issuer).unwrap();
    let key = PrivateKeyDer::from_pem_slice(key.serialize_pem().as_bytes()).unwrap();
    let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
    let config = rustls::ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .unwrap()
        .with_no_client_auth()
        .with_single_cert(vec![leaf.der().clone()], key)
        .unwrap();
    (issuer.pem(), TlsAcceptor::from(Arc::new(config)))
}

fn secure(server: &Server, ca_pem: String) -> S3Config {
    let endpoint = Some(format!("https://{}", server.address));
    S3Config { endpoint, ca_pem: Some(ca_pem), ..server.config() }
}

#[tokio::test]
async fn the_given_authority_is_trusted_and_payloads_travel_unsigned() {
    let (ca_pem, acceptor) = authority();
    let server = Server::start_with(Some(acceptor)).await;
    let store = S3Store::connect(secure(&server, ca_pem)).await.unwrap();
    store.probe().await.unwrap();
    assert_eq!(store.create("a", Bytes::from_static(b"x")).await.unwrap(), Created);
    let mut parts = ReadyParts::new([vec![1; 5 << 20], vec![1; 6]].map(Bytes::from));
    store.put_segment("b", &mut parts).await.unwrap();
    assert_eq!(store.get_suffix("b", 1).await.unwrap().size_bytes, (5 << 20) + 6);
}

#[tokio::test]
async fn another_authority_is_not_trusted_and_the_probe_says_so() {
    let (_ca_pem, acceptor) = authority();
    let (stranger_pem, _) = authority();
    let server = Server::start_with(Some(acceptor)).await;
    let store = S3Store::connect(secure(&server, stranger_pem)).await.unwrap();
    assert_eq!(store.get("a", 1).await.unwrap_err().kind(), ErrorKind::Unavailable);
    let failure = store.probe().await.unwrap_err();
    assert_eq!((failure.field(), failure.reason()), ("caBundle", "CertificateNotTrusted"), "{failure:?}");
}
