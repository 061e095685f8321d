//! Counts the payload that waits to be applied. Above the limit, the agent receives no more from
//! the hub.
use std::collections::BTreeMap;

use runnel_proto::model::SourceRef;

use crate::copy::IntentKey;

/// The default limit of unapplied payload, in bytes.
pub const ROOM_BYTES: usize = 32 * 1024 * 1024;

/// The copies that wait, and the size of their intents' payloads. Each payload counts once.
#[derive(Default)]
pub struct InflightBudget {
    copies: BTreeMap<SourceRef, IntentKey>,
    intents: BTreeMap<IntentKey, (usize, usize)>,
    bytes: usize,
}

impl InflightBudget {
    /// Adds a copy that waits for a payload of `bytes` bytes to be applied.
    pub fn enter(&mut self, copy: &SourceRef, intent: &IntentKey, bytes: usize) {
        self.leave(copy);
        let (size, copies) = self.intents.entry(intent.clone()).or_insert((bytes, 0));
        if *copies == 0 {
            self.bytes += *size;
        }
        *copies += 1;
        self.copies.insert(copy.clone(), intent.clone());
    }

    /// Removes a copy that no longer waits.
    pub fn leave(&mut self, copy: &SourceRef) {
        let Some(intent) = self.copies.remove(copy) else {
            return;
        };
        if let Some((size, copies)) = self.intents.get_mut(&intent) {
            *copies -= 1;
            if *copies == 0 {
                self.bytes -= *size;
                self.intents.remove(&intent);
            }
        }
    }

    /// Returns the size of the waiting payloads, in bytes.
    pub fn bytes(&self) -> usize {
        self.bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn copy(name: u8) -> SourceRef {
        SourceRef::new("configmaps", "a", &name.to_string())
    }

    proptest! {
        #[test]
        fn an_intent_counts_once_while_any_copy_of_it_waits(steps in proptest::collection::vec((0u8..6, 0u8..3, any::<bool>()), 0..50)) {
            let mut room = InflightBudget::default();
            let mut waiting = BTreeMap::new();
            for (name, intent, enter) in steps {
                let key = IntentKey { rule: "r".into(), source: copy(intent) };
                if enter {
                    room.enter(&copy(name), &key, 10);
                    waiting.insert(name, intent);
                } else {
                    room.leave(&copy(name));
                    waiting.remove(&name);
                }
                let distinct: std::collections::BTreeSet<_> = waiting.values().collect();
                prop_assert_eq!(room.bytes(), distinct.len() * 10);
            }
        }
    }
}
