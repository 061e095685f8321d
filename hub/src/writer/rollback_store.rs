//! The Secrets in which the hub stores the states of completed rollouts. They are read when this
//! process takes the lead, before it serves. They are written after each completed rollout of a
//! rule with `onFailure: Revert`. Their content is never logged.
use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Secret;
use kube::api::{ObjectMeta, Patch, PatchParams};
use kube::{Api, Client};
use runnel_proto::model::RuleUid;

use crate::call::{ApiError, FIELD_MANAGER, with_timeout};
use crate::hub_state::{COMPLETED_STATES, HubState};
use runnel_hub_core::index::StoredState;
use runnel_hub_core::plan::{CompletedState, ROLLBACK_SECRETS, RollbackBlocker};
use runnel_hub_core::rollout::{Archive, Slot};

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
            versions: Vec::new(),
            unwritten: VecDeque::new(),
            is_readable: false,
        }
    }

    /// Reads and writes until the process ends.
    pub async fn run(mut self) {
        let mut rounds = self.hub_state.leadership.relist_barrier.subscribe();
        let mut loaded = 0;
        loop {
            let round = *rounds.requested.borrow_and_update();
            if loaded != round {
                match self.load().await {
                    Ok(()) => {
                        loaded = round;
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
                    Err(error) if error.is_conflict() => (loaded, wait) = (0, RETRY_DELAY),
                    Err(error) => {
                        tracing::error!(%error, "cannot store the states of completed rollouts; trying again");
                        wait = RETRY_DELAY;
                    }
                }
            }
            tokio::select! {
                _ = rounds.requested.changed() => {}
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
            self.hub_state.change(|index| {
                index
                    .rules_mut()
                    .set_completed_states(states, RollbackBlocker::Unreadable)
            });
            return Ok(());
        }
        (self.archive, self.versions) = (Archive::new(slots), versions);
        let mut states = BTreeMap::new();
        for uid in self.archive.rules() {
            let state = decoded(&uid, self.archive.state(&uid)).await;
            if state.is_none() {
                tracing::error!(rule = %self.hub_state.rule_name(&uid), "the stored state of the rule's last completed rollout is damaged");
            }
            let revision = state
                .as_ref()
                .map(|state| state.revision.clone())
                .unwrap_or_default();
            let state = state.map(Arc::new).ok_or(RollbackBlocker::Damaged);
            states.insert(uid, StoredState { revision, state });
        }
        self.hub_state.change(|index| {
            index
                .rules_mut()
                .set_completed_states(states, RollbackBlocker::NoneCompleted)
        });
        Ok(())
    }

    /// Queues the writes of states that are new, and of Secrets from which a state is removed.
    async fn take_changes(&mut self) {
        for uid in self.hub_state.queues.completed_rules.take() {
            let stored = self
                .hub_state
                .index
                .read()
                .rules()
                .completed()
                .get(&uid)
                .cloned();
            match stored {
                Some(StoredState {
                    state: Ok(state), ..
                }) => self.put(&uid, &state).await,
                Some(_) | None => self.unwritten.extend(self.archive.remove(&uid)),
            }
        }
        let gone: Vec<_> = {
            let index = self.hub_state.index.read();
            self.archive
                .rules()
                .into_iter()
                .filter(|uid| index.planner().latest_rule(uid).is_none())
                .collect()
        };
        for uid in gone {
            self.unwritten.extend(self.archive.remove(&uid));
            self.hub_state
                .change(|index| index.rules_mut().set_completed_state(&uid, None));
        }
    }

    async fn put(&mut self, uid: &RuleUid, state: &Arc<CompletedState>) {
        let (rule, encoded, limit) = (uid.clone(), state.clone(), self.archive.room_for(uid));
        let bytes = tokio::task::spawn_blocking(move || encoded.encode(&rule, limit))
            .await
            .ok()
            .flatten();
        let put = bytes.and_then(|bytes| self.archive.put(uid, &bytes).ok());
        if let Some(writes) = put {
            self.unwritten.extend(writes);
            return;
        }
        tracing::warn!(rule = %self.hub_state.rule_name(uid), "the state of a completed rollout does not fit: the rule's next one stops if it fails");
        self.unwritten.extend(self.archive.remove(uid));
        let too_large = StoredState {
            revision: state.revision.clone(),
            state: Err(RollbackBlocker::TooLarge),
        };
        self.hub_state
            .change(|index| index.rules_mut().set_completed_state(uid, Some(too_large)));
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

async fn decoded(uid: &RuleUid, bytes: Option<Vec<u8>>) -> Option<CompletedState> {
    let (uid, bytes) = (uid.clone(), bytes?);
    tokio::task::spawn_blocking(move || CompletedState::decode(&uid, &bytes))
        .await
        .ok()
        .flatten()
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
