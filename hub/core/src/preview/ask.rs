//! The request to each cluster's agent, with the previewed state.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use parking_lot::Mutex;
use runnel_proto::model::{
    ClusterName, ContentRules, DIFF_FIELDS, FieldDigests, FieldsKey, Intent, PREVIEW_LIMIT,
    Payload, PreviewIntent, PreviewRequest, SourceRef, Terms, Tombstone,
};

use super::{PreviewIndex, ReportedCopiesFn};
use crate::index::{Cluster, Directive, RuleEntry};
use crate::plan::{ClusterAssignment, SourceContent};

/// The most bytes of payload in one request, which is one message.
const PAYLOADS: usize = 2 << 20;

/// The most bytes of paths and digests in one request.
const DIGESTS: usize = 512 << 10;
/// Bytes of one digest beside its path.
const DIGEST: usize = 24;

/// The note for a cluster with the state before the current rollout.
const BEHIND: &str = "it waits for its wave in the current rollout: what that change would remove there is not known";

/// The eligibility of a cluster for the rule.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ClusterEligibility {
    /// Its agent can be queried.
    Eligible,
    /// The cluster is not accepted.
    NotAccepted,
    /// The cluster is leaving.
    Leaving,
    /// No grant covers the rule there.
    NotGranted,
    /// The grants are unknown.
    Unknown,
    /// The rule is suspended and does not select it: existing copies stay.
    Idle,
}

/// A cluster that the rule concerns.
pub struct ClusterQuestion {
    /// The cluster.
    pub cluster: ClusterName,
    /// The eligibility.
    pub eligibility: ClusterEligibility,
    /// The message; may be empty.
    pub message: String,
    /// The wave of a rollout; 0: none.
    pub wave: u32,
}

impl PreviewIndex {
    /// The clusters that the rule has, or had, to do with.
    pub fn clusters(&self, holdings: ReportedCopiesFn<'_>) -> Vec<ClusterQuestion> {
        let Some(entry) = self.index.rules().get(&self.focus.uid) else {
            return vec![];
        };
        let waves = self.waves(entry);
        let concerned = |name: &ClusterName, cluster: &Cluster| {
            let holds =
                || holdings(&self.focus.uid, name).is_some_and(|blocked| blocked.copies > 0);
            let target_clusters = &entry.target_clusters;
            if self
                .focus
                .clusters
                .as_ref()
                .is_some_and(|announced| !announced.contains(name))
            {
                return false;
            }
            entry.rule.chooses(name, &cluster.labels)
                || target_clusters.clusters.contains_key(name)
                || self.focus.former.contains_key(name)
                || holds()
        };
        let all = self
            .index
            .clusters()
            .iter()
            .filter(|(name, cluster)| concerned(name, cluster));
        let ask = |(name, cluster): (&ClusterName, &Cluster)| {
            let (eligibility, message) = self.eligibility(entry, name, cluster);
            let wave = waves.get(name).copied().unwrap_or_default();
            ClusterQuestion {
                cluster: name.clone(),
                eligibility,
                message: message.to_owned(),
                wave,
            }
        };
        all.map(ask).collect()
    }

    fn eligibility(
        &self,
        entry: &RuleEntry,
        name: &ClusterName,
        cluster: &Cluster,
    ) -> (ClusterEligibility, &'static str) {
        if !cluster.accepted {
            return (
                ClusterEligibility::NotAccepted,
                "it is not accepted: nothing is sent there",
            );
        }
        if cluster.leaving {
            return (
                ClusterEligibility::Leaving,
                "it leaves: it gets nothing new",
            );
        }
        match self.directive(name) {
            Directive::Unknown => (
                ClusterEligibility::Unknown,
                "the hub cannot read the grants now: nothing is sent or removed",
            ),
            Directive::Suspended(_) => (
                ClusterEligibility::Idle,
                "spec.suspend is true: existing copies are left unchanged",
            ),
            Directive::Removed(_) | Directive::AwaitingHandover(..) | Directive::RemovalBlocked
                if entry.target_clusters.not_granted.contains(name) && !self.has(name) =>
            {
                (
                    ClusterEligibility::NotGranted,
                    "no DistributionGrant allows the rule to send there",
                )
            }
            Directive::Removed(_) | Directive::AwaitingHandover(..) | Directive::RemovalBlocked
                if entry.target_clusters.not_granted.contains(name) =>
            {
                (
                    ClusterEligibility::Eligible,
                    "no DistributionGrant allows the rule to send there any more",
                )
            }
            Directive::Removed(_) | Directive::AwaitingHandover(..) | Directive::RemovalBlocked
                if entry.rule.deleting =>
            {
                (ClusterEligibility::Eligible, "")
            }
            Directive::Removed(_) | Directive::AwaitingHandover(..) | Directive::RemovalBlocked => {
                (
                    ClusterEligibility::Eligible,
                    "spec.clusters does not choose it any more",
                )
            }
            Directive::Cordoned(_) => (
                ClusterEligibility::Eligible,
                "it is cordoned: it keeps what it has and gets nothing new",
            ),
            Directive::AwaitingWave(_) if entry.is_rolling_back() => (
                ClusterEligibility::Eligible,
                "its rollout is rolled back: this is what a new change would do",
            ),
            Directive::Assigned(_) | Directive::AwaitingWave(_)
                if self.focus.behind.contains(name) =>
            {
                (ClusterEligibility::Eligible, BEHIND)
            }
            Directive::Assigned(_) | Directive::AwaitingWave(_) | Directive::Orphaned => {
                (ClusterEligibility::Eligible, "")
            }
        }
    }

    /// The directive to a cluster, when its wave has come.
    fn directive(&self, name: &ClusterName) -> Directive {
        let entry = self.index.rules().get(&self.focus.uid);
        match self.index.directive(&self.focus.uid, name) {
            Directive::AwaitingWave(assignment)
                if entry.is_some_and(|entry| entry.target_clusters.cordoned.contains(name)) =>
            {
                Directive::Cordoned(assignment)
            }
            directive => directive,
        }
    }

    fn has(&self, name: &ClusterName) -> bool {
        self.focus.former.contains_key(name)
    }

    /// Returns the wave of each cluster, if all waves before it succeed.
    fn waves(&self, entry: &RuleEntry) -> BTreeMap<ClusterName, u32> {
        let Some(rollout) = entry
            .rule
            .rollout
            .as_ref()
            .filter(|_| !entry.rule.terms.suspend)
        else {
            return BTreeMap::new();
        };
        let turns = entry.rollout_order(self.index.clusters(), None);
        let room = rollout.max_concurrency.of(turns.len());
        let (mut waves, mut wave, mut inside) = (BTreeMap::new(), 0, 0);
        let mut value = None;
        for turn in turns {
            if wave == 0 || inside >= room || value != Some(turn.value.clone()) {
                (wave, inside, value) = (wave + 1, 0, Some(turn.value.clone()));
            }
            inside += 1;
            waves.insert(turn.cluster, wave);
        }
        waves
    }

    /// Returns the request to a cluster's agent; `None`: nothing would be sent, or the cluster
    /// waits for its wave.
    pub fn question(
        &self,
        cluster: &ClusterName,
        context: &QuestionContext,
    ) -> Option<AgentQuestion> {
        let directive = self.directive(cluster);
        // A cluster that waits for its wave gets nothing of the change, not even as a dry run.
        let awaits = matches!(directive, Directive::AwaitingWave(_));
        let dry_run = context.dry_run && !awaits;
        let nothing = || PreviewRequest {
            dry_run,
            key: context.key,
            ..PreviewRequest::nothing(0, self.focus.uid.clone())
        };
        let (asked, left_out) = match directive {
            Directive::Assigned(assignment) | Directive::AwaitingWave(assignment) => {
                let terms = Terms::clone(assignment.terms());
                let mut room = QuestionBudget {
                    payloads: if dry_run { PAYLOADS } else { 0 },
                    digests: 0,
                };
                if context.diff && !awaits {
                    room.digests = DIGESTS;
                }
                let intents = assignment.intents().take(PREVIEW_LIMIT);
                let intents = intents
                    .filter_map(|(source, content)| context.intent(source, content, &mut room));
                let intents: Vec<_> = intents.collect();
                let left_out = assignment.intents().count().saturating_sub(intents.len());
                let terms = Some((terms, assignment.terms().digest));
                let (asked, gone) = self.with_removals(cluster, &assignment, nothing());
                (
                    PreviewRequest {
                        terms,
                        intents,
                        ..asked
                    },
                    left_out + gone,
                )
            }
            Directive::Cordoned(assignment) => self.with_removals(cluster, &assignment, nothing()),
            Directive::Removed(policy) | Directive::AwaitingHandover(policy, _) => (
                PreviewRequest {
                    removal: Some(policy),
                    ..nothing()
                },
                0,
            ),
            Directive::RemovalBlocked => (
                PreviewRequest {
                    blocks_all: true,
                    ..nothing()
                },
                0,
            ),
            Directive::Suspended(_) | Directive::Unknown | Directive::Orphaned => return None,
        };
        Some(AgentQuestion {
            asked: Box::new(asked),
            left_out,
        })
    }

    /// Returns the cluster's current sources that would be removed, and the number of omitted ones.
    fn with_removals(
        &self,
        cluster: &ClusterName,
        assignment: &ClusterAssignment,
        mut asked: PreviewRequest,
    ) -> (PreviewRequest, usize) {
        let mut left_out = 0;
        let deletion_policy = assignment.terms().deletion_policy;
        let gone = self
            .former_assignment(cluster)
            .into_iter()
            .flat_map(ClusterAssignment::intents)
            .map(|(source, _)| source);
        for source in gone
            .filter(|source| assignment.content(source).is_none() && !assignment.is_unknown(source))
        {
            if asked.blocked.len() + asked.tombstones.len() >= PREVIEW_LIMIT {
                left_out += 1;
            } else if assignment.must_stay(source) {
                asked.blocked.insert(source.clone());
            } else {
                asked.tombstones.push(Tombstone {
                    source: source.clone(),
                    deletion_policy,
                });
            }
        }
        (asked, left_out)
    }
}

/// The shared state of one plan's requests.
pub struct QuestionContext {
    key: FieldsKey,
    dry_run: bool,
    diff: bool,
    /// The digests of content that many clusters would have, by its address.
    known: Mutex<BTreeMap<usize, InternedContent>>,
}

/// Content with its digests, kept alive so that its address stays unique.
struct InternedContent {
    _content: Arc<SourceContent>,
    announced: Option<ContentDigests>,
}

/// The digests of content.
#[derive(Clone)]
struct ContentDigests {
    bytes: u64,
    object_type: Option<Arc<str>>,
    fields: [u8; 32],
    digests: Option<Arc<FieldDigests>>,
}

/// The remaining size of one request, in bytes.
struct QuestionBudget {
    payloads: usize,
    digests: usize,
}

/// The request to one agent.
pub struct AgentQuestion {
    /// The question, without a number.
    pub asked: Box<PreviewRequest>,
    /// Number of omitted sources.
    pub left_out: usize,
}

impl QuestionContext {
    /// Creates requests with this key; `dry_run`: with content; `diff`: with digests of each field.
    pub fn new(key: FieldsKey, dry_run: bool, diff: bool) -> Self {
        Self {
            key,
            dry_run,
            diff,
            known: Mutex::default(),
        }
    }

    /// Whether writes are tried as a dry run.
    pub fn is_dry_run(&self) -> bool {
        self.dry_run
    }

    /// Returns the digests of content, if the hub can decode it. They are computed once for all
    /// clusters.
    fn announced(
        &self,
        rules: &ContentRules,
        content: &Arc<SourceContent>,
    ) -> Option<ContentDigests> {
        let compute = || {
            let plain = content.payload.decode().ok()?;
            let object_type = plain.fields.get("type").and_then(|named| named.as_str());
            let object_type = object_type
                .filter(|named| !named.is_empty())
                .map(Into::into);
            let bytes = plain.value_bytes(rules);
            let digests = self.diff.then(|| self.key.digests(rules, &plain));
            let digests = digests.filter(|all| all.len() <= DIFF_FIELDS).map(Arc::new);
            Some(ContentDigests {
                bytes,
                object_type,
                fields: self.key.name(plain, &BTreeSet::new()),
                digests,
            })
        };
        let mut known = self.known.lock();
        let known = known.entry(Arc::as_ptr(content) as usize);
        known
            .or_insert_with(|| InternedContent {
                _content: content.clone(),
                announced: compute(),
            })
            .announced
            .clone()
    }

    fn intent(
        &self,
        source: &SourceRef,
        content: &Arc<SourceContent>,
        room: &mut QuestionBudget,
    ) -> Option<PreviewIntent> {
        let ContentDigests {
            bytes,
            object_type,
            fields,
            digests,
        } = self.announced(ContentRules::of(&source.resource), content)?;
        let size = content.payload.bytes().len();
        let payload = if size <= room.payloads && room.payloads > 0 {
            room.payloads -= size;
            content.payload.clone()
        } else {
            Payload::from_wire(content.payload.encoding(), Vec::new().into(), 0)
        };
        let intent = Intent {
            source: source.clone(),
            revision: content.revision,
            payload,
        };
        let cost = |all: &FieldDigests| all.keys().map(|path| path.len() + DIGEST).sum::<usize>();
        let digests = digests.filter(|all| cost(all) <= room.digests && room.digests > 0);
        room.digests -= digests.as_deref().map_or(0, cost);
        Some(PreviewIntent {
            intent,
            bytes,
            object_type,
            fields,
            digests,
        })
    }
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::{Content, Revision};

    use super::*;

    #[test]
    fn content_that_many_clusters_would_have_is_looked_at_once() {
        let payload = Payload::encode(Content::default().to_bytes());
        let content = Arc::new(SourceContent::new(Revision([1; 16]), payload));
        let context = QuestionContext::new(FieldsKey([1; 32]), false, true);
        let rules = ContentRules::of("configmaps");
        for _ in 0..3 {
            assert!(context.announced(rules, &content).is_some());
        }
        // Set by hand, so that a second evaluation would show.
        context
            .known
            .lock()
            .values_mut()
            .for_each(|known| known.announced = None);
        assert!(context.announced(rules, &content).is_none());
        assert_eq!(context.known.lock().len(), 1);
    }
}
