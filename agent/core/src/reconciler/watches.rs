//! The watches of this cluster: which lists are complete, and which watches are forbidden or lost.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::{LostWatch, NAMESPACES, Reason, SourceRef};

use super::WatchScope;
use crate::classify;
use crate::copy::CopyError;
use crate::policy::{Area, Policy};

/// One watch of objects with names of type `T`.
pub(super) struct Watch<T> {
    /// The names of a list that is not complete yet.
    listing: Option<BTreeSet<T>>,
    pub(super) complete: bool,
    /// The error if the agent has no permission to watch the area, if the cluster does not serve its kind, or if no list
    /// of it has succeeded yet.
    pub(super) forbidden: Option<CopyError>,
    /// Whether no object can exist: the definition of the kind is deleted, or gives it another scope.
    is_deleted: bool,
    /// The last HTTP status of a lost watch: the recorded objects may be out of date.
    lost: Option<u16>,
}

impl<T> Default for Watch<T> {
    fn default() -> Self {
        Self {
            listing: None,
            complete: false,
            forbidden: None,
            is_deleted: false,
            lost: None,
        }
    }
}

impl<T> Watch<T> {
    /// Whether the watch has delivered its first list, or has failed.
    fn has_started(&self) -> bool {
        self.complete || self.forbidden.is_some() || self.lost.is_some()
    }

    /// Whether objects may exist that no complete list shows.
    pub(super) fn may_hide_objects(&self) -> bool {
        !self.complete && !self.is_deleted
    }

    /// Whether no object can exist.
    pub(super) fn is_deleted(&self) -> bool {
        self.is_deleted
    }

    /// Whether the cluster does not serve the kind. It may have objects.
    pub(super) fn is_unserved(&self) -> bool {
        let is_unserved = |error: &CopyError| error.reason == Reason::KindNotServed;
        self.forbidden.as_ref().is_some_and(is_unserved)
    }

    fn end_list(&mut self) -> Listed<T> {
        (self.forbidden, self.is_deleted) = (None, false);
        Listed {
            names: self.listing.take().unwrap_or_default(),
            is_first: !std::mem::replace(&mut self.complete, true),
            was_lost: self.lost.take().is_some(),
        }
    }

    /// Records an error, and returns whether it is another one than before. `is_deleted`: no object can exist.
    fn forbid(&mut self, copy_error: CopyError, is_deleted: bool) -> bool {
        if self.forbidden.as_ref() == Some(&copy_error) && self.is_deleted == is_deleted {
            return false;
        }
        self.is_deleted = is_deleted;
        if matches!(copy_error.reason, Reason::Forbidden | Reason::KindNotServed) {
            self.lost = None;
        }
        self.forbidden = Some(copy_error);
        (self.complete, self.listing) = (false, None);
        true
    }
}

/// A complete list.
pub(super) struct Listed<T> {
    pub(super) names: BTreeSet<T>,
    /// Whether the watch had no complete list, or was forbidden since.
    pub(super) is_first: bool,
    /// Whether the watch was lost.
    pub(super) was_lost: bool,
}

/// The watches of copies and of namespaces.
pub(super) struct Watches {
    policy: Arc<Policy>,
    copies: BTreeMap<Area, Watch<SourceRef>>,
    namespaces: Watch<Arc<str>>,
    /// Whether each watch had delivered its first list or failed at one time.
    started: bool,
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
            namespaces: Watch::default(),
            started: false,
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

    /// Records that the list of an area begins. Returns whether the area is watched.
    pub(super) fn begin_list(&mut self, area: &Area) -> bool {
        let watch = self.copies.get_mut(area);
        watch
            .map(|watch| watch.listing = Some(BTreeSet::new()))
            .is_some()
    }

    /// Records that the watch of a copy shows an object. Returns whether the object is part of a
    /// list; `None` if no watch covers it. `counts`: whether the list shows that the object exists.
    pub(super) fn shown(&mut self, copy: &SourceRef, counts: bool) -> Option<bool> {
        let watch = self.copies.get_mut(&self.policy.area(copy)?)?;
        if let Some(listing) = watch.listing.as_mut().filter(|_| counts) {
            listing.insert(copy.clone());
        }
        Some(watch.listing.is_some())
    }

    /// Records that the list of an area is complete.
    pub(super) fn end_list(&mut self, area: &Area) -> Option<Listed<SourceRef>> {
        self.copies.get_mut(area).map(Watch::end_list)
    }

    /// Records that an area cannot be watched. `is_deleted`: no object of its kind can exist. Returns whether that is news.
    pub(super) fn forbid(&mut self, area: &Area, copy_error: CopyError, is_deleted: bool) -> bool {
        let watch = self.copies.get_mut(area);
        watch.is_some_and(|watch| watch.forbid(copy_error, is_deleted))
    }

    /// Records that the list of namespaces begins.
    pub(super) fn begin_namespaces(&mut self) {
        self.namespaces.listing = Some(BTreeSet::new());
    }

    /// Records that the watch shows a namespace.
    pub(super) fn namespace_shown(&mut self, name: &Arc<str>) {
        if let Some(listing) = &mut self.namespaces.listing {
            listing.insert(name.clone());
        }
    }

    /// Records that the list of namespaces is complete.
    pub(super) fn end_namespaces(&mut self) -> Listed<Arc<str>> {
        self.namespaces.end_list()
    }

    /// Records that a watch is lost. Returns the area if its copies cannot be read any more: it has
    /// no complete list.
    pub(super) fn lose<'a>(&mut self, scope: &'a WatchScope, status: u16) -> Option<&'a Area> {
        match scope {
            WatchScope::Namespaces => {
                if self.namespaces.lost.replace(status) != Some(status) {
                    tracing::warn!(
                        status,
                        "namespaces cannot be watched: the state of this cluster is not known any more"
                    );
                }
                None
            }
            WatchScope::Copies(area) => {
                let watch = self.copies.get_mut(area)?;
                watch.lost = Some(status);
                let copy_error = classify::lost_watch(&area.resource, status);
                (!watch.complete && watch.forbid(copy_error, false)).then_some(area)
            }
        }
    }

    /// Whether the watch of an area is lost.
    pub(super) fn is_lost(&self, area: &Area) -> bool {
        let watch = self.copies.get(area);
        watch.is_some_and(|watch| watch.lost.is_some())
    }

    /// Records that a watch is not lost any more.
    pub(super) fn resume(&mut self, scope: &WatchScope) {
        match scope {
            WatchScope::Namespaces => self.namespaces.lost = None,
            WatchScope::Copies(area) => {
                if let Some(watch) = self.copies.get_mut(area) {
                    watch.lost = None;
                }
            }
        }
    }

    /// Returns the area of a copy; `None` if the policy has no watch for it.
    pub(super) fn area(&self, copy: &SourceRef) -> Option<Area> {
        self.policy.area(copy)
    }

    /// Returns the watch of a copy; `None` if no watch covers it.
    pub(super) fn of(&self, copy: &SourceRef) -> Option<&Watch<SourceRef>> {
        self.copies.get(&self.policy.area(copy)?)
    }

    /// Whether every object that can have the name of a copy is known: the watch has a complete
    /// list.
    pub(super) fn is_complete(&self, copy: &SourceRef) -> bool {
        self.namespaces_unknown().is_none() && self.of(copy).is_some_and(|watch| watch.complete)
    }

    /// Whether each watch had delivered its first list or failed at one time.
    pub(super) fn has_started(&self) -> bool {
        self.started
    }

    /// Returns whether each watch has delivered its first list or has failed, once.
    pub(super) fn start(&mut self) -> bool {
        let starts = !self.started
            && self.namespaces.has_started()
            && self.copies.values().all(Watch::has_started);
        self.started |= starts;
        starts
    }

    /// Returns the areas with a complete list.
    pub(super) fn complete_areas(&self) -> BTreeSet<Area> {
        self.copies
            .iter()
            .filter(|(_, watch)| watch.complete)
            .map(|(area, _)| area.clone())
            .collect()
    }

    /// Returns the areas whose copies are unknown.
    pub(super) fn unlisted(&self) -> BTreeSet<Area> {
        let unlisted = self.copies.iter();
        let unlisted = unlisted.filter(|(_, watch)| watch.may_hide_objects());
        unlisted.map(|(area, _)| area.clone()).collect()
    }

    /// Whether the namespaces were listed.
    pub(super) fn has_namespaces(&self) -> bool {
        self.namespaces.complete
    }

    /// Returns the error if the namespaces were never listed, so that no copy can be decided.
    pub(super) fn namespaces_unknown(&self) -> Option<CopyError> {
        let status = self.namespaces.lost.filter(|_| !self.namespaces.complete)?;
        Some(classify::lost_watch(NAMESPACES, status))
    }

    /// Returns the kinds with a lost watch.
    pub(super) fn lost(&self) -> Vec<LostWatch> {
        let copies = self
            .copies
            .iter()
            .filter_map(|(area, watch)| Some((area.resource.clone(), watch.lost?)));
        let namespaces = self.namespaces.lost;
        let namespaces = namespaces.map(|status| (NAMESPACES.into(), status));
        let lost: BTreeMap<_, _> = copies.chain(namespaces).collect();
        lost.into_iter()
            .map(|(resource, status)| LostWatch { resource, status })
            .collect()
    }
}
