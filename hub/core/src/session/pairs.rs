//! The agent's intents of a rule: known by a digest that equals the assignment, or by a request.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{AckedIntent, RuleState, RuleUid};

use super::{Items, RULES_LIMIT, Session};
use crate::index::Directive;
use crate::plan::ClusterAssignment;

/// Maximum number of requested pairs at a time.
const PAIRS_AT_A_TIME: usize = 100_000;

/// The rules whose (source, revision) pairs are requested from the agent.
#[derive(Default)]
pub(super) struct PairRequests {
    /// Rules whose pairs are needed and not requested yet.
    needed: BTreeSet<RuleUid>,
    /// Rules whose pairs are requested, with the expected number.
    requested: BTreeMap<RuleUid, usize>,
    /// Rules with pairs that were left out, and whether pairs of any rule were removed since.
    left_out: BTreeMap<RuleUid, bool>,
}

impl PairRequests {
    /// Adds a rule.
    pub fn add(&mut self, uid: &RuleUid) {
        self.needed.insert(uid.clone());
    }

    /// Drops a rule whose pairs are not requested yet.
    pub fn drop_unrequested(&mut self, uid: &RuleUid) {
        self.needed.remove(uid);
    }

    /// Pairs of some rule are removed now: pairs that were left out may fit after that.
    pub fn record_removed(&mut self) {
        self.left_out
            .values_mut()
            .for_each(|has_removed| *has_removed = true);
    }

    /// Whether pairs of a rule were left out.
    pub fn has_left_out_of(&self, uid: &RuleUid) -> bool {
        self.left_out.contains_key(uid)
    }

    /// Whether left-out pairs will be requested again soon.
    pub fn has_left_out(&self) -> bool {
        self.left_out.values().any(|has_removed| *has_removed)
    }
}

impl Session {
    /// Whether the hub has the agent's intents of a rule, source by source. If not, a digest that
    /// equals the assignment is enough. Otherwise the pairs are requested from the agent.
    pub(super) fn has_items(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) -> bool {
        let Some(stream) = self.rules.get_mut(uid) else {
            return false;
        };
        match &stream.items {
            Items::Pairs(_) | Items::ClusterAssignment { .. } => return true,
            Items::PartialPairs(_) => {}
            Items::Digest { digest, .. } if *digest == assignment.digest() => {
                stream.items = Items::exactly(assignment.clone());
                stream.former = false;
                self.serve_content_requests(uid);
            }
            // The digest may still match when the plan is complete.
            Items::Digest { .. } if assignment.is_growing() => {}
            Items::Digest { .. } | Items::Uncertain => self.request_pairs(uid),
        }
        false
    }

    /// Requests the agent's intents of a rule, unless they are known, or the agent was sent the order to remove all of them.
    pub(super) fn request_pairs(&mut self, uid: &RuleUid) {
        if let Some(stream) = self.rules.get_mut(uid)
            && stream.removing.is_none()
            && matches!(stream.items, Items::Digest { .. } | Items::Uncertain)
        {
            stream.items = Items::PartialPairs(BTreeMap::new());
            self.pair_requests.add(uid);
        }
    }

    /// The agent reports its intents of these rules again, because it found copies that nothing on
    /// this stream ordered. All of their pairs are requested. Returns how many rules exceed the
    /// limit of a session.
    pub fn resync(&mut self, states: Vec<RuleState>) -> usize {
        let mut left_out = 0;
        for state in states.into_iter().filter(|state| !state.gone) {
            let has_room = self.rules.len() < RULES_LIMIT;
            let Some(stream) = self.rules.get_mut(&state.uid) else {
                if has_room {
                    self.hello(vec![state])
                } else {
                    left_out += 1
                }
                continue;
            };
            stream.former = true;
            // An order that was sent before covers no copy that was found since.
            if !self.outbox.removals.contains_key(&state.uid) {
                stream.removing = None;
            }
            // The answer to an open question is still to come, and has all pairs.
            if !matches!(stream.items, Items::PartialPairs(_)) {
                stream.items = Items::Uncertain;
            }
        }
        self.leave_out_rules(self.left_out_rules().max(left_out));
        left_out
    }

    /// Returns the rules whose pairs must be requested now. Their answers have at most 100,000
    /// pairs together. The session requests the others when these answers have arrived.
    pub fn take_questions(&mut self) -> Vec<RuleUid> {
        if self.pair_requests.needed.is_empty() {
            return Vec::new();
        }
        let Self {
            rules,
            pair_requests: questions,
            ..
        } = self;
        questions.requested.retain(|uid, _| {
            rules
                .get(uid)
                .is_some_and(|stream| matches!(stream.items, Items::PartialPairs(_)))
        });
        let mut pairs: usize = questions.requested.values().sum();
        let mut uids = Vec::new();
        while let Some(uid) = self.pair_requests.needed.first().cloned() {
            let expected = self
                .assignment_of(&uid)
                .map_or(0, |assignment| assignment.plan().intents.len());
            if pairs > 0 && pairs + expected > PAIRS_AT_A_TIME {
                break;
            }
            pairs += expected;
            self.pair_requests.needed.remove(&uid);
            self.pair_requests.requested.insert(uid.clone(), expected);
            uids.push(uid);
        }
        uids
    }

    /// The assignment of a rule with which pairs are compared.
    fn assignment_of(&self, uid: &RuleUid) -> Option<&ClusterAssignment> {
        match self.rules.get(uid)?.directive.as_ref()? {
            Directive::Assigned(assignment)
            | Directive::Cordoned(assignment)
            | Directive::AwaitingWave(assignment) => Some(assignment),
            _ => None,
        }
    }

    /// The agent's pairs of one rule, as requested. Pairs that equal the hub's own cost no memory,
    /// so any such answer is accepted. Others beyond the budget are left out, and requested again
    /// when the accepted ones have been removed.
    pub fn detail(&mut self, uid: &RuleUid, intents: Vec<AckedIntent>, last: bool) {
        let stream = self.rules.get(uid);
        if !stream.is_some_and(|stream| matches!(stream.items, Items::PartialPairs(_))) {
            return;
        }
        let assignment = self.assignment_of(uid).cloned();
        for AckedIntent { source, revision } in intents {
            let known = assignment
                .as_ref()
                .and_then(|assignment| assignment.known_name(&source))
                .cloned();
            if known.is_none()
                && (self.pair_requests.left_out.contains_key(uid)
                    || self.reserve_budget([&source].into_iter()).is_err())
            {
                self.pair_requests.left_out.insert(uid.clone(), false);
                continue;
            }
            if let Some(stream) = self.rules.get_mut(uid)
                && let Items::PartialPairs(pairs) = &mut stream.items
            {
                pairs.insert(known.unwrap_or(source), revision);
            }
        }
        if !last {
            return;
        }
        self.pair_requests.requested.remove(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if let Items::PartialPairs(pairs) = &mut stream.items {
            stream.items = Items::Pairs(std::mem::take(pairs));
        }
        if let Some(directive) = stream.directive.clone() {
            self.reconcile(uid, directive);
        }
    }

    /// The agent has acked everything: requests the left out pairs again, if pairs were removed
    /// since.
    pub(super) fn request_left_out(&mut self) {
        if !self.pair_requests.has_left_out() {
            return;
        }
        let is_sent =
            |uid: &RuleUid, has_removed: bool| has_removed && !self.outbox.intents.has(uid);
        let again: Vec<_> = self
            .pair_requests
            .left_out
            .iter()
            .filter(|(uid, removed)| is_sent(uid, **removed))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in again {
            self.pair_requests.left_out.remove(&uid);
            if let Some(stream) = self.rules.get_mut(&uid) {
                stream.items = Items::PartialPairs(BTreeMap::new());
                self.pair_requests.add(&uid);
            }
        }
    }
}
