//! Signals to a session, apart from its agent's frames and changes of the index.
use std::sync::Arc;

use futures::stream::{self, BoxStream, SelectAll};
use futures::{Stream, StreamExt};
use runnel_transport::tls::Meter;
use tokio::sync::watch;
use tokio_util::sync::CancellationToken;

use crate::hub_state::HubState;

/// A rare signal.
pub(super) enum Signal {
    /// The right to lead has changed.
    Lead,
    /// The hub's authorities have changed.
    Authorities,
    /// The agent must be sent a keepalive frame: see [`Meter::needs_ping`].
    SignOfLifeOwed,
    /// The process ends.
    Shutdown,
}

/// The signals of one session. A session waits again after each frame. A new subscription to every
/// signal would cost more than the frame, so the session subscribes once.
pub(super) type Signals = SelectAll<BoxStream<'static, Signal>>;

/// Returns the signals of a session on a connection with this meter, until `shutdown` is cancelled.
pub(super) fn signals(
    hub_state: &HubState,
    meter: Arc<Meter>,
    shutdown: CancellationToken,
) -> Signals {
    let owed = stream::unfold(meter, |meter| async {
        meter.needs_ping().await;
        Some((Signal::SignOfLifeOwed, meter))
    });
    stream::select_all([
        changes(hub_state.leadership.lead.subscribe())
            .map(|()| Signal::Lead)
            .boxed(),
        changes(hub_state.authorities.subscribe())
            .map(|()| Signal::Authorities)
            .boxed(),
        owed.boxed(),
        stream::once(shutdown.cancelled_owned())
            .map(|()| Signal::Shutdown)
            .boxed(),
    ])
}

fn changes<T>(receiver: watch::Receiver<T>) -> impl Stream<Item = ()> {
    stream::unfold(receiver, |mut receiver| async {
        receiver.changed().await.ok()?;
        Some(((), receiver))
    })
}
