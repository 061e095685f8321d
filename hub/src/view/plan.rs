//! Requests from the API server and the agents what is needed to preview a rule.
//! [`runnel_hub_core::preview`] has the decisions.
mod change;
mod rights;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use k8s_openapi::api::authentication::v1::UserInfo;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use runnel_api::{
    PlanOptions, PlannedCluster, PlannedCopy, PlannedRule, PlannedSource, RulePlanStatus,
};
use runnel_proto::model::{ClusterName, FieldsKey, Kinds, RuleName, RuleUid, SourceRef};
use serde_json::value::RawValue;
use tokio::sync::Semaphore;
use tokio::time::{Instant as Deadline, sleep_until, timeout_at};

use super::ViewServer;
use super::error::ViewError;
use super::turns::Turn;
use crate::hub_state::InquiryError;
use crate::ordered_lock::LeafMutex;
use crate::watch::{api_in, read_kinds, read_once};
use change::PlannedChange;
use runnel_hub_core::index::{ChangedObject, ReportedCopies, RuleEntry};
use runnel_hub_core::now::Now;
use runnel_hub_core::plan::{Rule, SourceState, WatchScope, is_never_a_source};
use runnel_hub_core::preview::{
    AgentAnswer, AgentQuestion, AnswerBudget, ClusterEligibility, ClusterQuestion, PreviewIndex,
    QuestionContext, Row, SourceRow,
};

/// The time limit for one query.
const QUESTION: Duration = Duration::from_secs(30);
/// The time limit for the answer of an agent.
const ANSWER: Duration = Duration::from_secs(10);
/// The time limit for one read of the hub's own API server.
const READ_TIMEOUT: Duration = Duration::from_secs(5);
/// The limit of objects that are listed in one scope for one query.
const OBJECTS: usize = 5000;
/// The number of objects on one page of such a list.
const OBJECTS_AT_A_TIME: u32 = 50;
static PAGES: Semaphore = Semaphore::const_new(1);
/// The limits of compressed content and of sources that are read for one query. Sources beyond them
/// are unknown.
const READ_BYTES: usize = 64 * 1024 * 1024;
const READS: usize = 2000;
/// The limits of concurrent reads and of agents that are asked at the same time.
const READS_AT_A_TIME: usize = 8;
const AGENTS_AT_A_TIME: usize = 64;
/// The limits of clusters that are asked, and of copies that are returned, for one plan.
const CLUSTERS: usize = 1000;
const COPIES: usize = 20_000;
/// The limit of copies that are returned with a diff.
const DIFFS: usize = 2000;
/// The message for a cluster in which no dry run took place.
const UNTRIED: &str = "its writes were not tried: it awaits its turn in the rollout";
/// The limit of returned sources.
const SOURCES: usize = 500;

/// The kinds of rules, with the resource to which RBAC refers.
const RULE_KINDS: [(&str, &str); 2] = [
    ("DistributionRule", "distributionrules"),
    ("ClusterDistributionRule", "clusterdistributionrules"),
];

/// What is planned.
pub(super) struct PlanRequest<'b> {
    /// The kind, namespace and name of the object.
    pub(super) name: RuleName,
    /// Its manifest; `None`: it is saved.
    pub(super) object: Option<&'b RawValue>,
    /// The bundles that the plan of a rule assumes to be saved.
    pub(super) bundles: Vec<&'b RawValue>,
    /// How it is planned.
    pub(super) options: PlanOptions,
}

impl PlanRequest<'_> {
    /// Whether it is about the deletion of the saved object.
    fn deletes(&self) -> bool {
        self.options.delete && self.object.is_none()
    }
}

/// Returns the resource to which RBAC refers for a rule.
pub(super) fn resource_of(rule: &RuleName) -> Result<&'static str, ViewError> {
    let known = RULE_KINDS
        .iter()
        .find(|(kind, _)| *kind == rule.kind)
        .map(|(_, resource)| *resource);
    known.ok_or_else(|| {
        ViewError::BadRequest(
            "the kind is unknown: use DistributionRule or ClusterDistributionRule".to_owned(),
        )
    })
}

/// The answer of one cluster.
struct ClusterAnswer {
    cluster: PlannedCluster,
    reply: Option<AgentAnswer>,
}

/// The answers of the agents about one rule.
struct RuleAnswers {
    uid: RuleUid,
    name: RuleName,
    answers: Vec<ClusterAnswer>,
}

/// Why the objects of a scope could not be listed.
#[derive(Debug, thiserror::Error)]
enum ScopeListError {
    #[error("the API server of the hub does not serve it")]
    NotServed,
    #[error("the rule selects it in namespaces and it has none, or the other way round")]
    OtherScope,
    #[error("the hub ends")]
    Shutdown,
    #[error("the API server did not answer in time")]
    Silent,
    #[error("the API server did not allow the hub to list them")]
    Refused,
    #[error("there are too many of them")]
    TooMany,
    #[error("the question took too long")]
    TooLong,
}

/// The state of the requests to agents.
struct AgentQueries<'t> {
    preview: Arc<PreviewIndex>,
    asking: Arc<QuestionContext>,
    /// The number of copies and diffs that may still be returned.
    room: LeafMutex<AnswerBudget>,
    by: Deadline,
    turn: &'t Turn,
}

/// What agents have reported about their copies of each rule, by cluster.
struct ReportedCopyCounts {
    blocked: BTreeMap<(RuleUid, ClusterName), ReportedCopies>,
}

impl ReportedCopyCounts {
    fn holding(&self, rule: &RuleUid, cluster: &ClusterName) -> Option<ReportedCopies> {
        self.blocked.get(&(rule.clone(), cluster.clone())).copied()
    }
}

impl ViewServer {
    /// Plans with the rights of the user. Nothing of a manifest but its name is decoded before the rights on it are
    /// checked.
    ///
    /// # Errors
    /// [`ViewError::Forbidden`] if the user may not save the object, or not read what it selects.
    pub(super) async fn plan(
        &self,
        user: &UserInfo,
        asked: &PlanRequest<'_>,
        turn: &Turn,
    ) -> Result<RulePlanStatus, ViewError> {
        let by = Deadline::now() + QUESTION;
        self.reader().serving_since()?;
        if let Some(kind) = change::kind_of(&asked.name.kind) {
            let change = self.change(user, kind, asked, turn).await?;
            return self.plan_change(change, asked.options, by, turn).await;
        }
        self.may(user, "create", &asked.name).await?;
        let rule = match asked.object {
            None => self.saved(user, asked).await?,
            Some(object) => self.unsaved(user, &asked.name, object).await?,
        };
        self.may_read_sources(user, &rule).await?;
        let mut assumed = Vec::new();
        for bundle in &asked.bundles {
            assumed.push(self.assumed_bundle(user, bundle).await?);
        }
        // The plan shows the effect of the rule after it is enforced, or deleted.
        let rule = if asked.deletes() {
            rule.deleted()
        } else {
            rule.enforced()
        };
        let uids = BTreeSet::from([rule.uid.clone()]);
        let (reverted, around) = {
            let index = self.hub_state.index.read();
            let saved = index.rules().get(&rule.uid);
            (
                reverted_meanwhile(saved, &rule),
                index.around(&uids, Some(&rule)),
            )
        };
        let around = around.until(turn.stop());
        let preview = turn.run(move || PreviewIndex::new(around, rule)).await?;
        let rules = vec![(preview.uid().clone(), asked.name.clone())];
        let (exists, mut rules) = self
            .planned_rules(preview, assumed, rules, (asked.options, by), turn)
            .await?;
        if let Some(planned) = rules.first_mut() {
            planned.notes.extend(reverted);
        }
        Ok(RulePlanStatus {
            exists,
            rules,
            ..RulePlanStatus::default()
        })
    }

    /// Previews a change of an object that is no rule, with each rule about which agents are asked.
    async fn plan_change(
        &self,
        change: PlannedChange,
        options: PlanOptions,
        by: Deadline,
        turn: &Turn,
    ) -> Result<RulePlanStatus, ViewError> {
        let PlannedChange {
            object,
            exists,
            rules,
            asked,
            more,
            notes,
        } = change;
        let mut status = RulePlanStatus {
            exists,
            notes,
            rules: vec![],
            more_rules: i64::try_from(more).unwrap_or(i64::MAX),
        };
        let (state, stop) = (self.hub_state.clone(), turn.stop());
        let tried = move || {
            let around = state.index.read().around(&rules, None).until(stop);
            PreviewIndex::of_change(around, object, &rules)
        };
        if let Some(preview) = turn.run(tried).await? {
            let planned = self
                .planned_rules(preview, vec![], asked, (options, by), turn)
                .await?;
            status.rules = planned.1;
        }
        Ok(status)
    }

    /// Judges all rules of a preview together, with objects that are assumed to be saved, and asks
    /// agents about `rules`. Returns whether they are saved, and what they would do.
    async fn planned_rules(
        &self,
        preview: PreviewIndex,
        assumed: Vec<ChangedObject>,
        rules: Vec<(RuleUid, RuleName)>,
        (options, by): (PlanOptions, Deadline),
        turn: &Turn,
    ) -> Result<(bool, Vec<PlannedRule>), ViewError> {
        let preview = self.list_and_read(preview, by - ANSWER, turn).await?;
        let known = self.known(&preview);
        let judged = move || {
            let mut preview = preview;
            assumed
                .into_iter()
                .for_each(|object| preview.assume(object));
            preview.judge(&|rule, cluster| known.holding(rule, cluster), now());
            (preview, Arc::new(known))
        };
        let (preview, known) = turn.run(judged).await?;
        let room = LeafMutex::new(AnswerBudget {
            copies: COPIES,
            diffs: DIFFS,
        });
        let mut agent_queries = AgentQueries {
            preview: Arc::new(preview),
            asking: QuestionContext::new(random_key()?, options.dry_run, options.diff).into(),
            room,
            by,
            turn,
        };
        let mut all = Vec::new();
        for (uid, name) in rules {
            let mut preview =
                Arc::into_inner(agent_queries.preview).ok_or_else(ViewError::broken)?;
            let (focus, known) = (uid.clone(), known.clone());
            let focused = move || {
                preview.focus_on(&focus);
                let asks = preview.clusters(&|rule, cluster| known.holding(rule, cluster));
                (preview, asks)
            };
            let (preview, asks) = turn.run(focused).await?;
            agent_queries.preview = preview.into();
            let answers = self.receive_all(&agent_queries, asks).await;
            all.push(RuleAnswers { uid, name, answers });
        }
        let preview = Arc::into_inner(agent_queries.preview).ok_or_else(ViewError::broken)?;
        let diffs = if options.diff { DIFFS } else { 0 };
        let kinds = self.hub_state.kinds.borrow().clone();
        turn.run(move || concluded(preview, all, &known, diffs, &kinds))
            .await
    }

    async fn receive_all(
        &self,
        agent_queries: &AgentQueries<'_>,
        asks: Vec<ClusterQuestion>,
    ) -> Vec<ClusterAnswer> {
        stream::iter(asks.into_iter().enumerate())
            .map(|(number, ask)| self.receive(agent_queries, ask, number < CLUSTERS))
            .buffered(AGENTS_AT_A_TIME)
            .collect()
            .await
    }

    /// Returns what agents have reported about the rules of the preview.
    fn known(&self, preview: &PreviewIndex) -> ReportedCopyCounts {
        let report_store = self.hub_state.report_store.lock();
        let mut blocked = BTreeMap::new();
        for uid in preview.rules() {
            let all = preview.index().clusters().iter();
            let of_rule = all.filter_map(|(cluster, _)| {
                Some((
                    (uid.clone(), cluster.clone()),
                    report_store.reported_copies(&uid, cluster)?,
                ))
            });
            blocked.extend(of_rule);
        }
        ReportedCopyCounts { blocked }
    }

    /// Lists and reads the sources that no saved rule has needed so far. Those that are not read in
    /// time are unknown.
    async fn list_and_read(
        &self,
        mut preview: PreviewIndex,
        by: Deadline,
        turn: &Turn,
    ) -> Result<PreviewIndex, ViewError> {
        let mut listed = Vec::new();
        if let Some(rule) = preview.rule() {
            self.find_kinds_of(rule).await;
        }
        for place in preview.unlisted() {
            let Some(rule) = preview.rule() else { break };
            let found = timeout_at(by, self.listed(&place, rule)).await;
            listed.push((place, found.unwrap_or(Err(ScopeListError::TooLong))));
        }
        let list = move || {
            for (place, found) in listed {
                match found {
                    Ok(objects) => preview.list(place, objects),
                    Err(error) => preview.cannot_list(place, &error.to_string()),
                }
            }
            preview
        };
        let mut preview = turn.run(list).await?;
        let unread: Vec<_> = preview.unread().iter().take(READS).cloned().collect();
        let (client, state) = (&self.client, &self.hub_state);
        let read = async |source: SourceRef| (read_once(client, state, &source).await, source);
        let reads = stream::iter(unread)
            .map(read)
            .buffer_unordered(READS_AT_A_TIME);
        let mut bytes = 0usize;
        let fits = move |(body, _): &(SourceState, SourceRef)| {
            if let SourceState::Read(content) | SourceState::Stale(content) = body {
                bytes = bytes.saturating_add(content.size_bytes());
            }
            std::future::ready(bytes <= READ_BYTES)
        };
        let bodies: Vec<_> = reads
            .take_while(fits)
            .take_until(sleep_until(by))
            .collect()
            .await;
        let judge = move || {
            for (body, source) in bodies {
                preview.read(&source, body);
            }
            preview
        };
        turn.run(judge).await
    }

    /// Reads the kinds that the API server serves, if the rule names one that no saved rule names. A kind that is not found
    /// cannot be listed.
    async fn find_kinds_of(&self, rule: &Rule) {
        let is_known = |resource: &str| self.hub_state.kind(resource).is_some();
        if rule.resources().all(is_known) {
            return;
        }
        self.find_kinds().await;
    }

    /// Reads the kinds that the API server serves.
    pub(super) async fn find_kinds(&self) {
        let known = self.hub_state.kinds.borrow().clone();
        match read_kinds(self.client.clone(), known).await {
            Ok(read) => self.hub_state.set_kinds(read.kinds),
            Err(error) => {
                tracing::warn!(%error, "cannot read the kinds that the API server serves");
            }
        }
    }

    async fn listed(
        &self,
        place: &WatchScope,
        rule: &Rule,
    ) -> Result<Vec<(SourceRef, BTreeMap<String, String>)>, ScopeListError> {
        let kind = self
            .hub_state
            .kind(&place.resource)
            .ok_or(ScopeListError::NotServed)?;
        if !place.fits(&kind) {
            return Err(ScopeListError::OtherScope);
        }
        let api: Api<DynamicObject> = api_in(self.client.clone(), place.listed_namespace(), &kind);
        let mut params = ListParams::default().limit(OBJECTS_AT_A_TIME);
        let (mut sources, mut seen) = (Vec::new(), 0);
        loop {
            // Each object may have some megabytes. So all queries together read one page at a time.
            let _turn = PAGES
                .acquire()
                .await
                .map_err(|_| ScopeListError::Shutdown)?;
            let list = tokio::time::timeout(READ_TIMEOUT, api.list_metadata(&params)).await;
            let list = list.map_err(|_| ScopeListError::Silent)?;
            let list = list.map_err(|_| ScopeListError::Refused)?;
            seen += list.items.len();
            sources.extend(list.items.into_iter().filter_map(|object| {
                let (name, metadata) = (object.name_any(), object.metadata);
                let labels = metadata.labels.unwrap_or_default();
                let is_source = metadata.deletion_timestamp.is_none()
                    && !is_never_a_source(&kind, &name, &labels);
                let namespace = metadata.namespace.unwrap_or_default();
                let reference = SourceRef::new(&kind.resource, &namespace, &name);
                (is_source && rule.needs(&reference, &labels)).then_some((reference, labels))
            }));
            match list.metadata.continue_.filter(|more| !more.is_empty()) {
                None => return Ok(sources),
                // With an incomplete list, the other sources would count as deleted.
                Some(_) if seen >= OBJECTS => return Err(ScopeListError::TooMany),
                more => params.continue_token = more,
            }
        }
    }

    /// Asks the agent of a cluster. Returns the reason in the answer if the agent is not asked.
    async fn receive(
        &self,
        agent_queries: &AgentQueries<'_>,
        ask: ClusterQuestion,
        within: bool,
    ) -> ClusterAnswer {
        let name = ask.cluster.clone();
        let received = |state: &str, message: &str, more: usize, reply: Option<AgentAnswer>| {
            let message = if message.is_empty() {
                ask.message.clone()
            } else {
                message.to_owned()
            };
            let more = more.saturating_add(reply.as_ref().map_or(0, |reply| reply.more));
            let more = i64::try_from(more).unwrap_or(i64::MAX);
            let name = ask.cluster.as_str().to_owned();
            ClusterAnswer {
                cluster: PlannedCluster {
                    name,
                    state: state.to_owned(),
                    message,
                    wave: ask.wave.into(),
                    more,
                },
                reply,
            }
        };
        let state = match ask.eligibility {
            ClusterEligibility::Eligible => "",
            ClusterEligibility::NotAccepted => "NotAccepted",
            ClusterEligibility::Leaving => "Leaving",
            ClusterEligibility::NotGranted => "NotGranted",
            ClusterEligibility::Unknown => "Unknown",
            ClusterEligibility::Idle => "Idle",
        };
        if !state.is_empty() {
            return received(state, "", 0, None);
        }
        let connected = self
            .hub_state
            .report_store
            .lock()
            .session(&name, Instant::now())
            .is_some();
        let diverged = self
            .hub_state
            .leadership
            .divergences
            .lock()
            .of(&name)
            .is_some_and(|divergence| !divergence.is_of_other_client());
        if !connected {
            return received("NotConnected", "not asked: it is not connected", 0, None);
        }
        if diverged {
            let message = "not asked: an administrator must confirm it first (see its conditions)";
            return received("Diverged", message, 0, None);
        }
        if !within {
            return received(
                "NotAsked",
                "not asked: there are too many clusters",
                0,
                None,
            );
        }
        if Deadline::now() >= agent_queries.by {
            return received("NotAsked", "not asked: the question took too long", 0, None);
        }
        let (preview, asking) = (agent_queries.preview.clone(), agent_queries.asking.clone());
        let question = move || preview.question(&name, &asking);
        let question = match agent_queries.turn.run(question).await {
            Ok(Some(question)) => question,
            Ok(None) => return received("Idle", "", 0, None),
            Err(_) => {
                return received(
                    "NotAsked",
                    "not asked: the hub could not compute what it would be sent",
                    0,
                    None,
                );
            }
        };
        let AgentQuestion { asked, left_out } = question;
        let Some(live) = self
            .hub_state
            .sessions
            .get(&ask.cluster)
            .map(|live| live.clone())
        else {
            return received("NotConnected", "not asked: it is not connected", 0, None);
        };
        let untried = match (
            agent_queries.asking.is_dry_run() && !asked.dry_run,
            ask.message.as_str(),
        ) {
            (false, _) => String::new(),
            (true, "") => UNTRIED.to_owned(),
            (true, before) => format!("{before}; {UNTRIED}"),
        };
        let answered = match live.inquiries.preview(asked) {
            Ok(answered) => answered,
            Err(InquiryError::Busy) => {
                return received(
                    "Busy",
                    "not asked: it answers another request, try again",
                    0,
                    None,
                );
            }
            Err(InquiryError::TooLarge) => {
                return received(
                    "TooLarge",
                    "not asked: the question is too large for one message",
                    0,
                    None,
                );
            }
        };
        live.wake.notify_one();
        drop(live);
        match timeout_at(agent_queries.by.min(Deadline::now() + ANSWER), answered).await {
            Ok(Ok(answer)) if !answer.unanswered.is_empty() => {
                received("Unanswered", &answer.unanswered, 0, None)
            }
            Ok(Ok(answer)) => {
                let reply = AgentAnswer::of(answer, &mut agent_queries.room.lock());
                received("Answered", &untried, left_out, Some(reply))
            }
            _ => received("NoAnswer", "its agent did not answer in time", 0, None),
        }
    }
}

fn random_key() -> Result<FieldsKey, ViewError> {
    let random = ring::rand::generate::<[u8; 32]>(&ring::rand::SystemRandom::new());
    random
        .map(|random| FieldsKey(random.expose()))
        .map_err(|_| ViewError::Unavailable("the system gives no random numbers".to_owned()))
}

/// A sentence about a plan that differs from what the hub sends until the revert of the saved rule ends.
fn reverted_meanwhile(saved: Option<&RuleEntry>, planned: &Rule) -> Option<String> {
    let revert = saved?.rule.revert.as_ref()?;
    planned.revert.is_none().then(|| {
        format!(
            "the saved rule is reverted to revision {}: edits are not sent until the revert ends (kubectl runnel revert {} \
             --end)",
            revert.revision, planned.terms.rule
        )
    })
}

/// Returns whether the rules are saved, and what they would do by the answers of the agents.
fn concluded(
    mut preview: PreviewIndex,
    all: Vec<RuleAnswers>,
    known: &ReportedCopyCounts,
    diffs: usize,
    kinds: &Kinds,
) -> (bool, Vec<PlannedRule>) {
    let (mut heads, mut reply) = (BTreeMap::new(), Vec::new());
    for RuleAnswers { uid, name, answers } in all {
        let (mut clusters, mut of_clusters) = (Vec::new(), BTreeMap::new());
        for one in answers {
            of_clusters.extend(
                one.reply
                    .map(|reply| (ClusterName::from(one.cluster.name.as_str()), reply)),
            );
            clusters.push(one.cluster);
        }
        heads.insert(uid.clone(), (name, clusters));
        reply.push((uid, of_clusters));
    }
    let all = preview.conclude_all(
        reply,
        &|rule, cluster| known.holding(rule, cluster),
        now(),
        diffs,
    );
    let (mut exist, mut planned) = (true, Vec::new());
    for (uid, rows) in all {
        preview.focus_on(&uid);
        exist &= preview.exists();
        let Some((name, clusters)) = heads.remove(&uid) else {
            continue;
        };
        planned.push(PlannedRule {
            kind: name.kind,
            namespace: name.namespace,
            name: name.name,
            sent: i64::try_from(preview.sent()).unwrap_or(i64::MAX),
            incomplete: preview.is_incomplete(),
            notes: preview.notes(),
            sources: preview
                .sources(SOURCES)
                .into_iter()
                .map(source_row)
                .collect(),
            clusters,
            copies: rows.into_iter().map(|row| copy_row(row, kinds)).collect(),
        });
    }
    (exist, planned)
}

fn source_row(row: SourceRow) -> PlannedSource {
    PlannedSource {
        source: row.source,
        state: row.state,
        message: row.message,
        cluster: row
            .cluster
            .map(|cluster| cluster.as_str().to_owned())
            .unwrap_or_default(),
    }
}

fn copy_row(row: Row, kinds: &Kinds) -> PlannedCopy {
    let kind = kinds.preferred(&row.copy.copy.resource);
    PlannedCopy {
        kind: kind.map_or_else(String::new, |kind| kind.kind.to_string()),
        cluster: row.cluster.as_str().to_owned(),
        copy: row.copy.copy.to_string(),
        source: row.copy.source.plain().to_string(),
        verdict: row.verdict.as_str().to_owned(),
        reason: row.reason.to_owned(),
        message: row.message,
        diff: row.diff,
    }
}

fn now() -> Now {
    Now {
        instant: Instant::now(),
        wall: jiff::Timestamp::now(),
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn plan_of_an_edit_says_that_the_rule_is_reverted() {
        let rule = |annotations| {
            let object = json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
                "metadata": {"name": "app", "namespace": "shop", "uid": "u", "annotations": annotations},
                "spec": {"sources": [{"resources": ["configmaps"], "names": ["app"]}], "clusters": {"all": true}},
            });
            let object = serde_json::from_value(object).unwrap();
            Rule::namespaced(&object, "runnel-system").unwrap()
        };
        let (plain, reverted) = (
            rule(json!({})),
            rule(json!({"runnel.dev/revert-to": "abc"})),
        );
        for (saved, planned, says) in [
            (&reverted, &plain, true),
            (&reverted, &reverted, false),
            (&plain, &plain, false),
        ] {
            let mut index = runnel_hub_core::index::Index::default();
            index.set_rule(saved.clone());
            let sentence = reverted_meanwhile(index.rules().get(&planned.uid), planned);
            assert_eq!(sentence.is_some(), says);
            assert!(sentence.is_none_or(|it| it.contains("abc") && it.contains("shop/app")));
        }
    }
}
