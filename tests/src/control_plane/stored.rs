//! What etcd holds, as etcd itself says.

use std::collections::BTreeMap;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use data_encoding::BASE64;
use serde::Deserialize;

use crate::http;

const ANSWER: Duration = Duration::from_secs(60);
/// Everything: from the least key on, and no end.
const ALL: &str = r#"{"key": "AA==", "range_end": "AA=="}"#;
/// These change by themselves.
const LEASES: [&str; 2] = ["/registry/leases/", "/registry/masterleases/"];

#[derive(Deserialize)]
struct Answer {
    kvs: Vec<Pair>,
}

#[derive(Deserialize)]
struct Pair {
    key: String,
    #[serde(default)]
    value: String,
}

/// The bytes of each key with its value, in the newest revision; Leases are left out.
pub(super) async fn stored(etcd: &str) -> Result<BTreeMap<String, usize>> {
    let address = etcd.strip_prefix("http://").with_context(|| format!("an odd address: {etcd}"))?;
    let answer = http::post(address, "/v3/kv/range", ALL, ANSWER).await?;
    ensure!(answer.status == 200, "etcd answers {}", answer.status);
    let answer: Answer = serde_json::from_str(&answer.body).context("an odd answer of etcd")?;
    let size = |pair: Pair| {
        let key = String::from_utf8_lossy(&BASE64.decode(pair.key.as_bytes())?).into_owned();
        let size = key.len() + BASE64.decode(pair.value.as_bytes())?.len();
        anyhow::Ok((key, size))
    };
    let all: BTreeMap<String, usize> = answer.kvs.into_iter().map(size).collect::<Result<_>>()?;
    ensure!(!all.is_empty(), "etcd says that it holds nothing");
    Ok(all.into_iter().filter(|(key, _)| !LEASES.iter().any(|lease| key.starts_with(lease))).collect())
}
