//! Fields of a copy that a rule names, as JSON pointers in which the items of lists have keys.
//!
//! `/spec/template/spec/containers/[name=app]/image` is the image of the container `app`. A step in brackets names the
//! items of a list whose fields have these values: `[containerPort=80,protocol=TCP]`. As in RFC 6901, `~0` stands for `~`
//! and `~1` for `/`. In a value, `~2` stands for `,`. An index names no item, because it changes with the list.
use std::collections::BTreeMap;
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use serde_json::{Map, Number, Value};

/// The longest key: a label's prefix of 253, a slash and 63 more.
const KEY_LIMIT: usize = 317;

/// The longest pointer, in bytes.
pub const POINTER_LIMIT: usize = 512;

/// The most steps of a path.
const STEPS_LIMIT: usize = 32;

/// Fields of every object that no rule names.
pub const FIXED_FIELDS: [&str; 4] = ["apiVersion", "kind", "metadata", "status"];

/// The maps of an object with listed keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldMap {
    /// `/binaryData`.
    BinaryData,
    /// `/data`.
    Data,
    /// `/metadata/annotations`.
    Annotations,
    /// `/metadata/labels`.
    Labels,
}

impl FieldMap {
    const ALL: [FieldMap; 4] = [
        FieldMap::BinaryData,
        FieldMap::Data,
        FieldMap::Annotations,
        FieldMap::Labels,
    ];

    /// Its JSON pointer.
    pub fn pointer(self) -> &'static str {
        match self {
            FieldMap::BinaryData => "/binaryData",
            FieldMap::Data => "/data",
            FieldMap::Annotations => "/metadata/annotations",
            FieldMap::Labels => "/metadata/labels",
        }
    }

    /// Returns the top-level field, for maps that are one.
    pub fn field(self) -> Option<&'static str> {
        match self {
            FieldMap::BinaryData => Some("binaryData"),
            FieldMap::Data => Some("data"),
            FieldMap::Annotations | FieldMap::Labels => None,
        }
    }
}

/// A field of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldPath {
    /// One key of one of the maps with listed keys.
    Key {
        /// The map.
        map: FieldMap,
        /// The key, not escaped.
        key: String,
    },
    /// Any other field.
    Field(FieldSteps),
}

/// The steps from an object to one of its fields. The first one is the name of a top-level field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldSteps(Box<[FieldStep]>);

/// One step to a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldStep {
    /// The field of a map with this name.
    Name(Box<str>),
    /// The items of a list whose fields have these values, as text.
    Items(Box<[(Box<str>, Box<str>)]>),
}

impl FieldPath {
    /// The path of a key.
    pub fn new(map: FieldMap, key: impl Into<String>) -> Self {
        Self::Key {
            map,
            key: key.into(),
        }
    }

    /// Parses a pointer. Returns `None` unless it names a key of one of the maps, or a field outside of
    /// [`FIXED_FIELDS`], in the only form in which [`fmt::Display`] writes it.
    pub fn parse(pointer: &str) -> Option<Self> {
        let is_plain = |c: char| !c.is_whitespace() && !c.is_control();
        if !pointer.chars().all(is_plain) {
            return None;
        }
        let path = Self::parse_key(pointer).or_else(|| Self::parse_steps(pointer))?;
        // A pointer that reads back differently was not escaped correctly.
        (path.to_string() == pointer).then_some(path)
    }

    fn parse_key(pointer: &str) -> Option<Self> {
        let (map, escaped) = FieldMap::ALL.into_iter().find_map(|map| {
            let rest = pointer.strip_prefix(map.pointer())?.strip_prefix('/')?;
            Some((map, rest))
        })?;
        let key = pointer_unescaped(escaped);
        let is_key = !key.is_empty() && key.len() <= KEY_LIMIT && !escaped.contains('/');
        (is_key && !is_selector(escaped)).then(|| Self::new(map, key))
    }

    fn parse_steps(pointer: &str) -> Option<Self> {
        let steps = pointer.strip_prefix('/')?;
        if pointer.len() > POINTER_LIMIT {
            return None;
        }
        let steps: Box<[FieldStep]> = steps
            .split('/')
            .map(FieldStep::parse)
            .collect::<Option<_>>()?;
        let is_free =
            matches!(&steps[0], FieldStep::Name(field) if !FIXED_FIELDS.contains(&&**field));
        (is_free && steps.len() <= STEPS_LIMIT).then_some(Self::Field(FieldSteps(steps)))
    }

    /// Whether it is this key of this top-level map.
    pub fn is_key(&self, field: &str, name: &str) -> bool {
        matches!(self, Self::Key { map, key } if map.field() == Some(field) && key == name)
    }

    /// Whether an object of these top-level fields has the field. Labels and annotations are no fields of it.
    pub fn is_in(&self, fields: &BTreeMap<String, Value>) -> bool {
        match self {
            Self::Key { map, key } => {
                let map = map.field().and_then(|field| fields.get(field)?.as_object());
                map.is_some_and(|map| map.contains_key(key))
            }
            Self::Field(steps) => steps.find(fields).is_some(),
        }
    }

    /// Returns the steps; none for labels and annotations.
    pub fn steps(&self) -> Box<[FieldStep]> {
        match self {
            Self::Key { map, key } => {
                let field = map.field().map(|field| FieldStep::Name(field.into()));
                let key = || FieldStep::Name(key.as_str().into());
                field.into_iter().flat_map(|field| [field, key()]).collect()
            }
            Self::Field(FieldSteps(steps)) => steps.clone(),
        }
    }

    /// Returns the top-level field that it is, or is in; `None` for labels and annotations.
    pub fn top_field(&self) -> Option<&str> {
        match self {
            Self::Key { map, .. } => map.field(),
            Self::Field(steps) => match steps.0.first() {
                Some(FieldStep::Name(field)) => Some(field),
                Some(FieldStep::Items(_)) | None => None,
            },
        }
    }
}

impl FieldSteps {
    /// Returns the value of the field in an object of these top-level fields. Of several items it is the first one.
    pub fn find<'v>(&self, fields: &'v BTreeMap<String, Value>) -> Option<&'v Value> {
        let (top, rest) = self.split();
        rest.iter()
            .try_fold(fields.get(top)?, |value, step| match step {
                FieldStep::Name(name) => value.as_object()?.get(&**name),
                FieldStep::Items(_) => value.as_array()?.iter().find(|item| step.selects(item)),
            })
    }

    /// Removes the field, and the maps and lists on the path to it that are empty then.
    pub fn remove(&self, fields: &mut BTreeMap<String, Value>) {
        let (top, rest) = self.split();
        if let Some(value) = fields.get_mut(top)
            && (rest.is_empty() || remove_at(value, rest))
        {
            fields.remove(top);
        }
    }

    /// Copies the field from one object to another, with the maps and lists on the path to it. A new item of a list has its
    /// key fields.
    pub fn copy(&self, from: &BTreeMap<String, Value>, into: &mut BTreeMap<String, Value>) {
        let (top, rest) = self.split();
        if let Some(value) = from.get(top).filter(|_| self.find(from).is_some()) {
            copy_at(value, into.entry(top.to_owned()).or_default(), rest);
        }
    }

    fn split(&self) -> (&str, &[FieldStep]) {
        match self.0.split_first() {
            Some((FieldStep::Name(top), rest)) => (top, rest),
            Some((FieldStep::Items(_), _)) | None => ("", &[]),
        }
    }
}

/// Copies the field to which the steps lead, which must be there.
fn copy_at(from: &Value, into: &mut Value, steps: &[FieldStep]) {
    let Some((step, rest)) = steps.split_first() else {
        *into = from.clone();
        return;
    };
    match step {
        FieldStep::Name(name) => {
            let Some(from) = from.get(&**name) else {
                return;
            };
            if !into.is_object() {
                *into = Value::Object(Map::new());
            }
            if let Some(map) = into.as_object_mut() {
                copy_at(from, map.entry(&**name).or_insert(Value::Null), rest);
            }
        }
        FieldStep::Items(fields) => {
            let items = from.as_array();
            let Some(from) = items.and_then(|items| items.iter().find(|item| step.selects(item)))
            else {
                return;
            };
            if !into.is_array() {
                *into = Value::Array(vec![]);
            }
            let Some(items) = into.as_array_mut() else {
                return;
            };
            let known = items.iter().position(|item| step.selects(item));
            let at = known.unwrap_or_else(|| {
                let key = |(field, _): &(Box<str>, _)| {
                    Some((field.to_string(), from.get(&**field)?.clone()))
                };
                items.push(Value::Object(fields.iter().filter_map(key).collect()));
                items.len() - 1
            });
            copy_at(from, &mut items[at], rest);
        }
    }
}

/// Removes the field to which the steps lead. Returns whether nothing is left of the value.
fn remove_at(value: &mut Value, steps: &[FieldStep]) -> bool {
    let Some((step, rest)) = steps.split_first() else {
        return true;
    };
    match (step, value) {
        (FieldStep::Name(name), Value::Object(map)) => {
            if let Some(value) = map.get_mut(&**name)
                && remove_at(value, rest)
            {
                map.remove(&**name);
            }
            map.is_empty()
        }
        (FieldStep::Items(_), Value::Array(items)) => {
            items.retain_mut(|item| !(step.selects(item) && remove_at(item, rest)));
            items.is_empty()
        }
        _ => false,
    }
}

impl FieldStep {
    fn parse(text: &str) -> Option<Self> {
        if !is_selector(text) {
            let name = pointer_unescaped(text);
            let is_index = name.bytes().all(|byte| byte.is_ascii_digit());
            return (!is_index && name != "-").then(|| Self::Name(name.into()));
        }
        let inner = text.strip_prefix('[')?.strip_suffix(']')?;
        let field = |text: &str| {
            let (field, value) = text.split_once('=')?;
            let value = pointer_unescaped(&value.replace("~2", ","));
            let is_name = !field.is_empty() && !field.contains(['[', ']', '~', ',']);
            is_name.then(|| (field.into(), value.into()))
        };
        let fields: Option<Box<[_]>> = inner.split(',').map(field).collect();
        fields.map(Self::Items)
    }

    /// Whether the step selects this item of a list.
    pub fn selects(&self, item: &Value) -> bool {
        let Self::Items(fields) = self else {
            return false;
        };
        let has = |(field, text): &(Box<str>, Box<str>)| match item.get(&**field) {
            Some(Value::String(value)) => **value == **text,
            Some(Value::Number(value)) => text.parse().is_ok_and(|number: Number| number == *value),
            Some(Value::Bool(value)) => text.parse() == Ok(*value),
            _ => false,
        };
        item.is_object() && fields.iter().all(has)
    }
}

fn is_selector(step: &str) -> bool {
    step.starts_with('[')
}

/// Returns the key that a step of a JSON pointer (RFC 6901) names.
pub fn pointer_unescaped(text: &str) -> String {
    text.replace("~1", "/").replace("~0", "~")
}

/// Returns a key as a step of a JSON pointer (RFC 6901).
pub fn pointer_escaped(text: &str) -> String {
    text.replace('~', "~0").replace('/', "~1")
}

impl fmt::Display for FieldStep {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => out.write_str(&pointer_escaped(name)),
            Self::Items(fields) => {
                for (number, (field, value)) in fields.iter().enumerate() {
                    let before = if number == 0 { '[' } else { ',' };
                    let value = pointer_escaped(value).replace(',', "~2");
                    write!(out, "{before}{field}={value}")?;
                }
                out.write_str("]")
            }
        }
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Key { map, key } => write!(out, "{}/{}", map.pointer(), pointer_escaped(key)),
            Self::Field(steps) => steps.0.iter().try_for_each(|step| write!(out, "/{step}")),
        }
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FieldPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a pointer to one field"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::json;

    const IMAGE: &str = "/spec/template/spec/containers/[name=app]/image";

    fn steps(pointer: &str) -> FieldSteps {
        match FieldPath::parse(pointer) {
            Some(FieldPath::Field(steps)) => steps,
            other => panic!("{pointer}: {other:?}"),
        }
    }

    fn fields(value: Value) -> BTreeMap<String, Value> {
        value.as_object().unwrap().clone().into_iter().collect()
    }

    #[test]
    fn pointer_reads_back_as_it_was_written() {
        for good in [
            "/data/a",
            "/data/80",
            "/binaryData/x.bin",
            "/metadata/labels/a~1b",
            "/metadata/annotations/example.com~1x",
        ] {
            let path = FieldPath::parse(good).unwrap();
            assert!(matches!(path, FieldPath::Key { .. }), "{good}");
            assert_eq!(path.to_string(), good);
        }
        for good in [
            "/spec",
            "/spec/replicas",
            IMAGE,
            "/spec/ports/[port=80,protocol=TCP]/nodePort",
            "/spec/items/[path=a~1b~0c~2d=]]/x",
            "/data/a/b",
            "/data",
            "/data/[name=x]",
            "/type",
        ] {
            assert_eq!(steps(good).0.len(), good.matches('/').count(), "{good}");
            assert_eq!(FieldPath::parse(good).unwrap().to_string(), good);
        }
    }

    #[test]
    fn fixed_fields_indexes_and_wrong_forms_are_refused() {
        for bad in [
            "",
            "/",
            "/data/",
            "data/a",
            "/metadata",
            "/metadata/name",
            "/metadata/labels",
            "/status/phase",
            "/kind",
            "/apiVersion",
            "/metadata/labels/a~2b",
            "/metadata/labels/a/b",
            "/spec/a~2b",
            "/spec/a~",
            "/spec//a",
            "/spec/ports/0",
            "/spec/ports/-",
            "/spec/ports/[name]",
            "/spec/ports/[=x]",
            "/spec/ports/[a=b",
            "/spec/a b",
            "/[name=x]/a",
        ] {
            assert_eq!(FieldPath::parse(bad), None, "{bad}");
        }
        let longest = format!("/spec/{}", "a".repeat(POINTER_LIMIT - 6));
        assert!(FieldPath::parse(&longest).is_some());
        assert_eq!(FieldPath::parse(&format!("{longest}a")), None);
        assert!(FieldPath::parse(&"/a".repeat(STEPS_LIMIT)).is_some());
        assert_eq!(FieldPath::parse(&"/a".repeat(STEPS_LIMIT + 1)), None);
    }

    #[test]
    fn items_of_lists_are_found_by_key() {
        let mut object = fields(json!({"spec": {
            "template": {"spec": {"containers": [{"name": "init"}, {"name": "app", "image": "a:1"}]}},
            "ports": [{"port": 80, "protocol": "TCP", "nodePort": 1}, {"port": 80, "protocol": "UDP"}],
        }}));
        assert_eq!(steps(IMAGE).find(&object), Some(&json!("a:1")));
        let port = steps("/spec/ports/[port=80,protocol=TCP]/nodePort");
        assert_eq!(port.find(&object), Some(&json!(1)));
        port.remove(&mut object);
        steps("/spec/ports/[protocol=UDP]").remove(&mut object);
        let expected = json!({
            "template": {"spec": {"containers": [{"name": "init"}, {"name": "app", "image": "a:1"}]}},
            "ports": [{"port": 80, "protocol": "TCP"}],
        });
        assert_eq!(object["spec"], expected);
        assert_eq!(steps("/spec/ports/[port=8]/x").find(&object), None);
    }

    #[test]
    fn emptied_maps_go_with_their_last_field() {
        let mut object =
            fields(json!({"spec": {"a": {"b": {"c": 1}}, "list": [{"d": 1}], "kept": {}}}));
        steps("/spec/a/b/c").remove(&mut object);
        steps("/spec/list/[d=1]/d").remove(&mut object);
        assert_eq!(object["spec"], json!({"kept": {}}));
        steps("/spec/kept/x").remove(&mut object);
        assert!(object.is_empty(), "the map on the path has no other field");
        steps("/spec/a").remove(&mut object);
    }

    #[test]
    fn copied_field_has_its_maps_and_items() {
        let from = fields(
            json!({"spec": {"ports": [{"port": 80, "protocol": "TCP", "nodePort": 7, "x": 1}], "y": 2}}),
        );
        let port = steps("/spec/ports/[port=80,protocol=TCP]/nodePort");
        let mut into = BTreeMap::new();
        port.copy(&from, &mut into);
        let item = json!({"port": 80, "protocol": "TCP", "nodePort": 7});
        assert_eq!(into["spec"], json!({"ports": [item]}));
        let mut into =
            fields(json!({"spec": {"ports": [{"port": 1}, {"port": 80, "protocol": "TCP"}]}}));
        port.copy(&from, &mut into);
        assert_eq!(into["spec"], json!({"ports": [{"port": 1}, item]}));
        for absent in ["/spec/ports/[port=81]/x", "/spec/z", "/other/x"] {
            let before = into.clone();
            steps(absent).copy(&from, &mut into);
            assert_eq!(into, before, "{absent}");
        }
    }

    #[test]
    fn keys_of_listed_maps_precede_other_fields() {
        let mut paths: Vec<_> = ["/a", "/metadata/labels/x", "/data/x", "/binaryData/x"]
            .into_iter()
            .map(|pointer| FieldPath::parse(pointer).unwrap())
            .collect();
        paths.sort();
        let sorted: Vec<_> = paths.iter().map(ToString::to_string).collect();
        assert_eq!(
            sorted,
            ["/binaryData/x", "/data/x", "/metadata/labels/x", "/a"]
        );
        assert_eq!(size_of::<FieldPath>(), size_of::<(FieldMap, String)>());
    }

    proptest! {
        #[test]
        fn written_state_reads_back(map in 0usize..4, key in "[a-z~/.]{1,20}") {
            let path = FieldPath::new(FieldMap::ALL[map], key);
            prop_assert_eq!(FieldPath::parse(&path.to_string()), Some(path));
        }

        #[test]
        fn written_steps_read_back(
            top in "[a-c]{1,3}",
            steps in proptest::collection::vec(("[a-z~/]{1,6}", proptest::option::of("[a-z0-9~/,=]{0,6}")), 0..6),
        ) {
            let step = |(name, value): &(String, Option<String>)| match value {
                None => FieldStep::Name(name.as_str().into()),
                Some(value) => FieldStep::Items([("key".into(), value.as_str().into())].into()),
            };
            let first = FieldStep::Name(top.as_str().into());
            let path = FieldPath::Field(FieldSteps([first].into_iter().chain(steps.iter().map(step)).collect()));
            prop_assert_eq!(FieldPath::parse(&path.to_string()), Some(path));
        }

        #[test]
        fn removed_field_is_not_found(pointer in "/[ab](/([ab]|\\[a=[12]\\])){0,3}", flat in "[ab12,:{}\\[\\]\"]{0,40}") {
            let path = steps(&pointer);
            let value = serde_json::from_str(&flat).unwrap_or_else(|_| json!([{"a": 1, "b": {"a": [{"a": "2"}]}}]));
            let mut object = fields(json!({"a": {"a": value, "b": value}, "b": value}));
            let before = object.clone();
            path.remove(&mut object);
            prop_assert_eq!(path.find(&object), None);
            path.copy(&before, &mut object);
            prop_assert_eq!(path.find(&object), path.find(&before));
            path.remove(&mut object);
            let once = object.clone();
            path.remove(&mut object);
            prop_assert_eq!(once, object);
        }

        #[test]
        fn any_text_parses_without_a_panic(text: String) {
            let _ = FieldPath::parse(&text);
        }
    }
}
