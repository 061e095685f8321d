//! The header of a forwarded connection: its origin, with a seal that only replicas of this hub can
//! make. So limits by address also work behind a standby replica, and the replica port serves no
//! other peer. Each header opens one connection, so that nobody who has seen one can use it again.
use std::collections::BTreeSet;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::time::SystemTime;

use ring::rand::{SecureRandom, SystemRandom};
use runnel_proto::model::RevisionKey;

/// For how long a header is valid, in seconds. The clocks of replicas may differ by this.
const VALIDITY: u64 = 600;
/// The number of headers that are remembered.
const STAMPS: usize = 65_536;

/// For whom a forwarded connection is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Service {
    /// The gRPC services, for agents.
    Agents,
    /// The view API, for the API server.
    Views,
}

impl Service {
    const ALL: [Self; 2] = [Self::Agents, Self::Views];

    /// The first bytes of a preamble.
    fn magic(self) -> [u8; 8] {
        match self {
            Self::Agents => *b"passed-2",
            Self::Views => *b"views--2",
        }
    }
}

/// Distinguishes the headers of a replica.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) struct Stamp {
    /// When it was made, in Unix seconds.
    second: u64,
    nonce: [u8; 8],
}

impl Stamp {
    /// Returns the stamp of a new header; `None` when the operating system returns no random numbers.
    pub(super) fn new() -> Option<Self> {
        let mut nonce = [0; 8];
        SystemRandom::new().fill(&mut nonce).ok()?;
        Some(Self {
            second: unix_now(),
            nonce,
        })
    }
}

/// The current time, in Unix seconds.
pub(super) fn unix_now() -> u64 {
    let since = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
    since.map_or(0, |since| since.as_secs())
}

/// The stamps that were used.
#[derive(Default)]
pub(super) struct UsedStamps(BTreeSet<Stamp>);

impl UsedStamps {
    /// Uses a stamp. Returns `false` if it was used before, or is not of this time.
    pub(super) fn redeem(&mut self, stamp: Stamp, now: u64) -> bool {
        let is_over = |stamp: &Stamp| stamp.second.saturating_add(VALIDITY) < now;
        while self.0.len() >= STAMPS || self.0.first().is_some_and(is_over) {
            self.0.pop_first();
        }
        stamp.second.abs_diff(now) <= VALIDITY && self.0.insert(stamp)
    }
}

const SEALED_BYTES: usize = 8 + 16 + 2 + 8 + 8;
/// The length of the preamble in bytes.
pub(super) const PREAMBLE: usize = SEALED_BYTES + 16;

/// Returns the preamble of a connection from this address to a service.
pub(super) fn preamble(
    service: Service,
    from: SocketAddr,
    stamp: Stamp,
    key: &RevisionKey,
) -> [u8; PREAMBLE] {
    let mut bytes = [0; PREAMBLE];
    let address = match from.ip() {
        IpAddr::V4(address) => address.to_ipv6_mapped(),
        IpAddr::V6(address) => address,
    };
    bytes[..8].copy_from_slice(&service.magic());
    bytes[8..24].copy_from_slice(&address.octets());
    bytes[24..26].copy_from_slice(&from.port().to_be_bytes());
    bytes[26..34].copy_from_slice(&stamp.second.to_be_bytes());
    bytes[34..SEALED_BYTES].copy_from_slice(&stamp.nonce);
    let seal = key.seal(&bytes[..SEALED_BYTES]);
    bytes[SEALED_BYTES..].copy_from_slice(&seal);
    bytes
}

/// Returns the service, the origin and the stamp of a connection; `None` if the seal is not that of
/// a replica of this hub.
pub(super) fn origin(
    preamble: &[u8; PREAMBLE],
    key: &RevisionKey,
) -> Option<(Service, SocketAddr, Stamp)> {
    let (words, seal) = preamble.split_at(SEALED_BYTES);
    // Both seals are sealed again before the comparison, so that its duration reveals nothing about
    // them.
    let is_ours = key.seal(&key.seal(words)) == key.seal(seal);
    let service = Service::ALL
        .into_iter()
        .find(|service| words.starts_with(&service.magic()))?;
    let address: [u8; 16] = words.get(8..24)?.try_into().ok()?;
    let port: [u8; 2] = words.get(24..26)?.try_into().ok()?;
    let stamp = Stamp {
        second: u64::from_be_bytes(words.get(26..34)?.try_into().ok()?),
        nonce: words.get(34..)?.try_into().ok()?,
    };
    let origin = SocketAddr::new(
        Ipv6Addr::from(address).to_canonical(),
        u16::from_be_bytes(port),
    );
    is_ours.then_some((service, origin, stamp))
}

/// Returns how many connections a standby forwards at a time with this limit of open files. Each
/// needs two files and about 20 KiB of buffers.
pub(super) fn passed_on_limit(open_files: usize) -> usize {
    (open_files.saturating_sub(1024) / 2).clamp(64, 20_000)
}

/// Parses the soft limit of open files from `/proc/self/limits`.
pub(super) fn open_files(limits: &str) -> Option<usize> {
    let line = limits
        .lines()
        .find_map(|line| line.strip_prefix("Max open files"))?;
    match line.split_whitespace().next()? {
        "unlimited" => Some(usize::MAX),
        number => number.parse().ok(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn forwarded_address_is_readable_by_the_same_hub_only() {
        let (key, other) = (RevisionKey::new(b"key"), RevisionKey::new(b"other"));
        for (from, service) in [
            ("10.1.2.3:4567", Service::Agents),
            ("[2001:db8::7]:1", Service::Views),
            ("127.0.0.1:0", Service::Agents),
        ] {
            let from: SocketAddr = from.parse().unwrap();
            let stamp = Stamp::new().unwrap();
            let sent = preamble(service, from, stamp, &key);
            assert_eq!(origin(&sent, &key), Some((service, from, stamp)));
            assert_eq!(origin(&sent, &other), None);
            for at in 0..PREAMBLE {
                let mut changed = sent;
                changed[at] ^= 1;
                assert_eq!(origin(&changed, &key), None, "byte {at}");
            }
        }
    }

    #[test]
    fn header_is_accepted_once_and_for_a_while() {
        let mut used = UsedStamps::default();
        let stamp = |second, nonce: u64| Stamp {
            second,
            nonce: nonce.to_be_bytes(),
        };
        let now = 1_800_000_000;
        assert!(used.redeem(stamp(now, 1), now) && used.redeem(stamp(now, 2), now));
        assert!(!used.redeem(stamp(now, 1), now + 1));
        assert!(!used.redeem(stamp(now, 1), now + VALIDITY + 1));
        assert!(used.redeem(stamp(now - VALIDITY, 3), now));
        assert!(!used.redeem(stamp(now + VALIDITY + 1, 4), now));
        for nonce in 0..2 * STAMPS as u64 {
            used.redeem(stamp(now + 1, nonce), now + 1);
        }
        assert!(used.0.len() <= STAMPS);
        assert!(used.redeem(stamp(now + 9 * VALIDITY, 1), now + 9 * VALIDITY));
        assert_eq!(used.0.len(), 1);
    }

    #[test]
    fn passed_on_connections_leave_files_for_others() {
        let limits = "Limit      Soft Limit   Hard Limit  Units\nMax open files            8192                 524288               files\n";
        assert_eq!(open_files(limits).map(passed_on_limit), Some(3584));
        assert_eq!(
            open_files("Max open files  unlimited unlimited files").map(passed_on_limit),
            Some(20_000)
        );
        assert_eq!((open_files(""), passed_on_limit(10)), (None, 64));
    }
}
