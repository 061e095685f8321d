//! Applies that the API server cannot merge into the object, though what they ask for is legal.
use anyhow::{Context, Result, ensure};
use runnel_proto::model::{ConflictPolicy, DeletionPolicy, DriftPolicy, ImmutablePolicy, Reason};
use runnel_tests::scene::{Draft, Id};
use serde_json::{Value, json};

use crate::alone::source;
use crate::owned::{CONTAINERS, Kept, content, deployment, make_kind};

/// A pod template whose one container has this port under the name `web`.
fn template(image: &str, port: u16) -> Value {
    let ports = json!([{"name": "web", "containerPort": port}]);
    let container = json!({"name": "web", "image": image, "ports": ports});
    let spec = json!({"containers": [container], "restartPolicy": "Always"});
    json!({"metadata": {"labels": {"app": "web"}}, "spec": spec})
}

fn workload(image: &str) -> Value {
    json!({"spec": {"selector": {"matchLabels": {"app": "web"}}, "template": template(image, 80)}})
}

/// The kinds whose lists tell their items apart by more than a name, which each item has, too: the fields of a source with an image,
/// and the paths of its list of containers and of the number of its port.
type PortCase = (
    &'static str,
    &'static str,
    &'static str,
    fn(&str) -> Value,
    &'static str,
);

const WORKLOADS: [PortCase; 4] = [
    (
        "deployments.apps",
        "apps/v1",
        "Deployment",
        workload,
        CONTAINERS,
    ),
    (
        "daemonsets.apps",
        "apps/v1",
        "DaemonSet",
        workload,
        CONTAINERS,
    ),
    (
        "statefulsets.apps",
        "apps/v1",
        "StatefulSet",
        workload,
        CONTAINERS,
    ),
    (
        "cronjobs.batch",
        "batch/v1",
        "CronJob",
        cron_job,
        "/spec/jobTemplate/spec/template/spec/containers",
    ),
];

fn cron_job(image: &str) -> Value {
    let mut template = template(image, 80);
    template["spec"]["restartPolicy"] = json!("Never");
    json!({"spec": {"schedule": "0 0 1 1 *", "jobTemplate": {"spec": {"template": template}}}})
}

impl Kept {
    /// Waits until the agent has written its last request: it owns nothing by a patch any more.
    async fn owns_its_apply_alone(&self) -> Result<()> {
        let applied = |object: &Value| {
            let entries = object["metadata"]["managedFields"].as_array();
            let ours = entries.into_iter().flatten();
            let ours = ours.filter(|entry| entry["manager"] == "runnel-agent");
            let operations: Vec<_> = ours.map(|entry| &entry["operation"]).collect();
            ensure!(operations == ["Apply"], "{operations:?}");
            Ok(())
        };
        let place = &self.alone.place;
        place.sees("the last write", &self.id, applied).await?;
        self.alone.hub.wait_applied("r", 1).await.map(drop)
    }
}

#[tokio::test]
async fn renumbered_port_is_put_back_and_edits_arrive() -> Result<()> {
    for (resource, version, kind, fields, containers) in WORKLOADS {
        let one = Kept::start(&kind.to_lowercase(), resource, version, kind).await?;
        one.want(fields("web:1")).await.context(kind)?;
        let (port, image) = (
            format!("{containers}/0/ports/0/containerPort"),
            format!("{containers}/0/image"),
        );
        let renumber = json!([{"op": "replace", "path": port, "value": 8080}]);
        one.edit(renumber.clone()).await?;
        let back = one
            .has("our port", &[(&port, json!(80))])
            .await
            .context(kind)?;
        let ports = back
            .pointer(&format!("{containers}/0/ports"))
            .and_then(Value::as_array);
        assert_eq!(ports.map(Vec::len), Some(1), "{kind}");
        one.owns_its_apply_alone().await?;
        one.is_idle().await?;
        // The list is the agent's alone again: an item that leaves the source leaves the copy.
        one.edit(renumber).await?;
        one.want(fields("web:2")).await.context(kind)?;
        one.has("the edit", &[(&image, json!("web:2")), (&port, json!(80))])
            .await
            .context(kind)?;
        one.owns_its_apply_alone().await?;
        one.is_idle().await.context(kind)?;
        one.alone.hub.remove("r", DeletionPolicy::Delete);
        one.alone.hub.wait_gone("r").await?;
    }
    Ok(())
}

#[tokio::test]
async fn workload_of_others_with_another_port_is_overwritten() -> Result<()> {
    let one = Kept::start_overwriting(
        "unmerged-taken",
        "deployments.apps",
        "apps/v1",
        "Deployment",
    )
    .await?;
    let mut foreign = workload("web:0");
    foreign["spec"]["template"] = template("web:0", 8080);
    foreign["apiVersion"] = json!("apps/v1");
    foreign["kind"] = json!("Deployment");
    foreign["metadata"] = json!({"name": "one", "namespace": one.alone.ns("a")});
    one.alone.place.make(&foreign).await?;
    let mut wanted = one.rule(workload("web:1"));
    wanted.terms.conflict_policy = ConflictPolicy::Overwrite;
    one.alone.hub.want("r", wanted);
    let written = one.applied().await?;
    let ports = written
        .pointer(&format!("{CONTAINERS}/0/ports"))
        .context("no ports")?;
    assert_eq!(ports.as_array().map(Vec::len), Some(1), "{ports}");
    assert_eq!(ports[0]["containerPort"], 80);
    one.is_idle().await
}

#[tokio::test]
async fn default_that_a_new_value_forbids_goes() -> Result<()> {
    let one = Kept::start("forbidden", "deployments.apps", "apps/v1", "Deployment").await?;
    one.want(deployment("web:1", &["A"])).await?;
    one.edit(json!({"spec": {"replicas": 3}})).await?;
    let mut recreate = deployment("web:2", &["A"]);
    recreate["spec"]["strategy"] = json!({"type": "Recreate"});
    let changed = one.want(recreate).await?;
    assert_eq!(changed["spec"]["strategy"], json!({"type": "Recreate"}));
    assert_eq!(
        changed["spec"]["replicas"], 3,
        "the source leaves it to others"
    );
    one.is_idle().await?;
    // Back: the API server adds the default again.
    let rolling = one.want(deployment("web:3", &["A"])).await?;
    assert_eq!(
        rolling.pointer(&format!("{CONTAINERS}/0/image")),
        Some(&json!("web:3"))
    );
    one.is_idle().await?;

    let two = Kept::start(
        "forbidden-too",
        "statefulsets.apps",
        "apps/v1",
        "StatefulSet",
    )
    .await?;
    two.want(workload("web:1")).await?;
    let mut on_delete = workload("web:1");
    on_delete["spec"]["updateStrategy"] = json!({"type": "OnDelete"});
    let changed = two.want(on_delete).await?;
    assert_eq!(
        changed["spec"]["updateStrategy"],
        json!({"type": "OnDelete"})
    );
    two.is_idle().await
}

#[tokio::test]
async fn source_in_a_version_with_another_field_arrives() -> Result<()> {
    let group = "grown.example.org";
    let text = json!({"type": "string"});
    let v1 = json!({"type": "object", "properties": {"old": text, "gone": text}});
    let v2 = json!({"type": "object", "properties": {"old": text, "new": text}});
    let definition = Draft::definition(
        &format!("widgets.{group}"),
        "Widget",
        &[("v2", &v2), ("v1", &v1)],
    );
    make_kind(&definition.json()).await?;
    let mut one = Kept::start(
        "grown",
        "widgets.grown.example.org",
        "grown.example.org/v1",
        "Widget",
    )
    .await?;
    one.want(json!({"spec": {"old": "a"}})).await?;
    let mut wanted = one.rule(json!({}));
    let fields = json!({"spec": {"old": "b", "new": "c"}});
    wanted.intents = [(
        source("widgets.grown.example.org", "one"),
        content("v2", fields),
    )]
    .into();
    one.alone.hub.want("r", wanted.clone());
    one.applied().await?;
    one.is_idle().await?;
    // What leaves the source in the new version leaves the copy.
    wanted.intents = [(
        source("widgets.grown.example.org", "one"),
        content("v2", json!({"spec": {"new": "d"}})),
    )]
    .into();
    one.alone.hub.want("r", wanted);
    let left = one.applied().await?;
    assert_eq!(left["spec"], json!({}), "in version v1");
    one.is_idle().await?;
    one.restart().await
}

#[tokio::test]
async fn field_that_is_immutable_in_other_words_is_recreated() -> Result<()> {
    let grows = json!([{"rule": "self.size >= oldSelf.size", "message": "no step back"}]);
    let size = json!({"type": "integer", "minimum": 0});
    let spec =
        json!({"type": "object", "properties": {"size": size}, "x-kubernetes-validations": grows});
    let definition = Draft::definition("widgets.grows.example.org", "Widget", &[("v1", &spec)]);
    make_kind(&definition.json()).await?;
    let one = Kept::start(
        "grows",
        "widgets.grows.example.org",
        "grows.example.org/v1",
        "Widget",
    )
    .await?;
    let made = one.want(json!({"spec": {"size": 2}})).await?;
    one.alone
        .hub
        .want("r", one.rule(json!({"spec": {"size": 1}})));
    one.alone.hub.wait_failed("r", Reason::Immutable).await?;
    // What could not be created either is no matter of change.
    one.alone
        .hub
        .want("r", one.rule(json!({"spec": {"size": -1}})));
    one.alone.hub.wait_failed("r", Reason::Invalid).await?;
    let mut wanted = one.rule(json!({"spec": {"size": 1}}));
    wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
    one.alone.hub.want("r", wanted);
    let again = one.applied().await?;
    assert_eq!(again["spec"]["size"], 1);
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);
    one.is_idle().await
}

#[tokio::test]
async fn copy_that_could_not_be_made_again_is_not_deleted() -> Result<()> {
    let one = Kept::start("kept-back", "deployments.apps", "apps/v1", "Deployment").await?;
    let made = one.want(workload("web:1")).await?;
    // One field is immutable, and no object may have the other.
    let mut both = workload("web:2");
    both["spec"]["selector"]["matchLabels"]["tier"] = json!("front");
    both["spec"]["template"]["metadata"]["labels"]["tier"] = json!("front");
    both["spec"]["replicas"] = json!(-1);
    let mut wanted = one.rule(both.clone());
    wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
    one.alone.hub.want("r", wanted.clone());
    one.alone.hub.wait_failed("r", Reason::Invalid).await?;
    assert_eq!(one.get().await?["metadata"]["uid"], made["metadata"]["uid"]);
    both["spec"]["replicas"] = json!(1);
    wanted.intents = one.rule(both).intents;
    one.alone.hub.want("r", wanted);
    let again = one.applied().await?;
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);
    one.is_idle().await
}

#[tokio::test]
async fn service_with_a_port_of_its_own_is_made_again() -> Result<()> {
    let one = Kept::start("own-port", "services", "v1", "Service").await?;
    let ports = json!([{"name": "web", "port": 80, "nodePort": 31_777}]);
    let spec = json!({"type": "NodePort", "selector": {"app": "web"}, "ports": ports});
    let made = one.want(json!({"spec": spec})).await?;
    let address = made["spec"]["clusterIP"].as_str().context("no address")?;
    let (network, host) = address.rsplit_once('.').context("no IPv4 address")?;
    let other = format!("{network}.{}", if host == "77" { "78" } else { "77" });
    // An address cannot be changed, and no other Service could have the port.
    let mut fixed = spec.clone();
    fixed["clusterIP"] = json!(other);
    let mut wanted = one.rule(json!({"spec": fixed}));
    one.alone.hub.want("r", wanted.clone());
    one.alone.hub.wait_failed("r", Reason::Immutable).await?;
    wanted.terms.immutable_policy = ImmutablePolicy::Recreate;
    one.alone.hub.want("r", wanted);
    let again = one.applied().await?;
    assert_eq!(again["spec"]["clusterIP"], json!(other));
    assert_ne!(again["metadata"]["uid"], made["metadata"]["uid"]);
    one.is_idle().await
}

#[tokio::test]
async fn default_that_comes_later_is_no_drift() -> Result<()> {
    let text = json!({"type": "string"});
    let spec = |item: Value| {
        let items = json!({"type": "object", "properties": item});
        json!({"type": "object", "properties": {"rules": {"type": "array", "items": items}}})
    };
    let definition = Draft::definition(
        "widgets.later.example.org",
        "Widget",
        &[("v1", &spec(json!({"name": text})))],
    );
    make_kind(&definition.json()).await?;
    for (number, policy) in [DriftPolicy::Correct, DriftPolicy::Report]
        .into_iter()
        .enumerate()
    {
        let mut one = Kept::start(
            &format!("later-{number}"),
            "widgets.later.example.org",
            "later.example.org/v1",
            "Widget",
        )
        .await?;
        let mut wanted = one.rule(json!({"spec": {"rules": [{"name": "a"}]}}));
        wanted.terms.drift_policy = policy;
        one.alone.hub.want("r", wanted);
        let seal = |object: &Value| object["metadata"]["annotations"]["runnel.dev/seal"].clone();
        let before = seal(&one.applied().await?);
        // The definition, and with it the object, has one more default each time.
        let default = format!("weight{number}");
        let schema = "/spec/versions/0/schema/openAPIV3Schema/properties/spec/properties/rules/items/properties";
        let add = json!([{
            "op": "add", "path": format!("{schema}/{default}"), "value": {"type": "integer", "default": 1},
        }]);
        let id = Id::of(&definition.json())?;
        one.alone.place.json_patch(&id, add).await?;
        let defaulted = format!("/spec/rules/0/{default}");
        one.has("the default", &[(&defaulted, json!(1))]).await?;
        one.edit(json!({"metadata": {"annotations": {"example.com/touched": "yes"}}}))
            .await?;
        // A watch that is older than the definition does not show the default.
        one.alone.stop_agent().await?;
        one.alone.start_agent().await?;
        let renewed = |object: &Value| {
            ensure!(seal(object) != before, "the seal is as before");
            Ok(())
        };
        let place = &one.alone.place;
        place.sees("sealed again", &one.id, renewed).await?;
        one.applied().await?;
        one.is_idle().await?;
        let events = place.events_about(&one.id).await?;
        ensure!(events.is_empty(), "{policy:?}: {events:?}");
    }
    Ok(())
}
