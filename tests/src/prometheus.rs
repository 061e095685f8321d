//! A real Prometheus: the one in `RUNNEL_PROMETHEUS` or on the search path, or Debian's package, unpacked into the cache
//! folder. Nothing is installed.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde_json::{Value, json};

use crate::assets::{AssetFolders, variable, wait_for_turn};
use crate::guard::Program;
use crate::http;
use crate::ports::{self, local};
use crate::restartable::Restartable;
use crate::scratch::Scratch;
use crate::wait::eventually;

const STARTS: Duration = Duration::from_secs(60);
const ANSWER: Duration = Duration::from_secs(20);
const PACKAGE: &str = "prometheus";

/// The two programs.
#[derive(Clone, Debug)]
pub struct Programs {
    /// The server.
    pub prometheus: PathBuf,
    /// The program that checks rules.
    pub promtool: PathBuf,
}

impl Programs {
    /// Returns the programs of this machine. Debian's package is downloaded once if there are none.
    ///
    /// # Errors
    /// A sentence with what to install.
    pub fn find() -> Result<Self> {
        if let Some(folder) = variable("RUNNEL_PROMETHEUS") {
            return Self::within(&folder).with_context(|| {
                format!(
                    "RUNNEL_PROMETHEUS={} has no prometheus and promtool: point it at a folder that has",
                    folder.display()
                )
            });
        }
        let path = std::env::var_os("PATH").unwrap_or_default();
        if let Some(found) = std::env::split_paths(&path).find_map(|folder| Self::within(&folder)) {
            return Ok(found);
        }
        let cache = AssetFolders::from_environment()?.cache;
        let folder = cache.join("prometheus-package");
        let within = || Self::within(&folder.join("usr/bin"));
        if within().is_none() {
            fs::create_dir_all(&cache)?;
            let _turn = wait_for_turn(&cache, PACKAGE, "Prometheus")?;
            if within().is_none() {
                fetch(&folder).context(
                    "the alerts and the dashboard are checked by a real Prometheus: install one (on Debian `apt-get update && \
                     apt-get install prometheus`, or https://prometheus.io/download), or set RUNNEL_PROMETHEUS to a folder with \
                     prometheus and promtool",
                )?;
            }
        }
        within().context(
            "Debian's package prometheus has other contents than expected: set RUNNEL_PROMETHEUS",
        )
    }

    fn within(folder: &Path) -> Option<Self> {
        let found = Self {
            prometheus: folder.join("prometheus"),
            promtool: folder.join("promtool"),
        };
        (found.prometheus.is_file() && found.promtool.is_file()).then_some(found)
    }

    /// Checks a file of rules as `promtool check rules` does.
    ///
    /// # Errors
    /// The output of promtool.
    pub fn check_rules(&self, rules: &Path) -> Result<()> {
        run(Command::new(&self.promtool)
            .args(["check", "rules"])
            .arg(rules))
    }
}

// Unpacked under a temporary name and moved at once: the final name is always complete.
fn fetch(folder: &Path) -> Result<()> {
    let unfinished = folder.with_extension("unfinished");
    let _ = fs::remove_dir_all(&unfinished);
    fs::create_dir_all(&unfinished)?;
    run(Command::new("apt-get")
        .args(["download", PACKAGE])
        .current_dir(&unfinished))?;
    let files = fs::read_dir(&unfinished)?.filter_map(|entry| Some(entry.ok()?.path()));
    let package = files
        .into_iter()
        .find(|path| path.extension().is_some_and(|extension| extension == "deb"));
    let package = package.context("apt-get has downloaded nothing")?;
    run(Command::new("dpkg")
        .arg("-x")
        .arg(&package)
        .arg(&unfinished))?;
    fs::remove_file(&package)?;
    let _ = fs::remove_dir_all(folder);
    fs::rename(&unfinished, folder).with_context(|| format!("cannot create {}", folder.display()))
}

fn run(command: &mut Command) -> Result<()> {
    let printed = format!("{command:?}");
    let output = command
        .output()
        .with_context(|| format!("cannot run {printed}"))?;
    if !output.status.success() {
        let (out, error) = (
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
        );
        bail!("{printed}: {}{}", out.trim_end(), error.trim_end());
    }
    Ok(())
}

/// A running Prometheus that scrapes once a second; dropping it ends it.
#[derive(Debug)]
pub struct Prometheus {
    run: Restartable,
    port: u16,
    _folder: Scratch,
}

impl Prometheus {
    /// Starts it on these rules and these targets, each `(job, host:port)`.
    ///
    /// # Errors
    /// When it does not answer in time, with the end of its log.
    pub async fn start(
        programs: &Programs,
        rules: &str,
        targets: &[(&str, String)],
    ) -> Result<Self> {
        let folder = Scratch::new("prometheus")?;
        let path = folder.path();
        fs::write(path.join("rules.yaml"), rules)?;
        programs.check_rules(&path.join("rules.yaml"))?;
        let jobs = targets.iter().map(
            |(job, address)| json!({"job_name": job, "static_configs": [{"targets": [address]}]}),
        );
        let configuration = json!({
            "global": {"scrape_interval": "1s", "evaluation_interval": "1s"},
            "rule_files": [path.join("rules.yaml")],
            "scrape_configs": jobs.collect::<Vec<_>>(),
        });
        fs::write(path.join("prometheus.json"), configuration.to_string())?;
        let port = ports::free()?;
        let program = Program::new(&programs.prometheus, path.join("prometheus.log")).arguments([
            format!("--config.file={}", path.join("prometheus.json").display()),
            format!("--storage.tsdb.path={}", path.join("data").display()),
            format!("--web.listen-address={}", local(port)),
        ]);
        let run = Restartable::new("prometheus", program);
        run.start()?;
        let started = Self {
            run,
            port,
            _folder: folder,
        };
        let up = eventually("Prometheus to scrape everything", STARTS, async || {
            started.run.check()?;
            let up = started.query("sum(up)").await?;
            ensure!(value(&up) == Some(targets.len() as f64), "it says {up:?}");
            Ok(Some(()))
        });
        up.await.with_context(|| started.run.last_words())?;
        Ok(started)
    }

    /// Returns the samples of an expression.
    ///
    /// # Errors
    /// The error of Prometheus.
    pub async fn query(&self, expression: &str) -> Result<Vec<Value>> {
        let answer = self
            .get(&format!("/api/v1/query?query={}", escaped(expression)))
            .await?;
        match answer["data"]["result"].as_array() {
            Some(samples) if answer["status"] == "success" => Ok(samples.clone()),
            _ => bail!("{expression}: {}", answer["error"]),
        }
    }

    /// The alerts that are firing, each with its labels.
    ///
    /// # Errors
    /// When Prometheus does not answer.
    pub async fn firing(&self) -> Result<Vec<Value>> {
        let answer = self.get("/api/v1/alerts").await?;
        let alerts = answer["data"]["alerts"]
            .as_array()
            .context("an answer without alerts")?;
        Ok(alerts
            .iter()
            .filter(|alert| alert["state"] == "firing")
            .cloned()
            .collect())
    }

    /// Returns the state of the rules in Prometheus.
    ///
    /// # Errors
    /// When Prometheus does not answer.
    pub async fn rules(&self) -> Result<Vec<Value>> {
        let answer = self.get("/api/v1/rules").await?;
        let groups = answer["data"]["groups"]
            .as_array()
            .context("an answer without groups")?;
        Ok(groups
            .iter()
            .filter_map(|group| group["rules"].as_array())
            .flatten()
            .cloned()
            .collect())
    }

    async fn get(&self, path: &str) -> Result<Value> {
        let body = http::get(&local(self.port).to_string(), path, ANSWER)
            .await?
            .body;
        serde_json::from_str(&body).with_context(|| format!("an odd answer: {body}"))
    }
}

/// The number of the first sample.
#[must_use]
pub fn value(samples: &[Value]) -> Option<f64> {
    samples.first()?["value"][1].as_str()?.parse().ok()
}

fn escaped(text: &str) -> String {
    let escape = |byte: u8| match byte {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' => char::from(byte).to_string(),
        other => format!("%{other:02X}"),
    };
    text.bytes().map(escape).collect()
}
