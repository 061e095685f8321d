//! What becomes of the copies of every kind after they arrived: changed, replaced, deleted, left alone, adopted, overwritten.
use std::time::Duration;

use anyhow::{Context, Result, ensure};
use futures::{StreamExt, stream};
use runnel_agent_core::managed_fields::FIELD_MANAGER;
use runnel_proto::model::CUSTOM_RESOURCE_DEFINITIONS;
use serde_json::{Value, json};

use super::values::{is_key, leaves, lists, other_value};
use super::{Specimen, Specimens};
use crate::scene::{Id, RuleDraft, SOON, TestCluster, is_marked};
use crate::wait::eventually;

/// Copies that are dealt with at a time.
const AT_ONCE: usize = 6;
/// The time in which nothing may be written.
const QUIET: Duration = Duration::from_secs(15);

/// A label of every source that leaves it for a while.
const LABEL: &str = "/metadata/labels/color";

/// A change of one place of an object.
enum Edit {
    Set(String, Value),
    /// The items of a list in the opposite order.
    Reverse(String),
}

impl Edit {
    fn apply(&self, object: &mut Value) {
        match self {
            Self::Set(pointer, value) => {
                if let Some(place) = object.pointer_mut(pointer) {
                    place.clone_from(value);
                }
            }
            Self::Reverse(pointer) => {
                let list = object.pointer_mut(pointer).and_then(Value::as_array_mut);
                list.into_iter().for_each(|items| items.reverse());
            }
        }
    }
}

/// Makes the edits that the API server accepts of an object, at most so many.
async fn edited(
    cluster: &TestCluster,
    object: &Value,
    edits: &[Edit],
    limit: usize,
) -> Result<Value> {
    let mut all = object.clone();
    edits.iter().for_each(|edit| edit.apply(&mut all));
    if edits.len() <= limit && cluster.accepts_instead(&all).await? {
        return Ok(all);
    }
    let (mut edited, mut made) = (object.clone(), 0);
    for edit in edits {
        let mut next = edited.clone();
        edit.apply(&mut next);
        if made < limit && next != edited && cluster.accepts_instead(&next).await? {
            (edited, made) = (next, made + 1);
        }
    }
    Ok(edited)
}

/// Edits of the values that a source has besides its labels and annotations.
fn content_edits(specimen: &Specimen, object: &Value) -> Vec<Edit> {
    let content = specimen.values().into_iter();
    let content = content.filter(|pointer| !pointer.starts_with("/metadata/"));
    let edits = content.filter_map(|pointer| {
        let value = other_value(object.pointer(&pointer)?);
        Some(Edit::Set(pointer, value))
    });
    edits.collect()
}

/// Changes one value of the content and a label of an object.
async fn with_other_values(
    cluster: &TestCluster,
    specimen: &Specimen,
    object: &Value,
) -> Result<Value> {
    let edits = content_edits(specimen, object);
    let mut changed = edited(cluster, object, &edits, 1).await?;
    Edit::Set("/metadata/labels/tier".to_owned(), json!("bronze")).apply(&mut changed);
    Ok(changed)
}

/// Gives the items of lists other numbers, and the opposite order.
async fn with_moved_items(
    cluster: &TestCluster,
    specimen: &Specimen,
    object: &Value,
) -> Result<Value> {
    let source = &specimen.source;
    let keys = leaves(source).into_iter().filter(|pointer| is_key(pointer));
    let numbers = keys.filter_map(|pointer| {
        let number = object.pointer(&pointer)?.as_u64()?;
        Some(Edit::Set(pointer, json!(number + 1)))
    });
    let orders = lists(source).into_iter().map(Edit::Reverse);
    let edits: Vec<Edit> = numbers.chain(orders).collect();
    edited(cluster, object, &edits, usize::MAX).await
}

/// Replaces an object by a changed one, as soon as no other client writes meanwhile.
async fn replace_soon(
    cluster: &TestCluster,
    manager: &str,
    (specimen, id): (&Specimen, &Id),
    change: &impl AsyncFn(&TestCluster, &Specimen, &Value) -> Result<Value>,
) -> Result<()> {
    eventually(&format!("{id} to be replaced"), SOON, async || {
        let object = cluster.get(id).await?;
        let changed = change(cluster, specimen, &object).await?;
        if changed != object {
            cluster.replace_as(manager, &changed).await?;
        }
        Ok(Some(()))
    })
    .await
}

/// Objects as a client sends them in one file.
fn file_of(objects: &[Value]) -> String {
    json!({"apiVersion": "v1", "kind": "List", "items": objects}).to_string()
}

impl Specimens {
    /// Changes, replaces, deletes, retains, adopts and overwrites the copies of the newest rule, as users, other tools and
    /// controllers do, and checks after each step that they are what they have to be. No copy is left. The fleet has two members.
    ///
    /// # Errors
    /// When a copy is not what it has to be, with the step.
    pub async fn live_again(&mut self) -> Result<()> {
        // A copy in a member is corrected five times: more often would be a contention.
        self.replace(1, "somebody", with_other_values).await?;
        self.replace(2, "kube-controller-manager", with_other_values)
            .await?;
        self.replace(1, "somebody", with_moved_items).await?;
        self.apply_with_kubectl(2, &[]).await?;
        let options = [
            "--server-side",
            "--force-conflicts",
            "--field-manager=other-team",
        ];
        self.apply_with_kubectl(1, &options).await?;
        self.replace(
            2,
            "somebody",
            async |member: &TestCluster, specimen: &Specimen, copy: &Value| {
                Ok(without_marks(
                    with_other_values(member, specimen, copy).await?,
                ))
            },
        )
        .await?;
        self.prune_shared_fields().await?;
        self.delete_all(1, "foreground").await?;
        self.delete_all(1, "background").await?;
        self.delete_all(2, "orphan").await?;
        self.delete_with_finalizer(2).await?;
        self.move_to_another_version().await?;
        self.is_quiet(QUIET).await?;

        self.retain().await?;
        let adopting = RuleDraft::cluster_scoped("adopting").everywhere();
        self.distribute(adopting.with("conflictPolicy", json!("AdoptIfEqual")))
            .await?;
        self.is_equal("adopted").await?;
        self.is_quiet(QUIET).await?;
        // They are copies again.
        self.delete_rule().await?;
        self.is_empty().await?;

        let added = self.make_as_others().await?;
        let overwriting = RuleDraft::cluster_scoped("overwriting").everywhere();
        self.distribute(overwriting.with("conflictPolicy", json!("Overwrite")))
            .await?;
        self.is_equal("overwritten").await?;
        for fields in &added {
            for member in &self.scene.members {
                has_none_of(member, fields).await?;
            }
        }
        self.is_quiet(QUIET).await?;
        self.delete_rule().await?;
        self.is_empty().await
    }

    /// Lets another owner make each object, with other values. Returns what is added to them.
    async fn make_as_others(&self) -> Result<Vec<Value>> {
        let mut added = vec![];
        for member in &self.scene.members {
            added = self
                .of_each(async |specimen, id| {
                    member.make(&specimen.source).await?;
                    is_taken_up(member, specimen, id).await?;
                    replace_soon(member, "former-owner", (specimen, id), &with_other_values)
                        .await?;
                    specimen.add_foreign_fields(member).await
                })
                .await?;
        }
        Ok(added)
    }

    /// Does something with every specimen, several at a time, and returns the results in the order of the specimens. An error has the
    /// words of all that failed.
    async fn of_each<T>(&self, work: impl AsyncFn(&Specimen, &Id) -> Result<T>) -> Result<Vec<T>> {
        let (work, specimens) = (&work, stream::iter(&self.all));
        let all = specimens.map(async |specimen| {
            let id = specimen.id()?;
            let done = work(specimen, &id).await;
            done.with_context(|| specimen.resource.clone())
        });
        let all: Vec<Result<T>> = all.buffered(AT_ONCE).collect().await;
        let failed: Vec<String> = all
            .iter()
            .filter_map(|done| done.as_ref().err())
            .map(|error| format!("{error:#}"))
            .collect();
        ensure!(failed.is_empty(), "{}", failed.join("\n"));
        all.into_iter().collect()
    }

    /// Replaces each copy in a member by a changed one.
    async fn replace(
        &self,
        number: usize,
        manager: &str,
        change: impl AsyncFn(&TestCluster, &Specimen, &Value) -> Result<Value>,
    ) -> Result<()> {
        let member = self.scene.member(number);
        self.of_each(async |specimen, id| {
            replace_soon(member, manager, (specimen, id), &change).await
        })
        .await?;
        self.is_equal(&format!("replaced by {manager}")).await
    }

    /// Lets `kubectl apply` send each source with other values.
    async fn apply_with_kubectl(&self, number: usize, options: &[&str]) -> Result<()> {
        let member = self.scene.member(number);
        let changed = self.of_each(async |specimen, id| {
            let copy = member.get(id).await?;
            let changed = with_other_values(member, specimen, &copy).await?;
            let mut sent = specimen.source.clone();
            for pointer in leaves(&specimen.source) {
                // The server has another form of some values.
                if copy.pointer(&pointer) != changed.pointer(&pointer)
                    && let Some(value) = changed.pointer(&pointer)
                {
                    Edit::Set(pointer, value.clone()).apply(&mut sent);
                }
            }
            Ok(sent)
        });
        let file = file_of(&changed.await?);
        let words = [&["apply", "-f", "-"], options].concat();
        self.fleet
            .member(number)
            .kubectl_stdin(&words, &file)
            .await?;
        self.is_equal(&format!("kubectl {}", words.join(" "))).await
    }

    /// Deletes each copy, and waits until there is another one instead.
    async fn delete_all(&self, number: usize, how: &str) -> Result<()> {
        let member = self.scene.member(number);
        let before = self.of_each(async |_, id| member.get(id).await).await?;
        let objects: Vec<Value> = before
            .iter()
            .filter(|copy| goes_at_once(copy))
            .cloned()
            .collect();
        ensure!(
            objects.len() * 2 > before.len(),
            "only {} kinds go at once",
            objects.len()
        );
        let words = [
            "delete",
            "--wait=false",
            &format!("--cascade={how}"),
            "-f",
            "-",
        ];
        self.fleet
            .member(number)
            .kubectl_stdin(&words, &file_of(&objects))
            .await?;
        for object in &objects {
            is_made_again(member, object).await?;
        }
        self.is_equal(&format!("deleted with --cascade={how}"))
            .await
    }

    /// Deletes each copy while another client has a finalizer on it, which goes later.
    async fn delete_with_finalizer(&self, number: usize) -> Result<()> {
        let member = self.scene.member(number);
        let finalizer =
            json!([{"op": "add", "path": "/metadata/finalizers", "value": ["example.com/hold"]}]);
        let before = self.of_each(async |_, id| {
            let copy = member.get(id).await?;
            if !goes_at_once(&copy) {
                return Ok(None);
            }
            let copy = member.json_patch(id, finalizer.clone()).await?;
            member.delete(id).await?;
            Ok(Some(copy))
        });
        let before: Vec<Value> = before.await?.into_iter().flatten().collect();
        for copy in &before {
            let id = Id::of(copy)?;
            let now = member.get(&id).await?;
            ensure!(
                now["metadata"]["deletionTimestamp"].is_string(),
                "{id} is not being deleted"
            );
            let none = json!([{"op": "remove", "path": "/metadata/finalizers"}]);
            member.json_patch(&id, none).await?;
        }
        for copy in &before {
            is_made_again(member, copy).await?;
        }
        self.is_equal("deleted with a finalizer").await
    }

    /// Waits until every copy equals its source, and no copy has failed.
    async fn is_equal(&self, after: &str) -> Result<()> {
        let equal = self.of_each(async |specimen, _| {
            self.is_equal_everywhere(specimen, &specimen.source).await
        });
        equal.await.with_context(|| after.to_owned())?;
        let written = self.has_all_written().await;
        written.with_context(|| after.to_owned())?;
        eprintln!("equal to their sources: {after}");
        Ok(())
    }

    /// Serves each custom kind in one more version, which API servers prefer, and waits until the copies are written in it. A hub looks
    /// for other versions when it starts, and every ten minutes.
    async fn move_to_another_version(&self) -> Result<()> {
        let custom = self.all.iter();
        let custom: Vec<_> = custom
            .filter_map(|specimen| Some((specimen, specimen.definition.as_ref()?)))
            .collect();
        for (_, definition) in &custom {
            let mut version = definition["spec"]["versions"][0].clone();
            version["name"] = json!("v9");
            version["storage"] = json!(false);
            let add = json!([{"op": "add", "path": "/spec/versions/-", "value": version}]);
            for cluster in std::iter::once(&self.scene.hub).chain(&self.scene.members) {
                cluster
                    .json_patch(&Id::of(definition)?, add.clone())
                    .await?;
            }
        }
        self.fleet.kill_hub()?;
        self.fleet.start_hub().await?;
        for member in &self.scene.members {
            for (specimen, _) in &custom {
                let id = specimen.id()?;
                let in_version = |copy: &Value| {
                    let entries = copy["metadata"]["managedFields"].as_array();
                    let mut entries = entries.into_iter().flatten();
                    let is_ours = |entry: &&Value| {
                        entry["manager"] == FIELD_MANAGER && entry["operation"] == "Apply"
                    };
                    let version = entries
                        .find(is_ours)
                        .map(|entry| entry["apiVersion"].clone());
                    ensure!(
                        version
                            .as_ref()
                            .and_then(Value::as_str)
                            .is_some_and(|version| version.ends_with("/v9")),
                        "it is applied in {version:?}"
                    );
                    Ok(())
                };
                member.sees("applied in v9", &id, in_version).await?;
            }
        }
        self.is_equal("moved to another version").await
    }

    /// Removes fields of the sources that other clients of the members have applied as well, and puts them back.
    async fn prune_shared_fields(&self) -> Result<()> {
        let hub = &self.scene.hub;
        let removed = self.of_each(async |specimen, id| {
            let before = hub.get(id).await?;
            let fields = specimen.prune.iter().map(String::as_str);
            for pointer in fields.chain([LABEL]) {
                let remove = json!([{"op": "remove", "path": pointer}]);
                hub.json_patch(id, remove).await?;
            }
            Ok(before)
        });
        let before = removed.await?;
        let gone = self.of_each(async |specimen, id| {
            let source = hub.get(id).await?;
            let equal = |copy: &Value| {
                let fields = specimen.prune.iter().map(String::as_str);
                for pointer in fields.chain([LABEL]) {
                    let value = copy.pointer(pointer);
                    ensure!(value == source.pointer(pointer), "{pointer} is {value:?}");
                }
                Ok(())
            };
            for member in &self.scene.members {
                member
                    .sees("without what left its source", id, equal)
                    .await?;
            }
            Ok(())
        });
        gone.await?;
        for mut before in before {
            let now = hub.get(&Id::of(&before)?).await?;
            before["metadata"]["resourceVersion"] = now["metadata"]["resourceVersion"].clone();
            hub.replace_as("author", &before).await?;
        }
        self.is_equal("put back what left the source").await
    }

    /// Deletes the rule; the copies stay, without marks.
    async fn retain(&self) -> Result<()> {
        let retain = json!({"spec": {"deletionPolicy": "Retain"}});
        self.scene.hub.change(&self.rule, retain).await?;
        self.delete_rule().await?;
        for member in &self.scene.members {
            self.of_each(async |_, id| member.sees("left as it is", id, is_unmarked).await)
                .await?;
        }
        Ok(())
    }
}

/// Waits until the cluster serves the kind of a definition: before, fields can be changed that are immutable afterwards.
async fn is_taken_up(member: &TestCluster, specimen: &Specimen, id: &Id) -> Result<()> {
    if specimen.resource != CUSTOM_RESOURCE_DEFINITIONS {
        return Ok(());
    }
    let is_served = |definition: &Value| {
        let conditions = definition["status"]["conditions"].as_array();
        let mut conditions = conditions.into_iter().flatten();
        let is_established = |one: &Value| one["type"] == "Established" && one["status"] == "True";
        ensure!(conditions.any(is_established), "{}", definition["status"]);
        Ok(())
    };
    member.sees("established", id, is_served).await.map(drop)
}

fn is_unmarked(object: &Value) -> Result<()> {
    ensure!(!is_marked(object), "it has {}", object["metadata"]);
    Ok(())
}

/// Whether an object goes as soon as its deletion is asked for: no part of the cluster has something to do before.
fn goes_at_once(object: &Value) -> bool {
    object["metadata"]["finalizers"].is_null() && object["spec"]["finalizers"].is_null()
}

async fn is_made_again(member: &TestCluster, before: &Value) -> Result<()> {
    let another = |copy: &Value| {
        ensure!(
            copy["metadata"]["uid"] != before["metadata"]["uid"],
            "it is the same object"
        );
        Ok(())
    };
    member.sees("made again", &Id::of(before)?, another).await?;
    Ok(())
}

fn without_marks(mut object: Value) -> Value {
    for map in ["labels", "annotations"] {
        let keys = object["metadata"][map].as_object_mut();
        keys.into_iter()
            .for_each(|keys| keys.retain(|key, _| !key.contains("runnel.dev/")));
    }
    object
}

/// Waits until an object has nothing of the content that another client applied. Its labels and annotations stay.
async fn has_none_of(member: &TestCluster, fields: &Value) -> Result<()> {
    let id = Id::of(fields)?;
    eventually(&format!("nothing of the former {id}"), SOON, async || {
        let copy = member.get(&id).await?;
        let content = leaves(fields).into_iter();
        for pointer in content.filter(|pointer| !pointer.starts_with("/metadata/")) {
            let in_list = pointer.split('/').any(|part| part.parse::<usize>().is_ok());
            ensure!(
                in_list || copy.pointer(&pointer) != fields.pointer(&pointer),
                "{pointer} is still {:?}",
                copy.pointer(&pointer)
            );
        }
        Ok(Some(()))
    })
    .await
}
