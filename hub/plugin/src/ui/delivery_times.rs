//! How long edits take until every cluster of a rule has them, as far as watches show it.
//!
//! The hub gathers changes of deliveries for a quarter of a second. An edit that reaches all clusters within that time
//! changes no delivery: only the revision in the status of its rule shows it.
use std::collections::{BTreeMap, VecDeque};

use jiff::Timestamp;
use serde::Serialize;

/// The number of measured edits that are kept, over all rules.
const KEPT: usize = 5000;

/// One edit that all clusters have.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "camelCase")]
pub(super) struct MeasuredEdit {
    /// The rule, as `namespace/name` or `name`.
    pub(super) rule: String,
    /// When the last cluster had it, in milliseconds since 1970.
    pub(super) ended_at: i64,
    /// The milliseconds from the first outdated cluster on; `None`: too quick to be measured.
    pub(super) took: Option<i64>,
}

/// The edits of one rule that are not everywhere yet.
#[derive(Default)]
struct RuleEdits {
    /// Connected clusters without the newest revision, and without a failure.
    outdated: usize,
    /// When the first of them became outdated; `None` if that was before this program began to watch.
    since: Option<Timestamp>,
    /// Whether an edit was measured after the last change of the revision.
    measured: bool,
}

/// The delivery times of all rules.
#[derive(Default)]
pub(super) struct DeliveryTimes {
    rules: BTreeMap<String, RuleEdits>,
    measured: VecDeque<MeasuredEdit>,
}

impl DeliveryTimes {
    /// Records that clusters of a rule became outdated or current. `watched`: the change has just happened.
    pub(super) fn record(
        &mut self,
        rule: &str,
        (outdated, current): (usize, usize),
        watched: bool,
        now: Timestamp,
    ) -> Option<MeasuredEdit> {
        if (outdated, current) == (0, 0) {
            return None;
        }
        let edits = self.rules.entry(rule.to_owned()).or_default();
        let before = edits.outdated;
        edits.outdated = (before + outdated).saturating_sub(current);
        if before == 0 && edits.outdated > 0 {
            edits.since = watched.then_some(now);
        }
        if edits.outdated > 0 || (before == 0 && outdated == 0) {
            return None;
        }
        // The clusters of one batch can become outdated and current at once.
        let since = edits.since.take().or((before == 0).then_some(now))?;
        if !watched {
            return None;
        }
        edits.measured = true;
        let took = now.as_millisecond().saturating_sub(since.as_millisecond());
        Some(self.keep(rule, (took > 0).then_some(took), now))
    }

    /// Records that the revision in the status of a rule changed: an edit is in all clusters.
    pub(super) fn revised(&mut self, rule: &str, now: Timestamp) -> Option<MeasuredEdit> {
        let edits = self.rules.entry(rule.to_owned()).or_default();
        let was_measured = std::mem::take(&mut edits.measured);
        (!was_measured && edits.outdated == 0).then(|| self.keep(rule, None, now))
    }

    /// Forgets a rule that does not exist any more.
    pub(super) fn forget(&mut self, rule: &str) {
        self.rules.remove(rule);
        self.measured.retain(|edit| edit.rule != rule);
    }

    /// The measured edits, the oldest first.
    pub(super) fn measured(&self) -> impl Iterator<Item = &MeasuredEdit> {
        self.measured.iter()
    }

    fn keep(&mut self, rule: &str, took: Option<i64>, now: Timestamp) -> MeasuredEdit {
        let edit = MeasuredEdit {
            rule: rule.to_owned(),
            ended_at: now.as_millisecond(),
            took,
        };
        if self.measured.len() >= KEPT {
            self.measured.pop_front();
        }
        self.measured.push_back(edit.clone());
        edit
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(millisecond: i64) -> Timestamp {
        Timestamp::from_millisecond(millisecond).unwrap()
    }

    #[test]
    fn edit_lasts_from_the_first_cluster_to_the_last() {
        let mut times = DeliveryTimes::default();
        assert_eq!(times.record("a/r", (2, 0), true, at(1000)), None);
        assert_eq!(times.record("a/r", (1, 1), true, at(1500)), None);
        let edit = times.record("a/r", (0, 2), true, at(3000)).unwrap();
        assert_eq!((edit.took, edit.ended_at), (Some(2000), 3000));
        // Its revision belongs to it; the next one is of a quick edit.
        assert_eq!(times.revised("a/r", at(3100)), None);
        assert_eq!(times.revised("a/r", at(4000)).unwrap().took, None);
        assert_eq!(times.measured().count(), 2);
        times.forget("a/r");
        assert_eq!(times.measured().count(), 0);
    }

    #[test]
    fn edit_that_began_before_the_watch_has_no_time() {
        let mut times = DeliveryTimes::default();
        assert_eq!(times.record("r", (3, 0), false, at(1000)), None);
        assert_eq!(times.record("r", (0, 3), true, at(2000)), None);
        assert_eq!(times.record("r", (1, 0), true, at(3000)), None);
        assert_eq!(times.record("r", (0, 1), false, at(4000)), None);
        assert_eq!(times.measured().count(), 0);
    }

    #[test]
    fn measured_edits_are_bounded() {
        let mut times = DeliveryTimes::default();
        for number in 0..=i64::try_from(KEPT).unwrap() {
            times.revised("r", at(number));
        }
        assert_eq!(times.measured().count(), KEPT);
        assert_eq!(times.measured().next().unwrap().ended_at, 1);
    }
}
