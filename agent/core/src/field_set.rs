//! Sets of fields, as `managedFields` names them in `fieldsV1`. Pure.
//!
//! With a set the agent compares only the fields that it applied: the [projection](FieldSet::project) of an object
//! contains neither defaults of the API server nor fields of other managers. A set needs no schema. The API server has
//! already decided which parts of an object are items of a list by key, and which are one value.
//!
//! A projection keeps the order of the items of a list: it may matter, as that of environment variables does.
use std::cmp::Ordering;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use runnel_proto::model::pointer_escaped;
use serde_json::{Map, Number, Value};

/// The deepest set that is read. The API server itself reads no JSON that is deeper.
const DEPTH_LIMIT: usize = 128;
/// Limit of the combinations of key fields by which the items of one list are found.
const KEYS_LIMIT: usize = 16;

/// A set of fields of an object, in the order of their steps.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FieldSet(Vec<(Step, Node)>);

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
        let mut children = Vec::with_capacity(fields.len());
        for (step, below) in fields.iter().filter(|(step, _)| *step != ".") {
            let is_member = below
                .as_object()
                .is_some_and(|below| below.is_empty() || below.contains_key("."));
            let below = Self::parse_below(below, depth)?;
            let step = Step::parse(step).ok_or(FieldSetError::UnknownForm)?;
            children.push((step, Node { is_member, below }));
        }
        Ok(Self::of(children))
    }

    /// Returns the value of `fieldsV1`.
    pub fn to_value(&self) -> Value {
        let children = self.0.iter().map(|(step, node)| {
            let mut below = node.below.to_value();
            if node.is_member
                && !node.below.is_empty()
                && let Some(below) = below.as_object_mut()
            {
                below.insert(".".to_owned(), Value::Object(Map::new()));
            }
            (step.to_string(), below)
        });
        Value::Object(children.collect())
    }

    /// Returns the fields of the set that an object has.
    #[must_use]
    pub fn present_in(&self, object: &Value) -> Self {
        let parts = Parts::of(object, self);
        let present = self.0.iter().filter_map(|(step, node)| {
            let node = Node {
                is_member: node.is_member,
                below: node.below.present_in(parts.get(step)?),
            };
            (node.is_member || !node.below.is_empty()).then(|| (step.clone(), node))
        });
        Self(present.collect())
    }

    /// Nodes of the same step become one.
    fn of(mut children: Vec<(Step, Node)>) -> Self {
        children.sort_by(|(one, _), (other, _)| one.cmp(other));
        children.dedup_by(|(later, node), (step, first)| {
            let is_same = later == step;
            if is_same {
                first.is_member |= node.is_member;
                first.below = std::mem::take(&mut first.below).union(&node.below);
            }
            is_same
        });
        Self(children)
    }

    fn get(&self, step: &Step) -> Option<&Node> {
        self.find(|known| known.cmp(step))
    }

    fn field(&self, name: &str) -> Option<&Node> {
        self.find(|known| match known {
            Step::Field(known) => (**known).cmp(name),
            _ => Ordering::Greater,
        })
    }

    fn find(&self, order: impl Fn(&Step) -> Ordering) -> Option<&Node> {
        let at = self.0.binary_search_by(|(step, _)| order(step)).ok()?;
        self.0.get(at).map(|(_, node)| node)
    }

    fn steps(&self) -> impl Iterator<Item = &Step> {
        self.0.iter().map(|(step, _)| step)
    }

    /// Whether the set has no fields.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The set without a top-level field and all fields below it.
    #[must_use]
    pub fn without(mut self, field: &str) -> Self {
        self.0
            .retain(|(step, _)| !matches!(step, Step::Field(name) if **name == *field));
        self
    }

    /// The fields of both sets.
    #[must_use]
    pub fn union(mut self, other: &Self) -> Self {
        if other.is_empty() {
            return self;
        }
        self.0.extend(other.0.iter().cloned());
        Self::of(self.0)
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
        let below = |step| others.get(step).map_or(&none, |node| &node.below);
        match value {
            Value::Object(fields) => {
                let fields = self.0.iter().filter_map(|(step, node)| {
                    let Step::Field(name) = step else { return None };
                    let part = node.projected(fields.get(&**name)?, below(step))?;
                    Some((name.to_string(), part))
                });
                let fields: Map<String, Value> = fields.collect();
                (!fields.is_empty()).then_some(Value::Object(fields))
            }
            Value::Array(items) => {
                let index = ItemIndex::of(items, self);
                let found = self.0.iter().filter_map(|(step, node)| {
                    let position = index.position(step)?;
                    let part = node.projected(items.get(position)?, below(step))?;
                    Some((position, part))
                });
                let mut items: Vec<(usize, Value)> = found.collect();
                items.sort_unstable_by_key(|(position, _)| *position);
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
        self.compare(before, now, limit, &mut all);
        all
    }

    /// Adds the differences with their paths below the compared values.
    fn compare<'a>(
        &self,
        before: &'a Value,
        now: &'a Value,
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
            let found = all.len();
            if let (Some(before), Some(now)) = (before, now)
                && before.is_object() == now.is_object()
                && !node.below.is_empty()
            {
                node.below.compare(before, now, limit, all);
                for below in all.iter_mut().skip(found) {
                    below.path.insert_str(0, &step.path());
                }
                // Only the order of items differs.
                if all.len() > found || !now.is_array() {
                    continue;
                }
            }
            let path = step.path();
            all.push(Difference { path, before, now });
        }
    }

    /// Returns the paths of the values of a sent object that are missing in the answer to its apply, at most `limit`. The set
    /// is that of the apply. Another value is not missing, and neither is one that API servers leave out: `null`, `false`,
    /// zero, and empty texts, lists and maps.
    pub fn missing(&self, sent: &Value, answer: &Value, limit: usize) -> Vec<String> {
        let mut all = vec![];
        self.collect_missing(sent, answer, limit, &mut all);
        all
    }

    /// Adds the missing values with their paths below the compared values.
    fn collect_missing(&self, sent: &Value, answer: &Value, limit: usize, all: &mut Vec<String>) {
        match (sent, answer) {
            (Value::Object(fields), _) => {
                for (name, part) in fields {
                    let path = || Step::Field(name.as_str().into()).path();
                    let node = self.field(name);
                    check_part(node, path, part, answer.get(name), limit, all);
                }
            }
            (Value::Array(items), _) if !self.is_empty() => {
                let parts = Parts::of(answer, self);
                for (index, (item, child)) in items.iter().zip(self.children_of(items)).enumerate()
                {
                    let path =
                        || child.map_or_else(|| Step::Index(index).path(), |(step, _)| step.path());
                    let node = child.map(|(_, node)| node);
                    let now = child.and_then(|(step, _)| parts.get(step));
                    check_part(node, path, item, now, limit, all);
                }
            }
            // A list without keys is one value. In a longer one, items have no known place.
            (Value::Array(items), Value::Array(now)) if now.len() == items.len() => {
                for (index, (item, now)) in items.iter().zip(now).enumerate() {
                    let path = || Step::Index(index).path();
                    check_part(None, path, item, Some(now), limit, all);
                }
            }
            (Value::Array(items), Value::Array(now)) if now.len() > items.len() => {}
            (Value::Array(_), _) => all.push(String::new()),
            _ => {}
        }
    }

    /// Returns the step to each item of a list and its node. An item may lack key fields that have a default. The items with the fewest
    /// missing fields come first, and each step leads to one item: the default of a field is then that of the step that is left.
    fn children_of(&self, items: &[Value]) -> Vec<Option<&(Step, Node)>> {
        let index = ItemIndex::of(items, self);
        let mut found = vec![None; items.len()];
        let mut left = vec![];
        for child in &self.0 {
            match index.position(&child.0).and_then(|at| found.get_mut(at)) {
                Some(found) => *found = Some(child),
                None => left.push(child),
            }
        }
        let names = left.iter().flat_map(|(step, _)| step.key_fields());
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
            let mut children: BTreeMap<Vec<Ordered<'_>>, Vec<&(Step, Node)>> = BTreeMap::new();
            for child in std::mem::take(&mut left).into_iter().rev() {
                let Step::Key(fields) = &child.0 else {
                    continue;
                };
                let children = children.entry(values(&fields.value, &has)).or_default();
                children.push(child);
            }
            for position in positions {
                let children = items
                    .get(position)
                    .and_then(|item| children.get_mut(&values(item, &has)));
                if let (Some(children), Some(found)) = (children, found.get_mut(position)) {
                    *found = children.pop();
                }
            }
            left = children.into_values().flatten().collect();
            left.sort_by_key(|(step, _)| step);
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
enum Parts<'a, 's> {
    Fields(&'a Map<String, Value>),
    Items(&'a [Value], ItemIndex<'a, 's>),
    Scalar,
}

impl<'a, 's> Parts<'a, 's> {
    fn of(value: &'a Value, set: &'s FieldSet) -> Self {
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
            (Self::Items(items, index), _) => items.get(index.position(step)?),
            _ => None,
        }
    }
}

/// The positions of the items of a list. The first one of equal items counts.
struct ItemIndex<'a, 's> {
    /// By the names of key fields: the positions by their values.
    by_key: Vec<(Vec<&'s str>, Positions<'a>)>,
    by_value: BTreeMap<Ordered<'a>, usize>,
}

/// The positions of items by the values of their key fields.
type Positions<'a> = BTreeMap<Vec<Ordered<'a>>, usize>;

impl<'a, 's> ItemIndex<'a, 's> {
    fn of(items: &'a [Value], set: &'s FieldSet) -> Self {
        // All items of a list have the same key fields. Only managed fields that no API server writes name many.
        let mut by_key: Vec<(Vec<&str>, Positions<'_>)> = vec![];
        for step in set.steps() {
            let names = || step.key_fields();
            let is_known = by_key
                .iter()
                .any(|(known, _)| names().eq(known.iter().copied()));
            if names().next().is_some() && !is_known && by_key.len() < KEYS_LIMIT {
                by_key.push((names().collect(), Positions::new()));
            }
        }
        let has_values = set.steps().any(|step| matches!(step, Step::Value(_)));
        let mut by_value = BTreeMap::new();
        for (position, item) in items.iter().enumerate() {
            #[cfg(test)]
            tests::ITEMS_READ.with(|read| read.set(read.get() + 1));
            for (names, positions) in by_key.iter_mut().filter(|_| item.is_object()) {
                positions.entry(values(item, names)).or_insert(position);
            }
            if has_values {
                by_value.entry(Ordered(item)).or_insert(position);
            }
        }
        Self { by_key, by_value }
    }

    /// Returns the index of the item to which a step of the set leads.
    fn position(&self, step: &Step) -> Option<usize> {
        match step {
            Step::Field(_) => None,
            Step::Key(key) => {
                let mut known = self.by_key.iter();
                let is_of = |names: &[&str]| step.key_fields().eq(names.iter().copied());
                let (names, positions) = known.find(|(names, _)| is_of(names))?;
                positions.get(&values(&key.value, names)).copied()
            }
            Step::Value(value) => self.by_value.get(&Ordered(&value.value)).copied(),
            Step::Index(index) => Some(*index),
        }
    }
}

/// Returns the values of fields of an item. A missing field equals `null`.
fn values<'a>(item: &'a Value, names: &[&str]) -> Vec<Ordered<'a>> {
    let value = |name: &&str| Ordered(item.get(*name).unwrap_or(&Value::Null));
    names.iter().map(value).collect()
}

/// A value in some order, without its text.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Ordered<'a>(&'a Value);

impl Ord for Ordered<'_> {
    fn cmp(&self, other: &Self) -> Ordering {
        let number = |number: &Number| {
            (
                number.as_i64(),
                number.as_u64(),
                number.as_f64().map(f64::to_bits),
            )
        };
        match (self.0, other.0) {
            (Value::String(one), Value::String(other)) => one.cmp(other),
            (Value::Number(one), Value::Number(other)) => number(one).cmp(&number(other)),
            (Value::Bool(one), Value::Bool(other)) => one.cmp(other),
            (Value::Array(one), Value::Array(other)) => {
                one.iter().map(Ordered).cmp(other.iter().map(Ordered))
            }
            (Value::Object(one), Value::Object(other)) => {
                let one = one.iter().map(|(name, value)| (name, Ordered(value)));
                one.cmp(other.iter().map(|(name, value)| (name, Ordered(value))))
            }
            (one, other) => type_order(one).cmp(&type_order(other)),
        }
    }
}

impl PartialOrd for Ordered<'_> {
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

fn type_order(value: &Value) -> u8 {
    match value {
        Value::Null => 0,
        Value::Bool(_) => 1,
        Value::Number(_) => 2,
        Value::String(_) => 3,
        Value::Array(_) => 4,
        Value::Object(_) => 5,
    }
}

/// Adds the paths of what a part of an answer lacks of the part that was sent. `node`: the fields of the part that were applied.
fn check_part(
    node: Option<&Node>,
    path: impl Fn() -> String,
    part: &Value,
    answer: Option<&Value>,
    limit: usize,
    all: &mut Vec<String>,
) {
    if all.len() >= limit || is_nothing(part) {
        return;
    }
    match answer.filter(|answer| !answer.is_null()) {
        Some(_) if !part.is_object() && !part.is_array() => {}
        Some(answer) if answer == part => {}
        Some(answer) => {
            let (none, found) = (FieldSet::default(), all.len());
            let below = node.map_or(&none, |node| &node.below);
            below.collect_missing(part, answer, limit, all);
            for missing in all.iter_mut().skip(found) {
                missing.insert_str(0, &path());
            }
        }
        None => all.push(path()),
    }
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

    /// Returns the path from the parent of a field to it.
    fn path(&self) -> String {
        match self {
            Self::Field(name) => format!("/{}", pointer_escaped(name)),
            Self::Key(key) => {
                let fields = key.value.as_object().into_iter().flatten();
                let fields: Vec<_> = fields
                    .map(|(field, value)| format!("{}={}", pointer_escaped(field), text(value)))
                    .collect();
                format!("/[{}]", fields.join(","))
            }
            Self::Value(value) => format!("/[={}]", text(&value.value)),
            Self::Index(index) => format!("/{index}"),
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

impl fmt::Display for Step {
    /// The key of `fieldsV1`.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Field(name) => write!(out, "f:{name}"),
            Self::Key(key) => write!(out, "k:{}", key.text),
            Self::Value(value) => write!(out, "v:{}", value.text),
            Self::Index(index) => write!(out, "i:{index}"),
        }
    }
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
    fn partial_cmp(&self, other: &Self) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl Ord for Json {
    fn cmp(&self, other: &Self) -> Ordering {
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
