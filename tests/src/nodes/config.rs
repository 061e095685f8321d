//! The settings of a node's parts.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Context, Result};
use data_encoding::HEXLOWER;
use rcgen::KeyPair;
use ring::rand::{SecureRandom, SystemRandom};

use super::binaries::PAUSE_IMAGE;
use super::network::MachineAddresses;
use super::packages::NETWORK_PLUGINS;
use super::text;
use crate::control_plane::front_proxy;

/// Writes all of them into the folder of a machine.
pub(super) fn write(folder: &Path, place: MachineAddresses) -> Result<()> {
    let mut token = [0; 16];
    SystemRandom::new()
        .fill(&mut token)
        .ok()
        .context("the system gives no random numbers")?;
    let token = HEXLOWER.encode(&token);
    fs::create_dir_all(folder.join("network"))?;
    let (path, accounts) = (text(folder)?, KeyPair::generate()?);
    let (proxy_ca, proxy_certificate, proxy_key) = front_proxy("node")?;
    let files = [
        ("kubeconfig", kubeconfig(path, place, &token)),
        (
            "tokens.csv",
            format!("{token},administrator,1,system:masters\n"),
        ),
        ("service-accounts.key", accounts.serialize_pem()),
        ("service-accounts.pub", accounts.public_key_pem()),
        ("front-proxy-ca.crt", proxy_ca),
        ("front-proxy.crt", proxy_certificate),
        ("front-proxy.key", proxy_key),
        ("network/10-runnel.conflist", network(path, place)),
        ("containerd.toml", containerd(path)),
        ("kubelet.yaml", kubelet(path, place)),
        ("kube-proxy.yaml", kube_proxy(path, place)),
    ];
    for (name, content) in files {
        let file = folder.join(name);
        fs::write(&file, content).with_context(|| format!("cannot write {}", file.display()))?;
        fs::set_permissions(&file, fs::Permissions::from_mode(0o600))?;
    }
    Ok(())
}

fn kubeconfig(folder: &str, place: MachineAddresses, token: &str) -> String {
    let address = place.address();
    format!(
        r#"apiVersion: v1
kind: Config
clusters: [{{name: it, cluster: {{server: "https://{address}:6443", certificate-authority: {folder}/certificates/apiserver.crt}}}}]
users: [{{name: administrator, user: {{token: {token}}}}}]
contexts: [{{name: it, context: {{cluster: it, user: administrator}}}}]
current-context: it
"#
    )
}

fn network(folder: &str, place: MachineAddresses) -> String {
    let pods = place.pods();
    format!(
        r#"{{"cniVersion": "0.4.0", "name": "runnel", "plugins": [
  {{"type": "bridge", "bridge": "pods", "isGateway": true, "ipMasq": true, "hairpinMode": true, "ipam": {{
    "type": "host-local", "dataDir": "{folder}/addresses",
    "ranges": [[{{"subnet": "{pods}"}}]], "routes": [{{"dst": "0.0.0.0/0"}}]}}}},
  {{"type": "portmap", "capabilities": {{"portMappings": true}}}}]}}
"#
    )
}

fn containerd(folder: &str) -> String {
    // The score: where root may not lower it, no container would start.
    format!(
        r#"version = 2
root = "{folder}/containerd"
state = "{folder}/containerd-state"
[grpc]
  address = "{folder}/containerd.sock"
[plugins."io.containerd.grpc.v1.cri"]
  sandbox_image = "{PAUSE_IMAGE}"
  netns_mounts_under_state_dir = true
  restrict_oom_score_adj = true
  [plugins."io.containerd.grpc.v1.cri".cni]
    bin_dir = "{NETWORK_PLUGINS}"
    conf_dir = "{folder}/network"
"#
    )
}

fn kubelet(folder: &str, place: MachineAddresses) -> String {
    let (group, services) = (place.group(), place.services());
    format!(
        r#"apiVersion: kubelet.config.k8s.io/v1beta1
kind: KubeletConfiguration
containerRuntimeEndpoint: unix://{folder}/containerd.sock
cgroupDriver: cgroupfs
cgroupRoot: /{group}
failCgroupV1: false
failSwapOn: false
authentication: {{anonymous: {{enabled: true}}, webhook: {{enabled: false}}}}
authorization: {{mode: AlwaysAllow}}
clusterDNS: [{services}.10]
clusterDomain: cluster.local
resolvConf: ""
evictionHard: {{memory.available: "0%", nodefs.available: "0%", nodefs.inodesFree: "0%", imagefs.available: "0%"}}
imageGCHighThresholdPercent: 100
podLogsDir: {folder}/pod-logs
volumePluginDir: {folder}/volume-plugins
"#
    )
}

fn kube_proxy(folder: &str, place: MachineAddresses) -> String {
    let pods = place.pods();
    // The limits of connection tracking are the host's, and not to be changed from here.
    format!(
        r"apiVersion: kubeproxy.config.k8s.io/v1alpha1
kind: KubeProxyConfiguration
mode: iptables
clusterCIDR: {pods}
hostnameOverride: node
clientConnection: {{kubeconfig: {folder}/kubeconfig}}
conntrack: {{maxPerCore: 0, min: 0, tcpEstablishedTimeout: 0s, tcpCloseWaitTimeout: 0s}}
"
    )
}
