//! Label selectors, and the choice of clusters and namespaces, as a user writes them. The API server checks every part.
use std::collections::BTreeMap;

use runnel_proto::model::{self, Pattern};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{limits, schema, schema::Item};

/// Selects objects by their labels. All of matchLabels and matchExpressions must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(extend("x-kubernetes-map-type" = "atomic"))]
pub struct LabelSelector {
    /// Labels that an object must have, with exactly these values. At most 16.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::match_labels)]
    pub match_labels: BTreeMap<String, String>,
    /// Requirements on labels. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::EXPRESSIONS))]
    pub match_expressions: Vec<LabelExpression>,
}

/// One requirement on the labels of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "self.operator in ['In', 'NotIn'] ? has(self.values) && size(self.values) > 0 : true",
    "matchExpressions: the operators In and NotIn need values: list at least one, or use Exists or DoesNotExist",
))]
#[schemars(transform = schema::rule(
    "self.operator in ['Exists', 'DoesNotExist'] ? !has(self.values) || size(self.values) == 0 : true",
    "matchExpressions: the operators Exists and DoesNotExist take no values: remove values, or use In or NotIn",
))]
pub struct LabelExpression {
    /// The key of the label.
    #[schemars(transform = schema::label_key)]
    pub key: String,
    /// The operator. In: the label exists with one of `values`. NotIn: the label does not exist, or
    /// has another value. Exists: the label exists. DoesNotExist: it does not exist.
    pub operator: Operator,
    /// The values to compare with: 1 to 64 for In and NotIn, none for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("matchExpressions.values", limits::VALUES, Item::LabelValue))]
    pub values: Vec<String>,
}

/// The comparison of a label with values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label exists with one of the values.
    In,
    /// The label is not there, or its value is none of the values.
    NotIn,
    /// The label is there.
    #[default]
    Exists,
    /// The label is not there.
    DoesNotExist,
}

impl From<Operator> for model::Operator {
    fn from(operator: Operator) -> Self {
        match operator {
            Operator::In => model::Operator::In,
            Operator::NotIn => model::Operator::NotIn,
            Operator::Exists => model::Operator::Exists,
            Operator::DoesNotExist => model::Operator::DoesNotExist,
        }
    }
}

impl From<&LabelExpression> for model::Requirement {
    fn from(expression: &LabelExpression) -> Self {
        Self {
            key: expression.key.clone(),
            operator: expression.operator.into(),
            values: expression.values.clone(),
        }
    }
}

impl From<&LabelSelector> for model::Selector {
    /// `matchLabels` become requirements too, in the order of their keys.
    fn from(selector: &LabelSelector) -> Self {
        let labels = selector
            .match_labels
            .iter()
            .map(|(key, value)| model::Requirement {
                key: key.clone(),
                operator: model::Operator::In,
                values: vec![value.clone()],
            });
        Self {
            requirements: labels
                .chain(selector.match_expressions.iter().map(Into::into))
                .collect(),
        }
    }
}

/// A label selector that a rule cannot have.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SelectorError {
    /// A part is no requirement.
    #[error("has a part `{0}` that is no requirement on a label")]
    Requirement(String),
    /// A part compares numbers.
    #[error("compares numbers (`{0}`), which a rule cannot")]
    Comparison(String),
}

impl LabelSelector {
    /// Reads a label selector as kubectl takes it; `None` for an empty one.
    ///
    /// # Errors
    /// [`SelectorError`].
    pub fn parse(text: &str) -> Result<Option<Self>, SelectorError> {
        let mut selector = LabelSelector::default();
        for requirement in requirements(text) {
            let (key, operator, values) = requirement_of(requirement)?;
            let key = key.trim().to_owned();
            if !model::is_label_key(&key) {
                return Err(SelectorError::Requirement(requirement.to_owned()));
            }
            match (operator, values.as_slice()) {
                (Operator::In, [one]) if !selector.match_labels.contains_key(&key) => {
                    selector.match_labels.insert(key, one.clone());
                }
                _ => selector.match_expressions.push(LabelExpression {
                    key,
                    operator,
                    values,
                }),
            }
        }
        let empty = selector.match_labels.is_empty() && selector.match_expressions.is_empty();
        Ok((!empty).then_some(selector))
    }
}

/// Returns the parts between the commas outside of brackets.
fn requirements(text: &str) -> Vec<&str> {
    let (mut parts, mut begin, mut depth) = (Vec::new(), 0, 0_i32);
    for (at, c) in text.char_indices() {
        match c {
            '(' => depth += 1,
            ')' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(&text[begin..at]);
                begin = at + 1;
            }
            _ => {}
        }
    }
    parts.push(&text[begin..]);
    parts
        .into_iter()
        .map(str::trim)
        .filter(|part| !part.is_empty())
        .collect()
}

fn requirement_of(part: &str) -> Result<(&str, Operator, Vec<String>), SelectorError> {
    let one = |value: &str| vec![value.trim().to_owned()];
    if let Some((key, set)) = part.strip_suffix(')').and_then(|part| part.split_once('(')) {
        let values = set
            .split(',')
            .map(|value| value.trim().to_owned())
            .collect();
        let mut words = key.split_whitespace();
        return match (words.next(), words.next(), words.next()) {
            (Some(key), Some("in"), None) => Ok((key, Operator::In, values)),
            (Some(key), Some("notin"), None) => Ok((key, Operator::NotIn, values)),
            _ => Err(SelectorError::Requirement(part.to_owned())),
        };
    }
    if let Some((key, value)) = part.split_once("!=") {
        return Ok((key, Operator::NotIn, one(value)));
    }
    if let Some((key, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return Ok((key, Operator::In, one(value)));
    }
    if part.contains(['<', '>']) {
        return Err(SelectorError::Comparison(part.to_owned()));
    }
    Ok(match part.strip_prefix('!') {
        Some(key) => (key, Operator::DoesNotExist, Vec::new()),
        None => (part, Operator::Exists, Vec::new()),
    })
}

/// Selects member clusters. At least one of selector, names and all; they add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "has(self.selector) || (has(self.names) && size(self.names) > 0) || (has(self.all) && self.all)",
    "clusters chooses nothing: set selector or names, or all: true for every cluster",
))]
pub struct Clusters {
    /// Chooses clusters by the labels of their MemberCluster. It may not be empty; for every cluster write `all: true`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LabelSelector", transform = schema::filled_selector("clusters.selector", "for every cluster remove it and write all: true"))]
    pub selector: Option<LabelSelector>,
    /// Chooses clusters by the exact names of their MemberClusters. At most 512.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("clusters.names", limits::CLUSTERS, Item::ClusterName))]
    pub names: Vec<String>,
    /// Whether every accepted cluster is chosen, also those that join later.
    #[serde(default)]
    pub all: bool,
    /// Names and globs of clusters that are subtracted. At most 512.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("clusters.exclude", limits::CLUSTERS, Item::ClusterPattern))]
    pub exclude: Vec<String>,
}

/// Selects namespaces in the member clusters. At least one of names and selector; they add up.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "has(self.selector) || (has(self.names) && size(self.names) > 0)",
    "namespaces chooses nothing: set names or selector, or remove namespaces to keep each source's own namespace",
))]
pub struct Namespaces {
    /// Exact names, and globs in which `*` matches any run of characters. Globs never match `kube-*` or the namespace
    /// of Runnel itself; an exact name may. At most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("namespaces.names", limits::NAMESPACES, Item::NamespacePattern))]
    #[schemars(transform = schema::no_reserved_glob("namespaces.names"))]
    pub names: Vec<String>,
    /// Chooses namespaces by their labels in the member cluster. Never matches `kube-*` or the namespace of Runnel itself.
    /// It may not be empty; for every namespace write `names: ["*"]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "LabelSelector", transform = schema::filled_selector("namespaces.selector", "for every namespace remove it and write names: [\"*\"]"))]
    pub selector: Option<LabelSelector>,
    /// Names and globs of namespaces that are subtracted. At most 128.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("namespaces.exclude", limits::NAMESPACES, Item::NamespacePattern))]
    pub exclude: Vec<String>,
}

impl From<&Namespaces> for model::NamespaceChoice {
    fn from(namespaces: &Namespaces) -> Self {
        let patterns = |texts: &[String]| texts.iter().map(Pattern::new).collect();
        Self {
            names: patterns(&namespaces.names),
            selector: namespaces.selector.as_ref().map(Into::into),
            exclude: patterns(&namespaces.exclude),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn labels_and_expressions_of_a_selector_all_apply() {
        let written = serde_json::json!({
            "matchLabels": {"env": "prod"},
            "matchExpressions": [{"key": "tier", "operator": "NotIn", "values": ["lab"]}],
        });
        let selector: LabelSelector = serde_json::from_value(written).unwrap();
        let selector = model::Selector::from(&selector);
        let labels = |pairs: &[(&str, &str)]| -> BTreeMap<String, String> {
            pairs
                .iter()
                .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
                .collect()
        };
        assert!(selector.matches(&labels(&[("env", "prod")])));
        assert!(!selector.matches(&labels(&[("env", "prod"), ("tier", "lab")])));
        assert!(!selector.matches(&labels(&[("env", "test")])));
    }
}
