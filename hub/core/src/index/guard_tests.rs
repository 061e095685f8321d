//! Mishaps that the removal guard blocks, and removals that it lets pass.
mod bundles;
mod causes;
mod handovers;
mod rollouts;
mod small;

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use jiff::Timestamp;
use runnel_api::PendingApproval;
use runnel_proto::model::{ClusterName, PruneDigest, PruneRequest, RuleUid, SourceRef};
use serde_json::{Value, json};

use super::{Cluster, Directive, Effect, HubNamespace, Index, ReportedCopies, ScopeState};
use crate::guard::{Cause, CauseKind, DELAY, FleetTerms, Item, Limit, RemovalGuard, WINDOW};
use crate::now::Now;
use crate::plan::{Rule, RuleGrant, SourceContent, SourceState, WatchScope};

const MEMBERS: [&str; 2] = ["member-1", "member-2"];

/// A hub with two members, and the reports of their agents.
struct World {
    index: Index,
    reported_copies: BTreeMap<(RuleUid, ClusterName), ReportedCopies>,
    now: Now,
}

fn cluster(env: &str) -> Cluster {
    let labels = BTreeMap::from([("env".to_owned(), env.to_owned())]);
    Cluster {
        uid: "c".to_owned(),
        accepted: true,
        was_connected: true,
        labels,
        ..Cluster::default()
    }
}

fn content() -> SourceState {
    let payload =
        runnel_proto::model::Payload::encode(runnel_proto::model::Content::default().to_bytes());
    SourceState::Read(SourceContent::new(runnel_proto::model::Revision([7; 16]), payload).into())
}

fn source(namespace: &str, name: &str) -> SourceRef {
    SourceRef::new("configmaps", namespace, name)
}

/// A namespaced rule that sends the sources with its name as prefix to `env: prod`.
fn rule(name: &str, namespace: &str, spec: &Value) -> Rule {
    let mut merged = json!({
        "sources": [{"resources": ["configmaps"], "names": [format!("{name}-*")]}],
        "clusters": {"selector": {"matchLabels": {"env": "prod"}}},
    });
    for (key, value) in spec
        .as_object()
        .into_iter()
        .flatten()
        .filter(|(key, _)| *key != "metadata")
    {
        merged[key] = value.clone();
    }
    let mut metadata = json!({"name": name, "namespace": namespace, "uid": name, "generation": 1});
    for (key, value) in spec["metadata"].as_object().into_iter().flatten() {
        metadata[key] = value.clone();
    }
    let object = json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionRule", "metadata": metadata, "spec": merged,
    });
    Rule::namespaced(&serde_json::from_value(object).unwrap(), "runnel-system").unwrap()
}

fn grant() -> RuleGrant {
    grant_of("configmaps")
}

fn grant_of(kind: &str) -> RuleGrant {
    let object: runnel_api::DistributionGrant = serde_json::from_value(json!({
        "apiVersion": "runnel.dev/v1alpha1", "kind": "DistributionGrant", "metadata": {"name": "everything"},
        "spec": {
            "rules": {"namespaces": {"all": true}}, "resources": [kind],
            "clusters": {"all": true}, "namespaces": {"all": true},
        },
    }))
    .unwrap();
    RuleGrant::read(&object)
}

impl World {
    fn approval(&self, rule: &str) -> Option<&PendingApproval> {
        self.index.rules().get(&rule.into())?.guard.pending()
    }

    /// A hub whose Fleet has limits that are written, so that half of a small fleet is none.
    fn with_limits() -> Self {
        let mut world = Self::new();
        let limit = |count| Limit { count, percent: 1 };
        world.index.set_fleet_terms(FleetTerms {
            fleet: limit(50),
            member: limit(25),
            ..FleetTerms::default()
        });
        world
    }

    fn new() -> Self {
        let mut index = Index::default();
        index.set_scope(WatchScope::everywhere("configmaps"), ScopeState::Known);
        for name in MEMBERS {
            index.set_cluster(name.into(), cluster("prod"));
        }
        index.set_grants(Some(BTreeMap::from([("everything".to_owned(), grant())])));
        let team = ("team".to_owned(), HubNamespace::default());
        index.set_hub_namespace_states(Some(BTreeMap::from([
            team,
            ("other".to_owned(), HubNamespace::default()),
        ])));
        let now = Now {
            instant: Instant::now(),
            wall: Timestamp::from_second(1_800_000_000).unwrap(),
        };
        Self {
            index,
            reported_copies: BTreeMap::new(),
            now,
        }
    }

    /// Adds a rule with this many sources, each with a copy in every member.
    fn add(&mut self, name: &str, namespace: &str, sources: u64) {
        self.index.set_rule(rule(name, namespace, &json!({})));
        for number in 0..sources {
            let source = source(namespace, &format!("{name}-{number}"));
            self.index
                .set_source(source, BTreeMap::new(), Some(content()));
        }
        for member in MEMBERS {
            self.set_reported_copies(name, member, sources);
        }
        self.index.reset_removal_guards();
    }

    fn set_reported_copies(&mut self, rule: &str, member: &str, copies: u64) {
        let holding = ReportedCopies {
            copies,
            intents: copies,
            ..ReportedCopies::default()
        };
        self.reported_copies
            .insert((rule.into(), member.into()), holding);
    }

    /// Adds rules with one source each.
    fn add_many(&mut self, count: usize) {
        (0..count).for_each(|number| self.add(&format!("r{number}"), "team", 1));
    }

    /// Judges after a change, and again when the debounce has ended.
    fn judge(&mut self, effect: Effect) {
        self.judge_now(&effect.judge);
        self.later(DELAY);
    }

    fn judge_now(&mut self, rules: &BTreeSet<RuleUid>) {
        let World {
            index,
            reported_copies: holdings,
            now,
        } = self;
        let holding = |uid: &RuleUid, cluster: &ClusterName| {
            holdings.get(&(uid.clone(), cluster.clone())).copied()
        };
        index.judge(rules, &holding, *now);
    }

    fn later(&mut self, time: Duration) {
        self.now.instant += time;
        self.now.wall += time;
        self.judge_now(&BTreeSet::new());
    }

    fn planned(&self, rule: &str) -> BTreeMap<ClusterName, u64> {
        let holding = |uid: &RuleUid, cluster: &ClusterName| {
            self.reported_copies
                .get(&(uid.clone(), cluster.clone()))
                .copied()
        };
        self.index.planned_removals(&rule.into(), &holding)
    }

    fn change(&mut self, change: impl FnOnce(&mut Index) -> Effect) {
        let effect = change(&mut self.index);
        self.judge(effect);
    }

    fn relabel(&mut self, env: &str) {
        let mut effect = Effect::default();
        for name in MEMBERS {
            effect.merge(self.index.set_cluster(name.into(), cluster(env)));
        }
        self.judge(effect);
    }

    /// Returns the number of (rule, member) pairs whose copies may all be removed.
    fn leaving(&self) -> usize {
        let uids: Vec<_> = self
            .index
            .rules()
            .iter()
            .map(|(uid, _)| uid.clone())
            .collect();
        let is_leaving = |uid: &RuleUid, name: &str| {
            let unwanted = matches!(
                self.index.directive(uid, &name.into()),
                Directive::Removed(_)
            );
            unwanted
                && self
                    .reported_copies
                    .get(&(uid.clone(), name.into()))
                    .is_some_and(|acked| acked.copies > 0)
        };
        uids.iter()
            .map(|uid| MEMBERS.iter().filter(|name| is_leaving(uid, name)).count())
            .sum()
    }

    fn pending(&self) -> Vec<(String, i64, u64)> {
        let causes = self.index.rules().pending_causes();
        causes
            .into_iter()
            .map(|cause| (cause.approval.cause, cause.approval.copies, cause.rules))
            .collect()
    }

    fn approve_all(&mut self) {
        let digests: Vec<_> = self
            .index
            .rules()
            .pending_causes()
            .into_iter()
            .map(|cause| cause.approval.digest)
            .collect();
        self.change(|index| {
            index.set_fleet_terms(FleetTerms {
                approve: Some(digests.join(",")),
                ..FleetTerms::default()
            })
        });
    }

    /// Deletes sources of a namespace, one by one.
    fn delete_sources(&mut self, namespace: &str, names: &[String]) {
        for name in names {
            self.index
                .sources_mut()
                .mark_deleted(&source(namespace, name), self.now.instant);
        }
        let now = self.now.instant;
        self.change(|index| index.expire_deleted(now, Duration::ZERO));
    }

    fn passes_source(&self, rule: &str, name: &str) -> bool {
        let Directive::Assigned(assignment) =
            self.index.directive(&rule.into(), &MEMBERS[0].into())
        else {
            return false;
        };
        !assignment.must_stay(&source("team", name))
    }
}

#[test]
fn label_typo_that_empties_many_rules_is_blocked() {
    let mut world = World::new();
    world.add_many(30);
    world.relabel("prd");
    assert_eq!(world.leaving(), 0);
    assert_eq!(
        world.pending(),
        [(
            "labels of member clusters member-1, member-2 changed".to_owned(),
            60,
            30
        )]
    );
    // Undoing it clears it, and removals below the limits pass then.
    world.relabel("prod");
    assert_eq!((world.leaving(), world.pending()), (0, vec![]));
    let other = json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}});
    world.change(|index| index.set_rule(rule("r0", "team", &other)));
    assert_eq!((world.leaving(), world.pending()), (2, vec![]));
}

#[test]
fn label_typo_of_one_member_after_the_other_is_blocked() {
    let mut world = World::with_limits();
    world.add_many(24);
    world.change(|index| index.set_cluster("member-1".into(), cluster("prd")));
    assert_eq!(world.leaving(), 24, "within all limits");
    world.later(Duration::from_secs(5));
    world.add("more", "team", 3);
    world.change(|index| index.set_cluster("member-2".into(), cluster("prd")));
    assert_eq!(
        world.pending(),
        [(
            "labels of member cluster member-2 changed".to_owned(),
            27,
            25
        )]
    );
}

#[test]
fn grant_edit_that_empties_many_rules_is_blocked() {
    let mut world = World::new();
    world.add_many(30);
    world.change(|index| index.set_grant("everything", None));
    assert_eq!(world.leaving(), 0);
    assert_eq!(
        world.pending(),
        [("grant everything was deleted".to_owned(), 60, 30)]
    );
    world.change(|index| index.set_grant("everything", Some(grant())));
    assert_eq!(world.pending(), []);
}

#[test]
fn delete_of_a_namespace_or_a_crd_is_blocked() {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    for is_namespace in [true, false] {
        let mut world = World::new();
        world.add_many(30);
        let mut effect = Effect::default();
        if !is_namespace {
            let name = <runnel_api::DistributionRule as kube_core::CustomResourceExt>::crd_name();
            world
                .index
                .fleet_guard_mut()
                .terminating
                .set_crd(name, Some(true));
        }
        for number in 0..30 {
            effect.merge(
                world
                    .index
                    .set_rule(rule(&format!("r{number}"), "team", &gone)),
            );
        }
        if is_namespace {
            // The watch of namespaces may be a moment late.
            let terminating = Some(HubNamespace {
                terminating: true,
                ..HubNamespace::default()
            });
            effect.merge(world.index.set_hub_namespace_state("team", terminating));
        }
        world.judge(effect);
        assert_eq!(world.leaving(), 0);
        assert_eq!(
            world
                .pending()
                .iter()
                .map(|(_, copies, rules)| (*copies, *rules))
                .collect::<Vec<_>>(),
            [(60, 30)]
        );
        world.approve_all();
        assert_eq!((world.leaving(), world.pending()), (60, vec![]));
    }
}

#[test]
fn rule_without_own_copies_never_waits() {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut world = World::new();
    world.add("shadowed", "team", 12);
    MEMBERS
        .iter()
        .for_each(|member| world.set_reported_copies("shadowed", member, 0));
    world
        .index
        .fleet_guard_mut()
        .terminating
        .set_namespace("team", true);
    world.change(|index| index.set_rule(rule("shadowed", "team", &gone)));
    assert!(world.index.rules().is_removal_allowed(&"shadowed".into()));
    assert_eq!(world.pending(), []);
}

#[test]
fn rule_delete_passes_despite_deletes_of_others() {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut world = World::new();
    world.add("mine", "team", 12);
    world.add("theirs", "other", 40);
    let names: Vec<_> = (0..30).map(|number| format!("theirs-{number}")).collect();
    world.delete_sources("other", &names);
    world.change(|index| index.set_rule(rule("mine", "team", &gone)));
    assert!(world.index.rules().is_removal_allowed(&"mine".into()));
    assert_eq!(world.pending(), []);
}

#[test]
fn deliberate_deletes_are_limited_if_the_fleet_requires_it() {
    let gone = json!({"metadata": {"deletionTimestamp": "2026-01-01T00:00:00Z"}});
    let mut world = World::new();
    world.add("big", "team", 40);
    let terms = FleetTerms {
        limits_deliberate_deletes: true,
        ..FleetTerms::default()
    };
    world.change(|index| index.set_fleet_terms(terms));
    world.change(|index| index.set_rule(rule("big", "team", &gone)));
    assert!(!world.index.rules().is_removal_allowed(&"big".into()));
    let leaving = Cluster {
        leaving: true,
        ..cluster("prod")
    };
    let mut world = World::new();
    world.add("big", "team", 40);
    let terms = FleetTerms {
        limits_deliberate_deletes: true,
        ..FleetTerms::default()
    };
    world.change(|index| index.set_fleet_terms(terms));
    world.change(|index| index.set_cluster("member-1".into(), leaving.clone()));
    assert!(matches!(
        world.index.directive(&"big".into(), &"member-1".into()),
        Directive::RemovalBlocked
    ));
    world.change(|index| index.set_fleet_terms(FleetTerms::default()));
    assert!(matches!(
        world.index.directive(&"big".into(), &"member-1".into()),
        Directive::Removed(_)
    ));
}

#[test]
fn approval_applies_once_to_the_shown_set() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let none = json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}});
    world.change(|index| index.set_rule(rule("one", "team", &none)));
    let first = world.approval("one").unwrap().clone();
    assert_eq!((first.copies, first.clusters), (24, 2));
    assert_eq!(first.cause, "rule team/one was edited");
    let approved = |digest: &str| {
        json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}},
               "metadata": {"annotations": {"runnel.dev/approve": digest}}})
    };
    world.change(|index| index.set_rule(rule("one", "team", &approved("0123"))));
    assert_eq!(world.leaving(), 0, "another digest");
    world.change(|index| index.set_rule(rule("one", "team", &approved(&first.digest))));
    assert_eq!((world.leaving(), world.pending()), (2, vec![]));
    // Undone and made again with the annotation still there.
    let kept = json!({"metadata": {"annotations": {"runnel.dev/approve": first.digest}}});
    world.change(|index| index.set_rule(rule("one", "team", &kept)));
    world.later(WINDOW);
    world.change(|index| index.set_rule(rule("one", "team", &approved(&first.digest))));
    assert_eq!(world.leaving(), 0);
    assert_ne!(world.approval("one").unwrap().digest, first.digest);
}

#[test]
fn removal_joining_a_blocked_cause_needs_approval_again() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let only = |names: &[&str]| json!({"sources": [{"resources": ["configmaps"], "names": names}]});
    world.change(|index| index.set_rule(rule("one", "team", &only(&["one-0*", "one-1*"]))));
    let first = world.approval("one").unwrap().clone();
    world.later(WINDOW * 2);
    // One more removal is far below the limits, and is decided together with the rest.
    world.change(|index| index.set_rule(rule("one", "team", &only(&["one-1*"]))));
    let second = world.approval("one").unwrap().clone();
    assert!(second.copies > first.copies && second.digest != first.digest);
    // The digest approves the set of that time.
    let mut approved = only(&["one-1*"]);
    approved["metadata"] = json!({"annotations": {"runnel.dev/approve": first.digest}});
    world.change(|index| index.set_rule(rule("one", "team", &approved)));
    assert!(world.passes_source("one", "one-5") && !world.passes_source("one", "one-0"));
}

#[test]
fn small_removal_does_not_join_what_is_blocked_of_others() {
    let mut world = World::new();
    let asked = |copies| {
        Some(PruneRequest {
            objects: copies,
            digest: PruneDigest([7; 16]),
        })
    };
    for name in ["large", "small"] {
        world.add(name, "team", 20);
    }
    let mut prune = |name: &str, copies: u32| {
        let holding = ReportedCopies {
            copies: 20,
            intents: 20,
            prunes: asked(copies),
        };
        world
            .reported_copies
            .insert((name.into(), MEMBERS[0].into()), holding);
        world.judge(Effect {
            judge: BTreeSet::from([name.into()]),
            ..Effect::default()
        });
        world.approval(name).is_some()
    };
    assert!(prune("large", 20));
    assert!(!prune("small", 1), "its own limits allow it");
    // Of a cause that rules share, only what comes soon after belongs to the same change.
    let mut world = World::new();
    world.add("large", "team", 20);
    world.add("small", "team", 1);
    let other = json!({"clusters": {"selector": {"matchLabels": {"env": "prd"}}}});
    world.index.set_rule(rule("small", "team", &other));
    world.index.reset_removal_guards();
    world.relabel("prd");
    assert!(world.approval("large").is_some());
    world.later(WINDOW * 2);
    world.change(|index| index.set_cluster(MEMBERS[0].into(), cluster("pr")));
    assert!(world.approval("large").is_some());
    assert!(world.approval("small").is_none() && world.leaving() == 1);
}

#[test]
fn prunes_of_agents_count_with_other_removals() {
    let mut world = World::new();
    world.add("one", "team", 50);
    let asked = |copies| PruneRequest {
        objects: copies,
        digest: PruneDigest([7; 16]),
    };
    let prune = |world: &mut World, copies: u32| {
        for member in MEMBERS {
            let holding = ReportedCopies {
                copies: 50,
                intents: 50,
                prunes: Some(asked(copies)).filter(|_| copies > 0),
            };
            world
                .reported_copies
                .insert(("one".into(), member.into()), holding);
        }
        let reported = world.reported_copies[&("one".into(), MEMBERS[0].into())].prunes;
        let guard = &world.index.rules().get(&"one".into()).unwrap().guard;
        let differs = guard.prune_differs(&MEMBERS[0].into(), reported.map(|asked| asked.digest));
        assert!(differs);
        world.judge(Effect {
            judge: BTreeSet::from(["one".into()]),
            ..Effect::default()
        });
    };
    let named = |world: &World| {
        let Directive::Assigned(assignment) =
            world.index.directive(&"one".into(), &MEMBERS[0].into())
        else {
            panic!()
        };
        assignment.prune()
    };
    prune(&mut world, 5);
    assert_eq!(named(&world), Some(PruneDigest([7; 16])));
    prune(&mut world, 0);
    assert_eq!(named(&world), None);
    prune(&mut world, 9);
    assert_eq!(
        (named(&world), world.pending().len()),
        (None, 1),
        "28 of 100 within a minute"
    );
    prune(&mut world, 0);
    assert_eq!(world.pending(), []);
}

#[test]
fn new_leader_blocks_what_the_former_one_blocked() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let none = json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}});
    world.change(|index| index.set_rule(rule("one", "team", &none)));
    let blocked = world.approval("one").unwrap().clone();
    let mut edited = rule("one", "team", &none);
    edited.removal.pending = Some(blocked.clone());
    // A new leader: agents reconnect one by one, each below every limit.
    let mut next = World::new();
    next.index.set_rule(edited.clone());
    next.index.reset_removal_guards();
    next.now.wall += Duration::from_secs(90);
    for member in MEMBERS {
        next.set_reported_copies("one", member, 5);
        next.change(|index| index.orphaned_cluster(&"one".into(), &member.into()));
        assert_eq!(next.leaving(), 0);
        assert_eq!(
            next.approval("one").unwrap().digest,
            blocked.digest,
            "nothing flaps"
        );
        next.later(WINDOW);
    }
    MEMBERS
        .iter()
        .for_each(|member| next.set_reported_copies("one", member, 12));
    // The set is complete again, so it can be approved before every agent has reconnected.
    let mut approved = rule("one", "team", &none);
    approved.removal.approve = Some(blocked.digest.clone());
    next.change(|index| index.set_rule(approved));
    assert_eq!((next.leaving(), next.pending().len()), (MEMBERS.len(), 0));
    // The guard waits for agents that report another set.
    let mut changed = World::new();
    changed.index.set_rule(edited);
    changed.index.reset_removal_guards();
    changed.set_reported_copies("one", MEMBERS[0], 12);
    changed.change(|index| index.orphaned_cluster(&"one".into(), &MEMBERS[0].into()));
    assert_eq!(changed.approval("one"), Some(&blocked));
    changed.change(|index| {
        index
            .rules_mut()
            .settle_guard(&"one".into(), &BTreeSet::new())
    });
    assert_ne!(
        changed.approval("one").map(|pending| &pending.digest),
        Some(&blocked.digest)
    );
    // A member that was disconnected reports more of them.
    let mut late = World::new();
    let mut edited = rule("one", "team", &none);
    edited.removal.pending = Some(blocked);
    late.index.set_rule(edited);
    late.index.reset_removal_guards();
    late.change(|index| {
        index
            .rules_mut()
            .settle_guard(&"one".into(), &BTreeSet::from(["member-2".into()]))
    });
    assert_eq!(late.pending(), []);
    late.set_reported_copies("one", "member-2", 5);
    late.change(|index| index.orphaned_cluster(&"one".into(), &"member-2".into()));
    assert_eq!((late.leaving(), late.pending().len()), (0, 1));
}

#[test]
fn dry_run_counts_removals_that_are_judged_once_it_is_enforced() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let mut spec = json!({"enforcement": "DryRun"});
    world.change(|index| index.set_rule(rule("one", "team", &spec)));
    spec["clusters"] = json!({"selector": {"matchLabels": {"env": "none"}}});
    world.change(|index| index.set_rule(rule("one", "team", &spec)));
    world.later(WINDOW);
    assert_eq!(
        (world.leaving(), world.pending().len()),
        (0, 0),
        "nothing goes, and nothing waits for approval"
    );
    let planned = world.planned("one");
    assert_eq!(planned.values().sum::<u64>(), 24, "{planned:?}");
    spec["enforcement"] = json!("Enforce");
    world.change(|index| index.set_rule(rule("one", "team", &spec)));
    assert_eq!((world.leaving(), world.pending().len()), (0, 1));
    assert_eq!(world.planned("one"), BTreeMap::new());
}

#[test]
fn removal_where_the_cluster_is_away_is_judged_when_it_is_back() {
    let mut world = World::new();
    world.add("one", "team", 1);
    world
        .reported_copies
        .remove(&("one".into(), "member-2".into()));
    let none = json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}});
    world.change(|index| index.set_rule(rule("one", "team", &none)));
    let is_unwanted = |world: &World| {
        matches!(
            world.index.directive(&"one".into(), &"member-2".into()),
            Directive::Removed(_)
        )
    };
    assert_eq!(world.leaving(), 1);
    assert!(!is_unwanted(&world), "nobody knows what is there");
    world.set_reported_copies("one", "member-2", 400);
    world.change(|index| index.orphaned_cluster(&"one".into(), &"member-2".into()));
    assert!(!is_unwanted(&world) && world.pending().len() == 1);
}

#[test]
fn switch_to_retain_needs_no_approval() {
    let mut world = World::new();
    world.add("one", "team", 12);
    let mut none = json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}});
    world.change(|index| index.set_rule(rule("one", "team", &none)));
    assert_eq!(world.pending().len(), 1);
    none["deletionPolicy"] = json!("Retain");
    world.change(|index| index.set_rule(rule("one", "team", &none)));
    assert_eq!((world.leaving(), world.pending()), (2, vec![]));
}

#[test]
fn limits_of_rule_member_and_fleet_are_each_kept() {
    let wide = Limit {
        count: 1000,
        percent: 100,
    };
    for (fleet, member) in [
        (
            Limit {
                count: 5,
                percent: 0,
            },
            wide,
        ),
        (
            wide,
            Limit {
                count: 2,
                percent: 0,
            },
        ),
    ] {
        let mut world = World::new();
        world.add_many(3);
        world.change(|index| {
            index.set_fleet_terms(FleetTerms {
                fleet,
                member,
                ..FleetTerms::default()
            })
        });
        world.relabel("prd");
        assert_eq!(
            (world.leaving(), world.pending().len()),
            (0, 1),
            "{fleet:?} {member:?}"
        );
    }
    // One rule above its own limit blocks what the same cause removes of the others.
    let mut world = World::new();
    world.add("big", "team", 8);
    world.add("small", "team", 1);
    let terms = FleetTerms {
        fleet: wide,
        member: wide,
        ..FleetTerms::default()
    };
    world.change(|index| index.set_fleet_terms(terms));
    world.relabel("prd");
    assert_eq!(
        (world.leaving(), world.pending()),
        (
            0,
            vec![(
                "labels of member clusters member-1, member-2 changed".to_owned(),
                18,
                2
            )]
        )
    );
}

#[test]
fn raised_limit_of_the_fleet_frees_what_is_below_it() {
    let mut world = World::new();
    world.add_many(27);
    world.relabel("prd");
    assert_eq!((world.leaving(), world.pending().len()), (0, 1));
    let raised = FleetTerms {
        fleet: Limit::NONE,
        member: Limit::NONE,
        ..FleetTerms::default()
    };
    world.change(|index| index.set_fleet_terms(raised));
    assert_eq!((world.leaving(), world.pending()), (54, vec![]));
}

#[test]
fn raised_limit_of_a_rule_frees_what_is_below_it() {
    let mut world = World::with_limits();
    world.add("one", "team", 12);
    let none = json!({"clusters": {"selector": {"matchLabels": {"env": "none"}}}});
    world.change(|index| index.set_rule(rule("one", "team", &none)));
    assert_eq!((world.leaving(), world.pending().len()), (0, 1));
    let mut raised = none;
    raised["removalLimit"] = json!({"count": 100, "percent": 100});
    world.change(|index| index.set_rule(rule("one", "team", &raised)));
    assert_eq!((world.leaving(), world.pending()), (2, vec![]));
}
