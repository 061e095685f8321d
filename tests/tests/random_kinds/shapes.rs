//! Random schemas, and values that they allow.

use proptest::collection::{btree_map, btree_set, vec};
use proptest::prelude::*;
use serde_json::{Map, Value, json};

/// A schema, and two values of it.
#[derive(Clone, Debug)]
pub struct Shape {
    /// The schema as a CustomResourceDefinition has it.
    pub schema: Value,
    /// The values.
    pub values: [Value; 2],
}

impl Shape {
    /// The fields of a schema of an object, by name.
    pub fn fields(&self) -> impl Iterator<Item = (&str, &Value)> {
        let fields = self.schema["properties"].as_object().into_iter().flatten();
        fields.map(|(name, schema)| (name.as_str(), schema))
    }

    /// Pointers to fields of the first value that may be absent, one in each of its own fields.
    pub fn optional_fields(&self, parent: &str) -> Vec<String> {
        let optional = |field: &str, value: &Value| {
            // The first one may be what makes an object differ from an empty one.
            let inner = value.as_object()?.keys().nth(1)?;
            Some(format!("{parent}/{field}/{inner}"))
        };
        let fields = self.values[0].as_object().into_iter().flatten();
        fields
            .filter_map(|(field, value)| optional(field, value))
            .collect()
    }

    /// Pointers to the lists of the first value whose items are identified by their values.
    pub fn sets(&self, parent: &str) -> Vec<String> {
        let mut found = vec![];
        collect_sets(&self.schema, &self.values[0], parent.to_owned(), &mut found);
        found
    }
}

fn collect_sets(schema: &Value, value: &Value, pointer: String, found: &mut Vec<String>) {
    if schema["x-kubernetes-list-type"] == "set" {
        found.push(pointer);
        return;
    }
    for (field, value) in value.as_object().into_iter().flatten() {
        collect_sets(
            &schema["properties"][field],
            value,
            format!("{pointer}/{field}"),
            found,
        );
    }
    for (number, item) in value.as_array().into_iter().flatten().enumerate() {
        collect_sets(&schema["items"], item, format!("{pointer}/{number}"), found);
    }
}

/// An object with a field of each shape.
pub fn together(shapes: Vec<Shape>) -> Shape {
    object_of(
        shapes
            .into_iter()
            .map(|shape| (shape, true, true, false))
            .collect(),
    )
}

const TEXT: &str = "[a-z]{1,6}";

fn leaf() -> BoxedStrategy<Shape> {
    let pair = |schema: Value, values: BoxedStrategy<Value>| {
        let both = (values.clone(), values);
        both.prop_map(move |(one, two)| Shape {
            schema: schema.clone(),
            values: [one, two],
        })
    };
    let text = || TEXT.prop_map(Value::from).boxed();
    let texts = |schema: Value| pair(schema, vec(TEXT, 0..4).prop_map(Value::from).boxed());
    let string = json!({"type": "string"});
    let set = json!({"type": "array", "x-kubernetes-list-type": "set", "items": string});
    let sets = btree_set(TEXT, 1..4).prop_map(|set| set.into_iter().collect());
    let map = json!({"type": "object", "additionalProperties": string});
    let maps = btree_map(TEXT, TEXT, 1..4).prop_map(|map| json!(map));
    let either = prop_oneof![text(), (1..99i64).prop_map(Value::from)].boxed();
    prop_oneof![
        pair(string.clone(), text()),
        pair(
            json!({"type": "integer"}),
            (-9..99i64).prop_map(Value::from).boxed()
        ),
        pair(
            json!({"type": "boolean"}),
            any::<bool>().prop_map(Value::from).boxed()
        ),
        pair(json!({"x-kubernetes-int-or-string": true}), either),
        texts(json!({"type": "array", "items": string})),
        pair(set, sets.boxed()),
        pair(map, maps.boxed()),
    ]
    .boxed()
}

/// Any schema of an object; its values have some of its fields.
pub fn shapes() -> BoxedStrategy<Shape> {
    let nested = leaf().prop_recursive(3, 24, 4, |inner| {
        prop_oneof![object(inner.clone()), items(inner.clone()), atomic(inner)]
    });
    object(nested.boxed())
}

/// A field, whether either value has it, and whether the API server has a default for it.
type FieldParts = (Shape, bool, bool, bool);

fn object(inner: BoxedStrategy<Shape>) -> BoxedStrategy<Shape> {
    let fields = vec((inner, any::<bool>(), any::<bool>(), any::<bool>()), 1..5);
    fields.prop_map(object_of).boxed()
}

fn object_of(fields: Vec<FieldParts>) -> Shape {
    let (mut properties, mut values) = (Map::new(), [Map::new(), Map::new()]);
    for (number, (field, first, second, has_default)) in fields.into_iter().enumerate() {
        let name = format!("field{number}");
        let mut schema = field.schema;
        let [one, two] = field.values;
        let is_simple = one.is_string() || one.is_number() || one.is_boolean();
        if has_default && is_simple && schema["type"].is_string() {
            schema["default"] = one.clone();
        }
        properties.insert(name.clone(), schema);
        let given = [first || number == 0, second || number == 0];
        for ((given, value), values) in given.into_iter().zip([one, two]).zip(&mut values) {
            if given {
                values.insert(name.clone(), value);
            }
        }
    }
    Shape {
        schema: json!({"type": "object", "properties": properties}),
        values: values.map(Value::Object),
    }
}

/// A list of items with the key `name`.
fn items(inner: BoxedStrategy<Shape>) -> BoxedStrategy<Shape> {
    let names = || btree_set("[a-d]", 1..4);
    (inner, names(), names())
        .prop_map(|(item, first, second)| {
            let value = |names: &std::collections::BTreeSet<String>, at: usize| {
                let item = &item.values[at];
                names.iter().map(|name| json!({"name": name, "item": item})).collect()
            };
            let properties = json!({"name": {"type": "string"}, "item": item.schema});
            let schema = json!({
                "type": "array", "x-kubernetes-list-type": "map", "x-kubernetes-list-map-keys": ["name"],
                "items": {"type": "object", "required": ["name"], "properties": properties},
            });
            Shape {
                values: [value(&first, 0), value(&second, 1)],
                schema,
            }
        })
        .boxed()
}

/// An object that one manager owns as a whole.
fn atomic(inner: BoxedStrategy<Shape>) -> BoxedStrategy<Shape> {
    object(inner)
        .prop_map(|mut shape| {
            shape.schema["x-kubernetes-map-type"] = json!("atomic");
            shape
        })
        .boxed()
}

/// Whether a copy has every field of a source; lists with keys and sets may have more items, and maps more fields.
pub fn holds(source: &Value, copy: &Value) -> bool {
    match (source, copy) {
        (Value::Object(source), Value::Object(copy)) => source
            .iter()
            .all(|(name, value)| copy.get(name).is_some_and(|copy| holds(value, copy))),
        (Value::Array(source), Value::Array(copy)) => source
            .iter()
            .all(|item| copy.iter().any(|copy| holds(item, copy))),
        _ => source == copy,
    }
}
