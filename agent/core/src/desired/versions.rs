//! Versions: each content has a copy name of its own, and older copies stay for a while.
//!
//! For the hub this is a rename: it removes the intent with the old name, sends one with the new
//! name, and keeps no former payload. The agent does not carry out such a removal at once. The copy
//! stays unchanged as an *older version* while two conditions hold: it is among the newest
//! `versions` of its source in its namespace, and an intent of that source is wanted there. An
//! older version is not created in other namespaces, not corrected and not reported.
//!
//! Everything that must outlive a restart is part of the copies. `runnel.dev/version` is a number
//! that grows each time a content becomes the newest, even if it was the newest before.
//! `runnel.dev/newest` marks the newest one. After a restart the copy with the highest number is
//! the current one, and the others are its older versions.
use std::collections::BTreeSet;

use runnel_proto::model::{DeletionPolicy, SourceRef};

use super::{Desired, OrderSource, Owners};
use crate::copy::IntentKey;
use crate::live::Live;
use crate::records::Records;

impl Owners<'_> {
    /// Whether a copy with an ordered removal stays as an older version. Nothing is removed while
    /// no newer one is in force, or by unconfirmed terms.
    pub fn keeps_older_version(self, key: &IntentKey, copy: &SourceRef, records: &Records) -> bool {
        let Some(rule) = self.rules.get(&key.rule).filter(|rule| !rule.leaving) else {
            return false;
        };
        let (Some(keep), Some(live)) = (rule.versions(), records.live(copy)) else {
            return false;
        };
        let holds = |live: &Live| {
            live.sealed
                .as_ref()
                .is_some_and(|sealed| sealed.source == key.source)
        };
        if live.number == 0 || !holds(live) {
            return false;
        }
        let wanted = |source: &&SourceRef| {
            let (copy, key) = (
                source.copy_in(&copy.namespace),
                IntentKey {
                    source: (*source).clone(),
                    ..key.clone()
                },
            );
            self.copies.is_claimed_by(&key, &copy)
        };
        let newest: BTreeSet<_> = rule.other_versions(key).filter(wanted).collect();
        let waits = newest.iter().any(|source| {
            rule.intents
                .get(source)
                .is_none_or(|intent| intent.in_force.is_none())
        });
        let newer = records
            .versions(key, &copy.namespace)
            .filter(|(other, _, version)| {
                !newest.contains(&other.source)
                    && (version.number, &other.source) > (live.number, &key.source)
            });
        !newest.is_empty() && (waits || rule.unconfirmed || newer.count() + 1 < keep)
    }

    /// Returns the minimum version number of an intent's copy; `None` without versions. While the
    /// rule has two intents of the source, existing copies do not compete for the newest version.
    pub fn version(self, key: &IntentKey, copy: &SourceRef, records: &Records) -> Option<u64> {
        let rule = self.rules.get(&key.rule)?;
        rule.versions().filter(|_| key.source.is_version())?;
        let stands = records.live(copy).is_some_and(|live| live.number > 0);
        if stands && rule.other_versions(key).next().is_some() {
            return None;
        }
        let others = records
            .versions(key, &copy.namespace)
            .filter(|(other, ..)| other.source != key.source);
        Some(
            others
                .map(|(_, _, live)| live.number)
                .max()
                .unwrap_or_default()
                .saturating_add(1),
        )
    }

    /// Returns the order for a copy of a deleted intent. If the rule has another version of the
    /// source, that is an edit.
    pub(super) fn order_for(
        self,
        key: &IntentKey,
        copy: &SourceRef,
        policy: DeletionPolicy,
    ) -> OrderSource {
        let mut rule = self
            .rules
            .get(&key.rule)
            .into_iter()
            .filter(|rule| rule.versions().is_some() && !rule.leaving);
        if rule.any(|rule| rule.other_versions(key).next().is_some()) {
            self.version_order(key, copy, policy)
        } else {
            OrderSource::by_message(policy)
        }
    }

    /// Returns the order for a copy that is not the newest version: it is removed by order of the
    /// hub only if it has a successor in its namespace.
    fn version_order(
        self,
        key: &IntentKey,
        copy: &SourceRef,
        policy: DeletionPolicy,
    ) -> OrderSource {
        let by_message = OrderSource::by_message(policy);
        let Some(rule) = self.rules.get(&key.rule) else {
            return by_message;
        };
        let goes = self
            .copies
            .order_of(key, copy)
            .is_some_and(|known| !known.needs_approval());
        let has_place = || match &rule.terms {
            Some((terms, _)) if terms.namespaces.is_some() => {
                rule.targets.contains(&copy.namespace)
            }
            _ => key.source.namespace == copy.namespace,
        };
        let granted = || {
            rule.terms
                .as_ref()
                .is_some_and(|(terms, _)| self.cluster.is_granted(terms, copy))
        };
        let stays = has_place() && granted();
        OrderSource {
            namespace_prunes: !(goes || stays),
            ..by_message
        }
    }
}

impl Desired {
    /// Orders the removal of other live versions without an intent. Versions to keep are deferred.
    /// If the rule has no intent of the source any more, they are removed with the last one.
    pub(super) fn order_versions(
        &mut self,
        key: &IntentKey,
        policy: DeletionPolicy,
        records: &Records,
        to_reconcile: &mut BTreeSet<SourceRef>,
    ) {
        let Some(rule) = self
            .rules
            .get(&key.rule)
            .filter(|rule| rule.versions().is_some())
        else {
            return;
        };
        let live = rule
            .targets
            .iter()
            .chain([&key.source.namespace])
            .flat_map(|name| records.versions(key, name));
        let left =
            |one: &IntentKey| one.source != key.source && !rule.intents.contains_key(&one.source);
        let older: Vec<_> = live
            .filter(|(one, _, live)| left(one) && live.number > 0)
            .map(|(one, copy, _)| (one.clone(), copy.clone()))
            .collect();
        let rest = rule
            .other_versions(key)
            .flat_map(|source| self.cluster.copies_of(rule, source));
        to_reconcile.extend(rest);
        for (one, copy) in older {
            self.order(&one, &copy, self.owners().order_for(&one, &copy, policy));
            to_reconcile.insert(copy);
        }
    }

    /// Older versions beside a copy are removed with it when its namespace is no longer a target.
    pub(super) fn order_other_versions(
        &mut self,
        key: &IntentKey,
        copy: &SourceRef,
        order: OrderSource,
        records: &Records,
    ) {
        let Some(rule) = self
            .rules
            .get(&key.rule)
            .filter(|rule| rule.versions().is_some())
        else {
            return;
        };
        let left =
            |one: &IntentKey| one.source != key.source && !rule.intents.contains_key(&one.source);
        let older: Vec<_> = records
            .versions(key, &copy.namespace)
            .filter(|(one, _, live)| left(one) && live.number > 0)
            .map(|(one, copy, _)| (one.clone(), copy.clone()))
            .collect();
        for (one, copy) in older {
            self.order(&one, &copy, order);
        }
    }

    /// A copy is selected again. Older versions beside it waited because their namespace was no
    /// longer a target. It is a target again, and the number of versions to keep decides about
    /// them.
    pub(super) fn restore_versions(&mut self, key: &IntentKey, copy: &SourceRef) {
        let Some(rule) = self
            .rules
            .get(&key.rule)
            .filter(|rule| rule.versions().is_some())
        else {
            return;
        };
        let plain = key.source.plain();
        let first = SourceRef::new(&copy.resource, &copy.namespace, "");
        let here = |other: &&SourceRef| {
            other.resource == copy.resource && other.namespace == copy.namespace
        };
        for beside in rule.orders.range(first..).take_while(here) {
            for (other, order) in self.copies.orders_mut(beside) {
                if other.rule == key.rule && other.source.plain() == plain {
                    order.namespace_prunes = false;
                }
            }
        }
    }

    /// After a restart: whether a copy's mark names an older version. If it names a newer version
    /// than the intent in force, that intent is dropped.
    pub(super) fn is_older_version(
        &mut self,
        key: &IntentKey,
        records: &Records,
        to_reconcile: &mut BTreeSet<SourceRef>,
    ) -> bool {
        let Some(rule) = self.rules.get(&key.rule) else {
            return false;
        };
        let (Some((terms, _)), Some(_)) = (rule.terms.clone(), rule.versions()) else {
            return false;
        };
        // Copies from before versions were enabled are removed only by order of the hub.
        if !key.source.is_version() {
            return false;
        }
        let number = |key: &IntentKey| {
            records
                .marked_copies(key)
                .map(|(_, live)| live.number)
                .max()
                .unwrap_or_default()
        };
        let beside: Vec<_> = rule
            .other_versions(key)
            .map(|source| IntentKey {
                source: source.clone(),
                ..key.clone()
            })
            .collect();
        let message = |other: &IntentKey| {
            rule.intents
                .get(&other.source)
                .is_some_and(|intent| !intent.restored)
        };
        let newer = beside
            .iter()
            .any(|other| message(other) || number(other) > number(key));
        let older = if newer { vec![key.clone()] } else { beside };
        for older in older {
            for copy in self.owners().copies_of_intent(&older) {
                self.unclaim(&older, &copy);
                to_reconcile.insert(copy);
            }
            self.rules.set_intent(&older, None);
            for (copy, _) in records.marked_copies(&older) {
                self.order(
                    &older,
                    copy,
                    self.owners()
                        .version_order(&older, copy, terms.deletion_policy),
                );
                to_reconcile.insert(copy.clone());
            }
        }
        newer
    }
}
