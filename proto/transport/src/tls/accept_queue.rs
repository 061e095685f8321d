//! Connections that wait for their TLS handshake. Many connections of one address delay no other
//! address.
use std::collections::{BTreeMap, VecDeque};
use std::net::{IpAddr, SocketAddr};

/// A group of addresses: a network of 256 IPv4 addresses, or an IPv6 network of the size of a site.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Origin(u128);

impl Origin {
    pub(super) fn of(address: SocketAddr) -> Self {
        match address.ip().to_canonical() {
            IpAddr::V4(address) => Self(u128::from(address.to_bits() >> 8)),
            IpAddr::V6(address) => Self((address.to_bits() >> 64) | (1 << 127)),
        }
    }
}

/// Pending connections, by origin.
pub(super) struct AcceptQueue<T> {
    most: usize,
    len: usize,
    queues: BTreeMap<Origin, VecDeque<T>>,
}

impl<T> AcceptQueue<T> {
    pub(super) fn new(most: usize) -> Self {
        Self {
            most,
            len: 0,
            queues: BTreeMap::new(),
        }
    }

    /// Whether no connection is pending.
    pub(super) fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a connection. Above the limit, the newest one of the largest origin is returned.
    pub(super) fn push(&mut self, origin: Origin, item: T) -> Option<T> {
        self.queues.entry(origin).or_default().push_back(item);
        self.len += 1;
        if self.len <= self.most {
            return None;
        }
        let (largest_origin, _) = self.queues.iter().max_by_key(|(_, queue)| queue.len())?;
        self.take(*largest_origin, VecDeque::pop_back)
    }

    /// The next: the oldest from where the fewest are `running`.
    pub(super) fn pop(&mut self, running: impl Fn(Origin) -> usize) -> Option<(Origin, T)> {
        let next = self.next_origin(running)?;
        Some((next, self.take(next, VecDeque::pop_front)?))
    }

    /// Returns the origin of the next connection.
    pub(super) fn next_origin(&self, running: impl Fn(Origin) -> usize) -> Option<Origin> {
        self.queues
            .keys()
            .copied()
            .min_by_key(|origin| running(*origin))
    }

    fn take(
        &mut self,
        origin: Origin,
        take: impl FnOnce(&mut VecDeque<T>) -> Option<T>,
    ) -> Option<T> {
        let queue = self.queues.get_mut(&origin)?;
        let item = take(queue)?;
        self.len -= 1;
        if queue.is_empty() {
            self.queues.remove(&origin);
        }
        Some(item)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn origin(address: &str) -> Origin {
        Origin::of(SocketAddr::new(address.parse().unwrap(), 1))
    }

    #[test]
    fn addresses_of_one_network_are_one_origin() {
        assert_eq!(origin("10.0.0.1"), origin("10.0.0.255"));
        assert_eq!(origin("::ffff:10.0.0.1"), origin("10.0.0.2"));
        assert_eq!(origin("2001:db8::1"), origin("2001:db8::ffff:1:1:1"));
        assert_ne!(origin("10.0.0.1"), origin("10.0.1.1"));
        assert_ne!(origin("2001:db8:0:1::1"), origin("2001:db8::1"));
        assert_ne!(origin("::1"), origin("0.0.0.1"));
    }

    #[test]
    fn one_from_elsewhere_is_next_and_stays_though_a_crowd_waits() {
        let (largest_origin, other) = (origin("10.0.0.1"), origin("192.0.2.1"));
        let mut waiting = AcceptQueue::new(100);
        let dropped = (0..500)
            .filter_map(|number| waiting.push(largest_origin, number))
            .count();
        assert_eq!(dropped, 400);
        assert_eq!(
            waiting.push(other, 1000),
            Some(99),
            "the newest of the crowd goes"
        );
        let running = |origin| if origin == largest_origin { 5 } else { 0 };
        assert_eq!(waiting.pop(running), Some((other, 1000)));
        assert_eq!(waiting.pop(running), Some((largest_origin, 0)));
        while waiting.pop(running).is_some() {}
        assert!(waiting.is_empty() && waiting.queues.is_empty());
    }
}
