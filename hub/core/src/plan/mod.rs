//! The plan of a rule: pure, total, deterministic.
//!
//! [`plan`] takes a rule and the sources and returns the rule's [`RulePlan`]. A rule has **one**
//! plan, shared by all its clusters, because nothing in it depends on a cluster. The terms do: a
//! cluster's [`ClusterAssignment`] is the plan and the terms in that cluster, and its desired set
//! is a list of such assignments. Namespaces are expanded in the member cluster, where they are.
//!
//! If copies are shaped, or two sources may have one copy, the selected content differs from the
//! sent content: the [`ClusterPlans`] of the rule derive one from the other, and clusters with
//! equal results share them.
//!
//! What cannot be computed is neither sent nor removed: see [`RulePlan::is_unknown`].
//!
//! # Files
//! - `bundle`: the manifests of one bundle.
//! - `cluster_assignment`: what one cluster should have of one rule.
//! - `cluster_choice`: the choice of clusters by a rule, a grant or an override.
//! - `cluster_plans`: the rendered selection of a rule, per cluster or once for all.
//! - `completed_state`: the inputs of a completed rollout, and their encoding.
//! - `former_plan`: captures these inputs, and plans them again.
//! - `content`: which part of an object is distributed.
//! - `cow_sorted_map`: a sorted map with cheap clones.
//! - `grants`: what is granted to a rule in each cluster.
//! - `left_out`: what copies lack of their sources.
//! - `manifests`: the manifests of all bundles that a rule selects.
//! - `named_terms`: terms with the digest that names them.
//! - `portable`: which fields another cluster can have.
//! - `render`: renders the contents of copies.
//! - `rendered_plan`: the rendered sources of a rule, by the names of the copies.
//! - `rule`: a rule as the planner sees it, from either CRD.
//! - `secret_refs`: Secrets from which a rule takes single values.
//! - `shape`: transform, substitute and overrides.
//! - `stored_source`: the name of a source in a stored state.
//! - `watch_scope`: the scopes of the watches.
mod bundle;
mod cluster_assignment;
mod cluster_choice;
mod cluster_plans;
mod completed_state;
mod content;
mod cow_sorted_map;
mod former_plan;
mod grants;
mod left_out;
mod manifests;
mod named_terms;
mod portable;
mod render;
mod rendered_plan;
mod rule;
mod secret_refs;
mod shape;
mod source_choice;
mod stored_source;
mod watch_scope;

use std::borrow::Cow;
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::{Arc, OnceLock};

use bundle::Bundle;
#[cfg(test)]
pub(crate) use bundle::read_bundle;
pub use bundle::{MANIFEST_METADATA, is_bundle, read_source};
pub use cluster_assignment::{ClusterAssignment, PendingClaim, digest_on, proof_on};
pub use cluster_choice::ClusterChoice;
pub(crate) use cluster_plans::NAMESPACE_SHARE;
pub use cluster_plans::{ClusterPlans, Labels};
pub use completed_state::{CompletedState, RollbackBlocker, kept_revision};
pub use content::{ROLLBACK_SECRETS, UnsupportedSource, content_of, is_never_a_source};
pub use cow_sorted_map::CowSortedMap;
pub use grants::{
    Authorized, ContentKinds, EffectiveTerms, GrantChange, GrantedTerms, Grants, RuleGrant,
    RuleGrants, TargetClusters, TermsResolver,
};
use left_out::LeftOutPaths;
pub use left_out::{LAST_APPLIED, LeftOutByKind, left_out};
use manifests::Manifests;
pub use named_terms::NamedTerms;
use parking_lot::Mutex;
pub use portable::Origin;
pub use render::{RENDER_BUDGET, RevisionHasher, StopFlag};
pub use rendered_plan::{RenderError, RenderErrorKind};
pub use rule::{RemovalTerms, Revert, Rule};
use runnel_proto::model::{
    Content, ContentDigest, CopyMode, FieldPath, LiveDigest, Payload, Proof, ProofKey, Revision,
    RuleUid, SetDigest, SourceRef,
};
pub use secret_refs::{REFERENCED_KIND, SecretRefError, SecretRefs};
pub use shape::{NamedBy, NamedKey, Shape, ShapedField, TemplateContext};
pub use source_choice::SourceChoice;
pub use watch_scope::{Scope, WatchScope};

/// The content of a source, encoded for the wire. One allocation, shared by every plan and every
/// session.
pub struct SourceContent {
    /// The revision of the content.
    pub revision: Revision,
    /// The content, compressed.
    pub payload: Payload,
    /// The labels and annotations that are copied only by rules that allow it, if there are any, compressed. They are not
    /// part of the revision.
    pub denied: Option<Payload>,
    /// The paths of the object that copies lack unless a rule allows them. They are not part of the revision.
    left_out: LeftOutPaths,
    /// The digest that agents compute after they have applied the content.
    pub digest: Option<ContentDigest>,
    /// Whether a controller made the object from another one.
    pub controlled: bool,
    /// The manifests, if the source is a bundle. A bundle itself is never sent.
    pub(crate) bundle: Option<Box<Bundle>>,
    /// The digests without ignored fields, by rules.
    pub(crate) without: IgnoredFieldDigests,
    /// What agents do with the copies beyond their fields.
    mode: Option<CopyMode>,
    /// The same content in other modes, once a rule asks for it.
    in_modes: [OnceLock<Arc<SourceContent>>; 2],
}

impl SourceContent {
    /// Decodes a payload with this revision.
    pub fn new(revision: Revision, payload: Payload) -> Self {
        let content = payload.decode().ok();
        Self::encoded(revision, payload, content.as_ref())
    }

    /// Content of this revision. `canonical` are its canonical bytes.
    pub fn of(revision: Revision, content: &Content, canonical: Vec<u8>) -> Self {
        Self::encoded(revision, Payload::encode(canonical), Some(content))
    }

    fn encoded(revision: Revision, payload: Payload, content: Option<&Content>) -> Self {
        let digest =
            content.map(|content| ContentDigest::of_copy(content, &revision, &BTreeSet::new()));
        Self {
            revision,
            payload,
            denied: None,
            left_out: LeftOutPaths::default(),
            controlled: false,
            bundle: None,
            digest,
            without: IgnoredFieldDigests::default(),
            mode: content.and_then(|content| content.mode),
            in_modes: Default::default(),
        }
    }

    /// Returns the digest that agents compute if they ignore these fields.
    fn digest_without(&self, ignored: &Arc<BTreeSet<FieldPath>>) -> Option<ContentDigest> {
        let compute = || {
            let content = self.payload.decode().ok()?;
            Some(ContentDigest::of_copy(&content, &self.revision, ignored))
        };
        if ignored.is_empty() {
            self.digest
        } else {
            self.without.get(ignored, compute)
        }
    }

    /// What agents do with the copies beyond their fields.
    pub fn mode(&self) -> Option<CopyMode> {
        self.mode
    }

    /// Returns the content in the mode that a rule asks for: its own, for none. Each mode has a revision of its own.
    pub(crate) fn in_mode(self: &Arc<Self>, mode: Option<CopyMode>) -> Arc<Self> {
        match mode {
            Some(mode) if self.mode != Some(mode) => self.in_modes[mode as usize]
                .get_or_init(|| Arc::new(self.changed_to(mode)))
                .clone(),
            _ => self.clone(),
        }
    }

    fn changed_to(&self, mode: CopyMode) -> Self {
        let mark = |mode: Option<CopyMode>| mode.map_or(0, |mode| mode as u8 + 1);
        let mut revision = self.revision;
        revision.0[0] ^= mark(self.mode) ^ mark(Some(mode));
        if let Some(bundle) = &self.bundle {
            return Self {
                mode: Some(mode),
                ..Self::of_bundle(revision, self.controlled, bundle.in_mode(mode))
            };
        }
        // The hub can decode its own payloads.
        let mut content = self.payload.decode().unwrap_or_default();
        content.mode = Some(mode);
        Self {
            denied: self.denied.clone(),
            controlled: self.controlled,
            ..Self::of(revision, &content, content.to_bytes())
        }
    }

    fn is(&self, other: &SourceContent) -> bool {
        self.revision == other.revision && self.denied == other.denied
    }
}

/// The state of the content of a source.
#[derive(Clone)]
pub enum SourceState {
    /// Not read yet: no rule needed it until now.
    Unread,
    /// The source cannot be read now.
    Unreadable,
    /// It is never distributed, for this reason.
    Refused(UnsupportedSource),
    /// Read.
    Read(Arc<SourceContent>),
    /// Read before; it has changed since, and cannot be read for now.
    Stale(Arc<SourceContent>),
}

impl SourceState {
    /// Whether a controller made the object from another one, as far as its content is known.
    pub(crate) fn is_controlled(&self) -> bool {
        matches!(self, Self::Read(content) | Self::Stale(content) if content.controlled)
    }
}

/// An object on the hub.
#[derive(Clone)]
pub struct Source {
    /// Its labels, by which rules select.
    pub labels: BTreeMap<String, String>,
    /// Its content.
    pub body: SourceState,
}

/// The selection of one rule, or the part of it that is sent to equal clusters. The terms of a
/// cluster are in its [`ClusterAssignment`].
#[derive(Clone)]
pub struct RulePlan {
    /// The rule.
    pub uid: RuleUid,
    /// Selected sources with known content; in a rendered plan, by the names of their copies.
    pub intents: CowSortedMap<SourceRef, Arc<SourceContent>>,
    /// Digest of the intents.
    pub digest: SetDigest,
    /// The digests by kind, because not every cluster gets every kind.
    pub digests: BTreeMap<Arc<str>, SetDigest>,
    /// The digests that agents compute after they have applied all of them, by kind.
    shown: Expected,
    /// Selected sources whose content is being read for the first time.
    pub unread: BTreeSet<SourceRef>,
    /// Selected sources that cannot be read now. Those that were read before are also in the
    /// intents.
    pub unreadable: BTreeSet<SourceRef>,
    /// Selected sources that are never distributed.
    pub refused: BTreeMap<SourceRef, UnsupportedSource>,
    /// Selected sources that are not sent, because their copies cannot be rendered. Existing copies
    /// are left unchanged.
    pub render_errors: BTreeMap<SourceRef, RenderError>,
    /// Known Secrets whose values are used in copies of other sources.
    pub secret_refs: BTreeMap<SourceRef, SourceState>,
    /// Whether the rule selects bundles at all.
    selects_bundles: bool,
    /// The manifests of the selected bundles.
    manifests: Manifests,
    /// The scopes of the rule's sources that are not listed now.
    pub unknown: BTreeSet<WatchScope>,
    /// The scope of the hub's watches.
    pub scope: Scope,
    /// The sources of the last changes: a session with a former plan finds its delta without a
    /// comparison of whole sets.
    pub edits: Edits,
}

impl RulePlan {
    /// A plan without any source.
    pub fn empty(rule: &Rule) -> Self {
        let shown = Expected::with_ignored(&rule.terms.ignore_fields);
        Self {
            shown,
            selects_bundles: rule.selects_bundles(),
            manifests: Manifests::of(rule),
            ..Self::of(&rule.uid, &Scope::default())
        }
    }

    fn of(uid: &RuleUid, scope: &Scope) -> Self {
        Self {
            uid: uid.clone(),
            intents: CowSortedMap::default(),
            digest: SetDigest::default(),
            digests: BTreeMap::new(),
            shown: Expected::default(),
            unread: BTreeSet::new(),
            unreadable: BTreeSet::new(),
            refused: BTreeMap::new(),
            render_errors: BTreeMap::new(),
            secret_refs: BTreeMap::new(),
            selects_bundles: false,
            manifests: Manifests::default(),
            unknown: BTreeSet::new(),
            scope: scope.clone(),
            edits: Edits::default(),
        }
    }

    /// Whether the state of a source is unknown: its copies, of any name, must not be removed or
    /// changed.
    pub fn is_unknown(&self, source: &SourceRef) -> bool {
        let source = &source.plain();
        self.unread.contains(source)
            || self.unreadable.contains(source)
            || self.render_errors.contains_key(source)
            || self.is_unseen(source)
            || self.has_unknown_bundle(&source.namespace)
    }

    /// Whether it is unknown if this object exists.
    fn is_unseen(&self, source: &SourceRef) -> bool {
        !self.scope.reads(&source.namespace)
            || self.unknown.iter().any(|scope| scope.contains(source))
    }

    /// Returns every selected source, with known or unknown content.
    pub fn all_selected(&self) -> impl Iterator<Item = &SourceRef> {
        let never_read = self
            .unreadable
            .iter()
            .filter(|source| !self.intents.contains_key(*source));
        self.intents.keys().chain(&self.unread).chain(never_read)
    }

    /// Whether the source is selected, with known or unknown content.
    pub fn selects(&self, source: &SourceRef) -> bool {
        self.intents.contains_key(source)
            || self.manifests.has(source)
            || self.unread.contains(source)
            || self.unreadable.contains(source)
    }

    /// Objects that the rule selects and that may be distributed, those that cannot be read now included.
    pub fn sources(&self) -> usize {
        let never_read = self
            .unreadable
            .iter()
            .filter(|source| !self.intents.contains_key(*source));
        let sent = self.intents.len() + self.manifests.refused();
        sent + self.unread.len() + never_read.count()
    }

    /// Sets the state of a source in the rule (`None`: not selected). Returns the source, and the intents of a bundle that
    /// may have changed. The cost hardly depends on the number of sources, also while sessions share the plan as it was.
    pub fn set(
        &mut self,
        source: &SourceRef,
        selected: Option<&SourceState>,
    ) -> Arc<BTreeSet<SourceRef>> {
        let before = self.digest;
        self.note(source, selected);
        let content = match selected {
            Some(SourceState::Read(content) | SourceState::Stale(content)) => Some(content),
            _ => None,
        };
        let touched = Arc::new(self.set_content(source, content));
        self.edits.note(before, touched.clone());
        touched
    }

    /// Records the state of the content of a source.
    fn note(&mut self, source: &SourceRef, selected: Option<&SourceState>) {
        self.unread.remove(source);
        self.unreadable.remove(source);
        self.refused.remove(source);
        match selected {
            None | Some(SourceState::Read(_)) => {}
            Some(SourceState::Refused(refused)) => {
                self.refused.insert(source.clone(), *refused);
                if refused.keeps_copies() {
                    self.unreadable.insert(source.clone());
                }
            }
            Some(SourceState::Stale(_) | SourceState::Unreadable) => {
                self.unreadable.insert(source.clone());
            }
            Some(SourceState::Unread) => drop(self.unread.insert(source.clone())),
        }
    }

    fn put_in(&mut self, intent: SourceRef, content: Arc<SourceContent>) {
        self.digest.insert(&intent, &content.revision);
        self.digests
            .entry(intent.resource.clone())
            .or_default()
            .insert(&intent, &content.revision);
        self.shown.put_in(&intent, &content);
        self.intents.insert(intent, content);
    }

    fn remove_content(&mut self, intent: &SourceRef) {
        if let Some(content) = self.intents.remove(intent) {
            self.digest.remove(intent, &content.revision);
            if let Some(digest) = self.digests.get_mut(&intent.resource) {
                digest.remove(intent, &content.revision);
                if *digest == SetDigest::default() {
                    self.digests.remove(&intent.resource);
                }
            }
            self.shown.remove(intent, &content);
        }
    }

    /// Whether the plan contains a source, for any reason.
    pub fn names(&self, source: &SourceRef) -> bool {
        self.selects(source)
            || self.refused.contains_key(source)
            || self.secret_refs.contains_key(source)
    }

    /// Whether the content of a source is still being read for the first time.
    pub fn awaits(&self, source: &SourceRef) -> bool {
        self.unread.contains(source)
            || matches!(self.secret_refs.get(source), Some(SourceState::Unread))
    }

    /// The selected objects that differ from a former plan, with those that are deleted.
    pub fn changed_since(&self, former: &RulePlan) -> Vec<SourceRef> {
        let both: BTreeSet<&SourceRef> = self.objects().chain(former.objects()).collect();
        let changed = both
            .into_iter()
            .filter(|source| !former.is_unchanged_by(source, self.object_state(source).as_ref()));
        changed.cloned().collect()
    }

    /// Returns the known state of the content of a selected object. That of an intent is [`RulePlan::body`]: a bundle is an
    /// object, and its manifests are intents.
    pub fn object_state(&self, object: &SourceRef) -> Option<SourceState> {
        let content = self.object_content(object).cloned();
        self.state_with(object, content)
    }

    /// Returns the known state of an intent's content.
    pub fn body(&self, source: &SourceRef) -> Option<SourceState> {
        self.state_with(source, self.intents.get(source).cloned())
    }

    fn state_with(
        &self,
        source: &SourceRef,
        content: Option<Arc<SourceContent>>,
    ) -> Option<SourceState> {
        match content {
            Some(content) if self.unreadable.contains(source) => Some(SourceState::Stale(content)),
            Some(content) => Some(SourceState::Read(content)),
            None if self.unread.contains(source) => Some(SourceState::Unread),
            None => match self.refused.get(source) {
                Some(refused) => Some(SourceState::Refused(*refused)),
                None if self.unreadable.contains(source) => Some(SourceState::Unreadable),
                None => None,
            },
        }
    }

    /// Every selected source, each manifest of a bundle included.
    pub fn selected(&self) -> impl Iterator<Item = &SourceRef> {
        let never_read = self
            .unreadable
            .iter()
            .filter(|source| !self.intents.contains_key(*source));
        self.intents
            .keys()
            .chain(&self.unread)
            .chain(never_read)
            .chain(self.never_distributed())
    }

    /// Every selected source that is never distributed, and of which no copies stay.
    fn never_distributed(&self) -> impl Iterator<Item = &SourceRef> {
        let refused = self.refused.iter();
        refused.filter_map(|(source, refused)| (!refused.keeps_copies()).then_some(source))
    }

    /// Every selected source, and the manifests that cannot be sent.
    fn all_rendered(&self) -> impl Iterator<Item = &SourceRef> {
        self.selected().chain(self.render_errors.keys())
    }

    /// Every selected object, and not the manifests of bundles.
    pub fn objects(&self) -> impl Iterator<Item = &SourceRef> {
        self.objects_with_content()
            .chain(&self.unread)
            .chain(&self.unreadable)
            .chain(self.never_distributed())
    }

    /// Whether [`RulePlan::set`] with this would change nothing.
    pub fn is_unchanged_by(&self, source: &SourceRef, selected: Option<&SourceState>) -> bool {
        let intent = self.object_content(source);
        let flags = (
            self.unread.contains(source),
            self.unreadable.contains(source),
            self.refused.get(source),
        );
        let holds = |content: &SourceContent| intent.is_some_and(|acked| acked.is(content));
        match selected {
            None => intent.is_none() && flags == (false, false, None),
            Some(SourceState::Refused(refused)) => {
                intent.is_none() && flags == (false, refused.keeps_copies(), Some(refused))
            }
            Some(SourceState::Read(content)) => holds(content) && flags == (false, false, None),
            Some(SourceState::Stale(content)) => holds(content) && flags == (false, true, None),
            Some(SourceState::Unread) => intent.is_none() && flags == (true, false, None),
            Some(SourceState::Unreadable) => intent.is_none() && flags == (false, true, None),
        }
    }

    /// Whether two plans have equal content.
    pub fn has_equal_content(&self, other: &RulePlan) -> bool {
        self.digest == other.digest
            && self.unread == other.unread
            && self.unreadable == other.unreadable
            && self.refused == other.refused
            && self.render_errors == other.render_errors
            && self.unknown == other.unknown
            && self.has_same_references(other)
            && self.selects_bundles == other.selects_bundles
            && self.manifests.has_equal_content(&other.manifests)
            && self.scope == other.scope
            && self.intents.len() == other.intents.len()
            && self.shown.is_like(&other.shown)
    }
}

/// Plans a rule from scratch. The order of `sources` does not matter.
///
/// `is_known` tells whether a scope is listed: its watch has delivered a complete list and is not
/// forbidden.
pub fn plan<'a>(
    rule: &Rule,
    sources: impl IntoIterator<Item = (&'a SourceRef, &'a Source)>,
    scope: &Scope,
    is_known: impl Fn(&WatchScope) -> bool,
) -> RulePlan {
    let mut plan = RulePlan::empty(rule);
    plan.unknown = rule
        .places(scope)
        .into_iter()
        .filter(|scope| !is_known(scope))
        .collect();
    plan.scope = scope.clone();
    for (reference, source) in sources {
        if let Some(state) = rule.selected_state(reference, &source.labels, &source.body) {
            plan.set(reference, Some(&state));
        }
        if rule.reads_secret(reference) {
            plan.set_referenced(reference, Some(&source.body));
        }
    }
    plan.edits = Edits::default();
    plan
}

/// Changes that are remembered. A reader that is further behind compares everything.
const REMEMBERED: usize = 16;

/// The last changes of a plan, computed once for all sessions.
#[derive(Clone, Default)]
pub struct Edits(VecDeque<Edit>);

#[derive(Clone)]
struct Edit {
    /// The digest of the plan before it.
    before: SetDigest,
    touched: Arc<BTreeSet<SourceRef>>,
}

impl Edits {
    /// The plan, which had this digest, was changed in these intents.
    fn note(&mut self, before: SetDigest, touched: Arc<BTreeSet<SourceRef>>) {
        if self.0.len() >= REMEMBERED {
            self.0.pop_front();
        }
        self.0.push_back(Edit { before, touched });
    }

    /// The intents that were touched since the plan had this digest; `None`: too long ago, or never.
    pub fn since(&self, digest: SetDigest) -> Option<Cow<'_, BTreeSet<SourceRef>>> {
        let first = self.0.iter().position(|edit| edit.before == digest)?;
        let mut edits = self.0.iter().skip(first).map(|edit| &edit.touched);
        let touched = Cow::Borrowed(&**edits.next()?);
        Some(edits.fold(touched, |mut all, more| {
            all.to_mut().extend(more.iter().cloned());
            all
        }))
    }
}

/// Number of cached digests of one content, by ignored fields.
const CACHED_DIGESTS: usize = 4;

/// The digests of one content by ignored fields. Plans change under the index lock and share
/// contents, so each content is decoded once per set of ignored fields, for up to four sets.
#[derive(Default)]
pub(crate) struct IgnoredFieldDigests(Mutex<Vec<CachedDigest>>);

type CachedDigest = (Arc<BTreeSet<FieldPath>>, ContentDigest);

impl IgnoredFieldDigests {
    /// Returns the digest without these fields. A failed computation is not cached.
    fn get(
        &self,
        ignored: &Arc<BTreeSet<FieldPath>>,
        compute: impl FnOnce() -> Option<ContentDigest>,
    ) -> Option<ContentDigest> {
        let mut kept = self.0.lock();
        if let Some((_, digest)) = kept
            .iter()
            .find(|(fields, _)| Arc::ptr_eq(fields, ignored) || fields == ignored)
        {
            return Some(*digest);
        }
        let digest = compute()?;
        if kept.len() >= CACHED_DIGESTS {
            kept.remove(0);
        }
        kept.push((ignored.clone(), digest));
        Some(digest)
    }
}

/// The sums of one plan.
#[derive(Clone, Default)]
struct Expected {
    kinds: BTreeMap<Arc<str>, LiveDigest>,
    /// The ignored fields of the rule.
    ignored: Arc<BTreeSet<FieldPath>>,
    /// Intents without a digest of their content.
    unknown: usize,
    /// The proof of all kinds together, computed at the first use after a change.
    total: OnceLock<Proof>,
}

impl Expected {
    /// Creates empty sums, with these ignored fields.
    fn with_ignored(ignored: &BTreeSet<FieldPath>) -> Self {
        Self {
            ignored: Arc::new(ignored.clone()),
            ..Self::default()
        }
    }

    /// Creates empty sums with the same ignored fields.
    fn emptied(&self) -> Self {
        Self {
            ignored: self.ignored.clone(),
            ..Self::default()
        }
    }

    /// Whether both ignore the same fields.
    fn is_like(&self, other: &Expected) -> bool {
        self.ignored == other.ignored
    }

    fn put_in(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.total = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self
                .kinds
                .entry(intent.resource.clone())
                .or_default()
                .insert(intent, digest),
            None => self.unknown += 1,
        }
    }

    fn remove(&mut self, intent: &SourceRef, content: &SourceContent) {
        self.total = OnceLock::new();
        match content.digest_without(&self.ignored) {
            Some(digest) => self
                .kinds
                .entry(intent.resource.clone())
                .or_default()
                .remove(intent, digest),
            None => self.unknown = self.unknown.saturating_sub(1),
        }
    }

    /// The proof of an agent that has applied everything that is sent under these terms; `None` if
    /// the hub cannot compute it.
    fn proof(&self, rule: &RuleUid, terms: &GrantedTerms, key: &ProofKey) -> Option<Proof> {
        if self.unknown > 0 {
            return None;
        }
        let sum = |kinds: &mut dyn Iterator<Item = &LiveDigest>| {
            let mut sum = LiveDigest::default();
            kinds.for_each(|shown| sum.merge(*shown));
            key.proof(rule, sum)
        };
        if self.kinds.keys().all(|kind| terms.grants_kind(kind)) {
            return Some(*self.total.get_or_init(|| sum(&mut self.kinds.values())));
        }
        let granted = self
            .kinds
            .iter()
            .filter(|(kind, _)| terms.grants_kind(kind));
        Some(sum(&mut granted.map(|(_, shown)| shown)))
    }
}

#[cfg(test)]
mod tests {
    use bytes::Bytes;
    use proptest::prelude::*;
    use runnel_proto::model::{Encoding, FieldMap, Payload, Revision};

    use super::*;

    fn body(number: u8) -> SourceState {
        let payload = Payload::encode(vec![number]);
        SourceState::Read(Arc::new(SourceContent::new(
            Revision([number; 16]),
            payload,
        )))
    }

    proptest! {
        #[test]
        fn changed_entries_have_a_newer_version(
            steps in proptest::collection::vec((0..8u8, proptest::option::of(0..3u8)), 1..40),
        ) {
            let source = |number: u8| SourceRef::new("configmaps", "team", &number.to_string());
            let mut plan = RulePlan::of(&"r".into(), &Scope::Everywhere);
            let mut former = vec![plan.clone()];
            for (number, content) in steps {
                plan.set(&source(number), content.map(body).as_ref());
                let behind = former.iter().rev().enumerate();
                for (behind, before) in behind {
                    let since = plan.edits.since(before.digest);
                    prop_assert!(since.is_some() || behind >= REMEMBERED, "{} changes are too many", behind + 1);
                    let Some(touched) = since else { continue };
                    let revision = |plan: &RulePlan, number| plan.intents.get(&source(number)).map(|it| it.revision);
                    let differs = (0..8).filter(|number| revision(before, *number) != revision(&plan, *number));
                    prop_assert!(differs.into_iter().all(|number| touched.contains(&source(number))));
                }
                former.push(plan.clone());
            }
        }
    }

    fn content(revision: u8, text: &str) -> SourceContent {
        let text = format!(r#"{{"fields":{{"data":{{"k":"{text}","own":"x"}}}}}}"#);
        SourceContent::new(Revision([revision; 16]), Payload::encode(text.into_bytes()))
    }

    fn with_ignored(key: &str) -> Expected {
        Expected::with_ignored(&BTreeSet::from([FieldPath::new(FieldMap::Data, key)]))
    }

    fn proof(expected: &Expected) -> Option<Proof> {
        let terms = GrantedTerms::unrestricted(NamedTerms::new(Default::default()));
        expected.proof(&"r".into(), &terms, &ProofKey::new([1; 32]))
    }

    #[test]
    fn each_mode_has_a_revision_of_its_own() {
        let plain = Arc::new(content(1, "one"));
        let [exact, only] =
            [CopyMode::Exact, CopyMode::CreateOnly].map(|mode| plain.in_mode(Some(mode)));
        assert!(Arc::ptr_eq(&plain, &plain.in_mode(None)));
        assert!(
            Arc::ptr_eq(&exact, &plain.in_mode(Some(CopyMode::Exact))),
            "it is made once"
        );
        let revisions = BTreeSet::from([&plain, &exact, &only].map(|content| content.revision));
        assert_eq!(revisions.len(), 3);
        let decoded = only.payload.decode().unwrap();
        assert_eq!(decoded.mode, Some(CopyMode::CreateOnly));
        assert!(decoded.fields == plain.payload.decode().unwrap().fields);
        // A stored state of a rule has its contents in the modes that they were sent in.
        let stored = Arc::new(SourceContent::new(only.revision, only.payload.clone()));
        assert!(Arc::ptr_eq(
            &stored,
            &stored.in_mode(Some(CopyMode::CreateOnly))
        ));
        assert_eq!(
            stored.in_mode(Some(CopyMode::Exact)).revision,
            exact.revision
        );
    }

    #[test]
    fn content_is_decoded_once_per_set_of_ignored_fields() {
        let (source, mut one) = (SourceRef::new("configmaps", "a", "s"), content(1, "one"));
        let (mut first, mut other) = (with_ignored("own"), with_ignored("own"));
        first.put_in(&source, &one);
        let right = proof(&first);
        assert!(right.is_some());
        // From now on the payload cannot be decoded.
        one.payload = Payload::from_wire(Encoding::Zstd, Bytes::from_static(b"none"), 4);
        assert!(one.payload.decode().is_err());
        other.put_in(&source, &one);
        assert_eq!(proof(&other), right);
        first.remove(&source, &one);
        first.put_in(&source, &content(2, "two"));
        assert!(proof(&first).is_some() && proof(&first) != right);
        // Other fields are another digest.
        let mut others = with_ignored("k");
        others.put_in(&source, &one);
        assert_eq!(proof(&others), None, "it cannot be told");
    }

    #[test]
    fn more_sets_of_fields_than_are_kept_change_no_sum() {
        let (source, one) = (SourceRef::new("configmaps", "a", "s"), content(1, "one"));
        let names = ["k", "own", "a", "b", "c", "d", "e"];
        let mut plans: Vec<_> = names.iter().map(|name| with_ignored(name)).collect();
        plans.iter_mut().for_each(|plan| plan.put_in(&source, &one));
        assert!(one.without.0.lock().len() <= CACHED_DIGESTS);
        plans.iter_mut().for_each(|plan| plan.remove(&source, &one));
        for mut plan in plans {
            let mut fresh = plan.emptied();
            fresh.put_in(&source, &content(2, "two"));
            plan.put_in(&source, &content(2, "two"));
            assert_eq!(proof(&plan), proof(&fresh));
        }
    }
}
