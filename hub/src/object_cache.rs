//! The objects that the writer writes, as they were last observed or written.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::ApiResource;
use kube::{Resource, ResourceExt};
use runnel_proto::model::{ClusterName, RuleUid};

use crate::membership::Member;
use crate::membership::decide::holds_cluster;
use crate::membership::departures::Departures;
use crate::ordered_lock::{LeafMutex, MEMBER_UPDATE, OBJECT_CACHE, OrderedGuard, OrderedMutex};
use runnel_api::{MemberCluster, MemberRecord, RuleStatus};
use runnel_hub_core::index::version_number;
use runnel_hub_core::plan::Rule;
use serde::de::DeserializeOwned;
use std::fmt::Debug;

/// One of the two kinds of rules.
pub trait RuleKind:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
    /// The kind's plural.
    const RESOURCE: &'static str;
    /// Reads the rule; `None` for an object that no API server returns.
    fn rule(&self, runnel_namespace: &str) -> Option<Rule>;
    /// Returns the status of the object, or an empty one.
    fn current_status(&self) -> RuleStatus;
}

impl RuleKind for runnel_api::DistributionRule {
    const RESOURCE: &'static str = "distributionrules";

    fn rule(&self, runnel_namespace: &str) -> Option<Rule> {
        Rule::namespaced(self, runnel_namespace)
    }

    fn current_status(&self) -> RuleStatus {
        self.status.clone().unwrap_or_default()
    }
}

impl RuleKind for runnel_api::ClusterDistributionRule {
    const RESOURCE: &'static str = "clusterdistributionrules";

    fn rule(&self, runnel_namespace: &str) -> Option<Rule> {
        Rule::cluster_scoped(self, runnel_namespace)
    }

    fn current_status(&self) -> RuleStatus {
        self.status.clone().unwrap_or_default()
    }
}

/// The number of deleted objects whose uids are stored: more than are deleted while one request is
/// in flight.
const DELETED_UIDS_LIMIT: usize = 4096;

/// A rule's object.
#[derive(Clone)]
pub struct RuleObject {
    /// The API resource of its kind.
    pub api: ApiResource,
    /// Its namespace; `None` for a cluster-scoped rule.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its status. For the leader: the last status that it wrote, or that it found when it took the
    /// lead. For a standby: the observed one.
    pub status: RuleStatus,
    /// The status by which another writer overwrote ours, which must then be written again.
    pub replaced: Option<Box<RuleStatus>>,
    /// Whether it carries Runnel's finalizer.
    pub has_finalizer: bool,
    /// All its finalizers.
    pub finalizers: Vec<String>,
    /// Whether it is being deleted, and since when (Unix seconds).
    pub deleting: bool,
    /// When it was created.
    pub created: Option<jiff::Timestamp>,
    /// The deletion timestamp.
    pub deleted_at: Option<jiff::Timestamp>,
    /// When this process first observed the finalizer, if it observed the rule without it before.
    pub finalizer_seen: Option<Instant>,
    /// Whether the API server has deleted the rule despite the finalizer. Then only its copies in
    /// the clusters are left.
    pub is_deleted: bool,
    /// The observed resourceVersion.
    pub resource_version: Option<String>,
    /// The version that the last write of the status returned.
    written_version: u64,
    /// Whether a write of the status is in flight. A version that is observed meanwhile may be that
    /// write.
    writing: bool,
    /// Whether it was observed or written before the current list began, so that it may be stale.
    is_status_stale: bool,
    /// The reference for Events.
    pub reference: ObjectReference,
}

impl RuleObject {
    /// `namespace/name`, or `name` for a cluster-scoped rule.
    pub fn display_name(&self) -> String {
        match &self.namespace {
            Some(namespace) => format!("{namespace}/{}", self.name),
            None => self.name.clone(),
        }
    }

    /// Returns the parts of an object that the writer needs.
    pub fn of<K: RuleKind>(object: &K, has_finalizer: bool) -> Self {
        let deleted_at = object.meta().deletion_timestamp.as_ref().map(|time| time.0);
        Self {
            api: ApiResource::erase::<K>(&()),
            namespace: object.namespace(),
            name: object.name_any(),
            status: object.current_status(),
            has_finalizer,
            finalizers: object.finalizers().to_vec(),
            deleting: deleted_at.is_some(),
            created: object.meta().creation_timestamp.as_ref().map(|time| time.0),
            deleted_at,
            finalizer_seen: None,
            is_deleted: false,
            resource_version: object.resource_version(),
            replaced: None,
            written_version: 0,
            writing: false,
            is_status_stale: false,
            reference: object.object_ref(&()),
        }
    }

    /// The newest known version, whose status is `status`. A write expects this version.
    pub fn newest_version(&self) -> Option<String> {
        if self.written_version > self.version() {
            Some(self.written_version.to_string())
        } else {
            self.resource_version.clone()
        }
    }

    fn version(&self) -> u64 {
        version_number(self.resource_version.as_deref())
    }
}

/// One of the two kinds of objects of a member.
pub trait MemberObject:
    Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static
{
    /// The kind's plural.
    const RESOURCE: &'static str;
    /// Returns the stored objects of this kind.
    fn stored(members: &mut MemberObjects) -> &mut ObjectMap<Self>;
}

impl MemberObject for MemberCluster {
    const RESOURCE: &'static str = "memberclusters";

    fn stored(members: &mut MemberObjects) -> &mut ObjectMap<Self> {
        &mut members.clusters
    }
}

impl MemberObject for MemberRecord {
    const RESOURCE: &'static str = "memberrecords";

    fn stored(members: &mut MemberObjects) -> &mut ObjectMap<Self> {
        &mut members.records
    }
}

/// The objects of the members. A member exists if its `MemberCluster` does.
#[derive(Default)]
pub struct MemberObjects {
    clusters: ObjectMap<MemberCluster>,
    records: ObjectMap<MemberRecord>,
}

impl MemberObjects {
    fn member(&self, name: &ClusterName) -> Option<Member> {
        let (cluster, _) = self.clusters.known.get(name)?;
        let record = self.records.known.get(name);
        Some(Member::new(
            cluster.clone(),
            record.map(|(record, _)| record.clone()),
        ))
    }
}

/// The objects of one kind, by name.
pub struct ObjectMap<K> {
    /// In an `Arc`, because readers read each object every few seconds. Whether it was observed before the current list
    /// began, so that it may be stale.
    known: BTreeMap<ClusterName, (Arc<K>, bool)>,
    /// The uids of deleted objects, the newest last. The answer to an earlier read or write of them
    /// may still be in flight.
    deleted_uids: VecDeque<String>,
}

impl<K> Default for ObjectMap<K> {
    fn default() -> Self {
        Self {
            known: BTreeMap::new(),
            deleted_uids: VecDeque::new(),
        }
    }
}

/// The cache of the objects that the writer writes.
///
/// A list returns what exists now, independent of the versions that were observed before: after a
/// restore of etcd versions are lower. So the state at the begin of a list is stale, and every
/// later object replaces it.
#[derive(Default)]
pub struct ObjectCache {
    rules: OrderedMutex<BTreeMap<RuleUid, RuleObject>, OBJECT_CACHE>,
    members: OrderedMutex<MemberObjects, OBJECT_CACHE>,
    /// The number of changes of members and their records.
    member_changes: AtomicU64,
    departures: LeafMutex<Departures>,
    turn: OrderedMutex<(), MEMBER_UPDATE>,
}

impl ObjectCache {
    /// Stores a rule that a watch delivered. The status of a newer write by this process is kept.
    /// While this process `leads`, no other process writes statuses, so its own status is always
    /// kept. Returns whether the former state was stale.
    pub fn set_rule(&self, uid: RuleUid, mut object: RuleObject, leads: bool) -> bool {
        let mut rules = self.rules.lock();
        let known = rules.get(&uid);
        let was_stale = known.is_some_and(|known| known.is_status_stale);
        object.writing = known.is_some_and(|known| known.writing);
        let is_current =
            |known: &&RuleObject| !was_stale && (leads || known.written_version > object.version());
        if let Some(known) = known.filter(is_current) {
            let is_newer = object.version() > known.written_version;
            let seen = std::mem::replace(&mut object.status, known.status.clone());
            object.replaced = (is_newer && seen != object.status).then(|| Box::new(seen));
            object.written_version = known.written_version;
        }
        rules.insert(uid, object);
        was_stale
    }

    /// Whether another writer has replaced the status that this process wrote.
    pub fn is_replaced(&self, uid: &RuleUid) -> bool {
        self.with_rule(uid, |known| {
            known.is_some_and(|known| known.replaced.is_some() && !known.writing)
        })
    }

    /// Records that a write of a rule's status begins (`true`) or has ended (`false`).
    pub fn writes_rule(&self, uid: &RuleUid, writing: bool) {
        if let Some(known) = self.rules.lock().get_mut(uid) {
            known.writing = writing;
        }
    }

    /// Marks the rules of a kind as stale at the begin of a list.
    pub fn mark_rules_stale<K: RuleKind>(&self) {
        let kind = K::kind(&());
        let mut rules = self.rules.lock();
        rules
            .values_mut()
            .filter(|object| object.api.kind == kind)
            .for_each(|object| object.is_status_stale = true);
    }

    /// Stores the written status of a rule, with the version of the write. Returns whether another
    /// writer has already replaced it.
    pub fn wrote_rule(&self, uid: &RuleUid, status: RuleStatus, version: Option<String>) -> bool {
        let mut rules = self.rules.lock();
        let Some(known) = rules.get_mut(uid) else {
            return false;
        };
        known.status = status;
        known.written_version = version_number(version.as_deref());
        (known.is_status_stale, known.writing) = (false, false);
        // What was observed meanwhile was this write, or an earlier one.
        if known.version() <= known.written_version {
            known.replaced = None;
        }
        known.replaced.is_some()
    }

    /// Removes a deleted rule.
    pub fn remove_rule(&self, uid: &RuleUid) {
        self.rules.lock().remove(uid);
    }

    /// Returns a rule, if it exists.
    pub fn rule(&self, uid: &RuleUid) -> Option<RuleObject> {
        self.rules.lock().get(uid).cloned()
    }

    /// Reads a rule without copying it.
    pub fn with_rule<V>(&self, uid: &RuleUid, read: impl FnOnce(Option<&RuleObject>) -> V) -> V {
        read(self.rules.lock().get(uid))
    }

    /// Returns the namespace and name of a rule for logs, or its uid if it is unknown.
    pub fn name_of(&self, uid: &RuleUid) -> String {
        let rules = self.rules.lock();
        rules
            .get(uid)
            .map_or_else(|| uid.to_string(), RuleObject::display_name)
    }

    /// Returns the rules that are being deleted.
    pub fn deleting(&self) -> Vec<RuleUid> {
        let rules = self.rules.lock();
        rules
            .iter()
            .filter(|(_, object)| object.deleting)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// Returns the known rules of a kind that are not in `seen`.
    pub fn rules_not_in<K: RuleKind>(&self, seen: &BTreeSet<RuleUid>) -> Vec<RuleUid> {
        let kind = K::kind(&());
        let rules = self.rules.lock();
        // A rule that the API server deleted despite its finalizer is in no list.
        let known = rules
            .iter()
            .filter(|(_, object)| object.api.kind == kind && !object.is_deleted);
        let gone = known.filter(|(uid, _)| !seen.contains(*uid));
        gone.map(|(uid, _)| uid.clone()).collect()
    }

    /// Marks the objects of a kind as stale at the begin of a list.
    pub fn mark_members_stale<K: MemberObject>(&self) {
        let mut members = self.members.lock();
        let stored = K::stored(&mut members);
        stored
            .known
            .values_mut()
            .for_each(|(_, is_stale)| *is_stale = true);
        stored.deleted_uids.clear();
    }

    /// Stores an object of a member that was observed or written. Returns `false`, and changes nothing, if a
    /// later version is stored or the object was deleted.
    pub fn set_member<K: MemberObject>(&self, name: ClusterName, object: K) -> bool {
        let version = |object: &K| version_number(object.meta().resource_version.as_deref());
        let mut members = self.members.lock();
        let stored = K::stored(&mut members);
        let uid = object.meta().uid.as_ref();
        if uid.is_some_and(|uid| stored.deleted_uids.contains(uid)) {
            return false;
        }
        let known = stored.known.get(&name).filter(|(_, is_stale)| !is_stale);
        if known.is_some_and(|(known, _)| version(known) > version(&object)) {
            return false;
        }
        stored.known.insert(name, (Arc::new(object), false));
        self.member_changes.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Locks changes of members. The holder changes a member here and in the index, so that both
    /// have the same object.
    pub fn turn(&self) -> OrderedGuard<'_, ()> {
        self.turn.lock()
    }

    #[cfg(test)]
    pub(crate) fn is_in_turn(&self) -> bool {
        self.turn.is_locked()
    }

    /// Returns a version of all members, never zero. It changes with every change of a member.
    /// Callers read it before they read a member.
    pub fn members_version(&self) -> u64 {
        self.member_changes.load(Ordering::Acquire) + 1
    }

    /// Reads a member.
    pub fn with_member<V>(&self, name: &ClusterName, read: impl FnOnce(Option<&Member>) -> V) -> V {
        read(self.member(name).as_ref())
    }

    /// Returns the other member that has the cluster with this uid.
    pub fn holder(&self, member: &MemberCluster, cluster_uid: &str) -> Option<ClusterName> {
        let members = self.members.lock();
        let mut others = members.clusters.known.iter();
        let first = others.find(|(_, (other, _))| {
            !cluster_uid.is_empty() && holds_cluster(other, member, cluster_uid)
        });
        first.map(|(name, _)| name.clone())
    }

    /// Reads each member.
    pub fn each_member(&self, read: impl FnMut(Member)) {
        let names = self.members().into_iter();
        names.filter_map(|name| self.member(&name)).for_each(read);
    }

    /// Removes a deleted object of a member. An earlier version of it is not stored again before the next list.
    pub fn remove_member<K: MemberObject>(&self, name: &ClusterName) {
        let mut members = self.members.lock();
        let stored = K::stored(&mut members);
        let gone = stored.known.remove(name);
        stored
            .deleted_uids
            .extend(gone.and_then(|(object, _)| object.meta().uid.clone()));
        let surplus = stored.deleted_uids.len().saturating_sub(DELETED_UIDS_LIMIT);
        stored.deleted_uids.drain(..surplus);
        self.member_changes.fetch_add(1, Ordering::AcqRel);
    }

    /// Returns the uid of a stored object.
    pub fn uid_of<K: MemberObject>(&self, name: &ClusterName) -> Option<String> {
        let mut members = self.members.lock();
        let (object, _) = K::stored(&mut members).known.get(name)?;
        object.meta().uid.clone()
    }

    /// Locks the members that are absent or terminating.
    pub fn departures(&self) -> OrderedGuard<'_, Departures> {
        self.departures.lock()
    }

    /// Returns the number of known members.
    pub fn member_count(&self) -> usize {
        self.members.lock().clusters.known.len()
    }

    /// Returns a member, if it exists.
    pub fn member(&self, name: &ClusterName) -> Option<Member> {
        self.members.lock().member(name)
    }

    /// Returns the names of the known members.
    pub fn members(&self) -> Vec<ClusterName> {
        let members = self.members.lock();
        members.clusters.known.keys().cloned().collect()
    }

    /// Returns the stored objects of a kind that are not in `seen`, and whether each was known before the list
    /// began.
    pub fn members_not_in<K: MemberObject>(
        &self,
        seen: &BTreeSet<ClusterName>,
    ) -> Vec<(ClusterName, bool)> {
        let mut members = self.members.lock();
        let known = K::stored(&mut members).known.iter();
        let missing = known.filter(|(name, _)| !seen.contains(*name));
        missing
            .map(|(name, (_, is_stale))| (name.clone(), *is_stale))
            .collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_api::DistributionRule;
    use serde_json::json;

    fn member(version: u32) -> MemberCluster {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
            "metadata": {"name": "eu-1", "uid": "u1", "resourceVersion": version.to_string()},
            "spec": {"accepted": true},
        });
        serde_json::from_value(object).unwrap()
    }

    fn rule(version: u32, generation: i64) -> RuleObject {
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "resourceVersion": version.to_string()},
            "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
            "status": {"observedGeneration": generation},
        });
        RuleObject::of(
            &serde_json::from_value::<DistributionRule>(object).unwrap(),
            true,
        )
    }

    #[test]
    fn later_list_wins_with_any_version() {
        let (object_cache, name) = (ObjectCache::default(), ClusterName::from("eu-1"));
        let version = object_cache.members_version();
        assert!(
            object_cache.set_member(name.clone(), member(90))
                && object_cache.members_version() > version
        );
        let version = object_cache.members_version();
        assert!(
            !object_cache.set_member(name.clone(), member(40))
                && object_cache.members_version() == version
        );
        // The API server was restored from a backup.
        object_cache.mark_members_stale::<MemberCluster>();
        assert!(object_cache.set_member(name.clone(), member(40)));
        assert!(
            !object_cache.set_member(name.clone(), member(39))
                && object_cache.set_member(name.clone(), member(41))
        );
        // An object that was observed since the list began is newer than the one in the list.
        object_cache.mark_members_stale::<MemberCluster>();
        assert!(
            object_cache.set_member(name.clone(), member(43))
                && !object_cache.set_member(name.clone(), member(42))
        );
        assert_eq!(
            object_cache.members_not_in::<MemberCluster>(&BTreeSet::new()),
            [(name.clone(), false)]
        );
        object_cache.mark_members_stale::<MemberCluster>();
        assert_eq!(
            object_cache.members_not_in::<MemberCluster>(&BTreeSet::new()),
            [(name.clone(), true)]
        );
        assert!(
            object_cache
                .members_not_in::<MemberCluster>(&[name].into())
                .is_empty()
        );
    }

    #[test]
    fn late_answer_restores_no_session() {
        let (object_cache, name) = (ObjectCache::default(), ClusterName::from("eu-1"));
        assert!(object_cache.set_member(name.clone(), member(90)));
        let version = object_cache.members_version();
        object_cache.remove_member::<MemberCluster>(&name);
        assert!(object_cache.members_version() > version);
        // The answer to an earlier write arrives now.
        assert!(
            !object_cache.set_member(name.clone(), member(91))
                && object_cache.member(&name).is_none()
        );
        let mut relist = member(92);
        relist.metadata.uid = Some("u2".to_owned());
        assert!(object_cache.set_member(name.clone(), relist));
        assert!(!object_cache.set_member(name.clone(), member(93)));
        // A restore from a backup may have created it again.
        object_cache.mark_members_stale::<MemberCluster>();
        assert!(object_cache.set_member(name.clone(), member(40)));
    }

    #[test]
    fn rule_is_written_at_the_version_of_a_later_list() {
        let (object_cache, uid) = (ObjectCache::default(), RuleUid::from("r"));
        object_cache.set_rule(uid.clone(), rule(80, 3), true);
        let status = rule(90, 5).status;
        object_cache.wrote_rule(&uid, status, Some("90".to_owned()));
        // The watch lags behind the write.
        assert!(!object_cache.set_rule(uid.clone(), rule(85, 4), true));
        let known = object_cache.rule(&uid).unwrap();
        assert_eq!(
            (
                known.newest_version().as_deref(),
                known.status.observed_generation
            ),
            (Some("90"), Some(5))
        );
        object_cache.mark_rules_stale::<DistributionRule>();
        assert!(object_cache.set_rule(uid.clone(), rule(40, 2), true));
        let known = object_cache.rule(&uid).unwrap();
        assert_eq!(
            (
                known.newest_version().as_deref(),
                known.status.observed_generation
            ),
            (Some("40"), Some(2))
        );
    }

    #[test]
    fn status_replaced_by_others_is_noticed_by_the_leader() {
        let (object_cache, uid) = (ObjectCache::default(), RuleUid::from("r"));
        object_cache.set_rule(uid.clone(), rule(80, 3), true);
        object_cache.set_rule(uid.clone(), rule(81, 99), true);
        assert!(
            object_cache.is_replaced(&uid)
                && object_cache.rule(&uid).unwrap().status.observed_generation == Some(3)
        );
        let written = |version: u32, generation| {
            (rule(version, generation).status, Some(version.to_string()))
        };
        // The watch delivers the write before its answer is read.
        object_cache.writes_rule(&uid, true);
        object_cache.set_rule(uid.clone(), rule(90, 5), true);
        assert!(!object_cache.is_replaced(&uid));
        let (status, version) = written(90, 5);
        assert!(!object_cache.wrote_rule(&uid, status, version) && !object_cache.is_replaced(&uid));
        // An edit of the spec keeps the written status, a patch of the status replaces it.
        object_cache.set_rule(uid.clone(), rule(91, 5), true);
        assert!(!object_cache.is_replaced(&uid));
        object_cache.set_rule(uid.clone(), rule(92, 99), true);
        let known = object_cache.rule(&uid).unwrap();
        assert!(object_cache.is_replaced(&uid) && known.status.observed_generation == Some(5));
        assert_eq!(known.newest_version().as_deref(), Some("92"));
        // The status is written again, then replaced while a write is in flight.
        let (status, version) = written(93, 5);
        assert!(!object_cache.wrote_rule(&uid, status, version) && !object_cache.is_replaced(&uid));
        object_cache.writes_rule(&uid, true);
        object_cache.set_rule(uid.clone(), rule(95, 99), true);
        let (status, version) = written(94, 6);
        assert!(
            !object_cache.is_replaced(&uid)
                && object_cache.wrote_rule(&uid, status, version)
                && object_cache.is_replaced(&uid)
        );
        // A process that does not lead stores the received status.
        object_cache.set_rule(uid.clone(), rule(96, 7), false);
        assert!(
            !object_cache.is_replaced(&uid)
                && object_cache.rule(&uid).unwrap().status.observed_generation == Some(7)
        );
    }
}
