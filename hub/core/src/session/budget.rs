//! The content that an agent requests again, and the memory that a session uses for one member's
//! messages: no member may fill the memory of the hub.
//!
//! Rules beyond the limit of one agent are not sent, so that an agent never has more rules than its
//! hub accepts at a reconnect.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{RuleUid, SourceRef};

use super::{Items, RULES_LIMIT, Session};
use crate::index::Directive;
use crate::plan::SourceContent;

/// The memory limit, in bytes: reports of some 200,000 intents at a time.
const LIMIT: usize = 64 * 1024 * 1024;
/// Approximate overhead of a source, in bytes: its revision and the parts of its name.
const OVERHEAD: usize = 240;

/// The agent reports more than a session stores.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct OverBudget;

/// The used memory, an upper bound: entries settled since the last count are included.
#[derive(Default)]
pub(super) struct Budget {
    used_bytes: usize,
}

impl Session {
    /// Requests the content of sources for the agent. The agent repeats requests that are dropped
    /// here.
    pub fn request_content(&mut self, uid: &RuleUid, mut sources: Vec<SourceRef>) {
        match self.rules.get(uid).map(|stream| &stream.directive) {
            Some(Some(
                Directive::Assigned(assignment)
                | Directive::Cordoned(assignment)
                | Directive::AwaitingWave(assignment),
            )) => {
                sources.retain(|source| {
                    assignment.content(source).is_some() || assignment.is_unknown(source)
                });
            }
            // The hub has not determined yet whether the rule selects this cluster.
            Some(None) => {}
            _ => return,
        }
        if !sources.is_empty() && self.reserve_budget(sources.iter()).is_ok() {
            self.content_requests
                .entry(uid.clone())
                .or_default()
                .extend(sources);
            self.request_acked_content(uid);
            self.serve_content_requests(uid);
        }
    }

    /// A cluster that waits for its wave is only sent its current content, which must be known.
    fn request_acked_content(&mut self, uid: &RuleUid) {
        if let Some(stream) = self.rules.get_mut(uid)
            && matches!(
                (&stream.directive, &stream.items),
                (
                    Some(Directive::AwaitingWave(_)),
                    Items::Digest { .. } | Items::Uncertain
                )
            )
        {
            stream.items = Items::PartialPairs(BTreeMap::new());
            self.pair_requests.add(uid);
        }
    }

    /// Requests wait until the agent's intents of the rule are known.
    pub(super) fn serve_content_requests(&mut self, uid: &RuleUid) {
        let Some(stream) = self.rules.get(uid) else {
            return;
        };
        let (items, directive) = (&stream.items, &stream.directive);
        let assignment = match (items, directive) {
            (Items::ClusterAssignment { assignment, .. }, _) => assignment,
            (
                Items::Pairs(_),
                Some(Directive::Cordoned(assignment) | Directive::AwaitingWave(assignment)),
            ) => assignment,
            _ => return,
        };
        // A restricted cluster is only sent its current content.
        let new = |source: &SourceRef, content: &SourceContent| match items {
            Items::Pairs(pairs) => pairs.get(source) != Some(&content.revision),
            _ => false,
        };
        for source in self.content_requests.remove(uid).unwrap_or_default() {
            if let Some(content) = assignment
                .content(&source)
                .filter(|content| !new(&source, content))
            {
                self.outbox.intents.put(uid, source, content.clone());
            }
        }
    }

    /// Reserves memory for these entries.
    pub(super) fn reserve_budget<'a>(
        &mut self,
        sources: impl Iterator<Item = &'a SourceRef>,
    ) -> Result<(), OverBudget> {
        let cost: usize = sources.map(weight).sum();
        if self.budget.used_bytes + cost > LIMIT {
            self.budget.used_bytes = self.used_bytes();
        }
        if self.budget.used_bytes + cost > LIMIT {
            return Err(OverBudget);
        }
        self.budget.used_bytes += cost;
        Ok(())
    }

    /// Returns the memory for state that the hub does not have itself.
    pub(super) fn used_bytes(&self) -> usize {
        let message = self.rules.values().map(|stream| match &stream.items {
            Items::PartialPairs(pairs)
            | Items::Pairs(pairs)
            | Items::ClusterAssignment {
                over_limit: pairs, ..
            } => {
                let assignment = match &stream.directive {
                    Some(
                        Directive::Assigned(assignment)
                        | Directive::Cordoned(assignment)
                        | Directive::AwaitingWave(assignment),
                    ) => Some(assignment),
                    _ => None,
                };
                let is_known = |source: &SourceRef| {
                    assignment.is_some_and(|assignment| assignment.known_name(source).is_some())
                };
                pairs
                    .keys()
                    .filter(|source| !is_known(source))
                    .map(weight)
                    .sum()
            }
            Items::Uncertain | Items::Digest { .. } => 0,
        });
        let wants = self.content_requests.values().flatten().map(weight);
        message.sum::<usize>() + wants.sum::<usize>()
    }
}

fn weight(source: &SourceRef) -> usize {
    let renamed = if source.is_renamed() {
        source.copy_name().len()
    } else {
        0
    };
    OVERHEAD + source.resource.len() + source.namespace.len() + source.name.len() + renamed
}

/// Selected rules that are not sent.
#[derive(Default)]
pub(super) struct RulesOverLimit {
    rules: BTreeSet<RuleUid>,
    has_changed: bool,
}

impl RulesOverLimit {
    fn add(&mut self, uid: &RuleUid) {
        self.has_changed |= self.rules.insert(uid.clone());
    }

    /// The rule is not selected here, or there is room for it.
    pub fn remove(&mut self, uid: &RuleUid) {
        self.has_changed |= self.rules.remove(uid);
    }
}

impl Session {
    /// Whether a rule can be sent. A rule without room is recorded.
    pub(super) fn has_room_for(&mut self, uid: &RuleUid) -> bool {
        let has_room = self.rules.contains_key(uid) || self.rules.len() < RULES_LIMIT;
        if has_room {
            self.over_limit.remove(uid)
        } else {
            self.over_limit.add(uid)
        }
        has_room
    }

    /// The rules that were not sent and have room now.
    pub fn over_limit_with_room(&self) -> Vec<RuleUid> {
        self.over_limit
            .rules
            .iter()
            .take(RULES_LIMIT.saturating_sub(self.rules.len()))
            .cloned()
            .collect()
    }

    /// The rules that are not sent, if they are others than at the last call.
    pub fn take_over_limit_change(&mut self) -> Option<BTreeSet<RuleUid>> {
        std::mem::take(&mut self.over_limit.has_changed).then(|| self.over_limit.rules.clone())
    }

    /// Records the number of the agent's rules that this session does not track.
    pub fn leave_out_rules(&mut self, rules: usize) {
        self.left_out_rules = rules;
    }

    /// Returns the number of the agent's rules that this session does not track.
    pub fn left_out_rules(&self) -> usize {
        self.left_out_rules
    }
}
