//! The digests of the applied copies, per intent of a rule. Only intents that may have changed are
//! computed again, when the agent reports.
use runnel_proto::model::{ContentDigest, RuleUid, Shown, SourceRef};

use super::{Desired, Rule};
use crate::copy::IntentKey;

/// What one copy shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shows {
    /// It is not applied: it waits for its namespace.
    Nothing,
    /// It is applied, and shows this; `None` where that is not known.
    Content(Option<ContentDigest>),
}

impl Desired {
    /// Something may have changed about the copies of an intent.
    pub fn show_again(&mut self, key: &IntentKey) {
        if let Some(rule) = self.rules.get_mut(&key.rule) {
            rule.show_again(&key.source);
        }
    }

    /// The sum of the digests of a rule's intents, given the state of its copies; `None` if it is
    /// unknown.
    pub fn shown(&mut self, uid: &RuleUid, shows: impl Fn(&SourceRef) -> Shows) -> Option<Shown> {
        let rule = self.rules.get(uid)?;
        if rule.shown.1 {
            let unknown = rule
                .intents
                .iter()
                .filter(|(_, intent)| intent.shown.is_none());
            let parts: Option<Vec<_>> = unknown
                .map(|(source, _)| Some((source.clone(), self.part(rule, source, &shows)?)))
                .collect();
            let (parts, rule) = (parts?, self.rules.get_mut(uid)?);
            for (source, part) in parts {
                if let Some(intent) = rule.intents.get_mut(&source) {
                    intent.shown = Some(part);
                    rule.shown.0.merge(part);
                }
            }
            rule.shown.1 = false;
        }
        self.rules.get(uid).map(|rule| rule.shown.0)
    }

    /// What the copies of one intent show: each content once. Of which there is none (yet), nothing can be wrong.
    fn part(
        &self,
        rule: &Rule,
        source: &SourceRef,
        shows: &impl Fn(&SourceRef) -> Shows,
    ) -> Option<Shown> {
        let intent = rule
            .intents
            .get(source)
            .filter(|intent| intent.refused.is_none())?;
        let mut contents = vec![];
        for copy in self.cluster.copies_of(rule, source) {
            match shows(&copy) {
                Shows::Nothing => {}
                Shows::Content(content) => contents.push(content?),
            }
        }
        if contents.is_empty() {
            // As it was sent: with what the rule leaves alone.
            let ignores = rule
                .terms
                .as_ref()
                .is_none_or(|(terms, _)| !terms.ignore_fields.is_empty());
            contents.push(intent.facts.as_ref()?.digest.filter(|_| !ignores)?);
        }
        contents.sort_unstable();
        contents.dedup();
        let mut part = Shown::default();
        contents
            .into_iter()
            .for_each(|content| part.insert(source, content));
        Some(part)
    }
}
