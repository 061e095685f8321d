//! The accounts under which the agent writes copies.
use std::collections::BTreeSet;

use super::preview::question;
use super::*;
use crate::decide::Work;
use crate::policy::{OnRevoke, ServiceAccount};

const TEAM: &str = "impersonate: [{hubNamespace: team, serviceAccount: tenants/team}]";

fn account(name: &str) -> Option<ServiceAccount> {
    Some(ServiceAccount {
        namespace: "tenants".into(),
        name: name.into(),
    })
}

/// A cluster whose policy has accounts, and allows all else.
fn world(impersonate: &str) -> World {
    let mut world = World::new(&["team", "a"]);
    world.set_policy(Policy {
        impersonate: Policy::parse(impersonate).unwrap().impersonate,
        ..Policy::open()
    });
    world.connect();
    world
}

fn of_namespace(uid: &str, namespace: &str, sources: &[&str]) -> RuleDelta {
    let mut terms = terms(uid, &["a"]);
    terms.rule.namespace = namespace.to_owned();
    RuleDelta {
        upserts: sources.iter().map(|name| intent(name, 1)).collect(),
        ..with_terms(uid, terms)
    }
}

/// Runs everything that is due, and returns the accounts of all writes.
fn run(world: &mut World) -> BTreeSet<Option<ServiceAccount>> {
    let mut accounts = BTreeSet::new();
    loop {
        world.dispatch();
        let writes = world.under_way.iter();
        let writes = writes.filter(|job| !matches!(job.work, Work::Read));
        accounts.extend(writes.map(|job| job.account.clone()));
        if !(world.work_one() || world.deliver_one()) {
            return accounts;
        }
    }
}

#[test]
fn copies_of_a_hub_namespace_are_written_by_its_account() {
    let mut world = world(TEAM);
    world.batch(vec![of_namespace("r", "team", &["one", "two"])]);
    assert_eq!(run(&mut world), BTreeSet::from([account("team")]));
    world.edit(&copy("a", "one"), |object| object.live.intact = false);
    assert_eq!(run(&mut world), BTreeSet::from([account("team")]), "drift");
    world.remove_rule("r", DeletionPolicy::Delete);
    assert_eq!(
        run(&mut world),
        BTreeSet::from([account("team")]),
        "removal"
    );
    assert!(world.objects.is_empty());
}

#[test]
fn other_rules_are_written_by_the_agent() {
    let mut world = world(TEAM);
    world.batch(vec![
        of_namespace("cluster", "", &["one"]),
        of_namespace("other", "other", &["two"]),
    ]);
    assert_eq!(run(&mut world), BTreeSet::from([None]));
}

#[test]
fn another_policy_changes_the_account_of_the_next_write() {
    let mut world = world(TEAM);
    world.batch(vec![of_namespace("r", "team", &["one"])]);
    run(&mut world);
    world.set_policy(Policy {
        impersonate: Policy::parse(
            "impersonate: [{hubNamespace: '*', serviceAccount: tenants/all}]",
        )
        .unwrap()
        .impersonate,
        ..Policy::open()
    });
    assert!(run(&mut world).is_empty(), "no write without a change");
    world.delete(&copy("a", "one"));
    assert_eq!(run(&mut world), BTreeSet::from([account("all")]));
}

#[test]
fn refused_namespace_is_created_by_the_next_account() {
    let mut world = world(
        "impersonate: [{hubNamespace: one, serviceAccount: tenants/one}, {hubNamespace: two, serviceAccount: tenants/two}]",
    );
    let creates = |uid: &str| {
        let mut delta = of_namespace(uid, uid, &[uid]);
        if let Some((terms, _)) = &mut delta.terms {
            terms.namespaces.as_mut().unwrap().names = vec![Pattern::new("new")];
            terms.create_namespaces = true;
        }
        delta
    };
    world.batch(vec![creates("one"), creates("two")]);
    let mut tried = vec![];
    for _ in 0..2 {
        world.dispatch();
        let job = world.under_way.pop_front().unwrap();
        assert!(matches!(job.work, Work::CreateNamespace));
        tried.push(job.account.clone());
        let done = Done {
            copy_error: Some(CopyError::new(Reason::Forbidden, "no")),
            ..Done::new(job.key)
        };
        world.core.handle(Event::Done(Box::new(done)), world.now);
        world.now += Duration::from_secs(60);
    }
    assert_eq!(tried, [account("one"), account("two")]);
    world.settle();
    assert_eq!(world.objects.len(), 2);
}

#[test]
fn preview_has_the_account_of_its_rule() {
    let mut world = world(TEAM);
    world.batch(vec![of_namespace("r", "team", &["one"])]);
    run(&mut world);
    let mut terms = terms("r", &["a"]);
    terms.rule.namespace = "team".to_owned();
    let request = question("r", Some(terms), &[("one", 1), ("two", 1)], &[]);
    let frame = HubFrame::PreviewRequest(Box::new(request));
    world.core.handle(Event::Hub(frame, vec![]), world.now);
    let job = world.core.next_job(world.now).unwrap();
    let Work::Preview(preview) = job.work else {
        panic!("it is no preview");
    };
    assert!(!preview.items.is_empty());
    assert!(
        preview
            .items
            .iter()
            .all(|item| item.account == account("team"))
    );
}

/// Returns the accounts that remove the copy of a rule of which the agent has no terms, and whether the copy is gone.
fn removal_without_terms(
    impersonate: &str,
    purges: bool,
) -> (BTreeSet<Option<ServiceAccount>>, bool) {
    let mut world = world(impersonate);
    world.batch(vec![of_namespace("r", "team", &["one"])]);
    run(&mut world);
    world.stored.clear();
    world.restart();
    if purges {
        let on_revoke = OnRevoke::Purge;
        let policy = world.policy.clone();
        world.set_policy(Policy {
            on_revoke,
            ..policy
        });
        world.core.handle(Event::Revoked, world.now);
    } else {
        world.connect();
        world.remove_rule("r", DeletionPolicy::Delete);
    }
    let accounts = run(&mut world);
    (accounts, world.objects.is_empty())
}

#[test]
fn copy_of_an_unknown_rule_is_not_removed_by_the_agent() {
    let others = "impersonate: [{hubNamespace: team, serviceAccount: tenants/team}, \
                  {hubNamespace: '*', serviceAccount: tenants/all}]";
    for purges in [false, true] {
        let refused = removal_without_terms(TEAM, purges);
        assert_eq!(refused, (BTreeSet::new(), false), "{purges}");
        let removed = removal_without_terms(others, purges);
        assert_eq!(
            removed,
            (BTreeSet::from([account("all")]), true),
            "{purges}"
        );
        let removed = removal_without_terms("impersonate: []", purges);
        assert_eq!(removed, (BTreeSet::from([None]), true), "{purges}");
    }
}

/// A cluster in which these accounts may not write. Rule r of team wants `a/one`, and so does the younger rule q of others.
fn contested(refused: &[&str]) -> World {
    let accounts = "impersonate: [{hubNamespace: team, serviceAccount: tenants/team}, \
                    {hubNamespace: others, serviceAccount: tenants/others}]";
    let mut world = world(accounts);
    world.refused_accounts = refused.iter().map(|&name| name.to_owned()).collect();
    let mut younger = of_namespace("q", "others", &["one"]);
    younger.terms.as_mut().unwrap().0.created_at = 900;
    world.batch(vec![of_namespace("r", "team", &["one"]), younger]);
    world.settle_now();
    world
}

#[test]
fn rule_whose_account_is_refused_holds_no_place() {
    let mut world = contested(&["team"]);
    assert!(world.holds(&copy("a", "one"), "q", "one", 1));
    let state = world.reported_state("r").unwrap();
    assert_eq!(
        state.failures[0].message,
        "others/q wins this copy: the account of this rule may not write it"
    );
    // Its rights come, and the other rule keeps what it has.
    world.refused_accounts.clear();
    world.now += std::time::Duration::from_secs(60);
    world.settle_now();
    assert!(world.holds(&copy("a", "one"), "q", "one", 1));
    world.remove_rule("q", DeletionPolicy::Delete);
    world.settle_now();
    assert!(world.holds(&copy("a", "one"), "r", "one", 1));
}

#[test]
fn refused_rules_try_in_turn_until_one_may_write() {
    let mut world = contested(&["team", "others"]);
    assert!(world.objects.is_empty());
    let tries = world.tries;
    world.now += std::time::Duration::from_secs(60);
    world.settle_now();
    assert!(
        (1..=4).contains(&(world.tries - tries)),
        "{}",
        world.tries - tries
    );
    world.refused_accounts.remove("others");
    for _ in 0..2 {
        world.now += std::time::Duration::from_secs(60);
        world.settle_now();
    }
    assert!(world.holds(&copy("a", "one"), "q", "one", 1));
}
