//! A certificate authority for one run.

use std::fs;
use std::path::Path;

use anyhow::{Context, Result};
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose,
};

/// Signs the API server's certificate and those of its clients.
#[derive(Debug)]
pub(super) struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

impl Authority {
    /// Creates the authority, the API server's certificate for `addresses` and the key that signs service
    /// account tokens, and writes the API server's files to `dir`.
    pub(super) fn create(dir: &Path, addresses: &[&str]) -> Result<Self> {
        let mut parameters = CertificateParams::default();
        parameters.distinguished_name.push(DnType::CommonName, "holdfast e2e");
        parameters.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        parameters.key_usages = vec![KeyUsagePurpose::KeyCertSign, KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("make the authority's key")?;
        let certificate = parameters.self_signed(&key).context("sign the authority's certificate")?.pem();
        fs::write(dir.join("ca.crt"), &certificate)?;
        let authority = Self { issuer: Issuer::new(parameters, key), certificate };

        let names = [addresses, &["localhost", "kubernetes", "kubernetes.default.svc"]].concat();
        let (certificate, key) = authority.server("kube-apiserver", &names)?;
        fs::write(dir.join("server.crt"), certificate)?;
        fs::write(dir.join("server.key"), key)?;

        let accounts = KeyPair::generate().context("make the token key")?;
        fs::write(dir.join("service-accounts.key"), accounts.serialize_pem())?;
        fs::write(dir.join("service-accounts.pub"), accounts.public_key_pem())?;
        Ok(authority)
    }

    /// Returns the authority's own certificate (PEM).
    pub(super) fn certificate(&self) -> String {
        self.certificate.clone()
    }

    /// Returns certificate and key (PEM) of a server at these addresses.
    pub(super) fn server(&self, name: &str, addresses: &[&str]) -> Result<(String, String)> {
        let names: Vec<String> = addresses.iter().map(|&name| name.to_owned()).collect();
        let mut server = CertificateParams::new(names).with_context(|| format!("name {name}"))?;
        server.distinguished_name.push(DnType::CommonName, name);
        server.extended_key_usages = vec![ExtendedKeyUsagePurpose::ServerAuth];
        self.sign(server)
    }

    /// Returns certificate and key (PEM) of a user in a group.
    pub(super) fn client(&self, user: &str, group: &str) -> Result<(String, String)> {
        let mut client = CertificateParams::default();
        client.distinguished_name.push(DnType::CommonName, user);
        client.distinguished_name.push(DnType::OrganizationName, group);
        client.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        self.sign(client)
    }

    fn sign(&self, mut parameters: CertificateParams) -> Result<(String, String)> {
        parameters.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        let key = KeyPair::generate().context("make a key")?;
        let certificate = parameters.signed_by(&key, &self.issuer).context("sign a certificate")?;
        Ok((certificate.pem(), key.serialize_pem()))
    }
}
