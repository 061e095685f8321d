//! Contention: copies that another client changes again after each correction. Pure: time is an
//! argument.
//!
//! A copy is contended after more than [`LIMIT`] corrections within [`WINDOW`]. The agent still
//! corrects it, with a growing backoff that protects the API server. Its outcome is failed the
//! whole time, so that the status of the rule does not flap. The contention ends when the copy
//! stays unchanged for a [`WINDOW`].
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::{Duration, Instant};

use runnel_proto::model::{Reason, SourceRef};

use crate::backoff::CONTENTION;
use crate::copy::CopyError;

/// Number of corrections within [`WINDOW`] that are not a contention yet.
pub const LIMIT: usize = 5;
/// The period in which corrections count, and after which a contention ends.
pub const WINDOW: Duration = Duration::from_secs(600);
/// Limit of the uncontended copies that are recorded.
const REMEMBERED: usize = 10_000;

/// Limit of the fields that an error names.
const NAMED_FIELDS: usize = 3;

struct CorrectionHistory {
    /// The times of the corrections, the newest last.
    times: VecDeque<Instant>,
    /// The number of corrections since the contention began; 0: the copy is not contended.
    rounds: u32,
    /// The other field managers of the copy, if they are known.
    managers: Option<Arc<str>>,
    /// The fields that were corrected, as pointers, if they are known.
    fields: Vec<String>,
}

impl CorrectionHistory {
    fn last(&self) -> Option<Instant> {
        self.times.back().copied()
    }

    fn is_over(&self, now: Instant) -> bool {
        self.last()
            .is_none_or(|last| now.saturating_duration_since(last) >= WINDOW)
    }
}

/// The recent corrections of copies.
#[derive(Default)]
pub struct Contentions {
    stories: BTreeMap<SourceRef, CorrectionHistory>,
    /// The last correction of each uncontended copy.
    calm: BTreeSet<(Instant, SourceRef)>,
    /// The last correction of each contended copy.
    contended_at: BTreeSet<(Instant, SourceRef)>,
}

impl Contentions {
    /// Records a correction. `who`: the field managers of the change; `differences`: what was corrected, as
    /// [`crate::diff::Comparison::corrected`] lists it; if they are known.
    pub fn corrected(
        &mut self,
        copy: &SourceRef,
        who: Option<Arc<str>>,
        differences: Option<&str>,
        now: Instant,
    ) {
        let known = self.take(copy).filter(|story| !story.is_over(now));
        let mut story = known.unwrap_or_else(|| CorrectionHistory {
            times: VecDeque::new(),
            rounds: 0,
            managers: None,
            fields: vec![],
        });
        story
            .times
            .retain(|time| now.saturating_duration_since(*time) < WINDOW);
        story.times.push_back(now);
        story.managers = story.managers.take().or(who);
        if story.fields.is_empty() {
            story.fields = differences.map(pointers).unwrap_or_default();
        }
        if story.rounds > 0 || story.times.len() > LIMIT {
            story.rounds = story.rounds.saturating_add(1);
        }
        while story.times.len() > LIMIT + 1 {
            story.times.pop_front();
        }
        let index = if story.rounds > 0 {
            &mut self.contended_at
        } else {
            &mut self.calm
        };
        index.insert((now, copy.clone()));
        self.stories.insert(copy.clone(), story);
        // The oldest record is dropped: with so many corrected copies, it is no contention.
        if self.calm.len() > REMEMBERED
            && let Some((_, oldest)) = self.calm.pop_first()
        {
            self.stories.remove(&oldest);
        }
    }

    fn take(&mut self, copy: &SourceRef) -> Option<CorrectionHistory> {
        let story = self.stories.remove(copy)?;
        if let Some(last) = story.last() {
            let index = if story.rounds > 0 {
                &mut self.contended_at
            } else {
                &mut self.calm
            };
            index.remove(&(last, copy.clone()));
        }
        Some(story)
    }

    /// Returns when a copy may be corrected; `None` means at once.
    pub fn not_before(&self, copy: &SourceRef, now: Instant) -> Option<Instant> {
        let story = self.stories.get(copy).filter(|story| story.rounds > 0)?;
        let at = story.last()? + CONTENTION.ceiling(story.rounds);
        (at > now).then_some(at)
    }

    /// Returns the error of a contended copy. It stays the same during the contention.
    pub fn copy_error(&self, copy: &SourceRef) -> Option<CopyError> {
        let story = self.stories.get(copy).filter(|story| story.rounds > 0)?;
        let who = story.managers.as_deref().unwrap_or("somebody");
        let keep = if who.contains(", ") || who.contains(" and ") {
            "keep"
        } else {
            "keeps"
        };
        let fields = story.fields.join(", ");
        let (what, ignored) = if fields.is_empty() {
            ("or deleting this copy".to_owned(), String::new())
        } else {
            (format!("{fields} of this copy"), format!(": [{fields}]"))
        };
        let text = format!(
            "{who} {keep} changing {what}; it is restored, later each time: end it there, or leave the field to it \
             (ignoreFields{ignored}), or take the object out of the rule"
        );
        Some(CopyError::new(Reason::Contended, text))
    }

    /// Removes and returns the copies whose contention is over.
    pub fn take_ended(&mut self, now: Instant) -> Vec<SourceRef> {
        let mut calm = vec![];
        while let Some((last, copy)) = self.contended_at.first()
            && now.saturating_duration_since(*last) >= WINDOW
        {
            calm.push(copy.clone());
            self.stories.remove(copy);
            self.contended_at.pop_first();
        }
        calm
    }

    /// Returns when the next contention may end.
    pub fn next_calm(&self) -> Option<Instant> {
        self.contended_at.first().map(|(last, _)| *last + WINDOW)
    }

    /// Returns the number of contended copies.
    pub fn count(&self) -> usize {
        self.contended_at.len()
    }

    /// Drops the record of a copy that no rule wants any more.
    pub fn forget(&mut self, copy: &SourceRef) {
        self.take(copy);
    }
}

/// The first pointers in a list of differences.
fn pointers(differences: &str) -> Vec<String> {
    let words = differences
        .split("; ")
        .filter_map(|one| one.split(' ').next());
    let pointers = words.filter(|word| word.starts_with('/'));
    pointers.take(NAMED_FIELDS).map(str::to_owned).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn copy() -> SourceRef {
        SourceRef::new("configmaps", "a", "x")
    }

    #[test]
    fn sixth_correction_in_ten_minutes_is_contention() {
        let (mut contentions, start) = (Contentions::default(), Instant::now());
        let mut now = start;
        for time in 1..=6 {
            assert_eq!(contentions.copy_error(&copy()), None, "before time {time}");
            assert_eq!(contentions.not_before(&copy(), now), None);
            let who = (time > 2).then(|| "argocd-controller".into());
            contentions.corrected(&copy(), who, None, now);
            now += Duration::from_secs(60);
        }
        let text = contentions.copy_error(&copy()).unwrap();
        assert_eq!(text.reason, Reason::Contended);
        assert_eq!(
            &*text.message,
            "argocd-controller keeps changing or deleting this copy; it is restored, later each time: end it there, or \
             leave the field to it (ignoreFields), or take the object out of the rule"
        );
        assert_eq!(contentions.count(), 1);
        // The delay grows up to minutes, and the message stays the same.
        let mut before = Duration::ZERO;
        for _ in 0..8 {
            now = contentions.not_before(&copy(), now).unwrap_or(now);
            contentions.corrected(&copy(), Some("somebody-else".into()), None, now);
            let wait = contentions.not_before(&copy(), now).unwrap() - now;
            assert!(wait > before || wait == CONTENTION.limit, "{wait:?}");
            before = wait;
            assert_eq!(contentions.copy_error(&copy()).as_ref(), Some(&text));
        }
        assert_eq!(before, CONTENTION.limit);
        assert!(CONTENTION.limit >= Duration::from_secs(120) && CONTENTION.limit * 2 < WINDOW);
        assert_eq!(contentions.next_calm(), Some(now + WINDOW));
        assert!(
            contentions
                .take_ended(now + WINDOW - Duration::from_secs(1))
                .is_empty()
        );
        assert_eq!(contentions.take_ended(now + WINDOW), [copy()]);
        assert_eq!(
            (contentions.copy_error(&copy()), contentions.count()),
            (None, 0)
        );
    }

    #[test]
    fn occasional_edits_do_not_contend() {
        let (mut contentions, mut now) = (Contentions::default(), Instant::now());
        for _ in 0..50 {
            contentions.corrected(&copy(), None, None, now);
            assert_eq!(contentions.copy_error(&copy()), None);
            now += Duration::from_secs(121);
        }
    }

    #[test]
    fn corrections_beyond_the_bound_forget_the_oldest() {
        let (mut contentions, start) = (Contentions::default(), Instant::now());
        let name = |n: usize| SourceRef::new("configmaps", "a", &n.to_string());
        for _ in 0..=LIMIT {
            contentions.corrected(&name(0), None, None, start);
        }
        for n in 1..5 * REMEMBERED {
            contentions.corrected(
                &name(n),
                None,
                None,
                start + Duration::from_millis(n as u64),
            );
        }
        assert_eq!(
            (
                contentions.stories.len(),
                contentions.calm.len(),
                contentions.count()
            ),
            (REMEMBERED + 1, REMEMBERED, 1)
        );
        assert!(
            contentions.copy_error(&name(0)).is_some(),
            "a contention is not forgotten"
        );
        contentions.forget(&name(0));
        contentions.forget(&name(5 * REMEMBERED - 1));
        assert_eq!(
            (
                contentions.stories.len(),
                contentions.calm.len(),
                contentions.count()
            ),
            (REMEMBERED - 1, REMEMBERED - 1, 0)
        );
    }

    #[test]
    fn message_offers_the_fields_that_are_corrected() {
        let (mut contentions, now) = (Contentions::default(), Instant::now());
        let differences = "/spec/replicas is another; /data/a is missing; and 3 more";
        for _ in 0..=LIMIT {
            let who = Some("kube-controller-manager".into());
            contentions.corrected(&copy(), who, Some(differences), now);
        }
        let message = contentions.copy_error(&copy()).unwrap().message;
        let begins =
            "kube-controller-manager keeps changing /spec/replicas, /data/a of this copy; ";
        assert!(message.starts_with(begins), "{message}");
        assert!(message.contains("(ignoreFields: [/spec/replicas, /data/a])"));
    }
}
