//! Limits the failed attempts of an address.
//!
//! The limit only protects the API server. A token with the id of the cluster's join is always
//! checked. So no client can lock out another one behind the same address by failed attempts. The
//! status of the cluster counts the attempts that invalidate a token, see `tokens`.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// The number of wrong tokens after which further ones are not checked.
const ALLOWED: u32 = 30;
/// The time for which wrong tokens count.
const WINDOW: Duration = Duration::from_secs(10 * 60);
/// The limit of stored addresses; the oldest is dropped first.
const REMEMBERED: usize = 1024;

/// Wrong tokens by address.
#[derive(Debug, Default)]
pub struct Attempts(BTreeMap<IpAddr, (Instant, u32)>);

impl Attempts {
    /// Whether another attempt from this address is checked.
    pub fn allows(&self, from: IpAddr, now: Instant) -> bool {
        let seen = self.0.get(&from);
        seen.is_none_or(|(since, count)| now.duration_since(*since) >= WINDOW || *count < ALLOWED)
    }

    /// Counts a wrong token from this address.
    pub fn failed(&mut self, from: IpAddr, now: Instant) {
        self.0
            .retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
        if !self.0.contains_key(&from) && self.0.len() >= REMEMBERED {
            let oldest = self
                .0
                .iter()
                .min_by_key(|(_, (since, _))| *since)
                .map(|(key, _)| *key);
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(from).or_insert((now, 0)).1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

    #[test]
    fn an_address_is_wrong_so_often_in_ten_minutes() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for _ in 0..ALLOWED {
            assert!(attempts.allows(HERE, start));
            attempts.failed(HERE, start);
        }
        assert!(!attempts.allows(HERE, start + WINDOW - Duration::from_secs(1)));
        assert!(attempts.allows(THERE, start));
        assert!(attempts.allows(HERE, start + WINDOW));
    }

    #[test]
    fn remembered_addresses_are_bounded() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for n in 0..3 * u32::try_from(REMEMBERED).unwrap() {
            attempts.failed(IpAddr::V4(Ipv4Addr::from_bits(n)), start);
        }
        assert!(attempts.0.len() <= REMEMBERED);
    }
}
