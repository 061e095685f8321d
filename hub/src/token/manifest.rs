//! The manifest of a `MemberCluster` for GitOps.
use std::collections::BTreeMap;

use kube::{CustomResourceExt, Resource};
use serde_json::json;

use runnel_api::{Join, MemberCluster};

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
