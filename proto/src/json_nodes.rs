//! Counts the nodes of a JSON text, so that its memory is bounded before it is decoded.

/// The most nodes of the content of one object.
pub const CONTENT_NODES: usize = 50_000;
/// The most nodes of an object as an API server returns it, without `managedFields`.
pub const OBJECT_NODES: usize = CONTENT_NODES + 10_000;
/// The most nodes of `managedFields`, which repeats the names of the fields for their managers.
pub const MANAGED_FIELDS_NODES: usize = 2 * OBJECT_NODES;

/// Returns the number of nodes of a JSON text: its root, each member of an object, each element of an array.
///
/// The unit is one value, scalar or container; keys are not counted. The count is exact for valid JSON. For any
/// other bytes it is at least the number of nodes that a parser makes before it fails. Allocates nothing, and takes
/// time in proportion to the length.
///
/// A decoded node costs up to 350 bytes, whatever its text is: `{"a":0}` has two nodes and costs 650.
pub fn count(json: &[u8]) -> usize {
    let mut nodes = 1;
    let mut opened = false;
    let mut bytes = json.iter();
    while let Some(&byte) = bytes.next() {
        match byte {
            b' ' | b'\t' | b'\n' | b'\r' => continue,
            b']' | b'}' => {}
            _ => nodes += usize::from(opened) + usize::from(byte == b','),
        }
        opened = matches!(byte, b'[' | b'{');
        if byte == b'"' {
            skip_string(&mut bytes);
        }
    }
    nodes
}

/// Takes the rest of a string with the quote that ends it.
fn skip_string(bytes: &mut std::slice::Iter<'_, u8>) {
    while let Some(byte) = bytes.next() {
        match byte {
            b'\\' => drop(bytes.next()),
            b'"' => return,
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::count;
    use proptest::prelude::*;
    use serde_json::Value;

    #[test]
    fn each_value_is_one_node_and_keys_are_none() {
        for (json, nodes) in [
            ("0", 1),
            ("[]", 1),
            ("{ \n}", 1),
            (r#"{"a":0}"#, 2),
            ("[ [] , {} ]", 3),
            (r#"["a,b","[{","\"],[","\\"]"#, 5),
            (r#"{"a,{[":[1,2,{"b":null}]}"#, 6),
        ] {
            assert_eq!(count(json.as_bytes()), nodes, "{json}");
        }
    }

    #[test]
    fn broken_text_has_at_least_the_nodes_before_the_fault() {
        assert!(count(b"[1,2,3") >= 4);
        assert!(count(br#"["a,b"#) >= 2);
        assert!(count(b"") >= 1);
        assert!(count(br#"[1,"\"#) >= 3);
    }

    fn nodes_of(value: &Value) -> usize {
        1 + match value {
            Value::Array(elements) => elements.iter().map(nodes_of).sum(),
            Value::Object(members) => members.values().map(nodes_of).sum(),
            _ => 0,
        }
    }

    fn json() -> impl Strategy<Value = Value> {
        let text = r#"[a-z,:\[\]{}"\\ é\u{1f600}\n]{0,8}"#;
        let scalar = prop_oneof![
            Just(Value::Null),
            any::<bool>().prop_map(Value::from),
            any::<f64>().prop_map(Value::from),
            text.prop_map(Value::from),
        ];
        scalar.prop_recursive(5, 200, 10, move |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..10).prop_map(Value::Array),
                prop::collection::btree_map(text, inner, 0..10)
                    .prop_map(|members| Value::Object(members.into_iter().collect())),
            ]
        })
    }

    proptest! {
        #[test]
        fn valid_json_is_counted_exactly(value in json()) {
            prop_assert_eq!(count(value.to_string().as_bytes()), nodes_of(&value));
            let pretty = serde_json::to_vec_pretty(&value).unwrap();
            prop_assert_eq!(count(&pretty), nodes_of(&value));
        }

        #[test]
        fn any_bytes_are_counted_without_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let nodes = count(&bytes);
            prop_assert!((1..=2 * bytes.len() + 1).contains(&nodes));
            if let Ok(value) = serde_json::from_slice::<Value>(&bytes) {
                prop_assert!(nodes >= nodes_of(&value));
            }
        }
    }
}
