//! Requests for plans and explanations.

use anyhow::{Context, Result, ensure};
use kube::Client;
use runnel_tests::control_plane::client_of;
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use runnel_tests::wait::eventually;
use serde_json::{Value, json};

use super::{CANARY, SOON, fleet};

/// Creates a request, and returns its answer.
async fn create(client: &Client, path: &str, kind: &str, spec: Value) -> Result<Value> {
    let object = json!({"apiVersion": "view.runnel.dev/v1alpha1", "kind": kind, "metadata": {}, "spec": spec});
    let path = format!("/apis/view.runnel.dev/v1alpha1/{path}");
    let request = http::Request::post(path)
        .header(http::header::CONTENT_TYPE, "application/json")
        .body(serde_json::to_vec(&object)?)?;
    let answer: Value = client.request(request).await?;
    let text = answer["status"].to_string();
    ensure!(
        !text.contains(CANARY) && !text.contains(&data_encoding::BASE64.encode(CANARY.as_bytes())),
        "{text}"
    );
    Ok(answer)
}

/// A tenant with `runnel-hub-edit` in its namespace, who may read ConfigMaps there.
async fn tenant(scene: &Scene, namespace: &str) -> Result<Client> {
    scene.hub_namespaces(&[namespace]).await?;
    scene.member_namespaces(&[namespace]).await?;
    let hub = fleet().await?.hub();
    let account = format!("--serviceaccount={namespace}:eve");
    hub.kubectl(&["create", "serviceaccount", "eve", "-n", namespace])
        .await?;
    let role = [
        "create",
        "role",
        "reader",
        "--verb=get",
        "--resource=configmaps",
        "-n",
        namespace,
    ];
    hub.kubectl(&role).await?;
    for (name, role) in [
        ("edit", "--clusterrole=runnel-hub-edit"),
        ("read", "--role=reader"),
    ] {
        hub.kubectl(&[
            "create",
            "rolebinding",
            name,
            role,
            &account,
            "-n",
            namespace,
        ])
        .await?;
    }
    client_of(&hub.token_kubeconfig(namespace, "eve").await?).await
}

fn rule(namespace: &str, resources: &[&str]) -> Value {
    let entry = json!({"resources": resources, "names": ["settings", "login"]});
    RuleDraft::new(namespace, "all")
        .source(entry)
        .everywhere()
        .json()
}

#[tokio::test]
async fn tenant_plans_what_it_may_save_and_read() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let eve = tenant(&scene, "planned").await?;
    scene.hub_namespaces(&["unplanned"]).await?;
    scene
        .hub
        .make(
            &Draft::config_map("planned", "settings")
                .data("color", CANARY)
                .json(),
        )
        .await?;
    scene
        .hub
        .make(
            &Draft::secret("planned", "login")
                .data("password", CANARY)
                .json(),
        )
        .await?;
    let path = "namespaces/planned/ruleplans";
    let object = rule("planned", &["configmaps"]);
    let plan = eventually("the right to plan", SOON, async || {
        create(&eve, path, "RulePlan", json!({"object": object}))
            .await
            .map(Some)
    })
    .await?;
    let planned = &plan["status"]["rules"][0];
    let verdicts: Vec<_> = planned["copies"]
        .as_array()
        .context("no copies")?
        .iter()
        .map(|copy| json!([copy["cluster"], copy["copy"], copy["verdict"]]))
        .collect();
    let expected = |cluster: &str| json!([cluster, "configmaps/planned/settings", "create"]);
    ensure!(
        verdicts == [expected("member-1"), expected("member-2")],
        "{plan}"
    );
    ensure!(
        plan["status"]["exists"] == false && planned["sent"] == 1,
        "{plan}"
    );
    ensure!(
        scene.hub.find(&Id::rule("planned", "all")).await?.is_none(),
        "it was saved"
    );

    let secrets = rule("planned", &["configmaps", "secrets"]);
    let name = json!({"name": "nothing"});
    for (path, kind, spec, words) in [
        (
            path,
            "RulePlan",
            json!({"object": secrets}),
            "selects secrets",
        ),
        (
            path,
            "RulePlan",
            json!({"object": rule("unplanned", &["configmaps"])}),
            "its own namespace",
        ),
        (path, "RulePlan", json!({}), "names nothing"),
        (
            path,
            "RulePlan",
            json!({"name": "all", "dryrun": true}),
            "spec.dryrun is no field",
        ),
        (
            path,
            "RulePlan",
            json!({"object": {"kind": "DistributionRule"}}),
            "names nothing",
        ),
        (path, "RulePlan", name.clone(), "no such rule"),
        (
            "namespaces/unplanned/ruleplans",
            "RulePlan",
            name.clone(),
            "cannot create",
        ),
        (
            "clusterruleplans",
            "ClusterRulePlan",
            name.clone(),
            "cannot create",
        ),
        ("ruleplans", "RulePlan", name, "cannot create"),
    ] {
        let refused = create(&eve, path, kind, spec.clone()).await;
        let refused = refused
            .err()
            .with_context(|| format!("{path} {spec} is answered"))?;
        ensure!(refused.to_string().contains(words), "{words}: {refused}");
    }
    Ok(())
}

#[tokio::test]
async fn sync_needs_the_rule_and_its_sources() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let eve = tenant(&scene, "synced").await?;
    let colors = json!({"resources": ["configmaps"], "names": ["colors"]});
    let colors = RuleDraft::new("synced", "colors").source(colors);
    scene.hub.make(&colors.everywhere().json()).await?;
    let login = Draft::secret("synced", "login").data("password", CANARY);
    scene.hub.make(&login.json()).await?;
    let draft = RuleDraft::new("synced", "secretive")
        .named(&["login"])
        .everywhere();
    scene.hub.make(&draft.json()).await?;
    let path = "namespaces/synced/rulesyncs";
    let sync = async |client: &Client, rule: &str| {
        create(client, path, "RuleSync", json!({"rule": rule})).await
    };
    let answer = eventually("the right to sync", SOON, async || {
        sync(&eve, "colors").await.map(Some)
    })
    .await?;
    ensure!(answer["status"]["synced"] == true, "{answer}");
    let refused = sync(&eve, "secretive").await;
    let refused = refused.err().context("a sync of Secrets")?.to_string();
    ensure!(refused.contains("may not get"), "{refused}");

    // Without a right on the rule not even its existence is answered.
    let hub = fleet().await?.hub();
    hub.kubectl(&["create", "serviceaccount", "mallory", "-n", "synced"])
        .await?;
    let role = ["--verb=create", "--resource=rulesyncs.view.runnel.dev"];
    let create_role = ["create", "role", "syncer", "-n", "synced"];
    hub.kubectl(&[&create_role[..], &role].concat()).await?;
    let binding = [
        "create",
        "rolebinding",
        "syncer",
        "--role=syncer",
        "--serviceaccount=synced:mallory",
        "-n",
        "synced",
    ];
    hub.kubectl(&binding).await?;
    let mallory = client_of(&hub.token_kubeconfig("synced", "mallory").await?).await?;
    for rule in ["colors", "none"] {
        eventually("the refusal of a sync", SOON, async || {
            let refused = sync(&mallory, rule).await;
            let refused = refused.err().context("a sync without rights")?.to_string();
            let may_not = "may not get distributionrules.runnel.dev in namespace synced";
            ensure!(refused.contains(may_not), "{refused}");
            Ok(Some(()))
        })
        .await?;
    }
    Ok(())
}

#[tokio::test]
async fn administrator_plans_a_member_by_kubectl() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let hub = fleet.hub();
    super::deliver(&scene, "relabeled", "paint").await?;
    let id = Id::rule("relabeled", "paint");
    let change =
        json!({"spec": {"clusters": {"all": null, "selector": {"matchLabels": {"env": "prod"}}}}});
    scene.hub.change(&id, change).await?;
    scene.hub.wait_ready(&id, "True", "AllApplied").await?;
    let member = scene.hub.get(&Id::member("member-2")).await?;
    let request = json!({
        "apiVersion": "view.runnel.dev/v1alpha1", "kind": "ClusterRulePlan", "metadata": {"name": "relabel"},
        "spec": {"object": {
            "apiVersion": "runnel.dev/v1alpha1", "kind": "MemberCluster",
            "metadata": {"name": "member-2", "labels": {"env": "test"}}, "spec": member["spec"],
        }},
    });
    let arguments = ["create", "-o", "json", "-f", "-"];
    let plan: Value =
        serde_json::from_str(&hub.kubectl_stdin(&arguments, &request.to_string()).await?)?;
    let rules = plan["status"]["rules"].as_array().context("no rules")?;
    let planned = rules.iter().find(|rule| rule["name"] == "paint");
    let planned = planned.with_context(|| format!("the rule is not planned: {plan}"))?;
    ensure!(planned["copies"][0]["verdict"] == "remove", "{planned}");
    let explained = hub.kubectl(&["explain", "ruleplans.spec"]).await?;
    ensure!(explained.contains("dryRun"), "{explained}");
    let listed = hub.kubectl(&["get", "ruleplans", "-n", "relabeled"]).await;
    ensure!(listed.is_err(), "plans are not stored");
    let admin = hub.client().await?;
    let nowhere = create(&admin, "ruleplans", "RulePlan", json!({"name": "paint"})).await;
    let nowhere = nowhere.err().context("a plan without a namespace")?;
    ensure!(nowhere.to_string().contains("method"), "{nowhere}");
    let large = json!({"name": "x".repeat(2 * 1024 * 1024)});
    let large = create(&admin, "clusterruleplans", "ClusterRulePlan", large).await;
    let large = large.err().context("a plan that is too large")?;
    ensure!(large.to_string().contains("bytes"), "{large}");
    Ok(())
}

#[tokio::test]
async fn tenant_reviews_removals_of_its_own_rules() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let eve = tenant(&scene, "reviewed").await?;
    super::add_rule(&scene, "reviewed", "own").await?;
    let path = "namespaces/reviewed/removalreviews";
    let spec = |kind: &str, name: &str| json!({"kind": kind, "name": name});
    let own = spec("DistributionRule", "own");
    let answer = eventually("the right to ask", SOON, async || {
        create(&eve, path, "RemovalReview", own.clone())
            .await
            .map(Some)
    })
    .await?;
    let nothing = json!({"digest": "", "copies": 0, "remaining": 0});
    ensure!(answer["status"] == nothing, "{answer}");
    for (path, spec, words) in [
        (path, spec("DistributionRule", "none"), "no such rule"),
        (
            path,
            spec("ClusterDistributionRule", "wide"),
            "may not get clusterdistributionrules",
        ),
        (path, spec("MemberCluster", "member-1"), "unknown"),
        ("namespaces/hidden/removalreviews", own, "cannot create"),
    ] {
        let refused = create(&eve, path, "RemovalReview", spec.clone()).await;
        let refused = refused
            .err()
            .with_context(|| format!("{path} {spec} is answered"))?;
        ensure!(refused.to_string().contains(words), "{words}: {refused}");
    }
    Ok(())
}

#[tokio::test]
async fn tenant_gets_explanations_by_its_own_rules() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let eve = tenant(&scene, "explained").await?;
    super::deliver(&scene, "hidden", "secretive").await?;
    scene
        .hub
        .make(
            &Draft::secret("explained", "login")
                .data("password", CANARY)
                .json(),
        )
        .await?;
    let draft = RuleDraft::new("explained", "all")
        .named(&["login"])
        .everywhere();
    scene.hub.make(&draft.json()).await?;
    let id = Id::rule("explained", "all");
    scene.hub.wait_ready(&id, "True", "AllApplied").await?;
    let path = "namespaces/explained/copyexplanations";
    let spec = |kind: &str, namespace: &str, name: &str| {
        let target = json!({"kind": kind, "namespace": namespace, "name": name});
        json!({"cluster": "member-1", "target": target})
    };
    let own = spec("Secret", "explained", "login");
    let answer = eventually("the right to ask", SOON, async || {
        create(&eve, path, "CopyExplanation", own.clone())
            .await
            .map(Some)
    })
    .await?;
    let status = &answer["status"];
    ensure!(
        status["answered"] == true
            && status["rules"][0]["state"] == "Applied"
            && status["live"]["ours"] == true
            && status["live"]["source"] == "secrets/explained/login",
        "{answer}"
    );
    for (path, spec, words) in [
        (
            path,
            spec("ConfigMap", "hidden", "secretive"),
            "may get no rule",
        ),
        (path, spec("Pod", "explained", "login"), "may get no rule"),
        (path, spec("Gadget", "explained", "login"), "unknown"),
        ("namespaces/hidden/copyexplanations", own, "cannot create"),
    ] {
        let refused = create(&eve, path, "CopyExplanation", spec.clone()).await;
        let refused = refused
            .err()
            .with_context(|| format!("{path} {spec} is answered"))?;
        ensure!(refused.to_string().contains(words), "{words}: {refused}");
    }
    Ok(())
}
