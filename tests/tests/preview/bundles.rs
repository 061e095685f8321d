//! Plans of bundles: of a new, an edited and a deleted one, and with the rules of the same directory.

use anyhow::{Context, Result, ensure};
use runnel_tests::scene::{Id, RuleDraft, Scene};
use runnel_tests::scratch::Scratch;
use serde_json::{Value, json};

use super::edits::{diff, file, plan};
use super::{ALONE, fleet, settled};

const HOME: &str = "bundle-plans";

/// A bundle of ConfigMaps with these names and texts.
fn bundle(maps: &[(&str, &str)]) -> Value {
    let manifest = |(name, text): &(&str, &str)| json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": name}, "data": {"k": text}});
    let manifests: Vec<_> = maps.iter().map(manifest).collect();
    json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "ManifestBundle",
        "metadata": {"namespace": HOME, "name": "app"}, "spec": {"manifests": manifests},
    })
}

/// The outcomes in the first member, by the names of the copies.
fn outcomes(plan: &Value) -> Vec<(String, String)> {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let copies = plan["copies"].as_array().into_iter().flatten();
    let copies = copies.filter(|copy| copy["cluster"] == "member-1");
    let mut all: Vec<_> = copies
        .map(|copy| (text(&copy["copy"]), text(&copy["verdict"])))
        .collect();
    all.sort();
    all
}

fn copies(all: &[(&str, &str)]) -> Vec<(String, String)> {
    let copy = |(name, verdict): &(&str, &str)| {
        (format!("configmaps/{HOME}/{name}"), (*verdict).to_owned())
    };
    all.iter().map(copy).collect()
}

#[tokio::test]
async fn plan_of_a_bundle_is_what_happens() -> Result<()> {
    let fleet = fleet().await?;
    let _alone = ALONE.lock().await;
    let scene = Scene::of(fleet).await?;
    scene.hub_namespaces(&[HOME]).await?;
    scene.member_namespaces(&[HOME]).await?;
    let grant = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": HOME},
        "spec": {
            "rules": {"namespaces": {"names": [HOME]}}, "resources": ["configmaps"], "clusters": {"all": true},
            "namespaces": {"all": true},
        },
    });
    scene.hub.make(&grant).await?;
    let folder = Scratch::new("bundle-plans")?;
    let first = bundle(&[("colors", "blue"), ("sizes", "small")]);
    let app = file(folder.path(), "app.json", &first)?;
    let (code, answer) = plan(fleet, &["-f", &app]).await?;
    let new = &answer["plans"][0];
    ensure!(code == 0, "{answer}");
    ensure!(
        new["object"] == format!("ManifestBundle {HOME}/app") && new["exists"] == false,
        "{new}"
    );
    let note = new["notes"][0].as_str().unwrap_or_default();
    ensure!(note.starts_with("no saved rule selects it"), "{new}");

    // A directory with the bundle and a rule for it: the rule is planned with the bundle.
    let entry = json!({"resources": ["manifestbundles.runnel.dev"], "names": ["app"]});
    let rule = RuleDraft::new(HOME, "app")
        .source(entry)
        .everywhere()
        .json();
    file(folder.path(), "rule.json", &rule)?;
    let directory = folder.path().display().to_string();
    let (code, answer) = plan(fleet, &["-f", &directory]).await?;
    let of_rule = &answer["plans"][1];
    ensure!(code == 0 && of_rule["exists"] == false, "{answer}");
    let created = copies(&[("colors", "create"), ("sizes", "create")]);
    ensure!(outcomes(of_rule) == created, "{of_rule}");
    ensure!(scene.hub.find(&Id::of(&first)?).await?.is_none(), "saved");

    scene.hub.make(&first).await?;
    scene.hub.make(&rule).await?;
    settled(&scene.hub, &Id::of(&rule)?).await?;
    let edited = bundle(&[("colors", "red"), ("shapes", "round")]);
    let app = file(folder.path(), "app.json", &edited)?;
    let (code, answer) = plan(fleet, &["-f", &app]).await?;
    let edit = &answer["plans"][0];
    let rules = edit["rules"].as_array().context("no rules")?;
    ensure!(
        code == 0 && edit["exists"] == true && rules.len() == 1,
        "{answer}"
    );
    ensure!(rules[0]["rule"] == format!("DistributionRule {HOME}/app"));
    let changed = copies(&[
        ("colors", "change"),
        ("shapes", "create"),
        ("sizes", "remove"),
    ]);
    ensure!(outcomes(&rules[0]) == changed, "{edit}");
    let lines = diff(&rules[0], &format!("configmaps/{HOME}/colors"));
    ensure!(lines == ["~ /data/k: \"blue\" -> \"red\""], "{lines:?}");
    // It has changed nothing, and it comes true.
    let colors = Id::config_map(HOME, "colors");
    ensure!(scene.member(1).get(&colors).await?["data"]["k"] == "blue");
    scene
        .hub
        .change(&Id::of(&first)?, json!({"spec": edited["spec"]}))
        .await?;
    scene
        .has_everywhere(&colors, "/data/k", &json!("red"))
        .await?;
    let shapes = Id::config_map(HOME, "shapes");
    scene
        .has_everywhere(&shapes, "/data/k", &json!("round"))
        .await?;
    for member in &scene.members {
        member.lacks(&Id::config_map(HOME, "sizes")).await?;
    }
    settled(&scene.hub, &Id::of(&rule)?).await?;

    let (code, answer) = plan(fleet, &["--delete", "-f", &app]).await?;
    let deleted = &answer["plans"][0]["rules"][0];
    let removed = copies(&[("colors", "remove"), ("shapes", "remove")]);
    ensure!(code == 0 && outcomes(deleted) == removed, "{answer}");

    // A wrong manifest is not sent, and its copy stays.
    let mut wrong = edited.clone();
    wrong["spec"]["manifests"][1]["metadata"]["namespace"] = json!("elsewhere");
    let app = file(folder.path(), "app.json", &wrong)?;
    let (code, answer) = plan(fleet, &["-f", &app]).await?;
    let planned = &answer["plans"][0]["rules"][0];
    let source = &planned["sources"][0];
    let message = source["message"].as_str().unwrap_or_default();
    ensure!(
        code == 4
            && source["source"] == format!("configmaps/{HOME}/shapes")
            && message.contains("spec.manifests[1]"),
        "{answer}"
    );
    ensure!(
        outcomes(planned) == copies(&[("colors", "unchanged"), ("shapes", "unchanged")]),
        "{planned}"
    );
    Ok(())
}
