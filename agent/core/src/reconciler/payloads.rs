//! The payloads of the copies: those in the cache, which is bounded in bytes, and those that only the hub has. Bounds the
//! payloads that wait to be applied.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use runnel_proto::model::{Payload, Revision, RuleUid, SourceRef};

use crate::copy::{IntentKey, NewPayload};
use crate::decide::ContentSource;
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

/// The default bound of a [`PayloadCache`], in bytes.
pub const CACHE_BYTES: usize = 64 * 1024 * 1024;

struct CachedPayload {
    revision: Revision,
    payload: Payload,
    used: u64,
}

/// Compressed payloads by intent. Without `Debug`: it contains content.
pub struct PayloadCache {
    limit: usize,
    bytes: usize,
    clock: u64,
    entries: BTreeMap<IntentKey, CachedPayload>,
    by_use: BTreeMap<u64, IntentKey>,
}

impl PayloadCache {
    /// Returns a cache of at most `limit` bytes of payload. The newest payload stays even if it is
    /// larger.
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            bytes: 0,
            clock: 0,
            entries: BTreeMap::new(),
            by_use: BTreeMap::new(),
        }
    }

    /// Inserts a payload and replaces an earlier one of the same intent.
    pub fn insert(&mut self, key: IntentKey, revision: Revision, payload: Payload) {
        self.remove(&key);
        self.clock += 1;
        self.bytes += payload.bytes().len();
        self.by_use.insert(self.clock, key.clone());
        self.entries.insert(
            key,
            CachedPayload {
                revision,
                payload: payload.detached(),
                used: self.clock,
            },
        );
        while self.bytes > self.limit && self.entries.len() > 1 {
            let Some((_, oldest)) = self.by_use.first_key_value() else {
                break;
            };
            let oldest = oldest.clone();
            self.remove(&oldest);
        }
    }

    /// Inserts an unrequested payload if the intent has none and the limit allows it.
    pub fn offer(&mut self, key: IntentKey, revision: Revision, payload: Payload) {
        if !self.entries.contains_key(&key) && self.bytes + payload.bytes().len() <= self.limit {
            self.insert(key, revision, payload);
        }
    }

    /// Returns the payload of an intent if the cache has this revision.
    pub fn get(&mut self, key: &IntentKey, revision: &Revision) -> Option<Payload> {
        let entry = self
            .entries
            .get_mut(key)
            .filter(|entry| entry.revision == *revision)?;
        self.clock += 1;
        if let Some(key) = self.by_use.remove(&entry.used) {
            self.by_use.insert(self.clock, key);
        }
        entry.used = self.clock;
        Some(entry.payload.clone())
    }

    /// Whether the cache has this revision of an intent.
    pub fn has(&self, key: &IntentKey, revision: &Revision) -> bool {
        self.entries
            .get(key)
            .is_some_and(|entry| entry.revision == *revision)
    }

    /// Returns the size of the cached payload of an intent in bytes, in any revision.
    pub fn size(&self, key: &IntentKey) -> usize {
        self.entries
            .get(key)
            .map_or(0, |entry| entry.payload.bytes().len())
    }

    /// Drops the payload of an intent.
    pub fn remove(&mut self, key: &IntentKey) {
        if let Some(entry) = self.entries.remove(key) {
            self.bytes -= entry.payload.bytes().len();
            self.by_use.remove(&entry.used);
        }
    }

    /// Returns the size of all payloads, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

/// The default limit of unapplied payload, in bytes.
pub const ROOM_BYTES: usize = 32 * 1024 * 1024;

/// The copies that wait, and the size of their intents' payloads. Each payload counts once.
#[derive(Default)]
pub struct InflightBudget {
    copies: BTreeMap<SourceRef, IntentKey>,
    intents: BTreeMap<IntentKey, (usize, usize)>,
    bytes: usize,
}

impl InflightBudget {
    /// Adds a copy that waits for a payload of `bytes` bytes to be applied.
    pub fn enter(&mut self, copy: &SourceRef, intent: &IntentKey, bytes: usize) {
        self.leave(copy);
        let (size, copies) = self.intents.entry(intent.clone()).or_insert((bytes, 0));
        if *copies == 0 {
            self.bytes += *size;
        }
        *copies += 1;
        self.copies.insert(copy.clone(), intent.clone());
    }

    /// Removes a copy that no longer waits.
    pub fn leave(&mut self, copy: &SourceRef) {
        let Some(intent) = self.copies.remove(copy) else {
            return;
        };
        if let Some((size, copies)) = self.intents.get_mut(&intent) {
            *copies -= 1;
            if *copies == 0 {
                self.bytes -= *size;
                self.intents.remove(&intent);
            }
        }
    }

    /// Returns the size of the waiting payloads, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn key(name: u8) -> IntentKey {
        IntentKey {
            rule: "rule".into(),
            source: SourceRef::new("configmaps", "team", &name.to_string()),
        }
    }

    fn copy(name: u8) -> SourceRef {
        SourceRef::new("configmaps", "a", &name.to_string())
    }

    fn payload(size: usize) -> Payload {
        Payload::encode(vec![b'x'; size])
    }

    #[test]
    fn least_recently_used_content_is_evicted_first() {
        let mut cache = PayloadCache::new(20);
        for name in 0..2 {
            cache.insert(key(name), Revision([name; 16]), payload(10));
        }
        assert!(cache.get(&key(0), &Revision([0; 16])).is_some());
        cache.insert(key(2), Revision([2; 16]), payload(10));
        assert!(cache.has(&key(0), &Revision([0; 16])));
        assert!(!cache.has(&key(1), &Revision([1; 16])));
        assert!(!cache.has(&key(0), &Revision([9; 16])));
    }

    #[test]
    fn offered_content_evicts_nothing() {
        let mut cache = PayloadCache::new(20);
        cache.insert(key(0), Revision([0; 16]), payload(15));
        cache.offer(key(0), Revision([1; 16]), payload(1));
        cache.offer(key(1), Revision([1; 16]), payload(10));
        cache.offer(key(2), Revision([2; 16]), payload(5));
        assert!(cache.has(&key(0), &Revision([0; 16])) && cache.has(&key(2), &Revision([2; 16])));
        assert!(!cache.has(&key(1), &Revision([1; 16])));
    }

    proptest! {
        #[test]
        fn bytes_are_counted_and_bounded(steps in proptest::collection::vec((0u8..6, 0usize..40, any::<bool>()), 0..60)) {
            let mut cache = PayloadCache::new(100);
            for (name, size, remove) in steps {
                if remove {
                    cache.remove(&key(name));
                } else {
                    cache.insert(key(name), Revision([name; 16]), payload(size));
                    prop_assert!(cache.has(&key(name), &Revision([name; 16])));
                }
                let sum: usize = cache.entries.values().map(|entry| entry.payload.bytes().len()).sum();
                prop_assert_eq!(sum, cache.bytes());
                prop_assert!(cache.bytes() <= 100);
                prop_assert_eq!(cache.entries.len(), cache.by_use.len());
            }
        }

        #[test]
        fn an_intent_counts_once_while_any_copy_of_it_waits(steps in proptest::collection::vec((0u8..6, 0u8..3, any::<bool>()), 0..50)) {
            let mut room = InflightBudget::default();
            let mut waiting = BTreeMap::new();
            for (name, intent, enter) in steps {
                let key = IntentKey { rule: "r".into(), source: copy(intent) };
                if enter {
                    room.enter(&copy(name), &key, 10);
                    waiting.insert(name, intent);
                } else {
                    room.leave(&copy(name));
                    waiting.remove(&name);
                }
                let distinct: std::collections::BTreeSet<_> = waiting.values().collect();
                prop_assert_eq!(room.bytes(), distinct.len() * 10);
            }
        }
    }
}
