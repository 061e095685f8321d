use super::*;
use crate::live::Sealed;
use crate::policy::Facts;
use crate::preview::preview;
use proptest::prelude::*;
use runnel_proto::model::{PreviewOutcome, SourceRef};

fn intent(rule: u8, source: u8) -> IntentKey {
    IntentKey {
        rule: format!("rule-{rule}").into(),
        source: SourceRef::new("configmaps", "team", &format!("s{source}")),
    }
}

fn ownerships() -> impl Strategy<Value = Ownership> {
    prop_oneof![
        3 => Just(Ownership::Ours),
        1 => Just(Ownership::Retained),
        1 => Just(Ownership::Clone),
        1 => Just(Ownership::OtherHub),
        1 => Just(Ownership::OtherMember),
        1 => Just(Ownership::Untouchable),
        2 => Just(Ownership::Foreign),
    ]
}

fn lives() -> impl Strategy<Value = Live> {
    let sealed = proptest::option::of((0u8..2, 0u8..2, 0u8..2, ignored()));
    let flags = (any::<bool>(), any::<bool>(), proptest::bool::weighted(0.3));
    (ownerships(), sealed, flags).prop_map(|(ownership, sealed, (intact, terminating, adopted))| {
        let sealed = sealed.filter(|_| ownership == Ownership::Ours).map(
            |(rule, source, revision, ignored)| {
                let key = intent(rule, source);
                Sealed {
                    rule: key.rule,
                    source: key.source,
                    revision: Revision([revision; 16]),
                    ignored,
                }
            },
        );
        Live {
            uid: "uid".into(),
            version: "1".into(),
            ownership,
            adopted: adopted && ownership == Ownership::Ours,
            unproved: None,
            intact: intact && sealed.is_some(),
            facts: Facts::default(),
            others: None,
            sealed: sealed.map(Box::new),
            is_shared: false,
            is_widened: false,
            terminating: terminating.then(|| "since".into()),
            number: 0,
            newest: false,
            names_member: true,
            applied_at: 0,
            health: None,
            finished: false,
            feedback: None,
        }
    })
}

#[test]
fn conflict_names_object_manager_and_hint() {
    let live = |ownership, who: Option<&str>| Live {
        uid: "uid".into(),
        version: "1".into(),
        ownership,
        adopted: ownership == Ownership::Ours,
        unproved: None,
        intact: false,
        facts: Facts::default(),
        others: who.map(Into::into),
        sealed: None,
        is_shared: false,
        is_widened: false,
        terminating: None,
        number: 0,
        newest: false,
        names_member: true,
        applied_at: 0,
        health: None,
        finished: false,
        feedback: None,
    };
    let text = |ownership, who| conflict(&live(ownership, who)).message.to_string();
    assert_eq!(
        text(Ownership::Foreign, Some("helm")),
        "an object that is not Runnel's exists here (written by helm); delete it or rename it"
    );
    assert_eq!(
        text(Ownership::Clone, Some("kubectl-create")),
        "an object that was cloned from another copy exists here (written by kubectl-create); delete it or rename it"
    );
    assert_eq!(
        text(Ownership::OtherHub, None),
        "a copy of another hub exists here; delete it or rename it"
    );
    assert_eq!(
        text(Ownership::Untouchable, None),
        "the object is created by this cluster itself, and is never taken over; leave the source out of the rule \
         (exclude), or give its copy another name (transform.name)"
    );
    assert_eq!(
        text(Ownership::Retained, None),
        "an object that was retained from an earlier copy exists here with other content; delete it or rename it"
    );
    assert_eq!(
        &*differs(&live(Ownership::Ours, Some("helm"))).message,
        "an object that Runnel did not create exists here and differs from the source (written by helm); to have it follow \
         its source, set conflictPolicy: Overwrite, where the grant (policies.overwrite) and this member's policy \
         (overwrite) allow it; or delete it"
    );
    assert_eq!(
        &*differs(&live(Ownership::Foreign, Some("argocd-controller"))).message,
        "an object that is not Runnel's exists here (written by argocd-controller); delete it or rename it; its content \
         differs from the source's, so it is not adopted"
    );
}

fn observed_copies() -> impl Strategy<Value = Observed> {
    prop_oneof![
        Just(Observed::Unknown),
        Just(Observed::Absent),
        lives().prop_map(Observed::Live)
    ]
}

fn places() -> impl Strategy<Value = TargetNamespace> {
    prop_oneof![
        4 => Just(TargetNamespace::Ready),
        1 => Just(TargetNamespace::Missing),
        1 => Just(TargetNamespace::ToCreate(None)),
        1 => Just(TargetNamespace::ToCreate(Some(CopyError::new(Reason::Forbidden, "x")))),
        1 => Just(TargetNamespace::Terminating),
    ]
}

fn ignored() -> impl Strategy<Value = BTreeSet<FieldPath>> {
    any::<bool>().prop_map(|some| {
        some.then(|| FieldPath::parse("/data/k").unwrap())
            .into_iter()
            .collect()
    })
}

fn policies() -> impl Strategy<Value = Policies> {
    let takeover = prop_oneof![
        Just(Takeover::Never),
        Just(Takeover::IfEqual),
        Just(Takeover::Always),
        Just(Takeover::Denied(CopyError::new(Reason::Denied, "no"))),
    ];
    let drift = prop_oneof![Just(DriftPolicy::Correct), Just(DriftPolicy::Report)];
    (takeover, drift, any::<bool>(), ignored()).prop_map(|(takeover, drift, recreate, ignored)| {
        Policies {
            version: None,
            create_only: false,
            takeover,
            drift,
            recreate,
            ignored,
        }
    })
}

fn wants() -> impl Strategy<Value = DesiredCopy> {
    let rare = || proptest::bool::weighted(0.2);
    let flags = [rare(), rare(), rare(), rare(), rare(), rare(), rare()];
    let copy = (
        0u8..2,
        0u8..2,
        proptest::option::weighted(0.9, 0u8..2),
        places(),
        flags,
        policies(),
    );
    let copy = copy.prop_map(|(rule, source, revision, place, flags, policies)| {
        let [
            suspend,
            copy_error,
            is_ambiguous,
            denied,
            contention,
            lost,
            finished,
        ] = flags;
        DesiredCopy::Copy(Box::new(WantedCopy {
            intent: intent(rule, source),
            rule: RuleName::default(),
            revision: revision.map(|revision| Revision([revision; 16])),
            place,
            dry_run: false,
            suspend,
            copy_error: (copy_error || is_ambiguous).then(|| CopyError::new(Reason::TooLarge, "x")),
            is_ambiguous,
            denied: denied.then(|| CopyError::new(Reason::Denied, "no")),
            policies,
            contention: contention.then(|| CopyError::new(Reason::Contended, "somebody")),
            lost,
            rewritten: false,
            finished,
            orphaned: false,
            compared: None,
        }))
    });
    let gone = (0u8..2, 0u8..2, any::<[bool; 3]>()).prop_map(
        |(rule, source, [retain, deferred, overwrites])| {
            let policy = if retain {
                DeletionPolicy::Retain
            } else {
                DeletionPolicy::Delete
            };
            DesiredCopy::Absent(
                intent(rule, source),
                RuleName::default(),
                Order {
                    policy,
                    deferred,
                    needs_approval: false,
                    overwrites,
                    dry_run: false,
                },
            )
        },
    );
    prop_oneof![1 => Just(DesiredCopy::Nothing), 6 => copy, 3 => gone]
}

proptest! {
    #[test]
    fn only_own_copy_of_a_secret_is_reported_as_equal(want in wants(), live in lives()) {
        let secret = |source: &SourceRef| SourceRef::new("secrets", &source.namespace, &source.name);
        let (mut want, mut live) = (want, live);
        if let DesiredCopy::Copy(wanted) = &mut want {
            wanted.intent.source = secret(&wanted.intent.source);
            if let Some(sealed) = &mut live.sealed {
                sealed.source = secret(&sealed.source);
            }
            let sealed = live.sealed.as_ref().map(|sealed| (&sealed.rule, &sealed.source));
            let is_own = sealed == Some((&wanted.intent.rule, &wanted.intent.source));
            let (is_own, observed) = (is_own && live.is_own(), Observed::Live(live));
            prop_assert_eq!(crate::preview::is_undisclosed(&want, &observed), !is_own);
        }
    }
}

/// A small model of the API server: returns the state after an action on the actual state `there`.
fn carry_out(action: &Action, want: &mut DesiredCopy, there: &Observed) -> Observed {
    let adopted = matches!(action, Action::Adopt(_))
        && !matches!(there, Observed::Live(live) if live.ownership == Ownership::Retained);
    let written = |want: &DesiredCopy| {
        let DesiredCopy::Copy(wanted) = want else {
            unreachable!("only a wanted copy is written")
        };
        let sealed = Sealed {
            rule: wanted.intent.rule.clone(),
            source: wanted.intent.source.clone(),
            revision: wanted.revision.unwrap(),
            ignored: wanted.policies.ignored.clone(),
        };
        Observed::Live(Live {
            uid: "uid".into(),
            version: "2".into(),
            ownership: Ownership::Ours,
            adopted,
            sealed: Some(Box::new(sealed)),
            unproved: None,
            intact: true,
            facts: Facts::default(),
            others: None,
            is_shared: false,
            is_widened: false,
            terminating: None,
            number: 0,
            newest: false,
            names_member: true,
            applied_at: 0,
            health: None,
            finished: false,
            feedback: None,
        })
    };
    match action {
        Action::CreateNamespace => {
            if let DesiredCopy::Copy(wanted) = want {
                wanted.place = TargetNamespace::Ready;
            }
            there.clone()
        }
        // An object that the watch does not show may be absent, or exist without our label.
        Action::Read if *there == Observed::Unknown => Observed::Absent,
        Action::Read => there.clone(),
        Action::Create => match there {
            Observed::Live(_) => there.clone(),
            Observed::Unknown | Observed::Absent => written(want),
        },
        Action::Change(_) | Action::Adopt(_) | Action::Overwrite(_) => written(want),
        Action::Demote(_) => match there {
            Observed::Live(live) => Observed::Live(Live {
                newest: false,
                names_member: true,
                ..live.clone()
            }),
            Observed::Unknown | Observed::Absent => there.clone(),
        },
        Action::Compare(target) => {
            if let DesiredCopy::Copy(wanted) = want {
                wanted.compared = Some((
                    target.version.clone(),
                    CopyError::new(Reason::Drifted, "so"),
                ));
            }
            there.clone()
        }
        Action::Delete(_) => Observed::Absent,
        Action::Retain(_) => match there {
            Observed::Live(live) => {
                let ownership = if live.adopted {
                    Ownership::Foreign
                } else {
                    Ownership::Retained
                };
                Observed::Live(Live {
                    ownership,
                    adopted: false,
                    sealed: None,
                    intact: false,
                    ..live.clone()
                })
            }
            Observed::Unknown | Observed::Absent => there.clone(),
        },
    }
}

proptest! {
    #[test]
    fn few_actions_reach_a_fixed_point(mut want in wants(), mut observed in observed_copies()) {
        for _ in 0..4 {
            let Decision::Act(action) = decide(&want, &observed) else { break };
            observed = carry_out(&action, &mut want, &observed);
        }
        prop_assert!(!matches!(decide(&want, &observed), Decision::Act(_)), "{want:?} {observed:?}");
    }

    #[test]
    fn written_copy_needs_no_further_action(want in wants(), observed in observed_copies()) {
        let mut want = want;
        if let Decision::Act(
            action @ (Action::Create | Action::Change(_) | Action::Adopt(_) | Action::Overwrite(_))
        ) = decide(&want, &observed) {
            let after = carry_out(&action, &mut want, &observed);
            prop_assert!(matches!(decide(&want, &after), Decision::Noop(CopyStatus::Applied | CopyStatus::Failed(_))));
        }
    }

    #[test]
    fn foreign_object_changes_only_by_policy_and_is_never_deleted(want in wants(), live in lives()) {
        let Decision::Act(action) = decide(&want, &Observed::Live(live.clone())) else { return Ok(()) };
        if live.is_own() {
            prop_assert!(!matches!(action, Action::Adopt(_) | Action::Overwrite(_)));
            return Ok(());
        }
        let is_ours = live.ownership == Ownership::Ours;
        let overwrites = matches!(&want, DesiredCopy::Absent(_, _, order) if order.overwrites);
        let takeover = match &want {
            DesiredCopy::Copy(wanted) => wanted.policies.takeover.clone(),
            DesiredCopy::Absent(..) | DesiredCopy::OlderVersion(..) | DesiredCopy::Nothing => Takeover::Never,
        };
        match action {
            Action::Retain(_) | Action::Demote(_) if is_ours => {}
            Action::Delete(_) if is_ours => prop_assert!(overwrites),
            Action::Change(_) | Action::Delete(_) | Action::Retain(_) | Action::Demote(_) | Action::Compare(_) => {
                return Err(TestCaseError::fail("it is not ours"));
            }
            Action::Overwrite(_) => prop_assert_eq!(takeover, Takeover::Always),
            // The job checks the equality, against the observed version.
            Action::Adopt(_) => {
                let by_policy = matches!(takeover, Takeover::IfEqual);
                let other = [Ownership::OtherHub, Ownership::OtherMember];
                let equal = by_policy && !other.contains(&live.ownership);
                prop_assert!(equal || live.ownership == Ownership::Retained);
            }
            Action::CreateNamespace | Action::Read | Action::Create => {}
        }
        prop_assert!(live.ownership != Ownership::Untouchable || action == Action::CreateNamespace);
    }

    #[test]
    fn drifted_copy_is_left_until_the_next_revision(want in wants(), observed in observed_copies()) {
        let DesiredCopy::Copy(wanted) = &want else { return Ok(()) };
        if wanted.policies.drift != DriftPolicy::Report {
            prop_assert!(!matches!(decide(&want, &observed), Decision::Noop(CopyStatus::Drifted(_)) | Decision::Act(Action::Compare(_))));
            return Ok(());
        }
        let drifted = match &observed {
            Observed::Live(live) => {
                let deferred = live.sealed.as_ref().is_some_and(|sealed| {
                    sealed.rule == wanted.intent.rule && sealed.source == wanted.intent.source
                        && Some(sealed.revision) == wanted.revision
                });
                live.is_own() && !live.intact && deferred
            }
            Observed::Absent => wanted.lost,
            Observed::Unknown => false,
        };
        let decision = decide(&want, &observed);
        let writes = matches!(decision, Decision::Act(Action::Create | Action::Change(_) | Action::Adopt(_) | Action::Overwrite(_)));
        prop_assert!(!(drifted && writes), "{decision:?}");
        if let (Observed::Live(live), Decision::Noop(CopyStatus::Drifted(_)) | Decision::Act(Action::Compare(_))) = (&observed, &decision) {
            let other = live.sealed.as_ref().is_some_and(|sealed| Some(sealed.revision) != wanted.revision);
            prop_assert!(!other, "another revision ends the drift");
        }
    }

    #[test]
    fn copy_that_is_only_created_is_never_changed(want in wants(), observed in observed_copies()) {
        let DesiredCopy::Copy(mut wanted) = want else { return Ok(()) };
        wanted.policies.create_only = true;
        let desired = DesiredCopy::Copy(wanted.clone());
        let decision = decide(&desired, &observed);
        let Observed::Live(live) = &observed else {
            wanted.policies.create_only = false;
            prop_assert_eq!(decision, decide(&DesiredCopy::Copy(wanted), &observed), "it is made as any other");
            return Ok(());
        };
        if live.is_removable_for(&wanted.intent) {
            let is_left = matches!(decision, Decision::Noop(_) | Decision::Act(Action::CreateNamespace));
            prop_assert!(is_left || live.terminating.is_some(), "{decision:?}");
        }
    }

    #[test]
    fn nothing_is_removed_without_an_order_for_its_intent(want in wants(), observed in observed_copies()) {
        if let Decision::Act(Action::Delete(_) | Action::Retain(_)) = decide(&want, &observed) {
            let (DesiredCopy::Absent(intent, _, order), Observed::Live(live)) = (&want, &observed) else {
                return Err(TestCaseError::fail("no order"));
            };
            prop_assert!(!order.deferred);
            if let Some(sealed) = &live.sealed {
                prop_assert_eq!((&sealed.rule, &sealed.source), (&intent.rule, &intent.source));
            }
        }
    }

    #[test]
    fn dry_run_preview_and_enforcement_agree(
        mut want in wants(),
        observed in observed_copies(),
        is_equal in any::<bool>(),
    ) {
        use PlannedChange::{AdoptIfEqual, Change, Create, Overwrite, Prune, Remove, Retain};
        let compared = CopyError::new(Reason::Drifted, "changed here");
        // An order that waits is reported by a dry run, too; its fields are read.
        match &mut want {
            DesiredCopy::Copy(wanted) => wanted.compared = Some(("1".into(), compared)),
            DesiredCopy::Absent(_, _, order) => order.deferred = false,
            DesiredCopy::OlderVersion(..) | DesiredCopy::Nothing => {}
        }
        let mut dry_run = want.clone();
        match &mut dry_run {
            DesiredCopy::Copy(wanted) => wanted.dry_run = true,
            DesiredCopy::Absent(_, _, order) => order.dry_run = true,
            DesiredCopy::OlderVersion(..) | DesiredCopy::Nothing => {}
        }
        let enforced = decide(&want, &observed);
        let previewed = preview(&want, &observed, Some(is_equal));
        let outcome = previewed.as_ref().map(|(outcome, _)| *outcome);
        let copy_error = previewed.and_then(|(_, copy_error)| copy_error);
        let status = match decide(&dry_run, &observed) {
            Decision::Noop(status) => status,
            Decision::Act(Action::Read) => {
                prop_assert!(matches!(
                    (enforced, outcome),
                    (Decision::Act(Action::Read), None)
                        | (Decision::Act(Action::Create), Some(PreviewOutcome::Create))
                ));
                return Ok(());
            }
            Decision::Forget => {
                prop_assert_eq!((enforced, outcome), (Decision::Forget, None));
                return Ok(());
            }
            Decision::Act(action) => panic!("a dry run of {want:?} does {action:?}"),
        };
        let outcome = outcome.unwrap();
        match &enforced {
            Decision::Act(_) => prop_assert!(matches!(status, CopyStatus::Planned(..))),
            Decision::Noop(enforced) => prop_assert_eq!(&status, enforced),
            Decision::Forget => panic!("a dry run of {want:?} reports {status:?}"),
        }
        match status {
            CopyStatus::Planned(Create, _) => {
                prop_assert!(matches!(enforced, Decision::Act(Action::Create | Action::CreateNamespace)));
                prop_assert_eq!(outcome, PreviewOutcome::Create);
            }
            CopyStatus::Planned(Change, _) => {
                prop_assert!(matches!(enforced, Decision::Act(Action::Change(_))));
                prop_assert_eq!(outcome, PreviewOutcome::Change);
            }
            CopyStatus::Planned(AdoptIfEqual, _) => {
                prop_assert!(matches!(enforced, Decision::Act(Action::Adopt(_))));
                let expected = if is_equal { PreviewOutcome::Adopt } else { PreviewOutcome::Refused };
                prop_assert_eq!(outcome, expected);
            }
            CopyStatus::Planned(Overwrite, _) => {
                prop_assert!(matches!(enforced, Decision::Act(Action::Overwrite(_))));
                let expected = if is_equal { PreviewOutcome::Adopt } else { PreviewOutcome::Overwrite };
                prop_assert_eq!(outcome, expected);
            }
            CopyStatus::Planned(Remove | Prune, _) => {
                prop_assert!(matches!(enforced, Decision::Act(Action::Delete(_))));
                prop_assert_eq!(outcome, PreviewOutcome::Remove);
            }
            CopyStatus::Planned(Retain, _) => {
                prop_assert!(matches!(enforced, Decision::Act(Action::Retain(_))));
                prop_assert_eq!(outcome, PreviewOutcome::Retain);
            }
            CopyStatus::Applied => prop_assert_eq!(outcome, PreviewOutcome::Unchanged),
            CopyStatus::Waiting => prop_assert_eq!(outcome, PreviewOutcome::Wait),
            CopyStatus::Delayed(delayed) => {
                prop_assert_eq!((outcome, copy_error), (PreviewOutcome::Wait, Some(delayed)));
            }
            CopyStatus::Failed(failed) => {
                prop_assert_eq!((outcome, copy_error), (PreviewOutcome::Refused, Some(failed)));
            }
            CopyStatus::Drifted(drifted) => {
                prop_assert_eq!((outcome, copy_error), (PreviewOutcome::Unchanged, Some(drifted)));
            }
            CopyStatus::UnderWay | CopyStatus::Removing(_) => {
                prop_assert_eq!(outcome, PreviewOutcome::Noop);
            }
            CopyStatus::PruneRequested => panic!("a dry run of {want:?} waits for an approval"),
        }
    }

    #[test]
    fn dry_run_never_writes(want in wants(), observed in observed_copies()) {
        let mut want = want;
        match &mut want {
            DesiredCopy::Copy(wanted) => wanted.dry_run = true,
            DesiredCopy::Absent(_, _, order) => order.dry_run = true,
            DesiredCopy::Nothing | DesiredCopy::OlderVersion(..) => {}
        }
        let decision = decide(&want, &observed);
        prop_assert!(!matches!(decision, Decision::Act(action) if !matches!(action, Action::Read | Action::Compare(_))));
    }

    #[test]
    fn a_terminating_copy_is_waited_for(want in wants(), live in lives()) {
        let live = Live { terminating: Some("since".into()), ..live };
        let decision = decide(&want, &Observed::Live(live));
        prop_assert!(!matches!(decision, Decision::Act(action) if action != Action::CreateNamespace));
    }

    #[test]
    fn a_suspended_rule_acts_on_nothing(want in wants(), observed in observed_copies()) {
        if let DesiredCopy::Copy(mut wanted) = want {
            wanted.suspend = true;
            prop_assert!(!matches!(decide(&DesiredCopy::Copy(wanted), &observed), Decision::Act(_)));
        }
    }
}
