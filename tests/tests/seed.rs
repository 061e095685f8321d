//! The first rule of this project: ConfigMaps and Secrets with a label are copied into two
//! namespaces of all members, and follow every change. Also checks its status.

use anyhow::{Context, Result, ensure};
use futures::future::try_join_all;
use jiff::{Timestamp, ToSpan};
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene, condition, entry_of};
use serde_json::{Value, json};
use tokio::sync::OnceCell;

static FLEET: OnceCell<Fleet> = OnceCell::const_new();

async fn fleet() -> Result<&'static Fleet> {
    FLEET
        .get_or_try_init(|| {
            Fleet::start(FleetOptions {
                members: 2,
                ..FleetOptions::default()
            })
        })
        .await
}

const HOME: &str = "ns-codis-test";
const TARGETS: [&str; 2] = ["default", "another-test"];

fn seed_rule() -> (Id, Value) {
    let draft = RuleDraft::new(HOME, "rule-codis-test")
        .labeled("rule", "test")
        .everywhere()
        .into(&TARGETS);
    (Id::rule(HOME, "rule-codis-test"), draft.json())
}

fn seed_sources() -> [Value; 2] {
    let settings = Draft::config_map(HOME, "app-settings")
        .data("greeting", "hello")
        .data("log-level", "info");
    let login = Draft::secret(HOME, "app-login").with("type", json!("kubernetes.io/basic-auth"));
    let login = login
        .data("username", "demo")
        .data("password", "not-a-secret");
    [
        settings.label("rule", "test").json(),
        login.label("rule", "test").json(),
    ]
}

#[tokio::test]
async fn the_seed_rule_is_carried_out_and_follows_its_sources() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, late) = (&scene.hub, scene.member(2));
    scene.hub_namespaces(&[HOME]).await?;
    scene
        .member(1)
        .make(&Draft::namespace("another-test").json())
        .await?;
    let bystander = hub
        .make(&Draft::config_map(HOME, "not-labeled").data("a", "b").json())
        .await?;
    let [settings, login] = seed_sources();
    let (settings, login) = (hub.make(&settings).await?, hub.make(&login).await?);
    let (rule, draft) = seed_rule();
    hub.make(&draft).await?;

    // One namespace does not exist in one member: its copies wait, and fail nothing.
    let summary = json!({
        "sources": 2, "clusters": 2, "clustersReady": 1,
        "copies": 8, "copiesApplied": 6, "copiesFailed": 0, "copiesWaiting": 2, "copiesDrifted": 0,
        "copiesToCreate": 0, "copiesToUpdate": 0, "copiesToDelete": 0,
    });
    let counts = [("/status/summary", summary)];
    hub.has_values("with all counts", &rule, &counts).await?;
    let waiting = hub.wait_ready(&rule, "False", "CopiesWaiting").await?;
    ensure!(entry_of(&waiting, "member-1")?["state"] == "Ready");
    let entry = entry_of(&waiting, "member-2")?;
    ensure!(
        entry["state"] == "Waiting" && entry["reason"] == "CopiesWaiting" && entry["waiting"] == 2,
        "{entry}"
    );
    ensure!(
        waiting["status"]["clusters"][0] == *entry,
        "the worst cluster stands first: {}",
        waiting["status"]
    );

    late.make(&Draft::namespace("another-test").json()).await?;
    for source in [&settings, &login] {
        scene.arrives(source, &rule, &TARGETS).await?;
    }
    hub.all_applied(&rule, 8).await?;

    let limits = Draft::config_map(HOME, "app-limits")
        .label("rule", "test")
        .data("max", "10")
        .json();
    let limits = hub.make(&limits).await?;
    scene.arrives(&limits, &rule, &TARGETS).await?;
    let change = json!({"data": {"greeting": "good evening", "log-level": null, "new": "key"}});
    let settings = hub.change(&Id::of(&settings)?, change).await?;
    scene.arrives(&settings, &rule, &TARGETS).await?;
    hub.all_applied(&rule, 12).await?;

    let relabeled = hub
        .change(
            &Id::of(&login)?,
            json!({"metadata": {"labels": {"rule": "other"}}}),
        )
        .await?;
    scene.vanishes(&relabeled, &TARGETS).await?;
    hub.all_applied(&rule, 8).await?;
    let login = hub
        .change(
            &Id::of(&login)?,
            json!({"metadata": {"labels": {"rule": "test"}}}),
        )
        .await?;
    scene.arrives(&login, &rule, &TARGETS).await?;
    hub.delete(&Id::of(&limits)?).await?;
    scene.vanishes(&limits, &TARGETS).await?;
    hub.all_applied(&rule, 8).await?;

    // The rule itself: fewer namespaces, then none at all.
    let kept = scene
        .member(1)
        .get(&Id::of(&settings)?.within("default"))
        .await?;
    hub.change(
        &rule,
        json!({"spec": {"namespaces": {"names": ["default"]}}}),
    )
    .await?;
    for source in [&settings, &login] {
        scene.vanishes(source, &["another-test"]).await?;
    }
    hub.all_applied(&rule, 4).await?;
    scene.member(1).is_untouched(&kept).await?;
    hub.delete(&rule).await?;
    for source in [&settings, &login] {
        scene.vanishes(source, &TARGETS).await?;
    }
    hub.lacks(&rule).await?;
    for source in [&settings, &login, &bystander] {
        hub.is_untouched(source).await?;
    }
    for member in &scene.members {
        ensure!(
            member
                .find(&Id::of(&bystander)?.within("default"))
                .await?
                .is_none()
        );
    }
    Ok(())
}

/// Sources of all kinds, and one that is never distributed.
fn varied(namespace: &str) -> Vec<Value> {
    let config = |name| Draft::config_map(namespace, name);
    let secret = |name, kind: &str| Draft::secret(namespace, name).with("type", json!(kind));
    let traces = config("traces")
        .data("text", "two\nlines\n\tund Umlaute: äöü ✓")
        .label("team", "a");
    let traces = traces
        .label("app.kubernetes.io/managed-by", "Helm")
        .label("app.kubernetes.io/instance", "release");
    let traces = traces
        .label("example.com/tier", "cluster")
        .label("app.kubernetes.io/name", "kept");
    let traces = [
        ("example.com/note", "kept as it is, with spaces"),
        ("kubectl.kubernetes.io/last-applied-configuration", "{}"),
        ("meta.helm.sh/release-name", "release"),
        ("argocd.argoproj.io/tracking-id", "x"),
        ("kustomize.toolkit.fluxcd.io/ssa", "Ignore"),
        ("cert-manager.io/issuer-name", "ca"),
        ("replicator.v1.mittwald.de/replicate-to", "*"),
        ("reflector.v1.k8s.emberstack.com/reflection-allowed", "true"),
        ("runnel.dev/rule", "forged/rule"),
        ("runnel.dev/seal", "forged"),
    ]
    .into_iter()
    .fold(traces, |draft, (key, value)| draft.annotation(key, value));
    let pulls = r#"{"auths":{"registry.example":{"auth":"dTpw"}}}"#;
    vec![
        config("empty").json(),
        config("binary")
            .data("text", "t")
            .with("binaryData", json!({"bytes": "AAH/gA=="}))
            .json(),
        config("fixed")
            .data("a", "1")
            .with("immutable", json!(true))
            .json(),
        traces.json(),
        secret("opaque", "Opaque")
            .data("key", "value")
            .with("immutable", json!(true))
            .json(),
        secret("served", "kubernetes.io/tls")
            .data("tls.crt", "no certificate")
            .data("tls.key", "no key")
            .json(),
        secret("served-empty", "kubernetes.io/tls")
            .data("tls.crt", "")
            .data("tls.key", "")
            .json(),
        secret("pulls", "kubernetes.io/dockerconfigjson")
            .data(".dockerconfigjson", pulls)
            .json(),
        secret("own-type", "example.com/anything").json(),
    ]
}

#[tokio::test]
async fn copies_equal_their_sources_without_traces_of_other_tools() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, home) = (&scene.hub, "content");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let mut sources = try_join_all(varied(home).iter().map(|source| hub.make(source))).await?;
    let (owner, owned) = (&sources[0], Draft::config_map(home, "owned").data("a", "b"));
    let owned = owned.json();
    let owners = json!([{"apiVersion": "v1", "kind": "ConfigMap", "name": "empty", "uid": owner["metadata"]["uid"]}]);
    let owned = hub.make(&owned).await?;
    let bound =
        json!({"metadata": {"ownerReferences": owners, "finalizers": ["example.com/wait"]}});
    sources.push(hub.change(&Id::of(&owned)?, bound).await?);

    // Every cluster makes such objects itself; and this type is a credential of this one cluster.
    let account = json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"namespace": home, "name": "robot"}});
    hub.make(&account).await?;
    let token =
        Draft::secret(home, "token").with("type", json!("kubernetes.io/service-account-token"));
    hub.make(
        &token
            .annotation("kubernetes.io/service-account.name", "robot")
            .json(),
    )
    .await?;
    // Objects of other programs are not sent either: Helm's releases, tokens of the cluster,
    // bundles of certificates.
    let release = "sh.helm.release.v1.app.v1";
    let never = [
        Draft::secret(home, release)
            .with("type", json!("helm.sh/release.v1"))
            .data("release", "x"),
        Draft::secret(home, "bootstrap")
            .with("type", json!("bootstrap.kubernetes.io/token"))
            .data("token-id", "abcdef"),
        Draft::config_map(home, "istio-ca-root-cert").data("root-cert.pem", "x"),
        Draft::config_map(home, "openshift-service-ca.crt").data("service-ca.crt", "x"),
    ];
    for draft in &never {
        hub.make(&draft.json()).await?;
    }

    let rule = Id::rule(home, "everything");
    hub.make(
        &RuleDraft::new(home, "everything")
            .named(&["*"])
            .everywhere()
            .json(),
    )
    .await?;
    for source in &sources {
        scene.arrives(source, &rule, &[home]).await?;
    }
    let observed = hub.all_applied(&rule, 2 * sources.len()).await?;
    ensure!(
        observed["status"]["summary"]["sources"] == sources.len(),
        "{}",
        observed["status"]
    );
    let message = condition(&observed, "Ready")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(
        message.contains("3 selected objects are never distributed"),
        "{message}"
    );
    ensure!(
        message.contains("secrets/content/bootstrap: its type is a credential"),
        "{message}"
    );
    for member in &scene.members {
        ensure!(member.find(&Id::secret(home, "token")).await?.is_none());
        for draft in &never {
            ensure!(
                member.find(&Id::of(&draft.json())?).await?.is_none(),
                "{:?} was copied",
                draft.json()["metadata"]
            );
        }
        // The member's own certificate bundle, not the hub's.
        let own = member
            .get(&Id::config_map(home, "kube-root-ca.crt"))
            .await?;
        ensure!(own["metadata"]["labels"].is_null());
    }
    // Labels and annotations alone are an edit too.
    let edit = json!({"metadata": {"labels": {"team": "b", "app.kubernetes.io/name": null}, "annotations": {"example.com/more": "x"}}});
    let edited = hub.change(&Id::config_map(home, "traces"), edit).await?;
    scene.arrives(&edited, &rule, &[home]).await?;
    hub.change(&Id::of(&owned)?, json!({"metadata": {"finalizers": null}}))
        .await?;
    Ok(())
}

#[tokio::test]
async fn revision_changes_when_an_edit_has_arrived_everywhere() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, home) = (&scene.hub, "arrival");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    let source = hub
        .make(&Draft::config_map(home, "settings").data("k", "one").json())
        .await?;
    let rule = Id::rule(home, "settings");
    hub.make(
        &RuleDraft::new(home, "settings")
            .named(&["settings"])
            .everywhere()
            .json(),
    )
    .await?;
    let first = hub.all_applied(&rule, 2).await?;
    let revision = first["status"]["revision"]
        .as_str()
        .context("a revision")?
        .to_owned();
    ensure!(
        first["status"]["display"] == json!({"clusters": "2/2", "copies": "2/2"}),
        "{}",
        first["status"]
    );
    ensure!(first["status"]["truncated"] == false);
    for kind in ["Ready", "Applied"] {
        ensure!(condition(&first, kind)?["status"] == "True");
    }
    for absent in ["Reconciling", "Stalled", "Suspended"] {
        ensure!(condition(&first, absent).is_err(), "{}", first["status"]);
    }

    // One agent is slow.
    fleet.agent_process(2).pause()?;
    let edited = hub
        .change(&Id::of(&source)?, json!({"data": {"k": "two"}}))
        .await?;
    let seen = async {
        scene.member(1).has_copy(&edited, home, &rule).await?;
        let under_way = hub.wait_ready(&rule, "False", "Progressing").await?;
        ensure!(condition(&under_way, "Reconciling")?["status"] == "True");
        ensure!(
            under_way["status"]["revision"] == *revision,
            "it has not arrived in member-2"
        );
        ensure!(
            entry_of(&under_way, "member-2")?["state"] == "Progressing",
            "{}",
            under_way["status"]
        );
        hub.wait_for_cluster(&rule, "member-1", "Ready", "AllApplied")
            .await
    };
    let seen = seen.await;
    fleet.agent_process(2).resume()?;
    seen?;
    hub.sees("at another revision", &rule, |rule| {
        ensure!(rule["status"]["revision"] != *revision, "still {revision}");
        Ok(())
    })
    .await?;
    for member in &scene.members {
        let copy = member.get(&Id::config_map(home, "settings")).await?;
        ensure!(
            copy["data"]["k"] == "two",
            "the revision changed before {} had the edit",
            member.name()
        );
    }
    let second = hub.all_applied(&rule, 2).await?;
    ensure!(
        condition(&second, "Reconciling").is_err(),
        "{}",
        second["status"]
    );
    Ok(())
}

#[tokio::test]
async fn rule_status_names_why_it_is_not_ready() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    let (hub, home) = (&scene.hub, "reasons");
    scene.hub_namespaces(&[home]).await?;
    let rule = Id::rule(home, "one");
    hub.make(
        &RuleDraft::new(home, "one")
            .named(&["settings"])
            .to(&["nowhere"])
            .into(&["reasons-late"])
            .json(),
    )
    .await?;
    let none = hub.wait_ready(&rule, "False", "NoSources").await?;
    ensure!(
        none["status"]["summary"]["sources"] == 0 && none["status"]["summary"]["clusters"] == 0
    );
    let zero = json!({"clusters": "0/0", "copies": "0/0"});
    ensure!(none["status"]["display"] == zero, "{}", none["status"]);

    let source = hub
        .make(&Draft::config_map(home, "settings").json())
        .await?;
    let nowhere = hub.wait_ready(&rule, "False", "NoClusters").await?;
    let message = condition(&nowhere, "Ready")?["message"]
        .as_str()
        .unwrap_or_default();
    ensure!(message.contains("kubectl get member"), "{message}");
    ensure!(
        nowhere["status"]["clusters"].is_null(),
        "{}",
        nowhere["status"]
    );

    hub.change(
        &rule,
        json!({"spec": {"clusters": {"names": ["member-1"]}}}),
    )
    .await?;
    let waits = hub.wait_ready(&rule, "False", "CopiesWaiting").await?;
    ensure!(
        waits["status"]["summary"]["copiesWaiting"] == 1
            && waits["status"]["summary"]["copiesFailed"] == 0
    );
    scene
        .member(1)
        .make(&Draft::namespace("reasons-late").json())
        .await?;
    scene
        .member(1)
        .has_copy(&source, "reasons-late", &rule)
        .await?;
    let ready = hub.all_applied(&rule, 1).await?;
    let entries = ready["status"]["clusters"].as_array().map(Vec::len);
    ensure!(
        entries == Some(1) && ready["status"]["display"]["clusters"] == "1/1",
        "{}",
        ready["status"]
    );
    Ok(())
}

#[tokio::test]
async fn kubectl_shows_rules_and_members() -> Result<()> {
    let fleet = fleet().await?;
    let scene = Scene::of(fleet).await?;
    let (hub, home) = (&scene.hub, "columns");
    scene.hub_namespaces(&[home]).await?;
    scene.member_namespaces(&[home]).await?;
    for name in ["a", "b", "c"] {
        hub.make(&Draft::config_map(home, name).json()).await?;
    }
    hub.make(
        &RuleDraft::new(home, "shown")
            .named(&["*"])
            .everywhere()
            .json(),
    )
    .await?;
    let wide = json!([{"namespaces": [home], "resources": ["configmaps"], "names": ["nothing"]}]);
    hub.make(
        &RuleDraft::cluster_scoped("shown-too")
            .with("sources", wide)
            .everywhere()
            .json(),
    )
    .await?;
    hub.all_applied(&Id::rule(home, "shown"), 6).await?;
    let too = Id::cluster_rule("shown-too");
    hub.wait_ready(&too, "False", "NoSources").await?;
    // That is known before the members have taken in the rule.
    let both = [("/status/display/clusters", json!("2/2"))];
    hub.has_values("ready in both members", &too, &both).await?;

    let shown = fleet.hub().kubectl(&["-n", home, "get", "drule"]).await?;
    let rows = cells(&shown);
    ensure!(
        rows[0]
            == [
                "NAME", "READY", "CLUSTERS", "COPIES", "FAILED", "REASON", "AGE"
            ],
        "{shown}"
    );
    ensure!(
        rows[1][..6] == ["shown", "True", "2/2", "6/6", "0", "AllApplied"],
        "{shown}"
    );
    let shown = fleet.hub().kubectl(&["get", "cdrule", "shown-too"]).await?;
    ensure!(
        cells(&shown)[1][..6] == ["shown-too", "False", "2/2", "0/0", "0", "NoSources"],
        "{shown}"
    );
    let shown = fleet.hub().kubectl(&["get", "member"]).await?;
    let rows = cells(&shown);
    let columns = [
        "NAME",
        "READY",
        "STATUS",
        "CONNECTED",
        "AGENT",
        "KUBERNETES",
        "CERTIFICATE-EXPIRES",
        "AGE",
    ];
    ensure!(
        rows[0] == columns && rows[1][..4] == ["member-1", "True", "MemberReady", "True"],
        "{shown}"
    );
    // Everything at once, by the category; and `kubectl wait` reads the condition.
    let shown = fleet.hub().kubectl(&["-n", home, "get", "runnel"]).await?;
    for name in [
        "distributionrule.runnel.dev/shown",
        "clusterdistributionrule.runnel.dev/shown-too",
        "member-2",
    ] {
        ensure!(shown.contains(name), "{shown}");
    }
    fleet
        .hub()
        .kubectl(&[
            "-n",
            home,
            "wait",
            "--for=condition=Ready",
            "drule/shown",
            "--timeout=5s",
        ])
        .await?;
    hub.delete(&Id::cluster_rule("shown-too")).await?;
    hub.lacks(&Id::cluster_rule("shown-too")).await
}

fn cells(shown: &str) -> Vec<Vec<&str>> {
    shown
        .lines()
        .map(|line| line.split_whitespace().collect())
        .collect()
}

#[tokio::test]
async fn member_status_has_its_identity() -> Result<()> {
    let scene = Scene::of(fleet().await?).await?;
    for member in &scene.members {
        let object = scene.hub.get(&Id::member(member.name())).await?;
        let status = &object["status"];
        for (kind, reason) in [("Connected", "SessionOpen"), ("Accepted", "Accepted")] {
            let observed = condition(&object, kind)?;
            ensure!(
                observed["status"] == "True" && observed["reason"] == reason,
                "{observed}"
            );
        }
        ensure!(object["metadata"]["labels"]["env"] == "prod");
        ensure!(
            status["agentVersion"] == env!("CARGO_PKG_VERSION"),
            "{status}"
        );
        let version = member.client().apiserver_version().await?.git_version;
        ensure!(status["kubernetesVersion"] == *version, "{status}");
        let system = member.get(&Id::namespace("kube-system")).await?;
        ensure!(
            status["clusterUid"] == system["metadata"]["uid"],
            "{status}"
        );
        let expires: Timestamp = status["certificate"]["expiresAt"]
            .as_str()
            .context("an expiry")?
            .parse()?;
        let now = Timestamp::now();
        ensure!(
            expires > now + 23.hours() && expires < now + 25.hours(),
            "{expires}"
        );
        ensure!(
            status["observedGeneration"] == object["metadata"]["generation"],
            "{status}"
        );
    }
    Ok(())
}
