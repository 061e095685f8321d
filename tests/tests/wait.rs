//! The waits of the harness.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use runnel_tests::wait::{eventually, steadily};

#[tokio::test]
async fn timed_out_wait_names_goal_and_last_observation() -> Result<()> {
    let waited = eventually(
        "the impossible",
        Duration::from_millis(120),
        async || -> Result<Option<()>> { bail!("it is still impossible") },
    );
    let message = format!(
        "{:#}",
        waited.await.err().context("the impossible came true")?
    );
    ensure!(
        message.contains("for the impossible") && message.ends_with("it is still impossible"),
        "{message}"
    );
    let mut attempts = 0;
    let copies_there = steadily(
        "fewer than three attempts",
        Duration::from_secs(20),
        async || {
            attempts += 1;
            ensure!(attempts < 3, "attempt number {attempts}");
            Ok(())
        },
    );
    let message = format!("{:#}", copies_there.await.err().context("it held")?);
    ensure!(
        message.starts_with("fewer than three attempts") && message.ends_with("attempt number 3"),
        "{message}"
    );
    Ok(())
}
