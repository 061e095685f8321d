//! Everything that a hub sent to one simulated agent.

use bytes::Bytes;
use runnel_proto::model::{Batch, DeletionPolicy, HubFrame, RuleUid, SourceRef};

/// Every frame and byte of one or more streams, and how each ended.
#[derive(Clone, Default)]
pub struct Record {
    /// The messages as they came, decrypted.
    pub bytes: Vec<Bytes>,
    /// The decoded frames.
    pub frames: Vec<HubFrame>,
    /// The end of each stream: the code and the message.
    pub ends: Vec<(tonic::Code, String)>,
    /// Streams that were opened.
    pub sessions: usize,
    /// Epoch and term of the hub's leaders, each time they changed.
    pub leads: Vec<(String, u64)>,
    /// Violations of the protocol by the hub.
    pub complaints: Vec<String>,
}

impl Record {
    /// Adds what came later.
    pub fn absorb(&mut self, later: Record) {
        self.bytes.extend(later.bytes);
        self.frames.extend(later.frames);
        self.ends.extend(later.ends);
        self.sessions += later.sessions;
        self.complaints.extend(later.complaints);
        for lead in later.leads {
            self.led_by(lead);
        }
    }

    /// A frame of this epoch and term came.
    pub fn led_by(&mut self, (epoch, term): (String, u64)) {
        if let Some((_, higher)) = self
            .leads
            .iter()
            .find(|(known, higher)| *known == epoch && *higher > term)
        {
            self.complaints.push(format!(
                "a frame of term {term}, after one of term {higher}"
            ));
        }
        if epoch.is_empty() || term == 0 {
            self.complaints
                .push("a frame without epoch or term".to_owned());
        }
        if self
            .leads
            .last()
            .is_none_or(|last| *last != (epoch.clone(), term))
        {
            self.leads.push((epoch, term));
        }
    }

    /// The batches.
    pub fn batches(&self) -> impl Iterator<Item = &Batch> {
        self.frames.iter().filter_map(|frame| match frame {
            HubFrame::Batch(batch) => Some(batch),
            _ => None,
        })
    }

    /// Returns the intents with payload, in order.
    #[must_use]
    pub fn upserts(&self) -> Vec<(RuleUid, SourceRef)> {
        let deltas = self.batches().flat_map(|batch| &batch.rules);
        deltas
            .flat_map(|delta| {
                delta
                    .upserts
                    .iter()
                    .map(|up| (delta.uid.clone(), up.source.clone()))
            })
            .collect()
    }

    /// The orders to remove sources, in order.
    #[must_use]
    pub fn tombstones(&self) -> Vec<(RuleUid, SourceRef, DeletionPolicy)> {
        let deltas = self.batches().flat_map(|batch| &batch.rules);
        let each = |delta: &runnel_proto::model::RuleDelta| {
            let uid = delta.uid.clone();
            let of = move |t: &runnel_proto::model::Tombstone| {
                (uid.clone(), t.source.clone(), t.deletion_policy)
            };
            delta.tombstones.iter().map(of).collect::<Vec<_>>()
        };
        deltas.flat_map(each).collect()
    }

    /// The orders to remove whole rules, in order.
    #[must_use]
    pub fn removals(&self) -> Vec<(RuleUid, DeletionPolicy)> {
        let deltas = self.batches().flat_map(|batch| &batch.rules);
        deltas
            .filter_map(|delta| Some((delta.uid.clone(), delta.removal?)))
            .collect()
    }

    /// Whether these bytes came, in any frame, in the clear or inside a payload, or are in a
    /// stream's end.
    #[must_use]
    pub fn contains(&self, needle: &str) -> bool {
        let raw = self.bytes.iter().any(|bytes| holds(bytes, needle));
        let intents = self
            .batches()
            .flat_map(|batch| &batch.rules)
            .flat_map(|delta| &delta.upserts);
        let mut payloads = intents.filter_map(|intent| intent.payload.decode().ok());
        raw || payloads.any(|content| holds(&content.to_bytes(), needle))
            || self
                .ends
                .iter()
                .any(|(_, message)| message.contains(needle))
    }

    /// The frames in a few words each, for messages.
    #[must_use]
    pub fn sketch(&self) -> String {
        let frames: Vec<String> = self.frames.iter().map(sketch).collect();
        format!("{} ends: {:?}", frames.join("; "), self.ends)
    }
}

fn holds(bytes: &[u8], needle: &str) -> bool {
    bytes
        .windows(needle.len().max(1))
        .any(|window| window == needle.as_bytes())
}

/// A frame in a few words, without any content.
#[must_use]
pub fn sketch(frame: &HubFrame) -> String {
    match frame {
        HubFrame::SnapshotBegin(_) => "SnapshotBegin".to_owned(),
        HubFrame::DetailRequest(uids) => format!("DetailRequest of {}", uids.len()),
        HubFrame::Batch(batch) => {
            let rules: Vec<String> = batch.rules.iter().map(delta).collect();
            format!("Batch {} [{}]", batch.nonce, rules.join(", "))
        }
        HubFrame::SnapshotEnd(end) => format!("SnapshotEnd of {}", end.intents),
        HubFrame::Drain(within) => format!("Drain {within}"),
        HubFrame::HandedOver => "HandedOver".to_owned(),
        HubFrame::Keepalive => "Keepalive".to_owned(),
        HubFrame::CaBundle(all) => format!("CaBundle, {}", all.len()),
        HubFrame::Inspect(question) => format!("Inspect {}", question.copy),
        HubFrame::ListCopies(question) => format!("ListCopies of {}", question.rule),
        HubFrame::PreviewRequest(question) => format!("Suppose {}", question.uid),
        HubFrame::Revoked(reason) => format!("Revoked {reason}"),
    }
}

fn delta(delta: &runnel_proto::model::RuleDelta) -> String {
    let mut words = vec![delta.uid.to_string()];
    if delta.terms.is_some() {
        words.push("terms".to_owned());
    }
    if !delta.upserts.is_empty() {
        words.push(format!("{} upserts", delta.upserts.len()));
    }
    if !delta.tombstones.is_empty() {
        words.push(format!("{} tombstones", delta.tombstones.len()));
    }
    if let Some(policy) = delta.removal {
        words.push(format!("removal {policy:?}"));
    }
    if delta.orphaned {
        words.push("orphaned".to_owned());
    }
    words.join(" ")
}
