use super::*;
use crate::live::{Ownership, Sealed, proven_content, reduce};
use runnel_proto::model::{ContentDigest, Scope};
use std::collections::BTreeMap;

fn kind() -> &'static Kind {
    Kind::by_resource("configmaps").unwrap()
}

fn content() -> Content {
    Content {
        labels: BTreeMap::from([("team".to_owned(), "a".to_owned())]),
        annotations: BTreeMap::from([("note".to_owned(), "x".to_owned())]),
        fields: BTreeMap::from([("data".to_owned(), json!({"k": "v"}))]),
        ..Content::default()
    }
}

fn intent() -> IntentKey {
    IntentKey {
        rule: "uid-1".into(),
        source: SourceRef::new("configmaps", "team", "settings"),
    }
}

/// Returns the object after an apply, with the uid, version and managed fields that an API server
/// adds.
fn served(copy: &SourceRef, sealer: &Sealer) -> DynamicObject {
    served_ignoring(copy, sealer, None)
}

fn served_ignoring(
    copy: &SourceRef,
    sealer: &Sealer,
    ignored: Option<&BTreeSet<FieldPath>>,
) -> DynamicObject {
    let (intent, rule) = (
        intent(),
        RuleName {
            name: "r".into(),
            ..RuleName::default()
        },
    );
    let (revision, content, none) = (Revision([7; 16]), content(), BTreeSet::new());
    let written = ApplyInput {
        version: None,
        kind: kind(),
        copy,
        intent: &intent,
        rule: &rule,
        revision: &revision,
        content: &content,
        stored: None,
        ignored: ignored.unwrap_or(&none),
        adopted: false,
    };
    let mut body = apply(&written, None, sealer);
    let owned = |part: &str| {
        let keys = body["metadata"][part].as_object().unwrap().keys();
        Value::Object(keys.map(|key| (format!("f:{key}"), json!({}))).collect())
    };
    let keys = body["data"].as_object().unwrap().keys();
    let data: Value = Value::Object(keys.map(|key| (format!("f:{key}"), json!({}))).collect());
    let fields = json!({"f:data": data, "f:metadata": {"f:labels": owned("labels"), "f:annotations": owned("annotations")}});
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

fn patched(object: &DynamicObject, patch: Patch) -> DynamicObject {
    let mut value = serde_json::to_value(object).unwrap();
    json_patch::patch(&mut value, &patch).unwrap();
    serde_json::from_value(value).unwrap()
}

fn seen(object: &DynamicObject, sealer: &Sealer) -> crate::live::Live {
    reduce(kind(), object, sealer).unwrap().1
}

#[test]
fn applied_copy_is_intact_and_returns_its_content() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = served(&copy(), &sealer);
    let live = seen(&object, &sealer);
    assert_eq!((live.ownership, live.intact), (Ownership::Ours, true));
    assert!(live.has_revision(&intent().rule, &intent().source, &Revision([7; 16])));
    assert!(live.applied_at > 0);
    let sealed = Sealed {
        rule: intent().rule,
        source: intent().source,
        revision: Revision([7; 16]),
        ignored: BTreeSet::new(),
    };
    assert!(proven_content(kind(), &object, &sealer, &sealed) == Some(content()));
}

/// A NetworkPolicy after an apply: the API server has added a default, and a controller a status.
fn served_policy(kind: &Kind, sealer: &Sealer) -> Value {
    let copy = SourceRef::new(&kind.resource, "a", "web");
    let spec = json!({"podSelector": {"matchLabels": {"app": "web"}}, "ingress": [{"ports": [{"port": 80}]}]});
    let content = Content {
        version: Some("v1".into()),
        fields: BTreeMap::from([("spec".to_owned(), spec)]),
        ..Content::default()
    };
    let intent = IntentKey {
        rule: "uid-1".into(),
        source: SourceRef::new(&kind.resource, "team", "web"),
    };
    let written = ApplyInput {
        version: None,
        kind,
        copy: &copy,
        intent: &intent,
        rule: &RuleName::default(),
        revision: &Revision([7; 16]),
        content: &content,
        stored: None,
        ignored: &BTreeSet::new(),
        adopted: false,
    };
    let mut body = apply(&written, None, sealer);
    let owned = |part: &str| {
        let keys = body["metadata"][part].as_object().unwrap().keys();
        Value::Object(keys.map(|key| (format!("f:{key}"), json!({}))).collect())
    };
    let metadata = json!({"f:labels": owned("labels"), "f:annotations": owned("annotations")});
    let fields = json!({"f:metadata": metadata, "f:spec": {"f:podSelector": {}, "f:ingress": {}}});
    body["metadata"]["uid"] = json!("u");
    body["metadata"]["resourceVersion"] = json!("5");
    body["metadata"]["managedFields"] = json!([
        {"manager": "runnel-agent", "operation": "Apply", "apiVersion": "networking.k8s.io/v1", "fieldsV1": fields},
    ]);
    body["spec"]["policyTypes"] = json!(["Ingress"]);
    body["status"] = json!({"conditions": []});
    body
}

#[test]
fn kind_without_rules_is_compared_by_applied_fields() {
    let kind = Kind::new(
        "networking.k8s.io",
        "v1",
        "NetworkPolicy",
        "networkpolicies",
        Scope::Namespaced,
    );
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let live = |object: &Value| {
        let object = serde_json::from_value(object.clone()).unwrap();
        reduce(&kind, &object, &sealer).unwrap().1
    };
    let whole = served_policy(&kind, &sealer);
    assert_eq!(
        (live(&whole).ownership, live(&whole).intact),
        (Ownership::Ours, true)
    );
    let foreign: [fn(&mut Value); 3] = [
        |o| o["spec"]["policyTypes"] = json!(["Ingress", "Egress"]),
        |o| o["status"] = json!({"conditions": [{"type": "x"}]}),
        |o| o["metadata"]["labels"]["theirs"] = json!("x"),
    ];
    for (number, change) in foreign.iter().enumerate() {
        let mut object = whole.clone();
        change(&mut object);
        assert!(live(&object).intact, "foreign change {number}");
    }
    let ours: [fn(&mut Value); 2] = [
        |o| o["spec"]["ingress"][0]["ports"][0]["port"] = json!(81),
        |o| drop(o["spec"].as_object_mut().unwrap().remove("podSelector")),
    ];
    for (number, change) in ours.iter().enumerate() {
        let mut object = whole.clone();
        change(&mut object);
        assert!(!live(&object).intact, "change {number}");
    }
    // Fields of another version may have other names.
    let mut other = whole.clone();
    other["metadata"]["managedFields"][0]["apiVersion"] = json!("networking.k8s.io/v1beta1");
    assert!(!live(&other).intact);
    // The revision proves the copy, whatever values the API server stores.
    let digest = |revision: u8| {
        let owned = Content {
            version: Some("v1".into()),
            ..content()
        };
        ContentDigest::of_copy(&owned, &Revision([revision; 16]), &BTreeSet::new())
    };
    assert!(live(&whole).facts.digest == Some(digest(7)) && digest(7) != digest(8));
    // What others add is seen, too, unless the copy is only created.
    let mut widened = whole.clone();
    widened["spec"]["egress"] = json!([{}]);
    let entries = widened["metadata"]["managedFields"].as_array_mut().unwrap();
    entries.push(json!({"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:egress": {}}}}));
    let found = live(&widened);
    assert!(found.intact && found.is_widened && !live(&whole).is_widened);
    widened["metadata"]["annotations"]["runnel.dev/mode"] = json!("createOnly");
    assert!(!live(&widened).is_widened);
    // The API server takes a field that another client changed out of the fields of the agent.
    let mut taken = whole;
    taken["spec"]["ingress"] = json!([]);
    let entries = taken["metadata"]["managedFields"].as_array_mut().unwrap();
    let fields = entries[0]["fieldsV1"]["f:spec"].as_object_mut().unwrap();
    fields.remove("f:ingress");
    entries.push(json!({"manager": "kubectl-edit", "operation": "Update", "fieldsV1": {"f:spec": {"f:ingress": {}}}}));
    let taken = live(&taken);
    assert_eq!(
        (taken.intact, taken.others.as_deref()),
        (false, Some("kubectl-edit"))
    );
}

#[test]
fn any_change_of_what_we_wrote_is_seen() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
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
        assert_eq!(
            (live.ownership, live.intact),
            (Ownership::Ours, false),
            "change {at}"
        );
    }
}

#[test]
fn added_annotations_of_others_do_not_matter() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let mut object = served(&copy(), &sealer);
    object
        .metadata
        .labels
        .get_or_insert_default()
        .insert("theirs".into(), "x".into());
    object
        .metadata
        .annotations
        .get_or_insert_default()
        .insert("theirs".into(), "x".into());
    object.metadata.finalizers = Some(vec!["theirs/x".into()]);
    assert!(seen(&object, &sealer).intact);
}

#[test]
fn ownership_of_objects_is_classified() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = served(&copy(), &sealer);
    let owner = |object: &DynamicObject| seen(object, &sealer).ownership;

    let mut cloned = object.clone();
    cloned.metadata.namespace = Some("b".into());
    assert_eq!(owner(&cloned), Ownership::Clone);

    let mut unsealed = object.clone();
    unsealed
        .metadata
        .annotations
        .as_mut()
        .unwrap()
        .remove(SEAL_ANNOTATION);
    assert_eq!(owner(&unsealed), Ownership::Ours);
    let mut stripped = unsealed.clone();
    stripped.metadata.labels = None;
    assert_eq!(owner(&stripped), Ownership::Ours);

    let mut of_another_hub = unsealed.clone();
    of_another_hub
        .metadata
        .labels
        .as_mut()
        .unwrap()
        .insert(HUB_LABEL.into(), "other".into());
    assert_eq!(owner(&of_another_hub), Ownership::OtherHub);

    let mut foreign = unsealed;
    foreign.metadata.managed_fields = None;
    assert_eq!(owner(&foreign), Ownership::Foreign);

    // The agent's Secret was lost. Another key made its seals, but its managed fields still
    // identify the copy.
    assert_eq!(
        seen(&object, &Sealer::new(b"new key", "hub", ["eu-1", ""])).ownership,
        Ownership::Ours
    );
    assert!(!seen(&object, &Sealer::new(b"new key", "hub", ["eu-1", ""])).intact);
    // The copies of another MemberCluster are its own, until this one replaces it.
    let of_second = |member, replaced| {
        let sealer = Sealer::new(b"new key", "hub", [member, replaced]);
        let live = seen(&object, &sealer);
        (live.ownership, live.names_member)
    };
    assert_eq!(of_second("eu-2", ""), (Ownership::OtherMember, false));
    assert_eq!(of_second("eu-2", "eu-1"), (Ownership::Ours, false));
    let renamed = seen(&object, &Sealer::new(b"key", "hub", ["eu-2", ""]));
    assert_eq!(
        (renamed.ownership, renamed.intact, renamed.names_member),
        (Ownership::Ours, true, false)
    );
    // A copy of an older agent has no name.
    let mut unnamed = object;
    let annotations = unnamed.metadata.annotations.as_mut().unwrap();
    annotations.remove(MEMBER_ANNOTATION);
    let second = seen(&unnamed, &Sealer::new(b"new key", "hub", ["eu-2", ""]));
    assert_eq!(second.ownership, Ownership::Ours);
}

#[test]
fn copy_without_the_label_of_its_rule_is_not_intact() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = served(&copy(), &sealer);
    let labels = object.metadata.labels.clone().unwrap_or_default();
    assert_eq!(labels[RULE_LABEL], intent().rule.as_str());
    assert!(seen(&object, &sealer).intact);

    // As an earlier agent wrote it, and as another client changes it.
    let mut value = serde_json::to_value(&object).unwrap();
    let fields = &mut value["metadata"]["managedFields"][1]["fieldsV1"]["f:metadata"]["f:labels"];
    fields
        .as_object_mut()
        .unwrap()
        .remove("f:runnel.dev/rule-uid");
    let object = serde_json::from_value(value).unwrap();
    assert!(!seen(&object, &sealer).intact);
    assert_eq!(seen(&object, &sealer).ownership, Ownership::Ours);
}

#[test]
fn uid_that_is_no_label_gets_no_label() {
    assert_eq!(rule_label(&"4f1c-9".into()), Some("4f1c-9"));
    for uid in ["", "a b", "A", &"a".repeat(64)] {
        assert_eq!(rule_label(&uid.into()), None, "{uid}");
    }
}

#[test]
fn a_retained_object_is_no_longer_ours_and_keeps_its_content() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = served(&copy(), &sealer);
    let rule = RuleName {
        kind: "DistributionRule".into(),
        namespace: "team".into(),
        name: "r".into(),
    };
    let proof = sealer.retained_proof(&copy(), "u");
    let left = patched(&object, retain(&object, &rule, Some(&proof)));
    let live = seen(&left, &sealer);
    assert_eq!(
        (live.ownership, live.sealed, live.intact),
        (Ownership::Retained, None, false)
    );
    assert!(crate::live::is_adoptable(kind(), &left, &content(), None));
    let value = serde_json::to_value(&left).unwrap();
    assert_eq!(
        value["metadata"]["annotations"][RETAINED_ANNOTATION],
        "team/r"
    );
    assert_eq!(value["metadata"]["labels"], json!({"team": "a"}));
    assert_eq!(
        value["metadata"]["managedFields"].as_array().unwrap().len(),
        1
    );
    // The annotation proves nothing without its proof, or on another object.
    let mut forged = left.clone();
    forged.metadata.uid = Some("u2".into());
    assert_eq!(seen(&forged, &sealer).ownership, Ownership::Foreign);
    assert_eq!(
        seen(&patched(&object, retain(&object, &rule, None)), &sealer).ownership,
        Ownership::Foreign
    );
}

#[test]
fn retained_object_names_its_rule_without_known_terms() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let mut object = served(&copy(), &sealer);
    let unknown = RuleName {
        name: "uid-of-r".into(),
        ..RuleName::default()
    };
    let from = |object: &DynamicObject| {
        let left = patched(object, retain(object, &unknown, Some("proof")));
        left.metadata.annotations.unwrap()[RETAINED_ANNOTATION].clone()
    };
    let marks = object.metadata.annotations.as_mut().unwrap();
    marks.insert(RULE_ANNOTATION.into(), "team/r".into());
    assert_eq!(from(&object), "team/r");
    let marks = object.metadata.annotations.as_mut().unwrap();
    marks.remove(RULE_ANNOTATION);
    assert_eq!(from(&object), "uid-of-r");
}

#[test]
fn adoption_needs_equal_fields_and_no_other_value_of_a_label() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = served(&copy(), &sealer);
    let adoptable = |change: fn(&mut Value)| {
        let mut value = serde_json::to_value(&object).unwrap();
        change(&mut value);
        crate::live::is_adoptable(
            kind(),
            &serde_json::from_value(value).unwrap(),
            &content(),
            None,
        )
    };
    assert!(adoptable(|_| {}));
    assert!(adoptable(
        |o| o["metadata"]["labels"] = json!({"theirs": "x"})
    ));
    assert!(adoptable(|o| drop(
        o["metadata"]["annotations"]
            .as_object_mut()
            .unwrap()
            .remove("note")
    )));
    assert!(!adoptable(|o| o["data"]["k"] = json!("w")));
    assert!(!adoptable(|o| o["data"]["more"] = json!("w")));
    assert!(!adoptable(|o| o["metadata"]["labels"]["team"] = json!("b")));
    assert!(!adoptable(
        |o| o["metadata"]["annotations"]["note"] = json!("y")
    ));
    assert!(!adoptable(
        |o| o["metadata"]["labels"]["app.kubernetes.io/managed-by"] = json!("Helm")
    ));
}

#[test]
fn surplus_keys_and_fields_are_removed_and_nothing_else() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = served(&copy(), &sealer);
    assert!(surplus(kind(), &object, &content(), &BTreeSet::new()).is_none());
    let mut value = serde_json::to_value(&object).unwrap();
    value["data"]["a/b~c"] = json!("theirs");
    value["binaryData"] = json!({"x": "AA=="});
    value["metadata"]["annotations"][RETAINED_ANNOTATION] = json!("team/r");
    let dirty: DynamicObject = serde_json::from_value(value).unwrap();
    let clean = patched(
        &dirty,
        surplus(kind(), &dirty, &content(), &BTreeSet::new()).unwrap(),
    );
    assert_eq!(
        serde_json::to_value(&clean).unwrap(),
        serde_json::to_value(&object).unwrap()
    );
}

#[test]
fn a_change_names_the_object_and_a_creation_none() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let (intent, rule, copy, content) = (intent(), RuleName::default(), copy(), content());
    let revision = Revision([7; 16]);
    let none = BTreeSet::new();
    let written = ApplyInput {
        adopted: false,
        version: None,
        kind: kind(),
        copy: &copy,
        intent: &intent,
        rule: &rule,
        revision: &revision,
        content: &content,
        stored: None,
        ignored: &none,
    };
    let target = ExpectedObject {
        uid: "u".into(),
        version: "9".into(),
        is_shared: false,
    };
    let change = apply(
        &written,
        Some(&ReplacedObject {
            target: &target,
            object: None,
        }),
        &sealer,
    );
    assert_eq!(
        (
            &change["metadata"]["uid"],
            &change["metadata"]["resourceVersion"]
        ),
        (&json!("u"), &json!("9"))
    );
    let creation = apply(&written, None, &sealer);
    assert_eq!(
        (
            &creation["metadata"]["uid"],
            &creation["metadata"]["resourceVersion"]
        ),
        (&Value::Null, &json!("1"))
    );
}

/// The fields that the rule of these tests ignores.
fn ignored() -> BTreeSet<FieldPath> {
    ["/data/k", "/metadata/labels/team"]
        .into_iter()
        .map(|text| FieldPath::parse(text).unwrap())
        .collect()
}

/// The copy with the ignored fields, which another client has changed.
fn changed_by_others(sealer: &Sealer) -> DynamicObject {
    let mut value =
        serde_json::to_value(served_ignoring(&copy(), sealer, Some(&ignored()))).unwrap();
    value["data"]["k"] = json!("theirs");
    value["metadata"]["labels"]["team"] = json!("b");
    let ours = &mut value["metadata"]["managedFields"][1]["fieldsV1"];
    ours["f:data"].as_object_mut().unwrap().remove("f:k");
    ours["f:metadata"]["f:labels"]
        .as_object_mut()
        .unwrap()
        .remove("f:team");
    serde_json::from_value(value).unwrap()
}

#[test]
fn ignored_field_is_written_at_creation_and_is_no_drift() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let created = served_ignoring(&copy(), &sealer, Some(&ignored()));
    assert_eq!(
        (
            &created.data["data"]["k"],
            created.metadata.labels.as_ref().unwrap().get("team")
        ),
        (&json!("v"), Some(&"a".to_owned()))
    );
    for object in [created, changed_by_others(&sealer)] {
        let live = seen(&object, &sealer);
        assert!(
            live.has_revision(&intent().rule, &intent().source, &Revision([7; 16])),
            "{live:?}"
        );
        assert_eq!(live.sealed.as_ref().unwrap().ignored, ignored());
        // Fields that others may have changed are no content for other copies.
        assert!(!live.has_full_content());
        assert!(proven_content(kind(), &object, &sealer, live.sealed.as_ref().unwrap()).is_none());
        assert!(crate::live::learn(kind(), &object, &live).is_none());
        assert!(surplus(kind(), &object, &Content::default(), &ignored()).is_none());
    }
    // The agent compares all other fields, and the list of ignored fields.
    for change in [
        (|o: &mut Value| o["data"]["other"] = json!("x")) as fn(&mut Value),
        |o| o["metadata"]["annotations"]["note"] = json!("y"),
        |o| o["metadata"]["annotations"][IGNORED_ANNOTATION] = json!("/data/k"),
        |o| {
            drop(
                o["metadata"]["annotations"]
                    .as_object_mut()
                    .unwrap()
                    .remove(IGNORED_ANNOTATION),
            )
        },
    ] {
        let mut value = serde_json::to_value(changed_by_others(&sealer)).unwrap();
        change(&mut value);
        assert!(!seen(&serde_json::from_value(value).unwrap(), &sealer).intact);
    }
}

#[test]
fn change_leaves_fields_of_others_and_deletes_none_of_ours() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let (intent, rule, copy, content, ignored) =
        (intent(), RuleName::default(), copy(), content(), ignored());
    let revision = Revision([8; 16]);
    let written = ApplyInput {
        adopted: false,
        version: None,
        kind: kind(),
        copy: &copy,
        intent: &intent,
        rule: &rule,
        revision: &revision,
        content: &content,
        stored: None,
        ignored: &ignored,
    };
    let target = ExpectedObject {
        uid: "u".into(),
        version: "5".into(),
        is_shared: false,
    };
    let over = |object: &DynamicObject| {
        apply(
            &written,
            Some(&ReplacedObject {
                target: &target,
                object: Some(object),
            }),
            &sealer,
        )
    };
    // An apply would delete our field if it was left out. So it contains the live value.
    let ours = over(&served_ignoring(&copy, &sealer, Some(&ignored)));
    assert_eq!(
        (&ours["data"]["k"], &ours["metadata"]["labels"]["team"]),
        (&json!("v"), &json!("a"))
    );
    // An apply would make the agent an owner of a foreign field. So it leaves the field out.
    let theirs = over(&changed_by_others(&sealer));
    assert_eq!(
        (&theirs["data"], &theirs["metadata"]["labels"]["team"]),
        (&Value::Null, &Value::Null)
    );
    assert_eq!(
        theirs["metadata"]["annotations"][SEAL_ANNOTATION],
        ours["metadata"]["annotations"][SEAL_ANNOTATION]
    );
}

#[test]
fn other_managers_are_named_unless_the_copy_is_intact() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let mut value = serde_json::to_value(served(&copy(), &sealer)).unwrap();
    assert_eq!(seen(&served(&copy(), &sealer), &sealer).others, None);
    value["data"]["k"] = json!("w");
    let entry = |manager: &str, hour: u8, fields: Value| json!({"manager": manager, "operation": "Update", "fieldsV1": fields, "time": format!("2026-01-02T{hour:02}:00:00Z")});
    let all = value["metadata"]["managedFields"].as_array_mut().unwrap();
    all.push(entry("helm", 4, json!({"f:data": {"f:k": {}}})));
    all.push(entry(
        "argocd-controller",
        5,
        json!({"f:metadata": {"f:annotations": {"f:x": {}}}}),
    ));
    all.push(entry("kubelet", 6, json!({"f:status": {}})));
    all.push(entry("before-first-apply", 7, json!({"f:data": {}})));
    all.push(entry("evil\u{1b}[31m\nmanager", 3, json!({"f:data": {}})));
    all.push(entry("a-fourth", 2, json!({"f:data": {}})));
    let live = seen(&serde_json::from_value(value).unwrap(), &sealer);
    assert_eq!(
        live.others.as_deref(),
        Some("argocd-controller, helm, evil31mmanager and 1 more")
    );
}

#[test]
fn parents_are_created_for_applied_fields_only() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let object = |change: fn(&mut Value)| -> DynamicObject {
        let mut value = serde_json::to_value(served(&copy(), &sealer)).unwrap();
        change(&mut value);
        serde_json::from_value(value).unwrap()
    };
    let body = serde_json::to_value(served(&copy(), &sealer)).unwrap();
    // Correct fields and small annotations of others do not prevent an apply.
    assert!(preparation_patch(kind(), &object(|_| {}), &body, &BTreeSet::new()).is_none());
    let small: fn(&mut Value) = |value| value["metadata"]["annotations"]["theirs"] = json!("x");
    assert!(preparation_patch(kind(), &object(small), &body, &BTreeSet::new()).is_none());
    let made = |change: fn(&mut Value), ignored: &BTreeSet<FieldPath>| {
        let object = object(change);
        let patch = preparation_patch(kind(), &object, &body, ignored).unwrap();
        let tests = patch
            .iter()
            .filter(|change| matches!(change, PatchOperation::Test(_)))
            .count();
        assert_eq!(tests, 2, "{patch}");
        let mut value = serde_json::to_value(&object).unwrap();
        json_patch::patch(&mut value, &patch).unwrap();
        value
    };
    let moved: fn(&mut Value) = |value| {
        drop(value["data"].as_object_mut().unwrap().remove("k"));
        value["binaryData"] = json!({"k": "AAAA"});
    };
    let exact = made(moved, &BTreeSet::new());
    assert_eq!(
        (&exact["data"], &exact["binaryData"]),
        (&body["data"], &Value::Null)
    );
    // An ignored field keeps the value of another client.
    let left = made(
        |value| value["data"] = json!({"k": "theirs", "junk": "x"}),
        &ignored(),
    );
    assert_eq!(left["data"]["junk"], Value::Null);
    let full: fn(&mut Value) = |value| {
        value["metadata"]["annotations"]["theirs"] = json!("x");
        value["metadata"]["annotations"]["large"] = json!("y".repeat(ANNOTATIONS_LIMIT));
    };
    let room = made(full, &BTreeSet::new());
    assert_eq!(
        (
            &room["metadata"]["annotations"]["theirs"],
            &room["metadata"]["annotations"]["large"]
        ),
        (&json!("x"), &Value::Null)
    );
}

#[test]
fn fields_of_a_patch_are_dropped() {
    let entry =
        |manager: &str, operation: &str| json!({"manager": manager, "operation": operation});
    let mut object = json!({"apiVersion": "v1", "kind": "Service", "metadata": {"name": "x", "uid": "u", "resourceVersion": "5"}});
    let entries = [
        entry("kubectl", "Update"),
        entry("runnel-agent", "Apply"),
        entry("runnel-agent", "Update"),
    ];
    object["metadata"]["managedFields"] = json!(entries);
    let object: DynamicObject = serde_json::from_value(object).unwrap();
    let left = patched(&object, drop_patched(&object).unwrap());
    let left_entries = serde_json::to_value(&left.metadata.managed_fields).unwrap();
    assert_eq!(left_entries, json!(entries[..2]));
    assert_eq!(drop_patched(&left), None);
}

/// An object of others, with a field, a label and an annotation that the source lacks.
fn foreign(kind: &Kind) -> DynamicObject {
    let (field, value) = match kind.content.fields {
        [] => ("spec", json!({"rules": ["theirs"], "default": true})),
        _ => ("data", json!({"k": "v"})),
    };
    let mut object = json!({
        "apiVersion": &*kind.api_version, "kind": &*kind.kind,
        "metadata": {"name": "settings", "namespace": "a", "uid": "u", "resourceVersion": "5",
            "labels": {"theirs": "x"}, "annotations": {"theirs": "y"}},
    });
    object[field] = value;
    object["status"] = json!({"seen": 1});
    serde_json::from_value(object).unwrap()
}

/// Returns the object after an apply of marks, as an API server stores it.
fn marked(object: &DynamicObject, request: &Value) -> DynamicObject {
    let mut stored = serde_json::to_value(object).unwrap();
    let mut owned = json!({"f:metadata": {}});
    for part in ["labels", "annotations"] {
        for (key, value) in request["metadata"][part].as_object().unwrap() {
            stored["metadata"][part][key] = value.clone();
            owned["f:metadata"][format!("f:{part}")][format!("f:{key}")] = json!({});
        }
    }
    stored["metadata"]["managedFields"] = json!([
        {"manager": "runnel-agent", "operation": "Apply", "apiVersion": request["apiVersion"], "fieldsV1": owned},
    ]);
    serde_json::from_value(stored).unwrap()
}

#[test]
fn adoption_sends_marks_and_seals_the_whole_object() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let ingress = Kind::new(
        "networking.k8s.io",
        "v1",
        "Ingress",
        "ingresses",
        Scope::Namespaced,
    );
    for kind in [kind(), &ingress] {
        let object = foreign(kind);
        let copy = SourceRef::new(&kind.resource, "a", "settings");
        let content = Content {
            version: kind.content.is_owned().then(|| "v1".into()),
            ..content()
        };
        let (intent, revision, none) = (intent(), Revision([7; 16]), BTreeSet::new());
        let written = ApplyInput {
            version: None,
            kind,
            copy: &copy,
            intent: &intent,
            rule: &RuleName::default(),
            revision: &revision,
            content: &content,
            stored: None,
            ignored: &none,
            adopted: true,
        };
        let target = ExpectedObject {
            uid: "u".into(),
            version: "5".into(),
            is_shared: false,
        };
        let over = ReplacedObject {
            target: &target,
            object: None,
        };
        let kept = crate::live::kept_content(kind, &object).unwrap();
        let request = mark(&written, &kept, &over, &object, &sealer);
        let fields = request.as_object().unwrap().keys();
        assert_eq!(
            fields.collect::<Vec<_>>(),
            ["apiVersion", "kind", "metadata"]
        );
        for part in ["labels", "annotations"] {
            let mut keys = request["metadata"][part].as_object().unwrap().keys();
            assert!(
                keys.all(|key| runnel_proto::model::is_mark(key)),
                "{request}"
            );
        }

        let adopted = marked(&object, &request);
        let live = |object: &DynamicObject| reduce(kind, object, &sealer).unwrap().1;
        let seen = live(&adopted);
        assert!(seen.adopted && seen.has_revision(&intent.rule, &intent.source, &revision));
        // Nothing of it is content for other copies.
        assert!(!seen.has_full_content() && crate::live::learn(kind, &adopted, &seen).is_none());
        let edited = |path: &str, value: Value| {
            let mut edited = serde_json::to_value(&adopted).unwrap();
            *edited.pointer_mut(path).unwrap() = value;
            live(&serde_json::from_value(edited).unwrap()).intact
        };
        let field = if kind.content.is_owned() {
            "/spec"
        } else {
            "/data"
        };
        assert!(
            !edited(field, json!({"k": "w"})),
            "a change of its owner is seen"
        );
        assert!(edited("/status", json!({"seen": 2})));
        assert!(edited("/metadata/labels/theirs", json!("z")));

        let left = patched(&adopted, retain(&adopted, &RuleName::default(), None));
        let mut left = serde_json::to_value(left).unwrap();
        left["metadata"]
            .as_object_mut()
            .unwrap()
            .remove("managedFields");
        assert_eq!(left, serde_json::to_value(&object).unwrap());
    }
}

#[test]
fn release_leaves_the_manager_label_of_others() {
    let sealer = Sealer::new(b"key", "hub", ["eu-1", ""]);
    let mut value = serde_json::to_value(served(&copy(), &sealer)).unwrap();
    value["metadata"]["managedFields"][0]["fieldsV1"] = json!({"f:metadata": {"f:labels": {format!("f:{MANAGED_BY_LABEL}"): {}, format!("f:{HUB_LABEL}"): {}}}});
    let object: DynamicObject = serde_json::from_value(value).unwrap();
    let left = patched(&object, retain(&object, &RuleName::default(), None));
    let labels = left.metadata.labels.unwrap();
    assert_eq!(
        labels.get(MANAGED_BY_LABEL).map(String::as_str),
        Some(MANAGED_BY)
    );
    assert!(!labels.contains_key(HUB_LABEL));
}

#[test]
fn content_without_any_value_is_not_comparable() {
    let is_comparable = crate::live::is_comparable;
    let of = |fields: Value| Content {
        version: Some("v1".into()),
        fields: fields.as_object().unwrap().clone().into_iter().collect(),
        ..content()
    };
    let ingress = Kind::new(
        "networking.k8s.io",
        "v1",
        "Ingress",
        "ingresses",
        Scope::Namespaced,
    );
    for nothing in [
        json!({}),
        json!({"spec": {}}),
        json!({"spec": {"rules": [{}], "x": null}}),
    ] {
        assert!(!is_comparable(&ingress, &of(nothing)));
    }
    assert!(is_comparable(
        &ingress,
        &of(json!({"spec": {"rules": [{"host": "x"}]}}))
    ));
    // Labels are all that a namespace has.
    let namespace = Kind::by_resource("namespaces").cloned();
    let namespace =
        namespace.unwrap_or_else(|| Kind::new("", "v1", "Namespace", "namespaces", Scope::Cluster));
    assert!(is_comparable(&namespace, &of(json!({}))));
    assert!(!is_comparable(&namespace, &Content::default()));
}
