//! Names as Kubernetes takes them. What comes from the hub becomes part of a request's path, so nothing else does.

/// The longest label of a domain name, and so the longest namespace.
const LABEL: usize = 63;
/// The longest domain name, and so the longest name of an object.
const SUBDOMAIN: usize = 253;

/// Whether a namespace can be called so.
pub fn is_namespace(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
    let ends = !name.starts_with('-') && !name.ends_with('-');
    (1..=LABEL).contains(&name.len()) && ends && name.bytes().all(plain)
}

/// Whether an object of the kinds that are distributed can be called so.
pub fn is_object(name: &str) -> bool {
    let part = |part: &str| {
        let plain = |byte: u8| byte.is_ascii_lowercase() || byte.is_ascii_digit() || byte == b'-';
        !part.is_empty() && !part.starts_with('-') && !part.ends_with('-') && part.bytes().all(plain)
    };
    name.len() <= SUBDOMAIN && name.split('.').all(part)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_what_kubernetes_takes_is_a_name() {
        for name in ["a", "team-a", "0", "kube-system"] {
            assert!(is_namespace(name) && is_object(name), "{name}");
        }
        assert!(is_object("ca.crt") && !is_namespace("ca.crt"));
        assert!(is_object(&"a".repeat(253)) && !is_namespace(&"a".repeat(64)));
        for name in ["", "-a", "a-", "A", "..", ".", "a..b", "a/b", "a:b", "a b", "ä", "a\u{0}", "a%2f", "*", "a_b"] {
            assert!(!is_namespace(name) && !is_object(name), "{name:?}");
        }
        assert!(!is_object(&"a".repeat(254)));
    }

    /// Names of objects that Kubernetes takes.
    fn legal() -> impl Strategy<Value = String> {
        proptest::collection::vec("[a-z0-9]([-a-z0-9]{0,8}[a-z0-9])?", 1..5).prop_map(|parts| parts.join("."))
    }

    /// Legal names with up to two characters that mean something in a path or in a log.
    fn damaged() -> impl Strategy<Value = String> {
        let spoiled = proptest::collection::vec(("[/%?#\\\\.:~ \0\n\u{202e}A_-]", any::<prop::sample::Index>()), 0..3);
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
            prop_assert!(is_object(&name), "{name}");
            prop_assert_eq!(is_namespace(&name), !name.contains('.'));
        }

        #[test]
        fn no_name_can_leave_its_place_in_a_path(name in prop_oneof![6 => damaged(), 1 => ".{0,40}"]) {
            if is_object(&name) || is_namespace(&name) {
                let plain = |part: &str| !part.is_empty() && part.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-');
                prop_assert!(name.split('.').all(plain), "{name:?}");
            }
        }
    }
}
