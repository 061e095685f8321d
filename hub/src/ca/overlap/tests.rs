use std::collections::BTreeSet;
use std::sync::Arc;

use proptest::prelude::*;
use runnel_transport::identity::{Ca, Token};

use super::*;
use crate::membership::Member as RecordedMember;
use runnel_api::{
    Identity, Join, KeyRecord, MemberCluster, MemberClusterSpec, MemberRecord, MemberRecordSpec,
};

const MINUTE: Duration = Duration::from_secs(60);
const LIFE: Duration = Duration::from_secs(60 * 60);
const RENEWABLE: Duration = Duration::from_secs(10 * 60 * 60);
const OVERLAP: Duration = Duration::from_secs(11 * 60 * 60);

fn start() -> SystemTime {
    SystemTime::UNIX_EPOCH + Duration::from_secs(1_800_000_000)
}

fn ca() -> Ca {
    Ca::generate("hubid", start()).unwrap()
}

fn id(ca: &Ca) -> Fingerprint {
    Fingerprint::of_ca(ca.certificate())
}

fn with_overlap(known: TrustedCas, ca: &Ca, now: SystemTime) -> TrustedCas {
    known.with_overlap(
        ca.sign_hub("hubid", now, TrustedCas::overlap_validity(OVERLAP))
            .unwrap(),
    )
}

fn stamp(time: SystemTime) -> k8s_openapi::apimachinery::pkg::apis::meta::v1::Time {
    k8s_openapi::apimachinery::pkg::apis::meta::v1::Time(Timestamp::try_from(time).unwrap())
}

/// Returns a member with certificates of these CAs, each with its end.
fn member(keys: &[(Option<Fingerprint>, SystemTime)]) -> RecordedMember {
    let record = |(number, (ca, end)): (usize, &(Option<Fingerprint>, SystemTime))| KeyRecord {
        fingerprint: Fingerprint::of_key(&number.to_be_bytes()).to_string(),
        issued_at: stamp(start()),
        expires_at: stamp(*end),
        ca: ca.map(|print| print.to_string()),
    };
    let cluster = MemberCluster::new("eu-1", MemberClusterSpec::default());
    let keys = keys.iter().enumerate().map(record).collect();
    let record = MemberRecordSpec {
        identity: Identity {
            keys,
            ..Identity::default()
        },
        ..MemberRecordSpec::default()
    };
    RecordedMember::new(
        cluster.into(),
        Some(MemberRecord::new("eu-1", record).into()),
    )
}

fn needs(members: &[RecordedMember]) -> Needs {
    let mut needs = Needs::default();
    members
        .iter()
        .for_each(|member| needs.add(member, RENEWABLE));
    needs
}

fn ids(known: &TrustedCas) -> Vec<Fingerprint> {
    known.entries().iter().map(|entry| entry.id).collect()
}

#[test]
fn written_state_reads_back_without_ca_keys() {
    let (old, new) = (ca(), ca());
    let known = with_overlap(
        TrustedCas::default().switched(old.certificate(), start()),
        &old,
        start(),
    );
    let known = known.switched(new.certificate(), start() + MINUTE);
    let bytes = known.write();
    let read = TrustedCas::read(&bytes).unwrap();
    assert!(read == known);
    assert_eq!(read.entries()[1].replaced, Some(start() + MINUTE));
    let pair = read.entries()[1].serving(start() + 2 * MINUTE).unwrap();
    assert_eq!(
        (&pair.chain[1], pair.not_after),
        (old.certificate(), start() + 2 * OVERLAP)
    );
    assert!(read.entries()[0].serving(start()).is_none());
    let text = String::from_utf8(bytes).unwrap();
    for ca in [&old, &new] {
        let key = ca.key_pem();
        let body: Vec<_> = key
            .lines()
            .filter(|line| !line.starts_with("---"))
            .collect();
        assert!(body.iter().all(|line| !text.contains(line)));
    }
    for bad in ["", "{}", "{\"cas\":[{\"certificate\":\"x\"}]}"] {
        assert!(TrustedCas::read(bad.as_bytes()).is_none(), "{bad}");
    }
}

#[test]
fn returning_ca_is_listed_once() {
    let (old, new) = (ca(), ca());
    let known = TrustedCas::default().switched(old.certificate(), start());
    let known = known
        .switched(new.certificate(), start())
        .switched(old.certificate(), start() + MINUTE);
    assert_eq!(ids(&known), [id(&old), id(&new)]);
    assert_eq!(known.entries()[0].replaced, None);
    assert_eq!(known.entries()[1].replaced, Some(start() + MINUTE));
    assert!(known.clone().switched(old.certificate(), start() + LIFE) == known);
}

#[test]
fn overlap_certificate_outlasts_the_overlap() {
    let own = ca();
    let mut known = TrustedCas::default().switched(own.certificate(), start());
    let mut made = 0;
    for hour in 0..100 {
        let now = start() + hour * LIFE;
        if known.needs_overlap(OVERLAP, now) {
            known = with_overlap(known, &own, now);
            made += 1;
        }
        assert!(known.entries()[0].spare.as_ref().unwrap().not_after >= now + OVERLAP);
    }
    assert!(made < 25, "{made}");
    // Near its own end a CA cannot issue a certificate that is valid for longer than itself.
    let late = own.not_after() - MINUTE;
    let known = with_overlap(known, &own, late);
    assert!(!known.needs_overlap(OVERLAP, late));
}

#[test]
fn former_ca_stays_exactly_as_long_as_needed() {
    let (old, new) = (ca(), ca());
    let replaced = start() + MINUTE;
    let known = TrustedCas::default()
        .switched(old.certificate(), start())
        .switched(new.certificate(), replaced);
    let kept = |members: &[RecordedMember], now| {
        known
            .clone()
            .retired(&needs(members), OVERLAP, now)
            .entries()
            .len()
            == 2
    };
    let (now, end) = (replaced + MINUTE, start() + LIFE);
    assert!(!kept(&[], now));
    assert!(!kept(&[member(&[(Some(id(&new)), end)])], now));
    let of_old = member(&[(Some(id(&old)), end)]);
    assert!(kept(
        &[of_old.clone(), member(&[(Some(id(&new)), end)])],
        now
    ));
    // A certificate that has expired can be renewed for a while.
    assert!(kept(
        std::slice::from_ref(&of_old),
        end + RENEWABLE - MINUTE
    ));
    assert!(!kept(std::slice::from_ref(&of_old), end + RENEWABLE));
    // A member that was not observed to use its new key may still connect with the old one.
    assert!(kept(
        &[member(&[
            (Some(id(&old)), end),
            (Some(id(&new)), end + LIFE)
        ])],
        now
    ));
    // Records without a CA may belong to any CA.
    assert!(kept(&[member(&[(None, end)])], now));
    let mut revoked = of_old;
    Arc::make_mut(&mut revoked.cluster).spec.accepted = false;
    assert!(!kept(&[revoked], now));
    let mut joining = MemberCluster::new("eu-2", MemberClusterSpec::default());
    let token_hash = Token::generate().unwrap().hash();
    let mut kept_until = |expires_at, now| {
        joining.spec.join = Some(Join {
            token_hash: token_hash.clone(),
            token_id: None,
            expires_at: stamp(expires_at),
        });
        kept(&[RecordedMember::new(joining.clone().into(), None)], now)
    };
    assert!(kept_until(end, end - MINUTE) && !kept_until(end, end));
    // An open join that is valid for years does not keep a CA.
    let years = end + 100 * OVERLAP;
    assert!(kept_until(years, replaced + OVERLAP - MINUTE));
    assert!(!kept_until(years, replaced + OVERLAP));
}

#[derive(Clone, Debug)]
enum Step {
    /// Another CA is stored in the Secret: one of these, perhaps a former one.
    Change(usize),
    /// A member joins or renews its certificate.
    Renew(usize),
    /// A member connects and receives the CAs. Its certificate is still from a former one.
    Informed(usize),
    /// So many minutes elapse.
    Wait(u64),
    /// The hub restarts with the stored state.
    Restart,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        2 => (0..6_usize).prop_map(Step::Change),
        4 => (0..3_usize).prop_map(Step::Renew),
        2 => (0..3_usize).prop_map(Step::Informed),
        3 => (1..240_u64).prop_map(Step::Wait),
        1 => Just(Step::Restart),
    ]
}

/// The state of a member: the CAs that it trusts, the CA that signed its certificate, and the end
/// of its certificate.
#[derive(Clone, Default)]
struct Member {
    trusted: BTreeSet<Fingerprint>,
    signed: Option<Fingerprint>,
    end: Option<SystemTime>,
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Every member that can still renew always trusts a CA with which the hub serves. Its
    /// certificate is always of a CA that the hub trusts.
    #[test]
    fn hub_and_member_always_trust_each_other(steps in prop::collection::vec(step(), 1..60)) {
        let cas: Vec<_> = (0..6).map(|_| ca()).collect();
        let (mut now, mut current) = (start(), 0);
        let mut known = with_overlap(TrustedCas::default().switched(cas[0].certificate(), now), &cas[0], now);
        let mut members = vec![Member::default(); 3];
        for step in steps {
            match step {
                Step::Change(other) => current = other,
                Step::Renew(who) => {
                    let first = known.entries().first().map(|first| first.id);
                    members[who] = Member { trusted: ids(&known).into_iter().collect(), signed: first, end: Some(now + LIFE) };
                }
                Step::Informed(who) if members[who].end.is_some_and(|end| now < end) => {
                    members[who].trusted = ids(&known).into_iter().collect();
                }
                Step::Informed(_) => {}
                Step::Wait(minutes) => now += Duration::from_secs(60 * minutes),
                Step::Restart => known = TrustedCas::read(&known.write()).unwrap(),
            }
            let signing = &cas[current];
            known = known.switched(signing.certificate(), now);
            if known.needs_overlap(OVERLAP, now) {
                known = with_overlap(known, signing, now);
            }
            let on_record: Vec<_> = members.iter().filter_map(|m| Some(member(&[(m.signed, m.end?)]))).collect();
            known = known.retired(&needs(&on_record), OVERLAP, now);
            prop_assert_eq!(ids(&known)[0], id(signing));
            let served: BTreeSet<_> = known.entries().iter().filter(|e| e.serving(now).is_some()).map(|e| e.id).collect();
            for member in members.iter().filter(|m| m.end.is_some_and(|end| now < end + RENEWABLE)) {
                let Some(signed) = member.signed else { continue };
                prop_assert!(ids(&known).contains(&signed), "its certificate is refused");
                prop_assert!(!member.trusted.is_disjoint(&served), "it believes nothing that the hub has");
            }
            // When every member has a certificate of the signing CA, no former CA is kept.
            if members.iter().all(|m| m.signed.is_none() || m.signed == Some(id(signing))) && members.iter().any(|m| m.signed.is_some()) {
                prop_assert_eq!(known.entries().len(), 1);
            }
        }
    }
}
