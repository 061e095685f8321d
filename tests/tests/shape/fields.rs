//! Copies whose fields are patched, removed and filled by pointers.

use anyhow::Result;
use runnel_tests::scene::{Draft, Id, RuleDraft};
use serde_json::{Value, json};

use super::{holds, scene};

#[tokio::test]
async fn fields_are_removed_filled_and_patched_per_cluster() -> Result<()> {
    let home = "pointers";
    let scene = scene(home).await?;
    let (hub, id) = (&scene.hub, Id::config_map(home, "app"));
    let of = format!("configmaps/{home}/app");
    let draft = Draft::config_map(home, "app")
        .data("at", "${cluster.name}")
        .data("raw", "${cluster.name}")
        .data("level", "info")
        .data("old", "x")
        .data("80", "web");
    hub.make(&draft.json()).await?;
    let first = |change: Value| json!({"clusters": {"names": ["member-1"]}, "jsonPatch": [change]});
    let step = json!({"op": "copy", "from": "/data/level", "path": "/data/was"});
    let overrides = |step: Value| {
        json!([
            {"clusters": {"names": ["member-1"]}, "mergePatch": {"data": {"level": "debug", "old": null}}},
            {"clusters": {"all": true}, "names": ["other"], "data": {"level": "none"}},
            first(step),
        ])
    };
    let rule = Id::rule(home, "all");
    let draft = RuleDraft::new(home, "all")
        .source(json!({"resources": ["configmaps"], "names": ["app"]}))
        .everywhere()
        .with("transform", json!({"removeFields": ["/data/80"]}))
        .with("substitute", json!({"fields": ["/data/at"]}))
        .with("overrides", overrides(step));
    hub.make(&draft.json()).await?;
    let one = json!({"at": "member-1", "raw": "${cluster.name}", "level": "debug", "was": "debug"});
    let two = json!({"at": "member-2", "raw": "${cluster.name}", "level": "info", "old": "x"});
    let patched = holds(scene.member(1), &id, &of, one).await?;
    holds(scene.member(2), &id, &of, two.clone()).await?;
    hub.all_applied(&rule, 2).await?;

    // A test that finds another value: the copy stays, and the other cluster is not affected.
    let wrong = json!({"op": "test", "path": "/data/level", "value": "info"});
    hub.change(&rule, json!({"spec": {"overrides": overrides(wrong)}}))
        .await?;
    let words = [
        "to member-1",
        "spec.overrides[2].jsonPatch",
        &of,
        "step 0 (test /data/level) fails: another value is there",
    ];
    hub.wait_refused(&rule, "TransformFailed", &words).await?;
    scene.member(1).is_untouched(&patched).await?;
    hub.wait_for_cluster(&rule, "member-2", "Ready", "AllApplied")
        .await?;

    // What no ConfigMap has is refused on the hub, and reaches no cluster.
    let foreign = json!([{"clusters": {"all": true}, "mergePatch": {"spec": {"replicas": 3}}}]);
    hub.change(&rule, json!({"spec": {"overrides": foreign}}))
        .await?;
    let words = [
        "2 clusters",
        "spec.overrides[0].mergePatch",
        "no field spec",
    ];
    hub.wait_refused(&rule, "TransformFailed", &words).await?;
    scene.member(1).is_untouched(&patched).await?;

    hub.change(
        &rule,
        json!({"spec": {"overrides": null, "transform": null}}),
    )
    .await?;
    let plain = json!({"at": "member-1", "raw": "${cluster.name}", "level": "info", "old": "x", "80": "web"});
    holds(scene.member(1), &id, &of, plain).await?;
    hub.all_applied(&rule, 2).await?;
    Ok(())
}
