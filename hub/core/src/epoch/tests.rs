use k8s_openapi::api::coordination::v1::{Lease, LeaseSpec};
use proptest::prelude::*;
use runnel_proto::model::RevisionKey;

use super::*;
use crate::lease::Step;
use crate::session::SendRestriction;

mod histories;
#[path = "../../../../proto/src/lease/tests/simulation.rs"]
mod simulation;

const EPOCH: &str = "0a1b2c3d-0000-4000-8000-000000000001";

fn random(process: u64) -> String {
    format!("{process:016x}")
}

/// The Lease of a hub, and its leader.
#[derive(Clone, Default)]
struct Hub {
    line: LeaderHistory,
    version: u64,
    term: u64,
    now: u64,
    since: u64,
}

impl Hub {
    fn lease(&self) -> Lease {
        let mut lease = Lease {
            spec: Some(LeaseSpec::default()),
            ..Lease::default()
        };
        lease.metadata.resource_version = Some(self.version.to_string());
        lease.metadata.uid = Some(EPOCH.to_owned());
        lease
    }

    /// A process takes the Lease with the history from its annotation.
    fn take(&mut self, process: u64) {
        self.term += 1;
        let taken = self.line.clone().with_new_term(
            Some(&self.lease()),
            (EPOCH, self.term),
            &random(process),
        );
        self.line = LeaderHistory::parse(&taken.to_string());
        self.renew();
        self.since = self.now;
    }

    fn renew(&mut self) {
        (self.version, self.now) = (self.version + 3, self.now + 2);
    }

    fn issue(&self, to: TokenRecipient) -> HistoryToken {
        HistoryToken::of(self.line.newest().unwrap(), (self.version, self.now), to)
    }

    fn judge(&self, history_token: &HistoryToken, to: TokenRecipient) -> Option<Divergence> {
        judge(
            &Facts {
                line: &self.line,
                since: self.since,
                to,
            },
            history_token,
        )
    }
}

fn to() -> TokenRecipient {
    TokenRecipient::new("member", "cluster")
}

#[test]
fn history_token_opens_only_with_its_key() {
    let mut hub = Hub::default();
    hub.take(7);
    let (key, history_token) = (RevisionKey::new(b"one"), hub.issue(to()));
    let sealed = history_token.seal(&key);
    assert!(
        sealed.len() <= runnel_proto::HISTORY_TOKEN_LIMIT,
        "{}",
        sealed.len()
    );
    assert_eq!(HistoryToken::open(&sealed, &key), Some(history_token));
    assert_eq!(HistoryToken::open(&sealed, &RevisionKey::new(b"two")), None);
    for cut in 0..sealed.len() {
        assert_eq!(HistoryToken::open(&sealed[..cut], &key), None);
        let mut other = sealed.to_vec();
        other[cut] ^= 1;
        assert_eq!(HistoryToken::open(&other, &key), None, "byte {cut}");
    }
}

#[test]
fn restored_hub_is_detected_with_any_version() {
    let mut hub = Hub::default();
    hub.take(1);
    hub.renew();
    let backup = hub.clone();
    let known = hub.issue(to());
    hub.renew();
    let lost = hub.issue(to());
    assert_eq!(
        (hub.judge(&known, to()), hub.judge(&lost, to())),
        (None, None)
    );
    let mut restored = Hub {
        version: backup.version,
        now: hub.now + 60,
        ..backup.clone()
    };
    restored.take(2);
    for _ in 0..1000 {
        restored.renew();
    }
    assert_eq!(restored.judge(&known, to()), None);
    let divergence = restored.judge(&lost, to()).unwrap();
    assert!(
        matches!(&divergence, Divergence::Restored { .. })
            && divergence.restriction() == SendRestriction::Everything
    );
    // Also after others have led, and by what name it is confirmed stays the same.
    restored.take(3);
    assert_eq!(
        restored.judge(&lost, to()).unwrap().name(),
        divergence.name()
    );
    let mut later = restored.clone();
    for process in 10..200 {
        later.take(process);
    }
    assert_eq!(later.judge(&lost, to()).unwrap().name(), divergence.name());
    // A process that led only in the lost time is unknown.
    let mut hub = Hub {
        now: hub.now,
        ..backup
    };
    hub.take(4);
    assert!(
        matches!(restored.judge(&hub.issue(to()), to()), Some(Divergence::Restored { by, .. }) if by != divergence.name())
    );
}

#[test]
fn second_hub_is_distinguished_from_a_restored_one() {
    let mut first = Hub::default();
    first.take(1);
    let mut second = first.clone();
    second.take(2);
    first.renew();
    // The clocks need not agree to the second.
    assert!(matches!(
        second.judge(&first.issue(to()), to()),
        Some(Divergence::Restored { .. })
    ));
    for _ in 0..5 {
        first.renew();
    }
    assert!(matches!(
        second.judge(&first.issue(to()), to()),
        Some(Divergence::Doubled { .. })
    ));
    assert_eq!(first.judge(&first.issue(to()), to()), None);
    assert!(first.judge(&second.issue(to()), to()).is_some());
}

#[test]
fn approval_of_one_member_or_cluster_serves_no_other() {
    let mut hub = Hub::default();
    hub.take(1);
    for (other, member) in [
        (TokenRecipient::new("other", "cluster"), true),
        (TokenRecipient::new("member", "other"), false),
    ] {
        match hub.judge(&hub.issue(other), to()) {
            Some(divergence @ Divergence::PreviousMembership { other_member, .. }) => {
                assert_eq!(
                    (other_member, divergence.restriction()),
                    (member, SendRestriction::Removals)
                );
            }
            divergence => panic!("{divergence:?}"),
        }
    }
}

#[test]
fn divergence_message_has_cause_and_command() {
    let issued_at = jiff::Timestamp::from_second(1_800_000_000).unwrap();
    let by = || "7-00000000000000aa".to_owned();
    let all = [
        Divergence::Restored {
            by: by(),
            issued_at,
        },
        Divergence::Doubled {
            by: by(),
            issued_at,
        },
        Divergence::Cloned {
            known: "one".to_owned(),
            other: "two".to_owned(),
        },
        Divergence::PreviousMembership {
            former: "00000000000000bb".to_owned(),
            other_member: true,
        },
    ];
    for divergence in all {
        let message = divergence.message("eu-1");
        let command = format!(
            "`kubectl annotate member eu-1 --overwrite runnel.dev/confirmed={}`",
            divergence.name()
        );
        assert!(
            message.contains(&command) && message.len() <= runnel_api::limits::MESSAGE,
            "{message}"
        );
    }
}

#[test]
fn missing_or_malformed_lease_is_no_divergence() {
    let mut hub = Hub::default();
    hub.take(1);
    let issued = hub.issue(to());
    let remade = hub
        .line
        .clone()
        .with_new_term(None, ("", 1), &random(2))
        .with_lease_uid("ffffffff-0000-4000-8000-000000000002");
    let facts = Facts {
        line: &LeaderHistory::parse(&remade.to_string()),
        since: 0,
        to: to(),
    };
    assert_eq!(judge(&facts, &issued), None);
    assert_eq!(
        LeaderHistory::parse("rubbish a/b/c/d 1/2 //// x"),
        LeaderHistory::default()
    );
    let rubbish = LeaderHistory::parse("rubbish 00/1/00/ ");
    assert_eq!(rubbish.to_string(), "00/1/00/");
}

#[test]
fn absence_over_many_leader_changes_is_no_divergence() {
    let mut hub = Hub::default();
    hub.take(0);
    let mut issued = vec![hub.issue(to())];
    for process in 1..3 * leader_history::MAX_ENTRIES as u64 {
        hub.take(process);
        if process % 7 == 0 {
            issued.push(hub.issue(to()));
        }
        assert_eq!(
            issued
                .iter()
                .find_map(|history_token| hub.judge(history_token, to())),
            None,
            "after {process} changes"
        );
    }
    // The annotation has a bound.
    assert!(
        hub.line.to_string().len() < 10 * 1024,
        "{}",
        hub.line.to_string().len()
    );
    // A restore is still noticed, however many have led before and while the newest of them are known.
    let backup = hub.clone();
    hub.renew();
    let lost = [hub.issue(to()), {
        hub.take(9_000);
        hub.issue(to())
    }];
    let mut restored = backup;
    for process in 10_000..10_000 + leader_history::MAX_ENTRIES as u64 - 1 {
        restored.take(process);
        assert!(
            lost.iter()
                .all(|history_token| restored.judge(history_token, to()).is_some()),
            "{process}"
        );
    }
}

#[test]
fn lease_deleted_once_is_no_divergence_after_changes() {
    let mut hub = Hub::default();
    hub.take(1);
    let issued = hub.issue(to());
    let line = hub
        .line
        .clone()
        .with_new_term(None, ("", 1), &random(2))
        .with_lease_uid("ffffffff-0000-4000-8000-000000000002");
    hub.line = LeaderHistory::parse(&line.to_string());
    hub.renew();
    for process in 3..2 * leader_history::MAX_ENTRIES as u64 {
        hub.take(process);
        assert_eq!(hub.judge(&issued, to()), None, "after {process} changes");
    }
}

proptest! {
    /// A hub that was never restored recognizes all of its tokens later, and so do its later
    /// leaders.
    #[test]
    fn history_of_an_honest_hub_never_diverges(steps in proptest::collection::vec(0..4u8, 1..120)) {
        let mut hub = Hub::default();
        hub.take(0);
        let (mut issued, mut process) = (vec![hub.issue(to())], 0);
        for step in steps {
            match step {
                0 => { process += 1; hub.take(process); }
                1 => issued.push(hub.issue(to())),
                // Another client writes to the Lease.
                2 => hub.version += 1,
                _ => hub.renew(),
            }
            for history_token in &issued {
                prop_assert_eq!(hub.judge(history_token, to()), None);
            }
        }
    }

    /// A hub that was restored from a backup does not accept tokens that were issued two renewals
    /// after the backup, for any sequence of leaders.
    #[test]
    fn unknown_history_after_a_restore_always_diverges(
        before in proptest::collection::vec(any::<bool>(), 0..10),
        lost in proptest::collection::vec(any::<bool>(), 1..10),
        since in proptest::collection::vec(any::<bool>(), 0..200),
    ) {
        let mut process = 0;
        let mut run = |hub: &mut Hub, steps: Vec<bool>| for takes in steps {
            process += 1;
            if takes { hub.take(process) } else { hub.renew() }
        };
        let mut hub = Hub::default();
        hub.take(1000);
        run(&mut hub, before);
        let backup = hub.clone();
        run(&mut hub, lost);
        let history_token = hub.issue(to());
        let mut restored = backup;
        restored.take(2000);
        run(&mut restored, since);
        prop_assert!(restored.judge(&history_token, to()).is_some());
    }
}
