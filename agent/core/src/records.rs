//! The observed objects: the live copies, and the copies of each intent.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;

use runnel_proto::model::{Revision, RuleUid, SourceRef};

use crate::copy::{IntentKey, in_namespace};
use crate::live::{Live, Ownership};
use crate::small_set::SmallSet;

/// Limit of the past versions that are recorded per object, to recognize late echoes of a watch.
const PAST_VERSIONS: usize = 6;

/// Limit of the recorded copies with an unproved intent.
const UNPROVED_LIMIT: usize = 2_000;

/// The observed state of the object with the name of a copy.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Observed {
    /// The watch does not show the object. It may exist without our label.
    Unknown,
    /// A read has shown that the object does not exist.
    Absent,
    /// The object exists.
    Live(Live),
}

#[derive(Default)]
struct Record {
    observed: Option<Observed>,
    /// Whether a watch delivered `observed`. One watch delivers in order, so that its next event
    /// makes this version past. A read may be newer than a late event.
    watched: bool,
    /// Versions that are older than `observed`.
    past: VecDeque<Arc<str>>,
    /// Whether a read or write of the agent has shown the object since the list of its area began.
    is_listed: bool,
    /// Whether one of these versions is ours. Late events may show it again.
    was_ours: bool,
}

impl Record {
    fn pass(&mut self, versions: impl IntoIterator<Item = Arc<str>>) {
        self.past.extend(versions);
        while self.past.len() > PAST_VERSIONS {
            self.past.pop_front();
        }
    }
}

/// A number of copies and their size.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    /// The number of copies.
    pub copies: u64,
    /// The size of their values, in bytes.
    pub bytes: u64,
}

impl Usage {
    fn add(&mut self, bytes: u64) {
        *self = Self {
            copies: self.copies.saturating_add(1),
            bytes: self.bytes.saturating_add(bytes),
        };
    }

    fn take(&mut self, bytes: u64) {
        *self = Self {
            copies: self.copies.saturating_sub(1),
            bytes: self.bytes.saturating_sub(bytes),
        };
    }

    /// Returns the sum.
    pub fn plus(self, other: Self) -> Self {
        let copies = self.copies.saturating_add(other.copies);
        Self {
            copies,
            bytes: self.bytes.saturating_add(other.bytes),
        }
    }
}

/// The live objects by name, with an index by sealed intent.
#[derive(Default)]
pub struct Records {
    records: BTreeMap<SourceRef, Record>,
    by_intent: BTreeMap<IntentKey, SmallSet<SourceRef>>,
    /// Objects without our label that Runnel created or adopted: the uid, and whether the object
    /// was adopted. They may have lost their seals with the label.
    origins: BTreeMap<SourceRef, (Arc<str>, bool)>,
    /// The usage of each rule.
    usage: BTreeMap<RuleUid, Usage>,
    /// The usage of all copies.
    total: Usage,
    /// The number of copies whose intent is not proved.
    unproved: usize,
}

impl Records {
    /// Whether an object with our label is ignored, if no rule concerns its name: it has no proved
    /// intent of ours.
    ///
    /// Anybody can create any number of such objects, so the agent does not record them. It records
    /// objects with an unproved intent up to `UNPROVED_LIMIT`.
    pub fn is_foreign(&self, copy: &SourceRef, live: &Live) -> bool {
        if live.sealed.is_some() && live.ownership == Ownership::Ours {
            return false;
        }
        let known = || {
            self.live(copy)
                .is_some_and(|known| known.unproved.is_some())
        };
        live.unproved.is_none() || self.unproved >= UNPROVED_LIMIT && !known()
    }

    /// Returns the observed state of a copy.
    pub fn observed(&self, copy: &SourceRef) -> &Observed {
        self.records
            .get(copy)
            .and_then(|record| record.observed.as_ref())
            .unwrap_or(&Observed::Unknown)
    }

    /// Returns the live object, if one is known.
    pub fn live(&self, copy: &SourceRef) -> Option<&Live> {
        match self.observed(copy) {
            Observed::Live(live) => Some(live),
            Observed::Unknown | Observed::Absent => None,
        }
    }

    /// Whether the record of a copy that no rule sends can be forgotten: there is no object, or one that was never ours.
    pub fn is_needless(&self, copy: &SourceRef) -> bool {
        let was_ours = self.records.get(copy).is_some_and(|record| record.was_ours);
        self.live(copy)
            .is_none_or(|live| live.ownership == Ownership::Foreign && !was_ours)
    }

    /// Whether only a watch has shown the live object: it may be a late echo of a deleted object.
    pub fn is_only_watched(&self, copy: &SourceRef) -> bool {
        self.records.get(copy).is_some_and(|record| {
            record.watched && matches!(record.observed, Some(Observed::Live(_)))
        })
    }

    /// Records that a list of these copies begins, and forgets their past versions.
    ///
    /// After a restore of the cluster's etcd, an object can have an older version again.
    pub fn list_begins(&mut self, resource: &str, namespace: Option<&str>) {
        for copy in self.names(resource, namespace).cloned().collect::<Vec<_>>() {
            if let Some(record) = self.records.get_mut(&copy) {
                record.past.clear();
                record.is_listed = false;
            }
        }
    }

    /// Returns our recorded objects that a complete list does not contain. Objects that are not ours
    /// were read, not watched, so that the list does not cover them.
    pub fn missing(
        &self,
        resource: &str,
        namespace: Option<&str>,
        listed: &BTreeSet<SourceRef>,
    ) -> Vec<SourceRef> {
        let is_ours = |copy: &SourceRef| {
            self.live(copy)
                .is_some_and(|live| live.ownership == Ownership::Ours)
        };
        self.names(resource, namespace)
            .filter(|copy| is_ours(copy) && !listed.contains(*copy))
            .cloned()
            .collect()
    }

    /// Whether a read or write of the agent has shown a copy since the list of its area began.
    pub fn is_confirmed_since_list(&self, copy: &SourceRef) -> bool {
        self.records
            .get(copy)
            .is_some_and(|record| record.is_listed)
    }

    /// Records an object of a list, and returns whether the record changes.
    ///
    /// The list is right for any version of the object, except for a copy that was read or written
    /// since the list began.
    pub fn listed(&mut self, copy: &SourceRef, live: Live) -> bool {
        if self.is_confirmed_since_list(copy) {
            return self.watched(copy, live);
        }
        if self.live(copy) == Some(&live) {
            return false;
        }
        self.set(copy, Observed::Live(live), true);
        // The cluster may assign the version of the earlier record again.
        if let Some(record) = self.records.get_mut(copy) {
            record.past.clear();
        }
        true
    }

    /// Records an event of a watch. Returns `false` if its version is the recorded one or older.
    pub fn watched(&mut self, copy: &SourceRef, live: Live) -> bool {
        if let Some(record) = self.records.get(copy) {
            let known = |version: &Arc<str>| *version == live.version;
            let current = matches!(&record.observed, Some(Observed::Live(current)) if known(&current.version));
            if current || record.past.iter().any(known) {
                return false;
            }
        }
        self.set(copy, Observed::Live(live), true);
        true
    }

    /// Records that a watch no longer shows the object with this uid, and returns whether it was
    /// recorded. The object may still exist without our label.
    pub fn unwatched(&mut self, copy: &SourceRef, uid: &str) -> bool {
        let Some(live) = self.live(copy).filter(|live| *live.uid == *uid) else {
            return false;
        };
        let origin = (live.ownership == Ownership::Ours).then(|| (live.uid.clone(), live.adopted));
        self.forget(copy);
        if let Some(origin) = origin {
            self.origins.insert(copy.clone(), origin);
        }
        true
    }

    /// Records the result of a read or write of the agent, and the older versions that it has seen.
    pub fn record_result(
        &mut self,
        copy: &SourceRef,
        observed: Observed,
        passed: impl IntoIterator<Item = Arc<str>>,
    ) {
        self.set(copy, observed, false);
        if let Some(record) = self.records.get_mut(copy) {
            record.pass(passed);
            record.is_listed = true;
        }
    }

    /// Removes the record of a copy.
    pub fn forget(&mut self, copy: &SourceRef) {
        self.origins.remove(copy);
        if let Some(Record {
            observed: Some(Observed::Live(live)),
            ..
        }) = self.records.remove(copy)
        {
            self.unindex(copy, &live);
        }
    }

    fn set(&mut self, copy: &SourceRef, mut observed: Observed, watched: bool) {
        self.add_origin(copy, &mut observed);
        let record = self.records.entry(copy.clone()).or_default();
        let now = if let Observed::Live(live) = &observed {
            Some(live.version.clone())
        } else {
            None
        };
        record.was_ours |=
            matches!(&observed, Observed::Live(live) if live.ownership == Ownership::Ours);
        let before = record.observed.replace(observed);
        let was_watched = std::mem::replace(&mut record.watched, watched);
        if let Some(Observed::Live(live)) = before {
            // Two reads in a row may show the same version, which is then not past.
            if (was_watched || !watched) && now.as_ref() != Some(&live.version) {
                record.pass([live.version.clone()]);
            }
            self.unindex(copy, &live);
        }
        self.index(copy);
    }

    /// Completes an object without a seal: the same object keeps its recorded origin, created or
    /// adopted.
    fn add_origin(&mut self, copy: &SourceRef, observed: &mut Observed) {
        let known = self
            .live(copy)
            .filter(|known| known.ownership == Ownership::Ours);
        let known = known.map(|known| (known.uid.clone(), known.adopted));
        let origin = self.origins.remove(copy);
        if let Observed::Live(live) = observed
            && live.ownership == Ownership::Ours
            && live.sealed.is_none()
            && let Some((_, adopted)) = known.or(origin).filter(|(uid, _)| *uid == live.uid)
        {
            live.adopted = adopted;
        }
    }

    fn index(&mut self, copy: &SourceRef) {
        if let Some(live) = self.live(copy) {
            self.unproved = self
                .unproved
                .saturating_add(usize::from(live.unproved.is_some()));
        }
        let indexed = self
            .live(copy)
            .and_then(|live| Some((live.intent()?, live.facts.bytes)));
        if let Some((key, bytes)) = indexed {
            self.total.add(bytes);
            self.usage.entry(key.rule.clone()).or_default().add(bytes);
            self.by_intent.entry(key).or_default().insert(copy.clone());
        }
    }

    fn unindex(&mut self, copy: &SourceRef, live: &Live) {
        self.unproved = self
            .unproved
            .saturating_sub(usize::from(live.unproved.is_some()));
        let key = live.intent();
        if let Some(key) = &key {
            let bytes = live.facts.bytes;
            self.total.take(bytes);
            let left = self.usage.get_mut(&key.rule).map(|usage| {
                usage.take(bytes);
                usage.copies
            });
            if left == Some(0) {
                self.usage.remove(&key.rule);
            }
        }
        if let Some(key) = key
            && let Some(copies) = self.by_intent.get_mut(&key)
        {
            copies.remove(copy);
            if copies.is_empty() {
                self.by_intent.remove(&key);
            }
        }
    }

    /// Returns the usage of a rule.
    pub fn usage(&self, rule: &RuleUid) -> Usage {
        self.usage.get(rule).copied().unwrap_or_default()
    }

    /// Returns the usage of all copies.
    pub fn total(&self) -> Usage {
        self.total
    }

    /// Returns the live copies whose marks name an intent.
    pub fn marked_copies(&self, intent: &IntentKey) -> impl Iterator<Item = (&SourceRef, &Live)> {
        let copies = self.by_intent.get(intent).into_iter().flatten();
        copies.filter_map(|copy| Some((copy, self.live(copy)?)))
    }

    /// Returns another intact copy of an intent with the same content.
    pub fn intact_twin(
        &self,
        copy: &SourceRef,
        intent: &IntentKey,
        revision: &Revision,
    ) -> Option<&SourceRef> {
        let is_twin = |live: &Live| {
            live.has_full_content() && live.has_revision(&intent.rule, &intent.source, revision)
        };
        self.marked_copies(intent)
            .find(|(other, live)| *other != copy && is_twin(live))
            .map(|(twin, _)| twin)
    }

    /// Returns the live copies in one namespace whose marks name a source of a rule, under any copy
    /// name.
    pub fn versions<'a>(
        &'a self,
        intent: &IntentKey,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a IntentKey, &'a SourceRef, &'a Live)> {
        let first = IntentKey {
            rule: intent.rule.clone(),
            source: intent.source.plain(),
        };
        let same = first.clone();
        let keys = self.by_intent.range(first..);
        let keys = keys
            .take_while(move |(key, _)| key.rule == same.rule && key.source.plain() == same.source);
        let copies = keys.flat_map(|(key, copies)| copies.iter().map(move |copy| (key, copy)));
        copies
            .filter(move |(_, copy)| *copy.namespace == *namespace)
            .filter_map(|(key, copy)| Some((key, copy, self.live(copy)?)))
    }

    /// Returns the intents of one rule that have live copies, with those copies.
    pub fn intents_of(
        &self,
        rule: &RuleUid,
    ) -> impl Iterator<Item = (&IntentKey, &SmallSet<SourceRef>)> {
        let first = IntentKey {
            rule: rule.clone(),
            source: SourceRef::new("", "", ""),
        };
        let rule = rule.clone();
        self.by_intent
            .range(first..)
            .take_while(move |(key, _)| key.rule == rule)
    }

    /// Returns all intents that have live copies, with those copies.
    pub fn intents(&self) -> impl Iterator<Item = (&IntentKey, &SmallSet<SourceRef>)> {
        self.by_intent.iter()
    }

    /// Returns all copies with a record.
    pub fn all(&self) -> impl Iterator<Item = &SourceRef> {
        self.records.keys()
    }

    /// Returns the recorded copies in a namespace.
    pub fn in_namespace(&self, namespace: &str) -> impl Iterator<Item = &SourceRef> {
        in_namespace(&self.records, namespace)
    }

    /// Returns the recorded copies of a kind, in one namespace if it is given.
    pub fn names(
        &self,
        resource: &str,
        namespace: Option<&str>,
    ) -> impl Iterator<Item = &SourceRef> {
        let first = SourceRef::new(resource, namespace.unwrap_or_default(), "");
        let (resource, namespace) = (first.resource.clone(), namespace.map(str::to_owned));
        self.records
            .range(first..)
            .map(|(copy, _)| copy)
            .take_while(move |copy| {
                copy.resource == resource
                    && namespace
                        .as_deref()
                        .is_none_or(|namespace| *copy.namespace == *namespace)
            })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::live::Sealed;
    use crate::policy::Facts;

    fn live(version: &str) -> Live {
        let sealed = Sealed {
            rule: "rule".into(),
            source: SourceRef::new("configmaps", "team", "settings"),
            revision: Revision([1; 16]),
            ignored: BTreeSet::new(),
        };
        Live {
            uid: "uid".into(),
            version: version.into(),
            ownership: Ownership::Ours,
            adopted: false,
            sealed: Some(Box::new(sealed)),
            unproved: None,
            intact: true,
            facts: Facts::default(),
            others: None,
            is_shared: false,
            is_widened: false,
            terminating: None,
            number: 0,
            newest: false,
            names_member: true,
            applied_at: 0,
            health: None,
            finished: false,
            feedback: None,
        }
    }

    fn copy() -> SourceRef {
        SourceRef::new("configmaps", "a", "settings")
    }

    #[test]
    fn late_event_of_an_older_version_is_ignored() {
        let mut records = Records::default();
        assert!(records.watched(&copy(), live("7")));
        records.record_result(&copy(), Observed::Live(live("9")), [Arc::from("8")]);
        for echo in ["7", "8", "9"] {
            assert!(!records.watched(&copy(), live(echo)), "{echo}");
        }
        assert!(records.watched(&copy(), live("10")));
    }

    #[test]
    fn list_counts_with_any_version() {
        let mut records = Records::default();
        for version in ["7", "9"] {
            records.watched(&copy(), live(version));
        }
        records.list_begins("configmaps", None);
        assert!(records.listed(&copy(), live("7")), "a restored etcd");
        assert_eq!(records.live(&copy()).map(|live| &*live.version), Some("7"));
        assert!(!records.listed(&copy(), live("7")));
        let other = Live {
            intact: false,
            ..live("7")
        };
        assert!(
            records.listed(&copy(), other),
            "the same number for another state"
        );
        assert!(
            records.watched(&copy(), live("9")),
            "numbers are given again"
        );
    }

    #[test]
    fn list_is_older_than_a_write_since_it_began() {
        let mut records = Records::default();
        records.watched(&copy(), live("7"));
        records.list_begins("configmaps", None);
        records.record_result(&copy(), Observed::Live(live("9")), [Arc::from("7")]);
        assert!(!records.listed(&copy(), live("7")));
        assert!(records.is_confirmed_since_list(&copy()));
        assert_eq!(records.live(&copy()).map(|live| &*live.version), Some("9"));
        records.list_begins("configmaps", None);
        assert!(records.listed(&copy(), live("7")));
    }

    #[test]
    fn deletion_of_an_earlier_object_hides_no_successor() {
        let mut records = Records::default();
        records.watched(&copy(), live("7"));
        assert!(!records.unwatched(&copy(), "older"));
        assert!(records.unwatched(&copy(), "uid"));
        assert_eq!(records.observed(&copy()), &Observed::Unknown);
    }

    #[test]
    fn unsealed_object_keeps_its_origin() {
        for adopted in [false, true] {
            let mut records = Records::default();
            records.watched(
                &copy(),
                Live {
                    adopted,
                    ..live("7")
                },
            );
            // The object loses its label and seal, and is read later.
            assert!(records.unwatched(&copy(), "uid"));
            let unsealed = |version| Live {
                sealed: None,
                intact: false,
                adopted: true,
                ..live(version)
            };
            records.record_result(&copy(), Observed::Live(unsealed("8")), []);
            assert_eq!(records.live(&copy()).unwrap().adopted, adopted);
            records.watched(&copy(), unsealed("9"));
            assert_eq!(records.live(&copy()).unwrap().adopted, adopted);
            // The origin of another object of the same name is unknown.
            records.watched(
                &copy(),
                Live {
                    uid: "other".into(),
                    ..unsealed("10")
                },
            );
            assert!(records.live(&copy()).unwrap().adopted);
        }
    }

    #[test]
    fn the_index_follows_the_records() {
        let mut records = Records::default();
        let key = IntentKey {
            rule: "rule".into(),
            source: SourceRef::new("configmaps", "team", "settings"),
        };
        records.watched(&copy(), live("7"));
        assert_eq!(records.marked_copies(&key).count(), 1);
        let heavy = Live {
            facts: Facts {
                bytes: 5,
                ..Facts::default()
            },
            ..live("7b")
        };
        assert_eq!(
            records.usage(&"rule".into()),
            Usage {
                copies: 1,
                bytes: 0
            }
        );
        records.watched(&copy(), heavy);
        assert_eq!(
            records.total(),
            Usage {
                copies: 1,
                bytes: 5
            }
        );
        assert_eq!(records.intents_of(&"rule".into()).count(), 1);
        assert_eq!(records.intents_of(&"rul".into()).count(), 0);
        assert_eq!(records.names("configmaps", Some("a")).count(), 1);
        assert_eq!(records.names("secrets", None).count(), 0);
        records.watched(
            &copy(),
            Live {
                sealed: None,
                ..live("8")
            },
        );
        assert_eq!(records.marked_copies(&key).count(), 0);
        assert_eq!(
            (records.total(), records.usage(&"rule".into())),
            (Usage::default(), Usage::default())
        );
        records.forget(&copy());
        assert_eq!(records.names("configmaps", None).count(), 0);
    }
}
