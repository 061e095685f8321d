//! The watch of `MemberCluster`s.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::{Api, Client, Resource, ResourceExt};
use runnel_proto::model::{ClusterName, DeletionPolicy, RuleUid};

use super::{DecodedObject, READ_LIMIT, RelistingWatch, own_events, refusal};
use crate::hub_state::HubState;
use crate::object_cache::ObjectCache;
use crate::relist_barrier::Watched;
use runnel_api::MemberCluster;
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::index::Cluster;

/// Delay before members are relisted after one could not be read.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// Watches the member clusters for ever. `listed` is called at each complete list.
pub async fn watch_members(
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    listed: impl Fn() + Send,
) {
    let own = client.clone();
    let mut events =
        RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
            own_events::<MemberCluster>(own.clone()).boxed()
        });
    let mut seen = BTreeSet::new();
    loop {
        let Some(event) = events.next().await else {
            continue;
        };
        match event {
            Ok(Event::Init) => {
                seen.clear();
                object_cache.mark_members_stale();
            }
            Ok(Event::InitApply(object)) => {
                seen.insert(ClusterName::from(object.name()));
                if let DecodedObject::Read(object) = object {
                    observe_member(*object, &hub_state, &object_cache);
                }
            }
            Ok(Event::InitDone) => {
                let unsure = forget_unlisted(&seen, &hub_state, &object_cache);
                if read_member(unsure, &client, &hub_state, &object_cache)
                    .await
                    .is_none()
                {
                    tokio::time::sleep(AFTER_FAILURE).await;
                    events.relist();
                    continue;
                }
                hub_state
                    .leadership
                    .relist_barrier
                    .done(Watched::Own("memberclusters"), events.round);
                listed();
            }
            Ok(Event::Apply(DecodedObject::Read(object))) => {
                observe_member(*object, &hub_state, &object_cache)
            }
            // The former state is kept.
            Ok(Event::Apply(DecodedObject::Unreadable(_))) => {}
            Ok(Event::Delete(object)) => {
                let name = ClusterName::from(object.name());
                forget_if(
                    &name,
                    object.meta().uid.as_deref(),
                    &hub_state,
                    &object_cache,
                );
            }
            Err(error) => match refusal(&error, "give the hub get, list and watch on it") {
                Some(why) => tracing::error!(
                    "cannot watch memberclusters: {why}; install the CRDs with `runnel-hub crds | kubectl apply --server-side -f -` and check the hub's rights. Trying again"
                ),
                None => tracing::warn!(%error, "watch of memberclusters failed; retrying"),
            },
        }
    }
}

/// Stores a member, unless a newer version is known.
pub fn observe_member(mut object: MemberCluster, hub_state: &HubState, object_cache: &ObjectCache) {
    // The managed fields are most of the object, and are not used here.
    object.metadata.managed_fields = None;
    let name = ClusterName::from(object.name_any());
    let cluster = Cluster::read(&object);
    let _turn = object_cache.turn();
    if !object_cache.set_member(name.clone(), object) {
        return;
    }
    let recreated = hub_state
        .index
        .read()
        .clusters()
        .get(&name)
        .is_some_and(|known| known.uid != cluster.uid);
    if recreated {
        hub_state.report_store.lock().forget(&name);
        hub_state.leadership.divergences.lock().forget(&name);
    }
    // Before any other handling of the cluster.
    record_leaving(&name, cluster.leaving, hub_state);
    let cause = || ChangeCause::of(ChangeKind::MemberChanged, name.as_str());
    hub_state.change_because(cause, |index| index.set_cluster(name.clone(), cluster));
    // Any change may end the session, which checks for itself.
    hub_state.wake(&name);
    hub_state.queues.dirty_members.add([name]);
}

fn record_leaving(name: &ClusterName, leaving: bool, hub_state: &HubState) {
    let index = hub_state.index.read();
    let retains = |uid: &RuleUid| {
        index
            .rules()
            .get(uid)
            .is_some_and(|entry| entry.rule.terms.deletion_policy == DeletionPolicy::Retain)
    };
    hub_state.report_store.lock().leaves(name, leaving, retains);
}

/// Removes the members that were known when the list began and that the complete list does not
/// contain. Returns the other known members, which were added since.
fn forget_unlisted(
    seen: &BTreeSet<ClusterName>,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) -> Vec<ClusterName> {
    let _turn = object_cache.turn();
    let (gone, unsure): (Vec<_>, Vec<_>) = object_cache
        .members_not_in(seen)
        .into_iter()
        .partition(|(_, before)| *before);
    for (name, _) in &gone {
        forget(name, hub_state, object_cache);
    }
    unsure.into_iter().map(|(name, _)| name).collect()
}

/// Reads members from the API server. `None`, if it did not answer.
async fn read_member(
    names: Vec<ClusterName>,
    client: &Client,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) -> Option<()> {
    let members: Api<MemberCluster> = Api::all(client.clone());
    for name in names {
        let uid = object_cache.with_member(&name, |known| known?.metadata.uid.clone())?;
        match tokio::time::timeout(READ_LIMIT, members.get_opt(name.as_str())).await {
            Ok(Ok(Some(object))) => observe_member(object, hub_state, object_cache),
            Ok(Ok(None)) => forget_if(&name, Some(&uid), hub_state, object_cache),
            _ => return None,
        }
    }
    Some(())
}

/// Removes the member with this uid. Another member may already have the name.
fn forget_if(
    name: &ClusterName,
    uid: Option<&str>,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) {
    let _turn = object_cache.turn();
    if object_cache.with_member(name, |known| {
        known.is_none_or(|known| known.metadata.uid.as_deref() == uid)
    }) {
        forget(name, hub_state, object_cache);
    }
}

/// Requires the lock of the object cache.
fn forget(name: &ClusterName, hub_state: &HubState, object_cache: &ObjectCache) {
    object_cache.remove_member(name);
    let mut report_store = hub_state.report_store.lock();
    for (_, rule, copies) in report_store
        .copies_by_rule(name)
        .filter(|(.., copies)| *copies > 0)
    {
        tracing::warn!(cluster = %name, %rule, copies, "the MemberCluster was deleted: these copies are left behind there");
    }
    report_store.forget(name);
    drop(report_store);
    hub_state.leadership.divergences.lock().forget(name);
    hub_state.change(|index| index.remove_cluster(name));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub_state::Settings;
    use serde_json::json;

    fn hub() -> (Arc<HubState>, Arc<ObjectCache>) {
        (HubState::new(Settings::for_tests()), Arc::default())
    }

    fn member(name: &str, version: u32, accepted: bool) -> MemberCluster {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
            "metadata": {"name": name, "uid": name, "resourceVersion": version.to_string()},
            "spec": {"accepted": accepted},
        });
        serde_json::from_value(object).unwrap()
    }

    #[test]
    fn list_keeps_members_added_while_it_was_read() {
        let (hub_state, object_cache) = hub();
        observe_member(member("old", 1, true), &hub_state, &object_cache);
        observe_member(member("gone", 2, true), &hub_state, &object_cache);
        object_cache.mark_members_stale();
        observe_member(member("old", 1, true), &hub_state, &object_cache);
        // Its session was admitted after the list was made.
        observe_member(member("new", 3, true), &hub_state, &object_cache);
        let unsure = forget_unlisted(&["old".into()].into(), &hub_state, &object_cache);
        assert_eq!(unsure, ["new".into()]);
        let known = |name: &str| {
            (
                object_cache.member(&name.into()).is_some(),
                hub_state
                    .index
                    .read()
                    .clusters()
                    .get(&name.into())
                    .is_some(),
            )
        };
        assert_eq!(
            [known("old"), known("new"), known("gone")],
            [(true, true), (true, true), (false, false)]
        );
    }

    #[test]
    fn list_after_a_restore_counts_despite_lower_versions() {
        let (hub_state, object_cache) = hub();
        observe_member(member("eu-1", 900, true), &hub_state, &object_cache);
        object_cache.mark_members_stale();
        observe_member(member("eu-1", 400, false), &hub_state, &object_cache);
        assert!(
            !hub_state
                .index
                .read()
                .clusters()
                .get(&"eu-1".into())
                .unwrap()
                .accepted
        );
    }

    #[test]
    fn member_locked_in_the_cache_is_not_adopted() {
        let (hub_state, object_cache) = hub();
        std::thread::scope(|scope| {
            let index = hub_state.index.read();
            let taking =
                scope.spawn(|| observe_member(member("eu-1", 1, true), &hub_state, &object_cache));
            while object_cache.member(&"eu-1".into()).is_none() && !taking.is_finished() {
                std::thread::yield_now();
            }
            assert!(!taking.is_finished() && object_cache.is_in_turn());
            drop(index);
        });
        assert!(
            !object_cache.is_in_turn()
                && hub_state
                    .index
                    .read()
                    .clusters()
                    .get(&"eu-1".into())
                    .is_some()
        );
    }
}
