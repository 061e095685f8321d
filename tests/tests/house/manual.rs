//! YAML snippets of the manual are valid, and its sources of other tools are selected by the rules
//! that it contains.
use std::collections::BTreeMap;
use std::fs;

use anyhow::{Context, Result, ensure};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use runnel_api::{DistributionRule, check_spec, crds};
use runnel_hub_core::plan::{Origin, Rule, content_of};
use runnel_proto::model::{Kind, SourceRef};
use runnel_tests::files::files_below;
use serde_json::{Value, json};

use super::{none, root};

/// The objects of the YAML blocks of one page of the manual.
fn shown(page: &str) -> Result<Vec<Value>> {
    shown_at(&format!("deploy/manual/src/{page}"))
}

/// The objects of the YAML blocks of a page, given by its path.
fn shown_at(page: &str) -> Result<Vec<Value>> {
    let text = fs::read_to_string(root().join(page)).with_context(|| page.to_owned())?;
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
    let content = content_of(kind, object, Origin::HubCluster)
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

/// What an object or a part of one has that the CRDs of runnel.dev do not allow.
///
/// A block without `apiVersion` that has a `spec`, or a field of one, is a part of a rule. It is checked within the
/// smallest valid rule. Objects of other groups pass.
fn flaw(object: &Value) -> Result<Option<String>> {
    const KIND: &str = "DistributionRule";
    let group = object["apiVersion"].as_str().unwrap_or_default();
    let (kind, spec) = match (group, object["spec"].is_object()) {
        ("runnel.dev/v1alpha1", _) => {
            let kind = object["kind"].as_str().context("no kind")?;
            (kind, object["spec"].clone())
        }
        ("", is_spec) => {
            let part = if is_spec { &object["spec"] } else { object };
            let rule = spec_schema(KIND)?.properties.unwrap_or_default();
            let part = part.as_object().context("no object")?;
            if !is_spec && !part.keys().all(|field| rule.contains_key(field)) {
                return Ok(None);
            }
            let mut spec = json!({"sources": [{"resources": ["configmaps"], "names": ["a"]}], "clusters": {"all": true}});
            for (field, value) in part {
                spec[field] = value.clone();
            }
            (KIND, spec)
        }
        _ => return Ok(None),
    };
    if let Err(error) = check_spec(kind, &spec) {
        return Ok(Some(error.to_string()));
    }
    let mut unknown = Vec::new();
    unknown_fields("spec", &spec_schema(kind)?, &spec, &mut unknown);
    Ok((!unknown.is_empty()).then(|| format!("unknown fields: {}", unknown.join(", "))))
}

/// The schema of the spec of a kind.
fn spec_schema(kind: &str) -> Result<JSONSchemaProps> {
    let crd = crds().into_iter().find(|crd| crd.spec.names.kind == kind);
    let version = crd.and_then(|crd| crd.spec.versions.into_iter().next());
    let schema = version.and_then(|version| version.schema?.open_api_v3_schema);
    let spec = schema.and_then(|schema| schema.properties?.remove("spec"));
    spec.with_context(|| format!("no CRD of {kind}"))
}

/// The paths of fields that a schema does not have.
fn unknown_fields(path: &str, schema: &JSONSchemaProps, value: &Value, found: &mut Vec<String>) {
    if let (Some(JSONSchemaPropsOrArray::Schema(item)), Some(items)) =
        (&schema.items, value.as_array())
    {
        for item_value in items {
            unknown_fields(&format!("{path}[]"), item, item_value, found);
        }
    }
    let others = match &schema.additional_properties {
        Some(JSONSchemaPropsOrBool::Schema(others)) => Some(&**others),
        _ => None,
    };
    let is_free = schema.x_kubernetes_preserve_unknown_fields == Some(true);
    for (field, value) in value.as_object().into_iter().flatten() {
        let known = schema.properties.as_ref().and_then(|all| all.get(field));
        match known.or(others) {
            Some(schema) => unknown_fields(&format!("{path}.{field}"), schema, value, found),
            None if is_free => {}
            None => found.push(format!("{path}.{field}")),
        }
    }
}

#[test]
fn shown_objects_keep_to_the_definitions() -> Result<()> {
    let mut pages = vec!["README.md".to_owned()];
    for path in files_below(&root().join("deploy"), "md")? {
        pages.push(path.strip_prefix(root())?.display().to_string());
    }
    let (mut number, mut wrong) = (0, Vec::new());
    for page in pages {
        for object in shown_at(&page)? {
            number += 1;
            let flaw = flaw(&object).with_context(|| page.clone())?;
            wrong.extend(flaw.map(|flaw| format!("{page}: {flaw}: {object}")));
        }
    }
    ensure!(number >= 10, "the pages show only {number} objects");
    none(wrong)
}

#[test]
fn flaws_of_shown_objects_are_found() -> Result<()> {
    let rule = |change: &dyn Fn(&mut Value)| {
        let mut rule = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": {"name": "a"},
            "spec": {"sources": [{"resources": ["configmaps"], "names": ["a"]}], "clusters": {"all": true}},
        });
        change(&mut rule);
        flaw(&rule)
    };
    ensure!(rule(&|_| ())?.is_none());
    ensure!(rule(&|rule| rule["spec"]["cluster"] = json!({}))?.is_some());
    ensure!(rule(&|rule| rule["spec"]["sources"][0]["nmes"] = json!(["a"]))?.is_some());
    ensure!(rule(&|rule| rule["spec"]["clusters"] = json!("all"))?.is_some());
    ensure!(rule(&|rule| rule["kind"] = json!("Rule"))?.is_some());
    ensure!(flaw(&json!({"spec": {"rollout": {"maxConcurency": 3}}}))?.is_some());
    ensure!(flaw(&json!({"rollout": {"maxConcurrency": "50%"}}))?.is_none());
    ensure!(flaw(&json!({"policy": {"anything": 1}}))?.is_none());
    ensure!(flaw(&json!({"apiVersion": "v1", "kind": "ConfigMap"}))?.is_none());
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
