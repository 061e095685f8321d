//! The keys of a member, in the order of their certification.
//!
//! The key in use stays, and so does every newer one, because the agent may use it from its next
//! stream on. Older keys are removed when a newer one is first used, and are remembered for a
//! while: no agent should have them any more, so a connection with one of them proves a copied key.
use std::time::Duration;

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runnel_transport::identity::Fingerprint;

use super::Member;
use runnel_api::{Identity, RetiredKey, limits};

/// Returns the identity after a session with this key, if that changes it. A retired key is stored
/// until its certificate can neither be used nor, for `limit` after its end, renewed.
pub fn used(identity: &Identity, key: &str, limit: Duration, now: Timestamp) -> Option<Identity> {
    let place = identity
        .keys
        .iter()
        .position(|known| known.fingerprint == key)?;
    if place == 0 {
        return None;
    }
    let (older, kept) = identity.keys.split_at(place);
    let retired = older.iter().map(|key| RetiredKey {
        fingerprint: key.fingerprint.clone(),
        expires_at: key.expires_at.clone(),
        seen_at: None,
    });
    let known = identity
        .retired
        .iter()
        .filter(|known| !older.iter().any(|key| key.fingerprint == known.fingerprint));
    let mut all: Vec<RetiredKey> = known.cloned().chain(retired).collect();
    let is_useless = |key: &RetiredKey| {
        key.expires_at
            .0
            .checked_add(limit)
            .is_ok_and(|end| end <= now)
    };
    all.retain(|key| key.seen_at.is_some() || !is_useless(key));
    // Old keys that were not used are dropped first.
    while all.len() > limits::RETIRED_KEYS {
        let first = all
            .iter()
            .position(|key| key.seen_at.is_none())
            .unwrap_or_default();
        all.remove(first);
    }
    Some(Identity {
        keys: kept.to_vec(),
        retired: all,
    })
}

/// Returns the identity after a client used a retired key, if that changes it. Only the first use
/// of each key is recorded.
pub fn with_retired_key_use(identity: &Identity, key: &str, now: Timestamp) -> Option<Identity> {
    let place = identity
        .retired
        .iter()
        .position(|known| known.fingerprint == key && known.seen_at.is_none())?;
    let mut changed = identity.clone();
    let now = Timestamp::from_second(now.as_second()).unwrap_or(now);
    changed.retired.get_mut(place)?.seen_at = Some(Time(now));
    Some(changed)
}

/// Whether the member has retired this key.
pub fn is_retired(member: &Member, key: &Fingerprint) -> bool {
    let (key, identity) = (key.to_string(), &member.record().identity);
    identity
        .retired
        .iter()
        .any(|known| known.fingerprint == key)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use runnel_api::KeyRecord;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + second).unwrap()
    }

    fn key(name: usize, end: i64) -> KeyRecord {
        let fingerprint = format!("sha256:{name}");
        KeyRecord {
            fingerprint,
            issued_at: Time(at(0)),
            expires_at: Time(at(end)),
            ca: None,
        }
    }

    const LIMIT: Duration = Duration::from_secs(100);

    #[test]
    fn older_keys_are_retired_at_first_use_of_a_newer_one() {
        let before = Identity {
            keys: vec![key(1, 10), key(2, 20), key(3, 30)],
            retired: vec![],
        };
        assert_eq!(
            used(&before, "sha256:1", LIMIT, at(0)),
            None,
            "the newer ones were never used"
        );
        assert_eq!(used(&before, "sha256:9", LIMIT, at(0)), None);
        let after = used(&before, "sha256:2", LIMIT, at(0)).unwrap();
        assert_eq!(after.keys, [key(2, 20), key(3, 30)]);
        assert_eq!(after.retired.len(), 1);
        assert_eq!(
            used(&after, "sha256:2", LIMIT, at(0)),
            None,
            "only the first use"
        );
        let last = used(&after, "sha256:3", LIMIT, at(0)).unwrap();
        let names: Vec<_> = last.retired.iter().map(|key| &*key.fingerprint).collect();
        assert_eq!(names, ["sha256:1", "sha256:2"]);
        assert_eq!(
            used(
                &Identity {
                    keys: vec![key(3, 9), key(4, 9)],
                    ..last
                },
                "sha256:4",
                LIMIT,
                at(130)
            )
            .unwrap()
            .retired,
            []
        );
    }

    #[test]
    fn a_retired_key_is_seen_once_and_kept() {
        let before = Identity {
            keys: vec![key(1, 10), key(2, 20)],
            retired: vec![],
        };
        let retired = used(&before, "sha256:2", LIMIT, at(0)).unwrap();
        assert_eq!(
            with_retired_key_use(&retired, "sha256:2", at(5)),
            None,
            "it is in use"
        );
        assert_eq!(
            with_retired_key_use(&before, "sha256:1", at(5)),
            None,
            "it still holds"
        );
        let noted = with_retired_key_use(&retired, "sha256:1", at(5)).unwrap();
        assert_eq!(noted.retired[0].seen_at, Some(Time(at(5))));
        assert_eq!(with_retired_key_use(&noted, "sha256:1", at(6)), None);
        let later = Identity {
            keys: vec![key(2, 20), key(3, 30)],
            ..noted
        };
        let later = used(&later, "sha256:3", LIMIT, at(100_000)).unwrap();
        assert_eq!(
            later.retired.len(),
            1,
            "what was seen is not forgotten: {:?}",
            later.retired
        );
    }

    proptest! {
        #[test]
        fn older_keys_are_retired_and_recorded(
            number in 1usize..5, place in 0usize..5, old in 0usize..20, seen_ones in 0usize..4, now in 0i64..400,
        ) {
            let keys: Vec<_> = (0..number).map(|n| key(n, 300)).collect();
            let retired = (0..old).map(|n| RetiredKey {
                fingerprint: format!("old-{n}"),
                expires_at: Time(at(i64::try_from(n * 20).unwrap())),
                seen_at: (n < seen_ones).then(|| Time(at(1))),
            });
            let before = Identity { keys: keys.clone(), retired: retired.collect() };
            let after = used(&before, &format!("sha256:{place}"), LIMIT, at(now));
            prop_assert_eq!(after.is_some(), place > 0 && place < number);
            let Some(after) = after else { return Ok(()) };
            prop_assert_eq!(&after.keys[..], &keys[place..]);
            prop_assert!(after.retired.len() <= limits::RETIRED_KEYS);
            let remembers = |name: &str| after.retired.iter().any(|key| key.fingerprint == name);
            for gone in keys[..place].iter().filter(|_| now < 400) {
                prop_assert!(remembers(&gone.fingerprint));
            }
            for n in 0..seen_ones.min(old) {
                let name = format!("old-{n}");
                prop_assert!(remembers(&name));
            }
        }
    }
}
