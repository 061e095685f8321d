//! Names and identities, and the alphabets of the strings of peers: the characters of names, and those that text for a
//! person keeps.
//!
//! A string of a peer ends in statuses, Events, logs and terminals. A name is checked and refused;
//! text for a person is cleaned and bounded.
use std::fmt;
use std::ops::Deref;
use std::sync::Arc;

macro_rules! text_name {
    ($(#[$doc:meta])* $name:ident) => {
        $(#[$doc])*
        #[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(Arc<str>);

        impl $name {
            /// The text.
            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl From<&str> for $name {
            fn from(text: &str) -> Self {
                Self(text.into())
            }
        }

        impl From<String> for $name {
            fn from(text: String) -> Self {
                Self(text.into())
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                out.write_str(&self.0)
            }
        }
    };
}

text_name! {
    /// The uid of a rule object on the hub: the identity of a rule. A rule re-created under its old name is another.
    RuleUid
}
text_name! {
    /// The name of a `MemberCluster`.
    ClusterName
}

/// The display name of a rule; its identity is the [`RuleUid`].
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RuleName {
    /// `DistributionRule` or `ClusterDistributionRule`.
    pub kind: String,
    /// Empty for cluster-scoped rules.
    pub namespace: String,
    /// The object's name.
    pub name: String,
}

impl RuleName {
    /// Whether the rule is cluster-scoped: such rules precede namespaced ones.
    pub fn is_cluster_scoped(&self) -> bool {
        self.namespace.is_empty()
    }
}

impl fmt::Display for RuleName {
    /// `namespace/name`, or `name` for a cluster-scoped rule.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_cluster_scoped() {
            out.write_str(&self.name)
        } else {
            write!(out, "{}/{}", self.namespace, self.name)
        }
    }
}

/// The resource name of namespaces.
pub const NAMESPACES: &str = "namespaces";
/// The resource name of CustomResourceDefinitions.
pub const CUSTOM_RESOURCE_DEFINITIONS: &str = "customresourcedefinitions.apiextensions.k8s.io";

/// The API group whose objects may have names with colons and upper-case letters.
const RBAC_GROUP: &str = "rbac.authorization.k8s.io";

/// The number of hexadecimal digits in the versioned name of a copy.
pub const VERSION_DIGITS: usize = 10;

/// An object by kind, place and name: a source on the hub, or a copy in a member. A place is a namespace, or the cluster for
/// kinds without namespaces.
/// A source with a copy name is distinct from the same source under any other copy name: a rename
/// removes one intent and adds another, each with its own tombstone. An intent's reference is
/// [`SourceRef::as_copy`] of its source; all other references are plain objects.
///
/// A handle: a clone shares the texts. References are the keys of nearly every table of hub and agent.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceRef(Arc<SourceParts>);

/// The parts of a [`SourceRef`].
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct SourceParts {
    /// `plural[.group]`; not necessarily a kind that this build supports.
    pub resource: Arc<str>,
    /// The namespace; empty for an object of a kind without namespaces.
    pub namespace: Arc<str>,
    /// The name.
    pub name: Arc<str>,
    /// The name of the copies, where it is another one; never equal to `name`.
    renamed: Option<Arc<str>>,
}

impl Deref for SourceRef {
    type Target = SourceParts;

    fn deref(&self) -> &SourceParts {
        &self.0
    }
}

impl fmt::Debug for SourceRef {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.0, out)
    }
}

impl SourceRef {
    /// Returns a reference from text that a user wrote; `None` if no object can have it. A peer refuses a whole frame with
    /// such a reference.
    pub fn checked(resource: &str, namespace: &str, name: &str) -> Option<Self> {
        let is_possible =
            is_subdomain(resource) && is_place(namespace) && is_object_name(resource, name);
        is_possible.then(|| Self::new(resource, namespace, name))
    }

    /// An object's reference.
    pub fn new(resource: &str, namespace: &str, name: &str) -> Self {
        Self(Arc::new(SourceParts {
            resource: resource.into(),
            namespace: namespace.into(),
            name: name.into(),
            renamed: None,
        }))
    }

    /// Returns the intent of this source whose copies have this name.
    pub fn as_copy(&self, name: &str) -> Self {
        if name == &*self.name {
            return self.plain();
        }
        Self(Arc::new(SourceParts {
            renamed: Some(name.into()),
            ..SourceParts::clone(self)
        }))
    }

    /// Returns the object itself, independent of the names of its copies.
    pub fn plain(&self) -> Self {
        if self.renamed.is_none() {
            return self.clone();
        }
        Self(Arc::new(SourceParts {
            renamed: None,
            ..SourceParts::clone(self)
        }))
    }

    /// The name of the copies.
    pub fn copy_name(&self) -> &Arc<str> {
        self.renamed.as_ref().unwrap_or(&self.name)
    }

    /// Whether the copies have another name than the source.
    pub fn is_renamed(&self) -> bool {
        self.renamed.is_some()
    }

    /// Whether copy names also contain a digest of the content: `NAME-DIGEST`, with
    /// [`VERSION_DIGITS`] digits. Applies only if the rule's terms keep versions.
    pub fn is_version(&self) -> bool {
        let digest = self
            .renamed
            .as_ref()
            .and_then(|name| name.rsplit_once('-'))
            .map(|(_, digest)| digest);
        let hex = |byte: u8| byte.is_ascii_digit() || (b'a'..=b'f').contains(&byte);
        digest.is_some_and(|digest| digest.len() == VERSION_DIGITS && digest.bytes().all(hex))
    }

    /// The copy of this intent in a namespace. The copy of a cluster-scoped object is in no namespace.
    pub fn copy_in(&self, namespace: &Arc<str>) -> Self {
        let place = if self.is_cluster_scoped() {
            &self.namespace
        } else {
            namespace
        };
        if self.renamed.is_none() && *place == self.namespace {
            return self.clone();
        }
        Self(Arc::new(SourceParts {
            resource: self.resource.clone(),
            namespace: place.clone(),
            name: self.copy_name().clone(),
            renamed: None,
        }))
    }

    /// Whether the object is of a kind without namespaces.
    pub fn is_cluster_scoped(&self) -> bool {
        self.namespace.is_empty()
    }

    /// The namespace; `None` for a cluster-scoped object.
    pub fn optional_namespace(&self) -> Option<&str> {
        Some(&*self.namespace).filter(|namespace| !namespace.is_empty())
    }

    /// Returns the name of the namespace that the object itself is; `None` for an object of another kind.
    pub fn as_namespace(&self) -> Option<&Arc<str>> {
        (self.is_cluster_scoped() && &*self.resource == NAMESPACES).then_some(&self.name)
    }

    /// Returns the kind, `plural.group`, of which the object is the CustomResourceDefinition; `None` for an object of another
    /// kind.
    pub fn as_definition(&self) -> Option<&Arc<str>> {
        let is_definition =
            self.is_cluster_scoped() && &*self.resource == CUSTOM_RESOURCE_DEFINITIONS;
        is_definition.then_some(&self.name)
    }

    /// Reads what [`fmt::Display`] wrote of a plain object; `None` for any other text.
    pub fn parse(text: &str) -> Option<Self> {
        let parts: Vec<&str> = text.split('/').collect();
        let (resource, namespace, name) = match *parts.as_slice() {
            [resource, name] => (resource, None, name),
            [resource, namespace, name] => (resource, Some(namespace), name),
            _ => return None,
        };
        let is_whole = !resource.is_empty() && !name.is_empty() && namespace != Some("");
        is_whole.then(|| Self::new(resource, namespace.unwrap_or_default(), name))
    }
}

impl fmt::Display for SourceRef {
    /// `resource/namespace/name`, or `resource/name` for a cluster-scoped object, and ` as copy-name` where that is another
    /// name.
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.optional_namespace() {
            Some(namespace) => write!(out, "{}/{namespace}/{}", self.resource, self.name)?,
            None => write!(out, "{}/{}", self.resource, self.name)?,
        }
        self.renamed
            .as_ref()
            .map_or(Ok(()), |name| write!(out, " as {name}"))
    }
}

/// Returns text as one line: at most `limit` bytes, without characters that end a line, control a
/// terminal, change the writing direction or are invisible.
pub fn plain_text(text: &str, limit: usize) -> String {
    let mut plain = String::with_capacity(text.len().min(limit));
    for c in text.chars().filter_map(plain_char) {
        if plain.len() + c.len_utf8() > limit {
            break;
        }
        plain.push(c);
    }
    plain
}

/// Returns text as several lines: as [`plain_text`], but with line feeds and without a limit.
pub fn plain_lines(text: &str) -> String {
    text.chars()
        .filter_map(|c| if c == '\n' { Some(c) } else { plain_char(c) })
        .collect()
}

/// Returns the start of a text, at most `limit` bytes, cut between characters.
pub fn clip(text: &str, limit: usize) -> &str {
    let end = (0..=limit.min(text.len()))
        .rev()
        .find(|end| text.is_char_boundary(*end));
    &text[..end.unwrap_or_default()]
}

/// Whether text is as [`plain_text`] leaves it, but for its length.
pub fn is_plain_text(text: &str) -> bool {
    text.chars().all(|c| plain_char(c) == Some(c))
}

/// Replaces one character: separators by a space, invisible ones by nothing.
fn plain_char(c: char) -> Option<char> {
    match c {
        c if c.is_control() => Some(' '),
        '\u{2028}' | '\u{2029}' => Some(' '),
        c if is_unseen(c) => None,
        c => Some(c),
    }
}

/// Characters without a shape of their own: format characters (directions, joiners, tags), variation selectors, fillers.
fn is_unseen(c: char) -> bool {
    matches!(c,
        '\u{ad}' | '\u{34f}' | '\u{600}'..='\u{605}' | '\u{61c}' | '\u{6dd}' | '\u{70f}' | '\u{890}'..='\u{891}'
        | '\u{8e2}' | '\u{115f}'..='\u{1160}' | '\u{17b4}'..='\u{17b5}' | '\u{180b}'..='\u{180f}'
        | '\u{200b}'..='\u{200f}' | '\u{202a}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{3164}'
        | '\u{fe00}'..='\u{fe0f}' | '\u{feff}' | '\u{ffa0}' | '\u{fff0}'..='\u{fffb}' | '\u{110bd}' | '\u{110cd}'
        | '\u{13430}'..='\u{1343f}' | '\u{1bca0}'..='\u{1bca3}' | '\u{1d173}'..='\u{1d17a}'
        | '\u{e0000}'..='\u{e0fff}')
}

/// Whether this can be the key of a label or annotation: a name, after a DNS subdomain and `/` if there is one.
pub fn is_label_key(text: &str) -> bool {
    match text.split_once('/') {
        Some((prefix, name)) => is_subdomain(prefix) && is_name_part(name),
        None => is_name_part(text),
    }
}

/// Whether this can be the value of a label; an empty one can.
pub fn is_label_value(text: &str) -> bool {
    text.is_empty() || is_name_part(text)
}

/// Up to 63 letters, digits, `-`, `_` and `.`, with a letter or digit at both ends.
fn is_name_part(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let legal = |c: char| edge(c) || matches!(c, '-' | '_' | '.');
    text.len() <= 63 && text.starts_with(edge) && text.ends_with(edge) && text.chars().all(legal)
}

/// Whether this is a DNS label of RFC 1123: the name of a namespace, at most 63 characters.
pub fn is_label(text: &str) -> bool {
    text.len() <= 63 && is_domain_part(text)
}

/// Whether this is the place of an object: the name of a namespace, or nothing for the cluster.
pub fn is_place(text: &str) -> bool {
    text.is_empty() || is_label(text)
}

/// Whether this is the name of a namespace, or a glob in which `*` stands for any part of such names.
pub fn is_namespace_pattern(text: &str) -> bool {
    let plain =
        |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || b"-*".contains(&byte);
    let is_glob = || text.contains('*') && text.len() <= 63 && text.bytes().all(plain);
    is_label(text) || is_glob()
}

/// Whether this is a DNS subdomain of RFC 1123: the name of an object, or `plural[.group]`, at most
/// 253 characters. Labels of more than 63 characters are accepted, as by the API server. A valid
/// name is safe in a request's path.
pub fn is_subdomain(text: &str) -> bool {
    text.len() <= 253 && text.split('.').all(is_domain_part)
}

/// Splits the name of a kind, `plural[.group]`, into its plural and its API group. That of the core group is empty.
pub fn split_resource(resource: &str) -> (&str, &str) {
    resource.split_once('.').unwrap_or((resource, ""))
}

/// Whether this can be the name of an object of a kind, `plural[.group]`. Roles and their bindings may also have colons and
/// upper-case letters, as in `system:nodes`. Such a name is safe in a request's path, too.
pub fn is_object_name(resource: &str, text: &str) -> bool {
    let is_rbac = split_resource(resource).1 == RBAC_GROUP;
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || b"-.:_".contains(&byte);
    let is_segment =
        || text.len() <= 253 && text.bytes().any(|byte| byte != b'.') && text.bytes().all(inner);
    is_subdomain(text) || (is_rbac && is_segment())
}

/// Lower-case letters, digits and dashes, with no dash at either end.
fn is_domain_part(text: &str) -> bool {
    let edge = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit();
    let ends = text.bytes().next().is_some_and(edge) && text.bytes().next_back().is_some_and(edge);
    ends && text.bytes().all(|byte| edge(byte) || byte == b'-')
}

/// Whether this is one word of visible ASCII characters: a uid, a digest, a pattern, a label's key.
pub fn is_plain_token(text: &str) -> bool {
    !text.is_empty() && text.bytes().all(|byte| byte.is_ascii_graphic())
}

/// Whether this can be the uid of an object: a word without shell metacharacters.
pub fn is_uid(text: &str) -> bool {
    let inner = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    (1..=253).contains(&text.len()) && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn text_is_cut_between_characters() {
        assert_eq!(clip("aöb", 2), "a");
        assert_eq!((clip("aöb", 3), clip("aöb", 9)), ("aö", "aöb"));
    }

    #[test]
    fn a_source_reference_reads_back_what_it_wrote() {
        let source = SourceRef::new("configmaps", "team-a", "settings");
        assert_eq!(SourceRef::parse(&source.to_string()), Some(source));
        let source = SourceRef::new("configmaps", "team-a", "settings");
        assert_eq!(source.as_copy("settings"), source);
        let renamed = source.as_copy("settings-eu");
        assert_ne!(renamed, source);
        assert_eq!(
            (renamed.plain(), &**renamed.copy_name()),
            (source.clone(), "settings-eu")
        );
        assert_eq!(
            renamed.copy_in(&"b".into()),
            SourceRef::new("configmaps", "b", "settings-eu")
        );
        assert_eq!(renamed.as_copy("settings"), source);
        for bad in ["", "a", "/b", "a/", "a/b/c/d", "a//c", "/b/c", "a/b/"] {
            assert_eq!(SourceRef::parse(bad), None, "{bad:?}");
        }
    }

    #[test]
    fn cluster_scoped_object_has_one_place() {
        let role = SourceRef::new("clusterroles.rbac.authorization.k8s.io", "", "viewer");
        assert_eq!(
            role.to_string(),
            "clusterroles.rbac.authorization.k8s.io/viewer"
        );
        assert_eq!(SourceRef::parse(&role.to_string()), Some(role.clone()));
        assert!(role.is_cluster_scoped() && role.optional_namespace().is_none());
        assert_eq!(role.copy_in(&"team-a".into()), role);
        assert_eq!(
            role.as_copy("reader").copy_in(&"team-a".into()),
            SourceRef::new(&role.resource, "", "reader")
        );
        assert_eq!(
            SourceRef::checked("namespaces", "", "a")
                .unwrap()
                .as_namespace(),
            Some(&"a".into())
        );
        assert_eq!(role.as_namespace(), None);
        let crd = SourceRef::new(CUSTOM_RESOURCE_DEFINITIONS, "", "widgets.example.org");
        assert_eq!(crd.as_definition(), Some(&crd.name));
        assert_eq!(role.as_definition(), None);
        assert_eq!(SourceRef::checked("namespaces", "A", "a"), None);
    }

    #[test]
    fn text_that_steers_a_terminal_is_cleaned() {
        assert_eq!(
            plain_text("a\u{1b}]52;c;eA==\u{7}b\r\n\u{9b}31m", 99),
            "a ]52;c;eA== b    31m".replace("    ", "   ")
        );
        assert_eq!(
            plain_text("pay \u{202e}evil\u{2066}\u{200b}\u{feff} now\u{e0041}", 99),
            "pay evil now"
        );
        assert_eq!(plain_text("zwölf\u{2028}Wörter", 8), "zwölf W");
        assert_eq!(plain_lines("a\u{1b}\nb\u{200d}"), "a \nb");
        assert!(
            is_plain_text("größer, 大きい ✓")
                && !is_plain_text("a\tb")
                && !is_plain_text("a\u{ad}b")
        );
    }

    #[test]
    fn names_that_kubernetes_refuses_are_refused() {
        for good in [
            "a",
            "eu-3",
            "a.b-c.d",
            "0",
            "configmaps",
            "widgets.example.com",
        ] {
            assert!(is_subdomain(good), "{good}");
        }
        for bad in [
            "",
            "-a",
            "a-",
            ".",
            "..",
            "a..b",
            ".a",
            "a.",
            "A",
            "ä",
            "a/b",
            "a:b",
            "a b",
            "a\u{0}",
            "a\u{1b}",
            "a%2f",
            "*",
            "a_b",
            "x). To fix run: curl evil|sh #",
        ] {
            assert!(!is_subdomain(bad) && !is_label(bad), "{bad}");
        }
        assert!(
            is_subdomain(&"a".repeat(253))
                && !is_subdomain(&"a".repeat(254))
                && !is_label(&"a".repeat(64))
        );
        assert!(is_uid("5b3c-42_a.b") && !is_uid("") && !is_uid("a;b") && !is_uid("a b"));
        assert!(
            is_plain_token("*-prod")
                && !is_plain_token("a b")
                && !is_plain_token("ä")
                && !is_plain_token("")
        );
    }

    #[test]
    fn roles_have_names_with_colons() {
        let roles = "clusterroles.rbac.authorization.k8s.io";
        for name in ["viewer", "system:nodes", "Team_A:reader.v1"] {
            assert!(is_object_name(roles, name), "{name}");
            assert_eq!(is_object_name("configmaps", name), is_subdomain(name));
        }
        for bad in ["", ".", "..", "a/b", "a%2f", "a b", "a?b", "ä", "a\n"] {
            assert!(!is_object_name(roles, bad), "{bad:?}");
        }
        assert!(!is_object_name(roles, &"a:".repeat(127)));
    }

    #[test]
    fn label_keys_and_values_follow_kubernetes() {
        let longest = format!("{}/{}", ["a"; 127].join("."), "k".repeat(63));
        for key in ["a", "A_b.c-9", "example.com/tier", longest.as_str()] {
            assert!(is_label_key(key), "{key}");
        }
        let long = "k".repeat(64);
        for key in [
            "",
            "/a",
            "a/",
            "a/b/c",
            "A.com/a",
            "-a",
            "a-",
            "a b",
            "ä",
            long.as_str(),
        ] {
            assert!(!is_label_key(key), "{key}");
        }
        for value in ["", "a", "A_b.c-9"] {
            assert!(is_label_value(value), "{value}");
        }
        for value in ["-a", "a-", "a/b", "a b", "a\n", long.as_str()] {
            assert!(!is_label_value(value), "{value}");
        }
    }

    #[test]
    fn namespace_patterns_are_names_and_globs() {
        let longest = "*".repeat(63);
        for pattern in [
            "a",
            "team-a",
            "*",
            "team-*",
            "*-prod",
            "-*",
            longest.as_str(),
        ] {
            assert!(is_namespace_pattern(pattern), "{pattern}");
        }
        let long = "*".repeat(64);
        for pattern in ["", "a-", "A*", "a.b", "a?", "[a]*", "a *", long.as_str()] {
            assert!(!is_namespace_pattern(pattern), "{pattern}");
        }
    }

    /// Returns valid names of Kubernetes objects.
    fn legal() -> impl Strategy<Value = String> {
        proptest::collection::vec("[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", 1..5)
            .prop_map(|parts| parts.join("."))
    }

    /// Returns valid names with up to two characters that are special in a path or in a log.
    fn damaged() -> impl Strategy<Value = String> {
        let spoiled = proptest::collection::vec(
            (
                "[/%?#\\\\.:~ \0\n\u{202e}A_-]",
                any::<prop::sample::Index>(),
            ),
            0..3,
        );
        (legal(), spoiled).prop_map(|(mut name, spoiled)| {
            for (text, at) in spoiled {
                let places: Vec<usize> = name.char_indices().map(|(place, _)| place).collect();
                name.insert_str(*at.get(&places), &text);
            }
            name
        })
    }

    proptest! {
        #[test]
        fn legal_names_are_taken(name in legal()) {
            prop_assert!(is_subdomain(&name), "{name}");
            prop_assert_eq!(is_label(&name), !name.contains('.'));
        }

        #[test]
        fn no_name_can_leave_its_place_in_a_path(name in prop_oneof![6 => damaged(), 1 => ".{0,40}"]) {
            if is_subdomain(&name) || is_label(&name) {
                let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
                prop_assert!(name.split('.').all(plain), "{name:?}");
            }
        }

        #[test]
        fn plain_text_is_plain_and_within_its_limit(text: String, limit in 0usize..99) {
            let plain = plain_text(&text, limit);
            prop_assert!(plain.len() <= limit && is_plain_text(&plain));
            prop_assert_eq!(plain_text(&plain, limit), plain);
        }
    }
}
