use super::*;

const NAME: LeaseName = LeaseName {
    name: "runnel-hub",
    component: "hub",
};
const TIMING: Timing = Timing {
    lease: Duration::from_secs(15),
    renew: Duration::from_secs(10),
    interval: Duration::from_secs(2),
    retry: Duration::from_secs(2),
};

fn me(name: &str, random: &str, is_unique: bool) -> Holder {
    Holder {
        name: name.into(),
        is_unique,
        random: random.into(),
        address: Some(format!("{name}:8444")),
    }
}

fn candidate(name: &str) -> Candidate {
    Candidate::new(NAME, me(name, "0", true), TIMING)
}

fn at(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn stored(mut lease: Lease, uid: &str, version: u64) -> Lease {
    lease.metadata.uid = Some(uid.into());
    lease.metadata.resource_version = Some(version.to_string());
    lease
}

fn foreign(uid: &str, version: u64, holder: &str, term: i32) -> Lease {
    let spec = LeaseSpec {
        holder_identity: Some(holder.into()),
        lease_transitions: Some(term),
        lease_duration_seconds: Some(15),
        // Renews, with the time of the write.
        renew_time: Some(MicroTime(
            Timestamp::from_second(i64::try_from(version).unwrap()).unwrap(),
        )),
        ..LeaseSpec::default()
    };
    stored(
        Lease {
            spec: Some(spec),
            ..Lease::default()
        },
        uid,
        version,
    )
}

fn next(candidate: &mut Candidate, now: Instant) -> Step {
    candidate.next(true, now, Timestamp::UNIX_EPOCH)
}

fn replaced(step: Step) -> Lease {
    match step {
        Step::Replace(lease) | Step::Create(lease) => lease,
        other => panic!("{other:?}"),
    }
}

#[test]
fn times_that_do_not_fit_are_refused_by_the_flag() {
    let second = Duration::from_secs;
    assert!(Timing::new(second(15), second(10), second(2)).is_ok());
    let wrong = |lease, renew, retry| Timing::new(lease, renew, retry).unwrap_err().to_string();
    assert!(wrong(second(121), second(10), second(2)).contains("--lease-duration"));
    assert!(wrong(second(10), second(10), second(2)).contains("--renew-deadline"));
    assert!(wrong(second(15), second(10), second(10)).contains("--retry-period"));
    assert!(wrong(second(15), second(10), second(0)).contains("--retry-period"));
}

#[test]
fn the_first_makes_the_lease_and_renews_it() {
    let (start, mut a) = (Instant::now(), candidate("a"));
    assert_eq!(next(&mut a, start), Step::Read);
    a.observe(None, start);
    assert!(
        matches!(a.next(false, start, Timestamp::UNIX_EPOCH), Step::Wait(_)),
        "it does not know enough to lead"
    );
    let made = replaced(next(&mut a, start));
    assert_eq!(holder(&made), Some("a_0"));
    a.record_write(stored(made, "e1", 1), start, start + at(1));
    let lead = a.lead(start + at(1)).unwrap().clone();
    assert_eq!(
        lead,
        Lead {
            epoch: "e1".into(),
            term: 1,
            valid_until: start + at(10)
        }
    );
    assert_eq!(next(&mut a, start + at(1)), Step::Wait(start + at(2)));
    let renewed = replaced(next(&mut a, start + at(2)));
    a.record_write(stored(renewed, "e1", 2), start + at(2), start + at(2));
    assert_eq!(a.lead(start + at(3)).unwrap().valid_until, start + at(12));
    // No renewal succeeds: the lead ends, and the next one is another term.
    a.failed(false, start + at(11));
    assert_eq!(next(&mut a, start + at(11)), Step::Wait(start + at(12)));
    assert_eq!(a.lead(start + at(12)), None);
    let again = replaced(next(&mut a, start + at(13)));
    assert_eq!(term(&again), 2);
}

#[test]
fn candidate_waits_from_its_last_observed_change() {
    let (start, mut b) = (Instant::now(), candidate("b"));
    b.observe(Some(foreign("e1", 5, "a_0", 3)), start);
    assert_eq!(
        b.leader(),
        Some(Leader {
            identity: "a_0".into(),
            address: None
        })
    );
    assert!(matches!(next(&mut b, start), Step::Wait(_)));
    b.received(Some(foreign("e1", 6, "a_0", 3)), start + at(10));
    assert_eq!(next(&mut b, start + at(20)), Step::Read);
    b.observe(Some(foreign("e1", 6, "a_0", 3)), start + at(20));
    assert_eq!(next(&mut b, start + at(23)), Step::Wait(start + at(24)));
    let taken = replaced(next(&mut b, start + at(25)));
    assert_eq!((holder(&taken), term(&taken)), (Some("b_0"), 4));
    assert_eq!(taken.metadata.resource_version.as_deref(), Some("6"));
}

#[test]
fn lease_touched_by_others_does_not_delay_failover() {
    let (start, mut b) = (Instant::now(), candidate("b"));
    let silent = foreign("e1", 5, "a_0", 3);
    b.observe(Some(silent.clone()), start);
    // Some controller annotates the Lease again and again; its holder is dead.
    let mut version = 5;
    for second in [4, 8, 12] {
        version += 1;
        b.received(
            Some(stored(silent.clone(), "e1", version)),
            start + at(second),
        );
        assert!(matches!(next(&mut b, start + at(second)), Step::Wait(_)));
    }
    let taken = replaced(next(&mut b, start + at(15)));
    assert_eq!((holder(&taken), term(&taken)), (Some("b_0"), 4));
    assert_eq!(taken.metadata.resource_version, Some(version.to_string()));
}

#[test]
fn nothing_is_passed_on_to_a_predecessor_at_the_same_address() {
    let start = Instant::now();
    let mut before = candidate("a");
    before.observe(None, start);
    let made = stored(replaced(next(&mut before, start)), "e1", 1);
    let mut again = Candidate::new(NAME, me("a", "1", false), TIMING);
    again.observe(Some(made), start);
    assert_eq!(
        again.leader(),
        Some(Leader {
            identity: "a_0".into(),
            address: None
        })
    );
}

#[test]
fn free_permits_are_taken_at_once() {
    let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
    a.observe(Some(foreign("e1", 5, "", 3)), start);
    let taken = replaced(next(&mut a, start));
    a.record_write(stored(taken.clone(), "e1", 6), start, start);
    b.observe(Some(stored(taken, "e1", 6)), start);
    assert_eq!(
        b.leader().and_then(|leader| leader.address),
        Some("a:8444".into())
    );
    let released = a.release().unwrap();
    assert_eq!(a.lead(start), None);
    b.received(Some(stored(released, "e1", 7)), start + at(1));
    assert_eq!(term(&replaced(next(&mut b, start + at(1)))), 5);
    assert_eq!(b.release(), None);
}

#[test]
fn successor_of_its_own_name_skips_the_wait_only_at_start() {
    let start = Instant::now();
    let mut again = Candidate::new(NAME, me("a", "1", true), TIMING);
    again.observe(Some(foreign("e1", 5, "a_0", 3)), start);
    assert_eq!(term(&replaced(next(&mut again, start))), 4);
    // A name that other processes may have proves nothing.
    let mut unnamed = Candidate::new(NAME, me("a", "1", false), TIMING);
    unnamed.observe(Some(foreign("e1", 5, "a_0", 3)), start);
    assert!(matches!(next(&mut unnamed, start), Step::Wait(_)));
    // After a process has met a holder, a holder with its own name is no predecessor.
    let mut second = Candidate::new(NAME, me("a", "1", true), TIMING);
    second.observe(Some(foreign("e1", 5, "b_0", 3)), start);
    second.observe(Some(foreign("e1", 6, "a_0", 4)), start);
    assert!(matches!(next(&mut second, start), Step::Wait(_)));
}

#[test]
fn deleted_lease_is_created_when_its_holder_has_ended() {
    let (start, mut a, mut b) = (Instant::now(), candidate("a"), candidate("b"));
    a.observe(None, start);
    let made = stored(replaced(next(&mut a, start)), "e1", 1);
    a.record_write(made.clone(), start, start);
    b.observe(Some(made), start);
    a.received(None, start + at(1));
    assert_eq!(next(&mut a, start + at(2)), Step::Read);
    a.observe(None, start + at(2));
    assert_eq!(a.lead(start + at(2)), None);
    let made = replaced(next(&mut a, start + at(2)));
    assert_eq!(
        (made.metadata.uid, made.metadata.resource_version),
        (None, None)
    );
    b.observe(None, start + at(14));
    b.observe(None, start + at(20));
    assert_eq!(next(&mut b, start + at(28)), Step::Read);
    assert!(matches!(next(&mut b, start + at(29)), Step::Create(_)));
}

#[test]
fn a_restored_lease_does_not_bring_old_terms_back() {
    let (start, mut a) = (Instant::now(), candidate("a"));
    a.observe(Some(foreign("e1", 5, "", 7)), start);
    let taken = stored(replaced(next(&mut a, start)), "e1", 6);
    a.record_write(taken, start, start);
    // Restored from a backup, with an old state.
    a.observe(Some(foreign("e1", 3, "z_9", 2)), start + at(1));
    assert_eq!(a.lead(start + at(1)), None);
    a.observe(Some(foreign("e1", 3, "z_9", 2)), start + at(15));
    assert_eq!(term(&replaced(next(&mut a, start + at(16)))), 9);
    // With our own name in it, but not our term.
    a.observe(Some(foreign("e1", 4, "a_0", 3)), start + at(17));
    assert_eq!(term(&replaced(next(&mut a, start + at(17)))), 9);
}

#[test]
fn malformed_lease_blocks_no_process() {
    let start = Instant::now();
    for seconds in [None, Some(0), Some(-5), Some(i32::MAX)] {
        let mut a = candidate("a");
        let mut lease = foreign("e1", 1, "no underscore, and far too long", -3);
        lease.spec.as_mut().unwrap().lease_duration_seconds = seconds;
        a.observe(Some(lease), start);
        assert_eq!(term(&replaced(next(&mut a, start + at(15)))), 1);
    }
    let mut a = candidate("a");
    a.observe(Some(stored(Lease::default(), "e1", 1)), start);
    assert_eq!(term(&replaced(next(&mut a, start))), 1);
    let mut a = candidate("a");
    a.observe(Some(foreign("e1", 1, "", i32::MAX)), start);
    assert_eq!(next(&mut a, start), Step::Remove("e1".into()));
}

#[test]
fn late_watch_event_deposes_no_leader() {
    let (start, mut a) = (Instant::now(), candidate("a"));
    a.observe(Some(foreign("e1", 5, "", 7)), start);
    let taken = stored(replaced(next(&mut a, start)), "e1", 9);
    a.record_write(taken.clone(), start, start);
    a.received(Some(foreign("e1", 4, "z_9", 6)), start);
    a.received(Some(taken), start);
    assert!(a.lead(start + at(1)).is_some());
    assert_eq!(
        next(&mut a, start + at(2)),
        Step::Read,
        "it looks for itself"
    );
}

mod histories;
mod simulation;

#[test]
fn lease_taken_as_it_was_first_seen_was_free_since_then() {
    let start = Instant::now();
    let take = |candidate: &mut Candidate, version: u64, after: u64| {
        let taken = stored(replaced(next(candidate, start + at(after))), "e1", version);
        candidate.record_write(taken, start + at(after), start + at(after));
        candidate.free_since()
    };
    let free = |version| foreign("e1", version, "", 3);
    let mut a = candidate("a");
    a.observe(Some(free(5)), start);
    a.observe(Some(free(5)), start + at(1));
    assert_eq!(take(&mut a, 6, 2), Some(start));
    assert_eq!(take(&mut a, 7, 4), None, "a renewal takes nothing");
    // A dead process of its own name has led until then.
    let mut again = Candidate::new(NAME, me("a", "1", true), TIMING);
    again.observe(Some(foreign("e1", 7, "a_0", 3)), start);
    assert_eq!(take(&mut again, 8, 1), Some(start));
    // Another process may have led in between.
    let mut b = candidate("b");
    b.observe(Some(free(5)), start);
    b.observe(Some(free(9)), start + at(3));
    assert_eq!(take(&mut b, 10, 4), Some(start + at(3)));
    let mut c = candidate("c");
    c.observe(Some(free(5)), start);
    c.observe(Some(foreign("e1", 6, "d_0", 4)), start + at(1));
    assert_eq!(take(&mut c, 7, 20), None);
}

#[test]
fn rare_renewals_are_retried_often() {
    let timing = Timing {
        lease: at(100),
        renew: at(90),
        interval: at(60),
        retry: at(5),
    };
    let start = Instant::now();
    let mut a = Candidate::new(NAME, me("a", "0", true), timing);
    a.observe(None, start);
    let made = stored(replaced(next(&mut a, start)), "e1", 1);
    a.record_write(made, start, start);
    assert_eq!(next(&mut a, start + at(59)), Step::Wait(start + at(60)));
    replaced(next(&mut a, start + at(60)));
    a.failed(false, start + at(61));
    assert_eq!(next(&mut a, start + at(62)), Step::Wait(start + at(66)));
    replaced(next(&mut a, start + at(66)));
    assert!(a.lead(start + at(89)).is_some() && a.lead(start + at(90)).is_none());
}
