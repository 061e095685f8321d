//! `kubectl runnel wait`: waits until the newest sources of a rule are in every cluster.
//!
//! First the hub confirms that it has observed the rule and its sources as the API server has them
//! (a RuleSync). Then the deliveries are watched until each is ready.
use std::collections::BTreeMap;
use std::fmt::{Debug, Write};
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::runtime::WatchStreamExt;
use kube::runtime::watcher::{self, Event};
use kube::{Api, Resource};
use runnel_api::conditions::ConditionType;
use runnel_api::{
    ClusterDelivery, ClusterRuleSync, ClusterRuleSyncSpec, Delivery, DeliveryStatus, RuleSync,
    RuleSyncSpec, RuleSyncStatus,
};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::access::Cluster;
use super::args::Wait;
use super::objects::{HasConditions, Rule};
use super::progress::Progress;
use super::views::{self, RequestError};
use super::{CommandContext, TIMED_OUT, checks, ended, parse, print, read_cluster, status, usage};

/// The time of one request; the hub answers sooner.
const LONGEST: Duration = Duration::from_secs(20);
/// The delay before the hub is asked again.
const RETRY_DELAY: Duration = Duration::from_millis(500);
/// The time of the only request with `--timeout 0`.
const SHORTEST: Duration = Duration::from_secs(2);
/// A watch ends after this time and begins again, so that a lost connection is noticed.
const WATCH_SECONDS: u32 = 15;
/// The number of clusters and objects that a timeout names.
const NAMED: usize = 10;

/// Waits until every cluster of a rule has the newest sources.
pub(super) async fn run(session: &CommandContext<'_>, options: &Wait) -> anyhow::Result<()> {
    let timeout = parse::duration("--timeout", &options.timeout).map_err(usage)?;
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    let rule = Rule::read(&status::one(&hub, &options.rule, &namespace).await?)?;
    let deadline = Instant::now() + timeout.max(SHORTEST);
    let mut progress = Progress::start(&format!("waiting for {}", rule.full_name()));
    let waited = wait(&hub, &rule, deadline, &mut progress).await;
    let took = parse::duration_text(progress.elapsed());
    progress.end();
    match waited? {
        Ok(delivered) => print(&format!(
            "{}: {} in {took}\n",
            rule.full_name(),
            delivered.text()
        )),
        Err(lack) => {
            let mut text = format!(
                "{} is not everywhere after {took}: {}",
                rule.full_name(),
                lack.text()
            );
            if matches!(&lack, Lack::Deliveries(rows) if copies(rows) == 0)
                && let Some(why) = not_ready(&hub, &rule).await
            {
                let _ = write!(text, "\n  {why}");
            }
            if let Some(silent) = silence(&hub, &options.hub_namespace).await {
                let _ = write!(text, "\n  {silent}");
            }
            Err(ended(TIMED_OUT, text))
        }
    }
}

/// The state of a rule by cluster.
type Rows = BTreeMap<String, DeliveryStatus>;

/// Every cluster has the newest sources.
#[derive(Debug, PartialEq, Eq)]
struct Delivered {
    clusters: usize,
    copies: i64,
}

/// What a timeout was waiting for.
#[derive(Debug)]
enum Lack {
    /// The hub did not answer, for this reason.
    Answer(String),
    /// The hub has not observed everything.
    Sync(RuleSyncStatus),
    /// Clusters lack something, or there are none.
    Deliveries(Rows),
}

impl Delivered {
    fn text(&self) -> String {
        let [clusters, copies] = [
            (self.clusters as u64, "cluster"),
            (self.copies.unsigned_abs(), "copy"),
        ]
        .map(|(count, noun)| match (count, noun) {
            (1, noun) => format!("1 {noun}"),
            (more, "copy") => format!("{more} copies"),
            (more, noun) => format!("{more} {noun}s"),
        });
        format!("the newest sources are applied ({copies} in {clusters})")
    }
}

impl Lack {
    /// Returns what is missing, one line for each object or cluster.
    fn text(&self) -> String {
        match self {
            Self::Answer(why) => why.clone(),
            Self::Sync(sync) => {
                let named = sync.pending.iter();
                let lines = named.map(|pending| format!("{}: {}", pending.object, pending.message));
                let all = usize::try_from(sync.pending_count).unwrap_or_default();
                listed("the hub has not observed the newest state yet", lines, all)
            }
            Self::Deliveries(rows) if rows.is_empty() => "no cluster has the rule".to_owned(),
            Self::Deliveries(rows) => {
                let missing: Vec<_> = rows.iter().filter(|(_, row)| !is_done(row)).collect();
                if missing.is_empty() {
                    return "the rule has no copies".to_owned();
                }
                let head = format!("{} of {} clusters are missing", missing.len(), rows.len());
                let lines = missing.iter().map(|(cluster, row)| row_text(cluster, row));
                listed(&head, lines, missing.len())
            }
        }
    }
}

/// A heading with the first lines below it.
fn listed(head: &str, lines: impl Iterator<Item = String>, all: usize) -> String {
    let mut text = head.to_owned();
    for line in lines.take(NAMED) {
        let _ = write!(text, "\n  {line}");
    }
    let named = text.lines().count() - 1;
    if all > named {
        let _ = write!(text, "\n  and {} more", all - named);
    }
    text
}

fn row_text(cluster: &str, row: &DeliveryStatus) -> String {
    let older = if row.newest { "" } else { ", not the newest" };
    let (state, counts) = (row.state, format!("{}/{}", row.applied, row.copies));
    let mut text = format!(
        "{cluster}: {state:?} {} ({counts} applied{older})",
        row.reason
    );
    if !row.message.is_empty() {
        let _ = write!(text, ": {}", row.message);
    }
    text
}

/// Whether a cluster has the newest sources, and its agent has not proved otherwise.
fn is_done(row: &DeliveryStatus) -> bool {
    let ready = ConditionType::Ready.as_str();
    row.newest
        && row
            .conditions
            .iter()
            .any(|condition| condition.type_ == ready && condition.status == "True")
}

fn copies(rows: &Rows) -> i64 {
    rows.values().map(|row| row.copies).sum()
}

/// Returns the totals, if every cluster is done and there is a copy at all.
fn delivered(rows: &Rows) -> Option<Delivered> {
    let copies = copies(rows);
    (copies > 0 && rows.values().all(is_done)).then_some(Delivered {
        clusters: rows.len(),
        copies,
    })
}

async fn wait(
    hub: &Cluster,
    rule: &Rule,
    deadline: Instant,
    progress: &mut Progress,
) -> anyhow::Result<Result<Delivered, Lack>> {
    if let Err(lack) = sync(hub, rule, deadline, progress).await? {
        return Ok(Err(lack));
    }
    let (client, fields) = (hub.watching_client()?, format!("rule={}", rule.name()));
    match rule {
        Rule::DistributionRule(_) => {
            let api = Api::<Delivery>::namespaced(client, rule.namespace());
            let row = |delivery: Delivery| (delivery.spec.cluster, delivery.status);
            follow(api, &fields, row, deadline, progress).await
        }
        Rule::ClusterDistributionRule(_) => {
            let api = Api::<ClusterDelivery>::all(client);
            let row = |delivery: ClusterDelivery| (delivery.spec.cluster, delivery.status);
            follow(api, &fields, row, deadline, progress).await
        }
    }
}

/// Waits until the hub has observed the rule and its sources as the API server has them.
async fn sync(
    hub: &Cluster,
    rule: &Rule,
    deadline: Instant,
    progress: &mut Progress,
) -> anyhow::Result<Result<(), Lack>> {
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let lack = match ask(hub, rule, left.min(LONGEST)).await {
            Ok(sync) if sync.synced => return Ok(Ok(())),
            Ok(sync) => {
                progress.set_text("the hub has not observed the newest state yet");
                Lack::Sync(sync)
            }
            Err(RequestError::Final(error)) => return Err(error),
            Err(RequestError::Temporary(error)) => {
                progress.set_text("the hub does not answer yet");
                Lack::Answer(error.to_string())
            }
        };
        if Instant::now() + RETRY_DELAY >= deadline {
            return Ok(Err(lack));
        }
        tokio::time::sleep(RETRY_DELAY).await;
    }
}

/// Asks the hub whether it has observed the rule and its sources.
async fn ask(hub: &Cluster, rule: &Rule, limit: Duration) -> Result<RuleSyncStatus, RequestError> {
    let (action, name) = ("ask the hub about the rule", rule.name().to_owned());
    let status = match rule {
        Rule::DistributionRule(_) => {
            let place = (Some(rule.namespace()), "rulesyncs");
            let asked = RuleSync::new("", RuleSyncSpec { rule: name });
            views::create_within(hub, action, place, &asked, limit)
                .await?
                .status
        }
        Rule::ClusterDistributionRule(_) => {
            let place = (None, "clusterrulesyncs");
            let asked = ClusterRuleSync::new("", ClusterRuleSyncSpec { rule: name });
            views::create_within(hub, action, place, &asked, limit)
                .await?
                .status
        }
    };
    Ok(status.unwrap_or_default())
}

/// Watches the deliveries of a rule until each is done.
async fn follow<K>(
    api: Api<K>,
    fields: &str,
    row: impl Fn(K) -> (String, Option<DeliveryStatus>),
    deadline: Instant,
    progress: &mut Progress,
) -> anyhow::Result<Result<Delivered, Lack>>
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let config = watcher::Config::default()
        .fields(fields)
        .timeout(WATCH_SECONDS);
    let mut events = std::pin::pin!(watcher::watcher(api, config).default_backoff());
    let mut lack = Lack::Answer("the hub does not list the deliveries of the rule".to_owned());
    let (mut rows, mut listed, mut is_listed) = (Rows::new(), Rows::new(), false);
    loop {
        let next = tokio::time::timeout_at(deadline.into(), events.next()).await;
        let Ok(Some(event)) = next else {
            return Ok(Err(if is_listed {
                Lack::Deliveries(rows)
            } else {
                lack
            }));
        };
        let entry = |delivery| {
            let (cluster, status) = row(delivery);
            (cluster, status.unwrap_or_default())
        };
        match event {
            Ok(Event::Init) => listed.clear(),
            Ok(Event::InitApply(delivery)) => listed.extend([entry(delivery)]),
            Ok(Event::InitDone) => {
                rows = std::mem::take(&mut listed);
                is_listed = true;
            }
            Ok(Event::Apply(delivery)) => rows.extend([entry(delivery)]),
            Ok(Event::Delete(delivery)) => _ = rows.remove(&entry(delivery).0),
            Err(error) => lack = Lack::Answer(super::hints::error_chain(&error)),
        }
        if !is_listed {
            continue;
        }
        if let Some(delivered) = delivered(&rows) {
            return Ok(Ok(delivered));
        }
        let done = rows.values().filter(|row| is_done(row)).count();
        progress.set_text(&format!(
            "{done} of {} clusters have the newest sources",
            rows.len()
        ));
    }
}

/// Returns why a rule without copies is not ready.
async fn not_ready(hub: &Cluster, rule: &Rule) -> Option<String> {
    let path = read_cluster::rule_path(rule);
    let object: Value = hub.get("read the rule", &path).await.ok()??;
    let rule = Rule::read(&object).ok()?;
    let ready = rule.condition(ConditionType::Ready);
    (!ready.is_true() && !ready.reason.is_empty())
        .then(|| format!("the rule is not Ready: {}: {}", ready.reason, ready.message))
}

/// Returns a line about the hub, if its Lease has expired.
async fn silence(hub: &Cluster, namespace: &str) -> Option<String> {
    let lease = read_cluster::lease(hub, namespace).await.ok()??;
    let silent = checks::silent_for(&lease, hub.clock().await.ok()??)?;
    Some(format!(
        "no hub leads: the Lease in namespace {namespace} was last renewed {silent} ago"
    ))
}

#[cfg(test)]
mod tests {
    use runnel_api::{ClusterState, DeliveryCondition, UnobservedObject};

    use super::*;

    fn row(state: ClusterState, newest: bool, copies: i64) -> DeliveryStatus {
        let ready = if state == ClusterState::Ready && newest {
            "True"
        } else {
            "False"
        };
        DeliveryStatus {
            state,
            newest,
            copies,
            applied: copies,
            reason: "AllApplied".to_owned(),
            conditions: vec![DeliveryCondition {
                type_: "Ready".to_owned(),
                status: ready.to_owned(),
                ..DeliveryCondition::default()
            }],
            ..DeliveryStatus::default()
        }
    }

    fn rows(rows: &[(&str, DeliveryStatus)]) -> Rows {
        let rows = rows.iter().cloned();
        rows.map(|(name, row)| (name.to_owned(), row)).collect()
    }

    #[test]
    fn rule_is_delivered_when_every_cluster_has_the_newest_copies() {
        let ready = row(ClusterState::Ready, true, 2);
        let all = rows(&[("eu-1", ready.clone()), ("eu-2", ready.clone())]);
        let text = delivered(&all).map(|delivered| delivered.text());
        let expected = "the newest sources are applied (4 copies in 2 clusters)";
        assert_eq!(text.as_deref(), Some(expected));
        for other in [
            row(ClusterState::Ready, false, 2),
            row(ClusterState::Progressing, false, 2),
            row(ClusterState::Unreachable, true, 2),
        ] {
            assert_eq!(
                delivered(&rows(&[("a", ready.clone()), ("b", other)])),
                None
            );
        }
        // Nothing is delivered by a rule without clusters or copies.
        assert_eq!(delivered(&Rows::new()), None);
        assert_eq!(
            delivered(&rows(&[("a", row(ClusterState::Ready, true, 0))])),
            None
        );
    }

    #[test]
    fn timeout_names_clusters_and_reasons() {
        let failed = DeliveryStatus {
            message: "an object is in the way".to_owned(),
            applied: 1,
            ..row(ClusterState::Failed, false, 2)
        };
        let mut all = rows(&[("eu-1", row(ClusterState::Ready, true, 2))]);
        all.insert("eu-0".to_owned(), failed);
        let text = Lack::Deliveries(all.clone()).text();
        assert_eq!(
            text,
            "1 of 2 clusters are missing\n  eu-0: Failed AllApplied (1/2 applied, not the newest): an object is in the way"
        );
        for number in 0..30 {
            all.insert(
                format!("x-{number}"),
                row(ClusterState::Progressing, false, 1),
            );
        }
        let text = Lack::Deliveries(all).text();
        assert_eq!(text.lines().count(), 1 + NAMED + 1, "{text}");
        assert!(text.ends_with("and 21 more"), "{text}");
        let none = Lack::Deliveries(Rows::new()).text();
        assert_eq!(none, "no cluster has the rule");
    }

    #[test]
    fn timeout_names_what_the_hub_has_not_observed() {
        let sync = RuleSyncStatus {
            pending: vec![UnobservedObject {
                object: "configmaps/shop/a".to_owned(),
                message: "not observed".to_owned(),
            }],
            pending_count: 12,
            ..RuleSyncStatus::default()
        };
        assert_eq!(
            Lack::Sync(sync).text(),
            "the hub has not observed the newest state yet\n  configmaps/shop/a: not observed\n  and 11 more"
        );
    }
}
