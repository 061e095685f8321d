//! The reports of simulated agents about a rule that differ from their intents.

use runnel_proto::model::{
    Counts, FAILURES_LIMIT, Failure, MESSAGE_LIMIT, Reason, RuleName, RuleState, SetDigest,
    SourceRef, TermsDigest,
};

use super::text::noise;

/// As many failed copies as a report can have, each with a message of the greatest length.
pub(super) fn fail(state: &mut RuleState, cluster: &str) {
    let failures = FAILURES_LIMIT.min(state.counts.copies as usize);
    state.counts.failed = u32::try_from(failures).unwrap_or(u32::MAX);
    state.counts.applied = state.counts.copies - state.counts.failed;
    let one = |number: usize| {
        let mut message = noise(number as u64, MESSAGE_LIMIT);
        message.replace_range(..cluster.len().min(MESSAGE_LIMIT), cluster);
        message.truncate(MESSAGE_LIMIT);
        let copy = SourceRef::new(
            "configmaps",
            &state.rule.namespace,
            &format!("failed-{number}"),
        );
        Failure {
            reason: Reason::Conflict,
            copy,
            message,
        }
    };
    state.failures = (0..failures).map(one).collect();
}

/// The report of a simulated agent without intents.
pub(super) fn made_up() -> RuleState {
    RuleState {
        rule: RuleName {
            kind: "DistributionRule".into(),
            namespace: "speed".into(),
            name: "reported".into(),
        },
        intents_digest: SetDigest::from_bytes(&[7; 16]).unwrap_or_default(),
        intents: 1,
        terms_digest: Some(TermsDigest([7; 16])),
        counts: Counts {
            copies: 1,
            applied: 1,
            ..Default::default()
        },
        ..RuleState::new("00000000-0000-4000-8000-000000000000".into())
    }
}
