//! The state of the watches of this cluster: which lists are complete, and which watches are lost.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{LostWatch, NAMESPACES, SourceRef};

use crate::classify;
use crate::copy::CopyError;
use crate::policy::{Area, Policy};

/// The watch of one area.
#[derive(Default)]
pub(super) struct Watch {
    /// The names of a list that is not complete yet.
    pub(super) listing: Option<BTreeSet<SourceRef>>,
    pub(super) complete: bool,
    /// The error if the agent has no permission to watch the area, or if no list of it has
    /// succeeded yet.
    pub(super) forbidden: Option<CopyError>,
    /// The last HTTP status of a lost watch: the recorded objects may be out of date.
    pub(super) lost: Option<u16>,
}

/// The watches of copies and of namespaces.
pub(super) struct Watches {
    policy: Arc<Policy>,
    pub(super) copies: BTreeMap<Area, Watch>,
    /// The names of a list of namespaces that is not complete yet.
    pub(super) namespace_listing: Option<BTreeSet<Arc<str>>>,
    pub(super) namespaces_complete: bool,
    /// The last HTTP status of a lost watch of namespaces.
    pub(super) namespaces_lost: Option<u16>,
}

impl Watches {
    pub(super) fn new(policy: Arc<Policy>) -> Self {
        let copies = policy
            .areas()
            .into_iter()
            .map(|area| (area, Watch::default()))
            .collect();
        Self {
            policy,
            copies,
            namespace_listing: None,
            namespaces_complete: false,
            namespaces_lost: None,
        }
    }

    /// Adds the areas of another policy, and removes areas that it does not contain.
    pub(super) fn set_policy(&mut self, policy: Arc<Policy>) {
        let areas = policy.areas();
        self.copies.retain(|area, _| areas.contains(area));
        for area in areas {
            self.copies.entry(area).or_default();
        }
        self.policy = policy;
    }

    /// Returns the watch of a copy; `None` if no watch covers it.
    pub(super) fn of(&self, copy: &SourceRef) -> Option<&Watch> {
        self.copies.get(&self.policy.area(copy)?)
    }

    /// Whether every object that can have the name of a copy is known: the watch has a complete
    /// list.
    pub(super) fn is_complete(&self, copy: &SourceRef) -> bool {
        self.namespaces_unknown().is_none() && self.of(copy).is_some_and(|watch| watch.complete)
    }

    /// Whether each watch has delivered its first list, or has failed.
    pub(super) fn have_started(&self) -> bool {
        let namespaces = self.namespaces_complete || self.namespaces_lost.is_some();
        namespaces
            && self
                .copies
                .values()
                .all(|watch| watch.complete || watch.forbidden.is_some())
    }

    /// Returns the areas with a complete list.
    pub(super) fn complete_areas(&self) -> BTreeSet<Area> {
        self.copies
            .iter()
            .filter(|(_, watch)| watch.complete)
            .map(|(area, _)| area.clone())
            .collect()
    }

    /// Returns the namespaces of the areas without a complete list; `None` means all namespaces.
    pub(super) fn unlisted_namespaces(&self) -> BTreeSet<Option<Arc<str>>> {
        let unlisted = self.copies.iter().filter(|(_, watch)| !watch.complete);
        unlisted.map(|(area, _)| area.namespace.clone()).collect()
    }

    /// Returns the error if the namespaces were never listed, so that no copy can be decided.
    pub(super) fn namespaces_unknown(&self) -> Option<CopyError> {
        let status = self.namespaces_lost.filter(|_| !self.namespaces_complete)?;
        Some(classify::lost_watch(NAMESPACES, status))
    }

    /// Returns the kinds with a lost watch.
    pub(super) fn lost(&self) -> Vec<LostWatch> {
        let copies = self
            .copies
            .iter()
            .filter_map(|(area, watch)| Some((area.resource, watch.lost?)));
        let namespaces = self.namespaces_lost.map(|status| (NAMESPACES, status));
        let lost: BTreeMap<_, _> = copies.chain(namespaces).collect();
        lost.into_iter()
            .map(|(resource, status)| LostWatch { resource, status })
            .collect()
    }
}
