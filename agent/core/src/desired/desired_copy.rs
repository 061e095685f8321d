//! The desired state of one copy, and the rule that owns it.
use runnel_proto::model::{
    ConflictPolicy, ImmutablePolicy, Reason, Revision, RuleUid, SourceRef, Terms,
};

use super::rule::Rule;
use super::{Cluster, Copies, Rules};
use crate::copy::IntentKey;
use crate::copy::{CopyError, CopyStatus};
use crate::decide::{DesiredCopy, Order, Policies, Takeover, WantedCopy};
use crate::live::{Live, Ownership};

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
        let Some((key, other)) = self.winner(copy) else {
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
    pub fn idle_winner(self, copy: &SourceRef) -> Option<(RuleUid, Option<WantedCopy>)> {
        self.winner(copy)
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
    pub fn rule_of(self, copy: &SourceRef) -> Option<&'a RuleUid> {
        let ordered = self.copies.orders(copy).next().map(|(key, _)| key);
        self.winner(copy)
            .map(|(key, _)| key)
            .or(ordered)
            .map(|key| &key.rule)
    }

    /// The intent that wins a copy, and another source of the same rule that claims it too.
    fn winner(self, copy: &SourceRef) -> Option<(&'a IntentKey, Option<&'a IntentKey>)> {
        let first = self
            .copies
            .claims(copy)
            .min_by_key(|key| self.rank(&key.rule))?;
        let other = self
            .copies
            .claims(copy)
            .find(|key| key.rule == first.rule && *key != first);
        Some((first, other))
    }

    /// The precedence of a rule, smallest first; the uid makes it total. A dry run blocks no rule.
    fn rank(self, uid: &'a RuleUid) -> impl Ord + 'a {
        let rule = self.rules.get(uid);
        let terms = rule.and_then(|rule| rule.terms.as_ref());
        let writes_nothing = rule.is_some_and(Rule::is_dry_run);
        (
            rule.is_none_or(|rule| rule.orphaned),
            writes_nothing,
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
            is_ambiguous: ambiguous.is_some(),
            denied: self.cluster.denies(rule, intent_state.facts.as_ref(), copy),
            copy_error: ambiguous.or(refused),
            policies: self.policies(rule, copy),
            contention: None,
            lost: false,
            rewritten: false,
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
    pub fn others(self, copy: &SourceRef) -> Vec<(RuleUid, CopyStatus)> {
        let mut outcomes: Vec<(RuleUid, CopyStatus)> = vec![];
        let claimed = |uid: &RuleUid| self.copies.claims(copy).any(|key| key.rule == *uid);
        for (key, _) in self.copies.orders(copy) {
            if !claimed(&key.rule) && outcomes.iter().all(|(uid, _)| *uid != key.rule) {
                outcomes.push((key.rule.clone(), CopyStatus::Removing(None)));
            }
        }
        let Some((winner, _)) = self.winner(copy) else {
            return outcomes;
        };
        for key in self.copies.claims(copy) {
            if key.rule != winner.rule && outcomes.iter().all(|(uid, _)| *uid != key.rule) {
                outcomes.push((
                    key.rule.clone(),
                    CopyStatus::Failed(self.superseded(&winner.rule, &key.rule)),
                ));
            }
        }
        outcomes
    }

    fn superseded(self, winner: &RuleUid, loser: &RuleUid) -> CopyError {
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
            (Some((_, Some(above))), Some((_, Some(below)))) => {
                if above.rule.is_cluster_scoped() && !below.rule.is_cluster_scoped() {
                    "it is cluster-scoped"
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
    let message = format!(
        "two sources of this rule have this copy: {}/{} and {}/{}; rename one or narrow the rule",
        one.namespace, one.name, two.namespace, two.name
    );
    CopyError::new(Reason::AmbiguousSource, message)
}
