//! The hub's metrics, with few labels. The gauges of members and rules name them; no label names a
//! source or a copy.
//!
//! `runnel_delivery_seconds` begins when the hub's watch delivers a new version of a source (the
//! API server stores the time of a write in whole seconds only) and ends when an agent reports
//! every copy of the rule applied. `runnel_rule_delivery_seconds` ends when the last agent of the
//! rule does: see [`runnel_hub_core::status::Deliveries`].
mod state;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::Duration;

use crate::ordered_lock::LeafMutex;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::metrics::histogram::Histogram;
use prometheus_client::registry::Registry;
use prost::Message;
use runnel_proto::model::{HubFrame, RuleUid};
use runnel_proto::{closed_list, wire};

pub use state::StateCollector;

/// From a few milliseconds, as on one machine, to the minutes of a member with a bad connection.
const DELIVERY_BUCKETS: [f64; 14] = [
    0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0, 300.0,
];

/// Buckets for all clusters of a rule together, up to the hour that the waves of a rollout may
/// take. The number is small because every edited rule has its own series.
const RULE_DELIVERY_BUCKETS: [f64; 10] =
    [0.05, 0.1, 0.25, 0.5, 1.0, 5.0, 30.0, 120.0, 600.0, 3600.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FrameLabels {
    frame: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct LimitLabels {
    limit: &'static str,
}

closed_list! {
    /// The limits for one peer.
    pub enum PeerLimit {
        /// Frames that the hub cannot read; they are ignored.
        Frames,
        /// Items of frames that the hub cannot read or whose names are invalid; they are ignored.
        Items,
        /// Connections of one member without a session; the oldest is closed.
        Connections,
        /// Connections without a session for too long; they are closed.
        IdleConnections,
        /// Unregistered streams of one member beyond the limit; the oldest one is ended.
        Streams,
        /// Rules or bytes of an agent's report beyond the limit; they are requested again later.
        Hello,
        /// Calls that were refused recently; they are refused again without a request to the API
        /// server.
        Calls,
        /// Renewals of a certificate; they are refused.
        Renewals,
        /// Log lines about one member; they are only counted.
        LogLines,
        /// Reports of one session; the hub reads no further for a while.
        Reports,
        /// Statuses that one session may change; they are written later.
        Statuses,
        /// Approval requests of one session; they are judged later.
        Judgments,
        /// Details of reports; they are dropped, and their counts are kept.
        Details,
        /// Connections that a standby forwards; they are closed.
        Forwarded,
        /// Connections on the replica port that do not come from a replica; they are closed.
        Replicas,
    }
}

/// The hub's counters.
pub struct HubMetrics {
    limits: Family<LimitLabels, Counter>,
    refusals: Counter,
    sessions: Gauge,
    frames: Family<FrameLabels, Counter>,
    bytes: Counter<u64, AtomicU64>,
    payload: Counter<u64, AtomicU64>,
    upserts: Counter,
    tombstones: Counter,
    delivery: Histogram,
    /// The delivery times of the rules that were edited since the start.
    rules: LeafMutex<BTreeMap<RuleUid, Histogram>>,
}

impl Default for HubMetrics {
    fn default() -> Self {
        Self {
            limits: Family::default(),
            refusals: Counter::default(),
            sessions: Gauge::default(),
            frames: Family::default(),
            bytes: Counter::default(),
            payload: Counter::default(),
            upserts: Counter::default(),
            tombstones: Counter::default(),
            delivery: Histogram::new(DELIVERY_BUCKETS),
            rules: LeafMutex::default(),
        }
    }
}

impl HubMetrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Arc<Self> {
        let metrics = Self::default();
        registry.register(
            "runnel_hub_sessions",
            "Agents connected",
            metrics.sessions.clone(),
        );
        let help = "Requests of peers that a limit refused or delayed, by limit";
        registry.register("runnel_hub_peer_limits", help, metrics.limits.clone());
        registry.register(
            "runnel_hub_refused_intents",
            "Intents that agents refused",
            metrics.refusals.clone(),
        );
        registry.register(
            "runnel_hub_frames_sent",
            "Frames sent to agents",
            metrics.frames.clone(),
        );
        registry.register(
            "runnel_hub_frame_bytes_sent",
            "Bytes of frames sent, before TLS",
            metrics.bytes.clone(),
        );
        registry.register(
            "runnel_hub_payload_bytes_sent",
            "Bytes of payloads sent, as compressed",
            metrics.payload.clone(),
        );
        registry.register(
            "runnel_hub_intents_sent",
            "Intents sent with their payload",
            metrics.upserts.clone(),
        );
        registry.register(
            "runnel_hub_tombstones_sent",
            "Removal orders sent",
            metrics.tombstones.clone(),
        );
        let help = "Time from an edit of a source, in the hub's watch, until a connected cluster has applied all copies of it";
        registry.register("runnel_delivery_seconds", help, metrics.delivery.clone());
        Arc::new(metrics)
    }

    /// Counts that a peer has reached a limit `times` times.
    pub fn limited(&self, limit: PeerLimit, times: u64) {
        if times > 0 {
            self.limits
                .get_or_create(&LimitLabels {
                    limit: limit.as_str(),
                })
                .inc_by(times);
        }
    }

    /// Returns how often a limit was reached.
    pub fn times_limited(&self, limit: PeerLimit) -> u64 {
        self.limits
            .get_or_create(&LimitLabels {
                limit: limit.as_str(),
            })
            .get()
    }

    /// Counts items that agents refused.
    pub fn refused_by_agents(&self, items: u64) {
        self.refusals.inc_by(items);
    }

    /// Changes the number of connected agents by 1 or -1.
    pub fn connected(&self, change: i64) {
        self.sessions.inc_by(change);
    }

    /// Records that an edit of a source has been applied in one cluster.
    pub fn delivered(&self, took: Duration) {
        self.delivery.observe(took.as_secs_f64());
    }

    /// Records that an edit of a source has been applied in the last cluster of a rule.
    pub fn rule_delivered(&self, rule: &RuleUid, took: Duration) {
        let mut rules = self.rules.lock();
        let histogram = rules
            .entry(rule.clone())
            .or_insert_with(|| Histogram::new(RULE_DELIVERY_BUCKETS));
        histogram.observe(took.as_secs_f64());
    }

    /// Records the durations of several rules.
    pub fn rules_delivered(&self, took: Vec<(RuleUid, Duration)>) {
        took.into_iter()
            .for_each(|(rule, took)| self.rule_delivered(&rule, took));
    }

    /// Returns the delivery times of each rule. Drops those of unknown rules.
    fn rule_deliveries(&self, is_known: impl Fn(&RuleUid) -> bool) -> Vec<(RuleUid, Histogram)> {
        let mut rules = self.rules.lock();
        rules.retain(|uid, _| is_known(uid));
        rules
            .iter()
            .map(|(uid, histogram)| (uid.clone(), histogram.clone()))
            .collect()
    }

    /// Counts a sent frame, its bytes and the changes that it contains.
    pub fn frame_sent(&self, frame: &HubFrame, wire: &wire::HubFrame) {
        let name = match frame {
            HubFrame::SnapshotBegin(_) => "snapshot_begin",
            HubFrame::DetailRequest(_) => "detail_request",
            HubFrame::Batch(_) => "batch",
            HubFrame::SnapshotEnd(_) => "snapshot_end",
            HubFrame::Drain(_) | HubFrame::HandedOver => "drain",
            HubFrame::Keepalive => "keepalive",
            HubFrame::Revoked(_) => "revoked",
            HubFrame::CaBundle(_) => "ca_bundle",
            HubFrame::Inspect(_) => "inspect",
            HubFrame::PreviewRequest(_) => "preview",
            HubFrame::ListCopies(_) => "list_copies",
        };
        self.frames
            .get_or_create(&FrameLabels { frame: name })
            .inc();
        self.bytes.inc_by(wire.encoded_len() as u64);
        let HubFrame::Batch(batch) = frame else {
            return;
        };
        for delta in &batch.rules {
            self.upserts.inc_by(delta.upserts.len() as u64);
            let payload: usize = delta
                .upserts
                .iter()
                .map(|intent| intent.payload.bytes().len())
                .sum();
            self.payload.inc_by(payload as u64);
            self.tombstones
                .inc_by(delta.tombstones.len() as u64 + u64::from(delta.removal.is_some()));
        }
    }
}
