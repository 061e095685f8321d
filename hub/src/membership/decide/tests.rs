use std::sync::Arc;
use std::time::SystemTime;

use proptest::prelude::*;

use super::*;
use runnel_api::{MemberClusterSpec, MemberClusterStatus, MemberRecord, UsedToken};

fn at(seconds: i64) -> Timestamp {
    Timestamp::from_second(1_800_000_000 + seconds).unwrap()
}

fn print(name: &str) -> Fingerprint {
    Fingerprint::of_key(name.as_bytes())
}

fn member_cluster(token: &Token) -> MemberCluster {
    let join = Join {
        token_hash: token.hash(),
        token_id: Some(token.id().to_owned()),
        expires_at: Time(at(3600)),
    };
    let spec = MemberClusterSpec {
        join: Some(join),
        ..MemberClusterSpec::default()
    };
    let mut member = MemberCluster::new("eu-3", spec);
    member.metadata.uid = Some("uid-1".to_owned());
    member
}

fn member(token: &Token) -> Member {
    Member::new(member_cluster(token).into(), None)
}

/// Returns the member with another record.
fn with_record(member: &Member, record: MemberRecordSpec) -> Member {
    let record = MemberRecordSpec {
        member_uid: member.cluster.metadata.uid.clone().unwrap(),
        ..record
    };
    let record = MemberRecord::new("eu-3", record);
    Member::new(member.cluster.clone(), Some(record.into()))
}

fn with_keys(member: &Member, keys: Vec<KeyRecord>) -> Member {
    let mut record = member.record().clone();
    record.identity.keys = keys;
    with_record(member, record)
}

fn set(member: &mut Member, change: impl FnOnce(&mut MemberCluster)) {
    change(Arc::make_mut(&mut member.cluster));
}

fn peer(hub: &str, cluster: &str, uid: &str, key: &str, until: i64) -> PeerCertificate {
    PeerCertificate {
        id: SpiffeId::cluster(hub, cluster, uid).unwrap(),
        key: print(key),
        not_before: SystemTime::UNIX_EPOCH,
        not_after: SystemTime::from(at(until)),
        server: false,
        client: true,
    }
}

#[test]
fn cluster_belongs_to_one_member_until_another_replaces_it() {
    let token = Token::generate().unwrap();
    let named = |name: &str, uid: Option<&str>, age: i64| {
        let mut member = member_cluster(&token);
        member.metadata.name = Some(name.to_owned());
        member.metadata.creation_timestamp = Some(Time(at(-age)));
        member.status = Some(MemberClusterStatus {
            cluster_uid: uid.map(str::to_owned),
            ..MemberClusterStatus::default()
        });
        member
    };
    let (old, new) = (named("old", Some("u"), 9), named("new", None, 1));
    assert!(holds_cluster(&old, &new, "u"));
    assert!(!holds_cluster(&old, &new, "another cluster"));
    assert!(!holds_cluster(&new, &old, "u") && !holds_cluster(&old, &old, "u"));
    // Both were in one cluster before the hub refused that: the older one has it.
    let both = named("new", Some("u"), 1);
    assert!(holds_cluster(&old, &both, "u") && !holds_cluster(&both, &old, "u"));
    // A member that is older and never connected does not have it.
    let (first, second) = (named("a", None, 9), named("b", Some("u"), 1));
    assert!(holds_cluster(&second, &first, "u") && !holds_cluster(&first, &second, "u"));
    let mut renamed = both;
    renamed.metadata.annotations = Some([(REPLACES.to_owned(), "old".to_owned())].into());
    assert!(!holds_cluster(&old, &renamed, "u") && holds_cluster(&renamed, &old, "u"));
    assert_eq!(replaced(&renamed), Some("old"));
    let mut deleted = old;
    deleted.metadata.deletion_timestamp = Some(Time(at(0)));
    assert!(!holds_cluster(&deleted, &new, "u"));
    let invalid = [(REPLACES.to_owned(), "No name".to_owned())].into();
    renamed.metadata.annotations = Some(invalid);
    assert_eq!(replaced(&renamed), None);
}

#[test]
fn a_token_opens_its_own_cluster_in_time_only() {
    let (token, other) = (Token::generate().unwrap(), Token::generate().unwrap());
    let whole = member(&token);
    assert!(check_token(Some(&whole), "eu-3", &token, at(0)).is_ok());
    let wrong = Err(JoinRefusal::WrongToken("eu-3".to_owned()));
    assert_eq!(
        check_token(Some(&whole), "eu-3", &other, at(0)).map(drop),
        wrong
    );
    assert_eq!(check_token(None, "eu-3", &token, at(0)).map(drop), wrong);
    let mut without = whole.clone();
    set(&mut without, |cluster| cluster.spec.join = None);
    assert_eq!(
        check_token(Some(&without), "eu-3", &token, at(0)).map(drop),
        wrong
    );
    let late = check_token(Some(&whole), "eu-3", &token, at(3600)).map(drop);
    assert_eq!(late, Err(JoinRefusal::Expired("eu-3".to_owned())));
}

/// Returns a token with the same id and another secret.
fn guess(token: &Token) -> Token {
    let other = Token::generate().unwrap();
    Token::parse(&format!(
        "{}.{}",
        token.id(),
        other.expose().split_once('.').unwrap().1
    ))
    .unwrap()
}

#[test]
fn a_wrong_secret_counts_for_the_token_of_its_id_only() {
    let token = Token::generate().unwrap();
    let mut member = member(&token);
    let join = member.cluster.spec.join.clone().unwrap();
    let checked =
        |member: &Member, token: &Token| check_token(Some(member), "eu-3", token, at(0)).map(drop);
    assert_eq!(
        checked(&member, &guess(&token)),
        Err(JoinRefusal::WrongSecret("eu-3".to_owned()))
    );
    // A client without the token id gets the same answer.
    assert_eq!(
        JoinRefusal::WrongSecret("c".to_owned()).to_string()
            + JoinRefusal::WrongSecret("c".to_owned()).code(),
        JoinRefusal::WrongToken("c".to_owned()).to_string()
            + JoinRefusal::WrongToken("c".to_owned()).code()
    );
    assert_eq!(
        checked(&member, &Token::generate().unwrap()),
        Err(JoinRefusal::WrongToken("eu-3".to_owned()))
    );
    let burnt = UsedToken {
        wrong_secrets: tokens::WRONG_SECRETS,
        ..tokens::record(&member, &join)
    };
    let record = MemberRecordSpec {
        tokens: vec![burnt],
        ..MemberRecordSpec::default()
    };
    member = with_record(&member, record);
    for token in [&token, &guess(&token)] {
        assert_eq!(
            checked(&member, token),
            Err(JoinRefusal::LockedOut("eu-3".to_owned()))
        );
    }
    // A new token is valid. Without an id in the join its wrong secrets are not counted.
    let new = Token::generate().unwrap();
    let join = Join {
        token_hash: new.hash(),
        token_id: None,
        ..join
    };
    set(&mut member, |cluster| cluster.spec.join = Some(join));
    assert_eq!(checked(&member, &new), Ok(()));
    assert_eq!(
        checked(&member, &guess(&new)),
        Err(JoinRefusal::WrongToken("eu-3".to_owned()))
    );
}

#[test]
fn restored_join_stays_redeemed() {
    let (old, new) = (Token::generate().unwrap(), Token::generate().unwrap());
    let mut member = member(&old);
    let join = member.cluster.spec.join.clone().unwrap();
    for (token, key) in [(&old, "a"), (&new, "b")] {
        let join = Join {
            token_hash: token.hash(),
            ..join.clone()
        };
        set(&mut member, |cluster| {
            cluster.spec.join = Some(join.clone())
        });
        let redeemed = redeem(
            &member,
            "eu-3",
            &join,
            key_record(print(key), at(0), at(9)),
            at(0),
        )
        .unwrap();
        member = with_record(&member, redeemed);
    }
    // The join as Git restores it, with a longer validity.
    let back = Join {
        expires_at: Time(at(9999)),
        ..join
    };
    set(&mut member, |cluster| {
        cluster.spec.join = Some(back.clone())
    });
    assert!(check_token(Some(&member), "eu-3", &old, at(5000)).is_ok());
    let other = redeem(
        &member,
        "eu-3",
        &back,
        key_record(print("attacker"), at(1), at(9)),
        at(5000),
    );
    assert_eq!(other, Err(JoinRefusal::Spent("eu-3".to_owned())));
}

#[test]
fn rejected_cluster_does_not_spend_its_token() {
    let token = Token::generate().unwrap();
    let mut refused = member(&token);
    set(&mut refused, |cluster| cluster.spec.accepted = false);
    let answer = check_token(Some(&refused), "eu-3", &token, at(0)).map(drop);
    assert_eq!(answer, Err(JoinRefusal::NotAccepted("eu-3".to_owned())));
    // Only the holder of the token gets this answer.
    let stranger =
        check_token(Some(&refused), "eu-3", &Token::generate().unwrap(), at(0)).map(drop);
    assert_eq!(stranger, Err(JoinRefusal::WrongToken("eu-3".to_owned())));
    set(&mut refused, |cluster| {
        cluster.metadata.deletion_timestamp = Some(Time(at(0)));
    });
    let answer = check_token(Some(&refused), "eu-3", &token, at(0)).map(drop);
    assert_eq!(answer, Err(JoinRefusal::Deleting("eu-3".to_owned())));
}

#[test]
fn a_token_is_for_one_key_which_may_repeat() {
    let token = Token::generate().unwrap();
    let mut member = member(&token);
    let join = member.cluster.spec.join.clone().unwrap();
    let first = redeem(
        &member,
        "eu-3",
        &join,
        key_record(print("a"), at(0), at(9)),
        at(0),
    )
    .unwrap();
    member = with_record(&member, first.clone());
    let again = redeem(
        &member,
        "eu-3",
        &join,
        key_record(print("a"), at(1), at(10)),
        at(1),
    )
    .unwrap();
    assert_eq!((again.tokens, again.identity.keys.len()), (first.tokens, 1));
    let other = redeem(
        &member,
        "eu-3",
        &join,
        key_record(print("b"), at(1), at(10)),
        at(1),
    );
    assert_eq!(other, Err(JoinRefusal::Spent("eu-3".to_owned())));
    // A new token is valid for a new key, and the old key is removed.
    let new = Join {
        token_hash: Token::generate().unwrap().hash(),
        ..join
    };
    let redeemed = redeem(
        &member,
        "eu-3",
        &new,
        key_record(print("b"), at(1), at(10)),
        at(1),
    )
    .unwrap();
    assert_eq!(
        redeemed.identity.keys,
        [key_record(print("b"), at(1), at(10))]
    );
}

#[test]
fn only_a_recorded_key_of_the_cluster_is_accepted() {
    let token = Token::generate().unwrap();
    let whole = with_keys(
        &member(&token),
        vec![key_record(print("a"), at(0), at(100))],
    );
    let admitted = |member: Option<&Member>, peer| admit(member, "hubid", &peer, at(50));
    assert_eq!(
        admitted(Some(&whole), peer("hubid", "eu-3", "uid-1", "a", 100)),
        Ok(())
    );
    let gone = Err(JoinRefusal::Gone("eu-3".to_owned()));
    assert_eq!(
        admitted(None, peer("hubid", "eu-3", "uid-1", "a", 100)),
        gone
    );
    // A new member of the name says nothing about the former cluster, except that it is not accepted.
    assert_eq!(
        admitted(Some(&whole), peer("hubid", "eu-3", "uid-2", "a", 100)),
        Err(JoinRefusal::Recreated("eu-3".to_owned()))
    );
    assert_eq!(
        admitted(Some(&whole), peer("other", "eu-3", "uid-1", "a", 100)),
        gone
    );
    assert_eq!(
        admitted(Some(&whole), peer("hubid", "eu-33", "uid-1", "a", 100)),
        Err(JoinRefusal::Gone("eu-33".to_owned()))
    );
    let unknown = Err(JoinRefusal::UnknownKey("eu-3".to_owned()));
    assert_eq!(
        admitted(Some(&whole), peer("hubid", "eu-3", "uid-1", "b", 100)),
        unknown
    );
    let expired = Err(JoinRefusal::CertificateExpired("eu-3".to_owned()));
    assert_eq!(
        admitted(Some(&whole), peer("hubid", "eu-3", "uid-1", "a", 50)),
        expired
    );
    let mut cut = whole;
    set(&mut cut, |cluster| cluster.spec.accepted = false);
    let refused = Err(JoinRefusal::NotAccepted("eu-3".to_owned()));
    for uid in ["uid-1", "uid-2"] {
        assert_eq!(
            admitted(Some(&cut), peer("hubid", "eu-3", uid, "a", 100)),
            refused
        );
    }
}

#[test]
fn member_created_again_inherits_no_key_and_no_token() {
    let token = Token::generate().unwrap();
    let before = member(&token);
    let join = before.cluster.spec.join.clone().unwrap();
    let key = || key_record(print("a"), at(0), at(100));
    let before = with_record(
        &before,
        redeem(&before, "eu-3", &join, key(), at(0)).unwrap(),
    );
    let mut cluster = member_cluster(&token);
    cluster.metadata.uid = Some("uid-2".to_owned());
    // The garbage collector has not deleted the record yet.
    let record = before.stored().cloned().map(Into::into);
    let again = Member::new(cluster.into(), record);
    assert!(again.stored().is_none() && *again.record() == runnel_api::NO_RECORD);
    for (uid, refusal) in [
        ("uid-1", JoinRefusal::Recreated("eu-3".to_owned())),
        ("uid-2", JoinRefusal::UnknownKey("eu-3".to_owned())),
    ] {
        let peer = peer("hubid", "eu-3", uid, "a", 100);
        let refused = admit(Some(&again), "hubid", &peer, at(50));
        assert_eq!(refused, Err(refusal));
    }
    assert!(!tokens::is_redeemed(tokens::used(&again), &join));
}

#[test]
fn join_keeps_the_pending_removals() {
    let token = Token::generate().unwrap();
    let pending_removals = vec![runnel_api::PendingRemoval::default()];
    let record = MemberRecordSpec {
        pending_removals: pending_removals.clone(),
        ..MemberRecordSpec::default()
    };
    let away = with_record(&member(&token), record);
    let join = away.cluster.spec.join.clone().unwrap();
    let key = key_record(print("a"), at(0), at(9));
    let redeemed = redeem(&away, "eu-3", &join, key, at(0)).unwrap();
    assert_eq!(redeemed.pending_removals, pending_removals);
}

#[test]
fn an_expired_certificate_may_be_renewed_for_a_while() {
    let token = Token::generate().unwrap();
    let whole = with_keys(
        &member(&token),
        vec![key_record(print("a"), at(0), at(100))],
    );
    let limit = Duration::from_secs(1000);
    let renewal = |member: Option<&Member>, key, now| {
        admit_renewal(
            member,
            "hubid",
            &peer("hubid", "eu-3", "uid-1", key, 100),
            limit,
            at(now),
        )
        .map(drop)
    };
    for now in [50, 100, 1099] {
        assert_eq!(renewal(Some(&whole), "a", now), Ok(()));
    }
    assert_eq!(
        renewal(Some(&whole), "a", 1100),
        Err(JoinRefusal::ExpiredTooLong("eu-3".to_owned()))
    );
    assert_eq!(
        renewal(Some(&whole), "b", 200),
        Err(JoinRefusal::UnknownKey("eu-3".to_owned()))
    );
    assert_eq!(
        renewal(None, "a", 200),
        Err(JoinRefusal::Gone("eu-3".to_owned()))
    );
    let mut cut = whole.clone();
    set(&mut cut, |cluster| cluster.spec.accepted = false);
    assert_eq!(
        renewal(Some(&cut), "a", 200),
        Err(JoinRefusal::NotAccepted("eu-3".to_owned()))
    );
    let keys = &whole.record().identity.keys;
    assert_eq!(renewable_until(keys, limit), Some(at(1100)));
    assert_eq!(renewable_until(&[], limit), None);
}

#[test]
fn every_refusal_names_the_cluster_and_a_hint() {
    let all = [
        JoinRefusal::WrongToken("c".into()),
        JoinRefusal::WrongSecret("c".into()),
        JoinRefusal::LockedOut("c".into()),
        JoinRefusal::TooManyTokens("c".into()),
        JoinRefusal::Expired("c".into()),
        JoinRefusal::Spent("c".into()),
        JoinRefusal::TooManyTries("c".into()),
        JoinRefusal::NotAccepted("c".into()),
        JoinRefusal::Deleting("c".into()),
        JoinRefusal::Gone("c".into()),
        JoinRefusal::Unclear("c".into()),
        JoinRefusal::Recreated("c".into()),
        JoinRefusal::UnknownKey("c".into()),
        JoinRefusal::RetiredKey("c".into()),
        JoinRefusal::CertificateExpired("c".into()),
        JoinRefusal::ExpiredTooLong("c".into()),
    ];
    for refusal in all {
        let text = refusal.to_string();
        assert!(text.contains("cluster c") && text.contains(": "), "{text}");
    }
}

proptest! {
    #[test]
    fn keys_are_bounded_and_include_the_newest(
        ages in prop::collection::vec((0i64..200, 0i64..200), 0..8),
        caller in 0usize..8,
    ) {
        let record = |n: usize, issued, end| key_record(print(&n.to_string()), at(issued), at(end));
        let keys: Vec<_> = ages.iter().enumerate().map(|(n, (issued, end))| record(n, *issued, *end)).collect();
        let new = record(99, 100, 300);
        let caller_key = print(&caller.to_string());
        let kept = renewed(&keys, &caller_key, new.clone(), at(100));
        prop_assert!(kept.len() <= limits::KEYS);
        prop_assert_eq!(kept.last(), Some(&new));
        let had_caller = caller < keys.len();
        prop_assert_eq!(kept.iter().any(|key| key.fingerprint == caller_key.to_string()), had_caller);
        let live = |key: &KeyRecord| key.expires_at.0 > at(100) || key.fingerprint == caller_key.to_string();
        prop_assert!(kept.iter().all(live));
    }
}

/// A name and one that is similar to it, or equal.
fn names() -> impl Strategy<Value = (String, String)> {
    let name = prop_oneof![
        "(c1|c10|c100|eu-3|c-1|c.1|a|1)",
        "[a-c]{1,2}[0-2]{0,2}",
        "(C1|c1/|c1:|c%31|%63%31|\u{441}1|c\u{661}|c1/uid-1|../c1)",
        any::<String>(),
    ];
    (name, 0usize..14).prop_map(|(name, how)| {
        let other = match how {
            0 => format!("{name}0"),
            1 => name
                .chars()
                .take(name.chars().count().saturating_sub(1))
                .collect(),
            2 => name.to_uppercase(),
            3 => name.replace('c', "\u{441}"),
            4 => format!("{name}/"),
            5 => format!("{name}:8443"),
            6 => name.bytes().map(|byte| format!("%{byte:02x}")).collect(),
            7 => name.replace('.', "%2e"),
            8 => format!("{name}/uid-1"),
            9 => format!("{name}."),
            10 => format!(" {name}"),
            11 => format!("{name}\u{200b}"),
            12 => format!("x/../{name}"),
            _ => name.clone(),
        };
        (name, other)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(10_000))]

    #[test]
    fn certificate_gives_access_to_its_cluster_only((ours, theirs) in names(), swapped in any::<bool>()) {
        let (ours, theirs) = if swapped { (theirs, ours) } else { (ours, theirs) };
        let mut member = with_keys(&member(&Token::generate().unwrap()), vec![key_record(print("k"), at(0), at(100))]);
        set(&mut member, |cluster| cluster.metadata.name = Some(ours.clone()));
        let built = SpiffeId::cluster("hubid", &theirs, "uid-1");
        let read = SpiffeId::parse(&format!("spiffe://hubid/cluster/{theirs}/uid-1"));
        // The key and the uid are those of the cluster, so only the name differs.
        for id in [built, read] {
            let valid = runnel_transport::identity::is_cluster_name(&theirs);
            prop_assert_eq!(id.is_ok(), valid, "{:?}", theirs);
            let Ok(id) = id else { continue };
            let peer = PeerCertificate { id, ..peer("hubid", "x", "uid-1", "k", 100) };
            let opens = admit(Some(&member), "hubid", &peer, at(50)).is_ok();
            let renews = admit_renewal(Some(&member), "hubid", &peer, Duration::ZERO, at(50)).is_ok();
            prop_assert_eq!((opens, renews), (ours == theirs, ours == theirs), "{:?} and {:?}", ours, theirs);
        }
    }
}
