//! Renders the contents of copies: once for each source and each combination of cluster values that
//! the rule reads, independent of the number of clusters with equal values.
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};

use runnel_proto::model::{ClusterName, Content, Revision, RevisionKey, SourceRef};

use super::rendered_plan::RenderOutcome;
use super::shape::{ShapeError, TemplateContext, TemplateInputs};
use super::{RenderError, Rule, RulePlan, SecretRefs, SourceContent, SourceState, is_bundle};

/// The default limit of rendered content of one rule, in bytes.
pub const RENDER_BUDGET: u64 = 128 * 1024 * 1024;

/// The overhead of a rendered content in the plans of its clusters, in bytes.
const OVERHEAD: u64 = 512;

/// Bytes of JSON that one rendering of a rule may work through, for each byte of its budget.
const WORK: u64 = 32;

/// Computes revisions of rendered contents, and bounds their size and the work.
#[derive(Clone)]
pub struct RevisionHasher {
    key: RevisionKey,
    budget: u64,
    stop: StopFlag,
    /// Called between two renderings.
    pause: Option<Arc<dyn Fn() + Send + Sync>>,
}

/// Ends the rendering of a preview from another thread.
#[derive(Clone, Default)]
pub struct StopFlag(Arc<AtomicBool>);

impl StopFlag {
    /// Ends it. What is rendered so far is not complete.
    pub fn set(&self) {
        self.0.store(true, Ordering::Relaxed);
    }

    /// Whether it is to end.
    pub fn is_set(&self) -> bool {
        self.0.load(Ordering::Relaxed)
    }
}

impl RevisionHasher {
    /// Creates a hasher with the hub's key.
    pub fn new(key: RevisionKey) -> Self {
        Self {
            key,
            budget: RENDER_BUDGET,
            stop: StopFlag::default(),
            pause: None,
        }
    }

    /// Calls `pause` between two renderings, without a lock.
    pub(crate) fn paced(self, pause: impl Fn() + Send + Sync + 'static) -> Self {
        Self {
            pause: Some(Arc::new(pause)),
            ..self
        }
    }

    /// Another rendering follows.
    pub(super) fn pause(&self) {
        if let Some(pause) = &self.pause {
            pause();
        }
    }

    /// Renders nothing more once the flag is set.
    pub(crate) fn until(&mut self, stop: StopFlag) {
        self.stop = stop;
    }

    /// Whether nothing more is to be rendered.
    pub(super) fn is_stopped(&self) -> bool {
        self.stop.is_set()
    }

    /// With this budget of rendered bytes for each rule.
    pub fn with_budget(self, budget: u64) -> Self {
        Self { budget, ..self }
    }

    /// Returns the limit of rendered content of one rule, in bytes.
    pub(crate) fn budget(&self) -> u64 {
        if self.is_stopped() { 0 } else { self.budget }
    }

    fn revision(&self, resource: &str, canonical: &[u8]) -> Revision {
        self.key.revision(resource, canonical)
    }
}

impl Default for RevisionHasher {
    /// Creates a hasher with an empty key: its revisions distinguish contents and protect nothing.
    fn default() -> Self {
        Self::new(RevisionKey::new(&[]))
    }
}

/// The contents that were rendered, for as long as some plan has them: equal ones are one.
#[derive(Default)]
pub(super) struct Contents {
    sources: BTreeMap<SourceRef, SourceContents>,
    spent: Spent,
}

/// What the contents cost.
#[derive(Default)]
struct Spent {
    /// The bytes that are rendered, or were for clusters that have left since the last count.
    bytes: u64,
    /// The bytes of JSON that were worked through since [`Contents::begin`], whatever came of it.
    work: u64,
}

/// The rendered contents of one source in one version.
struct SourceContents {
    of: Arc<SourceContent>,
    /// The bundle with the manifest that the source is.
    bundle: Option<SourceRef>,
    /// The cluster properties that the rule uses.
    reads: TemplateInputs,
    /// The positions of the named keys that it has.
    keys: Vec<usize>,
    /// Rendered contents by those properties.
    rendered: BTreeMap<Box<str>, CachedRendering>,
    /// Equal ones are one.
    contents: BTreeMap<[u8; 16], Weak<SourceContent>>,
    bytes: u64,
}

#[derive(Clone)]
enum CachedRendering {
    /// The content of the source, unchanged.
    AsSource,
    Content(Weak<SourceContent>),
    Failed(RenderError),
}

impl Contents {
    /// The bytes that are rendered, or were for clusters that have left since the last count.
    pub(super) fn bytes(&self) -> u64 {
        self.spent.bytes
    }

    /// Counts the work from here.
    pub(super) fn begin(&mut self) {
        self.spent.work = 0;
    }

    /// Whether the work is within the limit that belongs to a budget.
    pub(super) fn works_within(&self, budget: u64) -> bool {
        self.spent.work <= budget.saturating_mul(WORK)
    }

    /// Counts the stored contents again, and drops those that no plan has.
    pub(super) fn recount(&mut self) -> u64 {
        self.spent.bytes = 0;
        for of in self.sources.values_mut() {
            of.contents.retain(|_, content| content.strong_count() > 0);
            of.rendered.retain(|_, rendered| match rendered {
                CachedRendering::Content(content) => content.strong_count() > 0,
                CachedRendering::AsSource | CachedRendering::Failed(_) => true,
            });
            let sizes = of
                .contents
                .values()
                .filter_map(Weak::upgrade)
                .map(|content| weight(&content));
            of.bytes = sizes.fold(0, u64::saturating_add);
            self.spent.bytes = self.spent.bytes.saturating_add(of.bytes);
        }
        self.spent.bytes
    }

    /// Returns the positions of named keys, of this number, that none of the sources has; `None` if the content of a
    /// source is not known.
    pub(super) fn missing_keys<'s>(
        &self,
        named: usize,
        sources: impl Iterator<Item = &'s SourceRef>,
    ) -> Option<BTreeSet<usize>> {
        let mut missing: BTreeSet<usize> = (0..named).collect();
        for source in sources {
            for key in &self.sources.get(source)?.keys {
                missing.remove(key);
            }
            if missing.is_empty() {
                break;
            }
        }
        Some(missing)
    }

    #[cfg(test)]
    pub(super) fn sources(&self) -> usize {
        self.sources.len()
    }

    /// Drops the contents of sources that are not selected.
    pub(super) fn retain(&mut self, is_selected: impl Fn(&SourceRef) -> bool) {
        self.sources.retain(|source, of| {
            let stays = is_selected(source);
            if !stays {
                self.spent.bytes = self.spent.bytes.saturating_sub(of.bytes);
            }
            stays
        });
    }

    /// Drops the contents of a source.
    pub(super) fn forget(&mut self, source: &SourceRef) {
        if let Some(of) = self.sources.remove(source) {
            self.spent.bytes = self.spent.bytes.saturating_sub(of.bytes);
        }
    }
}

fn weight(content: &SourceContent) -> u64 {
    OVERHEAD.saturating_add(content.payload.bytes().len() as u64)
}

/// Renders one source.
pub(super) struct Renderer<'a> {
    rule: &'a Rule,
    source: &'a SourceRef,
    body: Option<&'a SourceState>,
    /// The bundle with the manifest that the source is.
    bundle: Option<&'a SourceRef>,
    /// Why the source is not sent, whatever the cluster.
    refused: Option<&'a RenderError>,
    secret_refs: SecretRefs<'a>,
    revision_hasher: &'a RevisionHasher,
    /// The decoded content and the labels and annotations that need permission, shared by all
    /// clusters.
    decoded: OnceCell<Option<(Content, Content)>>,
}

impl<'a> Renderer<'a> {
    pub(super) fn new(
        rule: &'a Rule,
        source: &'a SourceRef,
        body: Option<&'a SourceState>,
        selection: &'a RulePlan,
        revision_hasher: &'a RevisionHasher,
    ) -> Self {
        Self {
            rule,
            source,
            body,
            bundle: selection.bundle_of(source),
            refused: selection.render_errors.get(source),
            secret_refs: SecretRefs::of(selection),
            revision_hasher,
            decoded: OnceCell::new(),
        }
    }

    /// Returns the copies whose name depends on the cluster, without their content, which is not
    /// known yet.
    pub(super) fn awaited(
        &self,
        cluster: &ClusterName,
        labels: &BTreeMap<String, String>,
    ) -> Option<RenderOutcome> {
        if let Some(why) = self.refused {
            return Some(RenderOutcome::Failed(None, why.clone()));
        }
        // A bundle itself has no copies.
        if matches!(self.body?, SourceState::Refused(_)) || is_bundle(self.source) {
            return None;
        }
        Some(match self.rule.shape.name(self.about(cluster, labels)) {
            Ok(name) => RenderOutcome::Copy(name, None),
            Err(why) => RenderOutcome::Failed(None, why),
        })
    }

    fn about<'c>(
        &'c self,
        cluster: &'c ClusterName,
        labels: &'c BTreeMap<String, String>,
    ) -> TemplateContext<'c> {
        TemplateContext {
            source: self.source,
            bundle: self.bundle,
            cluster,
            labels,
        }
    }

    pub(super) fn outcome(
        &self,
        cluster: &ClusterName,
        labels: &BTreeMap<String, String>,
        contents: &mut Contents,
    ) -> Option<RenderOutcome> {
        let awaited = self.awaited(cluster, labels)?;
        let Some(SourceState::Read(content) | SourceState::Stale(content)) = self.body else {
            return Some(awaited);
        };
        let RenderOutcome::Copy(name, _) = awaited else {
            return Some(awaited);
        };
        if self.rule.shape.leaves_content() {
            return Some(self.copy(name, content.clone()));
        }
        let about = self.about(cluster, labels);
        let Some((of, spent)) = self.of_source(content, contents) else {
            return Some(RenderOutcome::Copy(name, None));
        };
        let read = self.rule.shape.read(&of.reads, about);
        let known = of.rendered.get(read.as_str()).cloned();
        let rendered = match known {
            Some(CachedRendering::AsSource) => Ok(content.clone()),
            Some(CachedRendering::Failed(why)) => Err(ShapeError::Failed(why)),
            Some(CachedRendering::Content(known)) => match known.upgrade() {
                Some(content) => Ok(content),
                None => self.render(content, (of, spent), read, about),
            },
            None => self.render(content, (of, spent), read, about),
        };
        Some(match rendered {
            Ok(content) => self.copy(name, content),
            Err(ShapeError::Awaited) => RenderOutcome::Copy(name, None),
            Err(ShapeError::Failed(why)) => RenderOutcome::Failed(Some(name), why),
        })
    }

    fn decoded(&self, content: &SourceContent) -> Option<&(Content, Content)> {
        let decode = || {
            let denied = content
                .denied
                .as_ref()
                .map_or_else(|| Some(Content::default()), |denied| denied.decode().ok());
            Some((content.payload.decode().ok()?, denied?))
        };
        // The hub can decode its own payloads.
        self.decoded.get_or_init(decode).as_ref()
    }

    fn of_source<'c>(
        &self,
        content: &Arc<SourceContent>,
        contents: &'c mut Contents,
    ) -> Option<(&'c mut SourceContents, &'c mut Spent)> {
        if contents
            .sources
            .get(self.source)
            .is_none_or(|known| !known.of.is(content) || known.bundle.as_ref() != self.bundle)
        {
            let (plain, _) = self.decoded(content)?;
            let fresh = SourceContents {
                of: content.clone(),
                bundle: self.bundle.cloned(),
                reads: self.rule.shape.reads(self.source, plain),
                keys: self.rule.shape.found_keys(plain),
                rendered: BTreeMap::new(),
                contents: BTreeMap::new(),
                bytes: 0,
            };
            contents.forget(self.source);
            contents.sources.insert(self.source.clone(), fresh);
        }
        Some((contents.sources.get_mut(self.source)?, &mut contents.spent))
    }

    fn render(
        &self,
        content: &Arc<SourceContent>,
        (of, spent): (&mut SourceContents, &mut Spent),
        read: String,
        about: TemplateContext<'_>,
    ) -> Result<Arc<SourceContent>, ShapeError> {
        let work = content.payload.size() as usize + self.rule.shape.patch_bytes(about);
        spent.work = spent.work.saturating_add(OVERHEAD + work as u64);
        let Some((plain, denied)) = self.decoded(content) else {
            return Err(ShapeError::Awaited);
        };
        let (rendered, result) =
            match self
                .rule
                .shape
                .content(plain.clone(), denied, about, &self.secret_refs)
            {
                Ok(shaped) if shaped == *plain => (CachedRendering::AsSource, Ok(content.clone())),
                Ok(shaped) => {
                    let canonical = shaped.to_bytes();
                    let revision = self
                        .revision_hasher
                        .revision(&self.source.resource, &canonical);
                    let known = of.contents.get(&revision.0).and_then(Weak::upgrade);
                    let content = known.unwrap_or_else(|| {
                        let content = Arc::new(SourceContent::of(revision, &shaped, canonical));
                        of.contents.insert(revision.0, Arc::downgrade(&content));
                        of.bytes = of.bytes.saturating_add(weight(&content));
                        spent.bytes = spent.bytes.saturating_add(weight(&content));
                        content
                    });
                    (
                        CachedRendering::Content(Arc::downgrade(&content)),
                        Ok(content),
                    )
                }
                Err(ShapeError::Awaited) => return Err(ShapeError::Awaited),
                Err(ShapeError::Failed(why)) => (
                    CachedRendering::Failed(why.clone()),
                    Err(ShapeError::Failed(why)),
                ),
            };
        of.rendered.insert(read.into(), rendered);
        result
    }

    fn copy(&self, name: Arc<str>, content: Arc<SourceContent>) -> RenderOutcome {
        RenderOutcome::Copy(
            self.rule
                .shape
                .versioned(name, self.source, &content.revision),
            Some(content),
        )
    }
}
