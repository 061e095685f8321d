//! Plans for a change of a grant, a member cluster or a bundle: checks the rights of the caller, and
//! finds the rules that change with it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::ResourceExt;
use kube::api::DynamicObject;
use runnel_proto::model::{
    ClusterName, RuleName, RuleUid, SourceRef, is_label_key, is_label_value, is_subdomain,
};
use serde_json::Value;
use serde_json::value::RawValue;

use super::{PlanRequest, resource_of};
use crate::hub_state::HubState;
use crate::view::ViewServer;
use crate::view::error::ViewError;
use crate::view::head::Head;
use crate::view::review::{ResourceAccess, name_of};
use crate::view::turns::Turn;
use crate::watch::body_of;
use runnel_api::{BUNDLE_KIND, NO_RECORD};
use runnel_hub_core::index::{ChangedObject, Cluster};
use runnel_hub_core::plan::{Rule, RuleGrant, SourceState};

/// The kinds besides rules for which plans are possible, with their resources.
const CHANGED_KINDS: [(&str, &str); 3] = [GRANT, MEMBER, BUNDLE];
const GRANT: (&str, &str) = ("DistributionGrant", "distributiongrants");
const MEMBER: (&str, &str) = ("MemberCluster", "memberclusters");
const BUNDLE: (&str, &str) = ("ManifestBundle", "manifestbundles");
/// The limits of rules that are judged with one change, and of rules about which agents are asked.
const JUDGED: usize = 200;
const PLANNED_RULES_LIMIT: usize = 50;
/// The number of rules that are compared while the index is locked.
const COMPARED: usize = 64;

/// A change, and the rules that it affects.
pub(super) struct PlannedChange {
    /// The object after the change.
    pub(super) object: ChangedObject,
    /// Whether the object exists.
    pub(super) exists: bool,
    /// The rules that are judged together.
    pub(super) rules: BTreeSet<RuleUid>,
    /// The rules about which agents are asked, with their names.
    pub(super) asked: Vec<(RuleUid, RuleName)>,
    /// The number of affected rules about which no agent is asked.
    pub(super) more: usize,
    /// Sentences for users.
    pub(super) notes: Vec<String>,
}

/// Returns the kind of a plan about another object than a rule; `None` for one about a rule.
pub(super) fn kind_of(kind: &str) -> Option<&'static str> {
    let known = CHANGED_KINDS.iter().find(|(known, _)| *known == kind);
    known.map(|(known, _)| *known)
}

impl ViewServer {
    /// Reads a change, and finds the rules that it affects.
    pub(super) async fn change(
        &self,
        user: &UserInfo,
        kind: &'static str,
        asked: &PlanRequest<'_>,
        turn: &Turn,
    ) -> Result<PlannedChange, ViewError> {
        let (object, exists) = if kind == BUNDLE.0 {
            self.changed_bundle(user, asked).await?
        } else {
            self.changed_object(user, kind, asked).await?
        };
        let (state, changed) = (self.hub_state.clone(), object.clone());
        let mut affected = turn.run(move || affected(&state, changed)).await?;
        let all = affected.len();
        let mut notes: Vec<String> = judged(&mut affected).into_iter().collect();
        if all == 0 && matches!(object, ChangedObject::Bundle(..)) {
            notes.push(format!(
                "no saved rule selects it: a rule does by resources: [{BUNDLE_KIND}]"
            ));
        }
        let (mut asked, mut readable) = (Vec::new(), BTreeMap::new());
        for (uid, rule) in &affected {
            if asked.len() == PLANNED_RULES_LIMIT {
                break;
            }
            if self.may_list(user, rule, &mut readable).await? {
                asked.push((uid.clone(), rule.terms.rule.clone()));
            }
        }
        let rules = affected.into_iter().map(|(uid, _)| uid).collect();
        Ok(PlannedChange {
            object,
            exists,
            rules,
            more: all - asked.len(),
            asked,
            notes,
        })
    }

    /// Whether the user may read a rule and the sources that it selects. `readable` caches the
    /// answers for whole namespaces.
    async fn may_list(
        &self,
        user: &UserInfo,
        rule: &Rule,
        readable: &mut BTreeMap<(&'static str, Arc<str>), bool>,
    ) -> Result<bool, ViewError> {
        let name = &rule.terms.rule;
        let (resource, namespace) = (
            resource_of(name)?,
            Arc::<str>::from(name.namespace.as_str()),
        );
        let may = match readable.get(&(resource, namespace.clone())) {
            Some(may) => *may,
            None => {
                let reviewer = &self.content_reviewer;
                let may = reviewer.may_get(user, resource, &namespace, "").await?;
                readable.insert((resource, namespace), may);
                may
            }
        };
        if !may {
            return Ok(false);
        }
        match self.may_read_sources(user, rule).await {
            Ok(()) => Ok(true),
            Err(ViewError::Forbidden(_)) => Ok(false),
            Err(error) => Err(error),
        }
    }

    async fn changed_object(
        &self,
        user: &UserInfo,
        kind: &'static str,
        asked: &PlanRequest<'_>,
    ) -> Result<(ChangedObject, bool), ViewError> {
        let malformed = |why: &dyn std::fmt::Display| {
            ViewError::BadRequest(format!("the {kind} cannot be read: {why}"))
        };
        let name = asked.name.name.clone();
        if !is_subdomain(&name) {
            return Err(malformed(
                &"metadata.name: write a name of lowercase letters, digits, '-' and '.'",
            ));
        }
        let is_grant = kind == GRANT.0;
        let cluster = ClusterName::from(name.as_str());
        let (exists, known, has_grants) = {
            let index = self.hub_state.index.read();
            let known = index.clusters().get(&cluster).cloned();
            let exists = if is_grant {
                index.targets().grants().get(&name).is_some()
            } else {
                known.is_some()
            };
            (exists, known, index.targets().grants().are_readable())
        };
        if !has_grants {
            return Err(ViewError::Unavailable(
                "the hub cannot read the grants now: try again".to_owned(),
            ));
        }
        let deletes = asked.deletes();
        let verb = match (deletes, exists) {
            (true, _) => "delete",
            (false, true) => "update",
            (false, false) => "create",
        };
        let resource = if is_grant { GRANT.1 } else { MEMBER.1 };
        self.may_change(user, verb, resource, ("", &name)).await?;
        if deletes {
            if !exists {
                return Err(ViewError::Missing(format!("the hub has no {kind} {name}")));
            }
            let object = if is_grant {
                ChangedObject::Grant(name, None)
            } else {
                ChangedObject::Member(cluster, None)
            };
            return Ok((object, exists));
        }
        let Some(object) = asked.object else {
            return Err(ViewError::BadRequest(format!(
                "a saved {kind} changes nothing: write object, or delete: true"
            )));
        };
        let value: Value = serde_json::from_str(object.get()).map_err(|why| malformed(&why))?;
        runnel_api::check_spec(kind, &value["spec"]).map_err(|why| malformed(&why))?;
        if is_grant {
            let grant: runnel_api::DistributionGrant =
                serde_json::from_value(value).map_err(|error| malformed(&error))?;
            return Ok((
                ChangedObject::Grant(name, Some(Box::new(RuleGrant::read(&grant)))),
                exists,
            ));
        }
        let member: runnel_api::MemberCluster =
            serde_json::from_value(value).map_err(|error| malformed(&error))?;
        if !has_valid_labels(&member) {
            return Err(malformed(&"metadata.labels: a key or value is no label"));
        }
        let read = Cluster::read(&member, &NO_RECORD);
        // The fields that only the hub and the agent set stay unchanged.
        let known = known.unwrap_or_else(|| Cluster {
            uid: "plan".into(),
            ..Cluster::default()
        });
        let Cluster {
            labels,
            accepted,
            cordoned,
            leaving,
            ..
        } = read;
        Ok((
            ChangedObject::Member(
                cluster,
                Some(Cluster {
                    labels,
                    accepted,
                    cordoned,
                    leaving,
                    ..known
                }),
            ),
            exists,
        ))
    }

    /// Returns a bundle as it would be, and whether it exists.
    async fn changed_bundle(
        &self,
        user: &UserInfo,
        asked: &PlanRequest<'_>,
    ) -> Result<(ChangedObject, bool), ViewError> {
        let (namespace, name) = (&asked.name.namespace, &asked.name.name);
        let (source, exists) = self
            .bundle_to_change(user, asked.deletes(), (namespace, name))
            .await?;
        match asked.object {
            Some(object) => Ok((self.edited_bundle(user, source, object).await?, exists)),
            None if asked.deletes() && exists => Ok((ChangedObject::Bundle(source, None), exists)),
            None if asked.deletes() => Err(ViewError::Missing(format!(
                "no rule has selected a ManifestBundle {namespace}/{name}"
            ))),
            None => Err(ViewError::BadRequest(
                "a saved ManifestBundle changes nothing: write object, or delete: true".to_owned(),
            )),
        }
    }

    /// Returns a bundle that a plan assumes to be saved.
    pub(super) async fn assumed_bundle(
        &self,
        user: &UserInfo,
        object: &RawValue,
    ) -> Result<ChangedObject, ViewError> {
        let head = Head::read(object)?.into_name();
        if head.kind != BUNDLE.0 {
            return Err(malformed_bundle(&"kind: it is no ManifestBundle"));
        }
        let name = (head.namespace.as_str(), head.name.as_str());
        let (source, _) = self.bundle_to_change(user, false, name).await?;
        self.edited_bundle(user, source, object).await
    }

    /// Checks that the user may create, update or delete a bundle. Returns it, and whether it exists, as far as a rule has
    /// selected it.
    async fn bundle_to_change(
        &self,
        user: &UserInfo,
        deletes: bool,
        (namespace, name): (&str, &str),
    ) -> Result<(SourceRef, bool), ViewError> {
        let source = SourceRef::checked(BUNDLE_KIND, namespace, name);
        let source = source.filter(|source| !source.is_cluster_scoped());
        let source = source.ok_or_else(|| {
            malformed_bundle(
                &"metadata: write a namespace, and a name of lowercase letters, digits, '-' and '.'",
            )
        })?;
        let exists = self.hub_state.index.read().sources().get(&source).is_some();
        let verb = match (deletes, exists) {
            (true, _) => "delete",
            (false, true) => "update",
            (false, false) => "create",
        };
        let resource = BUNDLE.1;
        self.may_change(user, verb, resource, (namespace, name))
            .await?;
        Ok((source, exists))
    }

    /// Reads a bundle that the API server has not validated.
    async fn edited_bundle(
        &self,
        user: &UserInfo,
        source: SourceRef,
        object: &RawValue,
    ) -> Result<ChangedObject, ViewError> {
        let object: Value =
            serde_json::from_str(object.get()).map_err(|error| malformed_bundle(&error))?;
        runnel_api::check_spec(BUNDLE.0, &object["spec"]).map_err(|why| malformed_bundle(&why))?;
        let object: DynamicObject =
            serde_json::from_value(object).map_err(|error| malformed_bundle(&error))?;
        if !has_valid_labels(&object) {
            return Err(malformed_bundle(
                &"metadata.labels: a key or value is no label",
            ));
        }
        let body = self.body_of_bundle(&source, &object).await?;
        if let SourceState::Read(content) = &body {
            for (kind, is_of_cluster) in content.author_checked() {
                let place = if is_of_cluster {
                    ""
                } else {
                    &*source.namespace
                };
                self.may_create(user, kind, place).await?;
            }
        }
        let labels = object.labels().clone();
        Ok(ChangedObject::Bundle(source, Some((labels, body))))
    }

    /// Returns the content of a bundle that is not saved.
    async fn body_of_bundle(
        &self,
        source: &SourceRef,
        object: &DynamicObject,
    ) -> Result<SourceState, ViewError> {
        let read = || {
            let kind = self.hub_state.kind(BUNDLE_KIND)?;
            Some(body_of(&self.hub_state, &kind, source, object))
        };
        let is_complete = |body: &Option<SourceState>| match body {
            Some(SourceState::Read(content)) => !content.has_unknown_kind(),
            Some(_) => true,
            None => false,
        };
        let mut body = read();
        if !is_complete(&body) {
            self.find_kinds().await;
            body = read();
        }
        body.ok_or_else(|| {
            ViewError::Unavailable(
                "the hub cannot read the kinds that its API server serves: try again".to_owned(),
            )
        })
    }

    /// Checks that the author of a bundle may create objects of a kind: in a namespace, or in the whole cluster (empty).
    /// The API server checks the same when the bundle is saved.
    async fn may_create(
        &self,
        user: &UserInfo,
        kind: &str,
        namespace: &str,
    ) -> Result<(), ViewError> {
        let access = ResourceAccess::to_kind("create", kind, namespace);
        if self.content_reviewer.allows(user, &access).await? {
            return Ok(());
        }
        let place = if namespace.is_empty() {
            "in the whole cluster".to_owned()
        } else {
            format!("in the namespace {namespace}")
        };
        Err(ViewError::Forbidden(format!(
            "the bundle has a manifest of {kind}, which {} may not create {place}: grant that permission, or remove it",
            name_of(user)
        )))
    }
}

fn malformed_bundle(why: &dyn std::fmt::Display) -> ViewError {
    ViewError::BadRequest(format!("the ManifestBundle cannot be read: {why}"))
}

/// Whether each label of an object is one.
fn has_valid_labels(object: &impl ResourceExt) -> bool {
    let mut labels = object.labels().iter();
    labels.all(|(key, value)| is_label_key(key) && is_label_value(value))
}

/// Returns the rules that a change affects.
fn affected(state: &HubState, changed: ChangedObject) -> Vec<(RuleUid, Rule)> {
    let (member, bundle) = match &changed {
        ChangedObject::Member(name, _) => (Some(name.clone()), None),
        ChangedObject::Grant(..) => (None, None),
        ChangedObject::Bundle(source, bundle) => {
            let labels = bundle.as_ref().map(|(labels, _)| labels.clone());
            (None, Some((source.clone(), labels.unwrap_or_default())))
        }
    };
    let (targets, uids) = {
        let index = state.index.read();
        let uids = match &bundle {
            Some((source, labels)) => index.selecting(source, labels).into_iter().collect(),
            None => index.rules().uids().cloned().collect::<Vec<_>>(),
        };
        (index.targets().with_change(changed), uids)
    };
    let mut affected: Vec<(RuleUid, Rule)> = Vec::new();
    for some in uids.chunks(COMPARED) {
        let index = state.index.read();
        let found = some
            .iter()
            .filter_map(|uid| Some((uid, index.rules().get(uid)?)))
            .filter(|(_, entry)| {
                bundle.is_some() || index.targets().differ_for(entry, member.as_ref(), &targets)
            });
        affected.extend(found.map(|(uid, entry)| (uid.clone(), entry.rule.clone())));
    }
    affected
}

/// Truncates the rules to those that are judged. Returns a sentence for users if there are more.
fn judged<T>(affected: &mut Vec<T>) -> Option<String> {
    let all = affected.len();
    affected.truncate(JUDGED);
    (all > JUDGED)
        .then(|| format!("the removal guard judged the first {JUDGED} of {all} rules that change"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rules_beyond_the_limit_are_not_judged_and_counted() {
        let mut within = vec![(); JUDGED];
        assert_eq!((judged(&mut within), within.len()), (None, JUDGED));
        let mut beyond = vec![(); JUDGED + 1];
        assert!(
            judged(&mut beyond).is_some_and(|note| note.contains("the first 200 of 201 rules"))
        );
        assert_eq!(beyond.len(), JUDGED);
    }

    #[test]
    fn objects_without_rules_are_changes() {
        for kind in ["DistributionGrant", "ManifestBundle", "MemberCluster"] {
            assert_eq!(kind_of(kind), Some(kind));
        }
        for other in ["DistributionRule", "ClusterDistributionRule", ""] {
            assert_eq!(kind_of(other), None);
        }
    }
}
