use super::*;
use crate::live::Sealed;
use crate::policy::Facts;
use proptest::prelude::*;
use runnel_proto::model::SourceRef;

fn intent(rule: u8, source: u8) -> IntentKey {
    IntentKey {
        rule: format!("rule-{rule}").into(),
        source: SourceRef::new("configmaps", "team", &format!("s{source}")),
    }
}

fn ownerships() -> impl Strategy<Value = Ownership> {
    prop_oneof![Just(Ownership::Ours), Just(Ownership::Retained), Just(Ownership::Clone), Just(Ownership::Foreign)]
}

fn lives() -> impl Strategy<Value = Live> {
    let sealed = proptest::option::of((0u8..2, 0u8..2, 0u8..2));
    (ownerships(), sealed, any::<bool>(), any::<bool>()).prop_map(|(ownership, sealed, intact, terminating)| {
        let sealed = sealed.filter(|_| ownership == Ownership::Ours).map(|(rule, source, revision)| {
            let key = intent(rule, source);
            Sealed { rule: key.rule, source: key.source, revision: Revision([revision; 16]) }
        });
        Live {
            uid: "uid".into(),
            version: "1".into(),
            ownership,
            intact: intact && sealed.is_some(),
            facts: Facts::default(),
            sealed,
            terminating,
            applied_at: 0,
        }
    })
}

fn sights() -> impl Strategy<Value = Sight> {
    prop_oneof![Just(Sight::Unknown), Just(Sight::Absent), lives().prop_map(Sight::Live)]
}

fn places() -> impl Strategy<Value = Place> {
    prop_oneof![
        4 => Just(Place::Ready),
        1 => Just(Place::Missing),
        1 => Just(Place::ToCreate(None)),
        1 => Just(Place::ToCreate(Some(Trouble::new(Reason::Forbidden, "x")))),
        1 => Just(Place::Terminating),
    ]
}

fn wants() -> impl Strategy<Value = Want> {
    let copy = (0u8..2, 0u8..2, proptest::option::weighted(0.9, 0u8..2), places(), any::<[bool; 4]>());
    let copy = copy.prop_map(|(rule, source, revision, place, [suspend, trouble, hold, denied])| {
        Want::Copy(WantedCopy {
            intent: intent(rule, source),
            rule: RuleName::default(),
            revision: revision.map(|revision| Revision([revision; 16])),
            place,
            suspend,
            trouble: (trouble || hold).then(|| Trouble::new(Reason::TooLarge, "x")),
            hold,
            denied: denied.then(|| Trouble::new(Reason::Denied, "no")),
        })
    });
    let gone = (0u8..2, 0u8..2, any::<bool>(), any::<bool>()).prop_map(|(rule, source, retain, held)| {
        let policy = if retain { DeletionPolicy::Retain } else { DeletionPolicy::Delete };
        Want::Gone(intent(rule, source), RuleName::default(), Order { policy, held })
    });
    prop_oneof![1 => Just(Want::Nothing), 6 => copy, 3 => gone]
}

/// A small model of the API server: what an action leaves behind, given what is really there.
fn carry_out(action: &Action, want: &mut Want, there: &Sight) -> Sight {
    let written = |want: &Want| {
        let Want::Copy(wanted) = want else { unreachable!("only a wanted copy is written") };
        let sealed = Sealed {
            rule: wanted.intent.rule.clone(),
            source: wanted.intent.source.clone(),
            revision: wanted.revision.unwrap(),
        };
        Sight::Live(Live {
            uid: "uid".into(),
            version: "2".into(),
            ownership: Ownership::Ours,
            sealed: Some(sealed),
            intact: true,
            facts: Facts::default(),
            terminating: false,
            applied_at: 0,
        })
    };
    match action {
        Action::CreateNamespace => {
            if let Want::Copy(wanted) = want {
                wanted.place = Place::Ready;
            }
            there.clone()
        }
        // What the watch does not show may be absent, or there without our label.
        Action::Read if *there == Sight::Unknown => Sight::Absent,
        Action::Read => there.clone(),
        Action::Create => match there {
            Sight::Live(_) => there.clone(),
            Sight::Unknown | Sight::Absent => written(want),
        },
        Action::Change(_) | Action::Adopt(_) => written(want),
        Action::Delete(_) => Sight::Absent,
        Action::Retain(_) => match there {
            Sight::Live(live) => {
                Sight::Live(Live { ownership: Ownership::Retained, sealed: None, intact: false, ..live.clone() })
            }
            Sight::Unknown | Sight::Absent => there.clone(),
        },
    }
}

proptest! {
    #[test]
    fn after_a_few_actions_there_is_rest(mut want in wants(), mut sight in sights()) {
        for _ in 0..4 {
            let Verdict::Do(action) = decide(&want, &sight) else { break };
            sight = carry_out(&action, &mut want, &sight);
        }
        prop_assert!(!matches!(decide(&want, &sight), Verdict::Do(_)), "{want:?} {sight:?}");
    }

    #[test]
    fn a_written_copy_is_at_rest_at_once(want in wants(), sight in sights()) {
        let mut want = want;
        if let Verdict::Do(action @ (Action::Create | Action::Change(_) | Action::Adopt(_))) = decide(&want, &sight) {
            let after = carry_out(&action, &mut want, &sight);
            prop_assert!(matches!(decide(&want, &after), Verdict::Rest(Outcome::Applied | Outcome::Failed(_))));
        }
    }

    #[test]
    fn what_is_not_ours_is_never_changed_or_deleted(want in wants(), live in lives()) {
        let verdict = decide(&want, &Sight::Live(live.clone()));
        if matches!(live.ownership, Ownership::Foreign | Ownership::Clone) {
            prop_assert!(!matches!(
                verdict,
                Verdict::Do(Action::Change(_) | Action::Adopt(_) | Action::Delete(_) | Action::Retain(_))
            ));
        }
        if live.ownership == Ownership::Retained {
            prop_assert!(!matches!(verdict, Verdict::Do(Action::Change(_) | Action::Delete(_) | Action::Retain(_))));
        }
    }

    #[test]
    fn nothing_is_removed_without_an_order_for_its_intent(want in wants(), sight in sights()) {
        if let Verdict::Do(Action::Delete(_) | Action::Retain(_)) = decide(&want, &sight) {
            let (Want::Gone(intent, _, order), Sight::Live(live)) = (&want, &sight) else {
                return Err(TestCaseError::fail("no order"));
            };
            prop_assert!(!order.held);
            if let Some(sealed) = &live.sealed {
                prop_assert_eq!((&sealed.rule, &sealed.source), (&intent.rule, &intent.source));
            }
        }
    }

    #[test]
    fn a_terminating_copy_is_waited_for(want in wants(), live in lives()) {
        let live = Live { terminating: true, ..live };
        let verdict = decide(&want, &Sight::Live(live));
        prop_assert!(!matches!(verdict, Verdict::Do(action) if action != Action::CreateNamespace));
    }

    #[test]
    fn a_suspended_rule_acts_on_nothing(want in wants(), sight in sights()) {
        if let Want::Copy(mut wanted) = want {
            wanted.suspend = true;
            prop_assert!(!matches!(decide(&Want::Copy(wanted), &sight), Verdict::Do(_)));
        }
    }
}
