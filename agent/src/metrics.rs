//! The metrics for operators. Few labels, no names of objects.
use std::sync::atomic::AtomicU64;
use std::time::{SystemTime, UNIX_EPOCH};

use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;
use runnel_proto::model::Counts;

use runnel_agent_core::reconciler::Totals;

/// The result of writes.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct ResultLabel {
    result: &'static str,
}

/// The state of copies.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct StateLabel {
    state: &'static str,
}

/// The agent's metrics. Clones share their values.
#[derive(Clone, Default)]
pub struct Metrics {
    /// Whether a stream to the hub is open.
    pub connected: Gauge,
    /// Whether this agent holds the Lease, and so may write.
    pub active: Gauge,
    /// Frames received from the hub.
    pub frames_received: Counter<u64, AtomicU64>,
    /// Frames sent to the hub.
    pub frames_sent: Counter<u64, AtomicU64>,
    /// Bytes of payload received from the hub, compressed.
    pub payload_bytes: Counter<u64, AtomicU64>,
    /// Whether the policy file is unusable; an older policy is then in force.
    pub policy_broken: Gauge,
    applies: Family<ResultLabel, Counter<u64, AtomicU64>>,
    removals: Counter<u64, AtomicU64>,
    noops: Counter<u64, AtomicU64>,
    drift: Counter<u64, AtomicU64>,
    contentions: Gauge,
    taken_over: Family<ResultLabel, Counter<u64, AtomicU64>>,
    recreated: Counter<u64, AtomicU64>,
    certificate: Gauge<f64, AtomicU64>,
    copies: Family<StateLabel, Gauge>,
    cached: Gauge,
}

impl Metrics {
    /// Creates the metrics and registers them in this registry.
    pub fn new(registry: &mut Registry) -> Self {
        let all = Self::default();
        let registry = registry.sub_registry_with_prefix("runnel");
        registry.register(
            "session_connected",
            "Whether a stream to the hub is open",
            all.connected.clone(),
        );
        let help = "Whether this agent holds its Lease and is the active one";
        registry.register("agent_active", help, all.active.clone());
        registry.register(
            "frames_received",
            "Frames from the hub",
            all.frames_received.clone(),
        );
        registry.register("frames_sent", "Frames to the hub", all.frames_sent.clone());
        registry.register(
            "payload_received_bytes",
            "Payload from the hub, compressed",
            all.payload_bytes.clone(),
        );
        let help = "Whether the policy file is unusable; an older policy is then in force";
        registry.register("policy_broken", help, all.policy_broken.clone());
        registry.register("apply", "Writes of copies by result", all.applies.clone());
        registry.register(
            "apply_noop",
            "Applies that changed nothing",
            all.noops.clone(),
        );
        registry.register("remove", "Copies deleted or retained", all.removals.clone());
        registry.register(
            "drift_corrected",
            "Copies restored after drift",
            all.drift.clone(),
        );
        let help = "Copies under contention, whose corrections back off";
        registry.register("contentions", help, all.contentions.clone());
        let help = "Foreign objects that were taken over: adopted (they were equal) or overwritten";
        registry.register("taken_over", help, all.taken_over.clone());
        registry.register(
            "recreated",
            "Immutable copies deleted and created again",
            all.recreated.clone(),
        );
        let help = "When this agent's certificate expires, in seconds since 1970";
        registry.register(
            "certificate_expiry_timestamp_seconds",
            help,
            all.certificate.clone(),
        );
        registry.register("copies", "Copies by state", all.copies.clone());
        registry.register(
            "payload_cache_bytes",
            "Payload kept in memory, compressed",
            all.cached.clone(),
        );
        all
    }

    /// Sets the expiry of the agent's certificate.
    pub fn certificate_expires(&self, at: SystemTime) {
        self.certificate.set(
            at.duration_since(UNIX_EPOCH)
                .unwrap_or_default()
                .as_secs_f64(),
        );
    }

    /// Updates the metrics with the counts of the core. `before`: the totals of the last call.
    pub fn update(&self, counts: Counts, totals: Totals, before: Totals, cached: usize) {
        let states = [
            ("applied", counts.applied),
            ("failed", counts.failed),
            ("waiting", counts.waiting),
            ("drifted", counts.drifted),
            ("removing", counts.removing),
            ("under_way", counts.copies_in_progress()),
        ];
        for (state, count) in states {
            self.copies
                .get_or_create(&StateLabel { state })
                .set(i64::from(count));
        }
        let written = totals.written - before.written;
        self.applies
            .get_or_create(&ResultLabel { result: "written" })
            .inc_by(written);
        self.applies
            .get_or_create(&ResultLabel { result: "failed" })
            .inc_by(totals.failed - before.failed);
        self.noops.inc_by(totals.equal - before.equal);
        self.removals.inc_by(totals.removed - before.removed);
        self.drift
            .inc_by(totals.drift_corrected - before.drift_corrected);
        self.contentions
            .set(i64::try_from(totals.contentions).unwrap_or(i64::MAX));
        let taken_over = |result| self.taken_over.get_or_create(&ResultLabel { result });
        taken_over("adopted").inc_by(totals.adopted - before.adopted);
        taken_over("overwritten").inc_by(totals.overwritten - before.overwritten);
        self.recreated.inc_by(totals.recreated - before.recreated);
        self.cached.set(i64::try_from(cached).unwrap_or(i64::MAX));
    }
}
