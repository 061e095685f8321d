//! Free ports on 127.0.0.1.
//!
//! Test programs run at the same time, and a stopped server needs its port again when it is
//! started. So each process takes blocks of ports for itself, by a lock on a file that the kernel
//! releases when the process ends.

use std::fs::File;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::{Mutex, PoisonError};

use anyhow::{Context, Result, bail};

// Below the ranges from which Linux (32768) and macOS (49152) take the ports of outgoing
// connections: a server that is stopped finds its port free when it is started again.
const FIRST: u16 = 16_384;
/// Ports of a block.
const SIZE: u16 = 160;
const BLOCKS: u16 = 100;

/// The blocks of this process.
struct Taken {
    /// The locks, which live as long as the process.
    locks: Vec<File>,
    /// The next port, and the end of the newest block.
    next: u16,
    end: u16,
}

static TAKEN: Mutex<Taken> = Mutex::new(Taken {
    locks: vec![],
    next: 0,
    end: 0,
});

/// A port that nothing listens on and that this function gives out only once per test run.
///
/// # Errors
/// When every port of the range is taken.
pub fn free() -> Result<u16> {
    let mut taken = TAKEN.lock().unwrap_or_else(PoisonError::into_inner);
    loop {
        while taken.next < taken.end {
            let port = taken.next;
            taken.next += 1;
            if TcpListener::bind((Ipv4Addr::LOCALHOST, port)).is_ok() {
                return Ok(port);
            }
        }
        let (block, lock) = free_block(&crate::scratch::root()?)?;
        taken.locks.push(lock);
        taken.next = FIRST + block * SIZE;
        taken.end = taken.next + SIZE;
    }
}

/// Locks a block of ports that no other process has.
fn free_block(directory: &Path) -> Result<(u16, File)> {
    for block in 0..BLOCKS {
        let path = directory.join(format!("ports-{block}.lock"));
        let file = File::create(&path).with_context(|| format!("create {}", path.display()))?;
        if file.try_lock().is_ok() {
            return Ok((block, file));
        }
    }
    bail!(
        "no port between {FIRST} and {} is free on 127.0.0.1",
        FIRST + BLOCKS * SIZE
    )
}

/// The address of `port` on this machine.
#[must_use]
pub fn local(port: u16) -> SocketAddr {
    SocketAddr::from((Ipv4Addr::LOCALHOST, port))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn blocks_of_two_processes_differ() {
        let root = crate::scratch::root().unwrap();
        let (first, lock) = free_block(&root).unwrap();
        let (second, _other) = free_block(&root).unwrap();
        assert_ne!(first, second);
        // Locks belong to the open file, so that a second handle acts like another process.
        let again = File::open(root.join(format!("ports-{first}.lock"))).unwrap();
        assert!(again.try_lock().is_err());
        drop(lock);
        assert!(again.try_lock().is_ok());
    }

    #[test]
    fn a_port_is_given_out_once() {
        let all: std::collections::BTreeSet<_> = (0..SIZE + 1).map(|_| free().unwrap()).collect();
        assert_eq!(all.len(), usize::from(SIZE) + 1);
    }
}
