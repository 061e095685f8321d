//! Copies, as their agents report them.

use anyhow::{Context, Result, ensure};
use kube::Client;
use runnel_tests::control_plane::client_of;
use runnel_tests::fleet::Fleet;
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, entry_of};
use runnel_tests::wait::eventually;
use serde_json::Value;

use super::{CANARY, SOON, fleet, get};

/// Creates a rule with a ConfigMap and a Secret that go to both members. An object of a stranger has
/// the name of the ConfigMap's copy in the first member.
async fn deliver(scene: &Scene, namespace: &str) -> Result<()> {
    scene.hub_namespaces(&[namespace]).await?;
    scene.member_namespaces(&[namespace]).await?;
    let foreign = Draft::config_map(namespace, "settings").data("a", "stranger");
    scene.member(1).make(&foreign.json()).await?;
    let settings = Draft::config_map(namespace, "settings").data("a", "b");
    scene.hub.make(&settings.json()).await?;
    let login = Draft::secret(namespace, "login").data("password", CANARY);
    scene.hub.make(&login.json()).await?;
    let rule = RuleDraft::new(namespace, "all").named(&["settings", "login"]);
    scene.hub.make(&rule.everywhere().json()).await?;
    let id = Id::rule(namespace, "all");
    // The conflict is reported before the other copy of the cluster is there.
    let is_settled = |rule: &Value| {
        let entry = entry_of(rule, "member-1")?;
        ensure!(
            entry["reason"] == "Conflict" && entry["applied"] == 1 && entry["failed"] == 1,
            "{entry}"
        );
        Ok(())
    };
    scene
        .hub
        .sees("settled in member-1", &id, is_settled)
        .await?;
    scene
        .hub
        .wait_for_cluster(&id, "member-2", "Ready", "AllApplied")
        .await?;
    Ok(())
}

fn names(list: &Value) -> Result<Vec<&str>> {
    let items = list["items"].as_array().context("no items")?;
    items
        .iter()
        .map(|item| item["metadata"]["name"].as_str().context("no name"))
        .collect()
}

#[tokio::test]
async fn kubectl_prints_selects_and_explains_copies() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "copied").await?;
    let hub = fleet.hub();

    let table = hub.kubectl(&["get", "copies", "-n", "copied"]).await?;
    let lines: Vec<Vec<&str>> = table
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect();
    let columns = [
        "RULE",
        "CLUSTER",
        "KIND",
        "NAMESPACE",
        "COPY",
        "STATE",
        "REASON",
        "APPLIED",
    ];
    ensure!(
        lines.first().is_some_and(|line| line == &columns),
        "{table}"
    );
    for row in [
        &[
            "all",
            "member-1",
            "ConfigMap",
            "copied",
            "settings",
            "Failed",
            "Conflict",
        ][..],
        &["all", "member-1", "Secret", "copied", "login", "Applied"],
        &[
            "all",
            "member-2",
            "ConfigMap",
            "copied",
            "settings",
            "Applied",
        ],
        &["all", "member-2", "Secret", "copied", "login", "Applied"],
    ] {
        ensure!(
            lines.iter().any(|line| line.starts_with(row)),
            "{row:?}: {table}"
        );
    }
    ensure!(lines.len() == 5, "{table}");

    let select = [
        "get",
        "copies",
        "-n",
        "copied",
        "-o",
        "name",
        "--field-selector",
    ];
    for (selector, expected) in [
        (
            "cluster=member-2,kind=Secret",
            &["all:member-2:secrets:copied:login"][..],
        ),
        ("state=Failed", &["all:member-1:configmaps:copied:settings"]),
        (
            "rule=all,namespace=copied,name!=settings,cluster=member-1",
            &["all:member-1:secrets:copied:login"],
        ),
        ("namespace=elsewhere", &[]),
        ("rule=other", &[]),
    ] {
        let printed = hub.kubectl(&[&select[..], &[selector]].concat()).await?;
        let found: Vec<_> = printed
            .lines()
            .filter_map(|line| line.strip_prefix("copy.view.runnel.dev/"))
            .collect();
        ensure!(found == expected, "{selector}: {printed}");
    }
    let wrong = hub.kubectl(&[&select[..], &["color=blue"]].concat()).await;
    let wrong = wrong.err().context("a field that is none")?.to_string();
    ensure!(wrong.contains("color") && wrong.contains("kind"), "{wrong}");

    let failed = "all:member-1:configmaps:copied:settings";
    let one = hub
        .kubectl(&["get", "copy", failed, "-n", "copied", "-o", "json"])
        .await?;
    let one: Value = serde_json::from_str(&one)?;
    ensure!(
        one["status"]["reason"] == "Conflict"
            && one["status"]["source"] == "configmaps/copied/settings"
            && one["spec"]["target"]["kind"] == "ConfigMap",
        "{one}"
    );
    for name in [
        "all:member-1:configmaps:copied:other",
        "all:nowhere:configmaps:copied:settings",
        "all",
    ] {
        let missing = hub.kubectl(&["get", "copy", name, "-n", "copied"]).await;
        let missing = missing
            .err()
            .context("a copy that is not there")?
            .to_string();
        ensure!(missing.contains("not found"), "{missing}");
    }
    let explained = hub.kubectl(&["explain", "copies.status.state"]).await?;
    ensure!(explained.contains("Applied"), "{explained}");
    let watched = hub.kubectl(&["get", "copies", "-n", "copied", "-w"]).await;
    ensure!(watched.is_err(), "copies cannot be watched");
    Ok(())
}

#[tokio::test]
async fn copies_are_paged_and_never_have_content() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "copypages").await?;
    let client = fleet.hub().client().await?;
    let (mut all, mut token) = (Vec::new(), String::new());
    loop {
        let path = format!("namespaces/copypages/copies?limit=1&continue={token}");
        let page = get(&client, &path).await?;
        let found = names(&page)?;
        ensure!(found.len() <= 1, "{page}");
        all.extend(found.into_iter().map(str::to_owned));
        match page["metadata"]["continue"].as_str() {
            Some(next) => token = next.to_owned(),
            None => break,
        }
    }
    let expected = [
        "all:member-1:configmaps:copypages:settings",
        "all:member-1:secrets:copypages:login",
        "all:member-2:configmaps:copypages:settings",
        "all:member-2:secrets:copypages:login",
    ];
    ensure!(all == expected, "{all:?}");
    let filtered =
        "namespaces/copypages/copies?limit=1&fieldSelector=kind%3DSecret,cluster%3Dmember-2";
    let filtered = get(&client, filtered).await?;
    ensure!(names(&filtered)? == [expected[3]], "{filtered}");
    let whole = get(&client, "namespaces/copypages/copies").await?;
    for text in [CANARY, &data_encoding::BASE64.encode(CANARY.as_bytes())] {
        ensure!(!whole.to_string().contains(text), "{whole}");
    }
    Ok(())
}

#[tokio::test]
async fn copies_of_cluster_rules_have_their_own_resource() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&["everyone"]).await?;
    scene.member_namespaces(&["everyone"]).await?;
    let source = Draft::config_map("everyone", "banner").data("a", "b");
    scene.hub.make(&source.json()).await?;
    let entry = serde_json::json!({"resources": ["configmaps"], "names": ["banner"], "namespaces": ["everyone"]});
    let rule = RuleDraft::cluster_scoped("banner")
        .source(entry)
        .everywhere();
    scene.hub.make(&rule.json()).await?;
    let id = Id::cluster_rule("banner");
    scene.hub.wait_ready(&id, "True", "AllApplied").await?;
    let select = ["get", "clustercopies", "-o", "name", "--field-selector"];
    let printed = fleet
        .hub()
        .kubectl(&[&select[..], &["rule=banner,cluster=member-1"]].concat())
        .await?;
    ensure!(
        printed.trim() == "clustercopy.view.runnel.dev/banner:member-1:configmaps:everyone:banner",
        "{printed}"
    );
    Ok(())
}

/// Returns the warning of a list.
async fn warning(client: &Client, path: &str) -> Result<String> {
    let path = format!("/apis/view.runnel.dev/v1alpha1/{path}");
    let request = http::Request::get(path).body(kube::client::Body::empty())?;
    let response = client.send(request).await?;
    let warning = response.headers().get(http::header::WARNING);
    let warning = warning.map(|warning| warning.to_str()).transpose()?;
    Ok(warning.unwrap_or_default().to_owned())
}

/// A member that is not connected has no copies in the list, and the client is warned.
pub(super) async fn unreachable_member_is_named(fleet: &Fleet) -> Result<()> {
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "partial").await?;
    let client = fleet.hub().client().await?;
    let path = "namespaces/partial/copies";
    let warned = warning(&client, path).await?;
    ensure!(warned.is_empty(), "{warned}");
    fleet.stop_agent(2).await?;
    let listed = eventually("the copies of one member", SOON, async || {
        let list = get(&client, path).await?;
        Ok((names(&list)?.len() == 2).then_some(list))
    })
    .await?;
    ensure!(
        names(&listed)?.iter().all(|name| name.contains("member-1")),
        "{listed}"
    );
    let warned = warning(&client, path).await?;
    ensure!(
        warned.contains("not listed") && warned.contains("member-2"),
        "{warned}"
    );
    let one = "namespaces/partial/copies/all:member-2:secrets:partial:login";
    let silent = get(&client, one).await;
    let silent = silent.err().context("a copy of nobody")?.to_string();
    ensure!(silent.contains("member-2"), "{silent}");
    fleet.start_agent(2).await?;
    fleet.connected(2).await
}

#[tokio::test]
async fn tenant_lists_the_copies_of_its_namespace_only() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    deliver(&scene, "copyowner").await?;
    scene.hub_namespaces(&["copyother"]).await?;
    let hub = fleet.hub();
    let account = ["create", "serviceaccount", "bob", "-n", "copyowner"];
    hub.kubectl(&account).await?;
    let bind = [
        "create",
        "rolebinding",
        "bob",
        "--clusterrole=runnel-hub-view",
    ];
    let to = ["--serviceaccount=copyowner:bob", "-n", "copyowner"];
    hub.kubectl(&[&bind[..], &to[..]].concat()).await?;
    let bob = client_of(&hub.token_kubeconfig("copyowner", "bob").await?).await?;
    let own = eventually("the binding takes effect", SOON, async || {
        get(&bob, "namespaces/copyowner/copies").await.map(Some)
    })
    .await?;
    ensure!(names(&own)?.len() == 4, "{own}");
    for path in ["namespaces/copyother/copies", "copies", "clustercopies"] {
        let refused = get(&bob, path).await;
        let refused = refused
            .err()
            .with_context(|| format!("{path} is allowed"))?;
        ensure!(refused.to_string().contains("cannot list"), "{refused}");
    }
    Ok(())
}
