//! Label selectors and name patterns, with Kubernetes' meaning.
use std::collections::BTreeMap;

use serde::{Deserialize, Serialize};

/// How a [`Requirement`] compares.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub enum Operator {
    /// The label is there and its value is one of the values.
    In,
    /// The label is not there, or its value is none of the values.
    NotIn,
    /// The label is there.
    Exists,
    /// The label is not there.
    DoesNotExist,
}

/// One requirement on labels.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Requirement {
    /// The label's key.
    pub key: String,
    /// How it compares.
    pub operator: Operator,
    /// What it compares to; empty for `Exists` and `DoesNotExist`.
    #[serde(default)]
    pub values: Vec<String>,
}

/// A label selector: all requirements hold. An empty one matches nothing here: Runnel refuses to read "everything"
/// out of an omission.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
pub struct Selector {
    /// The requirements.
    pub requirements: Vec<Requirement>,
}

impl Selector {
    /// Whether these labels meet every requirement; `false` for a selector without requirements.
    pub fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        !self.requirements.is_empty()
            && self
                .requirements
                .iter()
                .all(|requirement| requirement.matches(labels))
    }
}

impl Requirement {
    fn matches(&self, labels: &BTreeMap<String, String>) -> bool {
        let value = labels.get(&self.key);
        match self.operator {
            Operator::In => value.is_some_and(|value| self.values.contains(value)),
            Operator::NotIn => value.is_none_or(|value| !self.values.contains(value)),
            Operator::Exists => value.is_some(),
            Operator::DoesNotExist => value.is_none(),
        }
    }
}

/// An object name, or a glob in which `*` matches any run of characters.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(transparent)]
pub struct Pattern(String);

impl Pattern {
    /// A pattern; `*` is its only special character.
    pub fn new(text: impl Into<String>) -> Self {
        Self(text.into())
    }

    /// The text as written.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Whether this is an exact name, not a glob.
    pub fn is_literal(&self) -> bool {
        !self.0.contains('*')
    }

    /// Whether the name fits.
    pub fn matches(&self, name: &str) -> bool {
        if self.is_literal() {
            self.0 == name
        } else {
            wildmatch::WildMatchPattern::<'*', '\0'>::new(&self.0).matches(name)
        }
    }
}

/// Whether any of the patterns fits.
pub fn matches_any(patterns: &[Pattern], name: &str) -> bool {
    patterns.iter().any(|pattern| pattern.matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn labels(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect()
    }

    fn selector(key: &str, operator: Operator, values: &[&str]) -> Selector {
        let values = values.iter().map(|v| (*v).to_owned()).collect();
        Selector {
            requirements: vec![Requirement {
                key: key.to_owned(),
                operator,
                values,
            }],
        }
    }

    #[test]
    fn operators_mean_what_kubernetes_means() {
        let prod = labels(&[("env", "prod")]);
        let none = labels(&[]);
        let cases = [
            (
                selector("env", Operator::In, &["prod", "test"]),
                true,
                false,
            ),
            (selector("env", Operator::NotIn, &["prod"]), false, true),
            (selector("env", Operator::Exists, &[]), true, false),
            (selector("env", Operator::DoesNotExist, &[]), false, true),
            (Selector::default(), false, false),
        ];
        for (selector, on_prod, on_none) in cases {
            assert_eq!(selector.matches(&prod), on_prod, "{selector:?}");
            assert_eq!(selector.matches(&none), on_none, "{selector:?}");
        }
    }

    #[test]
    fn star_matches_any_run_of_characters() {
        for (pattern, name, fits) in [
            ("tls-*", "tls-a", true),
            ("tls-*", "tls-", true),
            ("tls-*", "xtls-a", false),
            ("*", "anything", true),
            ("*-ca", "my-ca", true),
            ("a*c*e", "abcde", true),
            ("a*c*e", "abde", false),
            ("a.c", "abc", false),
            ("ca", "ca", true),
            ("ca", "cab", false),
        ] {
            assert_eq!(
                Pattern::new(pattern).matches(name),
                fits,
                "{pattern} {name}"
            );
        }
    }
}
