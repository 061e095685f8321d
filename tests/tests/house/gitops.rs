//! The health of `deploy/gitops`, run on the statuses that the hub's tests record.
use std::collections::{BTreeMap, BTreeSet};
use std::fs;

use anyhow::{Context as _, Result, anyhow, ensure};
use cel::{Context, Program};
use mlua::{Lua, LuaSerdeExt};
use runnel_api::conditions::Reason;
use runnel_proto::model;
use runnel_tests::files::files_below;
use serde_json::{Value, json};

use super::root;

/// The recorded rules, by the name of their snapshot or, in the one of all reasons, by their reason.
fn recorded() -> Result<BTreeMap<String, Value>> {
    let mut rules = BTreeMap::new();
    for path in files_below(&root().join("hub/core/src/status/tests/snapshots"), "snap")? {
        let text = fs::read_to_string(&path)?;
        let (_, body) = text.split_once("\n---\n").context("no header")?;
        let name = path.file_stem().and_then(|name| name.to_str());
        let name = name.and_then(|name| name.rsplit_once("__tests__"));
        match serde_json::from_str::<Value>(body) {
            Ok(rule) if rule["kind"].is_string() => {
                rules.insert(name.context("no name")?.1.to_owned(), rule);
            }
            Ok(Value::Object(by_reason)) => rules.extend(by_reason),
            // Some snapshots are parts of a status.
            _ => {}
        }
    }
    for rule in rules.values_mut() {
        rule["metadata"]["generation"] = rule["status"]["observedGeneration"].clone();
    }
    ensure!(rules.len() >= 60, "{} statuses are recorded", rules.len());
    Ok(rules)
}

fn manifest(name: &str) -> Result<Value> {
    let text = fs::read_to_string(root().join("deploy/gitops").join(name))?;
    Ok(serde_saphyr::from_str(&text)?)
}

/// Returns the health that the script of Argo CD computes for an object.
fn argo_cd(manifest: &Value, object: &Value) -> Result<String> {
    let kind = object["kind"].as_str().context("no kind")?;
    let script = &manifest["data"][format!("resource.customizations.health.runnel.dev_{kind}")];
    let run = || {
        let lua = Lua::new();
        lua.globals().set("obj", lua.to_value(object)?)?;
        let health = lua.load(script.as_str().unwrap_or_default()).eval()?;
        lua.from_value::<Value>(health)
    };
    let health = run().map_err(|error| anyhow!("{error}"))?;
    Ok(health["status"].as_str().context("no status")?.to_owned())
}

/// Returns the first expression of Flux that holds for an object, in the order in which Flux evaluates them. Without one
/// the object is in progress.
fn flux(manifest: &Value, object: &Value) -> Result<&'static str> {
    let mut all = manifest["spec"]["healthCheckExprs"]
        .as_array()
        .into_iter()
        .flatten();
    let of_kind = all.find(|entry| entry["kind"] == object["kind"]);
    let of_kind = of_kind.context("no expressions for the kind")?;
    for name in ["inProgress", "failed", "current"] {
        let Some(expression) = of_kind[name].as_str() else {
            continue;
        };
        let program = Program::compile(expression)?;
        let mut context = Context::default();
        for field in ["metadata", "status"] {
            context.add_variable(field, object[field].clone())?;
        }
        if program.execute(&context)? == cel::Value::Bool(true) {
            return Ok(name);
        }
    }
    Ok("none")
}

/// The healths that both tools give a rule, by the reason of its condition Ready. `None` for reasons that no rule has.
fn expected(reason: Reason) -> Option<(&'static str, &'static str)> {
    Some(match reason {
        Reason::AllApplied => ("Healthy", "current"),
        Reason::RolloutPaused
        | Reason::Cordoned
        | Reason::Suspended
        | Reason::Copy(model::Reason::DryRun) => ("Suspended", "current"),
        Reason::NoSources
        | Reason::NoClusters
        | Reason::NoNamespaces
        | Reason::UnknownClusters
        | Reason::MissingSources
        | Reason::MissingKeys
        | Reason::CopiesWaiting
        | Reason::Progressing
        | Reason::Deleting
        | Reason::RollingOut
        | Reason::AwaitingApproval
        | Reason::AwaitingWindow
        | Reason::AwaitingHealth
        | Reason::Copy(model::Reason::KindNotServed) => ("Progressing", "inProgress"),
        // No cluster of the rule is connected, or the API of none answers: nothing is known.
        Reason::ClustersUnreachable | Reason::MemberAPIUnavailable => ("Degraded", "none"),
        Reason::CopiesFailed
        | Reason::DigestMismatch
        | Reason::SourceUnreadable
        | Reason::ScopeMismatch
        | Reason::SpecTooLarge
        | Reason::RevisionUnavailable
        | Reason::RemovalLimit
        | Reason::RuleLimit
        | Reason::TooManyFailures
        | Reason::InvalidWindow
        | Reason::AnalysisFailed
        | Reason::AnalysisRefused
        | Reason::NotGranted
        | Reason::GrantsUnknown
        | Reason::InvalidName
        | Reason::TransformFailed
        | Reason::VariableMissing
        | Reason::ValueMissing
        | Reason::InvalidCopy
        | Reason::RenderBudgetExceeded
        | Reason::Unconfirmed
        | Reason::Copy(_) => ("Degraded", "failed"),
        Reason::PartiallyGranted
        | Reason::RollingBack
        | Reason::Reverted
        | Reason::FleetReady
        | Reason::FleetNotReady
        | Reason::MemberReady
        | Reason::Accepted
        | Reason::NotAccepted
        | Reason::Leaving
        | Reason::Drained
        | Reason::SessionOpen
        | Reason::SessionLost
        | Reason::NeverConnected
        | Reason::CertificateExpired
        | Reason::Degraded
        | Reason::UnknownRules
        | Reason::RetiredKeySeen
        | Reason::ConcurrentSessions
        | Reason::HubStateBehind
        | Reason::SecondHub
        | Reason::SecondCluster
        | Reason::SecondMembership
        | Reason::CopiesFromPreviousMembership => return None,
    })
}

#[test]
fn gitops_tools_judge_rules_of_every_reason_as_documented() -> Result<()> {
    let (argo, kustomization) = (
        manifest("argocd-cm.yaml")?,
        manifest("flux-kustomization.yaml")?,
    );
    let mut missing: BTreeSet<_> = Reason::all()
        .filter(|reason| expected(*reason).is_some())
        .map(Reason::as_str)
        .collect();
    for (name, rule) in recorded()? {
        let conditions = rule["status"]["conditions"].as_array();
        let ready = conditions
            .into_iter()
            .flatten()
            .find(|all| all["type"] == "Ready");
        let word = ready.and_then(|ready| ready["reason"].as_str());
        let reason = Reason::all().find(|reason| word == Some(reason.as_str()));
        let reason = reason.with_context(|| format!("{name}: no condition Ready"))?;
        let judged = (argo_cd(&argo, &rule)?, flux(&kustomization, &rule)?);
        let (by_argo, by_flux) =
            expected(reason).with_context(|| format!("{name}: no rule has {reason}"))?;
        ensure!(
            judged == (by_argo.to_owned(), by_flux),
            "{name} ({reason}) is {judged:?}"
        );
        missing.remove(reason.as_str());
    }
    ensure!(missing.is_empty(), "no status is recorded of {missing:?}");
    Ok(())
}

#[test]
fn gitops_tools_wait_for_the_hub_and_ignore_absent_members() -> Result<()> {
    let (argo, kustomization) = (
        manifest("argocd-cm.yaml")?,
        manifest("flux-kustomization.yaml")?,
    );
    let judge = |kind: &str, conditions: Value| -> Result<(String, &str)> {
        let object = json!({
            "kind": kind, "metadata": {"name": "x", "generation": 1},
            "status": {"observedGeneration": 1, "conditions": conditions},
        });
        Ok((argo_cd(&argo, &object)?, flux(&kustomization, &object)?))
    };
    let condition = |kind: &str, status: &str, reason: &str| json!({"type": kind, "status": status, "reason": reason});
    let silent = json!([
        condition("Ready", "Unknown", "ClustersUnreachable"),
        condition("Applied", "True", "AllApplied")
    ]);
    for kind in ["DistributionRule", "ClusterDistributionRule"] {
        assert_eq!(
            judge(kind, silent.clone())?,
            ("Healthy".to_owned(), "current")
        );
        let waiting = json!([condition("Ready", "False", "CopiesWaiting")]);
        assert_eq!(
            judge(kind, waiting)?,
            ("Progressing".to_owned(), "inProgress")
        );
        let new = json!({"kind": kind, "metadata": {"generation": 1}, "status": {}});
        assert_eq!(argo_cd(&argo, &new)?, "Progressing");
        assert_eq!(flux(&kustomization, &new)?, "inProgress");
    }
    let connected = |status, reason| json!([condition("Connected", status, reason)]);
    let of_members = [
        ("True", "SessionOpen", "Healthy", "current"),
        ("Unknown", "SessionLost", "Degraded", "current"),
        ("False", "NeverConnected", "Progressing", "inProgress"),
        ("False", "CertificateExpired", "Degraded", "failed"),
    ];
    for (status, reason, by_argo, by_flux) in of_members {
        let judged = judge("MemberCluster", connected(status, reason))?;
        assert_eq!(judged, (by_argo.to_owned(), by_flux), "{reason}");
    }
    let fleet = json!({"kind": "Fleet", "metadata": {"name": "default"}, "status": {}});
    assert_eq!(flux(&kustomization, &fleet)?, "current");
    Ok(())
}
