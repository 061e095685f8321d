//! Checks a rule that the API server has not checked: types, limits and closed lists, as in the
//! CRDs. It does not evaluate CEL rules; only the API server does.
use std::collections::BTreeMap;
use std::sync::LazyLock;

use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::{
    CustomResourceDefinition, JSONSchemaProps, JSONSchemaPropsOrArray, JSONSchemaPropsOrBool,
};
use serde_json::Value;

use super::crds;

static SPECS: LazyLock<BTreeMap<String, JSONSchemaProps>> = LazyLock::new(|| {
    let spec = |crd: CustomResourceDefinition| {
        let version = crd.spec.versions.into_iter().next()?;
        let spec = version
            .schema?
            .open_api_v3_schema?
            .properties?
            .remove("spec")?;
        Some((crd.spec.names.kind, spec))
    };
    crds().into_iter().filter_map(spec).collect()
});

/// A value in a spec that its CRD does not allow. Contains the field name, never a value.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{field}: {problem}")]
pub struct SpecError {
    /// The path of the field, such as `spec.sources[0].names`.
    pub field: String,
    /// The problem with the value.
    pub problem: String,
}

/// Checks a spec against its CRD.
///
/// # Errors
/// [`SpecError`] for the first invalid field.
pub fn check_spec(kind: &str, spec: &Value) -> Result<(), SpecError> {
    let unknown = || SpecError {
        field: "kind".to_owned(),
        problem: "it is none of runnel.dev".to_owned(),
    };
    let schema = SPECS.get(kind).ok_or_else(unknown)?;
    check("spec", schema, spec)
}

fn check(path: &str, schema: &JSONSchemaProps, value: &Value) -> Result<(), SpecError> {
    let wrong = |problem: String| {
        Err(SpecError {
            field: path.to_owned(),
            problem,
        })
    };
    let over = |limit: Option<i64>, size: usize| {
        limit.filter(|limit| usize::try_from(*limit).is_ok_and(|limit| size > limit))
    };
    if let Some(words) = &schema.enum_
        && !words.iter().any(|word| word.0 == *value)
    {
        return wrong("it is not one of the allowed values".to_owned());
    }
    let type_ = match (schema.x_kubernetes_int_or_string, value) {
        (Some(true), Value::String(_)) => Some("string"),
        (Some(true), _) => Some("integer"),
        _ => schema.type_.as_deref(),
    };
    match (type_, value) {
        (Some("string"), Value::String(text)) => {
            let size = text.chars().count();
            if let Some(limit) = over(schema.max_length, size) {
                return wrong(format!("it is longer than {limit} characters"));
            }
            if schema
                .min_length
                .is_some_and(|least| usize::try_from(least).is_ok_and(|least| size < least))
            {
                return wrong("it is too short".to_owned());
            }
        }
        (Some("integer"), Value::Number(number)) => {
            let Some(number) = number.as_i64() else {
                return wrong("write a whole number".to_owned());
            };
            let outside = schema.minimum.is_some_and(|least| (number as f64) < least)
                || schema.maximum.is_some_and(|most| number as f64 > most);
            if outside {
                return wrong("the number is too small or too large".to_owned());
            }
        }
        (Some("array"), Value::Array(items)) => {
            if let Some(limit) = over(schema.max_items, items.len()) {
                return wrong(format!("it has more than {limit} entries"));
            }
            if let Some(JSONSchemaPropsOrArray::Schema(item)) = &schema.items {
                for (number, one) in items.iter().enumerate() {
                    check(&format!("{path}[{number}]"), item, one)?;
                }
            }
        }
        (Some("object"), Value::Object(fields)) => {
            if let Some(limit) = over(schema.max_properties, fields.len()) {
                return wrong(format!("it has more than {limit} entries"));
            }
            let is_there = |name: &String| fields.get(name).is_some_and(|value| !value.is_null());
            if let Some(missing) = schema
                .required
                .iter()
                .flatten()
                .find(|name| !is_there(name))
            {
                return wrong(format!("{missing} is missing"));
            }
            let others = match &schema.additional_properties {
                Some(JSONSchemaPropsOrBool::Schema(others)) => Some(&**others),
                _ => None,
            };
            // An explicit null counts as absent, and fields that the CRD does not have are
            // ignored.
            for (name, value) in fields.iter().filter(|(_, value)| !value.is_null()) {
                match (
                    schema.properties.as_ref().and_then(|known| known.get(name)),
                    others,
                ) {
                    (Some(known), _) => check(&format!("{path}.{name}"), known, value)?,
                    (None, Some(others)) => check(&format!("{path}{{}}"), others, value)?,
                    (None, None) => {}
                }
            }
        }
        (Some("boolean"), Value::Bool(_)) | (None, _) => {}
        (Some(type_), _) => return wrong(format!("it is no {type_}")),
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(change: impl FnOnce(&mut Value)) -> Result<(), SpecError> {
        let mut spec = json!({
            "sources": [{"resources": ["configmaps"], "names": ["a"]}],
            "clusters": {"all": true},
            "namespaces": {"names": ["b"]},
            "rollout": {"maxConcurrency": "50%"},
            "removalLimit": {"count": 10},
            "transform": null,
        });
        change(&mut spec);
        check_spec("DistributionRule", &spec)
    }

    #[test]
    fn rule_beyond_bounds_is_refused_with_the_field() {
        rule(|_| ()).unwrap();
        rule(|spec| spec["rollout"]["maxConcurrency"] = json!(3)).unwrap();
        type Change = fn(&mut Value);
        let wrong: [(Change, &str); 8] = [
            (
                |spec| spec["namespaces"]["names"] = json!(vec!["b"; 1000]),
                "spec.namespaces.names: it has more than",
            ),
            (
                |spec| spec["namespaces"]["names"][0] = json!("x".repeat(254)),
                "spec.namespaces.names[0]: it is longer",
            ),
            (
                |spec| spec["sources"][0]["resources"][0] = json!("x".repeat(254)),
                "spec.sources[0].resources[0]: it is longer",
            ),
            (
                |spec| spec["conflictPolicy"] = json!("Sometimes"),
                "spec.conflictPolicy: it is not one",
            ),
            (
                |spec| spec["ignoreFields"] = json!(["/data/".to_owned() + &"k".repeat(999)]),
                "spec.ignoreFields[0]",
            ),
            (
                |spec| spec["removalLimit"]["count"] = json!(-1),
                "spec.removalLimit.count: the number",
            ),
            (
                |spec| spec["suspend"] = json!("yes"),
                "spec.suspend: it is no boolean",
            ),
            (
                |spec| drop(spec.as_object_mut().unwrap().remove("clusters")),
                "spec: clusters is missing",
            ),
        ];
        for (change, words) in wrong {
            let message = rule(change).unwrap_err();
            assert!(message.to_string().starts_with(words), "{message}");
        }
        assert!(check_spec("Pod", &json!({})).is_err());
    }
}
