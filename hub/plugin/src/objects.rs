//! The objects of Runnel that this program reads, as the types of the API.
use std::collections::BTreeMap;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{self, ObjectMeta};
use runnel_api::conditions::{self, ConditionType};
use runnel_api::{
    ClusterDistributionRule, DistributionRule, MemberCluster, MemberClusterStatus, RuleStatus,
    RuleTerms,
};
use serde::Deserialize;
use serde_json::Value;

/// A rule of either kind.
#[derive(Clone, Debug, Deserialize)]
#[serde(tag = "kind")]
pub enum Rule {
    /// A rule for the sources of its own namespace.
    DistributionRule(Box<DistributionRule>),
    /// A rule for sources of any namespace.
    ClusterDistributionRule(Box<ClusterDistributionRule>),
}

impl Rule {
    /// Reads a rule as the API server returned it.
    ///
    /// # Errors
    /// A sentence with the name of the rule, if it has a value that this program does not support.
    pub fn read(object: &Value) -> anyhow::Result<Self> {
        Self::deserialize(object).map_err(|error| {
            anyhow::anyhow!(
                "rule {} cannot be read ({error}): the hub may be newer than this plugin \
                 (`kubectl runnel version`)",
                object["metadata"]["name"]
            )
        })
    }

    /// The kind, as in a manifest.
    pub fn kind(&self) -> &'static str {
        match self {
            Self::DistributionRule(_) => "DistributionRule",
            Self::ClusterDistributionRule(_) => "ClusterDistributionRule",
        }
    }

    /// Name, namespace, annotations and finalizers.
    pub fn metadata(&self) -> &ObjectMeta {
        match self {
            Self::DistributionRule(rule) => &rule.metadata,
            Self::ClusterDistributionRule(rule) => &rule.metadata,
        }
    }

    /// The fields that both kinds of rules have.
    pub fn terms(&self) -> &RuleTerms {
        match self {
            Self::DistributionRule(rule) => &rule.spec.terms,
            Self::ClusterDistributionRule(rule) => &rule.spec.terms,
        }
    }

    /// The status; `None` before a hub has written it.
    pub fn status(&self) -> Option<&RuleStatus> {
        match self {
            Self::DistributionRule(rule) => rule.status.as_ref(),
            Self::ClusterDistributionRule(rule) => rule.status.as_ref(),
        }
    }

    /// The name.
    pub fn name(&self) -> &str {
        self.metadata().name.as_deref().unwrap_or_default()
    }

    /// The namespace; empty for a `ClusterDistributionRule`.
    pub fn namespace(&self) -> &str {
        self.metadata().namespace.as_deref().unwrap_or_default()
    }

    /// `namespace/name`, or `name`.
    pub fn full_name(&self) -> String {
        match self.namespace() {
            "" => self.name().to_owned(),
            namespace => format!("{namespace}/{}", self.name()),
        }
    }
}

/// The object as machines read it, without the field managers.
pub fn tidy(mut object: Value) -> Value {
    if let Some(metadata) = object.get_mut("metadata").and_then(Value::as_object_mut) {
        metadata.remove("managedFields");
    }
    object
}

/// A condition; its texts are empty where the object has none of that type.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Condition<'a> {
    /// `True`, `False` or `Unknown`.
    pub status: &'a str,
    /// The reason in CamelCase.
    pub reason: &'a str,
    /// A sentence.
    pub message: &'a str,
    /// The time of the last change of the status.
    pub since: Option<Timestamp>,
}

impl Condition<'_> {
    /// Whether it is `True`.
    pub fn is_true(&self) -> bool {
        self.status == "True"
    }
}

/// An object with conditions of the closed list.
pub trait HasConditions {
    /// Returns all conditions.
    fn conditions(&self) -> &[v1::Condition];

    /// Returns the condition of this type.
    fn condition(&self, kind: ConditionType) -> Condition<'_> {
        let found = conditions::condition(self.conditions(), kind);
        found.map_or_else(Condition::default, |found| Condition {
            status: &found.status,
            reason: &found.reason,
            message: &found.message,
            since: Some(found.last_transition_time.0),
        })
    }
}

impl HasConditions for Rule {
    fn conditions(&self) -> &[v1::Condition] {
        self.status().map_or(&[], |status| &status.conditions)
    }
}

impl HasConditions for MemberCluster {
    fn conditions(&self) -> &[v1::Condition] {
        self.status
            .as_ref()
            .map_or(&[], |status| &status.conditions)
    }
}

/// The name of a member.
pub fn member_name(member: &MemberCluster) -> &str {
    member.metadata.name.as_deref().unwrap_or_default()
}

/// The status of a member; an empty one before a hub has written it.
pub fn member_status(member: &MemberCluster) -> MemberClusterStatus {
    member.status.clone().unwrap_or_default()
}

/// When an object was created.
pub fn created(metadata: &ObjectMeta) -> Option<Timestamp> {
    metadata.creation_timestamp.as_ref().map(|time| time.0)
}

/// Labels as `key=value`, with commas between them.
pub fn labels_text(labels: Option<&BTreeMap<String, String>>) -> String {
    let pairs = labels
        .into_iter()
        .flatten()
        .map(|(key, value)| format!("{key}={value}"));
    pairs.collect::<Vec<_>>().join(",")
}
