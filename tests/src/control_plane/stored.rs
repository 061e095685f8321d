//! Reads the content of etcd.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use serde::Deserialize;
use serde_json::json;

use crate::http;

const ANSWER: Duration = Duration::from_secs(60);
/// Everything: from the least key on, and no end.
const ALL: &str = r#"{"key": "AA==", "range_end": "AA=="}"#;
/// Keys that change without writes of tests.
const LEASES: [&str; 2] = ["/registry/leases/", "/registry/masterleases/"];

#[derive(Deserialize)]
struct RangeResponse {
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    key: String,
    #[serde(default)]
    value: String,
}

/// Stores a value under a key, or removes the key, past the API server.
pub(super) async fn store(etcd: &str, key: &str, value: Option<&str>) -> Result<()> {
    let key = BASE64.encode(key.as_bytes());
    let (call, request) = match value {
        Some(value) => (
            "put",
            json!({"key": key, "value": BASE64.encode(value.as_bytes())}),
        ),
        None => ("deleterange", json!({"key": key})),
    };
    ask(etcd, call, &request.to_string()).await.map(drop)
}

async fn ask(etcd: &str, call: &str, request: &str) -> Result<String> {
    let address = etcd
        .strip_prefix("http://")
        .with_context(|| format!("an odd address: {etcd}"))?;
    let answer = http::post(address, &format!("/v3/kv/{call}"), request, ANSWER).await?;
    ensure!(answer.status == 200, "etcd answers {}", answer.status);
    Ok(answer.body)
}

/// The bytes of each key with its value, in the newest revision; Leases are left out.
pub(super) async fn stored(etcd: &str) -> Result<BTreeMap<String, usize>> {
    let answer: RangeResponse =
        serde_json::from_str(&ask(etcd, "range", ALL).await?).context("an odd answer of etcd")?;
    let size = |pair: Pair| {
        let key = String::from_utf8_lossy(&BASE64.decode(pair.key.as_bytes())?).into_owned();
        let size = key.len() + BASE64.decode(pair.value.as_bytes())?.len();
        anyhow::Ok((key, size))
    };
    let all: BTreeMap<String, usize> = answer.kvs.into_iter().map(size).collect::<Result<_>>()?;
    ensure!(!all.is_empty(), "etcd says that it holds nothing");
    Ok(all
        .into_iter()
        .filter(|(key, _)| !LEASES.iter().any(|lease| key.starts_with(lease)))
        .collect())
}
