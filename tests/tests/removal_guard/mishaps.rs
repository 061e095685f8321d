//! One change that would empty many small rules, each below its own limit, and a deleted namespace
//! whose rule owns no copy.

use std::cell::RefCell;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, condition};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::{HOME, MEMBERS, SOURCES, Stage, stage};

const RULES: usize = 30;

fn id(kind: &str, name: &str) -> Result<Id> {
    Id::of(&json!({"apiVersion": "runnel.dev/v1alpha1", "kind": kind, "metadata": {"name": name}}))
}

async fn fleet() -> Result<(Fleet, Scene)> {
    let fleet = Fleet::start(FleetOptions {
        members: MEMBERS,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    Ok((fleet, scene))
}

/// Thirty rules of one source each, with sixty copies in two members.
async fn crowd() -> Result<Stage> {
    let (fleet, scene) = fleet().await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    for number in 0..RULES {
        let source = format!("s{number}");
        let object = Draft::config_map(HOME, &source).data("k", "v").json();
        scene.hub.make(&object).await?;
        let draft = RuleDraft::new(HOME, &format!("r{number}")).named(&[source.as_str()]);
        let by_label = json!({"selector": {"matchLabels": {"env": "prod"}}});
        let rule = draft.with("clusters", by_label).json();
        scene.hub.make(&rule).await?;
    }
    for number in 0..RULES {
        let rule = Id::rule(HOME, &format!("r{number}"));
        scene.hub.all_applied(&rule, MEMBERS).await?;
    }
    let is_ready = |fleet: &Value| {
        let (ready, status) = (condition(fleet, "Ready")?, &fleet["status"]);
        ensure!(
            ready["status"] == "True" && status["copies"] == "60/60" && status["rules"] == "30/30",
            "{status}"
        );
        ensure!(
            status["clusters"] == "2/2" && status["pending"] == 0,
            "{status}"
        );
        Ok(())
    };
    let overview = id("Fleet", "default")?;
    scene.hub.sees("a ready fleet", &overview, is_ready).await?;
    Ok(Stage {
        fleet,
        scene,
        rule: Id::rule(HOME, "r0"),
    })
}

impl Stage {
    /// Waits until all copies of all rules wait for approval because of this cause. None is missing.
    async fn all_wait(&self, cause: &str) -> Result<()> {
        let hub = &self.scene.hub;
        let waits = |fleet: &Value| {
            let (status, pending) = (&fleet["status"], &fleet["status"]["pendingApprovals"][0]);
            ensure!(
                status["pending"] == 1
                    && pending["rules"] == RULES
                    && pending["copies"] == RULES * MEMBERS,
                "{status}"
            );
            ensure!(
                pending["cause"] == cause && pending["clusters"] == MEMBERS,
                "{pending}"
            );
            Ok(())
        };
        hub.sees("one cause that waits", &id("Fleet", "default")?, waits)
            .await?;
        let is_blocked = |rule: &Value| {
            let blocked = condition(rule, "ApprovalRequired")?;
            let message = blocked["message"].as_str().unwrap_or_default();
            ensure!(
                blocked["status"] == "True" && message.contains(cause),
                "{blocked}"
            );
            Ok(())
        };
        for number in [0, RULES - 1] {
            let rule = Id::rule(HOME, &format!("r{number}"));
            hub.sees("a blocked rule", &rule, is_blocked).await?;
        }
        self.all_exist().await
    }

    async fn all_exist(&self) -> Result<()> {
        for member in 1..=MEMBERS {
            for number in 0..RULES {
                self.scene.member(member).get(&Self::copy(number)).await?;
            }
        }
        Ok(())
    }

    async fn nothing_waits(&self) -> Result<()> {
        let is_empty = |fleet: &Value| {
            ensure!(fleet["status"]["pending"] == 0, "{}", fleet["status"]);
            Ok(())
        };
        let overview = id("Fleet", "default")?;
        self.scene
            .hub
            .sees("nothing that waits", &overview, is_empty)
            .await
            .map(drop)
    }

    /// Approves everything that waits in the fleet, until no copy is left. While the API server still deletes the sources and rules of a
    /// namespace, one after the other, the set changes and needs approval again, also after a first approval.
    async fn approve_all(&self) -> Result<()> {
        let attempts = RefCell::new(Vec::new());
        let hub = &self.scene.hub;
        let approve = async || {
            if hub.get(&id("Fleet", "default")?).await?["status"]["pending"] != 0 {
                let (code, printed) = self.runnel(&["approve", "--yes"]).await?;
                attempts.borrow_mut().push((code, printed));
            }
            let mut left = 0;
            for member in 1..=MEMBERS {
                let maps = self.scene.member(member).list(&Self::copy(0)).await?;
                let is_copy =
                    |map: &&Value| map["metadata"]["labels"]["runnel.dev/hub"].is_string();
                left += maps.iter().filter(is_copy).count();
            }
            ensure!(left == 0, "{left} copies are left");
            Ok(Some(()))
        };
        let deadline = Duration::from_secs(120);
        let ended = eventually("no copy to be left", deadline, approve).await;
        let attempts = attempts.into_inner();
        ended.with_context(|| format!("{attempts:?}"))?;
        let is_whole = |(code, printed): &(Option<i32>, String)| {
            *code == Some(0)
                && printed.contains("60 copies of 30 rules")
                && printed.contains("Approved: 60 copies")
        };
        let at_once = attempts.len() == 1 && is_whole(&attempts[0]);
        let is_other = |(_, printed): &(Option<i32>, String)| {
            printed.contains("has changed and needs approval again")
        };
        ensure!(at_once || attempts.iter().any(is_other), "{attempts:?}");
        self.nothing_waits().await
    }
}

#[tokio::test]
async fn label_typo_over_many_rules_waits_for_the_fleet() -> Result<()> {
    let stage = crowd().await?;
    let hub = &stage.scene.hub;
    let relabel = async |env: &str| -> Result<()> {
        for member in 1..=MEMBERS {
            let change = json!({"metadata": {"labels": {"env": env}}});
            let member = id("MemberCluster", &format!("member-{member}"))?;
            hub.change(&member, change).await?;
        }
        Ok(())
    };
    let cause = "labels of member clusters member-1, member-2 changed";
    relabel("prd").await?;
    stage.all_wait(cause).await?;
    let overview = id("Fleet", "default")?;
    let begun = hub.has_event(&overview, "ApprovalRequired").await?;
    ensure!(
        begun.kind == "Warning"
            && begun
                .note
                .contains("needs approval: labels of member cluster"),
        "{begun:?}"
    );
    relabel("prod").await?;
    stage.nothing_waits().await?;
    let settled = hub.has_event(&overview, "ApprovalSettled").await?;
    ensure!(settled.kind == "Normal", "{settled:?}");
    stage.all_exist().await?;
    relabel("prd").await?;
    stage.all_wait(cause).await?;
    stage.approve_all().await
}

#[tokio::test]
async fn deleted_grant_of_many_rules_waits_for_the_fleet() -> Result<()> {
    let stage = crowd().await?;
    let (hub, everything) = (&stage.scene.hub, id("DistributionGrant", "everything")?);
    let grant = hub.get(&everything).await?;
    hub.delete(&everything).await?;
    stage.all_wait("grant everything was deleted").await?;
    let mut again = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"}});
    again["spec"] = grant["spec"].clone();
    hub.make(&again).await?;
    stage.nothing_waits().await?;
    stage.all_exist().await?;
    hub.delete(&everything).await?;
    stage.all_wait("grant everything was deleted").await?;
    stage.approve_all().await
}

#[tokio::test]
async fn deleted_namespace_of_many_rules_waits_for_the_fleet() -> Result<()> {
    let stage = crowd().await?;
    let hub = &stage.scene.hub;
    hub.delete(&Id::namespace(HOME)).await?;
    stage
        .all_wait("namespace guarded on the hub was deleted")
        .await?;
    stage.approve_all().await?;
    hub.lacks(&Id::rule(HOME, "r0")).await
}

/// A rule of other sources has all its copies, or their namespace does not exist.
#[tokio::test]
async fn deleted_namespace_of_a_rule_without_copies_is_free() -> Result<()> {
    let (_fleet, scene) = fleet().await?;
    let hub = &scene.hub;
    scene.hub_namespaces(&["winning", "losing"]).await?;
    scene.member_namespaces(&[HOME]).await?;
    for namespace in ["winning", "losing"] {
        for number in 0..SOURCES {
            let draft = Draft::config_map(namespace, &format!("s{number}")).label("set", "a");
            hub.make(&draft.data("from", namespace).json()).await?;
        }
    }
    let winner = RuleDraft::cluster_scoped("winner")
        .source(json!({"resources": ["configmaps"], "namespaces": ["winning"], "names": ["s*"]}))
        .everywhere()
        .into(&[HOME]);
    hub.make(&winner.json()).await?;
    let winner = Id::cluster_rule("winner");
    hub.all_applied(&winner, MEMBERS * SOURCES).await?;
    let loser = RuleDraft::new("losing", "loser")
        .labeled("set", "a")
        .everywhere()
        .into(&[HOME, "missing"]);
    hub.make(&loser.json()).await?;
    let loser = Id::rule("losing", "loser");
    let owns_nothing = |rule: &Value| {
        let summary = &rule["status"]["summary"];
        ensure!(
            summary["copiesFailed"] == MEMBERS * SOURCES
                && summary["copiesWaiting"] == MEMBERS * SOURCES,
            "{}",
            rule["status"]
        );
        Ok(())
    };
    hub.sees("a rule without copies", &loser, owns_nothing)
        .await?;
    hub.delete(&Id::namespace("losing")).await?;
    hub.lacks(&loser).await?;
    hub.lacks(&Id::namespace("losing")).await?;
    let overview = hub.get(&id("Fleet", "default")?).await?;
    ensure!(overview["status"]["pending"] == 0, "{overview}");
    ensure!(
        hub.events_about(&loser)
            .await?
            .iter()
            .all(|event| event.reason != "ApprovalRequired")
    );
    hub.all_applied(&winner, MEMBERS * SOURCES).await?;
    for member in 1..=MEMBERS {
        for number in 0..SOURCES {
            let copy = scene.member(member).get(&Stage::copy(number)).await?;
            ensure!(copy["data"]["from"] == "winning", "{copy}");
        }
    }
    Ok(())
}

#[tokio::test]
async fn deleted_rule_is_blocked_where_the_fleet_limits_deletes() -> Result<()> {
    let stage = stage().await?;
    let hub = &stage.scene.hub;
    let fleet = id("Fleet", "default")?;
    hub.sees("the Fleet", &fleet, |_| Ok(())).await?;
    let limit = json!({"count": 20, "percent": 0});
    let terms = json!({"spec": {"removalLimit": {"deliberate": "Hold", "fleet": limit}}});
    hub.change(&fleet, terms).await?;
    hub.change(
        &stage.rule,
        json!({"spec": {"removalLimit": {"count": 1000}}}),
    )
    .await?;
    hub.all_applied(&stage.rule, MEMBERS * SOURCES).await?;
    hub.delete(&stage.rule).await?;
    let digest = stage.is_blocked(24, 12).await?;
    let waits = |fleet: &Value| {
        let pending = &fleet["status"]["pendingApprovals"][0];
        ensure!(
            pending["cause"] == "rule guarded/all was deleted" && pending["copies"] == 24,
            "{}",
            fleet["status"]
        );
        Ok(())
    };
    hub.sees("a held delete", &fleet, waits).await?;
    stage.ends(&digest).await
}
