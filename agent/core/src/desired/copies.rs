//! The copies of the desired set: which intents claim each, which have ordered it to be removed,
//! which rule owns it, and what it must become.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{
    ConflictPolicy, CopyMode, DeletionPolicy, ImmutablePolicy, Reason, Revision, RuleUid,
    SourceRef, Terms, is_object_name,
};

use super::{Cluster, Desired, Rule, Rules};
use crate::copy::{CopyError, CopyStatus, IntentKey, in_namespace, of_kind};
use crate::decide::{DesiredCopy, Order, Policies, Takeover, WantedCopy};
use crate::live::{Live, Ownership};
use crate::records::Records;
use crate::small_set::SmallSet;

/// The kind of a removal, and who decided it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OrderSource {
    pub policy: DeletionPolicy,
    /// The agent computed the removal: the copy's namespace is no longer a target. The hub counts
    /// its own removals, so the agent counts these.
    pub namespace_prunes: bool,
    /// The [generation](super::Desired::generation) that must be stored first.
    pub generation: u64,
}

impl OrderSource {
    /// By a message of the hub, or by a deliberate act.
    pub fn by_message(policy: DeletionPolicy) -> Self {
        Self {
            policy,
            namespace_prunes: false,
            generation: 0,
        }
    }

    /// Whether the hub must approve the removal first. A copy that only loses its marks is not
    /// lost.
    pub fn needs_approval(self) -> bool {
        self.namespace_prunes && self.policy == DeletionPolicy::Delete
    }
}

/// The claims on copies and the orders to remove them.
#[derive(Clone, Default)]
pub struct Copies {
    claims: BTreeMap<SourceRef, SmallSet<IntentKey>>,
    orders: BTreeMap<SourceRef, BTreeMap<IntentKey, OrderSource>>,
    /// The rules whose accounts may not write a copy that other rules claim, too.
    forbidden: BTreeMap<SourceRef, BTreeSet<RuleUid>>,
}

impl Copies {
    /// Every copy that an intent claims or has ordered to be removed.
    pub fn all(&self) -> impl Iterator<Item = &SourceRef> {
        self.claims.keys().chain(self.orders.keys())
    }

    /// The copies of [`Self::all`] in a namespace.
    pub fn in_namespace(&self, name: &str) -> impl Iterator<Item = &SourceRef> {
        in_namespace(&self.claims, name).chain(self.ordered_in(name))
    }

    /// The copies in a namespace that are ordered to be removed.
    pub(super) fn ordered_in(&self, name: &str) -> impl Iterator<Item = &SourceRef> {
        in_namespace(&self.orders, name)
    }

    /// The copies that are ordered to be removed.
    pub(super) fn ordered(&self) -> impl Iterator<Item = &SourceRef> {
        self.orders.keys()
    }

    /// The copies of a kind that are ordered to be removed.
    pub fn ordered_of<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a SourceRef> {
        of_kind(&self.orders, resource)
    }

    /// The copies of [`Self::all`] of a kind.
    pub fn of_kind<'a>(&'a self, resource: &'a str) -> impl Iterator<Item = &'a SourceRef> {
        of_kind(&self.claims, resource).chain(self.ordered_of(resource))
    }

    /// Whether any intent claims a copy or has ordered its removal.
    pub fn contains(&self, copy: &SourceRef) -> bool {
        self.is_claimed(copy) || self.orders.contains_key(copy)
    }

    /// Whether any intent claims a copy.
    pub(super) fn is_claimed(&self, copy: &SourceRef) -> bool {
        self.claims.contains_key(copy)
    }

    /// Whether an intent claims a copy.
    pub(super) fn is_claimed_by(&self, key: &IntentKey, copy: &SourceRef) -> bool {
        self.claims
            .get(copy)
            .is_some_and(|claims| claims.contains(key))
    }

    /// Whether an intent claims a copy or has ordered its removal.
    pub fn concerns(&self, key: &IntentKey, copy: &SourceRef) -> bool {
        self.is_claimed_by(key, copy) || self.order_of(key, copy).is_some()
    }

    /// The intents that claim a copy.
    pub(super) fn claims(&self, copy: &SourceRef) -> impl Iterator<Item = &IntentKey> {
        self.claims.get(copy).into_iter().flatten()
    }

    /// The source of a rule that claims a copy, whether it wins or not.
    pub fn source_of(&self, uid: &RuleUid, copy: &SourceRef) -> Option<SourceRef> {
        self.claims(copy)
            .find(|key| key.rule == *uid)
            .map(|key| key.source.clone())
    }

    /// All claims, for tests.
    #[cfg(test)]
    pub(super) fn all_claims(&self) -> impl Iterator<Item = (IntentKey, SourceRef)> {
        self.claims
            .iter()
            .flat_map(|(copy, keys)| keys.iter().map(|key| (key.clone(), copy.clone())))
    }

    pub(super) fn claim(&mut self, key: &IntentKey, copy: &SourceRef) {
        self.claims
            .entry(copy.clone())
            .or_default()
            .insert(key.clone());
    }

    pub(super) fn unclaim(&mut self, key: &IntentKey, copy: &SourceRef) {
        if let Some(claims) = self.claims.get_mut(copy) {
            claims.remove(key);
            if claims.is_empty() {
                self.claims.remove(copy);
            }
        }
        if self.source_of(&key.rule, copy).is_none() {
            self.permit(copy, &key.rule);
        }
    }

    /// Records that the account of a rule may not write a copy. Where other rules claim it, they come first. A failure `again`
    /// lets each of them try once more, because their rights may have changed.
    pub fn forbid(&mut self, copy: &SourceRef, rule: &RuleUid, again: bool) {
        if self.claims(copy).all(|key| key.rule == *rule) {
            return;
        }
        let forbidden = self.forbidden.entry(copy.clone()).or_default();
        if again {
            forbidden.clear();
        }
        forbidden.insert(rule.clone());
    }

    /// Records that a rule may write a copy, or no longer claims it.
    pub fn permit(&mut self, copy: &SourceRef, rule: &RuleUid) {
        if let Some(forbidden) = self.forbidden.get_mut(copy) {
            forbidden.remove(rule);
            if forbidden.is_empty() {
                self.forbidden.remove(copy);
            }
        }
    }

    fn is_forbidden(&self, copy: &SourceRef, rule: &RuleUid) -> bool {
        let forbidden = self.forbidden.get(copy);
        forbidden.is_some_and(|rules| rules.contains(rule))
    }

    /// The orders for a copy, by intent.
    pub(super) fn orders(
        &self,
        copy: &SourceRef,
    ) -> impl Iterator<Item = (&IntentKey, OrderSource)> {
        self.orders
            .get(copy)
            .into_iter()
            .flatten()
            .map(|(key, order)| (key, *order))
    }

    /// The orders for a copy, to change them.
    pub(super) fn orders_mut(
        &mut self,
        copy: &SourceRef,
    ) -> impl Iterator<Item = (&IntentKey, &mut OrderSource)> {
        self.orders.get_mut(copy).into_iter().flatten()
    }

    /// The order of an intent for a copy.
    pub(super) fn order_of(&self, key: &IntentKey, copy: &SourceRef) -> Option<OrderSource> {
        self.orders.get(copy)?.get(key).copied()
    }

    /// Whether the hub has ordered the removal of one of these copies of an intent.
    pub(super) fn is_ordered(&self, key: &IntentKey, copies: &[SourceRef]) -> bool {
        copies.iter().any(|copy| {
            self.order_of(key, copy)
                .is_some_and(|order| !order.namespace_prunes)
        })
    }

    /// The order for a copy that counts: the one of the intent that wrote it, or the first.
    pub(super) fn order_for(
        &self,
        copy: &SourceRef,
        live: Option<&Live>,
    ) -> Option<(&IntentKey, OrderSource)> {
        let orders = self.orders.get(copy)?;
        let written_by = live.and_then(Live::intent);
        let (key, order) = written_by
            .and_then(|key| orders.get_key_value(&key))
            .or_else(|| orders.first_key_value())?;
        Some((key, *order))
    }

    /// Adds an order. Returns whether the intent had none for this copy.
    pub(super) fn order(&mut self, key: &IntentKey, copy: &SourceRef, order: OrderSource) -> bool {
        let orders = self.orders.entry(copy.clone()).or_default();
        orders.insert(key.clone(), order).is_none()
    }

    /// Drops an order. Returns whether there was one.
    pub(super) fn drop_order(&mut self, key: &IntentKey, copy: &SourceRef) -> bool {
        let Some(orders) = self.orders.get_mut(copy) else {
            return false;
        };
        let was_ordered = orders.remove(key).is_some();
        if orders.is_empty() {
            self.orders.remove(copy);
        }
        was_ordered
    }

    /// Whether the hub must approve the removal of a copy, because only its namespace is no longer
    /// a target.
    pub fn needs_approval(&self, key: &IntentKey, copy: &SourceRef) -> bool {
        self.order_of(key, copy)
            .is_some_and(OrderSource::needs_approval)
    }

    /// The generation that must be stored before a copy is removed for an intent.
    pub fn generation_of(&self, key: &IntentKey, copy: &SourceRef) -> u64 {
        self.order_of(key, copy).map_or(0, |order| order.generation)
    }

    /// The orders for a copy that no longer apply, because the live object is not theirs.
    pub fn stale_orders(&self, copy: &SourceRef, live: &Live) -> Vec<IntentKey> {
        self.orders(copy)
            .map(|(key, _)| key)
            .filter(|key| !live.is_removable_for(key))
            .cloned()
            .collect()
    }
}

impl Desired {
    /// Orders the removal of a copy, unless its namespace is deleted or terminating, or the policy
    /// has no watch for it and had none. While another rule selects the copy and can have it, the order waits
    /// for the takeover.
    pub(super) fn order(&mut self, key: &IntentKey, copy: &SourceRef, order: OrderSource) {
        if !self.cluster.has_live_namespace(&copy.namespace)
            || (self.cluster.policy.area(copy).is_none() && !self.rules.is_closed(&key.rule, copy))
            || !is_object_name(&copy.resource, &copy.name)
        {
            return;
        }
        if let Some(rule) = self.rules.get_mut(&key.rule) {
            let order = OrderSource {
                generation: self.generation,
                ..order
            };
            rule.orders.insert(copy.clone());
            if self.copies.order(key, copy, order) {
                rule.removals.ordered(&key.source);
            }
        }
    }

    /// Notes that an intent's order for a copy needs nothing more.
    pub fn resolve(&mut self, key: &IntentKey, copy: &SourceRef) {
        let was_ordered = self.copies.drop_order(key, copy);
        let others = self
            .copies
            .orders(copy)
            .any(|(other, _)| other.rule == key.rule);
        let rule = self.rules.get_mut(&key.rule).filter(|_| was_ordered);
        if rule.is_some_and(|rule| rule.removals.resolved(&key.source)) {
            self.mark_changed();
        }
        if !others {
            if let Some(rule) = self.rules.get_mut(&key.rule) {
                rule.orders.remove(copy);
            }
            self.rules.drop_if_finished(&key.rule);
        }
    }

    /// Orders the removal of a copy in a namespace that the terms of its rule no longer name, unless
    /// the rule is suspended or orphaned.
    ///
    /// The removal, and that of the older versions beside the copy, needs the hub's approval, unless
    /// the namespace was `dropped` deliberately. Unconfirmed terms order only removals that need an
    /// approval. The owner of the live object is not checked here: a write under way may make it this
    /// intent's, and [`Copies::stale_orders`] drops orders for objects of others.
    pub(super) fn order_orphan(
        &mut self,
        key: &IntentKey,
        copy: &SourceRef,
        dropped: &BTreeSet<Arc<str>>,
        records: &Records,
    ) {
        let Some(rule) = self.rules.get(&key.rule) else {
            return;
        };
        let Some((terms, _)) = rule.terms.clone() else {
            return;
        };
        // What a dry run would remove waits for the hub's approval once the rule is enforced.
        let namespace_prunes = terms.is_dry_run() || !dropped.contains(&copy.namespace);
        let order = OrderSource {
            namespace_prunes,
            ..OrderSource::by_message(terms.deletion_policy)
        };
        if terms.suspend || rule.orphaned || (rule.unconfirmed && !order.needs_approval()) {
            return;
        }
        // A removal that is ordered already continues, with the older versions beside it.
        let goes = |known: &OrderSource| !known.needs_approval() && known.policy == order.policy;
        if self
            .copies
            .order_of(key, copy)
            .as_ref()
            .is_none_or(|known| !goes(known))
        {
            self.order(key, copy, order);
            self.order_other_versions(key, copy, order, records);
        }
    }
}

/// The rules that own the copies: which rule wins each copy, and what the copy must become.
#[derive(Clone, Copy)]
pub struct Owners<'a> {
    pub(super) rules: &'a Rules,
    pub(super) copies: &'a Copies,
    pub(super) cluster: &'a Cluster,
}

impl<'a> Owners<'a> {
    /// Returns the desired state of a copy. `live`: the existing object, if it is known.
    pub fn desired_copy(self, copy: &SourceRef, live: Option<&Live>) -> DesiredCopy {
        let ordered = self.ordered(copy, live);
        let Some((key, other)) = self.winner(copy, live) else {
            return ordered;
        };
        let Some(wanted) = self.wanted_copy(copy, key, other) else {
            return ordered;
        };
        // A rule that can adopt the copy does, so that it is never missing. A rule that cannot does
        // not block it. A dry run adopts nothing.
        let idle = wanted.suspend
            || wanted.dry_run
            || wanted.is_ambiguous
            || wanted.revision.is_none()
            || wanted.denied.is_some();
        // An adopted object is first released by the rule that adopted it. The other rule finds it
        // as any foreign object.
        let adopted = live.is_some_and(|live| live.ownership == Ownership::Ours && live.adopted);
        let idle = idle
            || (adopted && matches!(&ordered, DesiredCopy::Absent(_, _, order) if !order.deferred));
        if idle && ordered != DesiredCopy::Nothing {
            ordered
        } else {
            DesiredCopy::Copy(Box::new(wanted))
        }
    }

    /// Returns the rule that wins a copy, with its terms, also while an order for the copy comes
    /// first.
    pub fn idle_winner(
        self,
        copy: &SourceRef,
        live: Option<&Live>,
    ) -> Option<(RuleUid, Option<WantedCopy>)> {
        self.winner(copy, live)
            .map(|(key, other)| (key.rule.clone(), self.wanted_copy(copy, key, other)))
    }

    /// Returns the copies that an intent selects.
    pub fn copies_of_intent(self, key: &IntentKey) -> Vec<SourceRef> {
        self.rules
            .get(&key.rule)
            .map(|rule| self.cluster.copies_of(rule, &key.source))
            .unwrap_or_default()
    }

    /// Returns every copy that a rule selects or has ordered to be removed.
    pub fn copies_of(self, uid: &RuleUid) -> impl Iterator<Item = SourceRef> + use<'a> {
        let rule = self.rules.get(uid).into_iter();
        rule.flat_map(move |rule| {
            let selected = rule.intents.keys();
            selected
                .flat_map(move |source| self.cluster.copies_of(rule, source))
                .chain(rule.orders.iter().cloned())
        })
    }

    /// Returns the intents of the same rule that give the same source another name in the copy's
    /// namespace, with those copies. The order waits until they exist, so that one of the two names
    /// exists at any moment of a rename.
    pub fn successors(
        self,
        key: &IntentKey,
        copy: &SourceRef,
    ) -> Vec<(IntentKey, Revision, SourceRef)> {
        let Some(rule) = self.rules.get(&key.rule) else {
            return vec![];
        };
        let plain = key.source.plain();
        let renamed = rule
            .intents
            .range(plain.clone()..)
            .take_while(|(source, _)| source.plain() == plain);
        let wanted = renamed
            .filter(|(source, _)| **source != key.source)
            .filter_map(|(source, intent_state)| {
                let (copy, key) = (
                    source.copy_in(&copy.namespace),
                    IntentKey {
                        source: source.clone(),
                        ..key.clone()
                    },
                );
                let claimed = self.copies.is_claimed_by(&key, &copy);
                claimed.then_some((key, intent_state.in_force?, copy))
            });
        wanted.collect()
    }

    /// Returns the copies that are removed only after this one exists.
    pub fn predecessors(self, key: &IntentKey, copy: &SourceRef) -> Vec<SourceRef> {
        let Some(rule) = self.rules.get(&key.rule) else {
            return vec![];
        };
        let plain = key.source.plain();
        let same = |key: &IntentKey| key.source.plain() == plain;
        let beside = rule
            .orders
            .iter()
            .filter(|other| *other != copy && other.namespace == copy.namespace);
        beside
            .filter(|other| self.copies.orders(other).any(|(key, _)| same(key)))
            .cloned()
            .collect()
    }

    /// The rule that wins a copy, or that ordered its removal.
    pub fn rule_of(self, copy: &SourceRef, live: Option<&Live>) -> Option<&'a RuleUid> {
        let ordered = self.copies.orders(copy).next().map(|(key, _)| key);
        self.winner(copy, live)
            .map(|(key, _)| key)
            .or(ordered)
            .map(|key| &key.rule)
    }

    /// The intent that wins a copy, and another source of the same rule that claims it too.
    fn winner(
        self,
        copy: &SourceRef,
        live: Option<&Live>,
    ) -> Option<(&'a IntentKey, Option<&'a IntentKey>)> {
        let incumbent = live.and_then(Live::intent).map(|intent| intent.rule);
        let rank = |key: &&'a IntentKey| self.rank(copy, &key.rule, incumbent.as_ref());
        let first = self.copies.claims(copy).min_by_key(rank)?;
        let other = self
            .copies
            .claims(copy)
            .find(|key| key.rule == first.rule && *key != first);
        Some((first, other))
    }

    /// The precedence of a rule, smallest first; the uid makes it total. A dry run and a rule whose account may not write the copy
    /// block no rule. `incumbent` is the rule that wrote the copy: among rules of the same scope, it keeps it.
    fn rank(
        self,
        copy: &SourceRef,
        uid: &'a RuleUid,
        incumbent: Option<&RuleUid>,
    ) -> impl Ord + use<'a> {
        let rule = self.rules.get(uid);
        let terms = rule.and_then(|rule| rule.terms.as_ref());
        let writes_nothing = rule.is_some_and(Rule::is_dry_run);
        let is_namespaced = terms.is_some_and(|(terms, _)| !terms.rule.is_cluster_scoped());
        (
            rule.is_none_or(|rule| rule.orphaned),
            writes_nothing,
            self.copies.is_forbidden(copy, uid),
            terms.is_some(),
            is_namespaced,
            incumbent != Some(uid),
            terms.map(|(terms, _)| terms.precedence()),
            uid,
        )
    }

    fn wanted_copy(
        self,
        copy: &SourceRef,
        key: &IntentKey,
        other: Option<&IntentKey>,
    ) -> Option<WantedCopy> {
        let rule = self.rules.get(&key.rule)?;
        let intent_state = rule.intents.get(&key.source)?;
        let ambiguous = other.map(|other| ambiguous(&key.source, &other.source));
        let refused = intent_state
            .refused
            .as_ref()
            .map(|(_, copy_error)| copy_error.clone());
        Some(WantedCopy {
            intent: key.clone(),
            rule: rule.name(&key.rule),
            revision: intent_state.in_force,
            place: self.cluster.target_namespace(rule, copy),
            suspend: rule.is_suspended(),
            dry_run: rule.is_dry_run(),
            orphaned: rule.orphaned,
            is_ambiguous: ambiguous.is_some(),
            denied: self.cluster.denies(rule, intent_state.facts.as_ref(), copy),
            copy_error: ambiguous.or(refused),
            policies: Policies {
                create_only: intent_state.mode == Some(CopyMode::CreateOnly),
                ..self.policies(rule, copy)
            },
            contention: None,
            lost: false,
            rewritten: false,
            finished: false,
            compared: None,
        })
    }

    fn policies(self, rule: &Rule, copy: &SourceRef) -> Policies {
        let Some((terms, _)) = &rule.terms else {
            return Policies::default();
        };
        Policies {
            takeover: self.takeover(terms, copy),
            drift: terms.drift_policy,
            recreate: terms.immutable_policy == ImmutablePolicy::Recreate,
            ignored: terms.ignore_fields.clone(),
            create_only: false,
            version: None,
        }
    }

    /// How a rule may take over an object that Runnel did not create. In the hub's cluster the
    /// sources of other rules are never taken over.
    fn takeover(self, terms: &Terms, copy: &SourceRef) -> Takeover {
        if terms.conflict_policy != ConflictPolicy::Fail && self.is_any_source(copy) {
            return Takeover::Never;
        }
        self.cluster.takeover(terms, copy)
    }

    /// The most copies and bytes that are granted to the rules of a rule's namespace, where a copy should be.
    pub fn granted_limits(self, uid: &RuleUid, copy: &SourceRef) -> (Option<u64>, Option<u64>) {
        let terms = self
            .rules
            .get(uid)
            .and_then(|rule| rule.terms.as_ref())
            .filter(|(terms, _)| terms.grants.is_some());
        let allowance = terms.and_then(|(terms, _)| self.cluster.allowance(terms, copy));
        allowance
            .map(|allowance| (allowance.max_copies, allowance.max_bytes))
            .unwrap_or_default()
    }

    /// Whether the rule, its grant and the member's policy allow overwriting foreign objects.
    fn overwrites(self, terms: &Terms, copy: &SourceRef) -> bool {
        self.takeover(terms, copy) == Takeover::Always
    }

    fn ordered(self, copy: &SourceRef, live: Option<&Live>) -> DesiredCopy {
        let Some((key, order)) = self.copies.order_for(copy, live) else {
            return DesiredCopy::Nothing;
        };
        let Some(rule) = self.rules.get(&key.rule) else {
            return DesiredCopy::Nothing;
        };
        let deferred = rule.is_frozen() && !rule.leaving;
        let dry_run = rule.is_dry_run() && !rule.is_suspended() && !rule.leaving;
        // A rule that the hub has ordered away requests nothing any more, independent of the seals
        // of its copies.
        let asks = order.needs_approval() && !rule.leaving;
        // A copy that another rule selects is never deleted for this rule.
        let alone = !self.copies.is_claimed(copy);
        let overwrites = alone
            && rule
                .terms
                .as_ref()
                .is_some_and(|(terms, _)| self.overwrites(terms, copy));
        DesiredCopy::Absent(
            key.clone(),
            rule.name(&key.rule),
            Order {
                policy: order.policy,
                deferred,
                needs_approval: asks,
                overwrites,
                dry_run,
            },
        )
    }

    /// Returns the rules that cannot have a copy, with the reason, and those that still remove it.
    pub fn others(self, copy: &SourceRef, live: Option<&Live>) -> Vec<(RuleUid, CopyStatus)> {
        let mut outcomes: Vec<(RuleUid, CopyStatus)> = vec![];
        let claimed = |uid: &RuleUid| self.copies.claims(copy).any(|key| key.rule == *uid);
        for (key, _) in self.copies.orders(copy) {
            if !claimed(&key.rule) && outcomes.iter().all(|(uid, _)| *uid != key.rule) {
                outcomes.push((key.rule.clone(), CopyStatus::Removing(None)));
            }
        }
        let Some((winner, _)) = self.winner(copy, live) else {
            return outcomes;
        };
        for key in self.copies.claims(copy) {
            if key.rule != winner.rule && outcomes.iter().all(|(uid, _)| *uid != key.rule) {
                outcomes.push((
                    key.rule.clone(),
                    CopyStatus::Failed(self.superseded(copy, &winner.rule, &key.rule)),
                ));
            }
        }
        outcomes
    }

    fn superseded(self, copy: &SourceRef, winner: &RuleUid, loser: &RuleUid) -> CopyError {
        let rule = |uid| {
            self.rules
                .get(uid)
                .map(|rule| (rule, rule.terms.as_ref().map(|(terms, _)| terms)))
        };
        let name = self
            .rules
            .get(winner)
            .map(|rule| rule.name(winner))
            .unwrap_or_default();
        let why = match (rule(winner), rule(loser)) {
            (Some((above, _)), Some((below, _))) if !above.orphaned && below.orphaned => {
                "the hub no longer has this rule"
            }
            (Some((_, Some(above))), Some((_, Some(below))))
                if !above.is_dry_run() && below.is_dry_run() =>
            {
                "this rule is a dry run"
            }
            _ if self.copies.is_forbidden(copy, loser) => {
                "the account of this rule may not write it"
            }
            (Some((_, Some(above))), Some((_, Some(below)))) => {
                if above.rule.is_cluster_scoped() && !below.rule.is_cluster_scoped() {
                    "it is cluster-scoped"
                } else if above.precedence() > below.precedence() {
                    "it has this copy already"
                } else if above.created_at < below.created_at {
                    "it is older"
                } else {
                    "it is as old and its name sorts first"
                }
            }
            _ => "it has precedence",
        };
        CopyError::new(Reason::Superseded, format!("{name} wins this copy: {why}"))
    }

    /// Returns claims that differ from a computation from scratch. For tests: the claims are
    /// derived from rules, intents and namespaces, and updated with each of them.
    #[cfg(test)]
    pub fn stale_claims(self) -> Vec<(IntentKey, SourceRef)> {
        let kept: std::collections::BTreeSet<_> = self.copies.all_claims().collect();
        let keys = self.rules.uids().flat_map(|uid| self.rules.intents_of(uid));
        let wanted = keys.flat_map(|key| {
            self.copies_of_intent(&key)
                .into_iter()
                .map(move |copy| (key.clone(), copy))
        });
        kept.symmetric_difference(&wanted.collect())
            .cloned()
            .collect()
    }
    /// Whether the object is the source of a rule. Only the hub's own cluster has sources.
    fn is_any_source(self, object: &SourceRef) -> bool {
        // A renamed source sorts right behind the plain one.
        let first = |rule: &Rule| {
            rule.intents
                .range(object.plain()..)
                .next()
                .map(|(source, _)| source.plain())
        };
        self.cluster.is_hub()
            && self
                .rules
                .iter()
                .map(|(_, rule)| rule)
                .any(|rule| first(rule).as_ref() == Some(object))
    }
}

fn ambiguous(one: &SourceRef, two: &SourceRef) -> CopyError {
    let name = |source: &SourceRef| match source.optional_namespace() {
        Some(namespace) => format!("{namespace}/{}", source.name),
        None => source.name.to_string(),
    };
    let message = format!(
        "two sources of this rule have this copy: {} and {}; rename one or narrow the rule",
        name(one),
        name(two)
    );
    CopyError::new(Reason::AmbiguousSource, message)
}
