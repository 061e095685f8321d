//! `kubectl runnel orphans`: the rules that only member clusters know, and the removal of their copies.
use runnel_api::{DeletionPolicy, MemberCluster, OrphanedRule, PendingRemoval};
use runnel_proto::model::RULE_LABEL;

use super::args::Orphans;
use super::confirm::confirm;
use super::objects::member_name;
use super::table::{Cell, Table};
use super::{CommandContext, FAILED, ended, print, progress, read_cluster};

/// The orphaned rules of a member.
struct Orphaned {
    member: String,
    rules: Vec<OrphanedRule>,
}

/// Lists the orphaned rules, and with `--delete` has their copies removed.
pub(super) async fn run(session: &CommandContext<'_>, options: &Orphans) -> anyhow::Result<()> {
    let hub = session.hub().await?;
    let path = format!("{}/memberclusters", read_cluster::API);
    let members: Vec<MemberCluster> = hub.list("list the members", &path).await?;
    let is_known = |name: &str| members.iter().any(|member| member_name(member) == name);
    if let Some(name) = options.clusters.iter().find(|name| !is_known(name)) {
        return Err(ended(
            FAILED,
            format!("the hub has no MemberCluster {name}"),
        ));
    }
    let found = orphaned(members, &options.clusters);
    if found.is_empty() {
        return print("No member has copies of a rule that the hub does not have.\n");
    }
    print(&table(&found).text(progress::colors()))?;
    if !options.delete {
        return print(&format!(
            "\nTheir copies have the label {RULE_LABEL} with the uid, and are kept. To delete them: kubectl runnel orphans --delete\n"
        ));
    }
    let rules: usize = found.iter().map(|one| one.rules.len()).sum();
    let question = format!(
        "Delete the copies of these {rules} rules in {} clusters?",
        found.len()
    );
    confirm(&question, options.yes)?;
    for Orphaned { member, rules } in found {
        read_cluster::change_removals(&hub, &member, |pending| Ok(with(pending, rules))).await?;
    }
    print("The copies are being deleted, in a cluster that is not connected when it is back.\n")
}

/// The members with orphaned rules, of all or of the named ones.
fn orphaned(members: Vec<MemberCluster>, named: &[String]) -> Vec<Orphaned> {
    let orphaned = members.into_iter().map(|member| Orphaned {
        member: member.metadata.name.unwrap_or_default(),
        rules: member.status.unwrap_or_default().orphaned_rules,
    });
    let chosen = |one: &Orphaned| named.is_empty() || named.contains(&one.member);
    orphaned
        .filter(|one| !one.rules.is_empty() && chosen(one))
        .collect()
}

/// Adds the removal of rules to those that a member waits for.
fn with(mut pending: Vec<PendingRemoval>, rules: Vec<OrphanedRule>) -> Vec<PendingRemoval> {
    for OrphanedRule { rule_uid, rule } in rules {
        if pending.iter().all(|known| known.rule_uid != rule_uid) {
            pending.push(PendingRemoval {
                rule_uid,
                deletion_policy: DeletionPolicy::Delete,
                rule,
            });
        }
    }
    pending
}

fn table(found: &[Orphaned]) -> Table {
    let mut table = Table::new(&["CLUSTER", "RULE", "UID"]);
    for Orphaned { member, rules } in found {
        for OrphanedRule { rule_uid, rule } in rules {
            table.row(
                [member, rule, rule_uid]
                    .map(|text| Cell::from(text.clone()))
                    .into(),
            );
        }
    }
    table
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn rule(uid: &str) -> OrphanedRule {
        OrphanedRule {
            rule_uid: uid.to_owned(),
            rule: format!("team/{uid}"),
        }
    }

    #[test]
    fn only_members_with_orphans_are_listed() {
        let member = |name: &str, rules: &[&str]| {
            let status = json!({"orphanedRules": rules.iter().map(|uid| json!({"ruleUid": uid, "rule": uid})).collect::<Vec<_>>()});
            serde_json::from_value::<MemberCluster>(json!({
                "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
                "metadata": {"name": name}, "spec": {}, "status": status,
            }))
            .unwrap()
        };
        let members = [
            member("one", &["a"]),
            member("two", &[]),
            member("three", &["a", "b"]),
        ];
        let names = |named: &[&str]| {
            let named: Vec<_> = named.iter().map(ToString::to_string).collect();
            let found = orphaned(members.to_vec(), &named);
            found.into_iter().map(|one| one.member).collect::<Vec<_>>()
        };
        assert_eq!(names(&[]), ["one", "three"]);
        assert_eq!(names(&["two", "three"]), ["three"]);
        let text = table(&orphaned(members.to_vec(), &[])).text(false);
        assert_eq!(text.lines().count(), 4, "{text}");
    }

    #[test]
    fn removal_that_waits_already_keeps_its_policy() {
        let known = PendingRemoval {
            rule_uid: "a".to_owned(),
            deletion_policy: DeletionPolicy::Retain,
            rule: "team/a".to_owned(),
        };
        let all = with(vec![known.clone()], vec![rule("a"), rule("b")]);
        assert_eq!(all[0], known);
        assert_eq!((all.len(), &*all[1].rule_uid), (2, "b"));
        assert_eq!(all[1].deletion_policy, DeletionPolicy::Delete);
    }
}
