//! The three processes of one control plane, and the arguments they are started with.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Error, Result};

use super::Options;
use super::credentials::{CONTROLLERS, ControlPlaneCredentials, FRONT_PROXY};
use crate::assets::Assets;
use crate::audit;
use crate::guard::{Program, last_lines};
use crate::ports;
use crate::restartable::Restartable;

const RUN_CONTROLLERS: &str = "namespace-controller,garbage-collector-controller,serviceaccount-controller,\
                               root-ca-certificate-publisher-controller,clusterrole-aggregation-controller";

#[derive(Debug)]
pub(super) struct Ports {
    pub api_server: u16,
    etcd: u16,
    etcd_peer: u16,
}

impl Ports {
    pub fn free() -> Result<Self> {
        Ok(Self {
            api_server: ports::free()?,
            etcd: ports::free()?,
            etcd_peer: ports::free()?,
        })
    }
}

/// Declared, and so dropped, in the order in which they have to end.
#[derive(Debug)]
pub(super) struct Parts {
    pub api_server: Restartable,
    pub controller_manager: Restartable,
    pub etcd: Restartable,
    pub etcd_url: String,
    pub audit_log: PathBuf,
}

impl Parts {
    pub fn new(
        name: &str,
        folder: &Path,
        assets: &Assets,
        ports: &Ports,
        credentials: &ControlPlaneCredentials,
        options: &Options,
    ) -> Result<Self> {
        let audit_log = folder.join("audit.log");
        let policy = folder.join("audit-policy.json");
        let own = [CONTROLLERS, "system:apiserver"];
        std::fs::write(
            &policy,
            audit::policy(&own, options.audit_reads).to_string(),
        )?;
        let mut api_server = api_server_arguments(folder, ports, credentials);
        api_server.extend(audit_arguments(&policy, &audit_log));
        api_server.extend(options.api_server_arguments.iter().cloned());
        let part = |part: &str, binary: PathBuf, arguments: Vec<String>| {
            let log = folder.join(format!("{part}.log"));
            Restartable::new(
                format!("{part} of {name}"),
                Program::new(binary, log).arguments(arguments),
            )
        };
        Ok(Self {
            etcd: part(
                "etcd",
                assets.etcd(),
                etcd_arguments(folder, ports, options.durable),
            ),
            api_server: part("kube-apiserver", assets.kube_apiserver(), api_server),
            controller_manager: part(
                "kube-controller-manager",
                assets.kube_controller_manager(),
                controller_manager_arguments(credentials, &options.controllers),
            ),
            audit_log,
            etcd_url: etcd_url(ports),
        })
    }

    /// Checks that no part has ended by itself.
    pub fn check(&self) -> Result<()> {
        self.all().into_iter().try_for_each(Restartable::check)
    }

    /// Returns when a part has ended by itself, with the end of its log.
    pub async fn until_one_ends(&self) -> Error {
        loop {
            if let Err(error) = self.check() {
                return error;
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }

    /// Whether a part reports that one of its ports was taken.
    pub fn lost_a_port(&self) -> bool {
        self.all()
            .into_iter()
            .any(|part| last_lines(part.log(), 100).contains("address already in use"))
    }

    // etcd first: the logs of the others only report its end.
    fn all(&self) -> [&Restartable; 3] {
        [&self.etcd, &self.api_server, &self.controller_manager]
    }
}

fn etcd_arguments(folder: &Path, ports: &Ports, durable: bool) -> Vec<String> {
    let (client, peer) = (
        etcd_url(ports),
        format!("http://127.0.0.1:{}", ports.etcd_peer),
    );
    let mut arguments = vec![
        format!("--data-dir={}", folder.join("etcd").display()),
        format!("--listen-client-urls={client}"),
        format!("--advertise-client-urls={client}"),
        format!("--listen-peer-urls={peer}"),
        format!("--initial-advertise-peer-urls={peer}"),
        format!("--initial-cluster=default={peer}"),
        "--log-level=warn".to_owned(),
    ];
    if !durable {
        arguments.push("--unsafe-no-fsync".to_owned());
    }
    arguments
}

fn api_server_arguments(
    folder: &Path,
    ports: &Ports,
    credentials: &ControlPlaneCredentials,
) -> Vec<String> {
    vec![
        format!("--etcd-servers={}", etcd_url(ports)),
        "--bind-address=127.0.0.1".to_owned(),
        // Only written into the Service `kubernetes`; without it a machine without a default
        // route has no suitable address. One that is reserved for documentation.
        "--advertise-address=192.0.2.1".to_owned(),
        format!("--secure-port={}", ports.api_server),
        format!("--cert-dir={}", folder.display()),
        format!(
            "--tls-cert-file={}",
            credentials.serving_certificate.display()
        ),
        format!(
            "--tls-private-key-file={}",
            credentials.serving_key.display()
        ),
        format!(
            "--service-account-key-file={}",
            credentials.account_public_key.display()
        ),
        format!(
            "--service-account-signing-key-file={}",
            credentials.account_key.display()
        ),
        "--service-account-issuer=https://kubernetes.default.svc".to_owned(),
        format!("--token-auth-file={}", credentials.tokens.display()),
        "--authorization-mode=RBAC".to_owned(),
        format!(
            "--requestheader-client-ca-file={}",
            credentials.front_proxy_ca.display()
        ),
        format!("--requestheader-allowed-names={FRONT_PROXY}"),
        "--requestheader-username-headers=X-Remote-User".to_owned(),
        "--requestheader-uid-headers=X-Remote-Uid".to_owned(),
        "--requestheader-group-headers=X-Remote-Group".to_owned(),
        "--requestheader-extra-headers-prefix=X-Remote-Extra-".to_owned(),
        format!(
            "--proxy-client-cert-file={}",
            credentials.front_proxy_certificate.display()
        ),
        format!(
            "--proxy-client-key-file={}",
            credentials.front_proxy_key.display()
        ),
        "--service-cluster-ip-range=10.0.0.0/24".to_owned(),
    ]
}

// Blocking: an entry is in the log before the answer is complete. One file that is never rotated.
fn audit_arguments(policy: &Path, log: &Path) -> Vec<String> {
    vec![
        format!("--audit-policy-file={}", policy.display()),
        format!("--audit-log-path={}", log.display()),
        "--audit-log-mode=blocking".to_owned(),
        "--audit-log-maxsize=100000".to_owned(),
    ]
}

fn controller_manager_arguments(
    credentials: &ControlPlaneCredentials,
    more: &[String],
) -> Vec<String> {
    let controllers: Vec<_> = [RUN_CONTROLLERS]
        .into_iter()
        .chain(more.iter().map(String::as_str))
        .collect();
    vec![
        format!(
            "--kubeconfig={}",
            credentials.controllers_kubeconfig.display()
        ),
        format!(
            "--service-account-private-key-file={}",
            credentials.account_key.display()
        ),
        format!("--root-ca-file={}", credentials.ca.display()),
        format!("--controllers={}", controllers.join(",")),
        "--use-service-account-credentials=false".to_owned(),
        "--leader-elect=false".to_owned(),
        "--secure-port=0".to_owned(),
    ]
}

fn etcd_url(ports: &Ports) -> String {
    format!("http://127.0.0.1:{}", ports.etcd)
}
