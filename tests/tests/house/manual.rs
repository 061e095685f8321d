//! YAML snippets of the manual are valid, and its sources of other tools are selected by the rules
//! that it contains.
use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use runnel_api::DistributionRule;
use runnel_hub_core::plan::{Rule, content_of};
use runnel_proto::model::{Kind, SourceRef};
use serde_json::{Value, json};

use super::root;

/// The objects of the YAML blocks of one page.
fn shown(page: &str) -> Result<Vec<Value>> {
    let text = fs::read_to_string(root().join("deploy/manual/src").join(page))
        .with_context(|| page.to_owned())?;
    let blocks = text
        .split("```yaml\n")
        .skip(1)
        .filter_map(|rest| rest.split("\n```").next());
    blocks
        .map(|block| serde_saphyr::from_str(block).with_context(|| format!("{page}: {block}")))
        .collect()
}

fn of_kind<'a>(objects: &'a [Value], kind: &str) -> Result<&'a Value> {
    objects
        .iter()
        .find(|object| object["kind"] == kind)
        .with_context(|| format!("no {kind}"))
}

fn labels(of: &Value) -> Result<BTreeMap<String, String>> {
    Ok(serde_json::from_value(of.clone())?)
}

/// The rule chooses this object, and the copy has these labels and annotations.
fn is_sent(
    rule: &Rule,
    object: &Value,
    labels_left: &Value,
    annotations_left: &Value,
) -> Result<()> {
    let (resource, name) = (
        if object["kind"] == "Secret" {
            "secrets"
        } else {
            "configmaps"
        },
        &object["metadata"]["name"],
    );
    let namespace = object["metadata"]["namespace"]
        .as_str()
        .context("no namespace")?;
    let source = SourceRef::new(resource, namespace, name.as_str().context("no name")?);
    let all = labels(&object["metadata"]["labels"])?;
    ensure!(
        rule.selects(&source, &all),
        "the rule of the manual does not choose {source}"
    );
    let kind = Kind::by_resource(resource).context("no such kind")?;
    let content = content_of(kind, object)
        .ok()
        .with_context(|| format!("{source} is refused"))?;
    ensure!(
        json!(content.labels) == *labels_left,
        "{source}: labels {:?}",
        content.labels
    );
    ensure!(
        json!(content.annotations) == *annotations_left,
        "{source}: annotations {:?}",
        content.annotations
    );
    Ok(())
}

/// A Secret as a tool creates it: with the given name and labels, and the tool's own marks.
fn made(made_by: &Value, name: &Value, render_labels: &Value, marks: &Value) -> Result<Value> {
    let mut all = labels(render_labels)?;
    all.extend(labels(&marks["labels"])?);
    let namespace = &made_by["metadata"]["namespace"];
    let metadata = json!({"name": name, "namespace": namespace, "labels": all, "annotations": marks["annotations"]});
    Ok(json!({"kind": "Secret", "metadata": metadata, "type": "kubernetes.io/tls"}))
}

#[test]
fn every_snippet_of_the_manual_can_be_read() -> Result<()> {
    let mut number = 0;
    for entry in fs::read_dir(root().join("deploy/manual/src"))? {
        let name = entry?.file_name().to_string_lossy().into_owned();
        if name.ends_with(".md") {
            number += shown(&name)?.len();
        }
    }
    ensure!(number >= 10, "the manual shows only {number} objects");
    Ok(())
}

#[test]
fn sources_of_other_tools_are_chosen_by_label_without_marks() -> Result<()> {
    let objects = shown("sources-of-tools.md")?;
    let rule: DistributionRule = serde_json::from_value({
        let mut rule = of_kind(&objects, "DistributionRule")?.clone();
        rule["metadata"]["uid"] = json!("0f0e7a52-0000-4000-8000-000000000000");
        rule["metadata"]["creationTimestamp"] = json!("2026-01-01T00:00:00Z");
        rule
    })?;
    let rule =
        Rule::namespaced(&rule, "runnel-system").context("the rule of the manual is no rule")?;

    let certificate = of_kind(&objects, "Certificate")?;
    let render_labels = &certificate["spec"]["secretTemplate"]["labels"];
    let marks = json!({
        "labels": {"controller.cert-manager.io/fao": "true"},
        "annotations": {
            "cert-manager.io/alt-names": "shop.example.com", "cert-manager.io/certificate-name": "shop-tls",
            "cert-manager.io/common-name": "", "cert-manager.io/ip-sans": "", "cert-manager.io/uri-sans": "",
            "cert-manager.io/issuer-group": "", "cert-manager.io/issuer-kind": "ClusterIssuer",
            "cert-manager.io/issuer-name": "ca",
        },
    });
    is_sent(
        &rule,
        &made(
            certificate,
            &certificate["spec"]["secretName"],
            render_labels,
            &marks,
        )?,
        render_labels,
        &json!({}),
    )?;

    let external = of_kind(&objects, "ExternalSecret")?;
    let target = &external["spec"]["target"];
    let render_labels = &target["template"]["metadata"]["labels"];
    let marks = json!({
        "labels": {"reconcile.external-secrets.io/created-by": "8a1c", "reconcile.external-secrets.io/managed": "true"},
        "annotations": {"reconcile.external-secrets.io/data-hash": "3f9a1c"},
    });
    is_sent(
        &rule,
        &made(external, &target["name"], render_labels, &marks)?,
        render_labels,
        &json!({}),
    )?;

    // Annotations for a restarter in the members are copied.
    let settings = of_kind(&objects, "ConfigMap")?;
    let annotations = &settings["metadata"]["annotations"];
    ensure!(annotations["reloader.stakater.com/match"] == "true");
    is_sent(
        &rule,
        settings,
        &settings["metadata"]["labels"],
        annotations,
    )
}
