//! A sorted map with cheap clones and cheap changes of a clone.
//!
//! Sessions keep the last plan that they saw while the index changes it. After a change only the
//! changed chunk is no longer shared, whatever the number of entries in the others.
use std::sync::Arc;

/// A chunk with more entries than this becomes two.
const FULL: usize = 256;

/// A sorted map in chunks that clones share.
#[derive(Clone)]
pub struct CowSortedMap<K, V, const CHUNK: usize = FULL> {
    /// Sorted, and none empty.
    chunks: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

impl<K, V, const CHUNK: usize> Default for CowSortedMap<K, V, CHUNK> {
    fn default() -> Self {
        Self {
            chunks: Vec::new(),
            len: 0,
        }
    }
}

impl<K: Ord + Clone, V: Clone, const CHUNK: usize> CowSortedMap<K, V, CHUNK> {
    /// Returns the number of entries.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether the map is empty.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (chunk, at) = self.find(key);
        at.ok()
            .and_then(|at| Some(&self.chunks.get(chunk)?.get(at)?.1))
    }

    /// Returns the stored key that equals this one.
    pub fn key(&self, key: &K) -> Option<&K> {
        let (chunk, at) = self.find(key);
        at.ok()
            .and_then(|at| Some(&self.chunks.get(chunk)?.get(at)?.0))
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (chunk, at) = self.find(key);
        let at = at.ok()?;
        Some(&mut Arc::make_mut(self.chunks.get_mut(chunk)?).get_mut(at)?.1)
    }

    /// Whether the map contains the key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).1.is_ok()
    }

    /// Every entry, by its key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.chunks
            .iter()
            .flat_map(|chunk| chunk.iter().map(|(key, value)| (key, value)))
    }

    /// Every key.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The entries from a key on.
    pub fn from(&self, key: &K) -> impl Iterator<Item = (&K, &V)> {
        let (chunk, at) = self.find(key);
        let at = at.unwrap_or_else(|at| at);
        let mut chunks = self.chunks.get(chunk..).unwrap_or_default().iter();
        let first = chunks
            .next()
            .and_then(|chunk| chunk.get(at..))
            .unwrap_or_default();
        first
            .iter()
            .chain(chunks.flat_map(|chunk| chunk.iter()))
            .map(|(key, value)| (key, value))
    }

    /// Sets the value of a key, and returns the former value.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (number, at) = self.find(&key);
        let Some(chunk) = self.chunks.get_mut(number).map(Arc::make_mut) else {
            self.chunks.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return None;
        };
        match at {
            Ok(at) => chunk
                .get_mut(at)
                .map(|(_, known)| std::mem::replace(known, value)),
            Err(at) => {
                chunk.insert(at, (key, value));
                if chunk.len() > CHUNK {
                    let second = chunk.split_off(chunk.len() / 2);
                    self.chunks.insert(number + 1, Arc::new(second));
                }
                self.len += 1;
                None
            }
        }
    }

    /// Removes a key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (number, at) = self.find(key);
        let (Ok(at), Some(chunk)) = (at, self.chunks.get_mut(number)) else {
            return None;
        };
        let (_, value) = Arc::make_mut(chunk).remove(at);
        self.len -= 1;
        self.close_up(number);
        Some(value)
    }

    /// Removes and returns the first `count` entries.
    pub fn take_first(&mut self, mut count: usize) -> Vec<(K, V)> {
        let mut taken = Vec::with_capacity(count.min(self.len));
        while count > 0
            && let Some(chunk) = self.chunks.first_mut()
        {
            if chunk.len() <= count {
                count -= chunk.len();
                taken.extend(chunk.iter().cloned());
                self.chunks.remove(0);
            } else {
                taken.extend(Arc::make_mut(chunk).drain(..std::mem::take(&mut count)))
            }
        }
        self.len -= taken.len();
        taken
    }

    /// Merges a chunk with few entries into the one before it.
    fn close_up(&mut self, number: usize) {
        let left = self.chunks.get(number).map_or(0, |chunk| chunk.len());
        let before = number
            .checked_sub(1)
            .and_then(|before| self.chunks.get(before))
            .map(|chunk| chunk.len());
        match before {
            _ if left == 0 => drop(self.chunks.remove(number)),
            Some(before) if left + before <= CHUNK / 2 => {
                let rest = self.chunks.remove(number);
                if let Some(chunk) = self.chunks.get_mut(number - 1) {
                    Arc::make_mut(chunk).extend(rest.iter().cloned());
                }
            }
            _ => {}
        }
    }

    /// The chunk of a key, and where on it the key is or would be.
    fn find(&self, key: &K) -> (usize, Result<usize, usize>) {
        let after = self
            .chunks
            .partition_point(|chunk| chunk.first().is_some_and(|(first, _)| first <= key));
        let number = after.saturating_sub(1);
        let at = self
            .chunks
            .get(number)
            .map(|chunk| chunk.binary_search_by(|(known, _)| known.cmp(key)));
        (number, at.unwrap_or(Err(0)))
    }
}

impl<K: Ord + Clone, V: Clone + Default, const CHUNK: usize> CowSortedMap<K, V, CHUNK> {
    /// The value of a key, to be changed; where there is none, it begins here.
    pub fn get_or_default(&mut self, key: &K) -> Option<&mut V> {
        if !self.contains_key(key) {
            self.insert(key.clone(), V::default());
        }
        self.get_mut(key)
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq, const CHUNK: usize> PartialEq
    for CowSortedMap<K, V, CHUNK>
{
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
impl<K: Ord + Clone, V: Clone, const CHUNK: usize> std::ops::Index<&K>
    for CowSortedMap<K, V, CHUNK>
{
    type Output = V;

    fn index(&self, key: &K) -> &V {
        self.get(key).unwrap()
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn it_is_a_sorted_map_and_a_clone_stays_as_it_was(
            steps in proptest::collection::vec((0..60u8, proptest::option::of(any::<u8>())), 0..300),
            cloned_at in 0..300usize,
        ) {
            let (mut sorted_map, mut map) = (CowSortedMap::<u8, u8, 4>::default(), BTreeMap::new());
            let mut clone = (sorted_map.clone(), map.clone());
            for (number, (key, value)) in steps.into_iter().enumerate() {
                if number == cloned_at {
                    clone = (sorted_map.clone(), map.clone());
                }
                match value {
                    Some(value) => prop_assert_eq!(sorted_map.insert(key, value), map.insert(key, value)),
                    None => prop_assert_eq!(sorted_map.remove(&key), map.remove(&key)),
                }
                prop_assert!(sorted_map.chunks.iter().all(|chunk| (1..=4).contains(&chunk.len())));
            }
            if let Some(value) = sorted_map.get_or_default(&7) {
                *value = 7;
            }
            map.insert(7, 7);
            for (sorted_map, map) in [(&sorted_map, &map), (&clone.0, &clone.1)] {
                prop_assert_eq!(sorted_map.len(), map.len());
                prop_assert_eq!(sorted_map.iter().collect::<Vec<_>>(), map.iter().collect::<Vec<_>>());
                for key in 0..61 {
                    prop_assert_eq!((sorted_map.get(&key), sorted_map.contains_key(&key)), (map.get(&key), map.contains_key(&key)));
                    prop_assert_eq!(sorted_map.from(&key).collect::<Vec<_>>(), map.range(key..).collect::<Vec<_>>());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn pop_first_takes_the_least_key(
            keys in proptest::collection::btree_set(0..60u8, 0..60), counts in proptest::collection::vec(0..9usize, 0..12),
        ) {
            let mut sorted_map = CowSortedMap::<u8, u8, 4>::default();
            for key in &keys {
                sorted_map.insert(*key, *key);
            }
            let (whole, mut left) = (sorted_map.clone(), keys.iter().copied().map(|key| (key, key)).collect::<Vec<_>>());
            for count in counts {
                let expected: Vec<_> = left.drain(..count.min(left.len())).collect();
                prop_assert_eq!(sorted_map.take_first(count), expected);
                prop_assert_eq!(sorted_map.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>(), left.clone());
                prop_assert_eq!(sorted_map.len(), left.len());
            }
            prop_assert_eq!(whole.keys().copied().collect::<Vec<_>>(), keys.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_change_of_a_clone_leaves_all_chunks_but_one_shared() {
        let mut sorted_map = CowSortedMap::<u32, u32>::default();
        for key in 0..10_000 {
            sorted_map.insert(key, 0);
        }
        let before = sorted_map.clone();
        sorted_map.insert(5_000, 1);
        let own = sorted_map
            .chunks
            .iter()
            .zip(&before.chunks)
            .filter(|(now, before)| !Arc::ptr_eq(now, before));
        assert_eq!(
            (own.count(), before.get(&5_000), sorted_map.get(&5_000)),
            (1, Some(&0), Some(&1))
        );
    }
}
