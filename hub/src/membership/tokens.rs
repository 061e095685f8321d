//! The used tokens of a cluster. Each token is redeemed once, and only a few wrong secrets are
//! accepted, across restarts of the hub and changes of `spec.join`. A join that Git restores is not
//! a new join.
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use runnel_transport::identity::Token;

use super::Member;
use runnel_api::{Join, UsedToken, limits};

/// The number of wrong secrets that invalidates a token.
pub const WRONG_SECRETS: i32 = 5;

/// Whether the token has the id of this join, with the right secret or a wrong one. A client that
/// does not have the id, of 40 random bits, can neither redeem nor burn the token.
pub fn is_named(join: &Join, token: &Token) -> bool {
    token.matches(&join.token_hash) || join.token_id.as_deref() == Some(token.id())
}

/// Returns the tokens on record.
pub fn used(member: &Member) -> &[UsedToken] {
    &member.record().tokens
}

fn find<'a>(used: &'a [UsedToken], join: &Join) -> Option<&'a UsedToken> {
    used.iter().find(|used| used.token_hash == join.token_hash)
}

/// Whether so many wrong secrets were tried that even the right one is refused.
pub fn is_locked_out(used: &[UsedToken], join: &Join) -> bool {
    find(used, join)
        .is_some_and(|used| used.key_fingerprint.is_none() && used.wrong_secrets >= WRONG_SECRETS)
}

/// Whether a key has redeemed the join.
pub fn is_redeemed(used: &[UsedToken], join: &Join) -> bool {
    find(used, join).is_some_and(|used| used.key_fingerprint.is_some())
}

/// Whether the join is stored, or can be stored without dropping a token that has not expired.
pub fn has_room(used: &[UsedToken], join: &Join, now: Timestamp) -> bool {
    used.len() < limits::TOKENS
        || find(used, join).is_some()
        || used.iter().any(|used| is_over(used, now))
}

/// Returns the record of a join: the stored one, or a new one.
pub fn record(member: &Member, join: &Join) -> UsedToken {
    let known = find(used(member), join).cloned();
    let mut record = known.unwrap_or_else(|| UsedToken {
        token_hash: join.token_hash.clone(),
        ..UsedToken::default()
    });
    // A longer validity in the spec extends the record of the token and does not create another
    // one.
    let end = record
        .expires_at
        .take()
        .map_or(join.expires_at.0, |end| end.0.max(join.expires_at.0));
    record.expires_at = Some(Time(end));
    record
}

/// Returns the stored tokens with one more wrong secret for this join, and the number of its wrong
/// secrets.
pub fn with_failed_attempt(member: &Member, join: &Join, now: Timestamp) -> (Vec<UsedToken>, i32) {
    let mut record = record(member, join);
    record.wrong_secrets = record.wrong_secrets.saturating_add(1);
    let count = record.wrong_secrets;
    (with(member, record, now), count)
}

/// Returns the stored tokens with this record. At the limit the first expired ones are dropped. A
/// token that has not expired is never dropped.
pub fn with(member: &Member, record: UsedToken, now: Timestamp) -> Vec<UsedToken> {
    let mut all: Vec<UsedToken> = used(member)
        .iter()
        .filter(|used| used.token_hash != record.token_hash)
        .cloned()
        .collect();
    all.sort_by_key(|used| used.expires_at.as_ref().map(|end| end.0));
    while all.len() >= limits::TOKENS && is_over(&all[0], now) {
        all.remove(0);
    }
    all.push(record);
    all
}

fn is_over(used: &UsedToken, now: Timestamp) -> bool {
    used.expires_at.as_ref().is_none_or(|end| end.0 <= now)
}

#[cfg(test)]
mod tests {
    use super::*;
    use runnel_api::{MemberCluster, MemberClusterSpec, MemberRecord, MemberRecordSpec};

    fn at(seconds: i64) -> Timestamp {
        Timestamp::from_second(1_800_000_000 + seconds).unwrap()
    }

    fn join(n: i64, end: i64) -> Join {
        Join {
            token_hash: format!("sha256:{n:064x}"),
            token_id: None,
            expires_at: Time(at(end)),
        }
    }

    fn with_used(tokens: Vec<UsedToken>) -> Member {
        let cluster = MemberCluster::new("eu-3", MemberClusterSpec::default());
        let record = MemberRecordSpec {
            tokens,
            ..MemberRecordSpec::default()
        };
        let record = MemberRecord::new("eu-3", record);
        Member::new(cluster.into(), Some(record.into()))
    }

    #[test]
    fn unexpired_tokens_are_kept() {
        let mut member = with_used(Vec::new());
        for n in 0..16 {
            assert!(has_room(used(&member), &join(n, 100 + n), at(0)));
            member = with_used(with(&member, record(&member, &join(n, 100 + n)), at(0)));
        }
        assert!(!has_room(used(&member), &join(16, 200), at(99)));
        assert!(has_room(used(&member), &join(3, 103), at(99)));
        assert!(has_room(used(&member), &join(16, 200), at(100)));
        let all = with(&member, record(&member, &join(16, 200)), at(101));
        assert_eq!(all.len(), limits::TOKENS);
        assert!(find(&all, &join(0, 0)).is_none() && find(&all, &join(1, 0)).is_some());
        // A second record of the same join replaces the first one, and the later end is kept.
        let again = with(&with_used(all), record(&member, &join(3, 50)), at(0));
        assert_eq!(again.len(), limits::TOKENS);
        assert_eq!(
            find(&again, &join(3, 0)).unwrap().expires_at,
            Some(Time(at(103)))
        );
    }

    #[test]
    fn five_wrong_secrets_invalidate_an_unredeemed_token() {
        let mut member = with_used(Vec::new());
        for n in 1..=WRONG_SECRETS {
            assert!(!is_locked_out(used(&member), &join(1, 9)));
            let (tokens, count) = with_failed_attempt(&member, &join(1, 9), at(0));
            assert_eq!(count, n);
            member = with_used(tokens);
        }
        assert!(
            is_locked_out(used(&member), &join(1, 9)) && !is_locked_out(used(&member), &join(2, 9))
        );
        let mut redeemed = record(&member, &join(1, 9));
        redeemed.key_fingerprint = Some("k".to_owned());
        assert!(!is_locked_out(&[redeemed], &join(1, 9)));
    }
}
