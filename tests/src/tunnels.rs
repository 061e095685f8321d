//! A CONNECT proxy with a password, as a company may have it between its members and the hub. It
//! has its own threads, so that tests with different runtimes can share it.

use std::io::{Read, Write, copy};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::sync::Arc;

use anyhow::Result;
use data_encoding::BASE64;
use parking_lot::Mutex;

use crate::ports::local;

/// A running proxy; it ends with the test run.
#[derive(Clone, Debug)]
pub struct Tunnels {
    address: SocketAddr,
    user: String,
    targets: Arc<Mutex<Vec<String>>>,
}

impl Tunnels {
    /// Starts one for this user, `name:password`.
    ///
    /// # Errors
    /// When there is no free port.
    pub fn start(user: &str) -> Result<Self> {
        let listener = TcpListener::bind(local(0))?;
        let tunnels = Self {
            address: listener.local_addr()?,
            user: user.to_owned(),
            targets: Arc::default(),
        };
        let served = tunnels.clone();
        std::thread::spawn(move || {
            for stream in listener.incoming().flatten() {
                let served = served.clone();
                std::thread::spawn(move || served.serve(stream));
            }
        });
        Ok(tunnels)
    }

    /// Returns the value for `HTTPS_PROXY`.
    #[must_use]
    pub fn url(&self) -> String {
        format!("http://{}@{}", self.user, self.address)
    }

    /// Returns the targets of its tunnels, each as `host:port`.
    #[must_use]
    pub fn targets(&self) -> Vec<String> {
        self.targets.lock().clone()
    }

    fn serve(&self, mut stream: TcpStream) -> Option<()> {
        let head = head(&mut stream)?;
        let target = head.strip_prefix("CONNECT ")?.split(' ').next()?;
        let allowed = format!(
            "Proxy-Authorization: Basic {}\r\n",
            BASE64.encode(self.user.as_bytes())
        );
        if !head.contains(&allowed) {
            return stream
                .write_all(b"HTTP/1.1 407 Proxy Authentication Required\r\n\r\n")
                .ok();
        }
        let Ok(hub) = TcpStream::connect(target) else {
            return stream.write_all(b"HTTP/1.1 502 Bad Gateway\r\n\r\n").ok();
        };
        stream
            .write_all(b"HTTP/1.1 200 Connection established\r\n\r\n")
            .ok()?;
        self.targets.lock().push(target.to_owned());
        let (from, to) = (stream.try_clone().ok()?, hub.try_clone().ok()?);
        std::thread::spawn(move || pass(&from, &to));
        pass(&hub, &stream);
        Some(())
    }
}

fn head(stream: &mut TcpStream) -> Option<String> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        head.extend(byte);
    }
    String::from_utf8(head).ok()
}

fn pass(mut from: &TcpStream, mut to: &TcpStream) {
    let _ = copy(&mut from, &mut to);
    let _ = to.shutdown(Shutdown::Write);
}
