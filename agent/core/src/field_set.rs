//! Sets of fields, as `managedFields` names them in `fieldsV1`. Pure.
//!
//! With a set the agent compares only the fields that it applied: the [projection](FieldSet::project) of an object
//! contains neither defaults of the API server nor fields of other managers. A set needs no schema. The API server has
//! already decided which parts of an object are items of a list by key, and which are one value.
//!
//! A projection keeps the order of the items of a list: it may matter, as that of environment variables does.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::pointer_escaped;
use serde_json::{Map, Value};

/// The deepest set that is read. The API server itself reads no JSON that is deeper.
const DEPTH_LIMIT: usize = 128;
/// Limit of the combinations of key fields by which the items of one list are found.
const KEYS_LIMIT: usize = 16;

/// A set of fields of an object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(BTreeMap<Step, Node>);

/// A field of a set, or a part of the path to others.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Node {
    /// Whether the field itself is in the set.
    is_member: bool,
    below: FieldSet,
}

/// One step of the path to a field.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Step {
    /// The field of an object with this name.
    Field(Box<str>),
    /// The item of a list whose key fields have these values.
    Key(Json),
    /// The item of a list with this value.
    Value(Json),
    /// The item of a list at this index.
    Index(usize),
}

/// A JSON value that is ordered by its text.
#[derive(Clone, Debug)]
struct Json {
    text: Box<str>,
    value: Value,
}

/// Why a set cannot be read.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum FieldSetError {
    /// The text of a step is of an unknown form.
    #[error("the managed fields of the object have an unknown form")]
    UnknownForm,
    /// The set is deeper than the API server reads.
    #[error("the managed fields of the object are nested too deeply")]
    TooDeep,
}

/// A difference between two states of a field. Without `Debug`: it contains values.
#[derive(Clone, PartialEq)]
pub struct Difference<'a> {
    /// The path, as a rule names it in `ignoreFields`: `/spec/ports/[name=web]/port`.
    pub path: String,
    /// The value in the first state.
    pub before: Option<&'a Value>,
    /// The value in the second state.
    pub now: Option<&'a Value>,
}

impl FieldSet {
    /// Reads the value of `fieldsV1`.
    ///
    /// # Errors
    /// [`FieldSetError`] if no API server writes it.
    pub fn parse(fields: &Value) -> Result<Self, FieldSetError> {
        Self::parse_below(fields, DEPTH_LIMIT)
    }

    fn parse_below(fields: &Value, depth: usize) -> Result<Self, FieldSetError> {
        let depth = depth.checked_sub(1).ok_or(FieldSetError::TooDeep)?;
        let fields = fields.as_object().ok_or(FieldSetError::UnknownForm)?;
        let mut children = BTreeMap::new();
        for (step, below) in fields.iter().filter(|(step, _)| *step != ".") {
            let is_member = below
                .as_object()
                .is_some_and(|below| below.is_empty() || below.contains_key("."));
            let below = Self::parse_below(below, depth)?;
            let step = Step::parse(step).ok_or(FieldSetError::UnknownForm)?;
            children.insert(step, Node { is_member, below });
        }
        Ok(Self(children))
    }

    /// Whether the set has no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set without a top-level field and all fields below it.
    #[must_use]
    pub fn without(mut self, field: &str) -> Self {
        self.0.remove(&Step::Field(field.into()));
        self
    }

    /// The fields of both sets.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        for (step, node) in &other.0 {
            let own = self.0.entry(step.clone()).or_default();
            own.is_member |= node.is_member;
            own.below = std::mem::take(&mut own.below).union(&node.below);
        }
        self
    }

    /// Returns the part of an object that the set names. `others` are the fields of the other managers: with fields of
    /// theirs in it, an empty map or list of ours stays empty. Without, it is one value and compared as a whole.
    pub fn project(&self, object: &Value, others: &FieldSet) -> Value {
        self.projected(object, others)
            .unwrap_or_else(|| Value::Object(Map::new()))
    }

    /// Returns `None` if the object has none of the fields.
    fn projected(&self, value: &Value, others: &FieldSet) -> Option<Value> {
        let none = FieldSet::default();
        let parts = Parts::of(value, self);
        let found = self.0.iter().filter_map(|(step, node)| {
            let others = others.0.get(step).map_or(&none, |node| &node.below);
            let part = node.projected(parts.get(step)?, others)?;
            Some((step, part))
        });
        match value {
            Value::Object(_) => {
                let fields = found.filter_map(|(step, part)| match step {
                    Step::Field(name) => Some((name.to_string(), part)),
                    _ => None,
                });
                let fields: Map<String, Value> = fields.collect();
                (!fields.is_empty()).then_some(Value::Object(fields))
            }
            Value::Array(_) => {
                let place = |(step, part): (&Step, Value)| Some((parts.position(step)?, part));
                let mut items: Vec<(usize, Value)> = found.filter_map(place).collect();
                items.sort_by_key(|(position, _)| *position);
                let items: Vec<_> = items.into_iter().map(|(_, item)| item).collect();
                (!items.is_empty()).then_some(Value::Array(items))
            }
            // The API server knows the type of the field: it is another one now.
            scalar => Some(scalar.clone()),
        }
    }

    /// Returns the differences between two projections on this set, at most `limit`.
    pub fn differences<'a>(
        &self,
        before: &'a Value,
        now: &'a Value,
        limit: usize,
    ) -> Vec<Difference<'a>> {
        let mut all = vec![];
        self.compare(before, now, "", limit, &mut all);
        all
    }

    fn compare<'a>(
        &self,
        before: &'a Value,
        now: &'a Value,
        path: &str,
        limit: usize,
        all: &mut Vec<Difference<'a>>,
    ) {
        let (before, now) = (Parts::of(before, self), Parts::of(now, self));
        for (step, node) in &self.0 {
            if all.len() >= limit {
                return;
            }
            let (before, now) = (before.get(step), now.get(step));
            if before == now {
                continue;
            }
            let (path, found) = (step.append_to(path), all.len());
            if let (Some(before), Some(now)) = (before, now)
                && before.is_object() == now.is_object()
                && !node.below.is_empty()
            {
                node.below.compare(before, now, &path, limit, all);
                // Only the order of items differs.
                if all.len() > found || !now.is_array() {
                    continue;
                }
            }
            all.push(Difference { path, before, now });
        }
    }

    /// Returns the paths of the fields of an object that are not in the set, at most `limit`. Fields without a value do not
    /// count.
    pub fn missing(&self, object: &Value, limit: usize) -> Vec<String> {
        let mut all = vec![];
        self.collect_missing(object, "", limit, &mut all);
        all
    }

    fn collect_missing(&self, value: &Value, path: &str, limit: usize, all: &mut Vec<String>) {
        let mut check = |step: Step, found: Option<&Node>, part: &Value| match found {
            _ if all.len() >= limit || part.is_null() || is_empty(part) => {}
            // A field without fields below it is one value.
            Some(node) if node.below.is_empty() => {}
            Some(node) => node
                .below
                .collect_missing(part, &step.append_to(path), limit, all),
            None => all.push(step.append_to(path)),
        };
        match value {
            Value::Object(fields) => {
                for (name, part) in fields {
                    let step = Step::Field(name.as_str().into());
                    let node = self.0.get(&step);
                    check(step, node, part);
                }
            }
            Value::Array(items) => {
                for (index, item) in items.iter().enumerate() {
                    let found = self.0.iter().find(|(step, _)| step.can_be(item));
                    match found {
                        Some((step, node)) => check(step.clone(), Some(node), item),
                        None => check(Step::Index(index), None, item),
                    }
                }
            }
            _ => {}
        }
    }
}

impl Node {
    /// Returns the part of a value that the node names.
    fn projected(&self, value: &Value, others: &FieldSet) -> Option<Value> {
        if !self.below.is_empty() {
            let part = self.below.projected(value, others);
            return part.or_else(|| self.is_member.then(|| emptied(value)));
        }
        let is_shared = !others.is_empty() && (value.is_object() || value.is_array());
        Some(if is_shared {
            emptied(value)
        } else {
            value.clone()
        })
    }
}

/// The parts of a value to which the steps of a set lead. A list is read once, not once for each step.
enum Parts<'a> {
    Fields(&'a Map<String, Value>),
    Items(&'a [Value], ItemIndex),
    Scalar,
}

impl<'a> Parts<'a> {
    fn of(value: &'a Value, set: &FieldSet) -> Self {
        match value {
            Value::Object(fields) => Self::Fields(fields),
            Value::Array(items) => Self::Items(items, ItemIndex::of(items, set)),
            _ => Self::Scalar,
        }
    }

    /// Returns what a step of the set leads to.
    fn get(&self, step: &Step) -> Option<&'a Value> {
        match (self, step) {
            (Self::Fields(fields), Step::Field(name)) => fields.get(&**name),
            (Self::Items(items, _), _) => items.get(self.position(step)?),
            _ => None,
        }
    }

    /// Returns the index of the item of a list to which a step of the set leads.
    fn position(&self, step: &Step) -> Option<usize> {
        let Self::Items(_, index) = self else {
            return None;
        };
        match step {
            Step::Field(_) => None,
            Step::Key(key) => index.by_key.get(&*key.text).copied(),
            Step::Value(value) => index.by_value.get(&*value.text).copied(),
            Step::Index(index) => Some(*index),
        }
    }
}

/// The positions of the items of a list. The first one of equal items counts.
struct ItemIndex {
    by_key: BTreeMap<String, usize>,
    by_value: BTreeMap<String, usize>,
}

impl ItemIndex {
    fn of(items: &[Value], set: &FieldSet) -> Self {
        let steps = set.0.keys();
        let names = steps.clone().filter_map(Step::key_fields);
        // All items of a list have the same key fields. Only managed fields that no API server writes name many.
        let names: BTreeSet<Vec<&str>> = names.map(Iterator::collect).collect();
        let has_values = steps.clone().any(|step| matches!(step, Step::Value(_)));
        let (mut by_key, mut by_value) = (BTreeMap::new(), BTreeMap::new());
        for (position, item) in items.iter().enumerate() {
            #[cfg(test)]
            tests::ITEMS_READ.with(|read| read.set(read.get() + 1));
            for names in names.iter().take(KEYS_LIMIT).filter(|_| item.is_object()) {
                // A missing field equals `null`.
                let value = |name: &&str| item.get(*name).unwrap_or(&Value::Null);
                let key = key_text(names.iter().map(|name| (*name, value(name))));
                by_key.entry(key).or_insert(position);
            }
            if has_values {
                by_value.entry(item.to_string()).or_insert(position);
            }
        }
        Self { by_key, by_value }
    }
}

/// Returns the text of a key with these fields, as [`Json`] has it.
fn key_text<'a>(fields: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let fields: Vec<_> = fields
        .map(|(name, value)| format!("{}:{value}", Value::from(name)))
        .collect();
    format!("{{{}}}", fields.join(","))
}

impl Step {
    /// Reads a key of `fieldsV1`.
    fn parse(text: &str) -> Option<Self> {
        let (form, rest) = text.split_once(':')?;
        Some(match form {
            "f" => Self::Field(rest.into()),
            "k" => Self::Key(Json::parse(rest).filter(|key| key.value.is_object())?),
            "v" => Self::Value(Json::parse(rest)?),
            "i" => Self::Index(rest.parse().ok()?),
            _ => return None,
        })
    }

    /// Returns the names of the key fields, in their order, if the step leads to an item by its key.
    fn key_fields(&self) -> Option<impl Iterator<Item = &str>> {
        let Self::Key(key) = self else {
            return None;
        };
        Some(key.value.as_object()?.keys().map(String::as_str))
    }

    /// Whether the step leads to this item of a list, which may lack the defaults of its key fields.
    fn can_be(&self, item: &Value) -> bool {
        match self {
            Self::Field(_) | Self::Index(_) => false,
            Self::Key(key) => {
                let mut fields = key.value.as_object().into_iter().flatten();
                item.is_object()
                    && fields.all(|(field, value)| item.get(field).is_none_or(|is| is == value))
            }
            Self::Value(value) => *item == value.value,
        }
    }

    /// Returns the path to a field, given the path to its parent.
    fn append_to(&self, parent: &str) -> String {
        match self {
            Self::Field(name) => format!("{parent}/{}", pointer_escaped(name)),
            Self::Key(key) => {
                let fields = key.value.as_object().into_iter().flatten();
                let fields: Vec<_> = fields
                    .map(|(field, value)| format!("{}={}", pointer_escaped(field), text(value)))
                    .collect();
                format!("{parent}/[{}]", fields.join(","))
            }
            Self::Value(value) => format!("{parent}/[={}]", text(&value.value)),
            Self::Index(index) => format!("{parent}/{index}"),
        }
    }
}

/// Returns the value of a key field in a path.
fn text(value: &Value) -> String {
    let text = value
        .as_str()
        .map_or_else(|| value.to_string(), str::to_owned);
    pointer_escaped(&text).replace(',', "~2")
}

impl Json {
    fn parse(text: &str) -> Option<Self> {
        let value: Value = serde_json::from_str(text).ok()?;
        // The keys of its maps are sorted.
        let text = value.to_string().into();
        Some(Self { text, value })
    }
}

impl PartialEq for Json {
    fn eq(&self, other: &Self) -> bool {
        self.text == other.text
    }
}

impl Eq for Json {}

impl PartialOrd for Json {
    fn partial_cmp(&self, other: &Self) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Json {
    fn cmp(&self, other: &Self) -> std::cmp::Ordering {
        self.text.cmp(&other.text)
    }
}

/// Returns an empty map or list for a map or list; any other value unchanged.
fn emptied(value: &Value) -> Value {
    match value {
        Value::Object(_) => Value::Object(Map::new()),
        Value::Array(_) => Value::Array(vec![]),
        scalar => scalar.clone(),
    }
}

/// Whether a value is a map or list without entries.
fn is_empty(value: &Value) -> bool {
    match value {
        Value::Object(fields) => fields.is_empty(),
        Value::Array(items) => items.is_empty(),
        _ => false,
    }
}

#[cfg(test)]
#[path = "field_set_tests.rs"]
mod tests;
