//! What a rule wants: pure, total, deterministic.
//!
//! [`plan`] takes a rule and the sources and gives the rule's [`RulePlan`]. A rule has **one** plan, shared by all its
//! clusters, because nothing in it depends on a cluster. What does are the terms: a cluster's [`Share`] is the plan and
//! the terms in that cluster, and its desired set is a list of such shares. Namespaces are not expanded here: that is
//! done in the member cluster, where they live.
//!
//! What cannot be computed is neither sent nor removed: see [`RulePlan::is_unknown`].
mod content;
mod place;
mod rule;
mod share;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{Payload, Revision, RuleUid, SetDigest, SourceRef};

pub use content::{Refused, content_of, is_never_a_source};
pub use place::{Place, Scope};
pub use rule::{ClusterChoice, Rule, SourceChoice};
pub use share::{NamedTerms, Share};

/// The content of a source, ready to travel. One allocation, shared by every plan and every session.
pub struct SourceContent {
    /// Names the content.
    pub revision: Revision,
    /// The content, compressed.
    pub payload: Payload,
}

/// What the hub knows of the content of a source.
#[derive(Clone)]
pub enum Body {
    /// Not read yet: no rule needed it until now.
    Unread,
    /// It cannot be read for now.
    Unreadable,
    /// It is never distributed, for this reason.
    Refused(Refused),
    /// Read.
    Read(Arc<SourceContent>),
    /// Read before; it has changed since, and cannot be read for now.
    Stale(Arc<SourceContent>),
}

/// An object on the hub, as far as the hub knows it.
#[derive(Clone)]
pub struct Source {
    /// Its labels, by which rules select.
    pub labels: BTreeMap<String, String>,
    /// Its content.
    pub body: Body,
}

/// What one rule selects, for all its clusters. On which terms a cluster gets it is said in its [`Share`].
#[derive(Clone)]
pub struct RulePlan {
    /// The rule.
    pub uid: RuleUid,
    /// Selected sources whose content is known.
    pub intents: BTreeMap<SourceRef, Arc<SourceContent>>,
    /// Digest of the intents.
    pub digest: SetDigest,
    /// Selected sources whose content is still being read for the first time.
    pub unread: BTreeSet<SourceRef>,
    /// Selected sources whose content cannot be read now; those that were read before are in the intents as well.
    pub unreadable: BTreeSet<SourceRef>,
    /// Selected sources that are never distributed.
    pub refused: BTreeMap<SourceRef, Refused>,
    /// Where the rule looks for sources and the hub does not know now what is there.
    pub unknown: BTreeSet<Place>,
    /// Where the hub looks at all.
    pub scope: Scope,
    /// The digest before the last change, and the source that it touched: a session that holds the former plan finds
    /// its delta without comparing whole sets.
    pub change: Option<(SetDigest, SourceRef)>,
}

impl RulePlan {
    /// A plan without any source.
    pub fn empty(rule: &Rule) -> Self {
        Self {
            uid: rule.uid.clone(),
            intents: BTreeMap::new(),
            digest: SetDigest::default(),
            unread: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            refused: BTreeMap::new(),
            unknown: BTreeSet::new(),
            scope: Scope::default(),
            change: None,
        }
    }

    /// Whether the hub cannot tell what becomes of this source: it must not be removed anywhere, and stays as it is.
    pub fn is_unknown(&self, source: &SourceRef) -> bool {
        self.unread.contains(source)
            || self.unreadable.contains(source)
            || !self.scope.reads(&source.namespace)
            || self.unknown.iter().any(|place| place.holds(source))
    }

    /// Objects that the rule selects and that may be distributed, those that cannot be read now included.
    pub fn sources(&self) -> usize {
        let never_read = self.unreadable.iter().filter(|source| !self.intents.contains_key(*source));
        self.intents.len() + self.unread.len() + never_read.count()
    }

    /// Takes in what a source is to the rule now (`None`: not selected). Costs the same however many there are, but
    /// for the maps' logarithm.
    pub fn set(&mut self, source: &SourceRef, selected: Option<&Body>) {
        let before = self.digest;
        self.clear(source);
        match selected {
            None => {}
            Some(Body::Refused(refused)) => {
                self.refused.insert(source.clone(), *refused);
            }
            Some(Body::Read(content)) => {
                self.digest.insert(source, &content.revision);
                self.intents.insert(source.clone(), content.clone());
            }
            Some(Body::Stale(content)) => {
                self.digest.insert(source, &content.revision);
                self.intents.insert(source.clone(), content.clone());
                self.unreadable.insert(source.clone());
            }
            Some(Body::Unread) => {
                self.unread.insert(source.clone());
            }
            Some(Body::Unreadable) => {
                self.unreadable.insert(source.clone());
            }
        }
        self.change = Some((before, source.clone()));
    }

    /// Whether [`RulePlan::set`] with this would change nothing.
    pub fn already_says(&self, source: &SourceRef, selected: Option<&Body>) -> bool {
        let intent = self.intents.get(source).map(|content| content.revision);
        let now = (intent, self.unread.contains(source), self.unreadable.contains(source), self.refused.get(source));
        match selected {
            None => now == (None, false, false, None),
            Some(Body::Refused(refused)) => now == (None, false, false, Some(refused)),
            Some(Body::Read(content)) => now == (Some(content.revision), false, false, None),
            Some(Body::Stale(content)) => now == (Some(content.revision), false, true, None),
            Some(Body::Unread) => now == (None, true, false, None),
            Some(Body::Unreadable) => now == (None, false, true, None),
        }
    }

    fn clear(&mut self, source: &SourceRef) {
        if let Some(content) = self.intents.remove(source) {
            self.digest.remove(source, &content.revision);
        }
        self.unread.remove(source);
        self.unreadable.remove(source);
        self.refused.remove(source);
    }

    /// Whether two plans say the same (not how they came about).
    pub fn says_the_same(&self, other: &RulePlan) -> bool {
        self.digest == other.digest
            && self.unread == other.unread
            && self.unreadable == other.unreadable
            && self.refused == other.refused
            && self.unknown == other.unknown
            && self.scope == other.scope
            && self.intents.len() == other.intents.len()
    }
}

/// Plans a rule from scratch. The order of `sources` does not matter.
///
/// `is_known` tells the places that the hub knows now: its watch has delivered a complete list and is not forbidden.
pub fn plan<'a>(
    rule: &Rule,
    sources: impl IntoIterator<Item = (&'a SourceRef, &'a Source)>,
    scope: &Scope,
    is_known: impl Fn(&Place) -> bool,
) -> RulePlan {
    let mut plan = RulePlan::empty(rule);
    plan.unknown = rule.places(scope).into_iter().filter(|place| !is_known(place)).collect();
    plan.scope = scope.clone();
    for (reference, source) in sources {
        if rule.selects(reference, &source.labels) {
            plan.set(reference, Some(&source.body));
        }
    }
    plan.change = None;
    plan
}
