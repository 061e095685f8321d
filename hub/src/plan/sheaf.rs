//! A sorted map of which a clone costs little, and the change of a clone little more.
//!
//! Sessions keep the plan that they last saw while the index changes it: what they do not share any more is the sheet on
//! which the change is, whatever the number of entries on the others.
use std::sync::Arc;

/// A sheet with more entries than this becomes two.
const FULL: usize = 256;

/// A sorted map in sheets that clones share.
#[derive(Clone)]
pub struct Sheaf<K, V, const SHEET: usize = FULL> {
    /// Sorted, and none empty.
    sheets: Vec<Arc<Vec<(K, V)>>>,
    len: usize,
}

impl<K, V, const SHEET: usize> Default for Sheaf<K, V, SHEET> {
    fn default() -> Self {
        Self { sheets: Vec::new(), len: 0 }
    }
}

impl<K: Ord + Clone, V: Clone, const SHEET: usize> Sheaf<K, V, SHEET> {
    /// How many entries there are.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// The value of a key.
    pub fn get(&self, key: &K) -> Option<&V> {
        let (sheet, at) = self.find(key);
        at.ok().and_then(|at| Some(&self.sheets.get(sheet)?.get(at)?.1))
    }

    /// The key that is equal to this one, as it is stored.
    pub fn key(&self, key: &K) -> Option<&K> {
        let (sheet, at) = self.find(key);
        at.ok().and_then(|at| Some(&self.sheets.get(sheet)?.get(at)?.0))
    }

    /// The value of a key, to be changed.
    pub fn get_mut(&mut self, key: &K) -> Option<&mut V> {
        let (sheet, at) = self.find(key);
        let at = at.ok()?;
        Some(&mut Arc::make_mut(self.sheets.get_mut(sheet)?).get_mut(at)?.1)
    }

    /// Whether there is such a key.
    pub fn contains_key(&self, key: &K) -> bool {
        self.find(key).1.is_ok()
    }

    /// Every entry, by its key.
    pub fn iter(&self) -> impl Iterator<Item = (&K, &V)> {
        self.sheets.iter().flat_map(|sheet| sheet.iter().map(|(key, value)| (key, value)))
    }

    /// Every key.
    pub fn keys(&self) -> impl Iterator<Item = &K> {
        self.iter().map(|(key, _)| key)
    }

    /// The entries from a key on.
    pub fn from(&self, key: &K) -> impl Iterator<Item = (&K, &V)> {
        let (sheet, at) = self.find(key);
        let at = at.unwrap_or_else(|at| at);
        let mut sheets = self.sheets.get(sheet..).unwrap_or_default().iter();
        let first = sheets.next().and_then(|sheet| sheet.get(at..)).unwrap_or_default();
        first.iter().chain(sheets.flat_map(|sheet| sheet.iter())).map(|(key, value)| (key, value))
    }

    /// Sets the value of a key, and returns what it was.
    pub fn insert(&mut self, key: K, value: V) -> Option<V> {
        let (number, at) = self.find(&key);
        let Some(sheet) = self.sheets.get_mut(number).map(Arc::make_mut) else {
            self.sheets.push(Arc::new(vec![(key, value)]));
            self.len += 1;
            return None;
        };
        match at {
            Ok(at) => sheet.get_mut(at).map(|(_, known)| std::mem::replace(known, value)),
            Err(at) => {
                sheet.insert(at, (key, value));
                if sheet.len() > SHEET {
                    let second = sheet.split_off(sheet.len() / 2);
                    self.sheets.insert(number + 1, Arc::new(second));
                }
                self.len += 1;
                None
            }
        }
    }

    /// Takes out a key.
    pub fn remove(&mut self, key: &K) -> Option<V> {
        let (number, at) = self.find(key);
        let (Ok(at), Some(sheet)) = (at, self.sheets.get_mut(number)) else { return None };
        let (_, value) = Arc::make_mut(sheet).remove(at);
        self.len -= 1;
        self.close_up(number);
        Some(value)
    }

    /// Takes out the first entries, so many.
    pub fn take_first(&mut self, mut count: usize) -> Vec<(K, V)> {
        let mut taken = Vec::with_capacity(count.min(self.len));
        while count > 0
            && let Some(sheet) = self.sheets.first_mut()
        {
            match sheet.len() <= count {
                true => {
                    count -= sheet.len();
                    taken.extend(sheet.iter().cloned());
                    self.sheets.remove(0);
                }
                false => taken.extend(Arc::make_mut(sheet).drain(..std::mem::take(&mut count))),
            }
        }
        self.len -= taken.len();
        taken
    }

    /// A sheet with few entries goes to the one before it.
    fn close_up(&mut self, number: usize) {
        let left = self.sheets.get(number).map_or(0, |sheet| sheet.len());
        let before = number.checked_sub(1).and_then(|before| self.sheets.get(before)).map(|sheet| sheet.len());
        match before {
            _ if left == 0 => drop(self.sheets.remove(number)),
            Some(before) if left + before <= SHEET / 2 => {
                let rest = self.sheets.remove(number);
                if let Some(sheet) = self.sheets.get_mut(number - 1) {
                    Arc::make_mut(sheet).extend(rest.iter().cloned());
                }
            }
            _ => {}
        }
    }

    /// The sheet of a key, and where on it the key is or would be.
    fn find(&self, key: &K) -> (usize, Result<usize, usize>) {
        let after = self.sheets.partition_point(|sheet| sheet.first().is_some_and(|(first, _)| first <= key));
        let number = after.saturating_sub(1);
        let at = self.sheets.get(number).map(|sheet| sheet.binary_search_by(|(known, _)| known.cmp(key)));
        (number, at.unwrap_or(Err(0)))
    }
}

impl<K: Ord + Clone, V: Clone + Default, const SHEET: usize> Sheaf<K, V, SHEET> {
    /// The value of a key, to be changed; where there is none, it begins here.
    pub fn get_or_default(&mut self, key: &K) -> Option<&mut V> {
        if !self.contains_key(key) {
            self.insert(key.clone(), V::default());
        }
        self.get_mut(key)
    }
}

impl<K: Ord + Clone, V: Clone + PartialEq, const SHEET: usize> PartialEq for Sheaf<K, V, SHEET> {
    fn eq(&self, other: &Self) -> bool {
        self.len == other.len && self.iter().eq(other.iter())
    }
}

#[cfg(test)]
impl<K: Ord + Clone, V: Clone, const SHEET: usize> std::ops::Index<&K> for Sheaf<K, V, SHEET> {
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
            let (mut sheaf, mut map) = (Sheaf::<u8, u8, 4>::default(), BTreeMap::new());
            let mut clone = (sheaf.clone(), map.clone());
            for (number, (key, value)) in steps.into_iter().enumerate() {
                if number == cloned_at {
                    clone = (sheaf.clone(), map.clone());
                }
                match value {
                    Some(value) => prop_assert_eq!(sheaf.insert(key, value), map.insert(key, value)),
                    None => prop_assert_eq!(sheaf.remove(&key), map.remove(&key)),
                }
                prop_assert!(sheaf.sheets.iter().all(|sheet| (1..=4).contains(&sheet.len())));
            }
            if let Some(value) = sheaf.get_or_default(&7) {
                *value = 7;
            }
            map.insert(7, 7);
            for (sheaf, map) in [(&sheaf, &map), (&clone.0, &clone.1)] {
                prop_assert_eq!(sheaf.len(), map.len());
                prop_assert_eq!(sheaf.iter().collect::<Vec<_>>(), map.iter().collect::<Vec<_>>());
                for key in 0..61 {
                    prop_assert_eq!((sheaf.get(&key), sheaf.contains_key(&key)), (map.get(&key), map.contains_key(&key)));
                    prop_assert_eq!(sheaf.from(&key).collect::<Vec<_>>(), map.range(key..).collect::<Vec<_>>());
                }
            }
        }
    }

    proptest! {
        #[test]
        fn what_is_taken_from_the_front_is_the_least_and_the_rest_stays(
            keys in proptest::collection::btree_set(0..60u8, 0..60), counts in proptest::collection::vec(0..9usize, 0..12),
        ) {
            let mut sheaf = Sheaf::<u8, u8, 4>::default();
            for key in &keys {
                sheaf.insert(*key, *key);
            }
            let (whole, mut left) = (sheaf.clone(), keys.iter().copied().map(|key| (key, key)).collect::<Vec<_>>());
            for count in counts {
                let expected: Vec<_> = left.drain(..count.min(left.len())).collect();
                prop_assert_eq!(sheaf.take_first(count), expected);
                prop_assert_eq!(sheaf.iter().map(|(key, value)| (*key, *value)).collect::<Vec<_>>(), left.clone());
                prop_assert_eq!(sheaf.len(), left.len());
            }
            prop_assert_eq!(whole.keys().copied().collect::<Vec<_>>(), keys.into_iter().collect::<Vec<_>>());
        }
    }

    #[test]
    fn a_change_of_a_clone_leaves_all_sheets_but_one_shared() {
        let mut sheaf = Sheaf::<u32, u32>::default();
        for key in 0..10_000 {
            sheaf.insert(key, 0);
        }
        let before = sheaf.clone();
        sheaf.insert(5_000, 1);
        let own = sheaf.sheets.iter().zip(&before.sheets).filter(|(now, before)| !Arc::ptr_eq(now, before));
        assert_eq!((own.count(), before.get(&5_000), sheaf.get(&5_000)), (1, Some(&0), Some(&1)));
    }
}
