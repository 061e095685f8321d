//! Removals from namespaces that are no longer targets. They wait for the hub's approval.
//!
//! Only the agent knows these copies: the hub selects and grants namespaces, and people label them
//! in this cluster. The agent reports their number per rule, with a digest of exactly these objects,
//! and waits. The hub adds up the numbers of all clusters, and blocks the removal if there are too
//! many. It returns the digest as its approval. The agent then removes the copies if the digest still
//! matches the waiting copies. It reports any other set again, and the hub decides again.
//!
//! The digest identifies an object by its uid, so an object that was deleted and created again needs
//! a new approval. An approval ends when nothing is to be done about the copy any more, when the
//! agent reports another digest, and when the stream ends.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use ring::digest::{Context, SHA256};
use runnel_proto::model::{
    NAMESPACES_LIMIT, NamespacePrunes, PruneDigest, RuleState, RuleUid, SourceRef,
};

use crate::records::Records;
use crate::report::Report;

/// The copies that the hub has approved for removal.
#[derive(Default)]
pub struct PruneApprovals {
    /// The approved objects: the copy, the rule and the uid of the object.
    allowed: BTreeMap<SourceRef, (RuleUid, Arc<str>)>,
    /// The last unused approval for each rule, while it does not match the waiting copies.
    offers: BTreeMap<RuleUid, PruneDigest>,
    /// The last digest that was reported to the hub for each rule.
    reported: BTreeMap<RuleUid, PruneDigest>,
}

impl PruneApprovals {
    /// Whether a rule may remove the object with this uid.
    pub fn allows(&self, rule: &RuleUid, copy: &SourceRef, uid: &str) -> bool {
        self.allowed
            .get(copy)
            .is_some_and(|(for_rule, object)| for_rule == rule && **object == *uid)
    }

    /// Records the digest that is reported to the hub. An approval of another digest becomes void.
    pub fn report(&mut self, rule: &RuleUid, digest: Option<PruneDigest>) {
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

    /// Records the digests in the states of rules that are reported to the hub.
    pub(super) fn reported(&mut self, states: &[RuleState]) {
        for state in states {
            let digest = state.namespace_prunes.as_ref().map(|prunes| prunes.digest);
            self.report(&state.uid, digest);
        }
    }

    /// Stores an approval of the hub if it is for the last reported digest, and returns whether it
    /// is.
    pub fn offer(&mut self, rule: &RuleUid, digest: PruneDigest) -> bool {
        let is_current = self.reported.get(rule) == Some(&digest);
        if is_current {
            self.offers.insert(rule.clone(), digest);
        }
        is_current
    }

    /// Whether a rule has an unused approval.
    pub fn has_offer(&self, rule: &RuleUid) -> bool {
        self.offers.contains_key(rule)
    }

    /// Drops all approvals and reports: they are valid in one stream only. Returns the copies whose
    /// removal was approved.
    pub fn end_stream(&mut self) -> Vec<SourceRef> {
        self.offers.clear();
        self.reported.clear();
        std::mem::take(&mut self.allowed).into_keys().collect()
    }

    /// Uses an approval if it matches exactly the waiting copies, and returns whether it does.
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

    /// Drops the approval of a copy. A later removal of this copy needs a new approval.
    pub fn forget(&mut self, copy: &SourceRef) {
        self.allowed.remove(copy);
    }
}

/// Returns the digest of exactly these objects of a rule.
pub fn digest_of(rule: &RuleUid, objects: &BTreeMap<SourceRef, Arc<str>>) -> PruneDigest {
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
    PruneDigest(short)
}

/// Returns the copies of a rule that wait for an approval, with their uids.
pub(super) fn waiting(
    rule: &RuleUid,
    report: &Report,
    records: &Records,
) -> BTreeMap<SourceRef, Arc<str>> {
    let copies = report.namespace_prunes(rule);
    copies
        .filter_map(|copy| Some((copy.clone(), records.live(copy)?.uid.clone())))
        .collect()
}

/// Returns the report of the copies of a rule that wait for an approval.
pub(super) fn summary(
    rule: &RuleUid,
    report: &Report,
    records: &Records,
) -> Option<NamespacePrunes> {
    let waiting = waiting(rule, report, records);
    let copies = u32::try_from(waiting.len()).unwrap_or(u32::MAX);
    let namespaces: BTreeSet<_> = waiting
        .keys()
        .filter_map(SourceRef::optional_namespace)
        .collect();
    (copies > 0).then(|| NamespacePrunes {
        copies,
        digest: digest_of(rule, &waiting),
        namespaces: namespaces
            .into_iter()
            .take(NAMESPACES_LIMIT)
            .map(str::to_owned)
            .collect(),
    })
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
        assert!(!prunes.take(&rule, &both), "the hub has sent nothing");
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
