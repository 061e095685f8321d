//! Limits the watches at a time. Each has a connection of the API server and a task.
use std::collections::BTreeMap;
use std::sync::Arc;

use super::error::ViewError;
use crate::ordered_lock::LeafMutex;

/// The limit of watches of all users.
const WATCHES: usize = 1024;
/// The limit of watches of one user, so that no user excludes the others.
const WATCHES_PER_USER: usize = 256;

/// The watches of each user.
#[derive(Default)]
pub(super) struct WatchLimit(LeafMutex<BTreeMap<String, usize>>);

impl WatchLimit {
    /// Counts a watch of a user.
    ///
    /// # Errors
    /// [`ViewError::Busy`], at a limit.
    pub(super) fn enter(self: &Arc<Self>, user: &str) -> Result<WatchPlace, ViewError> {
        let mut watches = self.0.lock();
        let own = watches.get(user).copied().unwrap_or_default();
        if own >= WATCHES_PER_USER {
            return Err(ViewError::Busy(format!(
                "you have {WATCHES_PER_USER} watches of {}: end some of them",
                runnel_api::VIEW_GROUP
            )));
        }
        if watches.values().sum::<usize>() >= WATCHES {
            return Err(ViewError::Busy(format!(
                "there are {WATCHES} watches of {}: try again",
                runnel_api::VIEW_GROUP
            )));
        }
        watches.insert(user.to_owned(), own + 1);
        Ok(WatchPlace {
            limit: self.clone(),
            user: user.to_owned(),
        })
    }

    fn leave(&self, user: &str) {
        let mut watches = self.0.lock();
        match watches.get_mut(user) {
            Some(own) if *own > 1 => *own -= 1,
            _ => drop(watches.remove(user)),
        }
    }
}

/// The place of one watch, until it is dropped.
pub(super) struct WatchPlace {
    limit: Arc<WatchLimit>,
    user: String,
}

impl Drop for WatchPlace {
    fn drop(&mut self) {
        self.limit.leave(&self.user);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn watches_are_limited_by_user_and_in_all() {
        let limit = Arc::new(WatchLimit::default());
        let enter = |user: &str| limit.enter(user);
        let mut places: Vec<_> = (0..WATCHES_PER_USER)
            .map(|_| enter("greedy").unwrap())
            .collect();
        assert!(matches!(enter("greedy"), Err(ViewError::Busy(_))));
        for number in 0..WATCHES - WATCHES_PER_USER {
            places.push(enter(&number.to_string()).unwrap());
        }
        assert!(matches!(enter("late"), Err(ViewError::Busy(_))));
        places.remove(0);
        assert!(enter("late").is_ok());
        places.clear();
        assert!(limit.0.lock().is_empty());
    }
}
