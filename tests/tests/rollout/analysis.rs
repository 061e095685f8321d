//! Waves that are checked while they soak, by a server that turns bad.
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use anyhow::{Result, ensure};
use runnel_tests::scene::condition;
use runnel_tests::wait::steadily;
use serde_json::{Value, json};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::{A_WHILE, SOON, Stage};

/// An HTTP server: `/health` has the status 200 or 503, `/moved` leads to `/health`, and each query has the value 0.1 or 0.9.
#[derive(Clone)]
struct Server {
    address: String,
    is_bad: Arc<AtomicBool>,
    requests: Arc<AtomicUsize>,
}

impl Server {
    async fn start() -> Result<Self> {
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let server = Self {
            address: listener.local_addr()?.to_string(),
            is_bad: Arc::default(),
            requests: Arc::default(),
        };
        let serving = server.clone();
        tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                let serving = serving.clone();
                tokio::spawn(async move { serving.serve(stream).await });
            }
        });
        Ok(server)
    }

    async fn serve(&self, mut stream: TcpStream) -> Result<()> {
        let mut request = vec![];
        while !request.windows(4).any(|end| end == b"\r\n\r\n") {
            let mut part = [0; 1024];
            let read = stream.read(&mut part).await?;
            ensure!(read > 0, "the client left");
            request.extend(&part[..read]);
        }
        self.requests.fetch_add(1, Ordering::Relaxed);
        let line = String::from_utf8_lossy(&request);
        let path = line.split(' ').nth(1).unwrap_or_default();
        let is_bad = self.is_bad.load(Ordering::Relaxed);
        let value = if is_bad { "0.9" } else { "0.1" };
        let data = json!({"resultType": "vector", "result": [{"metric": {}, "value": [1, value]}]});
        let (status, body) = match path {
            "/health" if is_bad => ("503 Service Unavailable", "s3cr3t".to_owned()),
            "/health" => ("200 OK", String::new()),
            "/moved" => ("302 Found\r\nLocation: /health", String::new()),
            "/api/v1/query?query=sum%28errors%29" => (
                "200 OK",
                json!({"status": "success", "data": data}).to_string(),
            ),
            _ => ("404 Not Found", String::new()),
        };
        let answer = format!(
            "HTTP/1.1 {status}\r\nConnection: close\r\nContent-Length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(answer.as_bytes()).await?;
        Ok(())
    }

    fn turns(&self, is_bad: bool) {
        self.is_bad.store(is_bad, Ordering::Relaxed);
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }
}

impl Stage {
    /// The edit is rolled back in its first wave by this message; the last member never had it.
    async fn is_rolled_back(&self, good: &Value, message: &str) -> Result<()> {
        self.is_in_phase("Reverted", 1).await?;
        self.has(self.first(), good).await?;
        let rule = self.scene.hub.sees("why", &self.rule, |rule| {
            let reverted = condition(rule, "RolloutReverted")?;
            let text = reverted["message"].as_str().unwrap_or_default();
            ensure!(
                reverted["reason"] == "AnalysisFailed" && text.contains(message),
                "{reverted}"
            );
            let ready = condition(rule, "Ready")?;
            ensure!(ready["reason"] == "AnalysisFailed", "{ready}");
            Ok(())
        });
        let rule = rule.await?;
        ensure!(!rule["status"].to_string().contains("s3cr3t"), "{rule}");
        Ok(())
    }

    async fn last_is_unchanged(&self, good: &Value) -> Result<()> {
        let seen = self.last().get(&self.source).await?;
        ensure!(seen["data"] == good["data"], "the last wave has it");
        Ok(())
    }
}

#[tokio::test]
async fn failing_check_rolls_back_the_first_wave() -> Result<()> {
    let server = Server::start().await?;
    let values = json!({"analysis": {"allowedURLs": [server.url("")]}});
    let stage = Stage::start_with_values(2, values, false).await?;
    let analysis = json!({"http": {"url": server.url("/health")}, "intervalSeconds": 5});
    stage
        .wants(json!({"onFailure": "Revert", "analysis": analysis}))
        .await?;
    super::is_stored(&stage, 1).await?;
    let good = stage.edit("k", "1").await?;
    stage.has(stage.last(), &good).await?;
    let completed = stage.is_completed(2).await?;
    ensure!(
        completed["analysis"]["checks"] == 1 && completed["analysis"]["holds"] == true,
        "{completed}"
    );
    ensure!(
        server.requests.load(Ordering::Relaxed) == 2,
        "one for each wave"
    );
    super::is_stored(&stage, 2).await?;

    // The server turns bad. The wave is applied without failures, and goes back.
    server.turns(true);
    stage.edit("k", "2").await?;
    stage
        .is_rolled_back(&good, "the answer has the status 503")
        .await?;
    steadily("the last wave sees nothing of it", A_WHILE, async || {
        stage.last_is_unchanged(&good).await
    })
    .await?;

    // A query whose value is too large. A redirect is not followed.
    let query = json!({"address": server.url("/"), "query": "sum(errors)", "max": "0.5"});
    let by_query = json!({"http": null, "prometheus": query});
    let moved = json!({"prometheus": null, "http": {"url": server.url("/moved")}});
    for (key, check, message) in [
        ("3", by_query, "the value 0.9 is not at most max"),
        ("4", moved, "the answer has the status 302"),
    ] {
        stage.wants(json!({"analysis": check})).await?;
        let bad = stage.edit("k", key).await?;
        stage
            .scene
            .hub
            .sees("the new rollout", &stage.rule, |rule| {
                let rollout = &rule["status"]["rollout"];
                ensure!(
                    rollout["phase"] != "Reverted"
                        || rollout["failure"].to_string().contains(message),
                    "{rollout}"
                );
                Ok(())
            })
            .await?;
        ensure!(bad["data"] != good["data"], "{bad}");
        stage.is_rolled_back(&good, message).await?;
        stage.last_is_unchanged(&good).await?;
    }

    // What the administrator did not allow is refused, and begins no wave.
    let requests = server.requests.load(Ordering::Relaxed);
    let other = json!({"http": {"url": "http://127.0.0.1:1/health"}});
    stage.wants(json!({"analysis": other})).await?;
    stage.edit("k", "5").await?;
    let rule = stage
        .scene
        .hub
        .wait_ready(&stage.rule, "False", "AnalysisRefused")
        .await?;
    let stalled = condition(&rule, "Stalled")?;
    let message = stalled["message"].as_str().unwrap_or_default();
    ensure!(message.contains("http://127.0.0.1:1/health"), "{stalled}");
    steadily("no wave begins", A_WHILE, async || {
        stage.last_is_unchanged(&good).await?;
        let first = stage.first().get(&stage.source).await?;
        ensure!(first["data"] == good["data"], "the first wave has it");
        let now = server.requests.load(Ordering::Relaxed);
        ensure!(now == requests, "something was requested");
        Ok(())
    })
    .await?;
    // Without the analysis it begins.
    stage.wants(json!({"analysis": null})).await?;
    tokio::time::timeout(SOON, stage.is_completed(2)).await??;
    Ok(())
}
