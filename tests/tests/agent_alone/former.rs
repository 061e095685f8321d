//! What a copy had before: fields that leave the source, and the content of an overwritten object.
use anyhow::{Result, ensure};
use runnel_proto::model::*;
use serde_json::{Value, json};

use crate::owned::Kept;

fn ports(ports: &[u16]) -> Value {
    let ports: Vec<_> = ports
        .iter()
        .map(|port| json!({"name": format!("p{port}"), "port": port, "protocol": "TCP", "targetPort": port}))
        .collect();
    json!({"spec": {"ports": ports, "selector": {"app": "web"}}})
}

/// Sends the Service with the first port only, and checks that the other one leaves.
async fn second_port_leaves(one: &Kept) -> Result<()> {
    one.want(ports(&[80, 81])).await?;
    one.want(ports(&[80])).await?;
    let left = one
        .has("the first port", &[("/spec/ports/0/port", json!(80))])
        .await?;
    ensure!(
        left["spec"]["ports"].as_array().map(Vec::len) == Some(1),
        "{left}"
    );
    one.is_idle().await
}

async fn service(name: &str) -> Result<Kept> {
    let one = Kept::start(name, "services", "v1", "Service").await?;
    one.want(ports(&[80, 81])).await?;
    Ok(one)
}

#[tokio::test]
async fn field_of_a_copy_that_was_retained_leaves_with_its_source() -> Result<()> {
    let one = service("retained").await?;
    one.alone.hub.remove("r", DeletionPolicy::Retain);
    one.alone.hub.wait_gone("r").await?;
    second_port_leaves(&one).await
}

#[tokio::test]
async fn field_whose_managers_were_forgotten_leaves_with_its_source() -> Result<()> {
    let one = service("forgotten").await?;
    one.edit(json!({"metadata": {"managedFields": [{}]}}))
        .await?;
    second_port_leaves(&one).await
}

#[tokio::test]
async fn field_that_another_manager_applied_leaves_with_its_source() -> Result<()> {
    let one = service("applied").await?;
    let mut same = ports(&[80, 81]);
    same["apiVersion"] = json!("v1");
    same["kind"] = json!("Service");
    same["metadata"] = json!({"name": "one", "namespace": one.alone.ns("a")});
    let arguments = ["apply", "--server-side", "--force-conflicts", "-f", "-"];
    one.alone
        .plane
        .kubectl_stdin(&arguments, &same.to_string())
        .await?;
    second_port_leaves(&one).await
}

#[tokio::test]
async fn overwritten_object_keeps_nothing_of_its_content() -> Result<()> {
    let kind = (
        "networkpolicies.networking.k8s.io",
        "networking.k8s.io/v1",
        "NetworkPolicy",
    );
    let one = Kept::start_overwriting("former", kind.0, kind.1, kind.2).await?;
    let foreign = json!({
        "apiVersion": kind.1, "kind": kind.2,
        "metadata": {
            "name": "one", "namespace": one.alone.ns("a"), "labels": {"theirs": "x"}, "finalizers": ["example.org/theirs"],
        },
        "spec": {
            "podSelector": {"matchLabels": {"app": "other"}}, "policyTypes": ["Ingress", "Egress"],
            "egress": [{}], "ingress": [{}],
        },
    });
    one.alone.place.make(&foreign).await?;
    let fields = json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}, "policyTypes": ["Ingress"]}});
    let mut wanted = one.rule(fields.clone());
    wanted.terms = Terms {
        conflict_policy: ConflictPolicy::Overwrite,
        ..wanted.terms
    };
    one.alone.hub.want("r", wanted);
    let written = one.applied().await?;
    assert_eq!(written["spec"], fields["spec"]);
    assert_eq!(written["metadata"]["labels"]["theirs"], "x");
    assert_eq!(
        written["metadata"]["finalizers"],
        json!(["example.org/theirs"])
    );
    one.is_idle().await?;
    one.edit(json!({"metadata": {"finalizers": null}})).await
}
