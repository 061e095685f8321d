//! The watches of the two kinds of rules.
use std::collections::BTreeSet;
use std::fmt::Debug;
use std::sync::Arc;

use futures::StreamExt;
use kube::runtime::watcher::Event;
use kube::{Client, Resource, ResourceExt};
use runnel_proto::model::RuleUid;
use serde::de::DeserializeOwned;

use super::{Anew, own_events, refusal};
use crate::crd::{self, FINALIZER, RuleStatus};
use crate::plan::Rule;
use crate::rounds::Watched;
use crate::shared::Shared;
use crate::writer::{Book, RuleObject};

/// One of the two kinds of rules.
pub trait RuleKind: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + Sync + 'static {
    /// The kind's plural.
    const RESOURCE: &'static str;
    /// Reads the rule; `None` for an object that no API server gives out.
    fn rule(&self, runnel_namespace: &str) -> Option<Rule>;
    /// Its status, if it has one.
    fn current_status(&self) -> RuleStatus;
}

impl RuleKind for crd::DistributionRule {
    const RESOURCE: &'static str = "distributionrules";

    fn rule(&self, runnel_namespace: &str) -> Option<Rule> {
        Rule::namespaced(self, runnel_namespace)
    }

    fn current_status(&self) -> RuleStatus {
        self.status.clone().unwrap_or_default()
    }
}

impl RuleKind for crd::ClusterDistributionRule {
    const RESOURCE: &'static str = "clusterdistributionrules";

    fn rule(&self, runnel_namespace: &str) -> Option<Rule> {
        Rule::cluster_scoped(self, runnel_namespace)
    }

    fn current_status(&self) -> RuleStatus {
        self.status.clone().unwrap_or_default()
    }
}

/// Watches one kind of rules for ever. `listed` is called at each complete list.
///
/// A rule counts only once it carries the finalizer, so that none of its copies can outlive it unnoticed; the writer
/// sets it.
pub async fn watch_rules<K: RuleKind>(client: Client, shared: Arc<Shared>, book: Arc<Book>, listed: impl Fn() + Send) {
    let mut events = Anew::new(shared.rounds.subscribe(), move || own_events::<K>(client.clone()).boxed());
    let mut seen = BTreeSet::new();
    loop {
        let Some(event) = events.next().await else { continue };
        match event {
            Ok(Event::Init) => {
                seen.clear();
                book.doubt_rules::<K>();
            }
            Ok(Event::InitApply(object)) => {
                seen.extend(object.uid().map(RuleUid::from));
                take_in(&object, &shared, &book);
            }
            Ok(Event::InitDone) => {
                for uid in book.rules_not_in::<K>(&seen) {
                    forget(&uid, &shared, &book);
                }
                shared.rounds.done(Watched::Own(K::RESOURCE), events.round);
                listed();
            }
            Ok(Event::Apply(object)) => take_in(&object, &shared, &book),
            Ok(Event::Delete(object)) => {
                if let Some(uid) = object.uid() {
                    forget(&uid.into(), &shared, &book);
                }
            }
            Err(error) => complain::<K>(&error),
        }
    }
}

fn complain<K: RuleKind>(error: &kube::runtime::watcher::Error) {
    let resource = K::plural(&());
    match refusal(error, "give the hub get, list and watch on it") {
        Some(why) => tracing::error!(
            resource = %resource,
            "cannot watch {resource}: {why}; install the CRDs with `runnel-hub crds | kubectl apply --server-side -f -` and check the hub's rights. Trying again"
        ),
        None => tracing::warn!(%resource, %error, "the watch of rules broke; trying again"),
    }
}

fn take_in<K: RuleKind>(object: &K, shared: &Shared, book: &Book) {
    let Some(rule) = object.rule(&shared.settings.namespace) else { return };
    let uid = rule.uid.clone();
    let has_finalizer = object.finalizers().iter().any(|finalizer| finalizer == FINALIZER);
    let doubted = book.set_rule(uid.clone(), RuleObject::of(object, has_finalizer));
    let said = |rule: &Rule| (rule.generation, rule.deleting, rule.removal.clone());
    let known = shared.index.read().rule(&uid).map(|entry| said(&entry.rule));
    // Most events of a rule are our own writes of its status, and change nothing that it says.
    let (news, is_known) = (doubted || known != Some(said(&rule)), known.is_some());
    let is_planned =
        known.is_some_and(|(generation, deleting, _)| (generation, deleting) == (rule.generation, rule.deleting));
    if news && is_planned && !doubted {
        shared.change(|index| index.set_removal(&uid, rule.removal));
    } else if (has_finalizer || is_known) && news {
        let places = rule.places(shared.index.read().scope());
        shared.need(places);
        shared.change(|index| index.set_rule(rule));
    }
    if !has_finalizer {
        shared.dirty_rules.add([uid]);
    }
}

fn forget(uid: &RuleUid, shared: &Shared, book: &Book) {
    book.remove_rule(uid);
    shared.change(|index| index.remove_rule(uid));
    // Members that hold copies of it say so in their status.
    shared.mark_members();
}
