//! The order of the programs, and their concurrency.

use std::collections::BTreeMap;
use std::fmt;

/// Memory that the control planes and processes of one live test program need at most, in bytes, seen in practice.
const MEMORY: u64 = 4 << 30;

/// How many programs run at a time: one per core, as far as the memory goes.
pub fn at_once(cores: usize, free_memory: Option<u64>) -> usize {
    let by_memory = free_memory.map_or(cores, |free| {
        usize::try_from(free / MEMORY).unwrap_or(usize::MAX)
    });
    cores.min(by_memory).max(1)
}

/// How many seconds each program took when it last passed.
#[derive(Debug, Default)]
pub struct Durations(BTreeMap<String, u64>);

impl Durations {
    /// Reads the output of [`Durations::to_string`]. Unreadable lines are ignored.
    pub fn read(text: &str) -> Self {
        Self(serde_json::from_str(text).unwrap_or_default())
    }

    /// Records the durations of programs.
    pub fn note(&mut self, took: impl IntoIterator<Item = (String, u64)>) {
        self.0.extend(took);
    }

    /// Sorts programs by duration, the longest first. Programs without a known duration come last.
    pub fn sort<T>(&self, programs: &mut [T], name: impl Fn(&T) -> &str) {
        programs.sort_by_key(|program| {
            let known = self.0.get(name(program)).copied();
            (
                std::cmp::Reverse(known.unwrap_or_default()),
                name(program).to_owned(),
            )
        });
    }
}

impl fmt::Display for Durations {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(&serde_json::to_string_pretty(&self.0).map_err(|_| fmt::Error)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_sorted_by_their_last_duration() {
        let mut durations = Durations::read(r#"{"wire": 100, "join": 7, "gone": 3}"#);
        durations.note([("join".to_owned(), 8), ("faults".to_owned(), 109)]);
        let mut programs = ["join", "wire", "new", "faults"];
        durations.sort(&mut programs, |name| name);
        assert_eq!(programs, ["faults", "wire", "join", "new"]);
        let mut again = ["join", "wire", "new", "faults"];
        Durations::read(&durations.to_string()).sort(&mut again, |name| name);
        assert_eq!(again, programs);
    }

    #[test]
    fn broken_file_is_ignored() {
        let mut programs = ["b", "a"];
        Durations::read("{").sort(&mut programs, |name| name);
        assert_eq!(programs, ["a", "b"]);
    }

    #[test]
    fn programs_are_limited_by_cores_and_memory() {
        assert_eq!(at_once(2, Some(24 << 30)), 2);
        assert_eq!(at_once(16, Some(24 << 30)), 6);
        assert_eq!(at_once(2, Some(1 << 30)), 1);
        assert_eq!(at_once(2, None), 2);
    }
}
