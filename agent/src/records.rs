//! What is known of the live copies, and which of them hold a given intent.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use runnel_proto::model::{RuleUid, SourceRef};

use crate::few::Few;
use crate::live::{Live, Ownership};

/// How many past versions of one object are remembered, to know late echoes of a watch.
const PAST_VERSIONS: usize = 6;

/// An intent's identity.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct IntentKey {
    /// The rule.
    pub rule: RuleUid,
    /// The source.
    pub source: SourceRef,
}

/// What the agent knows of the object at one copy's name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Sight {
    /// The watch does not show it. It may exist without our label.
    Unknown,
    /// A read has shown that it does not exist.
    Absent,
    /// This.
    Live(Live),
}

#[derive(Default)]
struct Record {
    sight: Option<Sight>,
    /// Whether a watch said so. One watch speaks in order, so what its next word replaces is past; what a read has
    /// shown may be newer than a word that comes late.
    watched: bool,
    /// Versions that are known to be older than `sight`.
    past: VecDeque<Arc<str>>,
}

impl Record {
    fn pass(&mut self, versions: impl IntoIterator<Item = Arc<str>>) {
        self.past.extend(versions);
        while self.past.len() > PAST_VERSIONS {
            self.past.pop_front();
        }
    }
}

/// The live objects by name, with an index by sealed intent.
#[derive(Default)]
pub struct Records {
    records: BTreeMap<SourceRef, Record>,
    by_intent: BTreeMap<IntentKey, Few<SourceRef>>,
}

impl Records {
    /// What is known of a copy.
    pub fn sight(&self, copy: &SourceRef) -> &Sight {
        self.records.get(copy).and_then(|record| record.sight.as_ref()).unwrap_or(&Sight::Unknown)
    }

    /// The live object, if one is known.
    pub fn live(&self, copy: &SourceRef) -> Option<&Live> {
        match self.sight(copy) {
            Sight::Live(live) => Some(live),
            Sight::Unknown | Sight::Absent => None,
        }
    }

    /// Takes in what a watch says. Returns `false` where that is older than what is known, or the same.
    pub fn watched(&mut self, copy: &SourceRef, live: Live) -> bool {
        if let Some(record) = self.records.get(copy) {
            let known = |version: &Arc<str>| *version == live.version;
            let current = matches!(&record.sight, Some(Sight::Live(current)) if known(&current.version));
            if current || record.past.iter().any(known) {
                return false;
            }
        }
        self.set(copy, Sight::Live(live), true);
        true
    }

    /// Takes in that a watch no longer shows the object with this uid. Returns whether that is news. The object may
    /// still exist, without our label.
    pub fn unwatched(&mut self, copy: &SourceRef, uid: &str) -> bool {
        if self.live(copy).is_none_or(|live| *live.uid != *uid) {
            return false;
        }
        self.forget(copy);
        true
    }

    /// Takes in what a read or a write of our own has shown, and the older versions that it passed through.
    pub fn shown(&mut self, copy: &SourceRef, sight: Sight, passed: impl IntoIterator<Item = Arc<str>>) {
        self.set(copy, sight, false);
        if let Some(record) = self.records.get_mut(copy) {
            record.pass(passed);
        }
    }

    /// Forgets what is known of a copy.
    pub fn forget(&mut self, copy: &SourceRef) {
        if let Some(Record { sight: Some(Sight::Live(live)), .. }) = self.records.remove(copy) {
            self.unindex(copy, &live);
        }
    }

    fn set(&mut self, copy: &SourceRef, sight: Sight, watched: bool) {
        let record = self.records.entry(copy.clone()).or_default();
        let now = if let Sight::Live(live) = &sight { Some(live.version.clone()) } else { None };
        let before = record.sight.replace(sight);
        let was_watched = std::mem::replace(&mut record.watched, watched);
        if let Some(Sight::Live(live)) = before {
            // Two reads in a row may show the same version, which is not past then.
            if (was_watched || !watched) && now.as_ref() != Some(&live.version) {
                record.pass([live.version.clone()]);
            }
            self.unindex(copy, &live);
        }
        self.index(copy);
    }

    fn index(&mut self, copy: &SourceRef) {
        if let Some(key) = self.live(copy).and_then(intent_of) {
            self.by_intent.entry(key).or_default().insert(copy.clone());
        }
    }

    fn unindex(&mut self, copy: &SourceRef, live: &Live) {
        if let Some(key) = intent_of(live)
            && let Some(copies) = self.by_intent.get_mut(&key)
        {
            copies.remove(copy);
            if copies.is_empty() {
                self.by_intent.remove(&key);
            }
        }
    }

    /// The live copies that say they hold an intent.
    pub fn holders(&self, intent: &IntentKey) -> impl Iterator<Item = (&SourceRef, &Live)> {
        let copies = self.by_intent.get(intent).into_iter().flatten();
        copies.filter_map(|copy| Some((copy, self.live(copy)?)))
    }

    /// The live copies in one namespace that say they hold a source of a rule, under whatever name.
    pub fn versions<'a>(
        &'a self,
        intent: &IntentKey,
        namespace: &'a str,
    ) -> impl Iterator<Item = (&'a IntentKey, &'a SourceRef, &'a Live)> {
        let first = IntentKey { rule: intent.rule.clone(), source: intent.source.plain() };
        let same = first.clone();
        let keys = self.by_intent.range(first..);
        let keys = keys.take_while(move |(key, _)| key.rule == same.rule && key.source.plain() == same.source);
        let copies = keys.flat_map(|(key, copies)| copies.iter().map(move |copy| (key, copy)));
        copies
            .filter(move |(_, copy)| *copy.namespace == *namespace)
            .filter_map(|(key, copy)| Some((key, copy, self.live(copy)?)))
    }

    /// The intents of one rule of which live copies exist, with those copies.
    pub fn intents_of(&self, rule: &RuleUid) -> impl Iterator<Item = (&IntentKey, &Few<SourceRef>)> {
        let first = IntentKey { rule: rule.clone(), source: SourceRef::new("", "", "") };
        let rule = rule.clone();
        self.by_intent.range(first..).take_while(move |(key, _)| key.rule == rule)
    }

    /// Every intent of which live copies exist, with those copies.
    pub fn intents(&self) -> impl Iterator<Item = (&IntentKey, &Few<SourceRef>)> {
        self.by_intent.iter()
    }

    /// Every copy of which anything is known.
    pub fn all(&self) -> impl Iterator<Item = &SourceRef> {
        self.records.keys()
    }

    /// The known copies of a kind, in a namespace if one is named.
    pub fn names(&self, resource: &str, namespace: Option<&str>) -> impl Iterator<Item = &SourceRef> {
        let first = SourceRef::new(resource, namespace.unwrap_or_default(), "");
        let (resource, namespace) = (first.resource.clone(), namespace.map(str::to_owned));
        self.records.range(first..).map(|(copy, _)| copy).take_while(move |copy| {
            copy.resource == resource && namespace.as_deref().is_none_or(|namespace| *copy.namespace == *namespace)
        })
    }
}

fn intent_of(live: &Live) -> Option<IntentKey> {
    let sealed = live.sealed.as_ref().filter(|_| live.ownership == Ownership::Ours)?;
    Some(IntentKey { rule: sealed.rule.clone(), source: sealed.source.clone() })
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use crate::live::Sealed;
    use crate::policy::Facts;
    use runnel_proto::model::Revision;

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
            sealed: Some(Box::new(sealed)),
            intact: true,
            facts: Facts::default(),
            others: None,
            terminating: false,
            number: 0,
            newest: false,
            applied_at: 0,
        }
    }

    fn copy() -> SourceRef {
        SourceRef::new("configmaps", "a", "settings")
    }

    #[test]
    fn a_late_echo_of_a_version_that_was_passed_is_no_news() {
        let mut records = Records::default();
        assert!(records.watched(&copy(), live("7")));
        records.shown(&copy(), Sight::Live(live("9")), [Arc::from("8")]);
        for echo in ["7", "8", "9"] {
            assert!(!records.watched(&copy(), live(echo)), "{echo}");
        }
        assert!(records.watched(&copy(), live("10")));
    }

    #[test]
    fn the_deletion_of_an_earlier_object_does_not_hide_its_successor() {
        let mut records = Records::default();
        records.watched(&copy(), live("7"));
        assert!(!records.unwatched(&copy(), "older"));
        assert!(records.unwatched(&copy(), "uid"));
        assert_eq!(records.sight(&copy()), &Sight::Unknown);
    }

    #[test]
    fn the_index_follows_the_records() {
        let mut records = Records::default();
        let key = IntentKey { rule: "rule".into(), source: SourceRef::new("configmaps", "team", "settings") };
        records.watched(&copy(), live("7"));
        assert_eq!(records.holders(&key).count(), 1);
        assert_eq!(records.intents_of(&"rule".into()).count(), 1);
        assert_eq!(records.intents_of(&"rul".into()).count(), 0);
        assert_eq!(records.names("configmaps", Some("a")).count(), 1);
        assert_eq!(records.names("secrets", None).count(), 0);
        records.watched(&copy(), Live { sealed: None, ..live("8") });
        assert_eq!(records.holders(&key).count(), 0);
        records.forget(&copy());
        assert_eq!(records.names("configmaps", None).count(), 0);
    }
}
