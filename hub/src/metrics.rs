//! The hub's metrics: few labels, no object names.
use std::sync::Arc;
use std::sync::atomic::AtomicU64;

use prometheus_client::collector::Collector;
use prometheus_client::encoding::{DescriptorEncoder, EncodeLabelSet, EncodeMetric};
use prometheus_client::metrics::MetricType;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::{ConstGauge, Gauge};
use prometheus_client::registry::Registry;
use prost::Message;
use runnel_proto::model::HubFrame;
use runnel_proto::wire;

use crate::shared::Shared;

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct FrameLabels {
    frame: &'static str,
}

/// The hub's counters.
#[derive(Default)]
pub struct HubMetrics {
    sessions: Gauge,
    frames: Family<FrameLabels, Counter>,
    bytes: Counter<u64, AtomicU64>,
    payload: Counter<u64, AtomicU64>,
    upserts: Counter,
    tombstones: Counter,
}

impl HubMetrics {
    /// Registers the counters.
    pub fn register(registry: &mut Registry) -> Arc<Self> {
        let metrics = Self::default();
        registry.register("runnel_hub_sessions", "Agents connected", metrics.sessions.clone());
        registry.register("runnel_hub_frames_sent", "Frames sent to agents", metrics.frames.clone());
        registry.register("runnel_hub_frame_bytes_sent", "Bytes of frames sent, before TLS", metrics.bytes.clone());
        registry.register(
            "runnel_hub_payload_bytes_sent",
            "Bytes of payloads sent, as compressed",
            metrics.payload.clone(),
        );
        registry.register("runnel_hub_intents_sent", "Intents sent with their payload", metrics.upserts.clone());
        registry.register("runnel_hub_tombstones_sent", "Orders to remove sent", metrics.tombstones.clone());
        Arc::new(metrics)
    }

    /// An agent connected (1) or went away (-1).
    pub fn connected(&self, change: i64) {
        self.sessions.inc_by(change);
    }

    /// A frame goes out.
    pub fn frame_sent(&self, frame: &HubFrame, wire: &wire::HubFrame) {
        let name = match frame {
            HubFrame::SnapshotBegin(_) => "snapshot_begin",
            HubFrame::WantDetail(_) => "want_detail",
            HubFrame::Batch(_) => "batch",
            HubFrame::SnapshotEnd(_) => "snapshot_end",
            HubFrame::Drain(_) => "drain",
        };
        self.frames.get_or_create(&FrameLabels { frame: name }).inc();
        self.bytes.inc_by(wire.encoded_len() as u64);
        let HubFrame::Batch(batch) = frame else { return };
        for delta in &batch.rules {
            self.upserts.inc_by(delta.upserts.len() as u64);
            let payload: usize = delta.upserts.iter().map(|intent| intent.payload.bytes().len()).sum();
            self.payload.inc_by(payload as u64);
            self.tombstones.inc_by(delta.tombstones.len() as u64 + u64::from(delta.removal.is_some()));
        }
    }
}

/// Reads the hub's state at each scrape.
pub struct StateCollector(pub Arc<Shared>);

impl std::fmt::Debug for StateCollector {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str("StateCollector")
    }
}

impl Collector for StateCollector {
    fn encode(&self, mut encoder: DescriptorEncoder<'_>) -> Result<(), std::fmt::Error> {
        let index = self.0.index.read();
        let (rules, clusters) = (index.rules().count(), index.clusters().count());
        let intents: usize = index.rules().map(|(_, entry)| entry.plan.intents.len()).sum();
        drop(index);
        let counts = self.0.ledger.lock().copies();
        let gauges = [
            ("runnel_hub_rules", "Rules", rules as f64),
            ("runnel_hub_members", "Member clusters", clusters as f64),
            ("runnel_hub_intents", "Intents, each for all clusters of its rule", intents as f64),
            ("runnel_hub_copies", "Copies that agents reported", f64::from(counts.copies)),
            ("runnel_hub_copies_applied", "Copies that equal their source", f64::from(counts.applied)),
            ("runnel_hub_copies_failed", "Copies whose last attempt failed", f64::from(counts.failed)),
            ("runnel_hub_copies_waiting", "Copies that wait for a namespace", f64::from(counts.waiting)),
        ];
        for (name, help, value) in gauges {
            let gauge = ConstGauge::new(value);
            gauge.encode(encoder.encode_descriptor(name, help, None, MetricType::Gauge)?)?;
        }
        Ok(())
    }
}
