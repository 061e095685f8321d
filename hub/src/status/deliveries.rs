//! How long edits of sources take until they are applied: begun when a watch of the hub shows a new version of a source,
//! over for a cluster when its agent reports every copy of the rule applied as the plan then says.
//!
//! An edit is followed only in the clusters that are connected when it comes: what a cluster that was away catches up on,
//! and a copy that fails, say nothing about how fast edits travel. Edits of one rule that overlap count as one, from the
//! first on.
use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use runnel_proto::model::{ClusterName, RuleState, RuleUid};

use crate::plan::Share;

/// Edits that are on their way.
#[derive(Default)]
pub struct Deliveries {
    under_way: BTreeMap<ClusterName, BTreeMap<RuleUid, Instant>>,
}

impl Deliveries {
    /// An edit that was seen at `since` goes to a cluster.
    pub fn begin(&mut self, cluster: &ClusterName, rule: &RuleUid, since: Instant) {
        self.under_way.entry(cluster.clone()).or_default().entry(rule.clone()).or_insert(since);
    }

    /// The agent of a cluster reports on a rule of which it should have this. Returns what the delivery took, if this ends one.
    pub fn reported(
        &mut self,
        cluster: &ClusterName,
        state: &RuleState,
        share: Option<&Share>,
        now: Instant,
    ) -> Option<Duration> {
        let waiting = self.under_way.get_mut(cluster)?;
        let since = *waiting.get(&state.uid)?;
        let counts = state.counts;
        let failed = counts.failed > 0 || state.gone || share.is_none();
        let holds = share.is_some_and(|share| {
            let same = state.intents_digest == share.digest() && state.terms_digest == Some(share.terms.digest);
            same && counts.is_settled()
        });
        if !failed && !holds {
            return None;
        }
        waiting.remove(&state.uid);
        if waiting.is_empty() {
            self.under_way.remove(cluster);
        }
        (!failed).then(|| now.saturating_duration_since(since))
    }

    /// The agent of a cluster is no longer connected: what it gets later was not on its way all the time.
    pub fn lost(&mut self, cluster: &ClusterName) {
        self.under_way.remove(cluster);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use runnel_proto::model::{Counts, Payload, Revision, SourceRef};
    use serde_json::json;

    use super::*;
    use crate::crd::DistributionRule;
    use crate::plan::{Body, Rule, RulePlan, SourceContent};

    fn share(revision: u8) -> Share {
        let object: DistributionRule = serde_json::from_value(json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 1},
            "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
        }))
        .unwrap();
        let rule = Rule::namespaced(&object, "runnel-system").unwrap();
        let mut plan = RulePlan::empty(&rule);
        let content = SourceContent::new(Revision([revision; 16]), Payload::encode(vec![]));
        plan.set(&SourceRef::new("configmaps", "a", "s"), Some(&Body::Read(Arc::new(content))));
        let (cluster, plan, judged) = ("one".into(), Arc::new(plan), Arc::default());
        Share { cluster, plan, terms: rule.terms, judged }
    }

    fn state(share: &Share, applied: u32, failed: u32) -> RuleState {
        RuleState {
            uid: share.plan.uid.clone(),
            rule: share.terms.rule.clone(),
            intents_digest: share.digest(),
            intents: 1,
            terms_digest: Some(share.terms.digest),
            counts: Counts { copies: 2, applied, failed, ..Counts::default() },
            failures: vec![],
            gone: false,
            takeovers: None,
            given_up: None,
        }
    }

    #[test]
    fn an_edit_is_delivered_when_all_copies_of_the_newest_plan_are_applied() {
        let (one, start) = (ClusterName::from("one"), Instant::now());
        let (old, new) = (share(1), share(2));
        let mut deliveries = Deliveries::default();
        deliveries.begin(&one, &new.plan.uid, start);
        deliveries.begin(&one, &new.plan.uid, start + Duration::from_secs(1));
        let after = |seconds| start + Duration::from_secs(seconds);
        assert_eq!(deliveries.reported(&one, &state(&old, 2, 0), Some(&new), after(2)), None);
        assert_eq!(deliveries.reported(&one, &state(&new, 1, 0), Some(&new), after(3)), None);
        let took = deliveries.reported(&one, &state(&new, 2, 0), Some(&new), after(4));
        assert_eq!(took, Some(Duration::from_secs(4)));
        assert_eq!(deliveries.reported(&one, &state(&new, 2, 0), Some(&new), after(5)), None);
        assert!(deliveries.under_way.is_empty());
    }

    #[test]
    fn failures_and_clusters_that_go_away_are_not_measured() {
        let (one, start, share) = (ClusterName::from("one"), Instant::now(), share(1));
        let mut deliveries = Deliveries::default();
        deliveries.begin(&one, &share.plan.uid, start);
        assert_eq!(deliveries.reported(&one, &state(&share, 1, 1), Some(&share), start), None);
        assert_eq!(deliveries.reported(&one, &state(&share, 2, 0), Some(&share), start), None);
        deliveries.begin(&one, &share.plan.uid, start);
        deliveries.lost(&one);
        assert_eq!(deliveries.reported(&one, &state(&share, 2, 0), Some(&share), start), None);
    }
}
