//! How a session learns the intents that an agent has of a rule: by a digest that equals the
//! assignment, or by a question.
use std::collections::BTreeMap;

use runnel_proto::model::{AckedIntent, RuleState, RuleUid};

use super::rule_stream_state::{Items, RuleStreamState};
use super::{RULES_LIMIT, Session};
use crate::index::Directive;
use crate::plan::ClusterAssignment;

/// Pairs that are asked for at a time.
const PAIRS_AT_A_TIME: usize = 100_000;

impl Session {
    /// Whether the hub knows the agent's intents of a rule, source by source. If not, a digest that
    /// equals the assignment is enough, and otherwise the agent is asked.
    pub(super) fn knows_items(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) -> bool {
        let Some(stream) = self.rules.get_mut(uid) else {
            return false;
        };
        match &stream.items {
            Items::Pairs(_) | Items::ClusterAssignment { .. } => return true,
            Items::Asked(_) => {}
            Items::Digest { digest, .. } if *digest == assignment.digest() => {
                stream.items = Items::exactly(assignment.clone());
                stream.former = false;
                self.serve_wants(uid);
            }
            // An account that matches nothing yet, and may still.
            Items::Digest { .. } if assignment.is_growing() => {}
            Items::Digest { .. } | Items::Uncertain => {
                stream.items = Items::Asked(BTreeMap::new());
                self.ask.insert(uid.clone());
            }
        }
        false
    }

    /// The agent reports its intents of these rules again: it found copies that nothing on this
    /// stream ordered. It is asked for the pairs, whatever was known of them. Returns how many
    /// rules exceed the limit of a session.
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
            // What it was asked for is still to come, and speaks of all.
            if !matches!(stream.items, Items::Asked(_)) {
                stream.items = Items::Uncertain;
            }
        }
        self.leave_out_rules(self.left_out_rules().max(left_out));
        left_out
    }

    /// The rules whose pairs the agent must be asked for now: so many that their accounts are small together, and the others
    /// when those have come in.
    pub fn take_questions(&mut self) -> Vec<RuleUid> {
        if self.ask.is_empty() {
            return Vec::new();
        }
        let Self { rules, asked, .. } = self;
        asked.retain(|uid, _| {
            matches!(
                rules.get(uid),
                Some(RuleStreamState {
                    items: Items::Asked(_),
                    ..
                })
            )
        });
        let mut pairs: usize = asked.values().sum();
        let mut questions = Vec::new();
        while let Some(uid) = self.ask.first().cloned() {
            let expected = self
                .share_of(&uid)
                .map_or(0, |assignment| assignment.plan.intents.len());
            if pairs > 0 && pairs + expected > PAIRS_AT_A_TIME {
                break;
            }
            pairs += expected;
            self.ask.remove(&uid);
            self.asked.insert(uid.clone(), expected);
            questions.push(uid);
        }
        questions
    }

    /// What the hub wants of a rule, as far as pairs are compared with it.
    fn share_of(&self, uid: &RuleUid) -> Option<&ClusterAssignment> {
        match self.rules.get(uid)?.directive.as_ref()? {
            Directive::Wanted(assignment)
            | Directive::Cordoned(assignment)
            | Directive::AwaitingWave(assignment) => Some(assignment),
            _ => None,
        }
    }

    /// The agent's pairs of one rule, as requested. Pairs that equal the hub's own cost no memory,
    /// so any such answer is accepted. Others beyond the budget are left out, and requested again
    /// when the accepted ones have been removed.
    pub fn detail(&mut self, uid: &RuleUid, intents: Vec<AckedIntent>, last: bool) {
        if !matches!(
            self.rules.get(uid),
            Some(RuleStreamState {
                items: Items::Asked(_),
                ..
            })
        ) {
            return;
        }
        let assignment = self.share_of(uid).cloned();
        for AckedIntent { source, revision } in intents {
            let known = assignment
                .as_ref()
                .and_then(|assignment| assignment.known_name(&source))
                .cloned();
            if known.is_none()
                && (self.left_out.contains_key(uid) || self.afford([&source].into_iter()).is_err())
            {
                self.left_out.insert(uid.clone(), false);
                continue;
            }
            if let Some(RuleStreamState {
                items: Items::Asked(pairs),
                ..
            }) = self.rules.get_mut(uid)
            {
                pairs.insert(known.unwrap_or(source), revision);
            }
        }
        if !last {
            return;
        }
        self.asked.remove(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        if let Items::Asked(pairs) = &mut stream.items {
            stream.items = Items::Pairs(std::mem::take(pairs));
        }
        if let Some(directive) = stream.directive.clone() {
            self.reconcile(uid, directive);
        }
    }

    /// Pairs of some rule are removed now: what was left out of any account may have room after that.
    pub(super) fn note_removed_pairs(&mut self) {
        self.left_out
            .values_mut()
            .for_each(|has_removed| *has_removed = true);
    }

    /// Whether accounts are asked for again soon.
    pub(super) fn has_left_out_pairs(&self) -> bool {
        self.left_out.values().any(|has_removed| *has_removed)
    }

    /// The agent has taken in all that it was sent: accounts of which something was left out, and something removed since, are
    /// asked for again.
    pub(super) fn ask_for_left_out(&mut self) {
        if !self.has_left_out_pairs() {
            return;
        }
        let is_sent = |uid: &RuleUid, has_removed: bool| has_removed && !self.unsent.has(uid);
        let again: Vec<_> = self
            .left_out
            .iter()
            .filter(|(uid, removed)| is_sent(uid, **removed))
            .map(|(uid, _)| uid.clone())
            .collect();
        for uid in again {
            self.left_out.remove(&uid);
            if let Some(stream) = self.rules.get_mut(&uid) {
                stream.items = Items::Asked(BTreeMap::new());
                self.ask.insert(uid);
            }
        }
    }
}
