//! Queries the hub itself for what the API server does not store; see `proto/query.proto`.
//!
//! The plugin uses an address of the hub (`--hub-url`), or the user's `kubectl port-forward`. It
//! sends nothing before the hub has proven to be the one that the Lease names.
use std::process::Stdio;
use std::time::Duration;

use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::coordination::v1::Lease;
use runnel_proto::wire;
use runnel_transport::grpc::query_client::QueryClient;
use runnel_transport::identity::Fingerprint;
use runnel_transport::tls::{Connector, Route, endpoint, join_config};
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, AsyncReadExt, BufReader, Lines};
use tokio::process::{Child, ChildStderr, ChildStdout, Command};
use tonic::Request;
use tonic::metadata::MetadataValue;
use tonic::transport::Channel;

use super::access::Cluster;
use super::clusters_output::ClusterRow;
use super::discovery::ChartComponent;
use super::objects::Rule;
use runnel_hub::query::AUDIENCE;
use runnel_hub_core::lease::{AUTHORITY, HUB_ID, LEASE};

/// Time limit of the connection to the hub with its whole answer.
const LIMIT: Duration = Duration::from_secs(40);
/// The lifetime of a token for one query; the API server issues none shorter.
const TOKEN_SECONDS: u32 = 600;

/// The hub's address and the query.
pub struct RuleQuery<'a> {
    /// Its namespace.
    pub namespace: &'a str,
    /// `host:port`; without it by port-forward.
    pub address: Option<&'a str>,
    /// The rule, as the API server gave it.
    pub rule: &'a Rule,
}

/// The blocked items of a rule.
pub struct BlockedItems {
    /// The digest that approves it.
    pub digest: String,
    /// How many copies it is.
    pub copies: i64,
    /// The type, cluster and object of each item.
    pub items: Vec<[String; 3]>,
}

/// Returns the state of a rule in each of its clusters, the worst first.
///
/// # Errors
/// A sentence with a hint.
pub async fn clusters(hub: &Cluster, question: &RuleQuery<'_>) -> anyhow::Result<Vec<ClusterRow>> {
    within(
        hub,
        question.place(),
        question.asked(),
        async |mut client, request| {
            let mut pages = client
                .rule_clusters(request)
                .await
                .map_err(refused)?
                .into_inner();
            let mut rows = Vec::new();
            while let Some(page) = pages.message().await.map_err(refused)? {
                rows.extend(page.clusters.into_iter().map(row));
            }
            Ok(rows)
        },
    )
    .await
}

/// Returns every blocked item of a rule; `None` if there is none.
///
/// # Errors
/// A sentence with a hint.
pub async fn blocked(
    hub: &Cluster,
    question: &RuleQuery<'_>,
) -> anyhow::Result<Option<BlockedItems>> {
    within(
        hub,
        question.place(),
        question.asked(),
        async |mut client, request| {
            let mut pages = client
                .rule_blocked(request)
                .await
                .map_err(refused)?
                .into_inner();
            let mut page_items = None;
            while let Some(page) = pages.message().await.map_err(refused)? {
                let page_items = page_items.get_or_insert_with(|| BlockedItems {
                    digest: page.digest,
                    copies: page.copies,
                    items: vec![],
                });
                page_items.items.extend(
                    page.items
                        .into_iter()
                        .map(|item| [item.what, item.cluster, item.object]),
                );
            }
            Ok(page_items)
        },
    )
    .await
}

/// Returns where one copy comes from, or why it does not exist.
///
/// # Errors
/// A sentence with a hint.
pub async fn copy(
    hub: &Cluster,
    namespace: &str,
    address: Option<&str>,
    question: wire::CopyQuestion,
) -> anyhow::Result<wire::CopyExplained> {
    within(
        hub,
        (namespace, address),
        question,
        async |mut client, request| {
            Ok(client
                .explain_copy(request)
                .await
                .map_err(refused)?
                .into_inner())
        },
    )
    .await
}

/// Returns the plan of a rule, page by page.
///
/// # Errors
/// A sentence with a hint.
pub async fn plan(
    hub: &Cluster,
    namespace: &str,
    address: Option<&str>,
    question: wire::PlanQuestion,
) -> anyhow::Result<Vec<wire::PlanPage>> {
    within_as(
        hub,
        (namespace, address),
        ChartComponent::Plan,
        question,
        async |mut client, request| {
            let mut pages = client.plan(request).await.map_err(refused)?.into_inner();
            let mut all = Vec::new();
            while let Some(page) = pages.message().await.map_err(refused)? {
                all.push(page);
            }
            Ok(all)
        },
    )
    .await
}

impl<'a> RuleQuery<'a> {
    fn place(&self) -> (&'a str, Option<&'a str>) {
        (self.namespace, self.address)
    }

    fn asked(&self) -> wire::RuleQuestion {
        wire::RuleQuestion {
            kind: self.rule.kind().to_owned(),
            namespace: self.rule.namespace().to_owned(),
            name: self.rule.name().to_owned(),
        }
    }
}

/// Queries the hub within [`LIMIT`].
async fn within<M, T>(
    hub: &Cluster,
    place: (&str, Option<&str>),
    asked: M,
    ask: impl AsyncFnOnce(QueryClient<Channel>, Request<M>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    within_as(hub, place, ChartComponent::Query, asked, ask).await
}

/// As above; a user without a token asks as this ServiceAccount.
async fn within_as<M, T>(
    hub: &Cluster,
    (namespace, address): (&str, Option<&str>),
    account: ChartComponent,
    asked: M,
    ask: impl AsyncFnOnce(QueryClient<Channel>, Request<M>) -> anyhow::Result<T>,
) -> anyhow::Result<T> {
    let (hub_id, pin) = identity(hub, namespace).await?;
    let token = match hub.bearer().await? {
        Some(token) => token,
        None => own_token(hub, namespace, account).await?,
    };
    let mut connector = Connector::new(join_config(pin, &hub_id)?);
    let forwarded;
    let address = match address {
        Some(address) => address,
        None => {
            forwarded = PortForward::open(hub, namespace).await?;
            connector = connector.by(Route::direct());
            &forwarded.address
        }
    };
    let request = request(asked, &token)?;
    let asked = async {
        let channel = endpoint(address)?.connect_with_connector(connector).await;
        let channel = channel.map_err(|error| anyhow!("{}", super::hints::error_chain(&error)))?;
        ask(QueryClient::new(channel), request).await
    };
    let answer = tokio::time::timeout(LIMIT, asked).await;
    answer.map_err(|_| {
        anyhow!(
            "the hub at {address} did not answer within {} seconds",
            LIMIT.as_secs()
        )
    })?
}

fn refused(status: tonic::Status) -> anyhow::Error {
    anyhow!("the hub answers: {}", status.message())
}

/// The question, with the caller's token.
fn request<M>(asked: M, token: &str) -> anyhow::Result<Request<M>> {
    let bearer = MetadataValue::try_from(format!("Bearer {token}"));
    let mut bearer = bearer
        .map_err(|_| anyhow!("your token contains characters that are not valid in a token"))?;
    bearer.set_sensitive(true);
    let mut request = Request::new(asked);
    request.metadata_mut().insert("authorization", bearer);
    Ok(request)
}

fn row(cluster: wire::RuleCluster) -> ClusterRow {
    let failures = cluster
        .failures
        .into_iter()
        .map(|failure| (failure.copy, failure.reason, failure.message));
    ClusterRow {
        name: cluster.name,
        state: cluster.state,
        counts: [cluster.applied, cluster.failed, cluster.waiting],
        reason: cluster.reason,
        message: cluster.message,
        failures: failures.collect(),
        newest: cluster.newest,
        proof: cluster.proof,
    }
}

/// Returns the identity of the hub from its Lease.
async fn identity(hub: &Cluster, namespace: &str) -> anyhow::Result<(String, Fingerprint)> {
    let path = format!("/apis/coordination.k8s.io/v1/namespaces/{namespace}/leases/{LEASE}");
    let lease: Option<Lease> = hub.get("read the hub's Lease", &path).await?;
    let lease = lease.ok_or_else(|| {
        anyhow!("there is no Lease {LEASE} in namespace {namespace}: name the hub's with --hub-namespace")
    })?;
    let annotations = lease.metadata.annotations.unwrap_or_default();
    let (Some(hub_id), Some(pin)) = (annotations.get(HUB_ID), annotations.get(AUTHORITY)) else {
        bail!(
            "the Lease has no identity of the hub yet: upgrade the hub, or try again when it leads"
        );
    };
    let pin = Fingerprint::parse(pin).context("the Lease's annotation is no fingerprint")?;
    Ok((hub_id.clone(), pin))
}

/// Returns the name of a part of the hub; the usual name if the user may not list it.
async fn called(hub: &Cluster, namespace: &str, part: ChartComponent) -> anyhow::Result<String> {
    let action = format!("find the hub's {}", part.resource());
    let found: Vec<Value> = hub
        .list(&action, &part.path(namespace))
        .await
        .unwrap_or_default();
    let names = found
        .iter()
        .filter_map(|object| object["metadata"]["name"].as_str());
    part.name(names)
        .with_context(|| format!("namespace {namespace}"))
}

/// Returns a token for a user who authenticates by a certificate: one of a ServiceAccount of the
/// hub's chart, valid for queries to the hub alone.
async fn own_token(
    hub: &Cluster,
    namespace: &str,
    account: ChartComponent,
) -> anyhow::Result<String> {
    let account = called(hub, namespace, account).await?;
    let path = format!("/api/v1/namespaces/{namespace}/serviceaccounts/{account}/token");
    let request = json!({
        "apiVersion": "authentication.k8s.io/v1",
        "kind": "TokenRequest",
        "spec": {"audiences": [AUDIENCE], "expirationSeconds": TOKEN_SECONDS},
    });
    let action = format!(
        "get a token of the ServiceAccount {account}, because your kubeconfig has no token"
    );
    let made = hub.post(&action, &path, request).await?;
    let token = made["status"]["token"].as_str();
    let token = token.filter(|token| !token.is_empty());
    token
        .map(str::to_owned)
        .with_context(|| format!("cannot {action}: the API server gave none"))
}

/// A running `kubectl port-forward`; it ends when dropped.
struct PortForward {
    address: String,
    _child: Child,
    /// Kept open: `kubectl` writes a line for each connection, and a closed pipe would end it.
    _output: (Lines<BufReader<ChildStdout>>, ChildStderr),
}

impl PortForward {
    async fn open(hub: &Cluster, namespace: &str) -> anyhow::Result<Self> {
        let service = format!(
            "service/{}",
            called(hub, namespace, ChartComponent::Service).await?
        );
        let mut command = Command::new("kubectl");
        if let Some(file) = &hub.kubeconfig {
            command.arg("--kubeconfig").arg(file);
        }
        command.args([
            "--context",
            &hub.context,
            "-n",
            namespace,
            "port-forward",
            &service,
            ":grpc",
        ]);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        let mut child = command.spawn().map_err(|error| {
            anyhow!("cannot run kubectl ({error}): put it into PATH, or give --hub-url HOST:PORT")
        })?;
        let (out, err) = (child.stdout.take(), child.stderr.take());
        let (Some(out), Some(mut err)) = (out, err) else {
            bail!("kubectl port-forward has no output")
        };
        let mut lines = BufReader::new(out).lines();
        let line = tokio::time::timeout(LIMIT, lines.next_line()).await;
        let line = line.map_err(|_| {
            anyhow!(
                "kubectl port-forward did not begin within {} seconds",
                LIMIT.as_secs()
            )
        })?;
        if let Some(port) = line?.as_deref().and_then(forwarded_port) {
            return Ok(Self {
                address: format!("127.0.0.1:{port}"),
                _child: child,
                _output: (lines, err),
            });
        }
        let mut why = String::new();
        // It has ended, or is about to.
        let _ = tokio::time::timeout(Duration::from_secs(2), err.read_to_string(&mut why)).await;
        bail!(
            "kubectl port-forward to the hub failed ({}): give --hub-url HOST:PORT, an address that agents use",
            why.trim()
        )
    }
}

/// Returns the port that `kubectl port-forward` listens on, from its first line of output.
fn forwarded_port(line: &str) -> Option<u16> {
    let rest = line.strip_prefix("Forwarding from 127.0.0.1:")?;
    rest.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_port_is_read() {
        assert_eq!(
            forwarded_port("Forwarding from 127.0.0.1:41237 -> 8443"),
            Some(41237)
        );
        for other in [
            "",
            "Forwarding from [::1]:41237 -> 8443",
            "error: nothing",
            "Forwarding from 127.0.0.1:x -> 1",
        ] {
            assert_eq!(forwarded_port(other), None, "{other}");
        }
    }
}
