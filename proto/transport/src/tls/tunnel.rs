//! The way to the hub, straight or through the proxy of the environment.
use std::env;
use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::proxy::{Proxy, ProxyError, Route, answer};

/// For the name, the connection and the handshake together.
pub(super) const CONNECT_LIMIT: Duration = Duration::from_secs(15);

/// The longest answer of a proxy that is read.
const HEAD_LIMIT: usize = 8 * 1024;

/// The reason why the hub cannot be reached.
#[derive(Debug, thiserror::Error)]
pub enum ConnectError {
    /// Not `host:port`.
    #[error("`{0}` is not an address: write host:port")]
    Address(String),
    /// No connection.
    #[error("cannot connect to the hub at {address}: {source}")]
    Connect {
        /// The address of the hub, `host:port`.
        address: String,
        /// The error of the connection.
        source: io::Error,
    },
    /// No way through the proxy.
    #[error("cannot reach the hub at {address} through the proxy {proxy}: {why}")]
    Proxy {
        /// The proxy.
        proxy: String,
        /// The address of the hub, `host:port`.
        address: String,
        /// The reason, with a hint.
        why: String,
    },
    /// The proxy of the environment is none.
    #[error(transparent)]
    Route(#[from] ProxyError),
    /// No TLS.
    #[error("TLS with the hub at {address} failed: {source}")]
    Tls {
        /// The address of the hub, `host:port`.
        address: String,
        /// The error of the connection.
        source: io::Error,
    },
    /// No answer.
    #[error("the hub at {address} did not answer within {} seconds", CONNECT_LIMIT.as_secs())]
    Timeout {
        /// The address of the hub, `host:port`.
        address: String,
    },
}

/// The proxy that the environment names: `HTTPS_PROXY` or `https_proxy`, and `NO_PROXY` or `no_proxy`.
pub(super) fn route_of_environment() -> Result<Route, ConnectError> {
    let first = |names: [&str; 2]| {
        let mut values = names.into_iter().filter_map(|name| env::var(name).ok());
        values
            .find(|value| !value.trim().is_empty())
            .unwrap_or_default()
    };
    let route = Route::new(
        &first(["HTTPS_PROXY", "https_proxy"]),
        &first(["NO_PROXY", "no_proxy"]),
    );
    Ok(route?)
}

/// A connection to `host:port`.
pub(super) async fn open(route: &Route, target: &str) -> Result<TcpStream, ConnectError> {
    let Some(proxy) = route.proxy_for(target) else {
        let direct = TcpStream::connect(target).await;
        return direct.map_err(|source| ConnectError::Connect {
            address: target.to_owned(),
            source,
        });
    };
    let through = |why: String| ConnectError::Proxy {
        proxy: proxy.address.clone(),
        address: target.to_owned(),
        why,
    };
    let stream = TcpStream::connect(&proxy.address).await;
    let mut stream = stream.map_err(|error| through(format!("it cannot be reached: {error}")))?;
    let head = request_tunnel(&mut stream, proxy, target)
        .await
        .map_err(|error| through(format!("it broke off: {error}")))?;
    match answer(&head) {
        Some((200..=299, _)) => Ok(stream),
        Some((407, _)) => Err(through(
            "it refuses our name or password (407): check HTTPS_PROXY".to_owned(),
        )),
        Some((code @ 400..=499, words)) => Err(through(format!(
            "the proxy refused the tunnel ({code} {words}): allow CONNECT to this address and port"
        ))),
        Some((code, words)) => Err(through(format!(
            "the proxy could not open the tunnel ({code} {words})"
        ))),
        None => Err(through(
            "it does not use HTTP: check HTTPS_PROXY".to_owned(),
        )),
    }
}

/// Requests the tunnel and reads exactly the head of the answer.
async fn request_tunnel(stream: &mut TcpStream, proxy: &Proxy, target: &str) -> io::Result<String> {
    stream
        .write_all(proxy.connect_request(target).as_bytes())
        .await?;
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") && head.len() < HEAD_LIMIT {
        head.push(stream.read_u8().await?);
    }
    // Returns a text of the proxy without control characters, so that it may be shown.
    Ok(String::from_utf8_lossy(&head)
        .chars()
        .filter(|c| !c.is_control() || matches!(c, '\r' | '\n'))
        .collect())
}
