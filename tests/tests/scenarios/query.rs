//! What the plugin reads from the view API: for users with the right to it, and for no others.

use std::path::{Path, PathBuf};
use std::process::{Output, Stdio};

use anyhow::{Context, Result, ensure};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene, entry_of};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt, BufReader};
use tokio::process::Command;

/// A value that no answer may contain.
const CANARY: &str = "canary-7f31";

async fn runnel(fleet: &Fleet, kubeconfig: &Path, words: &[&str]) -> Result<Output> {
    let binary: PathBuf = fleet.binaries().folder.join("kubectl-runnel");
    let mut command = Command::new(binary);
    command
        .arg("--kubeconfig")
        .arg(kubeconfig)
        .args(words)
        .kill_on_drop(true);
    let output = tokio::time::timeout(SOON, command.output())
        .await
        .context("the plugin does not end")??;
    let (out, err) = (
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr),
    );
    println!("$ kubectl runnel {}\n{out}{err}", words.join(" "));
    ensure!(
        !out.contains(CANARY) && !err.contains(CANARY),
        "it shows content"
    );
    Ok(output)
}

#[tokio::test]
async fn every_cluster_is_shown_to_readers_of_the_rule() -> Result<()> {
    let fleet = Fleet::start(FleetOptions {
        members: 2,
        views: true,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    let (hub, home) = (&scene.hub, "asked");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    // One copy fails in one of the two clusters: a foreign object has its name.
    scene
        .member(2)
        .make(
            &Draft::config_map(home, "taken")
                .data("k", "not ours")
                .json(),
        )
        .await?;
    hub.make(
        &RuleDraft::new(home, "rule")
            .named(&["taken", "free"])
            .everywhere()
            .json(),
    )
    .await?;
    for name in ["taken", "free"] {
        hub.make(&Draft::config_map(home, name).data("k", CANARY).json())
            .await?;
    }
    let rule = Id::rule(home, "rule");
    // A conflict is reported before the other copy of the cluster is there.
    hub.sees("settled in both members", &rule, |rule| {
        let (failed, ready) = (entry_of(rule, "member-2")?, entry_of(rule, "member-1")?);
        ensure!(
            failed["reason"] == "Conflict" && failed["applied"] == 1 && failed["failed"] == 1,
            "{failed}"
        );
        ensure!(
            ready["reason"] == "AllApplied" && ready["applied"] == 2,
            "{ready}"
        );
        Ok(())
    })
    .await?;

    let words = ["status", "rule", "-n", home, "-o", "wide"];
    let printed = runnel(&fleet, fleet.hub().kubeconfig(), &words).await?;
    let out = String::from_utf8(printed.stdout)?;
    ensure!(printed.status.success(), "{out}");
    let rows: Vec<Vec<&str>> = out
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let failed = ["member-2", "Failed", "1", "1", "0", "Conflict"];
    let ready = ["member-1", "Ready", "2", "0", "0", "AllApplied"];
    let position = |row: &[&str]| rows.iter().position(|line| line.starts_with(row));
    // The worst comes first.
    ensure!(
        position(&failed).is_some_and(|first| position(&ready) == Some(first + 1)),
        "{out}"
    );
    ensure!(
        out.contains("member-2: configmaps/asked/taken: Conflict: "),
        "{out}"
    );

    // The copy that failed is not the newest; nor is one that its agent cannot have got. The other cluster has proved it.
    let outdated = ["status", "rule", "-n", home, "--outdated"];
    let printed = String::from_utf8(
        runnel(&fleet, fleet.hub().kubeconfig(), &outdated)
            .await?
            .stdout,
    )?;
    ensure!(
        printed.starts_with("1 of 2 clusters does not have the newest")
            && !printed.contains("member-1"),
        "{printed}"
    );

    lists_are_for_scripts(&fleet, &scene).await?;
    proved(&fleet, &scene).await?;

    // A ServiceAccount sees the rules of the namespace in which it has the role, and no others.
    let account = |verb: &'static [&'static str]| fleet.hub().kubectl(verb);
    account(&["-n", "asked", "create", "serviceaccount", "reader"]).await?;
    let reader = fleet.hub().token_kubeconfig(home, "reader").await?;
    ensure!(
        !runnel(&fleet, &reader, &words).await?.status.success(),
        "who may not read rules was answered"
    );
    // With a right on rules alone it gets the status, and the message names the missing right.
    account(&[
        "-n",
        "asked",
        "create",
        "role",
        "rules",
        "--verb=get",
        "--resource=distributionrules.runnel.dev",
    ])
    .await?;
    account(&[
        "-n",
        "asked",
        "create",
        "rolebinding",
        "rules",
        "--role=rules",
        "--serviceaccount=asked:reader",
    ])
    .await?;
    eventually("the right on rules to arrive", SOON, async || {
        let printed = runnel(&fleet, &reader, &words).await?;
        let (out, err) = (
            String::from_utf8_lossy(&printed.stdout).into_owned(),
            String::from_utf8_lossy(&printed.stderr).into_owned(),
        );
        let named = err.contains("cannot list resource \"deliveries\"");
        Ok((!printed.status.success() && out.contains("Ready") && named).then_some(()))
    })
    .await?;
    account(&[
        "-n",
        "asked",
        "create",
        "rolebinding",
        "reader",
        "--clusterrole=runnel-hub-view",
        "--serviceaccount=asked:reader",
    ])
    .await?;
    eventually("the right to arrive", SOON, async || {
        let printed = runnel(&fleet, &reader, &words).await?;
        let out = String::from_utf8_lossy(&printed.stdout).into_owned();
        Ok((printed.status.success()
            && out.contains("member-2: configmaps/asked/taken: Conflict: "))
        .then_some(()))
    })
    .await?;
    // Where a copy comes from, or why it is not there: for that account too.
    explained(&fleet, &scene, &reader).await?;
    let elsewhere = ["status", "all", "-n", "proved", "-o", "wide"];
    let printed = runnel(&fleet, &reader, &elsewhere).await?;
    ensure!(
        !printed.status.success() && printed.stdout.is_empty(),
        "it reads another namespace"
    );
    missing_api_is_named(&fleet).await
}

/// The flags of `kubectl get`.
async fn lists_are_for_scripts(fleet: &Fleet, scene: &Scene) -> Result<()> {
    let admin = fleet.hub().kubeconfig();
    for (words, code, expected) in [
        (
            &["status", "-n", "asked", "-o", "name"][..],
            0,
            "distributionrule.runnel.dev/rule\n",
        ),
        (&["status", "-n", "asked", "-l", "a=b", "-o", "name"], 0, ""),
        (
            &["members", "-o", "jsonpath={.items[*].metadata.name}"],
            0,
            "member-1 member-2",
        ),
        (&["members", "-l", "env!=prod", "-o", "name"], 0, ""),
        (
            &["status", "rule", "-n", "asked", "--exit-code", "-o", "name"],
            4,
            "distributionrule.runnel.dev/rule\n",
        ),
        (
            &["status", "rule", "-n", "asked", "--outdated", "-o", "name"],
            0,
            "delivery.view.runnel.dev/rule:member-2\n",
        ),
    ] {
        let printed = runnel(fleet, admin, words).await?;
        let out = String::from_utf8_lossy(&printed.stdout).into_owned();
        ensure!(
            printed.status.code() == Some(code) && out == expected,
            "{words:?}: {:?} {out}",
            printed.status
        );
    }
    let words = ["status", "rule", "-n", "asked", "-w", "-o", "wide"];
    let mut command = Command::new(fleet.binaries().folder.join("kubectl-runnel"));
    command.arg("--kubeconfig").arg(admin).args(words);
    let mut child = command.stdout(Stdio::piped()).kill_on_drop(true).spawn()?;
    let output = child.stdout.take().context("no output")?;
    let mut lines = BufReader::new(output).lines();
    let mut next = async |begin: &[&str]| -> Result<()> {
        let found = async {
            while let Some(line) = lines.next_line().await? {
                println!("{line}");
                let row: Vec<_> = line.split_whitespace().collect();
                if row.starts_with(begin) {
                    return Ok(());
                }
            }
            anyhow::bail!("the watch has ended")
        };
        let found = tokio::time::timeout(SOON, found).await;
        found.with_context(|| format!("no line {begin:?}"))?
    };
    next(&["CLUSTER", "STATE"]).await?;
    next(&["member-2", "Failed"]).await?;
    // The obstacle goes, and comes back.
    let obstacle = Id::config_map("asked", "taken");
    let theirs = Draft::config_map("asked", "taken").data("k", "not ours");
    scene.member(2).delete(&obstacle).await?;
    next(&["member-2", "Ready"]).await?;
    scene.hub.delete(&obstacle).await?;
    scene.member(2).lacks(&obstacle).await?;
    scene.member(2).make(&theirs.json()).await?;
    let source = Draft::config_map("asked", "taken").data("k", CANARY);
    scene.hub.make(&source.json()).await?;
    next(&["member-2", "Failed"]).await
}

/// Without the APIService the plugin prints what the status has, and names the cause.
async fn missing_api_is_named(fleet: &Fleet) -> Result<()> {
    let hub = fleet.hub();
    hub.kubectl(&["delete", "apiservice", "v1alpha1.view.runnel.dev"])
        .await?;
    let words = ["status", "rule", "-n", "asked", "-o", "wide"];
    eventually("the API to be gone", SOON, async || {
        let printed = runnel(fleet, hub.kubeconfig(), &words).await?;
        let (out, err) = (
            String::from_utf8_lossy(&printed.stdout).into_owned(),
            String::from_utf8_lossy(&printed.stderr).into_owned(),
        );
        let named = err.contains("set `view.enabled: true`");
        Ok((!printed.status.success() && out.contains("Conflict") && named).then_some(()))
    })
    .await
}

/// Waits until `--outdated` prints this for the rule `proved/all`.
async fn outdated(fleet: &Fleet, what: &str, is_so: impl Fn(&str) -> bool) -> Result<()> {
    let words = ["status", "all", "-n", "proved", "--outdated"];
    eventually(what, SOON, async || {
        let printed = runnel(fleet, fleet.hub().kubeconfig(), &words).await?;
        let out = String::from_utf8(printed.stdout)?;
        ensure!(printed.status.success() && is_so(&out), "{out}");
        Ok(Some(()))
    })
    .await
}

/// The copies in each cluster are proved, except one that a webhook has changed, until it is
/// corrected.
async fn proved(fleet: &Fleet, scene: &Scene) -> Result<()> {
    let (hub, home) = (&scene.hub, "proved");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let settings = hub
        .make(
            &Draft::config_map(home, "settings")
                .label("team", "a")
                .data("k", CANARY)
                .json(),
        )
        .await?;
    hub.make(&Draft::secret(home, "login").data("k", CANARY).json())
        .await?;
    let id = Id::of(&settings)?;
    let rule = Id::of(
        &hub.make(
            &RuleDraft::new(home, "all")
                .named(&["*"])
                .everywhere()
                .json(),
        )
        .await?,
    )?;
    hub.all_applied(&rule, 4).await?;
    let all = "Every cluster (2) holds the newest revision of every source, and has proved it.\n";
    outdated(fleet, "both to have proved it", |out| out == all).await?;

    // A policy of the first member adds a label to every write, which is no drift.
    mutates(
        fleet,
        scene,
        "adds",
        r#"Object{metadata: Object.metadata{labels: {"example.com/scanned": "yes"}}}"#,
    )
    .await?;
    hub.change(&id, json!({"data": {"k": "second"}})).await?;
    let scanned = scene.member(1).sees("scanned", &id, |copy| {
        let labels = &copy["metadata"]["labels"];
        ensure!(
            copy["data"]["k"] == "second" && labels["example.com/scanned"] == "yes",
            "{copy}"
        );
        Ok(())
    });
    scanned.await?;
    hub.all_applied(&rule, 4).await?;
    outdated(fleet, "both to have proved the edit", |out| out == all).await?;

    // Another one forces content.
    mutates(fleet, scene, "forces", r#"Object{data: {"k": "forced"}}"#).await?;
    hub.change(&id, json!({"data": {"k": "third"}})).await?;
    hub.wait_for_cluster(&rule, "member-1", "Failed", "Denied")
        .await?;
    hub.wait_for_cluster(&rule, "member-2", "Ready", "AllApplied")
        .await?;
    outdated(fleet, "the first one to be told", |out| {
        let rows: Vec<Vec<&str>> = out
            .lines()
            .map(|line| line.split_whitespace().collect())
            .collect();
        rows.iter()
            .any(|row| row.starts_with(&["member-1", "Older", "Failed"]))
            && !out.contains("member-2")
    })
    .await?;

    for kind in ["MutatingAdmissionPolicyBinding", "MutatingAdmissionPolicy"] {
        fleet.member(1).kubectl(&["delete", kind, "forces"]).await?;
    }
    hub.change(&id, json!({"data": {"k": "fourth"}})).await?;
    hub.all_applied(&rule, 4).await?;
    outdated(fleet, "both to have proved what was mended", |out| {
        out == all
    })
    .await?;

    // Another client changes a copy, and it is corrected.
    scene
        .member(2)
        .change(&id, json!({"data": {"k": "tampered"}}))
        .await?;
    let back = scene.member(2).sees("put back", &id, |copy| {
        ensure!(copy["data"]["k"] == "fourth", "{copy}");
        Ok(())
    });
    back.await?;
    outdated(fleet, "both to have proved what was put back", |out| {
        out == all
    })
    .await?;
    // State that an agent must determine again after a restart.
    fleet.stop_agent(1).await?;
    fleet.start_agent(1).await?;
    fleet.connected(1).await?;
    outdated(fleet, "both to have proved it after a restart", |out| {
        out == all
    })
    .await
}

/// A policy of the first member that changes the ConfigMaps of one namespace whenever they are written.
async fn mutates(fleet: &Fleet, scene: &Scene, name: &str, expression: &str) -> Result<()> {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]);
    let selector = json!({"matchLabels": {"kubernetes.io/metadata.name": "proved"}});
    let version = "admissionregistration.k8s.io/v1";
    let member = scene.member(1);
    member
        .make(&json!({"apiVersion": version, "kind": "MutatingAdmissionPolicy", "metadata": {"name": name}, "spec": {
            "failurePolicy": "Fail",
            "reinvocationPolicy": "Never",
            "matchConstraints": {"resourceRules": rules, "namespaceSelector": selector},
            "mutations": [{"patchType": "ApplyConfiguration", "applyConfiguration": {"expression": expression}}],
        }}))
        .await?;
    member
        .make(&json!({"apiVersion": version, "kind": "MutatingAdmissionPolicyBinding", "metadata": {"name": name}, "spec": {
            "policyName": name,
        }}))
        .await?;
    let probe = Draft::config_map("proved", "probe")
        .data("k", "probe")
        .json()
        .to_string();
    eventually(
        &format!("the policy {name} to be in force"),
        SOON,
        async || {
            let arguments = ["create", "--dry-run=server", "-o", "json", "-f", "-"];
            let made: Value =
                serde_json::from_str(&fleet.member(1).kubectl_stdin(&arguments, &probe).await?)?;
            let in_force = made["data"]["k"] == "forced" || name != "forces";
            let labeled = made["metadata"]["labels"]["example.com/scanned"] == "yes";
            ensure!(in_force && labeled, "made would be {made}");
            Ok(Some(()))
        },
    )
    .await
}

/// `kubectl runnel explain`, of the copies of the rule `asked/rule`.
async fn explained(fleet: &Fleet, scene: &Scene, reader: &Path) -> Result<()> {
    let admin = fleet.hub().kubeconfig().to_owned();
    for (copy, who, expected) in [
        (
            "member-1/asked/configmap/free",
            &*admin,
            vec![
                "a copy, as it should be",
                "source     configmaps/asked/free",
                "what its source holds now",
                "asked/rule (DistributionRule)",
                "Applied",
            ],
        ),
        (
            "member-2/asked/cm/taken",
            reader,
            vec![
                "failed",
                "Failed:",
                "Conflict: an object that is not Runnel's",
            ],
        ),
        (
            "member-1/default/cm/free",
            &*admin,
            vec![
                "no copy",
                "No rule has a source whose copies are called free.",
            ],
        ),
        (
            "member-1/asked/secret/free",
            &*admin,
            vec!["no copy", "No rule has a source"],
        ),
    ] {
        let printed = runnel(fleet, who, &["explain", copy, "-n", "asked"]).await?;
        let out = String::from_utf8(printed.stdout)?;
        ensure!(printed.status.success(), "{copy}: {out}");
        for words in &expected {
            ensure!(
                out.contains(words),
                "{copy}: it does not say `{words}`: {out}"
            );
        }
    }
    // The account may read the rules of its namespace, and no MemberCluster: it learns nothing
    // about others.
    for (copy, word) in [
        ("member-1/default/cm/other", "may get no rule"),
        ("no-such/asked/cm/free", "may get no rule"),
    ] {
        let printed = runnel(fleet, reader, &["explain", copy, "-n", "asked"]).await?;
        let err = String::from_utf8_lossy(&printed.stderr).into_owned();
        ensure!(
            !printed.status.success() && err.contains(word),
            "{copy}: {err}"
        );
    }
    let printed = runnel(fleet, &admin, &["explain", "no-such/asked/cm/free"]).await?;
    ensure!(
        String::from_utf8_lossy(&printed.stderr).contains("there is no member no-such"),
        "it is answered"
    );
    // In the member, the copy itself names hub, rule and source.
    let copy = scene
        .member(1)
        .get(&Id::config_map("asked", "free"))
        .await?;
    let printed = (
        &copy["metadata"]["annotations"]["runnel.dev/rule"],
        &copy["metadata"]["annotations"]["runnel.dev/source"],
    );
    ensure!(
        printed == (&"asked/rule".into(), &"configmaps/asked/free".into()),
        "{}",
        copy["metadata"]
    );
    ensure!(
        copy["metadata"]["labels"]["runnel.dev/hub"].is_string(),
        "{}",
        copy["metadata"]
    );
    Ok(())
}
