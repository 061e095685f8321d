//! The state that all pages share, and the stream of its updates.
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use jiff::Timestamp;
use tokio::sync::broadcast;

use super::state::{About, PageState, Update};

/// The number of updates that a page may lag behind. A slower one begins again with a snapshot.
const BACKLOG: usize = 256;

/// One update, as a server-sent event.
pub(super) type Frame = Arc<str>;

/// The state, and its updates.
pub(super) struct Feed {
    state: Mutex<PageState>,
    updates: broadcast::Sender<Frame>,
}

impl Feed {
    /// Creates a feed without objects.
    pub(super) fn new(about: About) -> Self {
        Self {
            state: Mutex::new(PageState::new(about)),
            updates: broadcast::Sender::new(BACKLOG),
        }
    }

    /// Changes the state, and sends the updates to all pages.
    pub(super) fn change<U: IntoIterator<Item = Update>>(
        &self,
        change: impl FnOnce(&mut PageState, Timestamp) -> U,
    ) {
        let mut state = self.lock();
        // Under the lock, so that a new page gets each update once.
        for update in change(&mut state, Timestamp::now()) {
            // An error: no page is open.
            _ = self.updates.send(frame(&update));
        }
    }

    /// The number of deliveries.
    pub(super) fn cells(&self) -> usize {
        self.lock().cells()
    }

    /// Returns the whole state, and the updates after it.
    pub(super) fn subscribe(&self) -> (Vec<Frame>, broadcast::Receiver<Frame>) {
        let state = self.lock();
        let frames = state.snapshot().iter().map(frame).collect();
        (frames, self.updates.subscribe())
    }

    fn lock(&self) -> MutexGuard<'_, PageState> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn frame(update: &Update) -> Frame {
    let json = serde_json::to_string(update).expect("an update has only text keys");
    format!("data: {json}\n\n").into()
}

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::ui::resource::Resource;

    /// A feed of the context `hub`, without any state.
    pub(in crate::ui) fn feed() -> Feed {
        Feed::new(About {
            version: "0",
            context: "hub".to_owned(),
            server: "https://hub".to_owned(),
            namespace: None,
            clock_ahead_ms: 0,
        })
    }

    #[test]
    fn page_gets_a_snapshot_and_each_later_update_once() {
        let feed = feed();
        feed.change(|state, now| state.set_source(Resource::Rules, "loading", "", now));
        let (frames, mut updates) = feed.subscribe();
        assert!(frames.iter().any(|frame| frame.contains("loading")));
        feed.change(|state, now| state.set_source(Resource::Rules, "live", "", now));
        assert!(updates.try_recv().unwrap().contains("\"live\""));
        assert!(updates.try_recv().is_err());
    }

    #[test]
    fn page_that_lags_too_far_is_ended() {
        let feed = feed();
        let (_, mut updates) = feed.subscribe();
        for number in 0..=BACKLOG {
            let message = number.to_string();
            feed.change(|state, now| state.set_source(Resource::Rules, "failed", &message, now));
        }
        assert!(matches!(
            updates.try_recv(),
            Err(broadcast::error::TryRecvError::Lagged(1))
        ));
    }
}
