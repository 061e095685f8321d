//! The watches of `MemberCluster`s and of their records.
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::{Api, Client, CustomResourceExt, Resource, ResourceExt};
use runnel_proto::model::{ClusterName, DeletionPolicy, RuleUid};

use super::crd_deletion::{CrdMemory, CrdState, DeletedCrdFilter, read_crd};
use super::{
    DecodedObject, FailureLog, MEMBERS_PAGE, READ_LIMIT, RelistingWatch, failure, has_lost_objects,
    own_events, refusal,
};
use crate::hub_state::HubState;
use crate::member_records::write_record;
use crate::membership::Member;
use crate::object_cache::{MemberObject, ObjectCache};
use crate::relist_barrier::Watched;
use runnel_api::{MemberCluster, MemberRecord};
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::index::Cluster;

/// Delay before members are relisted after one could not be read.
const AFTER_FAILURE: Duration = Duration::from_secs(1);

/// What the watch does with the objects of one kind.
pub trait WatchedMember: MemberObject + CustomResourceExt {
    /// Stores an object that the watch delivered.
    fn observe(self, hub_state: &HubState, object_cache: &ObjectCache);
    /// Stores an object that was read or written.
    fn observe_read(self, hub_state: &HubState, object_cache: &ObjectCache);
    /// Removes objects that went at once. Requires the lock of the object cache.
    fn forget(names: &[ClusterName], hub_state: &HubState, object_cache: &ObjectCache);
    /// Called when the CRD is there again, without objects. Returns whether it may stay without.
    fn lost(
        _client: &Client,
        _hub_state: &HubState,
        _object_cache: &ObjectCache,
    ) -> impl Future<Output = bool> + Send {
        std::future::ready(false)
    }
}

impl WatchedMember for MemberCluster {
    fn observe(self, hub_state: &HubState, object_cache: &ObjectCache) {
        let name = ClusterName::from(self.name_any());
        let _turn = object_cache.turn();
        if self.metadata.deletion_timestamp.is_some() {
            record_departures(std::slice::from_ref(&name), hub_state, object_cache);
        }
        store(name, self, hub_state, object_cache);
    }

    /// Only the watch decides that it is terminating, as it may be so with its CRD.
    fn observe_read(mut self, hub_state: &HubState, object_cache: &ObjectCache) {
        if self.metadata.deletion_timestamp.is_some() {
            let name = ClusterName::from(self.name_any());
            let Some(known) = object_cache.member(&name) else {
                return;
            };
            let known = known.cluster.metadata.deletion_timestamp.clone();
            self.metadata.deletion_timestamp = known;
        }
        self.observe(hub_state, object_cache);
    }

    fn forget(names: &[ClusterName], hub_state: &HubState, object_cache: &ObjectCache) {
        record_departures(names, hub_state, object_cache);
        for name in names {
            forget(name, hub_state, object_cache);
        }
    }
}

impl WatchedMember for MemberRecord {
    fn observe(self, hub_state: &HubState, object_cache: &ObjectCache) {
        let _turn = object_cache.turn();
        let name = ClusterName::from(self.name_any());
        store(name, self, hub_state, object_cache);
    }

    fn observe_read(self, hub_state: &HubState, object_cache: &ObjectCache) {
        self.observe(hub_state, object_cache);
    }

    /// Without its record a member has no keys, which is no revocation.
    fn forget(names: &[ClusterName], hub_state: &HubState, object_cache: &ObjectCache) {
        for name in names {
            object_cache.remove_member::<Self>(name);
            update(name, hub_state, object_cache);
        }
    }

    /// Writes the records again, as nobody else does.
    async fn lost(client: &Client, hub_state: &HubState, object_cache: &ObjectCache) -> bool {
        let known = object_cache.members().into_iter();
        let known = known.filter_map(|name| object_cache.member(&name));
        let lost: Vec<_> = known.filter(|member| member.stored().is_some()).collect();
        for member in &lost {
            if !hub_state.leadership.leads() {
                break;
            }
            let absent = Member::new(member.cluster.clone(), None);
            let write = write_record(client, &absent, member.record().clone());
            if let Ok(Ok(written)) = tokio::time::timeout(READ_LIMIT, write).await {
                let cluster = member.cluster.name_any();
                tracing::warn!(%cluster, "its MemberRecord went with the CRD, and is written again");
                written.observe(hub_state, object_cache);
            }
        }
        lost.is_empty()
    }
}

/// Watches the objects of a kind for ever. `listed` is called at each complete list.
pub async fn watch_members<K: WatchedMember>(
    client: Client,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    listed: impl Fn() + Send,
) {
    let (own, reader_client) = (client.clone(), client.clone());
    let memory = CrdMemory::default();
    let read = move || read_crds::<K>(reader_client.clone());
    let filter = DeletedCrdFilter::remembering(&memory, read).trusting_the_first_list();
    let mut events =
        RelistingWatch::new(hub_state.leadership.relist_barrier.subscribe(), move || {
            filter.events(own_events::<K>(own.clone(), MEMBERS_PAGE).boxed())
        });
    let mut seen = BTreeSet::new();
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
                object_cache.mark_members_stale::<K>();
            }
            Ok(Event::InitApply(object)) => {
                seen.insert(ClusterName::from(object.name()));
                if let DecodedObject::Read(object) = object {
                    object.observe(&hub_state, &object_cache);
                }
            }
            Ok(Event::InitDone) => {
                let unsure = forget_unlisted::<K>(&seen, &hub_state, &object_cache);
                if read_unsure::<K>(unsure, &client, &hub_state, &object_cache)
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
                    .done(Watched::Own(K::RESOURCE), events.round);
                listed();
            }
            Ok(Event::Apply(DecodedObject::Read(object))) => {
                object.observe(&hub_state, &object_cache)
            }
            // The former state is kept.
            Ok(Event::Apply(_)) => {}
            Ok(Event::Delete(object)) => {
                let name = ClusterName::from(object.name());
                forget_if::<K>(
                    &name,
                    object.meta().uid.as_deref(),
                    &hub_state,
                    &object_cache,
                );
            }
            Err(error) if has_lost_objects(&error) => {
                if K::lost(&client, &hub_state, &object_cache).await {
                    memory.forget_lost();
                }
            }
            Err(error) => match refusal(&error, "give the hub get, list and watch on it") {
                Some(why) if !failures.is_news(&why) => {}
                Some(why) => tracing::error!(
                    "cannot watch {}: {why}; install the CRDs with `runnel-hub crds | kubectl apply --server-side -f -` and check the hub's rights. Trying again",
                    K::RESOURCE
                ),
                None if !failures.is_news(&failure(&error)) => {}
                None => tracing::warn!(%error, "watch of {} failed; retrying", K::RESOURCE),
            },
        }
    }
}

/// Reads the CRD of a kind. A record goes with its `MemberCluster`, also when that goes with its own CRD.
async fn read_crds<K: WatchedMember>(client: Client) -> CrdState {
    let cluster = read_crd(client.clone(), MemberCluster::crd_name()).await;
    if cluster != CrdState::Present || K::crd_name() == MemberCluster::crd_name() {
        return cluster;
    }
    read_crd(client, K::crd_name()).await
}

/// Stores an object of a member that was read or written, unless a newer version is known.
pub fn observe_member<K: WatchedMember>(
    object: K,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) {
    object.observe_read(hub_state, object_cache);
}

/// Requires the lock of the object cache.
fn store<K: WatchedMember>(
    name: ClusterName,
    mut object: K,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) {
    // The managed fields are most of the object, and are not used here.
    object.meta_mut().managed_fields = None;
    if object_cache.set_member(name.clone(), object) {
        update(&name, hub_state, object_cache);
    }
}

/// Updates the index after a change of a member or its record. Requires the lock of the object cache.
fn update(name: &ClusterName, hub_state: &HubState, object_cache: &ObjectCache) {
    let Some(member) = object_cache.member(name) else {
        return;
    };
    let cluster = Cluster::read(&member.cluster, member.record());
    let (recreated, relabeled) = {
        let index = hub_state.index.read();
        let known = index.clusters().get(name);
        (
            known.is_some_and(|known| known.uid != cluster.uid),
            known.is_some_and(|known| known.labels != cluster.labels),
        )
    };
    if recreated {
        hub_state.report_store.lock().forget(name);
        hub_state.leadership.divergences.lock().forget(name);
    }
    // Before any other handling of the cluster.
    record_leaving(name, cluster.leaving, hub_state);
    let cause = || ChangeCause::of(ChangeKind::MemberChanged, name.as_str());
    hub_state.change_because(cause, |index| index.set_cluster(name.clone(), cluster));
    if relabeled {
        hub_state.mark_views_of(name);
    }
    // Any change may end the session, which checks for itself.
    hub_state.wake(name);
    hub_state.queues.dirty_members.add([name.clone()]);
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

/// Removes the objects that were known when the list began and that the complete list does not
/// contain. Returns the other known ones, which were added since.
fn forget_unlisted<K: WatchedMember>(
    seen: &BTreeSet<ClusterName>,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) -> Vec<ClusterName> {
    let _turn = object_cache.turn();
    let (gone, unsure): (Vec<_>, Vec<_>) = object_cache
        .members_not_in::<K>(seen)
        .into_iter()
        .partition(|(_, before)| *before);
    let names: Vec<_> = gone.into_iter().map(|(name, _)| name).collect();
    K::forget(&names, hub_state, object_cache);
    unsure.into_iter().map(|(name, _)| name).collect()
}

/// Reads objects from the API server. `None`, if it did not answer.
async fn read_unsure<K: WatchedMember>(
    names: Vec<ClusterName>,
    client: &Client,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) -> Option<()> {
    let objects: Api<K> = Api::all(client.clone());
    for name in names {
        let uid = object_cache.uid_of::<K>(&name)?;
        match tokio::time::timeout(READ_LIMIT, objects.get_opt(name.as_str())).await {
            Ok(Ok(Some(object))) => observe_member(object, hub_state, object_cache),
            Ok(Ok(None)) => forget_if::<K>(&name, Some(&uid), hub_state, object_cache),
            _ => return None,
        }
    }
    Some(())
}

/// Removes the object with this uid. Another one may already have the name.
fn forget_if<K: WatchedMember>(
    name: &ClusterName,
    uid: Option<&str>,
    hub_state: &HubState,
    object_cache: &ObjectCache,
) {
    let _turn = object_cache.turn();
    let known = object_cache.uid_of::<K>(name);
    if known.is_none() || known.as_deref() == uid {
        K::forget(std::slice::from_ref(name), hub_state, object_cache);
    }
}

/// Decides whether known members that go now are revoked. Requires the lock of the object cache.
fn record_departures(names: &[ClusterName], hub_state: &HubState, object_cache: &ObjectCache) {
    let limit = hub_state.index.read().fleet_guard().terms.fleet;
    let report_store = hub_state.report_store.lock();
    let copies = |name: &ClusterName| {
        let copies = report_store.copies_by_rule(name);
        let copies = copies.map(|(.., copies)| u64::from(copies)).sum();
        report_store.has_connected(name).then_some(copies)
    };
    let gone = names.iter().filter_map(|name| {
        let (uid, is_new) = object_cache.with_member(name, |known| {
            let cluster = &known?.cluster;
            let status = cluster.status.as_ref();
            let is_new = status.is_none_or(|status| status.certificate.is_none());
            Some((cluster.metadata.uid.clone()?, is_new))
        })?;
        // One that never connected has no copies.
        Some((uid, copies(name).or_else(|| is_new.then_some(0))))
    });
    let gone: Vec<_> = gone.collect();
    let all = u64::from(report_store.copies().applied);
    let is_revoked = object_cache
        .departures()
        .record(gone, limit, all, Instant::now());
    if let Some(first) = names.first().filter(|_| !is_revoked) {
        tracing::error!(
            cluster = %first,
            count = names.len(),
            "more MemberClusters went within a minute than removalLimit.fleet of the Fleet allows: their agents are refused and not \
             revoked, so their copies stay whatever policy.onRevoke is. To revoke a cluster, create its MemberCluster with \
             spec.accepted: false"
        );
    }
}

/// Requires the lock of the object cache.
fn forget(name: &ClusterName, hub_state: &HubState, object_cache: &ObjectCache) {
    object_cache.remove_member::<MemberCluster>(name);
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
    use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
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
        object_cache.mark_members_stale::<MemberCluster>();
        observe_member(member("old", 1, true), &hub_state, &object_cache);
        // Its session was admitted after the list was made.
        observe_member(member("new", 3, true), &hub_state, &object_cache);
        let unsure =
            forget_unlisted::<MemberCluster>(&["old".into()].into(), &hub_state, &object_cache);
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
    fn only_the_watch_decides_that_a_member_is_terminating() {
        let (hub_state, object_cache) = hub();
        let terminating = |version| {
            let mut object = member("eu-1", version, true);
            object.metadata.deletion_timestamp = Some(Time(jiff::Timestamp::UNIX_EPOCH));
            object
        };
        let is_known_as = |is_terminating: Option<bool>| {
            let known = object_cache.with_member(&"eu-1".into(), |known| {
                known.map(|known| known.cluster.metadata.deletion_timestamp.is_some())
            });
            assert_eq!(known, is_terminating);
        };
        observe_member(terminating(1), &hub_state, &object_cache);
        is_known_as(None);
        member("eu-1", 2, true).observe(&hub_state, &object_cache);
        observe_member(terminating(3), &hub_state, &object_cache);
        is_known_as(Some(false));
        terminating(3).observe(&hub_state, &object_cache);
        is_known_as(Some(true));
        assert!(object_cache.departures().is_revoked("eu-1", 1, 10));
        observe_member(terminating(4), &hub_state, &object_cache);
        is_known_as(Some(true));
    }

    #[test]
    fn list_after_a_restore_counts_despite_lower_versions() {
        let (hub_state, object_cache) = hub();
        observe_member(member("eu-1", 900, true), &hub_state, &object_cache);
        object_cache.mark_members_stale::<MemberCluster>();
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
