//! The kinds of objects that the rows about real members distribute.

use kube::api::DynamicObject;
use kube::core::{ApiResource, GroupVersionKind};
use serde_json::{Value, json};

use crate::scene::Draft;

/// A kind of objects, each of which carries one text as its value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Sample {
    /// A ConfigMap: equality is exact.
    ConfigMap,
    /// A custom resource with a list by key: equality is by field ownership.
    Gauge,
    /// A Deployment: the API server fills in most of its fields.
    Deployment,
}

impl Sample {
    /// All of them; the first one is what the rows measured before there were others.
    pub const ALL: [Self; 3] = [Self::ConfigMap, Self::Gauge, Self::Deployment];

    /// The resources that the hub and the agents must be allowed to distribute.
    #[must_use]
    pub fn resources() -> [&'static str; 4] {
        let [config_map, gauge, deployment] = Self::ALL.map(Self::resource);
        [config_map, "secrets", gauge, deployment]
    }

    /// The samples of one run: only the first one where small sizes are enough.
    #[must_use]
    pub const fn measured(quick: bool) -> &'static [Self] {
        if quick {
            &[Self::ConfigMap]
        } else {
            &Self::ALL
        }
    }

    /// As in rules and policies.
    #[must_use]
    pub const fn resource(self) -> &'static str {
        match self {
            Self::ConfigMap => "configmaps",
            Self::Gauge => "gauges.speed.runnel.test",
            Self::Deployment => "deployments.apps",
        }
    }

    /// What follows a size in the table.
    #[must_use]
    pub const fn suffix(self) -> &'static str {
        match self {
            Self::ConfigMap => "",
            Self::Gauge => ", custom resource",
            Self::Deployment => ", Deployments",
        }
    }

    /// As in requests.
    #[must_use]
    pub fn api(self) -> ApiResource {
        let (group, version, kind) = match self {
            Self::ConfigMap => ("", "v1", "ConfigMap"),
            Self::Gauge => (GROUP, "v1", "Gauge"),
            Self::Deployment => ("apps", "v1", "Deployment"),
        };
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, kind))
    }

    /// The definition that the API servers need first.
    #[must_use]
    pub fn definition(self) -> Option<Value> {
        (self == Self::Gauge).then(|| definition_of("Gauge"))
    }

    /// An object with this value, as one applies it.
    #[must_use]
    pub fn object(self, name: &str, value: &str) -> Value {
        let rest = match self {
            Self::ConfigMap => json!({"data": {"value": value}}),
            Self::Gauge => json!({"spec": {
                "unit": "mm", "marks": [{"name": "low", "value": "1"}, {"name": "value", "value": value}],
            }}),
            Self::Deployment => json!({"spec": {
                "replicas": 2,
                "selector": {"matchLabels": {"app": name}},
                "template": {
                    "metadata": {"labels": {"app": name}},
                    "spec": {"containers": [{
                        "name": "app", "image": "registry.example.com/app:1",
                        "env": [{"name": "MODE", "value": "plain"}, {"name": "value", "value": value}],
                        "ports": [{"containerPort": 8080}],
                        "resources": {"requests": {"cpu": "100m", "memory": "64Mi"}},
                    }]},
                },
            }}),
        };
        let api = self.api();
        let mut object = json!({
            "apiVersion": api.api_version, "kind": api.kind, "metadata": {"name": name},
        });
        if let (Some(object), Value::Object(rest)) = (object.as_object_mut(), rest) {
            object.extend(rest);
        }
        object
    }

    /// The value of an object; empty if it has none.
    #[must_use]
    pub fn value(self, object: &DynamicObject) -> &str {
        let path = match self {
            Self::ConfigMap => "/data/value",
            Self::Gauge => "/spec/marks/1/value",
            Self::Deployment => "/spec/template/spec/containers/0/env/1/value",
        };
        let value = object.data.pointer(path).and_then(Value::as_str);
        value.unwrap_or_default()
    }
}

/// The name of a custom resource in rules and policies, which is that of its definition.
#[must_use]
pub fn resource_of(kind: &ApiResource) -> String {
    format!("{}.{}", kind.plural, kind.group)
}

/// The text of a kind for a command line, as `apps/v1/Deployment`.
#[must_use]
pub fn kind_text(kind: &ApiResource) -> String {
    format!("{}/{}/{}", kind.group, kind.version, kind.kind)
}

/// The kind of such a text.
#[must_use]
pub fn kind_of(text: &str) -> Option<ApiResource> {
    let (group, rest) = text.split_once('/')?;
    let (version, kind) = rest.split_once('/')?;
    Some(ApiResource::from_gvk(&GroupVersionKind::gvk(
        group, version, kind,
    )))
}

/// The group of the custom resources.
pub const GROUP: &str = "speed.runnel.test";

/// A kind as projects define them: a default, a list by key, a status.
#[must_use]
pub fn definition_of(kind: &str) -> Value {
    let plural = format!("{}s", kind.to_lowercase());
    let text = json!({"type": "string"});
    let marks = json!({
        "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
        "items": {"type": "object", "required": ["name"], "properties": {"name": text, "value": text}},
    });
    let scale = json!({"type": "integer", "default": 1});
    let spec =
        json!({"type": "object", "properties": {"unit": text, "scale": scale, "marks": marks}});
    Draft::definition(&format!("{plural}.{GROUP}"), kind, &[("v1", &spec)]).json()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn kinds_are_read_as_they_are_written() {
        for kind in Sample::ALL.map(Sample::api) {
            assert_eq!(kind_of(&kind_text(&kind)), Some(kind));
        }
        assert_eq!(kind_of("Deployment"), None);
    }

    #[test]
    fn every_object_carries_its_value() -> serde_json::Result<()> {
        for sample in Sample::ALL {
            let object: DynamicObject = serde_json::from_value(sample.object("one", "text"))?;
            assert_eq!(sample.value(&object), "text", "{sample:?}");
        }
        Ok(())
    }
}
