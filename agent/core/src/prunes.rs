//! Copies that are to go because their namespaces are no longer targets: those that the hub has named, and no others. Pure.
//!
//! Only the agent knows which copies these are. It reports how many there are of a rule, with a digest that names exactly
//! these, and waits. The hub counts them with those of all other clusters, blocks them where they are too many, and gives the
//! digest back once they may go. If the very same copies still wait then, they are removed; any other set is reported and
//! judged again.
//!
//! A copy is named by its uid: one that was deleted and created again is another one. An approval ends with what it
//! answers: when nothing is to be done about the copy any more, and with the stream.
use std::collections::BTreeMap;
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use runnel_proto::model::{AskedDigest, RuleUid, SourceRef};

/// The copies that the hub lets the agent delete.
#[derive(Default)]
pub struct PruneApprovals {
    /// By the name of the copy: for which rule, and the uid of the object.
    allowed: BTreeMap<SourceRef, (RuleUid, Arc<str>)>,
    /// The last approval of the hub for each rule, while it does not match the waiting copies, or not yet.
    offers: BTreeMap<RuleUid, AskedDigest>,
    /// The digest that was last reported to the hub for each rule.
    reported: BTreeMap<RuleUid, AskedDigest>,
}

impl PruneApprovals {
    /// Whether a rule may do it to the object with this uid.
    pub fn allows(&self, rule: &RuleUid, copy: &SourceRef, uid: &str) -> bool {
        self.allowed
            .get(copy)
            .is_some_and(|(for_rule, object)| for_rule == rule && **object == *uid)
    }

    /// Records the digest that is reported to the hub; an approval of another set is void.
    pub fn report(&mut self, rule: &RuleUid, digest: Option<AskedDigest>) {
        if self
            .offers
            .get(rule)
            .is_some_and(|offer| Some(*offer) != digest)
        {
            self.offers.remove(rule);
        }
        match digest {
            Some(digest) => drop(self.reported.insert(rule.clone(), digest)),
            None => drop(self.reported.remove(rule)),
        }
    }

    /// Takes an approval of the hub. Returns whether it is of the set that was reported last; no other one counts.
    pub fn offer(&mut self, rule: &RuleUid, digest: AskedDigest) -> bool {
        let is_current = self.reported.get(rule) == Some(&digest);
        if is_current {
            self.offers.insert(rule.clone(), digest);
        }
        is_current
    }

    /// Whether there is an approval of a rule that has not been used.
    pub fn has_offer(&self, rule: &RuleUid) -> bool {
        self.offers.contains_key(rule)
    }

    /// What was said in a stream holds in that stream alone. Returns the copies that it was said of.
    pub fn end_stream(&mut self) -> Vec<SourceRef> {
        self.offers.clear();
        self.reported.clear();
        std::mem::take(&mut self.allowed).into_keys().collect()
    }

    /// These wait. If they are what the hub has named, they are allowed, and the offer is used up.
    pub fn take(&mut self, rule: &RuleUid, waiting: &BTreeMap<SourceRef, Arc<str>>) -> bool {
        let fits = !waiting.is_empty() && self.offers.get(rule) == Some(&digest_of(rule, waiting));
        if fits {
            self.offers.remove(rule);
            let named = waiting
                .iter()
                .map(|(copy, uid)| (copy.clone(), (rule.clone(), uid.clone())));
            self.allowed.extend(named);
        }
        fits
    }

    /// Nothing is to be done about the copy: whatever stands there later is asked about.
    pub fn forget(&mut self, copy: &SourceRef) {
        self.allowed.remove(copy);
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
        objects
            .iter()
            .map(|(name, uid)| (SourceRef::new("configmaps", "a", name), Arc::from(*uid)))
            .collect()
    }

    #[test]
    fn named_objects_are_allowed_once_and_only_to_their_rule() {
        let (rule, other) = (RuleUid::from("r"), RuleUid::from("q"));
        let both = waiting(&[("one", "1"), ("two", "2")]);
        let mut prunes = PruneApprovals::default();
        assert!(!prunes.take(&rule, &both), "nobody has said anything");
        assert!(
            !prunes.offer(&rule, digest_of(&rule, &both)),
            "it was not reported"
        );
        prunes.report(&rule, Some(digest_of(&rule, &both)));
        assert!(prunes.offer(&rule, digest_of(&rule, &both)));
        for another in [
            &[("one", "1")][..],
            &[("one", "1"), ("two", "3")],
            &[("one", "2"), ("two", "1")],
            &[],
        ] {
            assert!(!prunes.take(&rule, &waiting(another)), "{another:?}");
        }
        assert!(!prunes.take(&other, &both));
        assert!(prunes.take(&rule, &both), "what is named may come late");
        let copy = |name| SourceRef::new("configmaps", "a", name);
        assert!(prunes.allows(&rule, &copy("one"), "1") && prunes.allows(&rule, &copy("two"), "2"));
        assert!(
            !prunes.allows(&other, &copy("one"), "1") && !prunes.allows(&rule, &copy("one"), "2")
        );
        prunes.forget(&copy("one"));
        assert!(!prunes.allows(&rule, &copy("one"), "1"));
        assert!(!prunes.take(&rule, &both), "it is used up");
        prunes.offer(&rule, digest_of(&rule, &both));
        assert!(
            prunes.end_stream().contains(&copy("two")) && !prunes.allows(&rule, &copy("two"), "2")
        );
        assert!(!prunes.take(&rule, &both) && !prunes.has_offer(&rule));
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
        let digests: std::collections::BTreeSet<_> =
            sets.iter().map(|set| digest_of(&"r".into(), set)).collect();
        assert_eq!(digests.len(), sets.len());
        assert!(!digests.contains(&digest_of(&"q".into(), &sets[0])));
    }
}
