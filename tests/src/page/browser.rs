//! A real browser, driven by WebDriver: Debian's chromium, without a window.

use std::path::{Path, PathBuf};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use axum::body::{Body, to_bytes};
use data_encoding::BASE64;
use http::{Method, Request, header};
use hyper_util::client::legacy::Client;
use hyper_util::rt::TokioExecutor;
use serde::de::DeserializeOwned;
use serde_json::{Value, json};

use crate::guard::Program;
use crate::nodes::packages;
use crate::ports;
use crate::restartable::Restartable;
use crate::wait::eventually;

const STARTS: Duration = Duration::from_secs(60);
const CALL: Duration = Duration::from_secs(60);
/// The largest answer in bytes, which is a picture.
const ANSWER: usize = 64 << 20;
/// The programs, and Debian's packages that have them.
const NEEDED: [(&str, &str); 2] = [
    ("chromium", "chromium"),
    ("chromedriver", "chromium-driver"),
];
const FLAGS: [&str; 8] = [
    "--headless",
    "--no-sandbox",
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
];

/// A key of WebDriver.
pub const ENTER: &str = "\u{e007}";
/// A key of WebDriver.
pub const ESCAPE: &str = "\u{e00c}";
/// A key of WebDriver.
pub const RIGHT: &str = "\u{e014}";
/// A key of WebDriver.
pub const DOWN: &str = "\u{e015}";
/// A key of WebDriver.
pub const HOME: &str = "\u{e011}";
/// A key of WebDriver.
pub const CONTROL: &str = "\u{e009}";

/// Installs the browser if it is missing.
///
/// # Errors
/// A sentence with the packages, if they cannot be installed here.
pub fn prepare() -> Result<()> {
    packages::provide(&NEEDED, "the page is tested in a browser, which needs")
}

/// A browser with one window.
#[derive(Debug)]
pub struct Browser {
    address: String,
    session: String,
    // Ends with this value.
    _driver: Restartable,
}

impl Browser {
    /// Starts a browser with its data below `folder`.
    ///
    /// # Errors
    /// When it does not start; with the end of its log.
    pub async fn start(folder: &Path) -> Result<Self> {
        std::fs::create_dir_all(folder)?;
        let port = ports::free()?;
        let program = Program::new(found("chromedriver")?, folder.join("chromedriver.log"))
            .arguments([format!("--port={port}")]);
        let driver = Restartable::new("chromedriver", program);
        driver.start()?;
        let address = ports::local(port).to_string();
        let ready = eventually("chromedriver answers", STARTS, async || {
            driver.check()?;
            let status = call(&address, "/status", None).await?;
            Ok((status["ready"] == true).then_some(()))
        });
        ready.await.with_context(|| driver.last_words())?;
        let data = format!("--user-data-dir={}", folder.join("chromium").display());
        let flags: Vec<_> = FLAGS
            .iter()
            .map(|flag| json!(flag))
            .chain([json!(data)])
            .collect();
        let options = json!({"binary": found("chromium")?, "args": flags});
        let wanted = json!({"capabilities": {"alwaysMatch": {"browserName": "chrome", "goog:chromeOptions": options}}});
        let value = call(&address, "/session", Some(&wanted)).await?;
        let session = value["sessionId"]
            .as_str()
            .context("no session")?
            .to_owned();
        let browser = Self {
            address,
            session,
            _driver: driver,
        };
        browser.resize(1280, 800).await?;
        Ok(browser)
    }

    /// Sets the size of the page in pixels.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn resize(&self, width: u32, height: u32) -> Result<()> {
        let rectangle = json!({"width": width, "height": height});
        self.post("window/rect", &rectangle).await?;
        let script = "return [window.outerWidth - window.innerWidth, window.outerHeight - window.innerHeight]";
        let frame: [u32; 2] = self.run(script, json!([])).await?;
        let rectangle = json!({"width": width + frame[0], "height": height + frame[1]});
        self.post("window/rect", &rectangle).await.map(drop)
    }

    /// Opens an address.
    ///
    /// # Errors
    /// When it cannot be loaded.
    pub async fn open(&self, url: &str) -> Result<()> {
        self.post("url", &json!({"url": url})).await.map(drop)
    }

    /// Runs a script in the page, and returns its value.
    ///
    /// # Errors
    /// The error of the script, or when its value is of another type.
    pub async fn run<T: DeserializeOwned>(&self, script: &str, arguments: Value) -> Result<T> {
        let value = self
            .post(
                "execute/sync",
                &json!({"script": script, "args": arguments}),
            )
            .await?;
        serde_json::from_value(value).with_context(|| format!("the value of {script}"))
    }

    /// As [`Browser::run`], for a script that calls its last argument with the value.
    ///
    /// # Errors
    /// As [`Browser::run`].
    pub async fn run_async<T: DeserializeOwned>(&self, script: &str) -> Result<T> {
        let value = self
            .post("execute/async", &json!({"script": script, "args": []}))
            .await?;
        serde_json::from_value(value).with_context(|| format!("the value of {script}"))
    }

    /// Returns the text of an element; empty if there is none.
    ///
    /// # Errors
    /// When the browser does not answer.
    pub async fn text(&self, selector: &str) -> Result<String> {
        let script = "return document.querySelector(arguments[0])?.textContent ?? ''";
        self.run(script, json!([selector])).await
    }

    /// Presses keys one after the other, where the focus is.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn keys(&self, keys: &[&str]) -> Result<()> {
        let each = |key: &&str| {
            let action = |kind: &str| json!({"type": kind, "value": key});
            [action("keyDown"), action("keyUp")]
        };
        let actions: Vec<_> = keys.iter().flat_map(each).collect();
        self.act(&actions).await
    }

    /// Presses a key while another one is down.
    ///
    /// # Errors
    /// When the browser refuses.
    pub async fn chord(&self, modifier: &str, key: &str) -> Result<()> {
        let action = |kind: &str, key: &str| json!({"type": kind, "value": key});
        let actions = [
            action("keyDown", modifier),
            action("keyDown", key),
            action("keyUp", key),
            action("keyUp", modifier),
        ];
        self.act(&actions).await
    }

    async fn act(&self, actions: &[Value]) -> Result<()> {
        let keyboard = json!({"type": "key", "id": "keyboard", "actions": actions});
        self.post("actions", &json!({"actions": [keyboard]}))
            .await
            .map(drop)
    }

    /// Writes what the window shows into a file.
    ///
    /// # Errors
    /// When the file cannot be written.
    pub async fn screenshot(&self, path: &Path) -> Result<()> {
        let path_of = format!("/session/{}/screenshot", self.session);
        let value = call(&self.address, &path_of, None).await?;
        let text = value.as_str().context("no screenshot")?;
        let bytes = BASE64.decode(text.as_bytes())?;
        std::fs::write(path, bytes).with_context(|| format!("cannot write {}", path.display()))
    }

    async fn post(&self, command: &str, body: &Value) -> Result<Value> {
        let path = format!("/session/{}/{command}", self.session);
        call(&self.address, &path, Some(body)).await
    }
}

/// Sends a command with its parameters, or reads a value without any.
async fn call(address: &str, path: &str, parameters: Option<&Value>) -> Result<Value> {
    let client = Client::builder(TokioExecutor::new()).build_http();
    let request = Request::builder().uri(format!("http://{address}{path}"));
    let request = match parameters {
        Some(parameters) => request
            .method(Method::POST)
            .header(header::CONTENT_TYPE, "application/json")
            .body(Body::from(parameters.to_string())),
        None => request.body(Body::empty()),
    };
    let answered = async {
        let answer = client.request(request?).await?;
        let status = answer.status();
        let body = to_bytes(Body::new(answer.into_body()), ANSWER).await?;
        anyhow::Ok((status, body))
    };
    let (status, body) = tokio::time::timeout(CALL, answered)
        .await
        .with_context(|| format!("chromedriver does not answer {path}"))??;
    let mut answer: Value = serde_json::from_slice(&body).context("chromedriver")?;
    ensure!(
        status.is_success(),
        "chromedriver, {path}: {}",
        answer["value"]["message"]
    );
    Ok(answer["value"].take())
}

fn found(program: &str) -> Result<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let found = std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|file| file.is_file());
    match found {
        Some(file) => Ok(file),
        None => bail!("{program} is not in PATH"),
    }
}
