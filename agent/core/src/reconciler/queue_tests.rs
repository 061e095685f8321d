use super::*;
use proptest::prelude::*;

fn none(_: &Key) -> Option<RuleUid> {
    None
}

fn key(name: &str) -> Key {
    Key::Copy(SourceRef::new("configmaps", "a", name))
}

#[test]
fn a_key_runs_once_at_a_time_and_again_if_it_changed_meanwhile() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key("x"));
    queue.add(&key("x"));
    assert_eq!(queue.pop(now, 8, none), Some(key("x")));
    assert_eq!(queue.pop(now, 8, none), None);
    queue.add(&key("x"));
    assert_eq!(queue.pop(now, 8, none), None);
    queue.done(&key("x"), now);
    assert_eq!(queue.pop(now, 8, none), Some(key("x")));
    queue.done(&key("x"), now);
    assert!(queue.is_empty());
}

#[test]
fn failing_key_waits_alone_until_its_intent_changes() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    let later = now + Duration::from_secs(60);
    queue.add(&key("bad"));
    queue.add(&key("good"));
    assert_eq!(queue.pop(now, 1, none), Some(key("bad")));
    assert_eq!(queue.failures(&key("bad")), 1);
    queue.failed(&key("bad"), later, now);
    assert_eq!(queue.pop(now, 1, none), Some(key("good")));
    queue.done(&key("good"), now);
    queue.add(&key("bad"));
    assert_eq!(queue.pop(now, 1, none), None);
    assert_eq!(queue.failures(&key("bad")), 2);
    assert_eq!(queue.next_due(), Some(later));
    queue.add_fresh(&key("bad"));
    assert_eq!(queue.pop(now, 1, none), Some(key("bad")));
    assert_eq!(queue.failures(&key("bad")), 1);
}

#[test]
fn a_cancelled_key_does_not_run() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add(&key("a"));
    queue.add_at(&key("b"), now);
    queue.cancel(&key("a"));
    queue.cancel(&key("b"));
    assert_eq!(queue.pop(now, 8, none), None);
    queue.add(&key("a"));
    assert_eq!(queue.pop(now, 8, none), Some(key("a")));
    assert_eq!(queue.pop(now, 8, none), None);
}

#[test]
fn an_earlier_time_wins() {
    let (mut queue, now) = (Queue::default(), Instant::now());
    queue.add_at(&key("a"), now + Duration::from_secs(30));
    queue.add_at(&key("a"), now + Duration::from_secs(5));
    queue.add_at(&key("a"), now + Duration::from_secs(50));
    assert_eq!(queue.next_due(), Some(now + Duration::from_secs(5)));
    assert_eq!(
        queue.pop(now + Duration::from_secs(5), 8, none),
        Some(key("a"))
    );
}

/// Returns the key of a copy of this rule in this namespace.
fn copy(namespace: usize, rule: usize, number: usize) -> Key {
    Key::Copy(SourceRef::new(
        "configmaps",
        &format!("n{namespace}"),
        &format!("r{rule}-{number}"),
    ))
}

fn rule_of(key: &Key) -> Option<RuleUid> {
    match key {
        Key::Copy(copy) => copy.name.split_once('-').map(|(rule, _)| rule.into()),
        _ => None,
    }
}

const LIMIT: usize = 8;

/// Runs the queue until it is empty, and returns the start of each key. `time`: the duration of the
/// run of a key.
fn play(
    queue: &mut Queue,
    start: Instant,
    time: impl Fn(&Key) -> Duration,
) -> BTreeMap<Key, Duration> {
    let (mut now, mut begun, mut ends) = (start, BTreeMap::new(), BTreeSet::new());
    for _ in 0..100_000 {
        while let Some(key) = queue.pop(now, LIMIT, rule_of) {
            begun.insert(key.clone(), now - start);
            ends.insert((now + time(&key), key));
            assert!(ends.len() <= LIMIT * WITH_SLOW);
        }
        let next = queue
            .next_due()
            .filter(|due| *due > now)
            .into_iter()
            .chain(ends.first().map(|(at, _)| *at))
            .min();
        let Some(next) = next else { break };
        now = next;
        while let Some((at, key)) = ends.first().cloned().filter(|(at, _)| *at <= now) {
            ends.remove(&(at, key.clone()));
            queue.done(&key, now);
        }
    }
    assert!(
        queue.is_empty()
            && queue.runs.is_empty()
            && queue.parked.is_empty()
            && queue.quick.is_empty()
    );
    begun
}

#[test]
fn hanging_namespace_delays_others_by_the_slow_limit_once() {
    let (mut queue, start) = (Queue::default(), Instant::now());
    for number in 0..80 {
        queue.add(&copy(0, number, 0));
    }
    let quick = copy(1, 100, 0);
    queue.add(&quick);
    let time = |key: &Key| {
        if *key == quick {
            Duration::from_millis(5)
        } else {
            Duration::from_secs(30)
        }
    };
    let begun = play(&mut queue, start, time);
    assert_eq!(begun[&quick], SLOW);
    // The queue has recorded the namespace as slow, so that it gets only its share.
    for number in 0..80 {
        queue.add(&copy(0, number, 0));
    }
    queue.add(&quick);
    let begun = play(&mut queue, start + Duration::from_secs(100_000), time);
    assert_eq!(begun[&quick], Duration::ZERO);
}

#[test]
fn parked_key_that_is_cancelled_does_not_run() {
    let (mut queue, start) = (Queue::default(), Instant::now());
    for number in 0..4 {
        queue.add(&copy(0, 0, number));
    }
    for _ in 0..SHARE {
        assert!(queue.pop(start, SHARE, rule_of).is_some());
    }
    let later = start + SLOW;
    assert_eq!(queue.pop(later, LIMIT, rule_of), None);
    assert_eq!(queue.take_parked(), [copy(0, 0, 2), copy(0, 0, 3)]);
    queue.cancel(&copy(0, 0, 2));
    queue.done(&copy(0, 0, 0), later);
    assert_eq!(queue.pop(later, LIMIT, rule_of), Some(copy(0, 0, 3)));
    assert_eq!(
        (
            queue.parked.len(),
            queue.lanes[&Group::Rule("r0".into())].parked.len()
        ),
        (0, 0)
    );
}

proptest! {
    /// At most two namespaces and one rule hang. A key whose namespace and rule have no hanging run
    /// starts within `5 * SLOW`, and every key runs.
    #[test]
    fn keys_of_quick_groups_wait_for_no_hanging_ones(
        keys in proptest::collection::vec((0usize..8, 0usize..8), 1..200),
        slow_namespaces in proptest::collection::btree_set(0usize..8, 0..3),
        slow_rules in proptest::collection::btree_set(0usize..8, 0..2),
        seconds in 3u64..40,
    ) {
        let (mut queue, start) = (Queue::default(), Instant::now());
        for (number, (namespace, rule)) in keys.iter().enumerate() {
            queue.add(&copy(*namespace, *rule, number));
        }
        let hangs = |namespace: &usize, rule: &usize| slow_namespaces.contains(namespace) || slow_rules.contains(rule);
        let slow: BTreeSet<Key> = keys.iter().enumerate().filter(|(_, (n, r))| hangs(n, r)).map(|(i, (n, r))| copy(*n, *r, i)).collect();
        let time = |key: &Key| if slow.contains(key) { Duration::from_secs(seconds) } else { Duration::from_millis(10) };
        let begun = play(&mut queue, start, time);
        prop_assert_eq!(begun.len(), keys.len());
        for (number, (namespace, rule)) in keys.iter().enumerate().filter(|(_, (n, r))| !hangs(n, r)) {
            // Whether its namespace or its rule has a run that hangs.
            let shared = slow.iter().any(|key| match key {
                Key::Copy(other) => *other.namespace == format!("n{namespace}") || other.name.starts_with(&format!("r{rule}-")),
                _ => false,
            });
            let at = begun[&copy(*namespace, *rule, number)];
            prop_assert!(shared || at < SLOW * 5, "{at:?}");
        }
    }
}
