//! What a namespace may send to which member.

use anyhow::{Context, Result, ensure};
use runnel_tests::control_plane::client_of;
use runnel_tests::fleet::Fleet;
use runnel_tests::scene::Scene;
use runnel_tests::wait::eventually;
use serde_json::json;

use super::{SOON, get};

/// A tenant sees the members that its own grants open, and nothing of other namespaces.
pub(super) async fn tenant_sees_what_its_grants_open(fleet: &Fleet) -> Result<()> {
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&["buyer", "seller"]).await?;
    let hub = fleet.hub();
    let grant = |name: &str, namespace: &str, clusters: serde_json::Value| {
        json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": name},
            "spec": {
                "rules": {"namespaces": {"names": [namespace]}}, "resources": ["configmaps"],
                "clusters": clusters, "namespaces": {"names": [format!("{namespace}-*")]},
                "policies": {"createNamespaces": true}, "maxCopies": 7,
            },
        })
    };
    scene
        .hub
        .make(&grant("buyer", "buyer", json!({"names": ["member-1"]})))
        .await?;
    scene
        .hub
        .make(&grant("seller", "seller", json!({"all": true})))
        .await?;
    hub.kubectl(&["create", "serviceaccount", "tom", "-n", "buyer"])
        .await?;
    let bind = [
        "create",
        "rolebinding",
        "tom",
        "--clusterrole=runnel-hub-view",
    ];
    let to = ["--serviceaccount=buyer:tom", "-n", "buyer"];
    hub.kubectl(&[&bind[..], &to[..]].concat()).await?;
    let tom = client_of(&hub.token_kubeconfig("buyer", "tom").await?).await?;
    // The grant `everything` of a new hub opens every member to every namespace.
    hub.kubectl(&["delete", "dgrant", "everything"]).await?;
    let own = eventually("one member", SOON, async || {
        let list = get(&tom, "namespaces/buyer/membertargets").await?;
        let items = list["items"].as_array().context("no items")?;
        Ok((items.len() == 1).then(|| list.clone()))
    })
    .await?;
    let target = &own["items"][0];
    ensure!(
        target["metadata"]["name"] == "member-1"
            && target["metadata"]["labels"]["env"] == "prod"
            && target["status"]["connected"] == true
            && target["status"]["grants"]
                == json!([{
                    "resources": ["configmaps"], "allNamespaces": false, "namespaces": ["buyer-*"],
                    "overwrite": false, "adopt": false, "createNamespaces": true, "maxCopies": 7,
                }]),
        "{target}"
    );
    ensure!(!own.to_string().contains("seller"), "{own}");
    let table = hub
        .kubectl(&["get", "membertargets", "-n", "seller"])
        .await?;
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let expected = [
        vec!["NAME", "CONNECTED", "RESOURCES", "NAMESPACES"],
        vec!["member-1", "true", "configmaps", "seller-*"],
        vec!["member-2", "true", "configmaps", "seller-*"],
    ];
    ensure!(lines == expected, "{table}");
    let page = get(
        &tom,
        "namespaces/buyer/membertargets?fieldSelector=metadata.name%3Dmember-2",
    )
    .await?;
    ensure!(page["items"] == json!([]), "{page}");
    let first = get(
        &hub.client().await?,
        "namespaces/seller/membertargets?limit=1",
    )
    .await?;
    let token = first["metadata"]["continue"].as_str().context("no token")?;
    let path = format!("namespaces/seller/membertargets?limit=1&continue={token}");
    let second = get(&hub.client().await?, &path).await?;
    ensure!(
        second["items"][0]["metadata"]["name"] == "member-2"
            && second["metadata"]["continue"].is_null(),
        "{second}"
    );
    let one = ["get", "membertarget", "member-2", "-n", "buyer"];
    let missing = hub.kubectl(&one).await.err().context("it is granted")?;
    ensure!(missing.to_string().contains("not found"), "{missing}");
    let everywhere = hub.kubectl(&["get", "membertargets", "-A"]).await;
    let everywhere = everywhere.err().context("all namespaces")?.to_string();
    ensure!(everywhere.contains("one namespace"), "{everywhere}");
    for path in ["namespaces/seller/membertargets", "membertargets"] {
        let refused = get(&tom, path).await;
        let refused = refused
            .err()
            .with_context(|| format!("{path} is allowed"))?;
        ensure!(refused.to_string().contains("cannot list"), "{refused}");
    }
    Ok(())
}
