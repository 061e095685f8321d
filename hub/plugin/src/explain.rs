//! `kubectl runnel explain`: explains the state of one copy.
use jiff::Timestamp;
use runnel_proto::model::is_subdomain;

use super::args::Explain;
use super::progress::colors;
use super::{CommandContext, explanation_report, for_machines, hub_query, print, usage};

/// Explains a copy.
pub(super) async fn run(session: &CommandContext<'_>, options: &Explain) -> anyhow::Result<()> {
    let question = explanation_report::question(&options.copy).map_err(usage)?;
    let namespace = options.hub_namespace.as_str();
    if !is_subdomain(namespace) {
        return Err(usage(format!("--hub-namespace `{namespace}` is no name")));
    }
    let hub = session.hub().await?;
    let answer = hub_query::copy(
        &hub,
        namespace,
        options.hub_url.as_deref(),
        question.clone(),
    )
    .await?;
    match for_machines(
        options.output,
        &explanation_report::value(&question, &answer),
    )? {
        Some(text) => print(&text),
        None => print(&explanation_report::text(
            &question,
            &answer,
            Timestamp::now(),
            colors(),
        )),
    }
}
