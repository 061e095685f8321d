//! An API server with a generated fleet: rules, clusters and deliveries of any number, which change while they are watched.
//!
//! It answers exactly the requests of the page, in the form of a real API server. It has no hub, so what the page shows of
//! it says nothing about the time that a hub takes.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use anyhow::Result;
use axum::Json;
use axum::Router;
use axum::body::Body;
use axum::extract::{Query, Request, State};
use axum::response::{IntoResponse, Response};
use futures::stream;
use jiff::{SignedDuration, Timestamp};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::task::JoinSet;

/// The interval of changes.
const TICK: Duration = Duration::from_millis(100);
const NAMES: [&str; 12] = [
    "settings",
    "login",
    "banner",
    "ca-bundle",
    "proxy",
    "limits",
    "dashboards",
    "registry",
    "feature-flags",
    "alerts",
    "endpoints",
    "licenses",
];
const TEAMS: [&str; 6] = ["checkout", "shop", "search", "payments", "platform", "ops"];
const REGIONS: [&str; 5] = ["eu-central", "eu-west", "us-east", "us-west", "ap-south"];
const COLUMNS: [&str; 14] = [
    "Rule",
    "Cluster",
    "State",
    "Applied",
    "Failed",
    "Waiting",
    "Reason",
    "Age",
    "Name",
    "Drifted",
    "Newest",
    "Proof",
    "Message",
    "Namespace",
];

/// The size of a generated fleet.
#[derive(Clone, Copy, Debug)]
pub struct Size {
    /// The number of rules.
    pub rules: usize,
    /// The number of member clusters.
    pub clusters: usize,
    /// The number of deliveries that change every 100 ms.
    pub changes: usize,
}

#[derive(Debug)]
struct Generated {
    size: Size,
    version: AtomicU64,
}

impl Generated {
    fn rule(number: usize) -> (&'static str, String) {
        let (name, round) = (NAMES[number % NAMES.len()], number / NAMES.len());
        let name = if round == 0 {
            name.to_owned()
        } else {
            format!("{name}-{round}")
        };
        (TEAMS[number % TEAMS.len()], name)
    }

    fn cluster(number: usize) -> String {
        let region = REGIONS[number % REGIONS.len()];
        format!("{region}-{}", number / REGIONS.len() + 1)
    }

    /// State, reason and whether the revision is the newest one.
    fn state(rule: usize, cluster: usize, turn: u64) -> (&'static str, &'static str, bool) {
        let turn = usize::try_from(turn).unwrap_or_default();
        if cluster % 41 == 7 {
            return ("Unreachable", "ClustersUnreachable", false);
        }
        match (rule * 31 + cluster * 17 + turn * 13) % 97 {
            0 if rule.is_multiple_of(3) => ("Failed", "Conflict", false),
            1 if rule.is_multiple_of(4) => ("Waiting", "CopiesWaiting", true),
            2 if rule.is_multiple_of(5) => ("Drifted", "Drifted", true),
            3..=5 => ("Progressing", "Progressing", false),
            _ if rule % 11 == 3 && cluster % REGIONS.len() > 2 => ("Waiting", "RollingOut", false),
            _ => ("Ready", "AllApplied", true),
        }
    }

    fn row(rule: usize, cluster: usize, turn: u64) -> Value {
        let (state, reason, newest) = Self::state(rule, cluster, turn);
        let ((namespace, name), cluster) = (Self::rule(rule), Self::cluster(cluster));
        let failed = u8::from(state == "Failed");
        let delivery = format!("{name}:{cluster}");
        json!({"cells": [
            name, cluster, state, format!("{}/12", 12 - failed), failed, 0, reason, "3d", delivery, 0, newest, "Yes", "",
            namespace,
        ]})
    }

    fn table(&self, rows: Vec<Value>, next: Option<usize>) -> Value {
        let columns = COLUMNS.map(|name| json!({"name": name, "type": "string", "format": "", "description": "", "priority": 0}));
        let version = self.version.load(Ordering::Relaxed).to_string();
        let token = next.map(|next| next.to_string());
        json!({
            "kind": "Table", "apiVersion": "meta.k8s.io/v1", "columnDefinitions": columns, "rows": rows,
            "metadata": {"resourceVersion": version, "continue": token},
        })
    }

    fn deliveries(&self, query: &BTreeMap<String, String>) -> Value {
        let number = |name: &str| {
            query
                .get(name)
                .and_then(|value| value.parse::<usize>().ok())
        };
        let (begin, all) = (
            number("continue").unwrap_or_default(),
            self.size.rules * self.size.clusters,
        );
        let end = all.min(begin + number("limit").unwrap_or(5000));
        let pairs = (begin..end).map(|pair| (pair / self.size.clusters, pair % self.size.clusters));
        let rows = pairs.map(|(rule, cluster)| Self::row(rule, cluster, 0));
        self.table(rows.collect(), (end < all).then_some(end))
    }

    fn list(&self, kind: &str, items: Vec<Value>) -> Value {
        let version = self.version.load(Ordering::Relaxed).to_string();
        json!({"kind": kind, "apiVersion": "v1", "metadata": {"resourceVersion": version}, "items": items})
    }

    fn rules(&self) -> Value {
        let rule = |number: usize| {
            let (namespace, name) = Self::rule(number);
            let states = (0..self.size.clusters).map(|cluster| Self::state(number, cluster, 0).0);
            let ready = states.filter(|state| *state == "Ready").count();
            let clusters = self.size.clusters;
            let (status, reason) = if ready == clusters {
                ("True", "AllApplied")
            } else {
                ("False", "Progressing")
            };
            json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
                "metadata": {"name": name, "namespace": namespace, "uid": number.to_string()}, "spec": {},
                "status": {
                    "summary": {"sources": 12, "clusters": clusters, "clustersReady": ready, "copies": 12 * clusters, "copiesApplied": 12 * ready},
                    "display": {"clusters": format!("{ready}/{clusters}")},
                    "conditions": [{"type": "Ready", "status": status, "reason": reason, "message": ""}],
                },
            })
        };
        self.list(
            "DistributionRuleList",
            (0..self.size.rules).map(rule).collect(),
        )
    }

    fn members(&self) -> Value {
        let member = |number: usize| {
            let labels = json!({"region": REGIONS[number % REGIONS.len()], "env": if number.is_multiple_of(4) { "test" } else { "prod" }});
            let conditions = json!([{"type": "Ready", "status": "True", "reason": "MemberReady", "message": ""}]);
            json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
                "metadata": {"name": Self::cluster(number), "labels": labels}, "spec": {"accepted": true},
                "status": {"agentVersion": "0.1.0", "kubernetesVersion": "v1.36.3", "conditions": conditions},
            })
        };
        self.list(
            "MemberClusterList",
            (0..self.size.clusters).map(member).collect(),
        )
    }

    fn fleets(&self) -> Value {
        let (rules, clusters) = (self.size.rules, self.size.clusters);
        let away = (0..clusters).filter(|cluster| cluster % 41 == 7).count();
        let status = json!({
            "clusters": format!("{}/{clusters}", clusters - away), "rules": format!("{}/{rules}", rules / 3),
            "copies": format!("{}/{}", 12 * rules * (clusters - away), 12 * rules * clusters),
        });
        let fleet = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "Fleet", "metadata": {"name": "default"}, "spec": {}, "status": status});
        self.list("FleetList", vec![fleet])
    }

    fn leases(&self) -> Value {
        let until = Timestamp::now() + SignedDuration::from_hours(24);
        let spec = json!({"holderIdentity": "hub", "leaseDurationSeconds": 15, "renewTime": until.to_string()});
        self.list("LeaseList", vec![json!({"metadata": {"name": "runnel-hub", "namespace": "runnel-system"}, "spec": spec})])
    }

    /// A watch without end. That of deliveries changes some of them at each tick.
    fn watch(self: Arc<Self>, changes: usize) -> Response {
        let events = stream::unfold((self, 0_u64), move |(generated, turn)| async move {
            if changes == 0 {
                return std::future::pending().await;
            }
            tokio::time::sleep(TICK).await;
            let turn = turn + 1;
            let size = generated.size;
            let step = usize::try_from(turn).unwrap_or_default() * 7919;
            let mut lines = Vec::new();
            for change in 0..changes {
                generated.version.fetch_add(1, Ordering::Relaxed);
                let pair = (step + change * 6151) % (size.rules * size.clusters);
                let row = Self::row(pair / size.clusters, pair % size.clusters, turn);
                let event = json!({"type": "MODIFIED", "object": generated.table(vec![row], None)});
                lines.extend(event.to_string().into_bytes());
                lines.push(b'\n');
            }
            Some((Ok::<_, Infallible>(lines), (generated, turn)))
        });
        Body::from_stream(events).into_response()
    }
}

async fn answer(
    State(generated): State<Arc<Generated>>,
    Query(query): Query<BTreeMap<String, String>>,
    request: Request,
) -> Response {
    let plural = request
        .uri()
        .path()
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .to_owned();
    if query.get("watch").is_some_and(|watch| watch == "true") {
        let changes = if plural == "deliveries" {
            generated.size.changes
        } else {
            0
        };
        return generated.watch(changes);
    }
    let list = match plural.as_str() {
        "deliveries" => generated.deliveries(&query),
        "clusterdeliveries" => generated.table(Vec::new(), None),
        "distributionrules" => generated.rules(),
        "memberclusters" => generated.members(),
        "fleets" => generated.fleets(),
        "leases" => generated.leases(),
        _ => generated.list("List", Vec::new()),
    };
    Json(list).into_response()
}

/// A running API server with a generated fleet.
#[derive(Debug)]
pub struct GeneratedHub {
    /// A kubeconfig that leads to it.
    pub kubeconfig: PathBuf,
    // Ends with this value.
    _server: JoinSet<std::io::Result<()>>,
}

impl GeneratedHub {
    /// Starts it, with a kubeconfig in `folder`.
    ///
    /// # Errors
    /// When it cannot listen, or the kubeconfig cannot be written.
    pub async fn start(size: Size, folder: &Path) -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = format!("http://{}", listener.local_addr()?);
        let generated = Generated {
            size,
            version: AtomicU64::new(1),
        };
        let router = Router::new()
            .fallback(answer)
            .with_state(Arc::new(generated));
        let mut running = JoinSet::new();
        running.spawn(async move { axum::serve(listener, router).await });
        let kubeconfig = folder.join(format!(
            "generated-{}x{}.kubeconfig",
            size.rules, size.clusters
        ));
        let config = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "fleet",
            "clusters": [{"name": "fleet", "cluster": {"server": server}}],
            "users": [{"name": "fleet", "user": {}}],
            "contexts": [{"name": "fleet", "context": {"cluster": "fleet", "user": "fleet"}}],
        });
        std::fs::write(&kubeconfig, config.to_string())?;
        Ok(Self {
            kubeconfig,
            _server: running,
        })
    }
}
