//! What a rule would do: who asks, what he may, what the API server and the agents are asked for it. What follows from that
//! is decided in [`crate::whatif`].
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use runnel_proto::SUPPOSE_SINCE;
use runnel_proto::model::{ClusterName, FieldsKey, Kind, RuleName, RuleUid, SourceRef, Supposed};
use runnel_proto::wire;
use serde_json::Value;
use tonic::{Request, Status};

use super::review::{self, Access, User};
use super::{KINDS, Questions, address};
use crate::crd;
use crate::names::{is_label, is_subdomain};
use crate::plan::{Body, Place, Rule, is_never_a_source};
use crate::shared::Unasked;
use crate::watch::{api_resource, body_of};
use crate::whatif::{Ask, Row, Scene, SourceRow, Standing};

/// The ServiceAccount of the hub's chart whose token stands for the word of an administrator: whoever may make one may make
/// one of the hub itself, which reads every source. It has no right at any API server.
pub const PLANNER: &str = "runnel-hub-plan";

/// How long an agent may take to answer.
const ANSWER: Duration = Duration::from_secs(10);
/// How long one look at the hub's own API server may take.
const LOOK: Duration = Duration::from_secs(5);
/// Objects that are listed in one place, and sources that are read, for one question.
const OBJECTS: u32 = 5000;
const READS: usize = 2000;
/// Reads, and agents that are asked, at a time.
const READS_AT_A_TIME: usize = 8;
const AGENTS_AT_A_TIME: usize = 64;
/// Clusters that are asked, and copies that are told, for one question.
const CLUSTERS: usize = 1000;
const COPIES: usize = 50_000;
/// Rows on a page.
const PAGE: usize = 500;
/// Sources that are told.
const SOURCES: usize = 500;

/// What one cluster answered.
struct Heard {
    cluster: wire::PlanCluster,
    answer: Option<Supposed>,
}

impl Questions {
    pub(super) async fn plan_pages(&self, request: Request<wire::PlanQuestion>) -> Result<Vec<wire::PlanPage>, Status> {
        let (address, token) = (address(&request), review::bearer(request.metadata())?);
        let asked = request.into_inner();
        let user = self.reviewer.who(address, &token).await?;
        let turn = tokio::time::timeout(ANSWER, self.plans.acquire()).await;
        let _turn = turn.map_err(|_| Status::resource_exhausted("the hub plans for others just now: try again"))?;
        if self.shared.current_lead().is_none() || self.shared.serving_since().is_none() {
            return Err(Status::unavailable("the hub is starting, or another replica has taken the lead: try again"));
        }
        let rule = match asked.object.is_empty() {
            true => self.saved(&user, asked.rule.unwrap_or_default()).await?,
            false => self.unsaved(&user, &asked.object).await?,
        };
        self.may_read_sources(&user, &rule).await?;
        let mut scene = Scene::new(&self.shared.index.read(), rule);
        self.list_and_read(&mut scene).await;
        self.with_holdings(|holdings| scene.judge(holdings, Instant::now()));
        let key = random_key()?;
        let asks = self.with_holdings(|holdings| scene.clusters(holdings));
        let heard: Vec<Heard> = stream::iter(asks.into_iter().enumerate())
            .map(|(number, ask)| self.hear(&scene, ask, key, asked.rehearse, number < CLUSTERS))
            .buffered(AGENTS_AT_A_TIME)
            .collect()
            .await;
        let (mut clusters, mut answers) = (Vec::new(), BTreeMap::new());
        for one in heard {
            answers.extend(one.answer.map(|answer| (ClusterName::from(one.cluster.name.as_str()), answer)));
            clusters.push(one.cluster);
        }
        let rows = self.with_holdings(|holdings| scene.conclude(&answers, holdings, Instant::now()));
        let mut notes = scene.notes();
        if rows.len() > COPIES {
            notes.push(format!("{} more copies are not listed", rows.len() - COPIES));
        }
        let head = wire::PlanPage {
            sources: scene.sources(SOURCES).into_iter().map(source_row).collect(),
            clusters,
            copies: vec![],
            notes,
            exists: scene.exists(),
            sent: u32::try_from(scene.sent()).unwrap_or(u32::MAX),
        };
        let rows: Vec<_> = rows.into_iter().take(COPIES).map(copy_row).collect();
        let pages = rows.chunks(PAGE).map(|rows| wire::PlanPage { copies: rows.to_vec(), ..wire::PlanPage::default() });
        Ok(std::iter::once(head).chain(pages).collect())
    }

    fn with_holdings<T>(&self, ask: impl FnOnce(crate::whatif::Holdings<'_>) -> T) -> T {
        let ledger = self.shared.ledger.lock();
        ask(&|rule, cluster| ledger.holding(rule, cluster))
    }

    /// A saved rule, for whoever may get it.
    async fn saved(&self, user: &User, asked: wire::RuleQuestion) -> Result<Rule, Status> {
        let name = RuleName { kind: asked.kind, namespace: asked.namespace, name: asked.name };
        self.may(user, "get", &name).await?;
        let index = self.shared.index.read();
        let found = index.rules().find(|(_, entry)| entry.rule.terms.rule == name);
        found.map(|(_, entry)| entry.rule.clone()).ok_or_else(|| Status::not_found("the hub knows no such rule"))
    }

    /// A rule that is not saved, for whoever may save it.
    async fn unsaved(&self, user: &User, object: &str) -> Result<Rule, Status> {
        let malformed =
            |why: &dyn std::fmt::Display| Status::invalid_argument(format!("the rule cannot be read: {why}"));
        let value: Value = serde_json::from_str(object).map_err(|error| malformed(&error))?;
        let text = |path: &str| value.pointer(path).and_then(Value::as_str).unwrap_or_default().to_owned();
        let name =
            RuleName { kind: text("/kind"), namespace: text("/metadata/namespace"), name: text("/metadata/name") };
        if !text("/apiVersion").starts_with("runnel.dev/") || !KINDS.iter().any(|(kind, _)| *kind == name.kind) {
            return Err(malformed(&"kind: it is no DistributionRule or ClusterDistributionRule of runnel.dev"));
        }
        let is_whole = name.kind == KINDS[1].0;
        // Nobody has looked at it as the API server looks at what it saves, and parts of it go to agents.
        check_identity(&name).map_err(|why| malformed(&why))?;
        crd::check_spec(&name.kind, &value["spec"]).map_err(|why| malformed(&why))?;
        let known = {
            let index = self.shared.index.read();
            let found = index.rules().find(|(_, entry)| entry.rule.terms.rule == name);
            found.map(|(uid, entry)| (uid.clone(), entry.rule.terms.created_at))
        };
        self.may(user, if known.is_some() { "update" } else { "create" }, &name).await?;
        let namespace = &self.shared.settings.namespace;
        let rule = match is_whole {
            false => {
                let rule: crd::DistributionRule = serde_json::from_value(value).map_err(|error| malformed(&error))?;
                Rule::namespaced(&identified(rule, known)?, namespace)
            }
            true => {
                let rule: crd::ClusterDistributionRule =
                    serde_json::from_value(value).map_err(|error| malformed(&error))?;
                Rule::cluster_scoped(&identified(rule, known)?, namespace)
            }
        };
        rule.ok_or_else(|| malformed(&"metadata: it has no namespace"))
    }

    async fn allows(&self, user: &User, access: &Access<'_>) -> Result<bool, Status> {
        let namespace = &self.shared.settings.namespace;
        if user.name() == format!("system:serviceaccount:{namespace}:{PLANNER}") {
            return Ok(true);
        }
        self.reviewer.may(user, access).await
    }

    async fn may(&self, user: &User, verb: &str, rule: &RuleName) -> Result<(), Status> {
        let resource = KINDS.iter().find(|(kind, _)| *kind == rule.kind).map(|(_, resource)| *resource);
        let resource = resource.ok_or_else(|| {
            Status::invalid_argument("kind is unknown: ask for DistributionRule or ClusterDistributionRule")
        })?;
        let name = if verb == "create" { "" } else { rule.name.as_str() };
        let access = Access { verb, group: "runnel.dev", resource, namespace: &rule.namespace, name };
        if self.allows(user, &access).await? {
            return Ok(());
        }
        let place = if rule.namespace.is_empty() { String::new() } else { format!(" in namespace {}", rule.namespace) };
        Err(Status::permission_denied(format!("{} may not {verb} {resource}.runnel.dev{place}", user.name())))
    }

    /// Who may not get a kind hears nothing about objects of it, as he may not save a rule that selects it.
    async fn may_read_sources(&self, user: &User, rule: &Rule) -> Result<(), Status> {
        let mut wanted: BTreeSet<(&str, &str)> = BTreeSet::new();
        for entry in &rule.sources {
            for kind in &entry.kinds {
                let everywhere = entry.namespaces.iter().any(|namespace| !namespace.is_literal());
                let names = entry.namespaces.iter().map(|name| name.as_str());
                match everywhere {
                    true => drop(wanted.insert((kind.resource, ""))),
                    false => wanted.extend(names.map(|name| (kind.resource, name))),
                }
            }
        }
        let mut everywhere: BTreeMap<&str, bool> = BTreeMap::new();
        for (resource, namespace) in wanted {
            let Some(kind) = Kind::by_resource(resource) else { continue };
            let access =
                |namespace| Access { verb: "get", group: kind.group, resource: kind.plural, namespace, name: "" };
            let whole = match everywhere.get(resource) {
                Some(known) => *known,
                None if rule.terms.rule.is_cluster_scoped() => {
                    let may = self.allows(user, &access("")).await?;
                    everywhere.insert(resource, may);
                    may
                }
                None => false,
            };
            if whole || (!namespace.is_empty() && self.allows(user, &access(namespace)).await?) {
                continue;
            }
            let place = if namespace.is_empty() {
                "in every namespace".to_owned()
            } else {
                format!("in namespace {namespace}")
            };
            return Err(Status::permission_denied(format!(
                "spec.sources selects {resource}, which {} may not get {place}: have that right given, or leave {resource} \
                 out",
                user.name()
            )));
        }
        Ok(())
    }

    /// What no saved rule has needed so far is looked for now.
    async fn list_and_read(&self, scene: &mut Scene) {
        for place in scene.unlisted() {
            if let Some(objects) = self.listed(&place).await {
                scene.list(place, objects);
            }
        }
        let unread: Vec<_> = scene.unread().iter().take(READS).cloned().collect();
        let read = async |source: SourceRef| (self.read(&source).await, source);
        let bodies: Vec<_> = stream::iter(unread).map(read).buffer_unordered(READS_AT_A_TIME).collect().await;
        for (body, source) in bodies {
            scene.read(&source, body);
        }
    }

    async fn listed(&self, place: &Place) -> Option<Vec<(SourceRef, BTreeMap<String, String>)>> {
        let kind = Kind::by_resource(place.resource)?;
        let api: Api<DynamicObject> = match &place.namespace {
            Some(namespace) => Api::namespaced_with(self.reviewer.client(), namespace, &api_resource(kind)),
            None => Api::all_with(self.reviewer.client(), &api_resource(kind)),
        };
        let params = ListParams::default().limit(OBJECTS);
        let list = tokio::time::timeout(LOOK, api.list_metadata(&params)).await.ok()?.ok()?;
        // A part of what there is would make the rest look as if it were gone.
        if list.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty()) {
            return None;
        }
        let sources = list.items.into_iter().filter_map(|object| {
            let labels = object.labels().clone();
            let is_source =
                object.metadata.deletion_timestamp.is_none() && !is_never_a_source(kind, &object.name_any(), &labels);
            Some((SourceRef::new(kind.resource, &object.namespace()?, &object.name_any()), labels))
                .filter(|_| is_source)
        });
        Some(sources.collect())
    }

    async fn read(&self, source: &SourceRef) -> Body {
        let Some(kind) = Kind::by_resource(&source.resource) else { return Body::Unreadable };
        let client = self.reviewer.client();
        let api: Api<DynamicObject> = Api::namespaced_with(client, &source.namespace, &api_resource(kind));
        match tokio::time::timeout(LOOK, api.get_opt(&source.name)).await {
            Ok(Ok(Some(object))) => body_of(&self.shared, kind, &object),
            _ => Body::Unreadable,
        }
    }

    /// Asks the agent of a cluster, if there is one to be asked.
    async fn hear(&self, scene: &Scene, ask: Ask, key: FieldsKey, rehearse: bool, within: bool) -> Heard {
        let name = ask.cluster.clone();
        let heard = |state: &str, message: &str, more: usize, answer: Option<Supposed>| {
            let message = if message.is_empty() { ask.message.clone() } else { message.to_owned() };
            let more = u32::try_from(more).unwrap_or(u32::MAX);
            let more = more.saturating_add(answer.as_ref().map_or(0, |answer| answer.more));
            let name = ask.cluster.as_str().to_owned();
            Heard {
                cluster: wire::PlanCluster { name, state: state.to_owned(), message, wave: ask.wave, more },
                answer,
            }
        };
        let state = match ask.standing {
            Standing::Asked => "",
            Standing::NotAccepted => "NotAccepted",
            Standing::Leaving => "Leaving",
            Standing::NotGranted => "NotGranted",
            Standing::Unknown => "Unknown",
            Standing::Rests => "Rests",
        };
        if !state.is_empty() {
            return heard(state, "", 0, None);
        }
        let protocol = {
            let ledger = self.shared.ledger.lock();
            ledger.session(&name, Instant::now()).map(|session| session.protocol)
        };
        let in_doubt = self.shared.doubts.lock().of(&name).is_some();
        match protocol {
            None => return heard("NotConnected", "not asked: it is not connected", 0, None),
            Some(protocol) if protocol < SUPPOSE_SINCE => {
                return heard("TooOld", "not asked: its agent is too old, upgrade it", 0, None);
            }
            Some(_) if in_doubt => {
                return heard(
                    "InDoubt",
                    "not asked: an administrator must confirm it first (see its conditions)",
                    0,
                    None,
                );
            }
            Some(_) if !within => return heard("NotAsked", "not asked: there are too many clusters", 0, None),
            Some(_) => {}
        }
        let Some((question, left_out)) = scene.ask(&name, key, rehearse) else { return heard("Rests", "", 0, None) };
        let Some(live) = self.shared.sessions.get(&name).map(|live| live.clone()) else {
            return heard("NotConnected", "not asked: it is not connected", 0, None);
        };
        let answered = match live.inquiries.suppose(question) {
            Ok(answered) => answered,
            Err(Unasked::Busy) => {
                return heard("Busy", "not asked: it is answering somebody else, try again", 0, None);
            }
            Err(Unasked::TooLarge) => {
                return heard("TooLarge", "not asked: the question is too large for one message", 0, None);
            }
        };
        live.wake.notify_one();
        drop(live);
        match tokio::time::timeout(ANSWER, answered).await {
            Ok(Ok(answer)) if !answer.unanswered.is_empty() => heard("Unanswered", &answer.unanswered, 0, None),
            Ok(Ok(answer)) => heard("Answered", "", left_out, Some(answer)),
            _ => heard("Silent", "its agent did not answer in time", 0, None),
        }
    }
}

/// Whether a rule can be called so.
fn check_identity(rule: &RuleName) -> Result<(), &'static str> {
    let is_whole = rule.kind == KINDS[1].0;
    match (is_subdomain(&rule.name), rule.namespace.as_str()) {
        (false, _) => {
            Err("metadata.name: write a name of lowercase letters, digits, '-' and '.', up to 253 characters")
        }
        (true, "") if is_whole => Ok(()),
        (true, _) if is_whole => Err("metadata.namespace: a ClusterDistributionRule has none: remove it"),
        (true, namespace) if is_label(namespace) => Ok(()),
        (true, _) => Err("metadata.namespace: write the name of a namespace"),
    }
}

/// The rule as if the API server had taken it: with the identity of the one that it edits, or of one that nobody has.
fn identified<K: ResourceExt>(mut rule: K, known: Option<(RuleUid, i64)>) -> Result<K, Status> {
    let FieldsKey(random) = random_key()?;
    let (uid, created) = known.unwrap_or_else(|| {
        let uid = format!("plan-{}", data_encoding::HEXLOWER.encode(&random[..16]));
        (RuleUid::from(uid.as_str()), Timestamp::now().as_second())
    });
    let meta = rule.meta_mut();
    meta.uid = Some(uid.as_str().to_owned());
    meta.creation_timestamp = Timestamp::from_second(created).ok().map(Time);
    meta.deletion_timestamp = None;
    Ok(rule)
}

fn random_key() -> Result<FieldsKey, Status> {
    let random = ring::rand::generate::<[u8; 32]>(&ring::rand::SystemRandom::new());
    random
        .map(|random| FieldsKey(random.expose()))
        .map_err(|_| Status::unavailable("the system gives no random numbers"))
}

fn source_row(row: SourceRow) -> wire::PlanSource {
    wire::PlanSource {
        source: row.source,
        state: row.state,
        message: row.message,
        cluster: row.cluster.map(|cluster| cluster.as_str().to_owned()).unwrap_or_default(),
    }
}

fn copy_row(row: Row) -> wire::PlanCopy {
    wire::PlanCopy {
        cluster: row.cluster.as_str().to_owned(),
        copy: row.copy.copy.to_string(),
        source: row.copy.source.plain().to_string(),
        verdict: row.verdict.to_owned(),
        reason: row.reason.to_owned(),
        message: row.message,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_rule_is_called_as_the_api_server_lets_it_be_called() {
        let called = |kind: &str, namespace: &str, name: &str| {
            check_identity(&RuleName { kind: kind.into(), namespace: namespace.into(), name: name.into() }).is_ok()
        };
        let long = "x".repeat(254);
        assert!(called(KINDS[0].0, "team", "a.b") && called(KINDS[1].0, "", "a"));
        for name in ["", "A", "a..b", "-a", "a/b", &long] {
            assert!(!called(KINDS[0].0, "team", name) && !called(KINDS[1].0, "", name), "{name}");
        }
        for namespace in ["", "A", "a.b", &"x".repeat(64)] {
            assert!(!called(KINDS[0].0, namespace, "a"), "{namespace}");
        }
        assert!(!called(KINDS[1].0, "team", "a"));
    }
}
