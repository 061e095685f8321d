//! Rules that are refused. A case is one line: it is read as a table.

use serde_json::{Value, json};

use super::changed;

/// One entry of sources that takes everything, with a change.
fn source(change: Value) -> Value {
    json!({"sources": [changed(json!({"resources": ["configmaps"], "names": ["*"]}), &change)]})
}

fn source_selector(selector: Value) -> Value {
    let mut entry = json!({"resources": ["configmaps"]});
    entry["selector"] = selector;
    json!({"sources": [entry]})
}

pub fn names(count: usize) -> Vec<String> {
    (0..count).map(|number| format!("name-{number}")).collect()
}

pub fn clusters(change: Value) -> Value {
    json!({"clusters": change})
}

fn namespaces(change: Value) -> Value {
    json!({"namespaces": change})
}

fn analysis(change: Value) -> Value {
    json!({"rollout": {"analysis": change}})
}

fn windows(change: Value) -> Value {
    json!({"rollout": {"windows": [change]}})
}

fn feedback(resource: &str, name: &str, path: &str) -> Value {
    json!({"feedback": [{"resource": resource, "name": name, "jsonPath": path}]})
}

/// The description, the changed fields of the smallest rule's spec, and parts of the refusal.
pub type Case = (&'static str, Value, &'static [&'static str]);

/// Cases about sources.
#[rustfmt::skip]
pub fn selections() -> Vec<Case> {
    let many = |count: usize, entry: Value| json!({"sources": vec![entry; count]});
    let one = json!({"resources": ["configmaps"], "names": ["*"]});
    vec![
        ("no sources", json!({"sources": null}), &["spec.sources", "Required"]),
        ("an empty list of sources", json!({"sources": []}), &["spec.sources", "sources is empty", "add an entry"]),
        ("too many sources", many(17, one), &["spec.sources", "at most 16"]),
        ("no resources", source(json!({"resources": null})), &["spec.sources[0].resources", "Required"]),
        ("empty resources", source(json!({"resources": []})), &["spec.sources[0].resources", "resources is empty", "[configmaps, secrets]"]),
        ("a glob of resources", source(json!({"resources": ["*"]})), &["spec.sources[0].resources[0]", "write the plural of a kind", "without '*'"]),
        ("a resource with its version", source(json!({"resources": ["apps/v1/deployments"]})), &["spec.sources[0].resources[0]", "without version"]),
        ("a kind in its manifest's name", source(json!({"resources": ["ConfigMap"]})), &["spec.sources[0].resources[0]", "in lowercase"]),
        ("a resource that is too long", source(json!({"resources": ["x".repeat(254)]})), &["spec.sources[0].resources[0]", "253"]),
        ("a kind of one cluster", source(json!({"resources": ["events"]})), &["spec.sources[0].resources[0]", "belong to one cluster", "remove it"]),
        ("a kind of requests", source(json!({"resources": ["tokenreviews.authentication.k8s.io"]})), &["spec.sources[0].resources[0]", "belong to one cluster"]),
        ("a kind of Runnel", source(json!({"resources": ["distributionrules.runnel.dev"]})), &["spec.sources[0].resources[0]", "belong to one cluster"]),
        ("too many resources", source(json!({"resources": (0..17).map(|n| format!("kind{n}s")).collect::<Vec<_>>()})), &["spec.sources[0].resources", "at most 16"]),
        ("a resource twice", source(json!({"resources": ["secrets", "secrets"]})), &["spec.sources[0].resources[1]", "Duplicate"]),
        ("neither selector nor names", source(json!({"names": null})), &["spec.sources[0]", "set selector or names", "names: [\"*\"]"]),
        ("empty names", source(json!({"names": []})), &["spec.sources[0]", "set selector or names", "names: [\"*\"]"]),
        ("both selector and names", source(json!({"selector": {"matchLabels": {"a": "b"}}})), &["spec.sources[0]", "both selector and names", "one entry of sources for each"]),
        ("exact and only created", source(json!({"exact": true, "createOnly": true})), &["spec.sources[0]", "both exact and createOnly", "remove one"]),
        ("an empty selector", source_selector(json!({})), &["spec.sources[0].selector", "is empty", "names: [\"*\"]"]),
        ("a selector that is empty inside", source_selector(json!({"matchLabels": {}, "matchExpressions": []})), &["spec.sources[0].selector", "is empty", "names: [\"*\"]"]),
        ("too many names", source(json!({"names": names(257)})), &["spec.sources[0].names", "at most 256"]),
        ("a name twice", source(json!({"names": ["a", "a"]})), &["spec.sources[0].names[1]", "Duplicate"]),
        ("an empty name", source(json!({"names": [""]})), &["spec.sources[0].names[0]", "names: write an object name", "tls-*"]),
        ("a name with capitals", source(json!({"names": ["ok", "My-CA"]})), &["spec.sources[0].names[1]", "names: write an object name", "tls-*"]),
        ("a glob with a question mark", source(json!({"names": ["tls-?"]})), &["spec.sources[0].names[0]", "names: write an object name", "tls-*"]),
        ("a glob with a character class", source(json!({"names": ["tls-[ab]"]})), &["spec.sources[0].names[0]", "names: write an object name", "tls-*"]),
        ("a name that ends in a dot", source(json!({"names": ["ca."]})), &["spec.sources[0].names[0]", "names: write an object name"]),
        ("a glob that no name can match", source(json!({"names": ["-*"]})), &["spec.sources[0].names[0]", "names: write an object name"]),
        ("a name that is too long", source(json!({"names": ["a".repeat(254)]})), &["spec.sources[0].names[0]", "253"]),
        ("a bad exclude", source(json!({"exclude": ["a b"]})), &["spec.sources[0].exclude[0]", "exclude: write an object name"]),
        ("too many excludes", source(json!({"exclude": names(257)})), &["spec.sources[0].exclude", "at most 256"]),
    ]
}

/// Label selectors.
#[rustfmt::skip]
pub fn selectors() -> Vec<Case> {
    let expression = |expression: Value| source_selector(json!({"matchExpressions": [expression]}));
    let labels = |key: &str, value: &str| source_selector(json!({"matchLabels": {key: value}}));
    let many_labels: serde_json::Map<String, Value> = names(17).into_iter().map(|name| (name, json!("x"))).collect();
    let exists = json!({"key": "a", "operator": "Exists"});
    let long_prefix = format!("{}/x", "a".repeat(254));
    vec![
        ("an unknown operator", expression(json!({"key": "a", "operator": "Equals", "values": ["b"]})), &["matchExpressions[0].operator", "\"Equals\"", "\"In\", \"NotIn\", \"Exists\", \"DoesNotExist\""]),
        ("no operator", expression(json!({"key": "a"})), &["matchExpressions[0].operator", "Required"]),
        ("no key", expression(json!({"operator": "Exists"})), &["matchExpressions[0].key", "Required"]),
        ("In without values", expression(json!({"key": "a", "operator": "In"})), &["matchExpressions[0]", "need values", "list at least one"]),
        ("NotIn with empty values", expression(json!({"key": "a", "operator": "NotIn", "values": []})), &["matchExpressions[0]", "need values", "list at least one"]),
        ("Exists with values", expression(json!({"key": "a", "operator": "Exists", "values": ["b"]})), &["matchExpressions[0]", "take no values", "remove values"]),
        ("DoesNotExist with values", expression(json!({"key": "a", "operator": "DoesNotExist", "values": ["b"]})), &["matchExpressions[0]", "take no values", "remove values"]),
        ("a bad key", expression(json!({"key": "-a", "operator": "Exists"})), &["matchExpressions[0].key", "a label key is", "example.com/app"]),
        ("an empty key", expression(json!({"key": "", "operator": "Exists"})), &["matchExpressions[0].key", "a label key is"]),
        ("a key with two slashes", expression(json!({"key": "a/b/c", "operator": "Exists"})), &["matchExpressions[0].key", "a label key is"]),
        ("a key whose name is too long", expression(json!({"key": "a".repeat(64), "operator": "Exists"})), &["matchExpressions[0].key", "a label key is up to 63"]),
        ("a key whose prefix is too long", expression(json!({"key": long_prefix, "operator": "Exists"})), &["matchExpressions[0].key", "a label key is"]),
        ("a bad value", expression(json!({"key": "a", "operator": "In", "values": ["b c"]})), &["matchExpressions[0].values[0]", "a label value is up to 63"]),
        ("a value that is too long", expression(json!({"key": "a", "operator": "In", "values": ["b".repeat(64)]})), &["matchExpressions[0].values[0]", "63"]),
        ("too many values", expression(json!({"key": "a", "operator": "In", "values": names(65)})), &["matchExpressions[0].values", "at most 64"]),
        ("too many expressions", source_selector(json!({"matchExpressions": vec![exists; 17]})), &["matchExpressions", "at most 16"]),
        ("a bad key of matchLabels", labels("a b", "c"), &["spec.sources[0].selector.matchLabels", "a label key is", "example.com/app"]),
        ("a bad value of matchLabels", labels("a", "c-"), &["spec.sources[0].selector.matchLabels", "a label value is up to 63"]),
        ("too many labels", source_selector(json!({"matchLabels": many_labels})), &["matchLabels", "at most 16"]),
    ]
}

/// Cases about targets and policies.
#[rustfmt::skip]
pub fn targets() -> Vec<Case> {
    let create = |namespaces: Value| json!({"namespaces": namespaces, "createNamespaces": true});
    vec![
        ("no clusters", json!({"clusters": null}), &["spec.clusters", "Required"]),
        ("empty clusters", clusters(json!({})), &["spec.clusters", "chooses nothing", "all: true"]),
        ("all: false and nothing else", clusters(json!({"all": false})), &["spec.clusters", "chooses nothing", "all: true"]),
        ("only an exclude of clusters", clusters(json!({"exclude": ["eu-*"]})), &["spec.clusters", "chooses nothing", "all: true"]),
        ("empty names of clusters", clusters(json!({"names": []})), &["spec.clusters", "chooses nothing", "all: true"]),
        ("an empty cluster selector", clusters(json!({"all": true, "selector": {"matchLabels": {}}})), &["spec.clusters.selector", "is empty", "all: true"]),
        ("a glob among the names of clusters", clusters(json!({"names": ["eu-*"]})), &["spec.clusters.names[0]", "clusters.names: write the whole name", "clusters.selector"]),
        ("a bad name of a cluster", clusters(json!({"names": ["EU"]})), &["spec.clusters.names[0]", "clusters.names: write the whole name"]),
        ("a cluster name that is too long", clusters(json!({"names": ["a".repeat(64)]})), &["spec.clusters.names[0]", "63"]),
        ("too many names of clusters", clusters(json!({"names": names(513)})), &["spec.clusters.names", "at most 512"]),
        ("a bad exclude of clusters", clusters(json!({"all": true, "exclude": ["a?"]})), &["spec.clusters.exclude[0]", "clusters.exclude: write the name", "eu-*"]),
        ("too many excludes of clusters", clusters(json!({"all": true, "exclude": names(513)})), &["spec.clusters.exclude", "at most 512"]),
        ("a bad cluster selector", clusters(json!({"selector": {"matchLabels": {"a": "b c"}}})), &["spec.clusters.selector.matchLabels", "a label value is"]),
        ("empty namespaces", namespaces(json!({})), &["spec.namespaces", "chooses nothing", "set names or selector"]),
        ("only an exclude of namespaces", namespaces(json!({"exclude": ["a"]})), &["spec.namespaces", "chooses nothing", "set names or selector"]),
        ("empty names of namespaces", namespaces(json!({"names": []})), &["spec.namespaces", "chooses nothing", "remove namespaces"]),
        ("an empty namespace selector", namespaces(json!({"selector": {"matchLabels": {}}})), &["spec.namespaces.selector", "is empty", "names: [\"*\"]"]),
        ("a glob of namespaces of Kubernetes", namespaces(json!({"names": ["kube-*"]})), &["spec.namespaces.names[0]", "namespaces.names: no glob matches a namespace kube-*", "kube-system"]),
        ("a bad name of a namespace", namespaces(json!({"names": ["a.b"]})), &["spec.namespaces.names[0]", "namespaces.names: write a namespace name", "team-*"]),
        ("a namespace name that is too long", namespaces(json!({"names": ["a".repeat(64)]})), &["spec.namespaces.names[0]", "63"]),
        ("too many names of namespaces", namespaces(json!({"names": names(129)})), &["spec.namespaces.names", "at most 128"]),
        ("a bad exclude of namespaces", namespaces(json!({"names": ["a"], "exclude": ["[a]"]})), &["spec.namespaces.exclude[0]", "namespaces.exclude: write a namespace name"]),
        ("too many excludes of namespaces", namespaces(json!({"names": ["a"], "exclude": names(129)})), &["spec.namespaces.exclude", "at most 128"]),
        ("createNamespaces with globs only", create(json!({"names": ["team-*"]})), &["spec", "createNamespaces", "namespaces.names"]),
        ("createNamespaces with a selector only", create(json!({"selector": {"matchLabels": {"a": "b"}}})), &["spec", "createNamespaces", "namespaces.names"]),
        ("createNamespaces without namespaces", create(Value::Null), &["spec", "createNamespaces", "namespaces.names"]),
        ("an unknown conflictPolicy", json!({"conflictPolicy": "Merge"}), &["spec.conflictPolicy", "\"Merge\"", "\"Fail\"", "\"AdoptIfEqual\"", "\"Overwrite\""]),
        ("an unknown driftPolicy", json!({"driftPolicy": "Ignore"}), &["spec.driftPolicy", "\"Ignore\"", "\"Correct\"", "\"Report\""]),
        ("a number of replicas", json!({"replicas": "3"}), &["spec.replicas", "\"3\"", "\"Source\"", "\"Auto\""]),
        ("an unknown enforcement", json!({"enforcement": "Warn"}), &["spec.enforcement", "\"Warn\"", "\"Enforce\"", "\"DryRun\""]),
        ("an unknown immutablePolicy", json!({"immutablePolicy": "Force"}), &["spec.immutablePolicy", "\"Report\"", "\"Recreate\""]),
        ("a status among ignored fields", json!({"ignoreFields": ["/status/x"]}), &["ignoreFields[0]", "are the copy's own"]),
        ("an index among ignored fields", json!({"ignoreFields": ["/spec/ports/0/nodePort"]}), &["ignoreFields[0]", "an index names no item", "[name=app]"]),
        ("an item at the top", json!({"ignoreFields": ["/[name=x]/a"]}), &["ignoreFields[0]", "are the copy's own"]),
        ("too many steps of a pointer", json!({"ignoreFields": ["/a".repeat(33)]}), &["ignoreFields[0]", "write a JSON pointer"]),
        ("a mark among ignored fields", json!({"ignoreFields": ["/metadata/labels/runnel.dev~1hub"]}), &["ignoreFields", "Runnel's own"]),
        ("a removalLimit below nothing", json!({"removalLimit": {"count": -1}}), &["spec.removalLimit.count"]),
        ("a removalLimit above everything", json!({"removalLimit": {"percent": 101}}), &["spec.removalLimit.percent"]),
        ("a rollout to nobody", json!({"rollout": {"maxConcurrency": 0}}), &["spec.rollout.maxConcurrency", "write a number of clusters from 1 on", "1% to 100%"]),
        ("a part of more than all", json!({"rollout": {"maxConcurrency": "101%"}}), &["spec.rollout.maxConcurrency", "1% to 100%"]),
        ("a part without a sign", json!({"rollout": {"maxConcurrency": "25"}}), &["spec.rollout.maxConcurrency", "1% to 100%"]),
        ("a label key that is none", json!({"rollout": {"orderByLabel": "a b"}}), &["spec.rollout.orderByLabel", "a label key is"]),
        ("an unknown propagation", json!({"deletion": {"propagation": "Later"}}), &["spec.deletion.propagation", "\"Foreground\"", "\"Orphan\""]),
        ("no time to get done", json!({"rollout": {"progressDeadlineSeconds": 0}}), &["spec.rollout.progressDeadlineSeconds", "1"]),
        ("a soak of more than a week", json!({"rollout": {"soakSeconds": 604_801}}), &["spec.rollout.soakSeconds", "604800"]),
        ("less failures than none", json!({"rollout": {"maxFailures": -1}}), &["spec.rollout.maxFailures", "0"]),
        ("an analysis of nothing", analysis(json!({})), &["spec.rollout.analysis", "exactly one of prometheus and http"]),
        ("an analysis of two things", analysis(json!({"http": {"url": "http://a"}, "prometheus": {"address": "http://a", "query": "up", "min": "1"}})), &["spec.rollout.analysis", "exactly one of prometheus and http"]),
        ("a query without bounds", analysis(json!({"prometheus": {"address": "http://a", "query": "up"}})), &["spec.rollout.analysis.prometheus", "set min, max or both"]),
        ("an empty query", analysis(json!({"prometheus": {"address": "http://a", "query": "", "min": "1"}})), &["spec.rollout.analysis.prometheus.query", "1"]),
        ("a bound that is no number", analysis(json!({"prometheus": {"address": "http://a", "query": "up", "max": "1e3"}})), &["spec.rollout.analysis.prometheus.max", "write a decimal number"]),
        ("a URL of another scheme", analysis(json!({"http": {"url": "file:///etc/passwd"}})), &["spec.rollout.analysis.http.url", "write a URL"]),
        ("a URL with a user", analysis(json!({"http": {"url": "http://user:word@a/"}})), &["spec.rollout.analysis.http.url", "write a URL"]),
        ("a URL with dot segments", analysis(json!({"http": {"url": "http://a/b/../c"}})), &["spec.rollout.analysis.http.url", "write a URL"]),
        ("checks without a pause", analysis(json!({"http": {"url": "http://a"}, "intervalSeconds": 4})), &["spec.rollout.analysis.intervalSeconds", "5"]),
        ("a window without a schedule", windows(json!({"durationSeconds": 60})), &["spec.rollout.windows[0].schedule"]),
        ("a schedule of four fields", windows(json!({"schedule": "0 22 * *", "durationSeconds": 60})), &["spec.rollout.windows[0].schedule", "write a cron expression"]),
        ("a minute that no hour has", windows(json!({"schedule": "60 22 * * *", "durationSeconds": 60})), &["spec.rollout.windows[0].schedule", "write a cron expression"]),
        ("a nickname as a schedule", windows(json!({"schedule": "@daily", "durationSeconds": 60})), &["spec.rollout.windows[0].schedule", "write a cron expression"]),
        ("a last day as a schedule", windows(json!({"schedule": "0 22 L * *", "durationSeconds": 60})), &["spec.rollout.windows[0].schedule", "write a cron expression"]),
        ("a window of less than a minute", windows(json!({"schedule": "0 22 * * *", "durationSeconds": 59})), &["spec.rollout.windows[0].durationSeconds", "60"]),
        ("a window of more than a week", windows(json!({"schedule": "0 22 * * *", "durationSeconds": 604_801})), &["spec.rollout.windows[0].durationSeconds", "604800"]),
        ("a time zone with a space", windows(json!({"schedule": "0 22 * * *", "durationSeconds": 60, "timeZone": "Central Time"})), &["spec.rollout.windows[0].timeZone", "IANA"]),
        ("too many windows", json!({"rollout": {"windows": vec![json!({"schedule": "0 22 * * *", "durationSeconds": 60}); 9]}}), &["spec.rollout.windows", "at most 8"]),
        ("feedback of a Secret", feedback("secrets", "a", ".status.phase"), &["spec.feedback[0].resource", "Secrets"]),
        ("feedback without a path", feedback("pods", "a", ""), &["spec.feedback[0].jsonPath", ".status.readyReplicas"]),
        ("feedback of metadata", feedback("pods", "a", ".metadata.name"), &["spec.feedback[0].jsonPath", "status or spec"]),
        ("feedback of a whole status", feedback("pods", "a", ".status"), &["spec.feedback[0].jsonPath", "status or spec"]),
        ("feedback in braces", feedback("pods", "a", "{.status.phase}"), &["spec.feedback[0].jsonPath", "status or spec"]),
        ("feedback without a name", feedback("pods", "", ".status.phase"), &["spec.feedback[0].name", "letters"]),
        ("too much feedback", json!({"feedback": (0..9).map(|n| json!({"resource": "pods", "name": format!("f{n}"), "jsonPath": ".status.phase"})).collect::<Vec<_>>()}), &["spec.feedback", "at most 8"]),
        ("an unknown gate of waves", json!({"rollout": {"gate": "Ready"}}), &["spec.rollout.gate", "\"Applied\"", "\"Healthy\""]),
        ("an unknown approval of waves", json!({"rollout": {"approval": "Always"}}), &["spec.rollout.approval", "\"None\"", "\"PerWave\""]),
        ("an unknown onRuleDelete", json!({"removalLimit": {"onRuleDelete": "Keep"}}), &["spec.removalLimit.onRuleDelete", "\"Allow\"", "\"Hold\""]),
        ("an unknown deletionPolicy", json!({"deletionPolicy": "Keep"}), &["spec.deletionPolicy", "\"Keep\"", "\"Delete\", \"Retain\""]),
    ]
}
