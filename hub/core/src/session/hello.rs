//! The intents that a connecting agent reports, until its report is complete: bounded, because
//! nothing is known of it yet.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{RuleState, RuleUid};

use super::RULES_LIMIT;

/// The limit of stored states, in bytes: 20,000 rules with long names.
const BYTES: usize = 24 * 1024 * 1024;
/// Approximate overhead of a state, in bytes.
const OVERHEAD: usize = 400;

/// The intents that an agent reports. Each rule counts once, up to the limit of a session, rules of
/// the hub before unknown ones. The others are reported again in the next session.
#[derive(Default)]
pub struct HelloStates {
    states: BTreeMap<RuleUid, RuleState>,
    /// Rules that the hub does not have.
    unknown: BTreeSet<RuleUid>,
    bytes: usize,
    left_out: usize,
    /// States whose failures were dropped.
    shortened: usize,
}

impl HelloStates {
    /// Adds the states of one frame.
    pub fn add(&mut self, states: Vec<RuleState>, is_known: impl Fn(&RuleUid) -> bool) {
        self.add_within(states, is_known, (RULES_LIMIT, BYTES));
    }

    fn add_within(
        &mut self,
        states: Vec<RuleState>,
        is_known: impl Fn(&RuleUid) -> bool,
        (most, bytes): (usize, usize),
    ) {
        for mut state in states {
            let is_known = is_known(&state.uid);
            self.remove(&state.uid.clone());
            // No status shows failures of unknown rules, and an agent can invent many. Half of the
            // budget is for its intents.
            if !state.failures.is_empty()
                && (!is_known || self.bytes + state_bytes(&state) > bytes / 2)
            {
                state.failures = Vec::new();
                self.shortened += usize::from(is_known);
            }
            let has_room =
                |all: &Self| all.states.len() < most && all.bytes + state_bytes(&state) <= bytes;
            if !has_room(self)
                && is_known
                && let Some(unknown) = self.unknown.first().cloned()
            {
                self.remove(&unknown);
                self.left_out += 1;
            }
            if !has_room(self) {
                self.left_out += 1;
                continue;
            }
            self.bytes += state_bytes(&state);
            if !is_known {
                self.unknown.insert(state.uid.clone());
            }
            self.states.insert(state.uid.clone(), state);
        }
    }

    fn remove(&mut self, uid: &RuleUid) {
        self.unknown.remove(uid);
        if let Some(state) = self.states.remove(uid) {
            self.bytes -= state_bytes(&state);
        }
    }

    /// Returns the numbers of left-out and of shortened states.
    pub fn left_out_and_shortened(&self) -> (usize, usize) {
        (self.left_out, self.shortened)
    }

    /// The states.
    pub fn into_states(self) -> Vec<RuleState> {
        self.states.into_values().collect()
    }
}

/// Returns the approximate size of a state, in bytes.
pub fn state_bytes(state: &RuleState) -> usize {
    let rule = state.rule.kind.len() + state.rule.namespace.len() + state.rule.name.len();
    let namespaces = state
        .namespace_prunes
        .iter()
        .flat_map(|namespace_prunes| &namespace_prunes.namespaces)
        .chain(&state.waiting.first)
        .map(|name| name.len() + 24);
    let failures = state.failures.iter().map(|failure| {
        let copy = &failure.copy;
        200 + copy.resource.len() + copy.namespace.len() + copy.name.len() + failure.message.len()
    });
    let feedback = state.feedback.iter().map(|feedback| 200 + feedback.bytes());
    OVERHEAD
        + state.uid.as_str().len()
        + rule
        + namespaces.sum::<usize>()
        + failures.sum::<usize>()
        + feedback.sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_proto::model::{Failure, Reason, SourceRef};

    fn state(uid: &str, failures: usize) -> RuleState {
        let failure = Failure {
            reason: Reason::Forbidden,
            copy: SourceRef::new("configmaps", "team", "app"),
            message: "m".repeat(500),
        };
        RuleState {
            intents: 1,
            failures: vec![failure; failures],
            ..RuleState::new(uid.into())
        }
    }

    fn claimed(states: HelloStates) -> Vec<(String, usize)> {
        states
            .into_states()
            .into_iter()
            .map(|state| (state.uid.to_string(), state.failures.len()))
            .collect()
    }

    #[test]
    fn failures_of_unknown_rules_are_dropped() {
        let mut states = HelloStates::default();
        states.add(vec![state("known", 1), state("invented", 1)], |uid| {
            *uid == "known".into()
        });
        assert_eq!(
            claimed(states),
            [("invented".to_owned(), 0), ("known".to_owned(), 1)]
        );
    }

    #[test]
    fn repeated_rule_counts_once() {
        let mut states = HelloStates::default();
        for _ in 0..100_000 {
            states.add_within(vec![state("a", 0)], |_| true, (2, 10_000));
        }
        assert_eq!(
            (states.bytes, states.left_out_and_shortened()),
            (state_bytes(&state("a", 0)), (0, 0))
        );
    }

    #[test]
    fn rules_beyond_the_limit_are_left_out_unknown_ones_first() {
        let mut states = HelloStates::default();
        let is_known = |uid: &RuleUid| uid.as_str().starts_with("known");
        let all = [
            "made-up-1",
            "made-up-2",
            "known-1",
            "known-2",
            "known-3",
            "made-up-3",
        ];
        states.add_within(all.map(|uid| state(uid, 0)).into(), is_known, (3, 1 << 20));
        assert_eq!(states.left_out_and_shortened(), (3, 0));
        let kept: Vec<_> = claimed(states).into_iter().map(|(uid, _)| uid).collect();
        assert_eq!(kept, ["known-1", "known-2", "known-3"]);
    }

    #[test]
    fn bytes_are_bounded_and_failures_go_first() {
        let mut states = HelloStates::default();
        for number in 0..100 {
            states.add_within(
                vec![state(&format!("r{number:02}"), 5)],
                |_| true,
                (1000, 80_000),
            );
        }
        assert!(states.bytes <= 80_000, "{}", states.bytes);
        let (left_out, shortened) = states.left_out_and_shortened();
        assert!(
            left_out == 0 && shortened > 80,
            "{left_out} left out, {shortened} shortened"
        );
        assert_eq!(states.into_states().len(), 100);
    }
}
