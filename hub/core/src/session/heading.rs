//! The messages about a rule itself: its terms, and the permissions for its removals.
use std::collections::BTreeMap;

use runnel_proto::model::{NamespaceChoice, RuleDelta, RuleUid, Terms};

use super::Session;
use super::outbox::{BATCH_BYTES, BATCH_ITEMS, delta_of};
use crate::plan::ClusterAssignment;

impl Session {
    /// Returns whether headings are left for another batch.
    pub(super) fn take_headings(
        &mut self,
        deltas: &mut BTreeMap<RuleUid, RuleDelta>,
        bytes: &mut usize,
    ) -> bool {
        while let Some((uid, heading)) = self.outbox.headings.pop_first() {
            let is_of_terms = heading.terms.is_some() || heading.orphaned;
            if let Some(stream) = self.rules.get_mut(&uid).filter(|_| is_of_terms) {
                stream.sent_terms = heading.terms.as_ref().map(|(_, digest)| *digest);
            }
            if let Some(stream) = self.rules.get_mut(&uid) {
                let suspended = heading
                    .terms
                    .as_ref()
                    .map(|(terms, _)| terms.suspend)
                    .or(heading.suspend);
                stream.sent_suspended = suspended.or(stream.sent_suspended);
                let next = Some(self.window.next());
                stream.prune_sent = next
                    .filter(|_| heading.prune.is_some())
                    .or(stream.prune_sent);
            }
            *bytes += heading.terms.as_ref().map_or(0, |(terms, _)| weight(terms));
            let delta = delta_of(deltas, &uid);
            delta.terms = heading
                .terms
                .map(|(terms, digest)| (Terms::clone(&terms), digest));
            (delta.orphaned, delta.suspend) = (heading.orphaned, heading.suspend);
            delta.prune = heading.prune;
            if *bytes >= BATCH_BYTES || deltas.len() >= BATCH_ITEMS {
                return !self.outbox.headings.is_empty();
            }
        }
        false
    }

    /// A change of the suspension is sent at once, also where nothing else of the rule is sent. The
    /// other terms stay as they were there.
    pub(super) fn send_suspended(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        let keeps = self.keeps(uid);
        let Some(stream) = self.rules.get_mut(uid) else {
            return;
        };
        let suspend = assignment.terms.suspend;
        let hears_nothing = keeps || stream.removing.is_some() || stream.sent_orphaned;
        if hears_nothing
            || stream
                .is_suspended
                .is_none_or(|suspended| suspended == suspend)
        {
            return;
        }
        stream.is_suspended = Some(suspend);
        self.outbox.headings.entry(uid.clone()).or_default().suspend = Some(suspend);
    }

    pub(super) fn send_terms(&mut self, uid: &RuleUid, assignment: &ClusterAssignment) {
        let stream = self.rules.entry(uid.clone()).or_default();
        let revived = stream.removing.take().is_some() | std::mem::take(&mut stream.sent_orphaned);
        self.outbox.removals.remove(uid);
        let suspended = Some(assignment.terms.suspend);
        let differs_in_suspended =
            stream.is_suspended.is_some() && stream.is_suspended != suspended;
        if revived || differs_in_suspended || stream.terms != Some(assignment.terms.digest) {
            (stream.terms, stream.is_suspended) = (Some(assignment.terms.digest), suspended);
            let heading = self.outbox.headings.entry(uid.clone()).or_default();
            heading.terms = Some((assignment.terms.to_shared(), assignment.terms.digest));
            (heading.orphaned, heading.suspend) = (false, None);
        }
    }
}

/// Returns the approximate size of terms on the wire, in bytes.
fn weight(terms: &Terms) -> usize {
    let granted = terms
        .grants
        .iter()
        .flatten()
        .filter_map(|grant| grant.namespaces.as_ref());
    let choices = terms
        .namespaces
        .iter()
        .chain(granted)
        .map(choice_weight)
        .sum::<usize>();
    let names = terms.rule.kind.len() + terms.rule.namespace.len() + terms.rule.name.len();
    choices + terms.grants.as_ref().map_or(0, |grants| 64 * grants.len()) + names + 64
}

fn choice_weight(choice: &NamespaceChoice) -> usize {
    let patterns = choice
        .names
        .iter()
        .chain(&choice.exclude)
        .map(|pattern| pattern.as_str().len() + 2);
    let requirements = choice
        .selector
        .iter()
        .flat_map(|selector| &selector.requirements);
    let requirements = requirements
        .map(|r| r.key.len() + r.values.iter().map(|value| value.len() + 2).sum::<usize>() + 8);
    patterns.sum::<usize>() + requirements.sum::<usize>()
}
