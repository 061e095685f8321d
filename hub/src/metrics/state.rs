//! Metrics that are read from the hub's state at each scrape: members, rules, copies, removals,
//! certificates.
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;
use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::gauge::ConstGauge;
use runnel_transport::tls::ServerTls;

use super::HubMetrics;
use crate::ca::HubCas;
use crate::hub_state::HubState;
use crate::object_cache::ObjectCache;
use runnel_api::conditions::{ConditionStatus, ConditionType, Reason, condition};
use runnel_hub_core::index::RuleEntry;
use runnel_hub_core::status::SentRule;

/// Reads the hub's state at each scrape.
pub struct StateCollector {
    /// The state of the hub.
    pub hub_state: Arc<HubState>,
    /// The statuses that the hub wrote.
    pub object_cache: Arc<ObjectCache>,
    /// The serving certificates.
    pub tls: Arc<ServerTls>,
    /// The CAs.
    pub hub_cas: Arc<HubCas>,
    /// The counters.
    pub metrics: Arc<HubMetrics>,
    /// The validity of a member's certificate.
    pub certificate_life: Duration,
}

impl std::fmt::Debug for StateCollector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("StateCollector")
    }
}

/// The values of one metric, by their labels.
struct Samples<const LABELS: usize> {
    name: &'static str,
    help: &'static str,
    labels: [&'static str; LABELS],
    values: Vec<([String; LABELS], f64)>,
}

impl<const LABELS: usize> Samples<LABELS> {
    fn new(name: &'static str, help: &'static str, labels: [&'static str; LABELS]) -> Self {
        Self {
            name,
            help,
            labels,
            values: Vec::new(),
        }
    }

    fn add(&mut self, labels: [&str; LABELS], value: f64) {
        self.values.push((labels.map(ToOwned::to_owned), value));
    }

    fn encode(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let mut family =
            encoder.encode_descriptor(self.name, self.help, None, MetricType::Gauge)?;
        for (values, value) in &self.values {
            let pairs: Vec<_> = self
                .labels
                .iter()
                .copied()
                .zip(values.iter().map(String::as_str))
                .collect();
            let gauge = ConstGauge::new(*value);
            gauge.encode(family.encode_family(&pairs)?)?;
        }
        Ok(())
    }
}

/// Returns the sum of a count over all rules. It locks the index for one rule at a time, so that
/// writers do not wait for all rules.
fn sum_of_rules(hub_state: &HubState, count: impl Fn(&RuleEntry) -> usize) -> usize {
    let uids: Vec<_> = hub_state.index.read().rules().uids().cloned().collect();
    uids.iter()
        .map(|uid| hub_state.index.read().rules().get(uid).map_or(0, &count))
        .sum()
}

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        self.counts(&mut encoder)?;
        self.encode_index_lock_times(&mut encoder)?;
        self.certificates().encode(&mut encoder)?;
        self.certificate_life().encode(&mut encoder)?;
        // A standby has no sessions, so it publishes no state.
        if !self.hub_state.leadership.leads() {
            return Ok(());
        }
        self.members().encode(&mut encoder)?;
        self.rules().encode(&mut encoder)?;
        self.deliveries(&mut encoder)?;
        self.copies().encode(&mut encoder)?;
        self.copies_by_health().encode(&mut encoder)
    }
}

impl StateCollector {
    fn counts(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let index = self.hub_state.index.read();
        let intents: usize = index
            .rules()
            .iter()
            .map(|(_, entry)| entry.plan.intents.len())
            .sum();
        let blocked = index
            .rules()
            .iter()
            .filter(|(uid, _)| index.rules().is_blocked(uid))
            .count();
        let pending: usize = index
            .clusters()
            .iter()
            .map(|(_, cluster)| cluster.pending.len())
            .sum();
        let counts = [
            (
                "runnel_leader",
                "Whether this replica of the hub leads",
                usize::from(self.hub_state.leadership.leads()),
            ),
            ("runnel_hub_rules", "Rules", index.rules().iter().count()),
            (
                "runnel_hub_members",
                "Member clusters",
                index.clusters().iter().count(),
            ),
            (
                "runnel_hub_intents",
                "Intents, each for all clusters of its rule",
                intents,
            ),
            (
                "runnel_hub_trusted_cas",
                "CAs that members may trust: more than one while the hub replaces its CA",
                self.hub_cas.trusted().entries().len(),
            ),
            (
                "runnel_hub_identity_unusable",
                "Whether the Secret runnel-hub-identity is unusable; the hub then continues with its former identity",
                usize::from(self.hub_cas.is_unusable()),
            ),
            (
                "runnel_removals_blocked",
                "Rules with blocked removals: more copies than a limit allows would be removed",
                blocked,
            ),
            (
                "runnel_removals_pending",
                "Removals of deleted rules that wait for a disconnected cluster, one for each rule and cluster",
                pending,
            ),
        ];
        drop(index);
        let differing = sum_of_rules(&self.hub_state, |entry| {
            SentRule::from(entry).differing(&self.hub_state.report_store.lock())
        });
        let differing = (
            "runnel_rule_clusters_differ",
            "Pairs of rule and cluster in which the agent reports all copies as applied, and its digest differs from the hub's",
            differing,
        );
        let divergences = self.hub_state.leadership.divergences.lock().all().count();
        let divergences = (
            "runnel_members_in_doubt",
            "Member clusters with a condition RestoredFromBackup, Duplicate or PreviousMembership",
            divergences,
        );
        for (name, help, count) in counts.into_iter().chain([divergences, differing]) {
            let gauge = ConstGauge::new(count as f64);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }

    /// Encodes how long the lock of the index was held.
    fn encode_index_lock_times(
        &self,
        encoder: &mut DescriptorEncoder<'_>,
    ) -> Result<(), std::fmt::Error> {
        let holds = &self.hub_state.index_lock_times;
        let help = "Seconds for which one change locked the hub's index";
        let histogram = encoder.encode_descriptor(
            "runnel_index_lock_seconds",
            help,
            None,
            MetricType::Histogram,
        )?;
        holds.histogram().encode(histogram)?;
        let help = "The longest lock of the hub's index by one change since the start";
        let longest = ConstGauge::new(holds.longest().as_secs_f64());
        longest.encode(encoder.encode_descriptor(
            "runnel_index_lock_longest_seconds",
            help,
            None,
            MetricType::Gauge,
        )?)
    }

    /// Returns whether the agent of each accepted cluster is connected.
    fn members(&self) -> Samples<1> {
        let help = "Whether the agent of an accepted cluster is connected";
        let mut samples = Samples::new("runnel_member_connected", help, ["member"]);
        let (index, now) = (self.hub_state.index.read(), Instant::now());
        let report_store = self.hub_state.report_store.lock();
        for (name, _) in index
            .clusters()
            .iter()
            .filter(|(_, cluster)| cluster.accepted)
        {
            samples.add(
                [name.as_str()],
                f64::from(u8::from(report_store.session(name, now).is_some())),
            );
        }
        samples
    }

    /// Returns whether each rule is Ready, by its status. Rules that are not Ready on purpose are
    /// left out.
    fn rules(&self) -> Samples<2> {
        let help = "Whether a rule's condition Ready is True; suspended rules, dry runs, and rules that only a rollout or a \
                    cordoned cluster holds back are left out";
        // The label is not `namespace`, because that is the label of the scraped pod.
        let mut samples = Samples::new("runnel_rule_ready", help, ["rule_namespace", "rule"]);
        let index = self.hub_state.index.read();
        for (uid, entry) in index
            .rules()
            .iter()
            .filter(|(_, entry)| !entry.rule.terms.is_frozen())
        {
            let known = self.object_cache.with_rule(uid, |object| {
                let ready = condition(&object?.status.conditions, ConditionType::Ready)?;
                (!is_intended(ready)).then(|| ready.status == ConditionStatus::True.as_str())
            });
            let Some(ready) = known else { continue };
            let name = &entry.rule.terms.rule;
            samples.add([&name.namespace, &name.name], f64::from(u8::from(ready)));
        }
        samples
    }

    /// Encodes the delivery times of each rule. A deleted rule has no series.
    fn deliveries(&self, encoder: &mut DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let index = self.hub_state.index.read();
        // A delivery to a cluster that is not sent to any more would never complete.
        self.metrics
            .rules_delivered(self.hub_state.drop_unsent(&index));
        let help = "Time from an edit of a source, in the hub's watch, until the last connected cluster of the rule without failed \
                    copies has applied it";
        let mut family = encoder.encode_descriptor(
            "runnel_rule_delivery_seconds",
            help,
            None,
            MetricType::Histogram,
        )?;
        for (uid, histogram) in self
            .metrics
            .rule_deliveries(|uid| index.rules().get(uid).is_some())
        {
            let Some(entry) = index.rules().get(&uid) else {
                continue;
            };
            let name = &entry.rule.terms.rule;
            let labels = [
                ("rule_namespace", name.namespace.as_str()),
                ("rule", name.name.as_str()),
            ];
            histogram.encode(family.encode_family(&labels)?)?;
        }
        Ok(())
    }

    fn copies(&self) -> Samples<1> {
        let help = "Copies that the agents last reported, by state, of all rules and clusters";
        let mut samples = Samples::new("runnel_rule_copies", help, ["state"]);
        let counts = self.hub_state.report_store.lock().copies();
        let states = [
            ("applied", counts.applied),
            ("failed", counts.failed),
            ("waiting", counts.waiting),
            ("drifted", counts.drifted),
            ("removing", counts.removing),
            ("to_create", counts.to_create),
            ("to_update", counts.to_update),
            ("to_delete", counts.to_delete),
            ("under_way", counts.copies_in_progress()),
        ];
        for (state, count) in states {
            samples.add([state], f64::from(count));
        }
        samples
    }

    /// Returns the copies of each rule by their health. A rule whose copies have no health has no series.
    fn copies_by_health(&self) -> Samples<3> {
        let help = "Copies that have a health, as the agents last reported it, by rule and health";
        let name = "runnel_rule_copies_health";
        let mut samples = Samples::new(name, help, ["rule_namespace", "rule", "health"]);
        let sums = self.hub_state.report_store.lock().health_by_rule();
        let index = self.hub_state.index.read();
        for (uid, counts) in sums {
            let Some(entry) = index.rules().get(&uid) else {
                continue;
            };
            let name = &entry.rule.terms.rule;
            for (health, count) in [
                ("current", counts.healthy),
                ("in_progress", counts.awaiting_health()),
                ("failed", counts.unhealthy),
            ] {
                samples.add([&name.namespace, &name.name, health], f64::from(count));
            }
        }
        samples
    }

    fn certificate_life(&self) -> Samples<0> {
        let help = "How long a member's certificate lives, in seconds";
        let mut samples = Samples::new("runnel_certificate_life_seconds", help, []);
        samples.add([], self.certificate_life.as_secs_f64());
        samples
    }

    fn certificates(&self) -> Samples<2> {
        let help = "When a certificate expires, in seconds since 1970: the hub's CA, the hub's serving certificate, and for each member the certificate of its newest session";
        let name = "runnel_certificate_expiry_timestamp_seconds";
        let mut samples = Samples::new(name, help, ["certificate", "member"]);
        let seconds = |at: SystemTime| {
            at.duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64()
        };
        samples.add(["ca", ""], seconds(self.hub_cas.identity().ca.not_after()));
        samples.add(["serving", ""], seconds(self.tls.expires()));
        let index = self.hub_state.index.read();
        let report_store = self.hub_state.report_store.lock();
        for (name, _) in index
            .clusters()
            .iter()
            .filter(|(_, cluster)| cluster.accepted)
        {
            if let Some(expires) = report_store.certificate_expires(name) {
                samples.add(["member", name.as_str()], expires.as_second() as f64);
            }
        }
        samples
    }
}

/// Whether a rule is not Ready, and only because a person decided so: nothing failed.
fn is_intended(ready: &Condition) -> bool {
    let reasons = [
        Reason::RollingOut,
        Reason::AwaitingApproval,
        Reason::AwaitingWindow,
        Reason::RolloutPaused,
        Reason::Cordoned,
    ];
    ready.status == ConditionStatus::False.as_str()
        && reasons.iter().any(|reason| ready.reason == reason.as_str())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;
    use std::sync::mpsc::channel;

    #[test]
    fn rollouts_and_cordoned_clusters_are_no_failure() {
        let ready = |status: &str, reason: &str| -> Condition {
            let condition = serde_json::json!({
                "type": "Ready", "status": status, "reason": reason, "message": "",
                "lastTransitionTime": "2026-01-01T00:00:00Z",
            });
            serde_json::from_value(condition).unwrap()
        };
        for reason in [
            "RollingOut",
            "AwaitingApproval",
            "RolloutPaused",
            "Cordoned",
        ] {
            assert!(is_intended(&ready("False", reason)), "{reason}");
        }
        for (status, reason) in [
            ("False", "Conflict"),
            ("True", "AllApplied"),
            ("Unknown", "Cordoned"),
        ] {
            assert!(!is_intended(&ready(status, reason)), "{status} {reason}");
        }
    }

    #[test]
    fn change_of_the_index_waits_for_one_rule_of_a_scrape() {
        let hub_state = HubState::new(crate::hub_state::Settings::for_tests());
        for name in ["a", "b", "c"] {
            let object = serde_json::from_value(serde_json::json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
                "metadata": {"name": name, "namespace": "home", "uid": name, "generation": 1},
                "spec": {"sources": [{"resources": ["configmaps"], "names": ["*"]}], "clusters": {"all": true}},
            }));
            let rule =
                runnel_hub_core::plan::Rule::namespaced(&object.unwrap(), "runnel-system").unwrap();
            hub_state.change(|index| index.set_rule(rule));
        }
        let (changed, is_changed) = channel();
        let (calls, other) = (Cell::new(0), hub_state.clone());
        let mut change = Some(move || {
            let _index = other.index.write();
            changed.send(()).unwrap();
        });
        let writer = Cell::new(change.take());
        let sum = sum_of_rules(&hub_state, |_| {
            calls.set(calls.get() + 1);
            if let Some(change) = writer.take() {
                std::thread::spawn(change);
                // Wait until the writer waits for this reader, so that later readers wait for the
                // writer.
                while hub_state.index.is_free_to_read() {
                    std::thread::yield_now();
                }
            } else if calls.get() == 2 {
                is_changed
                    .recv_timeout(std::time::Duration::from_secs(60))
                    .unwrap();
            }
            1
        });
        assert_eq!((sum, calls.get()), (3, 3));
    }
}
