use super::*;

fn copy(cluster: &str, copy: &str, verdict: &str, reason: &str, message: &str) -> PlannedCopy {
    PlannedCopy {
        cluster: cluster.into(),
        copy: copy.into(),
        kind: if copy.starts_with("secrets") {
            "Secret".into()
        } else {
            "ConfigMap".into()
        },
        source: "secrets/team/login".into(),
        verdict: verdict.into(),
        reason: reason.into(),
        message: message.into(),
        diff: vec![],
    }
}

fn cluster(name: &str, state: &str, message: &str, wave: i64, more: i64) -> PlannedCluster {
    PlannedCluster {
        name: name.into(),
        state: state.into(),
        message: message.into(),
        wave,
        more,
    }
}

fn planned() -> PlanReport {
    let conflict = "an object that is not Runnel's exists here (written by kubectl-client-side-apply); delete it or rename it";
    let blocked = "it is above a removalLimit: `kubectl runnel approve` would allow it";
    let rule = PlannedRule {
        sources: vec![PlannedSource {
            source: "configmaps/team/settings".into(),
            state: "Ambiguous".into(),
            message: "configmaps/team/settings and configmaps/other/settings both want the copy settings in the same \
                      namespaces, so neither is sent; narrow spec.sources, or tell them apart by spec.transform.name"
                .into(),
            cluster: String::new(),
        }],
        clusters: vec![
            cluster("eu-1", "Answered", "", 1, 0),
            cluster("eu-2", "Answered", "it is cordoned: it keeps what it has and gets nothing new", 2, 1200),
            cluster("us-1", "NotConnected", "not asked: it is not connected", 2, 0),
        ],
        copies: vec![
            PlannedCopy {
                diff: vec!["+ /data/password".into()],
                ..copy("eu-1", "secrets/default/login", "create", "", "")
            },
            PlannedCopy {
                diff: vec![
                    "~ /data/color: \"blue\" -> \"red\"".into(),
                    "and 3 more".into(),
                ],
                ..copy("eu-1", "configmaps/default/colors", "change", "", "")
            },
            copy(
                "eu-1",
                "configmaps/default/settings",
                "conflict",
                "Conflict",
                conflict,
            ),
            copy(
                "eu-1",
                "configmaps/web/settings",
                "conflict",
                "Conflict",
                conflict,
            ),
            copy(
                "eu-1",
                "secrets/web/login",
                "takeOver",
                "Equal",
                "what exists there is equal",
            ),
            copy(
                "eu-2",
                "secrets/default/login",
                "blocked",
                "Removal",
                blocked,
            ),
            copy(
                "eu-2",
                "secrets/later/login",
                "wait",
                "NamespaceMissing",
                "",
            ),
            copy("eu-2", "secrets/web/login", "unchanged", "", ""),
        ],
        sent: 2,
        ..PlannedRule::default()
    };
    PlanReport::new("DistributionRule team/all".into(), State::Edited, of(rule))
}

/// The answer about one rule.
fn of(rule: PlannedRule) -> RulePlanStatus {
    RulePlanStatus {
        exists: true,
        rules: vec![rule],
        ..RulePlanStatus::default()
    }
}

#[test]
fn snapshots_of_explanations() {
    let planned = planned();
    for width in [80, 160] {
        assert!(
            planned
                .text(width, false)
                .lines()
                .all(|line| line.chars().count() <= width),
            "{width}"
        );
    }
    let all = format!(
        "== 80 columns\n{}\n== 160 columns\n{}",
        planned.text(80, false),
        planned.text(160, false)
    );
    insta::assert_snapshot!(all);
    assert!(planned.would_fail());
}

#[test]
fn plan_fails_for_copies_that_would_fail() {
    let fails =
        |rule: PlannedRule| PlanReport::new("r".into(), State::Saved, of(rule)).would_fail();
    let with = |verdict: &str| {
        fails(PlannedRule {
            copies: vec![copy("a", "secrets/b/c", verdict, "", "")],
            ..PlannedRule::default()
        })
    };
    for verdict in [
        "blocked",
        "conflict",
        "denied",
        "forbidden",
        "invalid",
        "refused",
        "adoptIfEqual",
    ] {
        assert!(with(verdict), "{verdict}");
    }
    for verdict in [
        "create",
        "change",
        "takeOver",
        "remove",
        "retain",
        "handOver",
        "wait",
        "noop",
        "unchanged",
    ] {
        assert!(!with(verdict), "{verdict}");
    }
    assert!(fails(PlannedRule {
        incomplete: true,
        ..PlannedRule::default()
    }));
}

#[test]
fn file_may_contain_rules_and_other_objects() {
    let rule = json!({"kind": "DistributionRule", "metadata": {"name": "a"}});
    let whole = json!({"kind": "ClusterDistributionRule", "metadata": {"name": "b"}});
    let bundle = json!({"kind": "ManifestBundle", "metadata": {"name": "c"}});
    let list = json!({"kind": "List", "items": [rule, whole, bundle]});
    let found = rules(
        vec![list, json!({"kind": "Namespace"}), Value::Null],
        "f",
        "team",
    )
    .unwrap();
    assert_eq!(found.len(), 3);
    assert_eq!(found[0]["metadata"]["namespace"], "team");
    assert!(found[1]["metadata"]["namespace"].is_null());
    assert_eq!(found[2]["metadata"]["namespace"], "team");
    assert_eq!(
        rules(vec![json!({"kind": "Namespace"})], "f", "team"),
        Ok(vec![])
    );
    assert!(
        rules(vec![json!({"kind": "DistributionRule"})], "f", "team")
            .unwrap_err()
            .to_string()
            .starts_with("f: ")
    );
}

#[test]
fn plan_of_a_grant_lists_its_rules_and_counts_the_others() {
    let rule = |name: &str, copies| PlannedRule {
        kind: "DistributionRule".into(),
        namespace: "team".into(),
        name: name.into(),
        clusters: vec![cluster("eu-1", "Answered", "", 0, 0)],
        copies,
        sent: 1,
        ..PlannedRule::default()
    };
    let blocked = copy(
        "eu-1",
        "secrets/web/login",
        "blocked",
        "Removal",
        "above a limit",
    );
    let answer = RulePlanStatus {
        exists: true,
        rules: vec![rule("a", vec![blocked]), rule("b", vec![])],
        more_rules: 3,
        ..RulePlanStatus::default()
    };
    let planned = PlanReport::new("DistributionGrant g".into(), State::Edited, answer);
    let text = planned.text(80, false);
    assert!(text.starts_with(
        "DistributionGrant g (an edit): 5 rules change\n\nDistributionRule team/a (changes with it)"
    ));
    assert!(
        text.contains("  blocked 1\n")
            && text.contains("DistributionRule team/b (changes with it)"),
        "{text}"
    );
    assert!(text.contains("\nand 3 more rules change ("), "{text}");
    let value = planned.value();
    assert_eq!(
        (
            value["rules"][0]["summary"]["blocked"].as_u64(),
            value["moreRules"].as_u64()
        ),
        (Some(1), Some(3))
    );
    assert!(planned.would_fail());
    let none = PlanReport::new(
        "MemberCluster m".into(),
        State::Deleted,
        RulePlanStatus::default(),
    );
    assert_eq!(
        none.text(80, false),
        "MemberCluster m (a delete): 0 rules change\n"
    );
}
