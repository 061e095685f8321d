//! What is kept of copies as they were before a rollout, so that they can go back: what is known of it, without content.
//! The content lies in Secrets of the agent's own namespace ([`crate::keep`]).
//!
//! One entry is kept per intent, as all its copies hold the same. It is made before the first copy is changed, and stays
//! what it was, however many changes follow, until the hub says that a change was taken everywhere: so it is the last
//! content that did well.
use std::collections::BTreeMap;

use runnel_proto::model::{Revision, RuleUid, SourceRef};

use crate::copy::IntentKey;

/// What is kept of one intent.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Kept {
    /// What its copies held; none where there was no copy that could be kept.
    pub revision: Option<Revision>,
    /// In which of the Secrets it lies.
    pub place: usize,
    /// Since when they held that, as the hub names it.
    pub base: String,
}

/// What is to be kept before a copy is written.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ToKeep {
    /// What this copy holds; none: that there is nothing to go back to.
    pub of: Option<SourceRef>,
    /// Since when it holds that, as the hub names it.
    pub base: String,
}

/// What is kept of every intent.
#[derive(Default)]
pub struct Previous {
    kept: BTreeMap<IntentKey, Kept>,
    /// What is being forgotten, and must not be written meanwhile.
    going: BTreeMap<RuleUid, Vec<(IntentKey, usize)>>,
}

impl Previous {
    /// This is kept already.
    pub fn of(kept: Vec<(IntentKey, Kept)>) -> Self {
        Self { kept: kept.into_iter().collect(), going: BTreeMap::new() }
    }

    /// The rules of which anything is kept, each with a base of what is.
    pub fn rules(&self) -> BTreeMap<RuleUid, String> {
        self.kept.iter().map(|(key, kept)| (key.rule.clone(), kept.base.clone())).collect()
    }

    /// The intents that can go back, and to what.
    pub fn revisions(&self) -> Vec<(IntentKey, Revision)> {
        self.kept.iter().filter_map(|(key, kept)| Some((key.clone(), kept.revision?))).collect()
    }

    /// What is kept of an intent.
    pub fn get(&self, key: &IntentKey) -> Option<&Kept> {
        self.kept.get(key)
    }

    /// Where this revision of an intent is kept.
    pub fn place(&self, key: &IntentKey, revision: &Revision) -> Option<usize> {
        self.kept.get(key).filter(|kept| kept.revision.as_ref() == Some(revision)).map(|kept| kept.place)
    }

    /// This is kept now.
    pub fn add(&mut self, key: IntentKey, kept: Kept) {
        self.kept.entry(key).or_insert(kept);
    }

    /// Of a rule only what is of this base is to be kept; of no base: nothing. Returns whether there is something to forget.
    pub fn give_up(&mut self, rule: &RuleUid, base: Option<&str>) -> bool {
        let is_stale = |key: &IntentKey, kept: &Kept| key.rule == *rule && base != Some(kept.base.as_str());
        let going: Vec<_> = self.kept.iter().filter(|(key, kept)| is_stale(key, kept)).collect();
        let going: Vec<_> = going.into_iter().map(|(key, kept)| (key.clone(), kept.place)).collect();
        for (key, _) in &going {
            self.kept.remove(key);
        }
        if !going.is_empty() {
            self.going.entry(rule.clone()).or_default().extend(going);
        }
        self.going.contains_key(rule)
    }

    /// Nothing is to be kept of an intent. Returns whether there is something to forget.
    pub fn forget(&mut self, key: &IntentKey) -> bool {
        let Some(kept) = self.kept.remove(key) else { return false };
        self.going.entry(key.rule.clone()).or_default().push((key.clone(), kept.place));
        true
    }

    /// What is to be forgotten of a rule.
    pub fn going(&self, rule: &RuleUid) -> Option<Vec<(IntentKey, usize)>> {
        self.going.get(rule).cloned()
    }

    /// These are forgotten.
    pub fn gone(&mut self, rule: &RuleUid, keys: &[IntentKey]) {
        if let Some(going) = self.going.get_mut(rule) {
            going.retain(|(key, _)| !keys.contains(key));
            if going.is_empty() {
                self.going.remove(rule);
            }
        }
    }

    /// Whether an intent must not be written, as what was kept of it is just being forgotten.
    pub fn is_going(&self, key: &IntentKey) -> bool {
        self.going.get(&key.rule).is_some_and(|going| going.iter().any(|(other, _)| other == key))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn key(rule: &str, name: &str) -> IntentKey {
        IntentKey { rule: rule.into(), source: SourceRef::new("configmaps", "team", name) }
    }

    #[test]
    fn what_is_kept_first_stays_until_it_is_given_up() {
        let mut previous = Previous::default();
        let kept = |revision| Kept { revision: Some(Revision([revision; 16])), place: 0, base: "1".to_owned() };
        previous.add(key("r", "s"), kept(1));
        previous.add(key("r", "s"), kept(2));
        previous.add(key("q", "s"), kept(3));
        assert_eq!(previous.get(&key("r", "s")), Some(&kept(1)));
        assert_eq!(previous.place(&key("r", "s"), &Revision([1; 16])), Some(0));
        assert_eq!(previous.place(&key("r", "s"), &Revision([2; 16])), None);
        assert!(!previous.give_up(&"r".into(), Some("1")) && !previous.give_up(&"other".into(), None));
        assert!(previous.give_up(&"r".into(), Some("2")));
        assert!(previous.is_going(&key("r", "s")) && !previous.is_going(&key("q", "s")));
        assert_eq!(previous.get(&key("r", "s")), None);
        previous.gone(&"r".into(), &[key("r", "s")]);
        assert!(!previous.is_going(&key("r", "s")) && previous.going(&"r".into()).is_none());
        assert_eq!(previous.rules(), BTreeMap::from([("q".into(), "1".to_owned())]));
    }
}
