//! The objects that the writer writes about, as they were last seen or written.
use std::collections::{BTreeMap, BTreeSet};

use k8s_openapi::api::core::v1::ObjectReference;
use kube::ResourceExt;
use kube::api::ApiResource;
use parking_lot::Mutex;
use runnel_proto::model::{ClusterName, RuleUid};

use crate::crd::{MemberCluster, RuleStatus};
use crate::index::version_number;
use crate::watch::RuleKind;

/// A rule's object.
#[derive(Clone)]
pub struct RuleObject {
    /// How the API server calls its kind.
    pub api: ApiResource,
    /// Its namespace; none for a cluster-scoped rule.
    pub namespace: Option<String>,
    /// Its name.
    pub name: String,
    /// Its status.
    pub status: RuleStatus,
    /// Whether it carries Runnel's finalizer.
    pub has_finalizer: bool,
    /// All its finalizers.
    pub finalizers: Vec<String>,
    /// Whether it is being deleted, and since when (Unix seconds).
    pub deleting: bool,
    /// When its deletion was asked for.
    pub deleted_at: Option<jiff::Timestamp>,
    /// The version that was seen.
    pub resource_version: Option<String>,
    /// The version that the last write of the status gave.
    written_version: u64,
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
            resource_version: object.resource_version(),
            written_version: 0,
            reference: object.object_ref(&()),
        }
    }

    /// The newest version that is known, whose status is `status`: a write expects to find this one.
    pub fn newest_version(&self) -> Option<String> {
        match self.written_version > self.version() {
            true => Some(self.written_version.to_string()),
            false => self.resource_version.clone(),
        }
    }

    fn version(&self) -> u64 {
        version_number(self.resource_version.as_deref())
    }
}

/// The objects that the writer writes about.
#[derive(Default)]
pub struct Book {
    rules: Mutex<BTreeMap<RuleUid, RuleObject>>,
    members: Mutex<BTreeMap<ClusterName, MemberCluster>>,
}

impl Book {
    /// A rule was seen. A status that was written later than this version stands.
    pub fn set_rule(&self, uid: RuleUid, mut object: RuleObject) {
        let mut rules = self.rules.lock();
        if let Some(known) = rules.get(&uid)
            && known.written_version > object.version()
        {
            object.status = known.status.clone();
            object.written_version = known.written_version;
        }
        rules.insert(uid, object);
    }

    /// A rule's status was written; `version` is what it got.
    pub fn wrote_rule(&self, uid: &RuleUid, status: RuleStatus, version: Option<String>) {
        if let Some(known) = self.rules.lock().get_mut(uid) {
            known.status = status;
            known.written_version = version_number(version.as_deref());
        }
    }

    /// A rule is gone.
    pub fn remove_rule(&self, uid: &RuleUid) {
        self.rules.lock().remove(uid);
    }

    /// A rule, if it is there.
    pub fn rule(&self, uid: &RuleUid) -> Option<RuleObject> {
        self.rules.lock().get(uid).cloned()
    }

    /// Looks at a rule without copying it.
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
        rules.iter().filter(|(_, object)| object.deleting).map(|(uid, _)| uid.clone()).collect()
    }

    /// The known rules of a kind that are not among these.
    pub fn rules_not_in<K: RuleKind>(&self, seen: &BTreeSet<RuleUid>) -> Vec<RuleUid> {
        let kind = K::kind(&());
        let rules = self.rules.lock();
        let gone = rules.iter().filter(|(uid, object)| object.api.kind == kind && !seen.contains(*uid));
        gone.map(|(uid, _)| uid.clone()).collect()
    }

    /// A member was seen or written. Returns false, and changes nothing, if a later version is known.
    pub fn set_member(&self, name: ClusterName, object: MemberCluster) -> bool {
        let version = |object: &MemberCluster| version_number(object.metadata.resource_version.as_deref());
        let mut members = self.members.lock();
        if members.get(&name).is_some_and(|known| version(known) > version(&object)) {
            return false;
        }
        members.insert(name, object);
        true
    }

    /// Looks at a member without copying it.
    pub fn with_member<V>(&self, name: &ClusterName, look: impl FnOnce(Option<&MemberCluster>) -> V) -> V {
        look(self.members.lock().get(name))
    }

    /// Looks at each member.
    pub fn each_member(&self, look: impl FnMut(&MemberCluster)) {
        self.members.lock().values().for_each(look);
    }

    /// A member is gone.
    pub fn remove_member(&self, name: &ClusterName) {
        self.members.lock().remove(name);
    }

    /// A member, if it is there.
    pub fn member(&self, name: &ClusterName) -> Option<MemberCluster> {
        self.members.lock().get(name).cloned()
    }

    /// The known members that are not among these.
    pub fn members_not_in(&self, seen: &BTreeSet<ClusterName>) -> Vec<ClusterName> {
        self.members.lock().keys().filter(|name| !seen.contains(*name)).cloned().collect()
    }
}
