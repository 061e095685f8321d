//! Rollouts in waves: a wave begins when the former one is applied and has soaked, a failing change
//! stops, and a new leader continues the rollout.

#[path = "rollout/analysis.rs"]
mod analysis;
#[path = "rollout/approval.rs"]
mod approval;
#[path = "rollout/reverts.rs"]
mod reverts;
#[path = "rollout/rollbacks.rs"]
mod rollbacks;
#[path = "rollout/windows.rs"]
mod windows;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use jiff::Timestamp;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, Metrics, RuleDraft, Scene, TestCluster, condition};
use runnel_tests::wait::{eventually, steadily};
use serde_json::{Value, json};

const HOME: &str = "waves";
const SOON: Duration = Duration::from_secs(60);
/// Longer than a beat of the hub and an agent's report.
const A_WHILE: Duration = Duration::from_secs(3);

struct Stage {
    fleet: Fleet,
    scene: Scene,
    members: usize,
    rule: Id,
    source: Id,
}

impl Stage {
    /// Two replicas of the hub, and so many members: the first one is the last in the order. A rule has brought a Secret to
    /// all of them, one at a time.
    async fn start(members: usize) -> Result<Self> {
        Self::start_with(members, 16, false).await
    }

    /// As above, with this rollback storage in MiB, and with the view API or without.
    async fn start_with(members: usize, storage: u16, views: bool) -> Result<Self> {
        let values = json!({"rollback": {"storageMiB": storage}});
        Self::start_with_values(members, values, views).await
    }

    /// As above, with these values of the hub's chart.
    async fn start_with_values(members: usize, values: Value, views: bool) -> Result<Self> {
        let lease = json!({"duration": "4s", "renewDeadline": "3s", "retryPeriod": "500ms"});
        let mut hub_values = values;
        hub_values["lease"] = lease;
        let options = FleetOptions {
            members,
            hub_replicas: 2,
            hub_values,
            views,
            ..FleetOptions::default()
        };
        let fleet = Fleet::start(options).await?;
        let scene = Scene::of(&fleet).await?;
        scene.hub_namespaces(&[HOME]).await?;
        scene.member_namespaces(&[HOME]).await?;
        for member in 1..=members {
            let tier = if member == 1 { "10" } else { "9" };
            let labels = json!({"metadata": {"labels": {"tier": tier}}});
            scene
                .hub
                .change(&Id::member(&format!("member-{member}")), labels)
                .await?;
        }
        let stage = Self {
            fleet,
            scene,
            members,
            rule: Id::rule(HOME, "waves"),
            source: Id::secret(HOME, "login"),
        };
        stage
            .scene
            .hub
            .make(&Draft::secret(HOME, "login").data("k", "0").json())
            .await?;
        let rollout = json!({"maxConcurrency": 1, "orderByLabel": "tier"});
        let draft = RuleDraft::new(HOME, "waves")
            .named(&["login"])
            .everywhere()
            .with("rollout", rollout);
        stage.scene.hub.make(&draft.json()).await?;
        stage.is_completed(u64::try_from(members)?).await?;
        Ok(stage)
    }

    fn first(&self) -> &TestCluster {
        self.scene.member(2)
    }

    fn last(&self) -> &TestCluster {
        self.scene.member(1)
    }

    async fn wants(&self, rollout: Value) -> Result<()> {
        self.scene
            .hub
            .change(&self.rule, json!({"spec": {"rollout": rollout}}))
            .await
            .map(drop)
    }

    async fn edit(&self, key: &str, text: &str) -> Result<Value> {
        let mut data = json!({"k": null, "poison": null});
        data[key] = Draft::secret(HOME, "login").data(key, text).json()["data"][key].clone();
        self.scene
            .hub
            .change(&self.source, json!({"data": data}))
            .await
    }

    async fn has(&self, place: &TestCluster, source: &Value) -> Result<()> {
        place.has_copy(source, HOME, &self.rule).await.map(drop)
    }

    async fn is_in_phase(&self, phase: &str, wave: u64) -> Result<Value> {
        let what = format!("{phase} in wave {wave}");
        let observed = self.scene.hub.sees(&what, &self.rule, |rule| {
            let rollout = &rule["status"]["rollout"];
            ensure!(
                rollout["phase"] == phase && rollout["wave"] == wave,
                "{rollout}"
            );
            Ok(())
        });
        Ok(observed.await?["status"]["rollout"].clone())
    }

    async fn is_completed(&self, wave: u64) -> Result<Value> {
        let observed = self.is_in_phase("Completed", wave).await?;
        self.scene.hub.all_applied(&self.rule, self.members).await?;
        Ok(observed)
    }

    async fn leader(&self) -> Result<usize> {
        eventually("one replica to lead", SOON, async || {
            for number in [1, 2] {
                let url = self.fleet.hub_replica(number).ops_url();
                let leads = Metrics::of(url)
                    .await
                    .and_then(|metrics| metrics.sum("runnel_leader"));
                if leads.is_ok_and(|leads| leads > 0.0) {
                    return Ok(Some(number));
                }
            }
            Ok(None)
        })
        .await
    }

    /// The leader is killed, and another one takes over.
    async fn kill_leader(&self) -> Result<()> {
        let leader = self.leader().await?;
        self.fleet.hub_replica(leader).process().kill()?;
        self.leader().await.map(drop)
    }

    async fn received(&self, member: usize) -> Result<f64> {
        Metrics::of(&self.fleet.agent_ops_url(member))
            .await?
            .sum("runnel_payload_received_bytes_total")
    }
}

/// These members take no Secret with this key.
async fn refuse(stage: &Stage, members: &[usize]) -> Result<()> {
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
        "metadata": {"name": "no-poison"},
        "spec": {
            "failurePolicy": "Fail",
            "matchConstraints": {"resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["secrets"]},
            ]},
            "validations": [{"expression": "!has(object.data) || !('poison' in object.data)", "message": "no poison here"}],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
        "metadata": {"name": "no-poison"}, "spec": {"policyName": "no-poison", "validationActions": ["Deny"]},
    });
    for &member in members {
        stage.scene.member(member).make(&policy).await?;
        stage.scene.member(member).make(&binding).await?;
    }
    let probe = Draft::secret(HOME, "probe").data("poison", "x").json();
    for &member in members {
        let place = stage.scene.member(member);
        eventually("the policy to be in force", SOON, async || {
            if place.make(&probe).await.is_err() {
                return Ok(Some(()));
            }
            place.delete(&Id::of(&probe)?).await?;
            Ok(None)
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn change_is_sent_in_waves_and_bad_one_stays_in_the_first() -> Result<()> {
    let stage = Stage::start(2).await?;
    refuse(&stage, &[1, 2]).await?;
    // A wave that soaks. The leader is killed meanwhile, and the next one continues it.
    stage.wants(json!({"soakSeconds": 15})).await?;
    let before = stage.scene.hub.get(&stage.source).await?;
    let good = stage.edit("k", "1").await?;
    stage.has(stage.first(), &good).await?;
    let soaking = stage.is_in_phase("Soaking", 1).await?;
    ensure!(
        soaking["reachedUpTo"] == json!({"value": "9", "cluster": "member-2"}),
        "{soaking}"
    );
    ensure!(
        soaking["clustersReached"] == 1
            && soaking["clustersApplied"] == 1
            && soaking["clusters"] == 2,
        "{soaking}"
    );
    let ready = stage.scene.hub.get(&stage.rule).await?;
    let ready = condition(&ready, "Ready")?;
    let message = ready["message"].as_str().unwrap_or_default();
    ensure!(
        ready["reason"] == "RollingOut"
            && message.contains("wave 1 is applied and is watched until"),
        "{ready}"
    );
    // Clusters that are not reached keep their copies, and their agents correct drift.
    stage.last().delete(&stage.source).await?;
    stage.has(stage.last(), &before).await?;
    stage.kill_leader().await?;
    stage.has(stage.last(), &good).await?;
    let observed = stage.is_completed(2).await?;
    ensure!(
        observed["startedAt"] == soaking["startedAt"]
            && observed["revision"] == soaking["revision"],
        "{observed} {soaking}"
    );
    let whole = |value: &Value| {
        value
            .as_str()
            .and_then(|at| at.parse::<Timestamp>().ok())
            .context("no time")
    };
    let soaked = whole(&observed["waveStartedAt"])?.duration_since(whole(&soaking["appliedAt"])?);
    ensure!(soaked.as_secs() >= 15, "it soaked for {soaked}");
    stage.fleet.start_hub().await?;

    // The first wave refuses a Secret: the second one never gets it, under any leader.
    stage.wants(json!({"soakSeconds": 0})).await?;
    let received = stage.received(1).await?;
    stage.edit("poison", "1").await?;
    let stopped = stage.is_in_phase("Stopped", 1).await?;
    ensure!(
        stopped["clustersFailed"] == 1 && stopped["clustersReached"] == 1,
        "{stopped}"
    );
    let rule = stage.scene.hub.sees("why it stopped", &stage.rule, |rule| {
        let stopped = condition(rule, "RolloutStopped")?;
        let message = stopped["message"].as_str().unwrap_or_default();
        ensure!(
            stopped["reason"] == "TooManyFailures" && message.contains("member-2"),
            "{stopped}"
        );
        ensure!(
            message.contains("no-poison") && message.contains("maxFailures"),
            "{message}"
        );
        let ready = condition(rule, "Ready")?;
        ensure!(ready["reason"] == "TooManyFailures", "{ready}");
        Ok(())
    });
    rule.await?;
    stage.kill_leader().await?;
    let unseen = async || {
        let seen = stage.last().get(&stage.source).await?;
        ensure!(seen["data"] == good["data"], "it saw the bad one");
        ensure!(
            stage.received(1).await? == received,
            "content was sent to it"
        );
        Ok(())
    };
    steadily("the second wave sees nothing of it", A_WHILE, unseen).await?;
    stage.is_in_phase("Stopped", 1).await?;
    stage.fleet.start_hub().await?;

    // While paused, a newer edit does not begin; afterwards it does, and supersedes the former one.
    stage.wants(json!({"paused": true})).await?;
    let cured = stage.edit("k", "2").await?;
    stage.is_in_phase("Paused", 0).await?;
    steadily("nothing is sent", A_WHILE, unseen).await?;
    stage.wants(json!({"paused": false})).await?;
    stage.has(stage.first(), &cured).await?;
    stage.has(stage.last(), &cured).await?;
    stage.is_completed(2).await?;

    // Without a rollout all clusters get it at once, and its status is removed.
    stage.wants(Value::Null).await?;
    let plain = stage.edit("k", "3").await?;
    stage.has(stage.first(), &plain).await?;
    stage.has(stage.last(), &plain).await?;
    let plain_again = stage
        .scene
        .hub
        .sees("nothing of a rollout", &stage.rule, |rule| {
            ensure!(
                rule["status"]["rollout"].is_null(),
                "{}",
                rule["status"]["rollout"]
            );
            Ok(())
        });
    plain_again.await.map(drop)
}

#[tokio::test]
async fn leader_killed_in_a_wave_is_followed_at_the_same_point() -> Result<()> {
    let stage = Stage::start(3).await?;
    stage.wants(json!({"maxConcurrency": 2})).await?;
    let before = stage.scene.hub.get(&stage.source).await?;
    // The wave has two members. One applies the change; the other one's agent receives nothing.
    stage.fleet.agent_process(3).pause()?;
    let newest = stage.edit("k", "1").await?;
    stage.has(stage.first(), &newest).await?;
    let begun = stage
        .scene
        .hub
        .sees("half of the wave", &stage.rule, |rule| {
            let rollout = &rule["status"]["rollout"];
            ensure!(
                rollout["phase"] == "Progressing" && rollout["wave"] == 1,
                "{rollout}"
            );
            ensure!(
                rollout["clustersReached"] == 2 && rollout["clustersApplied"] == 1,
                "{rollout}"
            );
            Ok(())
        });
    let begun = begun.await?["status"]["rollout"].clone();
    ensure!(
        begun["reachedUpTo"] == json!({"value": "9", "cluster": "member-3"}),
        "{begun}"
    );
    let received = stage.received(1).await?;
    stage.kill_leader().await?;
    // The new leader knows the current wave, and that it has not ended.
    let unseen = async || {
        ensure!(
            stage.last().get(&stage.source).await?["data"] == before["data"],
            "the last wave has it"
        );
        ensure!(
            stage.received(1).await? == received,
            "content was sent to the last wave"
        );
        let rule = stage.scene.hub.get(&stage.rule).await?;
        let rollout = &rule["status"]["rollout"];
        let same = |field: &str| rollout[field] == begun[field];
        ensure!(
            [
                "revision",
                "wave",
                "phase",
                "startedAt",
                "waveStartedAt",
                "reachedUpTo"
            ]
            .into_iter()
            .all(same),
            "{rollout}, and it was {begun}"
        );
        Ok(())
    };
    steadily("the wave is not over", 3 * A_WHILE, unseen).await?;
    ensure!(
        stage.scene.member(3).get(&stage.source).await?["data"] == before["data"],
        "a frozen agent wrote"
    );
    stage.fleet.agent_process(3).resume()?;
    stage.has(stage.scene.member(3), &newest).await?;
    stage.has(stage.last(), &newest).await?;
    let observed = stage.is_completed(2).await?;
    ensure!(
        observed["startedAt"] == begun["startedAt"] && observed["revision"] == begun["revision"],
        "{observed} {begun}"
    );
    Ok(())
}

/// The Secrets in which the hub stores the states of completed rollouts.
async fn stored(stage: &Stage) -> Result<Vec<Value>> {
    let mut all = stage
        .scene
        .hub
        .list(&Id::secret("runnel-system", ""))
        .await?;
    all.retain(|secret| secret["type"] == "runnel.dev/rollback");
    Ok(all)
}

/// So many states have been stored for the rule, of which the last ones are kept.
async fn is_stored(stage: &Stage, number: u64) -> Result<()> {
    let uid = stage.scene.hub.get(&stage.rule).await?["metadata"]["uid"]
        .as_str()
        .unwrap_or_default()
        .to_owned();
    eventually("the state of the rollout to be stored", SOON, async || {
        let secrets = stored(stage).await?;
        let parts = secrets
            .iter()
            .filter_map(|secret| secret["data"].as_object())
            .flatten();
        let names: Vec<String> = parts.map(|(name, _)| name.clone()).collect();
        let newest = format!("{uid}.{number}.0.1");
        Ok((names.contains(&newest) && names.len() <= 2).then_some(()))
    })
    .await
}

#[tokio::test]
async fn failed_change_is_undone_everywhere_despite_kills() -> Result<()> {
    let stage = Stage::start(3).await?;
    stage
        .wants(json!({"maxConcurrency": 2, "onFailure": "Revert"}))
        .await?;
    refuse(&stage, &[3]).await?;
    is_stored(&stage, 1).await?;
    let good = stage.edit("k", "1").await?;
    for member in 1..=3 {
        stage.has(stage.scene.member(member), &good).await?;
    }
    stage.is_completed(2).await?;
    is_stored(&stage, 2).await?;

    // One member of the first wave accepts the change that the other one will refuse.
    let received = stage.received(1).await?;
    stage.fleet.agent_process(3).pause()?;
    let bad = stage.edit("poison", "1").await?;
    stage.has(stage.first(), &bad).await?;
    // The agent is killed when its rollback starts, and so is the leader.
    stage.fleet.agent_process(2).pause()?;
    stage.fleet.agent_process(3).resume()?;
    stage.is_in_phase("Reverting", 1).await?;
    stage.fleet.kill_agent(2)?;
    stage.kill_leader().await?;
    ensure!(
        stage.first().get(&stage.source).await?["data"] == bad["data"],
        "nobody was there to put it back"
    );
    stage.fleet.start_agent(2).await?;
    for member in [2, 3] {
        stage.has(stage.scene.member(member), &good).await?;
    }
    let observed = stage.is_in_phase("Reverted", 1).await?;
    ensure!(
        observed["clustersReverted"] == 2 && observed["clustersReached"] == 2,
        "{observed}"
    );
    let rule = stage
        .scene
        .hub
        .sees("what went wrong", &stage.rule, |rule| {
            let reverted = condition(rule, "RolloutReverted")?;
            let message = reverted["message"].as_str().unwrap_or_default();
            ensure!(
                reverted["status"] == "True" && reverted["reason"] == "TooManyFailures",
                "{reverted}"
            );
            ensure!(
                message.contains("in member-3: ") && message.contains("no-poison"),
                "{message}"
            );
            ensure!(
                message.contains("Of 2 clusters that it reached, all are rolled back"),
                "{message}"
            );
            let ready = condition(rule, "Ready")?;
            ensure!(
                ready["status"] == "False" && ready["reason"] == "TooManyFailures",
                "{ready}"
            );
            Ok(())
        });
    rule.await?;
    stage.fleet.start_hub().await?;
    let unseen = async || {
        for member in 1..=3 {
            let seen = stage.scene.member(member).get(&stage.source).await?;
            ensure!(seen["data"] == good["data"], "member-{member} has it");
        }
        ensure!(
            stage.received(1).await? == received,
            "content was sent to the last wave"
        );
        Ok(())
    };
    steadily("it stays undone", A_WHILE, unseen).await?;

    // Damaged copies are restored to the former state, also after a restart of the agent.
    stage
        .first()
        .change(&stage.source, json!({"data": {"k": "c3BvaWx0"}}))
        .await?;
    stage.has(stage.first(), &good).await?;
    stage.fleet.kill_agent(2)?;
    stage.fleet.start_agent(2).await?;
    steadily("it stays undone", A_WHILE, unseen).await?;
    stage.is_in_phase("Reverted", 1).await?;

    // A good edit completes, and is the target of the next rollback.
    let cured = stage.edit("k", "2").await?;
    for member in 1..=3 {
        stage.has(stage.scene.member(member), &cured).await?;
    }
    stage.is_completed(2).await?;
    is_stored(&stage, 3).await?;
    // A rule that asks for no rollback has no state stored.
    stage.wants(json!({"onFailure": "Stop"})).await?;
    eventually("nothing to be stored", SOON, async || {
        let is_empty = |secret: &Value| {
            secret["data"]
                .as_object()
                .is_none_or(|data| data.is_empty())
        };
        Ok(stored(&stage).await?.iter().all(is_empty).then_some(()))
    })
    .await
}

/// The rule sends these Secrets.
async fn sends(stage: &Stage, names: &[&str]) -> Result<()> {
    let sources = json!([{"resources": ["secrets"], "names": names}]);
    stage
        .scene
        .hub
        .change(&stage.rule, json!({"spec": {"sources": sources}}))
        .await
        .map(drop)
}

#[tokio::test]
async fn rollback_removes_created_copies_and_restores_removed_ones() -> Result<()> {
    let stage = Stage::start(2).await?;
    refuse(&stage, &[1]).await?;
    let hub = &stage.scene.hub;
    let poisoned = Draft::secret(HOME, "poisoned").data("poison", "1").json();
    let [removed, created] =
        ["removed", "created"].map(|name| Draft::secret(HOME, name).data("k", "1").json());
    for source in [&removed, &created, &poisoned] {
        hub.make(source).await?;
    }
    stage
        .wants(json!({"maxConcurrency": 2, "onFailure": "Revert", "orderByLabel": null}))
        .await?;
    // Another order sends nothing.
    stage.is_in_phase("Completed", 0).await?;
    is_stored(&stage, 1).await?;
    sends(&stage, &["login", "removed"]).await?;
    let removed = hub.get(&Id::of(&removed)?).await?;
    for member in [1, 2] {
        stage.has(stage.scene.member(member), &removed).await?;
    }
    stage.is_in_phase("Completed", 1).await?;
    is_stored(&stage, 2).await?;

    // One member takes the change. The leader dies before the other one, which refuses a part of it, reports that.
    stage.fleet.agent_process(1).pause()?;
    sends(&stage, &["login", "created", "poisoned"]).await?;
    let created = hub.get(&Id::of(&created)?).await?;
    stage.has(stage.first(), &created).await?;
    let is_gone = async |place: &TestCluster, source: &Value| {
        let id = Id::of(source)?;
        eventually("a copy to be gone", SOON, async || {
            Ok(place.find(&id).await?.is_none().then_some(()))
        })
        .await
    };
    is_gone(stage.first(), &removed).await?;
    stage.kill_leader().await?;
    stage.fleet.agent_process(1).resume()?;
    let observed = stage.is_in_phase("Reverted", 1).await?;
    ensure!(
        observed["clustersReverted"] == 2 && observed["rollbackBlocker"].is_null(),
        "{observed}"
    );
    for member in [1, 2] {
        let place = stage.scene.member(member);
        stage.has(place, &removed).await?;
        is_gone(place, &created).await?;
        is_gone(place, &poisoned).await?;
    }
    Ok(())
}

#[tokio::test]
async fn damaged_state_stops_the_rollout_with_a_message() -> Result<()> {
    let stage = Stage::start(2).await?;
    refuse(&stage, &[2]).await?;
    stage
        .wants(json!({"maxConcurrency": 2, "onFailure": "Revert", "orderByLabel": null}))
        .await?;
    stage.is_in_phase("Completed", 0).await?;
    is_stored(&stage, 1).await?;
    let secret = Id::secret("runnel-system", "runnel-hub-rollback-0");
    let data = stage.scene.hub.get(&secret).await?["data"]
        .as_object()
        .cloned()
        .context("no data")?;
    let damaged: serde_json::Map<_, _> = data
        .into_iter()
        .map(|(name, _)| (name, json!("bm90aGluZw==")))
        .collect();
    stage
        .scene
        .hub
        .change(&secret, json!({"data": damaged}))
        .await?;
    // A leader that finds it damaged in the middle of a rollout has nothing to go back to.
    stage.fleet.agent_process(2).pause()?;
    let bad = stage.edit("poison", "1").await?;
    stage.has(stage.last(), &bad).await?;
    stage.kill_leader().await?;
    stage.fleet.agent_process(2).resume()?;
    let observed = stage.is_in_phase("Stopped", 1).await?;
    ensure!(
        observed["rollbackBlocker"]
            .as_str()
            .is_some_and(|blocker| blocker.contains("damaged")),
        "{observed}"
    );
    let rule = stage.scene.hub.get(&stage.rule).await?;
    let stopped = condition(&rule, "RolloutStopped")?;
    let message = stopped["message"].as_str().unwrap_or_default();
    ensure!(message.contains("damaged"), "{message}");
    let stays = async || {
        ensure!(
            stage.last().get(&stage.source).await?["data"] == bad["data"],
            "it was rolled back"
        );
        Ok(())
    };
    steadily("nothing is sent", A_WHILE, stays).await
}

#[tokio::test]
async fn rule_whose_state_does_not_fit_stops_with_a_message() -> Result<()> {
    let stage = Stage::start_with(2, 0, false).await?;
    refuse(&stage, &[2]).await?;
    stage
        .wants(json!({"maxConcurrency": 2, "onFailure": "Revert", "orderByLabel": null}))
        .await?;
    let names_the_cause = |rollout: &Value| {
        rollout["rollbackBlocker"]
            .as_str()
            .is_some_and(|why| why.contains("does not fit"))
    };
    stage
        .scene
        .hub
        .sees("why it would stop", &stage.rule, |rule| {
            let rollout = &rule["status"]["rollout"];
            ensure!(
                rollout["phase"] == "Completed" && names_the_cause(rollout),
                "{rollout}"
            );
            Ok(())
        })
        .await?;
    let bad = stage.edit("poison", "1").await?;
    stage.has(stage.last(), &bad).await?;
    let observed = stage.is_in_phase("Stopped", 1).await?;
    ensure!(names_the_cause(&observed), "{observed}");
    let rule = stage.scene.hub.get(&stage.rule).await?;
    let stopped = condition(&rule, "RolloutStopped")?;
    ensure!(
        stopped["message"]
            .as_str()
            .is_some_and(|message| message.contains("does not fit")),
        "{stopped}"
    );
    ensure!(stored(&stage).await?.is_empty(), "something is stored");
    Ok(())
}
