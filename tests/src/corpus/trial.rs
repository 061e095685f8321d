//! The life of one manifest: bundled, planned, applied, compared, read again, edited and removed.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail, ensure};
use kube::api::DeleteParams;
use serde_json::{Value, json};

use super::lab::{CorpusLab, HOME, entry};
use super::manifest::Manifest;
use super::normal::{differences, normal};
use super::report::{Finding, Verdict};
use crate::scene::{Id, RuleDraft, SOON, TestCluster, condition};
use crate::wait::{eventually, steadily};

/// The time in which a copy must not be written again.
const QUIET: Duration = Duration::from_secs(1);
/// The time after which a failure counts as final: agents try again meanwhile.
const FAILS: Duration = Duration::from_secs(4);
/// The time after which a copy that waits counts as refused.
const WAITS: Duration = Duration::from_secs(40);
/// The time that controllers have to fill in an object.
const EQUAL: Duration = Duration::from_secs(4);
/// The annotation that the edit adds.
const EDITED: &str = "example.com/edited";
/// The exit code of a plan with refusals.
const WOULD_FAIL: i32 = 4;

/// Why Runnel or kubectl does not write a manifest.
type Refusal = String;

/// The state of a rule with one manifest.
enum RuleState {
    Applied,
    Failed(String),
    Pending(String),
}

/// A manifest that is tried.
pub(super) struct Trial<'a> {
    lab: &'a CorpusLab,
    manifest: &'a Manifest,
    /// The name of bundle and rule.
    name: String,
}

impl<'a> Trial<'a> {
    /// Nothing is written yet.
    pub(super) fn new(lab: &'a CorpusLab, manifest: &'a Manifest) -> Self {
        Self {
            lab,
            manifest,
            name: format!("manifest-{}", manifest.number),
        }
    }

    /// Tries the manifest, and removes it unless it is to stay.
    pub(super) async fn run(&self) -> Finding {
        let observed = self.observed().await;
        let mut finding = observed.unwrap_or_else(|error| different(&error));
        if !self.manifest.is_kept || finding.verdict != Verdict::Equal {
            finding = self.end(finding).await;
        }
        finding
    }

    /// Removes the manifest from all clusters. A copy that stays makes it different.
    pub(super) async fn end(&self, finding: Finding) -> Finding {
        match self.removed(finding.verdict).await {
            Err(error) if finding.verdict == Verdict::Equal => {
                let plan = finding.plan;
                Finding {
                    plan,
                    ..different(&error.context("removal"))
                }
            }
            Err(error) => Finding {
                reason: format!("{}; then removal: {error:#}", finding.reason),
                ..finding
            },
            Ok(()) => finding,
        }
    }

    async fn observed(&self) -> Result<Finding> {
        let mut plan = None;
        let bundle = self.bundle().await?;
        let is_secret =
            self.manifest.field("/apiVersion") == "v1" && self.manifest.field("/kind") == "Secret";
        let runnel = match bundle {
            Err(refusal) if is_secret => {
                return Ok(finding(Verdict::Secret, refusal));
            }
            Ok(_) if is_secret => bail!("a bundle takes a Secret"),
            Err(refusal) => Err(refusal),
            Ok(bundle) => {
                let (sent, planned) = self.send(&bundle).await?;
                plan = planned;
                sent.map(|()| bundle)
            }
        };
        let (verdict, reason) = match (runnel, self.apply().await?) {
            (Ok(bundle), Ok(())) => match self.checked(bundle).await {
                Ok(()) => (Verdict::Equal, String::new()),
                Err(error) => (Verdict::Different, format!("{error:#}")),
            },
            (Err(runnel), Err(kubectl)) => (
                Verdict::RefusedByBoth,
                format!("Runnel: {runnel}; kubectl: {kubectl}"),
            ),
            (Err(runnel), Ok(())) => (Verdict::RefusedByRunnel, runnel),
            (Ok(_), Err(kubectl)) => (Verdict::RefusedByKubectl, kubectl),
        };
        Ok(Finding {
            verdict,
            reason,
            plan,
        })
    }

    /// Makes the bundle, as `kubectl runnel bundle` prints it, with the kind if the hub does not serve it.
    async fn bundle(&self) -> Result<Result<Value, Refusal>> {
        let file = format!("{}.yaml", self.name);
        let file = self.lab.file(&file, &self.manifest.text)?;
        let words = ["bundle", "--name", &self.name, "-n", HOME, "-o", "json"];
        let ended = self.lab.runnel(&words, &file).await?;
        if ended.code != Some(0) {
            return Ok(Err(format!("bundle: {}", ended.message.trim())));
        }
        let mut bundle: Value = serde_json::from_str(&ended.output)?;
        if let Some(kind) = self.lab.kind(self.manifest).filter(|kind| kind.is_defined) {
            bundle["spec"]["kinds"] = json!([entry(kind)]);
        }
        Ok(Ok(bundle))
    }

    fn rule(&self) -> Value {
        let names: Vec<&str> = self.lab.copies().map(|(member, _)| member.name()).collect();
        let source = json!({"resources": ["manifestbundles.runnel.dev"], "namespaces": [HOME], "names": [self.name]});
        RuleDraft::cluster_scoped(&self.name)
            .source(source)
            .to(&names)
            .into(&[self.manifest.namespace()])
            .json()
    }

    /// Plans and saves bundle and rule, and waits for the copies. Also returns how the plan was wrong.
    async fn send(&self, bundle: &Value) -> Result<(Result<(), Refusal>, Option<String>)> {
        let rule = self.rule();
        let file = format!("{}.plan.yaml", self.name);
        let file = self.lab.file(&file, &format!("{rule}\n---\n{bundle}\n"))?;
        let words = ["plan", "--dry-run=members", "-n", HOME];
        let plan = self.lab.runnel(&words, &file).await?;
        let sent = self.saved(bundle, &rule).await?;
        let wrong = match (plan.code, &sent) {
            (Some(0), Ok(())) | (Some(WOULD_FAIL), Err(_)) => None,
            (Some(0), Err(refusal)) => Some(format!("no refusal is planned, but {refusal}")),
            (Some(WOULD_FAIL), Ok(())) => Some(format!("wrongly refused: {}", plan.output)),
            (_, Err(refusal)) if refusal.starts_with("save:") => None,
            (code, _) => Some(format!("exit code {code:?}: {}", plan.message)),
        };
        Ok((sent, wrong))
    }

    async fn saved(&self, bundle: &Value, rule: &Value) -> Result<Result<(), Refusal>> {
        for object in [bundle, rule] {
            if let Err(error) = self.lab.hub().apply_as("cargo-corpus", object).await {
                return Ok(Err(format!("save: {error:#}")));
            }
        }
        let copies = self.lab.copies().count();
        let (begin, rule) = (Instant::now(), Id::of(rule)?);
        let mut failure: Option<(String, Instant)> = None;
        let what = format!("the copies of {} to settle", self.manifest.title());
        eventually(&what, SOON, async || {
            match state(&self.lab.hub().get(&rule).await?, copies)? {
                RuleState::Applied => return Ok(Some(Ok(()))),
                RuleState::Failed(reason) => {
                    let since = match &failure {
                        Some((former, since)) if *former == reason => *since,
                        _ => Instant::now(),
                    };
                    failure = Some((reason.clone(), since));
                    if since.elapsed() > FAILS {
                        return Ok(Some(Err(reason)));
                    }
                }
                RuleState::Pending(reason) if begin.elapsed() > WAITS => {
                    return Ok(Some(Err(reason)));
                }
                RuleState::Pending(_) => failure = None,
            }
            Ok(None)
        })
        .await
    }

    /// Writes the manifest to the last member.
    async fn apply(&self) -> Result<Result<(), Refusal>> {
        let file = self
            .lab
            .file(&format!("{}.yaml", self.name), &self.manifest.text)?;
        let file = file.to_str().context("a path that is not text")?;
        let mut words = vec!["apply", "--server-side", "-f", file];
        let namespace = self.manifest.namespace();
        if self.manifest.field("/metadata/namespace").is_empty() {
            words.extend(["--namespace", namespace]);
        }
        let (_, plane) = self.lab.plain();
        let applied = plane.kubectl(&words).await;
        let place = format!(" on {}: ", plane.name());
        Ok(applied.map(drop).map_err(|error| {
            let message = format!("{error:#}");
            match message.split_once(&place) {
                Some((_, message)) => message.to_owned(),
                None => message,
            }
        }))
    }

    /// Checks each copy: equal, quiet and edited.
    async fn checked(&self, bundle: Value) -> Result<()> {
        for (member, _) in self.lab.copies() {
            self.is_equal(member).await.context("comparison")?;
        }
        self.is_quiet().await.context("second reading")?;
        self.is_edited(bundle).await.context("edit")
    }

    async fn find(&self, cluster: &TestCluster) -> Result<Option<Value>> {
        let api = self.lab.api(cluster, self.manifest)?;
        let found = api.get_opt(self.manifest.field("/metadata/name")).await?;
        Ok(found.map(serde_json::to_value).transpose()?)
    }

    async fn is_equal(&self, member: &TestCluster) -> Result<()> {
        let (plain, _) = self.lab.plain();
        eventually("the copy to be equal", EQUAL, async || {
            let copy = self.find(member).await?.context("there is no copy")?;
            let object = self.find(plain).await?.context("there is no object")?;
            let given = &self.manifest.object;
            let found = differences(&normal(copy, given), &normal(object, given));
            ensure!(found.is_empty(), "{}", found.join("; "));
            Ok(Some(()))
        })
        .await
    }

    /// Checks that no agent writes the copy again, and that the rule reports no drift.
    async fn is_quiet(&self) -> Result<()> {
        let marks: Vec<_> = self.lab.copies().map(|(_, plane)| plane.mark()).collect();
        let kind = self.lab.kind(self.manifest).context("no kind")?;
        let name = self.manifest.field("/metadata/name");
        steadily("no agent writes", QUIET, async || {
            for ((_, plane), mark) in self.lab.copies().zip(&marks) {
                let writes = plane.writes_since(*mark)?;
                let ours = writes.iter().find(|write| {
                    write.user.ends_with(":runnel-agent")
                        && write.resource == kind.resource.plural
                        && write.group == kind.resource.group
                        && write.name == name
                        && (!kind.is_namespaced || write.namespace == self.manifest.namespace())
                });
                ensure!(ours.is_none(), "{ours:?}");
            }
            Ok(())
        })
        .await?;
        let rule = self.lab.hub().get(&Id::cluster_rule(&self.name)).await?;
        match state(&rule, self.lab.copies().count())? {
            RuleState::Applied => Ok(()),
            RuleState::Failed(reason) | RuleState::Pending(reason) => bail!("{reason}"),
        }
    }

    async fn is_edited(&self, mut bundle: Value) -> Result<()> {
        bundle["spec"]["manifests"][0]["metadata"]["annotations"][EDITED] = json!("yes");
        let edit = json!({"spec": {"manifests": bundle["spec"]["manifests"]}});
        self.lab.hub().change(&Id::of(&bundle)?, edit).await?;
        for (member, _) in self.lab.copies() {
            let what = format!("the edit in {}", member.name());
            eventually(&what, SOON, async || {
                let copy = self.find(member).await?.context("there is no copy")?;
                let annotations = &copy["metadata"]["annotations"];
                ensure!(annotations[EDITED] == "yes", "it has {annotations}");
                Ok(Some(()))
            })
            .await?;
        }
        Ok(())
    }

    async fn removed(&self, verdict: Verdict) -> Result<()> {
        let is_copied = !matches!(
            verdict,
            Verdict::Secret | Verdict::RefusedByBoth | Verdict::RefusedByRunnel
        );
        let hub = self.lab.hub();
        let bundle = json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "ManifestBundle",
            "metadata": {"namespace": HOME, "name": self.name}});
        let (bundle, rule) = (Id::of(&bundle)?, Id::cluster_rule(&self.name));
        if hub.find(&bundle).await?.is_some() {
            hub.delete(&bundle).await?;
        }
        if is_copied {
            for (member, _) in self.lab.copies() {
                self.is_gone(member, None).await?;
            }
        }
        if hub.find(&rule).await?.is_some() {
            hub.delete(&rule).await?;
            hub.lacks(&rule).await?;
        }
        self.remove_plain().await
    }

    async fn remove_plain(&self) -> Result<()> {
        let (plain, _) = self.lab.plain();
        // What no cluster serves is nowhere, and what belongs to each cluster cannot be deleted.
        let Ok(Some(object)) = self.find(plain).await else {
            return Ok(());
        };
        let api = self.lab.api(plain, self.manifest)?;
        let name = self.manifest.field("/metadata/name");
        if api.delete(name, &DeleteParams::default()).await.is_ok() {
            let uid = object["metadata"]["uid"].as_str();
            self.is_gone(plain, uid).await?;
        }
        Ok(())
    }

    /// Waits until there is no object, or another one than that with this uid.
    async fn is_gone(&self, cluster: &TestCluster, uid: Option<&str>) -> Result<()> {
        let what = format!(
            "{} to be gone from {}",
            self.manifest.title(),
            cluster.name()
        );
        eventually(&what, SOON, async || {
            if let Some(object) = self.find(cluster).await? {
                let metadata = &object["metadata"];
                let is_other = uid.is_some_and(|uid| metadata["uid"] != uid);
                ensure!(is_other, "its metadata are {metadata}");
            }
            Ok(Some(()))
        })
        .await
    }
}

fn finding(verdict: Verdict, reason: String) -> Finding {
    Finding {
        verdict,
        reason,
        plan: None,
    }
}

fn different(error: &anyhow::Error) -> Finding {
    finding(Verdict::Different, format!("{error:#}"))
}

/// Reads the state of a rule that has so many copies.
fn state(rule: &Value, copies: usize) -> Result<RuleState> {
    let status = &rule["status"];
    let summary = &status["summary"];
    if status["observedGeneration"] != rule["metadata"]["generation"] {
        return Ok(RuleState::Pending("the rule is not observed".to_owned()));
    }
    let (applied, ready) = (condition(rule, "Applied")?, condition(rule, "Ready")?);
    let of_ready = |field: &str| ready[field].as_str().unwrap_or_default();
    let reason = format!("{}: {}", of_ready("reason"), of_ready("message"));
    let is_applied = applied["status"] == "True"
        && summary["copies"] == copies
        && summary["copiesApplied"] == copies
        && summary["copiesDrifted"] == 0;
    let is_stalled = condition(rule, "Stalled").is_ok_and(|stalled| stalled["status"] == "True");
    let has_failed = summary["copiesFailed"].as_u64().unwrap_or_default() > 0;
    Ok(if is_applied {
        RuleState::Applied
    } else if is_stalled || has_failed {
        RuleState::Failed(reason)
    } else {
        RuleState::Pending(reason)
    })
}
