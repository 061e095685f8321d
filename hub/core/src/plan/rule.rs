//! A rule in the planner's form, of either CRD.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, Time};
use kube_core::ResourceExt;
use ring::digest;
use runnel_proto::model::{
    ClusterName, CopyMode, Enforcement, FEEDBACK_LIMIT, FeedbackField, FieldPath, JsonPath, Kind,
    Pattern, RuleName, RuleUid, SourceRef, Terms, matches_any,
};
use serde::Serialize;

use super::secret_refs::REFERENCED_KIND;
use super::source_choice::SourceChoice;
use super::{
    ClusterChoice, CompletedState, NamedTerms, RollbackBlocker, Scope, Shape, SourceState,
    UnsupportedSource, WatchScope,
};
use crate::guard::{Limit, RemovalGuard};
use crate::rollout::Rollout;
use runnel_api::{BUNDLE_KIND, PendingApproval};

/// The limit for removals of a rule, and its approvals.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RemovalTerms {
    /// The limit of removals without approval.
    pub limit: Limit,
    /// Whether the limit also applies to the deletion of the rule.
    pub on_rule_delete: bool,
    /// The digests that the rule's annotation approves.
    pub approve: Option<String>,
    /// The pending approval of the rule's status.
    pub pending: Option<PendingApproval>,
}

impl RemovalTerms {
    /// Whether `other` allows more or fewer removals without approval.
    pub fn has_other_limit(&self, other: &Self) -> bool {
        (self.limit, self.on_rule_delete) != (other.limit, other.on_rule_delete)
    }

    /// A guard that continues with the state of the status.
    pub fn guard(&self) -> RemovalGuard {
        RemovalGuard::remembering(self.pending.as_ref())
    }
}

/// The state of a completed rollout to which an annotation reverts a rule.
#[derive(Clone)]
pub struct Revert {
    /// The target of the rollout.
    pub revision: Arc<str>,
    /// The state. While there is none, nothing is sent or removed.
    pub state: Result<Arc<CompletedState>, RollbackBlocker>,
}

impl fmt::Debug for Revert {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        // A state has values of Secrets.
        out.write_str(&self.revision)
    }
}

/// A rule in the planner's form.
#[derive(Clone, Debug)]
pub struct Rule {
    /// Its identity.
    pub uid: RuleUid,
    /// The generation of the spec.
    pub generation: i64,
    /// Whether it is being deleted: every copy is removed, by the deletion policy.
    pub deleting: bool,
    /// The hub has read the namespace and the CRD of the rule since its deletion, so it is known whether they are
    /// being deleted, too.
    pub is_origin_known: bool,
    /// The source selection; entries add up.
    pub sources: Vec<SourceChoice>,
    /// The target clusters.
    pub clusters: ClusterChoice,
    /// The terms of all its intents.
    pub terms: NamedTerms,
    /// The transformation of copies.
    pub shape: Arc<Shape>,
    /// The limit of removals.
    pub removal: RemovalTerms,
    /// The rollout of changes; absent: everywhere at once.
    pub rollout: Option<Rollout>,
    /// The digest of the rendering and the terms, without the suspension.
    pub rendering_digest: [u8; 32],
    /// The JSON nodes of its spec, if they are too many. Then the spec is not known: the rule is as before, and suspended.
    pub too_many_nodes: Option<usize>,
    /// The state to which it is reverted.
    pub revert: Option<Revert>,
    /// The spec as JSON, if the states of completed rollouts are kept.
    pub(super) spec: Option<Arc<str>>,
    /// Runnel's own namespace on the hub.
    runnel_namespace: Arc<str>,
}

impl Rule {
    /// Converts a `DistributionRule`, which selects in its own namespace; `None` for an object
    /// without uid.
    pub fn namespaced(
        object: &runnel_api::DistributionRule,
        runnel_namespace: &str,
    ) -> Option<Self> {
        let own = object.namespace()?;
        let entries = object
            .spec
            .sources
            .iter()
            .map(|source| choice(source, vec![Pattern::new(own.clone())]));
        build(
            object,
            "DistributionRule",
            entries.collect(),
            (&object.spec.terms, object.status.as_ref()),
            runnel_namespace,
        )
        .map(|rule| rule.with_spec(&object.spec))
    }

    /// Keeps the spec, if states of completed rollouts are kept.
    fn with_spec(self, spec: &impl Serialize) -> Self {
        let keeps = self
            .rollout
            .as_ref()
            .is_some_and(|rollout| rollout.history > 0);
        let spec = keeps.then(|| serde_json::to_string(spec).ok()).flatten();
        Self {
            spec: spec.map(Arc::from),
            ..self
        }
    }

    /// The rule with a former spec; `None` if that is no spec. The inputs of its copies are the former ones. Its clusters, its
    /// suspension, its enforcement, its rollout and its limit of removals are those of now.
    pub(super) fn with_former_spec(&self, spec: &str) -> Option<Self> {
        let name = &self.terms.rule;
        let metadata = ObjectMeta {
            name: Some(name.name.clone()),
            namespace: Some(name.namespace.clone()).filter(|namespace| !namespace.is_empty()),
            uid: Some(self.uid.to_string()),
            creation_timestamp: Timestamp::from_second(self.terms.created_at).ok().map(Time),
            ..ObjectMeta::default()
        };
        let former = if name.is_cluster_scoped() {
            let spec = serde_json::from_str(spec).ok()?;
            let object = runnel_api::ClusterDistributionRule {
                metadata,
                spec,
                status: None,
            };
            Self::cluster_scoped(&object, &self.runnel_namespace)?
        } else {
            let spec = serde_json::from_str(spec).ok()?;
            let object = runnel_api::DistributionRule {
                metadata,
                spec,
                status: None,
            };
            Self::namespaced(&object, &self.runnel_namespace)?
        };
        let terms = Terms {
            suspend: self.terms.suspend,
            enforcement: self.terms.enforcement,
            ..Terms::clone(&former.terms)
        };
        Some(Self {
            terms: NamedTerms::new(terms),
            sources: former.sources,
            shape: former.shape,
            rendering_digest: former.rendering_digest,
            spec: self.spec.is_some().then(|| spec.into()),
            ..self.clone()
        })
    }

    /// The rule with the state to which it is reverted: its former spec, if the hub has that. A deleted rule keeps its deletion
    /// policy.
    #[must_use]
    pub fn reverted(mut self, state: Result<Arc<CompletedState>, RollbackBlocker>) -> Self {
        let Some(revert) = &mut self.revert else {
            return self;
        };
        revert.state = state;
        let Ok(state) = revert.state.clone() else {
            return self;
        };
        match state.rule(&self) {
            Some(former) if self.deleting => Self {
                terms: NamedTerms::new(Terms {
                    deletion_policy: self.terms.deletion_policy,
                    ..Terms::clone(&former.terms)
                }),
                ..former
            },
            Some(former) => former,
            None => self.reverted(Err(RollbackBlocker::Damaged)),
        }
    }

    /// The state whose contents it has instead of those of its sources.
    pub fn reverted_to(&self) -> Option<&Arc<CompletedState>> {
        self.revert.as_ref()?.state.as_ref().ok()
    }

    /// Whether it is reverted to a state that the hub does not have: nothing is sent or removed.
    pub fn lacks_state(&self) -> bool {
        self.revert
            .as_ref()
            .is_some_and(|revert| revert.state.is_err())
    }

    /// The rule with a spec of this many JSON nodes, which was not decoded: `former` is the last known state of the rule,
    /// and `self` has the metadata of the new one. The copies stay as they are until the rule is deleted.
    pub fn undecoded(self, former: Option<&Rule>, nodes: usize) -> Self {
        let mut terms = Terms::clone(&former.unwrap_or(&self).terms);
        terms.suspend = true;
        // A terminating rule removes its copies as its own spec says.
        terms.deletion_policy = self.terms.deletion_policy;
        let rule = match former {
            Some(former) => Self {
                generation: self.generation,
                deleting: self.deleting,
                is_origin_known: self.is_origin_known,
                removal: self.removal,
                ..former.clone()
            },
            None => self,
        };
        Self {
            terms: NamedTerms::new(terms),
            too_many_nodes: Some(nodes),
            ..rule
        }
    }

    /// The rule after its deletion.
    pub fn deleted(self) -> Self {
        Self {
            deleting: true,
            ..self
        }
    }

    /// The rule with `enforcement: Enforce`.
    pub fn enforced(self) -> Self {
        if !self.terms.is_dry_run() {
            return self;
        }
        let terms = Terms {
            enforcement: Enforcement::Enforce,
            ..Terms::clone(&self.terms)
        };
        Self {
            terms: NamedTerms::new(terms),
            ..self
        }
    }

    /// Reads a `ClusterDistributionRule`. Each entry names its namespaces, or selects objects without namespaces.
    pub fn cluster_scoped(
        object: &runnel_api::ClusterDistributionRule,
        runnel_namespace: &str,
    ) -> Option<Self> {
        let entries = object
            .spec
            .sources
            .iter()
            .map(|entry| choice(&entry.source, patterns(&entry.namespaces)));
        build(
            object,
            "ClusterDistributionRule",
            entries.collect(),
            (&object.spec.terms, object.status.as_ref()),
            runnel_namespace,
        )
        .map(|rule| rule.with_spec(&object.spec))
    }

    /// The kinds it needs, by `plural[.group]`.
    pub fn resources(&self) -> impl Iterator<Item = &str> {
        let entries = self.sources.iter().enumerate();
        entries.flat_map(|(at, entry)| {
            let before = self.sources.iter().take(at);
            let is_new =
                move |kind: &&Arc<str>| !before.clone().any(|entry| entry.resources.contains(kind));
            entry.resources.iter().filter(is_new).map(|kind| &**kind)
        })
    }

    /// Whether it may select bundles, whose manifests are of any kind.
    pub fn selects_bundles(&self) -> bool {
        self.resources().any(|resource| resource == BUNDLE_KIND)
    }

    /// The scopes of its sources. A namespace that it names exactly is among them even outside of
    /// the hub's scope; a glob covers the namespaces of the hub's scope.
    pub fn places(&self, scope: &Scope) -> BTreeSet<WatchScope> {
        let of_entry = |entry: &SourceChoice| -> BTreeSet<WatchScope> {
            let names: Vec<&str> = match scope {
                _ if entry.is_of_cluster() => vec![""],
                Scope::Everywhere => {
                    let kinds = entry.resources.iter().cloned();
                    return kinds.map(WatchScope::everywhere).collect();
                }
                Scope::Only(read) => {
                    let named = entry
                        .namespaces
                        .iter()
                        .filter(|pattern| pattern.is_literal())
                        .map(Pattern::as_str);
                    let globbed = read.iter().map(String::as_str);
                    named
                        .chain(globbed.filter(|name| entry.reads(name, &self.runnel_namespace)))
                        .collect()
                }
            };
            let of_kind = |resource: &Arc<str>| {
                names
                    .iter()
                    .map(|name| scope.place(resource, name))
                    .collect::<Vec<_>>()
            };
            entry.resources.iter().flat_map(of_kind).collect()
        };
        self.sources.iter().flat_map(of_entry).collect()
    }

    /// Whether the rule selects an object.
    pub fn selects(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        self.sources
            .iter()
            .any(|entry| entry.selects(source, labels, &self.runnel_namespace))
    }

    /// Returns the state of an object as a source of the rule; `None` if the rule does not select it.
    pub(crate) fn selected_state(
        &self,
        source: &SourceRef,
        labels: &BTreeMap<String, String>,
        state: &SourceState,
    ) -> Option<SourceState> {
        let entries = self.sources.iter();
        let selecting =
            entries.filter(|entry| entry.selects(source, labels, &self.runnel_namespace));
        let (mut selected, mut controlled, mut mode) = (false, false, None);
        for entry in selecting {
            selected = true;
            controlled |= entry.include_controlled;
            mode = mode.max(entry.mode);
        }
        if !selected {
            return None;
        }
        Some(match state {
            _ if state.is_controlled() && !controlled => {
                SourceState::Refused(UnsupportedSource::Controlled)
            }
            SourceState::Read(content) => SourceState::Read(content.in_mode(mode)),
            SourceState::Stale(content) => SourceState::Stale(content.in_mode(mode)),
            SourceState::Unread | SourceState::Unreadable | SourceState::Refused(_) => {
                state.clone()
            }
        })
    }

    /// Whether an entry of the rule selects an object whose labels match.
    pub(crate) fn selects_by(&self, entry: &SourceChoice, source: &SourceRef) -> bool {
        let is_named = entry.selector.is_some() || matches_any(&entry.names, &source.name);
        entry.resources.contains(&source.resource)
            && entry.reads(&source.namespace, &self.runnel_namespace)
            && is_named
            && !matches_any(&entry.exclude, &source.name)
    }

    /// Whether the rule needs an object's content, as a source or for its values.
    pub fn needs(&self, source: &SourceRef, labels: &BTreeMap<String, String>) -> bool {
        self.selects(source, labels) || self.reads_secret(source)
    }

    /// Whether the rule uses values of this Secret in copies of others.
    pub fn reads_secret(&self, secret: &SourceRef) -> bool {
        *secret.resource == *REFERENCED_KIND
            && self.shape.reads_secret(&secret.name)
            && self.sources.iter().any(|entry| {
                let has_kind = |resource: &Arc<str>| **resource == *REFERENCED_KIND;
                entry.resources.iter().any(has_kind)
                    && entry.reads(&secret.namespace, &self.runnel_namespace)
            })
    }

    /// Whether the rule sends exactly what it selects: it does not shape copies, and no two sources
    /// can have one copy.
    pub fn sends_as_selected(&self) -> bool {
        self.shape.is_plain() && !self.may_collide()
    }

    /// Whether two of its sources can have one copy without a transform. That is so for sources of
    /// several namespaces if all copies go to the same namespaces.
    fn may_collide(&self) -> bool {
        let one = self
            .literal_namespaces()
            .is_some_and(|names| names.windows(2).all(|pair| pair[0] == pair[1]));
        self.terms.namespaces.is_some() && !one
    }

    /// Returns the entries by whose order sources with the same copy are ranked; `None` if the copies of sources of several namespaces go
    /// to different namespaces.
    pub(super) fn source_order(&self) -> Option<Arc<[SourceChoice]>> {
        self.terms
            .namespaces
            .is_some()
            .then(|| self.sources.clone().into())
    }

    /// Whether a source is no longer selected because its literal name was deleted from a list,
    /// with no other change of that entry.
    pub fn has_dropped_source(&self, former: &Rule, source: &SourceRef) -> bool {
        self.sources.len() == former.sources.len()
            && self
                .sources
                .iter()
                .zip(&former.sources)
                .any(|(now, before)| now.has_dropped(before, source))
    }

    /// Whether a cluster is no longer chosen because its name was deleted from the list, with no
    /// other change of the choice.
    pub fn has_dropped_cluster(&self, former: &Rule, cluster: &ClusterName) -> bool {
        let (now, before) = (&self.clusters, &former.clusters);
        let is_it = |name: &String| name == cluster.as_str();
        before.names.iter().any(is_it)
            && !now.names.iter().any(is_it)
            && now.names.iter().all(|name| before.names.contains(name))
            && (now.all, &now.selector, &now.exclude)
                == (before.all, &before.selector, &before.exclude)
    }

    /// Returns the source namespaces if all are exact names; `None` otherwise. The place of cluster-scoped sources is an
    /// empty name among them.
    pub fn literal_namespaces(&self) -> Option<Vec<&str>> {
        self.sources.iter().try_fold(Vec::new(), |mut all, entry| {
            all.extend(entry.literal_namespaces()?);
            Some(all)
        })
    }

    /// Whether the rule selects a cluster.
    pub fn chooses(&self, cluster: &ClusterName, labels: &BTreeMap<String, String>) -> bool {
        self.clusters.chooses(cluster, labels)
    }

    /// Whether its rollout is paused.
    pub fn is_paused(&self) -> bool {
        self.rollout.as_ref().is_some_and(|rollout| rollout.paused)
    }

    /// Whether its spec has the name of this cluster, in its choice or in an override.
    pub fn names_cluster(&self, cluster: &ClusterName) -> bool {
        let name = cluster.as_str();
        self.clusters.names.iter().any(|known| known == name)
            || self.shape.named_clusters().any(|(_, known)| known == name)
    }

    /// Runnel's own namespace on the hub.
    pub fn runnel_namespace(&self) -> &str {
        &self.runnel_namespace
    }
}

fn choice(source: &runnel_api::Source, namespaces: Vec<Pattern>) -> SourceChoice {
    SourceChoice {
        resources: source
            .resources
            .iter()
            .map(|resource| resource_name(resource))
            .collect(),
        namespaces,
        selector: source.selector.as_ref().map(Into::into),
        names: patterns(&source.names),
        exclude: patterns(&source.exclude),
        include_controlled: source.include_controlled,
        mode: match (source.create_only, source.exact) {
            (true, _) => Some(CopyMode::CreateOnly),
            (false, true) => Some(CopyMode::Exact),
            (false, false) => None,
        },
    }
}

/// Returns the name of a kind, shared with all uses of it if Runnel has rules for the kind.
fn resource_name(resource: &str) -> Arc<str> {
    Kind::by_resource(resource).map_or_else(|| resource.into(), |kind| kind.resource.clone())
}

fn patterns(texts: &[String]) -> Vec<Pattern> {
    texts.iter().map(Pattern::new).collect()
}

fn build(
    object: &impl ResourceExt,
    kind: &str,
    sources: Vec<SourceChoice>,
    (spec, status): (&runnel_api::RuleTerms, Option<&runnel_api::RuleStatus>),
    runnel_namespace: &str,
) -> Option<Rule> {
    let meta = object.meta();
    let terms = Terms {
        rule: RuleName {
            kind: kind.to_owned(),
            namespace: object.namespace().unwrap_or_default(),
            name: object.name_any(),
        },
        created_at: meta
            .creation_timestamp
            .as_ref()
            .map_or(0, |time| time.0.as_second()),
        namespaces: spec.namespaces.as_ref().map(Into::into),
        create_namespaces: spec.create_namespaces,
        conflict_policy: spec.conflict_policy.into(),
        drift_policy: spec.drift_policy.into(),
        deletion_policy: spec.deletion_policy.into(),
        propagation: spec.deletion.propagation.into(),
        suspend: spec.suspend,
        enforcement: spec.enforcement.into(),
        immutable_policy: spec.immutable_policy.into(),
        // A value that the schema accepts and that is no pointer names no field.
        ignore_fields: spec
            .ignore_fields
            .iter()
            .map(String::as_str)
            .chain(spec.replicas.ignored_field())
            .filter_map(FieldPath::parse)
            .collect(),
        versions: spec
            .transform
            .as_ref()
            .and_then(|spec| u32::try_from(spec.versioned_name.as_ref()?.keep).ok()),
        feedback: feedback(&spec.feedback),
        grants: None,
    };
    Some(Rule {
        uid: RuleUid::from(object.uid()?),
        generation: meta.generation.unwrap_or_default(),
        deleting: meta.deletion_timestamp.is_some(),
        is_origin_known: false,
        sources,
        clusters: ClusterChoice::from(&spec.clusters),
        rendering_digest: rendering_digest(&terms, spec),
        spec: None,
        // A dry run is previewed everywhere at once. With enforcement the rollout begins.
        rollout: spec
            .rollout
            .as_ref()
            .filter(|_| !terms.is_dry_run())
            .map(Into::into),
        terms: NamedTerms::new(terms),
        shape: Shape::new(spec).into(),
        removal: RemovalTerms {
            limit: Limit::of(
                spec.removal_limit.count,
                spec.removal_limit.percent,
                Limit::RULE,
            ),
            on_rule_delete: spec.removal_limit.on_rule_delete == runnel_api::OnRuleDelete::Hold,
            approve: object.annotations().get(runnel_api::APPROVE).cloned(),
            pending: status.and_then(|status| status.pending_approval.clone()),
        },
        too_many_nodes: None,
        revert: object
            .annotations()
            .get(runnel_api::REVERT_TO)
            .filter(|revision| !revision.is_empty())
            .map(|revision| Revert {
                revision: revision.as_str().into(),
                state: Err(RollbackBlocker::Unread),
            }),
        runnel_namespace: runnel_namespace.into(),
    })
}

/// Returns the fields that agents return. The schema refuses others.
fn feedback(spec: &[runnel_api::Feedback]) -> Vec<FeedbackField> {
    let fields = spec.iter().take(FEEDBACK_LIMIT).filter_map(|field| {
        Some(FeedbackField {
            path: JsonPath::parse(&field.json_path)?,
            name: field.name.as_str().into(),
            resource: field.resource.as_str().into(),
        })
    });
    fields
        .filter(|field| {
            Kind::by_resource(&field.resource).is_none_or(|kind| !kind.content.sensitive)
        })
        .collect()
}

/// Returns the digest of the rendering: the terms without what changes no copy, and the transformation.
fn rendering_digest(terms: &Terms, spec: &runnel_api::RuleTerms) -> [u8; 32] {
    let terms = Terms {
        suspend: false,
        feedback: vec![],
        ..terms.clone()
    };
    let shape = (&spec.transform, &spec.substitute, &spec.overrides);
    let canonical = serde_json::to_vec(&(terms, shape))
        .expect("terms and shapes have only texts as keys of maps");
    let mut name = [0; 32];
    name.copy_from_slice(digest::digest(&digest::SHA256, &canonical).as_ref());
    name
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn replicas_of_others_are_a_field_that_is_left_alone() {
        let ignored = |spec: serde_json::Value| {
            let mut object = json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
                "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 1},
                "spec": {
                    "sources": [{"resources": ["deployments.apps"], "names": ["*"]}], "clusters": {"all": true},
                },
            });
            json_patch::merge(&mut object["spec"], &spec);
            let object = serde_json::from_value(object).unwrap();
            let rule = Rule::namespaced(&object, "runnel-system").unwrap();
            let paths = rule.terms.ignore_fields.iter();
            paths.map(ToString::to_string).collect::<Vec<_>>()
        };
        assert!(ignored(json!({})).is_empty());
        let auto = json!({"replicas": "Auto", "ignoreFields": ["/data/a"]});
        assert_eq!(ignored(auto).len(), 2);
        assert_eq!(ignored(json!({"replicas": "Auto"})), ["/spec/replicas"]);
    }
}
