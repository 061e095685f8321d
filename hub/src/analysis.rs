//! Makes the checks of rollouts: requests to Prometheus APIs and HTTP endpoints that rules name.
//!
//! A rule must not reach through the hub what its author cannot. So a request goes only to URLs that the administrator allows,
//! without credentials and redirects. Its answer is bounded in time and size, and only a status code or a number of it is kept.
//! The leader alone makes requests: at most `CONCURRENT` at a time, and one at a time for a rule.
use std::collections::BTreeSet;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context as _;
use axum::body::{Body, to_bytes};
use http::header::{ACCEPT, USER_AGENT};
use http::{Request, StatusCode};
use hyper_rustls::{HttpsConnector, HttpsConnectorBuilder};
use hyper_util::client::legacy::Client;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use jiff::Timestamp;
use runnel_proto::model::RuleUid;
use runnel_transport::tls;
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject;
use rustls::{ClientConfig, RootCertStore};
use tokio::task::JoinSet;

use crate::hub_state::HubState;
use crate::object_cache::ObjectCache;
use runnel_hub_core::rollout::{Check, CheckResult, CheckedWave, Progress};

/// The limit of concurrent requests.
const CONCURRENT: usize = 8;
/// The interval at which due checks are looked for.
const TICK: Duration = Duration::from_secs(1);
/// The time limit of one request.
const REQUEST_LIMIT: Duration = Duration::from_secs(10);
/// The most bytes of one answer.
const ANSWER_LIMIT: usize = 1 << 20;

/// Makes the checks.
pub struct AnalysisRunner {
    client: Client<HttpsConnector<HttpConnector>, Body>,
    hub_state: Arc<HubState>,
    object_cache: Arc<ObjectCache>,
}

impl AnalysisRunner {
    /// Creates a runner. It trusts the CAs of the system, and those of the file in PEM.
    ///
    /// # Errors
    /// The file cannot be read, or has no certificate.
    pub fn new(
        hub_state: Arc<HubState>,
        object_cache: Arc<ObjectCache>,
        ca_file: Option<&Path>,
    ) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        // The image of the hub has none.
        roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        if let Some(path) = ca_file {
            let read = || {
                format!(
                    "cannot read the CAs of --analysis-ca-file {}",
                    path.display()
                )
            };
            let certificates = CertificateDer::pem_file_iter(path).with_context(read)?;
            let certificates: Vec<_> = certificates.collect::<Result<_, _>>().with_context(read)?;
            anyhow::ensure!(!certificates.is_empty(), "{}: no certificate in it", read());
            for certificate in certificates {
                roots.add(certificate).with_context(read)?;
            }
        }
        let config = ClientConfig::builder_with_provider(tls::provider())
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
        let connector = HttpsConnectorBuilder::new()
            .with_tls_config(config)
            .https_or_http()
            .enable_http1()
            .build();
        Ok(Self {
            client: Client::builder(TokioExecutor::new()).build(connector),
            hub_state,
            object_cache,
        })
    }

    /// Makes checks until the process ends.
    pub async fn run(self) {
        let mut beat = tokio::time::interval(TICK);
        let mut running: JoinSet<(RuleUid, CheckResult)> = JoinSet::new();
        let mut busy = BTreeSet::new();
        loop {
            tokio::select! {
                _ = beat.tick() => {
                    let room = CONCURRENT.saturating_sub(running.len());
                    for (uid, of, check) in self.due(&busy, room) {
                        busy.insert(uid.clone());
                        let client = self.client.clone();
                        running.spawn(async move {
                            let result = made(&client, &check).await;
                            let now = Timestamp::now();
                            let at = Timestamp::from_second(now.as_second()).unwrap_or(now);
                            (uid, CheckResult { of, at, result })
                        });
                    }
                }
                Some(ended) = running.join_next() => {
                    let Ok((uid, result)) = ended else {
                        continue;
                    };
                    busy.remove(&uid);
                    if let Err(why) = &result.result {
                        tracing::warn!(rule = %self.object_cache.name_of(&uid), wave = result.of.wave, "a check of the rollout failed: {why}");
                    }
                    self.hub_state.change(|index| index.rules_mut().set_check(&uid, result));
                }
            }
        }
    }

    /// Returns the checks that are due, at most `room`, of rules that are not busy.
    fn due(&self, busy: &BTreeSet<RuleUid>, room: usize) -> Vec<(RuleUid, CheckedWave, Check)> {
        let leadership = &self.hub_state.leadership;
        if leadership.serving_since().is_none() || !leadership.leads() {
            return vec![];
        }
        let now = Timestamp::now();
        let index = self.hub_state.index.read();
        let due = index.rules().iter().filter_map(|(uid, entry)| {
            let rollout = entry.rule.rollout.as_ref()?;
            let analysis = rollout.analysis.as_ref()?;
            let is_still = entry.rule.terms.suspend || entry.rule.deleting;
            if is_still || busy.contains(uid) || index.rules().refused_url(rollout).is_some() {
                return None;
            }
            // As it is written: a check is about what a new leader knows, too.
            let progress = self.object_cache.with_rule(uid, |rule| {
                let status = rule?.status.rollout.as_ref()?;
                Some(Progress::from(status))
            })?;
            let last = index.rules().check(uid);
            let of = progress.check_due(analysis, last, now)?;
            let check = (uid.clone(), of, analysis.check.clone());
            Some((last.map(|last| last.at), check))
        });
        in_turn(due.collect(), room)
    }
}

/// Returns the first of these, at most `room`: those that waited longest since their last result. So slow answers of some
/// rules keep no other one waiting for more than a turn of all.
fn in_turn<T>(mut due: Vec<(Option<Timestamp>, T)>, room: usize) -> Vec<T> {
    due.sort_by_key(|(last, _)| *last);
    due.into_iter().take(room).map(|(_, check)| check).collect()
}

/// Makes one check.
///
/// # Errors
/// Why it failed, without content of the answer.
async fn made(
    client: &Client<HttpsConnector<HttpConnector>, Body>,
    check: &Check,
) -> Result<String, String> {
    let asked = tokio::time::timeout(REQUEST_LIMIT, answer(client, check)).await;
    let (status, body) = asked.map_err(|_| {
        format!(
            "there is no whole answer within {} seconds",
            REQUEST_LIMIT.as_secs()
        )
    })??;
    check.judge(status.as_u16(), &body)
}

async fn answer(
    client: &Client<HttpsConnector<HttpConnector>, Body>,
    check: &Check,
) -> Result<(StatusCode, Vec<u8>), String> {
    let mut url = check.url();
    if let Some(query) = check.query() {
        let query = form_urlencoded::Serializer::new(String::new())
            .append_pair("query", query)
            .finish();
        url = format!("{url}?{query}");
    }
    let request = Request::get(url)
        .header(
            USER_AGENT,
            concat!("runnel-hub/", env!("CARGO_PKG_VERSION")),
        )
        .header(ACCEPT, "application/json, */*")
        .body(Body::empty())
        .map_err(|_| "the URL cannot be requested".to_owned())?;
    let response = client
        .request(request)
        .await
        .map_err(|error| unreachable_server(&error))?;
    let status = response.status();
    // Only a query needs the content.
    if check.query().is_none() || !status.is_success() {
        return Ok((status, vec![]));
    }
    let body = to_bytes(Body::new(response.into_body()), ANSWER_LIMIT).await;
    let body =
        body.map_err(|_| format!("the answer breaks off, or has more than {ANSWER_LIMIT} bytes"))?;
    Ok((status, body.to_vec()))
}

/// Names the step that failed. The texts of TLS and DNS could tell a tenant about the network of the hub.
fn unreachable_server(error: &hyper_util::client::legacy::Error) -> String {
    if error.is_connect() {
        "the server cannot be reached, or its certificate is not trusted".to_owned()
    } else {
        "the request failed".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    use super::*;
    use crate::hub_state::Settings;

    /// The result of a query whose answer has so many bytes.
    async fn of_size(bytes: usize) -> Result<String, String> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let serving = tokio::spawn(async move {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut request = [0; 4096];
            assert!(stream.read(&mut request).await.unwrap() > 0);
            let head =
                format!("HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {bytes}\r\n\r\n");
            stream.write_all(head.as_bytes()).await.unwrap();
            // The client may leave before it has read all.
            let _ = stream.write_all(&vec![b' '; bytes]).await;
        });
        let hub_state = HubState::new(Settings::for_tests());
        let runner = AnalysisRunner::new(hub_state, Arc::default(), None).unwrap();
        let check = Check::Prometheus {
            address: format!("http://{address}"),
            query: "up".to_owned(),
            min: None,
            max: None,
        };
        let result = made(&runner.client, &check).await;
        serving.await.unwrap();
        result
    }

    #[test]
    fn rules_with_slow_answers_take_turns_with_others() {
        let mut last = [None; 12];
        let mut checked = [0; 12];
        // Every answer comes as late as it may.
        for second in 1..=30 {
            let due: Vec<_> = (0..12).map(|rule| (last[rule], rule)).collect();
            for rule in in_turn(due, CONCURRENT) {
                last[rule] = Timestamp::from_second(second).ok();
                checked[rule] += 1;
            }
        }
        // No rule waits for more than one turn of others.
        assert!(checked.iter().all(|made| *made >= 15), "{checked:?}");
    }

    #[tokio::test]
    async fn answer_is_read_up_to_its_limit() {
        let whole = of_size(ANSWER_LIMIT).await.unwrap_err();
        assert!(whole.contains("not one of a Prometheus API"), "{whole}");
        let larger = of_size(ANSWER_LIMIT + 1).await.unwrap_err();
        assert!(larger.contains("more than 1048576 bytes"), "{larger}");
    }

    #[tokio::test]
    async fn server_that_cannot_be_reached_fails_the_check() {
        let hub_state = HubState::new(Settings::for_tests());
        let runner = AnalysisRunner::new(hub_state, Arc::default(), None).unwrap();
        let check = Check::Http {
            url: "http://127.0.0.1:1/".to_owned(),
        };
        let why = made(&runner.client, &check).await.unwrap_err();
        assert!(why.contains("cannot be reached"), "{why}");
    }

    #[test]
    fn file_without_certificates_is_an_error() {
        let hub_state = HubState::new(Settings::for_tests());
        let path = Path::new("Cargo.toml");
        let error = AnalysisRunner::new(hub_state, Arc::default(), Some(path)).err();
        let error = error.unwrap().to_string();
        assert!(
            error.contains("--analysis-ca-file") && error.contains("no certificate"),
            "{error}"
        );
    }
}
