//! `--dry-run=members`: each API server judges the writes and stores nothing. And clusters that get
//! no request at all.

use anyhow::{Context, Result, ensure};
use runnel_proto::wire::{PlanQuestion, RuleQuestion};
use runnel_tests::control_plane::ControlPlane;
use runnel_tests::fleet::{Fleet, FleetOptions, NAMESPACE};
use runnel_tests::scene::{Draft, Id, RuleDraft, SOON, Scene};
use runnel_tests::wait::eventually;
use runnel_transport::grpc::query_client::QueryClient;
use runnel_transport::identity::Fingerprint;
use runnel_transport::tls::{Connector, Route, endpoint, join_config};
use serde_json::{Value, json};
use tonic::{Code, Request, Status};

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
    // The plugin finds the hub under any name of its release.
    let hub_values = json!({"fullnameOverride": "central"});
    let fleet = Fleet::start(FleetOptions {
        hub_values,
        ..FleetOptions::default()
    })
    .await?;
    let scene = Scene::of(&fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
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
          "subjects":[{{"kind":"ServiceAccount","name":"author","namespace":"{HOME}"}}]}}]}}"#
    );
    hub.kubectl_stdin(&["apply", "-f", "-"], &rights).await?;
    let token = hub
        .kubectl(&["-n", HOME, "create", "token", "author"])
        .await?
        .trim()
        .to_owned();
    let refused = |answer: Result<usize, Status>, words: &str| -> Result<()> {
        let Err(status) = answer else {
            anyhow::bail!("it is answered: {words}")
        };
        ensure!(
            status.code() == Code::PermissionDenied && status.message().contains(words),
            "{status}"
        );
        ensure!(
            !status.message().contains("login"),
            "it names a source: {status}"
        );
        Ok(())
    };
    let mut configmaps = rule.clone();
    configmaps["spec"]["sources"][0]["resources"] = json!(["configmaps"]);
    eventually("the right to arrive", SOON, async || {
        Ok(asked(fleet, &token, &configmaps.to_string()).await.ok())
    })
    .await?;
    refused(
        asked(fleet, &token, &rule.to_string()).await,
        "selects secrets, which",
    )?;
    let mut elsewhere = configmaps.clone();
    elsewhere["metadata"]["namespace"] = json!("default");
    refused(
        asked(fleet, &token, &elsewhere.to_string()).await,
        "may not create distributionrules.runnel.dev in namespace default",
    )?;
    let mut whole = configmaps.clone();
    whole["kind"] = json!("ClusterDistributionRule");
    whole["metadata"] = json!({"name": "x"});
    whole["spec"]["sources"][0]["namespaces"] = json!([HOME]);
    refused(
        asked(fleet, &token, &whole.to_string()).await,
        "may not create clusterdistributionrules.runnel.dev",
    )?;
    for wrong in [
        "{",
        "{}",
        r#"{"apiVersion":"runnel.dev/v1alpha1","kind":"DistributionRule","metadata":{"name":"x"}}"#,
    ] {
        let status = asked(fleet, &token, wrong)
            .await
            .err()
            .context("it is answered")?;
        ensure!(status.code() == Code::InvalidArgument, "{status}");
    }
    // By the plugin the API server itself refuses, by the admission policy, in the words of a rule that is saved.
    let kubeconfig = hub.token_kubeconfig(HOME, "author").await?;
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
    let status = asked(fleet, &token, &large.to_string())
        .await
        .err()
        .context("it is answered")?;
    ensure!(
        status.code() == Code::InvalidArgument && status.message().contains("spec.namespaces"),
        "{status}"
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
    let named = RuleQuestion {
        kind: "DistributionRule".to_owned(),
        namespace: HOME.to_owned(),
        name: "all".to_owned(),
    };
    let saved = |dry_run| PlanQuestion {
        object: String::new(),
        rule: Some(named.clone()),
        dry_run,
        ..PlanQuestion::default()
    };
    eventually("the rule to be known", SOON, async || {
        Ok(pages(fleet, &token, saved(false)).await.ok())
    })
    .await?;
    refused(
        pages(fleet, &token, saved(true)).await,
        "may not update distributionrules.runnel.dev",
    )
}

/// Asks the hub itself about a rule that is not saved; how many pages it answers.
async fn asked(fleet: &Fleet, token: &str, object: &str) -> Result<usize, Status> {
    let rule = Some(RuleQuestion::default());
    pages(
        fleet,
        token,
        PlanQuestion {
            object: object.to_owned(),
            rule,
            ..PlanQuestion::default()
        },
    )
    .await
}

async fn pages(fleet: &Fleet, token: &str, question: PlanQuestion) -> Result<usize, Status> {
    let unknown = |error: anyhow::Error| Status::unknown(format!("{error:#}"));
    let connected = async {
        let lease = fleet
            .hub()
            .kubectl(&["-n", NAMESPACE, "get", "lease", "runnel-hub", "-o", "json"])
            .await?;
        let lease: Value = serde_json::from_str(&lease)?;
        let reply = |key: &str| {
            lease["metadata"]["annotations"][key]
                .as_str()
                .context("the Lease does not say it")
        };
        let pin = Fingerprint::parse(reply("runnel.dev/authority")?)?;
        let connector =
            Connector::new(join_config(pin, reply("runnel.dev/hub")?)?).by(Route::direct());
        anyhow::Ok(
            endpoint(&fleet.hub_address())?
                .connect_with_connector(connector)
                .await?,
        )
    };
    let channel = connected.await.map_err(unknown)?;
    let mut request = Request::new(question);
    let header = format!("Bearer {token}")
        .parse()
        .map_err(|_| Status::internal("no header"))?;
    request.metadata_mut().insert("authorization", header);
    let mut pages = QueryClient::new(channel).plan(request).await?.into_inner();
    let mut all = 0;
    while pages.message().await?.is_some() {
        all += 1;
    }
    Ok(all)
}
