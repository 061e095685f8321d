//! `kubectl runnel ui`: a page on 127.0.0.1 that shows rules, deliveries, rollouts and approvals.
//!
//! The plugin lists and watches with the user's own kubeconfig, and keeps the newest state. Each open page gets that
//! state as a stream, and reads single deliveries and copies on demand. The page can change nothing.
mod assets;
mod delivery_times;
mod feed;
mod follow;
mod request;
mod resource;
mod server;
mod state;

use std::net::Ipv4Addr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::Context;
use data_encoding::BASE64URL_NOPAD;
use futures::future::join_all;
use jiff::Timestamp;
use ring::rand::SystemRandom;
use tokio::net::TcpListener;

use self::feed::Feed;
use self::request::Gate;
use self::resource::{Resource, Scope};
use self::server::Page;
use self::state::About;
use super::args::Ui;
use super::{CommandContext, note, print};

/// Serves the page until the user interrupts it.
pub(super) async fn run(session: &CommandContext<'_>, options: &Ui) -> anyhow::Result<()> {
    let scope = Scope {
        namespace: session.namespace.map(str::to_owned),
        hub_namespace: options.hub_namespace.clone(),
    };
    let hub = session.hub().await?;
    let client = hub.watching_client()?;
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, options.port))
        .await
        .with_context(|| {
            format!(
                "cannot listen on 127.0.0.1:{}: choose another --port, or none for a free one",
                options.port
            )
        })?;
    let port = listener.local_addr()?.port();
    let token = new_token()?;
    // The Lease has times of the hub's cluster; without its clock the page shows ages by the local one.
    let clock = hub.clock().await.ok().flatten();
    let now = Timestamp::now();
    let feed = Arc::new(Feed::new(About {
        version: env!("CARGO_PKG_VERSION"),
        context: hub.context.clone(),
        server: hub.place.server.clone(),
        namespace: scope.namespace.clone(),
        clock_ahead_ms: clock.map_or(0, |clock| {
            clock.as_millisecond().saturating_sub(now.as_millisecond())
        }),
    }));
    let followers = Resource::of(&scope)
        .into_iter()
        .map(|resource| follow::follow(&client, &hub.place, resource, &scope, &feed));
    let page = Page::new(
        Gate::new(&token, port),
        feed.clone(),
        client.clone(),
        hub.place.clone(),
    );
    let url = format!("http://127.0.0.1:{port}/{token}/");
    print(&format!("{url}\n"))?;
    note("The page shows what your kubeconfig may read, and changes nothing. Ctrl-C ends it.");
    // The file lasts as long as the page.
    let _file = if options.open {
        open(&url).map_err(|error| note(&format!("warning: {error:#}: open the address yourself")))
    } else {
        Err(())
    };
    tokio::select! {
        served = server::serve(listener, page) => served.context("the page is not served any more"),
        _ = join_all(followers) => Ok(()),
        interrupted = tokio::signal::ctrl_c() => interrupted.context("cannot wait for Ctrl-C"),
    }
}

/// Returns a random token of 256 bits, as a part of a URL.
fn new_token() -> anyhow::Result<String> {
    let random = ring::rand::generate::<[u8; 32]>(&SystemRandom::new())
        .map_err(|_| anyhow::anyhow!("the system has no random numbers"))?;
    Ok(BASE64URL_NOPAD.encode(&random.expose()))
}

/// Opens the page in the user's browser, by a file that only the user may read: arguments of a program are visible to
/// other users of the machine, and the address has the token.
fn open(url: &str) -> anyhow::Result<RedirectFile> {
    let program = if cfg!(target_os = "macos") {
        "open"
    } else {
        "xdg-open"
    };
    let directory = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    let directory = directory.filter(|directory| directory.is_dir());
    let file = RedirectFile::create(&directory.unwrap_or_else(std::env::temp_dir), url)
        .context("cannot write the file that leads to the page")?;
    std::process::Command::new(program)
        .arg(&file.0)
        .stdout(std::process::Stdio::null())
        .stderr(std::process::Stdio::null())
        .spawn()
        .with_context(|| format!("cannot run {program}"))?;
    Ok(file)
}

/// A file that leads a browser to an address. It is deleted at the end.
struct RedirectFile(PathBuf);

impl RedirectFile {
    fn create(directory: &Path, url: &str) -> anyhow::Result<Self> {
        let path = directory.join(format!("runnel-ui-{}.html", new_token()?));
        let mut options = std::fs::OpenOptions::new();
        options.write(true).create_new(true);
        #[cfg(unix)]
        std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
        let mut file = options.open(&path)?;
        let redirect = Self(path);
        let text =
            format!("<!doctype html><meta http-equiv=\"refresh\" content=\"0;url={url}\">\n");
        std::io::Write::write_all(&mut file, text.as_bytes())?;
        Ok(redirect)
    }
}

impl Drop for RedirectFile {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    #[cfg(unix)]
    fn file_with_the_token_is_readable_by_its_user_alone() {
        use std::os::unix::fs::PermissionsExt;
        let url = "http://127.0.0.1:1/token/";
        let file = RedirectFile::create(&std::env::temp_dir(), url).unwrap();
        let path = file.0.clone();
        let mode = std::fs::metadata(&path).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let text = std::fs::read_to_string(&path).unwrap();
        assert!(text.contains(&format!("url={url}")), "{text}");
        drop(file);
        assert!(!path.exists());
    }
}
