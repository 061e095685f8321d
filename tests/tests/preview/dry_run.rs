//! `--dry-run=members`: each API server judges the writes and stores nothing. And clusters that get
//! no request at all.

use anyhow::{Context, Result, ensure};
use kube::Client;
use runnel_tests::control_plane::{ControlPlane, client_of};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::{objects, plan};

const HOME: &str = "tried";
/// A value that no answer may contain.
const CANARY: &str = "canary-93c1";

/// Replaces the verbs of the agent's role for copies.
async fn may(member: &ControlPlane, verbs: &[&str]) -> Result<()> {
    let read = member
        .kubectl(&["get", "clusterrole", "runnel-agent", "-o", "json"])
        .await?;
    let mut role: Value = serde_json::from_str(&read)?;
    let copies = |rule: &&mut Value| {
        rule["resources"]
            .as_array()
            .is_some_and(|all| all.contains(&json!("configmaps")))
    };
    for rule in role["rules"]
        .as_array_mut()
        .context("no rules")?
        .iter_mut()
        .filter(copies)
    {
        rule["verbs"] = json!(verbs);
    }
    member
        .kubectl_stdin(&["replace", "-f", "-"], &role.to_string())
        .await
        .map(drop)
}

/// Has ConfigMaps refused that are called `denied`, with their content in the message.
async fn policy(scene: &Scene) -> Result<()> {
    let rules = json!([{"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE", "UPDATE"], "resources": ["configmaps"]}]);
    let member = scene.member(1);
    let policy = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicy", "metadata": {"name": "no"},
        "spec": {
            "matchConstraints": {"resourceRules": rules},
            "validations": [{
                "expression": "object.metadata.name != 'denied'",
                "messageExpression": "'the value ' + object.data.k + ' is not welcome'",
            }],
        },
    });
    let binding = json!({
        "apiVersion": "admissionregistration.k8s.io/v1", "kind": "ValidatingAdmissionPolicyBinding", "metadata": {"name": "no"},
        "spec": {"policyName": "no", "validationActions": ["Deny"]},
    });
    member.make(&policy).await?;
    member.make(&binding).await?;
    let draft = Draft::config_map(HOME, "denied").data("k", "a try").json();
    eventually("the policy to work", SOON, async || {
        match member.make(&draft).await {
            Ok(_) => {
                member.delete(&Id::of(&draft)?).await?;
                Ok(None)
            }
            Err(error) => Ok(format!("{error:#}")
                .contains("denied request")
                .then_some(())),
        }
    })
    .await
}

#[tokio::test]
async fn dry_run_reports_refusals_and_writes_nothing() -> Result<()> {
    // The API server finds the hub under any name of its release.
    let kinds = ["configmaps", "secrets", "deployments.apps"];
    let hub_values = json!({"fullnameOverride": "central", "sources": {"kinds": kinds}});
    let fleet = Fleet::start(FleetOptions {
        views: true,
        hub_values,
        agent_values: json!({"policy": {"kinds": kinds, "allowPrivileged": ["deployments.apps"]}}),
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    replaced_part_is_an_update(&fleet, &scene).await?;
    policy(&scene).await?;
    let hub = &scene.hub;
    for name in ["denied", "good", "taken"] {
        hub.make(&Draft::config_map(HOME, name).data("k", CANARY).json())
            .await?;
    }
    hub.make(&Draft::secret(HOME, "login").data("password", CANARY).json())
        .await?;
    // As long as annotations may be: with the marks of a copy they are longer.
    let note = format!("{CANARY}{}", "x".repeat(261_950));
    hub.make(
        &Draft::config_map(HOME, "long")
            .annotation("note", &note)
            .json(),
    )
    .await?;
    scene
        .member(1)
        .make(&Draft::config_map(HOME, "taken").data("k", "theirs").json())
        .await?;
    let rule = RuleDraft::new(HOME, "all")
        .named(&["denied", "good", "long", "login", "taken"])
        .everywhere()
        .json();
    let guesses = guesses(&scene).await?;
    let before = objects(&scene, HOME).await?;

    let admin = fleet.hub().kubeconfig();
    let verdicts = async |more: &[&str]| -> Result<Vec<String>> {
        let (code, out, err) = plan(
            &fleet,
            admin,
            &rule,
            &[more, &["--diff=false", "-o", "json"]].concat(),
        )
        .await?;
        ensure!(code == 4, "exit code {code}: {err}");
        ensure!(
            !out.contains(CANARY) && !err.contains(CANARY),
            "it shows content: {out}{err}"
        );
        let reply: Value = serde_json::from_str(&out)?;
        let rows = reply["plans"][0]["copies"]
            .as_array()
            .context("no copies")?
            .iter();
        let text = |row: &Value, field: &str| row[field].as_str().unwrap_or_default().to_owned();
        println!("{out}");
        Ok(rows
            .map(|row| format!("{} {}", text(row, "copy"), text(row, "verdict")))
            .collect())
    };
    // Without a dry run no API server is asked what it would refuse.
    let plain = verdicts(&[]).await?;
    let expected = |denied, good, long| {
        vec![
            format!("configmaps/{HOME}/denied {denied}"),
            format!("configmaps/{HOME}/good {good}"),
            format!("configmaps/{HOME}/long {long}"),
            format!("configmaps/{HOME}/taken conflict"),
            format!("secrets/{HOME}/login {good}"),
        ]
    };
    ensure!(plain == expected("create", "create", "create"), "{plain:?}");
    let tried = verdicts(&["--dry-run=members"]).await?;
    ensure!(
        tried == expected("denied", "create", "invalid"),
        "{tried:?}"
    );
    nothing_tells_a_right_guess_from_a_wrong_one(&fleet, &guesses).await?;
    may(fleet.member(1), &["get", "list", "watch"]).await?;
    eventually("the right to be gone", SOON, async || {
        let tried = verdicts(&["--dry-run=members"]).await?;
        Ok((tried == expected("forbidden", "forbidden", "forbidden")).then_some(()))
    })
    .await?;
    ensure!(
        objects(&scene, HOME).await? == before,
        "something was written"
    );
    ensure!(
        hub.find(&Id::rule(HOME, "all")).await?.is_none(),
        "the rule was saved"
    );
    unreadable_content_is_never_shown(&fleet, &rule).await
}

/// What the agent makes in several steps, because the API server cannot merge it, is no refusal.
async fn replaced_part_is_an_update(fleet: &Fleet, scene: &Scene) -> Result<()> {
    let labels = json!({"app": "web"});
    let source = json!({
        "apiVersion": "apps/v1", "kind": "Deployment", "metadata": {"namespace": HOME, "name": "web"},
        "spec": {"selector": {"matchLabels": labels}, "template": {
            "metadata": {"labels": labels}, "spec": {"containers": [{"name": "web", "image": "web:1"}]},
        }},
    });
    scene.hub.make(&source).await?;
    let sources =
        json!({"namespaces": [HOME], "resources": ["deployments.apps"], "names": ["web"]});
    let draft = RuleDraft::cluster_scoped("steps")
        .source(sources)
        .everywhere();
    // The copy has the default of its own API server.
    let plain = draft
        .clone()
        .with("transform", json!({"removeFields": ["/spec/strategy"]}));
    let rule = Id::of(&scene.hub.make(&plain.json()).await?)?;
    scene.hub.all_written(&rule, 1).await?;
    let recreate = json!({"spec": {"strategy": {"type": "Recreate", "rollingUpdate": null}}});
    let edit = json!([{"clusters": {"names": ["member-1"]}, "mergePatch": recreate}]);
    let edited = draft.with("overrides", edit.clone()).json();
    let kubeconfig = fleet.hub().kubeconfig();
    let (code, out, err) = plan(fleet, kubeconfig, &edited, &["--dry-run=members"]).await?;
    ensure!(code == 0, "exit code {code}: {out}{err}");
    ensure!(
        out.contains("change 1") && out.contains("/spec/strategy"),
        "{out}{err}"
    );
    // A merge patch would drop the null.
    let change = json!([
        {"op": "remove", "path": "/spec/transform"}, {"op": "add", "path": "/spec/overrides", "value": edit},
    ]);
    scene.hub.json_patch(&rule, change).await?;
    let changed = [("/spec/strategy/type", json!("Recreate"))];
    scene
        .member(1)
        .has_values("changed", &Id::of(&source)?, &changed)
        .await?;
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await
}

/// A rule that guesses the content of two Secrets of the member, and is right about one. They are
/// immutable, so their API server would refuse a difference.
async fn guesses(scene: &Scene) -> Result<Value> {
    let secret = |name: &str, value: &str| {
        Draft::secret(HOME, name)
            .data("password", value)
            .with("immutable", json!(true))
            .json()
    };
    for (name, value) in [("right", CANARY), ("wrong", "theirs")] {
        scene.hub.make(&secret(name, CANARY)).await?;
        scene.member(1).make(&secret(name, value)).await?;
    }
    let rule = RuleDraft::new(HOME, "guesses")
        .named(&["right", "wrong"])
        .everywhere();
    Ok(rule.with("conflictPolicy", json!("AdoptIfEqual")).json())
}

async fn nothing_tells_a_right_guess_from_a_wrong_one(fleet: &Fleet, rule: &Value) -> Result<()> {
    for more in [&[][..], &["--dry-run=members"]] {
        let (code, out, err) = plan(
            fleet,
            fleet.hub().kubeconfig(),
            rule,
            &[more, &["-o", "json"]].concat(),
        )
        .await?;
        ensure!(
            code == 4 && !out.contains(CANARY) && !err.contains(CANARY),
            "exit code {code}: {out}{err}"
        );
        let reply: Value = serde_json::from_str(&out)?;
        let rows = reply["plans"][0]["copies"]
            .as_array()
            .context("no copies")?;
        let words = rows
            .iter()
            .map(|row| json!([row["verdict"], row["reason"], row["message"], row["diff"]]));
        let words: Vec<Value> = words.collect();
        ensure!(
            words.len() == 2 && words[0] == words[1] && words[0][0] == "adoptIfEqual",
            "{words:?}"
        );
    }
    Ok(())
}

async fn unreadable_content_is_never_shown(fleet: &Fleet, rule: &Value) -> Result<()> {
    let hub = fleet.hub();
    let rights = format!(
        r#"{{"apiVersion":"v1","kind":"List","items":[
        {{"apiVersion":"v1","kind":"ServiceAccount","metadata":{{"name":"author","namespace":"{HOME}"}}}},
        {{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"Role","metadata":{{"name":"author","namespace":"{HOME}"}},
          "rules":[{{"apiGroups":["runnel.dev"],"resources":["distributionrules"],"verbs":["get","create"]}},
                   {{"apiGroups":[""],"resources":["configmaps"],"verbs":["get"]}}]}},
        {{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"RoleBinding","metadata":{{"name":"author","namespace":"{HOME}"}},
          "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"Role","name":"author"}},
          "subjects":[{{"kind":"ServiceAccount","name":"author","namespace":"{HOME}"}}]}},
        {{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRole","metadata":{{"name":"planner"}},
          "rules":[{{"apiGroups":["view.runnel.dev"],"resources":["clusterruleplans","ruleplans"],"verbs":["create"]}}]}},
        {{"apiVersion":"rbac.authorization.k8s.io/v1","kind":"ClusterRoleBinding","metadata":{{"name":"planner"}},
          "roleRef":{{"apiGroup":"rbac.authorization.k8s.io","kind":"ClusterRole","name":"planner"}},
          "subjects":[{{"kind":"ServiceAccount","name":"author","namespace":"{HOME}"}}]}}]}}"#
    );
    hub.kubectl_stdin(&["apply", "-f", "-"], &rights).await?;
    let kubeconfig = hub.token_kubeconfig(HOME, "author").await?;
    let author = client_of(&kubeconfig).await?;
    let refused = |answer: Result<Value, kube::Error>, words: &str| -> Result<()> {
        let (code, message) = refusal(answer)?;
        ensure!(code == 403 && message.contains(words), "{code}: {message}");
        ensure!(!message.contains("login"), "it names a source: {message}");
        Ok(())
    };
    let mut configmaps = rule.clone();
    configmaps["spec"]["sources"][0]["resources"] = json!(["configmaps"]);
    eventually("the right to arrive", SOON, async || {
        Ok(planned(&author, &configmaps).await.ok())
    })
    .await?;
    refused(planned(&author, rule).await, "selects secrets, which")?;
    let mut elsewhere = configmaps.clone();
    elsewhere["metadata"]["namespace"] = json!("default");
    refused(
        planned(&author, &elsewhere).await,
        "may not create distributionrules.runnel.dev in namespace default",
    )?;
    let mut whole = configmaps.clone();
    whole["kind"] = json!("ClusterDistributionRule");
    whole["metadata"] = json!({"name": "x"});
    whole["spec"]["sources"][0]["namespaces"] = json!([HOME]);
    refused(
        planned(&author, &whole).await,
        "may not create clusterdistributionrules.runnel.dev",
    )?;
    let metadata = json!({"name": "x", "namespace": HOME});
    for wrong in [
        json!({"kind": "DistributionRule", "metadata": metadata}),
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": metadata}),
    ] {
        let (code, message) = refusal(planned(&author, &wrong).await)?;
        ensure!(
            code == 400 && message.contains("cannot be read"),
            "{message}"
        );
    }
    // By the plugin the API server itself refuses, by the admission policy, in the words of a rule that is saved.
    let (code, out, err) = plan(fleet, &kubeconfig, rule, &[]).await?;
    ensure!(
        code == 1 && out.is_empty() && err.contains("spec.sources selects secrets"),
        "{code}: {err}"
    );
    let (code, out, err) = plan(fleet, &kubeconfig, &configmaps, &[]).await?;
    ensure!(code == 4 && out.contains("conflict"), "{code}: {err}");
    // No API server has validated what is sent to the hub itself.
    let mut large = configmaps.clone();
    large["spec"]["namespaces"] = json!({"names": ["x".repeat(300)]});
    let (code, message) = refusal(planned(&author, &large).await)?;
    ensure!(
        code == 400 && message.contains("spec.namespaces"),
        "{message}"
    );
    let mut wrong = configmaps.clone();
    wrong["spec"]["sources"] = json!([]);
    let (code, _, err) = plan(fleet, &kubeconfig, &wrong, &[]).await?;
    ensure!(
        code == 1 && err.contains("sources is empty: add an entry"),
        "{code}: {err}"
    );
    // A user who may only read a saved rule cannot try it as a dry run.
    hub.kubectl_stdin(&["apply", "-f", "-"], &configmaps.to_string())
        .await?;
    let saved = |dry_run: bool| json!({"name": "all", "dryRun": dry_run});
    let path = format!("namespaces/{HOME}/ruleplans");
    eventually("the rule to be known", SOON, async || {
        Ok(create(&author, &path, saved(false)).await.ok())
    })
    .await?;
    refused(
        create(&author, &path, saved(true)).await,
        "may not update distributionrules.runnel.dev",
    )
}

/// The code and the message of a refusal.
fn refusal(answer: Result<Value, kube::Error>) -> Result<(u16, String)> {
    match answer {
        Ok(answer) => anyhow::bail!("it is answered: {answer}"),
        Err(kube::Error::Api(status)) => Ok((status.code, status.message.clone())),
        Err(error) => Err(error.into()),
    }
}

/// Asks the hub about a rule that is not saved.
async fn planned(client: &Client, object: &Value) -> Result<Value, kube::Error> {
    let path = match object["metadata"]["namespace"].as_str() {
        Some(namespace) => format!("namespaces/{namespace}/ruleplans"),
        None => "clusterruleplans".to_owned(),
    };
    create(client, &path, json!({"object": object})).await
}

async fn create(client: &Client, path: &str, spec: Value) -> Result<Value, kube::Error> {
    let request = http::Request::post(format!("/apis/view.runnel.dev/v1alpha1/{path}"))
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(
            json!({"metadata": {}, "spec": spec})
                .to_string()
                .into_bytes(),
        )
        .map_err(kube::Error::HttpError)?;
    client.request(request).await
}
