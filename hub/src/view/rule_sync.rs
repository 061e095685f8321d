//! Syncs: whether the hub has observed a rule and its sources as the API server has them now.
//!
//! The hub lists the metadata of what the rule selects, and waits until its index has observed the
//! listed versions. Without that, an edit that the watch has not delivered yet seems delivered.
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

use k8s_openapi::api::authentication::v1::UserInfo;
use kube::api::{ListParams, ObjectMeta};
use kube::{Api, Resource};
use runnel_api::{ClusterDistributionRule, DistributionRule, RuleSyncStatus, UnobservedObject};
use runnel_hub_core::index::{Index, ListedScope};
use runnel_hub_core::plan::{Rule, Scope, WatchScope};
use runnel_proto::model::{RuleName, RuleUid};
use serde::de::DeserializeOwned;

use super::ViewServer;
use super::error::ViewError;
use super::turns::Turn;
use crate::call::with_timeout;
use crate::watch::{ListError, list_metadata};

/// The time limit of a sync. The client asks again.
const LIMIT: Duration = Duration::from_secs(8);
/// How often the index is compared with the lists.
const CHECK_INTERVAL: Duration = Duration::from_millis(50);
/// The most objects that a rule may need for a sync.
const MOST_SOURCES: usize = 50_000;
/// The most objects that an answer names.
const MOST_NAMED: usize = 10;

/// A rule as the API server has it.
#[derive(Clone, Debug)]
struct SavedRule {
    name: RuleName,
    uid: RuleUid,
    generation: i64,
}

/// The objects that are not observed yet.
#[derive(Debug, Default)]
struct PendingObjects {
    named: Vec<UnobservedObject>,
    count: i64,
}

impl PendingObjects {
    fn add(&mut self, object: String, message: String) {
        self.count += 1;
        if self.named.len() < MOST_NAMED {
            self.named.push(UnobservedObject { object, message });
        }
    }

    /// Compares the index with the lists.
    fn of(index: &Index, saved: &SavedRule, listed: &[ListedScope]) -> Self {
        let mut pending = Self::default();
        if !index.has_planned(&saved.uid, saved.generation) {
            let message = format!(
                "the hub has not processed generation {} of the rule yet",
                saved.generation
            );
            pending.add(format!("{} {}", saved.name.kind, saved.name), message);
        }
        for scope in listed {
            for (source, why) in index.unobserved(&saved.uid, scope) {
                pending.add(source.to_string(), why.to_string());
            }
        }
        pending
    }
}

impl ViewServer {
    /// Waits until the hub has observed a rule and its sources, for some seconds. The answer names sources, so the user
    /// must have the right to `get` them and the rule.
    pub(super) async fn sync(
        &self,
        user: &UserInfo,
        name: &RuleName,
        turn: &Turn,
    ) -> Result<RuleSyncStatus, ViewError> {
        self.reader().serving_since()?;
        self.may(user, "get", name).await?;
        let deadline = Instant::now() + LIMIT;
        let saved = self.saved_rule(name).await?;
        let mut pending = self
            .compare_until(deadline, &saved, Vec::new(), turn)
            .await?;
        let mut sources = 0;
        // The index knows the newest selection of the rule now.
        if pending.count == 0 {
            let rule = {
                let index = self.hub_state.index.read();
                index.planner().latest_rule(&saved.uid).cloned()
            };
            let rule = rule.ok_or_else(|| missing(name))?;
            self.may_read_sources(user, &rule).await?;
            match tokio::time::timeout_at(deadline.into(), self.listed_scopes(rule)).await {
                Ok(Ok(listed)) => {
                    sources = listed.iter().map(|scope| scope.sources.len()).sum();
                    pending = self.compare_until(deadline, &saved, listed, turn).await?;
                }
                Ok(Err(ListRefusal::TooMany)) => {
                    return Err(ViewError::BadRequest(format!(
                        "the rule selects more than {MOST_SOURCES} objects, which a sync does not compare"
                    )));
                }
                Ok(Err(ListRefusal::Failed { scope, why })) => {
                    pending.add(scope, format!("the hub cannot list them: {why}"));
                }
                Err(_) => pending.add(
                    format!("sources of {name}"),
                    "the API server did not list them in time".to_owned(),
                ),
            }
        }
        Ok(RuleSyncStatus {
            synced: pending.count == 0,
            generation: saved.generation,
            sources: i64::try_from(sources).unwrap_or(i64::MAX),
            pending: pending.named,
            pending_count: pending.count,
        })
    }

    /// Reads the identity of a rule at the API server, which is newer than the watch.
    async fn saved_rule(&self, name: &RuleName) -> Result<SavedRule, ViewError> {
        let client = self.client.clone();
        if name.is_cluster_scoped() {
            read_saved(name, Api::<ClusterDistributionRule>::all(client)).await
        } else {
            let api = Api::<DistributionRule>::namespaced(client, &name.namespace);
            read_saved(name, api).await
        }
    }

    /// Lists the objects that a rule needs.
    async fn listed_scopes(&self, rule: Rule) -> Result<Vec<ListedScope>, ListRefusal> {
        let rule = Arc::new(rule);
        let mut room = MOST_SOURCES;
        let mut listed = Vec::new();
        for scope in scopes(&rule, &self.hub_state.settings.scope) {
            let found = match self.hub_state.kind(&scope.resource) {
                Some(kind) if scope.fits(&kind) => {
                    list_metadata(&self.client, &kind, &scope, &rule, room).await
                }
                _ => Err(ListError::NotServed),
            };
            let found = found.map_err(|error| match error {
                ListError::TooMany => ListRefusal::TooMany,
                error => ListRefusal::Failed {
                    scope: scope.to_string(),
                    why: error.to_string(),
                },
            })?;
            room -= found.sources.len();
            listed.push(found);
        }
        Ok(listed)
    }

    /// Compares the index with the lists, until it has observed all or the time is over.
    async fn compare_until(
        &self,
        deadline: Instant,
        saved: &SavedRule,
        listed: Vec<ListedScope>,
        turn: &Turn,
    ) -> Result<PendingObjects, ViewError> {
        let listed = Arc::new(listed);
        loop {
            let (hub_state, saved, listed) =
                (self.hub_state.clone(), saved.clone(), listed.clone());
            let compared = move || PendingObjects::of(&hub_state.index.read(), &saved, &listed);
            let pending = turn.run(compared).await?;
            if pending.count == 0 || Instant::now() >= deadline {
                return Ok(pending);
            }
            tokio::time::sleep(CHECK_INTERVAL).await;
        }
    }
}

/// Why the sources of a rule cannot be compared.
#[derive(Debug)]
enum ListRefusal {
    TooMany,
    Failed { scope: String, why: String },
}

fn missing(name: &RuleName) -> ViewError {
    ViewError::Missing(format!("there is no {} {name}", name.kind))
}

/// Reads a rule by a list of one, for which the hub has the right.
async fn read_saved<K>(name: &RuleName, api: Api<K>) -> Result<SavedRule, ViewError>
where
    K: Resource + Clone + DeserializeOwned + Debug,
{
    let params = ListParams::default().fields(&format!("metadata.name={}", name.name));
    let action = format!("read {} {name}", name.kind);
    let found = with_timeout(action, api.list_metadata(&params)).await;
    let found = found.map_err(|error| ViewError::Unavailable(error.to_string()))?;
    let found = found
        .items
        .into_iter()
        .next()
        .ok_or_else(|| missing(name))?;
    saved(name, found.metadata)
}

fn saved(name: &RuleName, metadata: ObjectMeta) -> Result<SavedRule, ViewError> {
    if metadata.deletion_timestamp.is_some() {
        return Err(ViewError::Missing(format!(
            "{} {name} is being deleted",
            name.kind
        )));
    }
    Ok(SavedRule {
        name: name.clone(),
        uid: RuleUid::from(metadata.uid.unwrap_or_default()),
        generation: metadata.generation.unwrap_or_default(),
    })
}

/// Returns the scopes to list: single namespaces, if the rule names them.
fn scopes(rule: &Rule, watched: &Scope) -> BTreeSet<WatchScope> {
    let mut scopes = BTreeSet::new();
    for entry in &rule.sources {
        let Some(namespaces) = entry.literal_namespaces() else {
            return rule.places(watched);
        };
        for resource in &entry.resources {
            let of_kind = |namespace: &&str| WatchScope::in_namespace(resource.clone(), namespace);
            scopes.extend(namespaces.iter().map(of_kind));
        }
    }
    scopes
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn cluster_rule(namespaces: &[&str]) -> Rule {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
            "metadata": {"name": "r", "uid": "u", "generation": 2},
            "spec": {
                "sources": [{"resources": ["configmaps"], "names": ["a"], "namespaces": namespaces}],
                "clusters": {"all": true},
            },
        });
        let object: ClusterDistributionRule = serde_json::from_value(object).unwrap();
        Rule::cluster_scoped(&object, "runnel-system").unwrap()
    }

    #[test]
    fn named_namespaces_are_listed_alone() {
        let named = scopes(&cluster_rule(&["web", "shop"]), &Scope::Everywhere);
        let expected = ["shop", "web"].map(|name| WatchScope::in_namespace("configmaps", name));
        assert_eq!(named, expected.into());
        let all = scopes(&cluster_rule(&["team-*"]), &Scope::Everywhere);
        assert_eq!(all, [WatchScope::everywhere("configmaps")].into());
    }

    #[test]
    fn kinds_without_namespaces_are_listed_in_the_cluster() {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "ClusterDistributionRule",
            "metadata": {"name": "r", "uid": "u", "generation": 2},
            "spec": {
                "sources": [
                    {"resources": ["namespaces"], "names": ["a"]},
                    {"resources": ["secrets"], "names": ["a"], "namespaces": ["shop"]},
                ],
                "clusters": {"all": true},
            },
        });
        let object: ClusterDistributionRule = serde_json::from_value(object).unwrap();
        let rule = Rule::cluster_scoped(&object, "runnel-system").unwrap();
        let expected = [
            WatchScope::in_cluster("namespaces"),
            WatchScope::in_namespace("secrets", "shop"),
        ];
        let only = Scope::new(["shop".to_owned()]);
        for watched in [Scope::Everywhere, only] {
            assert_eq!(scopes(&rule, &watched), expected.clone().into());
        }
    }

    #[test]
    fn unobserved_rule_is_pending_and_answers_are_bounded() {
        let saved = SavedRule {
            name: RuleName {
                kind: "DistributionRule".to_owned(),
                namespace: "shop".to_owned(),
                name: "r".to_owned(),
            },
            uid: "u".into(),
            generation: 3,
        };
        let mut pending = PendingObjects::of(&Index::default(), &saved, &[]);
        assert_eq!(pending.count, 1);
        assert_eq!(pending.named[0].object, "DistributionRule shop/r");
        for number in 0..20 {
            pending.add(format!("configmaps/shop/{number}"), String::new());
        }
        assert_eq!((pending.count, pending.named.len()), (21, MOST_NAMED));
    }

    #[test]
    fn rule_that_is_being_deleted_is_refused() {
        let name = RuleName::default();
        let metadata = json!({"uid": "u", "deletionTimestamp": "2026-01-01T00:00:00Z"});
        let metadata: ObjectMeta = serde_json::from_value(metadata).unwrap();
        assert!(matches!(saved(&name, metadata), Err(ViewError::Missing(_))));
    }
}
