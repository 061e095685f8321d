//! The only code that writes to the hub's API: finalizers and statuses of rules, statuses of members, Events.
//!
//! A status is written at most once a second and only when it says something new; an edit that reaches every cluster
//! within a second costs one write, whatever the number of clusters. What fails is logged and tried again.
mod book;
mod members;
mod release;
mod rules;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::{Duration, Instant};

use futures::StreamExt;
use kube::Client;
use kube::runtime::events::{Recorder, Reporter};
use runnel_proto::model::{ClusterName, RuleUid};

pub use book::{Book, RuleObject};

use crate::shared::Shared;
use crate::status::{Now, Pace, SETTLING, is_settled};

/// Writes at a time.
const WRITES: usize = 8;
/// Changes that come within this time are looked at together.
const GATHER: Duration = Duration::from_millis(10);
/// How often time itself is looked at: silence, the end of settling, deletions that wait.
const BEAT: Duration = Duration::from_secs(1);
/// How long one write may take.
const WRITE_LIMIT: Duration = Duration::from_secs(10);

/// What the writer needs.
pub struct Writer {
    client: Client,
    shared: Arc<Shared>,
    book: Arc<Book>,
    recorder: Recorder,
    paces: BTreeMap<RuleUid, Pace>,
    members: BTreeSet<ClusterName>,
    retries: Vec<(Instant, Retry)>,
    settled_once: bool,
}

enum Retry {
    Rule(RuleUid),
    Member(ClusterName),
}

impl Writer {
    /// A writer; `instance` names this process in Events.
    pub fn new(client: Client, shared: Arc<Shared>, book: Arc<Book>, instance: String) -> Self {
        let reporter = Reporter { controller: "runnel.dev/hub".into(), instance: Some(instance) };
        let recorder = Recorder::new(client.clone(), reporter);
        Self {
            client,
            shared,
            book,
            recorder,
            paces: BTreeMap::new(),
            members: BTreeSet::new(),
            retries: Vec::new(),
            settled_once: false,
        }
    }

    /// Writes for ever.
    pub async fn run(mut self) {
        let mut beat = tokio::time::interval(BEAT);
        loop {
            let next = self.next_due();
            tokio::select! {
                () = self.shared.dirty_rules.added() => tokio::time::sleep(GATHER).await,
                () = self.shared.dirty_members.added() => tokio::time::sleep(GATHER).await,
                () = self.shared.settled_removals.added() => {}
                _ = beat.tick() => self.beat(),
                () = until(next) => {}
            }
            self.gather();
            // Nothing is known for certain before every watch has delivered a list.
            if *self.shared.ready.borrow() {
                self.write_rules().await;
                self.write_members().await;
            }
        }
    }

    /// What time alone brings about.
    fn beat(&mut self) {
        let now = Instant::now();
        let silent = self.shared.ledger.lock().take_silenced(now);
        for cluster in silent {
            tracing::warn!(%cluster, "cluster is not connected any more");
            self.shared.mark_rules_of(&cluster);
        }
        if !self.settled_once && now.saturating_duration_since(self.shared.settings.started) >= SETTLING {
            self.settled_once = true;
            self.shared.mark_everything();
        }
        let deleting = self.book.deleting();
        self.shared.dirty_rules.add(deleting);
        for (_, retry) in self.retries.extract_if(.., |(at, _)| *at <= now) {
            match retry {
                Retry::Rule(uid) => self.shared.dirty_rules.add([uid]),
                Retry::Member(name) => self.shared.dirty_members.add([name]),
            }
        }
    }

    fn gather(&mut self) {
        let now = Instant::now();
        for uid in self.shared.dirty_rules.take() {
            self.paces.entry(uid).or_default().mark(now);
        }
        self.members.append(&mut self.shared.dirty_members.take());
        self.members.extend(self.shared.settled_removals.peek(|(cluster, _)| cluster.clone()));
    }

    fn due(&self, uid: &RuleUid, pace: &Pace, now: Instant) -> Option<Instant> {
        let hurry = self.book.rule(uid).is_some_and(|object| object.deleting || !object.has_finalizer);
        let settled = hurry || self.is_settled(uid, now);
        pace.due(settled)
    }

    fn is_settled(&self, uid: &RuleUid, now: Instant) -> bool {
        let index = self.shared.index.read();
        let Some(object) = self.book.rule(uid) else { return true };
        let ledger = self.shared.ledger.lock();
        rules::view(&index, uid, &object.status, &self.shared.settings, false)
            .is_none_or(|view| is_settled(&view, &ledger, now))
    }

    fn next_due(&self) -> Option<Instant> {
        let now = Instant::now();
        self.paces.iter().filter_map(|(uid, pace)| self.due(uid, pace, now)).min()
    }

    async fn write_rules(&mut self) {
        let now = Instant::now();
        let is_due = |uid, pace| self.due(uid, pace, now).is_some_and(|at| at <= now);
        let due = self.paces.iter().filter(|(uid, pace)| is_due(*uid, *pace));
        let due: Vec<_> = due.map(|(uid, pace)| (uid.clone(), pace.is_overdue(now))).collect();
        let this = &*self;
        let writes = due.into_iter().map(|(uid, overdue)| async move {
            let result = this.write_rule(&uid, overdue, wall_now()).await;
            (uid, result)
        });
        let results: Vec<_> = futures::stream::iter(writes).buffer_unordered(WRITES).collect().await;
        for (uid, result) in results {
            let written = result.unwrap_or_else(|error| {
                tracing::warn!(rule = %self.book.name_of(&uid), why = %describe(&error), "cannot write about a rule; trying again");
                self.retries.push((Instant::now() + 2 * BEAT, Retry::Rule(uid.clone())));
                true
            });
            if self.book.rule(&uid).is_none() {
                self.paces.remove(&uid);
            } else if let Some(pace) = self.paces.get_mut(&uid) {
                pace.done(Instant::now(), written);
            }
        }
    }

    async fn write_members(&mut self) {
        let due = std::mem::take(&mut self.members);
        let this = &*self;
        let writes = due.into_iter().map(|name| async move {
            let result = this.write_member(&name, wall_now()).await;
            (name, result)
        });
        let results: Vec<_> = futures::stream::iter(writes).buffer_unordered(WRITES).collect().await;
        for (name, result) in results {
            if let Err(error) = result {
                tracing::warn!(cluster = %name, why = %describe(&error), "cannot write about a member; trying again");
                self.retries.push((Instant::now() + 2 * BEAT, Retry::Member(name)));
            }
        }
    }
}

fn wall_now() -> Now {
    Now { instant: Instant::now(), wall: jiff::Timestamp::now() }
}

async fn until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at.into()).await,
        None => std::future::pending().await,
    }
}

/// Why a write failed.
#[derive(Debug, thiserror::Error)]
pub(crate) enum WriteError {
    /// The API server refused it or could not be reached.
    #[error(transparent)]
    Api(#[from] kube::Error),
    /// It did not answer in time.
    #[error("the API server did not answer in time")]
    Timeout,
}

async fn within<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<T, WriteError> {
    Ok(tokio::time::timeout(WRITE_LIMIT, call).await.map_err(|_| WriteError::Timeout)??)
}

/// Runs a write; an object that is gone needs none.
async fn unless_gone<T>(call: impl Future<Output = Result<T, kube::Error>>) -> Result<Option<T>, WriteError> {
    match within(call).await {
        Ok(done) => Ok(Some(done)),
        Err(WriteError::Api(kube::Error::Api(status))) if status.code == 404 => Ok(None),
        Err(error) => Err(error),
    }
}

fn describe(error: &WriteError) -> String {
    match error {
        WriteError::Api(kube::Error::Api(status)) if status.code == 403 => {
            format!("forbidden: the hub lacks a right ({})", status.message)
        }
        other => other.to_string(),
    }
}
