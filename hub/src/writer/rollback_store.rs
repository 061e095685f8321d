//! The Secrets in which the hub stores the states of completed rollouts. They are read when this
//! process takes the lead, before it serves. They are written after each completed rollout of a
//! rule that keeps states. Their content is never logged.
//!
//! The index has the newest state of each rule, those that reverts use, and the revisions of the others.
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use runnel_proto::model::RuleUid;

use crate::call::{ApiError, FIELD_MANAGER, with_timeout};
use crate::hub_state::{COMPLETED_STATES, HubState};
use runnel_api::KeptRevision;
use runnel_hub_core::audit::{ChangeCause, ChangeKind};
use runnel_hub_core::index::{Index, StoredState};
use runnel_hub_core::plan::{CompletedState, ROLLBACK_SECRETS, RollbackBlocker, kept_revision};
use runnel_hub_core::rollout::{Archive, Slot, StateId};

/// The type of the Secrets.
const SECRET_TYPE: &str = "runnel.dev/rollback";
/// The delay before a failed call is retried.
const RETRY_DELAY: Duration = Duration::from_secs(2);
/// The interval at which the states of deleted rules are removed.
const SWEEP: Duration = Duration::from_secs(10);

/// Reads and writes the Secrets.
pub struct RollbackStore {
    api: Api<Secret>,
    hub_state: Arc<HubState>,
    /// The limit of Secrets.
    slots: usize,
    archive: Archive,
    /// What is stored of each state that can be decoded.
    kept: BTreeMap<StateId, KeptRevision>,
    /// The version of each Secret; `None` if it does not exist.
    versions: Vec<Option<String>>,
    /// The pending writes, in this order.
    unwritten: VecDeque<(usize, Slot)>,
    is_readable: bool,
}

impl RollbackStore {
    /// Uses the first `slots` Secrets in the hub's namespace.
    pub fn new(client: Client, hub_state: Arc<HubState>, slots: usize) -> Self {
        Self {
            api: Api::namespaced(client, &hub_state.settings.namespace),
            hub_state,
            slots,
            archive: Archive::default(),
            kept: BTreeMap::new(),
            versions: Vec::new(),
            unwritten: VecDeque::new(),
            is_readable: false,
        }
    }

    /// Reads and writes until the process ends.
    pub async fn run(mut self) {
        let mut rounds = self.hub_state.leadership.relist_barrier.subscribe();
        let mut lead = self.hub_state.leadership.lead.subscribe();
        let mut loaded = None;
        loop {
            let round = *rounds.requested.borrow_and_update();
            if loaded != Some(round) && self.hub_state.leadership.leads() {
                match self.load().await {
                    Ok(()) => {
                        self.load_reverted().await;
                        loaded = Some(round);
                        self.hub_state
                            .leadership
                            .relist_barrier
                            .done(COMPLETED_STATES, round);
                        self.hub_state.leadership.progress.notify_one();
                    }
                    Err(error) => {
                        tracing::error!(%error, "cannot read the states of completed rollouts; trying again");
                        tokio::time::sleep(RETRY_DELAY).await;
                        continue;
                    }
                }
            }
            let mut wait = SWEEP;
            if self.is_readable && self.hub_state.leadership.serving_since().is_some() {
                self.take_changes().await;
                match self.write().await {
                    Ok(()) => {}
                    // Another process has written: read the Secrets again.
                    Err(error) if error.is_conflict() => (loaded, wait) = (None, RETRY_DELAY),
                    Err(error) => {
                        tracing::error!(%error, "cannot store the states of completed rollouts; trying again");
                        wait = RETRY_DELAY;
                    }
                }
            }
            tokio::select! {
                _ = rounds.requested.changed() => {}
                Ok(()) = lead.changed() => {}
                () = self.hub_state.queues.completed_rules.added() => {}
                () = tokio::time::sleep(wait) => {}
            }
        }
    }

    async fn load(&mut self) -> Result<(), ApiError> {
        self.unwritten.clear();
        self.is_readable = true;
        let (mut slots, mut versions) = (Vec::new(), Vec::new());
        for number in 0..self.slots {
            let name = name(number);
            let secret = match with_timeout(format!("read Secret {name}"), self.api.get_opt(&name))
                .await
            {
                Err(error) if error.is_forbidden() => {
                    tracing::error!(%error, "no rollout can be rolled back: upgrade the chart of the hub for the right");
                    self.is_readable = false;
                    break;
                }
                read => read?,
            };
            versions.push(
                secret
                    .as_ref()
                    .and_then(|secret| secret.metadata.resource_version.clone()),
            );
            let data = secret.and_then(|secret| secret.data).unwrap_or_default();
            slots.push(
                data.into_iter()
                    .map(|(part, ByteString(bytes))| (part, bytes))
                    .collect(),
            );
        }
        if !self.is_readable {
            let states = BTreeMap::new();
            self.hub_state
                .change(|index| index.set_completed_states(states, RollbackBlocker::Unreadable));
            return Ok(());
        }
        (self.archive, self.versions) = (Archive::new(slots), versions);
        self.kept.clear();
        let mut states = BTreeMap::new();
        for (uid, numbers) in self.archive.states() {
            for number in &numbers {
                let id = (uid.clone(), *number);
                let kept = kept_revision(&uid, &self.archive.state(&id));
                self.kept.extend(kept.map(|kept| (id, kept)));
            }
            let newest = numbers.first().map(|number| (uid.clone(), *number));
            let state = match &newest {
                Some(id) => self.decoded(id).await,
                None => Err(RollbackBlocker::Damaged),
            };
            if state.is_err() {
                tracing::error!(rule = %self.hub_state.rule_name(&uid), "the stored state of the rule's last completed rollout is damaged");
                newest.and_then(|id| self.kept.remove(&id));
            }
            let revision = state.as_ref().map(|state| state.revision.clone());
            let revision = revision.unwrap_or_default();
            states.insert(uid, StoredState { revision, state });
        }
        self.hub_state
            .change(|index| index.set_completed_states(states, RollbackBlocker::NoneCompleted));
        self.publish_kept();
        Ok(())
    }

    /// Queues the writes of states that are new, and of Secrets from which a state is removed.
    async fn take_changes(&mut self) {
        for uid in self.hub_state.queues.completed_rules.take() {
            let stored = {
                let index = self.hub_state.index.read();
                index.rules().completed().get(&uid).cloned()
            };
            match stored.map(|stored| stored.state) {
                Some(Ok(state)) => self.put(&uid, &state).await,
                Some(Err(_)) => {}
                None => self.unwritten.extend(self.archive.remove(&uid, None)),
            }
        }
        let (mut gone, mut surplus) = (Vec::new(), Vec::new());
        {
            let index = self.hub_state.index.read();
            let in_use = self.in_use(&index);
            for (uid, numbers) in self.archive.states() {
                if index.planner().latest_rule(&uid).is_none() {
                    gone.push(uid);
                } else if self.has_stored_newest(&uid, &index) {
                    let unwanted = self.unwanted(&uid, &numbers, &in_use, &index);
                    surplus.extend((!unwanted.is_empty()).then_some((uid, unwanted)));
                }
            }
        }
        for uid in gone {
            self.unwritten.extend(self.archive.remove(&uid, None));
            self.hub_state
                .change(|index| index.set_completed_state(&uid, None));
        }
        for (uid, unwanted) in surplus {
            let writes = self.archive.remove(&uid, Some(&unwanted));
            self.unwritten.extend(writes);
        }
        self.publish_kept();
        self.load_reverted().await;
    }

    async fn put(&mut self, uid: &RuleUid, state: &Arc<CompletedState>) {
        if self
            .newest(uid)
            .is_some_and(|kept| kept.revision == state.revision)
        {
            return;
        }
        let numbers = self.archive.states().remove(uid).unwrap_or_default();
        let (in_use, unwanted) = {
            let index = self.hub_state.index.read();
            let in_use = self.in_use(&index);
            let unwanted = self.unwanted(uid, &numbers, &in_use, &index);
            (in_use, unwanted)
        };
        let (rule, encoded, limit) = (
            uid.clone(),
            state.clone(),
            self.archive.room_for(uid, &in_use),
        );
        let bytes = tokio::task::spawn_blocking(move || encoded.encode(&rule, limit))
            .await
            .ok()
            .flatten();
        if let Some(bytes) = bytes
            && let Ok(writes) = self.archive.put(uid, &bytes, &unwanted, &in_use)
        {
            self.unwritten.extend(writes);
            let number = self
                .archive
                .states()
                .get(uid)
                .and_then(|all| all.first().copied());
            let number = number.map(|number| (uid.clone(), number));
            let kept = kept_revision(uid, &bytes);
            self.kept.extend(number.zip(kept));
            return;
        }
        tracing::warn!(rule = %self.hub_state.rule_name(uid), "the state of a completed rollout does not fit: the rule's next one stops if it fails");
        let too_large = StoredState {
            revision: state.revision.clone(),
            state: Err(RollbackBlocker::TooLarge),
        };
        self.hub_state
            .change(|index| index.set_completed_state(uid, Some(too_large)));
    }

    /// What is stored of the newest state of a rule.
    fn newest(&self, uid: &RuleUid) -> Option<&KeptRevision> {
        let mut of_rule = self.kept.range((uid.clone(), 0)..=(uid.clone(), u64::MAX));
        of_rule.next_back().map(|(_, kept)| kept)
    }

    /// Whether nothing newer of a rule waits to be stored.
    fn has_stored_newest(&self, uid: &RuleUid, index: &Index) -> bool {
        match index.rules().completed().get(uid) {
            Some(StoredState {
                revision,
                state: Ok(_),
            }) => self
                .newest(uid)
                .is_some_and(|kept| kept.revision == *revision),
            _ => true,
        }
    }

    /// The states that reverts use.
    fn in_use(&self, index: &Index) -> BTreeSet<StateId> {
        let reverted = index.planner().reverted();
        let newest = reverted.filter_map(|(rule, revert)| self.stored(&rule.uid, &revert.revision));
        newest.cloned().collect()
    }

    /// The newest stored state of a rule with this revision.
    fn stored(&self, uid: &RuleUid, revision: &str) -> Option<&StateId> {
        let of_rule = self
            .kept
            .range((uid.clone(), 0)..=(uid.clone(), u64::MAX))
            .rev();
        let mut of_revision = of_rule.filter(|(_, kept)| kept.revision == revision);
        of_revision.next().map(|(id, _)| id)
    }

    /// The stored states of a rule that it does not keep: of each revision only the newest, and as many revisions as its
    /// `history` has.
    fn unwanted(
        &self,
        uid: &RuleUid,
        numbers: &[u64],
        in_use: &BTreeSet<StateId>,
        index: &Index,
    ) -> BTreeSet<u64> {
        let rollout = index
            .planner()
            .latest_rule(uid)
            .and_then(|rule| rule.rollout.as_ref());
        // Without a rollout, as in a dry run, all are kept until the writer deletes all.
        let history = rollout
            .map(|rollout| rollout.history)
            .filter(|history| *history > 0);
        let newest = index
            .rules()
            .completed()
            .get(uid)
            .map(|newest| newest.revision.as_str());
        // The newest state takes a place even if it is not stored.
        let is_stored = self.newest(uid).map(|kept| kept.revision.as_str()) == newest;
        let newest = newest.filter(|revision| !is_stored && !revision.is_empty());
        let mut known: Vec<_> = newest.into_iter().collect();
        let is_unwanted = |number: &u64| {
            let id = (uid.clone(), *number);
            let Some(kept) = self.kept.get(&id) else {
                return true;
            };
            let is_kept = !known.contains(&kept.revision.as_str())
                && (in_use.contains(&id) || history.is_none_or(|most| known.len() < most));
            if is_kept {
                known.push(&kept.revision);
            }
            !is_kept
        };
        numbers.iter().copied().filter(is_unwanted).collect()
    }

    /// Tells the index which states are stored.
    fn publish_kept(&mut self) {
        let states = self.archive.states();
        self.kept
            .retain(|(uid, number), _| states.get(uid).is_some_and(|all| all.contains(number)));
        let changed: Vec<_> = {
            let index = self.hub_state.index.read();
            let completed = index.rules().completed();
            let rules: BTreeSet<_> = states.keys().chain(completed.rules()).collect();
            let of_rule = |uid: &RuleUid| {
                let numbers = states.get(uid).into_iter().flatten();
                let kept = numbers.filter_map(|number| self.kept.get(&(uid.clone(), *number)));
                kept.cloned().collect::<Vec<_>>()
            };
            let rules = rules
                .into_iter()
                .filter(|uid| self.has_stored_newest(uid, &index));
            let lists = rules.map(|uid| (uid.clone(), of_rule(uid)));
            lists
                .filter(|(uid, kept)| completed.kept(uid) != kept)
                .collect()
        };
        for (uid, kept) in changed {
            self.hub_state
                .change(|index| index.set_kept_states(&uid, kept));
        }
    }

    /// Reads the states that reverts wait for.
    async fn load_reverted(&mut self) {
        let awaited: Vec<_> = {
            let index = self.hub_state.index.read();
            let reverted = index.planner().reverted();
            let awaited = reverted.filter_map(|(rule, revert)| {
                let known = revert.state.as_ref().err()?.clone();
                Some((rule.uid.clone(), revert.revision.clone(), known))
            });
            awaited.collect()
        };
        for (uid, revision, known) in awaited {
            let state = match self.stored(&uid, &revision).cloned() {
                Some(_) if known == RollbackBlocker::Damaged => continue,
                Some(id) => self.decoded(&id).await,
                None => Err(RollbackBlocker::NoneCompleted),
            };
            if state.as_ref().err() != Some(&known) {
                self.hub_state.change_because(
                    || ChangeCause::new(ChangeKind::RuleReverted),
                    |index| index.set_reverted_state(&uid, &revision, state),
                );
            }
        }
    }

    async fn decoded(&self, id: &StateId) -> Result<Arc<CompletedState>, RollbackBlocker> {
        let (uid, bytes) = (id.0.clone(), self.archive.state(id));
        let decoded = tokio::task::spawn_blocking(move || CompletedState::decode(&uid, &bytes));
        let state = decoded.await.ok().flatten().map(Arc::new);
        state.ok_or(RollbackBlocker::Damaged)
    }

    async fn write(&mut self) -> Result<(), ApiError> {
        while let Some((number, slot)) = self.unwritten.front() {
            if !self.hub_state.leadership.leads() {
                return Ok(());
            }
            let version = self.versions.get(*number).cloned().flatten();
            let (name, secret) = (name(*number), secret(*number, slot, version));
            let params = PatchParams::apply(FIELD_MANAGER).force();
            let patch = Patch::Apply(&secret);
            let written = with_timeout(
                format!("write Secret {name}"),
                self.api.patch(&name, &params, &patch),
            )
            .await?;
            if let Some(version) = self.versions.get_mut(*number) {
                *version = written.metadata.resource_version;
            }
            self.unwritten.pop_front();
        }
        Ok(())
    }
}

fn name(number: usize) -> String {
    format!("{ROLLBACK_SECRETS}{number}")
}

fn secret(number: usize, slot: &Slot, version: Option<String>) -> Secret {
    let labels = [
        ("app.kubernetes.io/name", "runnel"),
        ("app.kubernetes.io/component", "hub"),
    ];
    let labels = labels
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into();
    let data = slot
        .iter()
        .map(|(part, bytes)| (part.clone(), ByteString(bytes.clone())))
        .collect();
    Secret {
        metadata: ObjectMeta {
            name: Some(name(number)),
            labels: Some(labels),
            // No object has version 1. With it an apply creates the Secret or fails; it never
            // merges.
            resource_version: Some(version.unwrap_or_else(|| "1".to_owned())),
            ..ObjectMeta::default()
        },
        type_: Some(SECRET_TYPE.to_owned()),
        data: Some(data),
        ..Secret::default()
    }
}
