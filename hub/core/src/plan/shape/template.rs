//! Texts with variables: `${cluster.name}`, `${cluster.labels.KEY}`, `${cluster.labels.KEY:-default}`,
//! `${source.namespace}`, `${source.name}` and `${bundle.name}`. `$${` stands for `${`; any other `$` for itself.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::{ClusterName, SourceRef};

/// The values of variables.
#[derive(Clone, Copy)]
pub struct TemplateContext<'a> {
    /// The source.
    pub source: &'a SourceRef,
    /// The bundle with the manifest that the source is.
    pub bundle: Option<&'a SourceRef>,
    /// The cluster.
    pub cluster: &'a ClusterName,
    /// The labels of the cluster.
    pub labels: &'a BTreeMap<String, String>,
}

/// Why a text cannot be filled.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TemplateError<'t> {
    /// A `${` without `}`.
    Open,
    /// No variable is called so.
    Unknown(&'t str),
    /// The cluster does not have the label, and the text has no default.
    NoLabel(&'t str),
    /// The source is no manifest of a bundle.
    NoBundle,
    /// With its variables filled it is longer than any object may be.
    TooLong,
}

impl TemplateError<'_> {
    /// Returns the message. `quote`: the text may be quoted.
    pub fn describe(&self, quote: bool) -> String {
        match self {
            TemplateError::Open => "it has a ${ without a }; write $${ for the characters themselves".to_owned(),
            TemplateError::Unknown(name) if quote => format!(
                "${{{name}}} is unknown; there are cluster.name, cluster.labels.KEY, source.namespace, source.name \
                 and bundle.name, and $${{ stands for the characters themselves"
            ),
            TemplateError::Unknown(_) => "it has an unknown variable; there are cluster.name, cluster.labels.KEY, \
                 source.namespace, source.name and bundle.name, and $${ stands for the characters themselves"
                .to_owned(),
            TemplateError::NoLabel(key) if quote => {
                format!("the cluster has no label {key}; add it, or write ${{cluster.labels.{key}:-default}}")
            }
            TemplateError::NoBundle => {
                "${bundle.name} is set only for a manifest of a ManifestBundle; write ${source.name}".to_owned()
            }
            TemplateError::TooLong => {
                "with its variables filled it is longer than an object may be; use fewer variables, or shorter texts"
                    .to_owned()
            }
            TemplateError::NoLabel(_) => {
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
/// [`TemplateError`], and never an empty string instead. Nothing is filled beyond `limit` bytes.
pub fn fill<'t>(
    text: &'t str,
    about: TemplateContext<'_>,
    limit: usize,
) -> Result<String, TemplateError<'t>> {
    let mut filled = String::with_capacity(text.len().min(limit));
    each_piece(text, |piece| {
        let piece = match piece {
            Piece::Text(text) => text,
            Piece::Variable(variable) => value(variable, about)?,
        };
        if piece.len() > limit - filled.len() {
            return Err(TemplateError::TooLong);
        }
        filled.push_str(piece);
        Ok(())
    })?;
    Ok(filled)
}

/// The cluster properties that texts use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TemplateInputs {
    name: bool,
    labels: BTreeSet<String>,
}

impl TemplateInputs {
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
    pub fn read(&self, about: TemplateContext<'_>, into: &mut String) {
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
    mut take: impl FnMut(Piece<'t>) -> Result<(), TemplateError<'t>>,
) -> Result<(), TemplateError<'t>> {
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
        let (variable, after) = from[2..].split_once('}').ok_or(TemplateError::Open)?;
        take(Piece::Variable(variable))?;
        rest = after;
    }
    take(Piece::Text(rest))
}

fn value<'v, 't: 'v>(
    variable: &'t str,
    about: TemplateContext<'v>,
) -> Result<&'v str, TemplateError<'t>> {
    Ok(match variable {
        "cluster.name" => about.cluster.as_str(),
        "source.namespace" => &about.source.namespace,
        "source.name" => &about.source.name,
        "bundle.name" => &about.bundle.ok_or(TemplateError::NoBundle)?.name,
        _ => {
            let label = variable
                .strip_prefix("cluster.labels.")
                .ok_or(TemplateError::Unknown(variable))?;
            let (key, default) = match label.split_once(":-") {
                Some((key, default)) => (key, Some(default)),
                None => (label, None),
            };
            if key.is_empty() {
                return Err(TemplateError::Unknown(variable));
            }
            about
                .labels
                .get(key)
                .map(String::as_str)
                .or(default)
                .ok_or(TemplateError::NoLabel(key))?
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn with<T>(pairs: &[(&str, &str)], run: impl FnOnce(TemplateContext<'_>) -> T) -> T {
        let labels = pairs
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let (source, cluster) = (
            SourceRef::new("configmaps", "team", "settings"),
            ClusterName::from("eu-1"),
        );
        run(TemplateContext {
            source: &source,
            bundle: None,
            cluster: &cluster,
            labels: &labels,
        })
    }

    #[test]
    fn only_variables_are_replaced() {
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
    fn unfilled_variable_is_an_error() {
        with(&[], |about| {
            assert_eq!(
                fill("a ${HOME} b", about, 1 << 20),
                Err(TemplateError::Unknown("HOME"))
            );
            assert_eq!(
                fill("${cluster.name:-x}", about, 1 << 20),
                Err(TemplateError::Unknown("cluster.name:-x"))
            );
            assert_eq!(
                fill("${cluster.labels.}", about, 1 << 20),
                Err(TemplateError::Unknown("cluster.labels."))
            );
            assert_eq!(
                fill("${cluster.labels.tier}", about, 1 << 20),
                Err(TemplateError::NoLabel("tier"))
            );
            assert_eq!(
                fill("${cluster.name", about, 1 << 20),
                Err(TemplateError::Open)
            );
            assert!(
                !TemplateError::Unknown("s3cret")
                    .describe(false)
                    .contains("s3cret")
            );
            assert!(
                !TemplateError::NoLabel("s3cret")
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
