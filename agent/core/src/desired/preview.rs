//! Applies a preview to a copy of the desired set, as the hub's frames would. The copy is dropped
//! afterwards.
use runnel_proto::model::{
    Batch, ContentRules, Enforcement, PreviewIntent, PreviewRequest, Refusal, RuleDelta, RuleUid,
    Terms,
};

use super::Desired;
use super::{BatchResult, check_name};
use crate::copy::IntentKey;
use crate::policy::Facts;
use crate::records::Records;

impl Desired {
    /// Applies the previewed state like a batch of the hub. Of the payloads it has only the facts
    /// that the policy judges.
    pub fn preview(&mut self, asked: &PreviewRequest, records: &Records) {
        let delta = || RuleDelta::new(asked.uid.clone());
        let batch = |delta: RuleDelta| Batch {
            nonce: 0,
            rules: vec![delta],
        };
        if asked.terms.is_some() {
            // The question is about the enforced rule.
            let enforced = |(terms, digest): (Terms, _)| {
                (
                    Terms {
                        enforcement: Enforcement::Enforce,
                        ..terms
                    },
                    digest,
                )
            };
            self.take(
                batch(RuleDelta {
                    terms: asked.terms.clone().map(enforced),
                    ..delta()
                }),
                vec![],
                records,
            );
        }
        let mut result = BatchResult::default();
        for intent in &asked.intents {
            self.preview_intent(&asked.uid, intent, records, &mut result);
        }
        if !asked.tombstones.is_empty() || asked.removal.is_some() {
            let tombstones = asked.tombstones.clone();
            self.take(
                batch(RuleDelta {
                    tombstones,
                    removal: asked.removal,
                    ..delta()
                }),
                vec![],
                records,
            );
        }
    }

    fn preview_intent(
        &mut self,
        uid: &RuleUid,
        preview_result: &PreviewIntent,
        records: &Records,
        result: &mut BatchResult,
    ) {
        let (source, revision) = (
            preview_result.intent.source.clone(),
            preview_result.intent.revision,
        );
        if let Err(copy_error) = check_name(&source) {
            let (rule, reason, message) = (
                uid.clone(),
                copy_error.reason,
                copy_error.message.to_string(),
            );
            return self.refuse(
                Refusal {
                    rule,
                    source,
                    revision,
                    reason,
                    message,
                },
                result,
            );
        }
        let key = IntentKey {
            rule: uid.clone(),
            source,
        };
        let known = self.rules.intent_of(&key);
        let facts = Facts {
            mode: known.and_then(|known| known.mode),
            ..Facts::announced(
                ContentRules::of(&key.source.resource),
                preview_result.bytes,
                preview_result.object_type.as_deref(),
            )
        };
        self.put(&key, revision, Some(facts), records, result);
    }
}
