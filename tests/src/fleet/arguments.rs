//! The command lines of Runnel's binaries for a person. The command lines of pods are in the
//! charts.

use std::path::Path;

use super::{FleetOptions, NAMESPACE};

/// `runnel-hub token create`: prints the join string of one member cluster.
pub(crate) fn token(
    member: &str,
    kubeconfig: &Path,
    addresses: &[String],
    options: &FleetOptions,
) -> Vec<String> {
    let mut arguments = vec![
        "token".to_owned(),
        "create".to_owned(),
        member.to_owned(),
        format!("--kubeconfig={}", kubeconfig.display()),
        format!("--namespace={NAMESPACE}"),
        format!("--advertise={}", addresses.join(",")),
    ];
    arguments.extend(
        options
            .labels
            .iter()
            .map(|(key, value)| format!("--label={key}={value}")),
    );
    arguments
}
