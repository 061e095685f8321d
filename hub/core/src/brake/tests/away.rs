//! Deletions one after another, clusters that are away while something is edited, and members that say what is not so.
use super::*;

impl World {
    /// A rule like the others, for copies of its own.
    fn add_rule(&mut self, number: u64) -> RuleUid {
        let (uid, known) = (RuleUid::from(format!("r{number}")), self.drafts.values().next().unwrap());
        let mut draft = Draft { deleting: false, removal: None, takeovers: None, ..known.clone() };
        draft.spec["namespaces"] = json!({"names": [format!("n{number}")]});
        self.drafts.insert(uid.clone(), draft);
        self.write(&uid);
        uid
    }

    /// Deletes a rule. Returns how many copies went.
    fn delete(&mut self, uid: &RuleUid) -> usize {
        self.drafts.get_mut(uid).unwrap().deleting = true;
        self.write(uid);
        let (due, next) = self.index.next_judgement().unwrap();
        self.now = due;
        self.judge(Effect { judge: [next].into(), ..Effect::default() });
        self.follow()[uid].len()
    }

    /// How many copies the status says are held of a rule.
    fn copies_held(&mut self, uid: &RuleUid) -> Option<i64> {
        self.persist();
        let removal = self.drafts[uid].removal.as_ref();
        removal.filter(|removal| !removal.released).map(|removal| removal.copies)
    }
}

#[test]
fn rules_that_are_deleted_one_after_another_add_up() {
    let mut world = World::new();
    let uids: Vec<_> = (0..14).map(|number| world.add_rule(number)).collect();
    world.follow();
    let mut held = vec![];
    for uid in &uids {
        world.now += Duration::from_secs(3);
        if world.delete(uid) == 0 {
            held.push(uid.as_str());
            continue;
        }
        // What passed is let go, and is not there to be counted.
        assert!(world.index.may_go(uid));
        world.change(|index| index.remove_rule(uid));
        world.drafts.remove(uid);
        world.held.remove(uid);
    }
    assert_eq!(held, ["r10", "r11", "r12", "r13"]);
    // A person deletes one, later.
    world.now += WINDOW;
    let last = world.add_rule(20);
    world.follow();
    assert_eq!(world.delete(&last), 24 * 5);
}

/// A rule of eight sources in each of five clusters, three of which have not been heard by this process.
fn three_are_away() -> (World, RuleUid) {
    let (mut world, uid) = (World::new(), RuleUid::from("r0"));
    let names: Vec<_> = (0..8).map(|number| format!("s{number}")).collect();
    respec(&mut world, &uid, "removalLimit", json!({"count": 1000}));
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": names}]));
    respec(&mut world, &uid, "removalLimit", json!({}));
    world.follow();
    assert_eq!(world.held[&uid].len(), 8 * 5);
    world.restart();
    (0..2).for_each(|number| world.connect(cluster_name(number)));
    world.follow();
    (world, uid)
}

#[test]
fn removals_in_absent_clusters_are_judged_together() {
    let (mut world, uid) = three_are_away();
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"]}));
    assert_eq!(world.copies_held(&uid), Some(3 * 8), "as many as the rule says");
    let digest = world.digest(&uid);
    // They come back, long after each other; in one of them nothing is left.
    world.held.get_mut(&uid).unwrap().retain(|(cluster, _)| *cluster != cluster_name(4));
    for number in 2..4 {
        world.now += 2 * WINDOW;
        world.connect(cluster_name(number));
        assert!(world.follow()[&uid].is_empty(), "cluster {number}");
        assert_eq!((world.copies_held(&uid), &world.digest(&uid)), (Some(24), &digest));
    }
    world.connect(cluster_name(4));
    assert_eq!(world.copies_held(&uid), Some(16));
    let digest = world.digest(&uid);
    world.drafts.get_mut(&uid).unwrap().release = digest;
    world.write(&uid);
    assert_eq!(world.follow()[&uid].len(), 16);

    // Nothing is held for ever in a cluster that is gone.
    let (mut world, uid) = three_are_away();
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"]}));
    for number in 2..5 {
        world.change(|index| index.remove_cluster(&cluster_name(number)));
    }
    assert_eq!(world.copies_held(&uid), None);
}

#[test]
fn removal_below_the_limit_while_away_is_judged_on_return() {
    let (mut world, uid) = three_are_away();
    // Nobody knows that copies of former sources are there.
    let former = (8..24).map(|number| (cluster_name(4), source(number)));
    world.held.get_mut(&uid).unwrap().extend(former);
    let all = ["c0", "c1", "c2", "c3"];
    respec(&mut world, &uid, "clusters", json!({"names": all, "exclude": ["c9"]}));
    assert_eq!(world.copies_held(&uid), None, "eight copies are below the limit");
    world.connect(cluster_name(4));
    assert!(world.follow()[&uid].is_empty());
    assert_eq!(world.copies_held(&uid), Some(24));
}

#[test]
fn small_edits_about_clusters_that_are_away_add_up() {
    let (mut world, uid) = three_are_away();
    let mut edits = |clusters: &[&str]| {
        world.now += Duration::from_secs(5);
        respec(
            &mut world,
            &uid,
            "clusters",
            json!({"names": clusters, "exclude": [format!("c{}", 5 + clusters.len())]}),
        );
        // Whoever asks again what may go is not asking for more.
        world.judge(Effect { judge: [uid.clone()].into(), ..Effect::default() });
        world.copies_held(&uid)
    };
    assert_eq!(edits(&["c0", "c1", "c2", "c3"]), None);
    assert_eq!(edits(&["c0", "c1", "c2"]), Some(8), "sixteen within a minute");
}

#[test]
fn undone_edit_is_over_though_a_member_never_returns() {
    let (mut world, uid) = three_are_away();
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"]}));
    world.restart();
    (0..4).for_each(|number| world.connect(cluster_name(number)));
    respec(&mut world, &uid, "clusters", json!({"all": true}));
    world.follow();
    assert!(world.index.is_held(&uid), "one has not said what it holds");
    let away = BTreeSet::from([cluster_name(4)]);
    let effect = world.index.settle_brake(&uid, &away);
    world.judge(effect);
    assert!(!world.index.is_held(&uid) && world.copies_held(&uid).is_none());

    // What only that one holds is held when it returns after all, however little it is.
    world.held.get_mut(&uid).unwrap().insert((cluster_name(4), source(20)));
    world.connect(cluster_name(4));
    assert!(world.follow()[&uid].is_empty());
    assert!(world.copies_held(&uid).is_some());
    let digest = world.digest(&uid);
    world.drafts.get_mut(&uid).unwrap().release = digest;
    world.write(&uid);
    assert_eq!(world.follow()[&uid].len(), 1);
}

#[test]
fn used_digest_approves_nothing_again() {
    let (mut world, uid) = (World::new(), RuleUid::from("r0"));
    world.follow();
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"]}));
    assert_eq!(world.copies_held(&uid), Some(3 * 24));
    let first = world.digest(&uid);
    world.drafts.get_mut(&uid).unwrap().release = first.clone();
    world.write(&uid);
    assert_eq!(world.follow()[&uid].len(), 3 * 24);
    // Another set is held, and is undone while another process of the hub has taken over; then there is a third one.
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": ["s1"]}]));
    assert_eq!(world.copies_held(&uid), Some(2 * 23));
    world.restart();
    respec(&mut world, &uid, "sources", json!([{"resources": ["configmaps"], "names": ["s*"]}]));
    for _ in 0..2 {
        (0..CLUSTERS).for_each(|number| world.connect(cluster_name(number)));
        world.follow();
        let effect = world.index.settle_brake(&uid, &BTreeSet::new());
        world.judge(effect);
        assert_eq!(world.copies_held(&uid), None);
        world.restart();
    }
    (0..CLUSTERS).for_each(|number| world.connect(cluster_name(number)));
    // The first set once more; its digest is still in the annotation.
    respec(&mut world, &uid, "clusters", json!({"all": true}));
    world.follow();
    respec(&mut world, &uid, "clusters", json!({"names": ["c0", "c1"]}));
    assert!(world.follow()[&uid].is_empty());
    assert_eq!(world.copies_held(&uid), Some(3 * 24));
    assert_ne!(world.digest(&uid), first);
}

#[test]
fn member_that_overcounts_copies_widens_no_limit() {
    for namespaces in [json!({"names": ["n0"]}), json!({"names": ["n*"]})] {
        let (mut world, uid) = (World::new(), RuleUid::from("r0"));
        let names: Vec<_> = (0..10).map(|number| format!("s{number}")).collect();
        let draft = world.drafts.get_mut(&uid).unwrap();
        draft.spec["namespaces"] = namespaces.clone();
        draft.spec["sources"] = json!([{"resources": ["configmaps"], "names": names}]);
        let rule = world.rule(&uid);
        world.index.remove_rule(&uid);
        world.index.set_rule(rule);
        let liar = cluster_name(4);
        let told = |_: &RuleUid, cluster: &ClusterName| {
            let copies = if *cluster == liar { u64::from(u32::MAX) } else { 10 };
            Some(Holding { copies, intents: copies, takeovers: None, given_up: None })
        };
        let mut drops = |clusters: serde_json::Value| {
            world.now += 2 * WINDOW;
            world.drafts.get_mut(&uid).unwrap().spec["clusters"] = clusters;
            let rule = world.rule(&uid);
            world.index.set_rule(rule);
            world.index.judge(&uid, &told, world.now);
            !world.index.is_held(&uid)
        };
        assert!(drops(json!({"names": ["c1", "c2", "c3", "c4"], "exclude": ["c9"]})), "{namespaces}: ten copies");
        assert!(
            !drops(json!({"names": ["c3", "c4"], "exclude": ["c8"]})),
            "{namespaces}: half of what the others have"
        );
    }
}

#[test]
fn member_that_invents_sources_holds_up_no_other_rule() {
    let mut world = World::new();
    world.follow();
    let (uid, other) = (RuleUid::from("r0"), RuleUid::from("r1"));
    let invented: BTreeSet<_> =
        (0..100_000).map(|number| SourceRef::new("configmaps", "a", &format!("x{number}"))).collect();
    let effect = world.index.orphaned_intents(&uid, &cluster_name(4), invented);
    world.judge(effect);
    assert!(world.copies_held(&uid).is_some());
    assert!(world.index.rule(&uid).unwrap().brake.held().len() <= 20_000);
    // A source that somebody deletes counts as ever, to the other rule.
    world.index.vanish_source(&source(0), world.now);
    world.now += GRACE;
    let now = world.now;
    world.change(|index| index.expire_deleted(now, GRACE));
    let gone = world.follow();
    assert_eq!((gone[&uid].len(), gone[&other].len()), (5, 5));
}

#[test]
fn status_of_the_guard_plans_nothing_and_heeds_approval() {
    let mut world = World::new();
    world.follow();
    let uid = RuleUid::from("r0");
    respec(&mut world, &uid, "clusters", json!({"names": ["c0"]}));
    assert!(world.follow()[&uid].is_empty());
    world.persist();
    let plan = std::sync::Arc::as_ptr(&world.index.rule(&uid).unwrap().plan);
    let removal = world.rule(&uid).removal;
    let effect = world.index.set_removal(&uid, removal);
    assert!(effect.judge.is_empty() && effect.rules.is_empty() && effect.clusters.is_empty());
    let digest = world.digest(&uid);
    world.drafts.get_mut(&uid).unwrap().release = digest;
    let removal = world.rule(&uid).removal;
    world.change(|index| index.set_removal(&uid, removal));
    assert_eq!(world.follow()[&uid].len(), 4 * 24);
    assert_eq!(std::sync::Arc::as_ptr(&world.index.rule(&uid).unwrap().plan), plan);
}
