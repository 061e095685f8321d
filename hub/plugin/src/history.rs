//! `kubectl runnel history`: what was done to the copies of a rule, and why, from its Events.
use jiff::Timestamp;
use k8s_openapi::api::events::v1::Event;
use runnel_api::COPY_COUNT;
use serde_json::{Value, json};

use super::args::{History, HistoryOutput};
use super::objects::Rule;
use super::parse::{self, RuleRef};
use super::progress::colors;
use super::table::{Cell, Table, Tone};
use super::{CommandContext, note, print, revert, status, usage};

/// The most entries.
const LISTED_ENTRIES: usize = 50;

/// One entry.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    time: Timestamp,
    /// The name of the Event.
    name: String,
    cluster: String,
    reason: String,
    count: Option<u64>,
    cause: String,
    warning: bool,
}

/// Shows the history of a rule.
pub(super) async fn run(session: &CommandContext<'_>, options: &History) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    if options.revisions {
        let rule = Rule::read(&status::one(&hub, &options.rule, &namespace).await?)?;
        if revert::kept(&rule).is_empty() {
            note(
                "The hub keeps no state of a completed rollout of this rule: see spec.rollout.history.",
            );
            return Ok(());
        }
        let table = revert::table(revert::kept(&rule), revert::in_force(&rule));
        return print(&table.text(colors()));
    }
    // A deleted rule has a history, too: its Events outlive it.
    let (kind, namespace, name) = match parse::rule(&options.rule, &namespace).map_err(usage)? {
        RuleRef::Cluster(name) => ("ClusterDistributionRule", "default".to_owned(), name),
        RuleRef::Namespaced { namespace, name } => ("DistributionRule", namespace, name),
    };
    let path = format!(
        "/apis/events.k8s.io/v1/namespaces/{namespace}/events?fieldSelector=regarding.kind%3D{kind}%2Cregarding.name%3D{name}"
    );
    let events: Vec<Event> = hub.list("list the Events of the rule", &path).await?;
    let entries = entries(&events);
    if let Some(text) = for_machines(options.output, &entries)? {
        return print(&text);
    }
    if entries.is_empty() {
        note(&format!(
            "No Events about {} {}. The API server keeps Events for an hour, unless it is configured otherwise; the hub's log has the same lines.",
            kind, options.rule
        ));
        return Ok(());
    }
    print(&table(&entries).text(colors()))
}

/// The last entries, the oldest first.
fn entries(events: &[Event]) -> Vec<Entry> {
    let entry = |event: &Event| {
        let series = event
            .series
            .as_ref()
            .map(|series| series.last_observed_time.0);
        let first = event.event_time.as_ref().map(|time| time.0);
        let copies = event
            .metadata
            .annotations
            .as_ref()
            .and_then(|all| all.get(COPY_COUNT));
        let note = event.note.clone().unwrap_or_default();
        let count: Option<u64> = copies.and_then(|copies| copies.parse().ok());
        let related = event.related.as_ref();
        Some(Entry {
            time: series
                .or(first)
                .or_else(|| Some(event.metadata.creation_timestamp.as_ref()?.0))?,
            name: event.metadata.name.clone().unwrap_or_default(),
            cluster: related
                .filter(|related| related.kind.as_deref() == Some("MemberCluster"))
                .and_then(|related| related.name.clone())
                .unwrap_or_default(),
            reason: event.reason.clone().unwrap_or_default(),
            count,
            cause: note,
            warning: event.type_.as_deref() == Some("Warning"),
        })
    };
    let mut all: Vec<_> = events.iter().filter_map(entry).collect();
    all.sort_by(|one, other| (one.time, &one.name).cmp(&(other.time, &other.name)));
    all.split_off(all.len().saturating_sub(LISTED_ENTRIES))
}

fn for_machines(
    output: Option<HistoryOutput>,
    entries: &[Entry],
) -> anyhow::Result<Option<String>> {
    let value = || -> Value {
        let entry = |entry: &Entry| {
            json!({
                "time": entry.time.to_string(), "event": entry.name, "cluster": entry.cluster, "reason": entry.reason,
                "copies": entry.count, "cause": entry.cause, "type": if entry.warning { "Warning" } else { "Normal" },
            })
        };
        entries.iter().map(entry).collect()
    };
    Ok(match output {
        Some(HistoryOutput::Json) => Some(serde_json::to_string_pretty(&value())? + "\n"),
        Some(HistoryOutput::Yaml) => Some(serde_saphyr::to_string(&value())?),
        Some(HistoryOutput::Name) => Some(
            entries
                .iter()
                .map(|entry| format!("event.events.k8s.io/{}\n", entry.name))
                .collect(),
        ),
        None => None,
    })
}

fn table(entries: &[Entry]) -> Table {
    let mut table = Table::new(&["TIME", "CLUSTER", "WHAT", "COUNT", "CAUSE"]);
    for entry in entries {
        let tone = if entry.warning {
            Tone::Warning
        } else {
            Tone::Plain
        };
        let count = entry.count.map(|count| count.to_string());
        table.row(vec![
            Cell::from(entry.time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()),
            Cell::from(or_dash(&entry.cluster)),
            Cell::toned(entry.reason.clone(), tone),
            Cell::from(or_dash(&count.unwrap_or_default())),
            Cell::from(entry.cause.clone()),
        ]);
    }
    table
}

fn or_dash(text: &str) -> &str {
    if text.is_empty() { "-" } else { text }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(minute: usize, reason: &str, cluster: Option<&str>, copies: Option<&str>) -> Event {
        let annotations = copies.map(|copies| json!({COPY_COUNT: copies}));
        let value = json!({
            "metadata": {"name": format!("x.{minute:02}"), "annotations": annotations},
            "eventTime": format!("2026-11-25T07:{minute:02}:00.000000Z"),
            "reason": reason, "type": if reason == "NotGranted" { "Warning" } else { "Normal" },
            "note": "removed 12 copies in eu-1: grant all was edited",
            "related": cluster.map(|name| json!({"kind": "MemberCluster", "name": name})),
        });
        serde_json::from_value(value).unwrap()
    }

    #[test]
    fn entries_are_sorted_and_name_cluster_and_count() {
        let events = [
            event(9, "NotGranted", None, None),
            event(8, "CopiesRemoved", Some("eu-1"), Some("12")),
        ];
        let text = table(&entries(&events)).text(false);
        insta::assert_snapshot!(text);
        let names = for_machines(Some(HistoryOutput::Name), &entries(&events)).unwrap();
        assert_eq!(
            names.unwrap(),
            "event.events.k8s.io/x.08\nevent.events.k8s.io/x.09\n"
        );
        let json = for_machines(Some(HistoryOutput::Json), &entries(&events)).unwrap();
        let value: Value = serde_json::from_str(&json.unwrap()).unwrap();
        assert_eq!(
            (&value[0]["copies"], &value[0]["cluster"], &value[1]["type"]),
            (&12.into(), &"eu-1".into(), &"Warning".into())
        );
    }

    #[test]
    fn only_the_last_entries_are_shown() {
        let events: Vec<_> = (0..60)
            .map(|minute| event(minute, "CopiesUpdated", None, Some("1")))
            .collect();
        let shown = entries(&events);
        assert_eq!(
            (shown.len(), shown[0].name.as_str()),
            (LISTED_ENTRIES, "x.10")
        );
    }
}
