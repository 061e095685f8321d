//! Texts with variables: `${cluster.name}`, `${cluster.labels.KEY}`, `${cluster.labels.KEY:-default}`,
//! `${source.namespace}` and `${source.name}`. `$${` stands for `${`; any other `$` for itself.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, SourceRef};

/// The values of variables.
#[derive(Clone, Copy)]
pub struct About<'a> {
    /// The source.
    pub source: &'a SourceRef,
    /// The cluster.
    pub cluster: &'a ClusterName,
    /// The labels of the cluster.
    pub labels: &'a BTreeMap<String, String>,
}

/// Why a text cannot be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Unfilled<'t> {
    /// A `${` without `}`.
    Open,
    /// No variable is called so.
    Unknown(&'t str),
    /// The cluster does not have the label, and the text has no default.
    NoLabel(&'t str),
    /// With its variables filled it is longer than any object may be.
    TooLong,
}

impl Unfilled<'_> {
    /// Returns the message. `quote`: the text may be quoted.
    pub fn describe(&self, quote: bool) -> String {
        match self {
            Unfilled::Open => "it has a ${ without a }; write $${ for the characters themselves".to_owned(),
            Unfilled::Unknown(name) if quote => format!(
                "${{{name}}} is unknown; there are cluster.name, cluster.labels.KEY, source.namespace and source.name, \
                 and $${{ stands for the characters themselves"
            ),
            Unfilled::Unknown(_) => "it has an unknown variable; there are cluster.name, cluster.labels.KEY, \
                 source.namespace and source.name, and $${ stands for the characters themselves"
                .to_owned(),
            Unfilled::NoLabel(key) if quote => {
                format!("the cluster has no label {key}; add it, or write ${{cluster.labels.{key}:-default}}")
            }
            Unfilled::TooLong => {
                "with its variables filled it is longer than an object may be; use fewer variables, or shorter texts"
                    .to_owned()
            }
            Unfilled::NoLabel(_) => {
                "the cluster lacks a label that it names; add it, or give a default by :-".to_owned()
            }
        }
    }
}

enum Piece<'t> {
    Text(&'t str),
    Variable(&'t str),
}

/// The text with its variables filled.
///
/// # Errors
/// [`Unfilled`], and never an empty string instead. Nothing is filled beyond `limit` bytes.
pub fn fill<'t>(text: &'t str, about: About<'_>, limit: usize) -> Result<String, Unfilled<'t>> {
    let mut filled = String::with_capacity(text.len().min(limit));
    each_piece(text, |piece| {
        let piece = match piece {
            Piece::Text(text) => text,
            Piece::Variable(variable) => value(variable, about)?,
        };
        if piece.len() > limit - filled.len() {
            return Err(Unfilled::TooLong);
        }
        filled.push_str(piece);
        Ok(())
    })?;
    Ok(filled)
}

/// The cluster properties that texts use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reads {
    name: bool,
    labels: BTreeSet<String>,
}

impl Reads {
    /// Records the properties that a text uses.
    pub fn note(&mut self, text: &str) {
        // An error in the text is the same in every cluster, up to there.
        let _ = each_piece(text, |piece| {
            if let Piece::Variable(variable) = piece {
                self.name |= variable == "cluster.name";
                let label = variable.strip_prefix("cluster.labels.");
                self.labels.extend(label.map(|label| {
                    label
                        .split_once(":-")
                        .map_or(label, |(key, _)| key)
                        .to_owned()
                }));
            }
            Ok(())
        });
    }

    /// Appends these properties of a cluster; different values give different texts.
    pub fn read(&self, about: About<'_>, into: &mut String) {
        let mut add = |value: Option<&str>| match value {
            Some(value) => {
                into.push_str(&value.len().to_string());
                into.push(':');
                into.push_str(value);
            }
            None => into.push('-'),
        };
        if self.name {
            add(Some(about.cluster.as_str()));
        }
        self.labels
            .iter()
            .for_each(|key| add(about.labels.get(key).map(String::as_str)));
    }
}

/// Whether the text may be another one for another cluster.
pub fn depends_on_cluster(text: &str) -> bool {
    let mut speaks = false;
    let parsed = each_piece(text, |piece| {
        speaks |= matches!(piece, Piece::Variable(variable) if variable.starts_with("cluster."));
        Ok(())
    });
    speaks && parsed.is_ok()
}

fn each_piece<'t>(
    text: &'t str,
    mut take: impl FnMut(Piece<'t>) -> Result<(), Unfilled<'t>>,
) -> Result<(), Unfilled<'t>> {
    let mut rest = text;
    while let Some(at) = rest.find("${") {
        let (before, from) = rest.split_at(at);
        if let Some(before) = before.strip_suffix('$') {
            take(Piece::Text(before))?;
            take(Piece::Text("${"))?;
            rest = &from[2..];
            continue;
        }
        take(Piece::Text(before))?;
        let (variable, after) = from[2..].split_once('}').ok_or(Unfilled::Open)?;
        take(Piece::Variable(variable))?;
        rest = after;
    }
    take(Piece::Text(rest))
}

fn value<'v, 't: 'v>(variable: &'t str, about: About<'v>) -> Result<&'v str, Unfilled<'t>> {
    Ok(match variable {
        "cluster.name" => about.cluster.as_str(),
        "source.namespace" => &about.source.namespace,
        "source.name" => &about.source.name,
        _ => {
            let label = variable
                .strip_prefix("cluster.labels.")
                .ok_or(Unfilled::Unknown(variable))?;
            let (key, default) = match label.split_once(":-") {
                Some((key, default)) => (key, Some(default)),
                None => (label, None),
            };
            if key.is_empty() {
                return Err(Unfilled::Unknown(variable));
            }
            about
                .labels
                .get(key)
                .map(String::as_str)
                .or(default)
                .ok_or(Unfilled::NoLabel(key))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with<T>(pairs: &[(&str, &str)], run: impl FnOnce(About<'_>) -> T) -> T {
        let labels = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let (source, cluster) = (
            SourceRef::new("configmaps", "team", "settings"),
            ClusterName::from("eu-1"),
        );
        run(About {
            source: &source,
            cluster: &cluster,
            labels: &labels,
        })
    }

    #[test]
    fn variables_are_filled_and_what_is_not_one_stays() {
        for (text, expected) in [
            ("${source.name}-${cluster.name}", "settings-eu-1"),
            ("${source.namespace}/x", "team/x"),
            (
                "region: ${cluster.labels.topology.kubernetes.io/region:-none}",
                "region: west",
            ),
            ("${cluster.labels.tier:-a:-b}", "a:-b"),
            ("${cluster.labels.tier:-}", ""),
            (
                "$${cluster.name} costs 5$ and $x {y}",
                "${cluster.name} costs 5$ and $x {y}",
            ),
            ("$$${cluster.name}", "$${cluster.name}"),
            ("", ""),
        ] {
            let filled = with(&[("topology.kubernetes.io/region", "west")], |about| {
                fill(text, about, 1 << 20).ok()
            });
            assert_eq!(filled.as_deref(), Some(expected), "{text}");
        }
    }

    #[test]
    fn what_cannot_be_filled_is_an_error_and_never_empty() {
        with(&[], |about| {
            assert_eq!(
                fill("a ${HOME} b", about, 1 << 20),
                Err(Unfilled::Unknown("HOME"))
            );
            assert_eq!(
                fill("${cluster.name:-x}", about, 1 << 20),
                Err(Unfilled::Unknown("cluster.name:-x"))
            );
            assert_eq!(
                fill("${cluster.labels.}", about, 1 << 20),
                Err(Unfilled::Unknown("cluster.labels."))
            );
            assert_eq!(
                fill("${cluster.labels.tier}", about, 1 << 20),
                Err(Unfilled::NoLabel("tier"))
            );
            assert_eq!(fill("${cluster.name", about, 1 << 20), Err(Unfilled::Open));
            assert!(
                !Unfilled::Unknown("s3cret")
                    .describe(false)
                    .contains("s3cret")
            );
            assert!(
                !Unfilled::NoLabel("s3cret")
                    .describe(false)
                    .contains("s3cret")
            );
        });
    }

    proptest! {
        #[test]
        fn a_text_without_variables_is_left_alone(text in "[^$]*") {
            prop_assert_eq!(with(&[], |about| fill(&text, about, 1 << 20).ok()), Some(text.clone()));
            prop_assert!(!depends_on_cluster(&text));
        }

        #[test]
        fn an_escaped_text_fills_to_itself(text in "([a-z {}:$-]|\\$\\{|\\$\\{cluster\\.name\\})*") {
            // A `$` right before an escape would be ambiguous.
            prop_assume!(!text.contains("$$"));
            let escaped = text.replace("${", "$${");
            prop_assert_eq!(with(&[], |about| fill(&escaped, about, 1 << 20).ok()), Some(text.clone()));
        }

        #[test]
        fn any_text_is_filled_or_refused_without_a_panic(text: String) {
            with(&[], |about| drop(fill(&text, about, 1 << 20).map_err(|error| error.describe(true))));
        }

        #[test]
        fn filled_text_is_the_text_around_and_the_values(before in "[a-z]*", between in "[a-z$ ]*[a-z ]", after in "[a-z]*") {
            let text = format!("{before}${{cluster.name}}{between}${{source.name}}{after}");
            let expected = format!("{before}eu-1{between}settings{after}");
            prop_assert_eq!(with(&[], |about| fill(&text, about, 1 << 20).ok()), Some(expected));
            prop_assert!(depends_on_cluster(&text));
        }
    }
}
