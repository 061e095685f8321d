//! The steps of the demo: one rule, and everything that can happen to its copies.

use std::time::Duration;

use anyhow::{Context, Result};

use super::narrate::{Narrator, milliseconds};
use super::observer::Observation;
use super::stage::{Clusters, DemoStage};
use super::story::{
    CopyState, DEFAULT, DemoStory, LATE, LIMITS, LOGIN, NAMESPACE, RULE, SETTINGS, SOON, Want,
};

const BOTH: [&str; 2] = [DEFAULT, LATE];
const COPIES: [&str; 5] = [
    "get",
    "configmaps,secrets",
    "-A",
    "-l",
    "app.kubernetes.io/managed-by=runnel",
];
/// `changed` in base64.
const CHANGED: &str = "Y2hhbmdlZA==";

/// Runs all steps on a connected fleet without other objects, and returns the totals.
///
/// # Errors
/// When a step fails; with what was expected and what was seen last.
pub async fn run_steps(
    narrator: &mut Narrator,
    clusters: &Clusters,
    stage: &DemoStage,
) -> Result<String> {
    let mut story = DemoStory::begin(narrator, clusters).await?;
    story.rule().await.context("a rule and its first copies")?;
    story.edits().await.context("edits of sources")?;
    story
        .late_namespace()
        .await
        .context("a namespace that comes later")?;
    story.tampering().await.context("tampering with copies")?;
    story
        .conflict()
        .await
        .context("an object that is not a copy")?;
    story
        .source_deleted()
        .await
        .context("a source that is deleted")?;
    story
        .rule_deleted()
        .await
        .context("a rule that is deleted")?;
    stage.check()?;
    let slowest = story.edits.iter().max().copied().unwrap_or_default();
    let (steps, edits) = (story.narrator.steps(), story.edits.len());
    Ok(format!(
        "{steps} steps, {edits} edits, the slowest in every member after {}",
        milliseconds(slowest)
    ))
}

impl DemoStory<'_> {
    async fn rule(&mut self) -> Result<()> {
        self.narrator.step(
            "A rule: what is labeled rule=test goes to default and another-test of all members",
        );
        let last = self.last();
        for member in &self.clusters.members[..last] {
            member
                .show(self.narrator, &["create", "namespace", LATE])
                .await?;
        }
        let (mark, marks) = (self.hub.mark(), self.marks());
        self.clusters
            .hub
            .show(
                self.narrator,
                &["apply", "-f", "deploy/examples/seed-rule.yaml"],
            )
            .await?;
        let rule = |seen: &Observation| seen.is("DistributionRule", NAMESPACE, RULE);
        let (_, begin) = self.hub.sees("the rule", mark, SOON, rule).await?;
        let first = [
            Want::config_map(SETTINGS, CopyState::There),
            Want::secret(LOGIN, CopyState::There),
        ];
        for (member, since) in marks.into_iter().enumerate() {
            let namespaces = if member == last {
                &BOTH[..1]
            } else {
                &BOTH[..]
            };
            self.arrives((member, since), begin, &first, namespaces, "has {}")
                .await?;
        }
        let (copies, waiting) = (4 * self.members.len(), 2);
        let what = format!(
            "{} applied copies and {waiting} that wait",
            copies - waiting
        );
        self.status(&what, |status| {
            status["summary"]["copiesApplied"] == copies - waiting
                && status["summary"]["copiesWaiting"] == waiting
        })
        .await?;
        self.show_rule().await?;
        if self.clusters.local {
            let deliveries = ["-n", NAMESPACE, "get", "deliveries"];
            self.clusters.hub.show(self.narrator, &deliveries).await?;
        }
        for member in &self.clusters.members {
            member.show(self.narrator, &COPIES).await?;
        }
        let columns = "-ocustom-columns=GREETING:.data.greeting,SOURCE:.metadata.annotations.runnel\\.dev/source";
        self.clusters.members[0]
            .show(self.narrator, &["get", "configmap", SETTINGS, columns])
            .await?;
        Ok(())
    }

    async fn edits(&mut self) -> Result<()> {
        self.narrator
            .step("Sources are edited: milliseconds from the hub's API server to each member's");
        let last = self.last();
        let greeting = CopyState::Holds("greeting", "good morning");
        let edits = [
            (
                "configmap",
                r#"{"data":{"greeting":"good morning"}}"#,
                Want::config_map(SETTINGS, greeting),
            ),
            (
                "secret",
                r#"{"stringData":{"password":"changed"}}"#,
                Want::secret(LOGIN, CopyState::Holds("password", CHANGED)),
            ),
        ];
        for (resource, patch, want) in edits {
            let (mark, marks) = (self.hub.mark(), self.marks());
            self.clusters
                .hub
                .show(
                    self.narrator,
                    &["-n", NAMESPACE, "patch", resource, want.name, "-p", patch],
                )
                .await?;
            let CopyState::Holds(key, value) = want.state else {
                continue;
            };
            let edited = |seen: &Observation| {
                seen.is(want.kind, NAMESPACE, want.name) && seen.holds(key, value)
            };
            let (_, begin) = self
                .hub
                .sees("the edited source", mark, SOON, edited)
                .await?;
            let mut slowest = Duration::ZERO;
            for (member, since) in marks.into_iter().enumerate() {
                let namespaces = if member == last {
                    &BOTH[..1]
                } else {
                    &BOTH[..]
                };
                let time = self
                    .arrives(
                        (member, since),
                        begin,
                        &[want],
                        namespaces,
                        "has the new {}",
                    )
                    .await?;
                slowest = slowest.max(time);
            }
            self.edits.push(slowest);
        }
        Ok(())
    }

    async fn late_namespace(&mut self) -> Result<()> {
        self.narrator
            .step("A namespace that comes later gets its copies");
        let (last, marks) = (self.last(), self.marks());
        self.clusters.members[last]
            .show(self.narrator, &["create", "namespace", LATE])
            .await?;
        let made = |seen: &Observation| seen.is("Namespace", "", LATE) && seen.data.is_some();
        let (_, begin) = self.members[last]
            .sees("the namespace", marks[last], SOON, made)
            .await?;
        let wanted = [
            Want::config_map(SETTINGS, CopyState::There),
            Want::secret(LOGIN, CopyState::There),
        ];
        self.arrives((last, marks[last]), begin, &wanted, &[LATE], "has {}")
            .await?;
        self.ready(4 * self.members.len()).await?;
        self.show_rule().await
    }

    async fn tampering(&mut self) -> Result<()> {
        self.narrator
            .step("The agent restores copies that another client edits or deletes");
        let (last, marks) = (self.last(), self.marks());
        let patch = r#"{"data":{"greeting":"tampered"}}"#;
        self.clusters.members[0]
            .show(
                self.narrator,
                &["patch", "configmap", SETTINGS, "-p", patch],
            )
            .await?;
        let edited = |seen: &Observation| {
            seen.is("ConfigMap", DEFAULT, SETTINGS) && seen.holds("greeting", "tampered")
        };
        let (at, begin) = self.members[0]
            .sees("the edited copy", marks[0], SOON, edited)
            .await?;
        let right = Want::config_map(SETTINGS, CopyState::Holds("greeting", "good morning"));
        self.arrives(
            (0, at),
            begin,
            &[right],
            &[DEFAULT],
            "has the right {} again",
        )
        .await?;

        let mark = self.members[last].mark();
        self.clusters.members[last]
            .show(self.narrator, &["delete", "secret", LOGIN])
            .await?;
        let deleted = |seen: &Observation| seen.is("Secret", DEFAULT, LOGIN) && seen.data.is_none();
        let (at, begin) = self.members[last]
            .sees("the deletion of the copy", mark, SOON, deleted)
            .await?;
        let back = Want::secret(LOGIN, CopyState::Holds("password", CHANGED));
        self.arrives((last, at), begin, &[back], &[DEFAULT], "has {} again")
            .await
            .map(|_| ())
    }

    async fn conflict(&mut self) -> Result<()> {
        self.narrator
            .step("An object of someone else is never touched: the status names it");
        let (last, marks) = (self.last(), self.marks());
        let (hub, member) = (&self.clusters.hub, &self.clusters.members[last]);
        member
            .show(
                self.narrator,
                &["create", "configmap", LIMITS, "--from-literal=cpu=mine"],
            )
            .await?;
        hub.show(
            self.narrator,
            &[
                "-n",
                NAMESPACE,
                "create",
                "configmap",
                LIMITS,
                "--from-literal=cpu=2",
            ],
        )
        .await?;
        let mark = self.hub.mark();
        hub.show(
            self.narrator,
            &["-n", NAMESPACE, "label", "configmap", LIMITS, "rule=test"],
        )
        .await?;
        let labeled = |seen: &Observation| {
            seen.is("ConfigMap", NAMESPACE, LIMITS) && seen.labels.contains_key("rule")
        };
        let (_, begin) = self
            .hub
            .sees("the labeled source", mark, SOON, labeled)
            .await?;
        let new = [Want::config_map(LIMITS, CopyState::Holds("cpu", "2"))];
        for (number, since) in marks.into_iter().enumerate() {
            let namespaces = if number == last {
                &BOTH[1..]
            } else {
                &BOTH[..]
            };
            self.arrives((number, since), begin, &new, namespaces, "has {}")
                .await?;
        }
        self.status("one failed copy", |status| {
            status["summary"]["copiesFailed"] == 1
        })
        .await?;
        self.show_rule().await?;
        let worst = "jsonpath={.status.conditions[0].message}";
        hub.show(
            self.narrator,
            &["-n", NAMESPACE, "get", "drule", RULE, "-o", worst],
        )
        .await?;
        member
            .show(
                self.narrator,
                &["get", "configmap", LIMITS, "-o", "jsonpath={.data}"],
            )
            .await?;
        self.conflict_ends().await
    }

    async fn conflict_ends(&mut self) -> Result<()> {
        let last = self.last();
        let mark = self.members[last].mark();
        self.clusters.members[last]
            .show(self.narrator, &["delete", "configmap", LIMITS])
            .await?;
        self.narrator
            .say("An agent looks at such a place again within 30 s.");
        let deleted =
            |seen: &Observation| seen.is("ConfigMap", DEFAULT, LIMITS) && seen.data.is_none();
        let (at, begin) = self.members[last]
            .sees("the deletion of the object", mark, SOON, deleted)
            .await?;
        let new = [Want::config_map(LIMITS, CopyState::Holds("cpu", "2"))];
        self.arrives((last, at), begin, &new, &[DEFAULT], "has {}")
            .await?;
        self.ready(6 * self.members.len()).await?;
        self.show_rule().await
    }

    async fn source_deleted(&mut self) -> Result<()> {
        self.narrator
            .step("A source is deleted: its copies go, after 5 s in which it could have come back");
        let (mark, marks) = (self.hub.mark(), self.marks());
        self.clusters
            .hub
            .show(self.narrator, &["-n", NAMESPACE, "delete", "secret", LOGIN])
            .await?;
        let deleted =
            |seen: &Observation| seen.is("Secret", NAMESPACE, LOGIN) && seen.data.is_none();
        let (_, begin) = self
            .hub
            .sees("the deletion of the source", mark, SOON, deleted)
            .await?;
        let gone = [Want::secret(LOGIN, CopyState::Gone)];
        self.arrives_everywhere(&marks, begin, &gone, &BOTH, "has no {} any more")
            .await?;
        self.ready(4 * self.members.len()).await?;
        self.show_rule().await
    }

    async fn rule_deleted(&mut self) -> Result<()> {
        self.narrator
            .step("The rule is deleted: its copies go, the sources stay");
        let (mark, marks) = (self.hub.mark(), self.marks());
        self.clusters
            .hub
            .show(self.narrator, &["-n", NAMESPACE, "delete", "drule", RULE])
            .await?;
        let deleted = |seen: &Observation| {
            seen.is("DistributionRule", NAMESPACE, RULE) && (seen.deleting || seen.data.is_none())
        };
        let (_, begin) = self
            .hub
            .sees("the deletion of the rule", mark, SOON, deleted)
            .await?;
        let gone = [
            Want::config_map(SETTINGS, CopyState::Gone),
            Want::config_map(LIMITS, CopyState::Gone),
        ];
        self.arrives_everywhere(&marks, begin, &gone, &BOTH, "has no {} any more")
            .await?;
        for member in &self.clusters.members {
            member.show(self.narrator, &COPIES).await?;
        }
        let sources = ["-n", NAMESPACE, "get", "configmaps", "-l", "rule=test"];
        self.clusters
            .hub
            .show(self.narrator, &sources)
            .await
            .map(|_| ())
    }
}
