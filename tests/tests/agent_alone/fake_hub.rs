//! A hub without a cluster: it uses the protocol over real TLS, sends what a test sets, and records
//! what it receives.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use anyhow::{Context, Result};
use parking_lot::Mutex;
use runnel_proto::convert::{agent_frame, hub_frame_to_wire};
use runnel_proto::model::*;
use runnel_proto::wire;
use runnel_tests::wait::eventually;
use runnel_transport::grpc::runnel_server::{Runnel, RunnelServer};
use runnel_transport::identity::{Ca, Fingerprint, JoinString, Token, new_hub_id};
use runnel_transport::tls::{Peer, ServerTls, incoming};
use tokio::net::TcpListener;
use tokio::sync::mpsc;
use tokio_stream::StreamExt;
use tokio_stream::wrappers::ReceiverStream;
use tokio_util::sync::CancellationToken;
use tonic::{Request, Response, Status, Streaming};

/// One rule as the hub sends it to the member.
#[derive(Clone)]
pub struct Wanted {
    pub terms: Terms,
    pub intents: BTreeMap<SourceRef, Content>,
}

#[derive(Default)]
struct State {
    rules: BTreeMap<String, Wanted>,
    removed: BTreeMap<String, DeletionPolicy>,
    received: Vec<AgentFrame>,
    live: Option<mpsc::Sender<Result<wire::HubFrame, Status>>>,
    key: Option<Fingerprint>,
    nonce: u64,
    sessions: usize,
    renewals: usize,
    /// Streams that were handed over to the next one.
    handed_over: usize,
    /// Handovers are not answered.
    keeps_streams: bool,
    /// Every payload that was sent.
    sent: Vec<(RuleUid, SourceRef, Revision)>,
    refuse: bool,
    /// Ends every open stream.
    cut: CancellationToken,
}

struct FakeHubState {
    hub_id: String,
    ca: Ca,
    token: Token,
    life: Duration,
    state: Mutex<State>,
}

/// The running fake; dropping it closes the port and every stream.
pub struct FakeHub {
    shared: Arc<FakeHubState>,
    pub address: String,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeHub {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl FakeHub {
    /// A hub whose certificates are valid for `life`.
    pub async fn start(life: Duration) -> Result<Self> {
        let hub_id = new_hub_id()?;
        let ca = Ca::generate(&hub_id, SystemTime::now())?;
        let token = Token::generate()?;
        let shared = Arc::new(FakeHubState {
            hub_id,
            ca,
            token,
            life,
            state: Mutex::default(),
        });
        let (address, task) = serve(shared.clone(), "127.0.0.1:0").await?;
        Ok(Self {
            shared,
            address,
            task,
        })
    }

    /// Closes the port and every stream.
    pub fn stop(&mut self) {
        self.task.abort();
        self.shared.state.lock().cut_streams();
    }

    /// Listens again, on the same port.
    pub async fn resume(&mut self) -> Result<()> {
        let address = self.address.clone();
        let shared = self.shared.clone();
        let again = eventually("the port of the hub", Duration::from_secs(10), async || {
            Ok(serve(shared.clone(), &address).await.ok())
        });
        (self.address, self.task) = again.await?;
        Ok(())
    }

    /// Listens again, on another port.
    pub async fn listen_elsewhere(&mut self) -> Result<()> {
        let before = std::mem::take(&mut self.address);
        (self.address, self.task) = serve(self.shared.clone(), "127.0.0.1:0").await?;
        anyhow::ensure!(self.address != before, "the hub has not moved");
        Ok(())
    }

    pub fn hub_id(&self) -> &str {
        &self.shared.hub_id
    }

    /// The join string; another token than the hub's where `right` is false.
    pub fn join_string(&self, right: bool) -> Result<String> {
        self.join_string_to(&self.address, right)
    }

    /// The same, but with this address.
    pub fn join_string_to(&self, address: &str, right: bool) -> Result<String> {
        let token = if right {
            self.shared.token.clone()
        } else {
            Token::generate()?
        };
        let string = JoinString {
            addresses: vec![address.to_owned()],
            hub: self.shared.hub_id.clone(),
            cluster: "alone".to_owned(),
            token,
            pin: self.shared.ca.pin(),
        };
        Ok(string.encode())
    }

    /// Sets a rule, and sends the change to a connected agent.
    pub fn want(&self, uid: &str, wanted: Wanted) {
        let mut state = self.shared.state.lock();
        let before = state.rules.insert(uid.to_owned(), wanted.clone());
        let mut delta = RuleDelta::new(uid.into());
        if before
            .as_ref()
            .is_none_or(|before| before.terms != wanted.terms)
        {
            delta.terms = Some((wanted.terms.clone(), digest(&wanted.terms)));
        }
        let earlier = before.map(|before| before.intents).unwrap_or_default();
        let changed = wanted
            .intents
            .iter()
            .filter(|(source, content)| earlier.get(source) != Some(content));
        delta.upserts = changed
            .map(|(source, content)| intent(source, content))
            .collect();
        let lost = earlier
            .keys()
            .filter(|source| !wanted.intents.contains_key(source));
        let deletion_policy = wanted.terms.deletion_policy;
        delta.tombstones = lost
            .map(|source| Tombstone {
                source: source.clone(),
                deletion_policy,
            })
            .collect();
        state.batch(vec![delta]);
    }

    /// Removes a rule.
    pub fn remove(&self, uid: &str, policy: DeletionPolicy) {
        let mut state = self.shared.state.lock();
        state.rules.remove(uid);
        state.removed.insert(uid.to_owned(), policy);
        state.batch(vec![RuleDelta {
            removal: Some(policy),
            ..RuleDelta::new(uid.into())
        }]);
    }

    /// Answers sessions with PERMISSION_DENIED, or stops to.
    pub fn refuse(&self, refuse: bool) {
        let mut state = self.shared.state.lock();
        state.refuse = refuse;
        state.cut_streams();
    }

    pub fn sessions(&self) -> usize {
        self.shared.state.lock().sessions
    }

    pub fn handed_over(&self) -> usize {
        self.shared.state.lock().handed_over
    }

    /// Does not answer a handover from now on.
    pub fn keep_streams(&self) {
        self.shared.state.lock().keeps_streams = true;
    }

    /// The payloads that were sent more than once.
    pub fn sent_twice(&self) -> Vec<(RuleUid, SourceRef, Revision)> {
        let state = self.shared.state.lock();
        let mut seen = std::collections::BTreeSet::new();
        let text = |(uid, source, revision): &(RuleUid, SourceRef, Revision)| {
            format!("{uid} {source} {revision:?}")
        };
        state
            .sent
            .iter()
            .filter(|sent| !seen.insert(text(sent)))
            .cloned()
            .collect()
    }

    pub fn renewals(&self) -> usize {
        self.shared.state.lock().renewals
    }

    /// Everything received, as text, to search for what must not be in it.
    pub fn received(&self) -> String {
        format!("{:?}", self.shared.state.lock().received)
    }

    /// The digest of the intents of a rule.
    pub fn revisions(&self, uid: &str) -> SetDigest {
        let state = self.shared.state.lock();
        state.rules.get(uid).map(own_digest).unwrap_or_default()
    }

    /// The newest state of a rule that the agent has reported.
    pub fn observed(&self, uid: &str) -> Option<RuleState> {
        let state = self.shared.state.lock();
        let states = state.received.iter().rev().filter_map(|frame| match frame {
            AgentFrame::Report(states) | AgentFrame::AckedRules(states, _) => Some(states),
            _ => None,
        });
        states
            .flatten()
            .find(|state| state.uid.as_str() == uid)
            .cloned()
    }

    /// Waits until the agent has reported a state of a rule that meets a condition.
    pub async fn wait_for_report(
        &self,
        what: &str,
        uid: &str,
        wanted: impl Fn(&RuleState) -> bool,
    ) -> Result<RuleState> {
        eventually(what, runnel_tests::scene::SOON, async || {
            let observed = self.observed(uid).context("nothing was told of the rule")?;
            anyhow::ensure!(wanted(&observed), "told last: {observed:?}");
            Ok(Some(observed))
        })
        .await
    }

    /// Waits until every copy of a rule is applied.
    pub async fn wait_applied(&self, uid: &str, copies: u32) -> Result<RuleState> {
        let what = format!("{copies} applied copies of {uid}");
        self.wait_for_report(&what, uid, |state| {
            state.counts.copies == copies && state.counts.applied == copies
        })
        .await
    }

    /// Waits until a rule is gone.
    pub async fn wait_gone(&self, uid: &str) -> Result<()> {
        let what = format!("the end of {uid}");
        self.wait_for_report(&what, uid, |state| state.gone)
            .await
            .map(drop)
    }

    /// Waits until one copy of a rule has failed for this reason; a report about its former state may come first. Returns
    /// the message.
    pub async fn wait_failed(&self, uid: &str, reason: Reason) -> Result<String> {
        let what = format!("a copy of {uid} that failed with {}", reason.as_str());
        let is_it = |state: &RuleState| {
            let first = state.failures.first();
            state.counts.failed == 1 && first.is_some_and(|first| first.reason == reason)
        };
        let state = self.wait_for_report(&what, uid, is_it).await?;
        let first = state.failures.first().context("no failure is named")?;
        Ok(first.message.to_string())
    }
}

impl State {
    fn cut_streams(&mut self) {
        self.live = None;
        std::mem::take(&mut self.cut).cancel();
    }

    /// Whether the stream that is live gives way to the next one.
    fn hand_over(&mut self) -> bool {
        if !self.keeps_streams {
            self.handed_over += 1;
            self.live = None;
        }
        !self.keeps_streams
    }

    fn batch(&mut self, rules: Vec<RuleDelta>) {
        self.nonce += 1;
        if self.live.is_some() {
            let each = rules
                .iter()
                .flat_map(|delta| delta.upserts.iter().map(|up| (delta.uid.clone(), up)));
            self.sent
                .extend(each.map(|(uid, up)| (uid, up.source.clone(), up.revision)));
        }
        let frame = HubFrame::Batch(Batch {
            nonce: self.nonce,
            rules,
        });
        if let Some(live) = &self.live {
            let _ = live.try_send(Ok(hub_frame_to_wire(&frame)));
        }
    }
}

fn intent(source: &SourceRef, content: &Content) -> Intent {
    let canonical = content.to_bytes();
    let revision = RevisionKey::new(b"fake").revision(&source.resource, &canonical);
    Intent {
        source: source.clone(),
        revision,
        payload: Payload::encode(canonical),
    }
}

fn digest(terms: &Terms) -> TermsDigest {
    let json = serde_json::to_vec(terms).unwrap_or_default();
    TermsDigest(RevisionKey::new(b"terms").revision("", &json).0)
}

async fn serve(
    shared: Arc<FakeHubState>,
    address: &str,
) -> Result<(String, tokio::task::JoinHandle<()>)> {
    let listener = TcpListener::bind(address).await?;
    let address = listener.local_addr()?.to_string();
    let serving =
        shared
            .ca
            .sign_hub(&shared.hub_id, SystemTime::now(), Duration::from_secs(3600))?;
    let tls = Arc::new(ServerTls::new(&[shared.ca.certificate().clone()], serving)?);
    let service = RunnelServer::new(Service { shared });
    let server = tonic::transport::Server::builder()
        .add_service(service)
        .serve_with_incoming(incoming(listener, tls));
    Ok((address, tokio::spawn(async move { drop(server.await) })))
}

struct Service {
    shared: Arc<FakeHubState>,
}

impl Service {
    fn certificate(&self, request: &[u8]) -> Result<Response<wire::CertificateResponse>, Status> {
        let FakeHubState {
            hub_id, ca, life, ..
        } = &*self.shared;
        let signed = ca
            .sign_member(request, hub_id, "alone", "uid-1", SystemTime::now(), *life)
            .map_err(|error| Status::invalid_argument(error.to_string()))?;
        self.shared.state.lock().key = Some(signed.key);
        Ok(Response::new(wire::CertificateResponse {
            certificate: signed.der.to_vec().into(),
            ca_certificates: vec![ca.certificate().to_vec().into()],
            replaced_cluster: String::new(),
        }))
    }

    /// Returns the difference between the hub's intents and the agent's.
    fn catch_up(
        &self,
        copies_there: &[RuleState],
        details: &BTreeMap<String, Vec<AckedIntent>>,
    ) -> Vec<RuleDelta> {
        let state = self.shared.state.lock();
        let mut deltas = vec![];
        for (uid, wanted) in &state.rules {
            let theirs = copies_there.iter().find(|state| state.uid.as_str() == uid);
            let pairs = details.get(uid).map(Vec::as_slice).unwrap_or_default();
            let mut delta = RuleDelta::new(uid.as_str().into());
            if theirs.and_then(|state| state.terms_digest) != Some(digest(&wanted.terms)) {
                delta.terms = Some((wanted.terms.clone(), digest(&wanted.terms)));
            }
            delta.prune = theirs.and_then(|state| Some(state.namespace_prunes.as_ref()?.digest));
            if theirs.is_none_or(|state| state.intents_digest != own_digest(wanted)) {
                let intents = wanted
                    .intents
                    .iter()
                    .map(|(source, content)| intent(source, content));
                let holds = |new: &Intent| {
                    pairs
                        .iter()
                        .any(|p| p.source == new.source && p.revision == new.revision)
                };
                delta.upserts = intents.filter(|new| !holds(new)).collect();
                let deletion_policy = wanted.terms.deletion_policy;
                let lost = pairs
                    .iter()
                    .filter(|pair| !wanted.intents.contains_key(&pair.source));
                delta.tombstones = lost
                    .map(|pair| Tombstone {
                        source: pair.source.clone(),
                        deletion_policy,
                    })
                    .collect();
            }
            deltas.push(delta);
        }
        for (uid, policy) in &state.removed {
            if copies_there.iter().any(|state| state.uid.as_str() == uid) {
                deltas.push(RuleDelta {
                    removal: Some(*policy),
                    ..RuleDelta::new(uid.as_str().into())
                });
            }
        }
        deltas
    }

    async fn session(
        &self,
        inbound: &mut Streaming<wire::AgentFrame>,
        out: &mpsc::Sender<Result<wire::HubFrame, Status>>,
    ) -> Result<()> {
        let shared = &self.shared;
        let send = async |frame: HubFrame| out.send(Ok(hub_frame_to_wire(&frame))).await;
        let mut copies_there: Vec<RuleState> = vec![];
        loop {
            if let AgentFrame::AckedRules(rules, last) = self.next(inbound).await? {
                copies_there.extend(rules);
                if last {
                    break;
                }
            }
        }
        let (hub_id, hub_cluster_uid) = (shared.hub_id.clone(), "hub-cluster".to_owned());
        let proof_key = Some(RevisionKey::new(b"fake").proof_key());
        send(HubFrame::SnapshotBegin(SnapshotBegin {
            protocol: 1,
            hub_id,
            hub_cluster_uid,
            behind: false,
            proof_key,
        }))
        .await?;
        let mut unlike: Vec<_> = copies_there
            .iter()
            .filter(|state| {
                let rules = &shared.state.lock().rules;
                rules
                    .get(state.uid.as_str())
                    .is_some_and(|wanted| own_digest(wanted) != state.intents_digest)
            })
            .map(|state| state.uid.clone())
            .collect();
        send(HubFrame::DetailRequest(unlike.clone())).await?;
        let mut details: BTreeMap<String, Vec<AckedIntent>> = BTreeMap::new();
        while !unlike.is_empty() {
            if let AgentFrame::Detail(uid, pairs, last) = self.next(inbound).await? {
                details.entry(uid.to_string()).or_default().extend(pairs);
                if last {
                    unlike.retain(|other| *other != uid);
                }
            }
        }
        let deltas = self.catch_up(&copies_there, &details);
        {
            let mut state = shared.state.lock();
            state.live = Some(out.clone());
            state.sessions += 1;
            state.batch(deltas);
        }
        send(HubFrame::SnapshotEnd(SnapshotEnd {
            intents: 0,
            digest: SetDigest::default(),
        }))
        .await?;
        loop {
            let frame = self.next(inbound).await?;
            if frame == AgentFrame::Handover && shared.state.lock().hand_over() {
                send(HubFrame::HandedOver).await?;
            } else if let AgentFrame::Report(states) = frame {
                // It has no limit.
                let named = states.into_iter().filter_map(|state| {
                    let prune = Some(state.namespace_prunes?.digest);
                    Some(RuleDelta {
                        prune,
                        ..RuleDelta::new(state.uid)
                    })
                });
                let named: Vec<_> = named.collect();
                if !named.is_empty() {
                    shared.state.lock().batch(named);
                }
            } else if let AgentFrame::ContentRequest(uid, sources) = frame {
                let mut state = shared.state.lock();
                let Some(wanted) = state.rules.get(uid.as_str()) else {
                    continue;
                };
                let found = sources
                    .iter()
                    .filter_map(|source| Some(intent(source, wanted.intents.get(source)?)));
                let upserts = found.collect();
                state.batch(vec![RuleDelta {
                    upserts,
                    ..RuleDelta::new(uid)
                }]);
            }
        }
    }

    async fn next(&self, inbound: &mut Streaming<wire::AgentFrame>) -> Result<AgentFrame> {
        let frame = inbound.next().await.context("the stream has ended")??;
        let (frame, _) = agent_frame(frame)?;
        self.shared.state.lock().received.push(frame.clone());
        Ok(frame)
    }
}

fn own_digest(wanted: &Wanted) -> SetDigest {
    let intents: Vec<_> = wanted
        .intents
        .iter()
        .map(|(source, content)| intent(source, content))
        .collect();
    intents
        .iter()
        .map(|intent| (&intent.source, &intent.revision))
        .collect()
}

fn peer<T>(request: &Request<T>) -> Result<&Peer, Status> {
    request
        .extensions()
        .get::<Peer>()
        .ok_or_else(|| Status::internal("no peer"))
}

#[tonic::async_trait]
impl Runnel for Service {
    async fn join(
        &self,
        request: Request<wire::JoinRequest>,
    ) -> Result<Response<wire::CertificateResponse>, Status> {
        let request = request.into_inner();
        if request.token != self.shared.token.expose() {
            return Err(Status::unauthenticated(
                "the token is wrong for cluster alone: create a new join string with `runnel-hub token create alone`",
            ));
        }
        if self.shared.state.lock().key.is_some() {
            return Err(Status::failed_precondition("the token is spent"));
        }
        self.certificate(&request.certificate_request)
    }

    async fn renew(
        &self,
        request: Request<wire::RenewRequest>,
    ) -> Result<Response<wire::CertificateResponse>, Status> {
        if peer(&request)?.certificate.is_none() {
            return Err(Status::unauthenticated("no certificate"));
        }
        self.shared.state.lock().renewals += 1;
        self.certificate(&request.into_inner().certificate_request)
    }

    type SessionStream = ReceiverStream<Result<wire::HubFrame, Status>>;

    async fn session(
        &self,
        request: Request<Streaming<wire::AgentFrame>>,
    ) -> Result<Response<Self::SessionStream>, Status> {
        if peer(&request)?.certificate.is_none() {
            return Err(Status::unauthenticated("no certificate"));
        }
        if self.shared.state.lock().refuse {
            return Err(Status::permission_denied("cluster alone is not accepted"));
        }
        let (out, frames) = mpsc::channel(64);
        let (service, mut inbound) = (
            Service {
                shared: self.shared.clone(),
            },
            request.into_inner(),
        );
        let cut = self.shared.state.lock().cut.clone();
        tokio::spawn(async move {
            tokio::select! {
                () = cut.cancelled() => {}
                _ = service.session(&mut inbound, &out) => {}
                () = out.closed() => {}
            }
        });
        Ok(Response::new(ReceiverStream::new(frames)))
    }
}
