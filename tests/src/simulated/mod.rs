//! Simulated agents: the real protocol over real mutual TLS, without an API server.
//! [`SimulatedAgent`] behaves correctly: it joins with a join string, keeps a session, applies
//! batches, acks, and reports every copy as applied at once. [`AgentStream`] is a stream under the control
//! of a test, for incorrect agents. Both record every byte of the hub. A [`Proxy`] between an agent
//! and its hub cuts or slows down the connection.

mod agent;
mod credentials;
mod holdings;
mod middlebox;
mod proxy;
mod record;
mod stream;

pub use agent::{AgentState, SimulatedAgent};
pub use credentials::{Credentials, Forgery, channel};
pub(crate) use holdings::digest_of;
pub use holdings::{AckedRule, Holdings};
pub use middlebox::Middlebox;
pub use proxy::Proxy;
pub use record::{Record, sketch};
pub use stream::AgentStream;
pub(crate) use stream::hello;
