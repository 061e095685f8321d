//! Deliveries: the state of each rule in each of its clusters, computed from the hub's memory.
use std::collections::BTreeMap;
use std::ops::Bound;
use std::time::Instant;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::ObjectMeta;
use runnel_api::conditions::{ConditionStatus, ConditionType};
use runnel_api::{
    CLUSTER_LABEL, ClusterDelivery, ClusterDeliverySpec, ClusterState, Delivery, DeliveryCondition,
    DeliveryFailure, DeliveryFeedback, DeliverySpec, DeliveryStatus, RULE_LABEL, healthy_of,
};
use runnel_hub_core::index::Index;
use runnel_hub_core::now::age;
use runnel_hub_core::status::{ClusterDetail, ProofState, ReportStore, View, detail};
use runnel_proto::model::{ClusterName, RuleName, RuleUid};
use serde_json::{Value, json};

use super::error::ViewError;
use super::request::{Fields, Position, Query, Selection, object_name};
use super::table::{Column, ViewObject};
use crate::hub_state::HubState;
use crate::object_cache::ObjectCache;

/// The clusters of a rule that are read under one lock.
const CLUSTERS_PER_LOCK: usize = 1000;

/// The rules of a request.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Scope {
    /// DistributionRules of one namespace; empty: of all namespaces.
    Namespace(String),
    /// ClusterDistributionRules.
    Cluster,
}

impl Scope {
    /// Whether a rule belongs to the request.
    pub(super) fn has(&self, rule: &RuleName) -> bool {
        match self {
            Self::Cluster => rule.is_cluster_scoped(),
            Self::Namespace(name) => {
                !rule.is_cluster_scoped() && (name.is_empty() || *name == rule.namespace)
            }
        }
    }
}

/// The state of one rule in one cluster, as its object is made of it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Row {
    pub(super) rule: RuleName,
    pub(super) cluster: ClusterName,
    pub(super) metadata: ObjectMeta,
    pub(super) status: DeliveryStatus,
}

impl Row {
    /// Returns the last trace of a delivery that does not exist any more.
    pub(super) fn deleted(rule: &RuleName, uid: &RuleUid, cluster: &ClusterName) -> Self {
        Self {
            rule: rule.clone(),
            cluster: cluster.clone(),
            metadata: metadata(rule, uid, cluster),
            status: DeliveryStatus::default(),
        }
    }

    pub(super) fn position(&self) -> Position {
        Position {
            namespace: self.rule.namespace.clone(),
            rule: self.rule.name.clone(),
            cluster: self.cluster.as_str().to_owned(),
            copy: None,
        }
    }

    pub(super) fn is_selected(&self, selection: &Selection) -> bool {
        let state = state_name(self.status.state);
        let labels = self.metadata.labels.as_ref();
        labels.is_none_or(|labels| selection.matches_labels(labels))
            && selection.matches(&Fields {
                name: self.metadata.name.as_deref().unwrap_or_default(),
                namespace: &self.rule.namespace,
                rule: &self.rule.name,
                cluster: self.cluster.as_str(),
                state: &state,
                reason: &self.status.reason,
                ..Fields::default()
            })
    }
}

impl ViewObject for Row {
    const COLUMNS: &'static [Column] = &[
        ("Rule", "string", 0, "The rule."),
        ("Cluster", "string", 0, "The member cluster."),
        (
            "State",
            "string",
            0,
            "The state of the rule in the cluster.",
        ),
        (
            "Applied",
            "string",
            0,
            "Copies that equal their source, of all that should exist.",
        ),
        ("Failed", "integer", 0, "Copies whose last attempt failed."),
        (
            "Waiting",
            "integer",
            0,
            "Copies for namespaces that do not exist yet.",
        ),
        ("Reason", "string", 0, "The worst reason among the copies."),
        ("Age", "string", 0, "The age of the rule."),
        ("Name", "string", 1, "The name of the delivery."),
        (
            "Drifted",
            "integer",
            1,
            "Copies that were changed in the cluster, and are left so.",
        ),
        (
            "Newest",
            "boolean",
            1,
            "Whether the cluster has the newest revisions.",
        ),
        (
            "Proof",
            "string",
            1,
            "Whether the agent has proved its copies.",
        ),
        ("Message", "string", 1, "A sentence for a person."),
        (
            "Healthy",
            "string",
            1,
            "Copies that are healthy, of all that have a health.",
        ),
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn cells(&self, now: Timestamp) -> Value {
        let status = &self.status;
        let created = self.metadata.creation_timestamp.as_ref();
        json!([
            self.rule.name,
            self.cluster.as_str(),
            state_name(status.state),
            format!("{}/{}", status.applied, status.copies),
            status.failed,
            status.waiting,
            status.reason,
            age(created.map(|created| created.0), now),
            self.metadata.name,
            status.drifted,
            status.newest,
            status.proof,
            status.message,
            healthy_of(status.healthy, status.with_health),
        ])
    }

    fn object(&self) -> Value {
        let (rule, cluster) = (self.rule.name.clone(), self.cluster.as_str().to_owned());
        let (metadata, status) = (self.metadata.clone(), Some(self.status.clone()));
        let object = if self.rule.is_cluster_scoped() {
            serde_json::to_value(ClusterDelivery {
                metadata,
                spec: ClusterDeliverySpec { rule, cluster },
                status,
            })
        } else {
            serde_json::to_value(Delivery {
                metadata,
                spec: DeliverySpec { rule, cluster },
                status,
            })
        };
        object.expect("a delivery has only text and numbers")
    }
}

/// Returns the word of a state.
fn state_name(state: ClusterState) -> String {
    format!("{state:?}")
}

/// One page of a list.
pub(super) struct DeliveryPage {
    pub(super) rows: Vec<Row>,
    /// The position of the last row, if more rows follow.
    pub(super) next: Option<Position>,
}

/// Reads deliveries from the state of the hub.
#[derive(Clone, Copy)]
pub(super) struct Reader<'a> {
    pub(super) hub_state: &'a HubState,
    pub(super) object_cache: &'a ObjectCache,
}

impl Reader<'_> {
    /// Returns the rules that `is_read` accepts, in the order of lists.
    pub(super) fn rules(&self, is_read: impl Fn(&RuleName) -> bool) -> Vec<(RuleName, RuleUid)> {
        let index = self.hub_state.index.read();
        let mut rules: Vec<_> = index
            .rules()
            .iter()
            .filter(|(_, entry)| is_read(&entry.rule.terms.rule))
            .map(|(uid, entry)| (entry.rule.terms.rule.clone(), uid.clone()))
            .collect();
        drop(index);
        rules.sort_by(|(left, _), (right, _)| {
            (&left.namespace, &left.name).cmp(&(&right.namespace, &right.name))
        });
        rules
    }

    /// Returns one page of the deliveries that a request selects.
    ///
    /// # Errors
    /// [`ViewError::Unavailable`], while this replica does not serve.
    pub(super) fn page(&self, scope: &Scope, query: &Query) -> Result<DeliveryPage, ViewError> {
        self.serving_since()?;
        let mut rows = Vec::new();
        for (name, uid) in self.rules(|rule| scope.has(rule)) {
            let after = query.after.as_ref();
            let here = (name.namespace.as_str(), name.name.as_str());
            let begin = match after.map(|after| (after.namespace.as_str(), after.rule.as_str())) {
                Some(there) if here < there => continue,
                Some(there) if here == there => {
                    after.map(|after| ClusterName::from(after.cluster.as_str()))
                }
                _ => None,
            };
            if query.selection.rule().is_some_and(|only| only != name.name) {
                continue;
            }
            let full = self.rows_of(&uid, begin, &query.selection, &mut |row| {
                rows.push(row);
                // One more, because the last page has no successor.
                rows.len() > query.limit
            })?;
            if full {
                rows.truncate(query.limit);
                let next = rows.last().map(Row::position);
                return Ok(DeliveryPage { rows, next });
            }
        }
        Ok(DeliveryPage { rows, next: None })
    }

    /// Passes the selected deliveries of a rule to `take`, until it returns true. Returns whether
    /// it did.
    pub(super) fn rows_of(
        &self,
        uid: &RuleUid,
        mut after: Option<ClusterName>,
        selection: &Selection,
        take: &mut dyn FnMut(Row) -> bool,
    ) -> Result<bool, ViewError> {
        if let Some(only) = selection.cluster() {
            let only = ClusterName::from(only);
            if after.is_some_and(|after| only <= after) {
                return Ok(false);
            }
            let row = self.rows(uid, &[only])?.pop();
            let row = row.filter(|row| row.is_selected(selection));
            return Ok(row.is_some_and(take));
        }
        loop {
            let mut left = CLUSTERS_PER_LOCK;
            let last = self.with_view(uid, |view, report_store, index, about| {
                let begin = after.clone().map_or(Bound::Unbounded, Bound::Excluded);
                let clusters = view
                    .target_clusters
                    .clusters
                    .range((begin, Bound::Unbounded));
                for (cluster, _) in clusters {
                    if left == 0 {
                        return (false, after.clone());
                    }
                    left -= 1;
                    after = Some(cluster.clone());
                    let labels = labels_of(index, &view.rule.terms.rule, cluster);
                    if !selection.matches_labels(&labels) {
                        continue;
                    }
                    let Some(detail) = detail(view, report_store, cluster, about.now) else {
                        continue;
                    };
                    let row = row(about, &view.rule.terms.rule, labels, detail);
                    if row.is_selected(selection) && take(row) {
                        return (true, None);
                    }
                }
                (false, None)
            })?;
            match last {
                Some((full, None)) => return Ok(full),
                Some((_, Some(_))) => {}
                None => return Ok(false),
            }
        }
    }

    /// Returns the deliveries of a rule to these clusters, as far as there are such.
    ///
    /// # Errors
    /// [`ViewError::Unavailable`], while this replica does not serve.
    pub(super) fn rows(
        &self,
        uid: &RuleUid,
        clusters: &[ClusterName],
    ) -> Result<Vec<Row>, ViewError> {
        let rows = self.with_view(uid, |view, report_store, index, about| {
            let rows = clusters.iter().filter_map(|cluster| {
                let detail = detail(view, report_store, cluster, about.now)?;
                let labels = labels_of(index, &view.rule.terms.rule, cluster);
                Some(row(about, &view.rule.terms.rule, labels, detail))
            });
            rows.collect()
        })?;
        Ok(rows.unwrap_or_default())
    }

    /// Returns the state of a rule in a cluster; `None` if there is none.
    ///
    /// # Errors
    /// [`ViewError::Unavailable`], while this replica does not serve.
    pub(super) fn detail(
        &self,
        uid: &RuleUid,
        cluster: &ClusterName,
    ) -> Result<Option<ClusterDetail>, ViewError> {
        let read = self.with_view(uid, |view, report_store, _, about| {
            detail(view, report_store, cluster, about.now)
        })?;
        Ok(read.flatten())
    }

    /// Returns since when this replica serves.
    ///
    /// # Errors
    /// [`ViewError::Unavailable`], while it does not.
    pub(super) fn serving_since(&self) -> Result<Instant, ViewError> {
        let leadership = &self.hub_state.leadership;
        leadership
            .serving_since()
            .filter(|_| leadership.leads())
            .ok_or_else(|| {
                ViewError::Unavailable(
                    "the hub is starting, or another replica leads: try again".to_owned(),
                )
            })
    }

    /// Reads a rule under the locks of index and reports; `None` if there is no such rule.
    fn with_view<T>(
        &self,
        uid: &RuleUid,
        mut read: impl FnMut(&View<'_>, &ReportStore, &Index, &RowContext) -> T,
    ) -> Result<Option<T>, ViewError> {
        let since = self.serving_since()?;
        let Some(object) = self.object_cache.rule(uid) else {
            return Ok(None);
        };
        let index = self.hub_state.index.read();
        let report_store = self.hub_state.report_store.lock();
        let view = View::of(&index, &report_store, uid, &object.status, since, false);
        let about = RowContext {
            uid: uid.clone(),
            created: object.created,
            now: Instant::now(),
        };
        Ok(view.map(|view| read(&view, &report_store, &index, &about)))
    }
}

/// What rows of one rule have in common.
struct RowContext {
    uid: RuleUid,
    created: Option<jiff::Timestamp>,
    now: Instant,
}

/// Returns the labels of an object about a rule in a cluster.
pub(super) fn labels_of(
    index: &Index,
    rule: &RuleName,
    cluster: &ClusterName,
) -> BTreeMap<String, String> {
    let mut labels = index
        .clusters()
        .get(cluster)
        .map(|known| known.labels.clone())
        .unwrap_or_default();
    // The value of a label has at most 63 characters.
    if rule.name.len() <= 63 {
        labels.insert(RULE_LABEL.to_owned(), rule.name.clone());
    }
    labels.insert(CLUSTER_LABEL.to_owned(), cluster.as_str().to_owned());
    labels
}

fn metadata(rule: &RuleName, uid: &RuleUid, cluster: &ClusterName) -> ObjectMeta {
    ObjectMeta {
        name: Some(object_name(&rule.name, cluster.as_str())),
        namespace: Some(rule.namespace.clone()).filter(|namespace| !namespace.is_empty()),
        uid: Some(format!("{uid}:{cluster}")),
        ..ObjectMeta::default()
    }
}

fn row(
    about: &RowContext,
    rule: &RuleName,
    labels: BTreeMap<String, String>,
    detail: ClusterDetail,
) -> Row {
    let cluster = detail.name.clone();
    let metadata = ObjectMeta {
        creation_timestamp: about.created.map(Time),
        labels: Some(labels),
        ..metadata(rule, &about.uid, &cluster)
    };
    Row {
        rule: rule.clone(),
        cluster,
        metadata,
        status: status(detail),
    }
}

fn status(detail: ClusterDetail) -> DeliveryStatus {
    let reason = detail.reason.as_str().to_owned();
    let ready = match detail.state {
        ClusterState::Ready if detail.newest => ConditionStatus::True,
        ClusterState::Unreachable => ConditionStatus::Unknown,
        _ => ConditionStatus::False,
    };
    let failures = detail.failures.into_iter().map(|failure| DeliveryFailure {
        copy: failure.copy.to_string(),
        reason: failure.reason.as_str().to_owned(),
        message: failure.message,
    });
    let feedback = detail.feedback.into_iter().flat_map(|feedback| {
        let copy = feedback.copy.to_string();
        let values = feedback.values.into_iter();
        values.map(move |value| DeliveryFeedback {
            copy: copy.clone(),
            name: value.name.into(),
            value: value.value.into(),
        })
    });
    let proof = match detail.proved {
        ProofState::Yes => "Yes",
        ProofState::No => "No",
        ProofState::NotCompared => "NotCompared",
    };
    DeliveryStatus {
        state: detail.state,
        copies: detail.copies,
        applied: detail.applied,
        failed: detail.failed,
        waiting: detail.waiting,
        drifted: detail.drifted,
        to_create: detail.to_create,
        to_update: detail.to_update,
        to_delete: detail.to_delete,
        with_health: detail.with_health,
        healthy: detail.healthy,
        feedback: feedback.collect(),
        conditions: vec![DeliveryCondition {
            type_: ConditionType::Ready.as_str().to_owned(),
            status: ready.as_str().to_owned(),
            reason: reason.clone(),
            message: detail.message.clone(),
        }],
        reason,
        message: detail.message,
        newest: detail.newest,
        proof: proof.to_owned(),
        failures: failures.collect(),
    }
}
