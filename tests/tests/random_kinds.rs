//! Properties of kinds with random schemas, on real API servers: what is applied once is not written again, every applied
//! field is corrected, an adopted object is as before when its rule is gone, and copies live as those of known kinds do.

#[path = "random_kinds/shapes.rs"]
mod shapes;

use std::time::Duration;

use anyhow::{Context, Result, ensure};
use proptest::strategy::{Strategy, ValueTree};
use proptest::test_runner::TestRunner;
use runnel_tests::fleet::{Fleet, FleetOptions};
use runnel_tests::scene::{Draft, Id, RuleDraft};
use runnel_tests::specimens::{Specimen, Specimens};
use serde_json::{Value, json};

use shapes::{Shape, holds, shapes, together};

const NAMESPACE: &str = "random";
const GROUP: &str = "random.example.org";
/// Kinds in a run; always the same ones.
const KINDS: usize = 25;
/// Schemas in a kind, each of one field of its `spec`.
const SHAPES: usize = 40;
/// The time in which nothing may be written.
const QUIET: Duration = Duration::from_secs(15);

/// A kind with random schemas.
struct RandomKind {
    resource: String,
    kind: String,
    shape: Shape,
}

impl RandomKind {
    fn all() -> Result<Vec<Self>> {
        let mut runner = TestRunner::deterministic();
        let mut shape = || {
            let tree = shapes().new_tree(&mut runner);
            let tree = tree.map_err(|reason| anyhow::anyhow!("{reason}"))?;
            anyhow::Ok(tree.current())
        };
        let mut one = |number| {
            let all: Result<Vec<Shape>> = (0..SHAPES).map(|_| shape()).collect();
            Ok(Self {
                resource: format!("shape{number}s.{GROUP}"),
                kind: format!("Shape{number}"),
                shape: together(all?),
            })
        };
        (0..KINDS).map(&mut one).collect()
    }

    fn object(&self, name: &str, value: usize) -> Value {
        json!({
            "apiVersion": format!("{GROUP}/v1"), "kind": self.kind,
            "metadata": {
                "namespace": NAMESPACE, "name": name,
                "labels": {"tier": "gold", "color": "blue"}, "annotations": {"example.com/note": "a note"},
            },
            "spec": self.shape.values[value],
        })
    }

    fn id(&self, name: &str) -> Result<Id> {
        Id::of(&self.object(name, 0))
    }

    fn specimen(&self, name: &str) -> Specimen {
        let versions = [("v1", &self.shape.schema)];
        Specimen {
            resource: self.resource.clone(),
            source: self.object(name, 0),
            edit: None,
            prune: self.shape.optional_fields("/spec"),
            sets: self.shape.sets("/spec"),
            foreign: None,
            definition: Some(Draft::definition(&self.resource, &self.kind, &versions).json()),
        }
    }
}

struct RandomScene {
    world: Specimens,
    kinds: Vec<RandomKind>,
}

impl RandomScene {
    async fn start(name: &str) -> Result<Self> {
        let kinds = RandomKind::all()?;
        let resources: Vec<&str> = kinds.iter().map(|kind| &*kind.resource).collect();
        let fleet = Fleet::start(FleetOptions {
            members: 2,
            hub_values: json!({"sources": {"kinds": resources}}),
            agent_values: json!({"policy": {"kinds": resources, "overwrite": true}}),
            ..FleetOptions::default()
        })
        .await?;
        let specimens = kinds.iter().map(|kind| kind.specimen(name)).collect();
        let world = Specimens::make(fleet, NAMESPACE, specimens).await?;
        Ok(Self { world, kinds })
    }

    /// Waits until every copy in the first member has what its source has, and what `compare` asks for besides.
    async fn are_copies(
        &self,
        what: &str,
        name: &str,
        compare: impl Fn(&Value, &Value) -> bool,
    ) -> Result<()> {
        for kind in &self.kinds {
            let id = kind.id(name)?;
            let source = self.world.scene.hub.get(&id).await?;
            let copied = self.world.scene.member(1).sees(what, &id, |copy| {
                for (field, schema) in kind.shape.fields() {
                    let (copy, source) = (&copy["spec"][field], &source["spec"][field]);
                    ensure!(
                        compare(source, copy),
                        "{field} is {copy} instead of {source}, with the schema {schema}"
                    );
                }
                Ok(())
            });
            copied.await?;
        }
        Ok(())
    }

    /// Waits until every copy has what its source has, and no more.
    async fn is_equal(&self, name: &str) -> Result<()> {
        self.are_copies("equal to its source", name, |source, copy| source == copy)
            .await
    }
}

#[tokio::test]
async fn copies_of_random_kinds_are_a_fixed_point() -> Result<()> {
    let name = "fixed";
    let mut random = RandomScene::start(name).await?;
    let draft = RuleDraft::cluster_scoped(name).everywhere();
    random.world.distribute(draft).await?;
    let world = &random.world;
    random.is_equal(name).await?;
    world.is_quiet(QUIET).await?;

    let replace = |value: &Value| json!([{"op": "replace", "path": "/spec", "value": value}]);
    for kind in &random.kinds {
        let edit = replace(&kind.shape.values[1]);
        world.scene.hub.json_patch(&kind.id(name)?, edit).await?;
    }
    random.is_equal(name).await?;
    world.has_all_written().await?;
    world.is_quiet(QUIET).await?;
    world.fleet.stop_agent(1).await?;
    world.fleet.start_agent(1).await?;
    world.fleet.connected(1).await?;
    world.is_quiet(QUIET).await?;

    // Somebody else puts the first value there: each field of the source comes back.
    for kind in &random.kinds {
        let edit = replace(&kind.shape.values[0]);
        let member = world.scene.member(1);
        member.json_patch(&kind.id(name)?, edit).await?;
    }
    random.are_copies("corrected", name, holds).await?;
    world.has_all_written().await?;
    world.is_quiet(QUIET).await?;
    removal_restores_adopted_objects(&mut random).await
}

#[tokio::test]
async fn copies_of_random_kinds_live_a_second_time() -> Result<()> {
    let name = "second";
    let mut world = RandomScene::start(name).await?.world;
    world
        .distribute(RuleDraft::cluster_scoped(name).everywhere())
        .await?;
    world.live_again().await
}

/// An object that was there before is adopted when it is equal, and left as it was when its rule is deleted.
async fn removal_restores_adopted_objects(random: &mut RandomScene) -> Result<()> {
    let (name, world) = ("adopted", &mut random.world);
    let mut before = Vec::new();
    for kind in &random.kinds {
        let object = kind.object(name, 0);
        world.scene.hub.make(&object).await?;
        for member in &world.scene.members {
            before.push((member.name().to_owned(), member.make(&object).await?));
        }
    }
    world.all = random
        .kinds
        .iter()
        .map(|kind| kind.specimen(name))
        .collect();
    let draft = RuleDraft::cluster_scoped(name)
        .everywhere()
        .with("conflictPolicy", json!("AdoptIfEqual"));
    world.distribute(draft).await?;
    world.is_quiet(QUIET).await?;
    let members = &world.scene.members;
    let place = |name: &str| {
        let member = members.iter().find(|member| member.name() == name);
        member.context("no such member")
    };
    for (member, object) in &before {
        let adopted = place(member)?.get(&Id::of(object)?).await?;
        ensure!(
            runnel_tests::scene::is_marked(&adopted) && adopted["spec"] == object["spec"],
            "{adopted}"
        );
    }
    world.delete_rule().await?;
    for (member, object) in &before {
        let id = Id::of(object)?;
        let restored = place(member)?.sees("as before", &id, |after| {
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
