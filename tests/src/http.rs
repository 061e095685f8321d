//! A plain HTTP client for single requests: metrics, probes, etcd and Prometheus.

use std::time::Duration;

use anyhow::{Context, Result};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

/// The response.
#[derive(Debug)]
pub struct HttpResponse {
    /// The status code, as 200.
    pub status: u16,
    /// The response body.
    pub body: String,
}

/// Asks for `path` at `address` (`host:port`).
///
/// # Errors
/// When no whole answer comes within `limit`.
pub async fn get(address: &str, path: &str, limit: Duration) -> Result<HttpResponse> {
    ask(
        address,
        &format!("GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n"),
        limit,
    )
    .await
}

/// Sends JSON to `path` at `address` (`host:port`).
///
/// # Errors
/// When no whole answer comes within `limit`.
pub async fn post(address: &str, path: &str, json: &str, limit: Duration) -> Result<HttpResponse> {
    let length = json.len();
    let head =
        format!("POST {path} HTTP/1.0\r\nHost: {address}\r\nContent-Type: application/json\r\n");
    ask(
        address,
        &format!("{head}Content-Length: {length}\r\n\r\n{json}"),
        limit,
    )
    .await
}

/// Sends a request with these headers, without a body, and returns the head of the answer.
///
/// # Errors
/// When no head comes within `limit`.
pub async fn send(
    address: &str,
    method: &str,
    path: &str,
    headers: &[(&str, &str)],
    limit: Duration,
) -> Result<HttpResponse> {
    let headers: String = headers
        .iter()
        .map(|(name, value)| format!("{name}: {value}\r\n"))
        .collect();
    let request = format!("{method} {path} HTTP/1.0\r\n{headers}\r\n");
    ask(address, &request, limit).await
}

// HTTP/1.0, so that the response is not chunked, and ends with the connection.
async fn ask(address: &str, request: &str, limit: Duration) -> Result<HttpResponse> {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(request.as_bytes()).await?;
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await?;
        anyhow::Ok(answer)
    };
    let answer = tokio::time::timeout(limit, asked)
        .await
        .with_context(|| format!("{address} did not answer in time"))??;
    let (head, body) = answer
        .split_once("\r\n\r\n")
        .with_context(|| format!("{address} answered without a body"))?;
    let first = head.lines().next().unwrap_or_default();
    let status = first
        .split(' ')
        .nth(1)
        .and_then(|status| status.parse().ok());
    let status = status.with_context(|| format!("{address} answered {first:?}"))?;
    Ok(HttpResponse {
        status,
        body: body.to_owned(),
    })
}
