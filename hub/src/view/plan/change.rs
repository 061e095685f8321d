//! Plans for a change of a grant or a member cluster: checks the rights of the caller, and finds
//! the rules that change with it.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::ResourceExt;
use runnel_proto::model::{
    ClusterName, RuleName, RuleUid, is_label_key, is_label_value, is_subdomain,
};

use super::{PlanRequest, resource_of};
use crate::view::error::ViewError;
use crate::view::review::{ResourceAccess, name_of};
use crate::view::{ViewServer, run_blocking};
use runnel_hub_core::index::{ChangedObject, Cluster};
use runnel_hub_core::plan::{Rule, RuleGrant};

/// The kinds besides rules for which plans are possible, with their resources.
const CHANGED_KINDS: [(&str, &str); 2] = [
    ("DistributionGrant", "distributiongrants"),
    ("MemberCluster", "memberclusters"),
];
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

/// Returns the kind of a plan about a grant or a member cluster; `None` for one about a rule.
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
        asked: &PlanRequest,
    ) -> Result<PlannedChange, ViewError> {
        let (object, exists) = self.changed_object(user, kind, asked).await?;
        let (state, changed) = (self.hub_state.clone(), object.clone());
        let affected = run_blocking(move || {
            let member = match &changed {
                ChangedObject::Member(name, _) => Some(name.clone()),
                ChangedObject::Grant(..) => None,
            };
            let (targets, uids) = {
                let index = state.index.read();
                (
                    index.targets().with_change(changed),
                    index.rules().uids().cloned().collect::<Vec<_>>(),
                )
            };
            let mut affected: Vec<(RuleUid, Rule)> = Vec::new();
            for some in uids.chunks(COMPARED) {
                let index = state.index.read();
                let found = some
                    .iter()
                    .filter_map(|uid| Some((uid, index.rules().get(uid)?)))
                    .filter(|(_, entry)| {
                        index.targets().differ_for(entry, member.as_ref(), &targets)
                    });
                affected.extend(found.map(|(uid, entry)| (uid.clone(), entry.rule.clone())));
            }
            affected
        });
        let mut affected = affected.await?;
        let all = affected.len();
        let notes = judged(&mut affected).into_iter().collect();
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
                let access = ResourceAccess {
                    verb: "get",
                    group: runnel_api::GROUP,
                    version: runnel_api::VERSION,
                    resource,
                    namespace: &namespace,
                    name: "",
                };
                let may = self.content_reviewer.allows(user, &access).await?;
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
        asked: &PlanRequest,
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
        let is_grant = kind == CHANGED_KINDS[0].0;
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
        self.may_change(
            user,
            verb,
            if is_grant {
                CHANGED_KINDS[0].1
            } else {
                CHANGED_KINDS[1].1
            },
            &name,
        )
        .await?;
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
        let Some(value) = asked.object.clone() else {
            return Err(ViewError::BadRequest(format!(
                "a saved {kind} changes nothing: write object, or delete: true"
            )));
        };
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
        if !member
            .labels()
            .iter()
            .all(|(key, value)| is_label_key(key) && is_label_value(value))
        {
            return Err(malformed(&"metadata.labels: a key or value is no label"));
        }
        let read = Cluster::read(&member);
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

    async fn may_change(
        &self,
        user: &UserInfo,
        verb: &str,
        resource: &str,
        name: &str,
    ) -> Result<(), ViewError> {
        let name = if verb == "create" { "" } else { name };
        let access = ResourceAccess {
            verb,
            group: runnel_api::GROUP,
            version: runnel_api::VERSION,
            resource,
            namespace: "",
            name,
        };
        if self.content_reviewer.allows(user, &access).await? {
            return Ok(());
        }
        Err(ViewError::Forbidden(format!(
            "{} may not {verb} {resource}.runnel.dev",
            name_of(user)
        )))
    }
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
    fn only_grants_and_members_are_changes() {
        for kind in ["DistributionGrant", "MemberCluster"] {
            assert_eq!(kind_of(kind), Some(kind));
        }
        for other in ["DistributionRule", "ClusterDistributionRule", ""] {
            assert_eq!(kind_of(other), None);
        }
    }
}
