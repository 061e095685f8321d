//! The view API `view.runnel.dev/v1alpha1`: the full state of rules, for kubectl and any other
//! Kubernetes client.
//!
//! The API server of the hub forwards requests (an APIService). It authenticates the user, and its
//! front proxy names the user in headers. The hub accepts only connections with the front proxy's
//! certificate, and asks a SubjectAccessReview for each request. It never sees a user's token.
mod changes;
mod copies;
mod copy_reasons;
mod delivery;
mod discovery;
mod error;
mod explain;
mod front_proxy;
mod member_targets;
mod plan;
mod removals;
mod request;
mod requests;
mod review;
mod table;
mod target;
mod watch;

use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

use arc_swap::ArcSwapOption;
use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{Request, State};
use axum::response::{IntoResponse, Response};
use axum::serve::Listener;
use http::request::Parts;
use http::{HeaderMap, HeaderValue, Method, header};
use jiff::Timestamp;
use k8s_openapi::api::authentication::v1::UserInfo;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{Patch, PatchParams};
use kube::{Api, Client};
use runnel_api::{VIEW_GROUP, VIEW_VERSION};
use runnel_proto::model::{ClusterName, RuleUid};
use runnel_transport::tls::{Accept, FrontProxyTls};
use serde_json::json;
use tokio::net::TcpStream;
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinSet;
use tokio_rustls::server::TlsStream;

use self::changes::{Changes, digest};
use self::delivery::{Reader, Scope};
use self::discovery::{View, document};
use self::error::ViewError;
use self::front_proxy::FrontProxy;
use self::request::{Position, Query, Selection, token};
use self::review::{ResourceAccess, Reviewer, name_of};
use self::table::ViewObject;
use self::target::{Form, Target};
use crate::ca::Authorities;
use crate::hub_state::HubState;
use crate::lease::LocalConnections;
use crate::object_cache::ObjectCache;
use crate::ordered_lock::{LEAF, OrderedMutex};

/// The name of the APIService.
const API_SERVICE: &str = "v1alpha1.view.runnel.dev";
/// The validity of the serving certificate, which is renewed at half of it.
const SERVING_LIFE: Duration = Duration::from_secs(24 * 60 * 60);
/// The interval at which the front proxy's CA and the certificates are checked.
const CHECK_INTERVAL: Duration = Duration::from_secs(60);
/// The same after an error.
const RETRY_DELAY: Duration = Duration::from_secs(5);
/// How long changes are gathered before they are compared, at most this often.
const GATHER: Duration = Duration::from_millis(250);
/// How often rules that no client reads are forgotten.
const SWEEP: Duration = Duration::from_secs(15);
/// The size limit of a request in bytes, large enough for the largest rule.
const BODY_LIMIT: usize = 256 * 1024;
/// The limit of TLS handshakes at a time.
const HANDSHAKES: usize = 64;
/// The limit of lists of copies at a time.
const LISTINGS: usize = 3;
/// The limit of plans at a time.
const PLANS: usize = 4;
/// Connections that wait to be served.
const QUEUE: usize = 64;

/// The server of the view API.
pub struct ViewServer {
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
    reviewer: Reviewer,
    /// For the content of plans and explanations, which needs many reviews. They must not delay other
    /// requests.
    content_reviewer: Reviewer,
    client: Client,
    authorities: Arc<Authorities>,
    /// The host names under which the API server reaches the hub.
    names: Vec<String>,
    changes: OrderedMutex<Changes, LEAF>,
    /// The version of the newest change, for watches.
    version: tokio::sync::watch::Sender<u64>,
    front_proxy: ArcSwapOption<(FrontProxy, FrontProxyTls)>,
    /// Limits the lists of copies, which ask agents.
    listings: Semaphore,
    /// Limits the plans, which need more than the hub's memory.
    plans: Semaphore,
}

impl ViewServer {
    /// Creates the server. The API server reaches it under the host names `names`, such as
    /// `runnel-hub-view.runnel-system.svc`.
    pub fn new(
        hub_state: Arc<HubState>,
        object_cache: Arc<ObjectCache>,
        client: Client,
        authorities: Arc<Authorities>,
        names: Vec<String>,
    ) -> Arc<Self> {
        Arc::new(Self {
            hub_state,
            object_cache,
            reviewer: Reviewer::new(client.clone()),
            content_reviewer: Reviewer::new(client.clone()),
            client,
            authorities,
            names,
            changes: OrderedMutex::new(Changes::new(SystemTime::now())),
            version: tokio::sync::watch::Sender::default(),
            front_proxy: ArcSwapOption::empty(),
            listings: Semaphore::new(LISTINGS),
            plans: Semaphore::new(PLANS),
        })
    }

    /// Serves the API until the process ends.
    pub async fn run(self: Arc<Self>, incoming: LocalConnections) {
        let (accepted, connections) = mpsc::channel(QUEUE);
        let router = Router::new().fallback(respond).with_state(self.clone());
        tokio::join!(
            self.accept(incoming, accepted),
            self.follow_credentials(),
            self.follow_changes(),
            async {
                let served = axum::serve(Connections(connections), router).await;
                if let Err(error) = served {
                    tracing::error!(%error, "the view API is not served any more");
                }
            }
        );
    }

    async fn accept(
        &self,
        mut incoming: LocalConnections,
        accepted: mpsc::Sender<TlsStream<TcpStream>>,
    ) {
        let mut handshakes = JoinSet::new();
        loop {
            let (tcp, from) = tokio::select! {
                Some(_) = handshakes.join_next() => continue,
                Ok(accepted) = incoming.accept(), if handshakes.len() < HANDSHAKES => accepted,
            };
            let Some(tls) = self.front_proxy.load_full() else {
                tracing::debug!(peer = %from, "the front proxy of the API server is not known yet");
                continue;
            };
            let accepted = accepted.clone();
            handshakes.spawn(async move {
                match tls.1.accept(tcp).await {
                    Ok(stream) => _ = accepted.send(stream).await,
                    Err(error) => {
                        tracing::debug!(peer = %from, %error, "refused a connection to the view API");
                    }
                }
            });
        }
    }

    /// Follows the CA of the front proxy, renews the serving certificate, and publishes the CA of
    /// the hub in the APIService.
    async fn follow_credentials(&self) {
        let (mut renew, mut served, mut logged) = (SystemTime::UNIX_EPOCH, None, None);
        let mut authorities = self.hub_state.authorities.subscribe();
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
                _ = authorities.changed() => {}
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
        let identity = self.authorities.identity();
        let (now, authority) = (
            SystemTime::now(),
            identity.authority.certificate().as_ref().to_vec(),
        );
        let known = self
            .front_proxy
            .load_full()
            .is_some_and(|known| known.0 == front_proxy);
        if !known || now >= *renew || served.as_ref() != Some(&authority) {
            let serving = identity.authority.sign_service(
                &identity.hub_id,
                &self.names,
                now,
                SERVING_LIFE,
            )?;
            *renew = serving.renew_at(now);
            let tls = front_proxy.tls(serving)?;
            self.front_proxy.store(Some(Arc::new((front_proxy, tls))));
            *served = Some(authority);
        }
        if self.hub_state.leadership.leads() {
            self.publish_authority(identity.authority.certificate_pem())
                .await?;
        }
        Ok(())
    }

    /// Writes the CA of the hub into the APIService, if another one is there.
    async fn publish_authority(&self, pem: &str) -> anyhow::Result<()> {
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
        let (mut swept, mut serving) = (Instant::now(), None);
        loop {
            tokio::select! {
                () = queue.added() => tokio::time::sleep(GATHER).await,
                () = tokio::time::sleep(SWEEP) => {}
            }
            let dirty = queue.take();
            let since = self.hub_state.leadership.serving_since();
            if serving != since {
                // Another leader may have served meanwhile.
                serving = since;
                *self.changes.lock() = Changes::new(SystemTime::now());
            }
            let now = Instant::now();
            if now.saturating_duration_since(swept) >= SWEEP {
                swept = now;
                self.changes.lock().forget_unread(now);
            }
            let server = self.clone();
            let compared = tokio::task::spawn_blocking(move || {
                dirty.iter().for_each(|uid| server.compare(uid))
            });
            if let Err(error) = compared.await {
                tracing::error!(%error, "cannot compare deliveries");
            }
            self.version.send_replace(self.changes.lock().version());
        }
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
        if !self.changes.lock().is_read(uid, rule.as_ref()) {
            return;
        }
        match rule {
            Some(rule) => {
                if let Some(digests) = self.digests(uid) {
                    self.changes.lock().set(uid, &rule, digests);
                }
            }
            None => _ = self.changes.lock().remove(uid),
        }
    }

    /// Returns the digest of each delivery of a rule; `None` while this replica does not serve.
    fn digests(&self, uid: &RuleUid) -> Option<Vec<(ClusterName, u64)>> {
        let mut digests = Vec::new();
        let read = self
            .reader()
            .rows_of(uid, None, &Selection::default(), &mut |row| {
                digests.push((row.cluster.clone(), digest(&row)));
                false
            });
        read.ok().map(|_| digests)
    }

    /// Begins to compare the rules of a scope, for a watch that follows a list. Returns the version
    /// at which that watch begins.
    fn cover(&self, scope: &Scope) -> u64 {
        self.changes.lock().read_by(scope, Instant::now());
        for (rule, uid) in self.reader().rules(scope) {
            if self.changes.lock().is_compared(&uid) {
                continue;
            }
            if let Some(digests) = self.digests(&uid) {
                self.changes.lock().begin(uid, rule, digests);
            }
        }
        self.changes.lock().version()
    }

    async fn answer(self: &Arc<Self>, request: &Parts, body: Body) -> Result<Response, ViewError> {
        let path = request.uri.path();
        if let Some(document) = document(path.trim_end_matches('/')) {
            return Ok(Json(document).into_response());
        }
        let target = Target::of(path).ok_or_else(|| ViewError::NotFound(path.to_owned()))?;
        if request.method == Method::POST && target.can_create() {
            let user = self.authorize(&request.headers, &target, "create").await?;
            let body = axum::body::to_bytes(body, BODY_LIMIT).await;
            let body = body.map_err(|_| {
                ViewError::BadRequest(format!("the object has more than {BODY_LIMIT} bytes"))
            })?;
            return self.request(&target, &user, &body).await;
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
        self.authorize(&request.headers, &target, verb).await?;
        let form = Form::of(&request.headers);
        match (&target.resource.view, &target.name) {
            (View::Deliveries, _) => self.deliveries(target, query, form).await,
            (View::Copies, None) => self.copies(&target, &query, form).await,
            (View::Copies, Some(name)) => self.copy(&target, name, &query, form).await,
            (View::MemberTargets, None) => self.member_targets(&target, &query, form),
            (View::MemberTargets, Some(name)) => self.member_target(&target, name, &query, form),
            (View::Plans | View::Explanations | View::Removals, _) => Err(ViewError::Method),
        }
    }

    async fn deliveries(
        self: &Arc<Self>,
        target: Target,
        query: Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        match &target.name {
            Some(name) if !query.watch => self.one(&target, name, form, &query).await,
            Some(name) => {
                let query = Query {
                    selection: Selection::of_name(name),
                    ..query
                };
                self.watch(target, query, form).await
            }
            None if query.watch => self.watch(target, query, form).await,
            None => self.list(target, query, form).await,
        }
    }

    async fn authorize(
        &self,
        headers: &HeaderMap,
        target: &Target,
        verb: &str,
    ) -> Result<UserInfo, ViewError> {
        let front_proxy = self
            .front_proxy
            .load_full()
            .ok_or(ViewError::Unauthenticated)?;
        let user = front_proxy.0.user(headers)?;
        let access = ResourceAccess {
            verb,
            group: VIEW_GROUP,
            version: VIEW_VERSION,
            resource: &target.resource.plural,
            namespace: &target.namespace,
            name: target.name.as_deref().unwrap_or_default(),
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
        let page = run_blocking(move || server.reader().page(&scope, &asked)).await??;
        let row = page.rows.into_iter().next().ok_or_else(|| {
            ViewError::NotFound(format!("{}.{VIEW_GROUP} {name:?}", target.resource.plural))
        })?;
        let version = self.changes.lock().version();
        Ok(Json(form.one(versioned(row, version), version, &query)).into_response())
    }

    async fn list(
        self: &Arc<Self>,
        target: Target,
        query: Query,
        form: Form,
    ) -> Result<Response, ViewError> {
        let (server, scope, asked) = (self.clone(), target.scope(), query.clone());
        let (version, page) = run_blocking(move || {
            let version = server.cover(&scope);
            server
                .reader()
                .page(&scope, &asked)
                .map(|page| (version, page))
        })
        .await??;
        Ok(page_response(
            &target, page.rows, page.next, version, form, &query,
        ))
    }
}

/// Returns one page of a list.
fn page_response<O: ViewObject>(
    target: &Target,
    rows: Vec<O>,
    next: Option<Position>,
    version: u64,
    form: Form,
    query: &Query,
) -> Response {
    let mut metadata = json!({"resourceVersion": version.to_string()});
    if let Some(next) = &next {
        metadata["continue"] = token(next).into();
    }
    let rows: Vec<_> = rows
        .into_iter()
        .map(|row| versioned(row, version))
        .collect();
    Json(form.list(&rows, &metadata, target.resource, query)).into_response()
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

async fn respond(State(server): State<Arc<ViewServer>>, request: Request) -> Response {
    let (request, body) = request.into_parts();
    match server.answer(&request, body).await {
        Ok(response) => response,
        Err(error) => error.into_response(),
    }
}

/// The connections of the front proxy.
struct Connections(mpsc::Receiver<TlsStream<TcpStream>>);

impl Listener for Connections {
    type Io = TlsStream<TcpStream>;
    type Addr = ();

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        match self.0.recv().await {
            Some(stream) => (stream, ()),
            // The process ends.
            None => std::future::pending().await,
        }
    }

    fn local_addr(&self) -> std::io::Result<Self::Addr> {
        Ok(())
    }
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
