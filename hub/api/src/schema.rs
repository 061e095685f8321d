//! Validation by the API server beyond types: limits, list types, and CEL rules whose messages name
//! the field and a hint.
use runnel_proto::model::{JSON_PATH_LIMIT, POINTER_LIMIT};
use schemars::Schema;
use serde_json::{Map, Value, json};

use super::kinds::{BUNDLE_KIND, LOCAL_GROUPS, LOCAL_KINDS};
use super::{GROUP, limits};

/// A DNS-1123 subdomain in which `*` counts as a letter. A glob that this refuses could not match any valid name.
const SUBDOMAIN_GLOB: &str =
    r"^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?(\\.[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?)*$";
const SUBDOMAIN: &str = r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const LABEL_GLOB: &str = r"^[a-z0-9*]([-a-z0-9*]*[a-z0-9*])?$";
const QUALIFIED_NAME: &str = r"^([a-z0-9]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*/)?([A-Za-z0-9][-A-Za-z0-9_.]{0,61})?[A-Za-z0-9]$";
const LABEL_VALUE: &str = r"^(([A-Za-z0-9][-A-Za-z0-9_.]*)?[A-Za-z0-9])?$";

/// A pointer with keys for the items of lists: the parser is `FieldPath` of the model.
const CONTENT_POINTER: &str = r"^(/(([^/~\\s\\pC\\pZ\\[]|~[01])([^/~\\s\\pC\\pZ]|~[01])*|\\[[^/~=,\\s\\pC\\pZ\\[\\]]+=([^/~,\\s\\pC\\pZ]|~[012])*(,[^/~=,\\s\\pC\\pZ\\[\\]]+=([^/~,\\s\\pC\\pZ]|~[012])*)*\\])){1,32}$";
/// A path to a field of status or spec: the parser is `JsonPath` of the model.
const FEEDBACK_PATH: &str = r#"^\\.(status|spec)(\\.[-_A-Za-z0-9]+|\\[0\\]|\\[\\?\\(@\\.[-_A-Za-z0-9]+=="[^"\\\\]+"\\)\\]){1,15}$"#;
/// A pointer of a JSON patch.
const PATCH_POINTER: &str = "^(/([^/~]|~[01])+)+$";
/// Pointers to what no rule changes.
const FIXED_POINTER: &str = r"^/((apiVersion|kind|metadata|status)(/|$)|\\[)";

const LABEL_KEY_HINT: &str = "a label key is up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both \
     ends, optionally after a DNS name and '/', such as app or example.com/app";
const FIXED_HINT: &str = "apiVersion, kind, metadata and status are the copy's own: write another field; labels and \
     annotations are changed by transform.labels and transform.annotations";
const LABEL_VALUE_HINT: &str = "a label value is up to 63 letters, digits, '-', '_' and '.', with a letter or digit at both ends, or empty";

/// `plural[.group]`.
const RESOURCE: &str = r"^[a-z]([-a-z0-9]*[a-z0-9])?(\\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$";
const LOCAL_HINT: &str =
    "objects of this kind belong to one cluster and are never distributed: remove it";

/// The type of the strings in a list.
#[derive(Clone, Copy)]
pub(super) enum Item {
    /// Object names and globs.
    ObjectPattern,
    /// Object names.
    ObjectName,
    /// Namespace names and globs.
    NamespacePattern,
    /// Names of `MemberCluster`s.
    ClusterName,
    /// Names of `MemberCluster`s and globs.
    ClusterPattern,
    /// Values of labels.
    LabelValue,
    /// Keys of data, and globs.
    KeyPattern,
    /// Keys of data.
    Key,
    /// Keys of labels or annotations, and globs.
    MarkPattern,
    /// `plural[.group]` of the kinds that can be distributed.
    Resource,
    /// JSON pointers to a field of the content.
    ContentPointer,
    /// JSON pointers to a field of the content, a label or an annotation.
    FieldPointer,
}

impl Item {
    /// Regular expression, longest string, and the hint.
    fn pattern(self) -> (&'static str, usize, &'static str) {
        match self {
            Item::ObjectPattern => (
                SUBDOMAIN_GLOB,
                253,
                "write an object name (lowercase letters, digits, '-' and '.', with a letter or digit at both ends) or a \
                 glob of such characters and '*', such as tls-*",
            ),
            Item::ObjectName => (
                SUBDOMAIN,
                253,
                "write an object name (lowercase letters, digits, '-' and '.', with a letter or digit at both ends)",
            ),
            Item::NamespacePattern => (
                LABEL_GLOB,
                63,
                "write a namespace name (lowercase letters, digits and '-', with a letter or digit at both ends) or a \
                 glob of such characters and '*', such as team-*",
            ),
            Item::ClusterName => (
                SUBDOMAIN,
                limits::CLUSTER_NAME,
                "write the whole name of a MemberCluster (lowercase letters, digits, '-' and '.'); to choose several \
                 clusters at once use clusters.selector",
            ),
            Item::ClusterPattern => (
                SUBDOMAIN_GLOB,
                limits::CLUSTER_NAME,
                "write the name of a MemberCluster (lowercase letters, digits, '-' and '.') or a glob of such characters \
                 and '*', such as eu-*",
            ),
            Item::LabelValue => (LABEL_VALUE, 63, LABEL_VALUE_HINT),
            Item::KeyPattern => (
                "^[-._a-zA-Z0-9*]+$",
                253,
                "write a key of data (letters, digits, '-', '_' and '.') or a glob of such characters and '*'",
            ),
            Item::Key => (
                "^[-._a-zA-Z0-9]+$",
                253,
                "write a key of data (letters, digits, '-', '_' and '.')",
            ),
            Item::MarkPattern => (
                "^[-._/a-zA-Z0-9*]+$",
                317,
                "write the key of a label or annotation, such as example.com/team, or a glob, such as example.com/*",
            ),
            Item::ContentPointer | Item::FieldPointer => (
                CONTENT_POINTER,
                POINTER_LIMIT,
                "write a JSON pointer without white space to a field, such as /spec/replicas, with ~1 for each / in a \
                 name, and name an item of a list by its key, such as /spec/ports/[name=web]/nodePort",
            ),
            Item::Resource => (
                RESOURCE,
                253,
                "write the plural of a kind, and its group after a dot, such as configmaps or \
                 networkpolicies.networking.k8s.io, in lowercase, without version and without '*'",
            ),
        }
    }
}

/// A list of distinct strings, called `field` in messages.
pub(super) fn set(field: &'static str, max: usize, item: Item) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("x-kubernetes-list-type".into(), json!("set"));
        schema.insert("maxItems".into(), json!(max));
        let Some(items) = schema.get_mut("items").and_then(Value::as_object_mut) else {
            return;
        };
        let (regex, longest, hint) = item.pattern();
        items.insert("maxLength".into(), json!(longest));
        add(
            items,
            &format!("self.matches('{regex}')"),
            &format!("{field}: {hint}"),
        );
        if matches!(item, Item::Resource) {
            add(items, &is_portable(), &format!("{field}: {LOCAL_HINT}"));
        }
        let maps = match item {
            Item::ContentPointer => Some("data|binaryData"),
            Item::FieldPointer => Some("data|binaryData|metadata/(labels|annotations)"),
            _ => None,
        };
        if let Some(maps) = maps {
            content_pointer(items, field, maps);
        }
    }
}

/// The CEL expression for a kind that may be distributed, as [`is_local_kind`](super::is_local_kind) decides it.
fn is_portable() -> String {
    let list = |texts: &[&str]| {
        let texts: Vec<_> = texts.iter().map(|text| format!("'{text}'")).collect();
        texts.join(", ")
    };
    // Without a dot the index is -1, and the group is the plural, which is in no list of groups.
    let group = "self.substring(self.indexOf('.') + 1)";
    let (groups, kinds) = (list(LOCAL_GROUPS), list(LOCAL_KINDS));
    format!(
        "self == '{BUNDLE_KIND}' || (!self.endsWith('.{GROUP}') && !({group} in [{groups}]) && !(self in [{kinds}]))"
    )
}

/// Refuses fields that no rule names, and items of lists by their index. Each key of `maps` is allowed.
fn content_pointer(items: &mut Map<String, Value>, field: &str, maps: &str) {
    let is_key = format!("self.matches('^/({maps})/[^/]+$')");
    add(
        items,
        &format!("!self.matches('{FIXED_POINTER}') || {is_key}"),
        &format!("{field}: {FIXED_HINT}"),
    );
    add(
        items,
        &format!("!self.matches('/([0-9]+|-)(/|$)') || {is_key}"),
        &format!(
            "{field}: an index names no item, because lists change: write the key of the item, such as [name=app]"
        ),
    );
}

/// Fields of copies that are left alone; never Runnel's own marks.
pub(super) fn field_pointers(schema: &mut Schema) {
    set("ignoreFields", limits::FIELDS_NAMED, Item::FieldPointer)(schema);
    let Some(items) = schema.get_mut("items").and_then(Value::as_object_mut) else {
        return;
    };
    add(
        items,
        "!self.startsWith('/metadata/labels/runnel.dev~1') && !self.startsWith('/metadata/annotations/runnel.dev~1') && \
         self != '/metadata/labels/app.kubernetes.io~1managed-by'",
        "ignoreFields: Runnel's own labels and annotations cannot be ignored: remove this entry",
    );
}

/// As [`set`], with at least one entry.
pub(super) fn filled_set(
    field: &'static str,
    max: usize,
    item: Item,
    hint: &'static str,
) -> impl FnMut(&mut Schema) {
    move |schema| {
        set(field, max, item)(schema);
        rule("size(self) > 0", format!("{field} is empty: {hint}"))(schema);
    }
}

/// Refuses globs that match nothing: none matches a namespace of Kubernetes.
pub(super) fn no_reserved_glob(field: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        if let Some(items) = schema.get_mut("items").and_then(Value::as_object_mut) {
            add(
                items,
                "!self.startsWith('kube-') || !self.contains('*')",
                &format!(
                    "{field}: no glob matches a namespace kube-*: write the exact names, such as kube-system"
                ),
            );
        }
    }
}

/// A list of objects that is replaced as a whole.
pub(super) fn list(max: usize) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("x-kubernetes-list-type".into(), json!("atomic"));
        schema.insert("maxItems".into(), json!(max));
    }
}

/// A list of texts of a bounded length.
pub(super) fn text_list(max: usize, longest: usize) -> impl FnMut(&mut Schema) {
    move |schema| {
        list(max)(schema);
        if let Some(items) = schema.get_mut("items").and_then(Value::as_object_mut) {
            items.insert("maxLength".into(), json!(longest));
        }
    }
}

/// A list of objects with the unique field `key`.
pub(super) fn keyed_list(key: &'static str, max: usize) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("x-kubernetes-list-type".into(), json!("map"));
        schema.insert("x-kubernetes-list-map-keys".into(), json!([key]));
        schema.insert("maxItems".into(), json!(max));
    }
}

/// A number between these, both included.
pub(super) fn in_range(least: i64, most: i64) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("minimum".into(), json!(least));
        schema.insert("maximum".into(), json!(most));
    }
}

/// The conditions of a status.
pub(super) fn conditions(schema: &mut Schema) {
    keyed_list("type", limits::CONDITIONS)(schema);
    let properties = schema
        .get_mut("items")
        .and_then(|items| items.get_mut("properties"));
    let Some(properties) = properties.and_then(Value::as_object_mut) else {
        return;
    };
    let longest = [
        ("type", 316),
        ("reason", 1024),
        ("message", limits::MESSAGE),
    ];
    for (name, value) in properties {
        let Some(field) = value.as_object_mut() else {
            continue;
        };
        if let Some((_, longest)) = longest.iter().find(|(bounded, _)| bounded == name) {
            field.insert("maxLength".into(), json!(longest));
        }
        if name == "status" {
            field.insert("enum".into(), json!(["True", "False", "Unknown"]));
        }
    }
}

/// A string of at most `max` characters.
pub(super) fn text(max: usize) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("maxLength".into(), json!(max));
    }
}

/// The kind of a field that agents return.
pub(super) fn feedback_resource(schema: &mut Schema) {
    let (regex, longest, hint) = Item::Resource.pattern();
    text(longest)(schema);
    rule(
        format!("self.matches('{regex}')"),
        format!("feedback.resource: {hint}"),
    )(schema);
    let hint = "feedback.resource: nothing is returned of Secrets: remove this entry";
    rule("self != 'secrets'", hint)(schema);
}

/// The name of a field that agents return.
pub(super) fn feedback_name(schema: &mut Schema) {
    text(63)(schema);
    let hint = "feedback.name: write a word of letters, digits, '-', '_' and '.', with a letter or digit at both ends";
    let regex = "^[A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?$";
    rule(format!("self.matches('{regex}')"), hint)(schema);
}

/// The path to a field that agents return: the parser is `JsonPath` of the model.
pub(super) fn feedback_path(schema: &mut Schema) {
    text(JSON_PATH_LIMIT)(schema);
    let hint = "feedback.jsonPath: write a path to a field of status or spec, such as .status.readyReplicas, \
                .status.loadBalancer.ingress[0].ip or .status.conditions[?(@.type==\"Ready\")].reason";
    rule(format!("self.matches('{FEEDBACK_PATH}')"), hint)(schema);
}

/// `sha256:` and 64 hexadecimal digits.
pub(super) fn sha256(field: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("maxLength".into(), json!(71));
        rule(
            "self.matches('^sha256:[0-9a-f]{64}$')",
            format!("{field}: write sha256: and 64 lowercase hexadecimal digits"),
        )(schema);
    }
}

/// The id of a token.
pub(super) fn token_id(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(8));
    let hint = "join.tokenId: write the 8 characters before the dot of the token, or leave it out";
    rule("self.matches('^[a-z2-7]{8}$')", hint)(schema);
}

/// A CEL rule, and the message for objects that violate it.
pub(super) fn rule(rule: impl Into<String>, message: impl Into<String>) -> impl FnMut(&mut Schema) {
    let (rule, message) = (rule.into(), message.into());
    move |schema| add(schema.ensure_object(), &rule, &message)
}

/// A label selector that is there is not empty, for which `hint` is the right thing to write.
pub(super) fn filled_selector(field: &'static str, hint: &'static str) -> impl FnMut(&mut Schema) {
    rule(
        "(has(self.matchLabels) && size(self.matchLabels) > 0) || \
         (has(self.matchExpressions) && size(self.matchExpressions) > 0)",
        format!("{field} is empty: set matchLabels or matchExpressions, or {hint}"),
    )
}

/// The labels of a selector.
pub(super) fn match_labels(schema: &mut Schema) {
    schema.insert("maxProperties".into(), json!(limits::EXPRESSIONS));
    if let Some(values) = schema
        .get_mut("additionalProperties")
        .and_then(Value::as_object_mut)
    {
        values.insert("maxLength".into(), json!(63));
        add(
            values,
            &format!("self.matches('{LABEL_VALUE}')"),
            &format!("matchLabels: {LABEL_VALUE_HINT}"),
        );
    }
    rule(
        format!("self.all(key, key.matches('{QUALIFIED_NAME}') && key.indexOf('/') <= 253)"),
        format!("matchLabels: {LABEL_KEY_HINT}"),
    )(schema);
}

/// The key of a label.
pub(super) fn label_key(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(317));
    rule(
        format!("self.matches('{QUALIFIED_NAME}') && self.indexOf('/') <= 253"),
        format!("matchExpressions.key: {LABEL_KEY_HINT}"),
    )(schema);
}

/// The name of copies, with variables.
pub(super) fn name_template(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(512));
    schema.insert("minLength".into(), json!(1));
    rule(
        r"self.matches('^([^$]|[$][{](source[.]name|source[.]namespace|bundle[.]name|cluster[.]name|cluster[.]labels[.][^}]+)[}])*$')",
        "transform.name: of variables there are ${source.name}, ${source.namespace}, ${bundle.name}, ${cluster.name} and \
         ${cluster.labels.KEY:-default}; write one of these",
    )(schema);
}

/// The type of Secrets.
pub(super) fn secret_type(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(253));
    schema.insert("minLength".into(), json!(1));
    rule(
        "self != 'kubernetes.io/service-account-token' && self != 'bootstrap.kubernetes.io/token' && \
         !self.startsWith('helm.sh/release')",
        "transform.secretType: Secrets of this type are credentials of one cluster or belong to Helm and are never \
         distributed; write another type",
    )(schema);
}

/// A map of at most `max` strings of at most `longest` characters.
pub(super) fn texts(max: usize, longest: usize) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("maxProperties".into(), json!(max));
        if let Some(values) = schema
            .get_mut("additionalProperties")
            .and_then(Value::as_object_mut)
        {
            values.insert("maxLength".into(), json!(longest));
        }
    }
}

/// The operation of a JSON patch step.
pub(super) fn patch_operation(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(7));
    schema.insert(
        "enum".into(),
        json!(["add", "remove", "replace", "copy", "move", "test"]),
    );
}

/// A key of data.
pub(super) fn data_key(field: &'static str) -> impl FnMut(&mut Schema) {
    one(field, Item::Key)
}

/// The name of an object.
pub(super) fn object_name(field: &'static str) -> impl FnMut(&mut Schema) {
    one(field, Item::ObjectName)
}

fn one(field: &'static str, item: Item) -> impl FnMut(&mut Schema) {
    move |schema| {
        let (regex, longest, hint) = item.pattern();
        schema.insert("maxLength".into(), json!(longest));
        add(
            schema.ensure_object(),
            &format!("self.matches('{regex}')"),
            &format!("{field}: {hint}"),
        );
    }
}

/// A pointer of a JSON patch.
pub(super) fn patch_pointer(field: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("maxLength".into(), json!(POINTER_LIMIT));
        rule(
            format!("self.matches('{PATCH_POINTER}')"),
            format!(
                "{field}: write a JSON pointer, such as /data/app.yaml or /spec/replicas, with ~1 for each / in a name \
                 and ~0 for each ~"
            ),
        )(schema);
        rule(
            format!("!self.matches('{FIXED_POINTER}')"),
            format!("{field}: {FIXED_HINT}"),
        )(schema);
    }
}

/// Any JSON value, also `null`. No rule of a schema can read it.
pub(super) fn any_value(schema: &mut Schema) {
    schema
        .ensure_object()
        .insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
    schema.insert("nullable".into(), json!(true));
}

/// Any JSON object.
pub(super) fn any_object(schema: &mut Schema) {
    schema.remove("additionalProperties");
    schema.insert("maxProperties".into(), json!(limits::KEYS_NAMED));
    schema.insert("x-kubernetes-preserve-unknown-fields".into(), json!(true));
}

/// A list of whole objects, each with apiVersion, kind and metadata.
pub(super) fn manifests(schema: &mut Schema) {
    schema.insert("x-kubernetes-list-type".into(), json!("atomic"));
    schema.insert("minItems".into(), json!(1));
    schema.insert("maxItems".into(), json!(limits::MANIFESTS));
    schema.insert(
        "items".into(),
        json!({
            "type": "object",
            "x-kubernetes-embedded-resource": true,
            "x-kubernetes-preserve-unknown-fields": true,
        }),
    );
}

/// A number, or a part in percent.
pub(super) fn portion(schema: &mut Schema) {
    for field in ["type", "format", "minimum", "maximum"] {
        schema.remove(field);
    }
    schema.insert("x-kubernetes-int-or-string".into(), json!(true));
    schema.insert(
        "anyOf".into(),
        json!([{"type": "integer"}, {"type": "string"}]),
    );
    schema.insert("maxLength".into(), json!(4));
    rule(
        "type(self) == string ? self.matches('^([1-9][0-9]?|100)%$') : self >= 1",
        "rollout.maxConcurrency: write a number of clusters from 1 on, or a part of them from 1% to 100%",
    )(schema);
}

/// The label that orders clusters.
pub(super) fn order_by_label(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(317));
    rule(
        format!("self.matches('{QUALIFIED_NAME}') && self.indexOf('/') <= 253"),
        format!("rollout.orderByLabel: {LABEL_KEY_HINT}"),
    )(schema);
}

/// An analysis.
pub(super) fn analysis(schema: &mut Schema) {
    rule(
        "has(self.prometheus) != has(self.http)",
        "analysis: set exactly one of prometheus and http",
    )(schema);
}

/// A check by Prometheus.
pub(super) fn prometheus_check(schema: &mut Schema) {
    rule(
        "has(self.min) || has(self.max)",
        "prometheus: set min, max or both",
    )(schema);
}

/// A string of 1 to `max` characters.
pub(super) fn filled_text(max: usize) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("minLength".into(), json!(1));
        schema.insert("maxLength".into(), json!(max));
    }
}

/// A URL without user, fragment and dot segments.
pub(super) fn url(field: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("maxLength".into(), json!(1024));
        rule(
            "self.matches('^https?://[A-Za-z0-9._:\\\\[\\\\]-]+(/[!-~]*)?$') && !self.contains('#') && !self.contains('/.')",
            format!(
                "{field}: write a URL such as http://prometheus.monitoring:9090, without user, fragment and dot segments"
            ),
        )(schema);
    }
}

/// A decimal number.
pub(super) fn decimal(field: &'static str) -> impl FnMut(&mut Schema) {
    move |schema| {
        schema.insert("maxLength".into(), json!(32));
        rule(
            "self.matches('^-?[0-9]+([.][0-9]+)?$')",
            format!("{field}: write a decimal number, such as 0.01"),
        )(schema);
    }
}

/// A cron expression of five fields.
pub(super) fn cron_schedule(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(128));
    let field = |value: &str| {
        let item = format!("([*](/[1-9][0-9]?)?|({value})(-({value})(/[1-9][0-9]?)?)?)");
        format!("{item}(,{item})*")
    };
    let fields = [
        "[0-5]?[0-9]",
        "[01]?[0-9]|2[0-3]",
        "0?[1-9]|[12][0-9]|3[01]",
        "0?[1-9]|1[0-2]|JAN|FEB|MAR|APR|MAY|JUN|JUL|AUG|SEP|OCT|NOV|DEC",
        "[0-7]|SUN|MON|TUE|WED|THU|FRI|SAT",
    ];
    let fields = fields.map(field).join(" +");
    rule(
        format!("self.matches('^(?i:{fields})$')"),
        "schedule: write a cron expression with minute, hour, day of month, month and day of week, such as 0 22 * * 1-5, \
         of numbers, lists, ranges and steps",
    )(schema);
}

/// The name of a time zone. Whether it exists only the hub knows.
pub(super) fn time_zone(schema: &mut Schema) {
    schema.insert("maxLength".into(), json!(64));
    rule(
        "self.matches('^[A-Za-z0-9_+-]+(/[A-Za-z0-9_+-]+)*$')",
        "timeZone: write the name of a time zone of the IANA database, such as Europe/Berlin or UTC",
    )(schema);
}

/// An entry of `sources`.
pub(super) fn source(schema: &mut Schema) {
    rule(
        "has(self.selector) || (has(self.names) && size(self.names) > 0)",
        "this entry of sources selects nothing: set selector or names; for every object write names: [\"*\"]",
    )(schema);
    rule(
        "!has(self.selector) || !has(self.names) || size(self.names) == 0",
        "this entry of sources has both selector and names: write one entry of sources for each, entries add up",
    )(schema);
    rule(
        "!has(self.exact) || !self.exact || !has(self.createOnly) || !self.createOnly",
        "this entry of sources has both exact and createOnly: a copy that is never changed is not kept exact; remove one",
    )(schema);
}

/// An entry of `sources` of a ClusterDistributionRule.
pub(super) fn cluster_source(schema: &mut Schema) {
    rule(
        "has(self.namespaces) || !self.resources.exists(kind, kind in ['configmaps', 'secrets'])",
        "this entry of sources has no namespaces: name the hub's namespaces to read; for all of them write namespaces: \
         [\"*\"]. Only kinds without namespaces go without",
    )(schema);
}

/// The spec of either kind of rule.
pub(super) fn rule_spec(schema: &mut Schema) {
    no_literal_secrets(schema);
    rule(
        "!self.createNamespaces || (has(self.namespaces) && has(self.namespaces.names) && \
         self.namespaces.names.exists(name, !name.contains('*')))",
        "createNamespaces creates only what is named literally: add a name without '*' to namespaces.names, or set \
         createNamespaces: false",
    )(schema);
}

/// Every user who may read rules reads it: it must not contain values of Secrets.
fn no_literal_secrets(schema: &mut Schema) {
    rule(
        "!has(self.overrides) || !self.sources.exists(source, 'secrets' in source.resources) || \
         self.overrides.all(entry, (has(entry.resources) && size(entry.resources) > 0 && !('secrets' in entry.resources)) || \
         (!has(entry.data) && !has(entry.mergePatch) && !has(entry.jsonPatch)))",
        "overrides: a rule that copies Secrets must not hold values (data, mergePatch, jsonPatch), as every reader of the rule \
         would read them; take them from other Secrets (secretData), or write the other kinds into resources of the entry",
    )(schema);
    rule(
        "!has(self.overrides) || self.sources.all(source, source.resources.all(kind, kind == 'secrets')) || \
         self.overrides.all(entry, !has(entry.secretData) || (has(entry.resources) && entry.resources == ['secrets']))",
        "overrides: values of Secrets (secretData) go into copies of Secrets only; write resources: [secrets] into the entry",
    )(schema);
}

fn add(schema: &mut Map<String, Value>, rule: &str, message: &str) {
    let rules = schema
        .entry("x-kubernetes-validations")
        .or_insert_with(|| json!([]));
    if let Some(rules) = rules.as_array_mut() {
        rules.push(json!({"rule": rule, "message": message}));
    }
}
