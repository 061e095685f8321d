//! `runnel-hub token create`: lets a cluster join.
mod request;

use std::collections::BTreeMap;

use anyhow::{Context, bail};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, CustomResourceExt, Resource};
use runnel_transport::identity::{JoinString, Token};
use serde_json::json;

use crate::ca::{self, HubIdentity};
use crate::call::{ApiError, FIELD_MANAGER, with_timeout};
pub use request::{RequestError, TokenRequest, ValidTokenRequest};
use runnel_api::{Join, MemberCluster, MemberClusterSpec};

/// The limit of attempts at a write. Other clients may create or delete the cluster in between.
const TRIES: usize = 3;

/// Creates a join string for a cluster. Creates its `MemberCluster`, or updates the existing one:
/// it adds the labels and allows one join. An earlier join string becomes invalid. `namespace` is
/// the hub's own.
///
/// # Errors
/// One sentence with the cause and a hint.
pub async fn create(
    client: Client,
    namespace: &str,
    request: TokenRequest,
) -> anyhow::Result<String> {
    let request = request.check()?;
    let mut identity = ca::load_or_create(&client, namespace).await?;
    if identity.addresses.is_empty() && !request.advertise.is_empty() {
        identity = ca::advertise(&client, namespace, &request.advertise).await?;
    }
    let (join_string, join) = create_join(&request, &identity)?;
    allow(client, &request, join).await?;
    Ok(join_string)
}

/// A join that is declared in Git.
pub struct DeclaredJoin {
    /// The join string, for a Secret of the member.
    pub join_string: String,
    /// The manifest of the `MemberCluster` for the hub, YAML. It contains no secret.
    pub manifest: String,
}

/// Creates a join string for a cluster, and the `MemberCluster` that allows it, for Git. Reads the
/// identity of the hub from its Secret in `namespace`, and writes nothing.
///
/// # Errors
/// One sentence with the cause and a hint.
pub async fn declare(
    client: Client,
    namespace: &str,
    request: TokenRequest,
) -> anyhow::Result<DeclaredJoin> {
    let request = request.check()?;
    let identity = ca::load(&client, namespace).await?;
    let identity = identity.with_context(|| {
        format!("there is no hub's identity in namespace {namespace} yet: install the hub, which makes it at its start")
    })?;
    let (join_string, join) = create_join(&request, &identity)?;
    let manifest = member_cluster(&request.cluster, request.labels, join)?;
    Ok(DeclaredJoin {
        join_string,
        manifest,
    })
}

/// Creates a join string, and the join that it allows.
fn create_join(
    request: &ValidTokenRequest,
    identity: &HubIdentity,
) -> anyhow::Result<(String, Join)> {
    let addresses = addresses(request, identity)?;
    let token = Token::generate()?;
    let expires_at = Timestamp::now()
        .checked_add(request.ttl)
        .context("--ttl is out of range: choose 1h")?;
    // The API server stores whole seconds.
    let expires_at = Time(Timestamp::from_second(expires_at.as_second())?);
    let join = Join {
        token_hash: token.hash(),
        token_id: Some(token.id().to_owned()),
        expires_at,
    };
    let (hub, pin) = (identity.hub_id.clone(), identity.ca.pin());
    let join_string = JoinString {
        addresses,
        hub,
        cluster: request.cluster.clone(),
        token,
        pin,
    };
    Ok((join_string.encode(), join))
}

fn addresses(request: &ValidTokenRequest, identity: &HubIdentity) -> anyhow::Result<Vec<String>> {
    if !request.advertise.is_empty() {
        return Ok(request.advertise.clone());
    }
    if identity.addresses.is_empty() {
        bail!(
            "no address of the hub is known: give --advertise HOST:PORT, the address that agents in other clusters \
             reach the hub at (or start the hub with --advertise)"
        );
    }
    Ok(identity.addresses.clone())
}

/// Writes the join and the labels, and no other field of an existing cluster.
async fn allow(client: Client, request: &ValidTokenRequest, join: Join) -> anyhow::Result<()> {
    let api = Api::<MemberCluster>::all(client);
    let name = &request.cluster;
    for _ in 0..TRIES {
        let present = with_timeout(format!("read MemberCluster {name}"), api.get_opt(name))
            .await
            .map_err(explained)?;
        let result = match present {
            Some(member) if member.metadata.deletion_timestamp.is_some() => {
                bail!("cluster {name} is being deleted: wait until it is gone, then try again")
            }
            Some(member) => {
                if !member.spec.accepted {
                    tracing::warn!(
                        "cluster {name} can join only when its spec.accepted is set to true"
                    );
                }
                let metadata = json!({"labels": request.labels, "uid": member.metadata.uid});
                let patch = Patch::Merge(json!({"metadata": metadata, "spec": {"join": join}}));
                let params = PatchParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PatchParams::default()
                };
                let call = api.patch(name, &params, &patch);
                with_timeout(format!("update MemberCluster {name}"), call).await
            }
            None => {
                let spec = MemberClusterSpec {
                    join: Some(join.clone()),
                    ..MemberClusterSpec::default()
                };
                let mut member = MemberCluster::new(name, spec);
                member.metadata.labels = Some(request.labels.clone());
                let params = PostParams {
                    field_manager: Some(FIELD_MANAGER.to_owned()),
                    ..PostParams::default()
                };
                with_timeout(
                    format!("create MemberCluster {name}"),
                    api.create(&params, &member),
                )
                .await
            }
        };
        match result {
            Ok(_) => return Ok(()),
            Err(error) if error.is_conflict() => {}
            Err(error) => return Err(explained(error)),
        }
    }
    bail!("cluster {name} is changed by another client all the time: try again")
}

fn explained(error: ApiError) -> anyhow::Error {
    let hint = match error.status().map(|status| status.code) {
        Some(404) => {
            "the custom resources of runnel.dev are not installed in this cluster: install the hub first"
        }
        Some(401 | 403) => "you need to get, create and patch memberclusters.runnel.dev",
        _ => return error.into(),
    };
    anyhow::Error::new(error).context(hint)
}

/// Returns the YAML of a cluster that may join.
///
/// # Errors
/// None: all these values serialize.
pub fn member_cluster(
    cluster: &str,
    labels: BTreeMap<String, String>,
    join: Join,
) -> anyhow::Result<String> {
    let mut metadata = json!({"name": cluster});
    if !labels.is_empty() {
        metadata["labels"] = json!(labels);
    }
    let object = json!({
        "apiVersion": MemberCluster::api_version(&()),
        "kind": MemberCluster::api_resource().kind,
        "metadata": metadata,
        "spec": {"join": join},
    });
    let mut text = serde_saphyr::to_string(&object)?;
    if !text.ends_with('\n') {
        text.push('\n');
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
    use runnel_transport::identity::Token;

    #[test]
    fn manifest_reads_back_without_a_secret() {
        let token = Token::generate().unwrap();
        let join = Join {
            token_hash: token.hash(),
            token_id: Some(token.id().to_owned()),
            expires_at: Time("2026-01-31T12:00:00Z".parse().unwrap()),
        };
        let labels = BTreeMap::from([("env".to_owned(), "true".to_owned())]);
        let text = member_cluster("eu-3", labels.clone(), join.clone()).unwrap();
        let read: MemberCluster = serde_saphyr::from_str(&text).unwrap();
        assert_eq!(
            (read.metadata.name.as_deref(), read.metadata.labels),
            (Some("eu-3"), Some(labels))
        );
        assert_eq!(read.spec.join, Some(join));
        let secret = token.expose().split_once('.').unwrap().1;
        assert!(
            !text.contains(secret)
                && text.starts_with("apiVersion: runnel.dev/v1alpha1\nkind: MemberCluster\n")
        );
    }
}
