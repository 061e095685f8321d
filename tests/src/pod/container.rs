//! Arguments, environment and mount paths of a container, as a kubelet computes them.

use std::collections::BTreeMap;
use std::path::PathBuf;

/// The source of an environment variable's value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Value {
    /// Written in the Deployment; references in it are replaced.
    Written(String),
    /// A value from another object, used verbatim.
    Found(String),
}

/// Replaces `$(NAME)` by the values of `known`. Unknown names stay as they are, and `$$(NAME)` is
/// `$(NAME)`.
pub(super) fn expand(text: &str, known: &BTreeMap<String, String>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(at) = rest.find('$') {
        result.push_str(&rest[..at]);
        rest = &rest[at..];
        if let Some(after) = rest.strip_prefix("$$") {
            result.push('$');
            rest = after;
            continue;
        }
        let name = rest
            .strip_prefix("$(")
            .and_then(|after| after.split_once(')'));
        match name {
            Some((name, after)) => {
                match known.get(name) {
                    Some(value) => result.push_str(value),
                    None => result.push_str(&rest[..rest.len() - after.len()]),
                }
                rest = after;
            }
            None => {
                result.push('$');
                rest = &rest[1..];
            }
        }
    }
    result.push_str(rest);
    result
}

/// The environment in its order, with each reference to an earlier variable replaced. `given` is what the kubelet sets
/// by itself.
pub(super) fn environment(
    given: &[(String, String)],
    declared: Vec<(String, Value)>,
) -> BTreeMap<String, String> {
    let mut known: BTreeMap<String, String> = given.iter().cloned().collect();
    for (name, value) in declared {
        let value = match value {
            Value::Written(text) => expand(&text, &known),
            Value::Found(text) => text,
        };
        known.insert(name, value);
    }
    known
}

/// The local folders of the container's folders.
#[derive(Clone, Debug, Default)]
pub(super) struct ContainerFolders(Vec<(String, PathBuf)>);

impl ContainerFolders {
    /// Longer paths count before those in which they lie.
    pub fn new(mut places: Vec<(String, PathBuf)>) -> Self {
        places.sort_by_key(|(path, _)| std::cmp::Reverse(path.len()));
        Self(places)
    }

    /// The text with every path below a mount replaced by the one here.
    pub fn here(&self, text: &str) -> String {
        let mut result = String::with_capacity(text.len());
        let mut rest = text;
        while !rest.is_empty() {
            let found = self.0.iter().find(|(path, _)| begins(&result, rest, path));
            let taken = match found {
                Some((path, here)) => {
                    result.push_str(&here.to_string_lossy());
                    path.len()
                }
                None => {
                    let next = rest.chars().next().map_or(1, char::len_utf8);
                    result.push_str(&rest[..next]);
                    next
                }
            };
            rest = &rest[taken..];
        }
        result
    }
}

fn begins(before: &str, rest: &str, path: &str) -> bool {
    let of_a_path = |character: char| character.is_alphanumeric() || "/._-".contains(character);
    let within = before.chars().next_back().is_some_and(of_a_path);
    let Some(after) = rest.strip_prefix(path).filter(|_| !within) else {
        return false;
    };
    after.starts_with('/') || !after.chars().next().is_some_and(of_a_path)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn known(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
        pairs
            .iter()
            .map(|(name, value)| ((*name).to_owned(), (*value).to_owned()))
            .collect()
    }

    // The cases of Kubernetes' own test of this.
    #[test]
    fn references_are_replaced_as_kubernetes_does() {
        let known = known(&[
            ("VAR_A", "A"),
            ("VAR_B", "B"),
            ("VAR_REF", "$(VAR_A)"),
            ("VAR_EMPTY", ""),
        ]);
        let cases = [
            ("$(VAR_A)", "A"),
            ("___$(VAR_B)___", "___B___"),
            ("$(VAR_REF)", "$(VAR_A)"),
            ("$(VAR_A)$(VAR_B)$(VAR_EMPTY)", "AB"),
            ("$$(VAR_A)", "$(VAR_A)"),
            ("$$$(VAR_A)", "$A"),
            ("$(VAR_DNE)", "$(VAR_DNE)"),
            ("$VAR_A", "$VAR_A"),
            ("$(VAR_A", "$(VAR_A"),
            ("f000-$(VAR_A)-\u{e9}$", "f000-A-\u{e9}$"),
            ("$$", "$"),
            ("$(", "$("),
            ("", ""),
        ];
        for (text, expected) in cases {
            assert_eq!(expand(text, &known), expected, "{text}");
        }
    }

    #[test]
    fn a_variable_may_refer_to_earlier_ones_only() {
        let written = |text: &str| Value::Written(text.to_owned());
        let declared = vec![
            ("LATE".to_owned(), written("$(IP):1")),
            ("IP".to_owned(), Value::Found("$(HOST)".to_owned())),
            ("ADDRESS".to_owned(), written("$(IP):1 at $(HOST)")),
        ];
        let result = environment(&[("HOST".to_owned(), "node".to_owned())], declared);
        assert_eq!(result["LATE"], "$(IP):1");
        assert_eq!(result["ADDRESS"], "$(HOST):1 at node");
    }

    #[test]
    fn paths_of_mounts_are_found_as_whole_paths() {
        let places = [
            ("/etc/runnel", "/x"),
            ("/etc/runnel/policy", "/y"),
            ("/tmp", "/z"),
        ];
        let places = ContainerFolders::new(
            places
                .map(|(path, here)| (path.to_owned(), PathBuf::from(here)))
                .into(),
        );
        for (text, expected) in [
            (
                "--policy-file=/etc/runnel/policy/policy.yaml",
                "--policy-file=/y/policy.yaml",
            ),
            ("/etc/runnel/join/join-string", "/x/join/join-string"),
            ("/etc/runnel", "/x"),
            (
                "/etc/runnels/a /opt/tmp /tmpfs",
                "/etc/runnels/a /opt/tmp /tmpfs",
            ),
            ("a=/tmp,b=/tmp:/tmp/c", "a=/z,b=/z:/z/c"),
            ("--name=\u{e9}", "--name=\u{e9}"),
        ] {
            assert_eq!(places.here(text), expected);
        }
    }
}
