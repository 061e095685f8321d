//! The rows of the table: metrics, gates and goals.

use crate::speed::verdict::{Bound, Metric};

/// A row of the table.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Its number.
    pub number: u8,
    /// The name for the command line.
    pub name: &'static str,
    /// Its explanation.
    pub meaning: &'static str,
    /// The metrics.
    pub lines: &'static [Metric],
}

impl Row {
    /// Whether the short form skips the row unless it is named: it needs large sizes, and takes too
    /// long.
    #[must_use]
    pub fn is_long(&self) -> bool {
        LONG.contains(&self.number)
    }
}

const LONG: &[u8] = &[19, 20, 21, 22, 25];

/// Creates a metric of a row.
pub(super) const fn line(
    what: &'static str,
    unit: &'static str,
    gate: Option<Bound>,
    aim: Option<Bound>,
) -> Metric {
    Metric {
        what,
        unit,
        gate,
        aim,
    }
}

const fn ratio(gate: f64, aim: f64) -> (Option<Bound>, Option<Bound>) {
    (
        Some(Bound::RatioAtMost(gate)),
        Some(Bound::RatioAtMost(aim)),
    )
}

const fn most(gate: f64, aim: f64) -> (Option<Bound>, Option<Bound>) {
    (Some(Bound::AtMost(gate)), Some(Bound::AtMost(aim)))
}

const fn bounded(
    what: &'static str,
    unit: &'static str,
    bounds: (Option<Bound>, Option<Bound>),
) -> Metric {
    line(what, unit, bounds.0, bounds.1)
}

/// The bound for linear growth, within the accuracy of the measurement.
const LINEAR: (Option<Bound>, Option<Bound>) = ratio(1.5, 1.1);

/// The maximum reads of a starting agent with 1,000 copies: list pages of 100, one watch per kind,
/// and a dozen independent of the copies.
const READS_OF_A_START: f64 = 10.0 + 1.0 + 2.0 + 12.0;

/// All rows that can be run.
pub const ROWS: &[Row] = &[
    Row {
        number: 1,
        name: "hub-writes",
        meaning: "writes of the hub to its API server per edit of a source, the user's own and Leases not counted",
        lines: &[bounded("hub writes per edit", "writes", most(2.0, 1.0))],
    },
    Row {
        number: 2,
        name: "stored",
        meaning: "what the hub stores for very many copies: the rule's status, and what else it writes when all clusters get all",
        lines: &[
            bounded("status, all well", "B", most(65_536.0, 16_384.0)),
            bounded("status, all failing", "B", most(65_536.0, 16_384.0)),
            bounded("hub writes beside the status", "writes", most(0.0, 0.0)),
            bounded("etcd's growth", "B", most(65_536.0, 16_384.0)),
        ],
    },
    Row {
        number: 3,
        name: "edit",
        meaning: "from the edit of a source to its copy in the last of 3 real members, beside a bare relay",
        lines: &[
            bounded("edit to last copy, p50", "ms", ratio(1.5, 1.15)),
            line(
                "edit to last copy, p99",
                "ms",
                Some(Bound::RatioAtMost(2.0)),
                None,
            ),
        ],
    },
    Row {
        number: 4,
        name: "fan-out",
        meaning: "from the edit of a source of 1 KiB to the ack of the last agent, beside a bare broadcast with acks",
        lines: &[bounded("edit to last ack, p50", "ms", ratio(2.0, 1.25))],
    },
    Row {
        number: 5,
        name: "many",
        meaning: "many objects for 3 real members that have none of them, beside an apply loop of the same parallelism",
        lines: &[bounded("all copies present", "ms", ratio(2.0, 1.15))],
    },
    Row {
        number: 6,
        name: "status",
        meaning: "from the last copy to the rule's status that says so",
        lines: &[
            bounded("last ack to status, p50", "ms", most(1500.0, 300.0)),
            bounded("last copy to status, p50", "ms", most(1500.0, 300.0)),
            line(
                "status writes a second",
                "1/s",
                None,
                Some(Bound::AtMost(4.0)),
            ),
        ],
    },
    Row {
        number: 7,
        name: "idle-memory",
        meaning: "the hub's resident memory per connected agent that is sent nothing, beside a bare server's",
        lines: &[
            line(
                "memory per idle agent",
                "KiB",
                Some(Bound::RatioAtMost(1.25)),
                Some(Bound::AtMost(24.0)),
            ),
            bounded("the last of them beside the first", "KiB", LINEAR),
            line("memory in all", "MiB", None, None),
        ],
    },
    Row {
        number: 8,
        name: "pair-memory",
        meaning: "the hub's resident memory per object and cluster that it keeps count of",
        lines: &[
            bounded("memory per pair", "B", most(128.0, 24.0)),
            line("memory in all", "MiB", None, None),
        ],
    },
    Row {
        number: 9,
        name: "agent-memory",
        meaning: "a real agent's resident memory with copies of 1 KiB, its payload cache included, beside a bare watch of names",
        lines: &[
            bounded("agent memory", "MiB", most(20.0, 14.0)),
            line(
                "agent memory, very many",
                "MiB",
                None,
                Some(Bound::AtMost(18.0)),
            ),
        ],
    },
    Row {
        number: 10,
        name: "agent-rest",
        meaning: "a real agent's processor time while nothing happens, in thousandths of a core, beside a bare watch of names",
        lines: &[bounded("agent CPU at rest", "mCPU", most(1.0, 0.2))],
    },
    Row {
        number: 11,
        name: "hub-restart",
        meaning: "a hub that is started again, nothing changed: what it says and writes, and until the last agent is in sync",
        lines: &[
            bounded("start to last agent in sync", "ms", ratio(2.0, 1.2)),
            line("bytes to an agent", "B", None, None),
            bounded("intents sent again", "intents", most(0.0, 0.0)),
            bounded("hub writes", "writes", most(0.0, 0.0)),
            bounded("writes to a real member", "requests", most(0.0, 0.0)),
        ],
    },
    Row {
        number: 12,
        name: "agent-restart",
        meaning: "a real agent that is started again, nothing changed: its requests to the member in its first seconds, and its processor time",
        lines: &[
            bounded("writes to the member", "requests", most(0.0, 0.0)),
            bounded("reads of single copies", "requests", most(0.0, 0.0)),
            line(
                "reads of the member",
                "requests",
                Some(Bound::AtMost(READS_OF_A_START)),
                None,
            ),
            line("agent CPU", "ms", None, Some(Bound::AtMost(100.0))),
        ],
    },
    Row {
        number: 13,
        name: "drift",
        meaning: "from a foreign edit of a copy to the right one again, beside a bare watch with an apply",
        lines: &[
            line("foreign edit to restored, p50", "ms", None, None),
            line(
                "foreign edit to restored, p99",
                "ms",
                Some(Bound::AtMost(250.0)),
                Some(Bound::RatioAtMost(3.0)),
            ),
        ],
    },
    Row {
        number: 14,
        name: "no-ops",
        meaning: "applies of a real agent that changed nothing: while it copied, after it was started again, and at rest",
        lines: &[
            bounded("applies without a change", "applies", most(0.0, 0.0)),
            bounded("the same by the agent's count", "applies", most(0.0, 0.0)),
        ],
    },
    Row {
        number: 15,
        name: "fan-in",
        meaning: "reports that the hub takes in per second of its processor time, beside a bare server that counts them",
        lines: &[line(
            "reports per CPU second",
            "1/s",
            Some(Bound::RatioAtLeast(0.4)),
            Some(Bound::RatioAtLeast(0.7)),
        )],
    },
    Row {
        number: 16,
        name: "idle-writes",
        meaning: "writes to the hub's API server while connected agents are sent nothing, Leases and certificates apart",
        lines: &[
            bounded("hub writes a minute", "writes", most(1.0, 0.0)),
            line("Lease writes a minute", "writes", None, None),
            line("hub writes per certificate", "writes", None, None),
        ],
    },
    Row {
        number: 17,
        name: "wire",
        meaning: "bytes from the hub to one agent, after TLS, beside the content's own bytes",
        lines: &[
            line("bytes per edit", "B", Some(Bound::RatioAtMost(1.15)), None),
            line("bytes per edit, beside it packed", "B", None, None),
            bounded("bytes of a first delivery", "B", ratio(1.15, 0.4)),
            line("bytes beside contents packed one by one", "B", None, None),
        ],
    },
    Row {
        number: 18,
        name: "copy-cpu",
        meaning: "the hub's processor time per delivered copy, beside a bare server's",
        lines: &[
            bounded("hub CPU per copy", "us", ratio(3.0, 1.5)),
            bounded("the last size beside the first", "us", LINEAR),
        ],
    },
    Row {
        number: 19,
        name: "others",
        meaning: "the hub's processor time per edit beside many sources, rules and clusters that it does not concern",
        lines: &[
            bounded("beside other sources", "ms", ratio(1.5, 1.1)),
            bounded("beside other rules, too", "ms", ratio(1.5, 1.1)),
            bounded("beside other clusters, too", "ms", ratio(1.5, 1.1)),
        ],
    },
    Row {
        number: 20,
        name: "large",
        meaning: "10,000 agents with 1,000 objects each: first delivery, memory, one edit, a restart of the hub",
        lines: &[
            line("first delivery of all", "ms", None, None),
            line("hub memory with all", "MiB", None, None),
            line("edit of one to last ack", "ms", None, None),
            line("hub restart to last in sync", "ms", None, None),
            bounded("intents sent again", "intents", most(0.0, 0.0)),
        ],
    },
    Row {
        number: 21,
        name: "heavy",
        meaning: "the hub's memory at its peak while objects of 500 KiB travel to 20 members, beside their contents",
        lines: &[
            bounded("hub memory at its peak", "MiB", ratio(1.5, 1.0)),
            bounded("of it for all members but one", "MiB", most(64.0, 32.0)),
        ],
    },
    Row {
        number: 22,
        name: "slopes",
        meaning: "what one more object and one more rule cost the hub: the last of them (Runnel) beside the first (bare)",
        lines: &[
            bounded("memory per object", "KiB", LINEAR),
            bounded("hub CPU per object", "ms", LINEAR),
            bounded("memory per rule", "KiB", LINEAR),
            bounded("hub CPU per rule", "ms", LINEAR),
            line("memory in all, objects", "MiB", None, None),
            line("memory in all, rules", "MiB", None, None),
        ],
    },
    Row {
        number: 23,
        name: "member-writes",
        meaning: "writes of a real agent to its API server per edit of a source, its own Secrets included, Leases not counted",
        lines: &[bounded("member writes per edit", "writes", most(1.1, 1.0))],
    },
    Row {
        number: 24,
        name: "rest-requests",
        meaning: "requests of hub and agent to their API servers while nothing happens, reads included, Leases not counted",
        lines: &[
            bounded("hub requests a minute", "requests", most(30.0, 6.0)),
            bounded("agent requests a minute", "requests", most(6.0, 2.0)),
        ],
    },
    Row {
        number: 25,
        name: "shaped",
        meaning: "a rule whose copies differ in each of 1,000 clusters, 20 sources of 100 KiB: time to plan, the index lock, memory",
        lines: &[
            line("rule to its plan", "ms", None, None),
            line("edit of the rule to its plan", "ms", None, None),
            bounded("longest hold of the index lock", "ms", most(1000.0, 250.0)),
            bounded("hub memory at its peak", "MiB", most(1024.0, 512.0)),
            bounded("leads lost", "times", most(0.0, 0.0)),
        ],
    },
    Row {
        number: 26,
        name: "delete",
        meaning: "from the deletion of a small rule until it and its copies in 3 real members are gone, beside objects that are deleted there",
        lines: &[bounded(
            "delete to the last copy gone, p50",
            "ms",
            most(500.0, 200.0),
        )],
    },
    Row {
        number: 27,
        name: "view-pages",
        meaning: "pages of 500 deliveries of one rule through the API server, beside as many small objects of its own",
        lines: &[
            bounded("slowest page", "ms", most(1000.0, 250.0)),
            line("one page, p50", "ms", None, Some(Bound::RatioAtMost(2.0))),
            line("all pages, p50", "ms", None, Some(Bound::RatioAtMost(2.0))),
            bounded("hub memory for 16 lists at once", "MiB", most(64.0, 32.0)),
        ],
    },
    Row {
        number: 28,
        name: "view-watches",
        meaning: "the hub's resident memory for many watches of the deliveries of one rule, and for one that reads nothing",
        lines: &[
            bounded("memory per idle watch", "KiB", most(128.0, 64.0)),
            bounded(
                "memory per watch after 100 edits",
                "KiB",
                most(1024.0, 256.0),
            ),
            line("memory per watch at the peak", "KiB", None, None),
            line("change to the last watch, p50", "ms", None, None),
            bounded(
                "memory of a watch that reads nothing",
                "MiB",
                most(8.0, 2.0),
            ),
        ],
    },
    Row {
        number: 29,
        name: "agent-kinds",
        meaning: "what a real agent needs for copies of very many kinds, beside a watch that only remembers their names",
        lines: &[
            bounded("agent memory", "MiB", most(40.0, 24.0)),
            bounded("agent CPU at rest", "mCPU", most(2.0, 0.5)),
        ],
    },
    Row {
        number: 30,
        name: "waves",
        meaning: "from the edit of a source to the end of its rollout, in six waves of 100 agents, without soaks",
        lines: &[bounded(
            "edit to the end of the last of 6 waves, p50",
            "ms",
            most(1500.0, 500.0),
        )],
    },
];

/// The row with this number or name.
#[must_use]
pub fn find(text: &str) -> Option<&'static Row> {
    ROWS.iter()
        .find(|row| row.name == text || row.number.to_string() == text)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn rows_are_found_by_number_and_name() {
        let numbers: BTreeSet<u8> = ROWS.iter().map(|row| row.number).collect();
        let names: BTreeSet<&str> = ROWS.iter().map(|row| row.name).collect();
        assert_eq!((numbers.len(), names.len()), (ROWS.len(), ROWS.len()));
        assert!(ROWS.iter().is_sorted_by_key(|row| row.number));
        assert_eq!(find("4").map(|row| row.name), Some("fan-out"));
        assert_eq!(find("fan-out").map(|row| row.number), Some(4));
        assert!(find("99").is_none());
    }

    #[test]
    fn every_row_has_a_gate_and_an_explanation() {
        for row in ROWS {
            assert!(
                row.lines.iter().any(|line| line.gate.is_some()),
                "row {}",
                row.number
            );
            let whats: BTreeSet<&str> = row.lines.iter().map(|line| line.what).collect();
            assert!(
                whats.len() == row.lines.len() && !row.meaning.is_empty(),
                "row {}",
                row.number
            );
        }
    }
}
