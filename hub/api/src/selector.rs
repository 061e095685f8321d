//! Label selectors as a user writes them, every part of them checked by the API server.
use std::collections::BTreeMap;

use runnel_proto::model;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{limits, schema};

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
    /// How the label compares. In: it is there and its value is one of `values`. NotIn: it is not there, or its value is
    /// none of `values`. Exists: it is there. DoesNotExist: it is not there.
    pub operator: Operator,
    /// What the label is compared to: 1 to 64 values for In and NotIn, none for Exists and DoesNotExist.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("matchExpressions.values", limits::VALUES, schema::Item::LabelValue))]
    pub values: Vec<String>,
}

/// How a label compares to values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub enum Operator {
    /// The label is there and its value is one of the values.
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
