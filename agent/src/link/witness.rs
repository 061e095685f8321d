//! What the agent remembers of its hub: opaque words of the hub's, which are shown to it with each stream, and stored so
//! that they outlive this process. `sync.proto` says what for.
use std::time::Duration;

use bytes::Bytes;
use runnel_proto::{WITNESS_LIMIT, WITNESS_METADATA};
use tokio::time::{Instant, sleep_until};
use tonic::Request;
use tonic::metadata::MetadataValue;

use crate::backoff::{Backoff, Jitter};
use crate::classify::CallError;
use crate::store::Store;

/// Words that come in quick succession are stored once.
const STORE_DELAY: Duration = Duration::from_secs(1);
/// After a failed store.
const STORE_AGAIN: Duration = Duration::from_secs(15);
/// How long to stay with a hub that knows less than was heard before looking for the one that knows more.
const STAY: Backoff = Backoff { base: Duration::from_secs(30), limit: Duration::from_secs(600) };

type Saving = futures::future::BoxFuture<'static, Result<(), CallError>>;

/// What the agent remembers of its hub.
pub struct Witness {
    store: Store,
    newest: Option<Bytes>,
    store_at: Option<Instant>,
    saving: Option<Saving>,
    /// How many streams in a row were those of a hub that knows less.
    behind: u32,
}

/// A call that shows what the agent remembers.
pub(super) fn showing<T>(newest: Option<&Bytes>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(newest) = newest {
        request.metadata_mut().insert_bin(WITNESS_METADATA, MetadataValue::from_bytes(newest));
    }
    request
}

impl Witness {
    /// What was stored.
    pub fn new(store: Store, stored: Option<Vec<u8>>) -> Self {
        Self { store, newest: stored.map(Bytes::from), store_at: None, saving: None, behind: 0 }
    }

    /// The newest that was heard.
    pub(super) fn newest(&self) -> Option<Bytes> {
        self.newest.clone()
    }

    /// The hub has said this with a frame that was taken in.
    pub(super) fn hear(&mut self, words: &Bytes) {
        let is_news = !words.is_empty() && words.len() <= WITNESS_LIMIT && self.newest.as_ref() != Some(words);
        if is_news {
            // Not a part of the frame, which would be kept with it.
            self.newest = Some(Bytes::copy_from_slice(words));
            self.store_at.get_or_insert_with(|| Instant::now() + STORE_DELAY);
        }
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
                    self.store_at.get_or_insert_with(|| Instant::now() + STORE_AGAIN);
                }
            }
            match (self.store_at, self.newest.clone()) {
                (Some(at), Some(newest)) => {
                    sleep_until(at).await;
                    let store = self.store.clone();
                    self.store_at = None;
                    self.saving = Some(Box::pin(async move { store.save_witness(&newest).await }));
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
            let _ = self.store.save_witness(newest).await;
        }
    }

    /// A hub says whether it knows less than was heard before. Returns for how long to stay with it then.
    pub(super) fn stay(&mut self, behind: bool, jitter: &mut Jitter) -> Option<Duration> {
        self.behind = if behind { self.behind.saturating_add(1) } else { 0 };
        behind.then(|| STAY.jittered(self.behind, jitter.draw()))
    }
}
