//! Changes of the namespaces of the member cluster, and of the rules' targets with them.
use std::collections::BTreeSet;
use std::sync::Arc;

use runnel_proto::model::{Grant, KINDS, NamespaceChoice, RuleUid, SourceRef, Terms};

use super::{Desired, Namespace};
use crate::copy::IntentKey;
use crate::records::Records;

impl Desired {
    /// Sets a namespace (`None`: it is deleted), and returns the copies to reconcile.
    pub fn set_namespace(
        &mut self,
        name: &str,
        now: Option<Namespace>,
        records: &Records,
    ) -> BTreeSet<SourceRef> {
        let name: Arc<str> = name.into();
        let stays = now.as_ref().is_some_and(|namespace| !namespace.terminating);
        let before = self.cluster.put_namespace(&name, now.clone());
        if before == now {
            return BTreeSet::new();
        }
        // A deleted namespace deletes its copies: orders there are done.
        if before.is_some() && !stays {
            for copy in self.copies.ordered_in(&name).cloned().collect::<Vec<_>>() {
                self.drop_orders(&copy);
            }
        }
        let mut looks = BTreeSet::new();
        for uid in self.rules.broad().cloned().collect::<Vec<_>>() {
            self.retarget(&uid, &name, records, &mut looks);
        }
        looks.extend(self.copies.in_namespace(&name).cloned());
        for kind in KINDS {
            looks.extend(records.names(kind.resource, Some(&name)).cloned());
        }
        looks
    }

    /// Adds or removes one target namespace of a rule, by its choice and its grants.
    fn retarget(
        &mut self,
        uid: &RuleUid,
        name: &Arc<str>,
        records: &Records,
        looks: &mut BTreeSet<SourceRef>,
    ) {
        let Some((terms, _)) = self.rules.get(uid).and_then(|rule| rule.terms.clone()) else {
            return;
        };
        let is_target = terms
            .namespaces
            .as_ref()
            .is_some_and(|choice| self.cluster.is_target(choice, name));
        let Some(rule) = self.rules.get_mut(uid) else {
            return;
        };
        let changed = if is_target {
            rule.targets.insert(name.clone())
        } else {
            rule.targets.remove(name)
        };
        if !changed && terms.grants.is_none() {
            return;
        }
        let known = rule
            .intents
            .iter()
            .filter(|(_, intent)| !intent.found)
            .map(|(source, _)| source);
        let sources: Vec<_> = known.cloned().collect();
        for source in sources
            .into_iter()
            .filter(|source| terms.namespaces.is_some() || source.namespace == *name)
        {
            let copy = source.copy_in(name);
            let wants = is_target || terms.namespaces.is_none();
            let wanted = wants
                && self.cluster.is_granted(&terms, &copy)
                && !self.cluster.is_source_of(&copy, &source);
            let key = IntentKey {
                rule: uid.clone(),
                source,
            };
            let was_wanted = self.copies.is_claimed_by(&key, &copy);
            if wanted == was_wanted {
                continue;
            }
            if wanted {
                self.claim(&key, &copy);
            } else {
                self.unclaim(&key, &copy);
                self.order_orphan(&key, &copy, &BTreeSet::new(), records);
            }
            looks.insert(copy);
        }
    }
}

/// Whether it depends on which namespaces there are where a rule has copies.
pub(super) fn is_broad(terms: &Terms) -> bool {
    let chosen = |choice: &NamespaceChoice| {
        choice.selector.is_some() || choice.names.iter().any(|n| !n.is_literal())
    };
    let granted = terms.grants.iter().flatten().any(Grant::has_selector);
    granted || terms.namespaces.as_ref().is_some_and(chosen)
}
