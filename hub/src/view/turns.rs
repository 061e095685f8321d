//! Turns bound the work of requests: all of it by weight, and that of each user to one request at a time.
//!
//! A turn belongs to the work, not to the request. Work on a thread for blocking tasks keeps the turn until it ends, also
//! if the client has left meanwhile. The end of the request sets a flag at which the work looks.
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::authentication::v1::UserInfo;
use runnel_hub_core::preview::StopFlag;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::error::ViewError;
use super::review::name_of;
use super::run_blocking;
use crate::ordered_lock::LeafMutex;

/// How long a request waits for its turn.
const WAIT: Duration = Duration::from_secs(10);

/// The turns of one kind of request.
pub(super) struct Turns {
    all: Arc<Semaphore>,
    /// The least weight of a request.
    least: u32,
    /// The users with a request under way or waiting.
    users: LeafMutex<BTreeMap<String, Arc<Semaphore>>>,
}

/// The turn of one request. Its end stops the work.
pub(super) struct Turn {
    permits: Arc<[OwnedSemaphorePermit; 2]>,
    stop: StopFlag,
}

impl Turns {
    /// Allows as many requests of the least weight at a time as `at_a_time`, and fewer heavier ones.
    pub(super) fn new(at_a_time: u32, least: u32) -> Self {
        let all =
            usize::try_from(at_a_time.saturating_mul(least)).unwrap_or(Semaphore::MAX_PERMITS);
        Self {
            all: Arc::new(Semaphore::new(all)),
            least,
            users: LeafMutex::default(),
        }
    }

    /// Waits for the turn of a request of this weight.
    ///
    /// # Errors
    /// [`ViewError::Busy`] after too long a wait.
    pub(super) async fn enter(&self, user: &UserInfo, weight: u32) -> Result<Turn, ViewError> {
        let own = {
            let mut users = self.users.lock();
            users.retain(|_, own| Arc::strong_count(own) > 1);
            let own = users.entry(name_of(user).to_owned());
            own.or_insert_with(|| Arc::new(Semaphore::new(1))).clone()
        };
        let busy = |why: &str| ViewError::Busy(format!("{why}: try again"));
        let waited = async {
            let own = own.acquire_owned().await;
            let own = own.map_err(|_| busy("the hub ends"))?;
            let all = self.all.clone();
            let all = all.acquire_many_owned(weight.max(self.least)).await;
            Ok((own, all.map_err(|_| busy("the hub ends"))?))
        };
        let waited = tokio::time::timeout(WAIT, waited).await;
        let (own, all) = waited.map_err(|_| {
            busy("the hub answers one such request of a user at a time, and those of others")
        })??;
        Ok(Turn {
            permits: Arc::new([own, all]),
            stop: StopFlag::default(),
        })
    }
}

impl Turn {
    /// The flag that is set when the request ends.
    pub(super) fn stop(&self) -> StopFlag {
        self.stop.clone()
    }

    /// Runs work on a thread for blocking tasks. The turn lasts until it ends.
    ///
    /// # Errors
    /// As [`run_blocking`].
    pub(super) async fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, ViewError> {
        let permits = self.permits.clone();
        run_blocking(move || {
            let _permits = permits;
            work()
        })
        .await
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        self.stop.set();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::channel;

    use super::*;

    fn user(name: &str) -> UserInfo {
        UserInfo {
            username: Some(name.to_owned()),
            ..UserInfo::default()
        }
    }

    /// Whether a turn is free now.
    async fn is_free(turns: &Turns, name: &str, weight: u32) -> bool {
        let user = user(name);
        let now = tokio::time::timeout(Duration::ZERO, turns.enter(&user, weight));
        now.await.is_ok_and(|turn| turn.is_ok())
    }

    #[tokio::test]
    async fn user_has_one_turn_and_heavy_requests_take_more() {
        let turns = Turns::new(4, 10);
        let one = turns.enter(&user("alice"), 1).await.unwrap();
        assert!(!is_free(&turns, "alice", 1).await);
        assert!(is_free(&turns, "bob", 30).await);
        assert!(!is_free(&turns, "bob", 31).await);
        drop(one);
        assert!(is_free(&turns, "alice", 40).await);
        assert!(turns.users.lock().len() <= 2);
    }

    #[tokio::test]
    async fn turn_of_an_aborted_request_lasts_until_its_work_ends() {
        let turns = Turns::new(1, 1);
        let turn = turns.enter(&user("alice"), 1).await.unwrap();
        let stop = turn.stop();
        let (begun, begins) = channel();
        let (end, ends) = channel::<()>();
        let request = async move {
            turn.run(move || {
                begun.send(()).unwrap();
                ends.recv().unwrap();
            })
            .await
        };
        let request = tokio::spawn(request);
        tokio::task::spawn_blocking(move || begins.recv().unwrap())
            .await
            .unwrap();
        assert!(!stop.is_set());
        request.abort();
        assert!(request.await.unwrap_err().is_cancelled());
        assert!(stop.is_set() && !is_free(&turns, "bob", 1).await);
        end.send(()).unwrap();
        turns.enter(&user("bob"), 1).await.unwrap();
    }
}
