//! `kubectl runnel explain`: explains the state of one copy.
use jiff::Timestamp;
use runnel_proto::model::is_subdomain;

use super::args::Explain;
use super::progress::colours;
use super::{CommandContext, explained, for_machines, hub_query, say, usage};

/// Explains a copy.
pub(super) async fn run(session: &CommandContext<'_>, options: &Explain) -> anyhow::Result<()> {
    let question = explained::question(&options.copy).map_err(usage)?;
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
    match for_machines(options.output, &explained::value(&question, &answer))? {
        Some(text) => say(&text),
        None => say(&explained::text(
            &question,
            &answer,
            Timestamp::now(),
            colours(),
        )),
    }
}
