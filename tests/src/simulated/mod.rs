//! Simulated agents: the real protocol over real mutual TLS, without an API server behind it.
//!
//! Many fit into one process. [`SimulatedAgent`] behaves: it joins with a join string, keeps a session, takes batches
//! in, acks, and reports every copy as applied at once. [`Line`] is a stream under the hand of a test, for everything
//! that a well-behaved agent never does. Both keep every byte that the hub sent. A [`Proxy`] stands between any agent and
//! its hub and cuts the link where it is told to.

mod agent;
mod credentials;
mod holdings;
mod line;
mod middlebox;
mod proxy;
mod record;

pub use agent::{SimulatedAgent, State};
pub use credentials::{Credentials, Forgery, channel};
pub(crate) use holdings::digest_of;
pub use holdings::{AckedRule, Holdings};
pub use line::Line;
pub(crate) use line::hello;
pub use middlebox::Middlebox;
pub use proxy::Proxy;
pub use record::{Record, sketch};
