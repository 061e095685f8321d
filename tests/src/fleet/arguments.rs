//! How Runnel's binaries are called: the only place in the harness that knows.

use std::path::Path;

use super::{FleetOptions, NAMESPACE};
use crate::ports::local;

/// `runnel-hub crds`: prints the custom resource definitions.
pub(crate) fn crds() -> Vec<String> {
    vec!["crds".to_owned()]
}

/// `runnel-hub run`.
pub(crate) fn hub(kubeconfig: &Path, port: u16, ops_port: u16, options: &FleetOptions) -> Vec<String> {
    let mut arguments = vec![
        "run".to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={NAMESPACE}"),
        format!("--listen={}", local(port)),
        format!("--advertise={}", local(port)),
        format!("--ops-listen={}", local(ops_port)),
        "--log-format=json".to_owned(),
    ];
    arguments.extend(options.hub_arguments.iter().cloned());
    arguments
}

/// `runnel-hub token create`: prints the join string of one member cluster.
pub(crate) fn token(member: &str, kubeconfig: &Path, hub_port: u16, options: &FleetOptions) -> Vec<String> {
    let mut arguments = vec![
        "token".to_owned(),
        "create".to_owned(),
        member.to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={NAMESPACE}"),
        format!("--advertise={}", local(hub_port)),
    ];
    arguments.extend(options.labels.iter().map(|(key, value)| format!("--label={key}={value}")));
    arguments
}

/// `runnel-agent run`.
pub(crate) fn agent(join: &Path, kubeconfig: &Path, ops_port: u16, options: &FleetOptions) -> Vec<String> {
    let mut arguments = vec![
        "run".to_owned(),
        format!("--join-string-file={}", join.display()),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={NAMESPACE}"),
        format!("--ops-listen={}", local(ops_port)),
        "--log-format=json".to_owned(),
    ];
    arguments.extend(options.agent_arguments.iter().cloned());
    arguments
}
