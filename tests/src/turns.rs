//! Fleets that tests of one file use exclusively in turn: for tests that stop or freeze shared
//! processes.

use futures::future::select_all;
use tokio::sync::{Mutex, MutexGuard, OnceCell};

use anyhow::Result;

use crate::fleet::{Fleet, FleetOptions};

/// The number of fleets, each started when a test first finds the others in use. Most of these
/// tests wait for leases and timeouts, so two at a time take half as long.
#[derive(Debug)]
pub struct Turns<const FLEETS: usize>([FleetSlot; FLEETS]);

#[derive(Debug)]
struct FleetSlot {
    turn: Mutex<()>,
    fleet: OnceCell<Fleet>,
}

/// A fleet that is one test's alone, until this is dropped.
#[derive(Debug)]
pub struct Turn {
    /// It lives as long as the program, as the next test uses it too.
    pub fleet: &'static Fleet,
    _turn: MutexGuard<'static, ()>,
}

impl<const FLEETS: usize> Turns<FLEETS> {
    /// For a static variable; nothing is started yet.
    #[must_use]
    #[expect(
        clippy::new_without_default,
        reason = "a default cannot be made for a static variable"
    )]
    pub const fn new() -> Self {
        Self(
            [const {
                FleetSlot {
                    turn: Mutex::const_new(()),
                    fleet: OnceCell::const_new(),
                }
            }; FLEETS],
        )
    }

    /// Waits for a fleet that no other test has, and starts it where it is the first to have it.
    ///
    /// # Errors
    /// When the fleet does not start.
    pub async fn take(&'static self, options: FleetOptions) -> Result<Turn> {
        let places = self
            .0
            .iter()
            .map(|place| Box::pin(async move { (place, place.turn.lock().await) }));
        let ((place, turn), ..) = select_all(places).await;
        let fleet = place
            .fleet
            .get_or_try_init(|| Fleet::start(options))
            .await?;
        Ok(Turn { fleet, _turn: turn })
    }
}
