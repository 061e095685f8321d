//! The payloads of the copies: those in the cache, and those that only the hub has.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{Payload, Revision, RuleUid, SourceRef};

use crate::cache::{CACHE_BYTES, PayloadCache};
use crate::copy::{IntentKey, NewPayload};
use crate::job::ContentSource;
use crate::records::Records;

/// Delay after which missing content is requested again: the hub may have just started.
const CONTENT_RETRY: Duration = Duration::from_secs(15);

/// The payloads of the copies, and the requests for missing ones.
pub(super) struct Payloads {
    cache: PayloadCache,
    /// Intents whose content only the hub has.
    missing_content: BTreeSet<IntentKey>,
    /// Those of them whose content is requested next.
    content_requests: BTreeSet<IntentKey>,
    /// The time of the next request for all missing content.
    retry_at: Option<Instant>,
}

impl Default for Payloads {
    fn default() -> Self {
        Self::new(CACHE_BYTES)
    }
}

impl Payloads {
    /// Payloads with a cache of at most `limit` bytes.
    pub(super) fn new(limit: usize) -> Self {
        Self {
            cache: PayloadCache::new(limit),
            missing_content: BTreeSet::new(),
            content_requests: BTreeSet::new(),
            retry_at: None,
        }
    }

    /// Stores a payload of the hub, and ends the request for it.
    pub(super) fn insert(&mut self, new: NewPayload) {
        self.missing_content.remove(&new.key);
        self.cache.insert(new.key, new.revision, new.payload);
    }

    /// Stores the payload of a copy that the agent has read.
    pub(super) fn learn(&mut self, learned: NewPayload) {
        self.cache
            .insert(learned.key, learned.revision, learned.payload);
    }

    /// Stores the payload of a copy in a list, if there is room.
    pub(super) fn offer(&mut self, seen: NewPayload) {
        self.cache.offer(seen.key, seen.revision, seen.payload);
    }

    /// Drops the payload of a deleted intent, and the request for it.
    pub(super) fn remove(&mut self, key: &IntentKey) {
        self.missing_content.remove(key);
        self.cache.remove(key);
    }

    /// Returns the size of the cached payloads, in bytes.
    pub(super) fn bytes(&self) -> usize {
        self.cache.bytes()
    }

    /// Returns the size of the cached payload of an intent, in bytes.
    pub(super) fn size(&self, key: &IntentKey) -> usize {
        self.cache.size(key)
    }

    /// Whether the content of a copy is in the cache or in another copy.
    pub(super) fn has(
        &self,
        copy: &SourceRef,
        intent: &IntentKey,
        revision: &Revision,
        records: &Records,
    ) -> bool {
        self.cache.has(intent, revision) || records.intact_twin(copy, intent, revision).is_some()
    }

    /// Returns the source of a copy's content, unless only the hub has it.
    pub(super) fn source(
        &mut self,
        copy: &SourceRef,
        intent: &IntentKey,
        revision: &Revision,
        records: &Records,
    ) -> Option<ContentSource> {
        let payload: Option<Payload> = self.cache.get(intent, revision);
        let twin = || {
            let twin = records.intact_twin(copy, intent, revision)?;
            Some(ContentSource::Twin(twin.clone()))
        };
        payload.map(ContentSource::Payload).or_else(twin)
    }

    /// Requests the content of an intent.
    pub(super) fn request(&mut self, intent: &IntentKey) {
        if self.missing_content.insert(intent.clone()) {
            self.content_requests.insert(intent.clone());
        }
    }

    /// Requests all missing content again, in a new stream.
    pub(super) fn request_again(&mut self) {
        self.retry_at = None;
    }

    /// Returns the sources whose content must be requested now, by rule.
    pub(super) fn take_requests(&mut self, now: Instant) -> BTreeMap<RuleUid, Vec<SourceRef>> {
        if self.retry_at.is_none_or(|at| at <= now) {
            self.content_requests.clone_from(&self.missing_content);
            self.retry_at = Some(now + CONTENT_RETRY);
        }
        let mut wants: BTreeMap<_, Vec<_>> = BTreeMap::new();
        for key in std::mem::take(&mut self.content_requests) {
            if self.missing_content.contains(&key) {
                wants.entry(key.rule).or_default().push(key.source);
            }
        }
        wants
    }

    /// Returns when missing content must be requested again.
    pub(super) fn next_request(&self) -> Option<Instant> {
        self.retry_at.filter(|_| !self.missing_content.is_empty())
    }
}
