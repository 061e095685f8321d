//! The layout of encoded states of completed rollouts in Secrets with fixed names: pure.
//!
//! Each Secret is a slot. A state is stored in parts, in any free slots. The name of a part
//! contains its state and the number of parts. A newer state of a rule has a higher number. It is
//! stored before the one before it is dropped, if there is room for both, so that one of them is
//! complete at any time. Earlier states of any rule make room for the newest one of another.
use std::cmp::Reverse;
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

    fn id(&self) -> StateId {
        (self.uid.as_str().into(), self.number)
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

/// A stored state: its rule, and its number among those of the rule.
pub type StateId = (RuleUid, u64);

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

    /// The numbers of the whole states of each rule of which anything is stored, the newest first.
    pub fn states(&self) -> BTreeMap<RuleUid, Vec<u64>> {
        let mut parts = BTreeMap::<StateId, (usize, usize)>::new();
        for name in self.slots.iter().flat_map(BTreeMap::keys) {
            let known = parts.entry(name.id()).or_default();
            *known = (known.0 + 1, name.parts);
        }
        let mut states = BTreeMap::<_, Vec<_>>::new();
        for ((uid, number), (found, parts)) in parts.into_iter().rev() {
            let numbers = states.entry(uid).or_default();
            if found == parts {
                numbers.push(number);
            }
        }
        states
    }

    /// Returns the bytes of a whole state.
    pub fn state(&self, id: &StateId) -> Vec<u8> {
        let parts = self.slots.iter().flatten();
        let mut parts: Vec<_> = parts.filter(|(name, _)| name.id() == *id).collect();
        parts.sort_by_key(|(name, _)| name.part);
        let bytes = parts.into_iter().map(|(_, bytes)| bytes.as_slice());
        bytes.collect::<Vec<_>>().concat()
    }

    /// The sizes of all states in bytes, with their places among those of their rules: 0 is the newest. A state that is not
    /// whole comes last.
    fn sizes(&self) -> BTreeMap<StateId, (usize, usize)> {
        let states = self.states();
        let mut sizes = BTreeMap::<StateId, (usize, usize)>::new();
        for (name, bytes) in self.slots.iter().flatten() {
            let numbers = states.get(&name.id().0).into_iter().flatten();
            let place = numbers.take_while(|number| **number > name.number).count();
            let is_whole = states
                .get(&name.id().0)
                .is_some_and(|all| all.contains(&name.number));
            let place = if is_whole { place } else { usize::MAX };
            sizes.entry(name.id()).or_insert((place, 0)).1 += bytes.len();
        }
        sizes
    }

    /// Returns the maximum size of a new state of a rule, in bytes: the newest ones of other rules and those `in_use` stay.
    pub fn room_for(&self, uid: &RuleUid, in_use: &BTreeSet<StateId>) -> usize {
        let stays = |(id, (place, _)): &(&StateId, &(usize, usize))| {
            in_use.contains(id) || (id.0 != *uid && *place == 0)
        };
        let sizes = self.sizes();
        let used: usize = sizes.iter().filter(stays).map(|(_, (_, size))| size).sum();
        (self.slots.len() * self.slot_bytes).saturating_sub(used)
    }

    /// Stores a new state of a rule, which is its newest, and drops states: those of the rule among `dropped`, and then as many
    /// earlier ones of any rule as there is no room for, the oldest first. Returns the slots to write, in order. The rule's
    /// newest state before is dropped before the new one is whole only if there is no room for both.
    ///
    /// # Errors
    /// [`Full`], if the state does not fit; nothing has changed then.
    pub fn put(
        &mut self,
        uid: &RuleUid,
        bytes: &[u8],
        dropped: &BTreeSet<u64>,
        in_use: &BTreeSet<StateId>,
    ) -> Result<Vec<(usize, Slot)>, Full> {
        if bytes.len() > self.room_for(uid, in_use) {
            return Err(Full);
        }
        let sizes = self.sizes();
        let number = sizes.keys().filter(|id| id.0 == *uid).map(|id| id.1).max();
        let number = number.map_or(1, |last| last + 1);
        let before = |id: &StateId, place: usize| id.0 == *uid && place == 0;
        let mut room = (self.slots.len() * self.slot_bytes)
            .saturating_sub(sizes.values().map(|(_, size)| size).sum());
        let (mut early, mut late) = (BTreeSet::new(), BTreeSet::new());
        // The oldest come first, and the newest one before at last.
        let mut all: Vec<_> = sizes
            .iter()
            .filter(|(id, _)| !in_use.contains(id))
            .collect();
        all.retain(|(id, (place, _))| *place > 0 || id.0 == *uid);
        all.sort_by_key(|(id, (place, _))| (before(id, *place), Reverse(*place)));
        for (id, (place, size)) in all {
            let is_dropped = id.0 == *uid && (dropped.contains(&id.1) || *place == usize::MAX);
            if room < bytes.len() {
                room += size;
                early.insert(id.clone());
            } else if is_dropped {
                late.insert(id.clone());
            }
        }
        let mut writes = Vec::new();
        self.drop_parts(|name| early.contains(&name.id()), &mut writes);
        self.add(uid, number, bytes, &mut writes);
        self.drop_parts(|name| late.contains(&name.id()), &mut writes);
        Ok(writes)
    }

    /// Drops states of a rule, or all of them and what is left of others. Returns the slots to write.
    pub fn remove(&mut self, uid: &RuleUid, numbers: Option<&BTreeSet<u64>>) -> Vec<(usize, Slot)> {
        let mut writes = Vec::new();
        let is_dropped = |name: &PartName| {
            name.uid == uid.as_str() && numbers.is_none_or(|all| all.contains(&name.number))
        };
        self.drop_parts(is_dropped, &mut writes);
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

    /// The whole states of a rule, the newest first.
    fn states(archive: &Archive, uid: &RuleUid) -> Vec<Vec<u8>> {
        let numbers = archive.states().remove(uid).unwrap_or_default();
        let state = |number| archive.state(&(uid.clone(), number));
        numbers.into_iter().map(state).collect()
    }

    fn put(
        archive: &mut Archive,
        uid: &RuleUid,
        bytes: &[u8],
        kept: usize,
    ) -> Result<Vec<(usize, Slot)>, Full> {
        let numbers = archive.states().remove(uid).unwrap_or_default();
        let dropped = numbers.into_iter().skip(kept - 1).collect();
        archive.put(uid, bytes, &dropped, &BTreeSet::new())
    }

    #[test]
    fn state_larger_than_a_slot_is_split_and_read_back() {
        let (mut archive, uid) = (empty(3), RuleUid::from("a.b-c"));
        let bytes: Vec<u8> = (0..SLOT_BYTES * 2 + 7)
            .map(|number| number.to_le_bytes()[0])
            .collect();
        let writes = put(&mut archive, &uid, &bytes, 1).unwrap();
        assert_eq!(writes.len(), 3);
        assert!(
            writes
                .iter()
                .all(|(_, slot)| slot.values().map(Vec::len).sum::<usize>() <= SLOT_BYTES)
        );
        let read = crashed(&empty(3), &writes, 3);
        assert_eq!(states(&read, &uid), [bytes]);
        // A part is missing.
        let read = crashed(&empty(3), &writes, 2);
        assert_eq!(read.states(), [(uid, vec![])].into());
    }

    #[test]
    fn state_that_does_not_fit_changes_nothing() {
        let (mut archive, a, b) = (empty(2), RuleUid::from("a"), RuleUid::from("b"));
        put(&mut archive, &a, &[1; SLOT_BYTES], 1).unwrap();
        let full = put(&mut archive, &b, &[2; SLOT_BYTES + 1], 1);
        assert_eq!(full, Err(Full));
        assert_eq!(states(&archive, &a), [vec![1; SLOT_BYTES]]);
        assert!(states(&archive, &b).is_empty());
        archive.remove(&a, None);
        assert!(put(&mut archive, &b, &[2; SLOT_BYTES + 1], 1).is_ok());
        assert_eq!(put(&mut empty(0), &a, &[1], 1), Err(Full));
    }

    #[test]
    fn earlier_states_make_room_for_newest_ones() {
        let (mut archive, a, b) = (empty(4), RuleUid::from("a"), RuleUid::from("b"));
        for number in 1..=3 {
            put(&mut archive, &a, &[number; SLOT_BYTES], 3).unwrap();
        }
        put(&mut archive, &b, &[7; SLOT_BYTES], 3).unwrap();
        assert_eq!(states(&archive, &a).len(), 3);
        // The oldest state of the other rule goes, then the one that is not in use.
        put(&mut archive, &b, &[8; SLOT_BYTES], 3).unwrap();
        let kept: Vec<_> = states(&archive, &a).iter().map(|state| state[0]).collect();
        assert_eq!((kept, states(&archive, &b).len()), (vec![3, 2], 2));
        let in_use = [(a.clone(), 2), (b.clone(), 1)].into();
        assert_eq!(archive.room_for(&b, &in_use), SLOT_BYTES);
        let full = archive.put(&b, &[9; SLOT_BYTES + 1], &BTreeSet::new(), &in_use);
        assert_eq!(full, Err(Full));
        archive
            .put(&b, &[9; SLOT_BYTES], &BTreeSet::new(), &in_use)
            .unwrap();
        let firsts = |uid| {
            states(&archive, uid)
                .iter()
                .map(|state| state[0])
                .collect::<Vec<_>>()
        };
        assert_eq!((firsts(&a), firsts(&b)), (vec![3, 2], vec![9, 7]));
    }

    #[test]
    fn fewer_kept_states_drop_the_others() {
        let (mut archive, a) = (empty(4), RuleUid::from("a"));
        for number in 1..=3 {
            put(&mut archive, &a, &[number; 8], 3).unwrap();
        }
        let before = copy(&archive);
        let writes = archive.remove(&a, Some(&[1, 2].into()));
        assert_eq!(states(&crashed(&before, &writes, 9), &a), [[3; 8]]);
    }

    proptest! {
        #[test]
        fn crash_at_any_write_leaves_the_old_state_or_the_new_one(
            sizes in proptest::collection::vec((0..3usize, 1..5usize, 1..4usize), 1..16), done in 0..8usize,
        ) {
            let mut archive = empty(9);
            for (rule, size, kept) in sizes {
                let uid = RuleUid::from(["a", "b", "c"][rule]);
                let before = copy(&archive);
                let old = states(&before, &uid);
                let bytes = vec![size as u8; size * SLOT_BYTES / 2];
                let room = archive.room_for(&uid, &BTreeSet::new());
                let both = old.first().map_or(0, Vec::len) + bytes.len() <= room;
                let Ok(writes) = put(&mut archive, &uid, &bytes, kept) else {
                    prop_assert!(room < bytes.len());
                    continue;
                };
                let now = states(&archive, &uid);
                prop_assert!(now[0] == bytes && now.len() <= kept && now[1..] == old[..now.len() - 1]);
                for number in 0..9 {
                    prop_assert!(archive.slot(number).values().map(Vec::len).sum::<usize>() <= SLOT_BYTES);
                }
                let left = crashed(&before, &writes, done);
                let state = states(&left, &uid).first().cloned();
                prop_assert!(state == Some(bytes) || state.as_ref() == old.first() || !both);
                for other in ["a", "b", "c"].map(RuleUid::from).iter().filter(|other| **other != uid) {
                    let (now, old) = (states(&left, other), states(&before, other));
                    // Earlier states may have gone for room.
                    prop_assert!(now.first() == old.first() && now.iter().all(|state| old.contains(state)));
                }
            }
        }
    }
}
