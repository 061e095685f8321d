//! The view API `view.runnel.dev/v1alpha1`: the full state of rules, for kubectl and any other
//! Kubernetes client.
//!
//! The API server of the hub forwards requests (an APIService). It authenticates the user, and its
//! front proxy names the user in headers. The hub accepts only connections with the front proxy's
//! certificate, and asks a SubjectAccessReview for each request. It never sees a user's token.
mod changes;
mod connections;
mod copies;
mod copy_reasons;
mod delivery;
mod discovery;
mod error;
mod explain;
mod front_proxy;
mod head;
mod list;
mod member_targets;
mod plan;
mod removals;
mod request;
mod requests;
mod review;
mod rule_sync;
mod table;
mod target;
mod turns;
mod watch;
mod watch_limit;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use axum::Json;
use axum::body::Body;
use axum::response::{IntoResponse, Response};
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, header};
use http_body::Body as _;
use http_body_util::{BodyExt, Limited};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use runnel_api::{VIEW_GROUP, VIEW_VERSION};
use runnel_proto::json_nodes;
use runnel_proto::model::{ClusterName, RuleUid};
use runnel_transport::tls::FrontProxyTls;
use serde_json::json;
use tokio::sync::Semaphore;

use self::changes::{Changes, ComparedClusters, ViewScope, digest};
use self::delivery::{Reader, Row};
use self::discovery::{View, document};
use self::error::ViewError;
use self::front_proxy::FrontProxy;
use self::request::{Query, Selection};
use self::review::{ResourceAccess, Reviewer, name_of};
use self::table::ViewObject;
use self::target::{Form, Target};
use self::turns::Turns;
use self::watch_limit::WatchLimit;
use crate::ca::HubCas;
use crate::hub_state::HubState;
use crate::lease::LocalConnections;
use crate::object_cache::ObjectCache;
use crate::ordered_lock::{LEAF, OrderedGuard, OrderedMutex};

/// The name of the APIService.
const API_SERVICE: &str = "v1alpha1.view.runnel.dev";
/// The validity of the serving certificate, which is renewed at half of it.
const SERVING_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// The interval at which the front proxy's CA and the certificates are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The interval of these checks after an error.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long changes are gathered before they are compared, at most this often.
const GATHER: Duration = Duration::from_millis(250);
/// How often rules that no client reads are forgotten.
const SWEEP: Duration = Duration::from_secs(15);
/// The size limit of a request in bytes, large enough for the largest rule, and of a plan, for the largest bundle.
const BODY_LIMIT: usize = 256 * 1024;
const PLAN_BODY_LIMIT: usize = 2 * 1024 * 1024;
/// The time limit for the body of a request.
const BODY_TIME: Duration = Duration::from_secs(10);
/// The limit of lists of copies at a time.
const LISTINGS: usize = 3;
/// The limit of plans at a time, of the least weight: KiB, as which a body counts twice.
const PLANS: u32 = 4;
const PLAN_WEIGHT: u32 = 2048;
/// The limit of explanations at a time. Each asks an agent.
const EXPLANATIONS: u32 = 8;
/// The limits of JSON nodes of a request and of a plan. A node costs up to 350 bytes, whatever its text is.
const NODES: usize = 1000;
const PLAN_NODES: usize = 70_000;
/// The limit of parts of lists and watches that are computed at a time.
const READS: usize = 4;
/// The limit of syncs at a time. Each lists sources at the API server.
const SYNCS: u32 = 4;
/// The time limit for the answer to a request.
const REQUEST_TIME: Duration = Duration::from_secs(40);

/// The server of the view API.
pub struct ViewServer {
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    reviewer: Reviewer,
    /// For the content of plans and explanations, which needs many reviews. They must not delay other
    /// requests.
    content_reviewer: Reviewer,
    client: Client,
    hub_cas: Arc<HubCas>,
    /// The host names under which the API server reaches the hub.
    names: Vec<String>,
    changes: OrderedMutex<Changes, LEAF>,
    /// The version of the newest change, for watches.
    version: tokio::sync::watch::Sender<u64>,
    front_proxy: ArcSwapOption<(FrontProxy, FrontProxyTls)>,
    /// Limits the lists of copies, which ask agents.
    listings: Semaphore,
    /// Limits the plans, which need more than the hub's memory.
    plans: Turns,
    /// Limits the explanations, which go through all rules.
    explanations: Turns,
    /// Limits the parts of lists and watches that are computed at a time. A client that reads
    /// slowly has no turn meanwhile.
    reads: Semaphore,
    watches: Arc<WatchLimit>,
    /// Limits the syncs, which list sources at the API server.
    syncs: Turns,
}

impl ViewServer {
    /// Creates the server. The API server reaches it under the host names `names`, such as
    /// `runnel-hub-view.runnel-system.svc`.
    pub fn new(
        hub_state: Arc<HubState>,
        object_cache: Arc<ObjectCache>,
        client: Client,
        hub_cas: Arc<HubCas>,
        names: Vec<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            hub_state,
            object_cache,
            reviewer: Reviewer::new(client.clone()),
            content_reviewer: Reviewer::new(client.clone()),
            client,
            hub_cas,
            names,
            changes: OrderedMutex::new(Changes::new(SystemTime::now())),
            version: tokio::sync::watch::Sender::default(),
            front_proxy: ArcSwapOption::empty(),
            listings: Semaphore::new(LISTINGS),
            plans: Turns::new(PLANS, PLAN_WEIGHT),
            explanations: Turns::new(EXPLANATIONS, 1),
            reads: Semaphore::new(READS),
            watches: Arc::default(),
            syncs: Turns::new(SYNCS, 1),
        })
    }

    /// Serves the API until the process ends.
    pub async fn run(self: Arc<Self>, incoming: LocalConnections) {
        tokio::join!(
            self.serve(incoming),
            self.follow_credentials(),
            self.follow_changes(),
        );
    }

    /// Follows the CA of the front proxy, renews the serving certificate, and publishes the CA of
    /// the hub in the APIService.
    async fn follow_credentials(&self) {
        let (mut renew, mut served, mut logged) = (SystemTime::UNIX_EPOCH, None, None);
        let mut cas = self.hub_state.ca_bundle.subscribe();
        let mut lead = self.hub_state.leadership.lead.subscribe();
        loop {
            let done = self.check_certificates(&mut renew, &mut served).await;
            let error = done.err().map(|error| format!("{error:#}"));
            if error != logged {
                if let Some(error) = &error {
                    tracing::warn!(%error, "the view API is not available: kubectl get deliveries does not work; trying again");
                }
                logged.clone_from(&error);
            }
            let wait = if error.is_some() {
                RETRY_DELAY
            } else {
                CHECK_INTERVAL
            };
            tokio::select! {
                () = tokio::time::sleep(wait) => {}
                _ = cas.changed() => {}
                _ = lead.changed() => {}
            }
        }
    }

    async fn check_certificates(
        &self,
        renew: &mut SystemTime,
        served: &mut Option<Vec<u8>>,
    ) -> anyhow::Result<()> {
        let front_proxy = FrontProxy::read(&self.client).await?;
        anyhow::ensure!(
            front_proxy.is_known(),
            "the API server has no front proxy: start it with --requestheader-client-ca-file"
        );
        let identity = self.hub_cas.identity();
        let (now, ca) = (
            SystemTime::now(),
            identity.ca.certificate().as_ref().to_vec(),
        );
        let known = self
            .front_proxy
            .load_full()
            .is_some_and(|known| known.0 == front_proxy);
        if !known || now >= *renew || served.as_ref() != Some(&ca) {
            let serving =
                identity
                    .ca
                    .sign_service(&identity.hub_id, &self.names, now, SERVING_LIFE)?;
            *renew = serving.renew_at(now);
            let tls = front_proxy.tls(serving)?;
            self.front_proxy.store(Some(Arc::new((front_proxy, tls))));
            *served = Some(ca);
        }
        if self.hub_state.leadership.leads() {
            self.publish_ca(identity.ca.certificate_pem()).await?;
        }
        Ok(())
    }

    /// Writes the CA of the hub into the APIService, if another one is there.
    async fn publish_ca(&self, pem: &str) -> anyhow::Result<()> {
        let api = Api::<APIService>::all(self.client.clone());
        let call = crate::call::with_timeout(
            format!("read APIService {API_SERVICE}"),
            api.get(API_SERVICE),
        );
        let present = call.await?.spec.and_then(|spec| spec.ca_bundle);
        if present.is_some_and(|present| present.0 == pem.as_bytes()) {
            return Ok(());
        }
        let bundle = data_encoding::BASE64.encode(pem.as_bytes());
        let patch = Patch::Merge(json!({"spec": {"caBundle": bundle}}));
        let params = PatchParams {
            field_manager: Some(crate::call::FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        crate::call::with_timeout(
            format!("update APIService {API_SERVICE}"),
            api.patch(API_SERVICE, &params, &patch),
        )
        .await?;
        tracing::info!("the API server forwards requests for views to the hub");
        Ok(())
    }

    /// Compares the deliveries of changed rules, while clients read them.
    async fn follow_changes(self: &Arc<Self>) {
        let queue = &self.hub_state.queues.viewed_rules;
        let mut swept = Instant::now();
        loop {
            tokio::select! {
                () = queue.added() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(SWEEP) => {}
            }
            let dirty = queue.take();
            let now = Instant::now();
            if now.saturating_duration_since(swept) >= SWEEP {
                swept = now;
                self.changes().forget_unread(now);
            }
            let server = self.clone();
            let compared = tokio::task::spawn_blocking(move || {
                dirty.iter().for_each(|uid| server.compare(uid))
            });
            if let Err(error) = compared.await {
                tracing::error!(%error, "cannot compare deliveries");
            }
            self.version.send_replace(self.changes().version());
        }
    }

    /// Returns the log of changes of this time of service: another leader may have served before.
    fn changes(&self) -> OrderedGuard<'_, Changes> {
        let serving = self.hub_state.leadership.serving_since();
        let mut changes = self.changes.lock();
        changes.serve_since(serving, SystemTime::now());
        changes
    }

    /// Computes a part of a list or watch on a thread for blocking tasks.
    async fn compute<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        let _turn = self.reads.acquire().await;
        run_blocking(work).await
    }

    fn reader(&self) -> Reader<'_> {
        Reader {
            hub_state: &self.hub_state,
            object_cache: &self.object_cache,
        }
    }

    fn compare(&self, uid: &RuleUid) {
        let rule = {
            let index = self.hub_state.index.read();
            index
                .rules()
                .get(uid)
                .map(|entry| entry.rule.terms.rule.clone())
        };
        let clusters = self.changes().clusters_read(uid, rule.as_ref());
        if clusters.as_ref().is_some_and(BTreeSet::is_empty) {
            return;
        }
        match rule {
            Some(rule) => {
                if let Some(digests) = self.digests(uid, &clusters) {
                    self.changes().set(uid, &rule, digests, clusters);
                }
            }
            None => _ = self.changes().remove(uid),
        }
    }

    /// Returns the digests of the deliveries of a rule to these clusters; `None` while this replica does not serve.
    fn digests(
        &self,
        uid: &RuleUid,
        clusters: &ComparedClusters,
    ) -> Option<Vec<(ClusterName, u64)>> {
        let mut digests = Vec::new();
        let mut add = |row: Row| digests.push((row.cluster.clone(), digest(&row)));
        if let Some(some) = clusters {
            let some: Vec<_> = some.iter().cloned().collect();
            self.reader()
                .rows(uid, &some)
                .ok()?
                .into_iter()
                .for_each(add);
        } else {
            let mut take = |row| {
                add(row);
                false
            };
            let read = self
                .reader()
                .rows_of(uid, None, &Selection::default(), &mut take);
            read.ok()?;
        }
        Some(digests)
    }

    /// Begins to compare what a client reads, for a watch that follows a list. Returns the version at which that watch
    /// begins.
    fn cover(&self, shown: &ViewScope) -> u64 {
        let own = self.changes().read_by(shown, Instant::now());
        let read = own.as_ref().unwrap_or(shown);
        for (rule, uid) in self.reader().rules(|rule| read.has(rule)) {
            if !self.changes().lacks(&uid, read) {
                continue;
            }
            if let Some(digests) = self.digests(&uid, &read.clusters()) {
                self.changes()
                    .begin(&uid, &rule, digests, read, own.as_ref());
            }
        }
        self.changes().version()
    }

    /// Answers a request on a connection that was accepted with the settings `accepted`.
    async fn answer(
        self: &Arc<Self>,
        request: &Parts,
        body: &mut Body,
        accepted: &FrontProxy,
    ) -> Result<Response, ViewError> {
        let front_proxy = self.front_proxy.load_full();
        if front_proxy.is_none_or(|front_proxy| front_proxy.0 != *accepted) {
            return Err(ViewError::Unavailable(
                "the API server has another front proxy now: connect again".to_owned(),
            ));
        }
        let path = request.uri.path();
        if let Some(document) = document(path.trim_end_matches('/')) {
            return match request.method {
                Method::GET | Method::HEAD => Ok(Json(document).into_response()),
                _ => Err(ViewError::Method),
            };
        }
        let target = Target::of(path).ok_or_else(|| ViewError::NotFound(path.to_owned()))?;
        let headers = &request.headers;
        if request.method == Method::POST && target.can_create() {
            let user = self
                .authorize(accepted, headers, &target, "create", None)
                .await?;
            check_media_type(headers)?;
            return self.create(&target, &user, body).await;
        }
        if request.method != Method::GET {
            return Err(ViewError::Method);
        }
        let text = request.uri.query().unwrap_or_default();
        let query = request::query(text, target.resource.fields)?;
        let verb = match (&target.name, query.watch) {
            (_, true) => "watch",
            (None, false) => "list",
            (Some(_), false) => "get",
        };
        if !target.resource.verbs().contains(&verb) {
            return Err(ViewError::Method);
        }
        let name = target.name.as_deref().or(query.selection.name());
        let user = self
            .authorize(accepted, headers, &target, verb, name)
            .await?;
        let form = Form::of(headers)?;
        match (&target.resource.view, &target.name) {
            (View::Deliveries, _) => self.deliveries(target, query, form, &user).await,
            (View::Copies, None) => self.copies(&target, &query, form).await,
            (View::Copies, Some(name)) => self.copy(&target, name, &query, form).await,
            (View::MemberTargets, None) => self.member_targets(&target, &query, form).await,
            (View::MemberTargets, Some(name)) => {
                self.member_target(&target, name, &query, form).await
            }
            (View::Plans | View::Explanations | View::Removals | View::Syncs, _) => {
                Err(ViewError::Method)
            }
        }
    }

    /// Answers a request in a turn, which also bounds the bodies in memory.
    async fn create(
        &self,
        target: &Target,
        user: &UserInfo,
        body: &mut Body,
    ) -> Result<Response, ViewError> {
        let view = target.resource.view;
        let (limit, nodes) = match view {
            View::Plans => (PLAN_BODY_LIMIT, PLAN_NODES),
            _ => (BODY_LIMIT, NODES),
        };
        let bytes = body.size_hint().upper();
        let bytes = bytes.map_or(limit, |bytes| usize::try_from(bytes).unwrap_or(usize::MAX));
        let large = || ViewError::BadRequest(format!("the object has more than {limit} bytes"));
        if bytes > limit {
            return Err(large());
        }
        let turn = match view {
            View::Plans => {
                let weight = u32::try_from(bytes.div_ceil(1024) * 2).unwrap_or(u32::MAX);
                self.plans.enter(user, weight).await?
            }
            View::Syncs => self.syncs.enter(user, 1).await?,
            _ => self.explanations.enter(user, 1).await?,
        };
        let answered = async {
            let body = Limited::new(body, limit).collect();
            let body = tokio::time::timeout(BODY_TIME, body).await;
            let body = body
                .map_err(|_| ViewError::BadRequest("the object did not arrive in time".to_owned()))?
                .map_err(|_| large())?
                .to_bytes();
            if json_nodes::count(&body) > nodes {
                return Err(ViewError::BadRequest(format!(
                    "the object has more than {nodes} values: plan fewer or smaller objects at a time"
                )));
            }
            self.request(target, user, &body, &turn).await
        };
        let answered = tokio::time::timeout(REQUEST_TIME, answered).await;
        answered.map_err(|_| {
            ViewError::Timeout(
                "the hub could not answer in time: ask about fewer objects at a time".to_owned(),
            )
        })?
    }

    async fn deliveries(
        self: &Arc<Self>,
        target: Target,
        query: Query,
        form: Form,
        user: &UserInfo,
    ) -> Result<Response, ViewError> {
        if query.watch {
            let selection = match &target.name {
                Some(name) => Selection::of_name(name),
                None => query.selection.clone(),
            };
            let place = self
                .watches
                .enter(user.username.as_deref().unwrap_or_default())?;
            let query = Query { selection, ..query };
            return self.watch(target, query, form, place).await;
        }
        match &target.name {
            Some(name) => self.one(&target, name, form, &query).await,
            None => self.list(&target, &query, form).await,
        }
    }

    /// Returns the user of a request, who has the right to it.
    ///
    /// # Errors
    /// [`ViewError::Forbidden`], without that right.
    async fn authorize(
        &self,
        front_proxy: &FrontProxy,
        headers: &HeaderMap,
        target: &Target,
        verb: &str,
        object: Option<&str>,
    ) -> Result<UserInfo, ViewError> {
        let user = front_proxy.user(headers)?;
        let access = ResourceAccess {
            verb,
            group: VIEW_GROUP,
            version: VIEW_VERSION,
            resource: &target.resource.plural,
            namespace: &target.namespace,
            name: object.unwrap_or_default(),
        };
        if self.reviewer.allows(&user, &access).await? {
            return Ok(user);
        }
        let name = name_of(&user);
        let place = if target.namespace.is_empty() {
            "at the cluster scope".to_owned()
        } else {
            format!("in the namespace {:?}", target.namespace)
        };
        Err(ViewError::Forbidden(format!(
            "{}.{VIEW_GROUP} is forbidden: User {name:?} cannot {verb} resource {:?} in API group {VIEW_GROUP:?} {place}",
            target.resource.plural, target.resource.plural
        )))
    }

    async fn one(
        self: &Arc<Self>,
        target: &Target,
        name: &str,
        form: Form,
        query: &Query,
    ) -> Result<Response, ViewError> {
        let query = Query {
            selection: Selection::of_name(name),
            limit: 1,
            ..query.clone()
        };
        let (server, scope) = (self.clone(), target.scope());
        let asked = query.clone();
        let page = self
            .compute(move || server.reader().page(&scope, &asked))
            .await??;
        let row = page.rows.into_iter().next().ok_or_else(|| {
            ViewError::NotFound(format!("{}.{VIEW_GROUP} {name:?}", target.resource.plural))
        })?;
        let version = self.changes().version();
        Ok(Json(form.one(versioned(row, version), version, &query)).into_response())
    }
}

/// Refuses an object that is not JSON. Without a content type it is tried.
fn check_media_type(headers: &HeaderMap) -> Result<(), ViewError> {
    let Some(given) = headers.get(header::CONTENT_TYPE) else {
        return Ok(());
    };
    let given = String::from_utf8_lossy(given.as_bytes());
    let media_type = given.split(';').next().unwrap_or_default().trim();
    if media_type.eq_ignore_ascii_case("application/json") {
        return Ok(());
    }
    Err(ViewError::MediaType(given.into_owned()))
}

/// Adds a warning, which kubectl prints.
fn warn(response: &mut Response, warning: &str) {
    let text = warning.replace(['\\', '"'], "'");
    if let Ok(value) = HeaderValue::try_from(format!("299 - \"{text}\"")) {
        response.headers_mut().append(header::WARNING, value);
    }
}

/// Returns a time that an agent reports in seconds; zero is none.
fn reported_time(seconds: i64) -> Option<Time> {
    let at = Timestamp::from_second(seconds).ok();
    at.filter(|_| seconds > 0).map(Time)
}

/// Runs slow work on a thread for blocking tasks, so that no other task of the hub waits for it.
async fn run_blocking<T: Send + 'static>(
    work: impl FnOnce() -> T + Send + 'static,
) -> Result<T, ViewError> {
    tokio::task::spawn_blocking(work)
        .await
        .map_err(|_| ViewError::broken())
}

fn versioned<O: ViewObject>(mut object: O, version: u64) -> O {
    object.metadata_mut().resource_version = Some(version.to_string());
    object
}

/// Returns the body of a watch: one event a line.
fn body(events: impl futures::Stream<Item = Vec<u8>> + Send + 'static) -> Response {
    use futures::StreamExt;
    let lines = events.map(Ok::<_, std::convert::Infallible>);
    let mut response = Response::new(Body::from_stream(lines));
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("application/json"),
    );
    response
}
