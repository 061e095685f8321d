//! The event loop around the core. It delivers events to the core, and runs its jobs, frames and
//! Events.
use std::future::pending;
use std::time::{Duration, Instant};

use runnel_proto::model::AgentFrame;
use runnel_transport::ops::PendingPart;
use tokio::sync::{mpsc, oneshot};
use tokio_util::sync::CancellationToken;

use crate::kinds::KindRegistry;
use crate::lease::WriteRight;
use crate::link::LinkEvent;
use crate::metrics::Metrics;
use crate::store::{Store, StoreFuture};
use runnel_agent_core::backoff::Backoff;
use runnel_agent_core::classify::{CallError, copy_error};
use runnel_agent_core::decide::{Done, Job};
use runnel_agent_core::reconciler::{Event, Notice, Reconciler, Totals};

/// Delay that combines changes in quick succession. The first change is stored at once: an agent
/// that is killed before has no terms for its copies.
const STORE_DELAY: Duration = Duration::from_millis(500);
/// Backoff after a failed store.
const STORE_RETRY: Backoff = Backoff {
    base: Duration::from_secs(1),
    limit: Duration::from_secs(15),
};
/// Limit of the events that are handled before jobs are started.
const TURN: usize = 64;

/// The core and its channels.
pub struct EventLoop {
    /// The reconciler.
    pub core: Reconciler,
    /// The hub's id.
    pub hub: String,
    /// The store for terms.
    pub store: Store,
    /// The metrics of the agent.
    pub metrics: Metrics,
    /// Events of the watches.
    pub watched: mpsc::Receiver<Event>,
    /// Events of the link.
    pub link: mpsc::Receiver<LinkEvent>,
    /// Jobs for the worker.
    pub jobs: mpsc::Sender<Job>,
    /// Results of the worker.
    pub done: mpsc::Receiver<Done>,
    /// Notices for the writer of Events.
    pub notices: mpsc::Sender<Notice>,
    /// Fires when the first lists are complete.
    pub start: Option<(oneshot::Sender<()>, Option<PendingPart>)>,
    /// The kinds of the cluster, and the fields that are read in their objects.
    pub kinds: KindRegistry,
    /// Whether copies may be written.
    pub right: WriteRight,
    /// The signal that ends the loop.
    pub drain: CancellationToken,
}

/// The event that ended a wait.
enum Wakeup {
    Done(Box<Done>),
    Watched(Event),
    Link(LinkEvent),
    Due,
    StoreDue,
    Saved(Result<(), CallError>),
    Right,
    Permit(Option<mpsc::OwnedPermit<AgentFrame>>),
}

/// The state of the loop between turns.
#[derive(Default)]
struct LoopState {
    frames: Option<mpsc::Sender<AgentFrame>>,
    frame: Option<AgentFrame>,
    job: Option<Job>,
    totals: Totals,
    store_at: Option<tokio::time::Instant>,
    /// The time of the last store.
    stored_at: Option<tokio::time::Instant>,
    saving: Option<StoreFuture>,
    /// The number of failed stores in a row.
    failures: u32,
}

impl EventLoop {
    /// Runs until the drain.
    pub async fn run(mut self) {
        let mut turn = LoopState::default();
        self.core.set_active(self.right.may_write());
        while !self.drain.is_cancelled() {
            // Both calls use one instant, so that nothing that becomes due in between is lost.
            let now = Instant::now();
            // A renewal sends no event, and the right may have expired by the clock at the last
            // turn.
            self.core.set_active(self.right.may_write());
            self.dispatch(&mut turn, now);
            let due = self.core.next_due(now);
            let due = due.into_iter().chain(self.core.audit_due()).min();
            let room = self.core.has_room();
            let received = tokio::select! {
                () = self.drain.cancelled() => break,
                Some(done) = self.done.recv() => Wakeup::Done(Box::new(done)),
                Some(event) = self.watched.recv() => Wakeup::Watched(event),
                Some(event) = self.link.recv(), if room => Wakeup::Link(event),
                () = until(due.map(tokio::time::Instant::from_std)) => Wakeup::Due,
                () = until(turn.store_at) => Wakeup::StoreDue,
                saved = saved(&mut turn.saving) => Wakeup::Saved(saved),
                () = self.right.changed() => Wakeup::Right,
                permit = permit(turn.frames.clone()), if turn.frame.is_some() => Wakeup::Permit(permit),
            };
            match received {
                Wakeup::Done(done) => self.core.handle(Event::Done(done), Instant::now()),
                Wakeup::Watched(event) => self.handle_watched(event),
                Wakeup::Link(event) => self.handle_link(event, &mut turn),
                Wakeup::Due => {}
                Wakeup::Right => self.core.set_active(self.right.may_write()),
                Wakeup::StoreDue => self.store(&mut turn),
                Wakeup::Saved(saved) => self.stored(&saved, &mut turn),
                Wakeup::Permit(permit) => match (permit, turn.frame.take()) {
                    (Some(permit), Some(frame)) => drop(permit.send(frame)),
                    // The stream is ending. The link sends an event for that.
                    _ => turn.frames = None,
                },
            }
        }
        // Terms that are not stored yet are stored with one attempt.
        if turn.saving.is_none() {
            self.store(&mut turn);
        }
        if let Some(saving) = turn.saving {
            let _ = saving.await;
        }
    }

    fn handle_watched(&mut self, event: Event) {
        let now = Instant::now();
        self.core.handle(event, now);
        for _ in 0..TURN {
            let Ok(event) = self.watched.try_recv() else {
                break;
            };
            self.core.handle(event, now);
        }
    }

    fn handle_link(&mut self, event: LinkEvent, turn: &mut LoopState) {
        let now = Instant::now();
        match event {
            LinkEvent::Open(frames) => {
                (turn.frames, turn.frame) = (Some(frames), None);
                self.core.handle(Event::HubConnected, now);
            }
            LinkEvent::Frame(frame, refused) => self.core.handle(Event::Hub(frame, refused), now),
            LinkEvent::Closed => {
                (turn.frames, turn.frame) = (None, None);
                self.core.handle(Event::HubLost, now);
            }
            LinkEvent::Revoked => self.core.handle(Event::Revoked, now),
        }
    }

    /// Starts the jobs and frames of the core, and the due stores.
    fn dispatch(&mut self, turn: &mut LoopState, now: Instant) {
        if let Some(paths) = self.core.take_feedback(now) {
            self.kinds.set_feedback(paths);
        }
        loop {
            if turn.job.is_none() {
                turn.job = self.core.next_job(now);
            }
            let Some(job) = turn.job.take() else { break };
            if let Err(mpsc::error::TrySendError::Full(job)) = self.jobs.try_send(job) {
                turn.job = Some(job);
                break;
            }
        }
        if turn.frame.is_none() && turn.frames.is_some() {
            turn.frame = self.core.next_frame(now);
        }
        for notice in self.core.take_notices() {
            // Events are best effort: they are dropped if the channel is full.
            let _ = self.notices.try_send(notice);
        }
        self.log_changes(now);
        if self.core.has_started()
            && let Some((start, ready)) = self.start.take()
        {
            let _ = start.send(());
            drop(ready);
        }
        if turn.failures == 0 && self.core.is_store_urgent() {
            self.store(turn);
        } else if turn.store_at.is_none() && self.core.needs_store() {
            let now = tokio::time::Instant::now();
            turn.store_at = Some(turn.stored_at.map_or(now, |at| now.max(at + STORE_DELAY)));
        }
        let totals = self.core.totals();
        self.metrics.update(
            self.core.counts(),
            totals,
            turn.totals,
            self.core.cached_bytes(),
        );
        turn.totals = totals;
    }

    /// Logs what was done to copies, and which copies fail: one line per rule and reason.
    fn log_changes(&mut self, now: Instant) {
        let lines = self.core.take_audit(now);
        for line in &lines.changes {
            tracing::info!("{line}");
        }
        for line in &lines.failures {
            tracing::warn!("{line}");
        }
        if lines.left_out > 0 {
            tracing::warn!(
                count = lines.left_out,
                "changes of copies were not logged, because too many rules changed at once"
            );
        }
    }

    /// Starts a store of the terms, if they changed.
    fn store(&mut self, turn: &mut LoopState) {
        turn.store_at = None;
        if let Some((hub_cluster_uid, rules)) = self.core.take_store() {
            let (store, hub) = (self.store.clone(), self.hub.clone());
            turn.stored_at = Some(tokio::time::Instant::now());
            turn.saving = Some(Box::pin(async move {
                store.save_terms(&hub, hub_cluster_uid, rules).await
            }));
        }
    }

    fn stored(&mut self, saved: &Result<(), CallError>, turn: &mut LoopState) {
        turn.saving = None;
        turn.failures = if saved.is_ok() {
            0
        } else {
            turn.failures.saturating_add(1)
        };
        if let Err(error) = saved {
            tracing::warn!(
                status = error.code(),
                "the rules' terms cannot be stored; trying again"
            );
            turn.store_at = Some(tokio::time::Instant::now() + STORE_RETRY.ceiling(turn.failures));
        }
        self.core
            .stored(saved.as_ref().copied().map_err(copy_error), Instant::now());
    }
}

async fn saved(saving: &mut Option<StoreFuture>) -> Result<(), CallError> {
    match saving {
        Some(saving) => saving.await,
        None => pending().await,
    }
}

/// Waits until a time; without one, for ever.
pub(crate) async fn until(at: Option<tokio::time::Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => pending().await,
    }
}

async fn permit(frames: Option<mpsc::Sender<AgentFrame>>) -> Option<mpsc::OwnedPermit<AgentFrame>> {
    match frames {
        Some(frames) => frames.reserve_owned().await.ok(),
        None => None,
    }
}
