//! The custom resources as kubectl writes, shows and explains them.

use anyhow::{Result, ensure};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use kube::Api;
use kube::api::{Patch, PatchParams, PostParams};
use runnel_api::conditions::{ConditionStatus, ConditionType, Reason, set_condition};
use runnel_api::{
    Certificate, ClusterState, ClusterStatus, Clusters, ConflictPolicy, Display, DistributionRule,
    DistributionRuleSpec, DriftPolicy, MemberCluster, MemberClusterStatus, RolloutStatus,
    RuleStatus, RuleTerms, Source, Summary,
};
use serde_json::{Value, json};

use super::{cases, changed, for_cluster_rule, hub, smallest};

#[tokio::test]
async fn a_rule_for_512_named_clusters_is_applied_by_kubectl() -> Result<()> {
    let spec = changed(
        smallest(),
        &cases::clusters(json!({"names": cases::names(512)})),
    );
    let rule = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule",
        "metadata": {"name": "wide", "namespace": "default"}, "spec": spec,
    });
    hub()
        .await?
        .kubectl_stdin(
            &["apply", "--warnings-as-errors", "-f", "-"],
            &rule.to_string(),
        )
        .await?;
    Ok(())
}

/// The cells of a table.
fn rows(shown: &str) -> Vec<Vec<&str>> {
    shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

fn rule_status(now: Timestamp) -> RuleStatus {
    let summary = Summary {
        copies_to_create: 0,
        copies_to_update: 0,
        copies_to_delete: 0,
        sources: 4,
        clusters: 120,
        clusters_ready: 118,
        copies: 960,
        copies_applied: 948,
        copies_failed: 12,
        copies_waiting: 0,
        copies_drifted: 0,
        copies_with_health: 4,
        copies_healthy: 3,
    };
    let mut status = RuleStatus {
        observed_generation: Some(1),
        revision: Some("r1".to_owned()),
        display: Some(Display::from(&summary)),
        summary: Some(summary),
        pending_approval: None,
        rollout: Some(RolloutStatus {
            revision: "r2".to_owned(),
            wave: 3,
            ..RolloutStatus::default()
        }),
        conditions: Vec::new(),
        clusters: vec![ClusterStatus {
            name: "eu-3".to_owned(),
            state: ClusterState::Failed,
            applied: 6,
            failed: 2,
            waiting: 0,
            drifted: 0,
            to_create: 0,
            to_update: 0,
            to_delete: 0,
            with_health: 0,
            healthy: 0,
            reason: "NamespaceTerminating".to_owned(),
            message: "ns-a is being deleted".to_owned(),
            since: Some(Time(now)),
        }],
        truncated: true,
    };
    for (condition_type, holds) in [
        (ConditionType::Ready, false),
        (ConditionType::Stalled, true),
    ] {
        let (reason, message) = (Reason::CopiesFailed, "x".repeat(5000));
        set_condition(
            &mut status.conditions,
            condition_type,
            ConditionStatus::from(holds),
            reason,
            &message,
            Some(1),
            now,
        );
    }
    status
}

#[tokio::test]
async fn kubectl_shows_the_columns_of_a_rule() -> Result<()> {
    let hub = hub().await?;
    let rules: Api<DistributionRule> = Api::namespaced(hub.client().await?, "default");
    let spec = DistributionRuleSpec {
        sources: vec![Source {
            resources: vec!["configmaps".to_owned()],
            names: vec!["*".to_owned()],
            ..Source::default()
        }],
        terms: RuleTerms {
            clusters: Clusters {
                all: true,
                ..Clusters::default()
            },
            ..RuleTerms::default()
        },
    };
    let made = rules
        .create(
            &PostParams::default(),
            &DistributionRule::new("shown", spec.clone()),
        )
        .await?;
    ensure!(made.spec == spec, "{made:?}");
    ensure!(
        made.spec.terms.conflict_policy == ConflictPolicy::Fail
            && made.spec.terms.drift_policy == DriftPolicy::Correct
    );

    let now = "2026-01-31T12:00:00Z".parse()?;
    let status = rule_status(now);
    let patch = Patch::Merge(json!({"status": status}));
    let patched = rules
        .patch_status("shown", &PatchParams::default(), &patch)
        .await?;
    ensure!(patched.status == Some(status), "{:?}", patched.status);

    let shown = hub
        .kubectl(&["get", "drule", "shown", "-n", "default"])
        .await?;
    let rows = rows(&shown);
    ensure!(
        rows[0]
            == [
                "NAME", "READY", "CLUSTERS", "COPIES", "FAILED", "REASON", "AGE"
            ],
        "{shown}"
    );
    ensure!(
        rows[1][..6] == ["shown", "False", "118/120", "948/960", "12", "CopiesFailed"],
        "{shown}"
    );
    // All kinds at once, by their category.
    let shown = hub.kubectl(&["get", "runnel", "-n", "default"]).await?;
    ensure!(
        shown.contains("distributionrule.runnel.dev/shown"),
        "{shown}"
    );
    // kubectl itself can wait for the hub's conditions.
    hub.kubectl(&[
        "wait",
        "drule/shown",
        "-n",
        "default",
        "--for=condition=Ready=false",
        "--timeout=5s",
    ])
    .await?;
    Ok(())
}

#[tokio::test]
async fn kubectl_shows_the_columns_of_a_cluster_rule_and_of_a_member() -> Result<()> {
    let hub = hub().await?;
    let object = |kind: &str, spec: Value| {
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": kind, "metadata": {"name": "columns"}, "spec": spec})
            .to_string()
    };
    let rule = object("ClusterDistributionRule", for_cluster_rule(smallest()));
    hub.kubectl_stdin(&["apply", "--warnings-as-errors", "-f", "-"], &rule)
        .await?;
    let shown = hub.kubectl(&["get", "cdrule"]).await?;
    ensure!(
        rows(&shown)[0]
            == [
                "NAME", "READY", "CLUSTERS", "COPIES", "FAILED", "REASON", "AGE"
            ],
        "{shown}"
    );

    hub.kubectl_stdin(
        &["apply", "--warnings-as-errors", "-f", "-"],
        &object("MemberCluster", json!({})),
    )
    .await?;
    let now: Timestamp = "2026-01-31T12:00:00Z".parse()?;
    let mut status = MemberClusterStatus {
        agent_version: Some("0.1.0".to_owned()),
        kubernetes_version: Some("v1.36.3".to_owned()),
        certificate: Some(Certificate {
            expires_at: Time(now),
        }),
        ..MemberClusterStatus::default()
    };
    set_condition(
        &mut status.conditions,
        ConditionType::Connected,
        ConditionStatus::False,
        Reason::SessionLost,
        "",
        None,
        now,
    );
    set_condition(
        &mut status.conditions,
        ConditionType::Ready,
        ConditionStatus::True,
        Reason::Cordoned,
        "",
        None,
        now,
    );
    let members: Api<MemberCluster> = Api::all(hub.client().await?);
    let patch = Patch::Merge(json!({"status": status}));
    let patched = members
        .patch_status("columns", &PatchParams::default(), &patch)
        .await?;
    ensure!(patched.status == Some(status), "{:?}", patched.status);
    let shown = hub.kubectl(&["get", "member", "columns"]).await?;
    let rows = rows(&shown);
    let columns = [
        "NAME",
        "READY",
        "STATUS",
        "CONNECTED",
        "AGENT",
        "KUBERNETES",
        "CERTIFICATE-EXPIRES",
        "AGE",
    ];
    ensure!(rows[0] == columns, "{shown}");
    ensure!(
        rows[1][..7]
            == [
                "columns",
                "True",
                "Cordoned",
                "False",
                "0.1.0",
                "v1.36.3",
                "2026-01-31T12:00:00Z"
            ],
        "{shown}"
    );
    Ok(())
}

#[tokio::test]
async fn kubectl_explains_every_field_it_is_asked_for() -> Result<()> {
    let hub = hub().await?;
    let cases = [
        ("drule.spec.sources", "Entries add up"),
        (
            "drule.spec.sources.selector.matchExpressions.operator",
            "NotIn",
        ),
        (
            "drule.spec.clusters",
            "At least one of selector, names and all",
        ),
        ("cdrule.spec.sources.namespaces", "namespaces to read"),
        (
            "drule.status.conditions",
            "See the reference of conditions.",
        ),
        ("member.spec.join", "runnel-hub token create"),
    ];
    for (path, words) in cases {
        let output = hub.kubectl(&["explain", path]).await?;
        let output = output.split_whitespace().collect::<Vec<_>>().join(" ");
        ensure!(output.contains(words), "{path}: {output}");
    }
    Ok(())
}
