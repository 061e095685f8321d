use std::cell::Cell;

use proptest::prelude::*;
use serde_json::json;

use super::*;

thread_local! {
    /// The items of lists that were read to find some of them.
    pub(super) static ITEMS_READ: Cell<usize> = const { Cell::new(0) };
}

/// What properties need, and no agent.
impl FieldSet {
    /// The fields that are in both sets.
    fn intersection(&self, other: &Self) -> Self {
        let shared = self.0.iter().filter_map(|(step, node)| {
            let other = other.get(step)?;
            let shared = Node {
                is_member: node.is_member && other.is_member,
                below: node.below.intersection(&other.below),
            };
            shared.has_fields().then(|| (step.clone(), shared))
        });
        Self(shared.collect())
    }

    /// The fields that are not in the other set.
    fn difference(&self, other: &Self) -> Self {
        let left = self.0.iter().filter_map(|(step, node)| {
            let Some(other) = other.get(step) else {
                return Some((step.clone(), node.clone()));
            };
            let left = Node {
                is_member: node.is_member && !other.is_member,
                below: node.below.difference(&other.below),
            };
            left.has_fields().then(|| (step.clone(), left))
        });
        Self(left.collect())
    }

    /// Returns an object without the fields of the set. Maps and items that the set names, too, go with their last
    /// field.
    fn prune(&self, object: &Value) -> Value {
        let mut pruned = object.clone();
        for (step, node) in &self.0 {
            let Some(part) = step.find(&pruned).cloned() else {
                continue;
            };
            let rest = if node.below.is_empty() {
                None
            } else {
                let rest = node.below.prune(&part);
                Some(rest).filter(|rest| !(node.is_member && is_empty(rest)))
            };
            step.replace(&mut pruned, rest);
        }
        pruned
    }

    /// Returns the paths of the fields below which the set has no other field, at most `limit`.
    fn leaves(&self, limit: usize) -> Vec<String> {
        let mut all = vec![];
        self.collect_leaves("", limit, &mut all);
        all
    }

    fn collect_leaves(&self, path: &str, limit: usize, all: &mut Vec<String>) {
        for (step, node) in &self.0 {
            if all.len() >= limit {
                return;
            }
            let path = format!("{path}{}", step.path());
            if node.below.is_empty() {
                all.push(path);
            } else {
                node.below.collect_leaves(&path, limit, all);
            }
        }
    }
}

impl Node {
    fn has_fields(&self) -> bool {
        self.is_member || !self.below.is_empty()
    }
}

impl Step {
    /// Returns the set of this step alone.
    fn alone(&self) -> FieldSet {
        FieldSet([(self.clone(), Node::default())].into())
    }

    fn find<'a>(&self, value: &'a Value) -> Option<&'a Value> {
        Parts::of(value, &self.alone()).get(self)
    }

    fn position(&self, value: &Value) -> Option<usize> {
        ItemIndex::of(value.as_array()?, &self.alone()).position(self)
    }

    /// Sets what the step leads to; `None` removes it.
    fn replace(&self, value: &mut Value, part: Option<Value>) {
        let position = self.position(value);
        match (self, value) {
            (Self::Field(name), Value::Object(fields)) => match part {
                Some(part) => drop(fields.insert(name.to_string(), part)),
                None => drop(fields.remove(&**name)),
            },
            (_, Value::Array(items)) => {
                let Some(at) = position else { return };
                match (part, items.get_mut(at)) {
                    (Some(part), Some(item)) => *item = part,
                    (Some(_), None) => {}
                    (None, _) => drop(items.remove(at)),
                }
            }
            _ => {}
        }
    }
}

fn set(fields: Value) -> FieldSet {
    FieldSet::parse(&fields).unwrap()
}

/// The fields that a Deployment's author applied, as an API server writes them.
fn applied() -> FieldSet {
    set(json!({
        "f:metadata": {"f:labels": {"f:app": {}}},
        "f:spec": {
            "f:replicas": {},
            "f:selector": {},
            "f:template": {
                "f:metadata": {"f:labels": {"f:app": {}}},
                "f:spec": {"f:containers": {"k:{\"name\":\"web\"}": {
                    ".": {}, "f:image": {}, "f:name": {},
                    "f:ports": {"k:{\"containerPort\":80,\"protocol\":\"TCP\"}": {".": {}, "f:containerPort": {}}},
                }}},
            },
        },
    }))
}

/// The Deployment in the API server: with defaults, status and the sidecar of a webhook.
fn deployment() -> Value {
    json!({
        "metadata": {"name": "web", "uid": "u", "labels": {"app": "web", "team": "theirs"}},
        "spec": {
            "replicas": 2,
            "revisionHistoryLimit": 10,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"creationTimestamp": null, "labels": {"app": "web", "injected": "yes"}},
                "spec": {
                    "containers": [
                        {"name": "sidecar", "image": "proxy:1"},
                        {"name": "web", "image": "web:1", "imagePullPolicy": "IfNotPresent",
                         "ports": [{"containerPort": 80, "protocol": "TCP"}]},
                    ],
                    "restartPolicy": "Always",
                },
            },
        },
        "status": {"replicas": 2},
    })
}

#[test]
fn projection_has_neither_defaults_nor_fields_of_others() {
    let projection = applied().project(&deployment(), &FieldSet::default());
    let expected = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "replicas": 2,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}},
                "spec": {"containers": [
                    {"name": "web", "image": "web:1", "ports": [{"containerPort": 80}]},
                ]},
            },
        },
    });
    assert_eq!(projection, expected);
}

#[test]
fn changed_field_inside_a_list_is_named_by_its_keys() {
    let (set, before) = (applied(), deployment());
    let mut now = before.clone();
    let web = &mut now["spec"]["template"]["spec"]["containers"][1];
    web["image"] = json!("web:evil");
    web["ports"] = json!([]);
    now["spec"]["replicas"] = json!(5);
    now["spec"]["revisionHistoryLimit"] = json!(1);
    let project = |object| set.project(object, &FieldSet::default());
    let (before, now) = (project(&before), project(&now));
    let found = set.differences(&before, &now, 9);
    let found: Vec<_> = found
        .iter()
        .map(|one| (&*one.path, one.before, one.now))
        .collect();
    let web = "/spec/template/spec/containers/[name=web]";
    assert_eq!(
        found,
        [
            ("/spec/replicas", Some(&json!(2)), Some(&json!(5))),
            (
                &*format!("{web}/image"),
                Some(&json!("web:1")),
                Some(&json!("web:evil"))
            ),
            (
                &*format!("{web}/ports"),
                Some(&json!([{"containerPort": 80}])),
                None
            ),
        ]
    );
    assert_eq!(set.differences(&before, &json!({}), 2).len(), 2);
}

#[test]
fn empty_map_of_ours_does_not_take_the_keys_of_others() {
    let ours = set(json!({"f:data": {}}));
    let object = json!({"data": {"theirs": "x"}});
    // Without other managers the map is one value.
    assert_eq!(ours.project(&object, &FieldSet::default()), object);
    let theirs = set(json!({"f:data": {"f:theirs": {}}}));
    assert_eq!(ours.project(&object, &theirs), json!({"data": {}}));
}

#[test]
fn items_of_a_set_are_found_by_their_values() {
    let ours = set(json!({"f:finalizers": {".": {}, "v:\"b\"": {}, "v:\"a\"": {}}}));
    let object = json!({"finalizers": ["b", "theirs", "a"]});
    assert_eq!(
        ours.project(&object, &FieldSet::default()),
        json!({"finalizers": ["b", "a"]})
    );
    assert_eq!(ours.prune(&object), json!({"finalizers": ["theirs"]}));
    assert_eq!(ours.leaves(9), ["/finalizers/[=a]", "/finalizers/[=b]"]);
}

#[test]
fn other_order_of_the_items_is_a_difference_of_their_list() {
    let ours =
        set(json!({"f:env": {"k:{\"name\":\"a\"}": {".": {}}, "k:{\"name\":\"b\"}": {".": {}}}}));
    let list = |names: [&str; 3]| json!({"env": names.map(|name| json!({"name": name}))});
    let project = |names| ours.project(&list(names), &FieldSet::default());
    assert_eq!(project(["a", "theirs", "b"]), project(["a", "b", "other"]));
    let (before, now) = (project(["a", "b", "c"]), project(["b", "a", "c"]));
    let found = ours.differences(&before, &now, 9);
    let paths: Vec<_> = found.iter().map(|one| &*one.path).collect();
    assert_eq!(paths, ["/env"]);
}

#[test]
fn pruned_item_stays_while_another_manager_has_fields_in_it() {
    let ours = set(json!({"f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}, "f:name": {}}}}));
    let theirs =
        set(json!({"f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}, "f:nodePort": {}}}}));
    let object = json!({"ports": [{"port": 80, "name": "web", "nodePort": 30080}]});
    assert_eq!(
        ours.difference(&theirs).prune(&object),
        json!({"ports": [{"port": 80, "nodePort": 30080}]})
    );
    let alone = json!({"ports": [{"port": 80, "name": "web"}]});
    assert_eq!(ours.prune(&alone), json!({"ports": []}));
}

#[test]
fn field_that_another_manager_took_is_in_both_sets() {
    let theirs =
        set(json!({"f:spec": {"f:replicas": {}, "f:paused": {}}, "f:status": {"f:replicas": {}}}));
    assert_eq!(
        applied().intersection(&theirs).leaves(9),
        ["/spec/replicas"]
    );
    let left = applied().difference(&theirs);
    assert!(!left.leaves(99).contains(&"/spec/replicas".to_owned()));
}

#[test]
fn sent_value_that_the_answer_lacks_is_missing() {
    let mut sent = json!({
        "metadata": {"labels": {"app": "web"}},
        "spec": {
            "replicas": 3,
            "paused": false,
            "selector": {"matchLabels": {"app": "web"}},
            "template": {
                "metadata": {"labels": {"app": "web"}, "creationTimestamp": null},
                "spec": {"hostAliases": [], "containers": [
                    // The key of a port has the default protocol. A webhook sets another image.
                    {"name": "web", "image": "web:0", "ports": [{"containerPort": 80}], "resources": {"limits": {}}, "tty": false},
                ]},
            },
        },
    });
    let missing = |sent: &Value, limit| applied().missing(sent, &deployment(), limit);
    assert_eq!(missing(&sent, 9), Vec::<String>::new());
    sent["metadata"]["labels"]["a/b"] = json!("x");
    sent["spec"]["minReadySeconds"] = json!(30);
    sent["spec"]["selector"]["matchLabels"]["tier"] = json!("front");
    let spec = &mut sent["spec"]["template"]["spec"];
    spec["containers"][0]["args"] = json!(["x"]);
    let other = json!({"name": "other"});
    spec["containers"].as_array_mut().unwrap().push(other);
    let containers = "/spec/template/spec/containers";
    let expected = [
        "/metadata/labels/a~1b",
        "/spec/minReadySeconds",
        "/spec/selector/matchLabels/tier",
        &format!("{containers}/[name=web]/args"),
        &format!("{containers}/1"),
    ];
    assert_eq!(missing(&sent, 9), expected);
    assert_eq!(missing(&sent, 2), expected[..2]);
}

#[test]
fn item_that_the_answer_lacks_is_missing() {
    let ours = set(json!({
        "f:ports": {"k:{\"port\":80}": {".": {}, "f:port": {}}, "k:{\"port\":81}": {".": {}, "f:port": {}}},
        "f:finalizers": {"v:\"a\"": {}, "v:\"b\"": {}},
        "f:rules": {},
    }));
    let sent = json!({
        "ports": [{"port": 81}, {"port": 80}],
        "finalizers": ["b", "a"],
        "rules": [{"verbs": ["get"], "names": ["x"]}, {"verbs": ["list"]}],
    });
    let missing = |answer: Value| ours.missing(&sent, &answer, 9);
    assert_eq!(missing(sent.clone()), Vec::<String>::new());
    let answer = json!({
        "ports": [{"port": 80}, {"port": 99}],
        "finalizers": ["a", "c"],
        // A default was added.
        "rules": [{"verbs": ["get"], "weight": 1}, {"verbs": ["list"], "weight": 1}],
    });
    assert_eq!(
        missing(answer),
        ["/finalizers/[=b]", "/ports/[port=81]", "/rules/0/names"]
    );
    let mut answer = sent.clone();
    answer["rules"].as_array_mut().unwrap().pop();
    assert_eq!(missing(answer.clone()), ["/rules"]);
    // A webhook added items.
    answer["rules"] = json!([{"verbs": ["watch"]}, {"verbs": ["get"]}, {"verbs": ["list"]}]);
    assert_eq!(missing(answer), Vec::<String>::new());
}

/// A list of this many items with two key fields, and a list of as many values, with the set of all their fields.
fn long_lists(length: usize) -> (FieldSet, Value) {
    let item = |n: usize| json!({"port": n, "protocol": "TCP", "name": format!("p{n}")});
    let key = |n: usize| format!("k:{{\"port\":{n},\"protocol\":\"TCP\"}}");
    let fields = json!({".": {}, "f:port": {}, "f:protocol": {}, "f:name": {}});
    let keys: Map<String, Value> = (0..length).map(|n| (key(n), fields.clone())).collect();
    let values: Map<String, Value> = (0..length).map(|n| (format!("v:{n}"), json!({}))).collect();
    let items: Vec<_> = (0..length).map(item).collect();
    let numbers: Vec<_> = (0..length).collect();
    (
        set(json!({"f:items": keys, "f:values": values})),
        json!({"items": items, "values": numbers}),
    )
}

#[test]
fn long_list_is_read_once_per_comparison() {
    let (set, object) = long_lists(26_000);
    let read = |work: &dyn Fn()| {
        ITEMS_READ.set(0);
        work();
        ITEMS_READ.get()
    };
    let mut changed = object.clone();
    changed["items"][25_999]["name"] = json!("other");
    changed["values"][0] = json!("other");
    let projected = read(&|| assert_eq!(set.project(&object, &FieldSet::default()), object));
    assert_eq!(projected, 2 * 26_000);
    let compared = read(&|| assert_eq!(set.differences(&object, &changed, 9).len(), 2));
    assert_eq!(compared, 4 * 26_000);
    // The items lack a default of their keys.
    let mut sent = object.clone();
    for item in sent["items"].as_array_mut().unwrap() {
        item.as_object_mut().unwrap().remove("protocol");
    }
    let checked = read(&|| assert!(set.missing(&sent, &object, 9).is_empty()));
    // The equal list of values is not searched.
    assert_eq!(checked, 2 * 26_000);
}

#[test]
fn item_without_a_key_field_is_the_one_with_its_default() {
    let port = |protocol: &str, fields: Value| {
        (
            format!("k:{{\"port\":80,\"protocol\":\"{protocol}\"}}"),
            fields,
        )
    };
    for (default, other) in [("SCTP", "TCP"), ("TCP", "SCTP")] {
        let fields = [
            port(other, json!({"f:port": {}, "f:protocol": {}})),
            port(
                default,
                json!({"f:port": {}, "f:name": {}, "f:targetPort": {}}),
            ),
        ];
        let set = set(json!({"f:ports": Map::from_iter(fields)}));
        let explicit = json!({"port": 80, "protocol": other});
        let short = json!({"port": 80, "name": "b", "targetPort": 8080});
        let mut stored = short.clone();
        stored["protocol"] = json!(default);
        let answer = json!({"ports": [explicit, stored]});
        for ports in [[&explicit, &short], [&short, &explicit]] {
            let missing = set.missing(&json!({"ports": ports}), &answer, 9);
            assert_eq!(missing, Vec::<String>::new());
        }
        let thrice = json!({"ports": [short, explicit, short]});
        assert_eq!(set.missing(&thrice, &answer, 9), ["/ports/2"]);
    }
}

#[test]
fn path_of_an_item_is_escaped() {
    let ours = set(json!({"f:a/b": {"k:{\"x~\":\"p,q/r\",\"y\":1}": {".": {}, "f:z": {}}}}));
    assert_eq!(ours.leaves(9), ["/a~1b/[x~0=p~2q~1r,y=1]/z"]);
}

#[test]
fn unknown_forms_are_refused() {
    for fields in [
        json!([]),
        json!({"x:a": {}}),
        json!({"f:a": 1}),
        json!({"k:[]": {}}),
        json!({"i:-1": {}}),
        json!({"a": {}}),
    ] {
        assert_eq!(
            FieldSet::parse(&fields),
            Err(FieldSetError::UnknownForm),
            "{fields}"
        );
    }
    let mut deep = json!({});
    for _ in 0..=DEPTH_LIMIT {
        deep = json!({"f:a": deep});
    }
    assert_eq!(FieldSet::parse(&deep), Err(FieldSetError::TooDeep));
    let shallow = &deep["f:a"]["f:a"];
    assert!(FieldSet::parse(shallow).is_ok());
}

/// An object as JSON: maps, lists of items with a key, lists of unique values, and scalars.
fn value(depth: u32) -> BoxedStrategy<Value> {
    let scalar = prop_oneof![
        Just(Value::Null),
        any::<bool>().prop_map(Value::from),
        (-9i64..9).prop_map(Value::from),
        "[a-c]{0,2}".prop_map(Value::from),
    ];
    if depth == 0 {
        return scalar.boxed();
    }
    let inner = || value(depth - 1);
    let map = prop::collection::btree_map("[a-d]", inner(), 0..4)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()));
    let items = prop::collection::btree_map("[a-c]", inner(), 0..3).prop_map(|items| {
        let item = |(name, value)| json!({"name": name, "value": value});
        Value::Array(items.into_iter().map(item).collect())
    });
    let values = prop::collection::btree_set("[a-c]", 0..3)
        .prop_map(|values| Value::Array(values.into_iter().map(Value::from).collect()));
    prop_oneof![2 => scalar, 3 => map, 2 => items, 1 => values].boxed()
}

fn object() -> impl Strategy<Value = Value> {
    prop::collection::btree_map("[a-d]", value(3), 0..5)
        .prop_map(|fields| Value::Object(fields.into_iter().collect()))
}

/// The set of all fields of a value. `takes` decides about each field and its fields together.
fn fields_of(value: &Value, takes: &mut impl FnMut() -> bool) -> FieldSet {
    let steps: Vec<(Step, &Value)> = match value {
        Value::Object(fields) => {
            let step = |(name, value)| (Step::Field(String::as_str(name).into()), value);
            fields.iter().map(step).collect()
        }
        Value::Array(items) => {
            let step = |item: &Value| match item.get("name") {
                Some(name) => Step::Key(Json::parse(&json!({"name": name}).to_string()).unwrap()),
                None => Step::Value(Json::parse(&item.to_string()).unwrap()),
            };
            items.iter().map(|item| (step(item), item)).collect()
        }
        _ => vec![],
    };
    let mut all = FieldSet::default();
    for (step, value) in steps {
        if !takes() {
            continue;
        }
        let below = fields_of(value, takes);
        // A map of which no field is taken is not a field itself: it would be taken as a whole.
        let is_member = !is_container(value) || is_empty(value) || matches!(step, Step::Key(_));
        let node = Node { is_member, below };
        if node.has_fields() {
            all.0.push((step, node));
        }
    }
    FieldSet::of(all.0)
}

fn is_empty(value: &Value) -> bool {
    value.as_object().is_some_and(Map::is_empty) || value.as_array().is_some_and(Vec::is_empty)
}

fn is_container(value: &Value) -> bool {
    value.is_object() || value.is_array()
}

/// The fields of a value that two managers share: each bit gives a field to one of them or to both.
fn shared(value: &Value, bits: &[u8]) -> (FieldSet, FieldSet) {
    let whole = fields_of(value, &mut || true);
    let mut owners = bits.iter().cycle();
    let mut one = FieldSet::default();
    let mut two = FieldSet::default();
    divide(&whole, &mut one, &mut two, &mut || {
        owners.next().copied().unwrap_or_default()
    });
    (one, two)
}

fn divide(
    whole: &FieldSet,
    one: &mut FieldSet,
    two: &mut FieldSet,
    owner: &mut impl FnMut() -> u8,
) {
    for (step, node) in &whole.0 {
        let (mut left, mut right) = (Node::default(), Node::default());
        divide(&node.below, &mut left.below, &mut right.below, owner);
        let by = owner() % 3;
        // Who has a field of an item has the item and its key, too.
        left.is_member = node.is_member && (by != 1 || !left.below.is_empty());
        right.is_member = node.is_member && (by != 0 || !right.below.is_empty());
        if let Step::Key(_) = step {
            for side in [&mut left, &mut right] {
                if side.is_member {
                    let name = set(json!({"f:name": {}}));
                    side.below = std::mem::take(&mut side.below).union(&name);
                }
            }
        }
        for (set, side) in [(&mut *one, left), (&mut *two, right)] {
            if side.has_fields() {
                set.0.push((step.clone(), side));
            }
        }
    }
}

proptest! {
    #[test]
    fn set_reads_back_what_it_wrote(object in object()) {
        let set = fields_of(&object, &mut || true);
        prop_assert_eq!(FieldSet::parse(&set.to_value()), Ok(set));
    }

    #[test]
    fn any_json_is_read_without_a_panic(fields in value(3), object in object()) {
        if let Ok(set) = FieldSet::parse(&fields) {
            let _ = (set.project(&object, &set), set.prune(&object));
        }
    }

    #[test]
    fn set_of_all_fields_projects_every_value(object in object()) {
        let set = fields_of(&object, &mut || true);
        let projection = set.project(&object, &FieldSet::default());
        prop_assert!(set.differences(&object, &projection, 9).is_empty());
        prop_assert_eq!(set.project(&projection, &FieldSet::default()), projection);
    }

    #[test]
    fn dropped_value_is_missing_and_no_other_is(object in object(), drop: prop::sample::Index) {
        let set = fields_of(&object, &mut || true);
        prop_assert!(set.missing(&object, &object, 9).is_empty());
        let leaves = leaf_steps(&set);
        prop_assume!(!leaves.is_empty());
        let dropped = &leaves[drop.index(leaves.len())];
        let is_key = matches!(dropped.last(), Some(Step::Field(name)) if &**name == "name");
        let value = find_at(&object, dropped).cloned().unwrap_or_default();
        prop_assume!(!is_key && !is_nothing(&value));
        let mut answer = object.clone();
        remove_at(&mut answer, dropped);
        prop_assert_eq!(set.missing(&object, &answer, 9).len(), 1, "{:?}", dropped);
    }

    #[test]
    fn union_and_difference_divide_a_set(object in object(), bits: [u8; 16]) {
        let (one, two) = shared(&object, &bits);
        let both = one.clone().union(&two);
        prop_assert_eq!(&both, &two.clone().union(&one));
        prop_assert_eq!(&both.clone().union(&one), &both);
        prop_assert!(one.difference(&one).is_empty() && one.difference(&two).intersection(&two).is_empty());
        prop_assert_eq!(one.difference(&two).union(&one.intersection(&two)), one);
    }

    #[test]
    fn change_of_a_foreign_field_is_no_drift(object in object(), bits: [u8; 16], value in value(1)) {
        let (ours, theirs) = shared(&object, &bits);
        let before = ours.project(&object, &theirs);
        let mut changed = theirs.difference(&ours).prune(&object);
        changed["foreign"] = value;
        prop_assert_eq!(ours.project(&changed, &theirs), before);
    }

    #[test]
    fn changed_leaf_of_ours_is_drift(object in object(), bits: [u8; 16], at: prop::sample::Index) {
        let (ours, theirs) = shared(&object, &bits);
        let leaves = leaf_steps(&ours);
        prop_assume!(!leaves.is_empty());
        let mut changed = object.clone();
        replace_at(&mut changed, &leaves[at.index(leaves.len())]);
        let project = |object| ours.project(object, &theirs);
        prop_assert_ne!(project(&changed), project(&object));
        prop_assert!(!ours.differences(&project(&object), &project(&changed), 9).is_empty());
    }

    #[test]
    fn pruned_object_has_none_of_the_fields(object in object(), bits: [u8; 16]) {
        let (ours, theirs) = shared(&object, &bits);
        let gone = ours.difference(&theirs);
        let pruned = gone.prune(&object);
        for steps in leaf_steps(&gone) {
            prop_assert!(find_at(&pruned, &steps).is_none());
        }
        prop_assert_eq!(theirs.project(&pruned, &FieldSet::default()), theirs.project(&object, &FieldSet::default()));
    }
}

/// The paths to the fields below which the set has no other.
fn leaf_steps(set: &FieldSet) -> Vec<Vec<Step>> {
    let mut all = vec![];
    for (step, node) in &set.0 {
        if node.below.is_empty() {
            all.push(vec![step.clone()]);
        }
        let below = leaf_steps(&node.below).into_iter();
        all.extend(below.map(|rest| [vec![step.clone()], rest].concat()));
    }
    all
}

fn find_at<'a>(value: &'a Value, steps: &[Step]) -> Option<&'a Value> {
    steps.iter().try_fold(value, |value, step| step.find(value))
}

/// Gives the field at this path a value that it does not have.
fn replace_at(value: &mut Value, steps: &[Step]) {
    set_at(value, steps, Some(json!("changed")));
}

fn remove_at(value: &mut Value, steps: &[Step]) {
    set_at(value, steps, None);
}

fn set_at(value: &mut Value, steps: &[Step], to: Option<Value>) {
    let Some((step, rest)) = steps.split_first() else {
        return;
    };
    let mut part = to.clone();
    if !rest.is_empty() {
        let Some(found) = step.find(value) else {
            return;
        };
        let mut found = found.clone();
        set_at(&mut found, rest, to);
        part = Some(found);
    }
    step.replace(value, part);
}
