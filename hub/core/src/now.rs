//! The time as an argument of pure code.
use std::time::{Duration, Instant};

use jiff::{SignedDuration, Timestamp};

/// How long after its start a hub waits for clusters to connect before they count as unreachable.
pub const SETTLING: Duration = Duration::from_secs(45);

/// One moment by two clocks: the monotonic one decides, the wall clock is shown.
#[derive(Clone, Copy, Debug)]
pub struct Now {
    /// For durations.
    pub instant: Instant,
    /// For display.
    pub wall: Timestamp,
}

/// Whether a stored moment lies in the future, because the clock was set back. A status rounds it up to whole seconds.
pub fn is_ahead(at: Timestamp, now: Timestamp) -> bool {
    at.duration_since(now) > SignedDuration::from_secs(1)
}

/// How long ago `then` was, as kubectl writes it: `4s`, `5m10s`, `3h`, `2d`.
pub fn age(then: Option<Timestamp>, now: Timestamp) -> String {
    let Some(then) = then else {
        return "<unknown>".to_owned();
    };
    span(now.as_second().saturating_sub(then.as_second()).max(0))
}

/// A number of seconds, in the words of [`age`].
pub fn span(seconds: i64) -> String {
    let (minutes, hours, days) = (seconds / 60, seconds / 3600, seconds / 86_400);
    let two = |large: i64, unit: &str, small: i64, small_unit: &str| match small {
        0 => format!("{large}{unit}"),
        _ => format!("{large}{unit}{small}{small_unit}"),
    };
    match seconds {
        ..120 => format!("{seconds}s"),
        120..600 => two(minutes, "m", seconds % 60, "s"),
        600..10_800 => format!("{minutes}m"),
        10_800..28_800 => two(hours, "h", minutes % 60, "m"),
        28_800..172_800 => format!("{hours}h"),
        172_800..691_200 => two(days, "d", hours % 24, "h"),
        _ => format!("{days}d"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ages_read_as_kubectl_writes_them() {
        let message: Vec<String> = [
            0, 119, 120, 310, 599, 600, 7199, 10_800, 11_100, 90_000, 180_000, 864_000,
        ]
        .into_iter()
        .map(span)
        .collect();
        assert_eq!(
            message,
            [
                "0s", "119s", "2m", "5m10s", "9m59s", "10m", "119m", "3h", "3h5m", "25h", "2d2h",
                "10d"
            ]
        );
    }

    #[test]
    fn bounds_of_the_units_are_those_of_kubectl() {
        let seconds = [150, 11_400, 172_800, 691_200];
        assert_eq!(seconds.map(span), ["2m30s", "3h10m", "2d", "8d"]);
    }

    #[test]
    fn age_of_a_future_or_unknown_time_is_no_error() {
        let now = Timestamp::from_second(100).unwrap();
        assert_eq!(age(Timestamp::from_second(160).ok(), now), "0s");
        assert_eq!(age(None, now), "<unknown>");
    }
}
