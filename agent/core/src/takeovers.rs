//! Objects that are not ours and may be overwritten: those that the hub has named, one by one, and no others. Pure.
//!
//! What stands where a copy should, is not ours and holds something else is lost when `conflictPolicy: Overwrite` is
//! carried out. So the agent says how many such objects of a rule there are, with a digest that names exactly these, and
//! waits. The hub weighs them with those of all other clusters, asks a person where they are too many, and gives the
//! digest back. If the very same objects still wait then, they are overwritten. Of any other set nothing is: it is
//! reported, and judged anew.
//!
//! An object is named by its uid: it may change while it waits, but what was deleted and made anew is another one. One
//! permission is good for one takeover: an object that lost all our marks later is asked about again. And it ends with what
//! it answers: when the agent has said that something else waits, when nothing is to be done about the copy any more, and
//! with the stream.
//!
//! Copies that are to go because their namespaces are no longer targets wait in the same way.
use std::collections::BTreeMap;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use runnel_proto::model::{AskedDigest, RuleUid, SourceRef};

/// What the hub lets us do: overwrite these objects, or delete these copies.
#[derive(Default)]
pub struct Allowed {
    /// By the name of the copy: for which rule, and the uid of the object.
    allowed: BTreeMap<SourceRef, (RuleUid, Arc<str>)>,
    /// What the hub said last of a rule, while that does not fit what waits, or not yet.
    offers: BTreeMap<RuleUid, AskedDigest>,
    /// What the hub was told in this stream that waits, when all of it was known.
    told: BTreeMap<RuleUid, Option<AskedDigest>>,
    /// What was found to differ, by the name of the copy: for which rule, and the uid of the object.
    found: BTreeMap<SourceRef, (RuleUid, Arc<str>)>,
}

impl Allowed {
    /// Whether a rule may do it to the object with this uid.
    pub fn allows(&self, rule: &RuleUid, copy: &SourceRef, uid: &str) -> bool {
        self.allowed.get(copy).is_some_and(|(for_rule, object)| for_rule == rule && **object == *uid)
    }

    /// The hub has named a set. If it has been told of another one since, it has judged that one by now, or will.
    pub fn offer(&mut self, rule: &RuleUid, digest: AskedDigest) {
        if self.told.get(rule).is_none_or(|told| *told == Some(digest)) {
            self.offers.insert(rule.clone(), digest);
        }
    }

    /// The hub is told that exactly this waits.
    pub fn tell(&mut self, rule: &RuleUid, waiting: Option<AskedDigest>) {
        if self.offers.get(rule).copied() != waiting {
            self.offers.remove(rule);
        }
        self.told.insert(rule.clone(), waiting);
    }

    /// Whether the hub has named a set of a rule that did not wait, or not yet.
    pub fn has_offer(&self, rule: &RuleUid) -> bool {
        self.offers.contains_key(rule)
    }

    /// What the hub has named of a rule and is not used.
    pub fn offered(&self, rule: &RuleUid) -> Option<AskedDigest> {
        self.offers.get(rule).copied()
    }

    /// What the hub has named of a rule is good for nothing any more.
    pub fn drop_offer(&mut self, rule: &RuleUid) {
        self.offers.remove(rule);
    }

    /// What was said in a stream holds in that stream alone. Returns the copies that it was said of.
    pub fn end_stream(&mut self) -> Vec<SourceRef> {
        self.offers.clear();
        self.told.clear();
        std::mem::take(&mut self.allowed).into_keys().collect()
    }

    /// Nothing of a rule is left here.
    pub fn forget_rule(&mut self, rule: &RuleUid) {
        self.offers.remove(rule);
        self.told.remove(rule);
    }

    /// These wait. If they are what the hub has named, they are allowed, and the offer is used up.
    pub fn take(&mut self, rule: &RuleUid, waiting: &BTreeMap<SourceRef, Arc<str>>) -> bool {
        let fits = !waiting.is_empty() && self.offers.get(rule) == Some(&digest_of(rule, waiting));
        if fits {
            self.offers.remove(rule);
            let named = waiting.iter().map(|(copy, uid)| (copy.clone(), (rule.clone(), uid.clone())));
            self.allowed.extend(named);
        }
        fits
    }

    /// Nothing is to be done about the copy: whatever stands there later is asked about.
    pub fn forget(&mut self, copy: &SourceRef) {
        self.allowed.remove(copy);
    }

    /// An object was looked into and is not what should stand there.
    pub fn find(&mut self, rule: &RuleUid, copy: &SourceRef, uid: &Arc<str>) {
        self.found.insert(copy.clone(), (rule.clone(), uid.clone()));
    }

    /// Whether that was found of the object with this uid, and nothing else since.
    pub fn was_found(&self, rule: &RuleUid, copy: &SourceRef, uid: &str) -> bool {
        self.found.get(copy).is_some_and(|(for_rule, object)| for_rule == rule && **object == *uid)
    }

    /// It is not there any more, or is not to be overwritten.
    pub fn unfind(&mut self, copy: &SourceRef) {
        self.found.remove(copy);
    }
}

/// Names exactly these objects of a rule.
pub fn digest_of(rule: &RuleUid, objects: &BTreeMap<SourceRef, Arc<str>>) -> AskedDigest {
    let mut context = Context::new(&SHA256);
    let mut add = |text: &str| {
        context.update(text.as_bytes());
        context.update(b"\0");
    };
    add(rule.as_str());
    for (copy, uid) in objects {
        for part in [&*copy.resource, &*copy.namespace, &*copy.name, &**uid] {
            add(part);
        }
    }
    let mut short = [0; 16];
    short.copy_from_slice(&context.finish().as_ref()[..16]);
    AskedDigest(short)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn waiting(objects: &[(&str, &str)]) -> BTreeMap<SourceRef, Arc<str>> {
        objects.iter().map(|(name, uid)| (SourceRef::new("configmaps", "a", name), Arc::from(*uid))).collect()
    }

    #[test]
    fn named_objects_are_allowed_once_and_only_to_their_rule() {
        let (rule, other) = (RuleUid::from("r"), RuleUid::from("q"));
        let both = waiting(&[("one", "1"), ("two", "2")]);
        let mut takeovers = Allowed::default();
        assert!(!takeovers.take(&rule, &both), "nobody has said anything");
        takeovers.offer(&rule, digest_of(&rule, &both));
        for another in [&[("one", "1")][..], &[("one", "1"), ("two", "3")], &[("one", "2"), ("two", "1")], &[]] {
            assert!(!takeovers.take(&rule, &waiting(another)), "{another:?}");
        }
        assert!(!takeovers.take(&other, &both));
        assert!(takeovers.take(&rule, &both), "what is named may come late");
        let copy = |name| SourceRef::new("configmaps", "a", name);
        assert!(takeovers.allows(&rule, &copy("one"), "1") && takeovers.allows(&rule, &copy("two"), "2"));
        assert!(!takeovers.allows(&other, &copy("one"), "1") && !takeovers.allows(&rule, &copy("one"), "2"));
        takeovers.forget(&copy("one"));
        assert!(!takeovers.allows(&rule, &copy("one"), "1"));
        assert!(!takeovers.take(&rule, &both), "it is used up");
        takeovers.offer(&rule, digest_of(&rule, &both));
        assert!(takeovers.end_stream().contains(&copy("two")) && !takeovers.allows(&rule, &copy("two"), "2"));
        assert!(!takeovers.take(&rule, &both) && !takeovers.has_offer(&rule));
    }

    #[test]
    fn approval_is_void_once_the_hub_was_told_otherwise() {
        let rule = RuleUid::from("r");
        let (one, two) = (waiting(&[("one", "1")]), waiting(&[("one", "1"), ("two", "2")]));
        let (first, second) = (digest_of(&rule, &one), digest_of(&rule, &two));
        let mut takeovers = Allowed::default();
        takeovers.offer(&rule, first);
        takeovers.tell(&rule, Some(first));
        assert!(takeovers.has_offer(&rule));
        for told in [Some(second), None] {
            takeovers.tell(&rule, told);
            assert!(!takeovers.has_offer(&rule));
            takeovers.offer(&rule, first);
            assert!(!takeovers.has_offer(&rule), "it crossed what was told");
            takeovers.tell(&rule, Some(first));
            assert!(!takeovers.take(&rule, &one));
            takeovers.offer(&rule, first);
            assert!(takeovers.has_offer(&rule));
        }
        takeovers.end_stream();
        takeovers.offer(&rule, second);
        assert!(takeovers.take(&rule, &two), "nothing was told in this stream");
    }

    #[test]
    fn a_digest_names_rule_copies_and_uids() {
        let sets = [
            waiting(&[("one", "1")]),
            waiting(&[("one", "2")]),
            waiting(&[("on", "e1")]),
            waiting(&[("one", "1"), ("two", "2")]),
            waiting(&[]),
        ];
        let digests: std::collections::BTreeSet<_> = sets.iter().map(|set| digest_of(&"r".into(), set)).collect();
        assert_eq!(digests.len(), sets.len());
        assert!(!digests.contains(&digest_of(&"q".into(), &sets[0])));
    }
}
