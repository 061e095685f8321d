//! A field of a copy that a rule leaves alone, as a JSON pointer.
use std::fmt;

use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// The longest key: a label's prefix of 253, a slash and 63 more.
const KEY_LIMIT: usize = 317;

/// The maps of an object with listed keys.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum FieldMap {
    /// `/binaryData`.
    BinaryData,
    /// `/data`.
    Data,
    /// `/metadata/annotations`.
    Annotations,
    /// `/metadata/labels`.
    Labels,
}

impl FieldMap {
    const ALL: [FieldMap; 4] = [
        FieldMap::BinaryData,
        FieldMap::Data,
        FieldMap::Annotations,
        FieldMap::Labels,
    ];

    /// Its JSON pointer.
    pub fn pointer(self) -> &'static str {
        match self {
            FieldMap::BinaryData => "/binaryData",
            FieldMap::Data => "/data",
            FieldMap::Annotations => "/metadata/annotations",
            FieldMap::Labels => "/metadata/labels",
        }
    }

    /// Returns the top-level field, for maps that are one.
    pub fn field(self) -> Option<&'static str> {
        match self {
            FieldMap::BinaryData => Some("binaryData"),
            FieldMap::Data => Some("data"),
            FieldMap::Annotations | FieldMap::Labels => None,
        }
    }
}

/// One key of one map of an object.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct FieldPath {
    /// The map.
    pub map: FieldMap,
    /// The key, not escaped.
    pub key: String,
}

impl FieldPath {
    /// A path.
    pub fn new(map: FieldMap, key: impl Into<String>) -> Self {
        Self {
            map,
            key: key.into(),
        }
    }

    /// Parses a JSON pointer; `None` unless it names one key of one of the maps.
    pub fn parse(pointer: &str) -> Option<Self> {
        let (map, escaped) = FieldMap::ALL.into_iter().find_map(|map| {
            let rest = pointer.strip_prefix(map.pointer())?.strip_prefix('/')?;
            Some((map, rest))
        })?;
        let key = escaped.replace("~1", "/").replace("~0", "~");
        let path = Self { map, key };
        // A pointer that reads back differently was not escaped correctly.
        let plain = !path
            .key
            .chars()
            .any(|c| c.is_whitespace() || c.is_control());
        (plain
            && !path.key.is_empty()
            && path.key.len() <= KEY_LIMIT
            && path.to_string() == pointer)
            .then_some(path)
    }
}

impl fmt::Display for FieldPath {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            out,
            "{}/{}",
            self.map.pointer(),
            self.key.replace('~', "~0").replace('/', "~1")
        )
    }
}

impl Serialize for FieldPath {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for FieldPath {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        Self::parse(&text).ok_or_else(|| serde::de::Error::custom("not a pointer to one key"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn only_pointers_to_one_key_of_a_known_map_are_read() {
        for good in [
            "/data/a",
            "/binaryData/x.bin",
            "/metadata/labels/a~1b",
            "/metadata/annotations/example.com~1x",
        ] {
            assert_eq!(FieldPath::parse(good).unwrap().to_string(), good);
        }
        for bad in [
            "",
            "/data",
            "/data/",
            "data/a",
            "/data/a/b",
            "/metadata/name",
            "/type",
            "/metadata/labels/a~2b",
            "/",
        ] {
            assert_eq!(FieldPath::parse(bad), None, "{bad}");
        }
    }

    proptest! {
        #[test]
        fn written_state_reads_back(map in 0usize..4, key in "[a-z~/.]{1,20}") {
            let path = FieldPath::new(FieldMap::ALL[map], key);
            prop_assert_eq!(FieldPath::parse(&path.to_string()), Some(path));
        }
    }
}
