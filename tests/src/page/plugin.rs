//! `kubectl runnel ui`, as a person starts it.

use std::path::Path;
use std::time::Duration;

use anyhow::{Context, Result, ensure};

use crate::guard::Program;
use crate::http;
use crate::restartable::Restartable;
use crate::wait::eventually;

const STARTS: Duration = Duration::from_secs(30);
/// The time limit of a request.
const CALL: Duration = Duration::from_secs(20);

/// A request by method, path and headers, and the status code of its answer.
type Case<'a> = (&'a str, &'a str, &'a [(&'a str, &'a str)], u16);

/// A running page.
#[derive(Debug)]
pub struct Ui {
    process: Restartable,
    /// The address, as it is printed.
    pub url: String,
}

impl Ui {
    /// Starts it with a kubeconfig, and waits for its address.
    ///
    /// # Errors
    /// When it prints none; with its output.
    pub async fn start(
        plugin: &Path,
        kubeconfig: &Path,
        log: &Path,
        more: &[&str],
    ) -> Result<Self> {
        let program = Program::new(plugin, log)
            .arguments(["--kubeconfig".into(), kubeconfig.as_os_str().to_owned()])
            .arguments(["ui"])
            .arguments(more.iter().map(|argument| (*argument).to_owned()));
        let process = Restartable::new("kubectl runnel ui", program);
        process.start()?;
        let url = eventually("kubectl runnel ui prints its address", STARTS, async || {
            process.check()?;
            let printed = std::fs::read_to_string(log)?;
            let mut lines = printed
                .lines()
                .filter(|line| line.starts_with("http://127.0.0.1:"));
            Ok(lines.next_back().map(str::to_owned))
        })
        .await
        .with_context(|| process.last_words())?;
        Ok(Self { process, url })
    }

    /// The id of the process.
    ///
    /// # Errors
    /// When it does not run.
    pub fn pid(&self) -> Result<u32> {
        self.process.pid()
    }

    /// The address without scheme and token, such as `127.0.0.1:4711`, and the token.
    ///
    /// # Errors
    /// When the address has another form.
    pub fn parts(&self) -> Result<(&str, &str)> {
        let rest = self.url.strip_prefix("http://").context("no http")?;
        let (address, path) = rest.split_once('/').context("no path")?;
        Ok((address, path.trim_end_matches('/')))
    }

    /// Sends one request line with headers, and returns the status code.
    ///
    /// # Errors
    /// When there is no answer.
    pub async fn status_of(
        &self,
        method: &str,
        path: &str,
        headers: &[(&str, &str)],
    ) -> Result<u16> {
        let (address, _) = self.parts()?;
        let answer = http::send(address, method, path, headers, CALL).await?;
        Ok(answer.status)
    }

    /// Checks who is answered and who is not.
    ///
    /// # Errors
    /// With the first request that gets another status.
    pub async fn refuses_strangers(&self) -> Result<()> {
        let (address, token) = self.parts()?;
        let (page, stream) = (format!("/{token}/"), format!("/{token}/stream"));
        let wrong = format!("/{}/", "A".repeat(token.len()));
        ensure!(
            token.len() >= 22,
            "the token {token} has less than 128 bits"
        );
        let port = address.rsplit(':').next().unwrap_or_default();
        let (own, local) = (("Host", address), format!("localhost:{port}"));
        let foreign = format!("evil.example:{port}");
        let cases: [Case<'_>; 12] = [
            ("GET", &page, &[own], 200),
            ("HEAD", &page, &[own], 200),
            ("GET", &page, &[("Host", &local)], 200),
            ("GET", "/", &[own], 403),
            ("GET", &wrong, &[own], 403),
            ("GET", &page, &[("Host", &foreign)], 421),
            ("GET", &page, &[("Host", "127.0.0.1")], 421),
            ("POST", &page, &[own], 405),
            ("DELETE", &stream, &[own], 405),
            (
                "GET",
                &stream,
                &[own, ("Origin", "https://evil.example")],
                403,
            ),
            (
                "GET",
                &stream,
                &[own, ("Sec-Fetch-Site", "cross-site")],
                403,
            ),
            ("GET", &format!("/{token}/api/v1/secrets"), &[own], 404),
        ];
        for (method, path, headers, expected) in cases {
            let status = self.status_of(method, path, headers).await?;
            let shown = path.replace(token, "TOKEN");
            ensure!(
                status == expected,
                "{method} {shown} with {headers:?} is answered with {status}, not {expected}"
            );
        }
        Ok(())
    }

    /// Checks that the process listens on 127.0.0.1 and nowhere else.
    ///
    /// # Errors
    /// With the listeners, as the kernel names them.
    pub fn listens_locally_only(&self) -> Result<()> {
        let (address, _) = self.parts()?;
        let port: u16 = address.rsplit(':').next().unwrap_or_default().parse()?;
        let sockets = sockets(self.pid()?)?;
        let mut listeners = Vec::new();
        for table in ["tcp", "tcp6"] {
            let text = std::fs::read_to_string(format!("/proc/{}/net/{table}", self.pid()?))?;
            for line in text.lines().skip(1) {
                let fields: Vec<_> = line.split_whitespace().collect();
                // 0A: it listens.
                if fields.get(3) == Some(&"0A")
                    && fields
                        .get(9)
                        .is_some_and(|inode| sockets.contains(&(*inode).to_owned()))
                {
                    listeners.push(fields[1].to_owned());
                }
            }
        }
        ensure!(
            listeners == [format!("0100007F:{port:04X}")],
            "it listens at {listeners:?}"
        );
        Ok(())
    }
}

/// The inodes of the sockets of a process.
fn sockets(pid: u32) -> Result<Vec<String>> {
    let mut inodes = Vec::new();
    for entry in std::fs::read_dir(format!("/proc/{pid}/fd"))? {
        let Ok(link) = std::fs::read_link(entry?.path()) else {
            continue;
        };
        let text = link.to_string_lossy().into_owned();
        let inode = text
            .strip_prefix("socket:[")
            .and_then(|rest| rest.strip_suffix(']'));
        inodes.extend(inode.map(str::to_owned));
    }
    Ok(inodes)
}
