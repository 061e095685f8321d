//! Answers queries about rules from the hub's memory. The answers have more details than the
//! statuses of the rules; see `proto/query.proto`.
//!
//! A user who may `get` a rule may query it. The hub's API server authenticates and authorizes the
//! caller.
mod copy;
mod copy_reasons;
mod plan;
mod removals;
mod review;

use std::net::IpAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Instant;

use futures::{Stream, stream};
use k8s_openapi::api::authentication::v1::UserInfo;
use runnel_proto::model::{RuleName, RuleUid};
use runnel_proto::wire;
use runnel_transport::grpc::query_server::{Query, QueryServer};
use tokio::sync::Semaphore;
use tonic::{Request, Response, Status};

use crate::hub_state::HubState;
use crate::lease::Caller;
use crate::object_cache::ObjectCache;
use crate::writer::view;
pub(crate) use review::Access;
use review::User;
pub use review::{AUDIENCE, Reviewer};
use runnel_hub_core::guard::Item;
use runnel_hub_core::status::{ClusterDetail, ReportStore, details};

/// The limit of clusters or blocked items on one page.
const PAGE: usize = 256;

/// The size limit of a request in bytes, large enough for the largest rule.
const QUESTION_LIMIT: usize = 256 * 1024;
/// The limit of concurrent plans.
const PLANS: usize = 4;

/// The kinds of rules, with the resource to which RBAC refers.
const RULE_KINDS: [(&str, &str); 2] = [
    ("DistributionRule", "distributionrules"),
    ("ClusterDistributionRule", "clusterdistributionrules"),
];

/// The gRPC service for queries.
pub struct Questions {
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    reviewer: Reviewer,
    /// The ServiceAccount in the hub's namespace that has the rights of an administrator in plans.
    planner: Option<String>,
    /// Limits the queries that need more than the hub's memory.
    plans: Semaphore,
}

impl Questions {
    /// Creates a service that answers callers whom `reviewer` authorizes. In plans the
    /// ServiceAccount `planner` in the hub's namespace has the rights of an administrator.
    pub fn new(
        hub_state: Arc<HubState>,
        object_cache: Arc<ObjectCache>,
        reviewer: Reviewer,
        planner: Option<String>,
    ) -> Self {
        Self {
            hub_state,
            object_cache,
            reviewer,
            planner,
            plans: Semaphore::new(PLANS),
        }
    }

    /// Returns the service for a tonic router.
    pub fn into_service(self: Arc<Self>) -> QueryServer<Self> {
        QueryServer::from_arc(self).max_decoding_message_size(QUESTION_LIMIT)
    }

    /// Explains a copy to a user whom the API server has authenticated.
    ///
    /// # Errors
    /// The status of `query.proto`.
    pub(crate) async fn explain_to(
        &self,
        user: UserInfo,
        question: wire::CopyQuestion,
    ) -> Result<wire::CopyExplained, Status> {
        self.explain_for(&User(user), question).await
    }

    /// Plans for a user whom the API server has authenticated.
    ///
    /// # Errors
    /// The status of `query.proto`.
    pub(crate) async fn plan_for(
        &self,
        user: UserInfo,
        question: wire::PlanQuestion,
    ) -> Result<Vec<wire::PlanPage>, Status> {
        self.pages_for(&User(user), question).await
    }

    fn details(&self, rule: &RuleName) -> Option<Vec<ClusterDetail>> {
        let since = self.hub_state.leadership.serving_since()?;
        let index = self.hub_state.index.read();
        let (uid, _) = index
            .rules()
            .iter()
            .find(|(_, entry)| entry.rule.terms.rule == *rule)?;
        let status = self
            .object_cache
            .rule(uid)
            .map(|object| object.status)
            .unwrap_or_default();
        let report_store = self.hub_state.report_store.lock();
        let view = view(&index, &report_store, uid, &status, since, false)?;
        Some(details(&view, &report_store, Instant::now()))
    }

    /// Returns all blocked removals of a rule.
    fn entries(&self, rule: &RuleName) -> Option<AllBlocked> {
        self.hub_state.leadership.serving_since()?;
        let index = self.hub_state.index.read();
        let (uid, entry) = index
            .rules()
            .iter()
            .find(|(_, entry)| entry.rule.terms.rule == *rule)?;
        let report_store = self.hub_state.report_store.lock();
        let mut all = AllBlocked::default();
        if let Some(pending) = entry.guard.pending() {
            all.add(
                pending.digest.clone(),
                u64::try_from(pending.copies).unwrap_or_default(),
            );
            all.items.extend(
                entry
                    .guard
                    .blocked()
                    .iter()
                    .map(|item| blocked_item(uid, item, &report_store)),
            );
        }
        Some(all)
    }

    /// Returns the rule of a request, if the caller may get it and this hub can answer.
    async fn asked(&self, request: &Request<wire::RuleQuestion>) -> Result<RuleName, Status> {
        let wire::RuleQuestion {
            kind,
            namespace,
            name,
        } = request.get_ref().clone();
        let rule = RuleName {
            kind,
            namespace,
            name,
        };
        let (address, token) = (address(request), review::bearer(request.metadata())?);
        self.reviewer
            .may_get(
                address,
                &token,
                resource_of(&rule)?,
                &rule.namespace,
                &rule.name,
            )
            .await?;
        self.can_answer()?;
        Ok(rule)
    }

    /// A replica that does not lead, or is starting, has too little state to answer.
    fn can_answer(&self) -> Result<(), Status> {
        if self.hub_state.leadership.current_lead().is_none()
            || self.hub_state.leadership.serving_since().is_none()
        {
            return Err(Status::unavailable(
                "the hub is starting, or another replica leads: try again",
            ));
        }
        Ok(())
    }
}

/// Returns the resource to which RBAC refers for a rule.
fn resource_of(rule: &RuleName) -> Result<&'static str, Status> {
    let known = RULE_KINDS
        .iter()
        .find(|(kind, _)| *kind == rule.kind)
        .map(|(_, resource)| *resource);
    known.ok_or_else(|| {
        Status::invalid_argument("kind is unknown: use DistributionRule or ClusterDistributionRule")
    })
}

/// Runs slow work on a thread for blocking tasks, so that no other task of the hub waits for it.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, Status> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| broken())
}

fn broken() -> Status {
    Status::internal("the hub could not answer the query: try again")
}

/// Returns the address of a caller; `None` if another replica forwards the call.
fn address<T>(request: &Request<T>) -> Option<IpAddr> {
    let caller = request.extensions().get::<Caller>()?;
    Some(caller.peer.address.ip()).filter(|address| !address.is_unspecified())
}

fn page(details: &[ClusterDetail]) -> wire::RuleClustersPage {
    let clusters = details.iter().map(|detail| wire::RuleCluster {
        name: detail.name.as_str().to_owned(),
        state: format!("{:?}", detail.state),
        applied: detail.applied,
        failed: detail.failed,
        waiting: detail.waiting,
        reason: detail.reason.as_str().to_owned(),
        message: detail.message.clone(),
        failures: detail.failures.iter().map(failure).collect(),
        newest: detail.newest,
        proof: format!("{:?}", detail.proved),
    });
    wire::RuleClustersPage {
        clusters: clusters.collect(),
    }
}

fn failure(failure: &runnel_proto::model::Failure) -> wire::RuleFailure {
    wire::RuleFailure {
        copy: failure.copy.to_string(),
        reason: failure.reason.as_str().to_owned(),
        message: failure.message.clone(),
    }
}

/// All blocked removals of a rule.
#[derive(Default)]
struct AllBlocked {
    /// The digests by which they can be approved.
    digests: Vec<String>,
    copies: u64,
    items: Vec<wire::BlockedItem>,
}

impl AllBlocked {
    fn add(&mut self, digest: String, copies: u64) {
        self.digests.push(digest);
        self.copies = self.copies.saturating_add(copies);
    }

    /// Returns at least one page if removals are blocked, because each page contains the digest.
    fn pages(&self) -> Vec<wire::RuleBlockedPage> {
        let (digest, copies) = (
            self.digests.join(","),
            i64::try_from(self.copies).unwrap_or(i64::MAX),
        );
        let page = |items: &[wire::BlockedItem]| wire::RuleBlockedPage {
            digest: digest.clone(),
            copies,
            items: items.to_vec(),
        };
        match (self.digests.is_empty(), self.items.is_empty()) {
            (true, _) => vec![],
            (false, true) => vec![page(&[])],
            (false, false) => self.items.chunks(PAGE).map(page).collect(),
        }
    }
}

fn blocked_item(uid: &RuleUid, item: &Item, report_store: &ReportStore) -> wire::BlockedItem {
    let (what, cluster, object) = match item {
        Item::Rule => ("Rule", None, String::new()),
        Item::Cluster(cluster) => ("Cluster", Some(cluster), String::new()),
        Item::Kind(cluster, kind) => ("Kind", Some(cluster), kind.to_string()),
        Item::Copy(cluster, intent) => ("Copy", Some(cluster), intent.to_string()),
        Item::Name(intent) => ("Name", None, intent.to_string()),
        Item::Source(source) => ("Source", None, source.to_string()),
        Item::Prune(cluster, _) => {
            let copies = report_store
                .reported_copies(uid, cluster)
                .and_then(|entries| entries.prunes)
                .map_or(0, |asked| asked.objects);
            let namespaces = report_store.namespaces_of_prunes(uid, cluster).join(", ");
            ("Prune", Some(cluster), format!("{copies} ({namespaces})"))
        }
    };
    let cluster = cluster
        .map(|cluster| cluster.as_str().to_owned())
        .unwrap_or_default();
    wire::BlockedItem {
        what: what.to_owned(),
        cluster,
        object,
    }
}

type BlockedPages = Pin<Box<dyn Stream<Item = Result<wire::RuleBlockedPage, Status>> + Send>>;
type PlanPages = Pin<Box<dyn Stream<Item = Result<wire::PlanPage, Status>> + Send>>;
type Pages = Pin<Box<dyn Stream<Item = Result<wire::RuleClustersPage, Status>> + Send>>;

#[tonic::async_trait]
impl Query for Questions {
    type RuleClustersStream = Pages;

    async fn rule_clusters(
        &self,
        request: Request<wire::RuleQuestion>,
    ) -> Result<Response<Self::RuleClustersStream>, Status> {
        let rule = self.asked(&request).await?;
        let details = self
            .details(&rule)
            .ok_or_else(|| Status::not_found("the hub has no such rule"))?;
        let pages: Vec<_> = details
            .chunks(PAGE)
            .map(|clusters| Ok(page(clusters)))
            .collect();
        Ok(Response::new(Box::pin(stream::iter(pages))))
    }

    async fn explain_copy(
        &self,
        request: Request<wire::CopyQuestion>,
    ) -> Result<Response<wire::CopyExplained>, Status> {
        self.explain(request).await
    }

    type PlanStream = PlanPages;

    async fn plan(
        &self,
        request: Request<wire::PlanQuestion>,
    ) -> Result<Response<Self::PlanStream>, Status> {
        let pages = self.plan_pages(request).await?;
        Ok(Response::new(Box::pin(stream::iter(
            pages.into_iter().map(Ok),
        ))))
    }

    type RuleBlockedStream = BlockedPages;

    async fn rule_blocked(
        &self,
        request: Request<wire::RuleQuestion>,
    ) -> Result<Response<Self::RuleBlockedStream>, Status> {
        let rule = self.asked(&request).await?;
        let entries = self
            .entries(&rule)
            .ok_or_else(|| Status::not_found("the hub has no such rule"))?;
        Ok(Response::new(Box::pin(stream::iter(
            entries.pages().into_iter().map(Ok),
        ))))
    }
}
