//! `kubectl runnel revert`: reverts a rule to the state of a completed rollout, or ends that; and the table of these states.
use runnel_api::{KeptRevision, REVERT_TO, RolloutPhase, RolloutStatus, limits};
use serde_json::json;

use super::args::Revert;
use super::confirm::confirm;
use super::objects::Rule;
use super::read_cluster::rule_path;
use super::table::{Cell, Table, Tone};
use super::{CommandContext, FAILED, ended, print, status, usage};

/// Reverts a rule, or ends its revert.
pub(super) async fn run(session: &CommandContext<'_>, options: &Revert) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let namespace = session.rule_namespace(&hub)?;
    let rule = Rule::read(&status::one(&hub, &options.rule, &namespace).await?)?;
    let name = rule.full_name();
    let reverted = rule.metadata().annotations.as_ref();
    let reverted = reverted.and_then(|all| all.get(REVERT_TO));
    let (question, revision, result) = match &options.to {
        Some(to) => {
            print(&table(kept(&rule), in_force(&rule)).text(super::progress::colors()))?;
            let to = find(kept(&rule), to).map_err(|why| usage(format!("rule {name}: {why}")))?;
            let question = format!(
                "Revert rule {name} to revision {to}? Edits of the rule and its sources are not sent until the revert ends."
            );
            let result = format!(
                "Rule {name} is being reverted to revision {to}, in the waves of its rollout. To end the revert: kubectl runnel \
                 revert {} --end\n",
                options.rule
            );
            (question, Some(to.to_owned()), result)
        }
        None if reverted.is_none() => {
            return Err(ended(FAILED, format!("rule {name} is not reverted")));
        }
        None => (
            format!(
                "End the revert of rule {name}? What the rule and its sources have now is sent."
            ),
            None,
            format!("The revert of rule {name} has ended: what it has now is rolled out.\n"),
        ),
    };
    confirm(&question, options.yes)?;
    let patch = json!({"metadata": {"annotations": {REVERT_TO: revision}}});
    hub.patch("revert the rule", &rule_path(&rule), patch)
        .await?;
    print(&result)
}

fn rollout(rule: &Rule) -> Option<&RolloutStatus> {
    rule.status()?.rollout.as_ref()
}

/// The states that the hub keeps of a rule, the newest first.
pub(super) fn kept(rule: &Rule) -> &[KeptRevision] {
    rollout(rule).map_or(&[], |rollout| &rollout.history)
}

/// The revision that all reached clusters have.
pub(super) fn in_force(rule: &Rule) -> Option<&str> {
    let rollout = rollout(rule)?;
    if rollout.phase == RolloutPhase::Completed {
        return Some(&rollout.revision);
    }
    rollout.former_revision.as_deref()
}

/// The revision of a number, from 1, or of itself.
fn find<'a>(kept: &'a [KeptRevision], to: &str) -> Result<&'a str, String> {
    let number = to
        .parse()
        .ok()
        .filter(|number| (1..=limits::HISTORY).contains(number));
    let found = match number {
        Some(number) => kept.get(number - 1),
        None => kept.iter().find(|kept| kept.revision == to),
    };
    found.map(|kept| kept.revision.as_str()).ok_or_else(|| match kept.len() {
        0 => "the hub keeps no state of a completed rollout; spec.rollout.history is how many it keeps from now on".to_owned(),
        all => format!("no state {to} is kept: --to takes a number from 1 to {all}, or a revision of `kubectl runnel history --revisions`"),
    })
}

/// The table of the kept states.
pub(super) fn table(kept: &[KeptRevision], in_force: Option<&str>) -> Table {
    let mut table = Table::new(&["NUMBER", "REVISION", "COMPLETED", "IN FORCE"]);
    for (number, kept) in kept.iter().enumerate() {
        let is_in_force = in_force == Some(kept.revision.as_str());
        let completed = kept.completed_at.as_ref();
        let completed = completed.map(|at| at.0.strftime("%Y-%m-%dT%H:%M:%SZ").to_string());
        table.row(vec![
            Cell::from((number + 1).to_string()),
            Cell::from(kept.revision.clone()),
            Cell::from(completed.unwrap_or_else(|| "-".to_owned())),
            Cell::toned(if is_in_force { "yes" } else { "-" }, Tone::Plain),
        ]);
    }
    table
}

#[cfg(test)]
mod tests {
    use super::*;

    fn states() -> Vec<KeptRevision> {
        let kept = json!([
            {"revision": "1234567890123456", "completedAt": "2026-11-25T07:02:00Z"},
            {"revision": "a1", "completedAt": "2026-11-24T07:02:00Z"},
            {"revision": "a0"},
        ]);
        serde_json::from_value(kept).unwrap()
    }

    #[test]
    fn number_or_revision_names_a_kept_state() {
        let states = states();
        assert_eq!(find(&states, "2"), Ok("a1"));
        assert_eq!(find(&states, "a0"), Ok("a0"));
        assert_eq!(find(&states, "1234567890123456"), Ok("1234567890123456"));
        for absent in ["0", "4", "11", "b", ""] {
            let why = find(&states, absent).unwrap_err();
            assert!(why.contains("a number from 1 to 3"), "{why}");
        }
        assert!(find(&[], "1").unwrap_err().contains("spec.rollout.history"));
    }

    #[test]
    fn table_marks_the_state_in_force() {
        let text = table(&states(), Some("a1")).text(false);
        let lines: Vec<Vec<&str>> = text
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        let expected = [
            vec!["NUMBER", "REVISION", "COMPLETED", "IN", "FORCE"],
            vec!["1", "1234567890123456", "2026-11-25T07:02:00Z", "-"],
            vec!["2", "a1", "2026-11-24T07:02:00Z", "yes"],
            vec!["3", "a0", "-", "-"],
        ];
        assert_eq!(lines, expected);
    }
}
