//! Renders the copies of rules, beside the index and the threads that serve agents.
//!
//! Renderings are cut into slices. The namespaces take turns, and in a namespace the rule that waits longest comes first.
//! So a rule with much to render delays those of other namespaces by a slice.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use runnel_proto::model::RuleUid;
use tokio::sync::{mpsc, oneshot};

use crate::hub_state::HubState;
use crate::ordered_lock::LeafMutex;
use runnel_hub_core::index::Effect;

/// Rules that are rendered at a time.
const JOBS: usize = 2;
/// The time after which a job lets another one continue.
const SLICE: Duration = Duration::from_millis(50);

/// Delay after a failure until a rule is rendered again.
const AFTER_FAILURE: Duration = Duration::from_secs(60);

/// Renders pending rules, one job per rule at a time. Never returns.
pub async fn render_rules(hub_state: Arc<HubState>) {
    let mut queue = RenderQueue::default();
    let (mut jobs, mut retries) = (FuturesUnordered::new(), FuturesUnordered::new());
    let (pauses, mut paused) = mpsc::unbounded_channel();
    loop {
        for uid in hub_state.queues.to_render.take() {
            let index = hub_state.index.read();
            let rule = index.planner().latest_rule(&uid);
            let namespace = rule.map(|rule| rule.terms.rule.namespace.clone());
            queue.add(uid, namespace.unwrap_or_default());
        }
        while let Some((uid, turn)) = queue.next() {
            match turn {
                NextSlice::Begin => jobs.push(render(hub_state.clone(), uid, pauses.clone())),
                // A job that has ended needs no turn.
                NextSlice::Continue(resume) => drop(resume.send(())),
            }
        }
        tokio::select! {
            () = hub_state.queues.to_render.added() => {}
            Some((uid, resume)) = paused.recv() => queue.pause(&uid, resume),
            Some((uid, has_failed)) = jobs.next(), if !jobs.is_empty() => {
                queue.end(&uid);
                if has_failed {
                    retries.push(after_failure(uid));
                }
            }
            Some(uid) = retries.next(), if !retries.is_empty() => {
                hub_state.change(|index| index.render_failed(&uid));
            }
        }
    }
}

async fn after_failure(uid: RuleUid) -> RuleUid {
    tokio::time::sleep(AFTER_FAILURE).await;
    uid
}

/// The end of a slice: the rule, and what lets it continue.
type Pause = (RuleUid, oneshot::Sender<()>);

/// Renders a rule. Returns whether that has failed.
async fn render(
    hub_state: Arc<HubState>,
    uid: RuleUid,
    pauses: mpsc::UnboundedSender<Pause>,
) -> (RuleUid, bool) {
    let (rendering, name) = (uid.clone(), hub_state.rule_name(&uid));
    let work = move || {
        let Some(job) = hub_state.change_quietly(|index| index.render_job(&rendering)) else {
            return;
        };
        let (began, pausing) = (LeafMutex::new(Instant::now()), rendering.clone());
        let mut rendered = job
            .paced(move || {
                if began.lock().elapsed() < SLICE {
                    return;
                }
                let (resume, resumed) = oneshot::channel();
                if pauses.send((pausing.clone(), resume)).is_ok() {
                    // Without a queue every job continues.
                    let _ = resumed.blocking_recv();
                }
                *began.lock() = Instant::now();
            })
            .run();
        hub_state.change(|index| {
            let effect: Effect = index.take_rendered(&mut rendered);
            hub_state.follow_rendered(index, &rendering);
            effect
        });
    };
    let ended = tokio::task::spawn_blocking(work).await;
    if let Err(error) = &ended {
        tracing::error!(rule = name, %error, "the copies of a rule could not be rendered; trying again in a minute");
    }
    (uid, ended.is_err())
}

/// What a rule does in its turn.
#[derive(Debug)]
enum NextSlice {
    /// A job begins.
    Begin,
    /// The job continues.
    Continue(oneshot::Sender<()>),
}

/// A rule with a job, or one that waits for it.
struct QueuedRule {
    namespace: String,
    /// Its place in the order of the additions.
    added: u64,
    state: JobState,
    /// It is to be rendered again after the job.
    is_added_again: bool,
}

enum JobState {
    Waiting,
    Running,
    Paused(oneshot::Sender<()>),
}

/// The order in which rules are rendered.
#[derive(Default)]
struct RenderQueue {
    rules: BTreeMap<RuleUid, QueuedRule>,
    /// The last turn of each namespace with rules here.
    turns: BTreeMap<String, u64>,
    /// Counts additions and turns.
    last: u64,
}

impl RenderQueue {
    fn add(&mut self, uid: RuleUid, namespace: String) {
        self.last += 1;
        let added = self.last;
        let known = self.rules.entry(uid).or_insert(QueuedRule {
            namespace,
            added,
            state: JobState::Waiting,
            is_added_again: false,
        });
        known.is_added_again = !matches!(known.state, JobState::Waiting);
    }

    /// Returns the next rule with a turn, unless [`JOBS`] are under way.
    fn next(&mut self) -> Option<(RuleUid, NextSlice)> {
        let is_running = |rule: &&QueuedRule| matches!(rule.state, JobState::Running);
        if self.rules.values().filter(is_running).count() >= JOBS {
            return None;
        }
        let turns = &self.turns;
        let (uid, rule) = self
            .rules
            .iter_mut()
            .filter(|(_, rule)| !matches!(rule.state, JobState::Running))
            .min_by_key(|(_, rule)| (turns.get(&rule.namespace), rule.added))?;
        let turn = match std::mem::replace(&mut rule.state, JobState::Running) {
            JobState::Paused(resume) => NextSlice::Continue(resume),
            JobState::Waiting | JobState::Running => NextSlice::Begin,
        };
        self.last += 1;
        self.turns.insert(rule.namespace.clone(), self.last);
        Some((uid.clone(), turn))
    }

    /// The slice of a rule has ended.
    fn pause(&mut self, uid: &RuleUid, resume: oneshot::Sender<()>) {
        if let Some(rule) = self.rules.get_mut(uid) {
            rule.state = JobState::Paused(resume);
        }
    }

    /// The job of a rule has ended.
    fn end(&mut self, uid: &RuleUid) {
        let Some(ended) = self.rules.remove(uid) else {
            return;
        };
        if ended.is_added_again {
            self.add(uid.clone(), ended.namespace);
        }
        let rules = &self.rules;
        let is_queued = |name: &String| rules.values().any(|rule| rule.namespace == *name);
        self.turns.retain(|name, _| is_queued(name));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn next(queue: &mut RenderQueue) -> String {
        queue.next().map_or_else(String::new, |(uid, turn)| {
            let turn = if matches!(turn, NextSlice::Begin) {
                "begins"
            } else {
                "continues"
            };
            format!("{uid} {turn}")
        })
    }

    fn pause(queue: &mut RenderQueue, uid: &str) {
        queue.pause(&uid.into(), oneshot::channel().0);
    }

    #[test]
    fn namespaces_take_turns_and_their_oldest_rule_comes_first() {
        let mut queue = RenderQueue::default();
        for uid in ["m9", "m1", "m5"] {
            queue.add(uid.into(), "team-m".to_owned());
        }
        assert_eq!(
            [next(&mut queue), next(&mut queue)],
            ["m9 begins", "m1 begins"]
        );
        queue.add("v".into(), "team-v".to_owned());
        assert_eq!(next(&mut queue), "", "two are under way");
        pause(&mut queue, "m9");
        assert_eq!(next(&mut queue), "v begins");
        pause(&mut queue, "m1");
        assert_eq!(next(&mut queue), "m9 continues");
        pause(&mut queue, "v");
        assert_eq!(
            next(&mut queue),
            "v continues",
            "the other namespace had the last turn"
        );
        queue.end(&"v".into());
        assert_eq!(
            next(&mut queue),
            "m1 continues",
            "what has begun comes before what waits"
        );
    }

    #[test]
    fn rule_added_during_its_job_is_rendered_again() {
        let mut queue = RenderQueue::default();
        queue.add("a".into(), String::new());
        assert_eq!(next(&mut queue), "a begins");
        queue.add("a".into(), String::new());
        assert_eq!(next(&mut queue), "", "one job for a rule at a time");
        queue.end(&"a".into());
        assert_eq!(next(&mut queue), "a begins");
        queue.end(&"a".into());
        assert_eq!(next(&mut queue), "");
        assert!(queue.turns.is_empty());
    }
}
