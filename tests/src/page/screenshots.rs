//! The pictures of README and manual.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result};
use serde_json::json;

use super::browser::Browser;
use super::generated::{GeneratedHub, Size};
use super::plugin::Ui;
use crate::demo::narrate::Narrator;
use crate::wait::eventually;

const SOON: Duration = Duration::from_secs(60);
const SIZE: Size = Size {
    rules: 24,
    clusters: 60,
    changes: 0,
};

/// A folder for pictures.
#[derive(Clone, Copy, Debug)]
pub struct Screenshots<'a> {
    /// The folder.
    pub folder: &'a Path,
}

impl Screenshots<'_> {
    /// Takes a picture in light and in dark.
    ///
    /// # Errors
    /// When a file cannot be written.
    pub async fn take(&self, browser: &Browser, name: &str) -> Result<()> {
        std::fs::create_dir_all(self.folder)
            .with_context(|| format!("cannot create {}", self.folder.display()))?;
        for theme in ["light", "dark"] {
            choose(browser, theme).await?;
            let path = self.folder.join(format!("ui-{name}-{theme}.png"));
            browser.screenshot(&path).await?;
        }
        choose(browser, "auto").await
    }

    /// Takes the picture of the matrix, of a generated fleet.
    ///
    /// # Errors
    /// When the page does not show it.
    pub async fn matrix(
        &self,
        narrator: &mut Narrator,
        folder: &Path,
        plugin: &Path,
    ) -> Result<()> {
        narrator.step("The picture of the matrix, of a generated fleet");
        let hub = GeneratedHub::start(SIZE, folder).await?;
        let ui = Ui::start(plugin, &hub.kubeconfig, &folder.join("matrix.log"), &[]).await?;
        let browser = Browser::start(&folder.join("matrix")).await?;
        browser.open(&ui.url).await?;
        eventually("the matrix is shown", SOON, async || {
            let script =
                "return document.getElementById('matrix')?.getAttribute('aria-rowcount') ?? ''";
            let rows: String = browser.run(script, json!([])).await?;
            Ok((rows == (SIZE.rules + 1).to_string()).then_some(()))
        })
        .await?;
        self.take(&browser, "matrix").await
    }
}

/// Chooses a theme, and waits until it is drawn.
async fn choose(browser: &Browser, theme: &str) -> Result<()> {
    eventually("the theme is chosen", SOON, async || {
        let script = "
            const chosen = document.documentElement.dataset.theme === arguments[0];
            if (!chosen) document.getElementById('theme').click();
            return chosen";
        let chosen: bool = browser.run(script, json!([theme])).await?;
        Ok(chosen.then_some(()))
    })
    .await?;
    let drawn = "const done = arguments[arguments.length - 1];
        requestAnimationFrame(() => requestAnimationFrame(() => done(null)));";
    browser.run_async(drawn).await
}
