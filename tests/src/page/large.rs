//! How quick the page is with a large fleet: 200 rules in 1,000 clusters, which a generated API server answers.

use std::path::Path;
use std::time::{Duration, Instant};

use anyhow::Result;
use serde::Deserialize;
use serde_json::json;

use super::browser::Browser;
use super::generated::{GeneratedHub, Size};
use super::plugin::Ui;
use crate::demo::narrate::Narrator;
use crate::memory;
use crate::wait::eventually;

const SIZE: Size = Size {
    rules: 200,
    clusters: 1000,
    changes: 50,
};
const SOON: Duration = Duration::from_secs(120);

/// Scrolls through the whole matrix in 240 frames, and returns the times of the frames and of drawing them.
const SCROLL: &str = "
    const done = arguments[arguments.length - 1];
    const matrix = document.getElementById('matrix');
    const area = matrix.querySelector('.matrix-scroll');
    const [right, down] = [area.scrollWidth - area.clientWidth, area.scrollHeight - area.clientHeight];
    matrix.frameTimes.length = 0;
    const frames = [];
    let [step, before] = [0, performance.now()];
    function next(now) {
      frames.push(now - before);
      before = now;
      step += 1;
      if (step > 240) { done({ frames: frames.slice(1), draws: [...matrix.frameTimes] }); return; }
      area.scrollLeft = right * step / 240;
      area.scrollTop = down * step / 240;
      requestAnimationFrame(next);
    }
    requestAnimationFrame(next);";

#[derive(Debug, Deserialize)]
struct Frames {
    frames: Vec<f64>,
    draws: Vec<f64>,
}

/// Whether the page is live and has all rules and clusters.
const COMPLETE: &str = "
    const matrix = document.getElementById('matrix');
    return document.getElementById('live').textContent === 'live'
      && matrix?.getAttribute('aria-rowcount') === arguments[0]
      && matrix?.getAttribute('aria-colcount') === arguments[1]";

/// Measures, and prints the figures.
///
/// # Errors
/// When the page does not show the fleet.
pub async fn measure(narrator: &mut Narrator, folder: &Path, plugin: &Path) -> Result<()> {
    narrator.step("200 rules in 1,000 clusters, from a generated API server");
    narrator.say("The API server is generated: the time that a hub takes to answer is not part of these figures.");
    let hub = GeneratedHub::start(SIZE, folder).await?;
    let browser = Browser::start(folder).await?;
    let begin = Instant::now();
    let ui = Ui::start(plugin, &hub.kubeconfig, &folder.join("large.log"), &[]).await?;
    browser.open(&ui.url).await?;
    complete(&browser).await?;
    narrator.took(
        "from the command on: 200,000 deliveries are listed and shown",
        begin.elapsed(),
    );
    let begin = Instant::now();
    browser.open(&ui.url).await?;
    complete(&browser).await?;
    narrator.took("the page is loaded again", begin.elapsed());
    let script = "const [page] = performance.getEntriesByType('navigation'); return page.domContentLoadedEventEnd";
    let loaded: f64 = browser.run(script, json!([])).await?;
    narrator.took("of that, until its files are loaded", milliseconds(loaded));
    let Frames {
        mut frames,
        mut draws,
    } = browser.run_async(SCROLL).await?;
    for (what, times) in [
        ("time between frames while scrolling", &mut frames),
        ("time to draw one frame", &mut draws),
    ] {
        times.sort_by(f64::total_cmp);
        narrator.say(&format!(
            "{what}: median {:.1} ms, 95% {:.1} ms, slowest {:.1} ms",
            quantile(times, 0.5),
            quantile(times, 0.95),
            quantile(times, 1.0)
        ));
    }
    let search = "
        const box = document.getElementById('search');
        const begin = performance.now();
        box.value = 'failed eu-west';
        box.dispatchEvent(new Event('input', { bubbles: true }));
        const done = arguments[arguments.length - 1];
        requestAnimationFrame(() => requestAnimationFrame(() => done(performance.now() - begin)));";
    let took: f64 = browser.run_async(search).await?;
    narrator.took("a search, until its result is drawn", milliseconds(took));
    narrator.say(&format!(
        "{} deliveries change per second meanwhile; kubectl-runnel needs {} MiB at most",
        SIZE.changes * 10,
        memory::peak(ui.pid()?)? / (1 << 20)
    ));
    Ok(())
}

async fn complete(browser: &Browser) -> Result<()> {
    let counts = json!([
        (SIZE.rules + 1).to_string(),
        (SIZE.clusters + 1).to_string()
    ]);
    eventually("the page shows the whole fleet", SOON, async || {
        let complete: bool = browser.run(COMPLETE, counts.clone()).await?;
        Ok(complete.then_some(()))
    })
    .await
}

fn milliseconds(time: f64) -> Duration {
    Duration::try_from_secs_f64(time / 1000.0).unwrap_or_default()
}

fn quantile(sorted: &[f64], part: f64) -> f64 {
    let last = sorted.len().saturating_sub(1);
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        clippy::cast_precision_loss,
        reason = "a small index"
    )]
    let at = (last as f64 * part).round() as usize;
    sorted.get(at).copied().unwrap_or_default()
}
