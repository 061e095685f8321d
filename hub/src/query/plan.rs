//! What a rule would do: what the API server and the agents are asked for it. What follows from that
//! is decided in [`crate::whatif`].
mod rights;

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use futures::stream::{self, StreamExt};
use kube::api::{DynamicObject, ListParams};
use kube::{Api, ResourceExt};
use runnel_proto::SUPPOSE_SINCE;
use runnel_proto::model::{ClusterName, FieldsKey, Kind, SourceRef, Supposed};
use runnel_proto::wire;
use tonic::{Request, Status};

use super::{Questions, address, review};
use crate::plan::{Body, Place, is_never_a_source};
use crate::shared::Unasked;
use crate::watch::{api_resource, body_of};
use crate::whatif::{Ask, Row, Scene, SourceRow, Standing};

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
/// What is said of a cluster in which nothing was tried.
const UNTRIED: &str = "its writes were not tried: it awaits its turn in the rollout";
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
            true => self.saved(&user, asked.rule.unwrap_or_default(), asked.rehearse).await?,
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
            incomplete: scene.is_incomplete(),
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

    /// What no saved rule has needed so far is looked for now.
    async fn list_and_read(&self, scene: &mut Scene) {
        for place in scene.unlisted() {
            match self.listed(&place).await {
                Ok(objects) => scene.list(place, objects),
                Err(why) => scene.cannot_list(place, why),
            }
        }
        let unread: Vec<_> = scene.unread().iter().take(READS).cloned().collect();
        let read = async |source: SourceRef| (self.read(&source).await, source);
        let bodies: Vec<_> = stream::iter(unread).map(read).buffer_unordered(READS_AT_A_TIME).collect().await;
        for (body, source) in bodies {
            scene.read(&source, body);
        }
    }

    async fn listed(&self, place: &Place) -> Result<Vec<(SourceRef, BTreeMap<String, String>)>, &'static str> {
        let kind = Kind::by_resource(place.resource).ok_or("the hub does not know this kind")?;
        let api: Api<DynamicObject> = match &place.namespace {
            Some(namespace) => Api::namespaced_with(self.reviewer.client(), namespace, &api_resource(kind)),
            None => Api::all_with(self.reviewer.client(), &api_resource(kind)),
        };
        let params = ListParams::default().limit(OBJECTS);
        let list = tokio::time::timeout(LOOK, api.list_metadata(&params)).await;
        let list = list.map_err(|_| "the API server did not answer in time")?;
        let list = list.map_err(|_| "the API server did not let the hub list them")?;
        // A part of what there is would make the rest look as if it were gone.
        if list.metadata.continue_.as_ref().is_some_and(|more| !more.is_empty()) {
            return Err("there are too many of them");
        }
        let sources = list.items.into_iter().filter_map(|object| {
            let labels = object.labels().clone();
            let is_source =
                object.metadata.deletion_timestamp.is_none() && !is_never_a_source(kind, &object.name_any(), &labels);
            Some((SourceRef::new(kind.resource, &object.namespace()?, &object.name_any()), labels))
                .filter(|_| is_source)
        });
        Ok(sources.collect())
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
        let untried = if rehearse && !question.rehearse { UNTRIED } else { "" };
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
            Ok(Ok(answer)) => heard("Answered", untried, left_out, Some(answer)),
            _ => heard("Silent", "its agent did not answer in time", 0, None),
        }
    }
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
