//! The common parts of the demo's steps: waits for copies, and prints of durations.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use futures::future::try_join_all;
use serde_json::Value;

use super::narrate::Narrator;
use super::observer::{Observation, Observer};
use super::stage::Clusters;
use crate::wait::eventually;

/// The namespace of the rule and its sources, on the hub.
pub const NAMESPACE: &str = "ns-codis-test";
/// The rule.
pub const RULE: &str = "rule-codis-test";
/// A namespace that every cluster has.
pub const DEFAULT: &str = "default";
/// A namespace that the last member does not have at first.
pub const LATE: &str = "another-test";
/// The ConfigMap that is there from the beginning.
pub const SETTINGS: &str = "app-settings";
/// The Secret that is there from the beginning.
pub const LOGIN: &str = "app-login";
/// The ConfigMap that comes later.
pub const LIMITS: &str = "app-limits";

/// The time limit of every step; the longest is the second read of a conflict, within 30 s.
pub const SOON: Duration = Duration::from_secs(120);

/// The expected state of a copy.
#[derive(Clone, Copy, Debug)]
pub enum CopyState {
    /// The copy exists.
    There,
    /// The copy does not exist.
    Gone,
    /// The copy has this value for this key.
    Holds(&'static str, &'static str),
}

/// A copy with its expected state.
#[derive(Clone, Copy, Debug)]
pub struct Want {
    /// Its kind.
    pub kind: &'static str,
    /// Its name.
    pub name: &'static str,
    /// The expected state.
    pub state: CopyState,
}

impl Want {
    /// A ConfigMap.
    #[must_use]
    pub fn config_map(name: &'static str, state: CopyState) -> Self {
        Self {
            kind: "ConfigMap",
            name,
            state,
        }
    }

    /// A Secret.
    #[must_use]
    pub fn secret(name: &'static str, state: CopyState) -> Self {
        Self {
            kind: "Secret",
            name,
            state,
        }
    }

    fn is_met_by(&self, namespace: &str, seen: &Observation) -> bool {
        seen.is(self.kind, namespace, self.name)
            && match self.state {
                CopyState::There => seen.data.is_some(),
                CopyState::Gone => seen.data.is_none(),
                CopyState::Holds(key, value) => seen.holds(key, value),
            }
    }
}

/// The running demo: the clusters, and the observations in them.
#[derive(Debug)]
pub struct DemoStory<'a> {
    /// Prints it.
    pub narrator: &'a mut Narrator,
    /// The clusters.
    pub clusters: &'a Clusters,
    /// The observations on the hub.
    pub hub: Observer,
    /// The observations in each member.
    pub members: Vec<Observer>,
    /// The delivery time of each edit to the last member.
    pub edits: Vec<Duration>,
}

impl<'a> DemoStory<'a> {
    /// Begins to watch all clusters.
    ///
    /// # Errors
    /// When a cluster cannot be watched.
    pub async fn begin(narrator: &'a mut Narrator, clusters: &'a Clusters) -> Result<Self> {
        let place = Some(NAMESPACE);
        let hub = [
            ("ConfigMap", place),
            ("Secret", place),
            ("DistributionRule", place),
        ];
        let (first, late) = (Some(DEFAULT), Some(LATE));
        let member = [
            ("ConfigMap", first),
            ("Secret", first),
            ("ConfigMap", late),
            ("Secret", late),
            ("Namespace", None),
        ];
        let hub = Observer::start(&clusters.hub, &hub).await?;
        let members = try_join_all(
            clusters
                .members
                .iter()
                .map(|cluster| Observer::start(cluster, &member)),
        )
        .await?;
        Ok(Self {
            narrator,
            clusters,
            hub,
            members,
            edits: Vec::new(),
        })
    }

    /// The number of the last member, from 0.
    #[must_use]
    pub fn last(&self) -> usize {
        self.members.len() - 1
    }

    /// The current position in the record of each member.
    #[must_use]
    pub fn marks(&self) -> Vec<usize> {
        self.members.iter().map(Observer::mark).collect()
    }

    /// Waits until one member has all of these copies in all of these namespaces, and prints how
    /// long that took; `{}` in `words` stands for the copies.
    ///
    /// # Errors
    /// When one is not seen in time.
    pub async fn arrives(
        &self,
        (member, since): (usize, usize),
        begin: Instant,
        wanted: &[Want],
        namespaces: &[&str],
        words: &str,
    ) -> Result<Duration> {
        let mut latest = begin;
        for (want, namespace) in wanted
            .iter()
            .flat_map(|want| namespaces.iter().map(move |namespace| (want, namespace)))
        {
            let what = format!("{} {namespace}/{} {:?}", want.kind, want.name, want.state);
            let met = |seen: &Observation| want.is_met_by(namespace, seen);
            let (_, at) = self.members[member].sees(&what, since, SOON, met).await?;
            latest = latest.max(at);
        }
        let time = latest.duration_since(begin);
        let name = &self.clusters.members[member].name;
        self.narrator.took(
            &format!("{name} {}", sentence(words, wanted, namespaces)),
            time,
        );
        Ok(time)
    }

    /// As above for every member; returns the longest time.
    ///
    /// # Errors
    /// At the deadline.
    pub async fn arrives_everywhere(
        &self,
        since: &[usize],
        begin: Instant,
        wanted: &[Want],
        namespaces: &[&str],
        words: &str,
    ) -> Result<Duration> {
        let mut longest = Duration::ZERO;
        for (member, since) in since.iter().enumerate() {
            longest = longest.max(
                self.arrives((member, *since), begin, wanted, namespaces, words)
                    .await?,
            );
        }
        Ok(longest)
    }

    /// Waits until the rule's status is as it has to be.
    ///
    /// # Errors
    /// When it is not in time; with the status as it is.
    pub async fn status(&self, what: &str, wanted: impl Fn(&Value) -> bool) -> Result<()> {
        let get = ["-n", NAMESPACE, "get", "drule", RULE, "-o", "json"];
        eventually(
            &format!("the status of {RULE} to tell {what}"),
            SOON,
            async || {
                let rule: Value =
                    serde_json::from_str(&self.clusters.hub.kubectl(&get, "").await?)?;
                let (summary, conditions) =
                    (&rule["status"]["summary"], &rule["status"]["conditions"]);
                ensure!(
                    wanted(&rule["status"]),
                    "summary {summary} and conditions {conditions}"
                );
                Ok(Some(()))
            },
        )
        .await
    }

    /// Waits until the rule is ready with that many copies.
    ///
    /// # Errors
    /// When it is not in time.
    pub async fn ready(&self, copies: usize) -> Result<()> {
        let what = format!("that {copies} copies of {copies} are applied");
        self.status(&what, |status| {
            let all = status["summary"]["copiesApplied"] == copies
                && status["summary"]["copies"] == copies;
            all && is_ready(status)
        })
        .await
    }

    /// Shows the rules as `kubectl` does.
    ///
    /// # Errors
    /// When `kubectl` fails.
    pub async fn show_rule(&self) -> Result<()> {
        self.clusters
            .hub
            .show(self.narrator, &["-n", NAMESPACE, "get", "drule"])
            .await
            .map(|_| ())
    }
}

fn is_ready(status: &Value) -> bool {
    let conditions = status["conditions"].as_array().into_iter().flatten();
    conditions
        .into_iter()
        .any(|condition| condition["type"] == "Ready" && condition["status"] == "True")
}

/// `has {} again` about copies in namespaces.
fn sentence(words: &str, wanted: &[Want], namespaces: &[&str]) -> String {
    let names: Vec<&str> = wanted.iter().map(|want| want.name).collect();
    format!(
        "{} in {}",
        words.replace("{}", &names.join(" and ")),
        namespaces.join(" and ")
    )
}
