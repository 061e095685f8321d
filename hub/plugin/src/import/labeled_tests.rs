//! A rule by label copies the same objects as the copier, and no other object with the label.
use super::*;
use crate::import::rules::{
    CopyComparison, ImportReport, ImportTarget, ObjectContents, imported_rules,
};
use crate::import::tests::{aim, id, only, places, same};

const TO: [&str; 2] = ["team-a", "team-b"];

fn given() -> LabelCopier {
    LabelCopier::new("rule=test", &TO.map(str::to_owned)).unwrap()
}

fn both_kinds() -> LabelCopier {
    LabelCopier {
        resources: vec!["configmaps".to_owned(), "secrets".to_owned()],
        ..given()
    }
}

fn labeled(names: &[&str]) -> Objects {
    let marked = ObjectMetadata {
        labels: BTreeMap::from([("rule".to_owned(), "test".to_owned())]),
        ..ObjectMetadata::default()
    };
    names
        .iter()
        .map(|name| (id(name), marked.clone()))
        .collect()
}

fn import_beside(
    all: &Objects,
    bodies: &ObjectContents,
    given: LabelCopier,
    uncopied: &[&str],
) -> ImportReport {
    let read = read(all, &places(), &given);
    let uncopied = uncopied.iter().map(|name| id(name)).collect();
    let aim = ImportTarget {
        is_hub: false,
        label: Some(given),
        labeled_not_copied: uncopied,
        ..aim()
    };
    imported_rules(read, all, &places(), bodies, &aim)
}

fn import(all: &Objects, given: LabelCopier) -> ImportReport {
    import_beside(all, &same(all), given, &[])
}

fn selected(resources: &[&str]) -> Value {
    json!({"resources": resources, "selector": {"matchLabels": {"rule": "test"}}})
}

/// Of which namespaces rules were made.
fn homes(import: &ImportReport) -> Vec<&str> {
    import
        .rules
        .iter()
        .filter_map(|rule| rule.rule["metadata"]["namespace"].as_str())
        .collect()
}

fn left(import: &ImportReport) -> Vec<String> {
    import
        .left
        .iter()
        .map(|(id, why)| format!("{id} {why}"))
        .collect()
}

#[test]
fn labeled_choice_stays_a_choice_by_label() {
    let all = labeled(&[
        "secrets/platform/login",
        "configmaps/platform/settings",
        "secrets/team-a/login",
    ]);
    let found = import(&all, both_kinds());
    let spec = only(&found);
    assert_eq!(
        spec["sources"],
        json!([selected(&["configmaps", "secrets"])])
    );
    assert_eq!(spec["namespaces"]["names"], json!(TO));
    assert_eq!(
        found.rules[0].copies[&id("secrets/team-a/login")],
        CopyComparison::Equal
    );
    let any = LabelCopier {
        key: "rule".to_owned(),
        value: None,
        ..both_kinds()
    };
    let expected = json!({"matchExpressions": [{"key": "rule", "operator": "Exists"}]});
    assert_eq!(only(&import(&all, any))["sources"][0]["selector"], expected);
}

#[test]
fn kind_neither_named_nor_labeled_is_not_copied() {
    let all = labeled(&[
        "secrets/platform/login",
        "configmaps/platform/settings",
        "secrets/team-a/login",
    ]);
    let shown = import(&all, given());
    assert_eq!(only(&shown)["sources"], json!([selected(&["secrets"])]));
    let why = "configmaps/platform/settings has the label, but none of the labeled configmaps of platform has an equal copy";
    assert!(
        left(&shown).len() == 1 && left(&shown)[0].starts_with(why),
        "{:?}",
        left(&shown)
    );
    // The user's description counts, also for kinds without copies, and for no other kinds.
    let of = |resource: &str| {
        import(
            &all,
            LabelCopier {
                resources: vec![resource.to_owned()],
                ..given()
            },
        )
    };
    assert_eq!(
        only(&of("secrets"))["sources"],
        json!([selected(&["secrets"])])
    );
    assert!(of("secrets").left.is_empty());
    assert!(
        of("configmaps").rules.is_empty(),
        "nothing in platform is shown to be copied"
    );
    let both = LabelCopier {
        from: Some("platform".to_owned()),
        ..both_kinds()
    };
    let secrets = labeled(&["secrets/platform/login"]);
    assert_eq!(
        only(&import(&secrets, both))["sources"],
        json!([selected(&["configmaps", "secrets"])])
    );
}

#[test]
fn objects_of_any_named_kind_are_selected_by_label() {
    let policies = "networkpolicies.networking.k8s.io";
    let names = ["platform/web", "team-a/web"].map(|name| format!("{policies}/{name}"));
    let all = labeled(&[&names[0], &names[1], "secrets/platform/login"]);
    // Without the kind in --resources it is not a matter of the import.
    assert!(import(&all, given()).rules.is_empty());
    let named = LabelCopier {
        resources: vec![policies.to_owned()],
        ..given()
    };
    let mut bodies = same(&all);
    for name in &names {
        let content = json!({"spec": {"podSelector": {"matchLabels": {"app": "web"}}}});
        bodies.insert(id(name), content);
    }
    let found = import_beside(&all, &bodies, named.clone(), &[]);
    assert_eq!(only(&found)["sources"], json!([selected(&[policies])]));
    let copy = id(&names[1]);
    assert_eq!(found.rules[0].copies[&copy], CopyComparison::Equal);
    assert!(found.rules[0].bundle.is_none() && found.left.is_empty());
    // A copy with other content is no evidence.
    bodies.insert(copy, json!({"spec": {"podSelector": {}}}));
    assert!(
        import_beside(&all, &bodies, named, &[]).rules.is_empty(),
        "nothing shows that the copier copies from platform"
    );
}

#[test]
fn namespace_neither_named_nor_labeled_is_no_source() {
    let all = labeled(&[
        "secrets/platform/login",
        "secrets/team-10/other",
        "secrets/team-a/login",
        "secrets/team-a/other",
    ]);
    let mut bodies = same(&all);
    bodies.insert(
        id("secrets/team-a/other"),
        json!({"data": {"k": "b3RoZXI="}}),
    );
    let shown = import_beside(&all, &bodies, given(), &[]);
    assert_eq!(homes(&shown), ["platform"]);
    let why =
        "secrets/team-10/other has the label, but no labeled object of team-10 has an equal copy";
    assert!(
        left(&shown).len() == 1 && left(&shown)[0].starts_with(why),
        "{:?}",
        left(&shown)
    );
    let read = LabelCopier {
        from: Some("team-10".to_owned()),
        resources: vec!["secrets".to_owned()],
        ..given()
    };
    let read = import_beside(&all, &bodies, read, &[]);
    assert_eq!((homes(&read), read.left.len()), (vec!["team-10"], 0));
}

#[test]
fn two_sources_of_one_copy_are_left_out_by_name() {
    // The operator also copies to team-10, which the user did not name.
    let names = [
        "secrets/platform/login",
        "secrets/platform/ca",
        "secrets/team-10/login",
        "secrets/team-10/ca",
    ];
    let all = labeled(
        &[
            names.as_slice(),
            &["secrets/team-a/login", "secrets/team-a/ca"],
        ]
        .concat(),
    );
    let none = import(&all, given());
    assert!(none.rules.is_empty(), "{none:?}");
    let why = "secrets/team-10/login has the label, as secrets/platform/login has";
    assert!(
        none.left.len() == 4 && left(&none).iter().any(|one| one.starts_with(why)),
        "{:?}",
        left(&none)
    );
    let to = [TO.as_slice(), &["team-10"]].concat();
    let right = LabelCopier {
        to: to.into_iter().map(str::to_owned).collect(),
        ..given()
    };
    assert_eq!(homes(&import(&all, right)), ["platform"]);
    // An object that only one of them has is copied.
    let all = labeled(&[
        "secrets/platform/login",
        "secrets/platform/ca",
        "secrets/team-10/login",
        "secrets/team-a/ca",
    ]);
    let part = import(&all, given());
    assert_eq!(
        (homes(&part), &only(&part)["sources"]),
        (vec!["platform"], &json!([selected(&["secrets"])]))
    );
    let more = labeled(&["secrets/team-b/login"]);
    let part = import(&all.into_iter().chain(more).collect(), given());
    let mut entry = selected(&["secrets"]);
    entry["exclude"] = json!(["login"]);
    assert_eq!(only(&part)["sources"], json!([entry]));
}

#[test]
fn own_copies_do_not_count_as_evidence_of_a_copier() {
    let all = |is_ours: bool| {
        let mut all = labeled(&["secrets/platform/login", "secrets/team-a/login"]);
        if is_ours {
            all.get_mut(&id("secrets/team-a/login"))
                .unwrap()
                .labels
                .insert(HUB_LABEL.to_owned(), "h".to_owned());
        }
        all
    };
    assert_eq!(import(&all(false), given()).rules.len(), 1);
    assert!(import(&all(true), given()).rules.is_empty());
}

#[test]
fn hub_only_annotations_are_left_out_by_name() {
    let all = labeled(&[
        "secrets/platform/login",
        "configmaps/platform/settings",
        "secrets/team-a/login",
    ]);
    let mut on_hub = labeled(&[
        "secrets/platform/login",
        "secrets/platform/hub-only",
        "configmaps/platform/settings",
    ]);
    let mut copy = on_hub[&id("secrets/platform/login")].clone();
    copy.labels.insert(HUB_LABEL.to_owned(), "h".to_owned());
    on_hub.insert(id("secrets/platform/copied"), copy);
    on_hub.insert(id("secrets/platform/plain"), ObjectMetadata::default());
    let found = read(&all, &places(), &both_kinds());
    let more = labeled_not_copied(&on_hub, &both_kinds(), &found);
    assert_eq!(more, BTreeSet::from([id("secrets/platform/hub-only")]));
    let import = import_beside(
        &all,
        &same(&all),
        both_kinds(),
        &["secrets/platform/hub-only", "secrets/elsewhere/x"],
    );
    let mut secrets = selected(&["secrets"]);
    secrets["exclude"] = json!(["hub-only"]);
    assert_eq!(
        only(&import)["sources"],
        json!([selected(&["configmaps"]), secrets])
    );
    assert!(
        left(&import).len() == 1
            && left(&import)[0].starts_with("secrets/platform/hub-only has the label on the hub")
    );
    // The number of names that a rule can exclude is limited.
    let many: Vec<String> = (0..=limits::NAMES)
        .map(|number| format!("secrets/platform/x{number}"))
        .collect();
    let many: Vec<&str> = many.iter().map(String::as_str).collect();
    let import = import_beside(&all, &same(&all), both_kinds(), &many);
    assert!(
        import.rules.is_empty()
            && left(&import)
                .iter()
                .all(|one| one.contains("more than 256 objects"))
    );
}

#[test]
fn labeled_sources_share_one_rule() {
    let names: Vec<String> = (0..300)
        .map(|number| format!("secrets/platform/s-{number:03}"))
        .collect();
    let names: Vec<&str> = names
        .iter()
        .map(String::as_str)
        .chain(["secrets/team-a/s-000"])
        .collect();
    let all = labeled(&names);
    assert_eq!(
        import(&all, given())
            .rules
            .iter()
            .map(|rule| rule.sources.len())
            .collect::<Vec<_>>(),
        [300]
    );
}

#[test]
fn a_copy_of_runnels_is_no_source() {
    let mut all = labeled(&["secrets/platform/login", "secrets/team-a/login"]);
    all.get_mut(&id("secrets/platform/login"))
        .unwrap()
        .labels
        .insert(HUB_LABEL.to_owned(), "h".to_owned());
    let import = import(&all, given());
    assert!(
        import.rules.is_empty() && left(&import)[0].contains("a copy of Runnel's"),
        "{:?}",
        left(&import)
    );
}

#[test]
fn a_label_and_namespaces_are_read_as_people_write_them() {
    let read = |label: &str, to: &[&str]| {
        let to: Vec<String> = to.iter().map(|one| (*one).to_owned()).collect();
        LabelCopier::new(label, &to).map(|given| (given.key, given.value))
    };
    let to: &[&str] = &["team-*", "x"];
    assert_eq!(
        read("a.b/c=d", to),
        Ok(("a.b/c".to_owned(), Some("d".to_owned())))
    );
    assert_eq!(read("a==b", to), Ok(("a".to_owned(), Some("b".to_owned()))));
    assert_eq!(read("a=", to), Ok(("a".to_owned(), Some(String::new()))));
    assert_eq!(read("a", to), Ok(("a".to_owned(), None)));
    for wrong in ["", "!a", "a!=b", "a in (b,c)", "a,b", "a=b,c=d", "a=b,a=c"] {
        assert!(read(wrong, to).is_err(), "{wrong}");
    }
    for wrong in ["", "team-[ab]", "Team", "a b"] {
        assert!(
            read("a=b", &[wrong])
                .unwrap_err()
                .to_string()
                .contains("--to"),
            "{wrong}"
        );
    }
}
