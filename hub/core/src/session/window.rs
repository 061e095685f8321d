//! The batches that were sent and not acked yet.
use std::collections::BTreeSet;

/// The most batches without an ack.
const WINDOW: usize = 8;

/// The batches of a session, by nonce.
#[derive(Default)]
pub(super) struct Window {
    unacked: BTreeSet<u64>,
    /// The nonce of the last batch; 0 before the first one.
    last: u64,
    /// The last batch before the end of the snapshot, once that was sent.
    snapshot_ended: Option<u64>,
    /// The agent acked a batch after the end of the snapshot, and so has received that end.
    pub snapshot_received: bool,
}

impl Window {
    /// Whether the next batch must wait for an ack.
    pub fn is_full(&self) -> bool {
        self.unacked.len() >= WINDOW
    }

    /// Whether every batch is acked.
    pub fn is_empty(&self) -> bool {
        self.unacked.is_empty()
    }

    /// The nonce of the next batch.
    pub fn next(&self) -> u64 {
        self.last + 1
    }

    /// Records that the next batch is sent, and returns its nonce.
    pub fn send(&mut self) -> u64 {
        self.last += 1;
        self.unacked.insert(self.last);
        self.last
    }

    /// The agent acked a batch.
    pub fn ack(&mut self, nonce: u64) {
        let was_sent = self.unacked.remove(&nonce);
        self.snapshot_received |= was_sent && self.snapshot_ended.is_some_and(|last| nonce > last);
    }

    /// Whether the agent has applied a batch that was sent.
    pub fn is_acked(&self, nonce: u64) -> bool {
        !self.unacked.contains(&nonce)
    }

    /// Whether the end of the snapshot was sent.
    pub fn has_ended_snapshot(&self) -> bool {
        self.snapshot_ended.is_some()
    }

    /// Records that the end of the snapshot is sent.
    pub fn end_snapshot(&mut self) {
        self.snapshot_ended.get_or_insert(self.last);
    }
}
