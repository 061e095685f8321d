//! The differences between copies and their sources.
use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};
use serde_json::Value;

use super::{Clusters, JsonText, limits, schema, schema::Item};

/// Makes copies other than their sources. A copy that cannot be rendered is not sent, and an existing copy is left
/// unchanged; the status names the field and the source.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Transform {
    /// The name of the copies; without it that of the source. `${source.name}`, `${source.namespace}`,
    /// `${cluster.name}` and `${cluster.labels.KEY:-default}` are filled. When it changes, the agent creates the copy
    /// with the new name and then removes the old one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::name_template)]
    pub name: Option<String>,
    /// Gives each content its own copy name, for immutable copies: an edit creates a new copy
    /// beside the old ones.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "VersionedName")]
    pub versioned_name: Option<VersionedName>,
    /// The copied keys of data and binaryData, and their new names.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Keys")]
    pub keys: Option<Keys>,
    /// The labels of copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Marks")]
    pub labels: Option<Marks>,
    /// The annotations of copies.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "Marks")]
    pub annotations: Option<Marks>,
    /// The type of the copies of Secrets; without it that of the source.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::secret_type)]
    pub secret_type: Option<String>,
    /// Fields that copies do not get, as JSON pointers, such as `/spec/replicas` or
    /// `/spec/template/spec/containers/[name=debug]`. A step in brackets names the items of a list whose fields have
    /// these values. `~1` means `/` and `~0` means `~`. Labels and annotations are dropped by their own fields. At most
    /// 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("transform.removeFields", limits::FIELDS_NAMED, Item::ContentPointer))]
    pub remove_fields: Vec<String>,
}

/// A name of the copies for each content.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct VersionedName {
    /// Number of versions that are kept in each namespace, the newest included. Copies have names
    /// NAME-DIGEST, and the newest one has the label `runnel.dev/newest: "true"`. Older ones are
    /// removed by deletionPolicy once the newest exists. 1 to 20.
    #[schemars(range(min = 1, max = 20))]
    pub keep: i32,
}

/// Chooses keys of data and binaryData.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Keys {
    /// Names and globs of the keys that are copied; without it all. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("transform.keys.include", limits::KEYS_NAMED, Item::KeyPattern))]
    pub include: Vec<String>,
    /// Names and globs of keys that are subtracted. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("transform.keys.exclude", limits::KEYS_NAMED, Item::KeyPattern))]
    pub exclude: Vec<String>,
    /// New names of keys, by their old ones. A key that the source does not have is passed over; two keys that would get
    /// one name are an error. At most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::texts(limits::KEYS_NAMED, 253))]
    pub rename: BTreeMap<String, String>,
}

/// The labels or annotations of copies, besides Runnel's own marks.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Marks {
    /// Labels or annotations that every copy gets. At most 32.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::texts(limits::MARKS_ADDED, 4096))]
    pub add: BTreeMap<String, String>,
    /// Keys and globs that are not copied. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("drop", limits::KEYS_NAMED, Item::MarkPattern))]
    pub drop: Vec<String>,
    /// Keys and globs that are copied although they control tools of the hub's cluster, such as
    /// `cert-manager.io/*`. Runnel's own marks, `app.kubernetes.io/managed-by` and
    /// `kubectl.kubernetes.io/last-applied-configuration` are never copied. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("allow", limits::KEYS_NAMED, Item::MarkPattern))]
    pub allow: Vec<String>,
}

/// Fills `${cluster.name}`, `${cluster.labels.KEY:-default}`, `${source.namespace}`, `${source.name}` and `${bundle.name}` in
/// texts of copies. `$${` means `${`. An unknown variable, and a label that the cluster lacks and that has no default, is an error
/// in the status.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "(has(self.keys) && size(self.keys) > 0) || (has(self.fields) && size(self.fields) > 0)",
    "substitute is empty: name the keys of data to fill, such as keys: [app.yaml], or the fields, such as fields: [/spec]",
))]
pub struct Substitute {
    /// Names and globs of the keys of data, as the copies call them, in whose values variables are filled. Values in
    /// binaryData are left alone. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("substitute.keys", limits::KEYS_NAMED, Item::KeyPattern))]
    pub keys: Vec<String>,
    /// Fields in which variables are filled, as JSON pointers, such as `/spec` or
    /// `/spec/template/spec/containers/[name=app]/env`: in each text in them, and never in the names of fields. Values in
    /// a Secret are filled by `keys`. At most 32.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("substitute.fields", limits::FIELDS_NAMED, Item::ContentPointer))]
    pub fields: Vec<String>,
}

/// Overrides the content of copies in some clusters: literal values, and values of other Secrets for Secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "(has(self.data) && size(self.data) > 0) || (has(self.secretData) && size(self.secretData) > 0) || (has(self.remove) && size(self.remove) > 0) || \
     has(self.mergePatch) || (has(self.jsonPatch) && size(self.jsonPatch) > 0)",
    "this entry of overrides changes nothing: set data, secretData, remove, mergePatch or jsonPatch",
))]
pub struct Override {
    /// The clusters in which it applies, of those that the rule selects.
    pub clusters: Clusters,
    /// The kinds of the sources to whose copies it applies, as `plural[.group]`; without it all. At most 16.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("overrides.resources", 16, Item::Resource))]
    pub resources: Vec<String>,
    /// The names of the sources to whose copies it applies, and globs; without it all. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("overrides.names", limits::KEYS_NAMED, Item::ObjectPattern))]
    pub names: Vec<String>,
    /// Values of ConfigMaps by key. Variables in them are not replaced. At most 64.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    #[schemars(transform = schema::texts(limits::KEYS_NAMED, 262_144))]
    pub data: BTreeMap<String, String>,
    /// Values of other Secrets that are set in the copies of Secrets, by key. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::keyed_list("key", limits::KEYS_NAMED))]
    pub secret_data: Vec<SecretValue>,
    /// Keys to remove. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::set("overrides.remove", limits::KEYS_NAMED, Item::Key))]
    pub remove: Vec<String>,
    /// A JSON merge patch (RFC 7386) of the fields of copies, such as `{spec: {replicas: 3}}`, after data and remove.
    /// `null` removes a field; a list is replaced as a whole. `kubectl apply` without `--server-side` loses a `null` in
    /// an edit: use transform.removeFields or jsonPatch. apiVersion, kind, metadata and status cannot be patched.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "BTreeMap<String, Value>", transform = schema::any_object)]
    pub merge_patch: Option<JsonText>,
    /// Steps of a JSON patch (RFC 6902) of the fields of copies, after mergePatch. apiVersion, kind, metadata and status
    /// cannot be patched. At most 64.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(transform = schema::list(limits::KEYS_NAMED))]
    pub json_patch: Vec<PatchStep>,
}

/// One value in copies of Secrets.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretValue {
    /// The key in the copies.
    #[schemars(transform = schema::data_key("overrides.secretData.key"))]
    pub key: String,
    /// The source of the value.
    pub value_from: ValueFrom,
}

/// The source of a value.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct ValueFrom {
    /// A key of a Secret on the hub.
    pub secret_key_ref: SecretKeyRef,
}

/// A key of a Secret in the namespace of the source whose copies get the value: for a `DistributionRule` its own
/// namespace, for a `ClusterDistributionRule` that of each source. So a rule can use no Secret that it could not
/// distribute itself. The Secret need not be selected by the rule, and is not sent. When it, or the key, is missing or
/// cannot be read, the copies stay as they are, and the status says why.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct SecretKeyRef {
    /// The name of the Secret.
    #[schemars(transform = schema::object_name("overrides.secretData.valueFrom.secretKeyRef.name"))]
    pub name: String,
    /// The key in it.
    #[schemars(transform = schema::data_key("overrides.secretData.valueFrom.secretKeyRef.key"))]
    pub key: String,
}

/// One step of a JSON patch.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
#[schemars(transform = schema::rule(
    "self.op in ['copy', 'move'] ? has(self.from) : true",
    "overrides.jsonPatch: the operations copy and move need from",
))]
pub struct PatchStep {
    /// add, remove, replace, copy, move or test. A test that finds another value is an error in the status.
    #[schemars(transform = schema::patch_operation)]
    pub op: String,
    /// The pointer, such as `/data/KEY` or `/spec/ports/0/nodePort`, in which ~1 means / and ~0 means ~.
    #[schemars(transform = schema::patch_pointer("overrides.jsonPatch.path"))]
    pub path: String,
    /// The pointer to copy or move from.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(with = "String", transform = schema::patch_pointer("overrides.jsonPatch.from"))]
    pub from: Option<String>,
    /// The value that add, replace and test need: any JSON, for data a text.
    #[serde(
        default,
        skip_serializing_if = "Option::is_none",
        deserialize_with = "present"
    )]
    #[schemars(with = "Value", transform = schema::any_value)]
    pub value: Option<JsonText>,
}

/// A value that is there, also `null`.
fn present<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Option<JsonText>, D::Error> {
    JsonText::deserialize(deserializer).map(Some)
}
