//! The hub's history token: opaque bytes that the agent stores and sends with each new stream. See
//! `sync.proto`.
use std::time::Duration;

use bytes::Bytes;
use runnel_proto::{HISTORY_TOKEN_LIMIT, HISTORY_TOKEN_METADATA};
use tokio::time::{Instant, sleep_until};
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::store::Store;
use runnel_agent_core::backoff::{Backoff, Jitter};
use runnel_agent_core::classify::CallError;

/// The first news, and those of another leader, are stored so soon after they came.
const STORE_DELAY: Duration = Duration::from_secs(1);
/// All other news are stored once in this time: each edit on the hub brings some.
///
/// That an older token is stored than was heard matters only where this process is killed, as it shows the newest one
/// itself, and stores it when it ends in order. What the hub said in the last minute may go unnoticed then, if the hub is
/// restored to a state within that minute, by this agent alone. An older token never makes a sound hub look restored.
const STORE_PERIOD: Duration = Duration::from_secs(60);
/// After a failed store.
const STORE_AGAIN: Duration = Duration::from_secs(15);
/// How long to stay with a hub that knows less than was heard before looking for the one that knows more.
const STAY: Backoff = Backoff {
    base: Duration::from_secs(30),
    limit: Duration::from_secs(600),
};

type Saving = futures::future::BoxFuture<'static, Result<(), CallError>>;

/// What the agent remembers of its hub.
pub struct HistoryTokenStore {
    store: Store,
    newest: Option<Bytes>,
    store_at: Option<Instant>,
    /// When it was stored last, and whose words were heard last.
    stored_at: Option<Instant>,
    leader: Option<(String, u64)>,
    saving: Option<Saving>,
    /// How many streams in a row were those of a hub that knows less.
    behind: u32,
}

/// A call that shows what the agent remembers.
pub(super) fn showing<T>(newest: Option<&Bytes>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(newest) = newest {
        request
            .metadata_mut()
            .insert_bin(HISTORY_TOKEN_METADATA, MetadataValue::from_bytes(newest));
    }
    request
}

impl HistoryTokenStore {
    /// What was stored.
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

    /// The newest that was heard.
    pub(super) fn newest(&self) -> Option<Bytes> {
        self.newest.clone()
    }

    /// Takes in the words of a leader of the hub, by its epoch and term.
    pub(super) fn receive(&mut self, words: &Bytes, leader: (String, u64)) {
        let is_news = !words.is_empty()
            && words.len() <= HISTORY_TOKEN_LIMIT
            && self.newest.as_ref() != Some(words);
        if !is_news {
            return;
        }
        // Not a part of the frame, which would be kept with it.
        self.newest = Some(Bytes::copy_from_slice(words));
        let same = self.leader.replace(leader.clone()) == Some(leader);
        let at = store_time(Instant::now(), self.stored_at.filter(|_| same));
        self.store_at = Some(self.store_at.map_or(at, |known| known.min(at)));
    }

    /// The hub has said all that it wants here, and with it as whom it knows this agent from now on: what was heard is stored
    /// at once. An agent that is killed before would come back as whoever it was before it joined.
    pub(super) fn store_soon(&mut self) {
        self.store_at = self.store_at.map(|_| Instant::now());
    }

    /// Stores what is to be stored, for ever. It may be given up at any time and goes on when it is called again.
    pub(super) async fn keep(&mut self) -> std::convert::Infallible {
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
                        .get_or_insert_with(|| Instant::now() + STORE_AGAIN);
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

    /// Stores what is not stored yet, once.
    pub(super) async fn store_now(&mut self) {
        if let Some(saving) = self.saving.take() {
            let _ = saving.await;
        }
        if let (Some(_), Some(newest)) = (self.store_at.take(), &self.newest) {
            let _ = self.store.save_history_token(newest).await;
        }
    }

    /// A hub says whether it knows less than was heard before. Returns for how long to stay with it then.
    pub(super) fn stay(&mut self, behind: bool, jitter: &mut Jitter) -> Option<Duration> {
        self.behind = if behind {
            self.behind.saturating_add(1)
        } else {
            0
        };
        behind.then(|| STAY.jittered(self.behind, jitter.draw()))
    }
}

/// When news are stored that come now, where the news of the same leader were stored last at this time.
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
