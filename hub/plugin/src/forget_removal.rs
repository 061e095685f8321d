//! `kubectl runnel forget-removal`: keeps the copies of a deleted rule in a cluster that was away.
use runnel_api::PendingRemoval;

use super::args::ForgetRemoval;
use super::{CommandContext, print, read_cluster, usage};
use runnel_proto::model::is_subdomain;

/// Removes the removals of a rule from the record of a member.
pub(super) async fn run(
    session: &CommandContext<'_>,
    options: &ForgetRemoval,
) -> anyhow::Result<()> {
    let (name, rule) = (&options.cluster, &options.rule);
    if !is_subdomain(name) {
        return Err(usage(format!("`{name}` is no name of a cluster")));
    }
    let hub = session.hub().await?;
    read_cluster::change_removals(&hub, name, |pending| without(&pending, rule)).await?;
    print(&format!(
        "The copies of rule {rule} stay in {name} when it is back.\n"
    ))
}

/// Returns the removals without those of a rule, named by its uid or as `namespace/name`.
fn without(pending: &[PendingRemoval], rule: &str) -> Result<Vec<PendingRemoval>, String> {
    let is_named = |removal: &&PendingRemoval| removal.rule_uid == rule || removal.rule == rule;
    let kept: Vec<_> = pending
        .iter()
        .filter(|removal| !is_named(removal))
        .cloned()
        .collect();
    if kept.len() < pending.len() {
        return Ok(kept);
    }
    let known: Vec<_> = pending.iter().map(|removal| &*removal.rule).collect();
    Err(if known.is_empty() {
        "no removal waits for this cluster".to_owned()
    } else {
        format!(
            "no removal of rule {rule} waits, but of {}",
            known.join(", ")
        )
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn removal_is_named_by_rule_or_uid() {
        let removal = |uid: &str, rule: &str| PendingRemoval {
            rule_uid: uid.to_owned(),
            rule: rule.to_owned(),
            ..PendingRemoval::default()
        };
        let all = [
            removal("1", "a/x"),
            removal("2", "a/y"),
            removal("3", "a/x"),
        ];
        assert_eq!(without(&all, "a/x").unwrap(), all[1..2]);
        assert_eq!(without(&all, "3").unwrap(), all[..2]);
        let text = without(&all, "x").unwrap_err();
        assert_eq!(text, "no removal of rule x waits, but of a/x, a/y, a/x");
        let text = without(&[], "a/x").unwrap_err();
        assert_eq!(text, "no removal waits for this cluster");
    }
}
