//! The choice of clusters by a rule, a grant or an override.
use std::collections::BTreeMap;

use runnel_proto::model::{ClusterName, Pattern, Selector, matches_any};

/// A rule's `clusters`; entries add up.
#[derive(Clone, Debug, PartialEq)]
pub struct ClusterChoice {
    /// Every accepted cluster.
    pub all: bool,
    /// By exact name.
    pub names: Vec<String>,
    /// By the labels of the `MemberCluster`.
    pub selector: Option<Selector>,
    /// Names and globs that are subtracted.
    pub exclude: Vec<Pattern>,
}

impl ClusterChoice {
    /// Whether the rule chooses a cluster with these labels.
    pub fn chooses(&self, cluster: &ClusterName, labels: &BTreeMap<String, String>) -> bool {
        let name = cluster.as_str();
        let chosen = self.all
            || self.names.iter().any(|exact| exact == name)
            || self
                .selector
                .as_ref()
                .is_some_and(|selector| selector.matches(labels));
        chosen && !matches_any(&self.exclude, name)
    }
}

impl From<&runnel_api::Clusters> for ClusterChoice {
    fn from(spec: &runnel_api::Clusters) -> Self {
        Self {
            all: spec.all,
            names: spec.names.clone(),
            selector: spec.selector.as_ref().map(Into::into),
            exclude: spec.exclude.iter().map(Pattern::new).collect(),
        }
    }
}
