//! Objects of many kinds that one rule distributes, each with what may be done to it.

mod second_life;
mod values;

use std::collections::BTreeSet;
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use crate::fleet::Fleet;
use crate::scene::{Id, RuleDraft, SOON, Scene, TestCluster};
use crate::wait::{eventually, steadily};
pub use values::{differences, is_key, leaves, other_value};

/// Kinds in one entry of a rule.
const KINDS_OF_ENTRY: usize = 10;

/// An object of one kind, and what is done to it.
#[derive(Clone, Debug)]
pub struct Specimen {
    /// The kind, as `plural[.group]`.
    pub resource: String,
    /// The object as its author writes it.
    pub source: Value,
    /// A merge patch of the source.
    pub edit: Option<Value>,
    /// Fields that leave the source.
    pub prune: Vec<String>,
    /// Lists whose items are identified by their values: another value is another item, which may stay beside ours.
    pub sets: Vec<String>,
    /// Fields that another manager applies to a copy.
    pub foreign: Option<Value>,
    /// The CustomResourceDefinition, for a custom kind.
    pub definition: Option<Value>,
}

impl Specimen {
    /// The id of source and copies.
    ///
    /// # Errors
    /// When the source is no object.
    pub fn id(&self) -> Result<Id> {
        Id::of(&self.source)
    }

    /// Pointers to the single values of the source that are no identities of items.
    pub fn values(&self) -> Vec<String> {
        let in_set = |pointer: &str| self.sets.iter().any(|set| pointer.starts_with(set));
        let all = leaves(&self.source).into_iter();
        all.filter(|pointer| !is_key(pointer) && !in_set(pointer))
            .collect()
    }

    /// Lets another manager apply its fields to a copy. Returns what it applied.
    ///
    /// # Errors
    /// When the API server refuses.
    pub async fn add_foreign_fields(&self, member: &TestCluster) -> Result<Value> {
        let mut fields = json!({
            "apiVersion": self.source["apiVersion"],
            "kind": self.source["kind"],
            "metadata": {
                "name": self.source["metadata"]["name"],
                "labels": {"example.com/local": "yes"},
                "annotations": {"example.com/local": "yes"},
            },
        });
        if let Some(namespace) = self.source["metadata"].get("namespace") {
            fields["metadata"]["namespace"] = namespace.clone();
        }
        if let Some(Value::Object(foreign)) = &self.foreign {
            for (field, value) in foreign {
                fields[field] = value.clone();
            }
        }
        let applied = member.apply_as("local-team", &fields).await;
        applied.with_context(|| self.resource.clone())?;
        Ok(fields)
    }
}

/// A fleet with the specimens on its hub, and the newest rule for them.
#[derive(Debug)]
pub struct Specimens {
    /// The fleet.
    pub fleet: Fleet,
    /// Its clusters.
    pub scene: Scene,
    /// The namespace of those that have one.
    pub namespace: String,
    /// The specimens.
    pub all: Vec<Specimen>,
    /// The newest rule.
    pub rule: Id,
}

impl Specimens {
    /// Makes the definitions, and the sources.
    ///
    /// # Errors
    /// When an API server refuses.
    pub async fn make(fleet: Fleet, namespace: &str, all: Vec<Specimen>) -> Result<Self> {
        let scene = Scene::of(&fleet).await?;
        scene.lift_fleet_limits().await?;
        scene.hub_namespaces(&[namespace]).await?;
        scene.member_namespaces(&[namespace]).await?;
        for specimen in &all {
            for cluster in std::iter::once(&scene.hub).chain(&scene.members) {
                if let Some(definition) = &specimen.definition {
                    let made = cluster.make(definition).await;
                    made.with_context(|| definition.to_string())?;
                }
            }
        }
        for specimen in &all {
            scene.hub.make_soon(&specimen.source).await?;
        }
        Ok(Self {
            fleet,
            scene,
            namespace: namespace.to_owned(),
            all,
            rule: Id::cluster_rule("none"),
        })
    }

    /// Makes a rule of all sources, and waits until it has all copies.
    ///
    /// # Errors
    /// When it has not at the deadline.
    pub async fn distribute(&mut self, mut rule: RuleDraft) -> Result<()> {
        let names = self.names();
        let of_scope = |cluster: bool| -> Vec<&str> {
            let is_of = |specimen: &&Specimen| {
                specimen.source["metadata"]["namespace"].is_null() == cluster
            };
            let kinds = self.all.iter().filter(is_of);
            kinds.map(|specimen| &*specimen.resource).collect()
        };
        for resources in of_scope(false).chunks(KINDS_OF_ENTRY) {
            let entry =
                json!({"namespaces": [self.namespace], "resources": resources, "names": names});
            rule = rule.source(entry);
        }
        for resources in of_scope(true).chunks(KINDS_OF_ENTRY) {
            rule = rule.source(json!({"resources": resources, "names": names}));
        }
        self.rule = Id::of(&self.scene.hub.make(&rule.json()).await?)?;
        self.has_all_written().await
    }

    fn names(&self) -> BTreeSet<&str> {
        let names = self.all.iter();
        names
            .filter_map(|specimen| specimen.source["metadata"]["name"].as_str())
            .collect()
    }

    /// Waits until the rule says that every copy is written.
    ///
    /// # Errors
    /// When it does not at the deadline.
    pub async fn has_all_written(&self) -> Result<()> {
        let copies = self.all.len() * self.fleet.size();
        self.scene.hub.all_written(&self.rule, copies).await?;
        Ok(())
    }

    /// Waits until all members have the content of a source, in the fields that `wanted` has.
    ///
    /// # Errors
    /// At the deadline, with what differs.
    pub async fn is_equal_everywhere(&self, specimen: &Specimen, wanted: &Value) -> Result<()> {
        let id = specimen.id()?;
        let source = self.scene.hub.get(&id).await?;
        for member in &self.scene.members {
            let what = format!("{} as on the hub", specimen.resource);
            let seen = member.sees(&what, &id, |copy| {
                let differences = differences(wanted, &source, copy);
                ensure!(differences.is_empty(), "{differences:?}");
                for pointer in &specimen.prune {
                    let is_pruned = wanted.pointer(pointer).is_none();
                    ensure!(
                        !is_pruned || source.pointer(pointer) == copy.pointer(pointer),
                        "{pointer} is still there"
                    );
                }
                Ok(())
            });
            seen.await?;
        }
        Ok(())
    }

    /// Checks that no agent writes a copy for so long. Controllers may write statuses.
    ///
    /// # Errors
    /// When one does.
    pub async fn is_quiet(&self, time: Duration) -> Result<()> {
        let names = self.names();
        let members = 1..=self.fleet.size();
        let marks: Vec<_> = members
            .map(|number| (number, self.fleet.member(number).mark()))
            .collect();
        steadily("no agent writes", time, async || {
            for (number, mark) in &marks {
                let writes = self.fleet.member(*number).writes_since(*mark)?;
                let ours: Vec<_> = writes
                    .iter()
                    .filter(|write| write.user.contains("runnel-agent"))
                    .filter(|write| {
                        write.namespace == self.namespace || names.contains(&*write.name)
                    })
                    .collect();
                ensure!(ours.is_empty(), "{ours:?}");
            }
            Ok(())
        })
        .await
    }

    /// Deletes the rule, however many copies go with it.
    ///
    /// # Errors
    /// When it is still there at the deadline.
    pub async fn delete_rule(&self) -> Result<()> {
        let all = json!({"spec": {"removalLimit": {"percent": 100}}});
        self.scene.hub.change(&self.rule, all).await?;
        self.scene.hub.delete(&self.rule).await?;
        self.scene.hub.lacks(&self.rule).await
    }

    /// Waits until every copy is gone. A finalizer of the cluster may hold it longer.
    ///
    /// # Errors
    /// When one is still there at the deadline.
    pub async fn is_empty(&self) -> Result<()> {
        for specimen in &self.all {
            let id = specimen.id()?;
            for member in &self.scene.members {
                is_removed(member, &id).await?;
            }
        }
        Ok(())
    }
}

async fn is_removed(member: &TestCluster, id: &Id) -> Result<()> {
    eventually(&format!("{id} removed"), SOON, async || {
        if let Some(copy) = member.find(id).await? {
            let metadata = &copy["metadata"];
            ensure!(
                metadata["deletionTimestamp"].is_string() && metadata["finalizers"].is_array(),
                "it is still there"
            );
        }
        Ok(Some(()))
    })
    .await
}
