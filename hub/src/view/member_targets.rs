//! Member targets: what the rules of a namespace may send to which member cluster, by its grants.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Instant;

use axum::Json;
use axum::response::{IntoResponse, Response};
use jiff::Timestamp;
use kube::api::ObjectMeta;
use runnel_api::{
    CLUSTER_LABEL, MemberTarget, MemberTargetSpec, MemberTargetStatus, TargetGrant, VIEW_GROUP,
};
use runnel_hub_core::plan::RuleGrants;
use runnel_proto::model::{ClusterName, Grant, Operator, Selector};
use serde_json::{Value, json};

use super::delivery::Reader;
use super::error::ViewError;
use super::list::ListFormat;
use super::request::{Fields, Position, Query, Selection};
use super::table::{Column, ViewObject};
use super::target::{Form, Target};
use super::{ViewServer, versioned};

/// One member cluster that the grants of a namespace open.
struct TargetRow {
    cluster: ClusterName,
    metadata: ObjectMeta,
    status: MemberTargetStatus,
}

impl ViewObject for TargetRow {
    const COLUMNS: &'static [Column] = &[
        ("Name", "string", 0, "The name of the member cluster."),
        ("Connected", "boolean", 0, "Whether its agent is connected."),
        ("Resources", "string", 0, "The kinds that may be sent."),
        (
            "Namespaces",
            "string",
            0,
            "The namespaces there that may have copies.",
        ),
        ("Cordoned", "boolean", 1, "Whether nothing new is sent."),
        (
            "Policies",
            "string",
            1,
            "What rules may do there besides creating copies.",
        ),
    ];

    fn metadata(&self) -> &ObjectMeta {
        &self.metadata
    }

    fn metadata_mut(&mut self) -> &mut ObjectMeta {
        &mut self.metadata
    }

    fn cells(&self, _now: Timestamp) -> Value {
        let status = &self.status;
        json!([
            self.cluster.as_str(),
            status.connected,
            together(&status.grants, |grant| grant.resources.clone()),
            together(&status.grants, namespaces),
            status.cordoned,
            together(&status.grants, policies),
        ])
    }

    fn object(&self) -> Value {
        let spec = MemberTargetSpec {
            cluster: self.cluster.as_str().to_owned(),
        };
        let object = MemberTarget {
            metadata: self.metadata.clone(),
            spec,
            status: Some(self.status.clone()),
        };
        serde_json::to_value(object).expect("a member target has only text and numbers")
    }
}

/// Returns a cell with what all grants allow together.
fn together(grants: &[TargetGrant], of: impl Fn(&TargetGrant) -> Vec<String>) -> String {
    let all: BTreeSet<_> = grants.iter().flat_map(of).collect();
    all.into_iter().collect::<Vec<_>>().join(",")
}

fn namespaces(grant: &TargetGrant) -> Vec<String> {
    if grant.all_namespaces {
        return vec!["<all>".to_owned()];
    }
    let mut all = grant.namespaces.clone();
    if !grant.namespace_selector.is_empty() {
        all.push(format!("[{}]", grant.namespace_selector));
    }
    all
}

fn policies(grant: &TargetGrant) -> Vec<String> {
    let all = [
        ("overwrite", grant.overwrite),
        ("adopt", grant.adopt),
        ("createNamespaces", grant.create_namespaces),
    ];
    let allowed = all.iter().filter(|(_, allowed)| *allowed);
    allowed.map(|(name, _)| (*name).to_owned()).collect()
}

fn target_grant(grant: &Grant) -> TargetGrant {
    let choice = grant.namespaces.as_ref();
    let limit = |limit: Option<u64>| limit.map(|limit| i64::try_from(limit).unwrap_or(i64::MAX));
    TargetGrant {
        resources: grant.resources.clone(),
        all_namespaces: choice.is_none(),
        namespaces: choice.map_or_else(Vec::new, |choice| {
            let names = choice.names.iter();
            names.map(|name| name.as_str().to_owned()).collect()
        }),
        namespace_selector: choice
            .and_then(|choice| choice.selector.as_ref())
            .map(selector_text)
            .unwrap_or_default(),
        overwrite: grant.overwrite,
        adopt: grant.adopt,
        create_namespaces: grant.create_namespaces,
        max_copies: limit(grant.max_copies),
        max_bytes: limit(grant.max_bytes),
    }
}

/// Returns a selector as kubectl takes it.
fn selector_text(selector: &Selector) -> String {
    let all = selector.requirements.iter().map(|requirement| {
        let (key, values) = (&requirement.key, requirement.values.join(","));
        match (requirement.operator, requirement.values.len()) {
            (Operator::In, 1) => format!("{key}={values}"),
            (Operator::In, _) => format!("{key} in ({values})"),
            (Operator::NotIn, _) => format!("{key} notin ({values})"),
            (Operator::Exists, _) => key.clone(),
            (Operator::DoesNotExist, _) => format!("!{key}"),
        }
    });
    all.collect::<Vec<_>>().join(",")
}

impl Reader<'_> {
    /// Returns one page of the member clusters that the grants of a namespace open, in the order of
    /// their names, and the position of the last one if more follow.
    fn member_targets(
        &self,
        namespace: &str,
        query: &Query,
    ) -> Result<(Vec<TargetRow>, Option<Position>), ViewError> {
        self.serving_since()?;
        let runnel_namespace = &self.hub_state.settings.namespace;
        let index = self.hub_state.index.read();
        let all = index.targets().grants();
        if all.namespaces().is_some() && !all.has_namespace(namespace) {
            return Ok((Vec::new(), None));
        }
        let RuleGrants::Granted(grants) = all.of_namespace(namespace, runnel_namespace) else {
            return Err(ViewError::Unavailable(
                "the hub cannot read the grants now: try again".to_owned(),
            ));
        };
        let after = query.after.as_ref().map(|after| after.cluster.as_str());
        let mut rows = Vec::new();
        for (name, cluster) in index.clusters().iter() {
            let fields = Fields {
                name: name.as_str(),
                namespace,
                ..Fields::default()
            };
            if after.is_some_and(|after| name.as_str() <= after)
                || !query.selection.matches(&fields)
                || !cluster.is_eligible()
            {
                continue;
            }
            let metadata = metadata(namespace, name, &cluster.uid, &cluster.labels);
            let labels = metadata.labels.as_ref();
            if labels.is_some_and(|labels| !query.selection.matches_labels(labels)) {
                continue;
            }
            let grants = grants.iter();
            let grants: Vec<_> = grants
                .filter(|grant| grant.clusters.chooses(name, &cluster.labels))
                .map(|grant| target_grant(&grant.grant))
                .collect();
            if grants.is_empty() {
                continue;
            }
            rows.push(TargetRow {
                cluster: name.clone(),
                metadata,
                status: MemberTargetStatus {
                    connected: false,
                    cordoned: cluster.cordoned,
                    grants,
                },
            });
            if rows.len() > query.limit {
                break;
            }
        }
        drop(index);
        let more = rows.len() > query.limit;
        rows.truncate(query.limit);
        let (report_store, now) = (self.hub_state.report_store.lock(), Instant::now());
        for row in &mut rows {
            row.status.connected = report_store.session(&row.cluster, now).is_some();
        }
        let last = rows.last().filter(|_| more).map(|row| Position {
            namespace: namespace.to_owned(),
            rule: String::new(),
            cluster: row.cluster.as_str().to_owned(),
            copy: None,
        });
        Ok((rows, last))
    }
}

fn metadata(
    namespace: &str,
    cluster: &ClusterName,
    uid: &str,
    labels: &BTreeMap<String, String>,
) -> ObjectMeta {
    let mut labels = labels.clone();
    labels.insert(CLUSTER_LABEL.to_owned(), cluster.as_str().to_owned());
    ObjectMeta {
        name: Some(cluster.as_str().to_owned()),
        namespace: Some(namespace.to_owned()),
        uid: Some(format!("{uid}:{namespace}")),
        labels: Some(labels),
        ..ObjectMeta::default()
    }
}

impl ViewServer {
    /// Lists the member targets of a namespace.
    pub(super) async fn member_targets(
        self: &Arc<Self>,
        target: &Target,
        query: &Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        if target.namespace.is_empty() {
            return Err(ViewError::BadRequest(
                "membertargets are listed for one namespace: name it with -n".to_owned(),
            ));
        }
        let (server, namespace) = (self.clone(), target.namespace.clone());
        let (asked, format) = (query.clone(), ListFormat::new(form, target, query));
        self.compute(move || {
            let (rows, next) = server.reader().member_targets(&namespace, &asked)?;
            let version = asked.first.unwrap_or_else(|| server.changes().version());
            Ok(format.whole(rows, next.as_ref(), version))
        })
        .await?
    }

    /// Returns one member target of a namespace.
    pub(super) async fn member_target(
        self: &Arc<Self>,
        target: &Target,
        name: &str,
        query: &Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        let (server, namespace) = (self.clone(), target.namespace.clone());
        let asked = Query {
            selection: Selection::of_name(name),
            limit: 1,
            ..Query::default()
        };
        let (rows, _) = self
            .compute(move || server.reader().member_targets(&namespace, &asked))
            .await??;
        let row = rows.into_iter().next().ok_or_else(|| {
            ViewError::NotFound(format!("{}.{VIEW_GROUP} {name:?}", target.resource.plural))
        })?;
        let version = self.changes().version();
        Ok(Json(form.one(versioned(row, version), version, query)).into_response())
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{NamespaceChoice, Pattern, Requirement};

    use super::*;

    #[test]
    fn cells_have_what_all_grants_allow_together() {
        let requirement = |key: &str, operator, values: &[&str]| Requirement {
            key: key.to_owned(),
            operator,
            values: values.iter().map(|value| (*value).to_owned()).collect(),
        };
        let grant = Grant {
            resources: vec!["configmaps".to_owned()],
            namespaces: Some(NamespaceChoice {
                names: vec![Pattern::new("team-*")],
                selector: Some(Selector {
                    requirements: vec![
                        requirement("env", Operator::In, &["prod"]),
                        requirement("tier", Operator::NotIn, &["a", "b"]),
                        requirement("old", Operator::DoesNotExist, &[]),
                    ],
                }),
                exclude: vec![],
            }),
            overwrite: false,
            create_namespaces: true,
            adopt: false,
            max_copies: Some(5),
            max_bytes: None,
        };
        let other = Grant {
            resources: vec!["secrets".to_owned()],
            ..grant.clone()
        };
        let grants = [target_grant(&grant), target_grant(&other)];
        assert_eq!(grants[0].max_copies, Some(5));
        let resources = together(&grants, |grant| grant.resources.clone());
        assert_eq!(resources, "configmaps,secrets");
        assert_eq!(
            together(&grants, namespaces),
            "[env=prod,tier notin (a,b),!old],team-*"
        );
        assert_eq!(together(&grants, policies), "createNamespaces");
        let whole = target_grant(&Grant {
            namespaces: None,
            ..grant
        });
        assert_eq!(together(&[whole], namespaces), "<all>");
    }
}
