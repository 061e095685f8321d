//! Converts the regular expressions and selectors of other copiers to target namespaces of a rule.
use std::collections::{BTreeMap, BTreeSet};

use regex::Regex;
use runnel_proto::model::{NamespaceChoice, Pattern, is_closed_namespace, is_label};

use runnel_api::{LabelSelector, Namespaces};

/// The namespaces of the cluster that is read, with their labels.
pub type NamespaceLabels = BTreeMap<String, BTreeMap<String, String>>;

/// The namespace of hub and agents; objects of other copiers there are skipped.
pub const SYSTEM_NAMESPACE: &str = crate::args::SYSTEM;

/// A namespace selection of a rule, and its differences from the original.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Choice {
    /// Names and globs.
    pub names: BTreeSet<String>,
    /// The label selector.
    pub selector: Option<LabelSelector>,
    /// Notes about what a rule cannot express, as sentences.
    pub notes: BTreeSet<String>,
}

impl Choice {
    /// Combines two selections.
    pub fn and(mut self, other: Self) -> Self {
        self.names.extend(other.names);
        self.notes.extend(other.notes);
        self.selector = self.selector.or(other.selector);
        self
    }

    /// Whether nothing is chosen, now or later.
    pub fn is_empty(&self) -> bool {
        self.names.is_empty() && self.selector.is_none()
    }

    /// Returns the choice as the spec of a rule, without names that a glob covers.
    pub fn written(&self) -> Namespaces {
        let globs: Vec<_> = self
            .names
            .iter()
            .map(|name| Pattern::new(name.as_str()))
            .filter(|pattern| !pattern.is_literal())
            .collect();
        let is_covered = |name: &str| {
            let is_open = !is_closed_namespace(name) && name != SYSTEM_NAMESPACE;
            is_label(name) && is_open && globs.iter().any(|glob| glob.matches(name))
        };
        let names = self.names.iter().filter(|name| !is_covered(name));
        Namespaces {
            names: names.cloned().collect(),
            selector: self.selector.clone(),
            exclude: Vec::new(),
        }
    }

    /// The namespaces that a rule with this choice reaches now.
    pub fn reaches(&self, places: &NamespaceLabels) -> BTreeSet<String> {
        let choice = NamespaceChoice::from(&self.written());
        let is_open = |name: &str| !is_closed_namespace(name) && name != SYSTEM_NAMESPACE;
        let by_name = |name: &str| {
            choice
                .names
                .iter()
                .any(|one| one.matches(name) && (one.is_literal() || is_open(name)))
        };
        let by_label = |name: &str, labels: &BTreeMap<String, String>| {
            is_open(name)
                && choice
                    .selector
                    .as_ref()
                    .is_some_and(|selector| selector.matches(labels))
        };
        let chosen = places
            .iter()
            .filter(|(name, labels)| by_name(name) || by_label(name, labels));
        chosen.map(|(name, _)| name.clone()).collect()
    }

    /// Globs and selectors of a rule leave closed namespaces out: those that the copier reaches there are named.
    fn with_hidden(
        mut self,
        places: &NamespaceLabels,
        reached: impl Fn(&str, &BTreeMap<String, String>) -> bool,
    ) -> Self {
        for (name, labels) in places {
            if is_closed_namespace(name) && name != SYSTEM_NAMESPACE && reached(name, labels) {
                self.names.insert(name.clone());
            }
        }
        if !self.names.contains(SYSTEM_NAMESPACE)
            && places
                .get(SYSTEM_NAMESPACE)
                .is_some_and(|labels| reached(SYSTEM_NAMESPACE, labels))
        {
            self.notes.insert(format!(
                "namespace {SYSTEM_NAMESPACE} is Runnel's own: no rule copies there"
            ));
        }
        self
    }

    fn everything(places: &NamespaceLabels) -> Self {
        let names = BTreeSet::from(["*".to_owned()]);
        Self {
            names,
            ..Self::default()
        }
        .with_hidden(places, |_, _| true)
    }

    fn of(names: BTreeSet<String>, note: String) -> Self {
        Self {
            names,
            selector: None,
            notes: BTreeSet::from([note]),
        }
    }
}

/// Names and selector of namespaces in a copier's syntax; a namespace matches either.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NamespaceExpression<'a> {
    /// Regular expressions, which match whole names, with commas between them.
    pub list: &'a str,
    /// A label selector in kubectl's syntax.
    pub selector: &'a str,
}

impl NamespaceExpression<'_> {
    /// Whether it is empty.
    pub fn is_empty(&self) -> bool {
        self.list.trim().is_empty() && self.selector.trim().is_empty()
    }

    /// Whether the selection includes a namespace; an empty selection includes every one.
    pub fn includes(&self, name: &str, labels: &BTreeMap<String, String>) -> bool {
        let by_label = || {
            LabelSelector::parse(self.selector)
                .ok()
                .flatten()
                .is_some_and(|one| matches(&one, labels))
        };
        self.is_empty()
            || expressions(self.list)
                .0
                .iter()
                .any(|one| one.is_match(name))
            || by_label()
    }
}

/// Converts a copier's selection to one of a rule; an empty one selects every namespace.
pub fn chosen(written: NamespaceExpression<'_>, places: &NamespaceLabels) -> Choice {
    if written.is_empty() {
        return Choice::everything(places);
    }
    let mut choice = named(written.list, places);
    match LabelSelector::parse(written.selector) {
        Ok(None) => {}
        Ok(Some(selector)) => {
            let hidden = selector.clone();
            choice.selector = Some(selector);
            choice = choice.with_hidden(places, |_, labels| matches(&hidden, labels));
        }
        Err(why) => {
            choice.notes.insert(format!(
                "selector `{}` {why}: nothing is chosen by it",
                written.selector
            ));
        }
    }
    choice
}

/// Namespaces that two conditions allow.
pub fn chosen_by_both(
    allowed: NamespaceExpression<'_>,
    asked: NamespaceExpression<'_>,
    places: &NamespaceLabels,
) -> Choice {
    if allowed.is_empty() || allowed == asked {
        return chosen(asked, places);
    }
    if asked.is_empty() {
        return chosen(allowed, places);
    }
    let plain = BTreeMap::new();
    let asked_names: Vec<&str> = entries(asked.list).collect();
    if asked.selector.trim().is_empty() && asked_names.iter().all(|one| is_label(one)) {
        let labels = |name: &str| places.get(name).unwrap_or(&plain).clone();
        let names = asked_names
            .into_iter()
            .filter(|name| allowed.includes(name, &labels(name)));
        return Choice {
            names: names.map(str::to_owned).collect(),
            ..Choice::default()
        };
    }
    let both = places
        .iter()
        .filter(|(name, labels)| allowed.includes(name, labels) && asked.includes(name, labels));
    let names: BTreeSet<String> = both
        .map(|(name, _)| name.clone())
        .filter(|name| name != SYSTEM_NAMESPACE)
        .collect();
    let note = format!(
        "the allowed namespaces ({}) and the requested ones ({}) are two conditions, a rule has one: the namespaces of now \
         that meet both are named, later ones are not",
        expression_text(allowed),
        expression_text(asked)
    );
    Choice::of(names, note)
}

fn expression_text(written: NamespaceExpression<'_>) -> String {
    [written.list, written.selector]
        .into_iter()
        .filter(|text| !text.trim().is_empty())
        .collect::<Vec<_>>()
        .join(" or ")
}

fn entries(list: &str) -> impl Iterator<Item = &str> {
    list.split(',')
        .map(str::trim)
        .filter(|entry| !entry.is_empty())
}

/// The expressions of a list, and those that are none.
fn expressions(list: &str) -> (Vec<Regex>, Vec<&str>) {
    let (mut good, mut bad) = (Vec::new(), Vec::new());
    for entry in entries(list) {
        match Regex::new(&format!("^(?:{entry})$")) {
            Ok(expression) => good.push(expression),
            Err(_) => bad.push(entry),
        }
    }
    (good, bad)
}

fn named(list: &str, places: &NamespaceLabels) -> Choice {
    let mut choice = Choice::default();
    for entry in entries(list) {
        let Ok(expression) = Regex::new(&format!("^(?:{entry})$")) else {
            choice.notes.insert(format!(
                "`{entry}` is no regular expression: nothing is chosen by it"
            ));
            continue;
        };
        let one = match glob(entry) {
            Some(glob) if is_label(&glob) => Choice {
                names: BTreeSet::from([glob]),
                ..Choice::default()
            },
            Some(glob) => Choice {
                names: BTreeSet::from([glob]),
                ..Choice::default()
            }
            .with_hidden(places, |name, _| expression.is_match(name)),
            None => {
                let matching = places
                    .keys()
                    .filter(|name| expression.is_match(name) && *name != SYSTEM_NAMESPACE);
                let note = format!(
                    "`{entry}` cannot be written as a glob: the namespaces of now that it matches are named, later ones \
                     are not; a label on them and a selector would follow"
                );
                Choice::of(matching.cloned().collect(), note)
            }
        };
        choice = choice.and(one);
    }
    choice
}

/// The glob that matches the same names of namespaces as this expression does; `None` if there is none.
fn glob(expression: &str) -> Option<String> {
    let inner = expression.strip_prefix('^').unwrap_or(expression);
    let inner = inner.strip_suffix('$').unwrap_or(inner);
    let mut rest = inner.chars().peekable();
    let mut glob = String::new();
    while let Some(next) = rest.next() {
        match next {
            'a'..='z' | '0'..='9' | '-' => glob.push(next),
            '.' => match rest.next() {
                Some('*') => glob.push('*'),
                // No name is empty, and none ends with a hyphen: something follows in any case.
                Some('+') if rest.peek().is_none() && (glob.is_empty() || glob.ends_with('-')) => {
                    glob.push('*')
                }
                _ => return None,
            },
            _ => return None,
        }
        // The quantifier applies to the last character, so it is not literal.
        if rest.peek().is_some_and(|next| "*+?{".contains(*next)) {
            return None;
        }
    }
    (!glob.is_empty()).then_some(glob)
}

fn matches(selector: &LabelSelector, labels: &BTreeMap<String, String>) -> bool {
    runnel_proto::model::Selector::from(selector).matches(labels)
}

/// Whether a name matches one of the globs; `kube-*` namespaces only match literally.
pub fn matches_any(globs: &[String], name: &str) -> bool {
    globs
        .iter()
        .any(|glob| Pattern::new(glob.as_str()).matches(name))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_that_a_glob_covers_are_not_written() {
        let names = ["app-*", "app-1", "kube-system", "*-system", "web"];
        let choice = Choice {
            names: names.map(str::to_owned).into(),
            ..Choice::default()
        };
        // A glob leaves closed namespaces out, so they are named.
        assert_eq!(
            choice.written().names,
            ["*-system", "app-*", "kube-system", "web"]
        );
    }
}
