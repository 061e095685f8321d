//! Makes what is sent out of what a rule selects: per cluster where the rule says different things to different
//! clusters, and once for all of them where it does not.
//!
//! Clusters that get the same share one [`RulePlan`], and where they do not, the contents that are equal are one
//! allocation. An edit of a source costs its own outcome in each cluster, not that of the whole plan.
use std::cell::OnceCell;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Weak};

use runnel_proto::model::{ClusterName, Content, Revision, RevisionKey, SetDigest, SourceRef};

use super::made::{Made, Outcome};
use super::shape::{About, Unmade};
use super::{Body, Lent, Rule, RulePlan, SourceContent};

/// The labels of a cluster.
pub type Labels = Arc<BTreeMap<String, String>>;

/// Names contents that the hub has made itself.
#[derive(Clone)]
pub struct Minter(RevisionKey);

impl Minter {
    /// Names them with the hub's key.
    pub fn new(key: RevisionKey) -> Self {
        Self(key)
    }

    fn revision(&self, resource: &str, canonical: &[u8]) -> Revision {
        self.0.revision(resource, canonical)
    }
}

impl Default for Minter {
    /// With an empty key: revisions that tell contents apart, and keep nothing secret.
    fn default() -> Self {
        Self(RevisionKey::new(&[]))
    }
}

/// What of one rule is sent where.
#[derive(Default)]
pub struct Deal {
    to: To,
    contents: Contents,
}

#[derive(Default)]
enum To {
    /// To all clusters, just what is selected.
    #[default]
    AsSelected,
    /// The same to all clusters.
    Alike(Box<Made>),
    /// To each cluster what it should have.
    Each(BTreeMap<ClusterName, Cut>),
}

/// What one cluster gets.
#[derive(Clone)]
struct Cut {
    labels: Labels,
    made: Arc<Made>,
}

impl Deal {
    /// What is sent of this selection to these clusters.
    pub fn new(
        rule: &Rule,
        selection: &RulePlan,
        clusters: impl Iterator<Item = (ClusterName, Labels)>,
        minter: &Minter,
    ) -> Self {
        let mut deal = Self::default();
        let nothing = Made::nothing(selection, rule.terms.namespaces.is_some());
        if rule.shape.differs_by_cluster() {
            let made = Arc::new(nothing);
            deal.to = To::Each(clusters.map(|(name, labels)| (name, Cut { labels, made: made.clone() })).collect());
        } else if rule.sends_as_selected() {
            return deal;
        } else {
            deal.to = To::Alike(nothing.into());
        }
        for source in selection.selected() {
            deal.set(rule, selection, source, minter);
        }
        deal.share();
        deal
    }

    /// A source has become something else to the rule.
    pub fn update(&mut self, rule: &Rule, selection: &RulePlan, source: &SourceRef, minter: &Minter) {
        self.set(rule, selection, source, minter);
        self.share();
    }

    /// A Secret from which values are taken has become something else: so may all Secrets beside it.
    pub fn update_lent(&mut self, rule: &Rule, selection: &RulePlan, secret: &SourceRef, minter: &Minter) {
        let beside = |source: &&SourceRef| source.resource == secret.resource && source.namespace == secret.namespace;
        for source in selection.selected().filter(beside) {
            self.set(rule, selection, source, minter);
        }
        self.share();
    }

    /// A cluster has these labels now, or (`None`) gets nothing any more. Returns whether it gets something else.
    pub fn set_cluster(
        &mut self,
        rule: &Rule,
        selection: &RulePlan,
        cluster: &ClusterName,
        labels: Option<&BTreeMap<String, String>>,
        minter: &Minter,
    ) -> bool {
        let To::Each(cuts) = &mut self.to else { return false };
        let Some(labels) = labels else { return cuts.remove(cluster).is_some() };
        let former = cuts.get(cluster);
        if former.is_some_and(|former| *former.labels == *labels) {
            return false;
        }
        let mut made = Made::nothing(selection, rule.terms.namespaces.is_some());
        for source in selection.selected() {
            let body = selection.body(source);
            let maker = Maker::new(rule, source, body.as_ref(), selection, minter);
            made.set(source, body.as_ref(), maker.outcome(cluster, labels, &mut self.contents));
        }
        let changed = former.is_none_or(|former| !former.made.says_the_same(&made));
        let made = former.filter(|_| !changed).map_or_else(|| Arc::new(made), |former| former.made.clone());
        cuts.insert(cluster.clone(), Cut { labels: Arc::new(labels.clone()), made });
        self.share();
        changed
    }

    /// What is sent to a cluster that the rule chooses, of this selection.
    pub fn plan<'a>(&'a self, cluster: &ClusterName, selection: &'a Arc<RulePlan>) -> Option<&'a Arc<RulePlan>> {
        match &self.to {
            To::AsSelected => Some(selection),
            _ => self.made(cluster),
        }
    }

    /// What is sent to every cluster, of this selection; or to each, with its name, where that may differ.
    pub fn plans<'a>(
        &'a self,
        selection: &'a RulePlan,
    ) -> Box<dyn Iterator<Item = (Option<&'a ClusterName>, &'a RulePlan)> + 'a> {
        match &self.to {
            To::AsSelected => Box::new(std::iter::once((None, selection))),
            To::Alike(made) => Box::new(std::iter::once((None, &*made.plan))),
            To::Each(cuts) => Box::new(cuts.iter().map(|(name, cut)| (Some(name), &*cut.made.plan))),
        }
    }

    /// What was made for a cluster; `None`: just what is selected.
    pub fn made(&self, cluster: &ClusterName) -> Option<&Arc<RulePlan>> {
        match &self.to {
            To::AsSelected => None,
            To::Alike(made) => Some(&made.plan),
            To::Each(cuts) => cuts.get(cluster).map(|cut| &cut.made.plan),
        }
    }

    /// Whether what is sent may differ between clusters.
    pub fn differs_by_cluster(&self) -> bool {
        matches!(self.to, To::Each(_))
    }

    /// How many different things are sent.
    pub fn outcomes(&self) -> usize {
        match &self.to {
            To::AsSelected | To::Alike(_) => 1,
            To::Each(cuts) => cuts.values().map(|cut| Arc::as_ptr(&cut.made)).collect::<BTreeSet<_>>().len(),
        }
    }

    /// Whether two send the same everywhere.
    pub fn says_the_same(&self, other: &Deal) -> bool {
        match (&self.to, &other.to) {
            (To::AsSelected, To::AsSelected) => true,
            (To::Alike(one), To::Alike(two)) => one.says_the_same(two),
            (To::Each(one), To::Each(two)) => {
                let same = |(name, cut): (&ClusterName, &Cut)| {
                    two.get(name)
                        .is_some_and(|other| Arc::ptr_eq(&cut.made, &other.made) || cut.made.says_the_same(&other.made))
                };
                one.len() == two.len() && one.iter().all(same)
            }
            _ => false,
        }
    }

    fn set(&mut self, rule: &Rule, selection: &RulePlan, source: &SourceRef, minter: &Minter) {
        let body = selection.body(source);
        let maker = Maker::new(rule, source, body.as_ref(), selection, minter);
        self.contents.forget_dead(source);
        match &mut self.to {
            To::AsSelected => {}
            To::Alike(made) => {
                let outcome = maker.outcome(&"".into(), &BTreeMap::new(), &mut self.contents);
                made.set(source, body.as_ref(), outcome);
            }
            To::Each(cuts) => {
                // Clusters that shared a plan and get the same now share it again.
                let mut made_of: Vec<(Arc<Made>, Option<Outcome>, Arc<Made>)> = Vec::new();
                let mut by_former: BTreeMap<*const Made, Vec<usize>> = BTreeMap::new();
                for (cluster, cut) in cuts.iter_mut() {
                    let outcome = maker.outcome(cluster, &cut.labels, &mut self.contents);
                    if let Some(made) = Arc::get_mut(&mut cut.made) {
                        made.set(source, body.as_ref(), outcome);
                        continue;
                    }
                    let same = |other: &Option<Outcome>| match (other, &outcome) {
                        (Some(other), Some(outcome)) => other.is(outcome),
                        (None, None) => true,
                        _ => false,
                    };
                    let known = by_former.entry(Arc::as_ptr(&cut.made)).or_default();
                    let now = match known.iter().find(|at| same(&made_of[**at].1)) {
                        Some(at) => made_of[*at].2.clone(),
                        None => {
                            let mut now = Made::clone(&cut.made);
                            now.set(source, body.as_ref(), outcome.clone());
                            let now = Arc::new(now);
                            known.push(made_of.len());
                            made_of.push((cut.made.clone(), outcome, now.clone()));
                            now
                        }
                    };
                    cut.made = now;
                }
            }
        }
    }

    /// Clusters that get the same share it, however it came about.
    fn share(&mut self) {
        let To::Each(cuts) = &mut self.to else { return };
        let mut known: BTreeMap<[u8; 16], Vec<Arc<Made>>> = BTreeMap::new();
        for cut in cuts.values_mut() {
            let same_digest = known.entry(SetDigest::to_bytes(cut.made.plan.digest)).or_default();
            let twin = same_digest.iter().find(|made| Arc::ptr_eq(made, &cut.made) || made.says_the_same(&cut.made));
            match twin {
                Some(twin) => cut.made = twin.clone(),
                None => same_digest.push(cut.made.clone()),
            }
        }
    }
}

/// The contents that were made, for as long as some plan has them: equal ones are one.
#[derive(Default)]
struct Contents(BTreeMap<(SourceRef, Revision), Weak<SourceContent>>);

impl Contents {
    fn made(&mut self, source: &SourceRef, content: &Content, minter: &Minter) -> Arc<SourceContent> {
        let canonical = content.to_bytes();
        let revision = minter.revision(&source.resource, &canonical);
        let known = self.0.entry((source.clone(), revision)).or_default();
        known.upgrade().unwrap_or_else(|| {
            let made = Arc::new(SourceContent::of(revision, content, canonical));
            *known = Arc::downgrade(&made);
            made
        })
    }

    fn forget_dead(&mut self, source: &SourceRef) {
        let own = self.0.range((source.clone(), Revision([0; 16]))..=(source.clone(), Revision([u8::MAX; 16])));
        let dead: Vec<_> = own.filter(|(_, made)| made.strong_count() == 0).map(|(key, _)| key.clone()).collect();
        for key in dead {
            self.0.remove(&key);
        }
    }
}

/// Makes the outcomes of one source.
struct Maker<'a> {
    rule: &'a Rule,
    source: &'a SourceRef,
    body: Option<&'a Body>,
    lent: Lent<'a>,
    minter: &'a Minter,
    /// The content and what is not copied unless it is allowed, decoded once for all clusters.
    decoded: OnceCell<Option<(Content, Content)>>,
}

impl<'a> Maker<'a> {
    fn new(
        rule: &'a Rule,
        source: &'a SourceRef,
        body: Option<&'a Body>,
        selection: &'a RulePlan,
        minter: &'a Minter,
    ) -> Self {
        Self { rule, source, body, lent: Lent::of(selection), minter, decoded: OnceCell::new() }
    }

    fn outcome(
        &self,
        cluster: &ClusterName,
        labels: &BTreeMap<String, String>,
        contents: &mut Contents,
    ) -> Option<Outcome> {
        let content = match self.body? {
            Body::Refused(_) => return None,
            Body::Unread | Body::Unreadable => None,
            Body::Read(content) | Body::Stale(content) => Some(content),
        };
        let about = About { source: self.source, cluster, labels };
        let name = match self.rule.shape.name(about) {
            Ok(name) => name,
            Err(why) => return Some(Outcome::Withheld(None, why)),
        };
        let Some(content) = content else { return Some(Outcome::Copy(name, None)) };
        if self.rule.shape.leaves_content() {
            return Some(self.copy(name, content.clone()));
        }
        let decoded = self.decoded.get_or_init(|| {
            let denied =
                content.denied.as_ref().map_or_else(|| Some(Content::default()), |denied| denied.decode().ok());
            Some((content.payload.decode().ok()?, denied?))
        });
        // What this hub has encoded it decodes.
        let Some((plain, denied)) = decoded else { return Some(Outcome::Copy(name, None)) };
        Some(match self.rule.shape.content(plain.clone(), denied, about, &self.lent) {
            Ok(shaped) if shaped == *plain => self.copy(name, content.clone()),
            Ok(shaped) => self.copy(name, contents.made(self.source, &shaped, self.minter)),
            Err(Unmade::Awaited) => Outcome::Copy(name, None),
            Err(Unmade::Withheld(why)) => Outcome::Withheld(Some(name), why),
        })
    }
    fn copy(&self, name: Arc<str>, content: Arc<SourceContent>) -> Outcome {
        Outcome::Copy(self.rule.shape.versioned(name, self.source, &content.revision), Some(content))
    }
}
