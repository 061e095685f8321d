//! The layout of encoded states of completed rollouts in Secrets with fixed names: pure.
//!
//! Each Secret is a slot. A state is stored in parts, in any free slots. The name of a part
//! contains its state and the number of parts. A newer state of a rule has a higher number. It is
//! stored before the older one is dropped, if there is room for both, so that one of them is
//! complete at any time.
use std::collections::{BTreeMap, BTreeSet};

use runnel_proto::model::RuleUid;

/// The most bytes of one slot. An API server stores Secrets of up to 1 MiB of data.
pub const SLOT_BYTES: usize = (1 << 20) - (16 << 10);

/// The name of one part of a state.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct PartName {
    uid: String,
    number: u64,
    part: usize,
    parts: usize,
}

impl PartName {
    fn parse(text: &str) -> Option<Self> {
        let mut fields = text.rsplitn(4, '.');
        let (parts, part, number) = (fields.next()?, fields.next()?, fields.next()?);
        let uid = fields.next()?.to_owned();
        let (number, part, parts) = (
            number.parse().ok()?,
            part.parse().ok()?,
            parts.parse().ok()?,
        );
        Some(Self {
            uid,
            number,
            part,
            parts,
        })
    }

    fn text(&self) -> String {
        let Self {
            uid,
            number,
            part,
            parts,
        } = self;
        format!("{uid}.{number}.{part}.{parts}")
    }
}

/// The data of one slot, by the names of parts.
pub type Slot = BTreeMap<String, Vec<u8>>;

/// A state that does not fit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Full;

/// All slots. Without `Debug`: they contain values of Secrets.
pub struct Archive {
    slots: Vec<BTreeMap<PartName, Vec<u8>>>,
    slot_bytes: usize,
}

impl Default for Archive {
    fn default() -> Self {
        Self::new(Vec::new())
    }
}

impl Archive {
    /// Creates an archive with this content. Entries that are not parts of a state are dropped at
    /// the next write of their slot.
    pub fn new(slots: Vec<Slot>) -> Self {
        let read = |slot: Slot| {
            slot.into_iter()
                .filter_map(|(name, bytes)| Some((PartName::parse(&name)?, bytes)))
                .collect()
        };
        Self {
            slots: slots.into_iter().map(read).collect(),
            slot_bytes: SLOT_BYTES,
        }
    }

    /// Returns the data of a slot.
    pub fn slot(&self, number: usize) -> Slot {
        let parts = self.slots.get(number).into_iter().flatten();
        parts
            .map(|(name, bytes)| (name.text(), bytes.clone()))
            .collect()
    }

    /// The rules of which anything is stored.
    pub fn rules(&self) -> BTreeSet<RuleUid> {
        self.slots
            .iter()
            .flat_map(BTreeMap::keys)
            .map(|name| name.uid.as_str().into())
            .collect()
    }

    /// The newest whole state of a rule; `None` where no state of it is whole.
    pub fn state(&self, uid: &RuleUid) -> Option<Vec<u8>> {
        let numbers: BTreeSet<u64> = self.parts_of(uid).map(|(name, _)| name.number).collect();
        numbers.into_iter().rev().find_map(|number| {
            let mut parts: Vec<_> = self
                .parts_of(uid)
                .filter(|(name, _)| name.number == number)
                .collect();
            parts.sort_by_key(|(name, _)| name.part);
            parts.dedup_by_key(|(name, _)| name.part);
            let is_whole = parts
                .first()
                .is_some_and(|(name, _)| name.parts == parts.len());
            is_whole.then(|| {
                parts
                    .into_iter()
                    .map(|(_, bytes)| bytes.as_slice())
                    .collect::<Vec<_>>()
                    .concat()
            })
        })
    }

    fn parts_of(&self, uid: &RuleUid) -> impl Iterator<Item = (&PartName, &Vec<u8>)> {
        self.slots
            .iter()
            .flatten()
            .filter(move |(name, _)| name.uid == uid.as_str())
    }

    /// Returns the maximum size of a rule's state that replaces its older one, in bytes.
    pub fn room_for(&self, uid: &RuleUid) -> usize {
        let used: usize = self
            .slots
            .iter()
            .flatten()
            .filter(|(name, _)| name.uid != uid.as_str())
            .map(size)
            .sum();
        (self.slots.len() * self.slot_bytes).saturating_sub(used)
    }

    /// Replaces the stored state of a rule. Returns the slots to write, in order: first those with
    /// new parts, then those with dropped parts; the other way around if there is no room for both
    /// states.
    ///
    /// # Errors
    /// [`Full`], if the state does not fit; nothing has changed then.
    pub fn put(&mut self, uid: &RuleUid, bytes: &[u8]) -> Result<Vec<(usize, Slot)>, Full> {
        if bytes.len() > self.room_for(uid) {
            return Err(Full);
        }
        let number = self
            .parts_of(uid)
            .map(|(name, _)| name.number)
            .max()
            .map_or(1, |last| last + 1);
        let total = self.slots.len() * self.slot_bytes;
        let used: usize = self.slots.iter().flatten().map(size).sum();
        let mut writes = Vec::new();
        let is_older = |name: &PartName| name.uid == uid.as_str() && name.number < number;
        if used + bytes.len() > total {
            self.drop_parts(is_older, &mut writes);
            self.add(uid, number, bytes, &mut writes);
        } else {
            self.add(uid, number, bytes, &mut writes);
            self.drop_parts(is_older, &mut writes);
        }
        Ok(writes)
    }

    /// Drops the stored state of a rule. Returns the slots to write.
    pub fn remove(&mut self, uid: &RuleUid) -> Vec<(usize, Slot)> {
        let mut writes = Vec::new();
        self.drop_parts(|name| name.uid == uid.as_str(), &mut writes);
        writes
    }

    fn add(&mut self, uid: &RuleUid, number: u64, bytes: &[u8], writes: &mut Vec<(usize, Slot)>) {
        let mut rest = bytes;
        let mut pieces = Vec::new();
        for (slot, parts) in self.slots.iter().enumerate() {
            let room = self
                .slot_bytes
                .saturating_sub(parts.iter().map(size).sum())
                .min(rest.len());
            if room > 0 {
                let (piece, left) = rest.split_at(room);
                pieces.push((slot, piece));
                rest = left;
            }
        }
        let parts = pieces.len();
        for (part, (slot, piece)) in pieces.into_iter().enumerate() {
            let name = PartName {
                uid: uid.to_string(),
                number,
                part,
                parts,
            };
            if let Some(there) = self.slots.get_mut(slot) {
                there.insert(name, piece.to_vec());
            }
            writes.push((slot, self.slot(slot)));
        }
    }

    fn drop_parts(
        &mut self,
        is_dropped: impl Fn(&PartName) -> bool,
        writes: &mut Vec<(usize, Slot)>,
    ) {
        for number in 0..self.slots.len() {
            let Some(slot) = self.slots.get_mut(number) else {
                continue;
            };
            let before = slot.len();
            slot.retain(|name, _| !is_dropped(name));
            if slot.len() < before {
                writes.push((number, self.slot(number)));
            }
        }
    }
}

fn size((_, bytes): (&PartName, &Vec<u8>)) -> usize {
    bytes.len()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const SLOT_BYTES: usize = 64;

    fn empty(slots: usize) -> Archive {
        Archive {
            slot_bytes: SLOT_BYTES,
            ..Archive::new(vec![Slot::new(); slots])
        }
    }

    /// Returns the stored archive after a crash that lost all but the first writes.
    fn crashed(before: &Archive, writes: &[(usize, Slot)], done: usize) -> Archive {
        let mut slots: Vec<_> = (0..before.slots.len())
            .map(|number| before.slot(number))
            .collect();
        for (number, slot) in writes.iter().take(done) {
            slots[*number] = slot.clone();
        }
        Archive {
            slot_bytes: SLOT_BYTES,
            ..Archive::new(slots)
        }
    }

    fn copy(archive: &Archive) -> Archive {
        crashed(archive, &[], 0)
    }

    #[test]
    fn state_larger_than_a_slot_is_split_and_read_back() {
        let (mut archive, uid) = (empty(3), RuleUid::from("a.b-c"));
        let bytes: Vec<u8> = (0..SLOT_BYTES * 2 + 7)
            .map(|number| number.to_le_bytes()[0])
            .collect();
        let writes = archive.put(&uid, &bytes).unwrap();
        assert_eq!(writes.len(), 3);
        assert!(
            writes
                .iter()
                .all(|(_, slot)| slot.values().map(Vec::len).sum::<usize>() <= SLOT_BYTES)
        );
        let read = crashed(&empty(3), &writes, 3);
        assert_eq!(
            (read.state(&uid), read.rules()),
            (Some(bytes), BTreeSet::from([uid.clone()]))
        );
        // A part is missing.
        assert_eq!(crashed(&empty(3), &writes, 2).state(&uid), None);
    }

    #[test]
    fn state_that_does_not_fit_changes_nothing() {
        let (mut archive, a, b) = (empty(2), RuleUid::from("a"), RuleUid::from("b"));
        archive.put(&a, &[1; SLOT_BYTES]).unwrap();
        assert_eq!(archive.put(&b, &[2; SLOT_BYTES + 1]), Err(Full));
        assert_eq!(
            (archive.state(&a), archive.state(&b)),
            (Some(vec![1; SLOT_BYTES]), None)
        );
        archive.remove(&a);
        assert!(archive.put(&b, &[2; SLOT_BYTES + 1]).is_ok());
        assert_eq!(empty(0).put(&a, &[1]), Err(Full));
    }

    proptest! {
        #[test]
        fn crash_at_any_write_leaves_the_old_state_or_the_new_one(
            sizes in proptest::collection::vec((0..3usize, 1..5usize), 1..12), done in 0..8usize,
        ) {
            let mut archive = empty(9);
            for (rule, size) in sizes {
                let uid = RuleUid::from(["a", "b", "c"][rule]);
                let before = copy(&archive);
                let old = before.state(&uid);
                let bytes = vec![size as u8; size * SLOT_BYTES / 2];
                let has_room = archive.room_for(&uid) >= bytes.len();
                let both = before.slots.iter().flatten().map(super::size).sum::<usize>() + bytes.len() <= 9 * SLOT_BYTES;
                let Ok(writes) = archive.put(&uid, &bytes) else {
                    prop_assert!(!has_room);
                    continue;
                };
                prop_assert_eq!(archive.state(&uid), Some(bytes.clone()));
                for number in 0..9 {
                    prop_assert!(archive.slot(number).values().map(Vec::len).sum::<usize>() <= SLOT_BYTES);
                }
                let left = crashed(&before, &writes, done);
                let state = left.state(&uid);
                prop_assert!(state == Some(bytes) || state == old || (!both && state.is_none()));
                for other in ["a", "b", "c"].map(RuleUid::from).iter().filter(|other| **other != uid) {
                    prop_assert_eq!(left.state(other), before.state(other));
                }
            }
        }
    }
}
