//! Checks the status of a rule.

use anyhow::{Context, Result, ensure};
use serde_json::Value;

use super::cluster::{Id, TestCluster};

/// The condition of this type; an error where it is absent.
///
/// # Errors
/// When the object has no such condition.
pub fn condition<'a>(object: &'a Value, kind: &str) -> Result<&'a Value> {
    let conditions = object
        .pointer("/status/conditions")
        .and_then(Value::as_array);
    let found = conditions
        .into_iter()
        .flatten()
        .find(|condition| condition["type"] == kind);
    found.with_context(|| format!("no condition {kind}; the status is {}", object["status"]))
}

/// Returns the entry of one cluster in a rule's status.
///
/// # Errors
/// When it does not list the cluster.
pub fn entry_of<'a>(rule: &'a Value, cluster: &str) -> Result<&'a Value> {
    let entries = rule.pointer("/status/clusters").and_then(Value::as_array);
    let found = entries
        .into_iter()
        .flatten()
        .find(|entry| entry["name"] == cluster);
    found.with_context(|| format!("{cluster} is not listed; the status is {}", rule["status"]))
}

impl TestCluster {
    /// Waits until the status is about the newest spec and `Ready` has this status and reason;
    /// returns the rule.
    /// A status from before an edit of a source is still right for a moment: wait for the copies
    /// first.
    ///
    /// # Errors
    /// At the deadline, with the status.
    pub async fn wait_ready(&self, rule: &Id, status: &str, reason: &str) -> Result<Value> {
        self.sees(&format!("Ready={status}, {reason}"), rule, |object| {
            is_ready(object, status, reason)
        })
        .await
    }

    /// Waits for `Ready=False` with this reason and this number of failed copies, and nothing under
    /// way; returns the rule. The first failure may be reported before the others.
    ///
    /// # Errors
    /// At the deadline, with the status.
    pub async fn wait_failed(&self, rule: &Id, reason: &str, failed: u64) -> Result<Value> {
        self.sees(
            &format!("not ready with {failed} copies failed, {reason}"),
            rule,
            |object| {
                is_ready(object, "False", reason)?;
                let summary = &object["status"]["summary"];
                let of = |count: &str| summary[count].as_u64().unwrap_or_default();
                let settled = of("copiesApplied")
                    + of("copiesFailed")
                    + of("copiesWaiting")
                    + of("copiesDrifted");
                ensure!(
                    of("copiesFailed") == failed && of("copies") == settled,
                    "{summary}"
                );
                Ok(())
            },
        )
        .await
    }

    /// Waits until the rule is not ready for this reason, and counts so many applied and failed copies and no others; returns
    /// the rule. A failure may be reported before other copies are.
    ///
    /// # Errors
    /// When it does not in time, with the status as it is.
    pub async fn wait_counted(
        &self,
        rule: &Id,
        reason: &str,
        (applied, failed): (u64, u64),
    ) -> Result<Value> {
        let what = format!("{reason} with {applied} copies applied and {failed} failed");
        self.sees(&what, rule, |object| {
            is_ready(object, "False", reason)?;
            let summary = &object["status"]["summary"];
            ensure!(
                summary["copies"] == applied + failed
                    && summary["copiesApplied"] == applied
                    && summary["copiesFailed"] == failed,
                "{summary}"
            );
            Ok(())
        })
        .await
    }

    /// Waits until the rule cannot be carried out for this reason, and its message has these words;
    /// returns the rule.
    ///
    /// # Errors
    /// At the deadline, with the condition.
    pub async fn wait_refused(&self, rule: &Id, reason: &str, words: &[&str]) -> Result<Value> {
        let check = |object: &Value| {
            is_ready(object, "False", reason)?;
            let message = condition(object, "Ready")?["message"].as_str();
            for word in words {
                let has_word = message.is_some_and(|message| message.contains(word));
                ensure!(has_word, "{word:?} is not in {message:?}");
            }
            ensure!(
                condition(object, "Stalled")?["reason"] == reason,
                "a person must see to it"
            );
            Ok(())
        };
        self.sees(&format!("refused, {reason}"), rule, check).await
    }

    /// Waits until every copy of the rule is applied, and `copies` is how many there are; returns the rule.
    ///
    /// # Errors
    /// When it is not so in time, with the status as it is.
    pub async fn all_applied(&self, rule: &Id, copies: usize) -> Result<Value> {
        self.has_all(rule, copies, "Ready").await
    }

    /// As [`TestCluster::all_applied`], whatever the health of the copies is.
    ///
    /// # Errors
    /// When it is not so in time, with the status as it is.
    pub async fn all_written(&self, rule: &Id, copies: usize) -> Result<Value> {
        self.has_all(rule, copies, "Applied").await
    }

    async fn has_all(&self, rule: &Id, copies: usize, kind: &str) -> Result<Value> {
        self.sees(&format!("{kind} with {copies} copies"), rule, |object| {
            let summary = &object["status"]["summary"];
            ensure!(
                object["status"]["observedGeneration"] == object["metadata"]["generation"],
                "not looked at"
            );
            let applied = condition(object, kind)?;
            ensure!(
                applied["status"] == "True" && applied["reason"] == "AllApplied",
                "it is {applied}, {summary}"
            );
            let all = summary["copies"] == copies && summary["copiesApplied"] == copies;
            ensure!(
                all && summary["copiesFailed"] == 0 && summary["copiesWaiting"] == 0,
                "the counts are {summary}"
            );
            Ok(())
        })
        .await
    }

    /// Waits until the rule's entry for a cluster has this state and reason; returns the entry.
    ///
    /// # Errors
    /// When it has not in time, with the entry as it is.
    pub async fn wait_for_cluster(
        &self,
        rule: &Id,
        cluster: &str,
        state: &str,
        reason: &str,
    ) -> Result<Value> {
        let what = format!("{state}, {reason} in {cluster}");
        let object = self
            .sees(&what, rule, |object| {
                let entry = entry_of(object, cluster)?;
                ensure!(
                    entry["state"] == state && entry["reason"] == reason,
                    "it is {entry}"
                );
                Ok(())
            })
            .await?;
        entry_of(&object, cluster).cloned()
    }
}

/// Whether the status is about the newest spec, and `Ready` has this status and reason.
fn is_ready(object: &Value, status: &str, reason: &str) -> Result<()> {
    let generation = &object["metadata"]["generation"];
    ensure!(
        object["status"]["observedGeneration"] == *generation,
        "not looked at: {}",
        object["status"]
    );
    let ready = condition(object, "Ready")?;
    ensure!(
        ready["status"] == status && ready["reason"] == reason,
        "it is {ready}"
    );
    ensure!(
        ready["observedGeneration"] == *generation,
        "the condition is old: {ready}"
    );
    Ok(())
}
