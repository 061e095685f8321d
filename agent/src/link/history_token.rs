//! The hub's history token: opaque bytes that the agent stores and sends with each new stream. See
//! `sync.proto`.
use std::time::Duration;

use bytes::Bytes;
use runnel_proto::{HISTORY_TOKEN_LIMIT, HISTORY_TOKEN_METADATA};
use tokio::time::{Instant, sleep_until};
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::store::{Store, StoreFuture};
use runnel_agent_core::backoff::{Backoff, Jitter};

/// Delay before the first token of a leader is stored.
const STORE_DELAY: Duration = Duration::from_secs(1);
/// Interval between stores of further tokens of the same leader: each edit on the hub brings a new
/// token.
///
/// An older stored token matters only if this process is killed. The process sends the newest token
/// itself, and stores it when it ends in order. After a kill, this agent may not detect that the
/// hub was restored to a state of the last minute. An older token never makes a sound hub look
/// restored.
const STORE_PERIOD: Duration = Duration::from_secs(60);
/// Delay after a failed store.
const STORE_RETRY: Duration = Duration::from_secs(15);
/// Time to stay with a hub that has older state, before the agent looks for the hub with newer
/// state.
const STAY: Backoff = Backoff {
    base: Duration::from_secs(30),
    limit: Duration::from_secs(600),
};

/// The history token of the agent's hub.
pub struct HistoryTokenStore {
    store: Store,
    newest: Option<Bytes>,
    store_at: Option<Instant>,
    /// The time of the last store, and the leader of the last token.
    stored_at: Option<Instant>,
    leader: Option<(String, u64)>,
    saving: Option<StoreFuture>,
    /// The number of streams in a row with a hub that has older state.
    behind: u32,
}

/// Returns a request with the newest token in its metadata.
pub(super) fn with_history_token<T>(newest: Option<&Bytes>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(newest) = newest {
        request
            .metadata_mut()
            .insert_bin(HISTORY_TOKEN_METADATA, MetadataValue::from_bytes(newest));
    }
    request
}

impl HistoryTokenStore {
    /// Returns a store with the stored token.
    pub fn new(store: Store, stored: Option<Vec<u8>>) -> Self {
        Self {
            store,
            newest: stored.map(Bytes::from),
            store_at: None,
            stored_at: None,
            leader: None,
            saving: None,
            behind: 0,
        }
    }

    /// Returns the newest token that was received.
    pub(super) fn newest(&self) -> Option<Bytes> {
        self.newest.clone()
    }

    /// Records a token of a leader of the hub, by the leader's epoch and term.
    pub(super) fn receive(&mut self, words: &Bytes, leader: (String, u64)) {
        let is_news = !words.is_empty()
            && words.len() <= HISTORY_TOKEN_LIMIT
            && self.newest.as_ref() != Some(words);
        if !is_news {
            return;
        }
        // A slice would keep the whole frame in memory.
        self.newest = Some(Bytes::copy_from_slice(words));
        let same = self.leader.replace(leader.clone()) == Some(leader);
        let at = store_time(Instant::now(), self.stored_at.filter(|_| same));
        self.store_at = Some(self.store_at.map_or(at, |known| known.min(at)));
    }

    /// Makes the store of the token due at once, because the snapshot is complete.
    ///
    /// The token also binds the agent to the identity that the hub now knows. An agent that is
    /// killed before the store would reconnect with its identity from before the join.
    pub(super) fn mark_store_due(&mut self) {
        self.store_at = self.store_at.map(|_| Instant::now());
    }

    /// Stores due tokens, and never returns. The future may be dropped at any time, and a later
    /// call continues.
    pub(super) async fn store_when_due(&mut self) -> std::convert::Infallible {
        loop {
            if let Some(saving) = &mut self.saving {
                let saved = saving.await;
                self.saving = None;
                if let Err(error) = saved {
                    tracing::warn!(
                        status = error.code(),
                        "what is remembered of the hub cannot be stored; trying again"
                    );
                    self.store_at
                        .get_or_insert_with(|| Instant::now() + STORE_RETRY);
                }
            }
            match (self.store_at, self.newest.clone()) {
                (Some(at), Some(newest)) => {
                    sleep_until(at).await;
                    let store = self.store.clone();
                    (self.store_at, self.stored_at) = (None, Some(Instant::now()));
                    self.saving = Some(Box::pin(
                        async move { store.save_history_token(&newest).await },
                    ));
                }
                _ => std::future::pending().await,
            }
        }
    }

    /// Stores a token that is not stored yet, with one attempt.
    pub(super) async fn store_now(&mut self) {
        if let Some(saving) = self.saving.take() {
            let _ = saving.await;
        }
        if let (Some(_), Some(newest)) = (self.store_at.take(), &self.newest) {
            let _ = self.store.save_history_token(newest).await;
        }
    }

    /// Records whether the hub has older state, and returns how long to stay with it then.
    pub(super) fn stay(&mut self, behind: bool, jitter: &mut Jitter) -> Option<Duration> {
        self.behind = if behind {
            self.behind.saturating_add(1)
        } else {
            0
        };
        behind.then(|| STAY.jittered(self.behind, jitter.draw()))
    }
}

/// Returns when a token that arrives now is stored. `stored_at`: the last store of a token of the
/// same leader.
fn store_time(now: Instant, stored_at: Option<Instant>) -> Instant {
    let soon = now + STORE_DELAY;
    stored_at.map_or(soon, |at| soon.max(at + STORE_PERIOD))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn news_of_one_leader_are_stored_once_a_minute() {
        let (start, second) = (Instant::now(), Duration::from_secs(1));
        assert_eq!(store_time(start, None), start + second);
        let mut stores = vec![];
        let (mut due, mut stored_at): (Option<Instant>, Option<Instant>) = (None, None);
        for at in (0..600).map(|n| start + n * second) {
            if let Some(time) = due.filter(|time| *time <= at) {
                stores.push(time);
                (due, stored_at) = (None, Some(time));
            }
            let next = store_time(at, stored_at);
            due = Some(due.map_or(next, |known| known.min(next)));
        }
        assert!(
            (10..=11).contains(&stores.len()),
            "{} writes in ten minutes of edits",
            stores.len()
        );
        assert_eq!(
            store_time(start, Some(start - 100 * second)),
            start + second,
            "after a rest"
        );
    }
}
