//! The objects that the writer writes, as they were last observed or written.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Instant;

use k8s_openapi::api::core::v1::ObjectReference;
use kube::api::ApiResource;
use kube::{Resource, ResourceExt};
use parking_lot::{Mutex, MutexGuard};
use runnel_proto::model::{ClusterName, RuleUid};

use crate::ordered_lock::{MEMBER_UPDATE, Ordered, OrderedMutex};
use runnel_api::{MemberCluster, RuleStatus};
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
    /// Reads the rule; `None` for an object that no API server gives out.
    fn rule(&self, runnel_namespace: &str) -> Option<Rule>;
    /// Its status, if it has one.
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

/// How many members that are gone are remembered: more than go while an answer is under way.
const GONE: usize = 4096;

/// A rule's object.
#[derive(Clone)]
pub struct RuleObject {
    /// How the API server calls its kind.
    pub api: ApiResource,
    /// Its namespace; none for a cluster-scoped rule.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its status: what this process wrote last, or found when it took the lead; without the lead, what was seen.
    pub status: RuleStatus,
    /// The status was overwritten by another writer, and must be written again.
    pub replaced: Option<Box<RuleStatus>>,
    /// Whether it carries Runnel's finalizer.
    pub has_finalizer: bool,
    /// All its finalizers.
    pub finalizers: Vec<String>,
    /// Whether it is being deleted, and since when (Unix seconds).
    pub deleting: bool,
    /// When its deletion was asked for.
    pub deleted_at: Option<jiff::Timestamp>,
    /// When this process first saw it with the finalizer, if it saw it without before.
    pub finalizer_seen: Option<Instant>,
    /// The API server has deleted it though it carries the finalizer: only what it leaves in the clusters is still there.
    pub is_gone: bool,
    /// The version that was seen.
    pub resource_version: Option<String>,
    /// The version that the last write of the status gave.
    written_version: u64,
    /// Whether a write of the status is under way: what is seen meanwhile may be that write.
    writing: bool,
    /// Whether it was seen and written before the list that is under way.
    doubtful: bool,
    /// For Events.
    pub reference: ObjectReference,
}

impl RuleObject {
    /// What the writer needs of an object.
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
            deleted_at,
            finalizer_seen: None,
            is_gone: false,
            resource_version: object.resource_version(),
            replaced: None,
            written_version: 0,
            writing: false,
            doubtful: false,
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

/// A member's object.
struct MemberObject {
    /// Shared with its readers, which read each object every few seconds.
    object: Arc<MemberCluster>,
    /// Whether it was seen before the list that is under way.
    doubtful: bool,
}

/// The objects that the writer writes about.
///
/// A list returns what exists now, independent of the versions that were seen before: after a
/// restore of etcd versions are lower. So the state at the begin of a list is stale, and every
/// later object replaces it.
#[derive(Default)]
pub struct ObjectCache {
    rules: Mutex<BTreeMap<RuleUid, RuleObject>>,
    members: Mutex<BTreeMap<ClusterName, MemberObject>>,
    /// How often a member has changed.
    member_changes: AtomicU64,
    /// The uids of members that are gone, the newest last: the answer to a read or a write of before may still be under way.
    gone: Mutex<VecDeque<String>>,
    turn: OrderedMutex<(), MEMBER_UPDATE>,
}

impl ObjectCache {
    /// Stores a rule that a watch delivered. A status that was written after this version is kept.
    /// While this process `leads`, no other process writes statuses, so its own status is always
    /// kept. Returns whether the former state was stale.
    pub fn set_rule(&self, uid: RuleUid, mut object: RuleObject, leads: bool) -> bool {
        let mut rules = self.rules.lock();
        let known = rules.get(&uid);
        let doubtful = known.is_some_and(|known| known.doubtful);
        object.writing = known.is_some_and(|known| known.writing);
        let stands =
            |known: &&RuleObject| !doubtful && (leads || known.written_version > object.version());
        if let Some(known) = known.filter(stands) {
            let is_newer = object.version() > known.written_version;
            let seen = std::mem::replace(&mut object.status, known.status.clone());
            object.replaced = (is_newer && seen != object.status).then(|| Box::new(seen));
            object.written_version = known.written_version;
        }
        rules.insert(uid, object);
        doubtful
    }

    /// Whether another writer has replaced the status that this process wrote.
    pub fn is_replaced(&self, uid: &RuleUid) -> bool {
        self.with_rule(uid, |known| {
            known.is_some_and(|known| known.replaced.is_some() && !known.writing)
        })
    }

    /// A write of a rule's status begins, or has failed.
    pub fn writes_rule(&self, uid: &RuleUid, writing: bool) {
        if let Some(known) = self.rules.lock().get_mut(uid) {
            known.writing = writing;
        }
    }

    /// A list of the rules of a kind begins.
    pub fn mark_rules_stale<K: RuleKind>(&self) {
        let kind = K::kind(&());
        let mut rules = self.rules.lock();
        rules
            .values_mut()
            .filter(|object| object.api.kind == kind)
            .for_each(|object| object.doubtful = true);
    }

    /// Stores the written status of a rule, with the version of the write. Returns whether another
    /// writer has replaced it already.
    pub fn wrote_rule(&self, uid: &RuleUid, status: RuleStatus, version: Option<String>) -> bool {
        let mut rules = self.rules.lock();
        let Some(known) = rules.get_mut(uid) else {
            return false;
        };
        known.status = status;
        known.written_version = version_number(version.as_deref());
        (known.doubtful, known.writing) = (false, false);
        // What was seen meanwhile was this write, or one before it.
        if known.version() <= known.written_version {
            known.replaced = None;
        }
        known.replaced.is_some()
    }

    /// A rule is gone.
    pub fn remove_rule(&self, uid: &RuleUid) {
        self.rules.lock().remove(uid);
    }

    /// A rule, if it is there.
    pub fn rule(&self, uid: &RuleUid) -> Option<RuleObject> {
        self.rules.lock().get(uid).cloned()
    }

    /// Reads a rule without copying it.
    pub fn with_rule<V>(&self, uid: &RuleUid, look: impl FnOnce(Option<&RuleObject>) -> V) -> V {
        look(self.rules.lock().get(uid))
    }

    /// How a rule is called, for logs.
    pub fn name_of(&self, uid: &RuleUid) -> String {
        let rules = self.rules.lock();
        rules.get(uid).map_or_else(
            || uid.to_string(),
            |object| match &object.namespace {
                Some(namespace) => format!("{namespace}/{}", object.name),
                None => object.name.clone(),
            },
        )
    }

    /// The rules that are being deleted.
    pub fn deleting(&self) -> Vec<RuleUid> {
        let rules = self.rules.lock();
        rules
            .iter()
            .filter(|(_, object)| object.deleting)
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    /// The known rules of a kind that are not among these.
    pub fn rules_not_in<K: RuleKind>(&self, seen: &BTreeSet<RuleUid>) -> Vec<RuleUid> {
        let kind = K::kind(&());
        let rules = self.rules.lock();
        // A list does not contain an object that was deleted.
        let known = rules
            .iter()
            .filter(|(_, object)| object.api.kind == kind && !object.is_gone);
        let gone = known.filter(|(uid, _)| !seen.contains(*uid));
        gone.map(|(uid, _)| uid.clone()).collect()
    }

    /// A list of the members begins.
    pub fn mark_members_stale(&self) {
        self.members
            .lock()
            .values_mut()
            .for_each(|known| known.doubtful = true);
        self.gone.lock().clear();
    }

    /// Stores a member that was seen or written. Returns false, and changes nothing, if a later
    /// version or the deletion is certain.
    pub fn set_member(&self, name: ClusterName, object: MemberCluster) -> bool {
        let version =
            |object: &MemberCluster| version_number(object.metadata.resource_version.as_deref());
        let mut members = self.members.lock();
        if object
            .metadata
            .uid
            .as_ref()
            .is_some_and(|uid| self.gone.lock().contains(uid))
        {
            return false;
        }
        let known = members.get(&name).filter(|known| !known.doubtful);
        if known.is_some_and(|known| version(&known.object) > version(&object)) {
            return false;
        }
        members.insert(
            name,
            MemberObject {
                object: Arc::new(object),
                doubtful: false,
            },
        );
        self.member_changes.fetch_add(1, Ordering::AcqRel);
        true
    }

    /// Held while a member is changed here and in the index, so that both have the same object.
    pub fn turn(&self) -> Ordered<MutexGuard<'_, ()>> {
        self.turn.lock()
    }

    #[cfg(test)]
    pub(crate) fn is_in_turn(&self) -> bool {
        self.turn.is_locked()
    }

    /// Names what the members are; never zero. As long as it is the same, each is as it was. Ask before looking at one.
    pub fn members_version(&self) -> u64 {
        self.member_changes.load(Ordering::Acquire) + 1
    }

    /// Reads a member without copying it.
    pub fn with_member<V>(
        &self,
        name: &ClusterName,
        look: impl FnOnce(Option<&MemberCluster>) -> V,
    ) -> V {
        look(self.members.lock().get(name).map(|known| &*known.object))
    }

    /// Reads each member.
    pub fn each_member(&self, look: impl FnMut(&MemberCluster)) {
        self.members
            .lock()
            .values()
            .map(|known| &*known.object)
            .for_each(look);
    }

    /// A member is gone, and does not come back before the next list.
    pub fn remove_member(&self, name: &ClusterName) {
        let mut members = self.members.lock();
        let uid = members
            .remove(name)
            .and_then(|known| known.object.metadata.uid.clone());
        self.member_changes.fetch_add(1, Ordering::AcqRel);
        let mut gone = self.gone.lock();
        gone.extend(uid);
        let surplus = gone.len().saturating_sub(GONE);
        gone.drain(..surplus);
    }

    /// A member, if it is there.
    pub fn member(&self, name: &ClusterName) -> Option<Arc<MemberCluster>> {
        self.members
            .lock()
            .get(name)
            .map(|known| known.object.clone())
    }

    /// The known members.
    pub fn members(&self) -> Vec<ClusterName> {
        self.members.lock().keys().cloned().collect()
    }

    /// The known members that a list did not name, and whether they were known before it began.
    pub fn members_not_in(&self, seen: &BTreeSet<ClusterName>) -> Vec<(ClusterName, bool)> {
        let members = self.members.lock();
        let missing = members.iter().filter(|(name, _)| !seen.contains(*name));
        missing
            .map(|(name, known)| (name.clone(), known.doubtful))
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
    fn later_list_wins_whatever_its_versions() {
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
        object_cache.mark_members_stale();
        assert!(object_cache.set_member(name.clone(), member(40)));
        assert!(
            !object_cache.set_member(name.clone(), member(39))
                && object_cache.set_member(name.clone(), member(41))
        );
        // What was taken in since the list began is newer than what it shows.
        object_cache.mark_members_stale();
        assert!(
            object_cache.set_member(name.clone(), member(43))
                && !object_cache.set_member(name.clone(), member(42))
        );
        assert_eq!(
            object_cache.members_not_in(&BTreeSet::new()),
            [(name.clone(), false)]
        );
        object_cache.mark_members_stale();
        assert_eq!(
            object_cache.members_not_in(&BTreeSet::new()),
            [(name.clone(), true)]
        );
        assert!(object_cache.members_not_in(&[name].into()).is_empty());
    }

    #[test]
    fn late_answer_restores_no_session() {
        let (object_cache, name) = (ObjectCache::default(), ClusterName::from("eu-1"));
        assert!(object_cache.set_member(name.clone(), member(90)));
        let version = object_cache.members_version();
        object_cache.remove_member(&name);
        assert!(object_cache.members_version() > version);
        // The answer of an earlier write arrives now.
        assert!(
            !object_cache.set_member(name.clone(), member(91))
                && object_cache.member(&name).is_none()
        );
        let mut relist = member(92);
        relist.metadata.uid = Some("u2".to_owned());
        assert!(object_cache.set_member(name.clone(), relist));
        assert!(!object_cache.set_member(name.clone(), member(93)));
        // A backup may have brought it back.
        object_cache.mark_members_stale();
        assert!(object_cache.set_member(name.clone(), member(40)));
    }

    #[test]
    fn rule_is_written_at_the_version_of_a_later_list() {
        let (object_cache, uid) = (ObjectCache::default(), RuleUid::from("r"));
        object_cache.set_rule(uid.clone(), rule(80, 3), true);
        let status = rule(90, 5).status;
        object_cache.wrote_rule(&uid, status, Some("90".to_owned()));
        // The watch is behind the write.
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
        // The watch shows the write before its answer is read.
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
        // Written again; then replaced while a write is under way.
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
        // A process that does not lead stores what it receives.
        object_cache.set_rule(uid.clone(), rule(96, 7), false);
        assert!(
            !object_cache.is_replaced(&uid)
                && object_cache.rule(&uid).unwrap().status.observed_generation == Some(7)
        );
    }
}
