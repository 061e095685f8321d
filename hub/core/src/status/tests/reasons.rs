//! A rule with each reason that its condition Ready can have, recorded for the health checks of GitOps tools.
use runnel_api::conditions::Reason as ConditionReason;
use runnel_proto::model::LostWatch;
use serde_json::{Map, Value};

use super::pages::page;
use super::*;
use crate::plan::{RenderError, RenderErrorKind, Revert, RollbackBlocker};
use crate::rollout::Phase;

const ONE: &str = "eu-1";

/// A rule with one cluster, where every copy is applied.
fn applied() -> World {
    let mut world = World::new(&[ONE]);
    world.applied(ONE);
    world
}

/// The same with these counts and failures.
fn reported(counts: Counts, failures: Vec<Failure>) -> World {
    let mut world = World::new(&[ONE]);
    world.report(ONE, counts, failures);
    world
}

/// The rule has this spec, and the agent has applied it.
fn with_spec(spec: Value) -> World {
    let mut world = World::new(&[ONE]);
    world.becomes(rule(spec));
    world.applied(ONE);
    world
}

/// The copy cannot be rendered.
fn unrendered(why: RenderErrorKind) -> World {
    let mut world = applied();
    let error = RenderError {
        why,
        message: "why".into(),
    };
    let source = SourceRef::new("configmaps", "a", "s");
    world.plan.render_errors.insert(source, error);
    world
}

/// One copy of two has another state than the first.
fn copies(of: impl FnOnce(&mut Counts), failures: Vec<Failure>) -> World {
    let mut counts = Counts {
        copies: 2,
        applied: 1,
        ..Counts::default()
    };
    of(&mut counts);
    reported(counts, failures)
}

/// Every copy is applied, and two have a health.
fn with_health(healthy: u32, unhealthy: u32) -> World {
    let counts = Counts {
        copies: 3,
        applied: 3,
        with_health: 2,
        healthy,
        unhealthy,
        ..Counts::default()
    };
    let why = "ProgressDeadlineExceeded: api-1 has timed out progressing.";
    let failures = vec![failure(Reason::Unhealthy, why); usize::from(unhealthy > 0)];
    reported(counts, failures)
}

/// Returns a rule whose condition Ready has this reason; `None` if no rule can have it.
fn with_ready(reason: ConditionReason) -> Option<World> {
    use ConditionReason as R;
    let world = match reason {
        R::AllApplied => applied(),
        R::NoSources => {
            let mut world = applied();
            world.plan = RulePlan::empty(&world.rule);
            world
        }
        R::NoClusters => World::new(&[]),
        R::NoNamespaces => {
            let mut world = World::new(&[ONE]);
            world.becomes(rule(json!({"namespaces": {"names": ["taem-*"]}})));
            world.report(ONE, Counts::default(), vec![]);
            world
        }
        R::UnknownClusters => {
            let mut world = World::new(&[ONE]);
            let sources = json!([{"resources": ["configmaps"], "names": ["*"]}]);
            let clusters = json!({"names": [ONE, "typo"]});
            world.becomes(whole_rule(
                json!({"sources": sources, "clusters": clusters}),
            ));
            let accepted = Cluster {
                accepted: true,
                ..Cluster::default()
            };
            world.members.insert(ONE.into(), accepted);
            world.applied(ONE);
            world
        }
        R::MissingSources => {
            let mut world = World::new(&[ONE]);
            let sources = json!([{"resources": ["configmaps"], "names": ["s", "typo"]}]);
            world.becomes(whole_rule(
                json!({"sources": sources, "clusters": {"all": true}}),
            ));
            world.applied(ONE);
            world
        }
        R::MissingKeys => {
            let spec = json!({"substitute": {"keys": ["typo"]}});
            super::pages::shaped(spec, &[("configmaps", "s", json!({"data": {"k": "v"}}))])
        }
        R::ClustersUnreachable => {
            let mut world = applied();
            world.fold();
            let now = world.now().instant;
            world.report_store.disconnected(&ONE.into(), 1, now);
            world.seconds += 60;
            world
        }
        R::MemberAPIUnavailable => {
            let mut world = applied();
            let lost = LostWatch {
                resource: "configmaps".into(),
                status: 503,
            };
            world.report_store.lost_watches(&ONE.into(), 1, vec![lost]);
            world
        }
        R::CopiesFailed => copies(|counts| counts.failed = 1, vec![]),
        R::DigestMismatch => {
            let mut world = World::new(&[ONE]);
            world.proof = Some(Proof([3; 16]));
            world.applied(ONE);
            world
        }
        R::CopiesWaiting => copies(|counts| counts.waiting = 1, vec![]),
        R::SourceUnreadable => {
            let mut world = applied();
            let hidden = SourceRef::new("secrets", "a", "hidden");
            world.plan.set(&hidden, Some(&SourceState::Unreadable));
            world
        }
        R::ScopeMismatch => {
            let mut world = applied();
            let sources = json!([
                {"resources": ["configmaps"], "names": ["*"]},
                {"resources": ["namespaces", "nodes"], "names": ["*"]},
            ]);
            world.becomes(whole_rule(
                json!({"sources": sources, "clusters": {"all": true}}),
            ));
            for kind in ["namespaces", "nodes"] {
                let why = format!("{kind} belong to no namespace");
                world.mismatched.insert(WatchScope::everywhere(kind), why);
            }
            world
        }
        R::Progressing => World {
            overdue: true,
            ..World::new(&[ONE])
        },
        R::Deleting => {
            let mut world = applied();
            world.rule.deleting = true;
            world
        }
        R::RemovalLimit => {
            let mut world = applied();
            world.blocks_removals = true;
            world.pending = Some(runnel_api::PendingApproval {
                causes: Vec::new(),
                digest: "0123".to_owned(),
                cause: "the labels of MemberCluster eu-1 changed".to_owned(),
                copies: 12,
                clusters: 1,
                names: vec![],
                since: None,
            });
            world
        }
        R::RuleLimit => {
            let mut world = applied();
            let beyond = BTreeSet::from(["r".into()]);
            world.report_store.set_over_limit(&ONE.into(), 1, beyond);
            world
        }
        R::RollingOut => rollouts::world(Phase::Soaking),
        R::AwaitingApproval => rollouts::world(Phase::AwaitingApproval),
        R::AwaitingWindow => rollouts::world(Phase::AwaitingWindow),
        R::InvalidWindow => rollouts::with_invalid_window(),
        R::AnalysisFailed => rollouts::with_failed_analysis(Phase::Stopped),
        R::AnalysisRefused => rollouts::with_refused_analysis(),
        R::RolloutPaused => rollouts::world(Phase::Paused),
        R::TooManyFailures => rollouts::world(Phase::Stopped),
        R::Suspended => with_spec(json!({"suspend": true})),
        R::SpecTooLarge => {
            let mut world = applied();
            world.rule = world.rule.clone().undecoded(Some(&world.rule), 20_000);
            world
        }
        R::RevisionUnavailable => {
            let mut world = applied();
            world.rule.revert = Some(Revert {
                revision: "t0".into(),
                state: Err(RollbackBlocker::NoneCompleted),
            });
            world
        }
        R::NotGranted => {
            let mut world = World::new(&[]);
            world.target_clusters.not_granted.insert(ONE.into());
            world
        }
        R::GrantsUnknown => {
            let mut world = applied();
            world.target_clusters.unknown = true;
            world
        }
        R::Cordoned => {
            let mut world = World::new(&[ONE]);
            world.target_clusters.cordoned.insert(ONE.into());
            world
        }
        R::InvalidName => unrendered(RenderErrorKind::Name),
        R::TransformFailed => unrendered(RenderErrorKind::Transform),
        R::VariableMissing => unrendered(RenderErrorKind::Variable),
        R::ValueMissing => unrendered(RenderErrorKind::Value),
        R::InvalidCopy => unrendered(RenderErrorKind::Object),
        R::RenderBudgetExceeded => unrendered(RenderErrorKind::Budget),
        R::Copy(Reason::AmbiguousSource) => unrendered(RenderErrorKind::Ambiguous),
        R::Unconfirmed => {
            let mut world = World::new(&[ONE]);
            let unconfirmed = Some(Unconfirmed::Everything);
            world
                .report_store
                .waits_for_confirmation(&ONE.into(), unconfirmed);
            world
        }
        R::Copy(Reason::DryRun) => with_spec(json!({"enforcement": "DryRun"})),
        R::Copy(Reason::Drifted) => copies(
            |counts| counts.drifted = 1,
            vec![failure(Reason::Drifted, "/data/k was changed")],
        ),
        R::AwaitingHealth => World {
            overdue: true,
            ..with_health(0, 0)
        },
        R::Copy(Reason::Unhealthy) => with_health(0, 1),
        R::Copy(reason) => copies(|counts| counts.failed = 1, vec![failure(reason, "why")]),
        // Of other conditions of rules, and of clusters in their statuses.
        R::PartiallyGranted | R::RollingBack | R::Reverted => return None,
        // Of MemberClusters and of the Fleet.
        R::FleetReady
        | R::FleetNotReady
        | R::MemberReady
        | R::Accepted
        | R::NotAccepted
        | R::Leaving
        | R::Drained
        | R::SessionOpen
        | R::SessionLost
        | R::NeverConnected
        | R::CertificateExpired
        | R::Degraded
        | R::UnknownRules
        | R::RetiredKeySeen
        | R::ConcurrentSessions
        | R::HubStateBehind
        | R::SecondHub
        | R::SecondCluster
        | R::SecondMembership
        | R::CopiesFromPreviousMembership => return None,
    };
    Some(world)
}

/// The tests of `deploy/gitops` read this snapshot.
#[test]
fn rule_of_each_ready_reason_is_recorded() {
    let mut rules = Map::new();
    for reason in ConditionReason::all() {
        let Some(mut world) = with_ready(reason) else {
            continue;
        };
        let rule: Value = serde_json::from_str(&page(&mut world)).unwrap();
        assert_eq!(world.ready().1, reason.as_str(), "{rule:#}");
        rules.insert(reason.as_str().to_owned(), rule);
    }
    insta::assert_snapshot!(format!("{:#}\n", Value::Object(rules)));
}

#[test]
fn health_decides_ready_and_not_applied() {
    let holds = |world: &World| {
        let word = |condition_type| world.condition(condition_type).0;
        (word(ConditionType::Ready), word(ConditionType::Applied))
    };
    let pair = |ready: &str, applied: &str| (ready.to_owned(), applied.to_owned());
    for (healthy, unhealthy, ready) in [
        (2, 0, "True"),
        (1, 0, "False"),
        (0, 0, "False"),
        (1, 1, "False"),
    ] {
        let mut world = with_health(healthy, unhealthy);
        world.fold();
        assert_eq!(holds(&world), pair(ready, "True"), "{healthy} {unhealthy}");
        let summary = world.status.summary.unwrap();
        assert_eq!(
            (summary.copies_with_health, summary.copies_healthy),
            (2, healthy.into())
        );
        let display = world.status.display.clone().unwrap();
        assert_eq!(display.healthy, Some(format!("{healthy}/2")));
        // The newest content is everywhere, whatever its health is.
        assert!(world.status.revision.is_some());
        assert_eq!(summary.clusters_ready, i64::from(ready == "True"));
    }
    // A copy that is not applied comes first, and an unhealthy one of another cluster before copies in progress.
    let mut world = with_health(0, 0);
    world.fold();
    assert_eq!(world.ready().1, "AwaitingHealth");
    let mut world = with_health(1, 1);
    world.report(
        ONE,
        Counts {
            copies: 3,
            applied: 2,
            failed: 1,
            with_health: 2,
            unhealthy: 1,
            ..Counts::default()
        },
        vec![
            failure(Reason::Forbidden, "no right"),
            failure(Reason::Unhealthy, "down"),
        ],
    );
    world.fold();
    assert_eq!(world.ready().1, "Forbidden");
}

/// The notices of a rule that was ready, when it has another reason; the kind of `Ready` decides.
#[test]
fn each_lasting_ready_reason_is_an_event() {
    let mut ready = applied();
    ready.fold();
    // Ordinary edits, and what is an Event of its own or of the MemberCluster.
    let quiet = [
        ConditionReason::AllApplied,
        ConditionReason::Progressing,
        ConditionReason::AwaitingHealth,
        ConditionReason::ClustersUnreachable,
        ConditionReason::MemberAPIUnavailable,
    ];
    for reason in ConditionReason::all() {
        let Some(mut world) = with_ready(reason) else {
            continue;
        };
        world.fold();
        let notices = notices(&ready.status, &world.status);
        let reasons: Vec<_> = notices
            .iter()
            .map(|notice| notice.reason.as_str())
            .collect();
        let expected = match reason {
            _ if quiet.contains(&reason) => vec![],
            ConditionReason::RemovalLimit => vec!["ApprovalRequired"],
            ConditionReason::TooManyFailures | ConditionReason::AnalysisFailed => {
                vec!["RolloutStopped"]
            }
            _ => vec![reason.as_str()],
        };
        assert_eq!(reasons, expected, "{reason}");
    }
}

#[test]
fn silent_watch_of_a_bundled_kind_is_not_ready() {
    use runnel_proto::model::{Kind, RevisionKey};
    let mut world = World::new(&[ONE]);
    let kind = runnel_api::BUNDLE_KIND;
    let sources = json!([{"resources": [kind], "names": ["*"]}]);
    world.becomes(whole_rule(
        json!({"sources": sources, "clusters": {"all": true}}),
    ));
    world.plan = crate::plan::RulePlan::empty(&world.rule);
    let (bundle, kinds) = (
        SourceRef::new(kind, "a", "all"),
        Kind::supported().iter().cloned().collect(),
    );
    let manifest =
        json!({"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "m"}, "data": {}});
    let object = json!({"spec": {"manifests": [manifest]}});
    let key = RevisionKey::new(&[]);
    let content = crate::plan::read_bundle(&bundle, &object, &kinds, &key).unwrap();
    world
        .plan
        .set(&bundle, Some(&SourceState::Read(content.into())));
    world.applied(ONE);
    let mut ready = |resource: &str| {
        let lost = LostWatch {
            resource: resource.into(),
            status: 503,
        };
        world.report_store.lost_watches(&ONE.into(), 1, vec![lost]);
        world.fold();
        world.condition(ConditionType::Ready).1
    };
    assert_eq!(ready("secrets"), "AllApplied");
    assert_eq!(ready("configmaps"), "MemberAPIUnavailable");
}
