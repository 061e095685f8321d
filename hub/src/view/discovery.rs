//! Discovery and OpenAPI documents of the view API.
use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use kube::CustomResourceExt;
use runnel_api::{
    ClusterDelivery, ClusterRulePlan, ClusterRuleSync, CopyExplanation, Delivery,
    ListedClusterCopy, ListedCopy, MemberTarget, RemovalReview, RulePlan, RuleSync, VIEW_GROUP,
    VIEW_VERSION,
};
use serde_json::value::RawValue;
use serde_json::{Map, Value, json};

use super::request::{COPY_FIELDS, DELIVERY_FIELDS, FieldNames, METADATA_FIELDS};

/// What the objects of a resource are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    /// One rule in one member cluster.
    Deliveries,
    /// One copy in one member cluster.
    Copies,
    /// One member cluster that grants open to a namespace.
    MemberTargets,
    /// A request for what an object would change.
    Plans,
    /// A request for the reason of one copy.
    Explanations,
    /// A request for the removals of a rule that wait for approval.
    Removals,
    /// A request for whether the hub has observed the newest sources of a rule.
    Syncs,
}

/// A resource of the view API.
pub(super) struct Resource {
    pub(super) plural: String,
    pub(super) singular: String,
    pub(super) kind: String,
    pub(super) namespaced: bool,
    pub(super) view: View,
    /// The fields by which its objects can be selected.
    pub(super) fields: FieldNames,
    schema: Value,
}

impl Resource {
    fn of(view: View, crd: &CustomResourceDefinition) -> Self {
        let names = &crd.spec.names;
        let schema = crd
            .spec
            .versions
            .first()
            .and_then(|version| version.schema.as_ref()?.open_api_v3_schema.as_ref())
            .map(|schema| serde_json::to_value(schema).expect("a schema is JSON"))
            .unwrap_or_default();
        Self {
            plural: names.plural.clone(),
            singular: names.singular.clone().unwrap_or_default(),
            kind: names.kind.clone(),
            namespaced: crd.spec.scope == "Namespaced",
            view,
            fields: match view {
                View::Deliveries => DELIVERY_FIELDS,
                View::Copies => COPY_FIELDS,
                View::MemberTargets
                | View::Plans
                | View::Explanations
                | View::Removals
                | View::Syncs => METADATA_FIELDS,
            },
            schema,
        }
    }

    /// The verbs of the resource.
    pub(super) fn verbs(&self) -> &'static [&'static str] {
        match self.view {
            View::Deliveries => &["get", "list", "watch"],
            View::Copies | View::MemberTargets => &["get", "list"],
            View::Plans | View::Explanations | View::Removals | View::Syncs => &["create"],
        }
    }

    /// Returns the path of a field below `spec` that the resource does not have. A manifest may have any fields, and is
    /// not decoded.
    pub(super) fn unknown_field(&self, spec: &RawValue) -> Option<String> {
        unknown_field(self.schema.pointer("/properties/spec")?, spec, "spec")
    }

    fn path(&self) -> String {
        let namespace = if self.namespaced {
            "namespaces/{namespace}/"
        } else {
            ""
        };
        format!("{GROUP_PATH}/{namespace}{}", self.plural)
    }

    fn group_version_kind(&self) -> Value {
        json!({"group": VIEW_GROUP, "version": VIEW_VERSION, "kind": self.kind})
    }
}

fn unknown_field(schema: &Value, value: &RawValue, path: &str) -> Option<String> {
    let known = schema.get("properties")?.as_object()?;
    let fields: BTreeMap<String, &RawValue> = serde_json::from_str(value.get()).ok()?;
    fields.into_iter().find_map(|(name, value)| {
        let path = format!("{path}.{name}");
        match known.get(&name) {
            Some(schema) => unknown_field(schema, value, &path),
            None => Some(path),
        }
    })
}

/// The resources of the view API.
pub(super) static RESOURCES: LazyLock<[Resource; 11]> = LazyLock::new(|| {
    [
        Resource::of(View::Deliveries, &Delivery::crd()),
        Resource::of(View::Deliveries, &ClusterDelivery::crd()),
        Resource::of(View::Copies, &ListedCopy::crd()),
        Resource::of(View::Copies, &ListedClusterCopy::crd()),
        Resource::of(View::MemberTargets, &MemberTarget::crd()),
        Resource::of(View::Plans, &RulePlan::crd()),
        Resource::of(View::Plans, &ClusterRulePlan::crd()),
        Resource::of(View::Explanations, &CopyExplanation::crd()),
        Resource::of(View::Removals, &RemovalReview::crd()),
        Resource::of(View::Syncs, &RuleSync::crd()),
        Resource::of(View::Syncs, &ClusterRuleSync::crd()),
    ]
});

/// The path of the group's version.
pub(super) const GROUP_PATH: &str = "/apis/view.runnel.dev/v1alpha1";
/// The path of the OpenAPI document.
const OPENAPI_PATH: &str = "/openapi/v3/apis/view.runnel.dev/v1alpha1";

/// Returns the document of a path; `None` if the path is none of discovery or OpenAPI.
pub(super) fn document(path: &str) -> Option<Value> {
    let version =
        json!({"groupVersion": format!("{VIEW_GROUP}/{VIEW_VERSION}"), "version": VIEW_VERSION});
    let group = json!({
        "name": VIEW_GROUP,
        "versions": [version],
        "preferredVersion": version,
    });
    match path {
        "/apis" => Some(json!({"kind": "APIGroupList", "apiVersion": "v1", "groups": [group]})),
        "/apis/view.runnel.dev" => {
            let mut group = group;
            group["kind"] = "APIGroup".into();
            group["apiVersion"] = "v1".into();
            Some(group)
        }
        GROUP_PATH => Some(resources()),
        "/openapi/v3" => Some(json!({
            "paths": {OPENAPI_PATH.trim_start_matches("/openapi/v3/"): {"serverRelativeURL": OPENAPI_PATH}},
        })),
        OPENAPI_PATH => Some(openapi()),
        "/openapi/v2" => Some(json!({
            "swagger": "2.0",
            "info": {"title": "Runnel views", "version": VIEW_VERSION},
            "paths": {},
        })),
        _ => None,
    }
}

fn resources() -> Value {
    let resources: Vec<_> = RESOURCES
        .iter()
        .map(|resource| {
            json!({
                "name": resource.plural,
                "singularName": resource.singular,
                "namespaced": resource.namespaced,
                "kind": resource.kind,
                "verbs": resource.verbs(),
                "categories": categories(resource.view),
            })
        })
        .collect();
    json!({
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": format!("{VIEW_GROUP}/{VIEW_VERSION}"),
        "resources": resources,
    })
}

/// `kubectl get runnel` lists deliveries. It does not ask agents for copies.
fn categories(view: View) -> &'static [&'static str] {
    match view {
        View::Deliveries => &["runnel"],
        _ => &[],
    }
}

/// Returns what `kubectl explain` reads: the schema of each kind, and the paths that lead to it.
fn openapi() -> Value {
    let (mut paths, mut schemas) = (Map::new(), Map::new());
    for resource in RESOURCES.iter() {
        let name = format!("dev.runnel.view.{VIEW_VERSION}.{}", resource.kind);
        let mut schema = resource.schema.clone();
        schema["x-kubernetes-group-version-kind"] = json!([resource.group_version_kind()]);
        for (field, description) in [
            ("apiVersion", "The version of the view API."),
            ("kind", "The kind of the object."),
        ] {
            schema["properties"][field] = json!({"type": "string", "description": description});
        }
        schema["properties"]["metadata"] = json!({
            "type": "object",
            "description": "The metadata. The labels are those of the MemberCluster.",
        });
        let operation = |action: &str| {
            json!({
                "x-kubernetes-action": action,
                "x-kubernetes-group-version-kind": resource.group_version_kind(),
                "responses": {"200": {"description": "OK", "content": {"application/json": {
                    "schema": {"$ref": format!("#/components/schemas/{name}")},
                }}}},
            })
        };
        if resource.verbs().contains(&"create") {
            paths.insert(resource.path(), json!({"post": operation("post")}));
        } else {
            paths.insert(resource.path(), json!({"get": operation("list")}));
            let one = format!("{}/{{name}}", resource.path());
            paths.insert(one, json!({"get": operation("get")}));
        }
        schemas.insert(name, schema);
    }
    json!({
        "openapi": "3.0.0",
        "info": {"title": "Runnel views", "version": VIEW_VERSION},
        "paths": paths,
        "components": {"schemas": schemas},
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn unknown_fields_are_found_below_the_spec() {
        let of = |plural: &str, spec: Value| {
            let resource = RESOURCES.iter().find(|resource| resource.plural == plural);
            let spec = RawValue::from_string(spec.to_string()).unwrap();
            resource.unwrap().unknown_field(&spec)
        };
        let manifest = json!({"kind": "DistributionRule", "spec": {"any": 1}});
        let plan = json!({"object": manifest, "dryRun": true, "diff": true, "delete": false});
        assert_eq!(of("ruleplans", plan), None);
        let typo = json!({"name": "r", "dryrun": true});
        assert_eq!(of("ruleplans", typo), Some("spec.dryrun".to_owned()));
        let target = json!({"cluster": "c", "target": {"kind": "Secret", "nmae": "x"}});
        assert_eq!(
            of("copyexplanations", target),
            Some("spec.target.nmae".to_owned())
        );
    }

    #[test]
    fn documents_describe_each_resource() {
        let resources = document(GROUP_PATH).unwrap();
        assert_eq!(resources["resources"][0]["name"], "deliveries");
        assert_eq!(resources["resources"][1]["namespaced"], false);
        let index = document("/openapi/v3").unwrap();
        let path = &index["paths"]["apis/view.runnel.dev/v1alpha1"]["serverRelativeURL"];
        let openapi = document(path.as_str().unwrap()).unwrap();
        let schemas = openapi["components"]["schemas"].as_object().unwrap();
        for (name, schema) in schemas {
            let status = &schema["properties"]["status"];
            assert!(status["properties"].is_object(), "{name}");
            let text = serde_json::to_string(schema).unwrap();
            assert!(!text.contains("$defs") && !text.contains("$ref"), "{name}");
        }
        assert_eq!(schemas.len(), RESOURCES.len());
        assert_eq!(document("/apis/other"), None);
    }
}
