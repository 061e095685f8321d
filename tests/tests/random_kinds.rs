//! Properties of kinds with random schemas, on real API servers: what is applied once is not written again, every applied
//! field is corrected, and an adopted object is as before when its rule is gone.

#[path = "random_kinds/shapes.rs"]
mod shapes;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft, Scene};
use runnel_tests::wait::steadily;
use serde_json::{Value, json};

use shapes::{Shape, holds, shapes};

const NAMESPACE: &str = "random";
const GROUP: &str = "random.example.org";
/// Schemas in a run; always the same ones.
const SHAPES: usize = 24;
/// The time in which nothing may be written.
const QUIET: Duration = Duration::from_secs(15);

/// A kind with a random schema.
struct RandomKind {
    resource: String,
    kind: String,
    shape: Shape,
}

impl RandomKind {
    fn all() -> Result<Vec<Self>> {
        let mut runner = TestRunner::deterministic();
        let one = |number| {
            let tree = shapes().new_tree(&mut runner);
            let shape = tree
                .map_err(|reason| anyhow::anyhow!("{reason}"))?
                .current();
            Ok(Self {
                resource: format!("shape{number}s.{GROUP}"),
                kind: format!("Shape{number}"),
                shape,
            })
        };
        (0..SHAPES).map(one).collect()
    }

    fn object(&self, name: &str, value: usize) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": self.kind,
            "metadata": {"namespace": NAMESPACE, "name": name}, "spec": self.shape.values[value],
        })
    }

    fn id(&self, name: &str) -> Result<Id> {
        Id::of(&self.object(name, 0))
    }
}

struct RandomScene {
    fleet: Fleet,
    scene: Scene,
    kinds: Vec<RandomKind>,
}

impl RandomScene {
    async fn start() -> Result<Self> {
        let kinds = RandomKind::all()?;
        let resources: Vec<&str> = kinds.iter().map(|kind| &*kind.resource).collect();
        let fleet = Fleet::start(FleetOptions {
            hub_values: json!({"sources": {"kinds": resources}}),
            agent_values: json!({"policy": {"kinds": resources}}),
            ..FleetOptions::default()
        })
        .await?;
        let scene = Scene::of(&fleet).await?;
        scene.lift_fleet_limits().await?;
        scene.hub_namespaces(&[NAMESPACE]).await?;
        scene.member_namespaces(&[NAMESPACE]).await?;
        for kind in &kinds {
            let version = [("v1", &kind.shape.schema)];
            let definition = Draft::definition(&kind.resource, &kind.kind, &version).json();
            for cluster in [&scene.hub, scene.member(1)] {
                cluster
                    .make(&definition)
                    .await
                    .with_context(|| kind.shape.schema.to_string())?;
            }
        }
        Ok(Self {
            fleet,
            scene,
            kinds,
        })
    }

    /// A rule for the objects of all kinds with this name, when every copy is applied.
    async fn distribute(&self, name: &str, draft: RuleDraft) -> Result<Id> {
        let resources: Vec<&str> = self.kinds.iter().map(|kind| &*kind.resource).collect();
        let rule = resources.chunks(10).fold(draft, |rule, resources| {
            rule.source(json!({"namespaces": [NAMESPACE], "resources": resources, "names": [name]}))
        });
        let rule = Id::of(&self.scene.hub.make(&rule.json()).await?)?;
        self.scene.hub.all_applied(&rule, SHAPES).await?;
        Ok(rule)
    }

    /// Checks that the agent writes none of the objects, nor asks what a write would do.
    async fn is_quiet(&self) -> Result<()> {
        let mark = self.fleet.member(1).mark();
        steadily("no agent writes", QUIET, async || {
            let writes = self.fleet.member(1).writes_since(mark)?;
            let ours: Vec<_> = writes
                .iter()
                .filter(|write| write.user.contains("runnel-agent") && write.namespace == NAMESPACE)
                .collect();
            ensure!(ours.is_empty(), "{ours:?}");
            Ok(())
        })
        .await
    }

    /// Waits until every copy has what its source has, and no more.
    async fn is_equal(&self, name: &str) -> Result<()> {
        for kind in &self.kinds {
            let id = kind.id(name)?;
            let source = self.scene.hub.get(&id).await?;
            let copied = self
                .scene
                .member(1)
                .sees("equal to its source", &id, |copy| {
                    ensure!(
                        copy["spec"] == source["spec"],
                        "{} and {}",
                        copy["spec"],
                        source["spec"]
                    );
                    Ok(())
                });
            copied
                .await
                .with_context(|| kind.shape.schema.to_string())?;
        }
        Ok(())
    }
}

#[tokio::test]
async fn copies_of_random_kinds_are_a_fixed_point() -> Result<()> {
    let random = RandomScene::start().await?;
    let (scene, name) = (&random.scene, "fixed");
    for kind in &random.kinds {
        scene.hub.make_soon(&kind.object(name, 0)).await?;
    }
    let draft = RuleDraft::cluster_scoped(name).everywhere();
    let rule = random.distribute(name, draft).await?;
    random.is_equal(name).await?;
    random.is_quiet().await?;

    let replace = |value: &Value| json!([{"op": "replace", "path": "/spec", "value": value}]);
    for kind in &random.kinds {
        let edit = replace(&kind.shape.values[1]);
        scene.hub.json_patch(&kind.id(name)?, edit).await?;
    }
    random.is_equal(name).await?;
    scene.hub.all_applied(&rule, SHAPES).await?;
    random.is_quiet().await?;
    random.fleet.stop_agent(1).await?;
    random.fleet.start_agent(1).await?;
    random.fleet.connected(1).await?;
    random.is_quiet().await?;

    // Somebody else puts the first value there: each field of the source comes back.
    for kind in &random.kinds {
        let id = kind.id(name)?;
        let source = scene.hub.get(&id).await?;
        let edit = replace(&kind.shape.values[0]);
        scene.member(1).json_patch(&id, edit).await?;
        let corrected = scene.member(1).sees("corrected", &id, |copy| {
            ensure!(
                holds(&source["spec"], &copy["spec"]),
                "{} instead of {}",
                copy["spec"],
                source["spec"]
            );
            Ok(())
        });
        corrected
            .await
            .with_context(|| kind.shape.schema.to_string())?;
    }
    scene.hub.all_applied(&rule, SHAPES).await?;
    random.is_quiet().await?;
    removal_restores_adopted_objects(&random).await
}

/// An object that was there before is adopted when it is equal, and left as it was when its rule is deleted.
async fn removal_restores_adopted_objects(random: &RandomScene) -> Result<()> {
    let (scene, name) = (&random.scene, "adopted");
    let mut before = Vec::new();
    for kind in &random.kinds {
        let object = kind.object(name, 0);
        scene.hub.make(&object).await?;
        before.push(scene.member(1).make(&object).await?);
    }
    let draft = RuleDraft::cluster_scoped(name)
        .everywhere()
        .with("conflictPolicy", json!("AdoptIfEqual"));
    let rule = random.distribute(name, draft).await?;
    random.is_quiet().await?;
    for object in &before {
        let adopted = scene.member(1).get(&Id::of(object)?).await?;
        ensure!(
            runnel_tests::scene::is_marked(&adopted) && adopted["spec"] == object["spec"],
            "{adopted}"
        );
    }
    let all = json!({"spec": {"removalLimit": {"percent": 100}}});
    scene.hub.change(&rule, all).await?;
    scene.hub.delete(&rule).await?;
    scene.hub.lacks(&rule).await?;
    for object in &before {
        let id = Id::of(object)?;
        let restored = scene.member(1).sees("as before", &id, |after| {
            ensure!(
                essence(after) == essence(object),
                "{after} instead of {object}"
            );
            Ok(())
        });
        restored.await?;
    }
    Ok(())
}

/// An object without what changes with each write, and with the names of its managers.
fn essence(object: &Value) -> (Value, Vec<Value>) {
    let managers = object["metadata"]["managedFields"].as_array();
    let managers = managers.into_iter().flatten();
    let names = managers.map(|entry| entry["manager"].clone()).collect();
    let mut object = object.clone();
    if let Some(metadata) = object["metadata"].as_object_mut() {
        metadata.retain(|field, _| !["managedFields", "resourceVersion"].contains(&&**field));
        // Empty maps of labels and annotations say nothing.
        metadata.retain(|_, value| !value.as_object().is_some_and(serde_json::Map::is_empty));
    }
    (object, names)
}
