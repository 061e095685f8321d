//! Sets of fields, as `managedFields` names them in `fieldsV1`. Pure.
//!
//! With a set the agent compares only the fields that it applied: the [projection](FieldSet::project) of an object
//! contains neither defaults of the API server nor fields of other managers. A set needs no schema. The API server has
//! already decided which parts of an object are items of a list by key, and which are one value.
//!
//! A projection keeps the order of the items of a list: it may matter, as that of environment variables does.
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

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

    /// Returns the paths of the values of a sent object that are missing in the answer to its apply, at most `limit`. The set
    /// is that of the apply. Another value is not missing, and neither is one that API servers leave out: `null`, `false`,
    /// zero, and empty texts, lists and maps.
    pub fn missing(&self, sent: &Value, answer: &Value, limit: usize) -> Vec<String> {
        let mut all = vec![];
        self.collect_missing(sent, answer, "", limit, &mut all);
        all
    }

    fn collect_missing(
        &self,
        sent: &Value,
        answer: &Value,
        path: &str,
        limit: usize,
        all: &mut Vec<String>,
    ) {
        let none = FieldSet::default();
        let mut check = |step: &Step, part: &Value, answer: Option<&Value>| {
            if all.len() >= limit || is_nothing(part) {
                return;
            }
            match answer.filter(|answer| !answer.is_null()) {
                Some(_) if !part.is_object() && !part.is_array() => {}
                Some(answer) => {
                    let below = self.0.get(step).map_or(&none, |node| &node.below);
                    below.collect_missing(part, answer, &step.append_to(path), limit, all);
                }
                None => all.push(step.append_to(path)),
            }
        };
        match (sent, answer) {
            (Value::Object(fields), _) => {
                for (name, part) in fields {
                    check(&Step::Field(name.as_str().into()), part, answer.get(name));
                }
            }
            (Value::Array(items), _) if !self.is_empty() => {
                let parts = Parts::of(answer, self);
                for (index, (item, step)) in items.iter().zip(self.steps_to(items)).enumerate() {
                    match step {
                        Some(step) => check(step, item, parts.get(step)),
                        None => check(&Step::Index(index), item, None),
                    }
                }
            }
            // A list without keys is one value. In a longer one, items have no known place.
            (Value::Array(items), Value::Array(now)) if now.len() == items.len() => {
                for (index, (item, now)) in items.iter().zip(now).enumerate() {
                    check(&Step::Index(index), item, Some(now));
                }
            }
            (Value::Array(items), Value::Array(now)) if now.len() > items.len() => {}
            (Value::Array(_), _) => all.push(path.to_owned()),
            _ => {}
        }
    }

    /// Returns the step to each item of a list, which may lack key fields that have a default. The items with the fewest missing
    /// fields come first, and each step leads to one item: the default of a field is then that of the step that is left.
    fn steps_to(&self, items: &[Value]) -> Vec<Option<&Step>> {
        let index = ItemIndex::of(items, self);
        let mut found = vec![None; items.len()];
        let mut left = vec![];
        for step in self.0.keys() {
            match index.position(step).and_then(|at| found.get_mut(at)) {
                Some(found) => *found = Some(step),
                None => left.push(step),
            }
        }
        let names = left.iter().flat_map(|step| step.key_fields());
        let names: BTreeSet<&str> = names.collect();
        let mut lacking: BTreeMap<(usize, Vec<&str>), Vec<usize>> = BTreeMap::new();
        for (position, item) in items.iter().enumerate() {
            if item.is_object() && found.get(position).is_some_and(Option::is_none) {
                let has = names.iter().copied().take(KEYS_LIMIT);
                let has: Vec<_> = has.filter(|name| item.get(name).is_some()).collect();
                let missing = names.len() - has.len();
                lacking.entry((missing, has)).or_default().push(position);
            }
        }
        for ((_, has), positions) in lacking.into_iter().take(KEYS_LIMIT) {
            let key = |item: &Value| {
                let fields = has
                    .iter()
                    .filter_map(|name| Some((*name, item.get(*name)?)));
                key_text(fields)
            };
            let mut steps: BTreeMap<String, Vec<&Step>> = BTreeMap::new();
            for step in std::mem::take(&mut left).into_iter().rev() {
                let Step::Key(fields) = step else { continue };
                let steps = steps.entry(key(&fields.value)).or_default();
                steps.push(step);
            }
            for position in positions {
                let steps = items
                    .get(position)
                    .and_then(|item| steps.get_mut(&key(item)));
                if let (Some(steps), Some(found)) = (steps, found.get_mut(position)) {
                    *found = steps.pop();
                }
            }
            left = steps.into_values().flatten().collect();
        }
        found
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
        match self {
            Self::Items(_, index) => index.position(step),
            Self::Fields(_) | Self::Scalar => None,
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
        // All items of a list have the same key fields. Only managed fields that no API server writes name many.
        let names: BTreeSet<Vec<&str>> = steps
            .clone()
            .map(|step| step.key_fields().collect())
            .collect();
        let names = names.into_iter().filter(|names| !names.is_empty());
        let names: Vec<_> = names.take(KEYS_LIMIT).collect();
        let has_values = steps.clone().any(|step| matches!(step, Step::Value(_)));
        let (mut by_key, mut by_value) = (BTreeMap::new(), BTreeMap::new());
        for (position, item) in items.iter().enumerate() {
            #[cfg(test)]
            tests::ITEMS_READ.with(|read| read.set(read.get() + 1));
            for names in names.iter().filter(|_| item.is_object()) {
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

    /// Returns the index of the item to which a step of the set leads.
    fn position(&self, step: &Step) -> Option<usize> {
        match step {
            Step::Field(_) => None,
            Step::Key(key) => self.by_key.get(&*key.text).copied(),
            Step::Value(value) => self.by_value.get(&*value.text).copied(),
            Step::Index(index) => Some(*index),
        }
    }
}

/// Returns the text of a key with these fields, as [`Json`] has it.
fn key_text<'a>(fields: impl Iterator<Item = (&'a str, &'a Value)>) -> String {
    let mut text = String::from("{");
    for (name, value) in fields {
        text.push_str(if text.len() > 1 { "," } else { "" });
        // Writing to a text does not fail.
        let _ = write!(text, "{}:{value}", Value::from(name));
    }
    text.push('}');
    text
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

    /// Returns the names of the key fields, in their order. Only a step to an item by its key has some.
    fn key_fields(&self) -> impl Iterator<Item = &str> {
        let fields = match self {
            Self::Key(key) => key.value.as_object(),
            _ => None,
        };
        fields.into_iter().flatten().map(|(name, _)| name.as_str())
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

/// Whether API servers may leave the value out, because it is that of a field that is not set.
fn is_nothing(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Number(value) => value.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.values().all(is_nothing),
    }
}

#[cfg(test)]
#[path = "field_set_tests.rs"]
mod tests;
