//! The windows in which waves begin: cron expressions with a duration and a time zone. Pure.
use std::sync::OnceLock;

use croner::Cron;
use croner::parser::{CronParser, Seconds, Year};
use jiff::tz::{TimeZone, TimeZoneDatabase};
use jiff::{SignedDuration, Timestamp};

/// The number of times that two sets of windows are compared to find a time at which both are open.
const STEPS: usize = 200;

/// Windows, which add up: open while any of them is open. Without windows always open.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Windows {
    windows: Vec<RolloutWindow>,
    /// Why they cannot be read, with the field: they are closed.
    error: Option<String>,
}

/// One recurring window.
#[derive(Clone, Debug, PartialEq, Eq)]
struct RolloutWindow {
    schedule: Cron,
    duration: SignedDuration,
    zone: TimeZone,
}

impl Windows {
    /// Reads the windows of the field `path`. Windows that cannot be read are closed, and have an [`Windows::error`].
    pub fn read(specs: &[runnel_api::Window], path: &str) -> Self {
        let windows: Result<Vec<_>, _> = specs
            .iter()
            .enumerate()
            .map(|(at, spec)| {
                RolloutWindow::read(spec)
                    .map_err(|(field, why)| format!("{path}[{at}].{field}: {why}"))
            })
            .collect();
        match windows {
            Ok(windows) => Self {
                windows,
                error: None,
            },
            Err(why) => Self {
                windows: vec![],
                error: Some(why),
            },
        }
    }

    /// Returns why the windows cannot be read, with the field.
    pub fn error(&self) -> Option<&str> {
        self.error.as_deref()
    }

    /// Whether there are none, so that they are always open.
    pub fn is_empty(&self) -> bool {
        self.windows.is_empty() && self.error.is_none()
    }

    /// Whether a window is open.
    pub fn is_open(&self, now: Timestamp) -> bool {
        self.is_empty() || self.windows.iter().any(|window| window.is_open(now))
    }

    /// Returns the first time from `now` on at which a window is open; `None` if that is unknown.
    pub fn open_from(&self, now: Timestamp) -> Option<Timestamp> {
        if self.is_open(now) {
            return Some(now);
        }
        let openings = self.windows.iter();
        openings.filter_map(|window| window.next_opening(now)).min()
    }

    /// Returns the first time from `now` on at which both are open; `None` if that is unknown.
    pub fn both_open_from(&self, other: &Self, now: Timestamp) -> Option<Timestamp> {
        let mut at = now;
        for _ in 0..STEPS {
            let opens = self.open_from(at)?;
            at = other.open_from(opens)?;
            if at == opens {
                return Some(at);
            }
        }
        None
    }
}

impl RolloutWindow {
    /// Reads one window.
    ///
    /// # Errors
    /// The field that cannot be read, and why.
    fn read(spec: &runnel_api::Window) -> Result<Self, (&'static str, String)> {
        let zone = zones().get(&spec.time_zone).map_err(|_| {
            let why =
                "is no time zone of the IANA database: write one such as Europe/Berlin or UTC";
            ("timeZone", format!("`{}` {why}", spec.time_zone))
        })?;
        let schedule = parser().parse(&spec.schedule).map_err(|error| {
            let why = "is no cron expression: write minute, hour, day of month, month and day of week, such as `0 22 * * 1-5`";
            ("schedule", format!("`{}` {why} ({error})", spec.schedule))
        })?;
        let pattern = &schedule.pattern;
        let has_modifiers = [&pattern.days, &pattern.days_of_week]
            .iter()
            .any(|component| component.has_modifiers());
        if has_modifiers {
            let why = "has L, W or #, which are not supported: write numbers, ranges and steps";
            return Err(("schedule", format!("`{}` {why}", spec.schedule)));
        }
        if !has_a_day(&schedule) {
            let why = "never opens: no month in it has such a day";
            return Err(("schedule", format!("`{}` {why}", spec.schedule)));
        }
        let duration = SignedDuration::from_secs(spec.duration_seconds.clamp(60, 604_800));
        Ok(Self {
            schedule,
            duration,
            zone,
        })
    }

    /// Returns the first opening after a time.
    fn next_opening(&self, after: Timestamp) -> Option<Timestamp> {
        let after = Timestamp::from_second(after.as_second()).ok()?;
        let after = after.to_zoned(self.zone.clone());
        let next = self.schedule.find_next_occurrence(&after, false).ok()?;
        Some(next.timestamp())
    }

    /// An opening within the duration before `now`.
    fn is_open(&self, now: Timestamp) -> bool {
        let opening = Timestamp::from_second(now.as_second())
            .and_then(|now| now.checked_sub(self.duration))
            .ok()
            .and_then(|after| self.next_opening(after));
        opening.is_some_and(|opening| opening <= now)
    }
}

/// Whether a day of the schedule exists in one of its months. The search for the next one would take long otherwise.
fn has_a_day(schedule: &Cron) -> bool {
    let pattern = &schedule.pattern;
    let longest = |month: u16| match month {
        2 => 29,
        4 | 6 | 9 | 11 => 30,
        _ => 31,
    };
    let (days, months) = (pattern.days.values(), pattern.months.values());
    !pattern.is_dow_wildcard()
        || months
            .iter()
            .any(|month| days.iter().any(|day| *day <= longest(*month)))
}

fn parser() -> CronParser {
    CronParser::builder()
        .seconds(Seconds::Disallowed)
        .year(Year::Disallowed)
        .build()
}

/// The IANA database that is compiled in: it does not differ by node.
fn zones() -> &'static TimeZoneDatabase {
    static ZONES: OnceLock<TimeZoneDatabase> = OnceLock::new();
    ZONES.get_or_init(TimeZoneDatabase::bundled)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn spec(schedule: &str, minutes: i64, zone: &str) -> runnel_api::Window {
        runnel_api::Window {
            schedule: schedule.to_owned(),
            duration_seconds: minutes * 60,
            time_zone: zone.to_owned(),
        }
    }

    fn windows(specs: &[runnel_api::Window]) -> Windows {
        let windows = Windows::read(specs, "spec.rollout.windows");
        assert_eq!(windows.error(), None);
        windows
    }

    fn at(text: &str) -> Timestamp {
        text.parse().unwrap()
    }

    #[test]
    fn window_is_open_from_its_opening_for_its_duration() {
        let nights = windows(&[spec("0 22 * * 1-5", 240, "UTC")]);
        // A Friday.
        for (time, is_open) in [
            ("2026-07-03T21:59:59.9Z", false),
            ("2026-07-03T22:00:00Z", true),
            ("2026-07-04T01:59:59.9Z", true),
            ("2026-07-04T02:00:00Z", false),
        ] {
            assert_eq!(nights.is_open(at(time)), is_open, "{time}");
        }
        let monday = at("2026-07-06T22:00:00Z");
        assert_eq!(nights.open_from(at("2026-07-04T02:00:00Z")), Some(monday));
        let inside = at("2026-07-03T23:00:00Z");
        assert_eq!(nights.open_from(inside), Some(inside));
    }

    #[test]
    fn several_windows_add_up_and_none_is_always_open() {
        let both = windows(&[spec("0 6 * * *", 60, "UTC"), spec("30 6 * * *", 60, "UTC")]);
        for (time, is_open) in [
            ("05:59", false),
            ("06:00", true),
            ("07:29", true),
            ("07:30", false),
        ] {
            assert_eq!(
                both.is_open(at(&format!("2026-07-04T{time}:00Z"))),
                is_open,
                "{time}"
            );
        }
        let none = Windows::default();
        assert!(none.is_empty() && none.is_open(at("2026-07-04T00:00:00Z")));
    }

    #[test]
    fn window_in_a_skipped_hour_opens_after_it() {
        // Clocks go from 02:00 to 03:00 on 2026-03-29.
        let window = windows(&[spec("30 2 * * *", 60, "Europe/Berlin")]);
        let opens = at("2026-03-29T01:00:00Z");
        assert_eq!(window.open_from(at("2026-03-29T00:00:00Z")), Some(opens));
        assert!(window.is_open(at("2026-03-29T01:59:59Z")));
        assert!(!window.is_open(at("2026-03-29T02:00:00Z")));
        // Without that day it opens at 02:30.
        assert_eq!(
            window.open_from(at("2026-03-30T00:00:00Z")),
            Some(at("2026-03-30T00:30:00Z"))
        );
    }

    #[test]
    fn window_in_a_repeated_hour_opens_once() {
        // Clocks go from 03:00 back to 02:00 on 2026-10-25.
        let window = windows(&[spec("30 2 * * *", 20, "Europe/Berlin")]);
        assert_eq!(
            window.open_from(at("2026-10-25T00:00:00Z")),
            Some(at("2026-10-25T00:30:00Z"))
        );
        assert!(window.is_open(at("2026-10-25T00:49:59Z")));
        assert!(
            !window.is_open(at("2026-10-25T01:35:00Z")),
            "the second 02:35"
        );
        assert_eq!(
            window.open_from(at("2026-10-25T00:50:00Z")),
            Some(at("2026-10-26T01:30:00Z"))
        );
        // The duration is real time: two hours from 01:30 end at the second 02:30.
        let long = windows(&[spec("30 1 * * *", 120, "Europe/Berlin")]);
        assert!(long.is_open(at("2026-10-25T01:29:59Z")));
        assert!(!long.is_open(at("2026-10-25T01:30:00Z")));
    }

    #[test]
    fn unreadable_window_is_closed_and_its_error_names_the_field() {
        let good = spec("0 22 * * *", 60, "UTC");
        for (bad, field, part) in [
            (
                spec("0 22 * *", 60, "UTC"),
                "schedule",
                "is no cron expression",
            ),
            (
                spec("61 22 * * *", 60, "UTC"),
                "schedule",
                "is no cron expression",
            ),
            (
                spec("0 0 0 22 * *", 60, "UTC"),
                "schedule",
                "is no cron expression",
            ),
            (spec("0 22 L * *", 60, "UTC"), "schedule", "not supported"),
            (spec("0 22 30 2 *", 60, "UTC"), "schedule", "never opens"),
            (
                spec("0 22 31 4,6,9 *", 60, "UTC"),
                "schedule",
                "never opens",
            ),
            (
                spec("0 22 * * *", 60, "Mars/Base"),
                "timeZone",
                "`Mars/Base` is no time zone",
            ),
            (spec("0 22 * * *", 60, ""), "timeZone", "is no time zone"),
        ] {
            let windows = Windows::read(&[good.clone(), bad], "spec.windows");
            let why = windows.error().unwrap();
            assert!(
                why.starts_with(&format!("spec.windows[1].{field}: ")) && why.contains(part),
                "{why}"
            );
            assert!(!windows.is_empty() && !windows.is_open(at("2026-07-04T22:30:00Z")));
            assert_eq!(windows.open_from(at("2026-07-04T22:30:00Z")), None);
        }
        // Rare days open.
        for schedule in ["0 0 29 2 *", "0 0 31 1,2 *", "0 0 30 2 1"] {
            let rare = windows(&[spec(schedule, 60, "UTC")]);
            assert!(
                rare.open_from(at("2026-03-01T12:00:00Z")).is_some(),
                "{schedule}"
            );
        }
    }

    #[test]
    fn two_sets_of_windows_open_together() {
        let rule = windows(&[spec("0 22 * * *", 180, "UTC")]);
        let member = windows(&[spec("0 0 * * 6", 120, "UTC")]);
        let now = at("2026-07-01T12:00:00Z");
        // The night to Saturday.
        let opens = Some(at("2026-07-04T00:00:00Z"));
        assert_eq!(rule.both_open_from(&member, now), opens);
        assert_eq!(member.both_open_from(&rule, now), opens);
        assert_eq!(
            rule.both_open_from(&Windows::default(), now),
            Some(at("2026-07-01T22:00:00Z"))
        );
        let never = windows(&[spec("0 12 * * *", 60, "UTC")]);
        assert_eq!(rule.both_open_from(&never, now), None);
    }

    fn any_window() -> impl Strategy<Value = runnel_api::Window> {
        let schedule = prop_oneof![
            (0..60u8, 0..24u8).prop_map(|(minute, hour)| format!("{minute} {hour} * * *")),
            (0..60u8, 0..24u8, 0..7u8)
                .prop_map(|(minute, hour, day)| format!("{minute} {hour} * * {day}")),
            (1..60u8).prop_map(|step| format!("*/{step} * * * *")),
            (0..24u8).prop_map(|hour| format!("15 {hour} 1-7 * MON")),
        ];
        let zone = prop_oneof![
            Just("UTC"),
            Just("Europe/Berlin"),
            Just("America/New_York"),
            Just("Australia/Lord_Howe"),
            Just("Asia/Kathmandu"),
        ];
        (schedule, 1..600i64, zone)
            .prop_map(|(schedule, minutes, zone)| spec(&schedule, minutes, zone))
    }

    proptest! {
        #[test]
        fn time_is_inside_exactly_when_an_opening_is_recent(
            specs in proptest::collection::vec(any_window(), 1..3),
            // Two years, with both changes of the clocks.
            second in 1_767_225_600i64..1_830_297_600,
        ) {
            let windows = windows(&specs);
            let now = Timestamp::from_second(second).unwrap();
            // All openings of each window in the eleven hours before, one after the other.
            let begin = now - SignedDuration::from_hours(11);
            let mut recent = false;
            for window in &windows.windows {
                let mut at = begin;
                while let Some(opening) = window.next_opening(at).filter(|opening| *opening <= now) {
                    prop_assert!(opening > at);
                    recent |= now.duration_since(opening) < window.duration;
                    at = opening;
                }
            }
            prop_assert_eq!(windows.is_open(now), recent);
            let opens = windows.open_from(now).unwrap();
            prop_assert!(opens >= now && windows.is_open(opens));
            if opens > now {
                prop_assert!(!windows.is_open(opens - SignedDuration::from_secs(1)));
            }
        }
    }
}
