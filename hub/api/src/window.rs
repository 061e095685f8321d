//! The windows in which waves of rollouts begin.
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::schema;

/// A window that opens again and again.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Window {
    /// When the window opens: a cron expression with minute, hour, day of month, month and day of week, such as
    /// `0 22 * * 1-5`. Numbers, lists, ranges, steps, and names such as MON and JAN. If a time does not exist because clocks
    /// go forward, the window opens right after; if it exists twice, the window opens once.
    #[schemars(transform = schema::cron_schedule)]
    pub schedule: String,
    /// How long the window stays open. 60 to 604800.
    #[schemars(transform = schema::in_range(60, 604_800))]
    pub duration_seconds: i64,
    /// The IANA time zone of the schedule, such as Europe/Berlin.
    #[serde(default = "utc")]
    #[schemars(transform = schema::time_zone)]
    pub time_zone: String,
}

fn utc() -> String {
    "UTC".to_owned()
}
