//! A cluster in a test.

use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use kube::api::{
    ApiResource, DeleteParams, DynamicObject, GroupVersionKind, ListParams, Patch, PatchParams,
    PostParams,
};
use kube::core::TypeMeta;
use kube::{Api, Client};
use serde_json::Value;

use super::copy::is_copy_of;
use crate::wait::eventually;

/// The time limit of everything that Runnel does. A second read of a conflict comes within 30 s.
pub const SOON: Duration = Duration::from_secs(120);

/// An object by kind, namespace and name.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Id {
    api_version: String,
    kind: String,
    namespace: Option<String>,
    name: String,
}

impl Id {
    /// Reads the id of a manifest.
    ///
    /// # Errors
    /// When it lacks `apiVersion`, `kind` or `metadata.name`.
    pub fn of(object: &Value) -> Result<Self> {
        let text = |path: &str| {
            object
                .pointer(path)
                .and_then(Value::as_str)
                .map(str::to_owned)
        };
        Ok(Self {
            api_version: text("/apiVersion").context("an object without apiVersion")?,
            kind: text("/kind").context("an object without kind")?,
            namespace: text("/metadata/namespace"),
            name: text("/metadata/name").context("an object without a name")?,
        })
    }

    fn new(api_version: &str, kind: &str, namespace: Option<&str>, name: &str) -> Self {
        let namespace = namespace.map(str::to_owned);
        Self {
            api_version: api_version.to_owned(),
            kind: kind.to_owned(),
            namespace,
            name: name.to_owned(),
        }
    }

    /// A ConfigMap.
    #[must_use]
    pub fn config_map(namespace: &str, name: &str) -> Self {
        Self::new("v1", "ConfigMap", Some(namespace), name)
    }

    /// A Secret.
    #[must_use]
    pub fn secret(namespace: &str, name: &str) -> Self {
        Self::new("v1", "Secret", Some(namespace), name)
    }

    /// A namespace.
    #[must_use]
    pub fn namespace(name: &str) -> Self {
        Self::new("v1", "Namespace", None, name)
    }

    /// A `DistributionRule`.
    #[must_use]
    pub fn rule(namespace: &str, name: &str) -> Self {
        Self::new(
            "runnel.dev/v1alpha1",
            "DistributionRule",
            Some(namespace),
            name,
        )
    }

    /// A `ClusterDistributionRule`.
    #[must_use]
    pub fn cluster_rule(name: &str) -> Self {
        Self::new("runnel.dev/v1alpha1", "ClusterDistributionRule", None, name)
    }

    /// A `MemberCluster`.
    #[must_use]
    pub fn member(name: &str) -> Self {
        Self::new("runnel.dev/v1alpha1", "MemberCluster", None, name)
    }

    /// The record of a member.
    #[must_use]
    pub fn member_record(name: &str) -> Self {
        Self::new("runnel.dev/v1alpha1", "MemberRecord", None, name)
    }

    /// The object of the same kind and name in another namespace.
    #[must_use]
    pub fn within(&self, namespace: &str) -> Self {
        Self {
            namespace: Some(namespace.to_owned()),
            ..self.clone()
        }
    }

    /// An object of the same kind without namespace: [`TestCluster::list`] reads all namespaces with it.
    #[must_use]
    pub fn everywhere(&self) -> Self {
        Self {
            namespace: None,
            ..self.clone()
        }
    }

    /// The namespace, if there is one.
    #[must_use]
    pub fn own_namespace(&self) -> Option<&str> {
        self.namespace.as_deref()
    }

    /// The name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The kind.
    #[must_use]
    pub fn kind(&self) -> &str {
        &self.kind
    }

    /// The display name: `namespace/name`, or `name`.
    #[must_use]
    pub fn path(&self) -> String {
        self.namespace
            .iter()
            .map(|namespace| format!("{namespace}/"))
            .collect::<String>()
            + &self.name
    }

    pub(super) fn resource(&self) -> ApiResource {
        let (group, version) = self
            .api_version
            .split_once('/')
            .unwrap_or(("", &self.api_version));
        ApiResource::from_gvk(&GroupVersionKind::gvk(group, version, &self.kind))
    }
}

impl std::fmt::Display for Id {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(out, "{} {}", self.kind, self.path())
    }
}

/// A cluster in which a test creates, changes and reads objects as an administrator.
#[derive(Clone)]
pub struct TestCluster {
    name: String,
    client: Client,
}

impl std::fmt::Debug for TestCluster {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.write_str(&self.name)
    }
}

impl TestCluster {
    /// The cluster that `client` talks to, called `name` in messages.
    #[must_use]
    pub fn new(name: &str, client: Client) -> Self {
        Self {
            name: name.to_owned(),
            client,
        }
    }

    /// Returns the name.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The client of an administrator.
    #[must_use]
    pub fn client(&self) -> Client {
        self.client.clone()
    }

    pub(super) fn api(&self, id: &Id) -> Api<DynamicObject> {
        match &id.namespace {
            Some(namespace) => Api::namespaced_with(self.client(), namespace, &id.resource()),
            None => Api::all_with(self.client(), &id.resource()),
        }
    }

    /// Creates an object and returns it as the API server stored it.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn make(&self, object: &Value) -> Result<Value> {
        let id = Id::of(object)?;
        let made = self
            .api(&id)
            .create(
                &PostParams::default(),
                &serde_json::from_value(object.clone())?,
            )
            .await;
        whole(
            &id,
            made.with_context(|| format!("cannot make {id} in {}", self.name))?,
        )
    }

    /// Creates an object as soon as its kind is served, and returns it as the API server stored it.
    ///
    /// # Errors
    /// At the deadline, with the last answer of the API server.
    pub async fn make_soon(&self, object: &Value) -> Result<Value> {
        let what = format!("{} to be served in {}", Id::of(object)?, self.name);
        eventually(&what, SOON, async || self.make(object).await.map(Some)).await
    }

    /// Changes an object by a JSON merge patch and returns the result.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn change(&self, id: &Id, change: Value) -> Result<Value> {
        self.patch(id, &Patch::Merge(change)).await
    }

    /// Changes an object's status by a JSON merge patch and returns the result.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn change_status(&self, id: &Id, change: Value) -> Result<Value> {
        let changed = self
            .api(id)
            .patch_status(&id.name, &PatchParams::default(), &Patch::Merge(change))
            .await;
        whole(
            id,
            changed
                .with_context(|| format!("cannot change the status of {id} in {}", self.name))?,
        )
    }

    /// Changes an object by a JSON patch and returns the result.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn json_patch(&self, id: &Id, operations: Value) -> Result<Value> {
        self.patch(id, &Patch::Json::<()>(serde_json::from_value(operations)?))
            .await
    }

    /// Whether the API server would accept a JSON patch of an object that changes something.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn accepts(&self, id: &Id, operations: Value) -> Result<bool> {
        let patch = Patch::Json::<()>(serde_json::from_value(operations)?);
        let parameters = PatchParams {
            dry_run: true,
            ..PatchParams::default()
        };
        let before = self.api(id).get(&id.name).await?;
        match self.api(id).patch(&id.name, &parameters, &patch).await {
            Ok(after) => Ok(after.data != before.data
                || after.metadata.labels != before.metadata.labels
                || after.metadata.annotations != before.metadata.annotations),
            Err(kube::Error::Api(_)) => Ok(false),
            Err(error) => Err(error.into()),
        }
    }

    /// Replaces an object, as a client does that read it, changed it and sends it back. Returns the result.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn replace_as(&self, manager: &str, object: &Value) -> Result<Value> {
        self.put(manager, object, false).await
    }

    /// Whether the API server would accept an object instead of the one that is there.
    ///
    /// # Errors
    /// When it does not answer, or the object was written meanwhile.
    pub async fn accepts_instead(&self, object: &Value) -> Result<bool> {
        match self.put("dry-run", object, true).await {
            Ok(_) => Ok(true),
            Err(error) => match error.downcast_ref::<kube::Error>() {
                Some(kube::Error::Api(status)) if status.code != 409 => Ok(false),
                _ => Err(error),
            },
        }
    }

    async fn put(&self, manager: &str, object: &Value, dry_run: bool) -> Result<Value> {
        let id = Id::of(object)?;
        let parameters = PostParams {
            dry_run,
            field_manager: Some(manager.to_owned()),
        };
        let replacement = serde_json::from_value(object.clone())?;
        let replaced = self
            .api(&id)
            .replace(&id.name, &parameters, &replacement)
            .await;
        whole(
            &id,
            replaced.with_context(|| format!("cannot replace {id} in {}", self.name))?,
        )
    }

    /// Applies fields of an object as this field manager and returns the result.
    ///
    /// # Errors
    /// The answer of the API server.
    pub async fn apply_as(&self, manager: &str, fields: &Value) -> Result<Value> {
        let id = Id::of(fields)?;
        let applied = self
            .api(&id)
            .patch(
                &id.name,
                &PatchParams::apply(manager),
                &Patch::Apply(fields),
            )
            .await;
        whole(
            &id,
            applied.with_context(|| format!("cannot apply {id} in {}", self.name))?,
        )
    }

    async fn patch<P: serde::Serialize + std::fmt::Debug>(
        &self,
        id: &Id,
        patch: &Patch<P>,
    ) -> Result<Value> {
        let changed = self
            .api(id)
            .patch(&id.name, &PatchParams::default(), patch)
            .await;
        whole(
            id,
            changed.with_context(|| format!("cannot change {id} in {}", self.name))?,
        )
    }

    /// Asks for the deletion of an object.
    ///
    /// # Errors
    /// When it does not exist, or the API server refuses.
    pub async fn delete(&self, id: &Id) -> Result<()> {
        let asked = self
            .api(id)
            .delete(&id.name, &DeleteParams::default())
            .await;
        asked
            .map(|_| ())
            .with_context(|| format!("cannot delete {id} in {}", self.name))
    }

    /// The object, if it exists.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn find(&self, id: &Id) -> Result<Option<Value>> {
        let found = self.api(id).get_opt(&id.name).await?;
        found.map(|object| whole(id, object)).transpose()
    }

    /// The object.
    ///
    /// # Errors
    /// When it does not exist.
    pub async fn get(&self, id: &Id) -> Result<Value> {
        self.find(id)
            .await?
            .with_context(|| format!("there is no {id} in {}", self.name))
    }

    /// All objects of the kind of `like`, in its namespace or in all if it has none.
    ///
    /// # Errors
    /// When the API server does not answer.
    pub async fn list(&self, like: &Id) -> Result<Vec<Value>> {
        let list = self.api(like).list(&ListParams::default()).await?;
        list.items
            .into_iter()
            .map(|object| whole(like, object))
            .collect()
    }

    /// Waits until the object exists and `wanted` accepts it; returns it.
    ///
    /// # Errors
    /// When the deadline passes, with the cause of the last refusal.
    pub async fn sees(
        &self,
        what: &str,
        id: &Id,
        wanted: impl Fn(&Value) -> Result<()>,
    ) -> Result<Value> {
        eventually(
            &format!("{id} in {} to be {what}", self.name),
            SOON,
            async || {
                let object = self.get(id).await?;
                wanted(&object)?;
                Ok(Some(object))
            },
        )
        .await
    }

    /// Waits until the object has these values, by JSON pointers; returns it.
    ///
    /// # Errors
    /// At the deadline, with the first value that differs.
    pub async fn has_values(&self, what: &str, id: &Id, values: &[(&str, Value)]) -> Result<Value> {
        let check = |object: &Value| {
            for (path, value) in values {
                let found = object.pointer(path).unwrap_or(&Value::Null);
                ensure!(found == value, "{path} is {found} instead of {value}");
            }
            Ok(())
        };
        self.sees(what, id, check).await
    }

    /// Waits until the object does not exist.
    ///
    /// # Errors
    /// When it still does at the deadline.
    pub async fn lacks(&self, id: &Id) -> Result<()> {
        eventually(
            &format!("{id} to be gone from {}", self.name),
            SOON,
            async || {
                if let Some(object) = self.find(id).await? {
                    bail!("its metadata are {}", object["metadata"]);
                }
                Ok(Some(()))
            },
        )
        .await
    }

    /// Waits until there is a true copy of `source` by `rule` in `namespace`; returns it.
    ///
    /// # Errors
    /// When there is none at the deadline, with what it lacks.
    pub async fn has_copy(&self, source: &Value, namespace: &str, rule: &Id) -> Result<Value> {
        let copy = Id::of(source)?.within(namespace);
        let what = format!("a copy by {rule}");
        self.sees(&what, &copy, |object| is_copy_of(source, object, rule))
            .await
    }

    /// Checks that an object is exactly the one that `before` was, untouched.
    ///
    /// # Errors
    /// When it is gone, another one, or was written to.
    pub async fn is_untouched(&self, before: &Value) -> Result<()> {
        let id = Id::of(before)?;
        let now = self.get(&id).await?;
        let same = now["metadata"]["uid"] == before["metadata"]["uid"]
            && now["metadata"]["resourceVersion"] == before["metadata"]["resourceVersion"];
        ensure!(
            same,
            "{id} in {} was touched: its metadata are {}",
            self.name,
            now["metadata"]
        );
        Ok(())
    }
}

fn whole(id: &Id, mut object: DynamicObject) -> Result<Value> {
    // The items of a list have no kind.
    object.types = Some(TypeMeta {
        api_version: id.api_version.clone(),
        kind: id.kind.clone(),
    });
    Ok(serde_json::to_value(object)?)
}
