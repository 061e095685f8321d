//! The state that a completed rollout of a rule sent to its clusters, and its encoding. A rollback
//! sends it again.
//!
//! The state has contents and terms before an agent resolves namespaces, exactly as in the frames
//! of the protocol. Encoded, it is one zstd frame of JSON lines: a header, each content once, then
//! the intents of the clusters. It contains values of Secrets: no type here has `Debug`, and no
//! error names a part of it.
use std::collections::{BTreeMap, BTreeSet};
use std::io::{self, BufRead, BufReader, Read, Write};
use std::sync::Arc;

use runnel_proto::model::{ClusterName, Content, Revision, RuleUid, SourceRef, Terms};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::{ClusterPlans, NamedTerms, Rule, RulePlan, Scope, SourceContent, TargetClusters};

/// The version of the encoding.
const VERSION: u32 = 1;
/// The most bytes that an encoded state may decompress to.
const PLAIN_LIMIT: u64 = 1 << 30;
const LEVEL: i32 = 3;

/// The reason why a rule cannot be rolled back.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum RollbackBlocker {
    /// No rollout was completed with `onFailure: Revert`, or its state was not stored.
    #[default]
    NoneCompleted,
    /// The state of the last completed rollout is not known in full, for this reason.
    Incomplete(&'static str),
    /// It does not fit into the hub's storage.
    TooLarge,
    /// It is stored, and cannot be decoded.
    Damaged,
    /// The hub lacks the right to read its storage.
    Unreadable,
}

impl RollbackBlocker {
    /// Returns the message, without a final period.
    pub fn message(&self) -> String {
        match self {
            Self::NoneCompleted => "no state of a completed rollout is kept: none was completed while \
                                    spec.rollout.onFailure was Revert, or an edit followed before the hub could store it"
                .to_owned(),
            Self::Incomplete(why) => format!("the state of the last completed rollout was not stored: {why}"),
            Self::TooLarge => "the state of the last completed rollout does not fit into the hub's storage for rollbacks; \
                               raise --rollback-storage (chart value rollback.storageMiB)"
                .to_owned(),
            Self::Damaged => {
                "the stored state of the last completed rollout is damaged: the Secrets runnel-hub-rollback-* were changed"
                    .to_owned()
            }
            Self::Unreadable => "the hub may not read the Secrets runnel-hub-rollback-* of its own namespace; upgrade its \
                                 chart for the right"
                .to_owned(),
        }
    }
}

/// The state of a completed rollout.
pub struct CompletedState {
    /// The target of the rollout.
    pub revision: String,
    terms: Terms,
    plans: Plans,
}

/// The plans by cluster.
enum Plans {
    /// All clusters get the same plan.
    Uniform(Arc<RulePlan>),
    /// Each cluster has its own plan.
    PerCluster(BTreeMap<ClusterName, Arc<RulePlan>>),
}

/// The plans and targets of a rule during a rollback, with the current grants.
pub struct FormerPlans {
    /// The plans.
    pub cluster_plans: ClusterPlans,
    /// The clusters and their terms.
    pub target_clusters: TargetClusters,
}

impl CompletedState {
    /// Captures the current state of a rule, with its digest.
    ///
    /// # Errors
    /// [`RollbackBlocker::Incomplete`], if some content is unknown.
    pub fn of(
        rule: &Rule,
        selection: &Arc<RulePlan>,
        cluster_plans: &ClusterPlans,
        target_clusters: &TargetClusters,
        revision: &str,
    ) -> Result<Self, RollbackBlocker> {
        if target_clusters.unknown || cluster_plans.exceeds() {
            return Err(RollbackBlocker::Incomplete(
                "the hub did not have all that the rule sends",
            ));
        }
        is_complete(selection)?;
        let plan_of = |cluster: &ClusterName| {
            let missing = RollbackBlocker::Incomplete("copies of a cluster were being rendered");
            let plan = cluster_plans.plan(cluster, selection).ok_or(missing)?;
            is_complete(plan)?;
            Ok((cluster.clone(), plan.clone()))
        };
        let plans = if cluster_plans.differs_by_cluster() {
            Plans::PerCluster(
                target_clusters
                    .clusters
                    .keys()
                    .map(plan_of)
                    .collect::<Result<_, _>>()?,
            )
        } else {
            Plans::Uniform(plan_of(&"".into())?.1)
        };
        Ok(Self {
            revision: revision.to_owned(),
            terms: Terms::clone(&rule.terms),
            plans,
        })
    }

    /// Returns the plans for the currently chosen clusters, with the former terms, the current
    /// grants and the current suspension. A new cluster gets nothing if contents differ by cluster.
    pub fn plans(&self, rule: &Rule, now: &TargetClusters, scope: &Scope) -> FormerPlans {
        let mut known: BTreeMap<[u8; 16], NamedTerms> = BTreeMap::new();
        let mut target_clusters = now.clone();
        for terms in target_clusters.clusters.values_mut() {
            let digest = terms.digest.0;
            let former = known.entry(digest).or_insert_with(|| {
                let (grants, suspend) = (terms.grants.clone(), terms.suspend);
                NamedTerms::new(Terms {
                    grants,
                    suspend,
                    ..self.terms.clone()
                })
            });
            *terms = former.clone();
        }
        // Clusters that share a plan continue to share it.
        let mut scoped_plans: BTreeMap<*const RulePlan, Arc<RulePlan>> = BTreeMap::new();
        let mut scoped = |plan: &Arc<RulePlan>| {
            let scoped = || {
                if plan.scope == *scope {
                    plan.clone()
                } else {
                    Arc::new(RulePlan {
                        scope: scope.clone(),
                        ..RulePlan::clone(plan)
                    })
                }
            };
            scoped_plans
                .entry(Arc::as_ptr(plan))
                .or_insert_with(scoped)
                .clone()
        };
        let cluster_plans = match &self.plans {
            Plans::Uniform(plan) => ClusterPlans::uniform(scoped(plan)),
            Plans::PerCluster(by_cluster) => {
                let nothing = Arc::new(RulePlan::empty(rule));
                let plan =
                    |cluster: &ClusterName| scoped(by_cluster.get(cluster).unwrap_or(&nothing));
                ClusterPlans::per_cluster(
                    now.clusters
                        .keys()
                        .cloned()
                        .zip(now.clusters.keys().map(plan)),
                )
            }
        };
        FormerPlans {
            cluster_plans,
            target_clusters,
        }
    }

    /// Encodes the state; `None` if it exceeds `limit` bytes.
    pub fn encode(&self, uid: &RuleUid, limit: usize) -> Option<Vec<u8>> {
        let mut encoder = zstd::stream::write::Encoder::new(
            LimitedWriter {
                bytes: Vec::new(),
                limit,
            },
            LEVEL,
        )
        .ok()?;
        encoder.include_checksum(true).ok()?;
        self.write(uid, &mut encoder).ok()?;
        Some(encoder.finish().ok()?.bytes)
    }

    fn write(&self, uid: &RuleUid, out: &mut impl Write) -> io::Result<()> {
        let plans = self.distinct_plans();
        let mut numbers: BTreeMap<*const SourceContent, usize> = BTreeMap::new();
        let mut contents = Vec::new();
        for content in plans
            .iter()
            .flat_map(|(_, plan)| plan.intents.iter().map(|(_, content)| content))
        {
            numbers.entry(Arc::as_ptr(content)).or_insert_with(|| {
                contents.push(content);
                contents.len() - 1
            });
        }
        let header = Header {
            version: VERSION,
            rule: uid.to_string(),
            revision: self.revision.clone(),
            terms: self.terms.clone(),
            uniform: matches!(self.plans, Plans::Uniform(_)),
            contents: contents.len(),
            plans: plans.len(),
        };
        write_line(out, &header)?;
        for content in contents {
            let plain = content.payload.decode().map_err(io::Error::other)?;
            write_line(
                out,
                &StoredContent {
                    revision: content.revision.0,
                    content: plain,
                },
            )?;
        }
        for (clusters, plan) in &plans {
            let number = |content: &Arc<SourceContent>| {
                let number = numbers.get(&Arc::as_ptr(content)).copied();
                number.ok_or_else(|| io::Error::other("a plan has content that is not stored"))
            };
            let intents = plan
                .intents
                .iter()
                .map(|(source, content)| Ok((named(source), number(content)?)))
                .collect::<io::Result<_>>()?;
            let clusters = clusters
                .iter()
                .map(|cluster| cluster.as_str().to_owned())
                .collect();
            write_line(out, &StoredPlan { clusters, intents })?;
        }
        Ok(())
    }

    /// Each plan once, with the clusters that get it.
    fn distinct_plans(&self) -> Vec<(Vec<&ClusterName>, &Arc<RulePlan>)> {
        let by_cluster = match &self.plans {
            Plans::Uniform(plan) => return vec![(Vec::new(), plan)],
            Plans::PerCluster(by_cluster) => by_cluster,
        };
        let mut distinct: BTreeMap<*const RulePlan, (Vec<&ClusterName>, &Arc<RulePlan>)> =
            BTreeMap::new();
        for (cluster, plan) in by_cluster {
            distinct
                .entry(Arc::as_ptr(plan))
                .or_insert_with(|| (Vec::new(), plan))
                .0
                .push(cluster);
        }
        distinct.into_values().collect()
    }

    /// Decodes the state of a rule; `None` for anything that [`CompletedState::encode`] has not written for this rule.
    pub fn decode(uid: &RuleUid, bytes: &[u8]) -> Option<Self> {
        let decoder = zstd::stream::read::Decoder::new(bytes).ok()?;
        let mut lines = BufReader::new(decoder.take(PLAIN_LIMIT));
        let header: Header = read_line(&mut lines)?;
        if header.version != VERSION || header.rule != uid.as_str() {
            return None;
        }
        let mut contents = Vec::new();
        for _ in 0..header.contents {
            let StoredContent { revision, content } = read_line(&mut lines)?;
            let canonical = content.to_bytes();
            contents.push(Arc::new(SourceContent::of(
                Revision(revision),
                &content,
                canonical,
            )));
        }
        let (mut uniform, mut by_cluster) = (None, BTreeMap::new());
        for _ in 0..header.plans {
            let StoredPlan { clusters, intents } = read_line(&mut lines)?;
            let mut plan = RulePlan::sent(uid, &header.terms.ignore_fields);
            for (source, number) in intents {
                plan.put_in(source_of(&source), contents.get(number)?.clone());
            }
            let plan = Arc::new(plan);
            by_cluster.extend(
                clusters
                    .into_iter()
                    .map(|cluster| (cluster.as_str().into(), plan.clone())),
            );
            uniform = Some(plan);
        }
        // The checksum is at the end.
        if lines.read(&mut [0]).ok()? > 0 {
            return None;
        }
        let plans = if header.uniform {
            Plans::Uniform(uniform?)
        } else {
            Plans::PerCluster(by_cluster)
        };
        Some(Self {
            revision: header.revision,
            terms: header.terms,
            plans,
        })
    }
}

/// Whether every content of a plan is known.
fn is_complete(plan: &RulePlan) -> Result<(), RollbackBlocker> {
    let why = if !plan.render_errors.is_empty() {
        "copies could not be rendered"
    } else if !plan.unread.is_empty() || !plan.unreadable.is_empty() || !plan.unknown.is_empty() {
        "the hub could not read all of its sources"
    } else {
        return Ok(());
    };
    Err(RollbackBlocker::Incomplete(why))
}

impl RulePlan {
    /// A plan of a rule that leaves these fields of copies alone, without any source.
    fn sent(uid: &RuleUid, ignored: &BTreeSet<runnel_proto::model::FieldPath>) -> Self {
        Self {
            shown: super::Expected::with_ignored(ignored),
            ..Self::of(uid, &Scope::default())
        }
    }
}

/// Collects bytes up to a limit.
struct LimitedWriter {
    bytes: Vec<u8>,
    limit: usize,
}

impl Write for LimitedWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.bytes.len() + bytes.len() > self.limit {
            return Err(io::Error::other("too large"));
        }
        self.bytes.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

fn write_line(out: &mut impl Write, value: &impl Serialize) -> io::Result<()> {
    serde_json::to_writer(&mut *out, value)?;
    out.write_all(b"\n")
}

fn read_line<T: DeserializeOwned>(lines: &mut impl BufRead) -> Option<T> {
    let mut line = Vec::new();
    lines.read_until(b'\n', &mut line).ok()?;
    serde_json::from_slice(&line).ok()
}

fn named(source: &SourceRef) -> StoredSource {
    let text = |part: &str| part.to_owned();
    (
        text(&source.resource),
        text(&source.namespace),
        text(&source.name),
        text(source.copy_name()),
    )
}

fn source_of((resource, namespace, name, copy): &StoredSource) -> SourceRef {
    SourceRef::new(resource, namespace, name).as_copy(copy)
}

/// Kind, namespace and name of a source, and the name of its copies.
type StoredSource = (String, String, String, String);

#[derive(Serialize, Deserialize)]
struct Header {
    version: u32,
    rule: String,
    revision: String,
    terms: Terms,
    uniform: bool,
    contents: usize,
    plans: usize,
}

#[derive(Serialize, Deserialize)]
struct StoredContent {
    revision: [u8; 16],
    content: Content,
}

#[derive(Serialize, Deserialize)]
struct StoredPlan {
    clusters: Vec<String>,
    intents: Vec<(StoredSource, usize)>,
}

#[cfg(test)]
mod tests {
    use runnel_proto::model::Payload;
    use serde_json::json;

    use super::*;
    use crate::plan::{Labels, RevisionHasher, SourceState};

    fn rule(spec: serde_json::Value) -> Rule {
        let mut spec = spec;
        spec["sources"] = json!([{"resources": ["configmaps"], "names": ["*"]}]);
        spec["clusters"] = json!({"all": true});
        let object = json!({
            "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
            "metadata": {"name": "r", "namespace": "a", "uid": "r", "generation": 1}, "spec": spec,
        });
        let object: runnel_api::DistributionRule = serde_json::from_value(object).unwrap();
        Rule::namespaced(&object, "runnel-system").unwrap()
    }

    fn source(name: &str) -> SourceRef {
        SourceRef::new("configmaps", "a", name)
    }

    fn body(text: &str) -> SourceState {
        let fields = json!({"data": {"k": text}}).as_object().unwrap().clone();
        let content = Content {
            fields: fields.into_iter().collect(),
            ..Content::default()
        };
        let revision = Revision([text.as_bytes()[0]; 16]);
        SourceState::Read(Arc::new(SourceContent::new(
            revision,
            Payload::encode(content.to_bytes()),
        )))
    }

    fn selection(rule: &Rule) -> Arc<RulePlan> {
        let mut plan = RulePlan::empty(rule);
        plan.set(&source("one"), Some(&body(&"x".repeat(5000))));
        plan.set(&source("two"), Some(&body("y")));
        Arc::new(plan)
    }

    fn targets(rule: &Rule, clusters: &[&str]) -> TargetClusters {
        let clusters = clusters
            .iter()
            .map(|name| (ClusterName::from(*name), rule.terms.clone()))
            .collect();
        TargetClusters {
            clusters,
            ..TargetClusters::default()
        }
    }

    /// Name, revision and content of a copy.
    type Copy = (String, [u8; 16], Vec<u8>);

    /// Returns the copies of each cluster.
    fn sent(state: &CompletedState, rule: &Rule, clusters: &[&str]) -> Vec<Vec<Copy>> {
        let (scope, selection) = (Scope::default(), selection(rule));
        let plans = state.plans(rule, &targets(rule, clusters), &scope);
        let of = |cluster: &&str| {
            let plan = plans
                .cluster_plans
                .plan(&ClusterName::from(*cluster), &selection)
                .unwrap();
            let intent = |(source, content): (&SourceRef, &Arc<SourceContent>)| {
                (
                    source.copy_name().to_string(),
                    content.revision.0,
                    content.payload.decode().unwrap().to_bytes(),
                )
            };
            plan.intents.iter().map(intent).collect()
        };
        clusters.iter().map(of).collect()
    }

    fn state(rule: &Rule, clusters: &[&str]) -> CompletedState {
        let (selection, targets) = (selection(rule), targets(rule, clusters));
        let labels =
            |name: &str| Labels::new(BTreeMap::from([("name".to_owned(), name.to_owned())]));
        let clusters = clusters
            .iter()
            .map(|name| (ClusterName::from(*name), labels(name)));
        let plans = ClusterPlans::new(rule, &selection, clusters, &RevisionHasher::default());
        CompletedState::of(rule, &selection, &plans, &targets, "t0")
            .ok()
            .unwrap()
    }

    #[test]
    fn stored_state_reads_back() {
        let renamed = json!({"transform": {"name": "${source.name}-${cluster.name}"}});
        for (spec, other) in [(json!({}), 2), (renamed, 0)] {
            let rule = rule(spec);
            let state = state(&rule, &["eu", "us"]);
            let bytes = state.encode(&"r".into(), 1 << 20).unwrap();
            let read = CompletedState::decode(&"r".into(), &bytes).unwrap();
            let all = sent(&state, &rule, &["eu", "us", "new"]);
            assert_eq!(all.iter().map(Vec::len).collect::<Vec<_>>(), [2, 2, other]);
            assert!(all == sent(&read, &rule, &["eu", "us", "new"]) && read.revision == "t0");
            let digest = |state: &CompletedState| {
                let former = state.plans(&rule, &targets(&rule, &["eu"]), &Scope::default());
                former.target_clusters.clusters[&ClusterName::from("eu")].digest
            };
            assert_eq!(
                (digest(&read), digest(&read)),
                (digest(&state), rule.terms.digest)
            );
        }
    }

    #[test]
    fn anything_but_a_whole_state_of_the_rule_is_refused() {
        let rule = rule(json!({}));
        let bytes = state(&rule, &["eu"]).encode(&"r".into(), 1 << 20).unwrap();
        assert!(CompletedState::decode(&"r".into(), &bytes).is_some());
        assert!(CompletedState::decode(&"other".into(), &bytes).is_none());
        for end in 0..bytes.len() {
            assert!(
                CompletedState::decode(&"r".into(), &bytes[..end]).is_none(),
                "{end}"
            );
        }
        for at in 0..bytes.len() {
            let mut damaged = bytes.clone();
            damaged[at] ^= 0x10;
            let read = CompletedState::decode(&"r".into(), &damaged);
            assert!(
                read.is_none_or(|read| sent(&read, &rule, &["eu"])
                    == sent(&state(&rule, &["eu"]), &rule, &["eu"])),
                "{at}"
            );
        }
    }

    #[test]
    fn state_beyond_the_limit_is_not_encoded() {
        let state = state(&rule(json!({})), &["eu"]);
        let size = state.encode(&"r".into(), 1 << 20).unwrap().len();
        assert!(
            state.encode(&"r".into(), size).is_some()
                && state.encode(&"r".into(), size - 1).is_none()
        );
    }

    #[test]
    fn incomplete_state_is_not_kept() {
        let rule = rule(json!({}));
        let of = |change: &dyn Fn(&mut RulePlan)| {
            let mut plan = RulePlan::clone(&selection(&rule));
            change(&mut plan);
            let targets = targets(&rule, &["eu"]);
            CompletedState::of(
                &rule,
                &Arc::new(plan),
                &ClusterPlans::default(),
                &targets,
                "t0",
            )
            .is_ok()
        };
        assert!(of(&|_| ()));
        assert!(!of(&|plan| drop(
            plan.set(&source("three"), Some(&SourceState::Unread))
        )));
        assert!(!of(&|plan| drop(
            plan.set(&source("one"), Some(&SourceState::Unreadable))
        )));
        assert!(!of(&|plan| plan.unknown =
            BTreeSet::from([crate::plan::WatchScope::everywhere(
                "secrets"
            )])));
    }
}
