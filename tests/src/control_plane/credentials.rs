//! The keys, certificates and tokens of one control plane, and its kubeconfig files.

use std::fs::{self, OpenOptions};
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, anyhow};
use data_encoding::{BASE64, HEXLOWER};
use rcgen::{
    BasicConstraints, CertificateParams, DistinguishedName, DnType, ExtendedKeyUsagePurpose, IsCa,
    Issuer, KeyPair,
};
use ring::rand::{SecureRandom, SystemRandom};
use serde_json::json;

/// The name under which the controllers ask.
pub(super) const CONTROLLERS: &str = "system:kube-controller-manager";
/// The name of the front proxy.
pub(super) const FRONT_PROXY: &str = "front-proxy-client";
const ADMINISTRATOR: &str = "administrator";
const NAMES: [&str; 5] = [
    "127.0.0.1",
    "localhost",
    "kubernetes",
    "kubernetes.default",
    "kubernetes.default.svc",
];

#[derive(Debug)]
pub(super) struct ControlPlaneCredentials {
    pub url: String,
    pub kubeconfig: PathBuf,
    pub controllers_kubeconfig: PathBuf,
    pub ca: PathBuf,
    pub serving_certificate: PathBuf,
    pub serving_key: PathBuf,
    pub account_key: PathBuf,
    pub account_public_key: PathBuf,
    pub tokens: PathBuf,
    /// The CA of the front proxy, which forwards requests to other API servers.
    pub front_proxy_ca: PathBuf,
    pub front_proxy_certificate: PathBuf,
    pub front_proxy_key: PathBuf,
    cluster: String,
    ca_text: String,
}

impl ControlPlaneCredentials {
    /// Creates all of them and writes them into `folder`.
    pub fn write(folder: &Path, cluster: &str, port: u16) -> Result<Self> {
        let (ca_text, certificate, key) = certificates(&format!("{cluster} CA"), serving()?)?;
        let made = Self {
            url: format!("https://127.0.0.1:{port}"),
            kubeconfig: folder.join("kubeconfig"),
            controllers_kubeconfig: folder.join("controllers.kubeconfig"),
            ca: folder.join("ca.crt"),
            serving_certificate: folder.join("api-server.crt"),
            serving_key: folder.join("api-server.key"),
            account_key: folder.join("service-accounts.key"),
            account_public_key: folder.join("service-accounts.pub"),
            tokens: folder.join("tokens.csv"),
            front_proxy_ca: folder.join("front-proxy-ca.crt"),
            front_proxy_certificate: folder.join("front-proxy.crt"),
            front_proxy_key: folder.join("front-proxy.key"),
            cluster: cluster.to_owned(),
            ca_text,
        };
        let (administrator, controllers) = (random_token()?, random_token()?);
        let tokens = format!(
            "{administrator},{ADMINISTRATOR},1,system:masters\n{controllers},{CONTROLLERS},2,system:masters\n"
        );
        write_private(&made.ca, &made.ca_text)?;
        write_private(&made.serving_certificate, &certificate)?;
        write_private(&made.serving_key, &key)?;
        let (ca, certificate, key) = front_proxy(cluster)?;
        write_private(&made.front_proxy_ca, &ca)?;
        write_private(&made.front_proxy_certificate, &certificate)?;
        write_private(&made.front_proxy_key, &key)?;
        let account_key = KeyPair::generate()?;
        write_private(&made.account_key, &account_key.serialize_pem())?;
        write_private(&made.account_public_key, &account_key.public_key_pem())?;
        write_private(&made.tokens, &tokens)?;
        made.write_kubeconfig(&made.kubeconfig, &administrator)?;
        made.write_kubeconfig(&made.controllers_kubeconfig, &controllers)?;
        Ok(made)
    }

    /// Returns a kubeconfig file for the holder of `token`. JSON is YAML.
    pub fn write_kubeconfig(&self, path: &Path, token: &str) -> Result<()> {
        let ca = BASE64.encode(self.ca_text.as_bytes());
        let content = json!({
            "apiVersion": "v1",
            "kind": "Config",
            "clusters": [{
                "name": self.cluster,
                "cluster": {"server": self.url, "certificate-authority-data": ca},
            }],
            "users": [{"name": "user", "user": {"token": token}}],
            "contexts": [{"name": self.cluster, "context": {"cluster": self.cluster, "user": "user"}}],
            "current-context": self.cluster,
        });
        write_private(path, &serde_json::to_string_pretty(&content)?)
    }
}

/// Writes a file that only this user can read.
pub(crate) fn write_private(path: &Path, content: &str) -> Result<()> {
    // An older file may have other permissions.
    let _ = fs::remove_file(path);
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path)
        .and_then(|mut file| file.write_all(content.as_bytes()))
        .with_context(|| format!("cannot write {}", path.display()))
}

fn serving() -> Result<CertificateParams> {
    Ok(CertificateParams::new(NAMES.map(String::from))?)
}

/// Returns the CA of a cluster's front proxy, with the certificate and the key of the front proxy.
pub(crate) fn front_proxy(cluster: &str) -> Result<(String, String, String)> {
    let mut params = CertificateParams::default();
    params.distinguished_name = DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, FRONT_PROXY);
    params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
    certificates(&format!("{cluster} front proxy CA"), params)
}

// The certificate of a CA, and a certificate that it signs, with its key.
fn certificates(name: &str, params: CertificateParams) -> Result<(String, String, String)> {
    let ca_key = KeyPair::generate()?;
    let mut ca = CertificateParams::default();
    ca.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
    ca.distinguished_name.push(DnType::CommonName, name);
    let ca_text = ca.self_signed(&ca_key)?.pem();
    let key = KeyPair::generate()?;
    let certificate = params.signed_by(&key, &Issuer::new(ca, ca_key))?;
    Ok((ca_text, certificate.pem(), key.serialize_pem()))
}

fn random_token() -> Result<String> {
    let mut bytes = [0; 24];
    SystemRandom::new()
        .fill(&mut bytes)
        .map_err(|_| anyhow!("the operating system has no random numbers"))?;
    Ok(HEXLOWER.encode(&bytes))
}
