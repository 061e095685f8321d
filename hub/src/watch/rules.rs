//! The watches of the two kinds of rules.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::{Client, Resource, ResourceExt};
use runnel_proto::model::RuleUid;

use super::origins::Origins;
use super::{DecodedObject, FailureLog, PAGE, RelistingWatch, failure, own_events, refusal};
use crate::hub_state::HubState;
use crate::object_cache::{ObjectCache, RuleKind, RuleObject};
use crate::relist_barrier::Watched;
use runnel_api::{self, FINALIZER};
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::guard::approves;
use runnel_hub_core::index::Index;
use runnel_hub_core::plan::Rule;

/// The longest that an API server works on one request to delete an object.
const LONGEST_DELETE: Duration = Duration::from_secs(60);

/// Watches one kind of rules for ever. `listed` is called at each complete list.
///
/// A rule counts only once it carries the finalizer, so that none of its copies can outlive it unnoticed; the writer
/// sets it.
pub async fn watch_rules<K: RuleKind>(
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    listed: impl Fn() + Send,
) {
    let watching = client.clone();
    let mut events =
        RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
            own_events::<K>(watching.clone(), PAGE).boxed()
        });
    let mut seen = BTreeSet::new();
    let mut origins = Origins::new(client);
    let mut failures = FailureLog::default();
    loop {
        let Some(event) = events.next().await else {
            continue;
        };
        if failures.ends(&event) {
            tracing::info!("can watch {} again", K::RESOURCE);
        }
        match event {
            Ok(Event::Init) => {
                seen.clear();
                object_cache.mark_rules_stale::<K>();
                hub_state.change_quietly(|index| index.rules_mut().forget_expected());
            }
            Ok(Event::InitApply(object)) => {
                seen.extend(object.meta().uid.clone().map(RuleUid::from));
                if let Some((object, nodes)) = object.decoded() {
                    observe(&*object, nodes, false, &hub_state, &object_cache);
                }
            }
            Ok(Event::InitDone) => {
                for uid in object_cache.rules_not_in::<K>(&seen) {
                    forget(&uid, &hub_state, &object_cache);
                }
                hub_state
                    .leadership
                    .relist_barrier
                    .done(Watched::Own(K::RESOURCE), events.round);
                listed();
            }
            Ok(Event::Apply(object)) => {
                // The former state of an unreadable one is kept.
                if let Some((object, nodes)) = object.decoded() {
                    let is_origin_known = is_newly_deleted(&*object, &hub_state)
                        && origins.read(&*object, &hub_state).await;
                    observe(&*object, nodes, is_origin_known, &hub_state, &object_cache);
                }
            }
            Ok(Event::Delete(
                DecodedObject::Read(object) | DecodedObject::SpecDropped(object, _),
            )) => deleted(&*object, &hub_state, &object_cache),
            Ok(Event::Delete(DecodedObject::Unreadable(meta))) => {
                if let Some(uid) = meta.uid {
                    forget(&uid.into(), &hub_state, &object_cache);
                }
            }
            Err(error) => log_watch_error::<K>(&error, &mut failures),
        }
    }
}

fn log_watch_error<K: RuleKind>(error: &kube::runtime::watcher::Error, failures: &mut FailureLog) {
    let resource = K::plural(&());
    match refusal(error, "give the hub get, list and watch on it") {
        Some(why) if !failures.is_news(&why) => {}
        Some(why) => tracing::error!(
            resource = %resource,
            "cannot watch {resource}: {why}; install the CRDs with `runnel-hub crds | kubectl apply --server-side -f -` and check the hub's rights. Trying again"
        ),
        None if !failures.is_news(&failure(error)) => {}
        None => tracing::warn!(%resource, %error, "watch of rules failed; retrying"),
    }
}

fn has_finalizer<K: RuleKind>(object: &K) -> bool {
    object
        .finalizers()
        .iter()
        .any(|finalizer| finalizer == FINALIZER)
}

/// Whether the rule is terminating now and was not in the index.
fn is_newly_deleted<K: RuleKind>(object: &K, hub_state: &HubState) -> bool {
    let Some(uid) = object.uid().map(RuleUid::from) else {
        return false;
    };
    let was_alive = || {
        hub_state
            .index
            .read()
            .planner()
            .latest_rule(&uid)
            .is_some_and(|rule| !rule.deleting)
    };
    object.meta().deletion_timestamp.is_some() && was_alive()
}

/// Handles a rule. `nodes`: its spec has so many JSON nodes that it was not decoded.
fn observe<K: RuleKind>(
    object: &K,
    nodes: Option<usize>,
    is_origin_known: bool,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) {
    let Some(mut rule) = object.rule(&hub_state.settings.namespace) else {
        return;
    };
    rule.is_origin_known = is_origin_known;
    let uid = rule.uid.clone();
    if let Some(nodes) = nodes {
        let index = hub_state.index.read();
        rule = rule.undecoded(index.planner().latest_rule(&uid), nodes);
    }
    let has_finalizer = has_finalizer(object);
    let known = object_cache.with_rule(&uid, |known| {
        known.map(|known| (known.has_finalizer, known.finalizer_seen))
    });
    let finalizer_seen = match known {
        Some((false, _)) if has_finalizer => Some(Instant::now()),
        Some((_, seen)) => seen,
        None => None,
    };
    let mut seen = RuleObject::of(object, has_finalizer);
    seen.finalizer_seen = finalizer_seen;
    let wave = seen.status.rollout.as_ref();
    let wave = wave.and_then(|rollout| Some(rollout.pending_wave.as_ref()?.digest.clone()));
    let was_stale = object_cache.set_rule(uid.clone(), seen, hub_state.leadership.leads());
    let revert = |rule: &Rule| rule.revert.as_ref().map(|revert| revert.revision.clone());
    let message = |rule: &Rule| {
        (
            rule.generation,
            rule.deleting,
            rule.removal.clone(),
            revert(rule),
        )
    };
    let known = hub_state
        .index
        .read()
        .planner()
        .latest_rule(&uid)
        .map(message);
    // Most events of a rule are the hub's own writes of its status, and change nothing else.
    let (news, is_known) = (was_stale || known != Some(message(&rule)), known.is_some());
    let has_same_revert = known
        .as_ref()
        .is_none_or(|(.., former)| *former == revert(&rule));
    let is_planned = known.is_some_and(|(generation, deleting, ..)| {
        (generation, deleting) == (rule.generation, rule.deleting) && has_same_revert
    });
    if news && is_planned && !was_stale {
        let why = hub_state
            .index
            .read()
            .rules()
            .get(&uid)
            .and_then(|entry| entry.guard.pending().cloned());
        let approve = rule.removal.approve.as_deref();
        // The hub's own writes of the status, and other annotations, change no copy.
        let cause = match why {
            Some(pending) if approves(approve, &pending.digest) => {
                Some(ChangeCause::of(ChangeKind::Approved, pending.cause))
            }
            _ if wave.is_some_and(|digest| approves(approve, &digest)) => {
                Some(ChangeCause::new(ChangeKind::WaveApproved))
            }
            _ => None,
        };
        let set = |index: &mut Index| index.planner_mut().set_removal(&uid, rule.removal);
        match cause {
            Some(cause) => hub_state.change_because(|| cause, set),
            None => hub_state.change(set),
        }
    } else if (has_finalizer || is_known) && news {
        let is_reverted = rule.revert.is_some();
        let places = rule.places(hub_state.index.read().scopes().watched());
        let cause = ChangeCause::new(match (rule.deleting, is_known) {
            (true, _) => ChangeKind::RuleDeleted,
            (false, true) if !has_same_revert => ChangeKind::RuleReverted,
            (false, true) => ChangeKind::RuleEdited,
            (false, false) => ChangeKind::RuleCreated,
        });
        hub_state.change_because(
            || cause,
            |index| {
                if !rule.deleting {
                    index.rules_mut().expect(uid.clone(), Instant::now());
                }
                index.set_rule(rule)
            },
        );
        if is_reverted {
            hub_state.queues.completed_rules.add([uid.clone()]);
        }
        // Only now: a scope that no rule in the index needs may be released at any time.
        hub_state.need(places);
        if is_known {
            hub_state.needs_changed.notify_one();
        }
    }
    if !has_finalizer && !is_known && object.meta().deletion_timestamp.is_none() {
        hub_state.change_quietly(|index| index.rules_mut().expect(uid.clone(), Instant::now()));
    }
    if !has_finalizer || object_cache.is_replaced(&uid) {
        hub_state.queues.dirty_rules.add([uid]);
    }
}

/// Handles the deletion of a rule. An API server decides about a delete by the finalizers that it
/// has just read. A finalizer that is set at the same moment does not prevent the deletion, and is
/// in the last state of the rule all the same. Such a rule was deleted on purpose like any other,
/// and its copies may be in flight. So it stays in the index until every cluster is free of it or
/// has a stored order. A user who removes the finalizer wants to keep the copies.
fn deleted<K: RuleKind>(object: &K, hub_state: &HubState, object_cache: &ObjectCache) {
    let Some(uid) = object.uid().map(RuleUid::from) else {
        return;
    };
    let seen = object_cache.with_rule(&uid, |known| known.and_then(|known| known.finalizer_seen));
    let is_recent = seen.is_some_and(|seen| seen.elapsed() < LONGEST_DELETE);
    let is_fulfilled = has_finalizer(object) && object.meta().deletion_timestamp.is_none();
    let deleted_without_finalizer =
        is_recent && is_fulfilled && hub_state.index.read().rules().get(&uid).is_some();
    let Some(mut rule) = object
        .rule(&hub_state.settings.namespace)
        .filter(|_| deleted_without_finalizer)
    else {
        return forget(&uid, hub_state, object_cache);
    };
    let name = object_cache.name_of(&uid);
    tracing::info!(rule = %name, "a rule was deleted before it had its finalizer: its copies are removed anyway");
    let mut last = RuleObject::of(object, true);
    (last.deleting, last.is_deleted) = (true, true);
    object_cache.set_rule(uid.clone(), last, hub_state.leadership.leads());
    rule.deleting = true;
    let cause = ChangeCause::new(ChangeKind::RuleDeleted);
    hub_state.change_because(|| cause, |index| index.set_rule(rule));
    hub_state.queues.dirty_rules.add([uid]);
}

/// A rule is not there any more, and nothing is to be done about its copies.
pub(crate) fn forget(uid: &RuleUid, hub_state: &HubState, object_cache: &ObjectCache) {
    object_cache.remove_rule(uid);
    hub_state.change(|index| index.remove_rule(uid));
    hub_state.needs_changed.notify_one();
    hub_state.audit.lock().forget(uid);
    // Members with copies of it report them in their status.
    hub_state.mark_members();
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub_state::Settings;
    use runnel_api::DistributionRule;
    use serde_json::json;

    fn object(has_finalizer: bool, is_deleting: bool) -> DistributionRule {
        let mut object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 1},
            "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
        });
        if has_finalizer {
            object["metadata"]["finalizers"] = json!([FINALIZER]);
        }
        if is_deleting {
            object["metadata"]["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
        }
        serde_json::from_value(object).unwrap()
    }

    /// Whether the index still has the rule as terminating, after these events and its deletion.
    fn is_still_tracked(shown: &[DistributionRule], last: &DistributionRule) -> bool {
        let (hub_state, object_cache) =
            (HubState::new(Settings::for_tests()), ObjectCache::default());
        shown
            .iter()
            .for_each(|object| observe(object, None, false, &hub_state, &object_cache));
        deleted(last, &hub_state, &object_cache);
        let uid = RuleUid::from("r");
        let is_deleting = hub_state
            .index
            .read()
            .rules()
            .get(&uid)
            .is_some_and(|entry| entry.rule.deleting);
        assert_eq!(
            object_cache
                .rule(&uid)
                .is_some_and(|object| object.is_deleted),
            is_deleting
        );
        // No list that comes later forgets it.
        assert!(
            object_cache
                .rules_not_in::<DistributionRule>(&BTreeSet::new())
                .is_empty()
        );
        is_deleting
    }

    #[test]
    fn rule_whose_spec_was_not_decoded_stays_as_it_was() {
        let (hub_state, object_cache) =
            (HubState::new(Settings::for_tests()), ObjectCache::default());
        let rule = |check: &dyn Fn(&Rule)| {
            let index = hub_state.index.read();
            check(index.planner().latest_rule(&RuleUid::from("r")).unwrap());
        };
        observe(&object(true, false), None, false, &hub_state, &object_cache);
        let mut large = object(true, false);
        large.metadata.generation = Some(2);
        large.spec.sources.clear();
        observe(&large, Some(20_000), false, &hub_state, &object_cache);
        rule(&|rule| {
            assert_eq!((rule.generation, rule.too_many_nodes), (2, Some(20_000)));
            assert!(rule.sources.len() == 1 && rule.terms.suspend);
        });
        let mut mended = object(true, false);
        mended.metadata.generation = Some(3);
        observe(&mended, None, false, &hub_state, &object_cache);
        rule(&|rule| assert!(rule.too_many_nodes.is_none() && !rule.terms.suspend));
    }

    #[test]
    fn rule_deleted_without_finalizer_is_cleaned_up() {
        let (new, former) = (object(false, false), object(true, false));
        assert!(is_still_tracked(&[new.clone(), former.clone()], &former));
        // It has never been in the index.
        assert!(!is_still_tracked(std::slice::from_ref(&new), &new));
        // Released by the hub, or the finalizer was removed by a user.
        let terminating = object(true, true);
        assert!(!is_still_tracked(
            &[new.clone(), former.clone(), terminating.clone()],
            &terminating
        ));
        assert!(!is_still_tracked(
            &[new.clone(), former.clone(), new.clone()],
            &new
        ));
        // The finalizer was there before this process was.
        assert!(!is_still_tracked(std::slice::from_ref(&former), &former));
    }
}
