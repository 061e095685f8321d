//! Two replicas with short leases for all tests of this file, which take turns, and the connections
//! in front of them.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use k8s_openapi::api::coordination::v1::Lease;
use kube::Api;
use runnel_hub::lease::LEASE;
use runnel_hub::token::{self, TokenRequest};
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::ports::local;
use runnel_tests::scene::{Draft, Id, Metrics, Recorder, RuleDraft, Scene};
use runnel_tests::simulated::{Credentials, Holdings, SimulatedAgent};
use runnel_tests::turns::{Turn, Turns};
use runnel_tests::wait::eventually;
use runnel_transport::identity::JoinString;
use serde_json::{Value, json};
use tokio::io::copy_bidirectional;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinSet;

/// The lease of the shared fleet.
pub const LEASE_TIME: Duration = Duration::from_secs(4);
/// How long a test waits for what takes milliseconds on an idle machine.
pub const SOON: Duration = Duration::from_secs(60);

static FLEETS: Turns<2> = Turns::new();
static USUAL: Turns<1> = Turns::new();

/// Two replicas, a real member, and the turn of one test.
pub struct Stage {
    pub fleet: &'static Fleet,
    pub scene: Scene,
    pub balancer: Balancer,
    pub namespace: String,
    _turn: Turn,
}

/// Both replicas running, whatever the test before left behind, and a namespace of that name on the
/// hub and in the member.
pub async fn stage(namespace: &str) -> Result<Stage> {
    let lease = json!({"duration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"});
    let options = FleetOptions {
        hub_replicas: 2,
        views: true,
        hub_values: json!({"lease": lease}),
        ..FleetOptions::default()
    };
    let stage = on(FLEETS.take(options).await?, namespace).await?;
    stage.fleet.connected(1).await?;
    Ok(stage)
}

/// As above, with the chart's default lease times, and simulated members only.
pub async fn usual(namespace: &str) -> Result<Stage> {
    let options = FleetOptions {
        hub_replicas: 2,
        members: 0,
        ..FleetOptions::default()
    };
    on(USUAL.take(options).await?, namespace).await
}

async fn on(turn: Turn, namespace: &str) -> Result<Stage> {
    let fleet = turn.fleet;
    let scene = Scene::of(fleet).await?;
    let balancer =
        Balancer::start(&[1, 2].map(|number| fleet.hub_replica(number).address().to_owned()))
            .await?;
    let stage = Stage {
        fleet,
        scene,
        balancer,
        namespace: namespace.to_owned(),
        _turn: turn,
    };
    stage.revive().await?;
    stage.scene.hub_namespaces(&[namespace]).await?;
    stage.scene.member_namespaces(&[namespace]).await?;
    Ok(stage)
}

impl Stage {
    /// Starts what does not run, and waits until both are ready and one leads.
    pub async fn revive(&self) -> Result<usize> {
        if (1..=2).any(|number| !self.fleet.hub_replica(number).process().is_running()) {
            self.fleet.start_hub().await?;
        }
        for number in [1, 2] {
            eventually(&format!("replica {number} to be ready"), SOON, async || {
                let ops = self.fleet.hub_replica(number).ops_url();
                let answer = get(ops, "/readyz").await?;
                ensure!(answer.starts_with("HTTP/1.1 200"), "{answer}");
                Ok(Some(()))
            })
            .await?;
        }
        self.leader().await
    }

    /// Waits until exactly one replica reports that it leads, and the Lease confirms it; returns
    /// its number.
    pub async fn leader(&self) -> Result<usize> {
        eventually("one replica to lead", SOON, async || {
            let mut leaders = Vec::new();
            for number in [1, 2] {
                if self.leads(number).await {
                    leaders.push(number);
                }
            }
            let lease = self.lease().await?.context("no Lease")?;
            let holder = lease
                .spec
                .and_then(|spec| spec.holder_identity)
                .unwrap_or_default();
            match leaders[..] {
                [one] if holder.starts_with(&format!("runnel-hub-{one}_")) => Ok(Some(one)),
                _ => bail!("these lead: {leaders:?}, the Lease says {holder:?}"),
            }
        })
        .await
    }

    /// Whether a replica reports that it leads; false without an answer.
    pub async fn leads(&self, number: usize) -> bool {
        self.metric(number, "runnel_leader")
            .await
            .is_ok_and(|leads| leads > 0.0)
    }

    /// A metric of a replica.
    pub async fn metric(&self, number: usize, name: &str) -> Result<f64> {
        Metrics::of(self.fleet.hub_replica(number).ops_url())
            .await?
            .sum(name)
    }

    /// The Lease's API.
    pub fn leases(&self) -> Api<Lease> {
        Api::namespaced(self.scene.hub.client(), NAMESPACE)
    }

    /// The Lease.
    pub async fn lease(&self) -> Result<Option<Lease>> {
        Ok(self.leases().get_opt(LEASE).await?)
    }

    /// A cluster of this test that joins by this address.
    pub async fn join(&self, number: usize, address: &str) -> Result<Credentials> {
        let request = TokenRequest {
            cluster: format!("{}-{number}", self.namespace),
            labels: vec![format!("set={}", self.namespace)],
            ttl: "1h".to_owned(),
            advertise: vec![address.to_owned()],
        };
        let join =
            JoinString::parse(&token::create(self.scene.hub.client(), NAMESPACE, request).await?)?;
        Ok(Credentials::join(&join).await?)
    }

    /// So many simulated agents that connect by this address and are up to date.
    pub async fn agents(&self, count: usize, address: &str) -> Result<Vec<SimulatedAgent>> {
        let mut agents = Vec::new();
        for number in 1..=count {
            let credentials = self.join(number, address).await?;
            agents.push(SimulatedAgent::up_to_date(&credentials, Holdings::default()).await?);
        }
        Ok(agents)
    }

    /// A source, and a rule that brings it to the real member and to all the simulated ones.
    pub async fn rule(&self, agents: usize) -> Result<(Value, Id)> {
        let draft = Draft::config_map(&self.namespace, "settings").data("value", "first");
        let source = self.scene.hub.make(&draft.json()).await?;
        let names: &[&str] = if self.fleet.size() > 0 {
            &["member-1"]
        } else {
            &[]
        };
        let clusters =
            json!({"names": names, "selector": {"matchLabels": {"set": self.namespace}}});
        let rule = RuleDraft::new(&self.namespace, "all")
            .named(&["settings"])
            .with("clusters", clusters);
        self.scene.hub.make(&rule.json()).await?;
        let id = Id::rule(&self.namespace, "all");
        self.scene.hub.wait_ready(&id, "True", "AllApplied").await?;
        let observed = |rule: &Value| {
            let clusters = &rule["status"]["summary"]["clustersReady"];
            ensure!(
                *clusters == agents + names.len(),
                "{clusters} clusters are ready"
            );
            Ok(())
        };
        self.scene
            .hub
            .sees("all clusters ready", &id, observed)
            .await?;
        Ok((source, id))
    }

    /// Changes the source.
    pub async fn edit(&self, source: &Value, value: &str) -> Result<Value> {
        self.scene
            .hub
            .change(&Id::of(source)?, json!({"data": {"value": value}}))
            .await
    }

    /// Waits until no status has been written for longer than the hub's pace.
    pub async fn calm(&self, rule: &Id) -> Result<()> {
        let (mut seen, mut since) = (self.scene.hub.get(rule).await?, Instant::now());
        eventually(
            "two seconds without a change of the rule",
            SOON,
            async || {
                let now = self.scene.hub.get(rule).await?;
                if now != seen {
                    (seen, since) = (now, Instant::now());
                }
                Ok((since.elapsed() > Duration::from_secs(2)).then_some(()))
            },
        )
        .await
    }
}

/// Forgets what the agents have seen.
pub fn forget(agents: &[SimulatedAgent]) {
    for agent in agents {
        drop(agent.take_record());
    }
}

/// Waits until every agent is up to date in a stream that was opened since [`forget`].
pub async fn served_again(agents: &[SimulatedAgent]) -> Result<()> {
    for agent in agents {
        agent
            .until("to be served again", |state| {
                state.record.sessions > 0 && state.up_to_date
            })
            .await?;
    }
    Ok(())
}

/// Checks that since [`forget`] no agent was sent content or a removal, and each has the source.
pub fn nothing_was_sent(agents: &[SimulatedAgent]) -> Result<()> {
    for agent in agents {
        agent.check()?;
        let state = agent.state();
        let record = &state.record;
        ensure!(
            record.upserts().is_empty(),
            "content was sent again: {}",
            record.sketch()
        );
        let orders = record.tombstones().len() + record.removals().len();
        ensure!(orders == 0, "an order to remove: {}", record.sketch());
        ensure!(
            state.holdings.sources().count() == 1,
            "it holds {}",
            state.holdings.sources().count()
        );
    }
    Ok(())
}

/// Recorders of the statuses of the rule and of all members, which must not change.
pub struct Calm {
    recorders: [Recorder; 2],
}

impl Calm {
    pub async fn start(stage: &Stage, rule: &Id) -> Result<Self> {
        let hub = &stage.scene.hub;
        Ok(Self {
            recorders: [
                Recorder::start(hub, rule).await?,
                Recorder::start(hub, &Id::member("any")).await?,
            ],
        })
    }

    /// Checks that no status has changed.
    pub fn check(&self) -> Result<()> {
        for recorder in &self.recorders {
            let records = recorder.so_far()?;
            let statuses: Vec<_> = records
                .iter()
                .map(|record| record.object["status"].to_string())
                .collect();
            ensure!(
                statuses.is_empty(),
                "a status was written: {}",
                statuses.join("\n")
            );
        }
        Ok(())
    }
}

/// A load balancer in front of both replicas: each connection goes to the next one that accepts it.
pub struct Balancer {
    address: SocketAddr,
    _task: JoinSet<()>,
}

impl Balancer {
    async fn start(replicas: &[String]) -> Result<Self> {
        let listener = TcpListener::bind(local(0)).await?;
        let address = listener.local_addr()?;
        let replicas: Arc<[String]> = replicas.into();
        let mut task = JoinSet::new();
        task.spawn(async move {
            let (mut connections, mut turn) = (JoinSet::new(), 0);
            while let Ok((mut agent, _)) = listener.accept().await {
                turn += 1;
                let replicas = replicas.clone();
                connections.spawn(async move {
                    for nth in 0..replicas.len() {
                        if let Ok(mut hub) =
                            TcpStream::connect(&replicas[(turn + nth) % replicas.len()]).await
                        {
                            _ = copy_bidirectional(&mut agent, &mut hub).await;
                            return;
                        }
                    }
                });
            }
        });
        Ok(Self {
            address,
            _task: task,
        })
    }

    /// Where agents connect to.
    pub fn address(&self) -> String {
        self.address.to_string()
    }
}

async fn get(url: &str, path: &str) -> Result<String> {
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    let address = url.strip_prefix("http://").context("an odd address")?;
    let mut stream = TcpStream::connect(address).await?;
    stream
        .write_all(
            format!("GET {path} HTTP/1.1\r\nHost: {address}\r\nConnection: close\r\n\r\n")
                .as_bytes(),
        )
        .await?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await?;
    Ok(answer)
}

/// The middle one and the worst one, in a few words.
pub fn figures(what: &str, mut times: Vec<Duration>) -> String {
    times.sort();
    let (middle, worst) = (times[times.len() / 2], times[times.len() - 1]);
    format!(
        "{what}: p50 {:.2} s, max of {} {:.2} s",
        middle.as_secs_f64(),
        times.len(),
        worst.as_secs_f64()
    )
}
