//! In which order sources are read: one by one, or many of a namespace by one list.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use runnel_proto::model::SourceRef;

/// From so many sources of one kind and namespace on, a list is worth it.
pub(super) const MANY: usize = 20;

/// A kind and a namespace: what one list shows.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct ListScope {
    /// The kind, as `plural[.group]`.
    pub(super) resource: Arc<str>,
    /// The namespace.
    pub(super) namespace: Arc<str>,
}

impl ListScope {
    fn of(source: &SourceRef) -> Self {
        Self {
            resource: source.resource.clone(),
            namespace: source.namespace.clone(),
        }
    }
}

/// What is to be read next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum NextRead {
    /// This source.
    One(SourceRef),
    /// These sources, by a list.
    Many(ListScope, BTreeSet<SourceRef>),
}

/// The sources that wait to be read. No source is read twice at a time, and one list is read at a time.
#[derive(Default)]
pub(super) struct ReadQueue {
    waiting: BTreeMap<ListScope, BTreeSet<SourceRef>>,
    under_way: BTreeSet<SourceRef>,
    is_listing: bool,
    /// Where a list was tried or is not worth it: what waits there now is read one by one.
    one_by_one: BTreeSet<ListScope>,
}

impl ReadQueue {
    /// These wait, too.
    pub(super) fn add(&mut self, sources: impl IntoIterator<Item = SourceRef>) {
        for source in sources {
            self.waiting
                .entry(ListScope::of(&source))
                .or_default()
                .insert(source);
        }
    }

    /// Returns what to read next, or the time of the next retry. `is_ready`: whether sources in
    /// this scope may be read. `all`: the number of known sources there, selected or not, because a
    /// list returns all of them.
    pub(super) fn next(
        &mut self,
        is_ready: impl Fn(&ListScope) -> bool,
        all: impl Fn(&ListScope) -> usize,
    ) -> Option<NextRead> {
        for (scope, sources) in &self.waiting {
            if !is_ready(scope) {
                continue;
            }
            if sources.len() >= MANY && !self.one_by_one.contains(scope) {
                if self.is_listing {
                    continue;
                }
                // If most sources are not selected, a list costs more than it saves.
                if 2 * sources.len() >= all(scope) {
                    let wanted: BTreeSet<_> =
                        sources.difference(&self.under_way).cloned().collect();
                    if wanted.len() >= MANY {
                        self.is_listing = true;
                        return Some(self.taken(NextRead::Many(scope.clone(), wanted)));
                    }
                }
                self.one_by_one.insert(scope.clone());
            }
            if let Some(source) = sources
                .iter()
                .find(|source| !self.under_way.contains(*source))
            {
                return Some(self.taken(NextRead::One(source.clone())));
            }
        }
        None
    }

    fn taken(&mut self, next: NextRead) -> NextRead {
        let scope = match &next {
            NextRead::One(source) => ListScope::of(source),
            NextRead::Many(scope, _) => scope.clone(),
        };
        let Some(waiting) = self.waiting.get_mut(&scope) else {
            return next;
        };
        match &next {
            NextRead::One(source) => self.under_way.extend(waiting.take(source)),
            NextRead::Many(_, sources) => {
                waiting.retain(|source| !sources.contains(source));
                self.under_way.extend(sources.iter().cloned());
            }
        }
        self.drop_if_empty(&scope);
        next
    }

    /// The read of this source is over.
    pub(super) fn read(&mut self, source: &SourceRef, is_read: impl Fn(&SourceRef) -> bool) {
        self.over(source, &is_read);
    }

    /// The list is over; it did not show what is `left`, which is read one by one.
    pub(super) fn listed(
        &mut self,
        scope: ListScope,
        wanted: &BTreeSet<SourceRef>,
        left: BTreeSet<SourceRef>,
        is_read: impl Fn(&SourceRef) -> bool,
    ) {
        self.is_listing = false;
        for source in wanted {
            self.over(source, &is_read);
        }
        if !left.is_empty() {
            self.add(left);
            self.one_by_one.insert(scope);
        }
    }

    /// A source that was requested while it was read may be read already.
    fn over(&mut self, source: &SourceRef, is_read: &impl Fn(&SourceRef) -> bool) {
        self.under_way.remove(source);
        let scope = ListScope::of(source);
        let Some(waiting) = self.waiting.get_mut(&scope) else {
            return;
        };
        if waiting.contains(source) && is_read(source) {
            waiting.remove(source);
            self.drop_if_empty(&scope);
        }
    }

    fn drop_if_empty(&mut self, scope: &ListScope) {
        if self.waiting.get(scope).is_some_and(BTreeSet::is_empty) {
            self.waiting.remove(scope);
            self.one_by_one.remove(scope);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn sources(namespace: &str, range: std::ops::Range<usize>) -> Vec<SourceRef> {
        range
            .map(|number| SourceRef::new("configmaps", namespace, &format!("s{number:04}")))
            .collect()
    }

    fn next(queue: &mut ReadQueue, all: usize) -> Option<NextRead> {
        queue.next(|_| true, |_| all)
    }

    #[test]
    fn few_sources_are_read_one_by_one_and_none_twice_at_a_time() {
        let mut queue = ReadQueue::default();
        let few = sources("a", 0..2);
        queue.add(few.clone());
        assert_eq!(next(&mut queue, 2), Some(NextRead::One(few[0].clone())));
        // It has changed while it is read.
        queue.add([few[0].clone()]);
        assert_eq!(next(&mut queue, 2), Some(NextRead::One(few[1].clone())));
        assert_eq!(next(&mut queue, 2), None);
        queue.read(&few[0], |_| false);
        assert_eq!(next(&mut queue, 2), Some(NextRead::One(few[0].clone())));
    }

    #[test]
    fn many_sources_are_listed_one_namespace_at_a_time() {
        let mut queue = ReadQueue::default();
        queue.add(
            sources("a", 0..1000)
                .into_iter()
                .chain(sources("b", 0..30))
                .chain(sources("c", 0..1)),
        );
        let Some(NextRead::Many(scope, wanted)) = next(&mut queue, 1000) else {
            panic!("no list")
        };
        assert_eq!((&*scope.namespace, wanted.len()), ("a", 1000));
        // Another namespace waits for its list, single sources do not.
        assert_eq!(
            next(&mut queue, 30),
            Some(NextRead::One(sources("c", 0..1).remove(0)))
        );
        assert_eq!(next(&mut queue, 30), None);
        queue.add(sources("a", 7..8));
        assert_eq!(next(&mut queue, 30), None, "it is being read");
        queue.add(sources("a", 500..900));
        let has_changed = &sources("a", 7..8)[0];
        queue.listed(scope, &wanted, BTreeSet::new(), |source| {
            source != has_changed
        });
        assert_eq!(
            next(&mut queue, 30),
            Some(NextRead::One(sources("a", 7..8).remove(0))),
            "it has changed since"
        );
        assert!(
            matches!(next(&mut queue, 30), Some(NextRead::Many(scope, _)) if &*scope.namespace == "b")
        );
    }

    #[test]
    fn few_selected_among_many_are_read_one_by_one() {
        let mut queue = ReadQueue::default();
        queue.add(sources("a", 0..30));
        for read in 0..30 {
            assert!(
                matches!(next(&mut queue, 61), Some(NextRead::One(_))),
                "{read}"
            );
        }
        assert_eq!(next(&mut queue, 61), None);
        // It was decided for those alone.
        queue.add(sources("a", 100..140));
        assert!(
            matches!(next(&mut queue, 61), Some(NextRead::Many(_, wanted)) if wanted.len() == 40)
        );
    }

    #[test]
    fn sources_that_a_list_left_out_are_read_one_by_one() {
        let mut queue = ReadQueue::default();
        queue.add(sources("a", 0..50));
        let Some(NextRead::Many(scope, wanted)) = next(&mut queue, 50) else {
            panic!("no list")
        };
        queue.listed(
            scope,
            &wanted,
            sources("a", 10..50).into_iter().collect(),
            |_| true,
        );
        for read in 0..40 {
            assert!(
                matches!(next(&mut queue, 50), Some(NextRead::One(_))),
                "{read}"
            );
        }
        assert_eq!(next(&mut queue, 50), None);
    }

    #[test]
    fn sources_of_a_place_that_is_being_listed_wait() {
        let mut queue = ReadQueue::default();
        queue.add(sources("a", 0..3).into_iter().chain(sources("b", 0..1)));
        let ready = |scope: &ListScope| &*scope.namespace == "b";
        assert!(
            matches!(queue.next(ready, |_| 9), Some(NextRead::One(source)) if &*source.namespace == "b")
        );
        assert_eq!(queue.next(ready, |_| 9), None);
        assert!(queue.next(|_| true, |_| 9).is_some());
    }
}
