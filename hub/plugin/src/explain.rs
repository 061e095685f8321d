//! `kubectl runnel explain`: explains the state of one copy.
use jiff::Timestamp;

use super::args::Explain;
use super::progress::colors;
use super::{CommandContext, explanation_report, for_machines, print, usage, views};

/// Explains a copy.
pub(super) async fn run(session: &CommandContext<'_>, options: &Explain) -> anyhow::Result<()> {
    let question = explanation_report::question(&options.copy).map_err(usage)?;
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    let place = (Some(namespace.as_str()), "copyexplanations");
    let answer = views::create(&hub, "explain the copy", place, &question).await?;
    match for_machines(options.output, &serde_json::to_value(&answer)?)? {
        Some(text) => print(&text),
        None => print(&explanation_report::text(
            &answer,
            Timestamp::now(),
            colors(),
        )),
    }
}
