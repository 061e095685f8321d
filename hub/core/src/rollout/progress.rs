//! How far a rollout has come: what stands in the rule's status.
use jiff::Timestamp;
use runnel_proto::model::Travel;

use super::{Phase, Rollout, RolloutPosition};

/// How far a rollout has come.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Progress {
    /// The target.
    pub revision: String,
    /// What it is doing.
    pub phase: Phase,
    /// The wave, from 1; 0 before the first.
    pub wave: u64,
    /// The label that orders.
    pub order_by: Option<String>,
    /// Who is not behind this has been reached.
    pub cursor: Option<RolloutPosition>,
    /// The clusters that the rule chooses.
    pub clusters: u64,
    /// Those that have been reached.
    pub reached: u64,
    /// Those that have the target applied.
    pub applied: u64,
    /// Those that were reached and fail now.
    pub failing: u64,
    /// The most that failed at one time since it stopped or began to go back; before, those that fail now. It decides.
    pub failed: u64,
    /// When it began.
    pub started_at: Timestamp,
    /// When the wave began.
    pub wave_at: Option<Timestamp>,
    /// When everything that was reached had settled.
    pub applied_at: Option<Timestamp>,
    /// When it was completed.
    pub ended_at: Option<Timestamp>,
    /// How many changes in a row, right before this one, were superseded by a newer one before they were completed.
    pub superseded: u64,
    /// When the first of these began.
    pub unfinished_since: Option<Timestamp>,
    /// Those that have gone back, of those that were reached.
    pub reverted: u64,
    /// Copies there of which nothing was kept, as where the change made them: they stay.
    pub left: u64,
    /// When the last one was completed: what agents keep is what copies hold since then.
    pub last_completed: Option<Timestamp>,
    /// Whether every cluster that has been sent anything since then has kept what it had before.
    pub keeps: bool,
    /// Where it went wrong first, and why, once it goes back.
    pub failure: Option<String>,
}

impl Progress {
    /// A rollout that begins, after `before`, if there was one.
    pub fn begin(revision: &str, rollout: &Rollout, before: Option<&Self>, now: Timestamp) -> Self {
        // What came to an end, well or not, was not overtaken.
        let is_under_way = |before: &&Self| matches!(before.phase, Phase::Progressing | Phase::Soaking | Phase::Paused);
        let unfinished = before.filter(is_under_way);
        // The same change in another order supersedes nothing.
        let is_newer = |before: &Self| before.revision != revision;
        Self {
            revision: revision.to_owned(),
            phase: Phase::Progressing,
            wave: 0,
            order_by: rollout.order_by.clone(),
            cursor: None,
            clusters: 0,
            reached: 0,
            applied: 0,
            failing: 0,
            failed: 0,
            started_at: now,
            wave_at: None,
            applied_at: None,
            ended_at: None,
            superseded: unfinished.map_or(0, |before| before.superseded + u64::from(is_newer(before))),
            reverted: 0,
            left: 0,
            last_completed: before.and_then(|before| match before.is_completed() {
                true => before.ended_at.or(before.last_completed),
                false => before.last_completed,
            }),
            // What was sent without being kept for has spoiled what copies held when the last one was completed.
            keeps: rollout.reverts && before.is_none_or(|before| before.keeps || before.is_completed()),
            failure: None,
            unfinished_since: unfinished.map(|before| before.unfinished_since.unwrap_or(before.started_at)),
        }
    }

    /// Whether it was completed, whatever became of those who came later.
    pub fn is_completed(&self) -> bool {
        self.phase == Phase::Completed || (self.ended_at.is_some() && !self.phase.goes_back())
    }

    /// What clusters that are sent the target do with what they had before.
    pub(super) fn travel(&self) -> Travel {
        if self.keeps && !self.is_completed() { Travel::Keep(self.base()) } else { Travel::Plain }
    }

    /// Names what copies held when no rollout was under way.
    pub fn base(&self) -> String {
        self.last_completed.map(|at| at.as_second().to_string()).unwrap_or_default()
    }

    /// Whether a cluster has been reached.
    pub fn has_reached(&self, turn: &RolloutPosition) -> bool {
        self.cursor.as_ref().is_some_and(|cursor| turn <= cursor)
    }
}
