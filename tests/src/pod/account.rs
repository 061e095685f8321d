//! The rights of a ServiceAccount: its token, and a kubeconfig with only that token.

use std::path::Path;

use anyhow::{Context, Result};
use k8s_openapi::api::authentication::v1::{TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::ServiceAccount;
use kube::config::Kubeconfig;
use kube::{Api, Client};
use serde_json::json;

use crate::control_plane::write_private;

/// Longer than any test.
const LIFE: i64 = 24 * 3600;

/// A token of a ServiceAccount, from the API server.
pub(super) async fn token(
    client: &Client,
    namespace: &str,
    account: &str,
    audience: Option<&str>,
) -> Result<String> {
    let accounts: Api<ServiceAccount> = Api::namespaced(client.clone(), namespace);
    let audiences = audience.map(str::to_owned).into_iter().collect();
    let spec = TokenRequestSpec {
        audiences,
        expiration_seconds: Some(LIFE),
        ..TokenRequestSpec::default()
    };
    let request = TokenRequest {
        spec,
        ..TokenRequest::default()
    };
    let answer = accounts
        .create_token_request(account, &kube::api::PostParams::default(), &request)
        .await;
    let answer =
        answer.with_context(|| format!("no token for the ServiceAccount {namespace}/{account}"))?;
    Ok(answer
        .status
        .context("a TokenRequest without an answer")?
        .token)
}

/// Writes a kubeconfig for the cluster of `administrator` in which there is no other credential than `token`.
pub(super) fn write_kubeconfig(administrator: &Path, token: &str, path: &Path) -> Result<()> {
    let unusable = || format!("cannot use {}", administrator.display());
    let read = Kubeconfig::read_from(administrator).with_context(unusable)?;
    let current = read.current_context.clone().unwrap_or_default();
    let context = read.contexts.iter().find(|context| context.name == current);
    let context = context
        .and_then(|context| context.context.as_ref())
        .with_context(unusable)?;
    let cluster = read
        .clusters
        .iter()
        .find(|cluster| cluster.name == context.cluster)
        .with_context(unusable)?;
    let content = json!({
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [cluster],
        "users": [{"name": "pod", "user": {"token": token}}],
        "contexts": [{"name": "pod", "context": {"cluster": cluster.name, "user": "pod"}}],
        "current-context": "pod",
    });
    write_private(path, &serde_json::to_string_pretty(&content)?)
}
