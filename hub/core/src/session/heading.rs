//! What is said about a rule itself: its terms, what may be done by them, and what becomes of what its copies held before.
use std::collections::BTreeMap;

use runnel_proto::KEEPS_SINCE;
use runnel_proto::model::{RuleDelta, RuleUid, Terms, Travel};

use super::rule_stream_state::Items;
use super::{BATCH_BYTES, BATCH_ITEMS, Heading, Session, delta_of, weight};
use crate::index::Directive;
use crate::plan::{ClusterAssignment, NamedTerms};

impl Session {
    /// Returns whether headings are left for another batch.
    pub(super) fn take_headings(&mut self, deltas: &mut BTreeMap<RuleUid, RuleDelta>, bytes: &mut usize) -> bool {
        let (mut later, mut more) = (BTreeMap::new(), false);
        while let Some((uid, mut heading)) = self.headings.pop_first() {
            if heading.travel.as_ref().is_some_and(|travel| self.goes_on_later(&uid, travel)) {
                later.insert(uid.clone(), Heading { travel: heading.travel.take(), ..Heading::default() });
                if heading.is_empty() {
                    continue;
                }
            }
            let is_of_terms = heading.terms.is_some() || heading.unclaimed;
            if let Some(held) = self.rules.get_mut(&uid).filter(|_| is_of_terms) {
                held.told = heading.terms.as_ref().map(|(_, digest)| *digest);
            }
            if let Some(held) = self.rules.get_mut(&uid) {
                let rests = heading.terms.as_ref().map(|(terms, _)| terms.suspend).or(heading.suspend);
                held.told_rests = rests.or(held.told_rests);
                let next = Some(self.nonce + 1);
                held.permit_sent = next.filter(|_| heading.overwrite.is_some()).or(held.permit_sent);
                held.let_go_sent = next.filter(|_| heading.let_go.is_some()).or(held.let_go_sent);
            }
            *bytes += heading.terms.as_ref().map_or(0, |(terms, _)| weight(terms));
            let delta = delta_of(deltas, &uid);
            delta.terms = heading.terms.map(|(terms, digest)| (Terms::clone(&terms), digest));
            (delta.unclaimed, delta.suspend) = (heading.unclaimed, heading.suspend);
            (delta.overwrite, delta.let_go) = (heading.overwrite, heading.let_go);
            if let (Some(travel), Some(held)) = (&heading.travel, self.rules.get_mut(&uid)) {
                held.told_travel.clone_from(travel);
            }
            delta.travel = heading.travel;
            if *bytes >= BATCH_BYTES || deltas.len() >= BATCH_ITEMS {
                more = !self.headings.is_empty();
                break;
            }
        }
        self.headings.append(&mut later);
        more
    }

    /// Whether nothing waits to be said about rules, but for what waits until something else can be said.
    pub(super) fn has_said_headings(&self) -> bool {
        self.headings.iter().all(|(uid, heading)| {
            let rest = Heading { travel: None, terms: heading.terms.clone(), ..*heading };
            rest.is_empty() && heading.travel.as_ref().is_some_and(|travel| self.goes_on_later(uid, travel))
        })
    }

    /// Whether an agent that goes back is not yet to hear that it goes on. It takes in what it is sent meanwhile, and writes
    /// nothing of it. Without all of it, it would write once more what went wrong.
    fn goes_on_later(&self, uid: &RuleUid, travel: &Travel) -> bool {
        let Some(held) = self.rules.get(uid) else { return false };
        let has_all = match (&held.directive, &held.items) {
            (Some(Directive::Wanted(wanted)), Items::ClusterAssignment { assignment, .. }) => {
                assignment.is(wanted) && !wanted.terms.suspend && !wanted.is_growing() && !self.unsent.has(uid)
            }
            _ => false,
        };
        held.told_travel.reverts() && !travel.reverts() && !has_all
    }

    /// Nothing is sent about a rule but whether it rests, and that the agent is to go back to what it had before.
    pub(super) fn goes_back(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        self.rest(uid);
        self.say_whether_it_rests(uid, assignment);
        self.say_travel(uid, assignment.travel.as_ref());
    }

    /// What becomes of what copies held before is said when it changes. An agent that holds nothing of the rule has nothing
    /// to put back, and one that is removing all of it soon has nothing.
    pub(super) fn say_travel(&mut self, uid: &RuleUid, travel: Option<&Travel>) {
        let (Some(held), Some(travel)) = (self.rules.get_mut(uid), travel) else { return };
        if held.removing.is_none() && held.travel != *travel {
            held.travel.clone_from(travel);
            self.headings.entry(uid.clone()).or_default().travel = Some(travel.clone());
        }
    }

    /// Whether a rule rests is said to all at once, also where nothing else is sent of it: there the terms stay what they are,
    /// whatever was edited besides.
    pub(super) fn say_whether_it_rests(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        let keeps = self.keeps(uid);
        let Some(held) = self.rules.get_mut(uid) else { return };
        let suspend = assignment.terms.suspend;
        let hears_nothing = keeps || held.removing.is_some() || held.told_unclaimed;
        // An older agent does not say it, nor does it know the word: it takes it with the terms.
        let is_older = self.protocol.0 < KEEPS_SINCE;
        let resting = || NamedTerms::new(Terms { suspend: true, ..Terms::clone(&assignment.terms) }).digest;
        let rests = held.rests.or_else(|| is_older.then(|| held.told == Some(resting())));
        if hears_nothing || rests.is_none_or(|rests| rests == suspend) {
            return;
        }
        if is_older {
            return self.say_terms(uid, assignment);
        }
        held.rests = Some(suspend);
        self.headings.entry(uid.clone()).or_default().suspend = Some(suspend);
    }

    pub(super) fn say_terms(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        let held = self.rules.entry(uid.clone()).or_default();
        let revived = held.removing.take().is_some() | std::mem::take(&mut held.told_unclaimed);
        self.removals.remove(uid);
        let rests = Some(assignment.terms.suspend);
        let rests_otherwise = held.rests.is_some() && held.rests != rests;
        if revived || rests_otherwise || held.terms != Some(assignment.terms.digest) {
            (held.terms, held.rests) = (Some(assignment.terms.digest), rests);
            let heading = self.headings.entry(uid.clone()).or_default();
            heading.terms = Some((assignment.terms.to_shared(), assignment.terms.digest));
            (heading.unclaimed, heading.suspend) = (false, None);
        }
    }
}
