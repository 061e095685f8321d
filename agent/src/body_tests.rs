use super::*;
use crate::live::{Ownership, Sealed, proven_content, reduce};
use std::collections::BTreeMap;

fn kind() -> &'static Kind {
    Kind::by_resource("configmaps").unwrap()
}

fn content() -> Content {
    Content {
        labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        annotations: BTreeMap::from([("note".to_owned(), "x".to_owned())]),
        fields: BTreeMap::from([("data".to_owned(), json!({"k": "v"}))]),
    }
}

fn intent() -> IntentKey {
    IntentKey { rule: "uid-1".into(), source: SourceRef::new("configmaps", "team", "settings") }
}

/// What an API server makes of an apply: the object, with uid, version and managed fields.
fn served(copy: &SourceRef, sealer: &Sealer) -> DynamicObject {
    let (intent, rule) = (intent(), RuleName { name: "r".into(), ..RuleName::default() });
    let written =
        Written { kind: kind(), copy, intent: &intent, rule: &rule, revision: &Revision([7; 16]), content: &content() };
    let mut body = apply(&written, None, sealer);
    let owned = |part: &str| {
        let keys = body["metadata"][part].as_object().unwrap().keys();
        Value::Object(keys.map(|key| (format!("f:{key}"), json!({}))).collect())
    };
    let fields = json!({"f:metadata": {"f:labels": owned("labels"), "f:annotations": owned("annotations")}});
    body["metadata"]["uid"] = json!("u");
    body["metadata"]["resourceVersion"] = json!("5");
    body["metadata"]["managedFields"] = json!([
        {"manager": "kubectl", "operation": "Update", "fieldsV1": {}},
        {"manager": "runnel-agent", "operation": "Apply", "fieldsV1": fields, "time": "2026-01-02T03:04:05Z"},
    ]);
    serde_json::from_value(body).unwrap()
}

fn copy() -> SourceRef {
    SourceRef::new("configmaps", "a", "settings")
}

fn patched(object: &DynamicObject, patch: Value) -> DynamicObject {
    let mut value = serde_json::to_value(object).unwrap();
    let patch: json_patch::Patch = serde_json::from_value(patch).unwrap();
    json_patch::patch(&mut value, &patch).unwrap();
    serde_json::from_value(value).unwrap()
}

fn seen(object: &DynamicObject, sealer: &Sealer) -> crate::live::Live {
    reduce(kind(), object, sealer).unwrap().1
}

#[test]
fn what_was_applied_is_intact_and_gives_its_content_back() {
    let sealer = Sealer::new(b"key", "hub");
    let object = served(&copy(), &sealer);
    let live = seen(&object, &sealer);
    assert_eq!((live.ownership, live.intact), (Ownership::Ours, true));
    assert!(live.holds(&intent().rule, &intent().source, &Revision([7; 16])));
    assert!(live.applied_at > 0);
    let sealed = Sealed { rule: intent().rule, source: intent().source, revision: Revision([7; 16]) };
    assert!(proven_content(kind(), &object, &sealer, &sealed) == Some(content()));
}

#[test]
fn any_change_of_what_we_wrote_is_seen() {
    let sealer = Sealer::new(b"key", "hub");
    let changes: [fn(&mut Value); 7] = [
        |o| o["data"]["k"] = json!("w"),
        |o| o["data"]["surplus"] = json!("w"),
        |o| o["binaryData"] = json!({"x": "AA=="}),
        |o| o["immutable"] = json!(true),
        |o| {
            drop(
                o["metadata"]["managedFields"][1]["fieldsV1"]["f:metadata"]["f:labels"]
                    .as_object_mut()
                    .unwrap()
                    .remove("f:team"),
            )
        },
        |o| o["metadata"]["annotations"]["runnel.dev/source"] = json!("configmaps/x/y"),
        |o| o["metadata"]["annotations"]["runnel.dev/retained-from"] = json!("x"),
    ];
    for (at, change) in changes.iter().enumerate() {
        let mut value = serde_json::to_value(served(&copy(), &sealer)).unwrap();
        change(&mut value);
        let live = seen(&serde_json::from_value(value).unwrap(), &sealer);
        assert_eq!((live.ownership, live.intact), (Ownership::Ours, false), "change {at}");
    }
}

#[test]
fn what_others_add_besides_does_not_matter() {
    let sealer = Sealer::new(b"key", "hub");
    let mut object = served(&copy(), &sealer);
    object.metadata.labels.get_or_insert_default().insert("theirs".into(), "x".into());
    object.metadata.annotations.get_or_insert_default().insert("theirs".into(), "x".into());
    object.metadata.finalizers = Some(vec!["theirs/x".into()]);
    assert!(seen(&object, &sealer).intact);
}

#[test]
fn whose_an_object_is() {
    let sealer = Sealer::new(b"key", "hub");
    let object = served(&copy(), &sealer);
    let owner = |object: &DynamicObject| seen(object, &sealer).ownership;

    let mut cloned = object.clone();
    cloned.metadata.namespace = Some("b".into());
    assert_eq!(owner(&cloned), Ownership::Clone);

    let mut unsealed = object.clone();
    unsealed.metadata.annotations.as_mut().unwrap().remove(SEAL_ANNOTATION);
    assert_eq!(owner(&unsealed), Ownership::Ours);
    let mut stripped = unsealed.clone();
    stripped.metadata.labels = None;
    assert_eq!(owner(&stripped), Ownership::Ours);

    let mut of_another_hub = unsealed.clone();
    of_another_hub.metadata.labels.as_mut().unwrap().insert(HUB_LABEL.into(), "other".into());
    assert_eq!(owner(&of_another_hub), Ownership::Foreign);

    let mut foreign = unsealed;
    foreign.metadata.managed_fields = None;
    assert_eq!(owner(&foreign), Ownership::Foreign);

    // The agent's Secret was lost: its seals are of another key, its managed fields still tell.
    assert_eq!(seen(&object, &Sealer::new(b"new key", "hub")).ownership, Ownership::Ours);
    assert!(!seen(&object, &Sealer::new(b"new key", "hub")).intact);
}

#[test]
fn a_retained_object_is_no_longer_ours_and_keeps_its_content() {
    let sealer = Sealer::new(b"key", "hub");
    let object = served(&copy(), &sealer);
    let rule = RuleName { kind: "DistributionRule".into(), namespace: "team".into(), name: "r".into() };
    let left = patched(&object, retain(&object, &rule));
    let live = seen(&left, &sealer);
    assert_eq!((live.ownership, live.sealed, live.intact), (Ownership::Retained, None, false));
    assert!(crate::live::has_equal_fields(kind(), &left, &content()));
    let value = serde_json::to_value(&left).unwrap();
    assert_eq!(value["metadata"]["annotations"][RETAINED_ANNOTATION], "team/r");
    assert_eq!(value["metadata"]["labels"], json!({"team": "a"}));
    assert_eq!(value["metadata"]["managedFields"].as_array().unwrap().len(), 1);
}

#[test]
fn surplus_keys_and_fields_are_removed_and_nothing_else() {
    let sealer = Sealer::new(b"key", "hub");
    let object = served(&copy(), &sealer);
    assert!(surplus(kind(), &object, &content()).is_none());
    let mut value = serde_json::to_value(&object).unwrap();
    value["data"]["a/b~c"] = json!("theirs");
    value["binaryData"] = json!({"x": "AA=="});
    value["metadata"]["annotations"][RETAINED_ANNOTATION] = json!("team/r");
    let dirty: DynamicObject = serde_json::from_value(value).unwrap();
    let clean = patched(&dirty, surplus(kind(), &dirty, &content()).unwrap());
    assert_eq!(serde_json::to_value(&clean).unwrap(), serde_json::to_value(&object).unwrap());
}

#[test]
fn a_change_names_the_object_and_a_creation_none() {
    let sealer = Sealer::new(b"key", "hub");
    let (intent, rule, copy, content) = (intent(), RuleName::default(), copy(), content());
    let revision = Revision([7; 16]);
    let written =
        Written { kind: kind(), copy: &copy, intent: &intent, rule: &rule, revision: &revision, content: &content };
    let target = Target { uid: "u".into(), version: "9".into() };
    let change = apply(&written, Some(&target), &sealer);
    assert_eq!((&change["metadata"]["uid"], &change["metadata"]["resourceVersion"]), (&json!("u"), &json!("9")));
    let creation = apply(&written, None, &sealer);
    assert_eq!((&creation["metadata"]["uid"], &creation["metadata"]["resourceVersion"]), (&Value::Null, &json!("1")));
}
