//! Generates the manifests of the CRDs from the derived schemas.
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceColumnDefinition, CustomResourceDefinition, JSONSchemaProps,
    JSONSchemaPropsOrArray, JSONSchemaPropsOrBool, ValidationRule,
};
use kube_core::CustomResourceExt;

use super::{
    ClusterDistributionRule, DistributionGrant, DistributionRule, FLEET, Fleet, ManifestBundle,
    MemberCluster, MemberRecord, limits,
};

/// What precedes the default of a field in its description.
pub const DEFAULT: &str = " Default: ";

/// The CRDs, ready to be applied.
pub fn crds() -> Vec<CustomResourceDefinition> {
    let mut crds = vec![
        DistributionRule::crd(),
        ClusterDistributionRule::crd(),
        DistributionGrant::crd(),
        MemberCluster::crd(),
        MemberRecord::crd(),
        Fleet::crd(),
        ManifestBundle::crd(),
    ];
    for crd in &mut crds {
        let is_member = crd.spec.names.kind == "MemberCluster";
        let is_fleet = crd.spec.names.kind == "Fleet";
        for version in &mut crd.spec.versions {
            version.additional_printer_columns = Some(match crd.spec.names.kind.as_str() {
                "MemberCluster" => member_columns(),
                "DistributionGrant" => grant_columns(),
                "Fleet" => fleet_columns(),
                "ManifestBundle" => bundle_columns(),
                "MemberRecord" => vec![column(
                    "Age",
                    "date",
                    ".metadata.creationTimestamp",
                    "How long the record has existed.",
                )],
                _ => rule_columns(),
            });
            let Some(root) = version
                .schema
                .as_mut()
                .and_then(|schema| schema.open_api_v3_schema.as_mut())
            else {
                continue;
            };
            tidy(root);
            root.title = None;
            let spec = root.properties.as_mut().and_then(|all| all.get_mut("spec"));
            if let Some(spec) = spec {
                describe_defaults(spec);
            }
            if is_member {
                root.x_kubernetes_validations
                    .get_or_insert_default()
                    .push(cluster_name_rule());
            }
            if is_fleet {
                root.x_kubernetes_validations
                    .get_or_insert_default()
                    .push(ValidationRule {
                        rule: format!("self.metadata.name == '{FLEET}'"),
                        message: Some(format!("metadata.name: there is one Fleet, named {FLEET}")),
                        ..ValidationRule::default()
                    });
            }
        }
    }
    crds
}

/// One file for each CRD: its name and its text.
pub fn files() -> Vec<(String, String)> {
    crds()
        .iter()
        .map(|crd| {
            let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
            (
                name,
                format!(
                    "# Written by `runnel-hub crds`; do not edit.\n---\n{}",
                    text(crd)
                ),
            )
        })
        .collect()
}

/// Returns the CRDs for the chart. Upgrades of the chart upgrade them. Helm and Argo CD keep
/// them when the chart is removed: with them every rule would be deleted, and with the rules the
/// copies.
pub fn chart_files() -> Vec<(String, String)> {
    let annotations = [
        (
            "argocd.argoproj.io/sync-options",
            "Prune=false,Delete=false",
        ),
        ("helm.sh/resource-policy", "keep"),
    ];
    let labels = [
        ("app.kubernetes.io/component", "definitions"),
        ("app.kubernetes.io/part-of", "runnel"),
    ];
    let owned = |pairs: [(&str, &str); 2]| {
        Some(
            pairs
                .map(|(key, value)| (key.to_owned(), value.to_owned()))
                .into(),
        )
    };
    let keep = |mut crd: CustomResourceDefinition| {
        crd.metadata.annotations = owned(annotations);
        crd.metadata.labels = owned(labels);
        crd
    };
    crds()
        .into_iter()
        .map(|crd| {
            let name = format!("{}_{}.yaml", crd.spec.group, crd.spec.names.plural);
            (
                name,
                format!(
                    "# Written with deploy/crds; do not edit.\n{}",
                    text(&keep(crd))
                ),
            )
        })
        .collect()
}

/// All CRDs as one stream of YAML documents, for `kubectl apply -f -`.
pub fn yaml() -> String {
    crds()
        .iter()
        .map(|crd| format!("---\n{}", text(crd)))
        .collect()
}

fn text(crd: &CustomResourceDefinition) -> String {
    let mut text = serde_saphyr::to_string(crd).expect("a CRD can be written as YAML");
    if !text.ends_with('\n') {
        text.push('\n');
    }
    text
}

/// Columns of `kubectl get` for a rule.
fn rule_columns() -> Vec<CustomResourceColumnDefinition> {
    vec![
        column(
            "Ready",
            "string",
            &of_condition("Ready", "status"),
            "Whether every copy is applied in every chosen cluster.",
        ),
        column(
            "Clusters",
            "string",
            ".status.display.clusters",
            "Clusters that are ready, of all that are chosen.",
        ),
        column(
            "Copies",
            "string",
            ".status.display.copies",
            "Copies that are applied, of all that should exist.",
        ),
        column(
            "Failed",
            "integer",
            ".status.summary.copiesFailed",
            "Copies whose last attempt failed.",
        ),
        column(
            "Reason",
            "string",
            &of_condition("Ready", "reason"),
            "Why the rule is ready or not.",
        ),
        column(
            "Age",
            "date",
            ".metadata.creationTimestamp",
            "How long the rule has existed.",
        ),
        wide(column(
            "Applied",
            "string",
            &of_condition("Applied", "status"),
            "Whether every copy is applied in the connected clusters.",
        )),
        wide(column(
            "Healthy",
            "string",
            ".status.display.healthy",
            "Copies that are healthy, of all that have a health.",
        )),
        wide(column(
            "Waiting",
            "integer",
            ".status.summary.copiesWaiting",
            "Copies for namespaces that do not exist yet.",
        )),
        wide(column(
            "Drifted",
            "integer",
            ".status.summary.copiesDrifted",
            "Copies that another client changed, and that are left so.",
        )),
        wide(column(
            "Suspended",
            "boolean",
            ".spec.suspend",
            "Whether the rule is suspended.",
        )),
        wide(column(
            "Message",
            "string",
            &of_condition("Ready", "message"),
            "What is wrong.",
        )),
    ]
}

/// Columns of `kubectl get` for a grant: whether it is a wide one.
fn grant_columns() -> Vec<CustomResourceColumnDefinition> {
    vec![
        column(
            "All-Rules",
            "boolean",
            ".spec.rules.namespaces.all",
            "Whether it is for the rules of every namespace.",
        ),
        column(
            "Resources",
            "string",
            ".spec.resources",
            "The kinds that may be sent.",
        ),
        column(
            "All-Clusters",
            "boolean",
            ".spec.clusters.all",
            "Whether they may be sent to every cluster.",
        ),
        column(
            "All-Namespaces",
            "boolean",
            ".spec.namespaces.all",
            "Whether they may be sent to every namespace.",
        ),
        column(
            "Age",
            "date",
            ".metadata.creationTimestamp",
            "How long the grant has existed.",
        ),
    ]
}

/// Columns of `kubectl get` for a bundle.
fn bundle_columns() -> Vec<CustomResourceColumnDefinition> {
    vec![
        column(
            "Kinds",
            "string",
            ".spec.manifests[*].kind",
            "The kinds of the manifests.",
        ),
        column(
            "Age",
            "date",
            ".metadata.creationTimestamp",
            "How long the bundle has existed.",
        ),
    ]
}

/// Columns of `kubectl get` for the fleet.
fn fleet_columns() -> Vec<CustomResourceColumnDefinition> {
    let pending = "How many causes of removals wait for approval.";
    vec![
        column(
            "Ready",
            "string",
            &of_condition("Ready", "status"),
            "Whether everything is as it should be.",
        ),
        column(
            "Clusters",
            "string",
            ".status.clusters",
            "Connected member clusters, of all that are accepted.",
        ),
        column(
            "Rules",
            "string",
            ".status.rules",
            "Rules that are ready, of all.",
        ),
        column(
            "Copies",
            "string",
            ".status.copies",
            "Copies that are applied, of all that should exist.",
        ),
        column("Pending", "integer", ".status.pending", pending),
    ]
}

/// Columns of `kubectl get` for a member cluster. A column of type date cannot show a future time.
fn member_columns() -> Vec<CustomResourceColumnDefinition> {
    let expires = "When the agent's certificate expires; it is renewed long before.";
    vec![
        column(
            "Ready",
            "string",
            &of_condition("Ready", "status"),
            "Whether the agent is connected and rules may send copies.",
        ),
        column(
            "Status",
            "string",
            &of_condition("Ready", "reason"),
            "The most important state, such as Cordoned or Leaving.",
        ),
        column(
            "Connected",
            "string",
            &of_condition("Connected", "status"),
            "Whether the agent is connected.",
        ),
        column(
            "Agent",
            "string",
            ".status.agentVersion",
            "The version of the agent.",
        ),
        column(
            "Kubernetes",
            "string",
            ".status.kubernetesVersion",
            "The version of the cluster.",
        ),
        column(
            "Certificate-Expires",
            "string",
            ".status.certificate.expiresAt",
            expires,
        ),
        column(
            "Age",
            "date",
            ".metadata.creationTimestamp",
            "How long the cluster has been known.",
        ),
        wide(column(
            "Accepted",
            "string",
            &of_condition("Accepted", "status"),
            "Whether the hub talks to the cluster.",
        )),
        wide(column(
            "Message",
            "string",
            &of_condition("Ready", "message"),
            "What the status means.",
        )),
    ]
}

fn of_condition(condition_type: &str, field: &str) -> String {
    format!(r#".status.conditions[?(@.type=="{condition_type}")].{field}"#)
}

fn column(
    name: &str,
    type_: &str,
    path: &str,
    description: &str,
) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        name: name.to_owned(),
        type_: type_.to_owned(),
        json_path: path.to_owned(),
        description: Some(description.to_owned()),
        ..CustomResourceColumnDefinition::default()
    }
}

/// A column of `kubectl get -o wide` alone.
fn wide(column: CustomResourceColumnDefinition) -> CustomResourceColumnDefinition {
    CustomResourceColumnDefinition {
        priority: Some(1),
        ..column
    }
}

fn cluster_name_rule() -> ValidationRule {
    let longest = limits::CLUSTER_NAME;
    ValidationRule {
        rule: format!("size(self.metadata.name) <= {longest}"),
        message: Some(format!(
            "metadata.name: the name of a MemberCluster has at most {longest} characters: shorten it"
        )),
        ..ValidationRule::default()
    }
}

/// An optional field is absent or has a value: an explicit null counts as absent,
/// for the API server and for CEL's `has`, but where it is a value as any other. And a description is a paragraph, not the lines of a comment.
fn tidy(schema: &mut JSONSchemaProps) {
    if schema.type_.is_some() || schema.x_kubernetes_preserve_unknown_fields.is_none() {
        schema.nullable = None;
    }
    schema.description = schema
        .description
        .take()
        .map(|text| text.split_whitespace().collect::<Vec<_>>().join(" "));
    for_each_child(schema, tidy);
}

/// Adds the defaults of fields to their descriptions: `kubectl explain` shows nothing else.
fn describe_defaults(schema: &mut JSONSchemaProps) {
    let default = schema.default.as_ref().map(|default| &default.0);
    let default = default.filter(|default| !default.is_object() && !default.is_array());
    if let (Some(default), Some(text)) = (default, &mut schema.description) {
        let default = default
            .as_str()
            .map_or_else(|| default.to_string(), str::to_owned);
        text.push_str(&format!("{DEFAULT}{default}."));
    }
    for_each_child(schema, describe_defaults);
}

fn for_each_child(schema: &mut JSONSchemaProps, each: fn(&mut JSONSchemaProps)) {
    let properties = schema.properties.iter_mut();
    properties
        .flat_map(|properties| properties.values_mut())
        .for_each(each);
    match &mut schema.items {
        Some(JSONSchemaPropsOrArray::Schema(items)) => each(items),
        Some(JSONSchemaPropsOrArray::Schemas(items)) => items.iter_mut().for_each(each),
        None => {}
    }
    if let Some(JSONSchemaPropsOrBool::Schema(values)) = &mut schema.additional_properties {
        each(values);
    }
}

#[cfg(test)]
mod tests {
    use std::path::Path;

    use serde_json::Value;

    use super::*;

    /// Every schema node with its path.
    fn nodes<'a>(path: String, schema: &'a Value, found: &mut Vec<(String, &'a Value)>) {
        found.push((path.clone(), schema));
        for (name, child) in schema["properties"].as_object().into_iter().flatten() {
            nodes(format!("{path}.{name}"), child, found);
        }
        for (key, mark) in [("items", "[]"), ("additionalProperties", "{}")] {
            if schema[key].is_object() {
                nodes(format!("{path}{mark}"), &schema[key], found);
            }
        }
    }

    fn each_node(check: impl Fn(&str, &Value)) {
        for crd in crds() {
            let crd = serde_json::to_value(crd).unwrap();
            let mut found = Vec::new();
            let kind = crd["spec"]["names"]["kind"].as_str().unwrap().to_owned();
            nodes(
                kind,
                &crd["spec"]["versions"][0]["schema"]["openAPIV3Schema"],
                &mut found,
            );
            found.iter().for_each(|(path, schema)| check(path, schema));
        }
    }

    #[test]
    fn deployed_files_match_the_types() {
        let deploy = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../deploy");
        let plain = files()
            .into_iter()
            .map(|(name, text)| (format!("crds/{name}"), text));
        // As files that the chart quotes, not as templates: braces in them are left unchanged.
        let charted = chart_files()
            .into_iter()
            .map(|(name, text)| (format!("charts/runnel-hub/files/crds/{name}"), text));
        for (name, text) in plain.chain(charted) {
            let path = deploy.join(&name);
            if std::env::var_os("RUNNEL_UPDATE").is_some() {
                std::fs::write(&path, &text).unwrap();
            }
            let deployed = std::fs::read_to_string(&path).unwrap_or_default();
            assert!(
                deployed == text,
                "deploy/{name} is not what the types say; write it again with\n  \
                 RUNNEL_UPDATE=1 cargo test -p runnel-api"
            );
        }
    }

    #[test]
    fn text_matches_the_crds() {
        for (crd, (name, text)) in crds().into_iter().zip(files()) {
            let read: CustomResourceDefinition = serde_saphyr::from_str(&text).unwrap();
            assert!(read == crd, "{name}");
        }
        assert_eq!(
            yaml()
                .matches("---\napiVersion: apiextensions.k8s.io/v1\n")
                .count(),
            7
        );
    }

    #[test]
    fn every_field_is_described() {
        each_node(|path, schema| {
            let is_element = path.ends_with("[]") || path.ends_with("{}");
            assert!(is_element || schema["description"].is_string(), "{path}");
        });
    }

    #[test]
    fn descriptions_of_specs_have_the_defaults() {
        let mut count = 0;
        each_node(|path, schema| {
            let text = schema["description"].as_str().unwrap_or_default();
            let is_shown = path.contains(".spec.") && !schema["default"].is_null();
            if is_shown && !schema["default"].is_object() && !schema["default"].is_array() {
                let default = schema["default"].to_string().replace('"', "");
                let expected = format!("{DEFAULT}{default}.");
                assert!(text.ends_with(&expected), "{path}: {text}");
            } else {
                assert!(!text.contains(DEFAULT), "{path}: {text}");
            }
        });
        for crd in crds() {
            count += text(&crd).matches(DEFAULT).count();
        }
        assert!(count > 20, "{count}");
    }

    #[test]
    fn strings_and_lists_are_bounded() {
        let is_any = |schema: &Value| schema["x-kubernetes-preserve-unknown-fields"] == true;
        each_node(|path, schema| match schema["type"].as_str() {
            // The API server bounds the whole rule, and the hub what the values are used for.
            None if is_any(schema) => assert!(path.ends_with(".jsonPatch[].value"), "{path}"),
            // The API server bounds the whole bundle.
            Some("object") if schema["x-kubernetes-embedded-resource"] == true => {
                assert!(path.ends_with(".manifests[]"), "{path}");
            }
            Some("object") if is_any(schema) => {
                assert!(schema["maxProperties"].is_number(), "{path}");
            }
            Some("string") => {
                let bounded = schema["maxLength"].is_number() || schema["enum"].is_array();
                assert!(bounded || schema["format"] == "date-time", "{path}");
            }
            Some("array") => assert!(schema["maxItems"].is_number(), "{path}"),
            Some("object") if schema["additionalProperties"].is_object() => {
                assert!(schema["maxProperties"].is_number(), "{path}");
            }
            Some("object") => assert!(schema["properties"].is_object(), "{path}"),
            None if schema["x-kubernetes-int-or-string"] == true => {
                assert!(schema["maxLength"].is_number(), "{path}")
            }
            other => assert!(
                matches!(other, Some("boolean" | "integer")),
                "{path}: {other:?}"
            ),
        });
    }

    #[test]
    fn every_list_has_a_type_and_no_number_is_unsigned() {
        each_node(|path, schema| {
            assert!(
                schema["type"] != "array" || schema["x-kubernetes-list-type"].is_string(),
                "{path}"
            );
            let is_any = path.ends_with(".jsonPatch[].value");
            assert_eq!(schema["nullable"] == true, is_any, "{path}");
            assert!(
                schema["format"]
                    .as_str()
                    .is_none_or(|format| !format.starts_with('u')),
                "{path}"
            );
        });
    }

    #[test]
    fn every_validation_has_a_hint() {
        each_node(|path, schema| {
            for rule in schema["x-kubernetes-validations"]
                .as_array()
                .into_iter()
                .flatten()
            {
                assert!(
                    rule["message"]
                        .as_str()
                        .is_some_and(|message| !message.contains('\n')),
                    "{path}"
                );
            }
        });
    }
}
