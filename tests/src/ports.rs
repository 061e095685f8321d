//! Free ports on 127.0.0.1.

use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{SystemTime, UNIX_EPOCH};

use anyhow::{Result, bail};

// Below the ranges from which Linux (32768) and macOS (49152) take the ports of outgoing
// connections: a server that is stopped finds its port free when it is started again.
const FIRST: u32 = 16_384;
const COUNT: u32 = 16_000;

static NEXT: AtomicU32 = AtomicU32::new(0);

/// A port that nothing listens on and that this function gives out only once per test run.
///
/// # Errors
/// When every port of the range is taken.
pub fn free() -> Result<u16> {
    seed();
    for _ in 0..COUNT {
        let step = NEXT.fetch_add(1, Ordering::Relaxed) % COUNT;
        let port = u16::try_from(FIRST + step)?;
        if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
            return Ok(port);
        }
    }
    bail!(
        "no port between {FIRST} and {} is free on 127.0.0.1",
        FIRST + COUNT
    )
}

/// The address of `port` on this machine.
#[must_use]
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

// Test runs at the same time begin at different places, so they hardly ever meet.
fn seed() {
    let now = SystemTime::now()
        .duration_since(UNIX_EPOCH)
        .unwrap_or_default();
    let begin = now
        .subsec_micros()
        .wrapping_mul(31)
        .wrapping_add(std::process::id().wrapping_mul(7919));
    let _ = NEXT.compare_exchange(0, 1 + begin % COUNT, Ordering::Relaxed, Ordering::Relaxed);
}
