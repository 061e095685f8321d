//! How often somebody may be wrong.
use std::collections::BTreeMap;
use std::net::IpAddr;
use std::time::{Duration, Instant};

/// Wrong tokens before more are not looked at.
const ALLOWED: u32 = 5;
/// For how long they count.
const WINDOW: Duration = Duration::from_secs(10 * 60);
/// What is remembered at most; the oldest is forgotten first.
const REMEMBERED: usize = 1024;

/// Wrong tokens by cluster and address. The address is part of it so that a stranger cannot lock a cluster out.
#[derive(Debug, Default)]
pub struct Attempts(BTreeMap<(String, IpAddr), (Instant, u32)>);

impl Attempts {
    /// Whether another try is looked at.
    pub fn allows(&self, cluster: &str, from: IpAddr, now: Instant) -> bool {
        let seen = self.0.get(&(cluster.to_owned(), from));
        seen.is_none_or(|(since, count)| now.duration_since(*since) >= WINDOW || *count < ALLOWED)
    }

    /// Remembers a wrong token.
    pub fn failed(&mut self, cluster: &str, from: IpAddr, now: Instant) {
        self.0.retain(|_, (since, _)| now.duration_since(*since) < WINDOW);
        let key = (cluster.to_owned(), from);
        if !self.0.contains_key(&key) && self.0.len() >= REMEMBERED {
            let oldest = self.0.iter().min_by_key(|(_, (since, _))| *since).map(|(key, _)| key.clone());
            if let Some(oldest) = oldest {
                self.0.remove(&oldest);
            }
        }
        self.0.entry(key).or_insert((now, 0)).1 += 1;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::net::Ipv4Addr;

    const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
    const THERE: IpAddr = IpAddr::V4(Ipv4Addr::BROADCAST);

    #[test]
    fn five_wrong_tokens_close_the_door_for_ten_minutes() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for _ in 0..ALLOWED {
            assert!(attempts.allows("a", HERE, start));
            attempts.failed("a", HERE, start);
        }
        assert!(!attempts.allows("a", HERE, start + WINDOW - Duration::from_secs(1)));
        assert!(attempts.allows("b", HERE, start) && attempts.allows("a", THERE, start));
        assert!(attempts.allows("a", HERE, start + WINDOW));
    }

    #[test]
    fn no_more_than_a_bounded_number_is_remembered() {
        let (mut attempts, start) = (Attempts::default(), Instant::now());
        for n in 0..3 * REMEMBERED {
            attempts.failed(&format!("c{n}"), HERE, start);
        }
        assert!(attempts.0.len() <= REMEMBERED);
    }
}
