//! Renders the copies of rules, beside the index and the threads that serve agents.
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::stream::FuturesUnordered;
use runnel_proto::model::RuleUid;

use crate::hub_state::{HubState, until};
use runnel_hub_core::index::Effect;

/// Rules that are rendered at a time.
const JOBS: usize = 2;
/// A rule that takes longer than this pauses for as long as it took, so that other rules and the
/// rest of the hub make progress.
const LONG: Duration = Duration::from_millis(100);

/// Renders pending rules, one job per rule at a time. Never returns.
pub async fn render_rules(hub_state: Arc<HubState>) {
    let mut waiting = BTreeSet::new();
    let mut paused_until: BTreeMap<RuleUid, Instant> = BTreeMap::new();
    let mut under_way = BTreeSet::new();
    let mut jobs = FuturesUnordered::new();
    loop {
        waiting.extend(hub_state.queues.to_render.take());
        let now = Instant::now();
        paused_until.retain(|_, until| *until > now);
        while jobs.len() < JOBS {
            let is_free =
                |uid: &&RuleUid| !under_way.contains(*uid) && !paused_until.contains_key(*uid);
            let Some(uid) = waiting.iter().find(is_free).cloned() else {
                break;
            };
            waiting.remove(&uid);
            under_way.insert(uid.clone());
            jobs.push(render(hub_state.clone(), uid));
        }
        let next = paused_until
            .iter()
            .filter(|(uid, _)| waiting.contains(*uid))
            .map(|(_, until)| *until)
            .min();
        tokio::select! {
            () = hub_state.queues.to_render.added() => {}
            Some((uid, took)) = jobs.next(), if !jobs.is_empty() => {
                under_way.remove(&uid);
                if took > LONG {
                    paused_until.insert(uid, Instant::now() + took);
                }
            }
            () = until(next) => {}
        }
    }
}

async fn render(hub_state: Arc<HubState>, uid: RuleUid) -> (RuleUid, Duration) {
    let began = Instant::now();
    let (rendering, name) = (uid.clone(), hub_state.rule_name(&uid));
    let work = move || {
        let Some(job) = hub_state.change_quietly(|index| index.render_job(&rendering)) else {
            return;
        };
        let mut rendered = job.run();
        hub_state.change(|index| {
            let effect: Effect = index.take_rendered(&mut rendered);
            hub_state.follow_rendered(index, &rendering);
            effect
        });
    };
    if let Err(error) = tokio::task::spawn_blocking(work).await {
        tracing::error!(rule = name, %error, "the copies of a rule could not be rendered");
    }
    (uid, began.elapsed())
}
