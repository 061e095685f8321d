//! Rules that are deleted with their namespace or their CRD.
use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use kube_core::CustomResourceExt;
use runnel_proto::model::{ClusterName, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::rules::EXPECTED_LIMIT;
use super::{Cluster, Index, ReportedCopies, ScopeState};
use crate::guard::DELAY;
use crate::now::Now;
use crate::plan::{Rule, WatchScope};
use runnel_api::{ClusterDistributionRule, DistributionRule};

const NAMESPACED: &str = "namespaced";
const CLUSTER: &str = "cluster";

fn rule(uid: &str, deleting: bool) -> Rule {
    let mut source = json!({"resources": ["configmaps"], "names": ["*"]});
    let mut metadata = json!({"name": uid, "uid": uid, "generation": 1});
    if deleting {
        metadata["deletionTimestamp"] = json!("2026-01-01T00:00:00Z");
    }
    let object = |kind: &str, metadata: Value, source: Value| {
        let spec = json!({"sources": [source], "clusters": {"all": true}});
        json!({"apiVersion": "runnel.dev/v1alpha1", "kind": kind, "metadata": metadata, "spec": spec})
    };
    if uid == CLUSTER {
        source["namespaces"] = json!(["team"]);
        let object =
            serde_json::from_value(object("ClusterDistributionRule", metadata, source)).unwrap();
        return Rule::cluster_scoped(&object, "runnel-system").unwrap();
    }
    metadata["namespace"] = json!("team");
    let object = serde_json::from_value(object("DistributionRule", metadata, source)).unwrap();
    Rule::namespaced(&object, "runnel-system").unwrap()
}

/// Whether a rule with this many copies in one cluster passes the guard after `happens`.
fn may_go(uid: &str, copies: u64, happens: impl Fn(&mut Index)) -> bool {
    let mut index = Index::default();
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    index.set_cluster(
        "eu-1".into(),
        Cluster {
            uid: "c".to_owned(),
            accepted: true,
            ..Cluster::default()
        },
    );
    index.set_source(
        SourceRef::new("configmaps", "team", "s"),
        BTreeMap::new(),
        None,
    );
    index.set_rule(rule(uid, false));
    index.reset_removal_guards();
    happens(&mut index);
    index.set_rule(rule(uid, true));
    let holds = move |_: &RuleUid, _: &ClusterName| {
        Some(ReportedCopies {
            copies,
            intents: 1,
            prunes: None,
        })
    };
    let now = Now {
        instant: Instant::now(),
        wall: jiff::Timestamp::UNIX_EPOCH,
    };
    let uid = RuleUid::from(uid);
    index.judge(&BTreeSet::from([uid.clone()]), &holds, now);
    assert!(
        !index.rules().is_removal_allowed(&uid),
        "judged before its namespace could be heard of"
    );
    index.judge(
        &BTreeSet::new(),
        &holds,
        Now {
            instant: now.instant + DELAY,
            ..now
        },
    );
    index.rules().is_removal_allowed(&uid)
}

#[test]
fn deleted_rule_is_deliberate_unless_namespace_or_crd_goes() {
    let (rules, cluster_rules) = (
        DistributionRule::crd_name(),
        ClusterDistributionRule::crd_name(),
    );
    let dies = |name: &'static str| {
        move |index: &mut Index| {
            index
                .fleet_guard_mut()
                .terminating
                .set_crd(name, Some(true))
        }
    };
    for uid in [NAMESPACED, CLUSTER] {
        let (own, other) = if uid == CLUSTER {
            (cluster_rules, rules)
        } else {
            (rules, cluster_rules)
        };
        assert!(may_go(uid, 11, |_| {}), "{uid}");
        assert!(!may_go(uid, 11, dies(own)), "{uid}");
        assert!(may_go(uid, 11, dies(other)), "{uid}");
        // The limit applies.
        assert!(may_go(uid, 3, dies(own)), "{uid}");
        // The deletion of a scope deletes its rules, whose events may arrive later.
        assert!(
            !may_go(uid, 11, |index| index
                .fleet_guard_mut()
                .terminating
                .set_crd(own, None)),
            "{uid}"
        );
        // A list has the same effect, and a failed one: nothing tells that the CRD is there.
        let list = |terminating| Some(BTreeMap::from([(own.to_owned(), terminating)]));
        assert!(
            !may_go(uid, 11, |index| index
                .fleet_guard_mut()
                .terminating
                .set_crds(own, list(true))),
            "{uid}"
        );
        let unreadable = |index: &mut Index| {
            index.fleet_guard_mut().terminating.set_crds(own, None);
        };
        assert!(!may_go(uid, 11, unreadable), "{uid}");
        assert!(may_go(uid, 3, unreadable), "{uid}");
        let blind = |index: &mut Index| {
            index.fleet_guard_mut().terminating.set_crd(own, Some(true));
            index.fleet_guard_mut().terminating.set_crds(own, None);
        };
        assert!(!may_go(uid, 11, blind), "{uid}");
        // The scope is created again.
        let begins_again = |index: &mut Index| {
            index.fleet_guard_mut().terminating.set_crd(own, None);
            index
                .fleet_guard_mut()
                .terminating
                .set_crds(own, list(false));
        };
        assert!(may_go(uid, 11, begins_again), "{uid}");
    }
    assert!(!may_go(NAMESPACED, 11, |index| index
        .fleet_guard_mut()
        .terminating
        .set_namespace("team", true)));
    assert!(may_go(CLUSTER, 11, |index| index
        .fleet_guard_mut()
        .terminating
        .set_namespace("team", true)));
}

/// The seconds after which the copies of a deleted rule may be removed, if another rule was observed before it and is
/// planned after `planned` seconds.
fn seconds_until_removal(planned: Option<u64>) -> Option<u64> {
    let mut index = Index::default();
    index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
    index.set_rule(rule(NAMESPACED, false));
    index.reset_removal_guards();
    let holds = |_: &RuleUid, _: &ClusterName| {
        Some(ReportedCopies {
            copies: 1,
            intents: 1,
            prunes: None,
        })
    };
    index.set_cluster(
        "eu-1".into(),
        Cluster {
            uid: "c".to_owned(),
            accepted: true,
            ..Cluster::default()
        },
    );
    let begin = Instant::now();
    let at = |seconds| Now {
        instant: begin + Duration::from_secs(seconds),
        wall: jiff::Timestamp::UNIX_EPOCH,
    };
    index.rules_mut().expect(CLUSTER.into(), begin);
    let mut deleted = rule(NAMESPACED, true);
    deleted.is_origin_known = true;
    let effect = index.set_rule(deleted);
    index.judge(&effect.judge, &holds, at(0));
    (0..30).find(|seconds| {
        if planned == Some(*seconds) {
            index.set_rule(rule(CLUSTER, false));
        }
        index.judge(&BTreeSet::new(), &holds, at(*seconds));
        index.rules().is_removal_allowed(&NAMESPACED.into())
    })
}

#[test]
fn removal_of_a_rule_waits_for_rules_observed_before_it() {
    assert_eq!(seconds_until_removal(Some(0)), Some(1));
    assert_eq!(seconds_until_removal(Some(3)), Some(3));
    // One that never gets its finalizer keeps no other from being deleted.
    assert_eq!(seconds_until_removal(None), Some(EXPECTED_LIMIT.as_secs()));
}
