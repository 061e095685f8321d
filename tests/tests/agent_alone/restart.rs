//! State that survives restarts of agent and hub.
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use runnel_proto::model::{DeletionPolicy, Reason, RuleState};
use runnel_tests::audit::Mark;
use runnel_tests::scene::{Id, SOON};
use runnel_tests::wait::{eventually, steadily};
use serde_json::json;

use crate::alone::Alone;

#[tokio::test]
async fn agent_works_without_hub_also_after_its_restart() -> Result<()> {
    let mut alone = Alone::start("away", &["a", "b"]).await?;
    alone.hub.want(
        "r",
        alone.rule(&["a", "b", "new-*"], &[("one", "1"), ("two", "1")]),
    );
    alone.hub.wait_applied("r", 4).await?;
    alone.hub.want("q", alone.rule(&["a"], &[("lone", "1")]));
    alone.hub.wait_applied("q", 1).await?;
    alone.stop_agent().await?;
    alone.hub.stop();

    // While the agent is down: of one source, one of two twins is damaged; of the other, both are.
    alone
        .place
        .change(&alone.id("a", "one"), json!({"data": {"text": "changed"}}))
        .await?;
    for namespace in ["a", "b"] {
        alone
            .place
            .change(
                &alone.id(namespace, "two"),
                json!({"data": {"text": "changed"}}),
            )
            .await?;
    }
    alone.start_agent().await?;
    alone.has_value(&alone.id("a", "one"), "1").await?;
    alone.make_namespace("new-1").await?;
    alone.has_value(&alone.id("new-1", "one"), "1").await?;
    alone.place.delete(&alone.id("b", "one")).await?;
    alone.has_value(&alone.id("b", "one"), "1").await?;
    assert_eq!(
        alone.place.get(&alone.id("a", "two")).await?["data"]["text"],
        "changed"
    );

    // A copy without twin that was intact at the start is put back too.
    alone
        .place
        .change(&alone.id("a", "lone"), json!({"data": {"text": "changed"}}))
        .await?;
    alone.has_value(&alone.id("a", "lone"), "1").await?;

    // The hub returns with another desired state: pending work is done, and copies that it no
    // longer selects are removed.
    alone.hub.resume().await?;
    alone.hub.wait_applied("r", 6).await?;
    alone.has_value(&alone.id("a", "two"), "1").await?;
    assert!(
        alone
            .hub
            .received()
            .contains(Reason::WaitingForHub.as_str()),
        "it said what it waited for"
    );
    alone.hub.stop();
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "2")]));
    alone.hub.resume().await?;
    alone.has_value(&alone.id("a", "one"), "2").await?;
    alone.hub.wait_applied("r", 2).await?;
    alone.place.lacks(&alone.id("new-1", "one")).await
}

/// The API server refuses one operation on the ConfigMap `two` of the namespace `b`: what the agent does stops there.
struct Refusal<'a> {
    alone: &'a Alone,
    name: String,
}

impl<'a> Refusal<'a> {
    async fn of(alone: &'a Alone, operation: &str) -> Result<Self> {
        let name = format!("{}-stop", alone.name);
        let space = alone.ns("b");
        let policy = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy",
            "metadata": {"name": name},
            "spec": {
                "matchConstraints": {"resourceRules": [{
                    "apiGroups": [""], "apiVersions": ["v1"], "operations": [operation], "resources": ["configmaps"],
                }]},
                "validations": [{"expression": format!("request.namespace != '{space}' || request.name != 'two'")}],
            },
        });
        let binding = json!({
            "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding",
            "metadata": {"name": name}, "spec": {"policyName": name, "validationActions": ["Deny"]},
        });
        for object in [policy, binding] {
            alone
                .plane
                .kubectl_stdin(&["create", "-f", "-"], &object.to_string())
                .await?;
        }
        let refusal = Self { alone, name };
        refusal.counts(operation, true).await?;
        Ok(refusal)
    }

    async fn counts(&self, operation: &str, expected: bool) -> Result<()> {
        let space = self.alone.ns("b");
        let verb = operation.to_lowercase();
        let tried = [&verb, "configmap", "two", "-n", &space, "--dry-run=server"];
        eventually(
            "the refusal to count",
            Duration::from_secs(60),
            async || {
                let refused = self
                    .alone
                    .plane
                    .kubectl(&tried)
                    .await
                    .err()
                    .is_some_and(|e| format!("{e:#}").contains("denied"));
                Ok((refused == expected).then_some(()))
            },
        )
        .await
    }

    async fn lift(self, operation: &str) -> Result<()> {
        for kind in [
            "validatingadmissionpolicybinding",
            "validatingadmissionpolicy",
        ] {
            self.alone
                .plane
                .kubectl(&["delete", kind, &self.name])
                .await?;
        }
        self.counts(operation, false).await
    }

    /// Waits until the agent has tried it, and was refused.
    async fn tried(&self, verb: &str, mark: Mark) -> Result<()> {
        let tried = format!("{verb} {}/two ", self.alone.ns("b"));
        eventually("the agent's attempt", Duration::from_secs(60), async || {
            Ok(self
                .alone
                .writes(mark)?
                .iter()
                .any(|write| write.starts_with(&tried))
                .then_some(()))
        })
        .await
    }
}

#[tokio::test]
async fn a_crash_in_the_middle_of_a_removal_loses_nothing() -> Result<()> {
    let mut alone = Alone::start("crash", &["a", "b"]).await?;
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "1"), ("two", "1")]));
    alone.hub.wait_applied("r", 4).await?;
    let refusal = Refusal::of(&alone, "DELETE").await?;
    let mark = alone.plane.mark();
    alone.hub.remove("r", DeletionPolicy::Delete);
    for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "one")] {
        alone.place.lacks(&alone.id(namespace, name)).await?;
    }
    refusal.tried("delete", mark).await?;
    let name = refusal.name;
    alone.crash_agent().await?;
    ensure!(
        alone.hub.observed("r").is_none_or(|state| !state.gone),
        "the removal was over before the crash"
    );
    alone.has_value(&alone.id("b", "two"), "1").await?;

    Refusal {
        alone: &alone,
        name,
    }
    .lift("DELETE")
    .await?;
    alone.start_agent().await?;
    alone.place.lacks(&alone.id("b", "two")).await?;
    alone.hub.wait_gone("r").await
}

#[tokio::test]
async fn removal_cut_short_by_a_kill_is_not_undone() -> Result<()> {
    let mut alone = Alone::prepare("cut-short", Duration::from_secs(3600)).await?;
    for namespace in ["a", "b", "c"] {
        alone.make_namespace(namespace).await?;
    }
    alone.set_policy("{deletesPerHour: 1}")?;
    alone.start_agent().await?;
    alone.hub.want(
        "r",
        alone.rule(&["a", "b", "c"], &[("one", "1"), ("two", "1")]),
    );
    alone.hub.wait_applied("r", 6).await?;
    alone
        .hub
        .want("r", alone.rule(&["a", "b", "c"], &[("two", "1")]));
    let waits = |state: &RuleState| {
        state
            .failures
            .iter()
            .any(|failure| failure.reason == Reason::DeleteLimit)
    };
    alone
        .hub
        .wait_for_report("copies that wait for the limit", "r", waits)
        .await?;
    let left = eventually("the deletion that the limit allows", SOON, async || {
        let left = stands(&alone, "one").await?;
        Ok((left.len() < 3).then_some(left))
    })
    .await?;
    ensure!(left.len() == 2, "one is in {left:?}");
    alone.crash_agent().await?;
    alone.hub.stop();

    // The other source is still corrected meanwhile, so the agent has checked everything.
    alone.place.delete(&alone.id("a", "two")).await?;
    let mark = alone.plane.mark();
    alone.start_agent().await?;
    alone.has_value(&alone.id("a", "two"), "1").await?;
    steadily(
        "nothing to be created again",
        Duration::from_secs(3),
        async || {
            let writes = alone.writes(mark)?;
            ensure!(
                writes.iter().all(|write| !write.contains("/one ")),
                "{writes:?}"
            );
            Ok(())
        },
    )
    .await?;
    assert_eq!(stands(&alone, "one").await?, left);

    alone.set_policy("{deletesPerHour: 100}")?;
    alone.hub.resume().await?;
    for namespace in ["a", "b", "c"] {
        alone.place.lacks(&alone.id(namespace, "one")).await?;
    }
    alone.hub.wait_applied("r", 3).await.map(drop)
}

/// The namespaces with a ConfigMap.
async fn stands(alone: &Alone, name: &str) -> Result<Vec<&'static str>> {
    let mut found = vec![];
    for namespace in ["a", "b", "c"] {
        if alone
            .place
            .find(&alone.id(namespace, name))
            .await?
            .is_some()
        {
            found.push(namespace);
        }
    }
    Ok(found)
}

#[tokio::test]
async fn agent_alone_restores_copies_deleted_while_it_was_down() -> Result<()> {
    let mut alone = Alone::start("went", &["a", "b", "c"]).await?;
    alone.hub.want(
        "r",
        alone.rule(&["a", "b", "c"], &[("one", "1"), ("two", "1")]),
    );
    alone.hub.wait_applied("r", 6).await?;
    // The copies of a rule that is not stored cannot be found.
    alone
        .place
        .sees(
            "the stored terms",
            &Id::secret(&alone.name, "runnel-agent-terms"),
            |secret| {
                let text = secret["data"]["terms"].as_str().context("no terms")?;
                let terms = zstd::bulk::decompress(
                    &data_encoding::BASE64.decode(text.as_bytes())?,
                    1 << 20,
                )?;
                ensure!(
                    String::from_utf8_lossy(&terms).contains(&alone.ns("a")),
                    "another rule"
                );
                Ok(())
            },
        )
        .await?;
    alone.crash_agent().await?;
    alone.hub.stop();

    alone.place.delete(&alone.id("a", "one")).await?;
    alone
        .plane
        .kubectl(&["delete", "namespace", &alone.ns("c"), "--timeout=120s"])
        .await?;
    alone.make_namespace("c").await?;
    let begin = Instant::now();
    alone.start_agent().await?;
    for (namespace, name) in [("a", "one"), ("c", "one"), ("c", "two")] {
        alone.has_value(&alone.id(namespace, name), "1").await?;
    }
    println!("all is back after {:?}", begin.elapsed());
    Ok(())
}

#[tokio::test]
async fn rule_removed_before_the_agent_recorded_it_is_removed() -> Result<()> {
    let mut alone = Alone::start("unrecorded", &["a", "b"]).await?;
    let refusal = Refusal::of(&alone, "CREATE").await?;
    let mark = alone.plane.mark();
    alone
        .hub
        .want("r", alone.rule(&["a", "b"], &[("one", "1"), ("two", "1")]));
    for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "one")] {
        alone.has_value(&alone.id(namespace, name), "1").await?;
    }
    refusal.tried("patch", mark).await?;
    let name = refusal.name;
    alone.crash_agent().await?;
    ensure!(
        alone
            .hub
            .observed("r")
            .is_none_or(|state| state.counts.applied < 4),
        "the rule was applied before the crash"
    );
    // As after a crash before the agent wrote down which rules it holds.
    alone
        .place
        .delete(&Id::secret(&alone.name, "runnel-agent-terms"))
        .await?;
    alone.hub.remove("r", DeletionPolicy::Delete);

    Refusal {
        alone: &alone,
        name,
    }
    .lift("CREATE")
    .await?;
    alone.start_agent().await?;
    for (namespace, name) in [("a", "one"), ("a", "two"), ("b", "one"), ("b", "two")] {
        alone.place.lacks(&alone.id(namespace, name)).await?;
    }
    alone.hub.wait_gone("r").await
}

#[tokio::test]
async fn a_restart_with_a_thousand_copies_writes_nothing() -> Result<()> {
    let mut alone = Alone::start(
        "thousand",
        &["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"],
    )
    .await?;
    let names: Vec<_> = (0..100).map(|n| format!("n{n:03}")).collect();
    let pairs: Vec<_> = names.iter().map(|name| (name.as_str(), "1")).collect();
    let wanted = alone.rule(&["a", "b", "c", "d", "e", "f", "g", "h", "i", "j"], &pairs);
    alone.hub.want("r", wanted);
    alone.hub.wait_applied("r", 1000).await?;
    for crash in [true, false] {
        if crash {
            alone.crash_agent().await?
        } else {
            alone.stop_agent().await?
        }
        let (mark, sessions) = (alone.plane.mark(), alone.hub.sessions());
        alone.start_agent().await?;
        eventually("a new session", Duration::from_secs(30), async || {
            Ok((alone.hub.sessions() > sessions).then_some(()))
        })
        .await?;
        alone.hub.wait_applied("r", 1000).await?;
        steadily(
            "no writes after a restart",
            Duration::from_secs(2),
            async || {
                let writes = alone.writes(mark)?;
                anyhow::ensure!(
                    writes.is_empty(),
                    "{} writes, such as {:?}",
                    writes.len(),
                    writes.first()
                );
                Ok(())
            },
        )
        .await?;
    }
    Ok(())
}
