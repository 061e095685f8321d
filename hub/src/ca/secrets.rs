//! The watch of one of the hub's own Secrets. The hub does not read the Secret again while it is
//! unchanged.
use futures::StreamExt;
use k8s_openapi::api::core::v1::Secret;
use kube::Api;
use kube::runtime::watcher::Event;

use crate::relist_barrier::RelistSubscription;
use crate::watch::{RelistingWatch, WatchEvent, events_of, failure, refusal};
use runnel_hub_core::index::version_number;

/// One Secret of the hub, as its watch delivers it. A new right to lead starts a new list.
pub(super) struct SecretWatch {
    name: &'static str,
    events: RelistingWatch<Secret>,
    state: SecretState,
}

/// The state that results from the events of a watch of one Secret.
#[derive(Default)]
struct SecretState {
    /// The Secret, if it exists.
    present: Option<Secret>,
    /// Whether a list has been complete since the watch began.
    is_listed: bool,
    /// The Secret in the list that is not complete yet.
    pending: Option<Secret>,
}

impl SecretWatch {
    /// Creates a watch of the Secret with this name.
    pub(super) fn new(api: Api<Secret>, name: &'static str, rounds: RelistSubscription) -> Self {
        let events = RelistingWatch::new(rounds, move || events_of(api.clone(), name).boxed());
        Self {
            name,
            events,
            state: SecretState::default(),
        }
    }

    /// Completes when the Secret may have changed. The future may be dropped and created again.
    pub(super) async fn changed(&mut self) {
        loop {
            let event = self.events.next().await;
            if let Some(Err(error)) = &event {
                let name = self.name;
                match refusal(
                    error,
                    "give the hub get, list and watch on it by a Role in the hub's namespace",
                ) {
                    Some(why) => {
                        tracing::error!(why, "cannot watch the Secret {name}; trying again")
                    }
                    None => {
                        tracing::warn!(
                            error = failure(error),
                            "watch of the Secret {name} failed; retrying"
                        )
                    }
                }
            }
            if self.state.observe(event) {
                return;
            }
        }
    }

    /// Returns the current Secret, or `Some(None)` if it does not exist. Returns `None` before a
    /// list is complete.
    pub(super) fn current(&self) -> Option<Option<&Secret>> {
        self.state.is_listed.then_some(self.state.present.as_ref())
    }

    /// Stores a Secret that the hub itself has written, before the watch delivers it.
    pub(super) fn record_write(&mut self, secret: Secret) {
        self.state.store_if_newer(Some(secret));
    }
}

fn version(secret: &Secret) -> u64 {
    version_number(secret.metadata.resource_version.as_deref())
}

impl SecretState {
    /// Handles an event of the watch, or its restart (`None`). Returns whether the Secret may have
    /// changed.
    fn observe(&mut self, event: Option<WatchEvent<Secret>>) -> bool {
        match event {
            None => {
                *self = Self {
                    present: self.present.take(),
                    ..Self::default()
                }
            }
            Some(Ok(Event::Init)) => self.pending = None,
            Some(Ok(Event::InitApply(secret))) => self.pending = Some(secret),
            Some(Ok(Event::InitDone)) => {
                (self.present, self.is_listed) = (self.pending.take(), true);
                return true;
            }
            Some(Ok(Event::Apply(secret))) => return self.store_if_newer(Some(secret)),
            // The Secret was created again since.
            Some(Ok(Event::Delete(secret))) if self.is_newer_than(&secret) => {}
            Some(Ok(Event::Delete(_))) => return self.store_if_newer(None),
            Some(Err(_)) => {}
        }
        false
    }

    fn is_newer_than(&self, other: &Secret) -> bool {
        self.present
            .as_ref()
            .is_some_and(|present| version(present) > version(other))
    }

    /// Stores the state of the Secret, unless a newer one is stored. Returns whether it was stored.
    fn store_if_newer(&mut self, secret: Option<Secret>) -> bool {
        if secret
            .as_ref()
            .is_some_and(|secret| self.is_newer_than(secret))
        {
            return false;
        }
        self.present = secret;
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use k8s_openapi::ByteString;
    use kube::api::ObjectMeta;

    fn secret(version: u32) -> Secret {
        let metadata = ObjectMeta {
            resource_version: Some(version.to_string()),
            ..ObjectMeta::default()
        };
        let data = [(
            "version".to_owned(),
            ByteString(version.to_string().into_bytes()),
        )];
        Secret {
            metadata,
            data: Some(data.into()),
            ..Secret::default()
        }
    }

    /// Returns the known version: 0 for a Secret that does not exist, `None` while the state is
    /// unknown.
    fn current(state: &SecretState) -> Option<u64> {
        state
            .is_listed
            .then(|| state.present.as_ref().map_or(0, version))
    }

    fn apply_events(state: &mut SecretState, events: Vec<Event<Secret>>) -> Vec<bool> {
        events
            .into_iter()
            .map(|event| state.observe(Some(Ok(event))))
            .collect()
    }

    #[test]
    fn secret_is_known_from_its_first_list_on() {
        let mut state = SecretState::default();
        assert_eq!(current(&state), None);
        assert_eq!(
            apply_events(&mut state, vec![Event::Init, Event::InitDone]),
            [false, true]
        );
        assert_eq!(current(&state), Some(0));
        assert_eq!(
            apply_events(
                &mut state,
                vec![Event::Apply(secret(5)), Event::Apply(secret(7))]
            ),
            [true, true]
        );
        assert_eq!(current(&state), Some(7));
        assert_eq!(
            apply_events(&mut state, vec![Event::Delete(secret(8))]),
            [true]
        );
        assert_eq!(current(&state), Some(0));
    }

    #[test]
    fn own_write_outlives_events_of_before() {
        let mut state = SecretState::default();
        apply_events(
            &mut state,
            vec![Event::Init, Event::InitApply(secret(5)), Event::InitDone],
        );
        assert!(state.store_if_newer(Some(secret(9))));
        assert_eq!(
            apply_events(
                &mut state,
                vec![Event::Apply(secret(7)), Event::Delete(secret(8))]
            ),
            [false, false]
        );
        assert_eq!(current(&state), Some(9));
        assert_eq!(
            apply_events(&mut state, vec![Event::Apply(secret(10))]),
            [true]
        );
    }

    #[test]
    fn new_list_replaces_the_former_state() {
        let mut state = SecretState::default();
        apply_events(
            &mut state,
            vec![Event::Init, Event::InitApply(secret(90)), Event::InitDone],
        );
        // The right to lead is new: the stored state may be stale.
        assert!(!state.observe(None));
        assert_eq!(current(&state), None);
        // The API server was restored from a backup.
        assert_eq!(
            apply_events(&mut state, vec![Event::Init, Event::InitApply(secret(40))]),
            [false, false]
        );
        assert_eq!(current(&state), None);
        apply_events(&mut state, vec![Event::InitDone]);
        assert_eq!(current(&state), Some(40));
        // The watch itself relists, as after an error: the former state is kept until the list is
        // complete.
        apply_events(&mut state, vec![Event::Init]);
        assert_eq!(current(&state), Some(40));
        apply_events(&mut state, vec![Event::InitDone]);
        assert_eq!(current(&state), Some(0));
    }
}
